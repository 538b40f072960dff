"""OpenVINO's names: of the operators that are read, of their inputs, and of their attributes.

    GRUSequence     X, initial state, sequence lengths, W, R, B
    LSTMSequence    X, both initial states, sequence lengths, W, R, B
    GRUCell ...     the same without sequence lengths, and without the axis of directions

The settings of each layout, with the names of activations, are in `layout/records/openvino.py`.

Source: OpenVINO's docs/ops/sequence: GRUSequence_5, LSTMSequence_5, RNNSequence_5, GRUCell_3, LSTMCell_4 and
RNNCell_3.
"""

from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class OpenVinoOperator:
    """A recurrent operator of OpenVINO.

    layout: its layout; of a GRU that of a reset after the product.
    states: the number of its initial states.
    activations: the usual ones.
    sequence: whether it runs over sequences, whose lengths it takes, and not over one step.
    """

    layout: str
    states: int
    activations: tuple[str, ...]
    sequence: bool

    @property
    def weights(self) -> int:
        """The index of W among the inputs of this OpenVINO operator; the other weights follow it."""
        return 1 + self.states + self.sequence


CELLS = {
    "RNN": ("openvino.rnn", 1, ("tanh",)),
    "GRU": ("openvino.gru", 1, ("sigmoid", "tanh")),
    "LSTM": ("openvino.lstm", 2, ("sigmoid", "tanh", "tanh")),
}
OPERATORS = {
    **{f"{cell}Sequence": OpenVinoOperator(*facts, sequence=True) for cell, facts in CELLS.items()},
    **{f"{cell}Cell": OpenVinoOperator(*facts, sequence=False) for cell, facts in CELLS.items()},
}
"""The recurrent operators."""
WEIGHTS = ("W", "R", "B")
CONST, RESULT = "Const", "Result"
FED = {"Parameter", "ReadValue"}
"""The operators whose values are given when the model runs."""
STRAIGHT = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Convert"}
"""The operators that only move numbers, between recurrent operators."""
MOVES = STRAIGHT | {"Broadcast", "Tile", "Gather", "Slice", "StridedSlice", "Split", "VariadicSplit"}
"""The operators that only move numbers, on the way of an initial state."""
RESET_BEFORE = {"openvino.gru": "openvino.gru_reset_before"}
"""The layout of an operator without linear_before_reset, where that is another one."""
NUMBERS = ("activations_alpha", "activations_beta", "activation_alpha", "activation_beta")
"""The attributes with numbers of activations, which are not read."""
