"""What the README tells people to type works, and what it shows is what they get."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbatchgen.lint.linter import rules
from sbatchgen.rules.page import FOLDER
from tests.conftest import REPOSITORY, Command
from tests.scripts import PROFILES

README = (REPOSITORY / "README.md").read_text()
TUTORIALS = "".join(path.read_text() for path in sorted((REPOSITORY / "docs" / "tutorials").glob("*.md")))
COMMANDS = [line.strip() for line in README.splitlines() if line.startswith("    sbatchgen ")]
IN_TABLES = re.findall(r"^\|.* `(sbatchgen submit [^`]*)` \|$", README, re.MULTILINE)


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.split()[1] == "render"] + IN_TABLES)
def test_each_render_line_gives_a_script(command: Command, line: str) -> None:
    words = shlex.split(line.partition(">")[0])
    result = command("render", *words[2:])
    assert result.status == 0, result.err
    assert result.out.startswith("#!/bin/bash\n")
    assert "error" not in result.err


def test_every_profile_and_every_command_is_shown() -> None:
    assert len(IN_TABLES) == 5
    assert set(re.findall(r"--profile (\w+)", README + TUTORIALS)) == {*PROFILES}
    assert all(
        f"sbatchgen {name}" in README
        for name in ("render", "review", "submit", "explain", "lint", "data", "profile")
    )


def test_the_script_shown_is_the_golden_one() -> None:
    shown = re.findall(r"```bash\n(#!/bin/bash.*?)```", README, re.DOTALL)
    assert shown == [(REPOSITORY / "tests/golden/ddp-torchrun.sh").read_text()]


def test_the_review_shown_is_what_the_command_prints(command: Command) -> None:
    line = next(line for line in COMMANDS if line.split()[1] == "review")
    result = command(*shlex.split(line)[1:])
    screen = re.findall(r"```text\n(job .*?)```", README, re.DOTALL)
    assert screen == [f"{result.out.partition('  #!/bin/bash')[0].rstrip()}\n"]


def test_the_findings_shown_are_what_lint_prints(command: Command) -> None:
    lines = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --time=24\n#SBATCH -p=gpu\nhostname\n#SBATCH --nodes=2\n"
    Path("job.slurm").write_text(lines)
    result = command("lint", "--no-shellcheck", "job.slurm")
    assert re.findall(r"```text\n(job.slurm:.*?)```", README, re.DOTALL) == [result.out]


def test_the_settings_of_lint_shown_are_sound(command: Command) -> None:
    (settings,) = re.findall(r"```yaml\n(lint: .*?)```", README, re.DOTALL)
    Path("sbatchgen.yaml").write_text(settings)
    Path("job.slurm").write_text("#!/bin/bash\n#SBATCH --nodes=1\nhostname\n")
    result = command("lint", "--no-shellcheck", "job.slurm")
    assert "error SB205" in result.out
    assert result.status == 3


def test_all_rules_are_in_the_documentation(request: pytest.FixtureRequest) -> None:
    path = REPOSITORY / "docs" / "rules.md"
    text = "".join(_list_of_rules())
    if request.config.getoption("--update-golden") and path.read_text() != text:
        path.write_text(text)
        pytest.fail("docs/rules.md was written anew: read the change")
    assert path.read_text() == text


def _list_of_rules() -> Iterator[str]:
    """A table for each file of pages, with a link to each rule's page as GitHub makes its anchors."""
    yield "# Rules of sbatchgen lint\n\nMade of the rules and their pages by `pytest --update-golden tests/docs/test_readme.py`.\n"
    for file in sorted(FOLDER.glob("*.md")):
        text = file.read_text()
        yield f"\n## {text.splitlines()[0].removeprefix('# ')}\n\n| rule | severity | what |\n|---|---|---|\n"
        for rule, title in re.findall(r"^## (SB\d{3}) (.+)$", text, re.MULTILINE):
            anchor = re.sub(r"[^\w -]", "", f"{rule} {title}".lower()).replace(" ", "-")
            yield f"| [{rule}](../sbatchgen/rules/pages/{file.name}#{anchor}) | {rules()[rule].severity}{', pedantic' * rules()[rule].pedantic} | {title} |\n"


def test_the_refusal_shown_is_what_a_refused_submission_prints(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text is Slurm's; that this Slurm refuses such a job is tested with a real one."""
    Path("sbatch").write_text(
        "#!/bin/bash\necho 'sbatch: error: Batch job submission failed: Invalid feature specification' >&2\nexit 1\n"
    )
    Path("sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{Path.cwd()}:{os.environ['PATH']}")
    Path("job.yaml").write_text("mode: ddp\nprofile: torchrun\noptions:\n  constraint: fast\n")
    result = command("submit", "job.yaml", "--yes")
    shown = re.findall(r"```text\n(error: .*?)```", README, re.DOTALL)
    assert result.status == 5
    assert shown == [result.err[result.err.rindex("error: no node") :]]


def test_the_profile_and_the_job_shown_are_sound(command: Command) -> None:
    contributing = (REPOSITORY / "CONTRIBUTING.md").read_text()
    text = re.findall(r"```yaml\n(.*?)```", contributing, re.DOTALL)[0]
    with Path("example.yaml").open("w") as file:
        file.write("\n".join(line[3:] for line in text.splitlines()) + "\n")
    assert command("profile", "check", "./example.yaml").status == 0
    assert command("render", "ddp", "--profile", "./example.yaml", "--account", "abc").status == 0
    job = re.findall(r"```yaml\n(# job.yaml.*?)```", README, re.DOTALL)[0]
    with Path("job.yaml").open("w") as file:
        file.write(job)
    result = command("render", "job.yaml")
    assert (result.status, result.err) == (0, "")
    assert "#SBATCH --time=0-12:00:00\n" in result.out
