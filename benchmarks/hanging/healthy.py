"""A healthy training of three ranks that is silent for PAUSE seconds in a way of the kind KIND; see ../hangs.py.

It takes steps, prints them, pauses, and takes some more. What other machines do, SERVER does: a process outside
of the run.
"""

import asyncio
import concurrent.futures
import ctypes
import fcntl
import gzip
import http.server
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import torch
import torch.distributed as dist

KIND, PAUSE, AFTER, THERE = (
    os.environ["KIND"],
    float(os.environ["PAUSE"]),
    float(os.environ["AFTER"]),
    os.environ["THERE"],
)
SERVER = os.environ["SERVER"]
BEFORE, MORE = 20, 5  # steps
CHILD = [sys.executable, "-S", "-E", "-c"]


def compute(seconds, share=1.0):
    """Use a share of a CPU, as in a validation."""
    until, total = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        busy = time.monotonic() + share / 2
        while time.monotonic() < busy:
            total += sum(number * number for number in range(100))
        time.sleep((1 - share) / 2)
    return total


def answer(path, **more):
    """Wait for an answer of the server, which it gives after PAUSE."""
    return urllib.request.urlopen(f"http://{SERVER}/{path}/{PAUSE}", **more).read()


def send(rate):
    """Send so many bytes a second."""
    host, port = SERVER.split(":")
    with socket.create_connection((host, int(port))) as link:
        link.sendall(b"POST /sink/0 HTTP/1.0\r\n\r\n")
        until = time.monotonic() + PAUSE
        while time.monotonic() < until:
            link.sendall(bytes(int(rate / 10)))
            time.sleep(0.1)


def write(rate, wait_s=0.1):
    """Write so many bytes a second into a file."""
    with open(f"{THERE}/large", "wb", buffering=0) as file:
        until = time.monotonic() + PAUSE
        while time.monotonic() < until:
            file.write(bytes(int(rate * wait_s)))
            time.sleep(wait_s)


def read(rate):
    with open("/dev/zero", "rb", buffering=0) as file:
        until = time.monotonic() + PAUSE
        while time.monotonic() < until:
            file.read(int(rate / 10))
            time.sleep(0.1)


def in_thread(work, *args):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(work, *args).result()


async def ask_asynchronously():
    host, port = SERVER.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /late/{PAUSE} HTTP/1.0\r\n\r\n".encode())
    await reader.read()
    writer.close()


async def ask_beside_a_timer():
    timer = asyncio.create_task(tick())
    await ask_asynchronously()
    timer.cancel()


async def tick():
    while True:
        await asyncio.sleep(1)


def actor():
    """Do what a driver elsewhere says, and wait for its next word."""
    host, port = SERVER.split(":")
    with socket.create_connection((host, int(port))) as driver:
        driver.sendall(f"GET /driver/{PAUSE} HTTP/1.0\r\n\r\n".encode())
        while driver.recv(100):
            driver.sendall(b"done\n")


def second_to_speak():
    """As an actor, but the driver speaks first."""
    with socket.create_connection((SERVER.split(":")[0], int(os.environ["DRIVER"]))) as driver:
        while driver.recv(100):
            pass


def ask_locally():
    """An engine beside the run, without TCP."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(os.environ["LOCAL"])
        link.sendall(b"?")
        link.recv(100)


def read_fifo():
    """A few bytes at times, of a program that the run has not started."""
    with open(f"{THERE}/fifo") as lines:
        lines.read()


def elsewhere(code):
    """A program of another job."""
    shell = '"$0" -S -E -c "$1" </dev/null >/dev/null 2>&1 &'  # its parent ends, so it is not below the run
    subprocess.run(["sh", "-c", shell, sys.executable, f"import os, time\n{code}"], check=True)


def lock_of_another_job():
    elsewhere(
        f"import fcntl\nfile = open('{THERE}/cache.lock', 'w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
        f"open('{THERE}/held', 'w').close(); time.sleep({PAUSE})"
    )
    while not os.path.exists(f"{THERE}/held"):
        time.sleep(0.05)
    with open(f"{THERE}/cache.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def ask_a_database():
    """As ask_locally, with a time limit: `poll` comes before `recv`."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(9 * PAUSE)
        link.connect(os.environ["LOCAL"])
        link.sendall(b"?")
        link.recv(100)


class Taker(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()


def take_what_is_pushed():
    """Actors elsewhere push an episode once it is over."""
    with http.server.HTTPServer(("127.0.0.1", 0), Taker) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        elsewhere(
            f"import urllib.request as r\ntime.sleep({PAUSE}); r.urlopen('{address}', data=b'episode').read()"
        )
        server.handle_request()


def pool_of_processes(method):
    """Shards, each after the Retry-After of a hub."""
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        list(pool.map(time.sleep, [PAUSE] * 2))


def sandboxes():
    """A program for each sample, which waits for another machine."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: subprocess.run(["sleep", str(PAUSE)], check=True), range(4)))


def write_to_slow_program():
    """As into an uploader that has to wait before it reads on."""
    program = subprocess.Popen(["sh", "-c", f"sleep {PAUSE}; cat >/dev/null"], stdin=subprocess.PIPE)
    torch.save(torch.zeros(1_000_000), program.stdin)
    program.stdin.close()
    program.wait()


def watch_a_folder():
    libc = ctypes.CDLL(None)
    watch = libc.inotify_init()
    os.mkdir(f"{THERE}/inbox")
    libc.inotify_add_watch(watch, f"{THERE}/inbox".encode(), 0x100)  # IN_CREATE
    elsewhere(f"time.sleep({PAUSE}); open('{THERE}/inbox/ready', 'w').close()")
    os.read(watch, 1000)


def fork_and_wait():
    """A save by a forked child that waits for its turn."""
    child = os.fork()
    if child == 0:
        time.sleep(PAUSE)
        os._exit(0)
    os.waitpid(child, 0)


def wait_for_signal():
    """Another program says when the training continues."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    elsewhere(f"time.sleep({PAUSE}); os.kill({os.getpid()}, {signal.SIGUSR1})")
    signal.sigwait({signal.SIGUSR1})


async def converse():
    """With a driver that speaks at times."""
    reader, _ = await asyncio.open_connection(SERVER.split(":")[0], int(os.environ["DRIVER"]))
    while await reader.read(100):
        pass


def converse_in_a_thread():
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(converse(), loop).result()


def save_with_torch():
    """torch's own checkpoint into a store that answers late: frames of torch.distributed are around the wait."""
    import torch.distributed.checkpoint as checkpoint

    class Store(checkpoint.FileSystemWriter):
        def write_data(self, *args):
            answer("late")
            return super().write_data(*args)

    checkpoint.save({"weights": torch.ones(9)}, storage_writer=Store(f"{THERE}/checkpoint"))


def wait_for_file():
    """As for what another job makes."""
    until = time.monotonic() + PAUSE
    while time.monotonic() < until:
        os.path.exists(f"{THERE}/made by another job")
        time.sleep(1)


async def wait_by_timer():
    until = time.monotonic() + PAUSE
    while time.monotonic() < until:
        await asyncio.sleep(1)


def compiled():
    """Real compilations, one after the other, of other functions."""
    until, number = time.monotonic() + PAUSE, 0
    while time.monotonic() < until:
        number += 1
        function = eval(f"lambda x: sum((x * {number} + each).sin() for each in range(30))")
        torch.compile(function, backend="aot_eager")(torch.ones(number))


def large_files():
    until, number = time.monotonic() + PAUSE, 0
    while time.monotonic() < until:
        number += 1
        with open(f"{THERE}/shard-{number % 50}", "wb") as file:
            file.write(bytes(20000))
        time.sleep(0.2)


def child(code):
    subprocess.run([*CHILD, code], check=True)


SPIN = f"import time; end = time.time() + {PAUSE}\nwhile time.time() < end: pass"
FETCH = f"import urllib.request as r; r.urlopen('http://{SERVER}/%s/{PAUSE}').read()"
SEND = f"""import socket, time
link = socket.create_connection(("{SERVER.split(":")[0]}", {SERVER.split(":")[1]}))
link.sendall(b"POST /sink/0 HTTP/1.0\\r\\n\\r\\n")
end = time.time() + {PAUSE}
while time.time() < end:
    link.sendall(bytes(3000))
    time.sleep(0.1)
"""
# Of rank 0, while the others wait in a barrier.
ALONE = {
    "answer": lambda: answer("late"),
    "answer with a time limit": lambda: answer("late", timeout=9 * PAUSE),
    "answer in a thread": lambda: in_thread(answer, "late"),
    "answers to asyncio": lambda: asyncio.run(ask_asynchronously()),
    "answers beside a timer": lambda: asyncio.run(ask_beside_a_timer()),
    "answer in parts": lambda: answer("parts"),
    "rollouts": lambda: [in_thread(answer, "parts") for _ in range(1)],
    "download": lambda: answer("download"),
    "download in a program": lambda: child(FETCH % "download"),
    "download by multiprocessing": lambda: in_a_process(answer, "download"),
    "upload": lambda: send(50_000),
    "upload in a thread": lambda: in_thread(send, 30_000),
    "upload in a program": lambda: child(SEND),
    "upload that waits for an answer": lambda: child(FETCH % "late"),
    "a program that sleeps": lambda: subprocess.run(["sleep", str(PAUSE)], check=True),
    "output of a program": lambda: subprocess.check_output(["sleep", str(PAUSE)]),
    "program with a time limit": lambda: subprocess.run(["sleep", str(PAUSE)], check=True, timeout=9 * PAUSE),
    "tokenisation": lambda: compute(PAUSE),
    "tokenisation in processes": lambda: in_a_process(compute, PAUSE),
    "index": lambda: [compute(PAUSE / 2), write(200_000)][:0],
    "compilation in a program": lambda: child(SPIN),
    "compilation": lambda: nested(),
    "slow disk": lambda: write(500_000),
    "very slow disk": lambda: write(20_000, 1.0),
    "many files": large_files,
    "reading": lambda: read(200_000),
    "validation": lambda: compute(PAUSE),
    "validation at 5 %": lambda: compute(PAUSE, 0.05),
    "validation in a thread": lambda: in_thread(compute, PAUSE),
    "validation in a thread at 20 %": lambda: in_thread(compute, PAUSE, 0.2),
    "evaluation in a program": lambda: child(SPIN),
    "profile": lambda: pack(),
    "actor": actor,
    "actor that speaks last": second_to_speak,
    "loader that computes": lambda: next(iter(torch.utils.data.DataLoader(Slow(), num_workers=1))),
    "loader that downloads": lambda: next(iter(torch.utils.data.DataLoader(Slow(), num_workers=1))),
    "loader that backs off": lambda: next(iter(torch.utils.data.DataLoader(Slow(), num_workers=1))),
    "data set that backs off": lambda: next(iter(torch.utils.data.DataLoader(Slow()))),
    "back-off": lambda: time.sleep(PAUSE),  # as a hub asks for with Retry-After
    "file of another job": wait_for_file,
    "timer of asyncio": lambda: asyncio.run(wait_by_timer()),
    "answer without TCP": ask_locally,
    "slow FIFO": read_fifo,
    "lock of another job": lock_of_another_job,
    "database on a Unix socket": ask_a_database,
    "pushed rollouts": take_what_is_pushed,
    "pool of forked processes": lambda: pool_of_processes("fork"),
    "pool of spawned processes": lambda: pool_of_processes("spawn"),
    "event with a time": lambda: threading.Event().wait(PAUSE),
    "sandboxes in threads": sandboxes,
    "pipe into a program": write_to_slow_program,
    "inotify": watch_a_folder,
    "fork and waitpid": fork_and_wait,
    "signal": wait_for_signal,
    "sleep of asyncio": lambda: asyncio.run(asyncio.sleep(PAUSE)),
    "websocket in a thread": converse_in_a_thread,
    "torch.compile": compiled,
}
# Of all ranks.
TOGETHER = {
    "validation of all": lambda: compute(PAUSE),
    "validation of all at 5 %": lambda: compute(PAUSE, 0.05),
    "averages of weights": lambda: average(),
    "turns": lambda: turns(),
    "all sleep": lambda: time.sleep(PAUSE),
    "file lock": lambda: locked(),
    "key of the store": lambda: by_store(),
    "checkpoint of torch": save_with_torch,
}
# Before the first step.
FIRST = {
    "first step compiles": lambda: compute(1.5 * AFTER),
    "first step waits": lambda: time.sleep(1.5 * AFTER),
}


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        if "backs off" in KIND:
            time.sleep(PAUSE)
        else:
            answer("download") if "downloads" in KIND else compute(PAUSE)
        return 1


def in_a_process(work, *args):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(work, args)


def nested():
    until = time.monotonic() + PAUSE
    while time.monotonic() < until:
        exec(compile("x = [y for y in (z for z in range(50))]", "<generated>", "exec"), {})


def pack():
    until = time.monotonic() + PAUSE
    while time.monotonic() < until:
        gzip.compress(json.dumps(list(range(50000))).encode())


def average():
    until, is_over = time.monotonic() + PAUSE, torch.zeros(1)
    while not is_over:  # for all at once: clocks differ
        torch.ones(300, 300).mul_(0.9).add_(torch.ones(300, 300))
        is_over.fill_(time.monotonic() > until)
        dist.all_reduce(is_over, dist.ReduceOp.MAX)


def turns():
    """Each rank computes alone, and the others wait."""
    for rank in range(dist.get_world_size()):
        if dist.get_rank() == rank:
            compute(PAUSE / dist.get_world_size())
        dist.barrier()


def locked():
    """Rank 0 works under a lock; the others ask for the lock now and then, as filelock does."""
    with open(f"{THERE}/lock", "w") as file:
        if dist.get_rank() == 0:
            fcntl.flock(file, fcntl.LOCK_EX)
            dist.barrier()
            compute(PAUSE)
            return
        dist.barrier()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                time.sleep(0.05)


def by_store():
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        compute(PAUSE)
        store.set("done", "")
    store.wait(["done"])


def step(number):
    values = torch.ones(4)
    dist.all_reduce(values)
    if dist.get_rank() == 0:
        print("step", number, "loss", float(values.sum()), flush=True)
    time.sleep(0.2)


def main():
    if KIND in FIRST:
        FIRST[KIND]() if not int(os.environ["RANK"]) else None
    dist.init_process_group("gloo")
    if KIND == "answer with wandb" and dist.get_rank() == 0:
        threading.Thread(target=heartbeat, daemon=True).start()
    for number in range(BEFORE):
        step(number)
    if KIND == "upload of rank 1" and dist.get_rank() == 1:
        in_thread(send, 30_000)
    if KIND in TOGETHER:
        TOGETHER[KIND]()
    elif KIND == "training in a child" and dist.get_rank() == 0:
        answer("late")
    elif dist.get_rank() == 0 and KIND in ALONE:
        ALONE[KIND]()
    dist.barrier()
    for number in range(BEFORE, BEFORE + MORE):
        step(number)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def heartbeat():
    while True:
        answer("late/0#")
        time.sleep(10)


if __name__ == "__main__":
    if KIND == "training in a child" and "--child" not in sys.argv:
        sys.exit(subprocess.call([sys.executable, __file__, "--child"]))
    main()
