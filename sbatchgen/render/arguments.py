"""The arguments of the trainer and the pattern of its checkpoints, as words of bash."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence

from sbatchgen import quoting
from sbatchgen.errors import nearest
from sbatchgen.inputs.options import GPU_OPTIONS
from sbatchgen.plan.plan import Plan
from sbatchgen.runtimes.base import of_submission

NODE_RANK = "@node_rank@"  # in the script: each task puts the number of its node there
OF_CHECKPOINT = {"checkpoint": '"$checkpoint"', "checkpoint_dir": '"${checkpoint%/*}"'}
_GLOB = re.compile(r"(\*+|\?|\[[!^]?[\w-]+\])")  # what bash replaces by names of files


def node_rank(plan: Plan) -> str:
    """Return the number of a node, as a word."""
    if plan.profile.scheduler == "env":
        return '"$RANK"'  # of the platform, which counts nodes
    return quoting.word(NODE_RANK) if plan.slurm and plan.nodes > 1 else "0"


def nnodes(plan: Plan) -> str:
    """Return the number of nodes, as a word."""
    return {"slurm": '"$SLURM_NNODES"', "env": '"$WORLD_SIZE"'}.get(plan.profile.scheduler, "1")


def nproc(plan: Plan) -> str:
    """Return the processes of a node as a word: Slurm's count of its GPUs, where that is sure to be right."""
    count, options = str(plan.nproc_per_node), plan.options
    asked = [name for name in GPU_OPTIONS if getattr(options, name)]
    if not plan.slurm or plan.nproc_per_node != plan.gpus_per_node or options.exclusive or plan.shards:
        return count
    if not asked:  # the command line of sbatch may ask for GPUs
        return f'"${{SLURM_GPUS_ON_NODE:-{count}}}"'
    return '"$SLURM_GPUS_ON_NODE"' if asked[0] in ("gpus_per_node", "gres") else count


def resume(plan: Plan) -> str:
    """Return auto, off, or the checkpoint, as a word."""
    return plan.resume if plan.resume in ("auto", "off") else quoting.path(of_submission(plan.resume, plan))


def _meeting(variable: str, alone: Callable[[Plan], str]) -> Callable[[Plan], str]:
    return lambda plan: f'"${variable}"' if plan.profile.scheduler != "none" else alone(plan)


# What a trainer's arguments may hold, and the word that it becomes.
PLACEHOLDERS: dict[str, Callable[[Plan], str]] = {
    "run_dir": lambda _: '"$RUN_DIR"',
    "data_dir": lambda _: '"$DATA_DIR"',
    "resume": resume,
    "node_rank": node_rank,
    "nnodes": nnodes,
    "nproc": nproc,
    "master_addr": _meeting("MASTER_ADDR", lambda _: "localhost"),
    "master_port": _meeting("MASTER_PORT", lambda plan: str(plan.settings.network.port_base)),
}
_KNOWN = (*PLACEHOLDERS, *OF_CHECKPOINT)
_NAMES = "|".join([*_KNOWN, r"env:[A-Za-z_][A-Za-z0-9_]*(?:\[@\])?"])  # [@]: each word of an array
_PLACEHOLDER = rf"(\{{\{{(?:{_NAMES})\}}\}}|\{{(?:{_NAMES})\}})"  # {{run_dir}} is the text {run_dir}


def placeholders(plan: Plan) -> frozenset[str]:
    """Return the names of the placeholders that the arguments and the pattern hold."""
    return names(*plan.args, *plan.resume_args, plan.checkpoint or "")


def names(*texts: str) -> frozenset[str]:
    """Return the names of the placeholders that texts hold."""
    pieces = (piece for text in texts if "{" in text for piece in _split(text))
    return frozenset(piece[1:-1] for piece, is_text in pieces if not is_text)


def mistyped(text: str, params: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield what looks like a placeholder in a text and is not, with the placeholder that may be meant.

    The names of a sweep's `params` are placeholders too.
    """
    for place, piece in enumerate(re.split(_PLACEHOLDER, text)):
        for name in () if place % 2 else re.findall(r"(?<!\{)\{([A-Za-z][\w:-]*)\}(?!\})", piece):
            like = name.lower().replace("-", "_")
            if name in params:
                continue
            if meant := "env:NAME" if like.startswith("env:") else nearest(like, [*_KNOWN, *params], 0.85):
                yield f"{{{name}}}", f"{{{meant}}}"


def with_params(text: str, plan: Plan, word: Callable[[str], str]) -> str:
    """Return a text as a word of bash that has a sweep's parameters; `word` makes words of the rest."""
    pieces = plan.sweep.pieces(text) if plan.sweep else [text]
    words = [
        f'"${{param[{piece}]}}"' if place % 2 else word(piece) for place, piece in enumerate(pieces) if piece
    ]
    return "".join(words) or word("")


def word(text: str, plan: Plan, *, glob: bool = False) -> str:
    """Return an argument as a word of bash; with `glob` one that bash replaces by names of files."""
    words = []
    for piece, is_text in _split(text):
        if not is_text:
            words.append(_filled(piece[1:-1], plan))
            continue
        parts = _GLOB.split(piece) if glob else [piece]
        words += [part if place % 2 else quoting.word(part) for place, part in enumerate(parts) if part]
    return "".join(words) or "''"


def checkpoints(plan: Plan) -> str:
    """Return the pattern of the checkpoints as a word that bash replaces by their names."""
    text = plan.checkpoint or ""
    return word(text if text.startswith(("/", "{")) else f"./{text}", plan, glob=True)


def resume_args(plan: Plan) -> str:
    """Return the words that are given once there is a checkpoint, "" without any."""
    return " ".join(word(arg, plan) for arg in plan.resume_args) if plan.gives_resume_args else ""


def given(plan: Plan) -> Iterator[str]:
    """Yield the arguments; an option and its values stay on one line."""
    groups: list[list[str]] = []
    for arg in plan.args:
        if not groups or arg.startswith("-") or "=" in arg:
            groups.append([])
        groups[-1].append(with_params(arg, plan, lambda text: word(text, plan)))
    words = [" ".join(group) for group in groups]
    words += ['"${resume_args[@]}"'] if plan.gives_resume_args else []
    yield from quoting.packed([*words, *(['"${point_args[@]}"'] if _adds_arguments(plan) else [])])


def points(plan: Plan) -> tuple[str, ...]:
    """The lines of a `case` that set the values and arguments of each point of a sweep."""
    sweep = plan.sweep
    if sweep is None:
        return ()
    filled = functools.lru_cache(maxsize=None)(lambda arg: word(arg, plan))
    lines = []
    for number, point in enumerate(sweep.points):
        values = dict(zip(sweep.names, point, strict=True))
        placed = " ".join(f"[{name}]={filled(values[name])}" for name in plan.placed)
        added = " ".join(map(filled, sweep.arguments(point, plan.placed)))
        sets = [*([f"param=({placed})"] if placed else []), *([f"point_args=({added})"] if added else [])]
        lines.append(f"{number}) {' '.join(sets)} ;;")
    return tuple(lines)


def point_says(plan: Plan) -> str:
    """Return what the script prints of the point that it runs, as text for double quotes."""
    values = [f"{name}=${{param[{name}]}}" for name in plan.placed]
    return " ".join([*values, *(["${point_args[*]}"] if _adds_arguments(plan) else [])])


def _adds_arguments(plan: Plan) -> bool:
    """Whether a parameter of a sweep has no placeholder."""
    return plan.sweep is not None and len(plan.placed) < len(plan.sweep.names)


def _filled(name: str, plan: Plan) -> str:
    if name.startswith("env:"):
        variable = name.removeprefix("env:")
        return f'"${{{variable}}}"' if variable.endswith("[@]") else f'"${variable}"'
    return OF_CHECKPOINT[name] if name in OF_CHECKPOINT else PLACEHOLDERS[name](plan)


def _split(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a text, and whether each is text, not a placeholder."""
    for place, piece in enumerate(re.split(_PLACEHOLDER, text) if "{" in text else [text]):
        escaped = piece.startswith("{{") and place % 2
        if piece:
            yield (piece[1:-1] if escaped else piece), bool(escaped) or not place % 2
