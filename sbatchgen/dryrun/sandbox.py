"""Run a program without trust, as the user, in the best sandbox that this machine allows.

HOME, /tmp, /run and /var are empty. It can change no file outside, has no network, no terminal, no
environment but the given one, and ends at its limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from sbatchgen.dryrun import namespaces
from sbatchgen.dryrun.box import PLACE, Box, BoxLimits, Ended, NoSandboxError

__all__ = ["PLACE", "Box", "BoxLimits", "Ended", "NoSandboxError", "kinds", "run"]

_FIX = "a plan needs nothing of the cluster: run it where `unshare -Urn true` works, or install bubblewrap"


def run(argv: Sequence[str], environment: Mapping[str, str], box: Box) -> Ended:
    """Run a program to its end, in the best sandbox that this machine allows.

    Raises:
        NoSandboxError: This machine allows none.
    """
    refused = []
    for name, lacks, kind in kinds():
        try:
            return replace(kind(argv, environment, box), lacks=lacks and f"{name}: {lacks}")
        except NoSandboxError as error:
            refused.append(f"{name}: {error.problems[0].what}")
    raise NoSandboxError.of(f"this machine allows no sandbox: {'; '.join(refused)}", fix=_FIX)


def kinds() -> Iterator[tuple[str, str, Callable[[Sequence[str], Mapping[str, str], Box], Ended]]]:
    """Yield the kinds of sandboxes: name, what it lacks, and what runs a program in it; best first."""
    yield "user namespaces", "", namespaces.run
    # Most machines need only the first.
    from sbatchgen.dryrun import bubblewrap, landlock

    yield "bubblewrap", bubblewrap.LACKS, bubblewrap.run
    yield "Landlock", landlock.LACKS, landlock.run
