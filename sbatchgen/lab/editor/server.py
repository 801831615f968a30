"""The language server, which answers an editor over stdin and stdout by the Language Server Protocol."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from sbatchgen import __version__
from sbatchgen.base.errors import SbatchgenError
from sbatchgen.base.finding import Edit, Finding
from sbatchgen.check.lint.lint_settings import Settings
from sbatchgen.check.script.job import DEFAULT_SLURM
from sbatchgen.jobs.inputs.search import Places
from sbatchgen.jobs.judge.read_settings import settings_of
from sbatchgen.lab.editor.open_file import OpenFile

SOURCE = "sbatchgen"  # the name that an editor shows next to a finding
_SEVERITIES = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "info": types.DiagnosticSeverity.Information,
}
_COMPLETION_KINDS = {
    "option": types.CompletionItemKind.Property,
    "key": types.CompletionItemKind.Field,
    "value": types.CompletionItemKind.Value,
    "rule": types.CompletionItemKind.Constant,
}


class Server(LanguageServer):
    """A language server for scripts, jobs and profiles, with the cluster of the command line."""

    def __init__(self, profile: str | None, slurm: str | None, environment: Mapping[str, str]) -> None:
        super().__init__("sbatchgen", __version__)
        self.profile = profile
        self.slurm = slurm
        self.environment = environment
        self.settings: dict[Path, Settings] = {}  # the settings for the scripts of each folder

    def file(self, uri: str) -> OpenFile:
        """Return the file that is open at an address such as file:///home/me/train.slurm."""
        path = Path(to_fs_path(uri) or "unnamed.slurm")
        text = self.workspace.get_text_document(uri).source
        return OpenFile(
            path=path, text=text, settings=self._settings_of(path.parent), environment=self.environment
        )

    def _settings_of(self, folder: Path) -> Settings:
        """Return the settings for scripts in a folder.

        If they can't be read, show the problem and return settings without a cluster.
        """
        if folder not in self.settings:
            try:
                places = Places(folder, self.environment)
                self.settings[folder] = settings_of(places, self.profile, self.slurm)
            except SbatchgenError as error:
                for what, at, fix in error.problems[:3]:
                    text = "; ".join(filter(None, (f"sbatchgen: {what}", at and f"at {at}", fix)))
                    self.window_show_message(types.ShowMessageParams(types.MessageType.Error, text))
                self.settings[folder] = Settings(
                    profile=None, slurm=DEFAULT_SLURM, folder=folder, is_release_assumed=True
                )
        return self.settings[folder]

    def publish(self, uri: str, *, is_saved: bool) -> None:
        """Send the findings of a file to the editor."""
        file = self.file(uri)
        shown = [self.diagnostic(file, finding) for finding in file.findings(is_saved=is_saved)]
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, shown))

    def diagnostic(self, file: OpenFile, finding: Finding) -> types.Diagnostic:
        """Return a finding as a diagnostic of the Language Server Protocol."""
        place, problem = finding.place, finding.problem
        return types.Diagnostic(
            range=self.range(file.lines, place.line, place.column, place.end),
            message=problem.what + (f"\nfix: {problem.fix}" if problem.fix else ""),
            severity=_SEVERITIES[finding.severity],
            code=finding.rule or None,
            source=SOURCE,
        )

    def range(self, lines: Sequence[str], line: int, column: int, end: int) -> types.Range:
        """Return a part of a line as a range of the protocol, in the editor's units of columns.

        If `end` is 0, the range ends with the line.
        """
        text = lines[line - 1].removesuffix("\r")
        start = types.Position(line - 1, column - 1)
        stop = types.Position(line - 1, (end or len(text) + 1) - 1)
        return self.workspace.position_codec.range_to_client_units(lines, types.Range(start, stop))

    def line_and_column(self, file: OpenFile, position: types.Position) -> tuple[int, int]:
        """Return the line and the column of an editor's position, counted from 1."""
        copy = types.Position(position.line, position.character)  # because the codec may change its argument
        decoded = self.workspace.position_codec.position_from_client_units(file.lines, copy)
        return decoded.line + 1, decoded.character + 1


def serve(profile: str | None, slurm: str | None, environment: Mapping[str, str]) -> None:
    """Answer an editor until it closes the connection."""
    server = Server(profile, slurm, environment)
    for name, answer in (
        (types.TEXT_DOCUMENT_DID_OPEN, _opened_or_saved),
        (types.TEXT_DOCUMENT_DID_SAVE, _opened_or_saved),
        (types.TEXT_DOCUMENT_DID_CHANGE, _changed),
        (types.TEXT_DOCUMENT_DID_CLOSE, _closed),
        (types.TEXT_DOCUMENT_HOVER, _hover),
    ):
        server.feature(name)(partial(answer, server))
    triggers = types.CompletionOptions(trigger_characters=["-", "=", " ", ":", ","])
    server.feature(types.TEXT_DOCUMENT_COMPLETION, triggers)(partial(_complete, server))
    kinds = [types.CodeActionKind.QuickFix, types.CodeActionKind.SourceFixAll]
    options = types.CodeActionOptions(code_action_kinds=kinds)
    server.feature(types.TEXT_DOCUMENT_CODE_ACTION, options)(partial(_code_actions, server))
    server.start_io()


def _opened_or_saved(
    server: Server, event: types.DidOpenTextDocumentParams | types.DidSaveTextDocumentParams
) -> None:
    server.settings.clear()  # the files of the settings may have changed
    server.publish(event.text_document.uri, is_saved=True)


def _changed(server: Server, event: types.DidChangeTextDocumentParams) -> None:
    server.publish(event.text_document.uri, is_saved=False)


def _closed(server: Server, event: types.DidCloseTextDocumentParams) -> None:
    server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(event.text_document.uri, []))


def _hover(server: Server, event: types.HoverParams) -> types.Hover | None:
    file = server.file(event.text_document.uri)
    note = file.note(*server.line_and_column(file, event.position))
    if note is None:
        return None
    noted = server.range(file.lines, note.line, note.column, note.end)
    return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, note.text), noted)


def _complete(server: Server, event: types.CompletionParams) -> types.CompletionList:
    file = server.file(event.text_document.uri)
    line, column = server.line_and_column(file, event.position)
    choices = file.choices(line, column)
    to_replace = server.range(file.lines, line, choices.column, column)
    items = [
        types.CompletionItem(
            label=choice.text.strip(),
            kind=_COMPLETION_KINDS[choice.kind],
            detail=choice.description or None,
            sort_text=f"{'0' if choice.is_common else '1'}{choice.text}",
            filter_text=choice.text,
            text_edit=types.TextEdit(to_replace, choice.text),
        )
        for choice in choices.items
    ]
    return types.CompletionList(is_incomplete=False, items=items)


def _code_actions(server: Server, event: types.CodeActionParams) -> list[types.CodeAction]:
    """Return the fixes of the findings in the selected lines, and the edit that makes all safe fixes."""
    uri = event.text_document.uri
    file = server.file(uri)
    lines = range(event.range.start.line + 1, event.range.end.line + 2)
    findings = [finding for finding in file.findings(is_saved=False) if finding.place.line in lines]
    actions = [action for finding in findings for action in _finding_actions(server, uri, file, finding)]
    if (text := file.with_safe_fixes()) != file.text:
        whole = types.Range(types.Position(0, 0), types.Position(len(file.lines), 0))
        title, kind = "Make all safe fixes of sbatchgen", types.CodeActionKind.SourceFixAll
        edit = types.WorkspaceEdit({uri: [types.TextEdit(whole, text)]})
        actions.append(types.CodeAction(title, kind, edit=edit))
    return actions


def _finding_actions(
    server: Server, uri: str, file: OpenFile, finding: Finding
) -> Iterator[types.CodeAction]:
    """Yield the safe fix of a finding, and an edit that turns its rule off by a comment."""
    kind, diagnostics = types.CodeActionKind.QuickFix, [server.diagnostic(file, finding)]
    if finding.edits:
        title = f"{finding.rule}: {finding.problem.fix or 'fix it'}"
        edit = types.WorkspaceEdit({uri: [_edit(server, file, edit) for edit in finding.edits]})
        yield types.CodeAction(title, kind, diagnostics, is_preferred=True, edit=edit)
    text = file.lines[finding.place.line - 1] if file.kind == "script" and finding.rule else ""
    # No comment can follow #!, a line that continues on the next one, or another comment of sbatchgen.
    if text and finding.place.line > 1 and not text.endswith("\\") and "sbatchgen:" not in text:
        comment = Edit(finding.place.line, len(text) + 1, 0, f"  # sbatchgen: disable={finding.rule}")
        edit = types.WorkspaceEdit({uri: [_edit(server, file, comment)]})
        yield types.CodeAction(f"Turn {finding.rule} off in this line", kind, diagnostics, edit=edit)


def _edit(server: Server, file: OpenFile, edit: Edit) -> types.TextEdit:
    """Return an edit in the form of the protocol."""
    return types.TextEdit(server.range(file.lines, edit.line, edit.column, edit.end), edit.text)
