"""GPUs for the check of nodes on a machine without: a torch and an nvidia-smi that have what a file says.

A line of the file GPU_FAULT, or else of FAULT in the /tmp of a node, is `GPU KIND`: what is wrong with which GPU.
"""

from pathlib import Path

FAULT = "/tmp/gpu-fault"  # noqa: S108 - each node of the test cluster has a /tmp of its own
GPUS = 4
TORCH = f"""
import os, time
from types import SimpleNamespace

__version__ = "2.13"
version = SimpleNamespace(cuda="13.0", hip=None)
backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace()))
float32, float16, float64 = "float32", "float16", "float64"
file = os.environ.get("GPU_FAULT", "{FAULT}")
faults = dict(line.split(maxsplit=1) for line in open(file)) if os.path.exists(file) else {{}}
kinds = {{int(gpu): kind.strip() for gpu, kind in faults.items()}}
if "import" in kinds.values():
    raise ImportError("libcudart.so.13: cannot open shared object file")


def mem_get_info(gpu):
    if kinds.get(gpu) == "error":
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered\\nmore")
    if kinds.get(gpu) == "hangs":
        time.sleep(1000)
    return (20 << 30 if kinds.get(gpu) == "full" else 79 << 30), 80 << 30


cuda = SimpleNamespace(
    device_count=lambda: {GPUS} - ("missing" in kinds.values()),
    get_device_properties=lambda gpu: SimpleNamespace(uuid=f"0000-{{gpu}}", is_integrated=False),
    mem_get_info=mem_get_info,
)


class Tensor:
    def __init__(self, *_, **more): self.gpu = 0
    def to(self, device): self.gpu = int(device.partition(":")[2]); return self
    def repeat(self, *times): return self
    def sum(self): return 3 if kinds.get(self.gpu) == "wrong" else 0
    __matmul__ = __mul__ = __ne__ = lambda self, other: self


tensor = Tensor
"""
SMI = f"""#!/bin/bash
echo '<nvidia_smi_log>'
for gpu in {{0..{GPUS - 1}}}; do
    kind=$(sed -n "s/^$gpu //p" "${{GPU_FAULT:-{FAULT}}}" 2>/dev/null)
    failed=No hot='Not Active' process=
    [[ $kind != memory ]] || failed=Yes
    [[ $kind != hot ]] || hot=Active
    [[ $kind != stranger ]] ||
        process='<process_info><pid>4242</pid><type>C</type><process_name>python</process_name></process_info>'
    echo "<gpu><uuid>GPU-0000-$gpu</uuid><remapped_rows><remapped_row_failure>$failed</remapped_row_failure>
        </remapped_rows><clocks_event_reasons><clocks_event_reason_hw_thermal_slowdown>$hot
</clocks_event_reason_hw_thermal_slowdown></clocks_event_reasons><processes>$process</processes></gpu>"
done
echo '</nvidia_smi_log>'
"""


def write(folder: Path) -> None:
    """Write both into a folder, which goes before others on PATH and PYTHONPATH."""
    (folder / "torch.py").write_text(TORCH)
    (folder / "nvidia-smi").write_text(SMI)
    (folder / "nvidia-smi").chmod(0o755)
