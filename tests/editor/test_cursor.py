"""The keys around a cursor in YAML that is not whole."""

from __future__ import annotations

import pytest

from sbatchgen.lab.editor.cursor import ITEM, Cursor, cursor


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Cursor((), "", "", 1)),
        ("mo", Cursor((), "", "mo", 1)),
        ("mode: dd", Cursor((), "mode", "dd", 7)),
        ("options:\n  no", Cursor(("options",), "", "no", 3)),
        ("options:\n  nodes: 2\n  ti", Cursor(("options",), "", "ti", 3)),
        ("options:\n  nodes: 2\nmo", Cursor((), "", "mo", 1)),
        ("options: {nodes: 2, ti", Cursor(("options",), "", "ti", 21)),
        ("options: {nodes: 2, time: 1", Cursor(("options",), "time", "1", 27)),
        ("options: {nodes: 2} ", Cursor((), "options", "", 21)),
        ("partitions:\n  gpu: {qos: [a, b", Cursor(("partitions", "gpu", "qos", ITEM), "", "b", 18)),
        ("partitions:\n  # a comment\n\n  gpu:\n    ti", Cursor(("partitions", "gpu"), "", "ti", 5)),
        ("sources:\n  - at: x\n    ke", Cursor(("sources", ITEM), "", "ke", 5)),
        ("sources:\n- at: x\n  ke", Cursor(("sources", ITEM), "", "ke", 3)),
        ("sources:\n- at: x\n- ke", Cursor(("sources", ITEM), "", "ke", 3)),
        ("sources:\n  - {at: x, ke", Cursor(("sources", ITEM), "", "ke", 13)),
        ("args:\n- a\n- b: c\nmo", Cursor((), "", "mo", 1)),
        ("env: {A: 'x{', B: 2, c", Cursor(("env",), "", "c", 22)),
    ],
)
def test_the_path_of_keys_above_the_cursor(text: str, expected: Cursor) -> None:
    lines = text.split("\n")
    assert cursor(lines, len(lines), len(lines[-1]) + 1) == expected
