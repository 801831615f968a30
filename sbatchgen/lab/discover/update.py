"""Updates the text of a profile with the cluster's values. All text around these values stays as it is."""

from collections.abc import Sequence
from typing import NamedTuple

import yaml

from sbatchgen.lab.discover.comparison import Difference
from sbatchgen.lab.discover.entries import Entry, lines, scalar


class _Edit(NamedTuple):
    """The replacement of a part of the text."""

    start: int  # the offset of the part
    end: int  # the offset after the part
    new: str


def update_text(text: str, differences: Sequence[Difference], *, today: str) -> tuple[str, list[Difference]]:
    """Return a profile's text with the cluster's values, and the differences that a person must edit."""
    line_break = "\r\n" if "\r\n" in text else "\n"
    text += "" if text.endswith("\n") else line_break
    root = yaml.compose(text, Loader=yaml.SafeLoader)  # its marks count characters, not bytes
    edits: list[tuple[int, _Edit]] = []  # each with the length of its key's path
    by_hand = []
    for difference in differences:
        if difference.severity == "info" and difference.at:  # the value may be lower than the cluster's
            continue
        if edit := _edit(text, root, difference.path, difference.live):
            edits.insert(0, (len(difference.path), edit))
        else:
            by_hand.append(difference)
    if edits and (edit := _edit(text, root, ("checked",), Entry("checked", today))):
        edits.insert(0, (1, edit))
    # The edits go from the end of the file to its start, so that the offsets of further edits stay right. At
    # the same offset, a key of an outer mapping is inserted first, because a later key comes before it.
    for _, edit in sorted(edits, key=lambda length_and_edit: (-length_and_edit[1].start, length_and_edit[0])):
        text = text[: edit.start] + edit.new.replace("\n", line_break) + text[edit.end :]
    return text, by_hand


def _edit(text: str, node: yaml.Node | None, path: Sequence[str], live: Entry | None) -> _Edit | None:
    """Return the edit that writes the cluster's value of a key; None if no edit is safe."""
    for key in path:
        if not isinstance(node, yaml.MappingNode) or text[node.start_mark.index] == "&":
            return None  # an edit would also change the aliases of an anchor
        value = next((value for name, value in node.value if name.value == key), None)
        if value is None:
            return _insertion(text, node, live) if live and key == path[-1] else None
        node = value
    return _replacement(text, node, live) if live and node else None


def _replacement(text: str, old: yaml.Node, live: Entry) -> _Edit | None:
    """Return the edit that replaces a value; None if no edit is safe."""
    start, end = old.start_mark.index, _end(old)
    if text[start : start + 1] in "&|>":
        return None  # an anchor, or a block of text
    if isinstance(old, yaml.CollectionNode) and not old.flow_style:
        if not isinstance(old, yaml.SequenceNode) or not live.items:
            return None
        lines_of_items = ("\n" + " " * old.start_mark.column).join(f"- {item}" for item in live.items)
        return _Edit(start, end, lines_of_items)
    return _Edit(start, end, live.flow)


def _insertion(text: str, mapping: yaml.MappingNode, live: Entry) -> _Edit:
    """Return the edit that inserts a key after the last key of a mapping."""
    if mapping.flow_style:
        end = mapping.end_mark.index - 1
        inner = text[mapping.start_mark.index + 1 : end].strip()
        before, after = (", ", "") if inner and not inner.endswith(",") else ("", ", ")
        return _Edit(end, end, f"{before}{scalar(live.key)}: {live.flow}{after}")
    end = text.index("\n", _end(mapping) - 1) + 1
    column = mapping.value[0][0].start_mark.column  # of the first key
    return _Edit(end, end, "\n".join([*lines([live], column), ""]))


def _end(node: yaml.Node) -> int:
    """Return the offset at which a value ends.

    The end mark of a block is of no use, because it may be after comments that follow the block.
    """
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return max(map(_end, last if isinstance(last, tuple) else [last]))  # an alias ends at its anchor
    return int(node.end_mark.index)
