"""Reads ONNX's If: one branch where the condition is known, and a choice between both where not."""

from stepnet.compiler.net.types import ROWS
from stepnet.compiler.trace.traced import Traced
from stepnet.errors import ModelError
from stepnet.importers import pointwise
from stepnet.importers.axes import BATCH, ONE, text_of
from stepnet.importers.placed import Placed, Unusable
from stepnet.importers.pointwise import dtype_of
from stepnet.onnx.call import OnnxCall

BRANCHES = "then_branch", "else_branch"


def branch(call: OnnxCall) -> list[Placed]:
    """Computes the results of an If node.

    If the condition is known when the model is read, only its branch is run. If it is computed, with a number
    per sequence, both branches are run, and each sequence gets the results of the one that it chose. Raises
    `ModelError` for a condition of each step, and for branches whose results do not have equal axes and
    dtypes.
    """
    condition = condition_of(call.x)
    if condition.is_constant:
        return call.graph(BRANCHES[0 if bool(condition.array) else 1]).inlined()
    then, otherwise = (call.graph(name).inlined() for name in BRANCHES)
    if len(then) != len(otherwise):
        raise ModelError(
            f"its branches have {len(then)} and {len(otherwise)} outputs: they have equally many"
        )
    return [chosen(condition, *pair, at) for at, pair in enumerate(zip(then, otherwise, strict=True))]


def condition_of(value: Placed) -> Placed:
    """Returns the condition of an If node, a boolean for each sequence or one for all, without further axes.

    Raises `ModelError` for a condition that differs from step to step, that is no boolean or has several
    numbers, and for a placeholder that no operator may read.
    """
    if isinstance(value.value, Unusable):
        raise ModelError(value.value.reason)
    if isinstance(value.value, Traced) and value.value.type.extent != ROWS and not value.value.is_constant:
        raise ModelError("its condition is computed at each step, and an If is for a whole sequence")
    if any(axis not in (ONE, BATCH) for axis in value.axes) or dtype_of(value).kind != "b":
        raise ModelError(
            f"its condition is {dtype_of(value)} {text_of(value.axes)}: it is one boolean per sequence"
        )
    return value.shaped(())


def chosen(condition: Placed, then: Placed, otherwise: Placed, at: int) -> Placed:
    """Chooses between the results of both branches of an If, for each sequence by its condition; raises
    `ModelError` for branches whose results do not have equal axes and dtypes. at: the number of the output of
    the If, for messages.
    """
    for value in (then, otherwise):
        if isinstance(value.value, Unusable):
            raise ModelError(value.value.reason)
    texts = [f"{dtype_of(value)} {text_of(value.axes)}" for value in (then, otherwise)]
    if texts[0] != texts[1]:
        raise ModelError(
            f"its condition is computed, and output {at} is {texts[0]} in one branch and {texts[1]} in the "
            "other: they would have to be equal"
        )
    return pointwise.where(condition, then, otherwise)
