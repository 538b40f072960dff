"""The recurrences of oneDNN in a table: gates, biases, memory arguments, dtypes, and limitations."""

from dataclasses import dataclass

Slots = tuple[str, ...]

FEED: Slots = ("src_layer", "src_iter")
WEIGHTS: Slots = ("weights_layer", "weights_iter", "bias")
GIVEN: Slots = ("dst_layer", "dst_iter")


@dataclass(frozen=True)
class Cell:
    """A kind of recurrence.

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
        """Whether it has a memory c in addition to h."""
        return "src_iter_c" in self.slots

    @property
    def has_attention(self) -> bool:
        """Whether each step has an attention score, which scales the update gate."""
        return "attention" in self.slots

    @property
    def dtypes(self) -> Slots:
        """The dtypes of inference."""
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
    "rnn": Cell("vanilla_rnn", 0x1FFF, "n", 1, PLAIN, HALVES),
    "lstm": Cell("lstm", 0x2FFF, "ifgo", 4, LSTM_SLOTS, (*HALVES, "int8")),
    "gru": Cell("gru", 0x3FFF, "zrn", 3, PLAIN, (*HALVES, "int8"), "before"),
    "lbr_gru": Cell("lbr_gru", 0x4FFF, "zrn", 4, PLAIN, HALVES, "after"),
    # Their backward primitives use the update gate without attention.
    "augru": Cell("augru", 0x5FFF, "zrn", 3, ATTENDED, HALVES, "before", True, True),
    "lbr_augru": Cell("lbr_augru", 0x6FFF, "zrn", 4, ATTENDED, HALVES, "after", True, True),
}
TRAINED = ("float32", "bfloat16")
"""The dtypes in which oneDNN has gradients."""
