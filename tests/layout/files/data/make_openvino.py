"""Makes openvino.tar.xz: a model of three layers, one of layers that are no row, one of three cells, and what
OpenVINO computes.

Needs OpenVINO, which the tests do not: python make_openvino.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import openvino as ov
from openvino import opset8 as op
from packing import pack

ROWS, STEPS, INPUTS, HIDDEN = 2, 5, 2, 3
RANDOM = np.random.RandomState(3)
GATES = {"gru": 3, "lstm": 4, "rnn": 1}


def drawn(*shape: int) -> np.ndarray:
    return (RANDOM.normal(size=shape) * 0.6).astype("float32")


def whole(*numbers: int) -> ov.Node:
    return op.constant(np.array(numbers, "int64"))


def sequence(kind: str, x: ov.Node, inputs: int, direction: str, name: str, **options: object) -> ov.Node:
    """A layer over sequences, from zeros, with the outputs of both directions side by side."""
    ways = 2 if direction == "bidirectional" else 1
    rows = GATES[kind] * HIDDEN
    biases = rows + HIDDEN if options.get("linear_before_reset") else rows
    states = [op.constant(np.zeros((ROWS, ways, HIDDEN), "f4"))] * (2 if kind == "lstm" else 1)
    weights = [op.constant(drawn(ways, *shape)) for shape in ((rows, inputs), (rows, HIDDEN), (biases,))]
    make = getattr(op, f"{kind}_sequence")
    made = make(x, *states, whole(*[STEPS] * ROWS), *weights, HIDDEN, direction, **options)
    made.set_friendly_name(name)
    turned = op.transpose(made.output(0), whole(0, 2, 1, 3))
    return op.reshape(turned, whole(0, 0, ways * HIDDEN), True)


def cell(kind: str, x: ov.Node, name: str) -> ov.Node:
    """One step of a layer, from zeros."""
    rows = GATES[kind] * HIDDEN
    states = [op.constant(np.zeros((ROWS, HIDDEN), "f4"))] * (2 if kind == "lstm" else 1)
    weights = [op.constant(drawn(*shape)) for shape in ((rows, INPUTS), (rows, HIDDEN), (rows,))]
    usual = [["tanh"], [], []] if kind == "rnn" else []  # which this one alone has to be told
    made = getattr(op, f"{kind}_cell")(x, *states, *weights, HIDDEN, *usual)
    made.set_friendly_name(name)
    return made.output(0)


ZEROS, LEARNED = (op.constant(np.full((ROWS, 1, HIDDEN), number, "f4")) for number in (0, 0.5))


def lstm(
    x: ov.Node, inputs: int, name: str, h: ov.Node = ZEROS, c: ov.Node = ZEROS, steps: int = STEPS
) -> ov.Node:
    """A layer with its own axis of directions, and all its outputs."""
    weights = [
        op.constant(drawn(1, *shape)) for shape in ((4 * HIDDEN, inputs), (4 * HIDDEN, HIDDEN), (4 * HIDDEN,))
    ]
    made = op.lstm_sequence(x, h, c, whole(*[steps] * ROWS), *weights, HIDDEN, "forward")
    made.set_friendly_name(name)
    return made


def apart() -> ov.Model:
    """The inputs that a second layer may take besides all outputs of the first."""
    x = op.parameter([ROWS, STEPS, INPUTS], np.float32, name="x")
    state = op.parameter([ROWS, 1, HIDDEN], np.float32, name="state")
    first = lstm(x, INPUTS, "first")
    y, h, c = op.squeeze(first.output(0), whole(1)), first.output(1), first.output(2)
    between = op.tanh(y)
    between.set_friendly_name("between")
    made = [
        lstm(between, HIDDEN, "behind"),
        lstm(h, HIDDEN, "final", steps=1),
        lstm(y, HIDDEN, "learned", h=LEARNED),
        lstm(y, HIDDEN, "continued", h=h, c=c),
        lstm(y, HIDDEN, "given", h=state),
    ]
    return ov.Model([one.output(0) for one in made], [x, state], "apart")


with TemporaryDirectory() as folder:
    x = op.parameter([ROWS, STEPS, INPUTS], np.float32, name="x")
    y = sequence("gru", x, INPUTS, "forward", "encoder", linear_before_reset=True)
    y = sequence("lstm", y, HIDDEN, "bidirectional", "both")
    y = sequence("rnn", y, 2 * HIDDEN, "reverse", "last", activations=["relu"])
    layers = ov.Model([y], [x], "layers")
    ov.save_model(layers, f"{folder}/layers.xml", compress_to_fp16=False)
    ov.save_model(layers, f"{folder}/halves.xml", compress_to_fp16=True)
    step = op.parameter([ROWS, INPUTS], np.float32, name="x")
    cells = ov.Model([cell(kind, step, kind) for kind in GATES], [step], "cells")
    ov.save_model(cells, f"{folder}/cells.xml", compress_to_fp16=False)
    ov.save_model(apart(), f"{folder}/apart.xml", compress_to_fp16=False)
    core, inputs = ov.Core(), drawn(ROWS, STEPS, INPUTS)
    exactly = {"INFERENCE_PRECISION_HINT": "f32"}
    found = {"inputs": inputs, "outputs": core.compile_model(layers, "CPU", exactly)(inputs)[0]}
    steps = core.compile_model(cells, "CPU", exactly)(inputs[:, 0])
    np.savez(f"{folder}/outputs.npz", **found, **{kind: steps[place] for place, kind in enumerate(GATES)})
    pack("openvino", Path(folder))
