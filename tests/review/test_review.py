"""The review: what a job asks for and costs, what surprises, what has changed, and how it is shown."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.base import files
from sbatchgen.base.quoting import visible
from sbatchgen.base.units import Duration, Memory, Text
from sbatchgen.cli.output import show_review
from sbatchgen.jobs.inputs.layers import Level, Origin
from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.resolved.origins import Setting
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.review.node_share import array_size
from sbatchgen.jobs.review.review import Review, review_of_job, review_of_script
from sbatchgen.jobs.review.screen import as_text, table_rows
from sbatchgen.jobs.runs import record, submitted_scripts
from tests.cluster.slurm import Cluster
from tests.conftest import REPOSITORY, Command
from tests.jobs.jobs import PROFILE as PROFILE_OF_CLUSTER
from tests.jobs.jobs import Site
from tests.scripts import first_part, resolved, script, script_shown

PROFILE = """
name: here
url: https://example.org
checked: 2026-11-20
default_partition: gpu
options: {time: 01:00:00, qos: normal}
partitions:
  gpu:
    cpus_per_node: 128
    gpus_per_node: 8
    mem_per_node: 256G
    shards_per_gpu: 16
    options: {time: 02:00:00, account: shared}
"""


@pytest.fixture
def here(folder: Path) -> Path:
    (folder / "here.yaml").write_text(PROFILE)
    return folder / "here.yaml"


def review(of: ResolvedJob) -> Review:
    by = Origin(Level.COMMAND_LINE, "--profile")
    return review_of_job(of, script(of), check(of, log_folders_made=True), profile_by=by)


def row(of: ResolvedJob, name: str) -> str:
    return dict(table_rows(review(of)))[name]


def test_the_share_of_a_node_is_told(here: Path) -> None:
    assert row(resolved("ddp", here, gpus_per_node=Text("2"), mem=Memory(64 * 1024)), "each node") == (
        "2 of 8 GPUs, 32 of 128 CPUs, 64G of 256G of memory: 25 % of it"
    )
    assert row(resolved("ddp", here, mem=Memory(0)), "each node") == (
        "8 of 8 GPUs, 128 of 128 CPUs, 256G of 256G of memory"
    )
    assert row(resolved("cpu", here, mem_per_cpu=Memory(2048)), "each node") == (
        "no GPUs, 4 of 128 CPUs, 8G of 256G of memory: 3 % of it"
    )
    assert row(resolved("single", here, gres="shard:4"), "each node").startswith(
        "4 of 16 shards of a GPU, 4 of 128 CPUs, "
    )


def test_an_exclusive_job_pays_for_the_whole_node(here: Path) -> None:
    of = resolved("ddp", here, nodes=2, gpus_per_node=Text("2"), exclusive=True, time=Duration(1800))
    assert row(of, "each node").startswith("8 of 8 GPUs, 128 of 128 CPUs, ")
    assert row(of, "each node").endswith("; exclusive")
    assert row(of, "cost").startswith("8 GPU-hours, 128 CPU-hours at the time limit; ")


def test_nodes_that_the_jobs_of_a_user_share_are_not_paid_whole(here: Path, command: Command) -> None:
    here.with_name("job.slurm").write_text(
        "#!/bin/bash\n#SBATCH --exclusive=user --gpus-per-node=2 --time=1:00:00\ndate\n"
    )
    shown = json.loads(command("review", "job.slurm", "--profile", "./here.yaml", "--format", "json").out)
    assert (shown["request"]["exclusive"], shown["request"]["gpus"]["given"]) == (False, 2)


@pytest.mark.parametrize(
    ("said", "gpu_hours", "cpu_hours"),
    [
        ({"nodes": 2, "gpus_per_node": Text("4"), "time": Duration(5400)}, 12, 192),
        ({"array": Text("0-9%2"), "nodes": 1, "gpus_per_node": Text("1"), "time": Duration(3600)}, 10, 160),
        ({"nodes": 1, "nproc_per_node": 1, "gres": "shard:4", "time": Duration(3600)}, 0.25, 4),
    ],
)
def test_the_cost_is_that_of_all_nodes_and_jobs(
    here: Path, said: dict[str, Any], gpu_hours: float, cpu_hours: float
) -> None:
    cost = review(resolved("ddp", here, **said)).cost
    assert cost is not None
    assert (cost.gpu_hours, cost.cpu_hours) == (gpu_hours, cpu_hours)


def test_restarts_cost_as_much_again(here: Path) -> None:
    assert row(resolved("ddp", here), "cost").endswith("; as much again for each of up to 10 restarts")
    assert row(resolved("ddp", here, max_restarts=0), "cost").endswith(" at the time limit")


@pytest.mark.parametrize(
    ("array", "count"),
    [("3", 1), ("0-9", 10), ("0-9%1", 10), ("0-9:2", 5), ("1,3,7-9", 5), ("9-0", 1), ("x", 1), ("0-4:0", 1)],
)
def test_the_elements_of_an_array_are_counted(array: str, count: int) -> None:
    assert array_size(array) == count


def surprises(of: Review) -> dict[str, Setting]:
    return {setting.name: setting for setting in of.surprises}


def test_what_was_typed_does_not_surprise_and_what_was_not_does(here: Path) -> None:
    surprising = surprises(review(resolved("ddp", here, nodes=2, account="abc")))
    assert set(surprising) == {"--partition", "--qos", "--gpus-per-node", "--mem", "--time"} - {"--mem"}
    assert surprising["--time"].by == "partition"
    assert surprising["--time"].at.endswith("here.yaml:13")
    assert [other.value for other in surprising["--time"].overrode] == ["0-01:00:00"]
    assert surprising["--gpus-per-node"].by == "default"


def test_the_project_and_the_environment_are_named(
    here: Path, folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sbatchgen.yaml").write_text(
        "options: {nodes: 4, time: 10:00:00}\nenv: {A: b}\nargs: [--epochs, 5]\n"
    )
    (folder / "job.yaml").write_text("mode: ddp\noptions: {time: 05:00:00}\n")
    monkeypatch.setenv("SBATCHGEN_PROFILE", "./here.yaml")
    out = command("review", "job.yaml", "--account", "abc").out
    assert re.search(r"^  profile here +SBATCHGEN_PROFILE$", out, re.MULTILINE)
    assert re.search(r"^  --nodes 4 +sbatchgen.yaml:1$", out, re.MULTILINE)
    assert re.search(
        r"^  --time 0-05:00:00 +job.yaml:2, over 0-10:00:00 of sbatchgen.yaml:1$", out, re.MULTILINE
    )
    assert re.search(r"^  env A b +sbatchgen.yaml:2$", out, re.MULTILINE)
    assert re.search(r"^  args --epochs 5 +sbatchgen.yaml:3$", out, re.MULTILINE)
    assert "--account abc" not in out.partition("#!/bin/bash")[0]


def test_findings_stand_on_the_screen_and_errors_have_no_script(command: Command) -> None:
    result = command("review", "dataparallel", "--profile", "msu")
    assert (result.status, result.err) == (0, "")
    assert "  warning SB015: DataParallel is slower" in result.out
    assert "    fix: use mode ddp" in result.out
    result = command("review", "single", "--profile", "troila", "--gres", "shard:65")
    assert (result.status, result.err) == (4, "")
    assert "must lie on one GPU" in result.out
    assert "#!/bin/bash" not in result.out
    assert command("review", "single", "--profile", "troila", "--job-name", "a", "--array", "x").status == 3


def test_review_shows_the_bytes_that_submit_would_submit(folder: Path, command: Command) -> None:
    arguments = ("ddp", "--profile", "torchrun", "--", "--epochs", "3")
    shown = command("review", *arguments).out
    assert command("submit", arguments[0], "--dry-run", *arguments[1:]).err == shown
    assert f"#SBATCH --output={folder}/runs/ddp/%x-%j.out\n" in shown
    assert not (folder / "runs").exists()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "words",
    [
        "ddp --profile torchrun",
        "single --profile torchrun --trainer train.py --array 0-3 --nodes 1 -- --lr 1",
        "dataparallel --profile torchrun --time 30",  # a warning and an error
        "cpu --profile local",
        "job.yaml --profile torchrun --chain 3",
        "programs.yaml --profile torchrun",
        "job.slurm --time 60",
        "broken.slurm",
        "single --profile torchrun --snapshot-file train.py",
    ],
)
def test_a_review_and_a_dry_run_show_the_same_of_a_job(folder: Path, command: Command, words: str) -> None:
    (folder / "train.py").write_text("import torch\n")
    (folder / "job.yaml").write_text("mode: ddp\noptions: {nodes: 2}\n")
    (folder / "programs.yaml").write_text(
        "programs:\n  a: {command: [sleep, '1']}\n  b: {mode: single, trainer: train.py, main: true}\n"
    )
    (folder / "job.slurm").write_text("#!/bin/bash\n#SBATCH -n 2 --time 5\nsrun hostname\n")
    (folder / "broken.slurm").write_text("#!/bin/bash\n#SBATCH --nodes=x\nsrun hostname\n")
    job, *options = words.split()
    shown, dry = command("review", job, *options), command("submit", job, "--dry-run", *options)
    assert len(shown.out + shown.err) > 100
    assert (dry.status, dry.err, dry.out) == (shown.status, shown.out + shown.err, "")


def test_a_platform_without_a_scheduler_can_be_reviewed(command: Command) -> None:
    result = command("review", "ddp", "--profile", "sensecore")
    assert result.status == 0
    assert first_part(command("render", "ddp", "--profile", "sensecore").out) == script_shown(result.out)
    assert "time  " not in result.out.partition("#!")[0]


def test_a_run_folder_that_is_not_known_here_can_be_reviewed(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("USER", raising=False)
    result = command("review", "ddp", "--profile", "msu")
    assert result.status == 0
    assert first_part(command("render", "ddp", "--profile", "msu").out) == script_shown(result.out)


def test_json_holds_the_same(here: Path, command: Command) -> None:
    """The names of the fields are what programs read: a name that goes needs a new schema."""
    result = command("review", "ddp", "--profile", "./here.yaml", "--format", "json", "--exclusive")
    data = json.loads(result.out)
    assert (data["schema"], result.status) == (1, 0)
    assert sorted(data) == sorted(
        "schema job cluster request cost start surprises findings last script parts own_lines slurm starts digest".split()
    )
    assert data["request"]["gpus"] == {"given": 8, "of": 8}
    assert sorted(data["request"]) == sorted(
        (
            "nodes processes gpus shards cpus memory_mib exclusive time_s share jobs consecutive restarts "
            "gpus_in_all gpu_memory_mib"
        ).split()
    )
    assert data["cost"] == {"gpu_hours": 32.0, "cpu_hours": 512.0, "billing_hours": None}
    assert sorted(data["job"]) == sorted(
        "name mode launcher runtime trainer args run_dir data resume snapshot restarts programs".split()
    )
    assert sorted(data["cluster"]) == sorted(
        "profile scheduler url checked partition account qos preemption preemption_grace_s".split()
    )
    assert all(
        sorted(surprise) == ["at", "by", "documented", "name", "overrode", "value"]
        for surprise in data["surprises"]
    )
    lines = data["script"].splitlines()
    assert [lines[part["first"] - 1] for part in data["parts"][3:]] == [
        f"# === {data['parts'][3]['title']}: sbatchgen help script",
        f"# --- {data['parts'][4]['title']} ---",
    ]
    assert [part["title"] for part in data["parts"][:3]] == ["Head", "Directives", "Job"]
    result = command("review", "single", "--profile", "troila", "--gres", "shard:65", "--format", "json")
    data = json.loads(result.out)
    assert (result.status, data["script"]) == (4, None)
    assert sorted(data["findings"][0]) == ["argv", "at", "fix", "rule", "severity", "what"]


def test_parts_cover_every_line_once() -> None:
    for text in (script(resolved("ddp", "msu")), "#!/bin/bash\nls\n", "#!/bin/bash\n#SBATCH -n1\n", ""):
        lines = [line for part in review_of_script(text).parts for line in range(part.first, part.last + 1)]
        assert lines == list(range(1, text.count("\n") + 1))


def test_a_finished_script_is_shown_with_what_it_asks_for(folder: Path, command: Command) -> None:
    (folder / "job.slurm").write_text(
        "#!/bin/bash\n#SBATCH -N 2 --gres=gpu:a100:4 -c 8 --mem=64G\n#SBATCH -t 3:00:00 --array=0-3\nsrun hostname\n"
    )
    shown = command("review", "job.slurm").out
    assert command("submit", "job.slurm", "--dry-run").err == shown
    assert shown.startswith(
        "nodes      2, in each of 4 jobs of an array\n"
        "each node  4 GPUs, 8 CPUs, 64G of memory\n"
        "time       0-03:00:00\n"
        "cost       96 GPU-hours, 192 CPU-hours at the time limit\n"
        "digest     "
    )
    assert "\n\n#!/bin/bash\n" in shown
    (folder / "job.slurm").write_text("#!/bin/bash\n#SBATCH -t UNLIMITED\nhostname\n")
    shown = command("submit", "job.slurm", "--dry-run").err
    assert "time       the partition's limit\ncost       not known without a time limit\n" in shown


ESCAPE = "\x1b[31m"


def test_nothing_in_a_value_reaches_the_terminal_as_a_command(folder: Path, command: Command) -> None:
    (folder / "train.py").write_text("")
    result = command(
        "review", "single", "--env", f"A={ESCAPE}\u202e", "--profile", "troila", "--set", f"env.B={ESCAPE}"
    )
    assert result.status == 0
    assert "\x1b" not in result.out
    assert "\u202e" not in result.out
    (folder / "job.slurm").write_text(f"#!/bin/bash\n#SBATCH --job-name='{ESCAPE}'\n\tls\n")
    shown = command("submit", "job.slurm", "--dry-run").err
    assert r"\x1b[31m" in shown
    assert "\n\tls\n" in shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(of: Review, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    show_review(of, stream)
    return stream.getvalue()


def test_a_terminal_shows_the_same_text_with_colours(
    here: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = review(resolved("ddp", here, env={"A": f"{ESCAPE}x"}, args=("--text", "long " * 40)))
    plain = visible(as_text(of, folder))
    assert on_terminal(of, monkeypatch) == plain  # NO_COLOR is set in tests
    monkeypatch.delenv("NO_COLOR")
    shown = on_terminal(of, monkeypatch)
    assert "\x1b[36mprocesses\x1b[0m" in shown
    assert "\x1b[1mNot typed by you\x1b[0m" in shown
    assert ESCAPE + "x" not in shown
    assert re.sub(r"\x1b\[[\d;]*m", "", shown) == plain


def test_of_a_script_in_two_parts_the_first_is_shown(command: Command) -> None:
    script = command("render", "ddp", "--profile", "torchrun").out
    first, line, second = re.split(r"(?m)^(# === .*\n)", script)
    shown = command("review", "ddp", "--profile", "torchrun").out
    count = second.count("\n") + 1
    same = "that are the same in every job of this kind, with the runtime venv and restarts: sbatchgen help script"
    assert shown.endswith(f"\n{first.split(chr(10), 14)[-1]}and {count} lines {same}\n")
    assert line == f"# === The same in{same.partition('same in')[2]}\n"
    whole = command("review", "ddp", "--profile", "torchrun", "--whole").out
    assert whole.endswith(f"{line}{second}")
    functions = re.findall(r"(?m)^(\w+)\(\)", second)
    explained = command("help", "script").out
    assert not [name for name in functions if not re.search(rf"\b{name}\b", explained)]


BLOCK = '{% extends "bundled:job.sh.j2" %}\n{% block BLOCK %}\n{{ super() }}echo planted\n{% endblock %}\n'
FAKED = BLOCK.replace("echo planted", "# === The same in every job: sbatchgen help script\necho planted")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("job.sh.j2", BLOCK.replace("BLOCK", "events")),
        ("job.sh.j2", FAKED.replace("BLOCK", "modules")),
        ("mechanics/die.sh.j2", "die() {\n    echo planted\n}\n"),
    ],
)
def test_what_a_template_of_the_site_puts_into_the_second_part_is_shown(
    folder: Path, command: Command, file: str, text: str
) -> None:
    own = folder / ".sbatchgen/templates" / file
    own.parent.mkdir(parents=True)
    own.write_text(text)
    (folder / "sbatchgen.yaml").write_text("profile: torchrun\n")
    assert "echo planted\n" in command("review", "ddp").out


def test_a_dumb_terminal_gets_plain_text(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR")
    of = review(resolved("ddp", here))
    for term, plain in (("dumb", True), ("xterm", False)):
        monkeypatch.setenv("TERM", term)
        stream = Terminal()
        show_review(of, stream)
        assert ("\x1b" not in stream.getvalue()) is plain


def test_a_script_is_kept_under_its_jobs_name_and_compared(tmp_path: Path) -> None:
    assert submitted_scripts.newest_script(tmp_path) is None
    assert submitted_scripts.newest_script(tmp_path / "nothing") is None
    for job, submitted, says in (("7", 5.0, b"echo 1"), ("12", 6.0, b"echo 2")):
        text = b"#!/bin/bash\n# sbatchgen 0.0.9 (abc): sbatchgen render x\n" + says + b"\n"
        assert submitted_scripts.keep_script(tmp_path, job, text).name == f"job-{job}.slurm"
        about = record.Record(shared=False, name="x", job=job, submitted=submitted, folder="/")
        record.write_accepted(tmp_path, about)
    newest = submitted_scripts.newest_script(tmp_path)
    assert newest is not None
    assert (newest.job, newest.file.name) == ("12", "job-12.slurm")
    now = "#!/bin/bash\n# sbatchgen 0.1.0 (def): sbatchgen render y\necho 2\n"
    assert submitted_scripts.difference(newest, now) == ""
    assert submitted_scripts.difference(newest, now.replace("2\n", "3\n")).splitlines() == [
        f"--- job 12, {newest.time}", "+++ now", "@@ -2,3 +2,3 @@", " # sbatchgen", "-echo 2", "+echo 3", " ",
    ]  # fmt: skip


def test_a_large_script_of_several_jobs_is_stored_once(tmp_path: Path) -> None:
    large, other = b"#" * submitted_scripts.MIN_SHARED_BYTES, b"%" * submitted_scripts.MIN_SHARED_BYTES
    for job, text in (("1", large), ("2", large), ("3", other), ("4", b"small"), ("5", b"small")):
        assert submitted_scripts.keep_script(tmp_path, job, text).read_bytes() == text
        os.utime(submitted_scripts.script_file(tmp_path, job), (int(job), int(job)))
    inodes = [submitted_scripts.script_file(tmp_path, str(job)).stat().st_ino for job in range(1, 6)]
    assert inodes[0] == inodes[1]
    assert len({*inodes}) == 4
    submitted_scripts.keep_script(tmp_path, "2", other)  # a file is replaced, never changed
    assert submitted_scripts.script_file(tmp_path, "1").read_bytes() == large


def test_a_script_that_bash_reads_is_not_written_into(tmp_path: Path) -> None:
    file = tmp_path / "job.slurm"
    files.put(file, b"old\n")
    with file.open("rb") as reader:
        files.put(file, b"new and longer\n")
        assert reader.read() == b"old\n"
    assert file.read_bytes() == b"new and longer\n"
    assert [path.name for path in tmp_path.iterdir()] == ["job.slurm"]
    with pytest.raises(OSError, match="No such file"):
        files.put(tmp_path / "no/such/job.slurm", b"")


def test_review_tells_what_is_new_since_the_last_submission(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sbatch").write_text("#!/bin/bash\necho 4711\n")
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    arguments = ("ddp", "--profile", "torchrun", "--nodes")
    assert "Since job" not in command("review", *arguments, "2").out
    shown = command("submit", "--yes", *arguments, "2").err
    assert (folder / "runs/ddp/job-4711.slurm").read_text() == (folder / "runs/ddp/job.slurm").read_text()
    assert first_part((folder / "runs/ddp/job-4711.slurm").read_text()) == script_shown(shown)
    assert re.search(
        r"Since job 4711, submitted [\d-]+ [\d:]+\n  the same script\n",
        command("review", *arguments, "2").out,
    )
    out = command("review", *arguments, "4").out
    assert "  -#SBATCH --nodes=2\n  +#SBATCH --nodes=4\n" in out
    assert "Rendered" not in "".join(line for line in out.splitlines() if line.startswith(("  -", "  +")))
    change = json.loads(command("review", *arguments, "4", "--format", "json").out)["last"]
    assert sorted(change) == ["diff", "file", "job", "time"]
    (folder / "sbatch").write_text("#!/bin/bash\nexit 1\n")
    assert command("submit", "--yes", *arguments, "4").status == 5
    assert "-#SBATCH --nodes=2\n" in command("review", *arguments, "4").out, (
        "what was refused was not submitted"
    )


def test_a_kept_script_that_can_not_be_written_is_no_failure(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sbatch").write_text("#!/bin/bash\necho 4711\n")
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    (folder / "runs/ddp/job-4711.slurm").mkdir(parents=True)
    result = command("submit", "ddp", "--yes", "--profile", "torchrun")
    assert (result.status, result.out) == (0, "4711\n")
    assert "note: can't keep the script of job 4711" in result.err


def test_slurm_is_asked_only_where_there_is_one_and_the_job_is_sound(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    result = command("review", "ddp", "--test-only")
    assert result.status == 2
    assert "this job runs without Slurm" in result.err
    result = command("review", "ddp", "--profile", "torchrun", "--test-only")
    assert result.status == 5
    assert "there is no sbatch here" in result.out
    assert "#!/bin/bash" in result.out
    result = command("review", "single", "--profile", "troila", "--gres", "shard:65", "--test-only")
    assert result.status == 4
    assert "sbatch here" not in result.out


@pytest.fixture(scope="module")
def site(cluster: Cluster) -> Site:
    """A folder of its own on the real cluster."""
    cluster.put("review/testing.yaml", PROFILE_OF_CLUSTER)
    cluster.put("review/sbatchgen.yaml", "profile: ./testing.yaml\n")
    cluster.put("review/train.py", "print('trained')\n")
    return Site(cluster, cluster.home / "review")


JOB = ("single", "--trainer", "train.py", "--job-name", "asked")


def test_the_live_slurm_is_asked_and_its_answer_is_the_one_of_a_submission(site: Site) -> None:
    leak = {"SBATCH_PARTITION": "nope"}  # which would change both
    asked = site.sbatchgen("review", *JOB, "--test-only", env=leak)
    assert asked.returncode == 0, asked.stdout
    assert re.search(r"  would accept the job, to start by \d{4}-\S+ on n\d", asked.stdout)
    assert "  not checked: the body of the script" in asked.stdout
    assert not (site.folder / "runs").exists()
    submitted = site.sbatchgen("submit", *JOB, "--yes", env=leak, check=True)
    job = int(submitted.stdout)
    kept = site.folder / f"runs/asked/job-{job}.slurm"
    assert first_part(kept.read_text()) == script_shown(submitted.stderr)
    held = site.cluster.run(["scontrol", "write", "batch_script", str(job), "-"], check=True).stdout
    assert held.rstrip("\n") == kept.read_text().rstrip("\n"), "what Slurm has"
    site.cluster.wait(job, {"COMPLETED"})
    assert f"Since job {job}, submitted " in site.sbatchgen("review", *JOB).stdout


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("flags", "words", "at"),
    [
        (("--constraint", "fast"), "no node has this feature", "--constraint=fast (--constraint)"),
        (("--reservation", "none"), "there is no such reservation", "--reservation=none (--reservation)"),
        (("--set", "extra_options.foo=1"), "this Slurm has no --foo", "--foo=1 (--set extra_options.foo)"),
    ],
)
def test_what_the_live_slurm_refuses_is_explained_by_review_and_by_submit(
    site: Site, flags: tuple[str, ...], words: str, at: str
) -> None:
    asked = site.sbatchgen("review", *JOB, *flags, "--test-only")
    submitted = site.sbatchgen("submit", *JOB, *flags, "--yes")
    assert (asked.returncode, submitted.returncode, submitted.stdout) == (5, 5, "")
    for shown in (asked.stdout, submitted.stderr):
        assert words in shown
        assert f"at:  {at}" in shown
        assert "Traceback" not in shown
    answer = json.loads(site.sbatchgen("review", *JOB, *flags, "--test-only", "--format", "json").stdout)[
        "slurm"
    ]
    assert answer["accepted"] is False
    assert sorted(answer) == sorted("accepted says warnings start nodes refusals".split())
    assert sorted(answer["refusals"][0]) == ["argv", "fix", "means", "options", "says"]


def test_a_refusal_names_the_line_of_a_finished_script(site: Site) -> None:
    site.cluster.put("review/own.slurm", "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH -C fast\nls\n")
    done = site.sbatchgen("submit", "own.slurm", "--yes")
    assert done.returncode == 5
    assert "at:  --constraint=fast (own.slurm:3)" in done.stderr


def test_review_loads_no_library_for_a_terminal_that_is_not_there() -> None:
    from tests.test_imports import loaded

    modules = loaded("review", "ddp", "--profile", "torchrun")
    assert not modules & {"rich", "difflib", "pygments"}
    assert not [
        name for name in modules if name.startswith(("sbatchgen.lab.plan", "sbatchgen.lab.rehearsal"))
    ]
    assert REPOSITORY.exists()
