"""The commands lint, lsp and adopt: they check scripts, also in editors, and turn scripts into job YAMLs."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from sbatchgen.base.errors import CommandLineError, DocumentError
from sbatchgen.base.quoting import word
from sbatchgen.base.units import RELEASES
from sbatchgen.cli.jobs import refuse_wrong_kind
from sbatchgen.cli.output import (
    FORMAT,
    colored,
    current_folder,
    note,
    note_lines,
    print_bytes,
    put,
    put_json,
    say,
    show_markdown,
)
from sbatchgen.jobs.inputs import completion

if TYPE_CHECKING:
    from sbatchgen.check.lint.linting import ExtraFindings, Outcome


def complete_rule(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG001
    """Return the ids of rules that complete the typed word, each with its title."""
    from click.shell_completion import CompletionItem

    from sbatchgen.check.rules.rule_page import pages

    matching = ((rule, page) for rule, page in pages().items() if rule.startswith(incomplete.upper()))
    return [CompletionItem(rule, help=page.title) for rule, page in matching]


PROFILE = click.option(
    "--profile",
    metavar="NAME|FILE",
    shell_complete=completion.profiles,
    help="Profile of the cluster. [default: from sbatchgen.yaml]",
)
SLURM = click.option(
    "--slurm",
    metavar="RELEASE",
    shell_complete=lambda _ctx, _param, incomplete: completion.matching_names(RELEASES, incomplete),
    help="Release of Slurm that will read the scripts, such as 23.11.",
)


@click.command()
@click.argument("names", nargs=-1, metavar="FILE...", type=click.Path())
@PROFILE
@SLURM
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    show_default=True,
    help="Output format; github: annotations in GitHub Actions.",
)
@click.option(
    "--select",
    multiple=True,
    metavar="RULES",
    shell_complete=complete_rule,
    help="Apply only these rules, such as SB204 or SB3,SB4.",
)
@click.option(
    "--disable", multiple=True, metavar="RULES", shell_complete=complete_rule, help="Leave these rules out."
)
@click.option("--pedantic", is_flag=True, help="Also apply pedantic rules: true, and mostly harmless.")
@click.option(
    "--strict", is_flag=True, help="Let warnings fail too, as for a centre's own scripts and pages."
)
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "info", "never"]),
    default="error",
    show_default=True,
    help="Lowest severity that gives a nonzero exit status.",
)
@click.option(
    "--fix", "fix_mode", flag_value="fix", help="Fix what can be fixed safely, and show the change."
)
@click.option("--diff", "fix_mode", flag_value="diff", help="Show what --fix would change.")
@click.option(
    "--shellcheck/--no-shellcheck",
    "ask_shellcheck",
    default=None,
    help="Run shellcheck too; by default for up to 10 files, if it is installed.",
)
@click.option("--plan", is_flag=True, help="Also run each script in a sandbox, as sbatchgen plan does.")
@click.option("--rules", is_flag=True, help="List all rules.")
@click.option(
    "--explain",
    multiple=True,
    metavar="RULES",
    shell_complete=complete_rule,
    help="Explain these rules, such as SB104.",
)
def lint(
    names: tuple[str, ...],
    *,
    rules: bool,
    explain: tuple[str, ...],
    fix_mode: str | None,
    form: str,
    **flags: Any,
) -> None:
    """Find mistakes in sbatch scripts.

    FILE is a script, a page with scripts in it (Markdown, reStructuredText, HTML), a folder of these, or -
    for stdin. Exit status: 3 if there is an error (see --strict and --fail-on) or a file that can't be read,
    6 if --plan leaves steps of a script out, else 0.
    """
    from sbatchgen.check.lint import linting
    from sbatchgen.jobs.inputs.search import Places
    from sbatchgen.jobs.judge.read_settings import settings_of

    if rules or explain:
        _show_rules(explain, form, lists_all=rules)
        return
    if not names:
        raise CommandLineError.of("no files", fix="name scripts or folders, or - for stdin")
    linting.refuse_change(names, fix_mode or "", form)
    typed_settings = {name: flags.pop(name) for name in ("profile", "slurm", "select", "disable", "pedantic")}
    outcome = linting.lint_files(
        names,
        settings=settings_of(Places(current_folder(), os.environ), **typed_settings),
        style=colored,
        fix_mode=fix_mode or "",
        form=form,
        find_more=_findings_of_dry_run() if flags.pop("plan") else None,
        **flags,
    )
    has_no_findings = outcome.report == "[]\n"  # an empty JSON list
    if form == "json" and outcome.problems and has_no_findings:  # else a program would take it for a success
        raise DocumentError(outcome.problems)
    _print_outcome(outcome)
    sys.exit(outcome.status)


def _print_outcome(outcome: Outcome) -> None:
    """Print the change, the findings, the unreadable files and the summary of `lint`."""
    print_bytes(outcome.diff)  # bytes that the program patch can read
    put(outcome.report, nl=False)
    for problem in outcome.problems:
        say(problem, "error")
    note_lines(outcome.summary)


def _show_rules(explained: tuple[str, ...], form: str, *, lists_all: bool) -> None:
    """Print the texts of the named rules, or the list of all rules."""
    from sbatchgen.check.lint import linting

    if form == "json":
        put_json(linting.RulesOutput(rules=linting.rule_texts(explained)))
    elif lists_all:
        put(linting.rules_table(), nl=False)
    else:
        show_markdown(linting.rule_pages(explained))


def _findings_of_dry_run() -> ExtraFindings:
    """Return the function that finds more in a script by its dry run, and print a note about the sandbox."""
    from sbatchgen.lab.plan.planning import SANDBOX_NOTE
    from sbatchgen.lab.started.judge_started import found_by_plan

    note(SANDBOX_NOTE.format("each script"))
    return partial(found_by_plan, environment={**os.environ})


@click.command()
@PROFILE
@SLURM
def lsp(profile: str | None, slurm: str | None) -> None:
    """Check scripts, jobs and profiles while you type: for editors.

    Your editor starts this language server on stdin and stdout. It needs pygls: pip install '.[lsp]' in the
    folder of sbatchgen's source.
    """
    try:
        from sbatchgen.lab.editor.server import serve
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in ("pygls", "lsprotocol"):
            raise
        from sbatchgen.base.machine.packages import to_install

        what = f"lsp needs pygls, and this Python has no {error.name}"
        raise CommandLineError.of(what, fix=to_install("pygls>=2")) from error
    serve(profile, slurm, os.environ)


@click.command()
@click.argument("name", metavar="SCRIPT", type=click.Path())
@click.option("--to", metavar="FOLDER", type=click.Path(), help="Write the two files into this folder.")
@click.option("--force", is_flag=True, help="Replace existing files.")
@click.option("--partly", is_flag=True, help="Leave out what has no place in a job.")
@FORMAT
def adopt(name: str, *, to: str | None, force: bool, partly: bool, form: str) -> None:
    """Turn an sbatch script into a job YAML and a profile.

    adopt reports the outcome of each line of SCRIPT, and prints the two files. Their script requests the same
    from Slurm and starts the same processes. Exit status: 3 if lines have no place in a job (see --partly),
    else 0.
    """
    from datetime import date

    from sbatchgen.check.lint.source import read_source
    from sbatchgen.lab.adopt import account
    from sbatchgen.lab.adopt.adoption import adopt as adopt_script

    refuse_wrong_kind(name, "script")
    source = read_source(name)
    adoption = adopt_script(
        source.text,
        file=source.file,
        user=os.environ,
        day=date.today().isoformat(),  # noqa: DTZ011 - as people write it
        folder=current_folder(),
    )
    is_refused = not adoption.job or (adoption.lost and not partly)
    refusal = account.refusal(adoption) if is_refused else None
    if form == "json":
        from sbatchgen.lab.adopt.adopt_output import adopt_output

        put_json(adopt_output(adoption), refused=refusal or ())
    else:
        note_lines(account.lines(adoption))
    if refusal:
        raise refusal
    if to is not None:
        account.write(adoption, to, force=force)
        note(f"next: sbatchgen submit {word(os.path.join(to, adoption.file))}")  # noqa: PTH118
    elif form == "text":
        put(account.as_yaml(adoption), nl=False)
