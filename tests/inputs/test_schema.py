"""JSON schemas: those that are shipped are those of the records, and editors refuse what the reader refuses."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
import yaml

from sbatchgen.base.errors import DocumentError
from sbatchgen.jobs.inputs.document import decode
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.search import bundled
from tests.conftest import REPOSITORY, Command
from tests.inputs.schema import schema
from tests.scripts import PROFILES

KINDS: dict[str, type] = {"profile": Profile, "job": JobSpec}
FIRST = "# yaml-language-server: $schema=../schemas/profile.json"


class Core(yaml.SafeLoader):
    """YAML 1.2's core schema, as editors have it: no dates, no base 60, and `no` is a word."""

    yaml_implicit_resolvers: Any = {}  # noqa: RUF012 - as its base has them


for kind, pattern, starts in (
    ("bool", r"^(?:true|false)$", "tf"),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
):
    Core.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(pattern), starts)


def refused(name: str, text: str) -> list[str]:
    """What an editor marks."""
    value = yaml.load(text, Core)  # noqa: S506 - it makes plain values
    return [error.message for error in jsonschema.Draft7Validator(schema(name)).iter_errors(value)]


@pytest.mark.parametrize("name", KINDS)
def test_the_schema_that_is_shipped_is_that_of_the_records(
    command: Command, name: str, request: pytest.FixtureRequest
) -> None:
    text = json.dumps(schema(name), indent=2) + "\n"
    file = REPOSITORY / "schemas" / f"{name}.json"
    if request.config.getoption("--update-golden"):
        file.write_text(text)
        pytest.fail("schema written: review it")
    assert file.read_text() == text, "pytest --update-golden tests/inputs/test_schema.py"
    jsonschema.Draft7Validator.check_schema(json.loads(text))
    assert command("schema", name).out == text


@pytest.mark.parametrize("name", PROFILES)
def test_a_bundled_profile_names_its_schema_and_fits_it(name: str) -> None:
    file = bundled("profiles") / f"{name}.yaml"
    assert file.read_text().splitlines()[0] == FIRST
    assert (file.parent / FIRST.partition("=")[2]).resolve().is_file()
    assert not refused("profile", file.read_text())


HEAD = "name: x\nurl: x\nchecked: 2026-01-01\n"
RIGHT = [
    (
        "profile",
        HEAD + "slurm: 24.05\npartitions: {gpu: {gpus_per_node: 4, time_max: 24:00:00, mem_per_node: 500G}}",
    ),
    ("profile", HEAD + "policies: {SB301: 'off'}\nmodes: {ddp: {nodes: 2}}\nsetup: [ulimit -l unlimited]"),
    ("profile", HEAD + "options: {account: 123, comment: no}\nenv: {A: 1, B: 1.5, C: true}"),
    (
        "job",
        "mode: ddp\nprofile: msu\noptions: {nodes: '2', time: 90, exclusive: true, requeue: expedite}\nargs: [--lr, 0.1]",
    ),
    ("job", "lint: {disable: [SB4], severity: {SB301: error}}\nbinds: [/scratch]\nrequeue_on_timeout: true"),
    ("job", "extra_options: {mcs-label: x}\nenv: {NCCL_DEBUG: INFO}\nresume: off\nmax_restarts: 0"),
]
WRONG = [
    ("profile", "url: x\nchecked: x"),
    ("profile", HEAD + "partitons: {}"),
    ("profile", HEAD + "partitions: {gpu: {gpu_per_node: 4}}"),
    ("profile", HEAD + "partitions: {gpu: {cpus_per_node: -3}}"),
    ("profile", HEAD + "partitions: {gpu: {state: idle}}"),
    ("profile", HEAD + "modes: {dpp: {nodes: 2}}"),
    ("profile", HEAD + "network: {port_base: 80}"),
    ("profile", HEAD + "modules: cuda"),
    ("job", "mode: dpp"),
    ("job", "options: {node: 2}"),
    ("job", "options: {nodes: two}"),
    ("job", "options: {exclusive: yess}"),
    ("job", "options: {requeue: expedited}"),
    ("job", "env: [A]"),
    ("job", "args: --lr 0.1"),
    ("job", "trainer: [a.py]"),
    ("job", "lint: {severity: {SB301: fatal}}"),
]


@pytest.mark.parametrize(("name", "text"), RIGHT)
def test_what_the_reader_takes_no_editor_marks(name: str, text: str) -> None:
    decode(text, KINDS[name], name="file.yaml")
    assert not refused(name, text)


@pytest.mark.parametrize(("name", "text"), WRONG)
def test_what_an_editor_marks_the_reader_refuses(name: str, text: str) -> None:
    with pytest.raises(DocumentError):
        decode(text, KINDS[name], name="file.yaml")
    assert refused(name, text)


def test_every_key_is_described() -> None:
    def records(value: Any) -> list[dict[str, Any]]:
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        own = (
            [value["properties"]]
            if isinstance(value, dict) and "additionalProperties" in value and "properties" in value
            else []
        )
        return [*own, *(record for item in inside for record in records(item))]

    for name in KINDS:
        keys = [key for record in records(schema(name)) for key in record.values()]
        assert len(keys) > 60
        assert all(key["description"].endswith((".", "]")) for key in keys)
