"""Let each Python of this environment find the checkout without the imports of the usual editable install.

The finder that an editable install writes imports importlib.util, pathlib and re. These take 25 to 60 ms of
CPU time at each start of Python, and tests start Python thousands of times. The Makefile calls this program before tests.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FINDER = '''"""Finds sbatchgen in its checkout; written by tests/light_finder.py."""
import sys
from _frozen_importlib_external import spec_from_file_location


class Checkout:
    """Finds one package: what else is in the checkout must not become an import name."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Return where the package is."""
        return spec_from_file_location(name, {place!r}) if name == "sbatchgen" else None


sys.meta_path.append(Checkout)
'''


def main() -> None:
    """Replace the finder that pip has just written."""
    finder = Path(sysconfig.get_path("purelib"), "_editable_impl_sbatchgen.py")
    if not finder.exists():
        raise SystemExit(f"error: no editable install: {finder} is missing")
    finder.write_text(FINDER.format(place=str(ROOT / "sbatchgen/__init__.py")))


if __name__ == "__main__":
    main()
