"""The real pyxis and Enroot on the test cluster, as `pyxis.sh` builds them: their settings, and images for them.

An image holds hardly more than its variables: the site mounts the node's system folders into each container.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from .slurm import Cluster

MOUNTS = "etc/enroot/mounts.d/30-contents.fstab"  # below the folder of the built ones
SYSTEM = ("bin", "lib", "lib64", "sbin")
CONF = """\
ENROOT_DATA_PATH {store}/$(hostname)
ENROOT_RUNTIME_PATH /tmp/enroot-run-$(id -u)
ENROOT_CACHE_PATH /tmp/enroot-cache-$(id -u)
ENROOT_TEMP_PATH /tmp
ENROOT_MOUNT_HOME yes
"""
# What Enroot's import of an image from a registry makes of its folder and its entry point.
RC = 'cd "{workdir}" && unset OLDPWD || exit 1\n[ ! -s /etc/rc.local ] || . /etc/rc.local\nexec "$@"\n'
# On a node without GPUs, NVIDIA's tool fails; on the others it has nothing to do.
TOOL = """\
#!/bin/sh
[ -e {nvidia}/$(hostname) ] && exit 0
echo 'nvidia-container-cli: initialization error: nvml error: driver not loaded' >&2
exit 1
"""


def settings(built: Path, folder: Path, *, contents: Iterable[Path], squashfuse: bool) -> str:
    """Write Enroot's settings, and return the line of plugstack.conf that loads pyxis."""
    conf = built / "etc" / "enroot"
    (conf / "enroot.conf").write_text(CONF.format(store=folder / "store"))
    mounted = ["/usr", *map(str, contents)]
    lines = [f"{path} {path} none x-create=dir,rbind,ro,nosuid,nodev,rslave" for path in mounted]
    (built / MOUNTS).write_text("\n".join(lines) + "\n")
    shutil.copy(built / "share/enroot/hooks.d/50-slurm-pytorch.sh", conf / "hooks.d")
    tool = built / "bin" / "nvidia-container-cli"
    tool.write_text(TOOL.format(nvidia=folder / "nvidia"))
    tool.chmod(0o755)
    (folder / "store").chmod(0o1777)
    return f"required {built}/pyxis.so runtime_path=/tmp/pyxis use_squashfuse={int(squashfuse)}\n"


def put_image(cluster: Cluster, name: str, variables: dict[str, str], workdir: str = "/") -> Path:
    """Make an image, a file of squashfs, below the user's home folder."""
    path = cluster.put(name, "")
    path.unlink()
    with tempfile.TemporaryDirectory(prefix="image-") as temporary:
        root = Path(temporary)
        root.chmod(0o755)
        for folder in (
            "etc",
            "home",
            "root",
            "run",
            "tmp",
            "usr",
            "var",
            *filter(None, [workdir.strip("/")]),
        ):
            (root / folder).mkdir()
        for link in SYSTEM:
            (root / link).symlink_to(f"usr/{link}")
        for file in ("ld.so.cache", "nsswitch.conf", "ssl"):
            source = Path("/etc", file)
            if source.is_file():
                shutil.copy(source, root / "etc")
        complete(root, variables, workdir)
        command = ["mksquashfs", temporary, str(path), "-all-root", "-noappend", "-quiet", "-no-progress"]
        subprocess.run(command, check=True, capture_output=True)
    return path


def complete(root: Path, variables: dict[str, str], workdir: str = "/") -> None:
    """Add what Enroot's import of an image from a registry makes, and folders for its mounts."""
    for name in ("etc/skel", "home", "root", "run", "tmp", "var", "proc", "sys", "dev"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "etc/skel/.bashrc").touch()
    (root / "etc/environment").write_text("".join(f"{key}={value}\n" for key, value in variables.items()))
    (root / "etc/rc").write_text(RC.format(workdir=workdir))
    (root / "etc/rc.local").write_text("# empty\n")
