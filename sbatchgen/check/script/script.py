"""A script as rules judge it: directives, body, launches, request of Slurm, and the facts of the cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

from sbatchgen.base.finding import Place
from sbatchgen.base.frozen import cached_property
from sbatchgen.base.keys import record
from sbatchgen.check.executables.program import SHELLS, programs
from sbatchgen.check.sbatch.getopt import Option, Stop, scan, winning_use
from sbatchgen.check.sbatch.header import READ_KINDS, Directive, Kind, OtherScheduler, other_scheduler
from sbatchgen.check.sbatch.option_table import Spec, major_release
from sbatchgen.check.sbatch.reader import Script, read_script
from sbatchgen.check.script import placeholders
from sbatchgen.check.script.job import Job
from sbatchgen.check.script.known_options import (
    PYXIS,
    RENAMED,
    is_misspelt_option,
    known_plugins_in,
    known_specs,
    plugin_specs,
)
from sbatchgen.check.script.read_request import read_request
from sbatchgen.check.script.resource_request import ResourceRequest

if TYPE_CHECKING:
    from sbatchgen.check.bash import Assignment, Body, Command, Word
    from sbatchgen.check.bash.chain import ToolOption
    from sbatchgen.check.bash.statement import VariableUse
    from sbatchgen.check.script.launches import Launch
    from sbatchgen.check.script.script_containers import Container
    from sbatchgen.check.script.trainer_source import TrainerSource


# Cached attributes that are the same for each release of Slurm.
_CACHED_FOR_ALL_RELEASES = ("lines", "body", "commands", "_commands_by_name", "plugins")
# The options that say how large a job is.
_SIZE_OPTIONS = """
nodes ntasks ntasks-per-node ntasks-per-core ntasks-per-gpu cpus-per-task cpus-per-gpu gpus gpus-per-node
gpus-per-task gres nodelist mem mem-per-cpu
"""
SIZE_OPTIONS = frozenset(_SIZE_OPTIONS.split())
CONTAINER_WORDS = ("container", "apptainer", "singularity")  # a script with a container holds such a word
_BRIEF_PROGRAMS = programs("brief") | {""}  # "" is the name of a command that only sets variables
# Commands that run for long although their program is brief, such as sleep 1h and tail -f, and commands of
# unknown programs: $COMMAND, ./script.
_LONG_COMMAND = re.compile(r"^sleep (?:\d{4}|\S*[mhdy]\b)|\btail -f|nvidia-smi .*(?:-l|--loop)|^\$|^\./")
_JOB_VARIABLE = re.compile(r"\d|SLURM_|HOME$|USER$|TMP|SCRATCH")  # variables that each job has; \d is for $1


def _comment_start(directive: Directive) -> int:
    """Return the offset in a directive of the comment after its words; of the end without a comment."""
    text = directive.text
    end = directive.words[-1].end - 1 if directive.words else len(text)
    has_comment = text[end : end + 1].isspace() and text[end:].lstrip().startswith("#")
    return text.index("#", end) if has_comment else len(text)


@record
class JobScript(Job):
    """A script, and the facts of the cluster where it will run."""

    file: str  # the name of the script in messages
    text: str  # the script; bytes outside UTF-8 are surrogates
    # The environment of the submission; empty if the script is only checked.
    environment: Mapping[str, str] = field(default_factory=dict)
    # Further options of plugins, which the profile does not list; NAME= takes a value.
    known_options: tuple[str, ...] = ()

    is_script = True

    @cached_property
    def lines(self) -> list[str]:
        """The lines without their line breaks. Line 1 is the item with the index 0."""
        return self.text.split("\n")

    @property
    def release(self) -> str:
        """The release of Slurm without its patch level: 22.05 for 22.05.8."""
        return major_release(self.slurm)

    @cached_property
    def plugins(self) -> tuple[Spec, ...]:
        """The options that plugins add to sbatch: those in the profile's list, or those of known plugins."""
        if (listed := self.profile.plugin_options) is not None:
            return plugin_specs((*listed, *self.known_options))
        return (*known_plugins_in(self.text), *plugin_specs(self.known_options))

    @cached_property
    def directive_lines(self) -> frozenset[int]:
        """The numbers of the lines that sbatch reads."""
        return frozenset(line.line for line in self.sbatch.directives if line.kind in READ_KINDS)

    @cached_property
    def other_scheduler(self) -> OtherScheduler | None:
        """The scheduler of the script, if it is not Slurm; else None."""
        return other_scheduler(self.text)

    @cached_property
    def writes_jobs(self) -> bool:
        """Whether the script is not a job itself, but writes a script with directives."""
        # A written directive is a line with #SBATCH after the first command. Bash does not read the line as a
        # comment, but as text, such as a line of a here-document.
        late_lines = {line.line for line in self.sbatch.directives if line.kind is Kind.LATE}
        if self.directive_lines or not late_lines:
            return False
        return not late_lines <= {number for number, _ in self.body.comments}

    @cached_property
    def program_placeholders(self) -> dict[int, re.Match[str]]:
        """The placeholders for programs, such as {{ nodes }} or @NODES@, by the number of the line."""
        return placeholders.program_placeholders(self.text, self.directive_lines)

    @cached_property
    def is_template(self) -> bool:
        """Whether a directive holds a placeholder for a program."""
        return not self.directive_lines.isdisjoint(self.program_placeholders)

    @cached_property
    def submits(self) -> bool:
        """Whether the script only submits other scripts: it has no directives, and calls sbatch."""
        return not self.directive_lines and any(
            # sbatch "$0" submits the script itself
            "0" not in {name for word in command.words for name in word.variables}
            for command in self.named("sbatch")
        )

    @cached_property
    def written_directives(self) -> tuple[int, ...]:
        """The numbers of the #SBATCH lines, if all of them are text of jobs that the script writes.

        The result is () for another script, such as a job or a script that bash can't read.
        """
        late_lines = [line.line for line in self.sbatch.directives if line.kind is Kind.LATE]
        if self.directive_lines or not late_lines or self.body.language not in SHELLS or self.body.faults:
            return ()
        comments = {number for number, _ in self.body.comments}
        return () if comments.intersection(late_lines) else tuple(late_lines)

    @cached_property
    def person_placeholders(self) -> dict[int, re.Match[str]]:
        """The placeholders for people in directives, such as <project id>, by the number of the line."""
        if self.is_template:
            return {}
        directives = {number: self.lines[number - 1] for number in self.directive_lines}
        matches = placeholders.person_placeholders(
            directives, self.option_uses, lambda name: name in self.assigned_names, self.slurm
        )
        ends = {
            directive.line: _comment_start(directive)
            for directive in self.sbatch.directives
            if directive.line in matches
        }
        # A placeholder in the comment of a directive does not count.
        return {line: match for line, match in matches.items() if match.start() < ends[line]}

    @cached_property
    def is_refused_for_placeholder(self) -> bool:
        """Whether sbatch refuses the script because of a placeholder for people."""
        refusal = self.sbatch.refusal if self.person_placeholders else None
        if not refusal:
            return False
        unfilled = self.person_placeholders
        lines = [line if number not in unfilled else "#" for number, line in enumerate(self.lines, 1)]
        without_placeholders = replace(self, text="\n".join(lines))
        return without_placeholders.sbatch.refusal != refusal

    @cached_property
    def is_for_program(self) -> bool:
        """Whether a program may fill in the script, even the placeholders that look made for people."""
        return bool(self.program_placeholders) or placeholders.may_be_filled_by_program(
            self.text, len(self.directive_lines), self.person_placeholders
        )

    def may_be_plugin_option(self, name: str) -> bool:
        """Return whether a plugin of the site may add an unknown option.

        This is false if the profile lists the plugins' options, and for a misspelt or renamed option.
        """
        if self.profile.plugin_options is not None:
            return False
        return not (name in RENAMED or ":" in name or is_misspelt_option(name, self.slurm))

    @cached_property
    def sbatch(self) -> Script:
        """The directives as sbatch reads them, with sbatch's message."""
        return read_script(self.text, slurm=self.slurm, plugin_options=(*PYXIS, *self.plugins))

    @cached_property
    def body(self) -> Body:
        """The script as bash reads it."""
        from sbatchgen.check import bash  # the parser is loaded for scripts that a rule looks into

        return bash.read_body(self.text if "\0" not in self.text else "")  # sbatch refuses a NUL

    def read_by(self, release: str) -> JobScript:
        """Return the script as another release of Slurm reads its directives."""
        other = replace(self, slurm=release, is_release_assumed=False)
        cached = {name: value for name, value in vars(self).items() if name in _CACHED_FOR_ALL_RELEASES}
        vars(other).update(cached)
        return other

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """The commands that start Python, or that start a program through another program, such as srun."""
        from sbatchgen.check.script.launches import launches

        return tuple(launches(self.body, self.resources))

    @cached_property
    def trainings(self) -> tuple[Launch, ...]:
        """The launches of Python programs that do the real work."""
        return tuple(launch for launch in self.launches if launch.is_training)

    @cached_property
    def trains(self) -> bool:
        """Whether the script starts a training."""
        return bool(self.trainings)

    @cached_property
    def is_brief(self) -> bool:
        """Whether the script ends within seconds: each command shows something, or waits for a moment."""
        programs = {id(launch.command): launch.program.name for launch in self.launches}
        commands = [command for command in self.body.commands if not command.is_test]
        return bool(commands) and all(
            programs.get(id(command), command.name) in _BRIEF_PROGRAMS
            and not _LONG_COMMAND.search(command.text)
            for command in commands
        )

    @cached_property
    def is_submitted_by_script(self) -> bool:
        """Whether another script seems to submit this script: it requires variables that it never sets."""
        return any(
            use.operator in (":?", "?")
            and use.name not in self.assigned_names
            and not _JOB_VARIABLE.match(use.name)
            for use in (self.body.variable_uses if ":?" in self.text else ())
        )

    def source_of(self, launch: Launch) -> TrainerSource | None:
        """Return the source of a launch's Python program; None if the folder or the file is unknown."""
        from sbatchgen.check.script.trainer_source import read_trainer  # few scripts lie next to a trainer

        return read_trainer(launch.program.name, self.folder / self.option("chdir")) if self.folder else None

    @property
    def has_size(self) -> bool:
        """Whether directives say how large the job is. If not, sbatch's command line usually does."""
        return not SIZE_OPTIONS.isdisjoint(self.options)

    @cached_property
    def steps(self) -> tuple[Launch, ...]:
        """The launches with srun."""
        return tuple(launch for launch in self.launches if launch.step is not None)

    @cached_property
    def may_start_hidden_programs(self) -> bool:
        """Whether the script may start programs that it does not show, such as through another script."""
        from sbatchgen.check.script.launches import may_start_hidden_programs

        return may_start_hidden_programs(self.body, self.launches)

    @cached_property
    def commands(self) -> tuple[Command, ...]:
        """The commands of the body and of its traps, without tests."""
        traps = [command for _, body in self.body.traps for command in body.commands]
        return tuple(command for command in (*self.body.commands, *traps) if not command.is_test)

    @cached_property
    def assigned_names(self) -> frozenset[str]:
        """The names of the variables that the script sets."""
        return frozenset(assignment.name for assignment in self.body.assignments)

    @cached_property
    def tested_words(self) -> frozenset[str]:
        """The words of tests and the variables in them, such as PBS_JOBID of [ -n "$PBS_JOBID" ]."""
        words = [word for command in self.body.tests for word in command.words]
        return frozenset(name for word in words for name in (*word.variables, word.value or word.text))

    def first_uses(self, matches: Callable[[str], object]) -> Iterator[VariableUse]:
        """Yield the first use of each variable whose name `matches` accepts, and that the script never sets.

        Uses with a default, such as ${NAME:-x}, do not count.
        """
        seen = set(self.assigned_names)
        for use in self.body.variable_uses:
            has_default = use.operator[:1] in (*":-=+?",)
            if use.name not in seen and not has_default and matches(use.name):
                seen.add(use.name)
                yield use

    @cached_property
    def sources_commands(self) -> bool:
        """Whether the script sources files that may do more than set up an environment."""
        from sbatchgen.check.script.launches import sourcing_commands

        return any(sourcing_commands(self.body))

    @cached_property
    def _commands_by_name(self) -> dict[str, list[Command]]:
        """The commands by their names, in the order of the text."""
        commands: dict[str, list[Command]] = {}
        for command in self.commands:
            commands.setdefault(command.name, []).append(command)
        return commands

    def named(self, *names: str) -> list[Command]:
        """Return the commands with these names, in the order of the text."""
        commands: list[Command] = []
        for name in names:
            commands += self._commands_by_name.get(name, ())
        if len(names) > 1 and len(commands) > 1:
            commands.sort(key=lambda command: (command.line, command.column))
        return commands

    @cached_property
    def containers(self) -> tuple[Container, ...]:
        """The containers that the script starts."""
        from sbatchgen.check.script.script_containers import containers

        if not any(word in self.text for word in CONTAINER_WORDS):
            return ()  # without such a word, bash's parser need not read the body
        options = {name: (use.value or "", self.at_use(use)) for name, use in self.options.items()}
        return tuple(containers(options, self.launches, self.at_word))

    @cached_property
    def option_uses(self) -> tuple[Option | Stop, ...]:
        """The uses of options in the first component's directives, even after a word that sbatch refuses."""
        lines = [line for line in self.sbatch.directives if line.kind in READ_KINDS and line.component <= 0]
        words = [word for line in lines for word in line.words]
        return tuple(scan(words, known_specs(self.slurm, self.plugins), past_stops=True))

    @cached_property
    def options(self) -> dict[str, Option]:
        """The winning use of each option, by the option's long name."""
        options: dict[str, Option] = {}
        for use in self.option_uses:
            if isinstance(use, Option):
                options[use.name] = winning_use(options.get(use.name), use, self.slurm)
        return options

    @cached_property
    def resources(self) -> ResourceRequest:
        """The script's request of Slurm. An option with a value that sbatch can't read counts as missing."""
        return read_request(
            self.options,
            slurm=self.slurm,
            at=self.at_use,
            unset_place=self.at(1),
            default_partition=self.profile.default_partition,
        )

    def at(self, line: int, column: int = 1, end: int = 0) -> Place:
        """Return a place in the script."""
        return Place(f"{self.file}:{line}:{column}", line, column, end)

    def at_start(self, place: Assignment | VariableUse) -> Place:
        """Return a place that begins with an assignment or a variable, and ends with the line."""
        return self.at(place.line, place.column)

    def at_word(self, word: Word | Command) -> Place:
        """Return the place of a word or a command. If it has several lines, the place ends with the first."""
        end = word.end_column if word.end_line == word.line else 0
        return self.at(word.line, word.column, end if end > word.column else 0)

    def at_command(self, command: Command) -> Place:
        """Return the place of a command's first word; the place of the command if it has no words."""
        return self.at_word(command.words[0] if command.words else command)

    def at_option_of(self, option: ToolOption) -> Place:
        """Return the place of the value of a tool's option."""
        return self.at_word(option.value_word or option.word)

    def at_use(self, use: Option | Stop) -> Place:
        """Return the place of an option and its value."""
        word = use.word
        value = use.value_word if isinstance(use, Option) else None
        end = value.end if value is not None and value.line == word.line else word.end
        return self.at(word.line, word.column, end)

    def at_value(self, option: str) -> Place:
        """Return the place of the value of an option, in its winning use."""
        use = self.options.get(option)
        if use is None or use.value_word is None:
            return self.at_option(option)
        column, end = use.value_word.span(use.value_start)
        return self.at(use.value_word.line, column, end)
