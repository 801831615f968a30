"""The proof of an adoption: the new script is compared with the old script.

Both must request the same of Slurm and start the same processes. The findings of lint in both scripts show
which mistakes the new script has mended.
"""

from collections.abc import Container, Sequence

from sbatchgen.base.finding import Finding
from sbatchgen.check.bash.variables import LOCAL
from sbatchgen.check.sbatch.values import mebibytes, minutes
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.render import SECOND_PART
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.lab.adopt import training
from sbatchgen.lab.adopt.draft import Draft
from sbatchgen.lab.adopt.simplified_script import simplify, without_functions
from sbatchgen.lab.adopt.slurm_options import options_of
from sbatchgen.lab.adopt.trainer_arguments import job_arguments

_MEMORY_OPTIONS = ("mem", "mem-per-cpu", "mem-per-gpu", "tmp")


def compare(draft: Draft, resolved: ResolvedJob, new: JobScript) -> None:
    """Note each difference between the old script, which is that of the draft, and the new script as lost.

    `resolved` is the job of the draft, and `new` is the script that is rendered from this job.
    """
    _compare_options(draft, new)
    after_runtime = draft.profile.get("setup_after_runtime", ())
    setup = {*draft.setup, *draft.step_setup, *draft.argument_lines, *after_runtime}
    # The second part of a rendered script is the same in all jobs, so it has no kept lines.
    first_part = new.lines[: new.text.rpartition(SECOND_PART)[0].count("\n")]
    kept_lines = {number for number, line in enumerate(first_part, start=1) if line in setup}
    # The kept lines that run after the runtime is set up, right before the trainer.
    late_lines = {number for number, line in enumerate(first_part, start=1) if line in after_runtime}
    for name in _overwritten_variables(draft, resolved, new, kept_lines, late_lines):
        reason = f"the new script sets {name} too: write its value as plain text, or give it another name"
        draft.add((), "lost", reason)
    _lose_replaced_functions(draft, new, kept_lines)
    if resolved.programs:
        return  # the programs have the words of the old steps as their commands, so these can't differ
    old_start = _start_of_training(draft.script, draft)
    new_start = _start_of_training(simplify(without_functions(new)).script, draft)
    # If a part of the launch is lost, the account already says why the starts differ.
    if old_start != new_start and all(remark.outcome != "lost" for remark in draft.remarks):
        draft.add((), "lost", f"the old script starts {old_start}, the new one {new_start}")


def _compare_options(draft: Draft, new: JobScript) -> None:
    """Note each option of sbatch that has another value in the new script as lost."""
    old_values, new_values = _requested_options(draft.script), _requested_options(new)
    old_values.setdefault("job-name", draft.options.get("job_name", ""))
    for option in sorted((old_values.keys() | new_values.keys()) - draft.changed_options):
        old, new_value = old_values.get(option, ""), new_values.get(option, "")
        if old != new_value:
            reason = f"--{option}: {old or 'none'} in the old script, {new_value or 'none'} in the new one"
            draft.add((), "lost", reason)


def _lose_replaced_functions(draft: Draft, new: JobScript, kept_lines: Container[int]) -> None:
    """Note the kept lines of a function as lost if the new script has a function with the same name."""
    own_commands = [command for command in new.body.commands if command.line not in kept_lines]
    own_functions = {command.context.function for command in own_commands} - {""}
    for command in draft.script.body.commands:
        name, line = command.context.function, command.line
        if name in own_functions and draft.outcomes.get(line) == "kept":
            reason = f"the new script has its own function {name}: give this one another name"
            draft.add((line,), "lost", reason)


def _requested_options(script: JobScript) -> dict[str, str]:
    """Return the options of a script by name, with times in minutes and memory in MiB."""
    values = {}
    for name, option in options_of(script).items():
        text = "set" if option.value is None else option.value
        if name in ("time", "time-min"):
            text = str(minutes(text))
        elif name in _MEMORY_OPTIONS:
            text = str(mebibytes(text))
        values[name] = text
    return values


def _overwritten_variables(
    draft: Draft,
    resolved: ResolvedJob,
    new: JobScript,
    kept_lines: Container[int],
    late_lines: Container[int],
) -> list[str]:
    """Return the variables of kept lines that the new script sets again before the trainer starts.

    `kept_lines` are the numbers of the lines from the old script. The `late_lines` among them run after the
    runtime is set up, so the new script does not change their variables.
    """
    # A rendered script reads these variables itself, so they count even if a kept line does not export them.
    folder_names = {"CODE_DIR", "DATA_DIR"} | ({"RUN_DIR"} if resolved.runtime.is_container else set())
    kept_names = {*draft.needed_names}  # the variables that the kept lines and the launch need
    own_names = set()  # the variables that the new script sets itself
    # The function and the name of each variable that only exists in a function.
    local_variables = {
        (assignment.context.function, assignment.name)
        for assignment in new.body.assignments
        if assignment.setter in LOCAL
    }
    for assignment in new.body.assignments:
        name, word, line = assignment.name, assignment.word, assignment.line
        if assignment.is_prefix or (assignment.context.function, name) in local_variables:
            continue
        is_extension = word is not None and name in word.variables  # such as PATH=FOLDER:$PATH
        if line in kept_lines:
            if line not in late_lines and (assignment.is_exported or name in folder_names):
                kept_names.add(name)
        elif not is_extension:
            own_names.add(name)
    return sorted((kept_names & own_names) - draft.rendezvous_names - draft.env.keys())


def _start_of_training(script: JobScript, draft: Draft) -> tuple[object, ...]:
    """Return a value that is equal for two scripts that start their training in the same way.

    The value has the number of processes that a launcher starts on a node, the number of tasks on a node, and
    the trainer's arguments. With a launcher, the number of tasks is always 1, because the old script may give
    a node several tasks for one launcher. A script without a training gives ().
    """
    launch = training.main_launch(script)
    if launch is None:
        return ()
    program, body = launch.program, launch.program.body
    workers = launch.workers or (script.resources.gpu_count if launch.launcher else 1)
    tasks_on_node = 1 if launch.launcher else launch.tasks_per_node
    words = program.rest[1:] if program.name == "python" else program.rest
    converted = job_arguments(draft, words, body, in_task=body is not script.body)
    return (workers, tasks_on_node, [word.text if text is None else text for word, text in converted])


def mended_and_remaining(
    draft: Draft, before: Sequence[Finding], after: Sequence[Finding]
) -> tuple[list[Finding], list[Finding]]:
    """Return the old script's findings that the new script lacks, and the findings that it still has.

    The lines of the first findings are noted as mended.
    """
    remaining_rules = {finding.rule for finding in after}
    mended = [finding for finding in before if finding.rule not in remaining_rules]
    for finding in mended:
        if line := finding.place.line:
            # A rule SB1xx is about a directive. The job has the value that Slurm reads, maybe not the value
            # that the user meant.
            is_directive = finding.rule.startswith("SB1") and draft.outcomes.get(line) == "understood"
            prefix = "as Slurm reads it today, " if is_directive else ""
            draft.add((line,), "mended", f"{prefix}{finding.rule}: {finding.problem.what}")
    return mended, [finding for finding in before if finding.rule in remaining_rules]
