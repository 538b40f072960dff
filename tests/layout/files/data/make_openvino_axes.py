"""Makes openvino_axes.tar.xz: models of two LSTMs with operators of the same kinds between them, which keep
what each axis means or do not, and one of sequences that are shorter than its input.

Needs OpenVINO, which the tests do not: python make_openvino_axes.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import openvino as ov
from openvino import opset8 as op
from packing import pack

SIZE = 3  # of everything, so that shapes tell nothing
RANDOM = np.random.RandomState(3)


def whole(*numbers: int) -> ov.Node:
    return op.constant(np.array(numbers, "int64"))


def lstm(x: ov.Node, name: str, inputs: int = SIZE, ways: int = 1, steps: int = SIZE) -> ov.Node:
    """A layer over sequences, from zeros: [rows, directions, steps, features]."""
    shapes = (4 * SIZE, inputs), (4 * SIZE, SIZE), (4 * SIZE,)
    weights = [op.constant((RANDOM.normal(size=(ways, *shape)) * 0.6).astype("f4")) for shape in shapes]
    zeros = op.constant(np.zeros((SIZE, ways, SIZE), "f4"))
    lengths = op.constant(np.full(SIZE, steps, "i8"))
    lengths.set_friendly_name(f"{name}_lengths")
    way = "bidirectional" if ways == 2 else "forward"
    made = op.lstm_sequence(x, zeros, zeros, lengths, *weights, SIZE, way)
    made.set_friendly_name(name)
    return made.output(0)


def turn(x: ov.Node, *order: int) -> ov.Node:
    return op.transpose(x, whole(*order))


BETWEEN = {
    "squeezed": lambda y: op.squeeze(y, whole(1)),
    "reshaped": lambda y: op.reshape(turn(y, 0, 2, 1, 3), whole(0, 0, -1), True),
    "by_numbers": lambda y: op.reshape(y, whole(SIZE, SIZE, SIZE), False),
    "there_and_back": lambda y: turn(turn(op.squeeze(y, whole(1)), 0, 2, 1), 0, 2, 1),
    "swapped": lambda y: turn(op.squeeze(y, whole(1)), 0, 2, 1),
    "rows_as_steps": lambda y: turn(op.squeeze(y, whole(1)), 1, 0, 2),
}
BOTH = {
    "both": lambda y: op.reshape(turn(y, 0, 2, 1, 3), whole(0, 0, -1), True),
    "both_by_features": lambda y: op.reshape(turn(y, 0, 2, 3, 1), whole(0, 0, -1), True),
    "both_not_turned": lambda y: op.reshape(y, whole(SIZE, SIZE, 2 * SIZE), False),
}

with TemporaryDirectory() as folder:
    for name, between in (BETWEEN | BOTH).items():
        x = op.parameter([SIZE, SIZE, SIZE], np.float32, name="x")
        ways = 2 if name in BOTH else 1
        y = lstm(between(lstm(x, "first", ways=ways)), "second", inputs=ways * SIZE)
        ov.save_model(ov.Model([y], [x], name), f"{folder}/{name}.xml", compress_to_fp16=False)
    x = op.parameter([SIZE, SIZE, SIZE], np.float32, name="x")
    short = ov.Model([lstm(x, "short", steps=2)], [x], "short")
    ov.save_model(short, f"{folder}/short.xml", compress_to_fp16=False)
    pack("openvino_axes", Path(folder))
