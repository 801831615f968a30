"""A script -> a job YAML, a profile, and the account of its lines.

Then the script that they render is compared with the old one: what is asked of Slurm, and what is started,
has to be the same, but for what the account says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sbatchgen.adopt import directives, documents, environment, launch, proof, training
from sbatchgen.adopt.block import blocks
from sbatchgen.adopt.draft import Draft
from sbatchgen.adopt.remarks import Remark
from sbatchgen.errors import DocumentError, SbatchgenError
from sbatchgen.finding import Finding
from sbatchgen.inputs.search import bundled
from sbatchgen.job.job import OLD_SLURM
from sbatchgen.job.script import JobScript
from sbatchgen.lint.call import TELLS_SECRETS
from sbatchgen.lint.linter import lint
from sbatchgen.plan.plan import Plan
from sbatchgen.render import exports
from sbatchgen.render.render import render, rendered_by
from sbatchgen.rules.judge import check
from sbatchgen.sbatch.header import READ
from sbatchgen.units import is_utf8

# What bash -l reads: bash(1), INVOCATION.
_LOGIN = (
    "source /etc/profile",
    "for file in ~/.bash_profile ~/.bash_login ~/.profile; do",
    '    [[ -r $file ]] && { source "$file"; break; }',
    "done",
)


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """What a script was turned into.

    Attributes:
        script: The script's file.
        name: The name of the job's file, without its end.
        rows: What became of its lines.
        lines: Of each line that is not empty, what became of it.
        mended: The rules of lint that find something in the script, and nothing in the rendered one.
        left: The findings that the rendered script has as well.
        notes: What else there is to know.
        job: The job YAML; "" if there is none.
        profile: The profile.
        rendered: What they render.
    """

    script: str
    name: str
    rows: Sequence[Remark]
    lines: Mapping[int, str]
    mended: Sequence[Finding] = ()
    left: Sequence[Finding] = ()
    notes: Sequence[str] = ()
    job: str = ""
    profile: str = ""
    rendered: str = ""

    @property
    def lost(self) -> list[Remark]:
        """What has no place in the job."""
        return [row for row in self.rows if row.became == "lost"]

    @property
    def file(self) -> str:
        """The name of the job's file."""
        return f"{self.name}.yaml"

    @property
    def files(self) -> dict[str, str]:
        """The files by name."""
        return {self.file: self.job, f"{self.name}-cluster.yaml": self.profile} if self.job else {}


def adopt(text: str, *, file: str, user: Mapping[str, str], day: str, folder: Path | None = None) -> Adoption:
    """Adopt a script.

    Args:
        text: The script.
        file: Its name.
        user: The user's environment, for HOME and USER.
        day: Today, as 2026-01-31.
        folder: Where it would be submitted.

    Raises:
        DocumentError: sbatch does not take it, or it is not read as bash.
    """
    script = JobScript(file=file, text=text, assumed=True, folder=folder)
    if script.sbatch.refusal and script.read_by(OLD_SLURM).sbatch.refusal is None:
        script = script.read_by(OLD_SLURM)
    _refuse(script)
    findings = [one for one in lint(script) if not one.pedantic and one.severity != "info"]
    secrets = frozenset(one.place.line for one in findings if one.rule == TELLS_SECRETS)
    draft = Draft(script=training.unchained(script), environment=user, secrets=secrets)
    _read(draft)
    name = _name(file)
    if "mode" not in draft.job:
        return _adoption(draft, name)
    return _rendered(draft, findings, name, day)


def _refuse(script: JobScript) -> None:
    """Raise for what is no script, or not one of bash."""
    if again := rendered_by(script.text):
        what = f"{script.file} was rendered by sbatchgen: its job is there already"
        raise DocumentError.of(what, at=f"{script.file}:2", fix=again)
    if refusal := script.sbatch.refusal:
        what = f"sbatch refuses the script: {refusal.text or 'an option asks for help'}"
        at = f"{script.file}:{refusal.line}" if refusal.line else script.file
        raise DocumentError.of(what, at=at, fix=f"sbatchgen lint {script.file}")
    if not is_utf8(script.text):
        raise DocumentError.of(f"{script.file} is not UTF-8", fix="iconv -f LATIN1 -t UTF-8 FILE > NEW")
    body = script.body
    if body.language not in ("bash", "sh"):
        raise DocumentError.of(
            f"{script.file} is a script of {body.language}, not of bash", at=f"{script.file}:1"
        )
    if body.faults:
        first = body.faults[0]
        at = f"{script.file}:{first.line}"
        raise DocumentError.of(f"{first.text}", at=at, fix=f"bash -n {script.file}")


def _read(draft: Draft) -> None:
    """Take over everything that has a place."""
    script = draft.script
    directives.read(draft)
    _read_first_line(draft)
    _read_comments(draft)
    found = blocks(script.body)
    chosen = training.find(draft, found)
    if chosen is None:
        rest = tuple(line for block in found for line in block.lines if line not in draft.remarks)
        draft.add(rest, "lost", training.REST)
        if "ntasks" in draft.options:
            draft.add((script.at_option("ntasks").line,), "understood", "options", "ntasks")
        return
    one, home = chosen
    before = [block for block in found if block.start < home.start]
    environment.follow_cd(draft, before)
    launch.read(draft, one)
    training.read_beside(draft, home, one)
    environment.read(draft, before, one)
    for block in found:
        if block.start > home.start:
            training.read_behind(draft, block)


def _read_first_line(draft: Draft) -> None:
    """The options of the first line, as lines of setup."""
    for flag in draft.script.body.flags.split():
        if flag in ("-l", "--login"):
            draft.setup += _LOGIN
        else:
            draft.setup.append(f"set {flag}")
    if draft.setup:
        draft.add((1,), "kept", f"{draft.script.body.flags} of the first line, in setup")
    else:
        draft.add((1,), "understood", "bash")


def _read_comments(draft: Draft) -> None:
    """Comments, and what stands behind the end of the script."""
    body = draft.script.body
    end = body.source.position(body.end)[0] if body.end < len(body.source.text) else 0
    asking = {one.line for one in draft.script.sbatch.directives if one.kind in READ}
    for line, _ in body.comments:
        starts = not draft.script.lines[line - 1].split("#")[0].strip()
        if starts and line not in draft.remarks and line not in asking:
            draft.add((line,), "dropped", "comment")
    for number, text in enumerate(body.source.text.split("\n"), start=1):
        empty = not text.strip() and draft.script.lines[number - 1].strip()
        if empty and number not in draft.remarks:
            draft.add((number,), "dropped", "comment")
        elif end and number > end and text.strip() and number not in draft.remarks:
            draft.add((number,), "dropped", "behind the end of the script")


def _name(file: str) -> str:
    name = file.rpartition("/")[2]
    stem = name.rpartition(".")[0] or name
    return stem if stem.strip("<>-.") == stem and stem else "job"


def _lines(draft: Draft) -> dict[int, str]:
    """What became of each line that is not empty; one that nothing was said of is lost."""
    found = {}
    for number, text in enumerate(draft.script.lines, start=1):
        if not text.strip():
            continue
        if number not in draft.remarks:
            draft.add((number,), "lost", "no key of a job says it")
        found[number] = str(draft.remarks.became(number))
    return found


def _rendered(draft: Draft, findings: Sequence[Finding], name: str, day: str) -> Adoption:
    """The files, the script that they render, and what differs."""
    profile = documents.profile(draft, name, day)
    job = documents.job(draft, name)
    try:
        plan = documents.plan_of(job, profile, name)
        script = render(
            plan,
            code=bundled("code"),
            rerun=("sbatchgen", "render", f"{name}.yaml"),
            folders=[bundled("templates")],
        )
        new = replace(draft.script, file="job.slurm", text=script, makes_log_folders=True)
        proof.compare(draft, plan, new)
        of_plan = check(plan, log_folders_made=True)
        for finding in of_plan:
            if finding.severity == "error":
                draft.add((), "lost", f"render refuses the job: {finding.problem.what}")
        mended, left = proof.mended_and_left(draft, findings, [*lint(new), *of_plan])
    except SbatchgenError as error:
        for problem in error.problems:
            draft.add((), "lost", problem.what)
        return _adoption(draft, name)
    _note_exports(draft, plan)
    return replace(
        _adoption(draft, name), mended=mended, left=left, job=job, profile=profile, rendered=script
    )


def _note_exports(draft: Draft, plan: Plan) -> None:
    """Tell of variables that the new script exports and the old one did not."""
    if "PYTHONNOUSERSITE" not in draft.env and plan.runtime in ("host", "conda", "apptainer"):
        draft.note("packages in ~/.local are not found: env: {PYTHONNOUSERSITE: ''} finds them")
    threads = exports.variables(plan).get("OMP_NUM_THREADS")
    if threads and "OMP_NUM_THREADS" not in draft.script.assigned:
        what = f"OMP_NUM_THREADS is {threads} here, and was not set"
        draft.note(f"{what}: env: {{OMP_NUM_THREADS: N}} sets another number")


def _adoption(draft: Draft, name: str) -> Adoption:
    """The account of a script, without files."""
    lines = _lines(draft)
    return Adoption(
        script=draft.script.file, name=name, rows=draft.remarks.rows, lines=lines, notes=draft.notes
    )
