"""Mistakes in a command line: errors of click as problems with a fix."""

import click

from sbatchgen.base.errors import Problem, did_you_mean

MIN_LIKENESS = 0.65  # the least likeness (0 to 1) of the typed option and a suggested option
MAX_BELOW_FIRST = 0.25  # how far the likeness of a second suggestion may be below that of the first
OTHER_NAMES = {  # words that people type for a command, each with the command and its group
    **dict.fromkeys(("run", "launch", "start"), "submit"),
    **dict.fromkeys(("stop", "kill"), "cancel"),
    **dict.fromkeys(("ls", "queue"), "status"),
    **dict.fromkeys(("check", "validate"), "lint"),
    **dict.fromkeys(("new", "create"), "profile discover"),
    "update": "profile discover --update",
}
# Options that people type, each with the words to write instead.
OTHER_FORMS = {"--gpu-type": "--gpus-per-node TYPE:N", "--conda-root": "--set runtimes.conda.root=FOLDER"}
# Options of other commands, each with the option that has the same effect.
SAME_EFFECT = {"--json": "--format json", "--follow": "--watch", "--watch": "--follow"}


def problem_of(error: click.ClickException) -> Problem:
    """Return an error of click as a problem."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return Problem(_problem_text(error), fix=_fix_of_value(error))
    parameter = error.param if isinstance(error, click.BadParameter) else None
    # The name of an option without its value: "--format" of "--format text|json".
    name = _usage_of(parameter, error.ctx).partition(" ")[0] if parameter else ""
    fix = _fix_of_value(error) or _fix(error, error.ctx)
    if isinstance(error, click.MissingParameter) and parameter:
        return Problem(f"missing {parameter.param_type_name} {name}", fix=fix)
    return Problem(_problem_text(error), name, fix)


def _problem_text(error: click.ClickException) -> str:
    """Return the problem in our words, because click's words differ from release to release."""
    words = (error.message[:1].lower() + error.message[1:]).rstrip(".").removeprefix("got ")
    match error:
        case click.NoSuchOption():
            return f"no such option {error.option_name}"
        case click.BadOptionUsage():
            return f"{error.option_name} {'needs a value' if 'requires' in words else 'takes no value'}"
        case click.BadParameter(param=click.Parameter(type=click.IntRange() as numbers)):
            end = f" to {numbers.max}" if numbers.max is not None else " on"
            return f"{words.partition(' is ')[0]} is not a whole number from {numbers.min}{end}"
        case click.BadParameter(param=click.Parameter(type=click.FloatRange())):
            return f"{words.partition(' is ')[0]} is not a number"
        case click.BadParameter(param=click.Parameter(type=click.Choice(choices=choices))):
            return f"{words.partition(' is ')[0]} is not one of {', '.join(map(str, choices))}"
    return words.replace("a valid integer", "a whole number")


def _fix_of_value(error: click.ClickException) -> str:
    """Return the fix for an option that lacks its value, or takes no value; "" for other errors."""
    if not isinstance(error, click.BadOptionUsage):
        return ""
    return f"write {error.option_name}{' VALUE' * ('requires' in error.message)}"


def _fix(error: click.UsageError, context: click.Context) -> str:
    """Return the fix for an error: the words to type instead, or where to read about them."""
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    match error:
        case click.NoSuchOption() if elsewhere := _where_option_belongs(error.option_name, context):
            fix = elsewhere
        case click.NoSuchOption():
            nearest = _nearest_options(error.option_name, context) or f"see {context.command_path} --help."
            takes_trainer_args = "-- TRAINER ARGS" in usage
            with_trainer = f"{nearest} Arguments of the trainer come after --"
            fix = with_trainer if takes_trainer_args else nearest.rstrip(".")
        case click.MissingParameter(param=click.Parameter(name="job")) if "--trainer" in _flags(context):
            fix = f"name a mode or a file, as in: {context.command_path} single"
        case click.MissingParameter(param=click.Option() as option):
            fix = f"add {_usage_of(option, context)}"
        case click.BadParameter(param=click.Option() as option):
            fix = f"write {_usage_of(option, context)}"
        case _ if isinstance(error, click.BadParameter) or "extra argument" in error.message:
            fix = f"write {_option_of_extra(error, context) or usage}"
        case _ if isinstance(command, click.Group):  # click does not know the names of a lazy group
            word, names = error.message.split("'")[1], command.list_commands(context)
            meant = f"{context.find_root().command_path} {OTHER_NAMES.get(word, '')}"
            is_in_group = word in OTHER_NAMES and meant.startswith(f"{context.command_path} ")
            fix = meant if is_in_group else did_you_mean(word, names)
        case _:
            fix = f"see {context.command_path} --help"
    return fix


def _option_of_extra(error: click.UsageError, context: click.Context) -> str:
    """Return an unexpected word with the option that it lacks, such as "--trainer train.py"; else ""."""
    word, flags = error.message.partition("(")[2].partition(")")[0], _flags(context)
    name = str((context.params.get("params") or [""])[-1])
    if "--param" in flags and "=" in word + name:
        return f"--param {word}" if "=" in word else ""
    if name and word:  # `--param lr 0.1` in place of `--param lr=0.1`
        return f"--param {name}={word}"
    if "=" in word and f"--{word.partition('=')[0]}" in flags:
        return f"--{word.replace('=', ' ', 1)}"
    if word.endswith(".py") and "--trainer" in flags:
        return f"--trainer {word}"
    flag_of_name = next((flag for flag in ("--for", "--name") if flag in flags), "")
    return f"{flag_of_name} {word}" if word and flag_of_name else ""


def _where_option_belongs(option: str, context: click.Context) -> str:
    """Return the fix for an option that submit, a job YAML or sbatch has, and this command lacks; else ""."""
    from sbatchgen.base.keys import keys_of
    from sbatchgen.jobs.inputs.job_file import JobSpec

    root, path = context.find_root(), context.command_path
    submit = root.command.get_command(root, "submit") if isinstance(root.command, click.Group) else None
    is_of_submit = submit and option in _flags(context, submit)
    if context is root:
        example = _command_first(context) or f"{path} submit JOB {option} ..."
        return f"options come after the command, as in: {example}" if is_of_submit else ""
    if "--trainer" not in _flags(context) or _equivalent_option(option, context):
        return ""
    if is_of_submit:
        return f"{option} is an option of {root.command_path} submit"
    keys, name = keys_of(JobSpec), option[2:].replace("-", "_")
    if key := next((key for key in (name, f"{name}s") if key in keys), ""):
        return f"write --set {key}=VALUE"
    return f"write {OTHER_FORMS[option]}" if option in OTHER_FORMS else _as_sbatch_option(option)


def _command_first(context: click.Context) -> str:
    """Return the typed command line with the options that come before the command moved after it."""
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


def _as_sbatch_option(option: str) -> str:
    """Return the fix for an option of sbatch: how --sbatch passes it; "" for an option that sbatch lacks."""
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
    equivalent = SAME_EFFECT.get(option, "")
    return equivalent if equivalent.partition(" ")[0] in _flags(context) else ""


def _nearest_options(option: str, context: click.Context) -> str:
    """Return a question that names the nearest option of the command, or two that are near; else ""."""
    from difflib import SequenceMatcher

    flags = _flags(context)
    if equivalent := _equivalent_option(option, context):
        return f"write {equivalent}."
    if not option.startswith("--"):
        from sbatchgen.base.units import NEWEST
        from sbatchgen.check.sbatch.option_table import specs

        long = {f"-{spec.short}": f"--{name}" for name, spec in specs(NEWEST).items()}.get(option, "")
        return f"write {long}." if long in flags else ""
    likeness = {  # an option that begins like the typed word is preferred
        flag: SequenceMatcher(None, option[2:], flag[2:]).ratio() + 0.3 * flag.startswith(option)
        for flag in flags
        if flag.startswith("--")
    }
    near = sorted(likeness, key=lambda flag: -likeness[flag])[:2]
    least = max(MIN_LIKENESS, likeness[near[0]] - MAX_BELOW_FIRST)
    shown = " or ".join(repr(flag) for flag in near if likeness[flag] >= least)
    return f"did you mean {shown}?" if shown else ""


def _usage_of(parameter: click.Parameter, context: click.Context) -> str:
    """Return a parameter as it is written, such as "--format text|json"."""
    record = parameter.get_help_record(context)
    if record is None:
        return parameter.human_readable_name
    return record[0].split(", ")[-1].replace("[", "").replace("]", "")
