"""The configuration of a run: a frozen dataclass that is read from the command line."""

import argparse
import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn, TypeVar

from training import __doc__ as how_to_start
from training.errors import UserError
from training.flags_of_others import own_flag
from training.processes.stop import parse_deadline

T = TypeVar("T")

DEFAULT_BATCH = 64
# The settings whose defaults depend on the optimizer. sgd and adamw have usual rates and decays, and no
# schedule; their --schedule step is StepLR(30, 0.1) as in pytorch/examples/imagenet. adadelta has the values
# of pytorch/examples/mnist.
OPTIMIZER_SETTINGS = ("lr", "weight_decay", "weight_decay_on", "schedule", "step_size", "gamma")
OPTIMIZER_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "sgd": (0.01, 0.0, "all", "constant", 30, 0.1),
    "adamw": (0.001, 0.01, "matrices", "constant", 30, 0.1),
    "adadelta": (1.0, 0.0, "all", "step", 1, 0.7),
}
# The settings of pytorch/vision/references/classification, by its README and its defaults, for 8 GPUs with 32
# images each.
TORCHVISION: dict[str, Any] = {
    "dataset": "imagefolder",
    "batch_size": 256,
    "optimizer": "sgd",
    "momentum": 0.9,
}
RESNET_SETTINGS = TORCHVISION | {"lr": 0.1, "weight_decay": 1e-4, "step_size": 30, "gamma": 0.1}
MOBILENET_SETTINGS = TORCHVISION | {"lr": 0.045, "weight_decay": 4e-5, "step_size": 1, "gamma": 0.98}
RECIPES = {
    "torchvision-resnet50": RESNET_SETTINGS | {"model": "resnet50", "epochs": 90},
    "torchvision-resnext50": RESNET_SETTINGS | {"model": "resnext50_32x4d", "epochs": 100},
    "torchvision-mobilenet-v2": MOBILENET_SETTINGS | {"model": "mobilenet_v2", "epochs": 300},
}
# By setting: another setting and its values, without which the setting has no effect. A data set of the user
# changes its images itself. Random images ("fake") replace images in files, and have the same flags.
FILE_DATA_SETS = ("dataset", ("imagefolder", "shards", "fake"))
NEEDED_SETTINGS = {
    "step_size": ("schedule", ("step",)),
    "gamma": ("schedule", ("step",)),
    "momentum": ("optimizer", ("sgd",)),
    "train_crop": FILE_DATA_SETS,
    "eval_crop": FILE_DATA_SETS,
    "eval_resize": FILE_DATA_SETS,
    "random_erase": FILE_DATA_SETS,
    "val_path": FILE_DATA_SETS,
    "fake_samples": ("dataset", ("fake",)),
}
# By setting: other settings that exclude it.
EXCLUDED_SETTINGS = {
    "batch_size": ("batch_size_per_gpu",),
    "channels_last": ("no_channels_last",),
    "compile": ("activation_checkpointing", "dataparallel"),
    "task": ("label_smoothing", "mixup", "cutmix"),
}
# The values and the longer help texts of flags.
AUGMENT, SCHEDULES = "auto none crop randaugment trivialaugment", "constant step cosine"
WORKERS_HELP = "loaders per rank, as many for validation, for data in files (default: its CPUs, at most 8)"
DECAYED_HELP = "matrices: no biases or norms (default: adamw matrices, else all)"
PRECISIONS = "fp32 bf16 fp16"
EMA_HELP = "decay of the evaluated running mean of the weights (EMA), at step n at most (1 + n) / (10 + n)"
SCHEDULE_HELP = (
    "step: LR * GAMMA each STEP_SIZE epochs (default: step with adadelta, STEP_SIZE or GAMMA, else constant)"
)


def _option(default: T, text: str, *, choices: str = "", critical: bool = False, minimum: int = 0) -> T:
    """Return a field that is also a flag with the help `text`. Its value is a choice, or at least `minimum`.

    The weights depend on `critical` settings, so a run refuses to resume from a checkpoint with another
    value.
    """
    # The defaults of OPTIMIZER_SETTINGS only fill in flags that an older checkpoint lacks: a new run has the
    # values of OPTIMIZER_DEFAULTS.
    facts = {"help": text, "choices": choices.split(), "critical": critical, "minimum": minimum}
    return dataclasses.field(default=default, metadata=facts)


_critical = functools.partial(_option, critical=True)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The settings of a run. Each field is a flag with its help: `batch_size` is --batch-size."""

    recipe: str = _option("", "flags of a published training; yours replace them", choices=" ".join(RECIPES))
    dataset: str = _critical("mnist", "mnist, cifar10, fake, imagefolder, shards, or PACKAGE.MODULE:FUNCTION")
    data_dir: str = _option("data", "folder of the data set; imagefolder, shards: of the training images")
    val_path: str = _option("", "imagefolder, shards: folder of validation images (default: DATA_DIR/val)")
    fake_samples: int = _option(2048, "random training images of --dataset fake", minimum=1)
    augment: str = _critical("auto", "random parts of images in files, half of them flipped", choices=AUGMENT)
    train_crop: int = _critical(224, "imagefolder, shards: side of training images, in pixels", minimum=1)
    eval_crop: int = _option(0, "imagefolder, shards: side of validation images (default: TRAIN_CROP)")
    eval_resize: int = _option(0, "imagefolder, shards: shorter side before this crop (default: 8/7 of it)")
    random_erase: float = _critical(0.0, "imagefolder, shards: share of training images with a part erased")
    mixup: float = _critical(0.0, "mix pairs of training images: alpha, such as 0.2; with CUTMIX one of both")
    cutmix: float = _critical(0.0, "paste a part of one training image into another: alpha, such as 1")
    workers: int = _option(-1, WORKERS_HELP, minimum=-1)

    model: str = _critical("convnet", "convnet, a name in torchvision.models, or PACKAGE.MODULE:FUNCTION")
    task: str = _critical("", "PACKAGE.MODULE:FUNCTION for loss and metrics (default: classification)")
    init_from: str = _option("", "start with the weights in this file, also of another number of classes")
    freeze: str = _critical("", "patterns of weights that are not trained, such as 'layer1.*,conv1.*'")
    head_lr: float = _critical(0.0, "learning rate of the head, the last layer with weights (default: LR)")

    epochs: int = _option(2, "passes over the training images", minimum=1)
    batch_size: int = _critical(0, f"images per step, over all processes (default: {DEFAULT_BATCH})")
    batch_size_per_gpu: int = _option(0, "images per step and process, in place of --batch-size")
    optimizer: str = _critical("adadelta", "", choices="sgd adamw adadelta")
    lr: float = _critical(1.0, "learning rate (default: sgd 0.01, adamw 0.001, adadelta 1.0)")
    momentum: float = _critical(0.9, "momentum of sgd")
    weight_decay: float = _critical(0.0, "weight decay (default: adamw 0.01, else 0)")
    weight_decay_on: str = _critical("matrices", DECAYED_HELP, choices="all matrices")
    schedule: str = _critical("step", SCHEDULE_HELP, choices=SCHEDULES)
    step_size: int = _critical(1, "epochs of --schedule step (default: adadelta 1, else 30)", minimum=1)
    gamma: float = _critical(0.7, "factor of --schedule step (default: adadelta 0.7, else 0.1)")
    warmup_epochs: float = _critical(0.0, "epochs of linear warm-up, also a fraction")
    seed: int = _critical(1, "seed of all random numbers, also of the initial weights", minimum=-(1 << 63))
    precision: str = _critical("fp32", "bf16, fp16: autocast; fp16 with a loss scale", choices=PRECISIONS)
    accumulate: int = _critical(1, "gradient accumulation: a step in parts, with less memory", minimum=1)
    clip_norm: float = _critical(0.0, "largest norm of the gradient over all weights; 0: no clipping")
    label_smoothing: float = _critical(0.0, "label smoothing, as in torch.nn.CrossEntropyLoss")
    ema: float = _critical(0.0, EMA_HELP)
    channels_last: bool = _option(False, "memory format channels_last (default: convolutions in bf16, fp16)")
    no_channels_last: bool = _option(False, "PyTorch's own memory format, in any case")
    compile: bool = _option(False, "compile the model (torch.compile) for the training steps")
    deterministic: bool = _option(False, "only kernels that give the same bits each time: slower on GPUs")
    activation_checkpointing: bool = _option(False, "recompute activations in backward: less memory")

    device: str = _option("auto", "", choices="auto cpu cuda")
    dataparallel: bool = _option(False, "one process drives all visible GPUs (torch.nn.DataParallel)")
    sync_bn: bool = _critical(False, "batch norms use the statistics of all GPUs (torch.nn.SyncBatchNorm)")
    find_unused_parameters: bool = _option(False, "for weights that some losses leave out: slower")
    launcher: str = _option("auto", "what starts the processes", choices="auto torchrun srun mpi spawn none")
    nproc_per_node: int = _option(0, "launcher spawn: processes on this node (default: one per GPU, else 1)")
    nnodes: int = _option(0, "launcher spawn: number of nodes (default: as Slurm says, else 1)")
    node_rank: int = _option(0, "launcher spawn with --nnodes: the index of this node, from 0")
    backend: str = _option("auto", "auto: nccl on GPUs, gloo on CPUs", choices="auto nccl gloo")
    dist_timeout: float = _option(600.0, "seconds that a process waits for another one")

    run_dir: str = _option("runs/training", "run folder, for all files that the run writes")
    resume: str = _option("auto", "auto: newest checkpoint; off; or a file, or a name in RUN_DIR/checkpoints")
    allow_config_change: bool = _option(False, "resume from a checkpoint with other settings")
    look: bool = _option(False, "print as JSON what a start would do, and exit; needs no torch")
    eval_batch: int = _option(0, "validation images per process at once (default: as many as in training)")
    evaluate: bool = _option(False, "evaluate the newest (or --resume's or --init-from's) weights and exit")
    save_every: int = _option(0, "steps between checkpoints, in addition to one after each epoch")
    keep: int = _option(3, "checkpoints to keep, in addition to the best", minimum=1)
    keep_epochs: bool = _option(False, "keep each epoch's checkpoint too, as checkpoint_epoch_1.pt and so on")
    export: str = _option("", "file for the weights at the end, or off (default: model.pt in RUN_DIR)")
    deadline: str = _option("auto", "stop before: auto (the job's end), off, seconds from now or since 1970")
    sync_every: int = _option(10, "most steps between points where all processes can stop", minimum=1)
    log_every: int = _option(20, "steps between progress lines", minimum=1)
    profile_steps: int = _option(0, "trace so many steps to RUN_DIR/trace.json.gz (https://ui.perfetto.dev)")
    log_to: str = _option(
        "", "send each event to wandb or mlflow (offline), or PACKAGE.MODULE:FUNCTION; a,b: both"
    )
    tensorboard: str = _option("auto", "curves in RUN_DIR/tensorboard if installed", choices="auto off")
    step_delay: float = _option(0.0, argparse.SUPPRESS)  # seconds to sleep after each step, for tests


class _Parser(argparse.ArgumentParser):
    """A parser of flags, which raises UserError, and which knows flags of other trainers."""

    def error(self, message: str) -> NoReturn:
        fix = "python -m training --help"
        unknown = re.match(r"unrecognized arguments: (-\S+)", message)
        if unknown and (flag := own_flag(unknown[1], map(_flag, Config.__dataclass_fields__))):
            fix = f"{flag} in place of {unknown[1].partition('=')[0]}; all flags: {fix}"
        raise UserError(message, fix=fix)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def parse(argv: list[str]) -> Config:
    """Return the configuration in a command line; raises UserError for the first wrong value."""
    parser = _Parser(
        prog="python -m training",
        usage="%(prog)s [OPTIONS]",
        description=how_to_start,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for field in dataclasses.fields(Config):
        name, text, choices = _flag(field.name), field.metadata["help"], field.metadata["choices"] or None
        if field.default and "default:" not in text and text != argparse.SUPPRESS:
            text = f"{text} (default: {field.default})".strip()
        if isinstance(field.default, bool):
            parser.add_argument(name, action="store_true", help=text)
        else:
            parser.add_argument(name, type=type(field.default), choices=choices, help=text)
    typed = vars(parser.parse_args(argv))
    config = Config(**_with_defaults(typed))
    parse_deadline(config.deadline, {}, 0)  # raises UserError for a wrong deadline
    for what, fix in (*_without_effect(typed, config), *_wrong_values(config), *_contradictions(config)):
        raise UserError(what, fix=fix)
    return config


def _with_defaults(typed: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the command line, with defaults that --recipe and --optimizer decide."""
    recipe = RECIPES.get(typed.get("recipe", ""), {})
    has_step = bool({"step_size", "gamma"} & {*typed, *recipe})
    typed = {name: value for name, value in recipe.items() if f"{name}_per_gpu" not in typed} | typed
    decided = dict(
        zip(OPTIMIZER_SETTINGS, OPTIMIZER_DEFAULTS[typed.get("optimizer", "adadelta")], strict=True)
    )
    if has_step:
        decided["schedule"] = "step"
    return decided | typed


def _without_effect(typed: dict[str, Any], config: Config) -> Iterator[tuple[str, str]]:
    """Yield the problem and the fix of each typed flag that has no effect with the other flags."""
    for name, (other, values) in NEEDED_SETTINGS.items():
        value = getattr(config, other)
        if name in typed and value not in values:
            shown = [word for word in values if word != "fake"] or values  # "fake" is not for trainings
            needed = f"{_flag(name)} needs {_flag(other)} {' or '.join(shown)}"
            yield f"{needed}, this is {_flag(other)} {value}", f"leave {_flag(name)} out"
    for name in ("nproc_per_node", "nnodes", "node_rank"):
        if getattr(config, name) and config.launcher != "spawn":
            yield f"{_flag(name)} needs --launcher spawn", f"with torchrun, give torchrun {_flag(name)}"
    if "weight_decay_on" in typed and not config.weight_decay:
        yield "--weight-decay-on needs a --weight-decay above 0", "leave --weight-decay-on out"
    if config.random_erase and config.augment == "none":
        yield "--augment none erases no part of an image", "leave --random-erase out"


def _wrong_values(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the problem and the fix of each value that is out of range."""
    for field in dataclasses.fields(config):
        value, minimum = getattr(config, field.name), field.metadata["minimum"]
        if isinstance(value, (int, float)) and not minimum <= value < float("inf"):
            yield f"{_flag(field.name)} is {value}, but must be at least {minimum}", ""
    for name in ("label_smoothing", "ema", "random_erase", "momentum"):
        if getattr(config, name) >= 1:
            yield f"{_flag(name)} is {getattr(config, name)}, but must be in 0..1, below 1", ""


def _contradictions(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the problem and the fix of values that contradict each other."""
    for first, others in EXCLUDED_SETTINGS.items():
        for other in others:
            if getattr(config, first) and getattr(config, other):
                yield f"{_flag(first)} and {_flag(other)} exclude each other", "give one of them"
    if config.warmup_epochs > config.epochs:
        what = f"--warmup-epochs is {config.warmup_epochs:g}, and the training has {config.epochs} epochs"
        yield f"{what}: the learning rate would never be reached", f"at most {config.epochs}"
    if config.head_lr and not config.lr:
        yield "--head-lr needs an --lr above 0", "--freeze for all but the head"
    if not config.dist_timeout:
        yield "--dist-timeout is 0, but must be more", "600, the default"
    if config.nnodes and config.node_rank >= config.nnodes:
        yield f"--node-rank {config.node_rank} is not below --nnodes {config.nnodes}", "count from 0"
    if config.dataparallel and config.launcher in {"torchrun", "srun", "mpi", "spawn"}:
        what = f"--dataparallel is one process, --launcher {config.launcher} is several"
        yield what, "leave one of them out"


def steps_to_end(config: Config, *, epoch: int, consumed: int, samples: int, batch: int) -> int:
    """Return the number of steps to the end of the last epoch.

    `epoch` is the number of trained epochs, and `consumed` the number of trained samples of the current
    epoch. `samples` is the number of samples of an epoch, and `batch` the number of samples of a step.
    """
    later = config.epochs - epoch - 1  # the number of epochs after the current epoch
    if later < 0:
        return 0
    return later * math.ceil(samples / batch) + math.ceil(max(samples - consumed, 0) / batch)


def global_batch(config: Config, processes: int) -> int:
    """Return the images per step of all processes.

    Raises UserError if the images can't be shared equally by the processes and the parts of a step.
    """
    parts = config.accumulate
    if config.batch_size_per_gpu:
        if config.batch_size_per_gpu % parts:
            what = f"--batch-size-per-gpu {config.batch_size_per_gpu} cannot be divided into {parts} parts"
            raise UserError(what, fix="another --accumulate")
        return config.batch_size_per_gpu * processes
    batch = config.batch_size or DEFAULT_BATCH
    unit = processes * parts
    if batch % unit:
        below, above = batch // unit * unit, (batch // unit + 1) * unit
        near = f"{below} or {above}" if below else str(above)
        in_parts = f" in {parts} parts each" if parts > 1 else ""
        what = f"--batch-size {batch} cannot be shared by {processes} processes{in_parts}"
        raise UserError(what, fix=f"--batch-size {near}")
    return batch


def critical_settings(config: Config, *, batch: int) -> dict[str, Any]:
    """Return the settings on which the weights depend. Checkpoints hold them, and a resume compares them."""
    return {name: getattr(config, name) for name in _critical_defaults()} | {"batch_size": batch}


def changed_settings(now: dict[str, Any], then: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the critical settings that differ and have an effect, as pairs (then, now)."""
    # A setting that an old checkpoint lacks had its default value, and the data count as unchanged.
    then = _critical_defaults() | {"data_checksum": now.get("data_checksum")} | then
    names = [name for name in then | now if name not in unused_settings(then) | unused_settings(now)]
    return {name: (then.get(name), now.get(name)) for name in names if then.get(name) != now.get(name)}


def _critical_defaults() -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(Config) if field.metadata["critical"]}


def unused_settings(settings: dict[str, Any]) -> set[str]:
    """Return the settings that have no effect together with the others."""
    names = {name for name, (other, values) in NEEDED_SETTINGS.items() if settings.get(other) not in values}
    return names if settings.get("weight_decay") else names | {"weight_decay_on"}
