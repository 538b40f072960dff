"""Makes coreml_axes.tar.xz: ML Programs of two LSTMs with operations between them, which keep what each axis
means or do not.

Needs coremltools, which the tests do not: python make_coreml_axes.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder
from packing import pack

SIZE = 3  # of everything, so that shapes tell nothing
RANDOM = np.random.RandomState(3)
BETWEEN = {
    "there_and_back": lambda y: Builder.transpose(x=Builder.transpose(x=y, perm=[1, 0, 2]), perm=[1, 0, 2]),
    "expanded": lambda y: Builder.squeeze(x=Builder.expand_dims(x=y, axes=[1]), axes=[1]),
    "swapped": lambda y: Builder.transpose(x=y, perm=[2, 1, 0]),
    "rows_as_steps": lambda y: Builder.transpose(x=y, perm=[1, 0, 2]),
}


def lstm(x: object, name: str) -> object:
    shapes = {"weight_ih": (4 * SIZE, SIZE), "weight_hh": (4 * SIZE, SIZE), "bias": (4 * SIZE,)}
    weights = {own: (RANDOM.normal(size=shape) * 0.6).astype("f4") for own, shape in shapes.items()}
    zeros = np.zeros((SIZE, SIZE), "f4")
    return Builder.lstm(x=x, initial_h=zeros, initial_c=zeros, output_sequence=True, name=name, **weights)[0]


def program(between: object) -> object:
    shape = Builder.TensorSpec(shape=(SIZE, SIZE, SIZE))

    @Builder.program(input_specs=[shape], opset_version=ct.target.iOS15)
    def made(x: object) -> object:
        return lstm(between(lstm(x, "first")), "second")

    return made


with TemporaryDirectory() as folder:
    for name, between in BETWEEN.items():
        made = ct.convert(
            program(between),
            convert_to="mlprogram",
            skip_model_load=True,
            compute_precision=ct.precision.FLOAT32,
            minimum_deployment_target=ct.target.iOS15,
            pass_pipeline=ct.PassPipeline.EMPTY,
        )
        made.save(f"{folder}/{name}.mlpackage")
    pack("coreml_axes", Path(folder))
