"""What hostile scripts try, as lines of bash: HOME, LAB and JOB stand for folders, UID for the user's number.

`attempts.c` has the system calls. A script runs in the job's folder, which holds what watched.py makes, a file `shared`,
a link `link` to the user's file `precious`, and a hard link `hard` to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

CALLS = Path(__file__).with_name("attempts.c")
WRITES = {
    "home": "echo changed >>HOME/precious; rm -f HOME/precious; echo changed >HOME/.bashrc",
    "home by its variable": "echo changed >>~/precious; mkdir -p ~/.ssh; echo changed >>~/.ssh/authorized_keys",
    "link": "echo changed >>link; chmod 777 link; touch -d 2001-01-01 link",
    "hard link": "echo changed >>hard; chmod 777 hard; touch -d 2001-01-01 hard; setfattr -n user.x -v y hard",
    "new hard link": "ln HOME/precious mine && echo changed >>mine; ln -f shared HOME/shared",
    "folder of the group": "echo changed >>LAB/project/shared; rm -rf LAB/project; touch LAB/project/new",
    "folder of all": "echo changed >LAB/scratch/new; echo changed >LAB/scratch/sbatchgen-lab",
    "temporary folders": "for at in /tmp /var/tmp /dev/shm /run; do echo changed >$at/sbatchgen-lab; done",
    "root of the first process": "echo changed >>/proc/1/root/HOME/precious; rm -rf /proc/1/cwd/HOME/precious",
    "roots of all processes": "for at in /proc/[0-9]*; do echo changed >>$at/root/HOME/precious; echo changed >>$at/cwd/../../precious; done",
    "files of all processes": "for at in /proc/[0-9]*/fd/*; do echo changed >>$at/../precious; echo changed >>$at/../../precious; echo changed >>$at/shared; done",
    "own descriptors": "for at in /proc/self/fd /dev/fd /proc/self/task/*/fd; do echo changed >>$at/3/../precious; done; ls -l /proc/1/fd/",
    "settings of the kernel": "echo changed >/proc/sys/kernel/domainname; echo 4 >/proc/sys/kernel/printk_ratelimit; echo 1 >/proc/sys/vm/drop_caches",
    "modes of devices": "chmod 664 /dev/full; touch -d 2001-01-01 /dev/full; rm -f /dev/full",
    "programs": "cp /bin/true /usr/bin/sbatchgen-lab; echo changed >/usr/lib/sbatchgen-lab; echo changed >>/etc/passwd",
    "interpreter": 'at=$(</run/plan/python); rm -f "$at"; echo changed >>"$at"; chmod 777 "$at"',
    "records": "rm -rf /run/plan/starts; ln -s HOME /run/plan/starts; ln -sf HOME/precious /run/plan/out",
    "set-user-ID": "cp /bin/bash shell; chmod 4777 shell; ./shell -p -c 'echo changed >>HOME/precious'; timeout 0.2 su -c true; mount",
    "bind in a namespace": "unshare -Urm sh -c 'umount -l .; mount -o remount,rw /; echo changed >>HOME/precious'",
    "namespace of the first process": "nsenter -t 1 -m sh -c 'echo changed >>HOME/precious'",
    "chroot": "chroot /proc/1/root sh -c 'echo changed >>HOME/precious'",
    "nodes": "mknod disk b 254 0; timeout 0.2 cat disk; mknod terminal c 5 0; echo changed >terminal; mknod shared-pipe p",
    "locks": "flock -n LAB/project/shared -c 'echo changed >>LAB/project/shared'; flock -n shared true",
    "job's folder": "echo changed >>shared; rm -f job.slurm; mkdir new; mv shared other; chmod 777 .",
    "submission's folder": 'rm -rf "$SLURM_SUBMIT_DIR"/*',
    "exchange for a link": "rm -rf HOME/job; ln -s HOME/.ssh HOME/job; echo changed >>HOME/job/id",
}  # fmt: skip
# A plan makes what a script does not find: these are made where they can do no harm, or not at all.
NAMES = {
    "another root": "cat /.old/HOME/new; /.old/HOME/program; echo changed >/.old/HOME/none/new; cd /.old/HOME/folder",
    "root of bubblewrap": "cat /oldroot/HOME/new; /newroot/HOME/program; cd /oldroot/HOME/folder",
    "parents": "cat /../../HOME/new; cat /usr/../HOME/new; cat JOB/../../none; ../program; source ../missing.sh",
    "parents in stderr": "echo 'cat: /../../HOME/new: No such file or directory' >&2",
    "parents of the job in stderr": "echo 'cat: ../new: No such file or directory' >&2; echo \"$0: line 3: ../../new: No such file or directory\" >&2",
    "home in stderr": 'for name in .bashrc .ssh/rc new; do echo "cat: HOME/$name: No such file or directory" >&2; done',
    "links in stderr": "echo 'cat: link/x: Not a directory' >&2; echo 'tee: link: No such file or directory' >&2",
    "processes in stderr": "echo 'cat: /proc/1/root/HOME/new: No such file or directory' >&2; echo 'cat: /proc/self/cwd/new: No such file or directory' >&2",
    "options in stderr": "echo 'cat: /srv/--bind/--ro-bind /: No such file or directory' >&2; echo 'cat: --bind: No such file or directory' >&2",
    "bytes in stderr": "printf 'cat: /a\\0b: No such file or directory\\ncat: HOME/\\xff\\xfe: No such file or directory\\n' >&2",
    "devices in stderr": "echo 'cat: /dev/shm/sbatchgen-lab: No such file or directory' >&2; echo 'cat: //tmp/sbatchgen-lab: No such file or directory' >&2",
    "many names": 'for n in {1..3000}; do echo "cat: HOME/new$n: No such file or directory" >&2; done',
    "tests": "[[ -d HOME/folder && -f HOME/new && -x HOME/program && -d LAB/project/folder ]] || exit 1",
    "program of the home": "HOME/bin/program; ~/.local/bin/program; ./program; LAB/project/program",
    "source of the home": "source HOME/.profile; . ~/setup.sh; bash ~/missing.sh; perl missing.pl",
}  # fmt: skip
READS = {
    "keys of the home": 'srun echo "$(cat HOME/.ssh/id ~/.ssh/id HOME/.netrc ~/.netrc ~/.aws/* HOME/.config/*/*)"',
    "home by its other name": 'srun echo "$(cat LAB/home-link/.ssh/id LAB/home-link/.netrc)"',
    "links in the job's folder": 'srun echo "$(cat secrets/id netrc parent/.netrc parent/.ssh/id)"',
    "parents of the job's folder": 'srun echo "$(cat ../.netrc ../.ssh/id ../../*/.netrc)"',
    "processes": 'srun echo "$(cat /proc/*/environ /proc/*/cwd/../.netrc /proc/*/root/HOME/.netrc | tr "\\0" "\\n")"',
    "descriptors": 'srun echo "$(cat /proc/*/fd/*/.netrc /proc/*/fd/*/../.netrc; timeout 0.2 cat /proc/*/fd/*)"',
    "variables": 'srun echo "$LAB_TOKEN" "$(env)"',
    "another user's": 'srun echo "$(cat LAB/home-*/private LAB/home-*/.netrc LAB/private/* LAB/home-20011/open/token)"',
    "accounts": 'srun echo "$(cat /etc/shadow /etc/gshadow /etc/sudoers /etc/ssh/* /var/spool/cron/*/*)"',
    "running programs": 'srun echo "$(cat /run/user/*/* /run/lab-secret /var/run/lab-secret)"; srun echo "$(ls /run/user/UID)"',
    "temporary folders": 'srun echo "$(cat /tmp/lab-secret /dev/shm/lab-secret /var/tmp/lab-secret)"',
    "agents": 'srun echo "$SSH_AUTH_SOCK" "$(ssh-add -L)"',
    "keys of the kernel": 'srun echo "$(cat /proc/keys /proc/key-users; type keyctl && keyctl show)"',
    "memory": 'srun echo "$(timeout 0.2 grep -a secret-47[1]1 /proc/*/mem /proc/*/maps /proc/kcore)"',
}  # fmt: skip
CHDIRS = (
    # ruff: noqa: S108
    "HOME", "HOME/.ssh", "HOME/.config/app", "LAB/home-link/.ssh", "LAB/home-link", "/", "/run", "/run/user/UID", "/tmp",
    "/proc/1/cwd", "/proc/self/root/HOME/.ssh", "/proc/self/cwd/../.ssh", "/sys/devices/../../run", "LAB/private",
    "LAB/home-20011", "LAB/home-20011/open", "JOB/secrets", "JOB/../.ssh", "//HOME/.ssh/", "/dev/shm", "--bind", "..", "/var/run",
)  # fmt: skip
OUTPUTS = ("HOME/precious", "/proc/1/cwd/../precious", "../precious", "link", "HOME/none/new-%j")
OF_CALLS = len(re.findall(r"^ +(?:says|to_unix|to_port)\(", CALLS.read_text(encoding="utf-8"), re.MULTILINE))
COUNT = len(WRITES) + len(NAMES) + len(READS) + len(CHDIRS) + len(OUTPUTS) + OF_CALLS


def scripts(*, home: Path, job: Path, lab: Path, uid: int) -> dict[str, str]:
    """All attempts in a few scripts, by the names of their files."""
    at = "timeout 0.2 cat * .*; echo changed >changed; chmod 777 .; rm -f *; cat id .netrc token lab-secret >&2"
    texts = {
        f"{name}.slurm": _script(table.values()) for name, table in (("writes", WRITES), ("names", NAMES))
    }
    texts |= {
        "reads.slurm": _script(READS.values()),
        "calls.slurm": _script(
            [
                "read -r other port name <facts",
                "./attempts $other $port $name",
                "renice 19 $other; kill -9 $other; prlimit --pid $other --nofile=9",
            ]
        ),
    }
    texts["ends.slurm"] = _script(["kill -9 -1"])
    for number, folder in enumerate(CHDIRS):
        texts[f"chdir{number}.slurm"] = _script(
            [at, 'srun echo "$(cat id .netrc token lab-secret */lab-secret)"'], f"--chdir={folder}"
        )
    for number, file in enumerate(OUTPUTS):
        texts[f"output{number}.slurm"] = _script(["echo changed"], f"--output={file}\n#SBATCH --error={file}")
    words = {"HOME": home, "LAB": lab, "JOB": job, "UID": uid}
    of = re.compile(r"\b(?:HOME|LAB|JOB|UID)\b")
    return {name: of.sub(lambda match: str(words[match[0]]), text) for name, text in texts.items()}


def _script(lines: Iterable[str], option: str = "--nodes=1") -> str:
    parts = "".join(f"({line})\n" if "read -r" not in line else f"{line}\n" for line in lines)
    return f"#!/bin/bash\n#SBATCH {option}\n{parts}srun true\n"
