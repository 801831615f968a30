"""host: the Python that is on PATH where the job runs, after the modules and setup of the profile."""

from typing import Any

from sbatchgen.runtimes.base import Runtime


class Host(Runtime):
    """The Python that is there; it needs nothing."""

    name = "host"
    title = "The Python on PATH"

    def is_ready(self, facts: Any) -> bool:
        """Return False: a profile brings nothing for it, so that it is used where a profile names it."""
        return False


RUNTIME = Host()
