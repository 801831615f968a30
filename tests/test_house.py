"""What CONTRIBUTING and the page of an option name of the house is there."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "sbatchgen"
WINGS = ("base", "check", "jobs", "lab")


def _rows() -> list[list[str]]:
    """The modules to read of each row."""
    table = (REPOSITORY / "CONTRIBUTING.md").read_text().split("## The house")[1].split("\n## ")[0]
    rows = [line.split(" | ")[1] for line in table.splitlines() if line.startswith("| ")]
    return [names for row in rows if (names := re.findall(r"`([a-z_/]+)`", row))]


def test_a_way_through_a_wing_names_at_most_ten_modules_of_it() -> None:
    rows = _rows()
    assert len(rows) > 4
    for names in rows:
        wings = [wing for wing in WINGS if all((PACKAGE / wing / f"{name}.py").is_file() for name in names)]
        assert len(wings) == 1, names
        assert len(names) <= 10, names


def _passed() -> list[str]:
    """The functions and classes that an option passes."""
    page = (REPOSITORY / "docs/design/option.md").read_text()
    return re.findall(r"`((?:base|check|jobs|cli)\.[\w.]+)`", page)


@pytest.mark.parametrize("name", _passed())
def test_the_page_of_an_option_names_what_is_there(name: str) -> None:
    assert len(_passed()) > 12
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        module = PACKAGE.joinpath(*parts[:end]).with_suffix(".py")
        if module.is_file():
            value: object = importlib.import_module(".".join(("sbatchgen", *parts[:end])))
            for part in parts[end:]:
                value = getattr(value, part)
            return
    raise AssertionError(name)
