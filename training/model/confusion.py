"""The confusion matrix of a model. Shape suffixes: B samples, R rows, C columns.

Only the first classes are counted. A row is the right class, and a column the answer of the model. The last
column is for all other classes.
"""

from typing import Any

import torch

MAX_CLASSES = 10  # the first classes, which are counted


def count_confused(logits_BK: Any, y_B: torch.Tensor, *, classes: int) -> torch.Tensor:
    """Return the counts of a batch (float64) row by row. The CPU need not wait for a GPU."""
    counted = torch.arange(classes, device=y_B.device)
    right_BR = y_B.unsqueeze(1) == counted
    answer_BR = logits_BK.argmax(dim=1, keepdim=True) == counted
    answer_BC = torch.cat((answer_BR, ~answer_BR.any(dim=1, keepdim=True)), dim=1)
    return (right_BR.double().T @ answer_BC.double()).flatten()


def as_rows(counts: list[float]) -> list[list[int]]:
    """Return counts as R rows of R + 1 columns; an empty list without counts."""
    rows = int(len(counts) ** 0.5)
    return [[round(count) for count in counts[row * (rows + 1) :][: rows + 1]] for row in range(rows)]


def as_lines(rows: list[list[int]], names: tuple[str, ...]) -> list[str]:
    """Return the lines of a table for people; an empty list without rows.

    A last column without samples is omitted.
    """
    shown = [" ".join(name.split())[:20] for name in names[: len(rows)]] or [*map(str, range(len(rows)))]
    columns = 1 + len(rows) + any(row[-1] for row in rows)
    table = [
        ["right", *shown, "others"],
        *([head, *map(str, row)] for head, row in zip(shown, rows, strict=True)),
    ]
    widths = [max(len(line[column]) for line in table) for column in range(columns)]
    cells = [[cell.rjust(width) for cell, width in zip(line, widths, strict=False)] for line in table]
    return ["  ".join(line) for line in cells] if rows else []
