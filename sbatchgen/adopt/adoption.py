"""A script -> a job YAML, a profile, and the account of its lines.

Then the script that they render is compared with the old one: what is asked of Slurm, and what is started,
has to be the same, but for what the account says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from sbatchgen.adopt import directives, environment, launch
from sbatchgen.adopt.block import Block, blocks
from sbatchgen.adopt.draft import Draft
from sbatchgen.adopt.remarks import Remark
from sbatchgen.bash import Word
from sbatchgen.errors import DocumentError, SbatchgenError
from sbatchgen.finding import Finding
from sbatchgen.inputs.document import decode
from sbatchgen.inputs.job import JobSpec
from sbatchgen.inputs.layers import Level, layer
from sbatchgen.inputs.profile import Profile
from sbatchgen.inputs.search import bundled
from sbatchgen.job.launches import Launch
from sbatchgen.job.script import JobScript
from sbatchgen.lint.command import TELLS_SECRETS
from sbatchgen.lint.linter import lint
from sbatchgen.plan.plan import Plan
from sbatchgen.plan.resolve import resolve
from sbatchgen.render.render import render
from sbatchgen.rules.directives import OLD
from sbatchgen.rules.judge import check
from sbatchgen.sbatch.grammar import mebibytes, minutes
from sbatchgen.sbatch.header import READ
from sbatchgen.units import is_utf8

_OMITTED = (
    "output",
    "nodes",
    "ntasks_per_node",
    "cpus_per_task",
    "time",
    "requeue",
)  # where the script sets none
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
    if script.sbatch.returncode is not None and script.read_by(OLD).sbatch.returncode is None:
        script = script.read_by(OLD)
    _refuse(script)
    findings = [one for one in lint(script) if not one.pedantic and one.severity != "info"]
    secrets = frozenset(one.place.line for one in findings if one.rule == TELLS_SECRETS)
    draft = Draft(script=script, environment=user, secrets=secrets)
    _read(draft)
    name = _name(file)
    if "mode" not in draft.job:
        return _adoption(draft, name)
    return _rendered(draft, findings, name, day)


def _refuse(script: JobScript) -> None:
    """Raise for what is no script, or not one of bash."""
    said = [one.text for one in script.sbatch.messages if one.level in ("error", "fatal", "")]
    if script.sbatch.returncode is not None:
        why = said[0].partition(".  ")[0] if said else "it is no script"  # its first sentence
        what = f"sbatch refuses the script: {why}"
        raise DocumentError.of(what, at=script.file, fix=f"sbatchgen lint {script.file}")
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
    _name_comments(draft)
    found = blocks(script.body)
    training = _training(draft, found)
    if training is None:
        rest = tuple(line for block in found for line in block.lines if line not in draft.remarks)
        draft.add(rest, "lost", "no training is started that could be made a job")
        if "ntasks" in draft.options:
            draft.add((script.at_option("ntasks").line,), "understood", f"ntasks: {draft.options['ntasks']}")
        return
    one, home = training
    before = [block for block in found if block.last < home.first]
    environment.move(draft, before)
    launch.read(draft, one, home.lines)
    _beside(draft, home, one)
    environment.read(draft, before, one)
    for block in found:
        if block.first > home.last:
            _behind(draft, block)


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


def _name_comments(draft: Draft) -> None:
    """Comments, the first line, and what stands behind the end."""
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


def _training(draft: Draft, found: Sequence[Block]) -> tuple[Launch, Block] | None:
    """The launch of the training, and where it stands; what else is started is told."""
    trainings = [one for one in draft.script.trainings if one.command.name != "command"]
    homes = {id(one): block for one in trainings for block in found if one.command.line in block.lines}
    trainings = [one for one in trainings if id(one) in homes]
    if not trainings:
        others = [
            one for one in draft.script.launches if not one.is_helper and not one.command.context.substitution
        ]
        for one in others:
            what = f"{one.program.name}: no Python program that this tool could start"
            draft.add((one.command.line,), "lost", what)
        return None
    chosen = next((one for one in reversed(trainings) if one.step or one.launcher), trainings[-1])
    home = homes[id(chosen)]
    for one in trainings:
        if one is chosen:
            continue
        block = homes[id(one)]
        if block.first > home.last or one.step or one.launcher or one.command.background or block is home:
            draft.add(
                block.lines,
                "lost",
                f"a second step, {one.program.name}: a job trains once; make it a job of its own",
            )
    context = chosen.command.context
    where = (
        ("function", f"the function {context.function}"), ("loop", "a loop"), ("branch", "a branch"),
        ("subshell", "a subshell"),
    )  # fmt: skip
    for name, told in where:
        if getattr(context, name) and not (name == "subshell" and chosen.command.background):
            draft.add(home.lines, "lost", f"the training is started in {told}")
            return None
    if any(one.exported is False and one.word is None for one in home.sets):
        draft.add(home.lines, "lost", "what is started depends on more than the text tells")
    if chosen.command.background and any(draft.script.body.traps):
        what = "the training runs in the background while a trap waits: see resume and requeue_on_timeout"
        draft.add(home.lines, "lost", what)
    return chosen, home


def _beside(draft: Draft, home: Block, one: Launch) -> None:
    """The other commands of the launch's lines."""
    own = one.command
    for command in home.outer:
        same = command is own or (command.line == own.line and command.name in ("eval", "tee"))
        if same or (command.pipe is not None and command.pipe is own.pipe):
            continue
        if command.name in ("echo", "printf", "date", "wait", "exit", "true", "false", "time"):
            draft.add(home.lines, "dropped", f"{command.name}: the status of the job is that of the training")
        else:
            draft.add(home.lines, "lost", f"{command.name} beside the training")


def _behind(draft: Draft, block: Block) -> None:
    """What stands after the training."""
    if any(draft.remarks.became(line) == "lost" for line in block.lines):
        return
    if block.only_closes:
        draft.add(block.lines, "dropped", "the job ends here, with the status of the training")
    else:
        what = "runs after the training: make it a job of its own, --dependency=afterok:JOBID"
        draft.add(block.lines, "lost", what)


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
    profile = _profile(draft, name, day)
    job = _job(draft, name)
    try:
        plan = plan_of(job, profile, name)
        script = render(
            plan,
            code=bundled("code"),
            rerun=("sbatchgen", "render", f"{name}.yaml"),
            folders=[bundled("templates")],
        )
        _prove(draft, plan, script)
        for finding in check(plan, log_folders_made=True):
            if finding.severity == "error":
                draft.add((), "lost", f"render refuses the job: {finding.problem.what}")
        mended, left = _parted(findings, draft, plan, script)
    except SbatchgenError as error:
        for problem in error.problems:
            draft.add((), "lost", problem.what)
        return _adoption(draft, name)
    _say_mended(draft, mended)
    if "PYTHONNOUSERSITE" not in draft.env and plan.runtime in ("host", "conda", "apptainer"):
        draft.note("packages of ~/.local are left out; with env: {PYTHONNOUSERSITE: ''} they are not")
    return replace(
        _adoption(draft, name), mended=mended, left=left, job=job, profile=profile, rendered=script
    )


def _adoption(draft: Draft, name: str) -> Adoption:
    """The account of a script, without files."""
    lines = _lines(draft)
    return Adoption(
        script=draft.script.file, name=name, rows=draft.remarks.rows, lines=lines, notes=draft.notes
    )


def plan_of(job: str, profile: str, name: str) -> Plan:
    """The plan of a job YAML and a profile.

    Raises:
        DocumentError: They are wrong.
    """
    cluster = decode(profile, Profile, name=f"{name}-cluster.yaml")
    spec = decode(job, JobSpec, name=f"{name}.yaml")
    mode = spec.value.mode or "single"
    return resolve(cluster, [layer(Level.JOB, spec.value, spec.places)], mode=mode, name=name)


def _profile(draft: Draft, name: str, day: str) -> str:
    """The profile's YAML."""
    omit = [key for key in _OMITTED if key not in draft.options]
    if "job_name" not in draft.options:
        omit.append("job_name")
    setup = [*draft.setup, *draft.step_setup]
    keys: dict[str, Any] = {
        "name": f"{name}-cluster",
        "url": draft.script.file,
        "checked": day,
        "description": f"what {draft.script.file.rpartition('/')[2]} says of its cluster",
        **draft.profile,
        **({"setup": setup} if setup else {}),
        **({"omit": omit} if omit else {}),
    }
    head = f"# Adopted from {draft.script.file}: what it says of the cluster, and lines of shell (setup).\n"
    return f"{head}{_yaml(keys)}"


def _job(draft: Draft, name: str) -> str:
    """The job's YAML."""
    job = draft.job
    first = ("mode", "launcher", "nproc_per_node", "gpu_request", "trainer", "args", "run_dir", "data")
    keys = {
        "profile": f"./{name}-cluster.yaml",
        **{key: job[key] for key in first if key in job},
        "resume": "off",
        **({"env": draft.env} if draft.env else {}),
        "options": draft.options,
        **({"extra_options": job["extra_options"]} if "extra_options" in job else {}),
    }
    head = f"# Adopted from {draft.script.file}.\n"
    return f"{head}{_yaml({key: value for key, value in keys.items() if value not in ({}, [])})}"


def _yaml(keys: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(keys), sort_keys=False, allow_unicode=True, width=10**6))


def _prove(draft: Draft, plan: Plan, rendered: str) -> None:
    """Compare what both scripts ask of Slurm and what they start."""
    old = draft.script
    new = replace(old, file="job.slurm", text=rendered, profile=plan.profile)
    asked, asks = _asked(old), _asked(new)
    asked.setdefault("job-name", draft.options.get("job_name", ""))
    for option in sorted(asked.keys() | asks.keys()):
        before, after = asked.get(option, ""), asks.get(option, "")
        if before != after and option not in draft.changed and (before or after):
            draft.add(
                (), "lost", f"--{option}: {before or 'not asked for'} there, {after or 'not asked for'} here"
            )
    started = started_by(old, draft), started_by(new, draft)
    if started[0] != started[1] and not draft.remarks.lost:
        draft.add((), "lost", f"there {started[0]} is started, here {started[1]}")


def _asked(script: JobScript) -> dict[str, str]:
    """What is asked of Slurm, each value as Slurm counts."""
    found = {}
    for name, use in script.options.items():
        text = "set" if use.value is None else use.value
        if name == directives.ADDS_UP:
            text = directives.mail_events(script)
        if name in ("time", "time-min"):
            text = str(minutes(text))
        elif name in ("mem", "mem-per-cpu", "mem-per-gpu", "tmp"):
            text = str(mebibytes(text))
        found[name] = text
    return found


def started_by(script: JobScript, draft: Draft) -> tuple[object, ...]:
    """What the training of a script starts: processes on a node, program and arguments."""
    one = next(iter(script.trainings[-1:]), None)
    if one is None:
        return ()
    chosen = next((each for each in reversed(script.trainings) if each.step or each.launcher), one)
    launcher = chosen.launcher
    workers = chosen.workers or (script.resources.gpu_count if launcher else 1)
    agents = 1 if launcher else chosen.tasks_per_node
    words = chosen.program.rest if chosen.program.name != "python" else chosen.program.rest[1:]
    return (workers, agents, _arguments(words, chosen, draft))


def _arguments(words: Sequence[Word], chosen: Launch, draft: Draft) -> tuple[str, ...]:
    body = chosen.program.body
    texts = [draft.argument(word, body) or draft.expandable(word, body) for word in words]
    for name, key in (("${RUN_DIR}", "run_dir"), ("${DATA_DIR}", "data")):
        texts = [text.replace(name, draft.job.get(key, name)) for text in texts]
    return tuple(word.text if "\0" in text else text for text, word in zip(texts, words, strict=True))


def _parted(
    found: Sequence[Finding], draft: Draft, plan: Plan, rendered: str
) -> tuple[list[Finding], list[Finding]]:
    """The findings of the old script: those that the new one has not, and those that it has."""
    new = replace(draft.script, file="job.slurm", text=rendered, makes_log_folders=True)
    still = {one.rule for one in (*lint(new), *check(plan, log_folders_made=True))}
    return [one for one in found if one.rule not in still], [one for one in found if one.rule in still]


def _say_mended(draft: Draft, mended: Sequence[Finding]) -> None:
    """Name the rules at the lines that they are about."""
    for finding in mended:
        if finding.place.line:
            kept = finding.rule.startswith("SB1") and draft.remarks.became(finding.place.line) == "understood"
            told = "as Slurm reads it today, " if kept else ""
            draft.add((finding.place.line,), "mended", f"{told}{finding.rule}: {finding.problem.what}")
