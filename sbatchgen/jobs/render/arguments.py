"""The arguments of the trainer and the pattern of its checkpoints, as words of bash."""

import functools
import re
from collections.abc import Callable, Iterator, Sequence

from sbatchgen.base import quoting
from sbatchgen.base.errors import nearest
from sbatchgen.jobs.inputs.options import GPU_OPTIONS
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.runtimes.base import of_submission

NODE_RANK = "@node_rank@"  # a mark in the script, which each task replaces by the number of its node
ALONE = 20000  # the port of a job on this machine alone
OF_CHECKPOINT = {"checkpoint": '"$checkpoint"', "checkpoint_dir": '"${checkpoint%/*}"'}
_GLOB = re.compile(r"(\*+|\?|\[[!^]?[\w-]+\])")  # a pattern that bash replaces by names of files


def node_rank(resolved: ResolvedJob) -> str:
    """Return the number of a node, as a word."""
    if resolved.profile.scheduler == "env":
        return '"$RANK"'  # of the platform, which counts nodes
    return quoting.word(NODE_RANK) if resolved.slurm and resolved.nodes > 1 else "0"


def nnodes(resolved: ResolvedJob) -> str:
    """Return the number of nodes, as a word."""
    if resolved.share:
        return str(resolved.nodes)
    return {"slurm": '"$SLURM_NNODES"', "env": '"$WORLD_SIZE"'}.get(resolved.profile.scheduler, "1")


def nproc(resolved: ResolvedJob) -> str:
    """Return the number of processes on a node as a word: Slurm's count of GPUs, if certainly right."""
    count, options = str(resolved.nproc_per_node), resolved.options
    asked = [name for name in GPU_OPTIONS if getattr(options, name)]
    one_each = resolved.nproc_per_node == resolved.gpus_per_node
    if resolved.share or not (resolved.slurm and one_each) or options.exclusive or resolved.shards:
        return count
    if resolved.partition.exclusive and resolved.gpus_per_node != resolved.partition.gpus_per_node:
        return count  # the batch shell counts all GPUs of the node, its steps have those that were asked for
    if not asked:  # the command line of sbatch may ask for GPUs
        return f'"${{SLURM_GPUS_ON_NODE:-{count}}}"'
    return '"$SLURM_GPUS_ON_NODE"' if asked[0] in ("gpus_per_node", "gres") else count


def resume(resolved: ResolvedJob) -> str:
    """Return auto, off, or the checkpoint, as a word."""
    if resolved.resume in ("auto", "off"):
        return resolved.resume
    return quoting.path(of_submission(resolved.resume, resolved))


def _meeting(variable: str, alone: Callable[[ResolvedJob], str]) -> Callable[[ResolvedJob], str]:
    return lambda resolved: f'"${variable}"' if resolved.profile.scheduler != "none" else alone(resolved)


# The placeholders in arguments of a trainer, and the function that makes the word for each.
PLACEHOLDERS: dict[str, Callable[[ResolvedJob], str]] = {
    "run_dir": lambda _: '"$RUN_DIR"',
    "data_dir": lambda _: '"$DATA_DIR"',
    "resume": resume,
    "node_rank": node_rank,
    "nnodes": nnodes,
    "nproc": nproc,
    "master_addr": _meeting("MASTER_ADDR", lambda _: "localhost"),
    "master_port": _meeting(
        "MASTER_PORT", lambda resolved: str(resolved.settings.network.port_base or ALONE)
    ),
}
_KNOWN = (*PLACEHOLDERS, *OF_CHECKPOINT)
_NAMES = "|".join([*_KNOWN, r"env:[A-Za-z_][A-Za-z0-9_]*(?:\[@\])?"])  # [@]: each word of an array
_PLACEHOLDER = rf"(\{{\{{(?:{_NAMES})\}}\}}|\{{(?:{_NAMES})\}})"  # {{run_dir}} is the text {run_dir}


def placeholders(resolved: ResolvedJob) -> frozenset[str]:
    """Return the names of the placeholders in the arguments and in the pattern of the checkpoints."""
    return names(*resolved.args, *resolved.launcher_args, *resolved.resume_args, resolved.checkpoint or "")


def names(*texts: str) -> frozenset[str]:
    """Return the names of the placeholders that texts hold."""
    pieces = (piece for text in texts if "{" in text for piece in _split(text))
    return frozenset(piece[1:-1] for piece, is_text in pieces if not is_text)


def mistyped(text: str, params: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield each word in braces that is not a placeholder, with the placeholder that may be meant.

    The names of a sweep's `params` are placeholders too.
    """
    for place, piece in enumerate(re.split(_PLACEHOLDER, text)):
        for name in () if place % 2 else re.findall(r"(?<!\{)\{([A-Za-z][\w:-]*)\}(?!\})", piece):
            like = name.lower().replace("-", "_")
            if name in params:
                continue
            if meant := "env:NAME" if like.startswith("env:") else nearest(like, [*_KNOWN, *params], 0.85):
                yield f"{{{name}}}", f"{{{meant}}}"


def with_params(text: str, resolved: ResolvedJob, word: Callable[[str], str]) -> str:
    """Return a text with parameters of a sweep as a word of bash; `word` makes words of the other parts."""
    pieces = resolved.sweep.pieces(text) if resolved.sweep else [text]
    words = [
        f'"${{param[{piece}]}}"' if place % 2 else word(piece) for place, piece in enumerate(pieces) if piece
    ]
    return "".join(words) or word("")


def word(text: str, resolved: ResolvedJob, *, glob: bool = False) -> str:
    """Return an argument as a word of bash; with `glob` bash replaces patterns in it by names of files."""
    words = []
    for piece, is_text in _split(text):
        if not is_text:
            words.append(_filled(piece[1:-1], resolved))
            continue
        parts = _GLOB.split(piece) if glob else [piece]
        words += [part if place % 2 else quoting.word(part) for place, part in enumerate(parts) if part]
    return "".join(words) or "''"


def of_launcher(text: str, resolved: ResolvedJob) -> str:
    """Return an argument of the launcher as a word of bash, which expands ${NAME}.

    A trainer's argument stays as it is: frameworks have a ${NAME} of their own.
    """
    words = [
        quoting.value(piece) if is_text else _filled(piece[1:-1], resolved) for piece, is_text in _split(text)
    ]
    return "".join(words) or "''"


def checkpoints(resolved: ResolvedJob) -> str:
    """Return the pattern of the checkpoints as a word that bash replaces by their names."""
    text = resolved.checkpoint or ""
    return word(text if text.startswith(("/", "{")) else f"./{text}", resolved, glob=True)


def resume_args(resolved: ResolvedJob) -> str:
    """Return the trainer's arguments for the time when a checkpoint exists; "" without such arguments."""
    return " ".join(word(arg, resolved) for arg in resolved.resume_args) if resolved.gives_resume_args else ""


def given(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the arguments; an option and its values stay on one line."""
    groups: list[list[str]] = []
    for arg in resolved.args:
        if not groups or arg.startswith("-") or "=" in arg:
            groups.append([])
        groups[-1].append(with_params(arg, resolved, lambda text: word(text, resolved)))
    words = [" ".join(group) for group in groups]
    words += ['"${resume_args[@]}"'] if resolved.gives_resume_args else []
    yield from quoting.packed([*words, *(['"${point_args[@]}"'] if _adds_arguments(resolved) else [])])


def points(resolved: ResolvedJob) -> tuple[str, ...]:
    """Return the lines of a `case` that set the values and arguments of each point of a sweep."""
    sweep = resolved.sweep
    if sweep is None:
        return ()
    filled = functools.lru_cache(maxsize=None)(lambda arg: word(arg, resolved))
    lines = []
    for number, point in enumerate(sweep.points):
        values = dict(zip(sweep.names, point, strict=True))
        placed = " ".join(f"[{name}]={filled(values[name])}" for name in resolved.placed)
        added = " ".join(map(filled, sweep.arguments(point, resolved.placed)))
        sets = [*([f"param=({placed})"] if placed else []), *([f"point_args=({added})"] if added else [])]
        lines.append(f"{number}) {' '.join(sets)} ;;")
    return tuple(lines)


def point_says(resolved: ResolvedJob) -> str:
    """Return the name of the point that the script runs, as text for double quotes."""
    values = [f"{name}=${{param[{name}]}}" for name in resolved.placed]
    return " ".join([*values, *(["${point_args[*]}"] if _adds_arguments(resolved) else [])])


def _adds_arguments(resolved: ResolvedJob) -> bool:
    """Return whether a parameter of a sweep has no placeholder."""
    return resolved.sweep is not None and len(resolved.placed) < len(resolved.sweep.names)


def _filled(name: str, resolved: ResolvedJob) -> str:
    if name.startswith("env:"):
        variable = name.removeprefix("env:")
        return f'"${{{variable}}}"' if variable.endswith("[@]") else f'"${variable}"'
    return OF_CHECKPOINT[name] if name in OF_CHECKPOINT else PLACEHOLDERS[name](resolved)


def _split(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a text, and whether each is text, not a placeholder."""
    for place, piece in enumerate(re.split(_PLACEHOLDER, text) if "{" in text else [text]):
        escaped = piece.startswith("{{") and place % 2
        if piece:
            yield (piece[1:-1] if escaped else piece), bool(escaped) or not place % 2
