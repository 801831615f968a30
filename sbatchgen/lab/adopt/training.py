"""The search for the training among the launches of a script, and the conversion of the lines after it.

A script may start several programs. `main_launch` and `find_training` decide which program becomes the job.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from sbatchgen.check.executables.program import SHELLS
from sbatchgen.check.script.launches import HELPERS, Launch
from sbatchgen.check.script.script import JobScript
from sbatchgen.lab.adopt.block import CLOSING, Block, blocks
from sbatchgen.lab.adopt.draft import Draft
from sbatchgen.lab.adopt.shape import RANK_VARIABLES, RAY_ADVICE

# Reasons of lost lines.
NO_TRAINING = "it starts no Python program that could become a job"
NO_TRAINER_FILE = "python gets its program from a string or the input: write it into a file"
# The name of a program that trains, such as train.py, pretrain_gpt.py and my-trainer.
_TRAINING_NAME = re.compile(r"(?:^|[_.-])(?:pre)?train(?:er|ing)?(?:[_.-]|$)", re.IGNORECASE)
# Words for the use of a trained model, in the name of a program or in an option.
_EVALUATION_WORDS = r"eval(?:uate|uation)?|test|predict|infer(?:ence)?"
# The name of a program that does not train, such as eval.py and plot_results.py.
_EVALUATION_NAME = re.compile(
    rf"(?:^|[_.-])(?:{_EVALUATION_WORDS}|export|plot|report|summar\w+|visuali\w+)(?:[_.-]|$)", re.IGNORECASE
)
_EVALUATION_OPTION = re.compile(rf"--(?:{_EVALUATION_WORDS})(?:[_-]only)?")  # such as --eval and --test-only
# Constructs of bash in which a job can't start the training. The keys are attributes of the launch's context,
# and the values are names for messages.
_CONSTRUCTS = {"function": "function", "in_loop": "loop", "in_branch": "branch", "in_subshell": "subshell"}
# Commands that a job can leave out of the training's statement, as in `srun python train.py; echo done`.
_HARMLESS_COMMANDS = ("echo", "printf", "date", "wait", "exit", "true", "false", "time")


def main_launch(script: JobScript) -> Launch | None:
    """Return the launch that most likely is the training; None if the script starts no training.

    If several launches are equally likely, the last of them is returned.
    """
    # Python without a file or a module, as in `python < program`, can't become the trainer of a job.
    trainings = [
        launch for launch in script.trainings if launch.program.name != "python" or launch.program.rest
    ]
    return max(reversed(trainings), key=_training_rank, default=None)


def _training_rank(launch: Launch) -> tuple[bool, bool, int]:
    """Return the rank of a launch, which is higher for train.py than for eval.py or `train.py --eval`."""
    name = launch.program.name.rpartition("/")[2]
    is_evaluation = any(map(_EVALUATION_OPTION.fullmatch, launch.command.arguments))
    has_srun_or_launcher = bool(launch.step or launch.launcher)
    likelihood = bool(_TRAINING_NAME.search(name)) - is_evaluation
    return not _EVALUATION_NAME.search(name), has_srun_or_launcher, likelihood


def split_chain(script: JobScript) -> JobScript:
    """Return the script with `cd FOLDER || exit; python train.py` in place of `cd FOLDER && python train.py`.

    The command before && becomes a statement of its own. The training still starts only if this command
    succeeds.
    """
    launch = main_launch(script)
    if launch is None or launch.command.in_background:
        return script
    statement = _block_of(blocks(script.body), launch)
    earlier_commands = [command for command in statement.outer_commands if command.at < launch.command.at]
    # The spans of the text between two commands, such as " && " in `cd FOLDER && python train.py`.
    gaps = [(left.end, right.at) for left, right in pairwise([*earlier_commands, launch.command])]
    text = script.text
    is_chain = all(text[start:end].strip(" \t\\\n") == "&&" for start, end in gaps)
    starts_statement = bool(earlier_commands) and earlier_commands[0].at == statement.start
    # After a test, `|| exit` would end the script where the old script continued after its false test.
    has_test = any(command.is_test for command in earlier_commands)
    if not starts_statement or has_test or not is_chain:
        return script
    for start, end in reversed(gaps):  # from the end, so that the other offsets stay right
        blank, _, rest = text[start:end].partition("&&")
        semicolon = "" if rest.lstrip(" \t").startswith("\n") else ";"  # a line break also ends `exit`
        text = f"{text[:start]}{blank or ' '}|| exit{semicolon}{rest}{text[end:]}"
    return replace(script, text=text)


def find_training(draft: Draft, statements: Sequence[Block]) -> tuple[Launch, Block] | None:
    """Return the launch that becomes the job and its statement.

    Other trainings that run at the same time are noted as lost. If no launch can become a job, the reason is
    noted as lost, and the result is None.
    """
    launch = main_launch(draft.script)
    if launch is None:
        _note_why_no_training(draft)
        return None
    statement, context = _block_of(statements, launch), launch.command.context
    in_background = launch.command.in_background
    draft.launch_lines = statement.lines
    for attribute, construct in _CONSTRUCTS.items():
        # Bash runs a command with & in a subshell. A job may start this training like any other.
        is_only_background = construct == "subshell" and in_background
        if getattr(context, attribute) and not is_only_background:
            where = f"the function {context.function}" if construct == "function" else f"a {construct}"
            draft.lose(f"the training is started in {where}: start it outside")
            return None
    for other in draft.script.trainings:
        block = _block_of(statements, other)
        if other is not launch and (other.command.in_background or block is statement):
            reason = f"another training at the same time ({other.program.name}): move it to a separate job"
            draft.add(block.lines, "lost", reason)
        elif other is not launch and (other.step or other.launcher):
            draft.needed_names |= {*RANK_VARIABLES}  # the other training may read them
    # An assignment without a word is an array, or a value that a command such as `read` sets.
    if any(not assignment.is_exported and assignment.word is None for assignment in statement.assignments):
        draft.lose("the launch sets a variable whose value is known only when the job runs")
    if in_background and any(draft.script.body.traps):
        reason = "the training runs in the background while a trap waits"
        draft.lose(f"{reason}: replace both by the keys resume and requeue_on_timeout")
    return launch, statement


def _note_why_no_training(draft: Draft) -> None:
    """Note a program or command of the script as lost, with the reason why it can't become a training."""
    body = draft.body
    if sbatch := next((command for command in body.commands if command.name == "sbatch"), None):
        draft.add((sbatch.line,), "lost", "it submits other scripts and trains nothing itself: adopt those")
    for other in draft.script.launches:
        if other.is_helper or other.command.context.in_substitution:
            continue
        name = other.program.name
        files = [word.text for word in other.program.words[1:] if not word.text.startswith("-")]
        if name in SHELLS and files:
            reason = f"{files[0]} is started by {name}, and not read: adopt that script"
        elif name == "python":
            reason = NO_TRAINER_FILE
        else:
            reason = _why_not_trainer(name)
        draft.add((other.command.line,), "lost", reason)
        return
    for command in reversed(body.commands):
        if not (command.is_test or command.context.in_substitution or command.name in HELPERS | CLOSING):
            draft.add((command.line,), "lost", _why_not_trainer(command.name))
            return


def _why_not_trainer(name: str) -> str:
    """Return the reason why a program that is not Python can't be the trainer of a job."""
    if name == "ray":
        return f"Ray is not a Python program: {RAY_ADVICE}"
    return f"{name} is not a Python program, and what it starts is not known"


def _block_of(statements: Sequence[Block], launch: Launch) -> Block:
    """Return the statement that holds a launch."""
    return statements[bisect_right(statements, launch.command.at, key=lambda block: block.start) - 1]


def adopt_same_statement(draft: Draft, statement: Block, launch: Launch) -> None:
    """Note other commands of the launch's statement, as in `srun ... && echo done`, as dropped or lost."""
    launch_pipe = launch.command.pipe
    for command in statement.outer_commands:
        if command is launch.command or (launch_pipe is not None and command.pipe is launch_pipe):
            continue
        if command.name in _HARMLESS_COMMANDS:
            reason = f"{command.name}: the job ends with the status of the training"
            draft.add(statement.lines, "dropped", reason)
        else:
            draft.lose(f"{command.name} in the statement of the training: put it before")


def adopt_after(draft: Draft, later_blocks: Sequence[Block]) -> None:
    """Keep the statements after the training, in a function that a trap calls when the script ends."""
    lines: list[str] = []
    # The last statements, which only print or end the script, are dropped: the job ends with the training.
    kept_count = 0
    for count, block in enumerate(later_blocks, start=1):
        if not block.only_closes:
            kept_count = count
    for block in later_blocks[:kept_count]:
        if not _is_lost(draft, block):
            draft.needed_names |= block.used_names
            lines += draft.keep_shell(block, "in setup_after_runtime, by a trap: it runs after the training")
    for block in later_blocks[kept_count:]:
        if not _is_lost(draft, block):
            draft.add(block.lines, "dropped", "the job ends here, with the status of the training")
    if not lines:
        return
    traps = [(command, action.context.trap_signals) for command, action in draft.body.traps]
    exit_traps = [command for command, signals in traps if {"EXIT", "0"} & {*signals}]
    trap_text = draft.body.value(exit_traps[-1].words[1]) if exit_traps else ""
    kept_commands = [command for block in later_blocks[:kept_count] for command in block.commands]
    has_exit = any(command.name == "exit" for command in kept_commands)
    # Another trap on TERM would replace the trap below. A trap in a branch is not always set.
    is_uncertain = any("TERM" in signals or not command.context.is_top_level for command, signals in traps)
    # An `exit` among the statements would keep the script's own trap from running.
    if is_uncertain or trap_text is None or (trap_text and has_exit):
        reason = "a trap of the script's own, and commands after the training"
        draft.lose(f"{reason}: move these to a separate job")
        return
    draft.profile["setup_after_runtime"] = _function_after_training(draft, lines, trap_text)


def _function_after_training(draft: Draft, lines: Sequence[str], trap_text: str) -> list[str]:
    """Return a function of shell with `lines`, and the trap that calls it when the training has ended.

    `trap_text` is the action of the old script's own trap on EXIT; "" without one.
    """
    # With errexit, the old script continued only after success. Status 143 means that Slurm ended the job.
    has_errexit = draft.body.is_option_on("errexit", draft.launch_lines[-1])
    condition = "ended == 0" if has_errexit else "ended != 143"
    return [
        "after_training() {",
        f"local ended=$?; if (({condition})); then # 143: ended by Slurm",
        '(exit "$ended") # so that it is $?',
        *lines,
        "fi",
        *([f"{trap_text} # the script's own trap"] if trap_text else []),
        "}",
        "trap after_training EXIT; trap 'exit 143' TERM",
    ]


def _is_lost(draft: Draft, block: Block) -> bool:
    """Return whether a line of a statement was noted as lost, for example by another training in it."""
    return any(draft.outcomes.get(line) == "lost" for line in block.lines)
