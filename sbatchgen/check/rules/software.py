"""Rules about modules, conda and other environments in a job.

Sources: the manuals of Lmod and Environment Modules; bash(1), INVOCATION; `conda init --help`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import dropwhile

from sbatchgen.base.finding import Severity
from sbatchgen.check.bash import Command
from sbatchgen.check.executables.program import SHELLS, programs
from sbatchgen.check.rules.edits import insert_line_before
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

PREPARING_PROGRAMS = programs("prepares")  # programs that may set any variable of the shell, such as source
# Verbs of ml. Without a verb, ml loads the modules that its words name.
_ML_VERBS = ("avail", "av", "list", "spider", "unload", "use", "swap", "show", "save", "key", "keyword")


@RULES.add(
    "SB402", "info", "modules loaded on top of the login shell's", pedantic=True, words=("module", "ml")
)
def _inherited_modules(script: JobScript) -> Iterator[Hit]:
    for command, words in _module_calls(script):
        verb = words[0] if words else ""
        if verb in ("purge", "reset", "restore"):
            return
        if verb == "load":
            what = "the job inherits the modules of the shell that submits: these are loaded on top"
            yield Hit(script.at_word(command), what, "module purge on a line before it")
            return


@RULES.add("SB403", "info", "a module without a version", pedantic=True, words=("module", "ml"))
def _modules_without_version(script: JobScript) -> Iterator[Hit]:
    for command, words in _module_calls(script):
        unversioned = [name for name in words[1:] if re.fullmatch(r"(?!slurm$)[A-Za-z][A-Za-z_+-]*", name)]
        if words[:1] == ("load",) and unversioned:
            what = f"{', '.join(unversioned)} without a version: the site may change its default"
            fix = f"module load {unversioned[0]}/VERSION, as module avail shows it"
            yield Hit(script.at_word(command), what, fix)


def _module_calls(script: JobScript) -> Iterator[tuple[Command, tuple[str, ...]]]:
    """Yield each call of module or ml, with its verb and then the modules.

    `module add NAME` and `ml NAME` have the verb load. Other verbs of ml are "", as no rule asks for them.
    """
    for command in script.named("module", "ml"):
        words = tuple(word.value or "$" for word in command.words[1:] if not word.text.startswith("-"))
        if words and command.name == "ml" and words[0] not in ("load", "purge", "reset", "restore"):
            words = ("", *words) if words[0] in _ML_VERBS else ("load", *words)
        yield command, ("load", *words[1:]) if words[:1] == ("add",) else words


@RULES.add(
    "SB405",
    "warning",
    "conda activate in a shell without conda's functions",
    words=("conda", "mamba", "bashrc"),
)
def _conda_without_functions(script: JobScript) -> Iterator[Hit]:
    if "l" in script.body.flags or "i" in script.body.flags:  # bash -l reads ~/.bash_profile
        return
    for command in script.named("conda", "mamba", "micromamba", "\\.", *PREPARING_PROGRAMS):
        may_define_functions = command.name in ("source", ".", "\\.", "module", "ml")
        if command.name in ("source", ".") and len(command.words) > 1:
            file = script.body.text_of(command.words[1])
            is_only_preparation = all(other is command for other in script.named(*PREPARING_PROGRAMS))
            if re.search(r"/\.bashrc$", file) and is_only_preparation:
                yield from _conda_after_bashrc(script, command)
        if may_define_functions or (command.name == "eval" and re.search("hook|conda|mamba", command.text)):
            return
        if command.name in ("conda", "mamba", "micromamba") and command.arguments[:1] == ["activate"]:
            what = f"a batch shell reads no ~/.bashrc: {command.name} activate is not set up in it"
            hook = f'eval "$({command.name} shell.bash hook)"'
            if command.name == "micromamba":
                hook = 'eval "$(micromamba shell hook --shell bash)"'
            place = "on a line before it"
            if script.body.language == "sh":  # the string of sbatch --wrap has no lines
                hook, place = hook.replace("bash", "posix"), f"before {command.name} activate"
            edits = insert_line_before(script, command, hook)
            yield Hit(script.at_word(command), what, f"{hook} {place}", edits=edits)
            return


def _conda_after_bashrc(script: JobScript, command: Command) -> Iterator[Hit]:
    """Find a conda activate after the command that sources ~/.bashrc."""
    for activation in script.named("conda", "mamba"):
        if activation.arguments[:1] == ["activate"] and activation.at > command.at:
            what = "if ~/.bashrc returns early in non-interactive shells, as in Debian and Ubuntu, conda is "
            what += "not found"
            yield Hit(script.at_word(command), what, 'eval "$(conda shell.bash hook)"', "info")
            return


@RULES.add(
    "SB430",
    "warning",
    "a file for this shell that runs in another one",
    source="bash(1)",
    words=("profile", "activate", "conda.sh", "bashrc", "setvars"),
    report="https://github.com/labgrid-project/labgrid/pull/58",
)
def _run_not_sourced(script: JobScript) -> Iterator[Hit]:
    for command in script.commands:
        if command.name and command.name not in SHELLS and not _SOURCED_FILE.search(command.path):
            continue  # to read the words of all commands would be slow
        words = command.words
        if command.name in SHELLS:  # the file comes after the options; -c, -n and -s run no file
            words = (*dropwhile(lambda word: re.fullmatch(r"-[eilx]+|--login", word.text), words[1:]),)
        path = script.body.text_of(words[0]).strip("\"'") if words else ""
        if _SOURCED_FILE.search(path) and (len(words) == 1 or path.endswith("/setvars.sh")):
            what = f"{path} runs in a shell of its own: what it sets does not reach this one"
            yield Hit(script.at_command(command), what, f"source {path}")


# The path of a file that does nothing unless a shell sources it, such as venv/bin/activate.
_SOURCED_FILE = re.compile(
    r"^/etc/profile(?:\.d/[\w.-]+\.sh)?$|/(?:activate|profile\.d/conda\.sh|\.?bashrc|setvars\.sh)$"
)


@RULES.add(
    "SB406",
    "warning",
    "set -u while conda or a profile is sourced",
    words=("conda", "activate", "bashrc", "profile"),
)
def _sourced_under_nounset(script: JobScript) -> Iterator[Hit]:
    for command in script.named("source", ".", "conda", "mamba"):
        if len(command.words) < 2:
            continue
        argument = script.body.text_of(command.words[1])
        is_activate = argument == "activate"  # of `conda activate` or `source activate`
        is_setup_file = bool(re.search(r"(?:conda\.sh|bashrc|/etc/profile)$|conda.*/activate$", argument))
        if (is_activate or is_setup_file) and script.body.is_option_on("nounset", command.line):
            cause = f"{command.name} activate" if is_activate else "the sourced file"
            what = f"{cause} may use unset variables: under set -u that ends the job (unbound variable)"
            is_profile = re.search(r"(?:bashrc|/etc/profile)$", argument) is not None
            severity: Severity | None = (
                None if is_profile else "info"
            )  # new releases of conda work with set -u
            fix = "set +u on a line before it, and set -u after it"
            yield Hit(script.at_word(command), what, fix, severity)
            return


@RULES.add(
    "SB433",
    "warning",
    "an environment that all tasks of an array change",
    source="sbatch(1)",
    words=("uv", "pip", "conda", "mamba", "venv"),
    report="https://github.com/NVIDIA-NeMo/Safe-Synthesizer/pull/573",
)
def _changed_by_all_tasks(script: JobScript) -> Iterator[Hit]:
    """Find installations that several tasks of an array run at the same time, in the same place."""
    runs_one_by_one = re.search(r"%1\b", script.option("array"))  # --array=1-10%1
    if script.array_tasks < 2 or runs_one_by_one or _OWN_PLACE.search(script.text):
        return
    for command in script.named("uv", "pip", "pip3", "conda", "mamba", "python", "python3"):
        command_start = " ".join([command.name, *command.arguments[:3]])
        runs = command.context.is_top_level or _runs_if_missing(command, script)
        if runs and _CHANGE_START.match(command_start):
            what = f"{script.array_tasks} tasks of the array do this at the same time, in one environment: "
            what += "some find it half made"
            fix = "make the environment once, before the array; or flock ENVIRONMENT.lock before the command"
            yield Hit(script.at_command(command), what, fix)
            return


def _runs_if_missing(command: Command, script: JobScript) -> bool:
    """Return whether a command runs only if a file or folder is missing, as in [ -d venv ] || uv venv.

    Several tasks of an array may find at the same time that it is missing, and then all run the command.
    """
    context = command.context
    if context.in_loop or context.function or context.in_substitution or context.trap_signals:
        return False
    tests = [other for other in script.body.commands if other.is_test and other.end <= command.at]
    if not tests:
        return False
    text, test = script.body.source.text, tests[-1]
    variables = {name for word in test.words for name in word.variables}
    if {"SLURM_ARRAY_TASK_ID", "SLURM_PROCID"} & variables:
        return False  # the script lets one task run the command
    between = text[test.end : command.at]
    is_negated = "!" in text[max(test.at - 3, 0) : test.end]
    # if [ ! -d venv ]; then COMMAND, or [ -d venv ] || COMMAND
    is_in_branch = between.lstrip("] \t;\n").startswith("then" if is_negated else "||")
    return is_in_branch and bool(_FILE_TEST.search(test.text)) and not _BRANCH_END.search(between)


_FILE_TEST = re.compile(r"\s-[defx]\s")
_BRANCH_END = re.compile(r"\b(?:else|elif|fi|done)\b")
# The start of a command that changes an environment.
_CHANGE_START = re.compile(
    r"uv (?:sync|pip (?:install|sync)|venv)\b|pip3? install\b"
    r"|(?:conda|mamba) (?:(?:env )?(?:create|update)|install)\b"
    r"|python3? -m (?:venv|pip install)\b"
)
# A script that gives each task its own place, or takes a lock, holds such a text.
_OWN_PLACE = re.compile(
    r"TMP|/tmp|/dev/shm|mktemp|flock|lockfile|UV_PROJECT_ENVIRONMENT=\S*\$|(?:venv|env)\S*ARRAY|--target|apptainer|singularity"
)


@RULES.add("SB422", "warning", "conda init in a job", words=("conda", "mamba"))
def _conda_init(script: JobScript) -> Iterator[Hit]:
    for command in script.named("conda", "mamba"):
        words = command.arguments
        if words[:1] == ["init"] and not {"--dry-run", "-d", "--help"} & set(words):
            what = f"{command.name} init writes to ~/.bashrc each time, and does not change this shell"
            yield Hit(script.at_word(command), what, f'eval "$({command.name} shell.bash hook)"')
