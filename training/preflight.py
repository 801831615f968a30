"""The check of all nodes before a training: `python3 .../training/preflight.py FOLDER [OPTIONS] -- COMMAND`.

COMMAND starts Python as the training's command does: by srun, and in the job's container. It runs node.py
once on each node. FOLDER is the run folder. This program gathers the answers of the nodes, prints them, and
writes preflight.json into FOLDER. The exit status is 0 if the training may begin, BAD_NODE if some nodes are
unfit, and 1 if all nodes have the same fault or the check itself did not run.

Without COMMAND, `--exclude JOB` requeues a job that hung. If the other ranks waited for a rank on the
same node in two hangs, the job excludes that node.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

PACKAGE = Path(__file__).resolve().parent
if __name__ == "__main__":  # started as a file: import the package around it, whatever is on the path
    sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != PACKAGE]
    sys.path.insert(0, str(PACKAGE.parent))

from training.errors import BAD_NODE, DONE, FAILED, UserError, complain, one_line
from training.files import parse, read_small, replace
from training.node import MARK, Fault, ring_neighbours
from training.processes.hang import ODD_NODES_FILE

RECORD = "preflight.json"  # the file in the run folder
FIRST_ANSWER_S = 900  # time limit for the first answer
SILENCE_S = 240  # time limit for all other nodes, from the first answer on
TELL_S = 60  # seconds between two lines about the nodes that have not answered
END_S = 10  # time limit for the tasks to end after all nodes have answered
ALL_NODES = "all nodes"
CLOCK_S = 60  # seconds by which a node's clock may differ from the median
MAX_EXCLUDING_STARTS = 2  # starts of a job that may exclude nodes, and nodes that its hangs may exclude
# Starts of the names of parts that belong to one node. If all nodes report a fault of another part, such as
# torch, no node is to blame. For these parts, that is true only if the faults have the same words.
NODE_PARTS = ("GPU ", "/dev/shm", "/tmp", "port ", "clock", "left over")  # noqa: S108
# srun's messages about a task or a node that failed, such as "srun: error: n3: task 3: Killed".
_SRUN_FAILURE = re.compile(
    r"srun: error: (?:(\S+): tasks? \S+: (.+)|.*(?:ailure|failed) on (?:node )?([\w.-]+)(.*))"
)


@dataclass
class Answers:
    """The answers of the nodes and the messages of srun."""

    places: dict[str, Any] = field(default_factory=dict)  # by node: its host and port for other nodes
    ends: dict[str, dict[str, Any]] = field(default_factory=dict)  # by node: its last line, with the findings
    ahead: dict[str, float] = field(default_factory=dict)  # by node: how far its clock is ahead, in seconds
    failed: dict[str, str] = field(default_factory=dict)  # by node: srun's message about the failure
    messages: list[str] = field(default_factory=list)  # lines of srun, the container and Python
    late: bool = False  # whether the time limit was reached

    def add(self, line: str, now: float) -> None:
        """Add a line that a task or srun printed; `now` is the time of this machine."""
        facts = parse(line[len(MARK) :].encode()) if line.startswith(MARK) else {}
        node = str(facts.get("node", ""))
        if "at" in facts:
            self.places[node], self.ahead[node] = facts["at"], facts["time"] - now
        elif node:
            self.ends[node] = facts
        else:
            self.messages.append(line)
            match = _SRUN_FAILURE.match(line)
            if match:
                message = match[2] or (match[4] or "").strip(" :") or "the node has failed"
                self.failed.setdefault(match[1] or match[3], message)


def main(argv: list[str]) -> int:
    """Check the nodes, or requeue a job that hung; return the exit status."""
    command_at = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(prog="preflight.py", usage="%(prog)s FOLDER [OPTIONS] -- COMMAND")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpus", default="0", help="GPUs of a task")
    parser.add_argument("--shared", action="store_true", help="other jobs may use the GPUs too")
    parser.add_argument("--exclude", metavar="JOB", default="", help="requeue the job without bad nodes")
    arguments = parser.parse_args(argv[:command_at])
    job, began = os.environ.get("SLURM_JOB_ID", ""), time.time()
    if command_at == len(argv):
        return DONE if requeue(arguments.exclude, job, hung_twice(arguments.folder, job)) else FAILED
    nodes = output_of("scontrol", "show", "hostnames", os.environ.get("SLURM_JOB_NODELIST", "")).split()
    nodes = nodes or [socket.gethostname()]
    shared = ["--shared"] if arguments.shared else []
    options = ["--gpus", arguments.gpus, *shared, str(arguments.folder.resolve())]
    answers = gather(argv[command_at + 1 :], options, nodes)
    running = output_of("squeue", "--noheader", "--me", "--format=%A").split()
    faults = judge(nodes, answers, running if job in running else None)
    unfit = [node for node in faults if node]
    seconds = round(time.time() - began, 1)
    report(nodes, faults, answers, f"{seconds:.0f} s")
    facts = {"job": job, "time": round(began), "seconds": seconds, "nodes": nodes, "faults": faults}
    excluded = excluded_before(arguments.folder, job)
    if unfit and arguments.exclude and len(excluded) >= MAX_EXCLUDING_STARTS:
        complain(f"preflight: {MAX_EXCLUDING_STARTS} starts have left nodes out: not again")
    elif unfit and arguments.exclude and requeue(arguments.exclude, job, unfit):
        excluded = [*excluded, unfit]
    try:
        text = json.dumps({**facts, "excluded": excluded})
        replace(arguments.folder / RECORD, lambda file: file.write(f"{text}\n".encode()))
    except OSError as error:
        complain(f"preflight: can't write {arguments.folder / RECORD}: {one_line(error)}")
    return BAD_NODE if unfit else FAILED if faults else DONE


def output_of(*command: str) -> str:
    """Return the output of a Slurm command; "" if the command fails or is missing."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout
    return ""


# --- The answers of the nodes ---


def gather(command: Sequence[str], options: Sequence[str], nodes: Sequence[str]) -> Answers:
    """Run node.py on each node, and return the answers of all nodes."""
    first, *rest = command
    independent = ["--kill-on-bad-exit=0", "--wait=0"]  # if a task fails, the other tasks continue
    tasks = [f"--ntasks={len(nodes)}", "--ntasks-per-node=1", *independent] if first == "srun" else []
    cpus = os.environ.get("SLURM_CPUS_PER_TASK")
    if tasks and cpus:
        tasks.append(f"--cpus-per-task={cpus}")  # 22.05 and 23.02 do not inherit the option
    words = [first, *tasks, *rest, str(PACKAGE / "node.py"), *options]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace")
    lines: queue.Queue[str | None] = queue.Queue()
    for stream in (process.stdout, process.stderr):
        threading.Thread(target=_read, args=(stream, lines), daemon=True).start()
    answers = Answers()
    deadline, open_streams, nodes_are_told = time.monotonic() + FIRST_ANSWER_S, 2, False
    tell_at = time.monotonic() + TELL_S
    while open_streams and len({*answers.ends, *answers.failed}) < len(nodes) and not answers.late:
        with contextlib.suppress(queue.Empty):
            line = lines.get(timeout=1)
            open_streams -= line is None
            answers.add(line or "", time.time())
        if answers.places:
            deadline = min(deadline, time.monotonic() + SILENCE_S)
        # When the addresses of all nodes are known, the nodes get them, and connect to each other.
        if len({*answers.places, *answers.failed}) == len(nodes) and not nodes_are_told:
            nodes_are_told = True
            with contextlib.suppress(OSError):  # a task has ended
                process.stdin.write(f"{json.dumps(answers.places)}\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
        if time.monotonic() > tell_at:
            tell_at += TELL_S
            silent = [node for node in nodes if node not in answers.ends and node not in answers.failed]
            print(f"Preflight waits for {', '.join(silent)}", flush=True)
        answers.late = time.monotonic() > deadline
    _end(process)
    return answers


def _read(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    """Put the lines of a stream into a queue, and None at its end."""
    for line in stream:
        lines.put(line.rstrip())
    lines.put(None)


def _end(process: subprocess.Popen[str]) -> None:
    """Close the tasks' stdin, which ends them; send signals to tasks that do not end."""
    with contextlib.suppress(OSError):
        process.stdin.close()  # type: ignore[union-attr]
    for stop in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
            return
        process.send_signal(stop)


# --- The faults ---


def judge(nodes: Sequence[str], answers: Answers, running: Sequence[str] | None) -> dict[str, list[Fault]]:
    """Return the faults by node; the key "" has the faults that all nodes share.

    `running` lists the user's running jobs; None if Slurm did not answer.
    """
    faults = {node: [*_node_faults(node, answers, running)] for node in nodes}
    common: list[Fault] = []  # faults of all nodes
    silent = [node for node in nodes if node not in answers.ends and node not in answers.failed]
    if silent and not (answers.late and answers.ends):
        last = (answers.messages or ["no message"])[-1]
        common.append(Fault("start", f"the check ended before {', '.join(silent)} had answered: {last}"))
    for node, what in unreachable_nodes(answers):
        (faults[node] if node else common).append(Fault("network", what))
    checked = [node for node in nodes if node in answers.ends] or nodes
    common_parts = set.intersection(*({fault.part for fault in faults[node]} for node in checked))
    same_words = set.intersection(*({*faults[node]} for node in checked)) if len(checked) > 1 else set()

    def is_common(fault: Fault) -> bool:
        is_node_part = fault.part.startswith(NODE_PARTS)
        return fault in same_words or (fault.part in common_parts and not is_node_part)

    common += [fault for fault in faults[checked[0]] if is_common(fault)]
    own = {node: [fault for fault in faults[node] if not is_common(fault)] for node in faults}
    by_node = {"": common, **own}
    return {node: list(dict.fromkeys(by_node[node])) for node in by_node if by_node[node]}


def _node_faults(node: str, answers: Answers, running: Sequence[str] | None) -> Iterator[Fault]:
    """Yield the faults of a node apart from its connections to other nodes."""
    end = answers.ends.get(node)
    if end is None and node in answers.failed:
        yield Fault("start", f"the check failed: {answers.failed[node]}")
    elif end is None and answers.late and answers.ends:
        yield Fault("start", f"no answer within {SILENCE_S} s")
    ahead = answers.ahead.get(node, 0) - statistics.median(answers.ahead.values() or [0])
    if abs(ahead) > CLOCK_S:
        yield Fault("clock", f"is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}")
    if end is None:
        return
    yield from (Fault(*fault) for fault in end["bad"])
    for pid, job, name in end["left"]:
        if running is not None and job not in running:
            yield Fault("left over", f"process {pid} ({name}) of job {job} keeps a CPU busy")


def unreachable_nodes(answers: Answers) -> Iterator[tuple[str, str]]:
    """Yield each node that the others do not reach, or that does not reach them, with the fault.

    The node is "" if it is not clear which of two nodes has the fault.
    """
    ring = sorted(answers.places)
    tried = {(node, other) for node in ring if node in answers.ends for other in ring_neighbours(node, ring)}
    # The pairs of `tried` in which the first node did not reach the second.
    lost = {(node, other) for node, other in tried if other in answers.ends[node]["lost"]}
    blamed = set()
    for node in ring:
        for side, verb in ((1, "is not reached by"), (0, "does not reach")):
            ways = {way for way in tried if way[side] == node}
            if len(ways) > 1 and ways <= lost and node not in blamed:
                blamed.add(node)
                yield node, f"{verb} {', '.join(sorted(way[1 - side] for way in ways))}"
    for node, other in sorted(lost):
        if not {node, other} & blamed:
            yield "", f"{node} does not reach {other}"


# --- The report, and the requeue ---


def report(
    nodes: Sequence[str], faults: Mapping[str, Sequence[Fault]], answers: Answers, duration: str
) -> None:
    """Print the verdict, the checks that could not run, and the faults with their fixes."""
    unfit = [node for node in faults if node]
    count = f"{len(nodes)} nodes" if len(nodes) > 1 else f"node {nodes[0]}"
    verdict = "not ready" if faults else "ready"
    if unfit:
        verdict = f"{', '.join(unfit)}: not fit"
    print(f"Preflight of {count} in {duration}: {verdict}", flush=True)
    unchecked = {tuple(fault) for end in answers.ends.values() for fault in end["unchecked"]}
    for part, what in sorted(unchecked):
        print(f"  not checked: {part}: {what}", flush=True)
    if faults and not answers.ends:
        for line in answers.messages[-20:]:
            complain(f"  {line}")
    if unfit:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        why = ", ".join(f"{node}: {part} {what}" for node in unfit for part, what in faults[node])
        complain(f"  for a ticket: job {os.environ.get('SLURM_JOB_ID', '')}, {when}: {why}")
    for node, node_faults in faults.items():
        fix = f"--exclude={','.join(unfit)}" if node else "all nodes have it: no other nodes help"
        for part, what in node_faults:
            complain(f"error: {UserError(f'preflight: {node or ALL_NODES}: {part}: {what}', fix=fix)}")


def excluded_before(folder: Path, job: str) -> list[list[str]]:
    """Return the nodes that earlier starts of this job excluded, a list for each start."""
    with contextlib.suppress(OSError):
        record = parse(read_small(folder / RECORD))
        return record.get("excluded", []) if record.get("job") == job else []
    return []


def hung_twice(folder: Path, job: str) -> list[str]:
    """Return the nodes that had the odd rank in two hangs of this job, at most MAX_EXCLUDING_STARTS nodes.

    The other ranks waited for the odd rank. The watchers of ranks write its node into ODD_NODES_FILE.
    """
    with contextlib.suppress(OSError):
        text = read_small(folder / ODD_NODES_FILE).decode(errors="replace")
        hangs = [line.split() for line in text.splitlines()]  # the job and the node of each hang
        counts = Counter(hang[1] for hang in hangs if hang[:1] == [job] and len(hang) == 2)
        return [node for node, count in counts.items() if count > 1][:MAX_EXCLUDING_STARTS]
    return []


def requeue(task: str, job: str, unfit: Sequence[str]) -> bool:
    """Requeue the job without the nodes `unfit`; return whether Slurm accepted the requeue.

    `task` is the job's id for scontrol, such as 17_3 for a task of an array, whose `job` differs.
    """
    shown = output_of("scontrol", "show", "job", job) if unfit else ""
    excluded = re.findall(r" ExcNodeList=([^\s(]+)", shown)[:1]  # the nodes that the job excludes already
    names = ",".join([*excluded, *unfit])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm ends this start by SIGTERM; the script ignores it
    update = [["update", f"jobid={task}", f"excnodelist={names}"]] if unfit else []
    for command in (["requeue", task], *update):  # an update works only after the job is back in the queue
        done = subprocess.run(["scontrol", *command], capture_output=True, text=True, check=False)
        if done.returncode:
            complain(f"can't {f'leave {names} out' if unfit else 'requeue'}: {done.stderr.strip()}")
            return False
    if unfit:
        print(f"Requeueing without {names}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
