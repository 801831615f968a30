"""The submission of a finished script: its bytes as they are, and lint's findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sbatchgen.errors import CommandLineError, Problem
from sbatchgen.finding import Finding
from sbatchgen.inputs.search import Places
from sbatchgen.job.script import JobScript
from sbatchgen.lint.settings import findings_of, settings_of
from sbatchgen.lint.source import whole
from sbatchgen.review import review
from sbatchgen.runs.own_trainer import script_forgets
from sbatchgen.runs.record import Record
from sbatchgen.sbatch.reader import read_script
from sbatchgen.slurm.refusal import asked_in
from sbatchgen.submit.submission import Submission, log_folders


def of_script(
    path: Path,
    given: Mapping[str, Any],
    args: tuple[str, ...],
    environment: Mapping[str, str],
    folder: Path,
    *,
    keep_env: bool = False,
) -> Submission:
    """Return the submission of a finished script; of a job's options only `--profile` goes with it.

    Raises:
        CommandLineError: Other options of a job were given: the script has its own.
        DocumentError: It can't be read.
    """
    others = [value for name, value in given.items() if name != "profile"]
    if args or any(value is not None and value != () for value in others):
        what = f"{path} is a finished script: options of a job can't change it"
        raise CommandLineError.of(what, fix="edit the script, or render the job again with these options")
    source = whole(str(path))
    settings = replace(
        settings_of(Places(folder, environment), given.get("profile")),
        environment=environment if keep_env else {},
        makes_log_folders=True,
    )
    parsed = read_script(source.data)
    options = {name: option.value or "" for name, option in parsed.options.items()}
    name = options.get("job-name") or path.name
    array, working = options.get("array", ""), folder / options.get("chdir", "")
    log = options.get("output") or ("slurm-%A_%a.out" if array else "slurm-%j.out")  # sbatch(1), --output
    profile = given.get("profile")
    script = JobScript(file=str(path), text=source.text)
    findings = [*findings_of(source, settings), *_restarts(script, folder)]
    again = ("sbatchgen", "plan", str(path), *(("--profile", profile) if profile else ()))
    return Submission(
        script=source.data,
        name=path.name,
        asked=asked_in(parsed, str(path)),
        log_folders=log_folders(parsed, folder, name),
        run_dir=None,
        local=False,
        review=review.of_script(source.text, script.resources, findings, again),
        about=Record(
            shared=False,
            name=name,
            folder=str(folder),
            script=str(folder / path),
            log=str(working / log),
            errors=str(working / error) if (error := options.get("error")) else "",
            array=array,
        ),
    )


def _restarts(script: JobScript, folder: Path) -> Iterator[Finding]:
    """Yield a warning if the script lets Slurm start it again, and its trainer forgets all."""
    requeues = "requeue" in script.options or any(
        "requeue" in (word.text for word in command.words[1:]) for command in script.named("scontrol")
    )
    if requeues and (forgets := script_forgets(script, folder)):
        yield Finding("warning", Problem(f"a requeue starts it again: {forgets}", script.file))
