"""The cells of oneDNN in a table, and a recurrence of one of them: its shapes, dtypes and limitations."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stepnet.compiler.net.encodings import Precision
from stepnet.compiler.targets.calibration import Calibration, weight_scales
from stepnet.compiler.targets.onednn.interface import ACTIVATIONS, DIRECTIONS
from stepnet.compiler.targets.onednn.library import OneDnnLibrary
from stepnet.compiler.values.records import dataclass

Slots = tuple[str, ...]

FEED: Slots = ("src_layer", "src_iter")
WEIGHTS: Slots = ("weights_layer", "weights_iter", "bias")
GIVEN: Slots = ("dst_layer", "dst_iter")


@dataclass(frozen=True)
class CellKind:
    """Kind of recurrence that oneDNN has.

    function: its name in the names of oneDNN's functions.
    number: its `dnnl_alg_kind_t`.
    gates: stepnet's letters of the gates, in the order of the weights.
    biases: the number of biases per unit.
    slots: the names of the memory arguments, in the order of oneDNN's functions.
    lowest: the dtypes for inference other than float32.
    reset: for a GRU, whether it resets "before" or "after" the recurrent product.
    one_direction: whether it runs only from left to right.
    wrong_gradient: whether its backward primitive is not the derivative of its forward primitive.
    """

    function: str
    number: int
    gates: str
    biases: int
    slots: Slots
    lowest: Slots
    reset: str = ""
    one_direction: bool = False
    wrong_gradient: bool = False

    @property
    def has_cell(self) -> bool:
        """Tells whether the recurrence has a memory c (cell state) in addition to h, as an LSTM has."""
        return "src_iter_c" in self.slots

    @property
    def has_attention(self) -> bool:
        """Tells whether each step of the cell reads an attention score, which scales a GRU's update gate."""
        return "attention" in self.slots

    @property
    def dtypes(self) -> Slots:
        """The dtypes in which oneDNN can run the cell for inference."""
        return ("float32", *self.lowest)


HALVES: Slots = ("bfloat16", "float16")
LSTM_SLOTS: Slots = (
    *FEED,
    "src_iter_c",
    "weights_layer",
    "weights_iter",
    "weights_peephole",
    "weights_projection",
    "bias",
    *GIVEN,
    "dst_iter_c",
)
PLAIN: Slots = (*FEED, *WEIGHTS, *GIVEN)
ATTENDED: Slots = (*FEED, "attention", *WEIGHTS, *GIVEN)

CELLS = {
    "rnn": CellKind("vanilla_rnn", 0x1FFF, "n", 1, PLAIN, HALVES),
    "lstm": CellKind("lstm", 0x2FFF, "ifgo", 4, LSTM_SLOTS, (*HALVES, "int8")),
    "gru": CellKind("gru", 0x3FFF, "zrn", 3, PLAIN, (*HALVES, "int8"), "before"),
    "lbr_gru": CellKind("lbr_gru", 0x4FFF, "zrn", 4, PLAIN, HALVES, "after"),
    # Their backward primitives use the update gate without attention.
    "augru": CellKind("augru", 0x5FFF, "zrn", 3, ATTENDED, HALVES, "before", True, True),
    "lbr_augru": CellKind("lbr_augru", 0x6FFF, "zrn", 4, ATTENDED, HALVES, "after", True, True),
}
TRAINED = ("float32", "bfloat16")
"""The dtypes in which oneDNN has gradients."""


Shape = tuple[int, ...]

OPTIONAL = {"weights_peephole": "peephole", "weights_projection": "projected"}
"""The memory arguments that exist only if this field of the recurrence is set."""

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
"""The memory arguments in the dtype of a low-precision recurrence; c, biases and peepholes are float32."""
QUANTIZED = {"src_layer": "uint8", "weights_layer": "int8", "weights_iter": "int8"}


@dataclass(frozen=True)
class OneDnnRecurrence:
    """Recurrence of oneDNN, without the values of its parameters and the sizes of a call.

    Attributes:
        cell: A name in `CELLS`.
        inputs: The number of features of a step.
        hidden: The number of units.
        projected: The number of elements of h after the projection of an LSTM; 0 for no projection.
        activation: The activation of the cell "rnn": tanh, relu or sigmoid.
        peephole: Whether an LSTM has peepholes.
        dtype: float32, bfloat16, float16, or int8 with a calibration.
        direction: left2right or right2left.
        training: Whether values that a gradient needs are saved.
        calibration: The scales of int8; None for other dtypes.
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

    @property
    def row(self) -> CellKind:
        """The properties of the recurrence's cell, from the table `CELLS`."""
        return CELLS[self.cell]

    @property
    def output(self) -> int:
        """The number of elements of the recurrence's output h, after a projection if there is one."""
        return self.projected or self.hidden

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of arrays (memory arguments) that oneDNN takes and returns, in its functions' order."""
        return tuple(s for s in self.row.slots if s not in OPTIONAL or getattr(self, OPTIONAL[s]))

    @property
    def weights(self) -> tuple[str, ...]:
        """The names among `slots` that are parameters: all kinds of weights that it has, and the bias."""
        return tuple(slot for slot in self.slots if slot.startswith("weights") or slot == "bias")

    def shape(self, slot: str, steps: int, rows: int) -> Shape:
        """Returns the shape of the argument `slot` of oneDNN's functions, for a number of steps and rows
        (sequences). The axes are those of oneDNN: time, batch and features; for memories and weights layer,
        direction, ..., gate, unit. Layer and direction are 1; peepholes are for 3 gates.
        """
        gates = len(self.row.gates)
        return {
            "src_layer": (steps, rows, self.inputs),
            "attention": (steps, rows, 1),
            "dst_layer": (steps, rows, self.output),
            "src_iter": (1, 1, rows, self.output),
            "dst_iter": (1, 1, rows, self.output),
            "src_iter_c": (1, 1, rows, self.hidden),
            "dst_iter_c": (1, 1, rows, self.hidden),
            "weights_layer": (1, 1, self.inputs, gates, self.hidden),
            "weights_iter": (1, 1, self.output, gates, self.hidden),
            "weights_peephole": (1, 1, 3, self.hidden),
            "weights_projection": (1, 1, self.hidden, self.output),
            "bias": (1, 1, self.row.biases, self.hidden),
        }[slot]

    def dtype_of(self, slot: str) -> str:
        """Returns the dtype of argument `slot`: that of the recurrence (in int8, int8 or uint8), or float32
        for arguments that are float32 in every recurrence.
        """
        if self.dtype == "int8":
            return QUANTIZED.get(slot, "float32")
        return self.dtype if slot in LOW else "float32"

    def refuse(self, library: OneDnnLibrary) -> str | None:
        """Returns the reason why oneDNN cannot run this recurrence; None if it can."""
        row = self.row
        dtypes = [dtype for dtype in row.dtypes if not self.training or dtype in TRAINED]
        if self.dtype not in dtypes:
            purpose = "gradients of the cell" if self.training else "the cell"
            return f"oneDNN has {purpose} {self.cell} in {', '.join(dtypes)}, not in {self.dtype}"
        if self.dtype != "float32" and self.projected:
            return f"oneDNN runs projections of an LSTM in float32 only, not in {self.dtype}"
        if self.dtype == "int8" and self.peephole:
            return "oneDNN has no peepholes in int8"
        if self.dtype == "int8" and self.calibration is None:
            return "int8 needs a calibration: call quantize with samples for this engine"
        if row.one_direction and self.direction != "left2right":
            return f"oneDNN runs the cell {self.cell} only from left to right, not {self.direction}"
        if self.cell == "rnn" and self.activation not in ACTIVATIONS:
            return f"oneDNN has the activations {', '.join(ACTIVATIONS)}, not {self.activation}"
        if self.direction not in DIRECTIONS:
            return f"direction is one of {', '.join(DIRECTIONS)}, not {self.direction}"
        return library.lacks(self.dtype)

    def refuse_gradient(self, library: OneDnnLibrary) -> str | None:
        """Returns why oneDNN cannot compute this recurrence's gradient correctly; None if it can."""
        if self.row.wrong_gradient:
            return f"oneDNN's backward pass of the cell {self.cell} is not the derivative of its forward pass"
        return replace(self, training=True).refuse(library)

    def in_precision(self, precision: Precision | None) -> "OneDnnRecurrence":
        """Returns this recurrence in the precision that a net requests (None: unchanged, in float32). In int8
        it has the scale of its inputs, but not yet those of its weights.
        """
        if precision is None:
            return self
        scale, calibration = precision.scale, None
        if precision.dtype == "int8" and scale is not None:
            calibration = Calibration(scale, precision.shift, ())
        dtype = precision.dtype if precision.is_low else self.dtype
        return replace(self, dtype=dtype, calibration=calibration)

    def scaled(self, weights: Mapping[str, Any], largest: int) -> "OneDnnRecurrence":
        """Returns this recurrence with int8 scales for these weights; unchanged if it is not in int8.
        weights: by oneDNN's names. largest: the int8 number that the largest weight of a unit becomes.
        """
        if self.calibration is None:
            return self
        scales = weight_scales([weights["weights_layer"], weights["weights_iter"]], largest)
        return replace(self, calibration=replace(self.calibration, weights=scales))

    def __str__(self) -> str:
        """Describes the recurrence for the user, such as in the message of an error."""
        further = [f"{self.inputs} inputs", f"{self.hidden} units", self.dtype, self.direction]
        further += [f"projected to {self.projected}"] * bool(self.projected) + ["peepholes"] * self.peephole
        further += ["training"] * self.training
        return f"{self.cell} ({', '.join(further)})"
