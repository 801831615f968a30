"""Whether the name of a trainer is a file or a module of Python."""


def trainer_is_file(trainer: str) -> bool:
    """Return whether a trainer is a file, and not a module; {env:NAME} at its start stands for a folder."""
    return "/" in trainer or trainer.endswith(".py") or trainer.startswith("{env:")
