"""What a script would start, in a review: in short, with the name that `submit --reviewed` takes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sbatchgen import files
from sbatchgen.dryrun.call import plan_of, script_of
from sbatchgen.dryrun.run import DryRun
from sbatchgen.dryrun.screen import as_json, as_text, summary
from sbatchgen.errors import DocumentError
from sbatchgen.inputs.profile import Profile
from sbatchgen.review.review import Review
from sbatchgen.runs.index import place
from sbatchgen.sandbox.box import NoSandboxError

MOST_KEPT = 100
_SNAPSHOT = re.compile(r"/code-[0-9a-f]{8}\b")  # whose name is drawn by chance
_NAME = re.compile(r"[0-9a-f]{8}")
_MOST_BYTES = 4 << 20


def with_plan(
    review: Review,
    *,
    file: str,
    profile: Profile | None,
    environment: Mapping[str, str],
    folder: Path,
    every: bool = False,
) -> Review:
    """Return a review with what its script would start, and what is wrong with that.

    Args:
        review: The review; one without a script stays as it is.
        file: The name of the script.
        profile: The cluster.
        environment: The user's.
        folder: Where it is submitted.
        every: Whether every process is shown, and not a few lines.

    Raises:
        DocumentError: `every`, and it can't be planned.
    """
    if review.script is None:
        return review
    script = script_of(file, review.script, profile=profile)
    try:
        done, findings = plan_of(script, environment, folder)
    except DocumentError as error:
        if every:
            raise
        forbidden = isinstance(error, NoSandboxError)
        why = "this machine allows no sandbox for it" if forbidden else error.problems[0].what
        return replace(review, starts=f"not shown: {why}\n")
    name = "" if done.ended.limit else _named(done)
    _keep(_folder(environment), name, _SNAPSHOT.sub("/code", as_text(done)))
    text = as_text(done) if every else summary(done)
    return replace(review, starts=text, plan=name, findings=(*review.findings, *findings))


def refuse_other(review: Review, reviewed: tuple[str, ...], environment: Mapping[str, str]) -> None:
    """Raise DocumentError for a job that would not start, or not ask for, what was reviewed."""
    if review.plan in reviewed and review.plan:
        return
    if not review.plan:
        why = review.starts.strip() or "it has errors"
        what = f"whether the job starts what was reviewed is not known: {why}"
        raise DocumentError.of(what, at="--reviewed", fix="leave it out, and read the review")
    import difflib

    old, new = (_kept(_folder(environment), name) for name in (reviewed[-1], review.plan))
    lines = difflib.unified_diff(old, new, "reviewed", "now", lineterm="", n=1) if old else ()
    changes = "".join(f"\n  {line}" for line in lines)
    what = f"the job is plan {review.plan} now, not {', '.join(reviewed)} as reviewed{changes}"
    raise DocumentError.of(what, at="--reviewed", fix=f"if that is right: --reviewed {review.plan}")


def _named(done: DryRun) -> str:
    """Return the name of a plan: the same for the same request to Slurm and the same processes."""
    directives = [line for line in done.script.text.splitlines() if line.startswith("#SBATCH")]
    facts = json.dumps([directives, as_json(done, ())["steps"], done.ended.status])
    return hashlib.sha256(_SNAPSHOT.sub("/code", facts).encode("utf-8", "replace")).hexdigest()[:8]


def _folder(environment: Mapping[str, str]) -> Path:
    return place(environment).parent / "plans"


def _keep(folder: Path, name: str, text: str) -> None:
    """Keep a plan, so that another one can be compared with it; without a place for it, nothing is kept."""
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.put(folder / name, text.encode("utf-8", "surrogateescape"), mode=files.PRIVATE)
        kept = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
        kept.sort(key=lambda path: path.stat().st_mtime)
        for path in kept[:-MOST_KEPT]:
            path.unlink()


def _kept(folder: Path, name: str) -> list[str]:
    """Return the lines of a plan that was reviewed; nothing if it is not known."""
    with contextlib.suppress(OSError):
        if _NAME.fullmatch(name):
            return files.read_own(folder / name, _MOST_BYTES).decode("utf-8", "replace").splitlines()
    return []
