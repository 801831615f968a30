"""A file that is open in an editor: its findings, notes and choices."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from sbatchgen.base.errors import SbatchgenError
from sbatchgen.base.finding import Finding, Place
from sbatchgen.base.keys import record
from sbatchgen.base.wrong_file import kind_of
from sbatchgen.check.lint import fix
from sbatchgen.check.lint.blocks import DOCUMENTS
from sbatchgen.check.lint.lint_settings import Settings, findings_of, script_of
from sbatchgen.check.lint.source import Source, scripts_in_document
from sbatchgen.jobs.inputs.document import Document, decode, read_document
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.search import Places, profile_named_in
from sbatchgen.jobs.judge import profile_check
from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.judge.read_settings import read_checked_profile
from sbatchgen.jobs.judge.trainer import layer_without_restarts
from sbatchgen.jobs.resolved.origins import Setting, settings
from sbatchgen.jobs.resolved.request import read_request
from sbatchgen.lab.editor import script_file as scripts
from sbatchgen.lab.editor.cluster import ClusterFacts
from sbatchgen.lab.editor.cursor import Choices, Note
from sbatchgen.lab.editor.yaml_file import YamlFile

_PROFILE = re.compile(r"^profile:[ \t]*([^\s#]+)", re.MULTILINE)  # the key of a job that names its profile
# A line that shows that a YAML file is a job.
_JOB_MARK = re.compile(r"^profile:|^# yaml-language-server:.*\bjob\.json", re.MULTILINE)
_LINE_AND_COLUMN = re.compile(r":(\d+)(?::(\d+))?$")  # the end of job.yaml:3:7


@record
class OpenFile:
    """A file that is open in an editor."""

    path: Path  # the path of the file, which need not exist
    text: str  # the text in the editor, saved or not
    settings: Settings  # the cluster and the policy for scripts in its folder
    environment: Mapping[str, str]  # the environment, in which profiles are looked up

    @cached_property
    def kind(self) -> str:
        """The kind of file: "script", "document", "job", "settings" or "profile"; "" for any other file."""
        if self.path.suffix in DOCUMENTS:
            return "document"
        kind = kind_of(self.path, self.text.encode("utf-8", "surrogatepass"))
        if kind == "yaml":
            return "job" if _JOB_MARK.search(self.text) else ""
        return kind if kind in ("script", "job", "settings", "profile") else ""

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text."""
        return self.text.split("\n")

    def findings(self, *, is_saved: bool) -> list[Finding]:
        """Return the findings with their places.

        With `is_saved`, findings are included that take too long to compute at each keystroke.
        """
        try:
            return [*self._findings(is_saved=is_saved)]
        except SbatchgenError as error:
            return [self._placed(Finding("error", problem)) for problem in error.problems]

    def _findings(self, *, is_saved: bool) -> Iterator[Finding]:
        """Yield the findings; raise SbatchgenError for a file that can't be read."""
        if self.kind == "script":
            yield from findings_of(self._source, self.settings)
        elif self.kind == "document":
            for example in scripts_in_document(self._source):
                yield from findings_of(example, self.settings)
        elif self.kind == "job":
            decode(self.text, JobSpec, name=str(self.path))  # raises for a wrong key or value
            yield from map(self._placed, check(self._request.resolved))
        elif self.kind == "settings":
            decode(self.text, JobSpec, name=str(self.path))
        elif self.kind == "profile":
            findings = profile_check.findings(self.path, self._places, self.text) if is_saved else ()
            read_checked_profile(self.path, self.text)
            yield from map(self._placed, findings)

    def note(self, line: int, column: int) -> Note | None:
        """Return a note about the word at a place; None if there is nothing to say about it."""
        if self.kind == "script":
            findings = findings_of(self._source, self.settings)
            return scripts.note(self._script, self.cluster, line, column, findings)
        return self._yaml.note(line, column) if self._yaml else None

    def choices(self, line: int, column: int) -> Choices:
        """Return the choices that an editor offers at a place."""
        if self.kind == "script":
            return scripts.choices(self._script, self.cluster, line, column)
        if self._yaml:
            return self._yaml.choices(line, column, [name for name, _ in self._places.profiles()])
        return Choices()

    def with_safe_fixes(self) -> str:
        """Return the text after all safe fixes."""
        if self.kind != "script":
            return self.text
        data = fix.apply_fixes(
            self._source.data, lambda data: findings_of(Source(file=str(self.path), data=data), self.settings)
        )
        return data.decode("utf-8", "surrogateescape")

    @cached_property
    def cluster(self) -> ClusterFacts | None:
        """The cluster that this file describes or names; None without a profile that can be read."""
        profile = self.settings.profile
        document: Document[Any] | None = Document(profile, self.settings.places) if profile else None
        named = _PROFILE.search(self.text) if self.kind == "job" else None
        # The texts to try until one is a valid profile. The text in the editor comes first, and may be wrong
        # while the user types. None stands for the file on disk.
        texts = (self.text, None) if self.kind == "profile" else (None,) if named else ()
        for text in texts:
            with suppress(SbatchgenError):
                file = self._places.profile(profile_named_in(self.path, named[1])) if named else self.path
                document = read_document(file, Profile, text, folder=self.path.parent)
                break
        return ClusterFacts(document=document, folder=self.path.parent) if document else None

    @cached_property
    def _yaml(self) -> YamlFile | None:
        """The file as a job or a profile; None for another kind of file."""
        record = {"job": JobSpec, "settings": JobSpec, "profile": Profile}.get(self.kind)
        if record is None:
            return None
        job_settings: Sequence[Setting] = []
        with suppress(SbatchgenError):  # a job with an error is shown without the origins of its values
            job_settings = [*settings(self._request)] if self.kind == "job" else []
        return YamlFile(record=record, lines=self.lines, cluster=self.cluster, settings=job_settings)

    @cached_property
    def _source(self) -> Source:
        return Source(file=str(self.path), data=self.text.encode("utf-8", "surrogatepass"))

    @cached_property
    def _script(self) -> Any:
        return script_of(self._source, self.settings)

    @property
    def _places(self) -> Places:
        return Places(self.path.parent, self.environment)

    @cached_property
    def _request(self) -> Any:
        path, folder = str(self.path), self.path.parent
        return read_request(
            path, (), {}, environment=self.environment, folder=folder, check=check, text=self.text,
            read_trainer=partial(layer_without_restarts, submit_folder=folder, environment=self.environment),
        )  # fmt: skip

    def _placed(self, finding: Finding) -> Finding:
        """Return a finding with its line; a finding about another file is at line 1, and names the file."""
        at = finding.problem.at
        match = _LINE_AND_COLUMN.search(at)
        if match and at.startswith(f"{self.path}:"):
            line = min(int(match[1]), len(self.lines))
            column = len(self.lines[line - 1]) - len(self.lines[line - 1].lstrip()) + 1
            return finding._replace(place=Place(at, line, column))
        what = f"{finding.problem.what} ({at})" if at else finding.problem.what
        return finding._replace(place=Place(at, 1, 1), problem=finding.problem._replace(what=what))
