"""A script adopted, as the tests of this folder do it."""

from __future__ import annotations

import functools

from sbatchgen.adopt.adoption import Adoption, adopt


@functools.cache  # several tests look at the same scripts
def adopted(text: str, file: str = "old.slurm") -> Adoption:
    user = {"HOME": "/home/me", "USER": "me"}
    return adopt(text, file=file, user=user, day="2026-01-31")
