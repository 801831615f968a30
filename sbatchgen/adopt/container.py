"""The container of the training -> runtime, image, mounts and working folder."""

from __future__ import annotations

from sbatchgen.adopt.draft import Draft
from sbatchgen.job.launches import Launch
from sbatchgen.runtimes import RUNTIMES


def read(draft: Draft, launch: Launch) -> None:
    """Take over the tool of a runtime that a launch passes through."""
    for name, runtime in RUNTIMES.items():
        if tool := runtime.tool(launch):
            keys = runtime.adopt(draft, launch, tool)
            draft.profile["runtime"] = name
            draft.profile["runtimes"] = {name: keys}
            draft.add(draft.lines, "understood", f"{name}: {' '.join(map(str, [*keys.values()][:1]))}")
            return
