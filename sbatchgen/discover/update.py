"""The file of a profile with its cluster's values, edited at the places of these; every other byte stays."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from sbatchgen.discover.comparison import Difference
from sbatchgen.discover.entries import Entry, lines, scalar


def updated(text: str, found: Sequence[Difference], *, today: str) -> tuple[str, list[Difference]]:
    """The file with the cluster's values, and the differences that only a person can mend."""
    line_break = "\r\n" if "\r\n" in text else "\n"
    text += "" if text.endswith("\n") else line_break
    root = yaml.compose(text, Loader=yaml.SafeLoader)  # whose marks count characters, not bytes
    assert isinstance(root, yaml.MappingNode)  # noqa: S101
    edits: list[tuple[tuple[int, int, int], int, str]] = []  # start, depth and number; end; new text
    by_hand = []
    for one in found:
        if one.severity == "info" and one.at:
            continue
        edit = _edit(text, root, one)
        if edit is None:
            by_hand.append(one)
        else:
            edits.append(((edit[0], -len(one.path), len(edits)), *edit[1:]))
    checked = _value(root, "checked")
    if edits and checked and (edit := _replaced(text, root, checked, Entry("checked", today))):
        edits.append(((edit[0], 0, 0), *edit[1:]))
    for (start, *_), end, new in sorted(edits, reverse=True):  # inner mappings end before outer ones
        text = text[:start] + new.replace("\n", line_break) + text[end:]
    return text, by_hand


def _edit(text: str, root: yaml.MappingNode, one: Difference) -> tuple[int, int, str] | None:
    """Start, end and new text of a change; None if there is no safe one."""
    if one.live is None:
        return None
    above: yaml.Node | None = root
    for key in one.path[:-1]:
        above = _value(above, key)
    if not isinstance(above, yaml.MappingNode) or _uses(root, above) > 1:
        return None
    old = _value(above, one.path[-1])
    if old is not None:
        return _replaced(text, root, old, one.live)
    return _inserted(text, above, one.live)


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)


def _replaced(text: str, root: yaml.Node, old: yaml.Node, live: Entry) -> tuple[int, int, str] | None:
    start, end = old.start_mark.index, _end(old)
    if _uses(root, old) > 1 or text[start : start + 1] in "&|>":
        return None  # an anchor that others share, or a block of text
    if isinstance(old, yaml.SequenceNode) and not old.flow_style and not isinstance(live.value, str):
        pad = "\n" + " " * old.start_mark.column
        return start, end, pad.join(f"- {item}" for item in live.value)
    if isinstance(old, yaml.CollectionNode) and not old.flow_style:
        return None
    return start, end, live.flow


def _inserted(text: str, mapping: yaml.MappingNode, live: Entry) -> tuple[int, int, str]:
    """Behind the last key of a mapping."""
    if mapping.flow_style:
        end = mapping.end_mark.index - 1
        inner = text[mapping.start_mark.index + 1 : end].strip()
        before, behind = (", ", "") if inner and not inner.endswith(",") else ("", ", ")
        return end, end, f"{before}{scalar(live.key)}: {live.flow}{behind}"
    end = text.index("\n", _end(mapping) - 1) + 1
    return end, end, "\n".join([*lines([live], mapping.value[0][0].start_mark.column), ""])


def _end(node: yaml.Node) -> int:
    """Where a value ends; the mark of a block is behind the comments that follow it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        key, value = node.value[-1]
        return max(int(key.end_mark.index), _end(value))  # an alias has the marks of what it stands for
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _end(node.value[-1])
    return int(node.end_mark.index)


def _uses(node: yaml.Node, wanted: yaml.Node) -> int:
    """How often a node stands in a tree: aliases are the node itself."""
    if isinstance(node, yaml.MappingNode):
        below = [one for pair in node.value for one in pair]
    else:
        below = node.value if isinstance(node, yaml.SequenceNode) else []
    return (node is wanted) + sum(_uses(one, wanted) for one in below)
