"""Digits in handwriting, in the file format of MNIST, for tests and machines without a network.

The same counts and seed give the same bytes.
"""

import itertools
import math
import random
import struct
from pathlib import Path

from sbatchgen.base import files

SIDE = 28  # pixels
PIXELS = SIDE * SIDE
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}

Point = tuple[float, float]
Stroke = list[Point]


def _arc(x: float, y: float, rx: float, ry: float, *turn: float) -> Stroke:
    """Return an arc of an ellipse around (x, y) with the radii rx and ry.

    `turn` has two angles in degrees, between which the arc is. 0 is to the right, and 90 is down.
    """
    start, stop = turn
    angles = [math.radians(start + (stop - start) * i / 16) for i in range(17)]
    return [(x + rx * math.cos(a), y + ry * math.sin(a)) for a in angles]


# The strokes of one or more ways to write each digit, in a box of -1..1 with x to the right and y downwards.
SHAPES: dict[int, list[list[Stroke]]] = {
    0: [[_arc(0, 0, 0.6, 0.95, 0, 360)], [_arc(0, 0, 0.75, 0.85, -60, 300)]],
    1: [[[(0.05, -0.95), (0, 0.95)]], [[(-0.35, -0.55), (0.1, -0.95), (0.1, 0.95)]]],
    2: [
        [_arc(0, -0.45, 0.55, 0.5, 190, 380), [(0.52, -0.28), (-0.6, 0.92), (0.65, 0.92)]],
        [
            _arc(0, -0.45, 0.5, 0.5, 200, 400),
            _arc(-0.3, 0.7, 0.3, 0.22, 300, 60),
            [(0.38, -0.13), (-0.5, 0.85)],
            [(-0.5, 0.75), (0.65, 0.9)],
        ],
    ],
    3: [
        [_arc(-0.05, -0.48, 0.5, 0.46, 200, 450), _arc(-0.05, 0.46, 0.58, 0.48, 270, 520)],
        [[(-0.5, -0.9), (0.5, -0.9), (-0.05, -0.15)], _arc(-0.05, 0.4, 0.55, 0.55, 270, 510)],
    ],
    4: [
        [[(-0.1, -0.95), (-0.6, 0.25), (0.65, 0.25)], [(0.3, -0.4), (0.25, 0.95)]],
        [[(-0.5, -0.9), (-0.5, 0.05), (0.45, 0.0)], [(0.45, -0.95), (0.4, 0.95)]],
    ],
    5: [[[(0.55, -0.92), (-0.4, -0.92), (-0.48, -0.1)], _arc(-0.05, 0.4, 0.55, 0.52, 230, 500)]],
    6: [
        [[(0.3, -0.95), (-0.25, -0.4), (-0.55, 0.3)], _arc(0, 0.42, 0.55, 0.5, 190, 550)],
        [_arc(0.35, 0.1, 0.85, 1.05, 180, 260), _arc(0, 0.5, 0.5, 0.42, 180, 540)],
    ],
    7: [
        [[(-0.55, -0.9), (0.55, -0.9), (-0.1, 0.95)]],
        [[(-0.55, -0.85), (0.55, -0.92), (0.0, 0.95)], [(-0.3, 0.05), (0.45, 0.0)]],
    ],
    8: [[_arc(0, -0.47, 0.45, 0.43, 90, 450), _arc(0, 0.47, 0.55, 0.48, 270, 630)]],
    9: [
        [_arc(0, -0.42, 0.52, 0.48, 0, 360), [(0.52, -0.4), (0.4, 0.3), (0.15, 0.95)]],
        [_arc(0, -0.45, 0.48, 0.45, -20, 340), [(0.48, -0.5), (0.45, 0.95)]],
    ],
}


def _dots(strokes: list[Stroke], gap: float) -> list[Point]:
    """Return points along the strokes, about `gap` apart."""
    dots = []
    for stroke in strokes:
        for (x0, y0), (x1, y1) in itertools.pairwise(stroke):
            steps = max(1, round(math.hypot(x1 - x0, y1 - y0) / gap))
            dots += [(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps) for i in range(steps)]
        dots.append(stroke[-1])
    return dots


def _draw(canvas: bytearray, dots: list[Point], radius: float, ink: float) -> None:
    """Draw each dot with a soft round pen of `radius` pixels; a pixel keeps its darkest ink."""
    for x, y in dots:
        left, top = int(x - radius), int(y - radius)
        if left < 0 or top < 0 or x + radius >= SIDE - 1 or y + radius >= SIDE - 1:
            continue
        for row in range(top, int(y + radius) + 2):
            dy2 = (row - y) * (row - y)
            at = row * SIDE + left
            for column in range(left, int(x + radius) + 2):
                dx = column - x
                cover = radius + 0.5 - math.sqrt(dx * dx + dy2)
                if cover > 0:
                    value = int(ink * cover) if cover < 1 else int(ink)
                    if value > canvas[at]:  # noqa: PLR1730 - max() takes twice as long
                        canvas[at] = value
                at += 1


def _image(rng: random.Random, shapes: list[list[Point]], noise: bytes) -> bytearray:
    """Return a digit as 28x28 uint8, row by row, where 0 is paper.

    The digit is turned, slanted, bent and shifted at random, and has noise.
    """
    uniform = rng.uniform
    begin = int(rng.random() * (len(noise) - PIXELS))
    canvas = bytearray(noise[begin : begin + PIXELS])
    turn, slant = uniform(-0.3, 0.3), uniform(-0.3, 0.3)
    wide, high = uniform(4.5, 8.0), uniform(6.5, 9.5)
    bend, wave, phase = uniform(0.0, 0.14), uniform(1.5, 4.0), uniform(0.0, 6.28)
    cos, sin = math.cos(turn), math.sin(turn)
    x0, y0 = 13.5 + uniform(-2.5, 2.5), 13.5 + uniform(-2.0, 2.0)
    dots = []
    for x, y in shapes[int(rng.random() * len(shapes))]:
        u = (x + slant * y + bend * math.sin(wave * y + phase)) * wide
        v = (y + bend * math.sin(wave * x - phase)) * high
        dots.append((x0 + cos * u - sin * v, y0 + sin * u + cos * v))
    _draw(canvas, dots, uniform(0.5, 1.4), uniform(140, 255))
    if rng.random() < 0.35:
        x, y, angle, length = uniform(3, 24), uniform(3, 24), uniform(0.0, 6.28), uniform(3, 8)
        dx, dy = math.cos(angle) * 0.7, math.sin(angle) * 0.7
        _draw(canvas, [(x + dx * i, y + dy * i) for i in range(int(length / 0.7))], 0.5, uniform(100, 220))
    return canvas


def make(count: int, *, seed: str) -> tuple[bytes, bytes]:
    """Return the bytes of two IDX files: images (count, 28, 28) uint8, and labels (count,) uint8 in 0..9."""
    rng = random.Random(seed)  # noqa: S311 - pictures, not secrets
    noise = bytes(min(255, int(abs(rng.gauss(0, 28)))) for _ in range(1 << 16))
    dots = {digit: [_dots(strokes, 0.11) for strokes in ways] for digit, ways in SHAPES.items()}
    labels = bytes(int(rng.random() * 10) for _ in range(count))
    images = bytearray(struct.pack(">4i", 0x803, count, SIDE, SIDE))
    for label in labels:
        images += _image(rng, dots[label], noise)
    return bytes(images), struct.pack(">2i", 0x801, count) + labels


def write(folder: Path, *, train: int, test: int, seed: int) -> str:
    """Write the files of MNIST that `folder` lacks; return a line about these files.

    `train` and `test` are the numbers of images. Raises FileExistsError if a file exists and holds other
    data.
    """
    contents: dict[Path, bytes] = {}
    for part, count in (("train", train), ("test", test)):
        for name, data in zip(FILES[part], make(count, seed=f"{part}-{seed}"), strict=True):
            contents[folder / name] = data
    missing = {
        path: data for path, data in contents.items() if not path.is_file() or path.read_bytes() != data
    }
    for path in missing:
        if path.exists():
            raise FileExistsError(f"{path} exists and holds something else")
    folder.mkdir(parents=True, exist_ok=True)
    for path, data in missing.items():
        files.put(path, data)
    outcome = "written to" if missing else "are already in"
    return f"{train} training and {test} test images {outcome} {folder}"
