#!/usr/bin/env python3
"""How many JPEGs a loader prepares in a CPU second, by each decoder that is installed.

    python benchmarks/decoders.py        # a minute; needs torchvision and Pillow

Each image of 500x375 pixels is decoded, cut at random to 224x224 and mirrored, as --dataset imagefolder does
it, in one thread, in turn by each way. torchvision.io is left out where its library does not load, turbojpeg
(PyTurboJPEG) where it is not installed. The last column: how much a value differs from the first way at most.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this file's folder

import torch

from benchmarks.machine import machine
from tests.training import vision

IMAGES, ROUNDS = 60, 7


def ways() -> dict[str, Callable[[bytes], torch.Tensor]]:
    """From the bytes of a file to what the model gets."""
    vision.fit()
    import torchvision  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from PIL import Image
    from torchvision.transforms import v2  # type: ignore[import-not-found,import-untyped,unused-ignore]

    steps = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
    cut, to_tensor = v2.Compose(steps), v2.PILToTensor()

    def pillow(data: bytes) -> Any:
        return Image.open(io.BytesIO(data)).convert("RGB")

    made: dict[str, Callable[[bytes], Any]] = {
        "Pillow, cut by Pillow": lambda data: to_tensor(cut(pillow(data))),
        "Pillow, cut by torch": lambda data: cut(to_tensor(pillow(data))),
    }
    if hasattr(torch.ops.image, "decode_jpeg"):
        mode = torchvision.io.ImageReadMode.RGB.value
        made["torchvision.io, cut by torch"] = lambda data: cut(
            torch.ops.image.decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode, False)
        )
    try:
        from turbojpeg import TJPF_RGB, TurboJPEG  # type: ignore[import-not-found,unused-ignore]

        decoder = TurboJPEG()
    except (ImportError, RuntimeError):
        return made
    made["turbojpeg, cut by torch"] = lambda data: cut(
        torch.from_numpy(decoder.decode(data, pixel_format=TJPF_RGB)).permute(2, 0, 1)
    )
    return made


def photographs() -> list[bytes]:
    """Files as large in bytes as photographs of this size are."""
    from PIL import Image

    files = []
    for number in range(IMAGES):
        coarse = Image.effect_noise((125, 94), 60 + number % 40)
        colours = [coarse.rotate(90 * turn).resize((500, 375), Image.Resampling.BICUBIC) for turn in range(3)]
        file = io.BytesIO()
        Image.merge("RGB", colours).save(file, "jpeg", quality=90)
        files.append(file.getvalue())
    return files


def main() -> int:
    """Measure and print."""
    torch.set_num_threads(1)
    files, seconds = photographs(), {name: list[float]() for name in ways()}
    images: dict[str, torch.Tensor] = {}
    for _ in range(ROUNDS):
        for name, way in ways().items():
            torch.manual_seed(1)
            began = time.process_time()
            made = [way(data) for data in files]
            seconds[name].append((time.process_time() - began) / len(files))
            images[name] = torch.stack(made).int()
    first = next(iter(images.values()))
    print(machine())
    for name, each in seconds.items():
        differs = int((images[name] - first).abs().max())
        print(f"{name:30} {1 / median(each):5.0f} images/CPU s  {1000 * median(each):.2f} ms  {differs}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
