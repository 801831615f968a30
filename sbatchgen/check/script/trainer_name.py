"""The name of a trainer: a file, or a module of Python."""


def trainer_is_file(trainer: str) -> bool:
    """Return whether the user's trainer is a file, not a module; {env:NAME} stands for a folder."""
    return "/" in trainer or trainer.endswith(".py") or trainer.startswith("{env:")
