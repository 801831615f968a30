"""The digest of a reviewed job: a checksum of its script, its request and the files of its trainer.

`submit --reviewed DIGEST` submits a job only if the digest is the same. The comment with the command that
renders the script does not count, because a command may be spelled in several ways. The newest reviewed texts
are kept in files that only this user can read, to show the changes since the review.
"""

import contextlib
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.base.errors import DocumentError, Problem
from sbatchgen.jobs.review.review import Review
from sbatchgen.jobs.runs.index import index_file
from sbatchgen.jobs.runs.submitted_scripts import MAX_BYTES, without_command
from sbatchgen.jobs.slurm.client import submit_environment
from sbatchgen.jobs.submit.submission import Submission

MAX_KEPT = 50  # reviewed texts that are kept
_DIGEST_LENGTH = 40  # characters: too many to find another script with the same digest
_DIGEST = re.compile(rf"[0-9a-f]{{{_DIGEST_LENGTH}}}")


def with_digest(
    submission: Submission,
    environment: Mapping[str, str],
    *,
    after: Sequence[str] = (),
    keep_env: bool = False,
) -> Review:
    """Return the review of a submission with its digest, and keep the digested text in a file.

    The job waits for the runs `after`; with `keep_env` sbatch sees SBATCH_* and SLURM_*.
    """
    if submission.review.script is None:
        return submission.review
    request = {
        "folder": submission.record.folder,
        "file": submission.name,
        "jobs": str(submission.jobs),
        "after": " ".join(after),
        "options": " ".join(sorted(submission.options)),
    }
    for row in submission.record.reads:
        checksum, _, name = row.partition(" ")
        request[f"reads {name}"] = checksum
    if keep_env:
        request |= {name: environment[name] for name in submit_environment(environment)[1]}
    head = "".join(f"{name}: {value!r}\n" for name, value in request.items())
    script = submission.script
    if submission.record.command:
        script = without_command(script.decode()).encode()
    if submission.snapshot:  # the name of its folder is random
        script = script.replace(submission.snapshot.place.name.encode(), b"code-XXXXXXXX")
    text = head.encode("utf-8", "surrogateescape") + script
    digest = hashlib.sha256(text).hexdigest()[:_DIGEST_LENGTH]
    _keep(_folder(environment), digest, text)
    return replace(submission.review, digest=digest)


def _keep(folder: Path, digest: str, text: bytes) -> None:
    """Write a reviewed text into a file, if that is possible, and remove the oldest files."""
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.put(folder / digest, text, mode=files.PRIVATE)
        paths = [path for path in folder.iterdir() if _DIGEST.fullmatch(path.name)]
        for path in files.oldest_first(paths)[:-MAX_KEPT]:
            path.unlink(missing_ok=True)  # another command may remove it too


def refuse_other(reviews: Sequence[Review], reviewed: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise DocumentError if a job differs from the reviewed jobs; show the changes if they are known."""
    import difflib

    digests = [review.digest for review in reviews]
    not_reviewed = [digest for digest in digests if not digest or digest not in reviewed]
    not_submitted = [digest for digest in reviewed if digest not in digests]
    problems = []
    # Which of the reviewed jobs was changed is a guess: pairs are made in the order of both lists.
    counterparts = [*not_submitted, *[reviewed[-1]] * len(not_reviewed)]
    for old, new in zip(counterparts, not_reviewed, strict=False):
        before, now = _read_kept(_folder(environment), old), _read_kept(_folder(environment), new)
        changes = difflib.unified_diff(before, now, "reviewed", "now", lineterm="", n=0) if before else ()
        what = f"the job is not what was reviewed: its digest is {new} now, not {old}"
        what += "".join(f"\n  {line}" for line in changes)
        problems.append(Problem(what, "--reviewed", f"read the review, and if it is right: --reviewed {new}"))
    if problems:
        raise DocumentError(problems)


def _folder(environment: Mapping[str, str]) -> Path:
    return index_file(environment).parent / "reviewed"


def _read_kept(folder: Path, digest: str) -> list[str]:
    """Return the lines of a reviewed text by its digest; none if the text is missing or was changed."""
    with contextlib.suppress(OSError):
        if _DIGEST.fullmatch(digest):
            text = files.read_own(folder / digest, 2 * MAX_BYTES)
            if hashlib.sha256(text).hexdigest().startswith(digest):
                return text.decode("utf-8", "replace").split("\n")
    return []
