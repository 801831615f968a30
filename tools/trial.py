"""A site's pack tried out: every job that its profiles can have, rendered, linted, and shown to Slurm.

    python -m tools.trial PACK|PROFILE...

PACK/profiles/*.yaml    PACK/templates/    PACK/jobs/*.yaml
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click

from sbatchgen.base import quoting
from sbatchgen.base.errors import DocumentError, Problem, SbatchgenError, SlurmError
from sbatchgen.base.finding import Finding
from sbatchgen.base.machine.ignored import TRUST
from sbatchgen.base.quoting import first_names, visible
from sbatchgen.cli import main
from sbatchgen.cli.output import current_folder, put
from sbatchgen.jobs.inputs.document import read_document
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.search import Places
from sbatchgen.jobs.judge import profile_check
from sbatchgen.jobs.judge.job_check import check, lint_rendered
from sbatchgen.jobs.modes import MODES
from sbatchgen.jobs.render.render import render_request
from sbatchgen.jobs.resolved.request import Request, read_request
from sbatchgen.jobs.runtimes import RUNTIMES
from sbatchgen.jobs.runtimes.base import Runtime
from sbatchgen.jobs.slurm import client
from sbatchgen.jobs.starts.rough import TEST_TIMEOUT_S, ask_slurm
from sbatchgen.jobs.submit.rendered import submission_of_job

# ok: also accepted, where Slurm was asked. unfit: the partition is not for such a job, as one without GPUs.
# drained: --test-only refuses it while nodes are away; sbatch takes it, and it waits for them.
Outcome = Literal["ok", "unfit", "drained", "error", "refused"]
_AWAY = "Requested node configuration is not available"
ITSELF = "profile"  # in place of a job: the profile as `profile check` judges it


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A job that was tried.

    Attributes:
        profile: The profile's name.
        job: A mode, or the file of a job.
        runtime: The runtime; "" for that of the job.
        partition: The partition; "" for that of the job.
        problems: Why it is not ok.
    """

    profile: str
    job: str
    runtime: str = ""
    partition: str = ""
    outcome: Outcome = "ok"
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pack:
    """What is tried.

    Attributes:
        profiles: Names and files of profiles.
        jobs: Files of jobs.
        places: Where names are looked for, first in the pack.
    """

    profiles: Mapping[str, Path]
    jobs: Sequence[Path]
    places: Places


@click.command("python -m tools.trial")
@click.argument("names", nargs=-1, required=True, metavar="PACK|PROFILE...")
@click.option("--live", is_flag=True, help="Ask the Slurm of this machine too (sbatch --test-only).")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="As for a job: options.account=abc."
)
def cli(names: tuple[str, ...], *, live: bool, settings: tuple[str, ...]) -> None:
    """Try every job of profiles, or of a site's pack.

    Renders and lints each mode with each runtime in each partition, and the pack's jobs. PACK is a folder
    with profiles/, templates/ and jobs/, or the name of an installed one. Exit status: 3 if a job is wrong,
    5 if Slurm refuses one, else 0.
    """
    places = Places(current_folder(), os.environ)
    tried = [
        trial for name in names for trial in trials(pack_of(name, places), {"settings": settings}, live=live)
    ]
    put(visible(table(tried)), nl=False)
    by_problem: dict[Problem, list[str]] = {}
    for trial in tried:
        for problem in trial.problems if trial.outcome in ("error", "refused") else ():
            parts = (trial.profile, trial.job, trial.runtime, trial.partition)
            by_problem.setdefault(problem, []).append(" ".join(filter(None, parts)))
    problems = [row._replace(what=f"{first_names(jobs, 1)}: {row.what}") for row, jobs in by_problem.items()]
    if any(trial.outcome == "error" for trial in tried):
        raise DocumentError(problems)
    if problems:
        raise SlurmError(problems)


def pack_of(name: str, places: Places) -> Pack:
    """Return a pack, by its folder or its installed package; or one profile, by name or file.

    Raises:
        DocumentError: There is no such pack or profile.
    """
    folder, environment = places.folder, places.environment
    root = folder / name if (folder / name / "profiles").is_dir() else places.sites.get(name)
    if root is None:
        return Pack(profiles={name: places.profile(name)}, jobs=(), places=places)
    # The user has named the folder: it is trusted.
    first = {
        "SBATCHGEN_PATH": f"{root}:{environment.get('SBATCHGEN_PATH', '')}",
        TRUST: f"{root}:{environment.get(TRUST, '')}",
    }
    return Pack(
        profiles={file.stem: file for file in sorted((root / "profiles").glob("*.yaml"))},
        jobs=sorted((root / "jobs").glob("*.yaml")),
        places=Places(folder, {**environment, **first}),
    )


def trials(pack: Pack, given: Mapping[str, Any], *, live: bool) -> Iterator[Trial]:
    """Try each job; each profile is judged itself before its jobs are.

    Flags are given for what a profile leaves to its users, as an account; `live` asks the Slurm of this
    machine.
    """
    for name, file in pack.profiles.items():
        try:
            problems = _errors(profile_check.findings(file, pack.places))
            profile = read_document(file, Profile).value
        except SbatchgenError as error:
            yield Trial(profile=name, job=ITSELF, outcome="error", problems=error.problems)
            continue
        yield Trial(profile=name, job=ITSELF, outcome="error" if problems else "ok", problems=problems)
        written = {setting.partition("=")[0] for setting in given.get("settings", ())}
        values = profile_check.required_options(profile).items()
        made_up = {option: value for option, value in values if f"options.{option}" not in written}
        for runtime in RUNTIMES:
            for partition in _having(runtime, profile):
                for mode in MODES:
                    flags = {**made_up, **given, "profile": str(file), "runtime": runtime}
                    flags |= {"partition": partition} if partition else {}
                    trial = Trial(profile=name, job=mode, runtime=runtime, partition=partition)
                    yield _tried(trial, pack, flags, live=live)
        for job in pack.jobs:
            try:
                named = read_document(job, JobSpec).value.profile
            except SbatchgenError:  # it is tried with each profile, as is a job that names no profile
                named = None
            fits = named is None or named.rpartition("/")[2].removesuffix(".yaml") == name
            if fits or len(pack.profiles) == 1:
                flags = {**given, "profile": str(file)}
                yield _tried(Trial(profile=name, job=str(job)), pack, flags, live=live)


def _having(runtime: str, profile: Profile) -> Iterator[str]:
    """Yield the partitions that bring what a runtime needs; "" for a profile without partitions."""
    for name, partition in profile.partitions.items() or [("", profile)]:
        used = partition.runtime or profile.runtime or "host"
        facts = [settings.facts(RUNTIMES[runtime]) for settings in (profile, partition)]
        if runtime == used or any(_is_ready(RUNTIMES[runtime], of_runtime) for of_runtime in facts):
            yield str(name)


def _is_ready(runtime: Runtime, facts: Any) -> bool:
    """Whether a profile brings what a runtime requires; it brings nothing for one without keys, the host."""
    if needed := runtime.needs(facts):
        return any(getattr(facts, key.fact) for key in runtime.keys if key.name == needed.key)
    return bool(runtime.keys)


def _tried(trial: Trial, pack: Pack, given: Mapping[str, Any], *, live: bool) -> Trial:
    """Return a trial with its outcome."""
    places = pack.places

    def planned(flags: Mapping[str, Any]) -> Request:
        return read_request(
            trial.job, (), flags, environment=places.environment, folder=places.folder, check=check
        )

    try:
        request = planned(given)
        if own := profile_check.made_up_environment(request.resolved):
            request = planned({**given, **own})
        resolved = request.resolved
        if problems := _errors(check(resolved, log_folders_made=True)):
            of_profile = any(problem.at.startswith(f"{request.profile_file}:") for problem in problems)
            unfit = trial.job in MODES and not of_profile
            return replace(trial, outcome="unfit" if unfit else "error", problems=problems)
        script = render_request(request)
        problems = _errors(lint_rendered(resolved, script)) if resolved.uses_slurm else ()
        if problems or not (live and resolved.uses_slurm):
            return replace(trial, outcome="error" if problems else "ok", problems=problems)
        submission = submission_of_job(request, places.environment, None, review_only=True)
        answer = ask_slurm(
            submission.script, submission.name, (), submission.option_sources, places.environment
        )
    except SbatchgenError as error:
        return replace(trial, outcome="error", problems=error.problems)
    outcome: Outcome = "ok" if answer.accepted else "refused"
    if _AWAY in answer.says and _has_away(resolved.partition_name, places.environment):
        outcome = "drained"
    return replace(trial, outcome=outcome, problems=tuple(row.problem for row in answer.refusals))


def _has_away(partition: str | None, environment: Mapping[str, str]) -> bool:
    """Whether nodes of a partition, or of any, are drained or down now."""
    words = ["sinfo", "-h", "-o", "%N", "-t", "drain,down,fail,maint,reboot"]
    words += [f"--partition={partition}"] if partition else []
    with contextlib.suppress(SlurmError):
        answer = client.run(words, client.submit_environment(environment)[0], timeout=TEST_TIMEOUT_S)
        return answer.status == 0 and bool(answer.out.strip())
    return False


def _errors(findings: Sequence[Finding]) -> tuple[Problem, ...]:
    return tuple(finding.problem for finding in findings if finding.severity == "error")


def table(tried: Sequence[Trial]) -> str:
    """Return what was tried, a line for each profile, runtime and partition, and for each job of the pack."""
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    others = []
    for trial in tried:
        shown = "-" if trial.outcome == "unfit" else trial.outcome
        if trial.job in MODES:
            rows.setdefault((trial.profile, trial.runtime, trial.partition), {})[trial.job] = shown
        elif trial.job != ITSELF or trial.outcome != "ok":
            others.append((trial.profile, f"{trial.job}: {shown}"))
    lines = [(*place, *(modes.get(mode, "") for mode in MODES)) for place, modes in rows.items()]
    return quoting.table([("profile", "runtime", "partition", *MODES), *lines]) + quoting.table(others)


if __name__ == "__main__":
    main(program=cli)
