"""A client of the language server: pygls's own, which starts it and speaks with it over stdin and stdout."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.lsp.client import LanguageClient

WAIT_S = 60


class Editor:
    """An editor that has one file open, with a cursor that a test puts after a text."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = LanguageClient("test", "1")
        self.sent: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()
        self.messages: list[str] = []
        self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(partial(self.sent.put_nowait))
        self.client.feature(types.WINDOW_SHOW_MESSAGE)(lambda event: self.messages.append(event.message))
        # As users start the server: `python -m` would look for modules in the working folder before it starts.
        command = [str(Path(sys.executable).with_name("sbatchgen")), "lsp", *options]
        self.run(self.client.start_io(*command, cwd=folder, env={**os.environ, "HOME": str(folder)}))
        asked = types.InitializeParams(capabilities=types.ClientCapabilities(), root_uri=folder.as_uri())
        self.answer = self.run(self.client.initialize_async(asked))
        self.client.initialized(types.InitializedParams())
        self.uri, self.text, self.version = "", "", 0

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, WAIT_S))

    def open(self, path: Path, text: str) -> list[types.Diagnostic]:
        self.uri, self.text = path.as_uri(), text
        item = types.TextDocumentItem(self.uri, "sh", self.version, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        return self.published()

    def type(self, text: str) -> list[types.Diagnostic]:
        """Replace the whole text, as a key does with a part."""
        self.text, self.version = text, self.version + 1
        document = types.VersionedTextDocumentIdentifier(self.version, self.uri)
        change = types.TextDocumentContentChangeWholeDocument(text)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))
        return self.published()

    def published(self) -> list[types.Diagnostic]:
        return [*self.run(self.sent.get()).diagnostics]

    def after(self, text: str) -> types.Position:
        before = self.text[: self.text.index(text) + len(text)]
        last = before.rpartition("\n")[2]
        return types.Position(before.count("\n"), len(last.encode("utf-16-le")) // 2)

    def hover(self, text: str) -> str:
        """What the server says of the place after this text."""
        asked = types.HoverParams(types.TextDocumentIdentifier(self.uri), self.after(text))
        answer = self.run(self.client.text_document_hover_async(asked))
        return answer.contents.value if answer else ""

    def complete(self, text: str) -> list[types.CompletionItem]:
        asked = types.CompletionParams(types.TextDocumentIdentifier(self.uri), self.after(text))
        return [*self.run(self.client.text_document_completion_async(asked)).items]

    def actions(self, text: str) -> list[types.CodeAction]:
        here = self.after(text)
        asked = types.CodeActionParams(
            types.TextDocumentIdentifier(self.uri), types.Range(here, here), types.CodeActionContext([])
        )
        return [*self.run(self.client.text_document_code_action_async(asked))]

    def made(self, action: types.CodeAction) -> str:
        """The text with the edits of an action."""
        assert action.edit
        assert action.edit.changes
        lines = [*self.text.splitlines(keepends=True), ""]
        starts = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
        text = self.text
        edits = action.edit.changes[self.uri]
        for edit in sorted(edits, key=lambda each: (each.range.start.line, each.range.start.character))[::-1]:
            at, end = (starts[place.line] + place.character for place in (edit.range.start, edit.range.end))
            text = text[:at] + edit.new_text + text[end:]
        return text


@contextmanager
def editor(folder: Path, *options: str) -> Iterator[Editor]:
    """Start a server for a folder, and end it as editors do."""
    made = Editor(folder, *options)
    try:
        yield made
    finally:
        made.run(made.client.shutdown_async(None))
        made.client.exit(None)
        server = made.client._server
        assert server
        assert made.run(server.wait()) == 0
        made.run(made.client.stop())  # type: ignore[no-untyped-call]
        made.loop.close()


def edit(folder: Path, names: Sequence[str]) -> None:
    """Open files of a folder one after the other, type in each, and ask for all that an editor asks for."""
    with editor(folder) as of:
        for name in names:
            text = Path(folder, name).read_text()
            of.open(folder / name, text)
            of.type(text + "# typed\n")
            of.hover("")
            of.complete("#")
            of.actions("#")
