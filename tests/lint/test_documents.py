"""Scripts in the documents of a centre: Markdown, reStructuredText and HTML, alone and in folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbatchgen.check.lint import blocks
from tests.conftest import Command

SCRIPT = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --time=24\nhostname\n"


def found(command: Command, *names: str) -> list[tuple[str, int, int, str]]:
    report = json.loads(command("lint", "--no-shellcheck", "--format", "json", *names).out)
    return [(row["file"], row["line"], row["column"], row["rule"]) for row in report]


def page(name: str, text: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)


def inside(text: str, indent: str) -> str:
    return "".join(f"{indent}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    "before",
    [
        ".. code-block:: bash\n   :linenos:\n   :caption: job.sh\n\n",
        ".. code:: slurm\n\n",
        ".. sourcecode:: sh\n\n",
        "A job script::\n\n",
        "Two paragraphs.\n\n::\n\n",
    ],
)
def test_literal_blocks_of_restructured_text(command: Command, before: str) -> None:
    page("jobs.rst", f"Jobs\n====\n\n{before}{inside(SCRIPT, '   ')}\nThe end.\n")
    line = 3 + before.count("\n") + 3
    assert found(command, "jobs.rst") == [("jobs.rst", line, 19, "SB127")]


def test_a_block_of_restructured_text_inside_of_a_note(command: Command) -> None:
    page("jobs.rst", f".. note::\n\n   .. code-block:: bash\n\n{inside(SCRIPT, '      ')}\n   After it.\n")
    assert found(command, "jobs.rst") == [("jobs.rst", 7, 22, "SB127")]


def test_a_directive_inside_of_a_note_inside_of_a_note(command: Command) -> None:
    """The directive of the inner note ends in two colons, but begins no literal block."""
    inner = f"   .. note::\n\n      .. code-block:: bash\n\n{inside(SCRIPT, '         ')}"
    page("jobs.rst", f".. note::\n\n   Text.\n\n{inner}\n      #SBATCH --foo is an option.\n")
    assert found(command, "jobs.rst") == [("jobs.rst", 11, 25, "SB127")]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"- ```bash\n{inside(SCRIPT, '  ')}  ```\n\n```python\n#SBATCH -p=gpu\n```\n", 4),
        (f"1. ```bash\n{inside(SCRIPT, '   ')}   ```\n", 4),
        (f"> ```bash\n{inside(SCRIPT, '> ')}\n#SBATCH -p=gpu is a text.\n", 4),
        (f"> ```python\n> x\n```bash\n{SCRIPT}```\n", 6),
    ],
)
def test_a_fence_in_a_list_and_a_quote_that_ends_its_block(command: Command, text: str, line: int) -> None:
    page("jobs.md", text)
    assert [row[1::2] for row in found(command, "jobs.md")] == [(line, "SB127")]


def test_many_tags_without_an_end_are_read_once() -> None:
    """Each tag was read to the end of the text: 8,000 of them took 4 s, and twice as many 15 s."""
    text = "<pre>" * 400_000
    assert [*blocks.blocks(text, ".html")] == []
    (block,) = blocks.blocks(f"<pre <b>{text}a\n<pre>b\n</pre>", ".html")
    assert (block.text, block.line) == ("a\nb\n\n", 1)


def test_other_languages_of_restructured_text_are_left_alone(command: Command) -> None:
    page("jobs.rst", f".. code-block:: python\n\n{inside(SCRIPT, '   ')}")
    assert found(command, "jobs.rst") == []


def test_preformatted_text_of_html_without_its_tags(command: Command) -> None:
    coloured = SCRIPT.replace("--time", '<span class="c1">--time').replace("=24", "=24</span>")
    page("jobs.html", f'<h1>Jobs</h1>\n<div class="highlight"><pre><span></span>{coloured}</pre></div>\n')
    assert found(command, "jobs.html") == [("jobs.html", 4, 16, "SB127")]


def test_a_folder_of_pages_is_read_and_summed_up_by_page(command: Command) -> None:
    for name in ("docs/a.md", "docs/b/c.md"):
        page(name, f"```bash\n{SCRIPT}```\n")
    page("docs/d.rst", f"::\n\n{inside(SCRIPT.replace('=24', '=01:00:00'), '  ')}")
    page("docs/e.md", "No script.\n")
    result = command("lint", "--no-shellcheck", "docs")
    assert result.err == (
        "PAGE         FINDINGS\n"
        "docs/a.md    1 warning\n"
        "docs/b/c.md  1 warning\n"
        "\n"
        "3 scripts, in 3 pages: 2 warnings\n"
    )
    assert command("lint", "--no-shellcheck", "--strict", "docs").status == 3


def test_numbers_of_lines_in_messages_are_those_of_the_page(command: Command) -> None:
    page("jobs.md", "# Jobs\n\n```bash\n#!/bin/bash\n#SBATCH --time=1:00:00 -c 1\n#SBATCH -c 2\ntrue\n```\n")
    assert "--cpus-per-task is given in line 5 too: " in command("lint", "--no-shellcheck", "jobs.md").out


@pytest.mark.parametrize(
    "text",
    [
        "#SBATCH --account=<project>\n#SBATCH --time=1:00:00\nsrun <program> <args>\n",
        "#SBATCH --time=1:00:00\n#SBATCH ...\nsrun hostname\n",
        "#SBATCH --time=HH:MM:SS\n#SBATCH --gres=gpu:v100:N\ncd <path to your files>\n",
        "#SBATCH option_name=argument\n#SBATCH --time=1:00:00\n",
        "#SBATCH --nodes=2 (1)\n#SBATCH --time=1:00:00 # (2)!\nsrun --mpi=pmix \\ # (3)!\n  hostname\n",
        "#SBATCH --time=1:00:00\n...\nsrun hostname\n",
        "#SBATCH --account=<<your account>>\n#SBATCH -t [Time]\n#SBATCH -n <#sockets * s>\nmodule load <...>\n",
        "#SBATCH [...]\n#SBATCH -A\n#SBATCH -n 40 -t 1:00:00\n#SBATCH --mem=   # of a node\n",
    ],
)
def test_what_readers_fill_in_is_no_mistake(command: Command, text: str) -> None:
    page("jobs.md", f"```bash\n#!/bin/bash\n{text}```\n")
    assert found(command, "jobs.md") == []


def test_a_redirection_is_no_placeholder(command: Command) -> None:
    page("jobs.md", "```bash\n#!/bin/bash\n#SBATCH --time=1:00:00\nsrun <in.txt >out.txt\n```\n")
    assert [rule for *_, rule in found(command, "jobs.md")] == ["SB332"]


def test_a_part_of_a_script_need_not_have_all(command: Command) -> None:
    """A block without #! may show two ways to write the same."""
    page("jobs.md", "```bash\n#SBATCH --array=0-9\n\n# or\n#SBATCH --array=0-9%2\n```\n")
    assert found(command, "jobs.md") == []
    page("jobs.md", "```\nMemory (in GB):\n#SBATCH --mem=10G\n#SBATCH --mem-per-cpu=2G\n```\n")
    assert found(command, "jobs.md") == []


def test_a_line_for_readers_hides_no_mistake_in_another(command: Command) -> None:
    page(
        "jobs.md", "```bash\n#!/bin/bash\n#SBATCH -A <project>\n#SBATCH -p=gpu\n#SBATCH -t 9:00\ntrue\n```\n"
    )
    assert ("jobs.md", 4, 9, "SB111") in found(command, "jobs.md")


def test_a_misspelt_first_line_is_an_error(command: Command) -> None:
    page("jobs.md", "```bash\n!/bin/bash\n#SBATCH --time=1:00:00\nhostname\n```\n")
    assert ("jobs.md", 2, 1, "SB101") in found(command, "jobs.md")


def test_a_block_that_is_indented_as_a_whole_is_refused_as_its_copy_is(command: Command) -> None:
    page("jobs.md", f"# Jobs\n\n```bash\n{inside(SCRIPT, '    ')}```\n")
    assert found(command, "jobs.md") == [("jobs.md", 4, 1, "SB101")]
    page("list.md", f"- a job:\n\n    ```bash\n{inside(SCRIPT, '    ')}    ```\n")
    assert found(command, "list.md") == [("list.md", 6, 20, "SB127")]


@pytest.mark.parametrize("mark", ["'EOF'", '"EOF"', " 'EOF' > job.sh"])
def test_a_script_that_a_page_writes_is_read_as_one(command: Command, mark: str) -> None:
    page("jobs.md", f"```console\n$ cat > job.sh <<{mark}\n{SCRIPT}EOF\n$ sbatch job.sh\n```\n")
    assert found(command, "jobs.md") == [("jobs.md", 5, 16, "SB127")]


def test_a_script_that_the_shell_of_the_page_expands_is_not_read(command: Command) -> None:
    page("jobs.md", f"```console\n$ cat > job.sh <<EOF\n{SCRIPT}EOF\n$ sbatch job.sh\n```\n")
    assert found(command, "jobs.md") == [("jobs.md", 4, 1, "SB144")]


@pytest.mark.parametrize("shebang", ["#!/usr/bin/env python3", "#!/bin/bash"])
def test_a_script_that_writes_a_program_is_read(command: Command, shebang: str) -> None:
    """Not only the program: the lines around it have directives."""
    program = f"cat > run.py <<'EOF'\n{shebang}\nprint(1)\nEOF\nsrun python run.py\n"
    page("jobs.md", f"```bash\n{SCRIPT}{program}```\n")
    assert found(command, "jobs.md") == [("jobs.md", 4, 16, "SB127")]
