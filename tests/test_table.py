"""Tables of plain text."""

from __future__ import annotations

from sbatchgen.base.quoting import one_line, table


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table([("RUN", "STATE", "LOG"), ("a", "done", "x")]) == "RUN  STATE  LOG\na    done   x\n"
    assert table([("a", ""), ("bc", "d")]) == "a\nbc  d\n"
    assert table([]) == ""


def test_a_long_cell_may_push_its_row() -> None:
    assert table([("long one", "x"), ("a", "y")], widest=4) == "long one  x\na     y\n"


def test_a_cell_is_one_line() -> None:
    assert one_line("a\nb\tc\x1b") == r"a\nb\tc\x1b"
