"""Computes Paddle's operators over ragged sequences: table lookups, pools, softmax, and repetition."""

from stepnet.errors import ModelError
from stepnet.importers.axes import BATCH, TOKENS, AxesError, text_of
from stepnet.importers.placed import Placed, constant
from stepnet.importers.selecting import gather
from stepnet.importers.shaping import squeeze
from stepnet.model.nested import expand, reduce, softmax_over_steps
from stepnet.paddle.call import PaddleCall


def lookup(call: PaddleCall) -> Placed:
    """Computes the result of Paddle's operator lookup_table_v2: rows of a table by index; zeros for the index
    `padding_idx`.
    """
    table, padding = call.operand("W").array, call.attribute("padding_idx", -1)
    if not -1 <= padding < len(table):
        raise ModelError(f"its padding_idx is {padding}, and its table has {len(table)} rows")
    if padding != -1:
        table = table.copy()
        table[padding] = 0
    return gather(constant(table), call.operand("Ids"), 0, call.padded)


def lookup_of_old(call: PaddleCall) -> Placed:
    """Computes Paddle's lookup_table: rows of a table by indices with a last axis of length 1."""
    operands = dict(call.operands) | {"Ids": (squeeze(call.operand("Ids"), [-1]),)}
    return lookup(PaddleCall(call.operation, operands, call.padded))


POOLS = {"AVERAGE": "mean", "SUM": "sum", "MAX": "max", "LAST": "last", "FIRST": "first"}


def of_tokens(value: Placed) -> Placed:
    """Returns an operand whose first axis is the steps of all sequences, or raises `AxesError`."""
    if value.axes[:1] != (TOKENS,):
        raise AxesError(f"its input is {text_of(value.axes)}, and it is over {text_of((TOKENS,))}")
    return value


def sequence_pool(call: PaddleCall) -> Placed:
    """Computes the result of Paddle's operator sequence_pool: one value for each sequence: the sum, mean,
    maximum, first or last of its steps, as the attribute `pooltype` says.
    """
    x, kind = of_tokens(call.operand()), call.attribute("pooltype", "AVERAGE")
    if kind not in POOLS:
        raise ModelError(f"its pooltype {kind!r} is none of {', '.join(POOLS)}")
    if call.attribute("pad_value", 0.0):
        raise ModelError("its pad_value for empty sequences is not 0, and stepnet's result is 0")
    return x.with_value(reduce(x.value, POOLS[kind]), (BATCH, *x.axes[1:]))


def sequence_softmax(call: PaddleCall) -> Placed:
    """Computes Paddle's sequence_softmax: the softmax over the steps of each ragged sequence."""
    x = of_tokens(call.operand())
    return x.with_value(softmax_over_steps(x.value))


def sequence_expand(call: PaddleCall) -> Placed:
    """Computes Paddle's sequence_expand: X, a value for each sequence, repeated at each of its steps in Y."""
    x, y = call.operand(), of_tokens(call.operand("Y"))
    if x.axes[:1] != (BATCH,):
        raise AxesError(f"it repeats {text_of(x.axes)}, and stepnet repeats one value per sequence")
    return x.with_value(expand(x.value, y.value), (TOKENS, *x.axes[1:]))
