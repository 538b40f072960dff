"""Layers in integers, and programs of them by this project's builds: as C, and as machine code of a core.

A program runs STEPS steps, or twice as many, so the difference is what the steps take.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import stepnet as sn
from bench.devices.programs import STEPS, Programs, programs
from stepnet.build import DeviceBuild, build

HERE = Path(__file__).parent
INPUTS, SEED = 12, 0
LARGEST = {"int8": 127, "int16": 32767}


@dataclass(frozen=True)
class Layer:
    """A layer to build. cell: `lstm` or `gru`. units: its memories. activations: the dtype of inputs and of
    vectors that are multiplied by weights.
    """

    cell: str
    units: int
    activations: str

    def parameters(self) -> dict[str, np.ndarray]:
        """Returns its parameters in float32, random, of the size that trained layers have."""
        random = np.random.default_rng(SEED)
        shapes = sn.cells.CELLS[self.cell].parameters(inputs=INPUTS, hidden=self.units)
        deviation = self.units**-0.5
        return {
            name: (random.normal(size=each.shape) * deviation).astype("f4") for name, each in shapes.items()
        }

    def model(self) -> sn.RNN:
        """Returns the layer in float32."""
        return sn.cells.rnn(self.cell, self.parameters())

    def last(self) -> np.ndarray:
        """Returns what it gives at the last step that runs, in float32."""
        return self.model()(samples()[:1])[0][0, -1]


def samples() -> np.ndarray:
    """Returns sequences (16, 2 STEPS, INPUTS) that scales are found with; the first one runs."""
    return np.random.default_rng(SEED + 1).normal(size=(16, 2 * STEPS, INPUTS)).astype("f4")


def built(layer: Layer, folder: Path, target: Any) -> DeviceBuild:
    """Returns a build of a layer, as C or for a core."""
    small = sn.quantize(layer.model(), [samples()], "int8", activations=layer.activations)
    made = build(small, folder, name="m", target=target, inputs=INPUTS)
    assert isinstance(made, DeviceBuild)
    return made


def codes(values: np.ndarray, scale: float, dtype: str) -> np.ndarray:
    """Returns numbers as integers of a scale, of which too large ones saturate."""
    most = LARGEST[dtype]
    return np.clip(np.rint(values / scale), -most, most).astype(dtype)


def table(name: str, values: np.ndarray) -> str:
    """Returns an array of integers as a constant in C; a matrix is an array of rows."""
    rows = (f"{{{', '.join(map(str, row))}}}" for row in np.atleast_2d(values).tolist())
    sizes = "".join(f"[{size}]" for size in values.shape)
    text = ", ".join(rows)
    return f"static const {values.dtype}_t {name}{sizes} = {text if values.ndim == 1 else f'{{{text}}}'};\n"


def own_programs(layer: Layer, core: str, folder: Path, by_gcc: bool, options: Sequence[str]) -> Programs:
    """Returns programs that run a layer on a core, in a folder.

    by_gcc: the source in C is compiled by GCC, with the options; if not, the package for the core is linked.
    """
    made = built(layer, folder, "c" if by_gcc else core)
    (x,), (y,) = (made.program.of(kind) for kind in ("input", "output"))
    code = made.source if by_gcc else made.static
    assert made.header is not None
    assert code is not None
    assert x.scale is not None
    assert y.scale is not None
    frames = table("frames", codes(samples()[0], x.scale, x.dtype))
    (folder / "frames.h").write_text(f"typedef {y.dtype}_t TAKEN;\n{frames}")
    own = [*options, f"-I{folder}", f"-I{made.header.parent}"]
    return programs(folder, core, [HERE / "own.c", code], own, y.scale)
