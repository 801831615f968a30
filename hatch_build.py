"""Puts templates, profiles, schemas and the training package into the wheel as data of sbatchgen."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# In the wheel `training` has a folder of its own, so that putting that folder on PYTHONPATH
# exposes nothing else. sbatchgen/inputs/search.py knows both layouts.
PLACES = {
    "templates": "sbatchgen/templates",
    "profiles": "sbatchgen/profiles",
    "schemas": "sbatchgen/schemas",
    "training": "sbatchgen/code/training",
}


class BundledFolders(BuildHookInterface[Any]):
    """Adds the bundled folders to a wheel; an editable install reads them where they lie."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before a build; `version` is "standard" or "editable"."""
        if version != "editable":
            build_data["force_include"].update(PLACES)
