"""A training loop of four ranks with a fault of the kind KIND at rank BAD; see ../hangs.py."""

import asyncio, atexit, ctypes, fcntl, multiprocessing, os, queue, signal, socket, subprocess, sys, tempfile
import threading, time, urllib.request
import torch, torch.distributed as dist

KIND, BAD = os.environ["KIND"], int(os.environ["BAD"])
QUIET = "validation of rank 0", "validation of all", "slow save", "download"
MINUTE = float(os.environ["AFTER"]) / 2
RANKS, STEPS, AT, AFTER = 4, int(os.environ["STEPS"]), 5, float(os.environ["AFTER"])
lock = threading.Lock()
there = os.environ["THERE"]


class Data(torch.utils.data.Dataset):
    def __init__(self, is_bad, count=STEPS):
        self.is_bad, self.count = is_bad, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.is_bad and index == AT:
            plant()
        if self.is_bad and index == AT and KIND == "sleep in dataset":
            time.sleep(9999)  # HERE sleep in dataset
        if self.is_bad and index == AT and KIND == "loader lock":
            lock.acquire()
            lock.acquire()  # HERE loader lock
        if self.is_bad and index == AT and KIND == "loader that reads":
            child = subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE)
            child.send_signal(signal.SIGSTOP)
            child.stdout.read()  # HERE loader that reads
        return torch.ones(4)


def plant():
    """The time of the hang begins."""
    open(there + "/planted", "w").close()


def busy(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        torch.ones(200, 200) @ torch.ones(200, 200)


def download():  # without a word
    here, there = socket.socketpair()

    def serve():
        until = time.monotonic() + 3 * AFTER
        while time.monotonic() < until:
            there.sendall(bytes(4096))
            time.sleep(0.01)
        there.close()

    threading.Thread(target=serve).start()
    while here.recv(4096):
        pass


def dies(q):
    try:
        raise ValueError("swallowed")
    except ValueError:
        return


def never_answers():
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=lambda: (server.accept(), time.sleep(9999)), daemon=True).start()
    return server.getsockname()[1]


def crossed(first, second):
    with first:
        time.sleep(0.2)
        with second:  # HERE two locks
            pass


async def waits_for_ever():
    await asyncio.Event().wait()


def fault(rank):
    plant()
    if KIND == "lock":
        lock.acquire()
        lock.acquire()  # HERE lock
    elif KIND == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif KIND == "dead thread":
        q = queue.Queue()
        threading.Thread(target=dies, args=(q,)).start()
        q.get()  # HERE dead thread
    elif KIND == "barrier in one branch":
        dist.barrier()  # HERE barrier in one branch
    elif KIND == "finished":
        threading.Thread(target=time.sleep, args=(9999,)).start()
        sys.exit()  # and waits for the thread
    elif KIND == "retry":
        while True:
            try:
                socket.create_connection(("127.0.0.1", 9))
            except OSError:
                time.sleep(0.3)  # HERE retry
    elif KIND == "spins":
        while True:  # HERE spins
            pass
    elif KIND == "join":
        thread = threading.Thread(target=time.sleep, args=(9999,), daemon=True)
        thread.start()
        thread.join()  # HERE join
    elif KIND == "subprocess":
        subprocess.run(["sleep", "600"])  # HERE subprocess
    elif KIND == "fifo":
        os.mkfifo(there + "/fifo")
        open(there + "/fifo").read()  # HERE fifo
    elif KIND == "file lock":
        held = open(there + "/lock", "w")
        fcntl.flock(held, fcntl.LOCK_EX)
        fcntl.flock(open(there + "/lock"), fcntl.LOCK_EX)  # HERE file lock
    elif KIND == "socket":
        a, b = socket.socketpair()
        a.recv(1)  # HERE socket
    elif KIND == "recv":
        dist.recv(torch.ones(1), (rank + 1) % dist.get_world_size())  # HERE recv
    elif KIND == "event":
        threading.Event().wait()  # HERE event
    elif KIND == "full queue":
        q = queue.Queue(1)
        q.put(1)
        q.put(2)  # HERE full queue
    elif KIND == "holds the GIL":
        mutex = ctypes.create_string_buffer(64)
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)  # HERE holds the GIL
    elif KIND == "FUSE without a server":
        libc, fd = ctypes.CDLL(None, use_errno=True), os.open("/dev/fuse", os.O_RDWR)
        made = libc.unshare(0x20000), libc.mount(b"none", b"/", None, 1 << 18 | 1 << 14, None)  # private
        options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
        if any(made) or libc.mount(b"x", there.encode(), b"fuse", 0, options):
            raise SystemExit(os.strerror(ctypes.get_errno()))
        os.stat(there + "/file")  # HERE FUSE without a server
    elif KIND == "upload at the end":
        q = queue.Queue()
        q.put(1)
        threading.Thread(target=dies, args=(q,)).start()
        atexit.register(lambda: q.join())  # HERE upload at the end
        sys.exit()
    elif KIND == "killed worker of a pool":
        with multiprocessing.Pool(1) as pool:
            pool.map(os._exit, [0])  # HERE killed worker of a pool
    elif KIND == "full pipe":
        child = subprocess.Popen([sys.executable, "-c", "print('x' * (1 << 20))"], stdout=subprocess.PIPE)
        child.wait()  # HERE full pipe
    elif KIND == "group of one rank":
        dist.new_group()  # HERE group of one rank
    elif KIND == "key of the store":
        dist.distributed_c10d._get_default_store().get("never set")  # HERE key of the store
    elif KIND == "another collective":
        dist.all_gather_object([None] * dist.get_world_size(), 1)  # HERE another collective
    elif KIND == "two locks":
        other = threading.Lock()
        threading.Thread(target=crossed, args=(other, lock), daemon=True).start()
        crossed(lock, other)
    elif KIND == "flag":
        while not os.path.exists(there + "/never"):
            time.sleep(0.005)  # HERE flag
    elif KIND == "asyncio":
        asyncio.run(waits_for_ever())  # HERE asyncio
    elif KIND == "answer":
        urllib.request.urlopen(f"http://127.0.0.1:{never_answers()}/")  # HERE answer
    elif KIND == "queue of a killed process":
        q = multiprocessing.Queue()
        child = multiprocessing.Process(target=time.sleep, args=(9999,))
        child.start()
        child.kill()
        q.get()  # HERE queue of a killed process
    elif KIND == "another order":
        dist.broadcast(torch.ones(1), 0 if rank else 1)  # HERE another order


def with_accelerate():
    from accelerate import Accelerator

    made = Accelerator(cpu=True)
    model, loader = torch.nn.Linear(4, 4), torch.utils.data.DataLoader(Data(False, RANKS * STEPS))
    model, optimizer, loader = made.prepare(model, torch.optim.SGD(model.parameters()), loader)
    for step, batch in enumerate(loader):
        if step == AT and made.process_index == BAD:
            fault(BAD)
        made.backward(model(batch).sum())
        optimizer.step()
        made.print("step", step, flush=True)
    made.wait_for_everyone()


def with_lightning():
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def training_step(self, batch, step):
            if step == AT and self.global_rank == BAD:
                fault(BAD)
                if KIND == "metric of one rank":
                    self.log("loss", 1.0, sync_dist=True)  # HERE metric of one rank
            if self.global_rank == 0:
                print("step", step, flush=True)
            return self.layer(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    trainer = lightning.Trainer(accelerator="cpu", devices=RANKS, strategy="ddp", max_epochs=1, **off)
    trainer.fit(Module(), torch.utils.data.DataLoader(Data(False, RANKS * STEPS)))


def with_transformers():
    import transformers

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x):
            return {"loss": self.layer(x).sum()}

    class Callback(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == AT and args.process_index == BAD:
                fault(BAD)
            print("step", state.global_step, flush=True)

    class Rows(Data):
        def __getitem__(self, index):
            return {"x": super().__getitem__(index)}

    off = dict(save_strategy="no", report_to="none", disable_tqdm=True, remove_unused_columns=False)
    off |= dict(dataloader_num_workers=int("loader" in KIND), per_device_train_batch_size=1)
    args = transformers.TrainingArguments(there + "/out", use_cpu=True, ddp_backend="gloo", **off)
    rows = Rows(args.process_index == BAD, RANKS * STEPS)
    transformers.Trainer(Model(), args, train_dataset=rows, callbacks=[Callback()]).train()


LOOPS = {"accelerate": with_accelerate, "lightning": with_lightning, "transformers": with_transformers}


def main():
    if KIND == "slow first step":
        spin = f"import time\nend = time.time() + {4 * MINUTE}\nwhile time.time() < end: pass"
        subprocess.run([sys.executable, "-c", spin])
    dist.init_process_group("gloo")
    if KIND == "quiet first step":
        print("met", flush=True)  # the import of torch is not scaled
        if dist.get_rank() == 0:
            time.sleep(3 * MINUTE)
        dist.barrier()
    rank = dist.get_rank()
    is_bad = rank == BAD
    in_loader = "loader" in KIND
    loader = torch.utils.data.DataLoader(Data(is_bad), num_workers=int(in_loader))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for step, batch in enumerate(loader):
        if step == AT and is_bad:
            fault(rank)
        if step == AT and KIND in QUIET:
            if KIND == "slow save" and rank == 0:
                with open(there + "/large", "wb") as file:
                    until = time.monotonic() + 3 * AFTER
                    while time.monotonic() < until:
                        file.write(bytes(4 << 20))
                        file.truncate(0)
                        time.sleep(0.05)
            elif KIND == "download" and rank == 0:
                download()
            elif KIND == "validation of all" or (KIND == "validation of rank 0" and rank == 0):
                busy(10 * MINUTE)
            dist.barrier()
        if KIND == "skipped step" and is_bad and step == AT:
            continue
        loss = model(batch).sum()
        loss.backward()
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            print("step", step, flush=True)
    dist.barrier()  # HERE skipped step
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch's own end sometimes never comes: it waits with the GIL for a thread that wants it


def ranks_of_spawn(rank, size, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    main()


if __name__ == "__main__":
    loop, is_rank = os.environ["LOOP"], bool(os.environ.get("RANK"))
    if loop == "accelerate" and not is_rank:
        import accelerate

        accelerate.debug_launcher(with_accelerate, num_processes=RANKS)
    elif loop in LOOPS:
        LOOPS[loop]()
    elif is_rank:
        main()
    elif loop == "torchrun":
        call = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={RANKS}",
            __file__,
        ]
        sys.exit(subprocess.call(call))
    else:
        torch.multiprocessing.spawn(ranks_of_spawn, (4, os.environ["MASTER_PORT"]), nprocs=4)
