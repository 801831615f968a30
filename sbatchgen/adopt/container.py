"""The container of the training -> runtime, image, mounts and working folder. Source: the README of pyxis."""

from __future__ import annotations

from collections.abc import Iterator

from sbatchgen.adopt.draft import Draft
from sbatchgen.bash.launch import Tool, ToolOption
from sbatchgen.job.launches import Launch


def read(draft: Draft, launch: Launch) -> None:
    """Take over the container that a launch passes through, or srun --container-image."""
    if launch.container:
        _apptainer(draft, launch.container)
    elif launch.step and launch.step.option("container-image"):
        _enroot(draft, launch, launch.step)


def _enroot(draft: Draft, launch: Launch, step: Tool) -> None:
    made: dict[str, object] = {}
    for option in step.given:
        if option.name == "container-image":
            if image := _path(draft, step, option, file=True):
                made["image"] = image
        elif option.name == "container-mounts":
            made["mounts"] = [*_list(draft, step, option)]
        elif option.name == "container-workdir":
            made["workdir"] = _path(draft, step, option)
        elif option.name.removeprefix("no-").startswith("container-") and option.name not in (
            "container-env",  # all that the script exports gets in
            "no-container-mount-home",
        ):
            draft.lose(f"--{option.name} of srun")
    program = launch.program
    if "workdir" not in made and not program.module and not program.name.startswith("/"):
        draft.lose("the image's own working folder counts, which is not known: add --container-workdir")
    _take(draft, "enroot", made)


def _apptainer(draft: Draft, tool: Tool) -> None:
    flags = {option.name for option in tool.given} & {"nv", "rocm"}
    made: dict[str, object] = {}
    if tool.name.endswith(" run"):
        draft.lose(f"{tool.name}: what the image starts is not known; write exec")
    image = draft.file(tool.operands[0], tool.body) if tool.operands else None
    if image is None:
        draft.lose("the script does not say which image is started")
    else:
        made["image"] = image
    binds: list[str] = []
    for option in tool.given:
        if option.name == "bind":
            binds += _list(draft, tool, option)
        elif option.name not in flags:
            draft.lose(f"--{option.name} of {tool.name}")
    if binds:
        made["binds"] = binds
    if draft.job["mode"] != "cpu" and flags != {"nv"}:
        made["gpu_flag"] = f"--{min(flags)}" if flags else ""
    _take(draft, "apptainer", made)


def _take(draft: Draft, name: str, keys: dict[str, object]) -> None:
    draft.profile["runtime"] = name
    draft.profile["runtimes"] = {name: keys}
    draft.add(draft.lines, "understood", f"{name}: {keys.get('image', '')}")


def _path(draft: Draft, tool: Tool, option: ToolOption, *, file: bool = False) -> str | None:
    """Return the path in the value of an option."""
    path = option.value if option.value and not file else None
    if path is None and (word := option.own_word(tool.body)):
        path = (draft.file if file else draft.path)(word, tool.body)
    if path is None:
        draft.lose(f"--{option.name}: the path is known only when the job runs")
    return path


def _list(draft: Draft, tool: Tool, option: ToolOption) -> Iterator[str]:
    yield from filter(None, (_path(draft, tool, option) or "").split(","))
