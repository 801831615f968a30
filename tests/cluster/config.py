"""The configuration of a Slurm for tests: what all of ours share, and the two kinds of cluster.

Facts are from slurm.conf(5), gres.conf(5) and cgroup.conf(5) of Slurm 22.05, and from running it.
"""

from __future__ import annotations

from pathlib import Path

# {site} stands for the site's folder. Every site has a network of its own, so the default ports never meet.
COMMON = """\
ClusterName=test
SlurmctldHost=controller
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={site}/munge/socket,cred_expire=5
StateSaveLocation={site}/slurmctld
SlurmctldPidFile={site}/slurmctld.pid
SlurmctldLogFile={site}/log/slurmctld
SlurmctldDebug=verbose
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu,shard
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
"""

# Jobs start at once, end soon, and their records stay.
# - cred_expire (above): a requeued job waits until its old credential has run out, two minutes by default
# - PropagateResourceLimits: the limits of the shell that runs the tests must not reach the jobs
RUNNING = """\
SlurmdPidFile={site}/%n.pid
SlurmdSpoolDir={site}/spool/%n
SlurmdLogFile={site}/log/%n
SlurmdParameters=config_overrides
SlurmdTimeout=10
ReturnToService=2
JobRequeue=1
KillWait=60
MinJobAge=3600
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
PropagateResourceLimits=NONE
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
DefMemPerCPU=1000
NodeName={nodes} Sockets=2 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=16000 Gres=gpu:a100:4,shard:64
PartitionName=gpu Nodes=ALL Default=YES MaxTime=1-00:00:00 PreemptMode=OFF
PartitionName=cpu Nodes=ALL MaxTime=2:00:00 PreemptMode=OFF
PartitionName=low Nodes=ALL MaxTime=1-00:00:00 PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes=ALL MaxTime=1-00:00:00 PriorityTier=10 PreemptMode=OFF
"""
RUNNING_GRES = """\
NodeName={nodes} Name=gpu Type=a100 File={site}/dev/gpu[0-3]
NodeName={nodes} Name=shard Count=64
"""

# Without PrivateData=cloud, sinfo hides nodes that were never powered up
IMAGINARY = """\
ResumeProgram=/bin/true
SuspendProgram=/bin/true
SuspendTime=600
PrivateData=cloud
"""

# 22.05 starts this plugin whatever else is chosen, and v1 is the one that asks nothing of the machine
CGROUP = "CgroupPlugin=cgroup/v1\n"
NO_CGROUP = "CgroupPlugin=disabled\n"  # since 23.02


def write(folder: Path, *, slurm: str, gres: str, plugstack: str = "", cgroup: str = CGROUP) -> None:
    """Write the configuration files of a cluster into a folder."""
    for name, text in {
        "slurm.conf": slurm,
        "gres.conf": f"AutoDetect=off\n{gres}",
        "cgroup.conf": cgroup,
        "plugstack.conf": plugstack,
    }.items():
        (folder / name).write_text(text)


def override(settings: str, others: str) -> str:
    """Settings, one a line, with others in place of those of the same name: Slurm complains of doubles."""
    names = {line.split("=")[0].strip().lower() for line in others.splitlines()}
    kept = [line for line in settings.splitlines() if line.split("=")[0].lower() not in names]
    return "\n".join([*kept, others, ""])
