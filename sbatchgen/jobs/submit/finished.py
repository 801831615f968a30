"""Makes the submission of a finished script, whose bytes stay unchanged, with the findings of lint."""

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
    """Return the submission of a finished script; options of sbatch in `given` override the script's own.

    `earlier` has the options of an earlier submission, such as "--mem=64G". Raises CommandLineError if
    `given` has options that can't change a script; DocumentError if the script can't be read.
    """
    overrides = dict(option.partition("=")[::2] for option in earlier) | _options(path, given, args)
    words = tuple(f"{name}={value}".removesuffix("=") for name, value in overrides.items())
    source = read_source(str(path))
    profile = given.get("profile")
    settings = settings_of(Places(folder, environment), profile, runs_here=True)
    settings = replace(settings, environment=environment if keep_env else {}, makes_log_folders=True)
    changed = replace(source, data=with_options(source.text, words).encode("utf-8", "surrogateescape"))
    parsed = read_script(changed.data)
    script = JobScript(file=str(path), text=changed.text)
    record = replace(_record(path, folder, parsed, words), reads=code.script_checksums(script, folder))
    findings = _findings(script, findings_of(changed, settings), folder, overrides, words)
    plan_command = ("sbatchgen", "plan", str(path), *(("--profile", profile) if profile else ()))
    sources = options_of_script(parsed, str(path))
    sources |= {word[2:]: OptionSource(word[2:], value, word) for word, value in overrides.items()}
    return Submission(
        script=source.data,
        name=path.name,
        option_sources=sources,
        options=words,
        log_folders=log_folders(parsed, folder, record.name),
        run_dir=None,
        local=False,
        review=review.review_of_script(source.text, script.resources, findings, plan_command),
        record=record,
    )


def _record(path: Path, folder: Path, parsed: Script, words: tuple[str, ...]) -> Record:
    """Return the record of a script before its submission; `words` are the options on the command line."""
    options = {name: option.value or "" for name, option in parsed.options.items()}
    array = options.get("array", "")
    working = folder / options.get("chdir", "")
    log = options.get("output") or ("slurm-%A_%a.out" if array else "slurm-%j.out")  # sbatch(1), --output
    return Record(
        shared=False,
        name=options.get("job-name") or path.name,
        folder=str(folder),
        script=str(folder / path),
        log=str(working / log),
        errors=str(working / error) if (error := options.get("error")) else "",
        array=array,
        options=words,
    )


def _findings(
    script: JobScript,
    of_lint: Sequence[Finding],
    folder: Path,
    overrides: Mapping[str, str],
    words: Sequence[str],
) -> list[Finding]:
    """Return the findings of lint, and findings about options that override the script and about restarts.

    `overrides` are the options that sbatch gets. Lint reports that they are given twice, which is intended
    here, so these findings are excluded.
    """
    given_twice = tuple(f"{name} is given" for name in overrides)  # the first words of that finding
    findings = [finding for finding in of_lint if not finding.problem.what.startswith(given_twice)]
    findings += _restart_warnings(script, folder)
    if words:
        what = f"sbatch gets {' '.join(words)}, which counts before the script's own"
        findings.append(Finding("info", Problem(what, script.file)))
    return findings


def _options(path: Path, given: Mapping[str, Any], args: tuple[str, ...]) -> dict[str, str]:
    """Return the options of sbatch in `given` with their values: "--mem" and "64G"; "" for a flag.

    Raises CommandLineError if `given` or `args` has anything else.
    """
    options, others = {}, ["--"] * bool(args)  # the arguments after -- would be the trainer's
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
        fix = "edit the script, or render the job again; options of sbatch go with it, as --time and --mem"
        raise CommandLineError.of(what, fix=fix)
    return options


def _restart_warnings(script: JobScript, folder: Path) -> Iterator[Finding]:
    """Yield a warning if Slurm may start the script again, and the trainer would forget its progress."""
    may_requeue = "requeue" in script.options or any(
        "requeue" in (word.text for word in command.words[1:]) for command in script.named("scontrol")
    )
    if may_requeue and (loss := loss_of_script(script, folder)):
        yield Finding("warning", Problem(f"a requeue starts it again: {loss.says}", script.file, loss.fix()))
