"""No Python that the command starts, itself included, imports a file that is not installed."""

from __future__ import annotations

import encodings
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.plan.plans import needs_sandbox
from tests.scripts import PUBLIC

from .lab import User, put

pytestmark = [pytest.mark.slow, needs_sandbox]

COMMANDS = (
    "review job.yaml --test-only",
    "submit job.yaml --dry-run",
    "submit job.yaml --yes",
    "resume job --dry-run",
    "status --all",
    "lint own.slurm --plan",
)
# Where Python itself finds what is installed.
INSTALLED = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *(f"{REPOSITORY}/{name}" for name in ("sbatchgen", "training", "templates")),
    str(Path(sys.prefix, "bin")),
)
# Each interpreter imports this package before all else, also one that looks at no variable and no site-packages.
HOOK = """

def _record():
    import posix, sys
    def hook(event, arguments):
        if event == "exec" and getattr(arguments[0], "co_name", "") == "<module>":
            file = arguments[0].co_filename
        elif event == "import" and arguments[1]:  # a library
            file = arguments[1]
        else:
            return
        try:
            to = posix.open(FILE, posix.O_WRONLY | posix.O_APPEND)
        except OSError:  # in the sandbox
            return
        posix.write(to, f"{posix.getpid()} {file}\\n".encode())
        posix.close(to)
    sys.addaudithook(hook)
_record()
del _record
"""
LANGUAGE_SERVER = f"""
import sys
from pathlib import Path
del sys.path[0]
sys.path.append({str(REPOSITORY)!r})
from tests.editor.client import edit
edit(Path.cwd(), ("own.slurm", "job.yaml"))
"""
PAGE = f"""
import sys
from pathlib import Path
del sys.path[0]
sys.path.append({str(REPOSITORY)!r})
from sbatchgen.cli.answer import answer
files = {{name: Path(name).read_bytes() for name in ("own.slurm", "job.yaml")}} | {{"site.yaml": Path("../site/site.yaml").read_bytes()}}
for words in ("review job.yaml --profile ./site.yaml", "lint own.slurm --no-shellcheck"):
    assert answer(words.split(), files).status == 0
"""


@pytest.fixture
def folder(person: User, marks: Path) -> Path:
    """A job, whose folders hold a file for each module of the standard library: it would leave a mark."""
    work, site = person.home / "above/work", person.home / "above/site"
    for place in (work.parent, work, site, work / "runs", work / "runs/job"):
        place.mkdir()
        place.chmod(0o755)
        for name in sys.stdlib_module_names:
            put(place / f"{name}.py", f"open('{marks}/{place.name}-{name}', 'w')\n", owner=person.uid)
    put(site / "site.yaml", PUBLIC, owner=person.uid)
    put(
        work / "job.yaml",
        "mode: single\nprofile: ../site/site.yaml\nargs: [--dataset, fake]\n",
        owner=person.uid,
    )
    script = "#!/bin/bash\n#SBATCH --time=60\n#SBATCH --ntasks=1\nsrun python3 train.py\n"
    put(work / "own.slurm", script, owner=person.uid)
    put(work / "train.py", "import torch\n", owner=person.uid)
    for place in (work.parent, *work.parent.rglob("*")):
        shutil.chown(place, person.uid, person.uid)
    return work


def imported(person: User, folder: Path, *words: object) -> dict[str, set[str]]:
    """The files that each process imports, by its number, of a command that ends well."""
    record = person.lab / "imported"
    put(record, owner=person.uid)
    theirs = Path(encodings.__file__).parent
    hooked = person.lab / "encodings"
    setup = f"""
rm -rf {hooked}; mkdir {hooked}; cp {theirs}/*.py {hooked}; cat {person.lab}/hook >>{hooked}/__init__.py
mount --bind {hooked} {theirs}"""
    put(person.lab / "hook", HOOK.replace("FILE", repr(bytes(record))), owner=0)
    done = person.run(*words, cwd=folder, setup=setup)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    processes: dict[str, set[str]] = {}
    for line in record.read_text().splitlines():
        number, _, file = line.partition(" ")
        processes.setdefault(number, set()).add(file)
    return processes


def foreign(files: set[str]) -> Iterator[str]:
    """Those of some files that are not installed."""
    for file in files:
        real = str(Path(file).resolve())
        if not file.startswith("<") and not any(real.startswith(f"{place}/") for place in places()):
            yield file


def places() -> set[str]:
    return {str(Path(place).resolve()) for place in INSTALLED if place}


@pytest.mark.sampled(2, first=1)
def test_all_that_is_imported_is_installed(person: User, folder: Path, marks: Path) -> None:
    looks = 0
    for line in COMMANDS:
        person.ends()
        processes = imported(person, folder, "sbatchgen", *line.split())
        assert any(file.endswith("/click/core.py") for files in processes.values() for file in files)
        looks += sum(str(REPOSITORY / "training/runfolder.py") in files for files in processes.values())
        assert [*foreign({file for files in processes.values() for file in files})] == [], line
        assert [*marks.iterdir()] == [], line
    assert looks >= 4  # the look at the run folder is an interpreter of its own


@pytest.mark.proof
def test_nor_by_the_language_server_and_the_page(person: User, folder: Path, marks: Path) -> None:
    for name, lines in (("session", LANGUAGE_SERVER), ("page", PAGE)):
        program = person.home / f"{name}.py"
        put(program, lines, owner=person.uid)
        processes = imported(person, folder, sys.executable, program)
        files = {file for each in processes.values() for file in each}
        tests = (str(REPOSITORY / "tests"), str(program))
        assert [file for file in foreign(files) if not file.startswith(tests)] == []
        assert any("sbatchgen/check/rules" in file for file in files)
        assert [*marks.iterdir()] == []
