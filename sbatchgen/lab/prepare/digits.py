"""Draws handwritten digits into files of MNIST's format, for tests and for machines without a network.

The same counts and seed must give the same bytes, so the order in which random numbers are drawn must stay.
"""

import itertools
import math
import random
import struct
from pathlib import Path

from sbatchgen.base import files

SIDE = 28  # the width and height of an image in pixels
PIXELS = SIDE * SIDE
# The names of the image file and the label file, by part of the data set.
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}

Point = tuple[float, float]  # x, y
Stroke = list[Point]  # the points that the pen joins without leaving the paper


def _arc(x: float, y: float, rx: float, ry: float, *ends: float) -> Stroke:
    """Return an arc of an ellipse around (x, y) with the radii rx and ry.

    `ends` has the angles of its first and its last point in degrees: 0 is to the right, and 90 is down.
    """
    start, stop = ends
    angles = [math.radians(start + (stop - start) * i / 16) for i in range(17)]
    return [(x + rx * math.cos(a), y + ry * math.sin(a)) for a in angles]


# The ways to write each digit, each with its strokes. x and y are from -1 to 1; y grows downwards.
WAYS_TO_WRITE: dict[int, list[list[Stroke]]] = {
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
    """Draw each dot with a soft round pen of `radius` pixels; skip dots that reach over the edge.

    `ink` is the value of a pixel below the middle of the pen, up to 255. A pixel keeps its darkest ink.
    """
    for x, y in dots:
        left, top = int(x - radius), int(y - radius)
        if left < 0 or top < 0 or x + radius >= SIDE - 1 or y + radius >= SIDE - 1:
            continue
        for row in range(top, int(y + radius) + 2):
            dy_squared = (row - y) * (row - y)
            pixel = row * SIDE + left
            for column in range(left, int(x + radius) + 2):
                dx = column - x
                covered = radius + 0.5 - math.sqrt(dx * dx + dy_squared)
                if covered > 0:  # the part of the pixel that the pen covers; all of it from 1 on
                    value = int(ink * covered) if covered < 1 else int(ink)
                    if value > canvas[pixel]:  # noqa: PLR1730 - max() takes twice as long
                        canvas[pixel] = value
                pixel += 1


def _image(rng: random.Random, ways: list[list[Point]], noise: bytes) -> bytearray:
    """Return an image of a digit: 28x28 uint8, row by row, where 0 is the color of the paper.

    `ways` has the dots of each way to write the digit. The digit is turned, slanted, bent and shifted at
    random. The image also has noise, and often a short line that does not belong to the digit.
    """
    uniform = rng.uniform
    noise_start = int(rng.random() * (len(noise) - PIXELS))
    canvas = bytearray(noise[noise_start : noise_start + PIXELS])
    turn, slant = uniform(-0.3, 0.3), uniform(-0.3, 0.3)
    width, height = uniform(4.5, 8.0), uniform(6.5, 9.5)
    bend, wave, phase = uniform(0.0, 0.14), uniform(1.5, 4.0), uniform(0.0, 6.28)
    cos, sin = math.cos(turn), math.sin(turn)
    middle_x, middle_y = 13.5 + uniform(-2.5, 2.5), 13.5 + uniform(-2.0, 2.0)
    dots = []
    for x, y in ways[int(rng.random() * len(ways))]:
        u = (x + slant * y + bend * math.sin(wave * y + phase)) * width
        v = (y + bend * math.sin(wave * x - phase)) * height
        dots.append((middle_x + cos * u - sin * v, middle_y + sin * u + cos * v))
    _draw(canvas, dots, uniform(0.5, 1.4), uniform(140, 255))
    if rng.random() < 0.35:
        x, y, angle, length = uniform(3, 24), uniform(3, 24), uniform(0.0, 6.28), uniform(3, 8)
        dx, dy = math.cos(angle) * 0.7, math.sin(angle) * 0.7
        _draw(canvas, [(x + dx * i, y + dy * i) for i in range(int(length / 0.7))], 0.5, uniform(100, 220))
    return canvas


def draw_idx_files(count: int, *, seed: str) -> tuple[bytes, bytes]:
    """Draw `count` digits; return the bytes of two IDX files, with the images and with the labels.

    Images are uint8 of the shape (count, 28, 28), and labels uint8 of the shape (count,) from 0 to 9.
    """
    rng = random.Random(seed)  # noqa: S311 - pictures, not secrets
    # Each image gets a piece of this noise, because new noise for each image would take long.
    noise = bytes(min(255, int(abs(rng.gauss(0, 28)))) for _ in range(1 << 16))
    dots = {digit: [_dots(strokes, 0.11) for strokes in ways] for digit, ways in WAYS_TO_WRITE.items()}
    labels = bytes(int(rng.random() * 10) for _ in range(count))
    # An IDX file begins with the type of its values (08: uint8), the number of dimensions, and their sizes.
    images = bytearray(struct.pack(">4i", 0x0803, count, SIDE, SIDE))
    for label in labels:
        images += _image(rng, dots[label], noise)
    return bytes(images), struct.pack(">2i", 0x0801, count) + labels


def write(folder: Path, *, train: int, test: int, seed: int) -> str:
    """Draw the files of MNIST, and write those that `folder` lacks; return a line about all files.

    `train` and `test` are the numbers of images. Raises FileExistsError if a file exists and has other data.
    """
    contents: dict[Path, bytes] = {}
    for part, count in (("train", train), ("test", test)):
        for name, data in zip(FILES[part], draw_idx_files(count, seed=f"{part}-{seed}"), strict=True):
            contents[folder / name] = data
    unwritten = {
        path: data for path, data in contents.items() if not path.is_file() or path.read_bytes() != data
    }
    for path in unwritten:
        if path.exists():
            raise FileExistsError(f"{path} exists and holds something else")
    folder.mkdir(parents=True, exist_ok=True)
    for path, data in unwritten.items():
        files.put(path, data)
    outcome = "written to" if unwritten else "are already in"
    return f"{train} training and {test} test images {outcome} {folder}"
