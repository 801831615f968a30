"""Templates decide lines, not numbers: what they may hold, and the variables that sites rely on."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import jinja2
import pytest
from jinja2 import nodes

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.units import Argument
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.render.render import context, render
from sbatchgen.jobs.render.supervision import supervision_variables
from sbatchgen.jobs.render.templates import FILTERS
from sbatchgen.jobs.render.trace import trace
from sbatchgen.jobs.runtimes import RUNTIMES
from tests.scripts import CODE, resolved, script, several

TEMPLATES = sorted(bundled("templates").rglob("*.j2"))
ALLOWED = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Filter, nodes.For, nodes.If,
    nodes.Block, nodes.Include, nodes.Const, nodes.Tuple, nodes.Extends,
)  # fmt: skip
# Sites' own templates use these: a name that goes or changes its meaning breaks them.
VARIABLES = """
any_container array array_element asks_again caches checkpoints code command_lines conda_root consecutive container_lines continues
counts_restarts data directives ends_steps excludes export_lines first_checkpoint first_port foreign gives_cuda
has_outcome has_setup image_of_module inherited job_id keeps_pythonpath leftovers master_addr max_restarts meets
module_lines needed node_lines one_container_fails other_directives placed point_says points points_carried preflight programs
pyxis reads_exit requeue_on_node_fail requeue_on_timeout requeues requeues_early restartable resume_args run_dir
runtime_parts second_part setup setup_after_runtime setup_before_modules setup_per_node slurm snapshot
software_lines ssh_nodes starts_pyxis starts_runtime stoppable talk training_title twin_lines twins uses_code uses_data
wrapper
""".split()


def syntax(path: Path) -> nodes.Template:
    environment = jinja2.Environment(comment_start_string="{##", comment_end_string="##}", autoescape=False)  # noqa: S701
    return environment.parse(path.read_text())


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_holds_no_logic(path: Path) -> None:
    for node in syntax(path).find_all(nodes.Node):
        assert isinstance(node, ALLOWED), f"{path}:{node.lineno}: {type(node).__name__}"
        if isinstance(node, nodes.If):
            assert isinstance(node.test, nodes.Name), f"{path}:{node.lineno}: a condition is a bare name"
        if isinstance(node, nodes.Filter):
            assert node.name in {*FILTERS, "join"}, f"{path}:{node.lineno}: {node.name}"


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_says_what_it_is_for(path: Path) -> None:
    assert path.read_text().startswith("{## ")


def test_the_variables_of_templates_are_these() -> None:
    of = resolved("ddp")
    for_parts = {name for runtime in RUNTIMES.values() for name in runtime.values_in_other_jobs}
    assert for_parts <= {*VARIABLES}
    assert {*context(of, code=CODE)} == {*VARIABLES}


def test_every_variable_is_used() -> None:
    used = {name.name for path in TEMPLATES for name in syntax(path).find_all(nodes.Name)}
    assert {*VARIABLES, *supervision_variables(several(), "PWD"), "provenance"} <= used


def test_bash_does_not_run_a_job_on_a_login_node(tmp_path: Path) -> None:
    text = script(resolved("single", "troila"))
    done = subprocess.run(["bash", "-s"], input=text, text=True, cwd=tmp_path, capture_output=True, check=False, env={"PATH": os.environ["PATH"]})  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: this script is a job: submit it with sbatch\n"
    assert not [*tmp_path.iterdir()]


def test_a_site_overrides_one_block_of_a_bundled_template(tmp_path: Path) -> None:
    (tmp_path / "job.sh.j2").write_text(
        '{% extends "bundled:job.sh.j2" %}\n{% block modules %}\nmodule load site/1\n{% endblock %}\n'
    )
    of = resolved("ddp")
    text = render(of, code=CODE, rerun=("x",), folders=[tmp_path, bundled("templates")])
    assert "module load site/1\n" in text
    assert text.splitlines()[2:10] == script(of).splitlines()[2:10]


@pytest.mark.parametrize("old", ["shell", "environment", "checkpoint", "stop", "training", "outcome"])
def test_a_block_of_an_earlier_release_is_an_error_that_names_the_new_one(tmp_path: Path, old: str) -> None:
    own = tmp_path / "job.sh.j2"
    own.write_text(f'{{% extends "bundled:job.sh.j2" %}}\n{{%- block {old} %}}\necho\n{{% endblock %}}\n')
    folders = [tmp_path, bundled("templates")]
    with pytest.raises(DocumentError, match=f"block '{old}' is now '") as caught:
        render(resolved("ddp"), code=CODE, rerun=("x",), folders=folders)
    assert caught.value.problems[0].at == f"{own}:2"
    new = re.findall(r"now '(\w+)'", caught.value.problems[0].what)[0]
    of = resolved("ddp", trainer="t.py", checkpoint=Argument("a.pt"), resume_args=(Argument("{checkpoint}"),))
    of = resolved("ddp") if new == "start_again" else of
    own.write_text(f'{{% extends "bundled:job.sh.j2" %}}\n{{% block {new} %}}\necho own\n{{% endblock %}}\n')
    assert "\necho own\n" in render(of, code=CODE, rerun=("x",), folders=folders)


def test_a_template_that_extends_none_has_blocks_of_any_name(tmp_path: Path) -> None:
    (tmp_path / "job.sh.j2").write_text("{% block training %}srun a{% endblock %}\n")
    text = render(resolved("ddp"), code=CODE, rerun=("x",), folders=[tmp_path, bundled("templates")])
    assert text == "srun a"


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("a\n{% if %}\n", "broken template", 2),
        ("\n\n{{ nothing }}\n", "nothing", 3),
        ("{% include 'x' %}", "'x'", 0),
    ],
)
def test_a_broken_template_is_named_with_its_line(tmp_path: Path, text: str, words: str, line: int) -> None:
    (tmp_path / "job.sh.j2").write_text(text)
    with pytest.raises(DocumentError) as caught:
        render(resolved("ddp"), code=CODE, rerun=("x",), folders=[tmp_path, bundled("templates")])
    problem = caught.value.problems[0]
    assert words in problem.what
    assert problem.at == (f"{tmp_path}/job.sh.j2:{line}" if line else "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ ''.__class__.__mro__ }}", "'__class__' of 'str' object is unsafe"),
        (
            "{{ cycler.__init__.__globals__.os.system('touch pwned') }}",
            "'__init__' of 'type' object is unsafe",
        ),
        (
            "{{ lipsum.__globals__['os'].popen('touch pwned') }}",
            "'__globals__' of 'function' object is unsafe",
        ),
        ("{{ ''|attr('__class__') }}", "'__class__' of 'str' object is unsafe"),
        ("{{ setup.__class__ }}", "'__class__' of 'tuple' object is unsafe"),
        ("{{ '{0.__class__}'.format(setup) }}", "'__class__' of 'tuple' object is unsafe"),
        ("{{ ('{0.__class__}'|attr('format'))(setup) }}", "'__class__' of 'tuple' object is unsafe"),
        ("{{ self._TemplateReference__context }}", "'_TemplateReference__context' of"),
        ("{{ [].append(1) }}", "'append' of 'list' object is unsafe"),
        ("{{ range(9 ** 9) }}", "OverflowError: Range too big"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ run_dir() }}", "object is not callable"),
        ("{% include 'job.sh.j2' %}", "RecursionError"),
    ],
)
def test_a_template_can_not_run_python(folder: Path, text: str, words: str) -> None:
    (folder / "job.sh.j2").write_text(f"a\n\n{text}\n")
    folders, of = [folder, bundled("templates")], resolved("ddp")
    for fill in (render, trace):
        with pytest.raises(DocumentError) as caught:
            fill(of, code=CODE, rerun=("x",), folders=folders)
        assert words in caught.value.problems[0].what
        assert caught.value.problems[0].at == f"{folder}/job.sh.j2:3"
    assert not (folder / "pwned").exists()


def test_a_template_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.sh.j2").write_bytes(b"\xff")
    with pytest.raises(DocumentError, match="UnicodeDecodeError") as caught:
        render(resolved("ddp"), code=CODE, rerun=("x",), folders=[tmp_path, bundled("templates")])
    assert caught.value.problems[0].at == "job.sh.j2"


def test_a_value_that_is_not_set_never_becomes_text(tmp_path: Path) -> None:
    (tmp_path / "job.sh.j2").write_text("{% for x in setup %}{{ x }}{% endfor %}{{ max_restarts }}")
    assert render(resolved("ddp"), code=CODE, rerun=("x",), folders=[tmp_path]) == "10"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "text",
    [
        '{{ "x" * 1000000000 }}',
        '{{ 1000000000 * ["x"] }}',
        '{% set a = "x" * 60000000 %}{{ a ~ a }}',
        "{% for i in range(99999) %}{% for i in range(99999) %}0123456789{% endfor %}{% endfor %}",
        None,
    ],
)
def test_a_template_of_any_length_is_an_error(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "job.sh.j2"
    file.write_text(text or "")
    if text is None:
        os.truncate(file, 10**9)
    with pytest.raises(DocumentError, match="template: it makes a script of more than 64 MiB"):
        render(resolved("ddp"), code=CODE, rerun=("x",), folders=[tmp_path])


def test_a_template_may_multiply(tmp_path: Path) -> None:
    (tmp_path / "job.sh.j2").write_text('{{ 3 * 4 }} {{ "ab" * 2 }}\n')
    assert render(resolved("ddp"), code=CODE, rerun=("x",), folders=[tmp_path]) == "12 abab\n"
