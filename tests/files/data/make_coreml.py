"""Makes coreml.tar.xz: an ML Program of two LSTMs, a neural network, and the weights that were put into them.

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


with TemporaryDirectory() as folder:
    exact = {"compute_precision": ct.precision.FLOAT32, "minimum_deployment_target": ct.target.iOS15}
    made = ct.convert(program, convert_to="mlprogram", skip_model_load=True, **exact)
    made.save(f"{folder}/layers.mlpackage")
    ct.convert(program, convert_to="neuralnetwork", skip_model_load=True).save(f"{folder}/older.mlmodel")
    given = {"encoder": FIRST, "both": SECOND}
    arrays = {f"{layer}/{name}": array for layer, held in given.items() for name, array in held.items()}
    np.savez(f"{folder}/weights.npz", **arrays)
    pack("coreml", Path(folder))
