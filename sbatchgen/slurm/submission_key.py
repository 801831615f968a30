"""How jobs of sbatchgen are found: by the folder of their script, which squeue(1) shows as their Command."""

import re
import secrets

FOLDER = "sbatchgen-"  # what the name of the folder starts with; the key of the submission follows
_KEY = re.compile(rf"/{FOLDER}([0-9a-f]+)-[^/]*/[^/]+$")  # arguments of the script may follow


def new_key() -> str:
    """Return a key that no other submission has; the keys of a chain's jobs start with such a key."""
    return secrets.token_hex(8)


def folder_name(key: str) -> str:
    """Return the start of the folder's name."""
    return f"{FOLDER}{key}-"


def key_of(command: str) -> str:
    """Return the key of the submission that has this Command; "" if it was not submitted by sbatchgen."""
    match = _KEY.search(command)
    return match[1] if match else ""
