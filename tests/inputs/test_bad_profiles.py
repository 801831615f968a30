"""Bad profiles, as people type them: what is wrong, in which line, and what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Command

PROFILE = """name: site
url: https://example.org
checked: 2026-01-31
default_partition: g
partitions:
  g:
    gpus_per_node: 4
    cpus_per_node: 64
    mem_per_node: 500G
    time_max: 2-00:00:00
modules: [python/3.12]
launcher: srun
options: {account: x}
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("modules:", "moduls:", 11, "unknown key 'moduls' | did you mean 'modules'?"),
        ("    gpus_per", "    gpu_per", 7, "unknown key 'gpu_per_node' in partitions.g | did you mean"),
        ("node: 4", "node: four", 7, "'four' is not a whole number"),
        ("node: 4", "node: -4", 7, "a node can't have -4 GPUs | write 0 or more"),
        ("2-00:00:00", "2 days", 10, "'2 days' is not a time; write 2-00:00:00"),
        ("500G", "500 GB", 9, "'500 GB' is not a memory size; write an integer with K, M, G or T"),
        ("srun", "srn", 12, "'srn' is not one of torchrun, srun, spawn"),
        ("url: https://example.org\n", "", 1, "missing key 'url' | add url:"),
        ("2026-01-31", "yesterday", 3, "'yesterday' is not a day in the past | write the day"),
        ("tion: g", "tion: gpu", 4, "there is no partition 'gpu' here | known: g"),
        ("  g:", "\tg:", 6, "a tab indents the line | indent it with spaces"),
        ("launcher:", "modules:", 12, "duplicate key 'modules' (first on line 11) | keep one"),
        ("[python/3.12]", "python/3.12", 11, "modules must be a list | write modules: [...]"),
        ("[python/3.12]", "[python/3.12", 12, "not valid YAML | look for an open quote or bracket"),
        ("[python/3.12]", "*base", 11, "*base is not defined | write the value itself"),
        ("account:", "acount:", 13, "unknown key 'acount' in options | did you mean 'account'?"),
        ("launcher: srun", "runtime: docker", 12, "'docker' is not one of apptainer, conda"),
        (
            "launcher: srun",
            "runtimes: {conda: {path: x}}",
            12,
            "unknown key 'path' in runtimes.conda | known: env",
        ),
        ("launcher: srun", "gpu_vendor: nvdia", 12, "'nvdia' is not one of nvidia, amd, intel"),
        ("launcher: srun", "network: {nccl_ifname: x}", 12, "unknown key 'nccl_ifname' | did you mean"),
        ("launcher: srun", "env: {1X: 2}", 12, "'1X' can't name a variable: use letters"),
        ("launcher: srun", "step: {gpu-bnd: none}", 12, "srun has no option --gpu-bnd | did you mean"),
        ("launcher: srun", "setup: ['if true; then']", 12, "bash can't read it | write whole commands"),
        ("launcher: srun", "options: {time: 9-0}", 12, "over the limit 2-00:00:00 | set --time"),
    ],
)
def test_a_mistake_has_its_line_and_what_to_write(
    command: Command, folder: Path, old: str, new: str, line: int, says: str
) -> None:
    text = PROFILE.replace("options: {account: x}\n", "") if new.startswith("options") else PROFILE
    (folder / "site.yaml").write_text(text.replace(old, new, 1))
    done = command("profile", "check", "./site.yaml")
    message = done.out + done.err
    assert f"at:  site.yaml:{line}\n" in message
    for part in says.split(" | "):
        assert part in message


def test_a_total_of_gpus_that_its_nodes_do_not_have(command: Command) -> None:
    flags = ("--profile", "msu", "--nodes", "2", "--gpus-per-node", "2")
    refused = command("render", "ddp", *flags, "--gpus", "6")
    assert "doesn't fall between" in refused.err
    assert "at:  --gpus\n" in refused.err
    assert command("render", "ddp", *flags, "--gpus", "4").status == 0
