"""The check of sentences finds what the style sheet names, and each page keeps to its ceiling."""

from __future__ import annotations

import pytest

from tests import messages
from tests.sentences import (
    CEILINGS,
    CODE,
    LIMITS,
    RULES,
    Sentence,
    broken,
    ceilings,
    limit,
    pages,
    read,
    sentences,
)

HEAD = """\
# The share of sentences of each page that break two rules of docs/design/prose.md, in percent: a ceiling that may only
# fall. `pytest --update-golden tests/test_sentences.py` lowers it. A page that is not here has the limit of its kind.
"""
BROKEN = [
    ("more than 25 words", "The " + "very " * 24 + "long sentence ends."),
    ("two colons or semicolons", "The job waits: it has no node; Slurm looks for a node."),
    ("begins with a pronoun", "This shows the review of the job."),
    ("begins with a pronoun", "It names the rank."),
    ("begins with a pronoun", "Both are errors of the script."),
    ("'what' for a noun", "What other scripts say belongs in jobs."),
    ("'what' for a noun", "The review is made from what you type."),
    ("'one' for a noun", "The older jobs end before the new ones."),
    ("'one' for a noun", "The log is that of another program."),
    ("'one' for a noun", "A profile replaces the other one."),
    ("two negations", "No job is refused that does not fit."),
    ("'as' for an example", f"Use names, as {CODE}, for the files."),
    ("'of' at the start", "Of the script, the review shows the head."),
    ("three times 'of'", "The name of the folder of the job of a user is shown."),
    ("a word in another sense", "The script reads the log alone."),
    ("a word in another sense", "The job waits in vain for a node."),
    ("leans on the sentence before", "The second job ends, too."),
]
WHOLE = [
    "The script is plain bash, and you can read it in a minute.",
    "Which processes does a job start? What is a rank?",
    "This class has a name. This process ends first.",
    "Ctrl-C leaves the job alone.",
    "The job runs on one of the nodes, with one process for each GPU.",
    f"Slurm refuses names such as {CODE} and waits for the next job.",
    "As soon as the job ends, the report is written.",
]


@pytest.fixture(scope="module")
def shares() -> dict[str, float]:
    """The share of each page and of each kind of printed text; reading all of them takes 10 s of CPU time."""
    printed = {f"printed:{kind}": messages.reading(kind) for kind in messages.KINDS}
    return {name: reading.share for name, reading in (*pages(), *printed.items())}


@pytest.mark.parametrize(("rule", "text"), BROKEN)
def test_each_rule_finds_its_sentence(rule: str, text: str) -> None:
    assert broken(Sentence(1, text)) == [rule]
    assert {rule for rule, _ in BROKEN} == {*RULES}


@pytest.mark.parametrize("text", WHOLE)
def test_a_good_sentence_breaks_no_rule(text: str) -> None:
    assert [rules for each in sentences(text) if (rules := broken(each))] == []


def test_a_page_is_read_as_it_is_shown() -> None:
    page = "# What of it\n\nText with `two words`\nand [a link](of/of/of.md).\n\n    code of code\n\nshows the log of it.\n"
    first, second = sentences(page)
    assert (first.line, first.text) == (3, f"Text with {CODE} and a link.")
    assert broken(second) == ["begins in the code before"]


def test_cells_of_a_table_may_have_colons() -> None:
    (row,) = sentences("| a | b |\n|---|---|\n| x | the job: it waits; the log: it grows |\n")
    assert row.cell
    assert broken(row) == []


def test_only_two_rules_in_a_sentence_count() -> None:
    text = "This shows the review of the job. This shows what the job asks for, and what is not asked for, either.\n"
    assert (read(text).sentences, len(read(text).twice), read(text).share) == (2, 1, 50.0)


def test_no_page_passes_its_ceiling(request: pytest.FixtureRequest, shares: dict[str, float]) -> None:
    """A ceiling falls with the page, and is never raised here."""
    old = ceilings()
    now = {name: min(share, old.get(name, share)) for name, share in shares.items()}
    if request.config.getoption("--update-golden"):
        CEILINGS.write_text(HEAD + "".join(f"{name} {share}\n" for name, share in sorted(now.items())))
    assert {*old} <= {*shares}, "pytest --update-golden tests/test_sentences.py"
    over = {name: share for name, share in shares.items() if share > old.get(name, limit(name))}
    assert over == {}, "python tests/words.py, or python -m tests.messages, names the sentences"


def test_no_page_is_above_the_limit_of_its_kind(shares: dict[str, float]) -> None:
    assert {name for name, share in shares.items() if share > limit(name)} == set()
    assert {LIMITS[""], LIMITS["docs/about/"], LIMITS["sbatchgen/check/rules/pages/"]} == {3.0, 4.0}


def test_what_is_printed_is_read_from_the_code() -> None:
    """So the ceilings are those of all messages, causes, fixes and comments."""
    counts = {kind: messages.reading(kind).sentences for kind in messages.KINDS}
    least = {"messages": 700, "causes": 200, "fixes": 900, "comments": 80}
    assert {kind for kind, count in counts.items() if count < least[kind]} == set()
    said = {text for kind in messages.KINDS.values() for _, text in kind()}
    assert "the nodes don't meet: without --rdzv-endpoint each torchrun waits at its own localhost" in said
    assert "a process was killed by SIGKILL, most often because the node had too little memory" in said
