"""Mistakes in a command line: `main` gets click's errors from here as problems with a fix."""

import click

from sbatchgen.base.errors import Problem, did_you_mean

MIN_LIKENESS = 0.65  # the least likeness (0 to 1) of the typed option and a suggested option
MAX_LIKENESS_GAP = 0.25  # a second option is suggested if its likeness is at most this much below the first's
COMMAND_FOR_WORD = {  # words that people type for a command, each with the command and its group
    **dict.fromkeys(("run", "launch", "start"), "submit"),
    **dict.fromkeys(("stop", "kill"), "cancel"),
    **dict.fromkeys(("ls", "queue"), "status"),
    **dict.fromkeys(("check", "validate"), "lint"),
    **dict.fromkeys(("new", "create"), "profile discover"),
    "update": "profile discover --update",
}
# Options that people type although no command has them, each with the words to write instead.
WORDS_FOR_OPTION = {
    "--gpu-type": "--gpus-per-node TYPE:N",
    "--conda-root": "--set runtimes.conda.root=FOLDER",
}
# Options of some commands, each with the option that has the same effect in other commands.
OPTION_WITH_SAME_EFFECT = {"--json": "--format json", "--follow": "--watch", "--watch": "--follow"}


def problem_of(error: click.ClickException) -> Problem:
    """Return an error of click as a problem; without the context of a command, few errors have a fix."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return Problem(_problem_text(error), fix=_fix_of_option_value(error))
    parameter = error.param if isinstance(error, click.BadParameter) else None
    # The name of an option without its value: "--format" of "--format text|json".
    name = _usage_of(parameter, error.ctx).partition(" ")[0] if parameter else ""
    fix = _fix_of_option_value(error) or _fix_in_command(error, error.ctx)
    if isinstance(error, click.MissingParameter) and parameter:
        return Problem(f"missing {parameter.param_type_name} {name}", fix=fix)
    return Problem(_problem_text(error), name, fix)


def _problem_text(error: click.ClickException) -> str:
    """Return the problem in our words, because click's words differ from release to release."""
    words = (error.message[:1].lower() + error.message[1:]).rstrip(".").removeprefix("got ")
    wrong_value = words.partition(" is ")[0]  # "'two'" of "'two' is not a valid integer range"
    match error:
        case click.NoSuchOption():
            return f"no such option {error.option_name}"
        case click.BadOptionUsage():
            return f"{error.option_name} {'needs a value' if 'requires' in words else 'takes no value'}"
        case click.BadParameter(param=click.Parameter(type=click.IntRange() as numbers)):
            end = f" to {numbers.max}" if numbers.max is not None else " on"
            return f"{wrong_value} is not a whole number from {numbers.min}{end}"
        case click.BadParameter(param=click.Parameter(type=click.FloatRange())):
            return f"{wrong_value} is not a number"
        case click.BadParameter(param=click.Parameter(type=click.Choice(choices=choices))):
            return f"{wrong_value} is not one of {', '.join(map(str, choices))}"
    return words.replace("a valid integer", "a whole number")


def _fix_of_option_value(error: click.ClickException) -> str:
    """Return the fix for an option that lacks its value, or takes no value; "" for other errors."""
    if not isinstance(error, click.BadOptionUsage):
        return ""
    return f"write {error.option_name}{' VALUE' * ('requires' in error.message)}"


def _fix_in_command(error: click.UsageError, context: click.Context) -> str:
    """Return the fix for an error of a command: the words to type instead, or the help to read."""
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    match error:
        case click.NoSuchOption() if fix_elsewhere := _fix_of_foreign_option(error.option_name, context):
            fix = fix_elsewhere
        case click.NoSuchOption():
            advice = _nearest_options(error.option_name, context) or f"see {context.command_path} --help."
            takes_trainer_args = "-- TRAINER ARGS" in usage
            advice_on_trainer = f"{advice} Arguments of the trainer come after --"
            fix = advice_on_trainer if takes_trainer_args else advice.rstrip(".")
        case click.MissingParameter(param=click.Parameter(name="job")) if "--trainer" in _flags(context):
            fix = f"name a mode or a file, as in: {context.command_path} single"
        case click.MissingParameter(param=click.Option() as option):
            fix = f"add {_usage_of(option, context)}"
        case click.BadParameter(param=click.Option() as option):
            fix = f"write {_usage_of(option, context)}"
        case _ if isinstance(error, click.BadParameter) or "extra argument" in error.message:
            fix = f"write {_extra_word_with_option(error, context) or usage}"
        case _ if isinstance(command, click.Group):  # the command is unknown
            word, names = error.message.split("'")[1], command.list_commands(context)
            meant_command = f"{context.find_root().command_path} {COMMAND_FOR_WORD.get(word, '')}"
            is_in_group = word in COMMAND_FOR_WORD and meant_command.startswith(f"{context.command_path} ")
            fix = meant_command if is_in_group else did_you_mean(word, names)
        case _:
            fix = f"see {context.command_path} --help"
    return fix


def _extra_word_with_option(error: click.UsageError, context: click.Context) -> str:
    """Return an unexpected word with the option that it lacks, such as "--trainer train.py"; else ""."""
    # click says: Got unexpected extra argument (train.py)
    word, flags = error.message.partition("(")[2].partition(")")[0], _flags(context)
    last_param = str((context.params.get("params") or [""])[-1])  # the last value of --param
    if "--param" in flags and "=" in word + last_param:
        return f"--param {word}" if "=" in word else ""
    if last_param and word:  # `--param lr 0.1` in place of `--param lr=0.1`
        return f"--param {last_param}={word}"
    if "=" in word and f"--{word.partition('=')[0]}" in flags:
        return f"--{word.replace('=', ' ', 1)}"
    if word.endswith(".py") and "--trainer" in flags:
        return f"--trainer {word}"
    flag_of_name = next((flag for flag in ("--for", "--name") if flag in flags), "")
    return f"{flag_of_name} {word}" if word and flag_of_name else ""


def _fix_of_foreign_option(option: str, context: click.Context) -> str:
    """Return the fix for an option that this command lacks, and that submit, a job YAML or sbatch has.

    Return "" for an option that none of them has.
    """
    from sbatchgen.base.keys import keys_of
    from sbatchgen.jobs.inputs.job_file import JobSpec

    root, path = context.find_root(), context.command_path
    submit = root.command.get_command(root, "submit") if isinstance(root.command, click.Group) else None
    is_of_submit = submit and option in _flags(context, submit)
    if context is root:
        example = _with_command_first(context) or f"{path} submit JOB {option} ..."
        return f"options come after the command, as in: {example}" if is_of_submit else ""
    if "--trainer" not in _flags(context) or _equivalent_option(option, context):
        return ""
    if is_of_submit:
        return f"{option} is an option of {root.command_path} submit"
    keys, name = keys_of(JobSpec), option[2:].replace("-", "_")
    if key := next((key for key in (name, f"{name}s") if key in keys), ""):
        return f"write --set {key}=VALUE"
    if option in WORDS_FOR_OPTION:
        return f"write {WORDS_FOR_OPTION[option]}"
    return _fix_with_sbatch_option(option)


def _with_command_first(context: click.Context) -> str:
    """Return the typed command line with the command before its options; "" if no command was typed.

    For example, "sbatchgen --time 5 submit x" becomes "sbatchgen submit x --time 5".
    """
    from sbatchgen.base.quoting import words
    from sbatchgen.cli.output import TYPED

    typed = context.meta.get(TYPED, ())
    before_trainer = typed[: typed.index("--")] if "--" in typed else typed
    trainer_args = typed[len(before_trainer) :]
    names = context.command.list_commands(context) if isinstance(context.command, click.Group) else []
    at = next((index for index, word in enumerate(before_trainer) if word in names), None)
    if at is None:
        return ""
    return f"{context.command_path} {words((*before_trainer[at:], *before_trainer[:at], *trainer_args))}"


def _fix_with_sbatch_option(option: str) -> str:
    """Return the fix that passes an option to sbatch with --sbatch; "" for an option that sbatch lacks."""
    from sbatchgen.base.units import NEWEST
    from sbatchgen.check.sbatch.option_table import HasArgument, specs

    spec = specs(NEWEST).get(option[2:])
    value = "" if spec and spec.argument is HasArgument.NONE else "=VALUE"
    return f"write --sbatch {spec.name}{value}" if spec else ""


def _flags(context: click.Context, command: click.Command | None = None) -> list[str]:
    """Return the options of a command, by default the context's; short forms are included."""
    parameters = (command or context.command).get_params(context)
    return [flag for parameter in parameters for flag in parameter.opts]


def _equivalent_option(option: str, context: click.Context) -> str:
    """Return the command's option that has the same effect as an option of another command; else ""."""
    equivalent = OPTION_WITH_SAME_EFFECT.get(option, "")
    return equivalent if equivalent.partition(" ")[0] in _flags(context) else ""


def _nearest_options(option: str, context: click.Context) -> str:
    """Return advice on an unknown option, as a sentence with its full stop or question mark; else "".

    The advice is the option with the same effect, the long form of an option of sbatch, or the nearest one
    or two options of the command.
    """
    from difflib import SequenceMatcher

    flags = _flags(context)
    if equivalent := _equivalent_option(option, context):
        return f"write {equivalent}."
    if not option.startswith("--"):
        from sbatchgen.base.units import NEWEST
        from sbatchgen.check.sbatch.option_table import specs

        long_forms = {f"-{spec.short}": f"--{name}" for name, spec in specs(NEWEST).items()}
        long_form = long_forms.get(option, "")
        return f"write {long_form}." if long_form in flags else ""
    likeness = {  # an option that begins with the typed word is preferred
        flag: SequenceMatcher(None, option[2:], flag[2:]).ratio() + 0.3 * flag.startswith(option)
        for flag in flags
        if flag.startswith("--")
    }
    nearest = sorted(likeness, key=lambda flag: -likeness[flag])[:2]
    min_likeness = max(MIN_LIKENESS, likeness[nearest[0]] - MAX_LIKENESS_GAP)
    suggestions = " or ".join(repr(flag) for flag in nearest if likeness[flag] >= min_likeness)
    return f"did you mean {suggestions}?" if suggestions else ""


def _usage_of(parameter: click.Parameter, context: click.Context) -> str:
    """Return a parameter as a user writes it, such as "--format text|json"."""
    help_row = parameter.get_help_record(context)  # its usage and its help: "-n, --lines N", "Start with ..."
    if help_row is None:
        return parameter.human_readable_name
    return help_row[0].split(", ")[-1].replace("[", "").replace("]", "")
