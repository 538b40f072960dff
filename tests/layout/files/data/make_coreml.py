"""Makes coreml.tar.xz: an ML Program of two LSTMs, one of LSTMs that are no row, a neural network, and the
weights that were put into the first.

Needs coremltools, which the tests do not: python make_coreml.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder
from packing import pack

STEPS, INPUTS, HIDDEN = 5, 2, 3
RANDOM = np.random.RandomState(3)


def drawn(inputs: int, suffix: str = "") -> dict[str, np.ndarray]:
    shapes = {"weight_ih": (4 * HIDDEN, inputs), "weight_hh": (4 * HIDDEN, HIDDEN), "bias": (4 * HIDDEN,)}
    return {
        f"{name}{suffix}": (RANDOM.normal(size=shape) * 0.6).astype("f4") for name, shape in shapes.items()
    }


FIRST, SECOND = drawn(INPUTS), {**drawn(HIDDEN), **drawn(HIDDEN, "_back")}


def lstm(x: object, weights: dict[str, np.ndarray], direction: str, name: str, width: int) -> object:
    state = np.zeros((1, width), "f4")
    options = {"direction": direction, "output_sequence": True, "name": name}
    return Builder.lstm(x=x, initial_h=state, initial_c=state, **weights, **options)[0]


@Builder.program(input_specs=[Builder.TensorSpec(shape=(STEPS, 1, INPUTS))], opset_version=ct.target.iOS15)
def program(x: object) -> object:
    y = lstm(x, FIRST, "reverse", "encoder", HIDDEN)
    return lstm(y, SECOND, "bidirectional", "both", 2 * HIDDEN)


ZEROS, LEARNED = np.zeros((1, HIDDEN), "f4"), np.full((1, HIDDEN), 0.5, "f4")


def plain(
    x: object, name: str, inputs: int, h: object = ZEROS, c: object = ZEROS, every: bool = True
) -> object:
    return Builder.lstm(
        x=x, initial_h=h, initial_c=c, **drawn(inputs), direction="forward", output_sequence=every, name=name
    )


@Builder.program(
    input_specs=[Builder.TensorSpec(shape=(STEPS, 1, INPUTS)), Builder.TensorSpec(shape=(1, HIDDEN))],
    opset_version=ct.target.iOS15,
)
def apart(x: object, state: object) -> object:
    """The inputs that a second LSTM may take besides all outputs of the first."""
    y, h, c = plain(x, "first", INPUTS)
    one = Builder.expand_dims(x=h, axes=[0], name="one")
    last = plain(y, "last", HIDDEN, every=False)[0]
    return (
        plain(Builder.tanh(x=y, name="between"), "behind", HIDDEN)[0],
        plain(one, "final", HIDDEN)[0],
        plain(last, "of_last", HIDDEN)[0],
        plain(y, "learned", HIDDEN, h=LEARNED)[0],
        plain(y, "continued", HIDDEN, h=h, c=c)[0],
        plain(y, "given", HIDDEN, h=state)[0],
    )


with TemporaryDirectory() as folder:
    exact = {"compute_precision": ct.precision.FLOAT32, "minimum_deployment_target": ct.target.iOS15}
    made = ct.convert(program, convert_to="mlprogram", skip_model_load=True, **exact)
    made.save(f"{folder}/layers.mlpackage")
    ct.convert(apart, convert_to="mlprogram", skip_model_load=True, **exact).save(f"{folder}/apart.mlpackage")
    ct.convert(program, convert_to="neuralnetwork", skip_model_load=True).save(f"{folder}/older.mlmodel")
    given = {"encoder": FIRST, "both": SECOND}
    arrays = {f"{layer}/{name}": array for layer, held in given.items() for name, array in held.items()}
    np.savez(f"{folder}/weights.npz", **arrays)
    pack("coreml", Path(folder))
