"""Text of `gpus` and `when`: the GPUs of a cluster, the room for a job, and its possible starts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

from sbatchgen.base.quoting import counted, first_names, numbers_as_text, one_line, table, words
from sbatchgen.jobs.slurm.gpu_nodes import GpuCount, GpuNode, why_unavailable
from sbatchgen.jobs.starts.prospect import Prospects, clock_text
from sbatchgen.jobs.starts.room import Availability

MAX_NAMES = 8  # names of nodes or partitions in a line
NOTE = "Other jobs that wait may start first, and limits of accounts and QOS may hold it back."


def types_table(counts: Sequence[GpuCount], nodes: Sequence[GpuNode]) -> str:
    """Return a table of GPUs by type, and below it the nodes that take no jobs."""
    if not counts:
        return "no node has GPUs\n"
    has_shards = any(count.shards for count in counts)
    shard_columns = ("SHARED", "FREE SHARDS") if has_shards else ()
    heading = ("TYPE", "GPUS", "IN USE", "FREE", "UNAVAILABLE", *shard_columns, "PARTITIONS")
    rows = [heading, *(_type_row(count, has_shards=has_shards) for count in counts)]
    closed = "".join(f"{line}\n" for line in _closed_nodes(nodes))
    return table(rows) + (f"\nUnavailable\n{closed}" if closed else "")


def _type_row(count: GpuCount, *, has_shards: bool) -> tuple[str, ...]:
    """Return the row of one type of GPU; `has_shards` is whether the table has columns for shards."""
    cells = [count.type or "-", count.total, count.in_use, count.free, count.unavailable]
    if has_shards:
        on_one = f", {count.shards_on_one} on a GPU" if count.shards_free else ""
        cells += [count.shared, f"{count.shards_free} of {count.shards}{on_one}" if count.shards else "-"]
    cells.append(first_names(count.partitions, MAX_NAMES) or "-")
    return tuple(one_line(str(cell)) for cell in cells)


def _closed_nodes(nodes: Sequence[GpuNode]) -> Iterator[str]:
    """Yield a line for each reason why nodes take no jobs, with the names of these nodes."""
    names_by_reason: dict[tuple[str, str], list[str]] = {}  # (state, the administrator's reason) -> names
    for entry in nodes:
        if state := why_unavailable(entry.node):
            names_by_reason.setdefault((state, entry.node.reason), []).append(entry.node.name)
    for (state, reason), names in names_by_reason.items():
        yield one_line(f"  {first_names(names, MAX_NAMES)}: {state}" + f": {reason}" * bool(reason))


def nodes_table(nodes: Sequence[GpuNode]) -> str:
    """Return a table of nodes, with the GPUs of each that are in use, shared and free."""
    if not nodes:
        return "no node has GPUs\n"
    heading = ("NODE", "STATE", "GPUS", "IN USE", "FREE", "FREE SHARDS BY GPU")
    has_shards = any(gpu.shards for node in nodes for gpu in node.gpus)
    rows = [heading, *map(_node_row, nodes)]
    return table(rows if has_shards else [row[:-1] for row in rows])


def _node_row(node: GpuNode) -> tuple[str, ...]:
    """Return the row of a node; a node that takes no jobs has no free GPUs."""
    state_without_jobs = why_unavailable(node.node)
    counts = Counter(gpu.type for gpu in node.gpus)
    gpus = ",".join(f"{type_}:{count}".removeprefix(":") for type_, count in counts.items())  # "a100:4"
    usable_gpus = [] if state_without_jobs else node.gpus
    free_indexes = [gpu.index for gpu in usable_gpus if gpu.free]
    shards = [
        f"{gpu.index}: {'not known' if gpu.shards_used is None else gpu.shards_free}"
        for gpu in usable_gpus
        if gpu.shards and not gpu.taken
    ]
    cells = (
        node.node.name,
        state_without_jobs or node.node.state.lower(),
        gpus,
        _gpu_numbers([gpu.index for gpu in node.gpus if gpu.taken], is_numbered=node.is_numbered),
        _gpu_numbers(free_indexes, is_numbered=node.is_numbered),
        ", ".join(shards) or "-",
    )
    return tuple(map(one_line, cells))


def _gpu_numbers(indexes: list[int], *, is_numbered: bool) -> str:
    """Return the indexes of GPUs as text: "0-2,5". If Slurm does not show indexes, return their count."""
    return numbers_as_text(indexes) or "-" if is_numbered else str(len(indexes))


def room_as_text(rooms: Sequence[Availability]) -> str:
    """Return lines about each partition: whether the job would start there now, or why it would wait."""
    lines = [line for room in rooms for line in _room_lines(room)]
    return "".join(f"{one_line(line)}\n" for line in (*lines, NOTE))


def _room_lines(room: Availability) -> Iterator[str]:
    """Yield the lines about one partition."""
    where = f"partition {room.partition}"
    nodes = counted(room.wanted, "node")
    if room.starts:
        names = first_names(room.nodes, MAX_NAMES)
        yield f"starts now in {where}: {nodes} of {len(room.nodes)} with room: {names}"
    else:
        lacking = "; ".join(
            f"{lack}: {first_names(names, MAX_NAMES)}" for lack, names in room.lacking.items()
        )
        with_room = f"{len(room.nodes)} of {nodes}" if room.nodes else "no node"
        yield f"waits in {where}: {with_room} with room" + f" ({lacking})" * bool(lacking)
    if room.not_seen:
        yield f"not looked at: {', '.join(room.not_seen)}"


def starts_as_text(answer: Prospects) -> str:
    """Return a table of a job's possible starts, with notes and the command for the first of them."""
    now = datetime.fromisoformat(answer.time)
    rows = [("STARTS", "ENDS BY", "KIND", "NODES", "GPUS", "GPU-HOURS", "OPTIONS")]
    for row in answer.rows:
        start, end = (
            clock_text(datetime.fromisoformat(at), now) if at else "?" for at in (row.start, row.end)
        )
        start = "now" if row.kind == "hole" and row.start == answer.time else start  # a hole in the queue
        amounts = (str(row.nodes), str(row.gpus), f"{row.gpu_hours:,.1f}")
        options = "" if row.kind == "plan" else words(row.options) or "as asked for"
        rows.append((start, end, row.kind, *amounts, options))
    lines = [*dict.fromkeys(f"{row.kind}: {row.says}" for row in answer.rows)]
    lines += [f"out: {name}: {why}" for name, why in answer.out.items()]
    lines += [*answer.notes, *[f"for the first: {words(row.argv)}" for row in answer.rows if row.argv][:1]]
    table_text = table([tuple(map(one_line, row)) for row in rows]) + "\n" if answer.rows else ""
    return table_text + "".join(f"{one_line(line)}\n" for line in lines)
