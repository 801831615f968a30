"""YAML -> dataclass: the field's type decides, and every problem has its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.base.errors import DocumentError
from sbatchgen.jobs.inputs.document import decode, read_document
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.profile import Profile


def problems(text: str, kind: type = JobSpec) -> list[tuple[str, str, str]]:
    with pytest.raises(DocumentError) as caught:
        decode(text, kind, name="job.yaml")
    return [(problem.what, problem.at, problem.fix) for problem in caught.value.problems]


def test_scalars_mean_what_they_say() -> None:
    """YAML 1.1 would read these as 86400, false, 8, 1000 and 0.001."""
    text = """
options: {time: 24:00:00, account: no, comment: 010}
env: {A: 1_000, B: 1e-3, C: yes}
args: [010, 1:30, off]
"""
    job = decode(text, JobSpec, name="job.yaml").value
    assert int(job.options.time or 0) == 86400
    assert (job.options.account, job.options.comment) == ("no", "010")
    assert dict(job.env) == {"A": "1_000", "B": "1e-3", "C": "yes"}
    assert job.args == ("010", "1:30", "off")


def test_all_problems_are_reported_at_once_with_line_and_fix() -> None:
    text = """mode: dpp
options:
  node: 2
  nodes: two
  time: 12:30
  time: 13:00:00
  exclusive: yes
trainr: x
env: [A]
"""
    reported = problems(text)
    assert [at for _, at, _ in reported] == [f"job.yaml:{line}" for line in (1, 3, 4, 5, 6, 7, 8, 9)]
    by_line = {at: (what, fix) for what, at, fix in reported}
    assert by_line["job.yaml:3"] == ("unknown key 'node' in options", "did you mean 'nodes'?")
    assert by_line["job.yaml:4"][0] == "options.nodes: 'two' is not a whole number"
    assert by_line["job.yaml:6"][0] == "duplicate key 'time' (first on line 5)"
    assert by_line["job.yaml:7"][0] == "options.exclusive: 'yes' is not true or false"
    assert by_line["job.yaml:8"] == ("unknown key 'trainr'", "did you mean 'trainer'?")
    assert by_line["job.yaml:9"][0] == "env must be a mapping of names to values"


def test_missing_required_keys_are_named() -> None:
    assert {what for what, _, _ in problems("slurm: '22.05'\n", Profile)} == {
        "missing key 'name'",
        "missing key 'url'",
        "missing key 'checked'",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1, 2", "not valid YAML"),
        ("- a\n- b\n", "must be a mapping"),
        ("--- {}\n--- {}\n", "not valid YAML"),
        ("options:\n", "options must be a mapping"),
        ("trainer:\n", "trainer has no value"),
        ("env: {A: [1]}\n", "env.A must be a single value"),
        ("args: x\n", "args must be a list"),
        ("a: &a [*a]\n", "*a is not defined"),
        ("env: {? [x] : 1}\n", "must be a plain word"),
        ("env: {A: \x01}\n", "not valid YAML"),
        ("trainer: !!python/object:os.system x\nmode: x\n", "not one of"),
    ],
)
def test_broken_files_have_different_errors(text: str, words: str) -> None:
    assert words in " ".join(what for what, _, _ in problems(text))


def test_places_name_the_line_of_each_value() -> None:
    document = decode("mode: ddp\noptions:\n  nodes: 4\nenv:\n  A: x\n", JobSpec, name="job.yaml")
    assert document.places == {
        "mode": "job.yaml:1",
        "options": "job.yaml:2",
        "options.nodes": "job.yaml:3",
        "env": "job.yaml:4",
        "env.A": "job.yaml:5",
    }


def test_an_empty_file_says_nothing() -> None:
    assert decode("", JobSpec, name="job.yaml").value.mode is None


def test_unreadable_files_give_one_line(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"mode: ddp\ntrainer: \xe9\n")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (1 << 20) + b"\n")
    for path, words in ((latin, "not UTF-8"), (large, "larger"), (tmp_path / "none", "can't read")):
        with pytest.raises(DocumentError, match=words):
            read_document(path, JobSpec)


@pytest.mark.parametrize("word", JobSpec.OTHER_WORDS)
def test_what_people_write_for_a_key_is_known_and_the_fix_works_when_typed(word: str) -> None:
    ((_, _, fix),) = problems(f"{word}: 4\n")
    assert unknown(fix.removeprefix("write ").replace(" and ", "\n")) == []


def unknown(text: str) -> list[str]:
    """What a job file has that no job has; 4 may be no value of a key that it has."""
    try:
        decode(text, JobSpec, name="job.yaml")
    except DocumentError as error:
        return [problem.what for problem in error.problems if "unknown" in problem.what]
    return []
