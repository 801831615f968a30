"""Which nodes are free until when, and which limits leave nothing: of made queues and of recorded answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from sbatchgen.base.errors import SlurmError
from sbatchgen.check.script.resource_request import ResourceRequest
from sbatchgen.jobs.resolved.request import read_request, with_replaced_options, with_sweep
from sbatchgen.jobs.resolved.sweep import grid
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.slurm import client
from sbatchgen.jobs.slurm.node import SlurmNode, nodes_in
from sbatchgen.jobs.slurm.partition import SlurmReservation, reservations_in
from sbatchgen.jobs.starts.account_limits import limit_that_delays
from sbatchgen.jobs.starts.holes import longest_hole, next_claims
from sbatchgen.jobs.starts.moment import ClusterMoment, QueuedJob, read_moment
from sbatchgen.jobs.starts.needs import read_pace
from sbatchgen.jobs.starts.waiting import jobs_ahead

NOW = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)
NODE = (
    "NodeName={name} CoresPerSocket=4 CPUAlloc=0 CPUEfctv=8 CPUTot=8 Gres=gpu:4 GresUsed=gpu:0 RealMemory=16000 "
    "AllocMem=0 Sockets=2 State={state} ThreadsPerCore=1 Partitions=gpu"
)
RUNS = QueuedJob(
    id="1",
    user=7,
    name="run",
    state="RUNNING",
    reason="None",
    start=NOW,
    end=NOW + timedelta(minutes=20),
    priority=9,
    partitions=("gpu",),
    nodes=1,
    node_names=("n1",),
    planned_nodes=(),
    gpus=4,
    tasks=1,
    qos="",
)
WAITS = replace(
    RUNS, id="2", state="PENDING", reason="Resources", node_names=(), end=NOW + timedelta(hours=9)
)


def node(name: str, state: str = "IDLE") -> SlurmNode:
    (made,) = nodes_in(NODE.format(name=name, state=state))
    return made


def moment(
    *jobs: QueuedJob, nodes: Sequence[SlurmNode] = (), reservations: Sequence[SlurmReservation] = ()
) -> ClusterMoment:
    return ClusterMoment(
        now=NOW,
        jobs=jobs,
        nodes=nodes or [node(f"n{number}") for number in range(1, 5)],
        gpu_nodes=(),
        partitions=(),
        reservations=reservations,
        settings={"SchedulerParameters": "bf_interval=30,bf_resolution=60", "ResumeTimeout": "300 sec"},
    )


def minutes(seen: ClusterMoment, wanted: int, free: Sequence[str] = ("n2", "n3", "n4")) -> float | None:
    """How many minutes so many nodes are free; None if they are not."""
    hole = longest_hole(seen, free, next_claims(seen), wanted)
    return None if hole is None else hole.time_s / 60


def test_a_hole_ends_where_the_plan_of_another_job_begins() -> None:
    planned = replace(WAITS, start=NOW + timedelta(minutes=40), planned_nodes=("n1", "n2", "n3"))
    seen = moment(RUNS, planned)
    assert minutes(seen, 2) == minutes(seen, 3) == 38  # a minute and a half for Slurm's turns and minutes
    assert minutes(seen, 1) is not None
    alone = longest_hole(seen, ("n2", "n3", "n4"), next_claims(seen), 1)
    assert alone is not None
    assert (alone.nodes, alone.claim) == (("n4",), None)
    assert minutes(seen, 4) is None
    soon = moment(RUNS, replace(planned, start=NOW + timedelta(minutes=6)))
    assert minutes(soon, 2) is None  # a hole of four minutes is of no use


def test_the_start_of_a_job_that_waits_for_something_else_takes_no_nodes() -> None:
    begins = replace(WAITS, reason="BeginTime", start=NOW + timedelta(minutes=10))
    assert next_claims(moment(RUNS, begins)) == {}


def test_other_tasks_of_an_array_may_start_before_the_planned_one() -> None:
    array = replace(WAITS, id="4_[0-5]", tasks=6, start=NOW + timedelta(hours=3), planned_nodes=("n3", "n4"))
    assert minutes(moment(RUNS, array), 1) == 18  # when job 1 ends, a task may start anywhere
    assert minutes(moment(RUNS, replace(array, tasks=1)), 1, ("n3",)) == 178
    held = replace(array, reason="JobHeldUser", start=None, planned_nodes=())
    assert next_claims(moment(RUNS, held)) == {}


def test_nodes_that_are_planned_for_what_is_not_shown_are_no_hole() -> None:
    nodes = [node("n2", "IDLE+PLANNED"), node("n3")]
    assert minutes(moment(nodes=nodes), 1, ("n2",)) is None
    shown = replace(WAITS, start=NOW + timedelta(hours=1), planned_nodes=("n2",))
    assert minutes(moment(shown, nodes=nodes), 1, ("n2",)) == 58


def test_a_reservation_takes_nodes_from_all_but_its_own_jobs() -> None:
    line = "ReservationName=maint StartTime=2026-11-30T14:00:00 EndTime=2026-11-30T15:00:00 Nodes=n[1-4]"
    (maint,) = reservations_in(line)
    starts = NOW + timedelta(hours=2)
    seen = moment(reservations=[replace(maint, start=starts)])
    assert minutes(seen, 3) == 118
    assert "reservation maint begins there" in next_claims(seen)["n4"].why
    assert next_claims(seen, reservation="maint") == {}
    assert minutes(moment(reservations=[replace(maint, start=NOW - timedelta(hours=1))]), 1) is None


def test_a_node_that_became_free_since_slurm_looked_goes_to_a_job_that_waits_longer() -> None:
    """The plan of that job is of the time before; Slurm starts the job there in its next turn."""
    freed, began, looked, long_ago = (NOW - timedelta(seconds=seconds) for seconds in (5, 20, 100, 3600))
    nodes = [node("n1"), replace(node("n2"), last_busy=long_ago.isoformat())]
    nodes += [replace(node("n4"), last_busy=freed.isoformat())]
    other = replace(
        WAITS, id="3", priority=3, start=NOW + timedelta(minutes=30), planned_nodes=("n4",), last_look=NOW
    )
    later = NOW + timedelta(hours=2)
    first = replace(
        WAITS, start=later, planned_nodes=("n4",), limit_s=600, last_look=looked, submitted=looked
    )

    def goes_to(job: QueuedJob, *others: QueuedJob, plan: datetime | None = began) -> set[str]:
        seen = replace(moment(RUNS, job, *others, nodes=nodes), last_plan=plan)
        claims = next_claims(seen)
        return {
            name for name, claim in claims.items() if claim.why == "job 2, which waits longer, fits there"
        }

    soon = replace(other, start=NOW + timedelta(minutes=5))  # of a job that comes later
    assert goes_to(first) == goes_to(first, other) == goes_to(first, soon) == {"n4"}
    assert goes_to(first, replace(soon, priority=99)) == set()
    assert goes_to(replace(first, tier=2), replace(soon, priority=99)) == {"n4"}  # PriorityTier comes first
    assert goes_to(first, replace(soon, priority=1, tier=2)) == set()
    assert goes_to(replace(first, nodes=2)) == {"n2", "n4"}
    assert goes_to(replace(first, submitted=NOW)) == {"n2"}  # the plan does not know the job
    assert goes_to(replace(first, last_look=NOW)) == {"n4"}  # by the main scheduler, which plans nothing
    assert goes_to(first, plan=None) == {"n4"}  # as old as two intervals
    assert goes_to(first, plan=NOW) == set()  # and Slurm left the node to others
    for not_now in (
        replace(first, nodes=3),
        replace(first, limit_s=None),
        replace(first, last_look=long_ago),  # Slurm does not look so far down the queue
        replace(first, partitions=("cpu",)),
        replace(first, reason="Dependency"),
    ):
        assert goes_to(not_now, other) == set()


def test_nodes_that_are_off_count_as_free_and_cost_their_start() -> None:
    nodes = [node("n2", "IDLE+CLOUD+POWERED_DOWN"), node("n3"), node("n4")]
    both = longest_hole(moment(nodes=nodes), ("n2", "n3", "n4"), {}, 2)
    assert both is not None
    assert ({*both.nodes}, both.boot_s) == ({"n3", "n4"}, 0)
    three = longest_hole(moment(nodes=nodes), ("n2", "n3", "n4"), {}, 3)
    assert three is not None
    assert three.boot_s == 300


def test_what_is_ahead_is_of_higher_priority_or_was_there_before() -> None:
    mine = replace(WAITS, id="5", priority=5)
    first = replace(WAITS, id="3", priority=5, gpus=8)
    higher = replace(WAITS, id="9_[1-3]", priority=7, gpus=4, tasks=3)
    others = (
        replace(WAITS, id="4", priority=9, reason="Dependency"),
        replace(WAITS, id="6", priority=5),
        replace(WAITS, id="7", priority=8, partitions=("cpu",)),
    )
    assert jobs_ahead(mine, moment(mine, first, higher, *others)) == "ahead of it wait 4 jobs with 20 GPUs"


def test_an_option_takes_the_place_of_the_one_that_was_typed() -> None:
    run = ("sbatchgen", "submit", "ddp", "--nodes", "4", "--time", "1:00", "--", "--nodes", "9")
    assert with_replaced_options(run, ("--nodes", "2", "--partition", "gpu")) == [
        *("sbatchgen", "submit", "ddp", "--time", "1:00", "--nodes", "2", "--partition", "gpu"),
        *("--", "--nodes", "9"),
    ]


def test_values_that_look_like_options_stay(folder: Path) -> None:
    run = (
        "sbatchgen",
        "submit",
        "ddp",
        "--comment",
        "--nodes",
        "--no-requeue",
        "--time",
        "1",
        "--job-name",
        "--",
        "--",
        "-x",
    )
    assert with_replaced_options(run, ("--nodes", "2", "--job-name", "new")) == [
        *("sbatchgen", "submit", "ddp", "--comment", "--nodes", "--no-requeue", "--time", "1"),
        *("--nodes", "2", "--job-name", "new", "--", "-x"),
    ]
    options = {"profile": "local", "comment": "--", "mail_user": "--array", "array": "0"}
    request = read_request(
        "single", ("-x",), options, environment={}, folder=folder, check=lambda _: [],
    )  # fmt: skip
    recorded = Record(shared=False, name="x", folder="/", command=request.rerun)
    assert recorded.typed_words.trainer == ("-x",)
    assert with_replaced_options(request.rerun, ("--comment", "new"))[3:] == [
        *("--profile", "local", "--array", "0", "--mail-user", "--array", "--comment", "new", "--", "-x")
    ]
    sweep = grid(("lr=1,2",), None, 0)
    assert with_sweep(request, sweep, "0-1", ("--param", "lr=1,2")).rerun == (
        *("sbatchgen", "sweep", "single", "--profile", "local", "--comment=--", "--mail-user", "--array"),
        *("--param", "lr=1,2", "--", "-x"),
    )


def test_a_controller_that_never_answers_is_asked_all_questions_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("squeue", "scontrol"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nexec sleep 600\n')
        program.chmod(0o755)
    monkeypatch.setattr(client, "QUERY_TIMEOUT_S", 5)
    with pytest.raises(SlurmError) as caught:
        read_moment({"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert "Slurm's controller does not answer" in caught.value.problems[0].what
    assert len((tmp_path / "asked").read_text().splitlines()) == 5


# What Slurm 22.05 and 26.05 print with -o, without what is not read
USED = """\
Association Records
ClusterName=test Account=lab UserName= Partition= GrpJobs=N(1) GrpTRES=cpu=N(1),node=N(1),gres/gpu=8(4) MaxJobs=
ClusterName=test Account=lab UserName=alice(20001) Partition= GrpJobs=N(1) GrpTRES=node=N(1),gres/gpu=N(4) MaxJobs={jobs}
QOS Records
QOS=small(2) GrpJobs=N(1) GrpTRES=gres/gpu=N(4) MaxWallPJ=60 Account Limits= lab={{MaxJobsPA=N(1) MaxTRESPA=gres/gpu=N(4)}} \
User Limits= 20001={{MaxJobsPU=3(1) MaxTRESPU=cpu=N(1),node=N(1),gres/gpu=6(4)}} 20002={{MaxJobsPU=1(1) MaxTRESPU=gres/gpu=1(1)}}
QOS=tiny(3) GrpJobs=1(1) GrpTRES=gres/gpu=N(4) Account Limits=No Accounts User Limits=No Users
"""


@pytest.mark.parametrize(
    ("gpus", "qos", "jobs", "says"),
    [
        (2, "small", "", ""),
        (3, "small", "", "your share of QOS small has 4 of 6 GPUs in use, and the job needs 3 (MaxTRESPU)"),
        (5, "normal", "", "account lab has 4 of 8 GPUs in use, and the job needs 5 (GrpTRES)"),
        (1, "tiny", "", "QOS tiny has 1 of 1 jobs in use, and the job needs 1 (GrpJobs)"),
        (1, "small", "1(1)", "account lab has 1 of 1 jobs in use, and the job needs 1 (MaxJobs)"),
        (1, "small", "2(1)", ""),
    ],
)
def test_a_limit_that_holds_a_job_back(
    monkeypatch: pytest.MonkeyPatch, gpus: int, qos: str, jobs: str, says: str
) -> None:
    monkeypatch.setattr("os.getuid", lambda: 20001)
    job = ResourceRequest(
        options={"gpus-per-node": str(gpus)}, places={}, nodes_min=1, gpus_per_node=(("", gpus),)
    )
    printed = USED.format(jobs=jobs)
    assert limit_that_delays(printed, job, 60, [qos]) == says
    assert (
        limit_that_delays(printed.replace(" 20001={", " alice(20001)={"), job, 60, [qos]) == says
    )  # as 26.05 has it


def events(*lines: dict[str, object]) -> str:
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def start(processes: int, step: int, at: float, batch: int = 10) -> dict[str, object]:
    facts = {"processes": processes, "global_batch_size": batch, "train_samples": 1000}
    return {"event": "start", "step": step, "time": at, **facts}


def train(step: int, at: float) -> dict[str, object]:
    return {"event": "train", "step": step, "time": at}


def test_what_is_left_is_measured_by_number_of_gpus(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"epochs": 5}')
    four = [start(4, 0, 0), train(10, 100), train(60, 150)]  # a step a second, after a start of 90 s
    eight = [start(8, 60, 200), train(70, 300), train(110, 320)]  # two steps a second
    (tmp_path / "events.jsonl").write_text(events(*four, *eight))
    pace = read_pace(tmp_path)
    assert pace is not None
    assert (pace.needed_s(4), pace.needed_s(8), pace.needed_s(16)) == (390, 195, None)
    (tmp_path / "events.jsonl").write_text(events(*four, start(8, 60, 200, batch=20), train(70, 300)))
    assert read_pace(tmp_path) is None  # whose steps are of two sizes
    assert read_pace(tmp_path / "nothing") is None
