"""Runtime host: the Python on PATH in the job, after the modules and setup of the profile."""

from sbatchgen.jobs.runtimes.base import Runtime


class Host(Runtime):
    """The Python of the node; this runtime needs no key."""

    name = "host"
    title = "The Python on PATH"


RUNTIME = Host()
