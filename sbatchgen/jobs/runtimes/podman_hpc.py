"""Runtime podman-hpc: a container of podman-hpc, the program of NERSC.

Its images are in a store that all nodes share. `podman-hpc pull` and `podman-hpc migrate` put them there.

Source: the README and etc/modules.d of NERSC/podman-hpc, and podman-run(1).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from sbatchgen.base import quoting
from sbatchgen.base.keys import described, record
from sbatchgen.base.units import Argument, ShellPath, Text
from sbatchgen.jobs.runtimes import base

# Patterns of the variables that a container gets from the host. The ranks read Slurm's variables.
_FROM_HOST = ("'SLURM_*'", "'SBATCHGEN_*'")
# Options of old scripts that `adopt` drops, because `PodmanHpcRuntime.command` writes them into each script.
_WRITTEN_OPTIONS = frozenset(("rm", "ipc", "network", "net"))
# The flags of podman-hpc's modules at NERSC, which give a container GPUs and the fast network.
_MODULE_FLAGS = frozenset(("gpu", "nccl", "cuda-mpi", "mpich"))


@record
class PodmanHpc:
    """An image of podman-hpc, its mounts, and the flags of the site's modules."""

    image: ShellPath | None = described("The image, as `podman-hpc images` shows it.")
    mounts: tuple[ShellPath, ...] = described("Mounts, SRC or SRC:DST.", ())
    gpu_flags: tuple[Text, ...] = described(
        "Flags that give it GPUs and a fast network, as --gpu and --nccl.", (Text("--gpu"),)
    )
    flags: tuple[Argument, ...] = described("Other flags of `podman-hpc run`, as --shm-size=16g.", ())


class PodmanHpcRuntime(base.ContainerRuntime):
    """A container of podman-hpc, the program of NERSC."""

    name = "podman-hpc"
    title = "Podman-HPC."
    Facts = PodmanHpc
    has_only_named_images = True
    keys = base.container_keys("mounts")
    requires = base.Requirement("image", "an image", "--image NAME")
    function = "check_podman"
    starts = ("podman-hpc run",)
    finds_user_packages = False
    mount_options = "ro|rw|z|Z|O|U"
    removes_slowly = True

    def command(self, job: base.RuntimeJob, exported: Sequence[str], mounted: Sequence[str]) -> Iterator[str]:
        """Yield `podman-hpc run` with the host's network and shared memory, which the ranks use."""
        flags = [quoting.word(flag) for flag in job.facts.gpu_flags] if job.mode.uses_gpus else []
        flags += [quoting.value(flag) for flag in job.facts.flags]
        gpu_variable = base.GPU_VARIABLES[job.gpu_vendor][0]
        yield " ".join(["podman-hpc run --rm", *flags, '--network=host --ipc=host --workdir="$PWD"'])
        pairs = (path if ":" in path else f"{path}:{path}" for path in mounted)
        yield from quoting.packed(f'--volume="{pair}"' for pair in pairs)
        yield from quoting.packed(
            f"--env={name}" for name in dict.fromkeys((*_FROM_HOST, gpu_variable, *exported))
        )
        # podman-hpc removes the first "--" of its command line. Without the "--" here, it would remove that
        # of torchrun.
        yield '-- "$IMAGE"'

    def adopt(self, draft: base.ScriptDraft, launch: base.ScriptLaunch, tool: base.Tool) -> dict[str, Any]:
        """Return the image, mounts and flags of an old script's `podman-hpc run`, as keys of `Facts`."""
        keys: dict[str, Any] = {"mounts": [], "gpu_flags": []}
        image = tool.operands[0].value if tool.operands else None
        if image is None:
            draft.lose("the script does not say which image is started")
        else:
            keys["image"] = image
        for option in tool.uses:
            if option.name == "volume":
                keys["mounts"] += draft.option_paths(tool, option)
            elif option.name == "env":
                draft.adopt_env_option(tool, option)
            elif option.name == "workdir":
                draft.note("--workdir of podman-hpc run is dropped: the trainer starts in the job's folder")
            elif option.value == "" and option.name not in _WRITTEN_OPTIONS:
                key = "gpu_flags" if option.name in _MODULE_FLAGS else "flags"
                keys.setdefault(key, []).append(f"--{option.name}")
            elif option.name not in _WRITTEN_OPTIONS:
                draft.lose(f"--{option.name} of podman-hpc run")
        return {name: value for name, value in keys.items() if value or name == "gpu_flags"}


RUNTIME = PodmanHpcRuntime()
