"""The common base of a script and a resolved job as rules judge them, with the facts of the cluster."""

from pathlib import Path

from sbatchgen.base.finding import Place
from sbatchgen.base.frozen import cached_property
from sbatchgen.base.keys import record
from sbatchgen.base.units import NEWEST, Text
from sbatchgen.check.cluster_facts import KnownCluster, PartitionFacts, User
from sbatchgen.check.script.resource_request import ResourceRequest

DEFAULT_SLURM = NEWEST  # the release for scripts and profiles that name no release
OLD_SLURM = "22.05"  # a release in wide use; without a named release, rules report options that came later
# The end of messages about --environment, an option of CSCS's container engine, in a directive.
CONTAINER_EFFECT = "puts the whole script into the container, where srun and scontrol may be missing or fail"
NO_CLUSTER = KnownCluster(name=Text("unknown"), url=Text(""), checked=Text(""))
NO_PARTITION = PartitionFacts()  # a partition without known facts


@record
class Job:
    """A job and the facts of its cluster."""

    profile: KnownCluster = NO_CLUSTER  # the facts of the cluster
    slurm: str = DEFAULT_SLURM  # the release of Slurm that reads the script
    # Whether no one names the release. Then an error that an older release does not raise is a warning.
    is_release_assumed: bool = False
    makes_log_folders: bool = False  # whether the submission makes the folders of the logs
    folder: Path | None = None  # the folder in which sbatch is called; None if unknown

    is_script = False  # True for a JobScript

    @cached_property
    def resources(self) -> ResourceRequest:
        """The job's request of Slurm."""
        raise NotImplementedError

    @property
    def knows_cluster(self) -> bool:
        """Whether the facts of the job's cluster are known."""
        return self.profile is not NO_CLUSTER

    @property
    def trains(self) -> bool:
        """Whether the job starts a training."""
        return True

    @property
    def is_brief(self) -> bool:
        """Whether the job ends within seconds."""
        return False

    @property
    def takes_one_gpu(self) -> bool:
        """Whether the job's mode can use one GPU at most."""
        return False

    @property
    def has_replicas(self) -> bool:
        """Whether one process keeps a copy of the model on each GPU."""
        return False

    @property
    def fits_no_partition(self) -> bool:
        """Whether sbatchgen had to choose a partition, and the job fits none."""
        return False

    @property
    def has_chosen_partition(self) -> bool:
        """Whether the job names a partition, or sbatchgen chose one."""
        return bool(self.resources.partitions)

    @property
    def why_no_partition_fits(self) -> str:
        """Why no partition fits; "" if other rules report the reason."""
        return ""

    @property
    def is_submitted_by_script(self) -> bool:
        """Whether another script seems to submit the job. This script may add options."""
        return False

    @cached_property
    def partitions(self) -> dict[str, PartitionFacts]:
        """The partitions that the job asks for and the profile describes."""
        known = {str(name): partition for name, partition in self.profile.partitions.items()}
        return {name: known[name] for name in self.resources.partitions if name in known}

    @property
    def has_own_nodes(self) -> bool:
        """Whether the job shares its nodes with no other job."""
        return self.resources.is_exclusive or any(
            partition.exclusive for partition in self.partitions.values()
        )

    @cached_property
    def user(self) -> User | None:
        """The profile's facts about the current user; None if the profile describes another user."""
        if self.profile.user is None:
            return None
        from sbatchgen.check.script.user import user_of_process  # few profiles have a `user`

        return user_of_process(self.profile.user)

    @cached_property
    def site_env(self) -> set[tuple[str, str]]:
        """The names and values of the variables that the cluster sets in jobs, whatever their launcher."""
        return {variable for facts in (self.profile, *self.partitions.values()) for variable in facts.job_env}

    def option(self, name: str) -> str:
        """Return the value of an option; "" if the option is missing or a flag."""
        return self.resources.options.get(name, "")

    def written_value(self, option: str) -> str:
        """Return the value of an option as the user wrote it; "" if the option is missing or a flag."""
        return self.option(option)

    @cached_property
    def array(self) -> tuple[range, ...]:
        """The indices of the job's array, as ranges; () without an array, or for an invalid one (SB140)."""
        if not self.option("array"):
            return ()
        from sbatchgen.check.sbatch.array import indices  # only arrays need the module

        return indices(self.option("array")) or ()

    @property
    def array_tasks(self) -> int:
        """The number of tasks of the job's array."""
        return sum(map(len, self.array))

    def at_option(self, option: str) -> Place:
        """Return the place where an option was written."""
        return self.resources.place(option)

    def at_value(self, option: str) -> Place:
        """Return the place where the value of an option was written."""
        return self.at_option(option)
