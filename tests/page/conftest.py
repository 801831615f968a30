"""A page with every profile, as its tests use it; and Node.js, in which Python answers as in a browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from sbatchgen.base.units import Text
from sbatchgen.lab.page.site import Site
from sbatchgen.lab.page.static_files import PageInputs, write
from tests.conftest import REPOSITORY
from tests.scripts import CENTRES, PROFILES

PACKAGES = REPOSITORY / "build/page"
EVERY = ("msu", *sorted({*PROFILES, *CENTRES} - {"msu"}))
QUICKLY = 4  # how much work compression gets here


def need(what: str, *programs: str) -> None:
    """Skip what this machine cannot do; on CI, where it must be able to, fail.

    .ci/run sets NO_NPM where npm reaches no registry.
    """
    missing = [program for program in programs if shutil.which(program) is None]
    missing += (
        [] if (PACKAGES / "tests/complete").is_file() else ["build/page, which make page-packages fills"]
    )
    if missing:
        in_ci = os.environ.get("CI") == "true" and "NO_NPM" not in os.environ
        end = pytest.fail if in_ci else pytest.skip
        end(f"left out: {what}: no {', '.join(missing)}")


def write_page(to: Path, profiles: Sequence[str | Path], site: Site | None = None) -> Path:
    """Write a page of profiles, bundled ones by their names."""
    files = [name if isinstance(name, Path) else REPOSITORY / f"profiles/{name}.yaml" for name in profiles]
    site = site or Site(code=Text(str(REPOSITORY)))
    packages, cache = PACKAGES / "page/node_modules", PACKAGES / "compressed"
    write(
        PageInputs(
            profiles=files, site=site, site_file=None, packages=packages, cache=cache, quality=QUICKLY
        ),
        to,
    )
    return to


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a page with all profiles."""
    need("the page", "node", "npm")
    return write_page(tmp_path_factory.mktemp("page") / "site", EVERY)
