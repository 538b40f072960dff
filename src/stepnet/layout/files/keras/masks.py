"""Masks of a Keras model: which steps count, for each value of the model.

    Embedding(mask_zero), Masking    -->   begin a mask
    Dense, Dropout, ReLU, ...        -->   pass it on
    Add, Concatenate, ...            -->   combine the masks of their operands
    Conv1D, Flatten, keras.ops, ...  -->   have no mask, as in Keras

Recurrent layers skip masked steps, and GlobalAveragePooling1D leaves them out. Keras 2 combined masks
otherwise than Keras 3 does, and some of its classes had no mask.

Sources: keras/src/layers/ of 3.15, above all layer.py, and compute_mask of each class; tf_keras 2.21.
"""

from collections.abc import Sequence
from dataclasses import replace

from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers import pointwise
from stepnet.importers.axes import AxesError, text_of, time_of
from stepnet.importers.placed import Placed, constant
from stepnet.importers.shaping import last_first
from stepnet.layout.files.keras.call import KerasCall
from stepnet.layout.files.keras.names import GROUPED, LOOKED_THROUGH
from stepnet.layout.files.keras.nodes import Config
from stepnet.layout.files.keras.rules import steps_that_differ

PASSED = {
    *LOOKED_THROUGH,
    *("Activation", "BatchNormalization", "Dense", "ELU", "LayerNormalization", "LeakyReLU", "Normalization"),
    *("GroupNormalization", "PReLU", "ReLU", "Rescaling", "UnitNormalization"),
}
"""The classes whose result has the mask of the operand."""
NOT_IN_2 = {"Identity", "Normalization", "Rescaling"}
"""The classes whose result had no mask in Keras 2."""
MERGING = {"Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract"}
"""The classes that combine operands elementwise."""

ATTENTION = {"AdditiveAttention", "Attention", "MultiHeadAttention", *GROUPED}
"""The classes whose result has the mask of the query, their first operand."""
ANY_ORDER = ("GlobalAveragePooling1D", "GlobalMaxPooling1D")
"""The classes whose result does not depend on the order of the steps."""


@dataclass(frozen=True)
class MaskedValue:
    """Value of a Keras model, with its mask.

    mask: a bool for each step, True at steps that count; None for none. given: whether the call that takes
    the value states the mask, as calls in files of Keras 3 do. backwards: whether its steps are last first in
    Keras, as outputs of a layer with go_backwards are; here they are in order, until `in_order_of_keras`.
    """

    placed: Placed
    mask: Placed | None = None
    given: bool = False
    backwards: bool = False

    def under(self, mask: "MaskedValue | None") -> "MaskedValue":
        """Returns this value of a Keras model with the mask that a call states, and its steps in the order of
        Keras. Without a mask (None), returns the value unchanged, with the mask that it has. Raises
        `ModelError` for a mask whose numbers are not bools.
        """
        if mask is None:
            return self
        if pointwise.dtype_of(mask.placed).kind != "b":
            raise ModelError("its mask is not of bools")
        return replace(self.in_order_of_keras(), mask=mask.placed, given=True)

    def in_order_of_keras(self) -> "MaskedValue":
        """Returns the value with its steps in the order of Keras: last first if they are `backwards`."""
        return replace(self, placed=last_first(self.placed), backwards=False) if self.backwards else self

    def step_mask(self) -> Placed | None:
        """Returns the mask by which a recurrent layer skips steps of this value, a bool for each step; None
        if there is none. Raises `AxesError` for a mask with other axes.
        """
        if self.mask is not None and self.mask.axes != self.placed.axes[:2]:
            raise AxesError(
                f"its mask is {text_of(self.mask.axes)}, and it runs over {text_of(self.placed.axes)}"
            )
        return self.mask


def order_of_steps(
    row: str, operands: Sequence[MaskedValue], config: Config
) -> tuple[list[MaskedValue], bool]:
    """Returns the operands of a Keras layer, and True if the steps of its result are last first in Keras. In
    Keras, outputs of a layer with go_backwards are last first; here values keep their steps in order
    (`MaskedValue`). Operands are reversed to the order of Keras if the layer's result depends on that order,
    or if only some of them are last first.

    row: the name of the layer's class in the table of operators. config: its configuration.
    """
    with_steps = {each.backwards for each in operands if time_of(each.placed.axes)}
    if row == "ops.Flip" and config.get("axis") in (1, [1]) and with_steps:
        return [*operands], not operands[0].backwards
    if row in (*PASSED, *MERGING, *ANY_ORDER, "Concatenate") and len(with_steps) < 2:
        return [*operands], True in with_steps and row not in ANY_ORDER
    return [each.in_order_of_keras() for each in operands], False


def mask_after(row: str, call: KerasCall) -> Placed | None:
    """Returns the mask (a bool per step) that Keras gives a layer's result; None for none. row: the name of
    the layer's class in the table of operators.
    """
    if row == "Embedding":
        return differs_from_zero(call.x) if call.setting("mask_zero", False) else None
    if row == "Masking":
        return steps_that_differ(call)
    if row in PASSED:
        return None if call.version == "2" and row in NOT_IN_2 else call.mask
    if row in ATTENTION:
        return call.mask
    if row not in MERGING and row != "Concatenate":
        return None
    masks = [mask for mask in call.masks if mask is not None]
    if not masks or (call.version != "2" and row in MERGING and len(masks) < len(call.masks)):
        return None
    return joined(masks, call) if row == "Concatenate" else merged(masks, call.version)


def differs_from_zero(x: Placed) -> Placed:
    """Returns the mask of an Embedding: whether each whole number of its operand is not 0."""
    zero = pointwise.dtype_of(x).type(0)
    return pointwise.elementwise("not_equal", x, constant(zero))


def merged(masks: Sequence[Placed], version: str) -> Placed:
    """Combines masks: a step counts if it does in any of them; in Keras 2, if it does in all."""
    return pointwise.folded("logical_and" if version == "2" else "logical_or", masks)


def joined(masks: Sequence[Placed], call: KerasCall) -> Placed:
    """Combines the masks of a Concatenate of features, where all steps of an operand without a mask count;
    raises `ModelError` for one along another axis than the features.
    """
    rank = max(len(operand.axes) for operand in call.operands)
    if call.wholes("axis", 1, -1)[0] not in (-1, rank - 1) or any(
        len(each.axes) != rank - 1 for each in masks
    ):
        raise ModelError("it joins masks along another axis than the features")
    mask = merged(masks, call.version)
    if call.version == "2" or len(masks) == len(call.masks):
        return mask
    return pointwise.elementwise("logical_or", mask, pointwise.elementwise("logical_not", mask))
