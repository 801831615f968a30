"""Flags of other trainers, and the flags of this one that mean the same.

The names are those of pytorch/examples (mnist, imagenet), torchvision's references/classification/train.py,
timm's train.py, Lightning's Trainer and Hugging Face's TrainingArguments, as their documentation lists them.
"""

import difflib
from collections.abc import Iterable

OURS = {
    "aa": "--augment",
    "accumulate-grad-batches": "--accumulate",
    "amp": "--precision bf16",
    "arch": "--model",
    "auto-augment": "--augment",
    "bf16": "--precision bf16",
    "checkpoint-hist": "--keep",
    "clip-grad": "--clip-norm",
    "clip-grad-norm": "--clip-norm",
    "cutmix-alpha": "--cutmix",
    "data-path": "--data-dir",
    "default-root-dir": "--run-dir",
    "dist-backend": "--backend",
    "dummy": "--dataset fake",
    "fp16": "--precision fp16",
    "grad-accum-steps": "--accumulate",
    "grad-checkpointing": "--activation-checkpointing",
    "gradient-accumulation-steps": "--accumulate",
    "gradient-clip-val": "--clip-norm",
    "img-size": "--train-crop",
    "label-smoothing-factor": "--label-smoothing",
    "learning-rate": "--lr",
    "log-every-n-steps": "--log-every",
    "log-interval": "--log-every",
    "logging-steps": "--log-every",
    "lr-gamma": "--gamma",
    "lr-scheduler": "--schedule",
    "lr-scheduler-type": "--schedule",
    "lr-step-size": "--step-size",
    "lr-warmup-epochs": "--warmup-epochs",
    "max-epochs": "--epochs",
    "max-grad-norm": "--clip-norm",
    "mixup-alpha": "--mixup",
    "model-ema": "--ema 0.9999",
    "model-ema-decay": "--ema",
    "no-cuda": "--device cpu",
    "num-train-epochs": "--epochs",
    "num-workers": "--workers",
    "opt": "--optimizer",
    "optim": "--optimizer",
    "output": "--run-dir",
    "output-dir": "--run-dir",
    "per-device-eval-batch-size": "--eval-batch",
    "per-device-train-batch-size": "--batch-size-per-gpu",
    "pretrained": "--init-from",
    "print-freq": "--log-every",
    "reprob": "--random-erase",
    "save-model": "--export",
    "save-steps": "--save-every",
    "save-total-limit": "--keep",
    "sched": "--schedule",
    "smoothing": "--label-smoothing",
    "test-batch-size": "--eval-batch",
    "test-only": "--evaluate",
    "torch-compile": "--compile",
    "torchcompile": "--compile",
    "train-crop-size": "--train-crop",
    "use-deterministic-algorithms": "--deterministic",
    "val-crop-size": "--eval-crop",
    "val-resize-size": "--eval-resize",
    "validation-batch-size": "--eval-batch",
    "wd": "--weight-decay",
    "weights": "--init-from",
}


def ours(word: str, known: Iterable[str]) -> str:
    """Return the flag for a word such as `--print-freq` or `--epoch=3`, of those known; "" without one."""
    name = word.lstrip("-").partition("=")[0].replace("_", "-")
    if name in OURS:
        return OURS[name]
    return next(iter(difflib.get_close_matches("--" + name, [*known], n=1, cutoff=0.8)), "")
