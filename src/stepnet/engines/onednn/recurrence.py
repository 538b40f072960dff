"""The description of a recurrence for oneDNN, and the shapes and dtypes of its memory arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stepnet.engines.calibration import Calibration, weight_scales
from stepnet.engines.onednn.cells import CELLS, TRAINED, Cell
from stepnet.engines.onednn.interface import ACTIVATIONS, DIRECTIONS
from stepnet.engines.onednn.library import Library
from stepnet.net.precision import Precision

Shape = tuple[int, ...]

OPTIONAL = {"weights_peephole": "peephole", "weights_projection": "projected"}
"""Memories that there are only where a recurrence has this field."""

STATES = {"src_iter", "dst_iter", "src_iter_c", "dst_iter_c"}
LOW = {
    "src_layer",
    "src_iter",
    "attention",
    "weights_layer",
    "weights_iter",
    "weights_projection",
    "dst_layer",
    "dst_iter",
}
"""Memories in a half's dtype; the cell c, biases and peepholes are float32."""
QUANTIZED = {"src_layer": "uint8", "weights_layer": "int8", "weights_iter": "int8"}


@dataclass(frozen=True)
class Recurrence:
    """A recurrence of one layer or several: all about it but its numbers, and the lengths of a call.

    Attributes:
        cell: A name in `cells.CELLS`.
        inputs: How many features a step has; of several layers as many as h has.
        hidden: How many units there are.
        projected: How many numbers h has after the projection of an LSTM; 0 for none.
        activation: Of the cell "rnn": tanh, relu or sigmoid.
        peephole: Whether an LSTM has peepholes.
        dtype: float32, bfloat16, float16, or int8 with a calibration.
        direction: left2right, right2left, or both with their outputs in "concat" or "sum".
        training: Whether what a gradient needs is kept.
        calibration: The scales of int8.
        layers: How many layers there are, each over the outputs of the one before.
    """

    cell: str
    inputs: int
    hidden: int
    projected: int = 0
    activation: str = "tanh"
    peephole: bool = False
    dtype: str = "float32"
    direction: str = "left2right"
    training: bool = False
    calibration: Calibration | None = None
    layers: int = 1

    @property
    def row(self) -> Cell:
        """The row of the cell in the table."""
        return CELLS[self.cell]

    @property
    def output(self) -> int:
        """How many numbers h has."""
        return self.projected or self.hidden

    @property
    def directions(self) -> int:
        """1, or 2 for both."""
        return 2 if self.direction in ("concat", "sum") else 1

    @property
    def width(self) -> int:
        """How many numbers an output has."""
        return self.output * (2 if self.direction == "concat" else 1)

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the memory arguments, in the order of oneDNN's functions."""
        return tuple(s for s in self.row.slots if s not in OPTIONAL or getattr(self, OPTIONAL[s]))

    @property
    def weights(self) -> tuple[str, ...]:
        """The names of the memory arguments that are parameters."""
        return tuple(slot for slot in self.slots if slot.startswith("weights") or slot == "bias")

    def shape(self, slot: str, steps: int, rows: int) -> Shape:
        """The shape of a memory, all axes as oneDNN names them: time, batch; layer, direction, gate."""
        layers, both, gates = self.layers, self.directions, len(self.row.gates)
        return {
            "src_layer": (steps, rows, self.inputs),
            "attention": (steps, rows, 1),
            "dst_layer": (steps, rows, self.width),
            "src_iter": (layers, both, rows, self.output),
            "dst_iter": (layers, both, rows, self.output),
            "src_iter_c": (layers, both, rows, self.hidden),
            "dst_iter_c": (layers, both, rows, self.hidden),
            "weights_layer": (layers, both, self.inputs, gates, self.hidden),
            "weights_iter": (layers, both, self.output, gates, self.hidden),
            "weights_peephole": (layers, both, 3, self.hidden),
            "weights_projection": (layers, both, self.hidden, self.output),
            "bias": (layers, both, self.row.biases, self.hidden),
        }[slot]

    def dtype_of(self, slot: str) -> str:
        """The dtype of a memory."""
        if self.dtype == "int8":
            return QUANTIZED.get(slot, "float32")
        return self.dtype if slot in LOW else "float32"

    def refuse(self, library: Library) -> str | None:
        """The reason why the library has no such recurrence; None if it has."""
        row = self.row
        dtypes = [dtype for dtype in row.dtypes if not self.training or dtype in TRAINED]
        if self.dtype not in dtypes:
            way = "gradients of the cell" if self.training else "the cell"
            return f"oneDNN has {way} {self.cell} in {', '.join(dtypes)}, not in {self.dtype}"
        if self.dtype != "float32" and self.projected:
            return f"a projection is run in float32, not in {self.dtype}"
        if self.dtype == "int8" and self.peephole:
            return "oneDNN has no peepholes in int8"
        if self.dtype == "int8" and self.calibration is None:
            return "int8 needs a calibration, which samples give where quantize is called for this engine"
        if self.layers > 1 and self.directions > 1:
            return "oneDNN joins the directions of several layers behind the last one alone"
        if self.layers > 1 and self.inputs != self.output:
            return (
                "oneDNN has layers in one piece if the first has as many inputs as the others, and it has "
                f"{self.inputs}, not {self.output}"
            )
        if row.one_direction and self.direction != "left2right":
            return f"oneDNN runs the cell {self.cell} from left to right alone"
        if self.cell == "rnn" and self.activation not in ACTIVATIONS:
            return f"oneDNN has the activations {', '.join(ACTIVATIONS)}, not {self.activation}"
        if self.direction not in DIRECTIONS:
            return f"direction is one of {', '.join(DIRECTIONS)}, not {self.direction}"
        return library.lacks(self.dtype)

    def refuse_gradient(self, library: Library) -> str | None:
        """The reason why the library has no gradient of it; None if it has."""
        if self.row.wrong_gradient:
            return f"oneDNN's backward pass of the cell {self.cell} is not the derivative of its forward pass"
        return replace(self, training=True).refuse(library)

    def in_precision(self, precision: Precision | None) -> "Recurrence":
        """The same in the precision that a net asks for; in int8 without the scales of weights."""
        if precision is None:
            return self
        scale, calibration = precision.scale, None
        if precision.dtype == "int8" and scale is not None:
            calibration = Calibration(scale, precision.shift, ())
        return replace(self, dtype=precision.dtype, calibration=calibration)

    def scaled(self, weights: Mapping[str, Any], largest: int) -> "Recurrence":
        """The same with the scales of these weights, where it is calibrated."""
        if self.calibration is None:
            return self
        scales = weight_scales([weights["weights_layer"], weights["weights_iter"]], largest)
        return replace(self, calibration=replace(self.calibration, weights=scales))

    def __str__(self) -> str:
        further = [f"{self.inputs} inputs", f"{self.hidden} units", self.dtype, self.direction]
        further += [f"{self.layers} layers"] * (self.layers > 1)
        further += [f"projected to {self.projected}"] * bool(self.projected) + ["peepholes"] * self.peephole
        further += ["training"] * self.training
        return f"{self.cell} ({', '.join(further)})"
