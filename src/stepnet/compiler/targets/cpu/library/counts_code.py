"""Functions of a library for numbers of steps: of an axis that is derived from that of the inputs, as after a
stride.

    name.length_0(steps)     the steps along an axis of a sequence of so many steps; -1 for too many
    name_y_steps(steps)      the same for callers, of the output y
"""

from collections.abc import Mapping

from llvmlite import ir

from stepnet.compiler.net.types import is_derived
from stepnet.compiler.net.windows import LONGEST, split
from stepnet.compiler.targets.cpu.library.library_code import function
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.writing.code import I64
from stepnet.compiler.targets.library import CallSpecification, steps_function

TOO_MANY = -1
"""The result of the functions for a sequence that is too long, or has a negative number of steps."""


def counted_outputs(model: CallSpecification, name: str) -> dict[str, str]:
    """Returns the names of the public functions that give the numbers of steps of outputs, each with the axis
    of these steps. Only outputs with another number of steps than the inputs, as after a stride, have one.

    name: the prefix of the library's functions.
    """
    return {
        steps_function(name, argument.name): argument.type.extent[-1]
        for argument in model.arguments
        if argument.is_result and is_derived(argument.type.extent)
    }


def write_count(module: ir.Module, processor: Processor, name: str, axis: str) -> ir.Function:
    """Generates the internal function `name`, which returns the number of steps of a sequence along a derived
    axis (one with another number of steps than the inputs, as after a stride), from its number along the axis
    of the inputs; returns the function. Its result is `TOO_MANY` (-1) for a negative number of steps, and if
    the number on any axis on the way is larger than `LONGEST`.
    """
    made, code = function(module, processor, name, I64, [I64], public=False)
    (steps,), too_many = made.args, code.number(TOO_MANY)
    code.return_when(code.less(steps, code.number(0)), too_many)
    code.return_when(code.less(code.number(LONGEST), steps), too_many)
    for own in split(axis)[1]:
        if own.multiplies:
            count = code.add(code.mul(steps, code.number(own.factor)), code.number(own.more))
        else:
            above = code.larger(code.add(steps, code.number(own.more)), code.number(0))
            count = code.sdiv(code.add(above, code.number(own.factor - 1)), code.number(own.factor))
        is_empty = code.icmp_signed("==", steps, code.number(0))
        steps = code.select(is_empty, code.number(0), code.larger(count, code.number(0)))
        code.return_when(code.less(code.number(LONGEST), steps), too_many)
    code.ret(steps)
    return made


def write_public_counts(
    module: ir.Module, processor: Processor, names: Mapping[str, str], functions: Mapping[str, ir.Function]
) -> None:
    """Generates the public functions that return the numbers of steps of outputs.

    names: the axis of the steps of each output, by the name of its function. functions: the internal
    functions that compute the number of steps, by axis.
    """
    for name, axis in names.items():
        made, code = function(module, processor, name, I64, [I64], public=True)
        code.ret(code.call(functions[axis], list(made.args)))
