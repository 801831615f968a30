"""Runtime prefix: a command before the program, such as a site's own wrapper that starts a container.

`adopt` chooses it for a script that has unknown words before its Python.
"""

from collections.abc import Iterator, Sequence

from sbatchgen.base import quoting
from sbatchgen.base.keys import described, record
from sbatchgen.base.units import Text
from sbatchgen.jobs.runtimes.base import Key, KeyFault, Requirement, Runtime, RuntimeJob, job_key


@record
class Prefix:
    """A command that starts the program which its last arguments name."""

    command: tuple[Text, ...] = described("The words, as [site-python-wrapper, --gpu].", ())


COMMAND = job_key("Word before the program, after those of the profile.", metavar="WORD", common=False)


class PrefixRuntime(Runtime):
    """A command, in the profile or the job, that starts the job's Python."""

    name = "prefix"
    title = "Words before the program."
    Facts = Prefix
    keys = (Key("prefix", tuple[Text, ...] | None, COMMAND, "command"),)
    requires = Requirement("prefix", "a command", "--prefix WORD")
    function = "need_command"
    may_use_modules = True

    def setup_commands(self, job: RuntimeJob, mounted: Sequence[str]) -> Iterator[str]:
        """Yield the call of the function that checks whether the command exists."""
        yield f"{self.function} {quoting.words(_words(job)[:1])}"

    def command(self, job: RuntimeJob, exported: Sequence[str], mounted: Sequence[str]) -> Iterator[str]:
        """Yield the words of the prefix."""
        yield quoting.words(_words(job))

    def faults(self, job: RuntimeJob) -> Iterator[KeyFault]:
        """Yield a fault for a command that starts the tasks itself, such as mpirun."""
        from sbatchgen.check.executables.program import RANK_STARTERS  # other runtimes don't need it

        program = _words(job)[0] if _words(job) else ""
        if program.rpartition("/")[2] in RANK_STARTERS:
            what = f"'{program}' starts the tasks itself, and srun would start it once for each task"
            yield KeyFault("prefix", what, "name the command that each task runs before Python")


def _words(job: RuntimeJob) -> tuple[str, ...]:
    return tuple(map(str, job.software.get("prefix") or ()))


RUNTIME = PrefixRuntime()
