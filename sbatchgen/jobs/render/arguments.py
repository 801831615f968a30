"""Turns the arguments of the trainer and of the launcher, and the pattern of checkpoints, into words of bash.

Placeholders such as {run_dir} become variables of the script, or values.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence

from sbatchgen.base import quoting
from sbatchgen.base.errors import nearest
from sbatchgen.jobs.inputs.options import GPU_OPTIONS
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.runtimes.base import from_submit_folder

NODE_RANK = "@node_rank@"  # a mark in arguments, which each task replaces with the number of its node
LOCAL_PORT = 20000  # MASTER_PORT of a job that runs on this machine without Slurm
# Placeholders that are known once a checkpoint exists, each with the word of bash that replaces it.
CHECKPOINT_PLACEHOLDERS = {"checkpoint": '"$checkpoint"', "checkpoint_dir": '"${checkpoint%/*}"'}
_GLOB = re.compile(r"(\*+|\?|\[[!^]?[\w-]+\])")  # *, ? or [0-9] in a pattern of file names


def node_rank(resolved: ResolvedJob) -> str:
    """Return the number of the node on which a task runs, from 0, as a word of bash."""
    if resolved.profile.scheduler == "env":
        return '"$RANK"'  # the platform sets it to the number of the node
    return quoting.word(NODE_RANK) if resolved.uses_slurm and resolved.nodes > 1 else "0"


def nnodes(resolved: ResolvedJob) -> str:
    """Return the number of nodes, as a word of bash."""
    if resolved.share:
        return str(resolved.nodes)
    return {"slurm": '"$SLURM_NNODES"', "env": '"$WORLD_SIZE"'}.get(resolved.profile.scheduler, "1")


def nproc(resolved: ResolvedJob) -> str:
    """Return the number of processes on a node, as a word of bash.

    If each process certainly has one GPU, the word is Slurm's variable with the number of GPUs on the node.
    Users can then submit the script with another number of GPUs.
    """
    count, options = str(resolved.nproc_per_node), resolved.options
    gpu_options = [name for name in GPU_OPTIONS if getattr(options, name)]
    has_gpu_per_process = resolved.uses_slurm and resolved.nproc_per_node == resolved.gpus_per_node
    if resolved.share or not has_gpu_per_process or options.exclusive or resolved.shards:
        return count
    if resolved.partition.exclusive and resolved.gpus_per_node != resolved.partition.gpus_per_node:
        return count  # the batch shell counts all GPUs of the node, but its steps get the requested GPUs
    if not gpu_options:  # the command line of sbatch may request GPUs
        return f'"${{SLURM_GPUS_ON_NODE:-{count}}}"'
    return '"$SLURM_GPUS_ON_NODE"' if gpu_options[0] in ("gpus_per_node", "gres") else count


def resume(resolved: ResolvedJob) -> str:
    """Return the value of `resume`, as a word of bash: auto, off, or the path of a checkpoint."""
    if resolved.resume in ("auto", "off"):
        return resolved.resume
    return quoting.path(from_submit_folder(resolved.resume, resolved))


def _rendezvous_word(
    variable: str, word_without_slurm: Callable[[ResolvedJob], str]
) -> Callable[[ResolvedJob], str]:
    """Return the function that makes the word for a placeholder of the rendezvous: "$VARIABLE".

    For a job on a single machine without Slurm, it returns the word that `word_without_slurm` makes.
    """
    return lambda resolved: (
        f'"${variable}"' if resolved.profile.scheduler != "none" else word_without_slurm(resolved)
    )


# The placeholders in arguments, each with the function that makes its word of bash for a job.
PLACEHOLDERS: dict[str, Callable[[ResolvedJob], str]] = {
    "run_dir": lambda _: '"$RUN_DIR"',
    "data_dir": lambda _: '"$DATA_DIR"',
    "resume": resume,
    "node_rank": node_rank,
    "nnodes": nnodes,
    "nproc": nproc,
    "master_addr": _rendezvous_word("MASTER_ADDR", lambda _: "localhost"),
    "master_port": _rendezvous_word(
        "MASTER_PORT", lambda resolved: str(resolved.settings.network.port_base or LOCAL_PORT)
    ),
}
_KNOWN_NAMES = (*PLACEHOLDERS, *CHECKPOINT_PLACEHOLDERS)
# {env:NAME} is the variable NAME. With {env:NAME[@]}, each item of bash's array NAME becomes an argument.
_NAMES = "|".join([*_KNOWN_NAMES, r"env:[A-Za-z_][A-Za-z0-9_]*(?:\[@\])?"])
# {run_dir}, or {{run_dir}} for the text {run_dir}. The group lets re.split keep the placeholders.
_PLACEHOLDER = rf"(\{{\{{(?:{_NAMES})\}}\}}|\{{(?:{_NAMES})\}})"


def placeholders(resolved: ResolvedJob) -> frozenset[str]:
    """Return the names of the placeholders in the job's arguments and in its pattern of checkpoints."""
    return names(*resolved.args, *resolved.launcher_args, *resolved.resume_args, resolved.checkpoint or "")


def names(*texts: str) -> frozenset[str]:
    """Return the names of the placeholders in some texts: "{run_dir}/log" -> {"run_dir"}."""
    pieces = (piece for text in texts if "{" in text for piece in _pieces(text))
    return frozenset(piece[1:-1] for piece, is_text in pieces if not is_text)


def mistyped(text: str, params: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield each mistyped placeholder in a text with the placeholder that is meant: "{run-dir}", "{run_dir}".

    `params` are the parameters of a sweep, which are also placeholders.
    """
    for index, piece in enumerate(re.split(_PLACEHOLDER, text)):
        is_placeholder = index % 2 == 1
        # any other word in single braces: {run-dir}, but not {{run-dir}}
        for name in () if is_placeholder else re.findall(r"(?<!\{)\{([A-Za-z][\w:-]*)\}(?!\})", piece):
            if name in params:
                continue
            normal_name = name.lower().replace("-", "_")
            is_variable = normal_name.startswith("env:")
            if meant := "env:NAME" if is_variable else nearest(normal_name, [*_KNOWN_NAMES, *params], 0.85):
                yield f"{{{name}}}", f"{{{meant}}}"


def with_params(text: str, resolved: ResolvedJob, quote: Callable[[str], str]) -> str:
    """Return a text as a word of bash that has the parameters of a sweep: lr-{lr} -> lr-"${param[lr]}".

    `quote` is the function that quotes the text between the parameters.
    """
    pieces = resolved.sweep.pieces(text) if resolved.sweep else [text]  # text and parameter by turns
    words = []
    for index, piece in enumerate(pieces):
        is_parameter = index % 2 == 1
        if piece:
            words.append(f'"${{param[{piece}]}}"' if is_parameter else quote(piece))
    return "".join(words) or quote("")


def word(text: str, resolved: ResolvedJob, *, glob: bool = False) -> str:
    """Return an argument, which may have placeholders, as a word of bash: {run_dir}/a b -> "$RUN_DIR"'/a b'.

    With `glob`, bash replaces patterns such as *.pt with names of files.
    """
    words = []
    for piece, is_text in _pieces(text):
        if not is_text:
            words.append(_word_of_placeholder(piece[1:-1], resolved))
            continue
        parts = _GLOB.split(piece) if glob else [piece]  # text and pattern by turns; a pattern gets no quotes
        words += [part if index % 2 else quoting.word(part) for index, part in enumerate(parts) if part]
    return "".join(words) or "''"


def launcher_word(text: str, resolved: ResolvedJob) -> str:
    """Return an argument of the launcher as a word in which bash expands ${NAME}.

    In arguments of a trainer, `word` quotes ${NAME}, because frameworks expand it themselves.
    """
    words = [
        quoting.value(piece) if is_text else _word_of_placeholder(piece[1:-1], resolved)
        for piece, is_text in _pieces(text)
    ]
    return "".join(words) or "''"


def checkpoints(resolved: ResolvedJob) -> str:
    """Return the pattern of the checkpoints as a word that bash replaces with their names."""
    text = resolved.checkpoint or ""
    return word(text if text.startswith(("/", "{")) else f"./{text}", resolved, glob=True)


def resume_args(resolved: ResolvedJob) -> str:
    """Return as words the further arguments of a trainer that resumes from a checkpoint; "" without any."""
    return " ".join(word(arg, resolved) for arg in resolved.resume_args) if resolved.gives_resume_args else ""


def argument_lines(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the lines of the trainer's arguments; an option and its values stay on one line."""
    groups: list[list[str]] = []  # an option, such as "--lr", with its values
    for arg in resolved.args:
        if not groups or arg.startswith("-") or "=" in arg:
            groups.append([])
        groups[-1].append(with_params(arg, resolved, lambda text: word(text, resolved)))
    words = [" ".join(group) for group in groups]
    if resolved.gives_resume_args:
        words.append('"${resume_args[@]}"')
    if _adds_arguments(resolved):
        words.append('"${point_args[@]}"')
    yield from quoting.packed(words)


def point_cases(resolved: ResolvedJob) -> tuple[str, ...]:
    """Return the lines of a `case` for the points of a sweep: "0) param=([lr]=0.1) ;;".

    Each line sets the values and the arguments of its point.
    """
    sweep = resolved.sweep
    if sweep is None:
        return ()
    quoted = functools.lru_cache(maxsize=None)(lambda arg: word(arg, resolved))  # points share values
    lines = []
    for number, point in enumerate(sweep.points):
        values = dict(zip(sweep.names, point, strict=True))
        params = " ".join(f"[{name}]={quoted(values[name])}" for name in resolved.placeholder_names)
        point_args = " ".join(map(quoted, sweep.arguments(point, resolved.placeholder_names)))
        assignments = [f"param=({params})"] if params else []
        assignments += [f"point_args=({point_args})"] if point_args else []
        lines.append(f"{number}) {' '.join(assignments)} ;;")
    return tuple(lines)


def point_name(resolved: ResolvedJob) -> str:
    """Return the name of a sweep's point, as text for double quotes: "lr=${param[lr]}"."""
    values = [f"{name}=${{param[{name}]}}" for name in resolved.placeholder_names]
    return " ".join([*values, *(["${point_args[*]}"] if _adds_arguments(resolved) else [])])


def _adds_arguments(resolved: ResolvedJob) -> bool:
    """Return whether some parameter of the sweep has no placeholder, and so becomes an argument."""
    return resolved.sweep is not None and len(resolved.placeholder_names) < len(resolved.sweep.names)


def _word_of_placeholder(name: str, resolved: ResolvedJob) -> str:
    """Return the word of bash that replaces a placeholder: "run_dir" -> '"$RUN_DIR"'."""
    if name.startswith("env:"):
        variable = name.removeprefix("env:")
        return f'"${{{variable}}}"' if variable.endswith("[@]") else f'"${variable}"'
    return CHECKPOINT_PLACEHOLDERS[name] if name in CHECKPOINT_PLACEHOLDERS else PLACEHOLDERS[name](resolved)


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a text, each with whether it is plain text: "a/{run_dir}" -> "a/", "{run_dir}".

    The other pieces are placeholders with their braces.
    """
    for index, piece in enumerate(re.split(_PLACEHOLDER, text) if "{" in text else [text]):
        is_match = index % 2 == 1
        is_escaped = is_match and piece.startswith("{{")
        if piece:
            yield (piece[1:-1] if is_escaped else piece), is_escaped or not is_match
