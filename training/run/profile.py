"""--profile-steps: a trace of some steps, as Perfetto and Chrome show it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.run.session import Session

NAME = "trace.json.gz"
BEFORE = 5  # steps of a start that are not in it: kernels are chosen, and compiled


@contextlib.contextmanager
def profile(session: Session) -> Iterator[Any]:
    """Record steps of rank 0 meanwhile, `step` is called after each; None without --profile-steps."""
    steps, path = session.config.profile_steps, Path(session.config.run_dir) / NAME
    if not steps or session.world.rank:
        yield None
        return
    from torch import profiler

    def write(done: Any) -> None:
        try:
            path.unlink(missing_ok=True)  # it may be a link
            done.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            session.log.say(f"Cannot write {path} ({error}): training continues")
        else:
            session.log.say(f"Trace of {steps} steps written to {path}: open it in https://ui.perfetto.dev")

    plan = profiler.schedule(wait=BEFORE - 1, warmup=1, active=steps, repeat=1)
    with profiler.profile(schedule=plan, on_trace_ready=write, record_shapes=True) as recording:
        yield recording
