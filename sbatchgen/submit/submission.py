"""A script with its review: `rendered` and `finished` make it, `sbatch` and `local` send it."""

from collections.abc import Callable, Mapping
from pathlib import Path

from sbatchgen.errors import DocumentError, Problem
from sbatchgen.frozen import frozen
from sbatchgen.review.review import Review
from sbatchgen.runs.record import Record
from sbatchgen.runs.snapshot import Snapshot
from sbatchgen.sbatch.reader import Script
from sbatchgen.slurm.refusal import OptionSource


@frozen(kw_only=True)
class Submission:
    """A script about to be submitted."""

    script: bytes
    name: str  # of its file
    asked: Mapping[str, OptionSource]  # its options by long name
    log_folders: tuple[Path, ...]
    run_dir: Path | None  # its run folder, or the part of its path that is known; None for a finished script
    local: bool  # whether bash runs it here
    # What sbatch gets on its command line, over the script's own, as "--mem=64G"
    options: tuple[str, ...] = ()
    jobs: int = 1  # how many jobs of it continue one training, one after the other
    review: Review  # what people see
    about: Record  # what its record will say
    snapshot: Snapshot | None = None  # the copy of its code that is still to be made
    # Returns what is wrong if another job uses its run folder; None where that is fine
    queued: Callable[[], Problem | None] | None = None


def log_folders(script: Script, folder: Path, name: str) -> tuple[Path, ...]:
    """Return the folders of a script's logs, of which Slurm makes none: sbatch(1), "filename pattern".

    Raises DocumentError if the name of one is known only once the job runs.
    """
    folders = []
    for component in script.components:
        options = {name: option.value or "" for name, option in component.options.items()}
        for option in ("output", "error"):
            parent = options.get(option, "").rpartition("/")[0]
            if not parent:
                continue
            known = parent.replace("%%", "\0").replace("%x", name)
            if "%" in known:
                what = f"the log folder '{parent}' is known only once the job runs: it can't be made before"
                raise DocumentError.of(what, fix="use patterns like %j in the name of the file only")
            folders.append(folder / options.get("chdir", "") / known.replace("\0", "%"))
    return tuple(folders)
