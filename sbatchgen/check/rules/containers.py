"""Rules about the containers that a script starts with Apptainer or with pyxis, the plugin of srun.

Sources: README and args.c of pyxis (0.24); Apptainer's user documentation (1.3), pages "Bind Paths and
Mounts", "Environment and Metadata", "GPU Support" and "Build Environment".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from sbatchgen.base.finding import Place
from sbatchgen.check.executables.program import SHELLS, programs
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.script.job import CONTAINER_EFFECT
from sbatchgen.check.script.launches import Launch
from sbatchgen.check.script.script import CONTAINER_WORDS, JobScript
from sbatchgen.check.script.script_containers import IMAGE_FILE, REGISTRY_SCHEME

RULES: Rules[JobScript] = Rules()

GPU_FLAGS = frozenset(("nv", "rocm", "nvccli", "intel-hpu"))  # flags of Apptainer that let GPUs in
# Variables with which Apptainer lets GPUs in, as with the flags.
GPU_VARIABLES = frozenset(("APPTAINER_NV", "APPTAINER_ROCM", "SINGULARITY_NV", "SINGULARITY_ROCM"))
# The mount of a driver, such as libcuda.so.1 or -B /lib/nvidia:/nv.
_DRIVER_MOUNT = re.compile(r"\blibcuda\.so|[ =,:]/\S*(?:cuda|nvidia)\S*:/")
# Words of scripts for AMD's GPUs, such as ROCR_VISIBLE_DEVICES and MI250X.
_AMD_WORD = re.compile(r"\b(?:rocm|ROCR_|HIP_|MIOPEN|HSA_|MI[123]\d\dX?\b|lumi)", re.IGNORECASE)
# A driver that the script mounts itself, or a GPU flag in a variable: --bind /opt/cuda, FLAGS="--nv".
_MANUAL_SETUP = re.compile(
    r"(?:--bind[ =]|-B[ =]?|_BIND(?:PATH)?=)\S*(?:nvidia|cuda|driver)|=[\"']?--(?:nv|nvccli|rocm)\b",
    re.IGNORECASE,
)
# A command that makes or copies an image, such as apptainer pull or rsync; the script may make this image.
_IMAGE_MAKER = re.compile(
    r"\b(?:apptainer|singularity|enroot)\b.* (?:pull|build|import)\b|\b(?:cp|rsync|sbcast|wget|curl) "
    r"|container-save"
)
_EXPANSION = re.compile(r"\$\{[^{}]*\}")  # such as ${DATA:-/data}
_HOME_FILE = r"[\"']?(?:~|\$\{?HOME\}?)/([\w./-]+)"  # such as ~/head_ip and ${HOME}/head_ip
_HOME_WRITE = re.compile(rf">\s*{_HOME_FILE}")  # such as > ~/head_ip
_HOME_READ = re.compile(rf"(?:-[efs]|cat|<)\s+{_HOME_FILE}")  # such as [ -f ~/head_ip ] and cat ~/head_ip
_SLURM_PROGRAMS = programs("slurm")  # sbatch, srun and the other commands of Slurm
# An option of a workflow program that submits jobs itself, such as snakemake --executor slurm.
_SLURM_EXECUTOR = re.compile(r"--(?:batch-?[sS]ystem|executor)[= ]slurm\b")
# Signs that the container has Slurm: the script mounts Slurm's files, or looks for its commands.
_SLURM_SIGNS = re.compile(
    r"(?i)munge|/slurm\b|slurm\.conf|bin/(?:scontrol|squeue|srun|sbatch)|--environment|which"
)
# Programs that images bring, such as python. People who start one beside a container mean the image's copy.
_IMAGE_PROGRAMS = programs("image-run")


@RULES.add("SB504", "warning", "a container without access to the GPUs", words=CONTAINER_WORDS)
def _hidden_gpus(script: JobScript) -> Iterator[Hit]:
    resources = script.resources
    if not (resources.gpu_count or resources.shards):
        return
    # Containers of pyxis see the job's GPUs without a flag.
    containers = [container for container in script.containers if not container.is_pyxis]
    commands = [container.command for container in containers if container.command]
    for command in commands:
        for word in command.words:
            if word.text in ("-nv", "-rocm"):
                what = f"Apptainer refuses {word.text}: one dash is for options of one letter"
                yield Hit(script.at_word(word), what, f"-{word.text}", "error")
                return
    set_variables = script.assigned_names | {name for name, _ in script.site_env}
    has_gpu_flag = any(GPU_FLAGS & container.options.keys() for container in containers)
    if has_gpu_flag or not containers or GPU_VARIABLES & set_variables:
        return
    if _AMD_WORD.search(script.text):
        return  # containers see the devices of AMD's GPUs in /dev without a flag
    if _MANUAL_SETUP.search(script.text) or _DRIVER_MOUNT.search(script.text):
        return
    for container in containers:
        is_instance = container.image.startswith("instance:")  # which was started with its own flags
        if container.trains and not is_instance:
            what = "the job asks for GPUs, but the container starts without --nv or --rocm and sees none"
            yield Hit(container.at, what, "apptainer exec --nv IMAGE; for AMD GPUs --rocm")


@RULES.add("SB505", "warning", "an image that the nodes can't find", words=CONTAINER_WORDS)
def _missing_image(script: JobScript) -> Iterator[Hit]:
    for container in script.containers:
        image = container.image
        if container.is_pyxis and IMAGE_FILE.search(image) and image[0] not in "./~$":
            what = f"'{image}' does not start with / or .: pyxis takes it for the name of an image in a "
            what += "registry, and the pull fails"
            yield Hit(container.at, what, f"./{image}, or the absolute path", "error")
            continue
        # A script that is checked, and not submitted, may be for another machine.
        is_submitted_here = script.makes_log_folders
        if not is_submitted_here or not image.startswith("/") or "$" in image:
            continue
        is_missing = os.path.isdir(Path(image).parent) and not os.path.exists(image)  # noqa: PTH110, PTH112
        if is_missing and not _IMAGE_MAKER.search(script.text):
            what = f"image '{image}' does not exist here"
            yield Hit(container.at, what, "prepare it (sbatchgen image), or fix the path")


@RULES.add(
    "SB506",
    "warning",
    "an image that every node pulls from a registry",
    applies=Applies.USUALLY & ~Applies.RENDERED,
    words=CONTAINER_WORDS,
)
def _repeated_pulls(script: JobScript) -> Iterator[Hit]:
    for container in script.containers:
        if not container.is_pulled:
            continue
        if "array" in script.resources:
            who_pulls = "each task of the array pulls"
        elif script.resources.nodes > 1:
            who_pulls = f"each of {script.resources.nodes} nodes pulls"
        else:
            continue
        what = f"{who_pulls} '{container.image}' from the registry when it starts: this takes minutes, and "
        what += "registries limit the number of pulls"
        fix = "apptainer pull x.sif IMAGE once, then use x.sif"
        if container.is_pyxis:
            fix = f"enroot import -o x.sqsh docker://{container.image} once, "
            fix += "and --container-image=$PWD/x.sqsh"
        yield Hit(container.at, what, fix)


@RULES.add(
    "SB520",
    "warning",
    "a meeting place in the home of a container",
    source="https://github.com/NVIDIA/pyxis",
    words=("container",),
    report="https://github.com/skypilot-org/skypilot/pull/9181",
)
def _meeting_place_at_home(script: JobScript) -> Iterator[Hit]:
    """Find a file in ~ that a node writes and other nodes wait for, if each node has its own home."""
    for launch in script.steps:
        step = launch.step
        if step is None or (launch.nodes or 0) < 2 or "container-image" not in step.options:
            continue
        if {"container-mount-home", "container-mounts"} & step.options.keys():
            continue
        for _, body in launch.shell_strings:
            written_files = {match[1] for match in _HOME_WRITE.finditer(body.source.text)}
            read_files = {match[1] for match in _HOME_READ.finditer(body.source.text)}
            if shared_files := written_files & read_files:
                what = f"~/{min(shared_files)} is in the container's home, which each node has for itself: "
                what += "what one node writes there, the others never see"
                fix = "a mounted folder that all nodes share: --container-mounts=$PWD"
                is_certain = "no-container-mount-home" in step.options  # else enroot.conf of the site decides
                yield Hit(script.at_word(launch.command), what, fix, None if is_certain else "info")
                return


@RULES.add("SB507", "info", "an image without a version tag", words=CONTAINER_WORDS)
def _image_without_version(script: JobScript) -> Iterator[Hit]:
    for container in script.containers:
        if not container.is_pulled or "@sha256:" in container.image:
            continue
        # The image's own name and tag: pytorch:24.04 of docker://nvcr.io/nvidia/pytorch:24.04.
        *_, name_and_tag = re.split(r"[/#]", REGISTRY_SCHEME.sub("", container.image))
        name, colon, tag = name_and_tag.partition(":")
        is_registry = "." in name and "/" not in container.image  # SB146 reports a registry without an image
        has_version = colon and tag != "latest"
        if "$" in name or is_registry or has_version:
            continue
        what = f"'{container.image}' names no version: a restart may get a newer image from the registry"
        yield Hit(container.at, what, f"name a version: {name}:24.04")


@RULES.add("SB508", "error", "a malformed mount", words=CONTAINER_WORDS)
def _malformed_mounts(script: JobScript) -> Iterator[Hit]:
    for container in script.containers:
        mount_option = "container-mounts" if container.is_pyxis else "bind"
        for option, value, _ in container.uses:
            # The script hides a value with $( ) or a placeholder such as <DIR>. A variable with several
            # options, such as BINDS="-B /a:/x -B /b:/y", has more than a value.
            if option != mount_option or any(mark in value for mark in ("$(", "`", "<", " -")):
                continue
            _, at = container.options[option]
            starts_with_empty_variable = "$" in script.lines[at.line - 1] and value.startswith(":")
            for mount in () if starts_with_empty_variable else _without_expansions(value).split(","):
                if reason := _pyxis_refusal(mount) if container.is_pyxis else _apptainer_refusal(mount):
                    fix = "write SRC:DST; for a path with a comma or a colon, mount a symbolic link"
                    yield Hit(at, f"'{mount}' in --{option}: {reason}", fix)


def _without_expansions(text: str) -> str:
    """Return a text with $X in place of expansions such as ${DATA:-/data}, whose colon divides no mount."""
    previous = ""
    while previous != text:  # a second turn is for ${A:-${B}}
        previous, text = text, _EXPANSION.sub("$X", text)
    return text


def _pyxis_refusal(mount: str) -> str:
    """Return the reason why pyxis refuses a mount; "" if pyxis takes the mount.

    Source: args.c, add_mount and parse_mount_option.
    """
    source, *rest = mount.split(":", 2)  # SRC, SRC:DST or SRC:DST:FLAGS
    if not source or (rest and not rest[0]):
        return "pyxis finds an empty path"
    if source[0] not in "./$~" and source not in ("tmpfs", "umount"):
        return "pyxis wants a source that starts with / or ."
    target = rest[0] if rest else source
    if target[0] not in "./$~":
        return "pyxis wants a target that starts with / or ."
    if len(rest) > 1 and rest[1].startswith("/"):
        return "a third path instead of flags"
    return ""


def _apptainer_refusal(mount: str) -> str:
    """Return the reason why Apptainer refuses a mount; "" if Apptainer takes the mount."""
    source, *rest = mount.split(":")  # SRC, SRC:DST or SRC:DST:FLAGS
    if rest and not source:
        return "an empty source"
    if len(rest) > 1 and rest[1].startswith("/"):
        return "a third path instead of ro or rw"
    return ""


@RULES.add("SB511", "info", "Python packages of the home folder in the container", words=CONTAINER_WORDS)
def _home_packages(script: JobScript) -> Iterator[Hit]:
    options_without_home = {"no-home", "contain", "containall"}
    for container in () if "PYTHONNOUSERSITE" in script.text else script.containers:
        has_home_by_default = not container.is_pyxis and not options_without_home & container.options.keys()
        home_option = container.options.get("container-mount-home")
        python_options = (tool.options.keys() for tool in container.inner_tools if tool.name == "python")
        ignores_home = any({"s", "I", "Is", "sI"} & options for options in python_options)  # python -s
        if not container.trains or not (home_option or has_home_by_default) or ignores_home:
            continue
        _, at = home_option or ("", container.at)
        what = "the home folder is mounted: packages in ~/.local override those of the image"
        yield Hit(at, what, "export PYTHONNOUSERSITE=1")


@RULES.add(
    "SB521",
    "warning",
    "a command of Slurm inside a container",
    source="https://github.com/NVIDIA/pyxis",
    report="https://github.com/Lightning-AI/pytorch-lightning/issues/21404",
)
def _slurm_inside(script: JobScript) -> Iterator[Hit]:
    """Find commands of Slurm that a shell in a container runs, as few images have Slurm and munge's key."""
    launches = [launch for launch in script.launches if launch.container or _has_image(launch)]
    if launches and _SLURM_SIGNS.search(script.text):
        return
    for launch in launches:
        for shell, tool in pairwise(launch.tools):
            option = shell.option("command") if shell.name in SHELLS else None  # the -c of bash -c STRING
            string = option.value_word if option else None
            if not string or tool.body.source.has_one_position or string.source is not script.body.source:
                continue  # the value of a variable, whose $( ) ran in the script
            trap_commands = [command for _, trap in tool.body.traps for command in trap.commands]
            is_single_quoted = string.text.startswith("'")  # $( ) in double quotes runs in the script
            for command in (*tool.body.commands, *trap_commands):
                runs_in_container = is_single_quoted or not command.context.in_substitution
                if command.name in _SLURM_PROGRAMS and runs_in_container:
                    what = f"{command.name} runs inside the container, and few images have Slurm"
                    fix = f"{command.name} in the script, before srun, and its result in an exported variable"
                    yield Hit(script.at_word(launch.command), what, fix)
                    return
        if executor := _SLURM_EXECUTOR.search(" ".join(word.text for word in launch.program.rest)):
            what = f"{launch.program.name} {executor[0]} calls Slurm's commands inside the container, and "
            what += "few images have Slurm"
            fix = f"install {launch.program.name} outside of the container, and give its jobs the image"
            yield Hit(script.at_word(launch.command), what, fix)
            return


def _has_image(launch: Launch) -> bool:
    """Return whether srun starts the launch in a container of pyxis."""
    return launch.step is not None and "container-image" in launch.step.options


@RULES.add(
    "SB522",
    "warning",
    "a command outside of the container",
    source="bash(1)",
    words=CONTAINER_WORDS,
    report="https://github.com/NVIDIA/pyxis/issues/157",
)
def _command_outside(script: JobScript) -> Iterator[Hit]:
    """Find a command after ; or &&, such as B in srun --container-image=X A; B."""
    text, commands = script.body.source.text, script.body.commands
    starter_ids = {id(container.command) for container in script.containers}
    for first, second in pairwise(commands):
        is_in_script = first.source is script.body.source  # not in a string, which has offsets of its own
        if id(first) not in starter_ids or first.line != second.line or not is_in_script:
            continue
        operator = text[first.end : second.at].strip()
        if operator in (";", "&&") and second.name in _IMAGE_PROGRAMS:
            what = f"bash ends the step at {operator}: {second.name} runs outside of the container"
            fix = f"srun --container-image=IMAGE bash -c '... {operator} {second.name} ...'"
            yield Hit(script.at_command(second), what, fix)
            return


@RULES.add("SB515", "info", "a named container that later jobs reuse", words=("container",))
def _named_containers(script: JobScript) -> Iterator[Hit]:
    for container in script.containers:
        name, at = container.options.get("container-name", ("", Place()))
        if name and "$" not in name and container.image and not name.endswith((":create", ":no_exec")):
            what = f"the container '{name}' may stay on the node: a later job that names it gets its old "
            what += f"image, not '{container.image}'"
            yield Hit(at, what, f"--container-name={name.partition(':')[0]}-$SLURM_JOB_ID, or no name")


@RULES.add("SB519", "warning", "a script that runs in the container of its steps")
def _script_in_container(script: JobScript) -> Iterator[Hit]:
    option = script.options.get("environment")
    if option and script.named("srun", "scontrol"):
        fix = f"srun --environment={option.value} PROGRAM, and no directive"
        yield Hit(script.at_use(option), f"--environment {CONTAINER_EFFECT}", fix)
