"""A page answers each command with the bytes that the command prints."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbatchgen.cli.answer import Printed, answer
from sbatchgen.jobs.modes import MODES
from sbatchgen.jobs.runtimes import RUNTIMES
from tests.conftest import FIXTURES
from tests.page.conftest import EVERY, need, write_page
from tests.scripts import CENTRES, NEEDS, PROFILES, PUBLIC

TIMEOUT_S = 900
STEP = 1 if os.environ.get("PAGE") == "whole" else 4  # of the commands, each fourth; of broken scripts, all
Asked = tuple[list[str], dict[str, str]]
# Scripts that bash can't parse: a page has another parser, which names another line or another cause.
BROKEN = {
    "unclosed-quote": "#!/bin/bash\n#SBATCH --time=01:00:00\necho 'one\nsrun python train.py\n",
    "unclosed-if": "#!/bin/bash\nif true; then\n    srun python train.py\n",
    "unclosed-do": "#!/bin/bash\nfor x in 1 2; do\n    srun python train.py $x\n",
    "fi-too-many": "#!/bin/bash\nsrun python train.py\nfi\n",
    "half-pipe": "#!/bin/bash\nif [ -e x ]; then echo x; fi; fi\nsrun python train.py |\n",
    "no-target": "#!/bin/bash\nsrun python train.py >\n",
    "paren": '#!/bin/bash\nsrun python train.py )\necho "x\n',
    "unclosed-case": "#!/bin/bash\ncase $1 in\n  a) srun python train.py ;;\n",
    "here-document": "#!/bin/bash\nsrun python - <<EOF\nprint(1)\n",
    "brace": "#!/bin/bash\nrun() { srun python train.py; \nif true; then :; fi; do\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a site, with a profile and a template."""
    folder = tmp_path_factory.mktemp("pack")
    for file, text in {
        "profiles/own.yaml": PUBLIC.replace("name: public", "name: own\ntemplate: site.sh.j2"),
        "templates/site.sh.j2": '{% extends "job.sh.j2" %}\n{% block modules %}\necho of the site\n{% endblock %}\n',
    }.items():
        (folder / file).parent.mkdir()
        (folder / file).write_text(text)
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, pack: Path) -> Path:
    """The folder of a page with all profiles, and with that of the site."""
    need("the page", "node", "npm")
    return write_page(tmp_path_factory.mktemp("page") / "site", [*EVERY, pack / "profiles/own.yaml"])


def jobs() -> Iterator[list[str]]:
    """Each mode and launcher on each profile, and each runtime."""
    for profile in (*PROFILES, *CENTRES):
        for mode in MODES.values():
            for launcher in mode.launchers or ("",):
                yield [mode.name, "--profile", profile, *(["--launcher", launcher] if launcher else [])]
    for profile in PROFILES:
        for runtime in RUNTIMES:
            flags = [
                word
                for key, value in NEEDS.get(runtime, {}).items()
                for each in (value if isinstance(value, tuple) else (value,))
                for word in (f"--{key.replace('_', '-')}", str(each))
            ]
            trainer = ["--trainer", "train.py", "--account", "abc", "--time", "2:00:00"]
            yield ["ddp", "--profile", profile, "--runtime", runtime, *flags, *trainer, "--nodes", "300"]


def scripts() -> dict[str, str]:
    """The scripts of the corpus, as people write them."""
    files = sorted(
        [*FIXTURES.glob("corpus/*.sh"), *FIXTURES.glob("originals/*"), *FIXTURES.glob("scripts/*")]
    )
    texts = {}
    for file in files:
        data = file.read_bytes() if file.is_file() else b""
        if b"#!" in data[:200] and not data.startswith(b"\xff"):
            texts[file.name] = data.decode("utf-8", "replace").replace("\r\n", "\n")
    return texts


def commands() -> Iterator[Asked]:
    for words in jobs():
        yield ["render", *words, "--", "--epochs", "3"], {}
        yield ["review", *words, "--format", "json"], {}
        yield ["explain", *words, "--lines", "--format", "json"], {}
    for text in scripts().values():
        yield ["lint", "job.slurm", "--disable", "SB341", "--no-shellcheck"], {"job.slurm": text}
        yield (
            ["lint", "job.slurm", "--profile", "princeton", "--format", "json", "--no-shellcheck"],
            {"job.slurm": text},
        )
        yield ["adopt", "job.slurm", "--format", "json", "--partly"], {"job.slurm": text}
        yield ["lint", "job.slurm", "--diff", "--no-shellcheck"], {"job.slurm": text}


def answered(page: Path, folder: Path, asked: list[Asked]) -> list[dict[str, object]]:
    """What the page says to each command, in Node."""
    lines = "".join(f"{json.dumps(each)}\n" for each in asked)
    call = ["node", str(Path(__file__).with_name("answers.mjs")), str(page), str(folder)]
    done = subprocess.run(
        call, input=lines, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=folder.parent
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_page_answers_as_the_command_does(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [*commands()][::STEP]
    there = answered(page, tmp_path / "node", asked)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    different = []
    for (words, files), said in zip(asked, there, strict=True):
        got = answer(words, {name: text.encode() for name, text in files.items()}, site="/site")
        same = (got.status, got.out.decode(), got.err.decode()) == (said["status"], said["out"], said["err"])
        if not same and not (words[0] != "render" and _is_broken(files)):
            different.append((words, files, got, said))
    assert len(asked) > 1000 // STEP
    assert not different, [len(different), *map(shown, different[:5])]


def _is_broken(files: dict[str, str]) -> bool:
    """Whether bash can't parse a script: it and the parser of the page give other lines and words."""
    return any(
        subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True, check=False).stderr
        for text in files.values()
    )


def test_a_script_that_bash_can_not_parse_is_an_error_on_a_page_too(page: Path, tmp_path: Path) -> None:
    asked: list[Asked] = [
        (["lint", "job.slurm", "--format", "json"], {"job.slurm": text}) for text in BROKEN.values()
    ]
    for name, said in zip(BROKEN, answered(page, tmp_path / "node", asked), strict=True):
        rules = {finding["rule"] for finding in json.loads(str(said["out"]))}
        assert rules & {"SB814", "SB815"}, (name, rules)
        assert _is_broken({name: BROKEN[name]}), name


def test_a_page_has_the_profile_and_the_template_of_a_site(
    page: Path, pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["render", "ddp", "--profile", "own", "--trainer", "train.py"]
    (said,) = answered(page, tmp_path / "node", [(words, {})])
    monkeypatch.chdir(tmp_path)
    assert (said["status"], said["err"]) == (0, "")
    assert "echo of the site" in str(said["out"])
    assert said["out"] == answer(words, {}, site=str(pack)).out.decode()


def shown(case: tuple[list[str], dict[str, str], Printed, dict[str, object]]) -> str:
    """A difference, where it begins."""
    words, _, here, there = case
    mine, other = f"{here.status}{here.out.decode()}{here.err.decode()}", "{status}{out}{err}".format(**there)
    at = next((place for place, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), 0)
    return f"{' '.join(words)}: {mine[at - 60 : at + 200]!r}, on the page {other[at - 60 : at + 200]!r}"
