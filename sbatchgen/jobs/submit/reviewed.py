"""Makes the digest of a review, so that a user can submit exactly the job that was reviewed.

The digest is a checksum of the job's script, its request and the files of its trainer. `submit --reviewed
DIGEST` submits a job only if its digest is DIGEST. The script's comment with the command that rendered it
does not count, because one command can be spelled in several ways.

The newest digested texts are kept in files that only this user can read. If a digest differs, `submit` shows
the changes since the review.
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

MAX_KEPT = 50  # the number of digested texts that are kept
_DIGEST_LENGTH = 40  # characters, enough that no one can find another script with the same digest
_DIGEST = re.compile(rf"[0-9a-f]{{{_DIGEST_LENGTH}}}")


def with_digest(
    submission: Submission,
    environment: Mapping[str, str],
    *,
    after: Sequence[str] = (),
    keep_env: bool = False,
) -> Review:
    """Return the review of a submission with its digest, and keep the digested text in a file.

    `after` are the runs for which the job waits. With `keep_env`, sbatch also gets the user's SBATCH_* and
    SLURM_* variables. A review without a script, because the job has errors, has no digest.
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
    if submission.snapshot:  # the folder of a snapshot has a new random name in each review
        script = script.replace(submission.snapshot.copy_folder.name.encode(), b"code-XXXXXXXX")
    text = head.encode("utf-8", "surrogateescape") + script
    digest = hashlib.sha256(text).hexdigest()[:_DIGEST_LENGTH]
    _keep_text(_folder_of_texts(environment), digest, text)
    return replace(submission.review, digest=digest)


def _keep_text(folder: Path, digest: str, text: bytes) -> None:
    """Write a digested text into a file that is named by its digest, and remove the oldest files."""
    with contextlib.suppress(OSError):  # without the file, `submit` can't show the changes
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.put(folder / digest, text, mode=files.PRIVATE)
        paths = [path for path in folder.iterdir() if _DIGEST.fullmatch(path.name)]
        for path in files.oldest_first(paths)[:-MAX_KEPT]:
            path.unlink(missing_ok=True)  # another command may remove it too


def refuse_unreviewed(
    reviews: Sequence[Review], reviewed: Sequence[str], environment: Mapping[str, str]
) -> None:
    """Raise DocumentError if the digest of a job is not one of the `reviewed` digests.

    The error shows how the job has changed since the review, if the reviewed text was kept.
    """
    import difflib

    digests = [review.digest for review in reviews]
    not_reviewed = [digest for digest in digests if not digest or digest not in reviewed]
    not_submitted = [digest for digest in reviewed if digest not in digests]
    problems = []
    texts = _folder_of_texts(environment)
    # The digests do not tell which reviewed job has become which new job, so both lists are paired in order.
    # If all reviewed jobs are also submitted, a new job is compared with the last of them.
    old_digests = [*not_submitted, *[reviewed[-1]] * len(not_reviewed)]
    for old, new in zip(old_digests, not_reviewed, strict=False):
        old_lines, new_lines = _read_lines(texts, old), _read_lines(texts, new)
        changes = (
            difflib.unified_diff(old_lines, new_lines, "reviewed", "now", lineterm="", n=0)
            if old_lines
            else ()
        )
        what = f"the job is not what was reviewed: its digest is {new} now, not {old}"
        what += "".join(f"\n  {line}" for line in changes)
        problems.append(Problem(what, "--reviewed", f"read the review, and if it is right: --reviewed {new}"))
    if problems:
        raise DocumentError(problems)


def _folder_of_texts(environment: Mapping[str, str]) -> Path:
    return index_file(environment).parent / "reviewed"


def _read_lines(folder: Path, digest: str) -> list[str]:
    """Return the lines of the text with this digest; no lines if its file is missing or was changed."""
    with contextlib.suppress(OSError):
        if _DIGEST.fullmatch(digest):
            text = files.read_own(folder / digest, 2 * MAX_BYTES)
            if hashlib.sha256(text).hexdigest().startswith(digest):
                return text.decode("utf-8", "replace").split("\n")
    return []
