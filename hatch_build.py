"""Puts the bundled folders into the wheel as data of sbatchgen, and man pages into its share/man."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# In the wheel `training` has a folder of its own, so that putting that folder on PYTHONPATH
# exposes nothing else. sbatchgen/jobs/inputs/search.py knows both layouts.
PLACES = {
    "templates": "sbatchgen/templates",
    "profiles": "sbatchgen/profiles",
    "schemas": "sbatchgen/schemas",
    "training": "sbatchgen/code/training",
    "docs/how-to": "sbatchgen/guide/how-to",
}


class BundledFolders(BuildHookInterface[Any]):
    """Adds the bundled folders to a wheel; an editable install reads them where they lie."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before a build; `version` is "standard" or "editable"."""
        if version == "editable":
            return
        build_data["force_include"].update(PLACES)
        sys.path.insert(0, self.root)
        from release.man import pages
        from sbatchgen.cli.guide import FIRST_PAGES

        guide = {f"docs/{page}.md": f"sbatchgen/guide/{page}.md" for page in FIRST_PAGES}
        build_data["force_include"].update(guide)
        self.made = tempfile.TemporaryDirectory()  # until this process ends
        for name, text in pages().items():
            Path(self.made.name, name).write_text(text)
            build_data["shared_data"][f"{self.made.name}/{name}"] = f"share/man/man1/{name}"
