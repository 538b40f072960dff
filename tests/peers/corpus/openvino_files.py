"""The files of OpenVINO: its IR, in float32 and compressed to float16."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import openvino as ov
from openvino import opset8 as op
from specimens import HIDDEN, INPUTS, ROWS, STEPS, Specimens, pack, random

ROWS_OF = {"gru": 3, "lstm": 4, "rnn": 1}
EXACTLY = {"INFERENCE_PRECISION_HINT": "f32"}


def whole(*numbers):
    return op.constant(np.array(numbers, "int64"))


def layer(kind, x, weights, direction, name, **options):
    """A layer over sequences, from zeros, with the outputs of both directions side by side."""
    ways = 2 if direction == "bidirectional" else 1
    states = [op.constant(np.zeros((ROWS, ways, HIDDEN), "f4"))] * (2 if kind == "lstm" else 1)
    held = [op.constant(array) for array in weights]
    make = getattr(op, f"{kind}_sequence")
    made = make(x, *states, whole(*[STEPS] * ROWS), *held, HIDDEN, direction, **options)
    made.set_friendly_name(name)
    return op.reshape(op.transpose(made.output(0), whole(0, 2, 1, 3)), whole(0, 0, ways * HIDDEN), True)


def drawn(kind, inputs, direction, options):
    ways, rows = 2 if direction == "bidirectional" else 1, ROWS_OF[kind] * HIDDEN
    biases = rows + HIDDEN if options.get("linear_before_reset") else rows
    return [random(ways, *shape) for shape in ((rows, inputs), (rows, HIDDEN), (biases,))]


def run(y, x, numbers):
    return ov.Core().compile_model(ov.Model([y], [x], "run"), "CPU", EXACTLY)(numbers)[0]


LAYERS = (
    ("gru", "encoder", INPUTS, "forward", {"linear_before_reset": True}),
    ("lstm", "both", HIDDEN, "bidirectional", {}),
    ("rnn", "last", 2 * HIDDEN, "reverse", {"activations": ["relu"]}),
)


def save(made, folder):
    weights = [drawn(kind, inputs, way, options) for kind, _, inputs, way, options in LAYERS]
    known = {}
    x = y = op.parameter([ROWS, STEPS, INPUTS], np.float32, name="x")
    for (kind, name, inputs, way, options), held in zip(LAYERS, weights, strict=True):
        y = layer(kind, y, held, way, name, **options)
        alone, numbers = op.parameter([ROWS, STEPS, inputs], np.float32), random(ROWS, STEPS, inputs)
        known[name] = numbers, run(layer(kind, alone, held, way, name, **options), alone, numbers)
    numbers = random(ROWS, STEPS, INPUTS)
    model = ov.Model([y], [x], "layers")
    known["*"] = numbers, ov.Core().compile_model(model, "CPU", EXACTLY)(numbers)[0]
    ov.save_model(model, folder / "layers.xml", compress_to_fp16=False)
    made.add("layers.xml", "GRU, LSTM in both directions, RNN with relu from the end", known)
    x = op.parameter([ROWS, STEPS, INPUTS], np.float32, name="x")
    held, numbers = drawn("gru", INPUTS, "forward", {}), random(ROWS, STEPS, INPUTS)
    y = layer("gru", x, held, "forward", "before")
    ov.save_model(ov.Model([y], [x], "before"), folder / "before.xml", compress_to_fp16=False)
    made.add("before.xml", "GRU that resets before", {"before": (numbers, run(y, x, numbers))})


if __name__ == "__main__":
    made = Specimens({"openvino": ov.__version__})
    with TemporaryDirectory() as name:
        save(made, Path(name))
        pack("openvino", Path(name), made)
