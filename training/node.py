"""The check of a node before a training: `python3 .../training/node.py --gpus N FOLDER`.

training/preflight.py starts this program on each node, in the training's own runtime, and reads its stdout.
The program prints lines of JSON after MARK: first the address at which other nodes reach this node, and at
the end the faults. A line on stdin has the addresses of all nodes. preflight.py closes stdin after the last
check of all nodes. A check of a GPU or of a folder, and nvidia-smi, may hang. Therefore each runs in a
process of its own with a time limit.
The program uses only torch and the standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

MARK = "preflight: "  # the start of a line of JSON, because containers print lines of their own
# Time limits in seconds: import torch, check a GPU or a folder, run nvidia-smi, reach another node.
IMPORT_S, GPU_S, FOLDER_S, SMI_S, CONNECT_S = 90, 25, 20, 20, 5
# Bytes that a node sends to another node. They need several frames, which a switch that refuses jumbo frames
# would drop.
SENT_BYTES = 1 << 18
MIN_FREE_BYTES = {"/dev/shm": 32 << 20, "/tmp": 100 << 20}  # noqa: S108 - free bytes in folders that a training uses
MIN_FOLDER_BYTES = 100 << 20  # free bytes in other folders
MIN_FOLDER_FILES = 100  # free files in each folder
MAX_USED_SHARE = 0.1  # share of a GPU's memory that contexts of the driver and of this check may use
MIN_MEMLOCK = 64 << 20  # bytes that may be locked; RDMA registers more
BUSY_SHARE = 0.1  # a left-over process that uses this share of a CPU does harm
WATCH_S = 0.5  # the shortest time over which CPU time is measured
MATRIX_SIZE, TILE_SIZE = 4096, 16  # rows of a matrix, and of the tile that it repeats
# Ends of the names of nvidia-smi's elements about a slow GPU, and the words for them.
SLOWDOWNS = {"hw_thermal_slowdown": "too hot", "hw_power_brake_slowdown": "short of power"}
# nvidia-smi's elements about a broken GPU, and the words for them. remapped_row_pending is not among them:
# new work may start on such a GPU (NVIDIA, GPU Memory Error Management).
BROKEN_PARTS = {
    "remapped_rows/remapped_row_failure": "its memory has failed: a row can't be replaced",
    "retired_pages/pending_retirement": "its memory waits for a reset of the GPU",
    "ecc_errors/volatile/sram_threshold_exceeded": "its SRAM has too many errors",
}


class Fault(NamedTuple):
    """A fault of a node: a part such as "GPU 2", and the rest of a sentence such as "does not answer"."""

    part: str
    what: str


class Findings:
    """The findings of a node: its faults, and the checks that could not run, with the reasons."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.unchecked: list[Fault] = []


def main(argv: list[str]) -> int:
    """Check this node, or only the GPU of --gpu or the folder of --folder; return the exit status.

    The check of the node starts this program again for each GPU and each folder.
    """
    parser = argparse.ArgumentParser(prog="node.py")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a task")
    parser.add_argument("--shared", action="store_true", help="other jobs may use the GPUs too")
    parser.add_argument("--gpu", type=int, help="check only this GPU")
    parser.add_argument("--folder", action="store_true", help="check only FOLDER")
    parser.add_argument("path", metavar="FOLDER", nargs="?", default="")
    options = parser.parse_args(argv)
    if options.gpu is not None:
        check_gpu(options.gpu)
    elif options.folder:
        print(json.dumps(folder_facts(Path(options.path))))
    else:
        check_node(options)
    return 0


def check_node(options: argparse.Namespace) -> None:
    """Check the node, print the findings, and end this process."""
    node, findings = os.environ.get("SLURMD_NODENAME") or socket.gethostname(), Findings()
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    cpu_before, began = {pid: cpu_s(pid) for pid in pids}, time.monotonic()
    listener = open_listener(findings)
    own_address = [address() or node, listener.getsockname()[1]]
    print_facts({"node": node, "at": own_address, "time": time.time()})
    folders = [*MIN_FREE_BYTES, *([options.path] if options.path else [])]
    with ThreadPoolExecutor(max_workers=len(folders) + 1) as pool:
        folder_checks = {path: pool.submit(run_limited, ["--folder", path], FOLDER_S) for path in folders}
        gpu_check = pool.submit(check_gpus, options.gpus, findings, shared=options.shared)
        check_interfaces(os.environ, findings)
        lost = unreached_neighbours(node, findings)
        for path, check in folder_checks.items():
            findings.faults += folder_faults(path, *check.result())
        gpu_check.result()
    time.sleep(max(0.0, began + WATCH_S - time.monotonic()))
    left = [*left_over_processes(cpu_before, BUSY_SHARE * (time.monotonic() - began))]
    print_facts(
        {"node": node, "lost": lost, "left": left, "bad": findings.faults, "unchecked": findings.unchecked}
    )
    select.select([sys.stdin], [], [], IMPORT_S + GPU_S)  # until stdin ends: other nodes may still connect
    os._exit(0)  # a child that hangs in the kernel must not hold this process


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print a line of JSON for preflight.py."""
    print(f"{MARK}{json.dumps(facts)}", flush=True)


def run_limited(args: list[str], limit_s: float) -> tuple[int | None, str]:
    """Run a program for at most `limit_s` seconds; return its exit status and its output.

    If `args` begin with an option, the program is this file with these options. The exit status is None if
    the program did not end in time.
    """
    command = [sys.executable, __file__, *args] if args[0].startswith("--") else args
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=PIPE, stderr=PIPE, text=True)
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as late:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)  # a process that hangs in the kernel does not end
        for stream in (process.stdout, process.stderr):
            stream.close()  # type: ignore[union-attr]
        return None, (late.output or b"").decode(errors="replace")
    return process.returncode, out if process.returncode == 0 else out + err


# --- GPUs ---


def check_gpus(count: int, findings: Findings, *, shared: bool) -> None:
    """Check all GPUs at the same time, each in a process of its own."""
    if not count:
        findings.unchecked.append(Fault("GPUs", "the job has none"))
        return
    smi_gpus = read_smi(findings)
    with ThreadPoolExecutor(max_workers=count) as pool:
        checks = pool.map(lambda gpu: run_limited(["--gpu", str(gpu)], IMPORT_S + GPU_S), range(count))
        for gpu, (status, text) in enumerate(checks):
            part, facts = f"GPU {gpu}", last_object(text)
            findings.faults += gpu_faults(part, status, text, facts, shared=shared)
            uuid = str(facts.get("uuid", ""))
            matching = [element for element in smi_gpus if uuid and uuid in (element.findtext("uuid") or "")]
            if not uuid and len(smi_gpus) == count:  # an older torch gives no uuid
                matching = [smi_gpus[gpu]]
            for element in matching:
                findings.faults += [Fault(part, what) for what in smi_faults(element, shared=shared)]


def gpu_faults(
    part: str, status: int | None, text: str, facts: Mapping[str, Any], *, shared: bool
) -> Iterator[Fault]:
    """Yield the faults that the check of a GPU shows; `facts` are empty if the check did not finish."""
    last_line = (text.strip().splitlines() or [""])[-1][:300]
    if not text.startswith("imported") and status is None:
        yield Fault("torch", f"was not imported within {IMPORT_S + GPU_S} s")
    elif not text.startswith("imported"):
        yield Fault("torch", f"can't be imported: {last_line}")
    elif status is None or status == -signal.SIGALRM:
        yield Fault(part, f"does not answer within {GPU_S} s")
    elif not facts:
        yield Fault(part, f"ended the check with {status}: {last_line}")
    elif facts.get("wrong"):
        yield Fault(str(facts.get("part", part)), str(facts["wrong"]))
    elif not shared and not facts["integrated"] and facts["free"] < (1 - MAX_USED_SHARE) * facts["total"]:
        yield Fault(part, f"only {facts['free'] >> 30} of {facts['total'] >> 30} GiB of its memory are free")


def check_gpu(gpu: int) -> None:
    """Compute on one GPU, and print the facts; an alarm ends this process after GPU_S seconds."""
    import torch

    print("imported", flush=True)
    signal.alarm(GPU_S)
    facts: dict[str, Any] = {}
    if torch.version.cuda is None and torch.version.hip is None:
        facts |= {"part": "torch", "wrong": f"torch {torch.__version__} is made for CPUs"}
    elif gpu >= torch.cuda.device_count():
        facts |= {"wrong": f"is not there: torch finds {torch.cuda.device_count()}"}
    else:
        try:
            properties = torch.cuda.get_device_properties(gpu)
            facts["uuid"] = str(getattr(properties, "uuid", ""))
            # An integrated GPU uses the memory of the CPUs.
            facts["integrated"] = bool(getattr(properties, "is_integrated", False))
            facts["free"], facts["total"] = torch.cuda.mem_get_info(gpu)
            facts["wrong"] = wrong_products(torch, f"cuda:{gpu}") or bad_pages(properties)
        except RuntimeError as error:
            facts["wrong"] = f"can't compute: {str(error).splitlines()[0][:200]}"
    print(json.dumps(facts), flush=True)
    os._exit(0)


def wrong_products(torch: Any, device: str) -> str:
    """Multiply matrices with a known product in three precisions; return the fault of the GPU, or "".

    Both matrices repeat a tile of small whole numbers. Their product repeats the product of the tiles, times
    the number of tiles. No number of the product needs more bits than float16 has, and every order of
    additions is exact.
    """
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    span, repeats = range(TILE_SIZE), MATRIX_SIZE // TILE_SIZE
    first = [[(3 * row + 4 * column) % 5 - 2 for column in span] for row in span]
    second = [[(2 * row + row * column) % 5 - 2 for column in span] for row in span]
    tile = [[sum(first[row][k] * second[k][column] for k in span) for column in span] for row in span]
    for precision in (torch.float32, torch.float16, torch.float64):
        left, right, product = (
            torch.tensor(matrix, dtype=precision).to(device).repeat(repeats, repeats)
            for matrix in (first, second, tile)
        )
        for _ in range(4):
            wrong = int((left @ right != product * repeats).sum())
            if wrong:
                return f"computes wrong: {wrong} of {MATRIX_SIZE**2} numbers of a {precision} product"
    return ""


def bad_pages(properties: Any, devices: Path = Path("/sys/bus/pci/devices")) -> str:
    """Return a fault if the driver of an AMD GPU could not exclude all bad pages of its memory, else "".

    The file has a line for each bad page, such as `0x00000001 : 0x00001000 : R`. The line ends with F if the
    driver could not exclude the page (the kernel's documentation, AMDGPU RAS sysfs gpu_vram_bad_pages
    Interface).
    """
    pci_address = (getattr(properties, f"pci_{part}_id", 0) for part in ("domain", "bus", "device"))
    path = devices / "{:04x}:{:02x}:{:02x}.0".format(*pci_address) / "ras/gpu_vram_bad_pages"
    count = sum(line.endswith(": F") for line in read_kernel_file(path).splitlines())
    return f"bad pages of its memory can't be left out: {count}" if count else ""


def read_smi(findings: Findings) -> list[ET.Element]:
    """Return nvidia-smi's element of each GPU; an empty list without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        why = "no nvidia-smi: ECC errors, slowdowns and processes of others are not known"
        findings.unchecked.append(Fault("GPUs", why))
        return []
    status, text = run_limited(["nvidia-smi", "-q", "-x"], SMI_S)
    with contextlib.suppress(ET.ParseError):
        return ET.fromstring(text).findall("gpu") if status == 0 else []  # noqa: S314 - the driver is trusted
    findings.unchecked.append(Fault("GPUs", "nvidia-smi prints no XML"))
    return []


def smi_faults(gpu: ET.Element, *, shared: bool) -> Iterator[str]:
    """Yield the faults that the driver reports for a GPU.

    The GPU is broken or slowed down, or unless it is `shared`, a process of another job uses it.
    """
    for path, what in BROKEN_PARTS.items():
        if (gpu.findtext(path) or "") == "Yes":
            yield what
    action = gpu.findtext("gpu_recovery_action") or "None"
    if action in ("Reset", "Reboot"):
        yield f"the driver asks for a {action.lower()}"
    for element in gpu.iter():
        for name, why in SLOWDOWNS.items():
            if element.tag.endswith(name) and (element.text or "").strip() == "Active":
                yield f"is slowed down: {why}"
    for process in () if shared else gpu.iter("process_info"):
        name = process.findtext("process_name") or "?"
        if "C" in (process.findtext("type") or "") and "nvidia-cuda-mps" not in name:
            yield f"process {process.findtext('pid')} ({name}) of another job uses it"


# --- The rest of the node ---


def folder_facts(path: Path) -> dict[str, Any]:
    """Write and read a file in a folder; return the free bytes and files there, or the failure."""
    file, data = path / f".preflight-{os.getpid()}-{os.uname().nodename}", os.urandom(1 << 16)
    try:
        with file.open("xb") as written:
            written.write(data)
            written.flush()
            os.fsync(written.fileno())
        is_same = file.read_bytes() == data
        room = os.statvfs(path)
    except OSError as error:
        return {"wrong": f"can't be written: {error.strerror}"}
    finally:
        with contextlib.suppress(OSError):
            file.unlink()
    files = room.f_favail if room.f_files else None  # file systems without a limit report 0
    wrong = "" if is_same else "holds other data than was written"
    return {"wrong": wrong, "free": room.f_bavail * room.f_frsize, "files": files}


def folder_faults(path: str, status: int | None, text: str) -> Iterator[Fault]:
    """Yield the faults of a folder, by the status and the output of its check."""
    facts, min_bytes = last_object(text), MIN_FREE_BYTES.get(path, MIN_FOLDER_BYTES)
    if status is None:
        yield Fault(path, f"does not answer within {FOLDER_S} s")
    elif facts.get("wrong"):
        yield Fault(path, str(facts["wrong"]) + clause_about_own_files(path))
    elif facts and facts["free"] < min_bytes:
        yield Fault(path, f"only {facts['free'] >> 20} MiB are free{clause_about_own_files(path)}")
    elif facts and facts["files"] is not None and facts["files"] < MIN_FOLDER_FILES:
        yield Fault(path, f"has room for {facts['files']} more files only")


def clause_about_own_files(path: str) -> str:
    """Return a clause about the files of this user's earlier jobs in a full /dev/shm, or ""."""
    total = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(path) if path == "/dev/shm" else ():  # noqa: S108
            with contextlib.suppress(OSError):  # the file may have been removed meanwhile
                status = entry.stat(follow_symlinks=False)
                total += status.st_size if status.st_uid == os.getuid() else 0
    return f"; {total >> 20} MiB in it are yours, from earlier jobs" if total else ""


def check_interfaces(
    environ: Mapping[str, str], findings: Findings, devices: Path = Path("/sys/class/infiniband")
) -> None:
    """Check the interfaces that the job names for NCCL and Gloo, and the conditions of RDMA."""
    known = [name for _, name in socket.if_nameindex()]
    for name, is_exact in sorted(named_interfaces(environ).items()):
        matching = matching_names(name, known, is_exact=is_exact)
        if not matching:
            findings.faults.append(Fault(f"interface {name}", "is not there"))
        elif not any(map(is_up, matching)):
            findings.faults.append(Fault(f"interface {name}", "is down"))
    known = sorted(path.name for path in devices.iterdir()) if devices.is_dir() else []
    for name, is_exact in included_names(environ.get("NCCL_IB_HCA", "")).items():
        device, _, port = name.partition(":")
        matching = matching_names(device, known, is_exact=is_exact)
        states = [path for other in matching for path in (devices / other).glob(f"ports/{port or '*'}/state")]
        if states and not any("ACTIVE" in read_kernel_file(path) for path in states):
            findings.faults.append(Fault(f"InfiniBand {name}", f"is {read_kernel_file(states[0])}"))
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if known and 0 <= limit < MIN_MEMLOCK:
        findings.faults.append(Fault("memlock", f"is {limit >> 10} KiB: RDMA needs more (ulimit -l)"))


def named_interfaces(environ: Mapping[str, str]) -> dict[str, bool]:
    """Return the interfaces that the job names, and whether each name is exact."""
    texts = [environ.get(name, "") for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")]
    return {name: is_exact for text in texts for name, is_exact in included_names(text).items()}


def included_names(text: str) -> dict[str, bool]:
    """Return the names in a list of NCCL, and whether each name is exact; empty if the list excludes.

    ^ in front excludes all names of the list. = in front asks for exact names; without it a name may be the
    start of a longer name (NCCL's documentation, Environment Variables).
    """
    names = [] if text.startswith("^") else text.lstrip("=").split(",")
    return {name: text.startswith("=") for name in names if name}


def matching_names(name: str, known: list[str], *, is_exact: bool) -> list[str]:
    """Return the known names that a name of NCCL's list means: itself, or else those that begin with it."""
    if name in known:
        return [name]
    return [] if is_exact else [other for other in known if other.startswith(name)]


def address() -> str:
    """Return the IPv4 address of an interface that the job names; "" without one."""
    answers = (ask_kernel(name, 0x8915) for name in sorted(named_interfaces(os.environ)))  # SIOCGIFADDR
    return next((socket.inet_ntoa(answer[20:24]) for answer in answers if answer), "")


def is_up(name: str) -> bool:
    """Return whether an interface is up and has a link (netdevice(7))."""
    answer = ask_kernel(name, 0x8913)  # SIOCGIFFLAGS; /sys may show another network namespace
    flags = struct.unpack("H", answer[16:18])[0] if answer else 0
    return bool(flags & 0x1 and flags & 0x40)  # IFF_UP, IFF_RUNNING


def ask_kernel(interface: str, request: int) -> bytes:
    """Return the kernel's answer to a request (ioctl) about an interface; empty without that interface."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return fcntl.ioctl(probe, request, struct.pack("256s", interface[:15].encode()))
    return b""


def read_kernel_file(path: Path) -> str:
    """Return the text of a file in /sys or /proc; "?" if the file can't be read."""
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return "?"


def open_listener(findings: Findings) -> socket.socket:
    """Return a socket that serves other nodes in a thread.

    The first node uses the job's MASTER_PORT, and the other nodes any port.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    is_first = os.environ.get("SLURM_NODEID", "0") == "0"
    port = int(os.environ.get("MASTER_PORT", "0") or 0) if is_first else 0
    try:
        listener.bind(("", port))
    except OSError as error:
        findings.faults.append(Fault(f"port {port}", f"can't be used: {error.strerror}"))
        listener.bind(("", 0))
    listener.listen(64)
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    return listener


def serve(listener: socket.socket) -> None:
    """Send SENT_BYTES to each client, one client after the other."""
    while True:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(CONNECT_S)
                connection.sendall(bytes(SENT_BYTES))
                connection.recv(1)  # the client must close first, because TIME_WAIT would keep this port busy


def unreached_neighbours(node: str, findings: Findings) -> list[str]:
    """Connect to the neighbours of this node in the ring; return the neighbours that do not answer.

    The line on stdin has the addresses of all nodes.
    """
    line = ""
    if select.select([sys.stdin], [], [], IMPORT_S + GPU_S)[0]:
        line = sys.stdin.readline()
    addresses = last_object(line)
    if node not in addresses:
        findings.unchecked.append(Fault("network", "the other nodes are not known here"))
        return []
    with ThreadPoolExecutor(max_workers=2) as pool:
        answers = {
            other: pool.submit(can_reach, *addresses[other])
            for other in ring_neighbours(node, sorted(addresses))
        }
    return [other for other, has_answered in answers.items() if not has_answered.result()]


def ring_neighbours(node: str, nodes: list[str]) -> list[str]:
    """Return the two nodes that follow a node in the ring of all nodes."""
    index = nodes.index(node)
    return sorted({nodes[(index + step) % len(nodes)] for step in (1, 2)} - {node})


def can_reach(host: str, port: int) -> bool:
    """Return whether another node sends SENT_BYTES at the first or the second try."""
    for _ in range(2):
        with contextlib.suppress(OSError), socket.create_connection((host, port), CONNECT_S) as connection:
            parts = iter(lambda: connection.recv(1 << 16), b"")
            if any(size >= SENT_BYTES for size in itertools.accumulate(map(len, parts))):
                return True
    return False


def left_over_processes(cpu_before: Mapping[int, float], min_cpu_s: float) -> Iterator[tuple[int, str, str]]:
    """Yield the pid, the job and the name of each process of the user's other jobs that used much CPU time.

    `cpu_before` has the CPU times at the beginning of the check. A process must have used more than
    `min_cpu_s` seconds since then.
    """
    job = os.environ.get("SLURM_JOB_ID", "").encode()
    for pid, used_before in cpu_before.items():
        with contextlib.suppress(OSError, ValueError):
            if Path(f"/proc/{pid}").stat().st_uid == os.getuid() and cpu_s(pid) - used_before > min_cpu_s:
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                jobs = [line.partition(b"=")[2] for line in environ if line.startswith(b"SLURM_JOB_ID=")]
                if jobs and jobs[0] != job:
                    yield pid, jobs[0].decode(), read_kernel_file(Path(f"/proc/{pid}/comm"))


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far, in seconds; 0 if the process has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # The fields utime and stime of proc_pid_stat(5).
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def last_object(text: str) -> dict[str, Any]:
    """Return the JSON object in the last line of a text; an empty dictionary without an object."""
    with contextlib.suppress(ValueError, IndexError):
        value = json.loads(text.strip().splitlines()[-1])
        return value if isinstance(value, dict) else {}
    return {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
