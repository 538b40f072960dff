"""Paddle's operators over the steps of all sequences: rows of tables, pools, softmax, and values repeated."""

from stepnet.errors import ModelError
from stepnet.graph.operators.placed import AxesError, Placed, constant, words
from stepnet.graph.operators.sizes import SEQUENCES, TOKENS
from stepnet.paddle.call import PaddleCall
from stepnet.rnn.nested import expand, reduce, softmax_over_steps


def lookup(call: PaddleCall) -> Placed:
    """lookup_table_v2: rows of a table, zeros for the number of padding."""
    table, padding = call.operand("W").array, call.attribute("padding_idx", -1)
    if not -1 <= padding < len(table):
        raise ModelError(f"its padding_idx is {padding}, and its table has {len(table)} rows")
    if padding != -1:
        table = table.copy()
        table[padding] = 0
    return call.meaning("Gather", [constant(table), call.operand("Ids")])


def lookup_of_old(call: PaddleCall) -> Placed:
    """lookup_table, whose numbers have a last axis of size one."""
    operands = dict(call.operands) | {"Ids": (call.meaning("Squeeze", [call.operand("Ids")], axes=[-1]),)}
    return lookup(PaddleCall(call.operation, operands, call.padded))


POOLS = {"AVERAGE": "mean", "SUM": "sum", "MAX": "max", "LAST": "last", "FIRST": "first"}


def of_tokens(value: Placed) -> Placed:
    """A value of each step of all sequences; raises `AxesError` for others."""
    if not value.axes.startswith(TOKENS):
        raise AxesError(f"its input is [{words(value.axes)}], and it is over [{words(TOKENS)}]")
    return value


def sequence_pool(call: PaddleCall) -> Placed:
    """sequence_pool: one value for each sequence."""
    x, kind = of_tokens(call.operand()), call.attribute("pooltype", "AVERAGE")
    if kind not in POOLS:
        raise ModelError(f"its pooltype {kind!r} is none of {', '.join(POOLS)}")
    if call.attribute("pad_value", 0.0):
        raise ModelError("it gives a number for empty sequences: stepnet gives 0")
    return x.with_value(reduce(x.value, POOLS[kind]), SEQUENCES + x.axes[1:])


def sequence_softmax(call: PaddleCall) -> Placed:
    """sequence_softmax: over the steps of each sequence."""
    x = of_tokens(call.operand())
    return x.with_value(softmax_over_steps(x.value))


def sequence_expand(call: PaddleCall) -> Placed:
    """sequence_expand: a value that each sequence has once, at its steps."""
    x, y = call.operand(), of_tokens(call.operand("Y"))
    if not x.axes.startswith(SEQUENCES):
        raise AxesError(f"it repeats [{words(x.axes)}]: values that each sequence has once can be")
    return x.with_value(expand(x.value, y.value), TOKENS + x.axes[1:])
