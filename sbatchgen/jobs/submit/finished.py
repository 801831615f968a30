"""Makes the submission of a finished script: a script that the user already has, such as train.slurm.

sbatch gets the bytes of the script unchanged. Options on the command line override directives of the script.
The review shows the findings of lint.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sbatchgen.base.errors import CommandLineError, Problem
from sbatchgen.base.finding import Finding
from sbatchgen.check.lint.lint_settings import findings_of
from sbatchgen.check.lint.source import read_source
from sbatchgen.check.sbatch.reader import Script, read_script
from sbatchgen.check.script.more_options import with_options
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.flags import layer_of
from sbatchgen.jobs.inputs.search import Places
from sbatchgen.jobs.judge.read_settings import settings_of
from sbatchgen.jobs.review import review
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.runs.submitted_scripts import loss_of_script
from sbatchgen.jobs.slurm.refusal import OptionSource, options_of_script
from sbatchgen.jobs.submit import code
from sbatchgen.jobs.submit.submission import Submission, log_folders


def submission_of_script(
    path: Path,
    given: Mapping[str, Any],
    args: tuple[str, ...],
    environment: Mapping[str, str],
    folder: Path,
    *,
    keep_env: bool = False,
    earlier: Sequence[str] = (),
) -> Submission:
    """Return the submission of a finished script; options of sbatch in `given` override its own.

    They also override those in `earlier`, of its last submission. Raises CommandLineError if `given` has
    other options, or if there are `args` for a trainer; DocumentError if the script can't be read.
    """
    overrides = dict(option.partition("=")[::2] for option in earlier) | _options(path, given, args)
    sbatch_options = tuple(f"{name}={value}".removesuffix("=") for name, value in overrides.items())
    source = read_source(str(path))
    profile = given.get("profile")
    settings = settings_of(Places(folder, environment), profile, runs_here=True)
    settings = replace(settings, environment=environment if keep_env else {}, makes_log_folders=True)
    linted_text = with_options(source.text, sbatch_options)  # the submitted bytes lack these options
    linted_source = replace(source, data=linted_text.encode("utf-8", "surrogateescape"))
    parsed = read_script(linted_source.data)
    script = JobScript(file=str(path), text=linted_source.text)
    record = _record(path, folder, parsed, sbatch_options, code.script_checksums(script, folder))
    findings = _findings(script, findings_of(linted_source, settings), folder, overrides, sbatch_options)
    plan_command = ("sbatchgen", "plan", str(path), *(("--profile", profile) if profile else ()))
    sources = (OptionSource(name.removeprefix("--"), value, name) for name, value in overrides.items())
    return Submission(
        script=source.data,
        name=path.name,
        option_sources={**options_of_script(parsed, str(path)), **{each.option: each for each in sources}},
        options=sbatch_options,
        log_folders=log_folders(parsed, folder, record.name),
        run_dir=None,
        local=False,
        review=review.review_of_script(source.text, script.resources, findings, plan_command),
        record=record,
    )


def _record(
    path: Path, folder: Path, parsed: Script, sbatch_options: tuple[str, ...], checksums: tuple[str, ...]
) -> Record:
    """Return the record of a script before its submission, with the checksums of its trainer's files."""
    options = {name: option.value or "" for name, option in parsed.options.items()}
    array = options.get("array", "")
    working_folder = folder / options.get("chdir", "")
    default_log = "slurm-%A_%a.out" if array else "slurm-%j.out"  # of sbatch: sbatch(1), --output
    log = options.get("output") or default_log
    return Record(
        shared=False,
        name=options.get("job-name") or path.name,
        folder=str(folder),
        script=str(folder / path),
        log=str(working_folder / log),
        errors=str(working_folder / error) if (error := options.get("error")) else "",
        array=array,
        options=sbatch_options,
        reads=checksums,
    )


def _findings(
    script: JobScript,
    findings_of_lint: Sequence[Finding],
    folder: Path,
    overrides: Mapping[str, str],
    sbatch_options: Sequence[str],
) -> list[Finding]:
    """Return the findings of lint, and findings about restarts and about options that override the script.

    Lint also reports that an option in `overrides` is given twice. This is intended here, so these findings
    of lint are removed.
    """
    starts_of_texts = tuple(f"{name} is given" for name in overrides)  # "--mem is given in line 3 too: ..."
    findings = [
        finding for finding in findings_of_lint if not finding.problem.what.startswith(starts_of_texts)
    ]
    findings += _restart_warnings(script, folder)
    if sbatch_options:
        what = f"sbatch gets {' '.join(sbatch_options)}, which overrides the script's own options"
        findings.append(Finding("info", Problem(what, script.file)))
    return findings


def _options(path: Path, given: Mapping[str, Any], args: tuple[str, ...]) -> dict[str, str]:
    """Return the options of sbatch in `given` with their values, such as "--mem" -> "64G"; "" for a flag.

    Raises CommandLineError if `given` has other options, or if there are `args` for a trainer.
    """
    options, others = {}, ["--"] * bool(args)  # on the command line, "--" is before `args`
    for key, value in layer_of((), given).values.items():
        kind, _, name = key.rpartition(".")
        name = name.replace("_", "-")
        if kind in ("options", "extra_options"):
            is_flag = value is True or value is False or str(value) == "true"
            options[f"--no-{name}" if value is False else f"--{name}"] = "" if is_flag else str(value)
        else:
            others.append(f"--{name}")
    if others:
        what = f"{path} is a finished script: {others[0]} can't change it"
        fix = "edit the script, or render the job again; only options of sbatch can be given, such as --time"
        raise CommandLineError.of(what, fix=fix)
    return options


def _restart_warnings(script: JobScript, folder: Path) -> Iterator[Finding]:
    """Yield a warning if Slurm may requeue the script, and its trainer would then lose its progress."""
    may_requeue = "requeue" in script.options or any(
        "requeue" in (word.text for word in command.words[1:]) for command in script.named("scontrol")
    )
    if may_requeue and (loss := loss_of_script(script, folder)):
        yield Finding("warning", Problem(f"a requeue starts it again: {loss.says}", script.file, loss.fix()))
