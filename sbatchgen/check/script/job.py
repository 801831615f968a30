"""A job and what is known of its cluster: what rules judge, be it a script or a job that was resolved."""

from pathlib import Path

from sbatchgen.base.finding import Place
from sbatchgen.base.frozen import cached_property
from sbatchgen.base.keys import record
from sbatchgen.base.units import NEWEST, Text
from sbatchgen.check.cluster_facts import KnownCluster, PartitionFacts, User
from sbatchgen.check.script.resource_request import ResourceRequest

DEFAULT_SLURM = NEWEST  # for scripts and profiles that name none
OLD_SLURM = "22.05"  # still in wide use: what came later is reported where no release is named
# What --environment of CSCS's container engine does as an option of the job.
IN_CONTAINER = "puts the whole script into the container, where srun and scontrol may be missing or fail"
NO_CLUSTER = KnownCluster(name=Text("unknown"), url=Text(""), checked=Text(""))
NO_PARTITION = PartitionFacts()  # of which nothing is known


@record
class Job:
    """A job and what is known of its cluster."""

    profile: KnownCluster = NO_CLUSTER  # its cluster
    slurm: str = DEFAULT_SLURM  # the release of Slurm that reads the script
    assumed: bool = False  # whether no release is named: what this one alone refuses is a warning then
    makes_log_folders: bool = False  # whether the folders of its logs are made before it is submitted
    folder: Path | None = None  # where it would be submitted; None if unknown

    is_script = False

    @cached_property
    def resources(self) -> ResourceRequest:
        """What it asks Slurm for."""
        raise NotImplementedError

    @property
    def known(self) -> bool:
        """Whether its cluster is known."""
        return self.profile is not NO_CLUSTER

    @property
    def trains(self) -> bool:
        """Whether it starts a training."""
        return True

    @property
    def is_brief(self) -> bool:
        """Whether it ends in a moment."""
        return False

    @property
    def takes_one_gpu(self) -> bool:
        """Whether its mode can use one GPU at most."""
        return False

    @property
    def has_replicas(self) -> bool:
        """Whether one process keeps a copy of the model on each GPU."""
        return False

    @property
    def fits_nowhere(self) -> bool:
        """Whether a partition was to be chosen for it, and none fits."""
        return False

    @property
    def has_chosen_partition(self) -> bool:
        """Whether it names a partition, or one was chosen for it."""
        return bool(self.resources.partitions)

    @property
    def why_nowhere(self) -> str:
        """Why no partition fits; "" where other rules say it."""
        return ""

    @property
    def is_wrapped(self) -> bool:
        """Whether another script submits it, which may give options that it lacks."""
        return False

    @cached_property
    def partitions(self) -> dict[str, PartitionFacts]:
        """The partitions that it asks for and the profile knows."""
        known = {str(name): partition for name, partition in self.profile.partitions.items()}
        return {name: known[name] for name in self.resources.partitions if name in known}

    @property
    def has_nodes_alone(self) -> bool:
        """Whether no other job runs on its nodes."""
        return self.resources.is_exclusive or any(each.exclusive for each in self.partitions.values())

    @cached_property
    def user(self) -> User | None:
        """What the profile says of this user; None if it is about another one."""
        if self.profile.user is None:
            return None
        from sbatchgen.check.script.user import user_of_process  # few profiles have a `user`

        return user_of_process(self.profile.user)

    @cached_property
    def site_env(self) -> set[tuple[str, str]]:
        """Names and values of the variables that the cluster gives jobs, with any launcher."""
        return {variable for each in (self.profile, *self.partitions.values()) for variable in each.job_env}

    def option(self, name: str) -> str:
        """Return the value of an option; "" if it is not given or is a flag."""
        return self.resources.options.get(name, "")

    def written(self, option: str) -> str:
        """Return the value of an option as it was written; "" if it is not given or is a flag."""
        return self.option(option)

    @cached_property
    def array(self) -> tuple[range, ...]:
        """The indices of its array; none if it has none, or slurmctld refuses them (SB140)."""
        if not self.option("array"):
            return ()
        from sbatchgen.check.sbatch.array import indices  # only arrays need it

        return indices(self.option("array")) or ()

    @property
    def array_tasks(self) -> int:
        """How many tasks its array has."""
        return sum(map(len, self.array))

    def at_option(self, option: str) -> Place:
        """Return where an option is given."""
        return self.resources.place(option)

    def at_value(self, option: str) -> Place:
        """Return where the value of an option is given."""
        return self.at_option(option)
