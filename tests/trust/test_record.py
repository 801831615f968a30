"""What another user says of a run decides nothing: a record counts if its owner alone can write it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sbatchgen.jobs.runs import process

from .lab import User, put, wait

pytestmark = pytest.mark.slow

EVIL = "touch pwned"


def evil(attacker: User, owner: User, file: str) -> str:
    """A record of the owner's as the attacker would have it: a profile that runs his command."""
    put(
        attacker.lab / "evil.yaml",
        f"{(owner.home / 'public.yaml').read_text()}setup: [{EVIL}]\n",
        owner=attacker.uid,
    )
    known: dict[str, Any] = json.loads((owner.project / file).read_text())
    words = [
        str(attacker.lab / "evil.yaml") if word.endswith("public.yaml") else word for word in known["command"]
    ]
    return json.dumps(
        known | {"command": words, "submitted": known["submitted"] + 60, "run": "a", "array": "5"}
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("verb", ["resume", "resubmit"])
def test_a_planted_record_is_not_submitted(attacker: User, owner: User, verb: str) -> None:
    """The run folder is open to its group, as an earlier version left it."""
    sweep = ("--param", "lr=0.1,0.2") if verb == "resubmit" else ()
    owner.submit("single", "--job-name", "a", *sweep)
    owner.ends()
    folder, mine = owner.project / "runs/a", (owner.project / "runs/a/job-1000.json").read_text()
    owner.bash("chmod 2775 runs/a; chmod 666 runs/a/job-1000.json")
    text = evil(attacker, owner, "runs/a/job-1000.json")

    assert attacker.run("sh", "-c", 'echo "$0" >runs/a/job-1999.json', text).returncode == 0
    refused = owner.sbatchgen(verb, "a", "--yes")
    assert (refused.returncode, len(owner.jobs())) == (3, 1)
    assert (
        f"a file in the run folder belongs to another user (uid 20011): {folder}/job-1999.json"
        in refused.stderr
    )

    owner.bash("rm runs/a/job-1999.json")
    assert attacker.run("sh", "-c", 'echo "$0" >runs/a/job-1000.json', text).returncode == 0
    refused = owner.sbatchgen(verb, "a", "--yes")
    assert (refused.returncode, len(owner.jobs())) == (3, 1)
    assert f"run a has no record in {folder}" in refused.stderr

    put(folder / "job-1000.json", mine, owner=owner.uid, mode=0o600)
    done = owner.sbatchgen(verb, "a", "--yes")
    assert (done.returncode, len(owner.jobs())) == (0, 2), done.stderr
    assert not [text for text in owner.jobs() if EVIL in text]
    assert attacker.bash("echo >runs/a/job-1998.json").returncode != 0


def test_records_of_others_are_not_entered_into_the_index(attacker: User, owner: User) -> None:
    """In a folder that all may write, like /tmp, where each removes only what is his."""
    owner.submit("single", "--job-name", "a", "--run-dir", owner.lab / "scratch/a")
    text = evil(attacker, owner, "../scratch/a/job-1000.json").replace('"run": "a"', '"run": "baseline"')
    attacker.bash("mkdir -m 777 ../scratch/b")
    put(attacker.lab / "scratch/b/job-1000.json", text, owner=attacker.uid)
    done = owner.sbatchgen("status", "--scan", "../scratch")
    assert (
        "1 run found in ../scratch; skipped: 1 record of other users, whose runs status, logs and diagnose read by their folders\n"
        in done.stderr
    )
    for verb in ("cancel", "resume"):
        refused = owner.sbatchgen(verb, "baseline")
        assert (refused.returncode, "there is no run 'baseline'" in refused.stderr) == (2, True)
    assert (owner.cancelled(), len(owner.jobs())) == ([], 1)
    assert owner.sbatchgen("cancel", "--yes", "a").returncode == 0
    assert owner.cancelled() == ["1000"]


@pytest.mark.proof
def test_an_array_that_no_slurm_takes_costs_no_memory(owner: User) -> None:
    owner.submit("single", "--job-name", "a", "--param", "lr=0.1,0.2")
    file = owner.project / "runs/a/job-1000.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"array": "0-4294967295"}))
    limited = "ulimit -v $((2 << 20)); for verb in status cancel diagnose 'resubmit --yes'; do"
    done = owner.bash(f'{limited} timeout 60 sbatchgen $verb a >/dev/null; echo "$?"; done')
    assert set(done.stdout.split()) <= {"0", "2", "3", "5"}, done
    assert len(done.stdout.split()) == 4


@pytest.mark.proof
def test_others_decide_neither_what_a_local_run_does_nor_which_process_is_cancelled(
    attacker: User, owner: User
) -> None:
    put(owner.project / "t.py", "import time\nprint('began', flush=True)\ntime.sleep(60)\n", owner=owner.uid)
    flags = ("--yes", "--profile", "local", "--trainer", "./t.py", "--job-name", "a")
    with owner.start("sbatchgen", "submit", "cpu", *flags) as run, owner.start("sleep", "60") as other:
        assert run.stdout
        assert run.stdout.readline() == "began\n"
        folder = owner.project / "runs/a"
        wait(lambda: [*folder.glob("job-*.json")])
        (script,), (file,) = folder.glob("job-2*.slurm"), folder.glob("job-*.json")
        for line in (f"echo '{EVIL}' >>{script}", f"mv {script} runs/a/b", f"rm -f {file}", f"cat {file}"):
            assert attacker.bash(line).returncode != 0
        mine = file.read_text()
        forged = json.loads(mine)
        forged["process"] |= {"pid": other.pid, "born": process._start_ticks(other.pid)}
        owner.bash("chmod 2775 runs/a; chmod 666 runs/a/job-*.json")
        assert attacker.run("sh", "-c", 'echo "$0" >"$1"', json.dumps(forged), file).returncode == 0
        refused = owner.sbatchgen("cancel", "--yes", "a")
        assert (refused.returncode, "the process of run a is not known" in refused.stderr) == (3, True)
        put(file, mine, owner=owner.uid, mode=0o600)
        # A copy of a run folder is not the run, whatever process its record names.
        name = file.stem.removeprefix("job-")
        copy = forged | {"key": "deadbeefdeadbe09", "run": "copy", "name": "copy"}
        owner.bash("mkdir -m 755 copy")
        for process_of in (forged["process"], json.loads(mine)["process"]):
            put(
                owner.project / f"copy/job-{name}.json",
                json.dumps(copy | {"process": process_of}),
                owner=owner.uid,
            )
            scanned = owner.sbatchgen("status", "--scan", owner.project / "copy")
            (row,) = (line for line in scanned.stdout.splitlines() if line.startswith("copy "))
            assert ("killed" in row, "running" in row) == (True, False), scanned
            owner.sbatchgen("cancel", "copy", "--yes")
            assert (other.poll(), run.poll()) == (None, None)
        assert owner.sbatchgen("cancel", "--yes", "a").returncode == 0
        assert run.wait() != 0
        assert other.poll() is None
    assert EVIL not in script.read_text()
