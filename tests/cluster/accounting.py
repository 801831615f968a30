"""Slurm's database, for clusters with accounts and QOS: slurmdbd and MariaDB, on the controller's host.

MariaDB is this machine's own, whatever Slurm it serves: slurmdbd 26.05 ends at MariaDB 11.8 ("5027 Number of columns").
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from .site import Site, until

PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db")
# In slurm.conf; a later line wins over these.
SETTINGS = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePass={site}/munge/socket
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,qos
"""
_SLURMDBD = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
SlurmUser=root
PidFile={folder}/slurmdbd.pid
LogFile={folder}/log/slurmdbd
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=root
StorageLoc=accounts
"""


def why_not() -> str | None:
    """What this machine lacks for a database, or None."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")]
    return (
        f"needs {', '.join(missing)} (the Debian packages slurmdbd and mariadb-server)" if missing else None
    )


def start(site: Site, commands: Sequence[str]) -> None:
    """Start the database, and give it what slurmctld looks for when it starts."""
    folder, host = site.folder, site.host
    data = folder / "mariadb"
    small = ["--innodb-buffer-pool-size=16M", "--skip-innodb-use-native-aio"]  # several may run at once
    make = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db"]
    host.run([*make, *small], here=True)
    own = ["--no-defaults", "--user=root", f"--datadir={data}", f"--socket={folder}/mariadb.socket", *small]
    own += ["--skip-grant-tables", "--bind-address=127.0.0.1", f"--pid-file={folder}/mariadb.pid"]
    host.spawn(["mariadbd", *own], log=folder / "log" / "mariadb", here=True)
    config = folder / "slurm" / "slurmdbd.conf"
    config.write_text(_SLURMDBD.format(folder=folder))
    config.chmod(0o600)
    until((folder / "mariadb.socket").exists, "MariaDB")
    host.spawn(["slurmdbd", "-D"], log=folder / "log" / "slurmdbd-stderr")

    def answers() -> bool:
        return not host.run(["sacctmgr", "-n", "show", "cluster"], check=False).returncode

    until(answers, "answer from slurmdbd")
    fill(site, ["add cluster test", *commands])


def fill(site: Site, commands: Sequence[str]) -> None:
    """Run commands of sacctmgr; those with limits of GPUs need a slurmctld, which brings these into the database."""
    for command in commands:
        site.host.run(["sacctmgr", "-i", *command.split()])
