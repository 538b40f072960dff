"""The features and dtypes of values, as users write them, and a step as it was traced.

What runs a net needs these, and not the tracer: a process whose nets are stored does not import it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, cast

from stepnet.compiler.net.encodings import Precision
from stepnet.compiler.net.ir import Builder, Net, Recur, without_unused
from stepnet.compiler.net.types import AXES, extent_of, is_sequence_axis
from stepnet.compiler.values.arguments import checked_integer, dtype_name, is_array, is_integer, short_repr
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.compiler.values.fork_guard import imported_late
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, skeleton, transform
from stepnet.errors import InputError

Step = Callable[..., Any]
MOST_LEVELS = len(AXES) - 2
LEVELS = f"levels is how many levels of inner sequences there are at each step, from 0 to {MOST_LEVELS}"
MOST_FEATURES, MOST_AXES = 2**28, 32
ARGUMENTS = "x", "memory", "params"
"""The usual names of a step's arguments. Messages have the names of the step's own parameters."""


@dataclass(frozen=True)
class Spec:
    """The features and dtype of one input, memory or static, as `RNN` takes them.

    Args:
        shape: The feature shape: a whole number, or a tuple of them; () for one number per row.
        dtype: The dtype, or None for the default: the promoted floating dtype of inputs and parameters.
        levels: For an input: the number of levels of inner sequences at each step.
        axis: For a static sequence: a name for its axis, which statics of the same lengths share. For an
            input of a `Graph`: a name for its steps, if it has steps of its own.

    Raises:
        InputError: For sizes that are not whole numbers, and for a dtype that steps do not support.

    >>> Spec(64)
    Spec(shape=(64,), dtype=None, levels=0, axis='')
    >>> Spec((), "int64").dtype
    'int64'
    """

    shape: tuple[int, ...]
    dtype: str | None = None
    levels: int = 0
    axis: str = ""

    def __init__(
        self, shape: int | tuple[int, ...] = (), dtype: Any = None, levels: int = 0, axis: str = ""
    ) -> None:
        """Checks the arguments, and stores them in one form. They describe an input, a memory or a static (a
        value that each sequence has once).

        shape: the feature shape, or its only size. dtype: None for the default.
        levels: the levels of sequences inside each step of an input. axis: the name for the axis of a static
            that is a sequence.
        """
        object.__setattr__(self, "shape", sizes_of(shape))
        object.__setattr__(self, "dtype", None if dtype is None else dtype_name(dtype, "a spec"))
        object.__setattr__(self, "levels", checked_integer(levels, LEVELS, 0, MOST_LEVELS))
        object.__setattr__(self, "axis", axis_name(axis))


def axis_name(axis: Any) -> str:
    """Returns the name of the axis of a static sequence, which each sequence has once, unchanged; raises
    `InputError` if it is no string, or is the name of one of the usual axes.
    """
    if not isinstance(axis, str) or is_sequence_axis(axis):
        raise InputError(
            f"axis is a name for the steps of a static, other than {', '.join(AXES)}, not {short_repr(axis)}"
        )
    return axis


def sizes_of(shape: Any) -> tuple[int, ...]:
    """Returns a feature shape, a whole number or several, as a tuple; raises `InputError` for others."""
    several = isinstance(shape, tuple | list) or (is_array(shape) and shape.ndim == 1)
    sizes = tuple(cast("tuple[Any, ...]", shape if several else (shape,)))
    if any(not is_integer(size) or size < 0 for size in sizes):
        raise InputError(f"a feature shape is made of whole numbers, not {short_repr(shape)}")
    if max(prod(map(int, sizes)), *sizes, 0) > MOST_FEATURES or len(sizes) > MOST_AXES:
        raise InputError(
            f"a feature shape has at most {MOST_FEATURES} numbers along {MOST_AXES} axes, not "
            f"{short_repr(shape)}"
        )
    return tuple(map(int, sizes))


def specs(structure: Any) -> Any:
    """Makes a structure of `Spec`s from the forms that users write: 64, (4, 16), or {"h": 64, "c": 64}."""

    def spec(leaf: Any) -> Spec:
        """Makes the `Spec` (features, dtype) of one leaf of a structure that a user writes: a `Spec`, or a
        size or shape. Raises `InputError` for anything else.
        """
        if isinstance(leaf, Spec):
            return leaf
        if is_integer(leaf) or is_shape(leaf):
            return Spec(leaf)
        raise InputError(
            f"a feature shape is a whole number, a tuple of them or a structure of these, not "
            f"{short_repr(leaf)}"
        )

    return transform(spec, structure, is_leaf=is_shape)


def is_shape(value: Any) -> bool:
    """Tells whether a value is a tuple of whole numbers, which is a feature shape and not a structure."""
    if hasattr(value, "_fields") or not isinstance(value, tuple):
        return False
    return all(is_integer(size) for size in cast("tuple[Any, ...]", value))


@dataclass(frozen=True)
class TracedStep:
    """Traced step: its body net, with the structures of its inputs and results.

    A value of a storage dtype is cast to its compute dtype where it enters the body, and an output is cast
    back where it leaves. Memories stay in their compute dtype from step to step, so that splitting a sequence
    into several calls does not change results.

    body: the net of one step.
    inputs, memory, statics, params: the structures of the body's inputs, with a `Spec` for each.
    output: the structure of the outputs.
    names: the names of the outputs.
    last: the `Spec`s to which a call rounds the final memories.
    precision: the precision of the recurrence; None for that of its values.
    arguments: the names of the step's own parameters for inputs, memory and parameters, for messages.
    """

    body: Net
    inputs: Any
    memory: Any
    statics: Any
    params: Any
    output: Any
    names: tuple[str, ...]
    last: Any
    precision: Precision | None = None
    arguments: tuple[str, ...] = ARGUMENTS

    @computed_once
    def counts(self) -> tuple[int, int, int, int]:
        """The numbers of inputs, memories, statics and parameters of the step, in this order."""
        inputs, memory, statics, params = map(leaves, (self.inputs, self.memory, self.statics, self.params))
        return len(inputs), len(memory), len(statics), len(params)

    @property
    def unrounded(self) -> "TracedStep":
        """The step without the casts of outputs to storage dtypes such as bfloat16, for callers that compute
        further with the outputs.
        """
        nodes, count = self.body.nodes, len(self.names)
        results = [
            nodes[number].inputs[0] if DTYPES[self.body.type_of(number).dtype].is_stored else number
            for number in self.body.results[:count]
        ]
        return replace(self, body=without_unused(nodes, (*results, *self.body.results[count:])))

    def net(self, reverse: bool = False, unroll: int = 1) -> Net:
        """Makes the net of a whole recurrence from this traced step, which applies the step to every step of
        every sequence.

        reverse: whether sequences run from the last step to the first.
        unroll: the number of steps per iteration of the compiled loop.
        """
        builder = Builder()
        inputs = self.counts[0]
        operands: list[int] = []
        for index, number in enumerate(self.body.inputs):
            node = self.body.nodes[number]
            extent = extent_of(len(node.type.extent) + 1) if index < inputs else node.type.extent
            operands.append(builder.input(node.type.at(extent), node.name))
        outputs, final = self.recur(reverse, unroll).add_results(builder, operands)
        return builder.net([*outputs, *final])

    def recur(self, reverse: bool = False, unroll: int = 1) -> Recur:
        """Makes the recurrence of the step. unroll: the steps per iteration of the compiled loop."""
        inputs, memories, _, _ = self.counts
        return Recur(self.body, inputs, memories, reverse, unroll, self.precision)


def traced_step(step: Step, inputs: Any, memory: Any, statics: Any, params: Any) -> TracedStep:
    """Returns the trace of a step; see `stepnet.compiler.trace.step.trace_step`, which has these arguments
    and errors. A step of a file whose trace for such inputs and parameters is known, as `known_step`, is not
    traced.
    """
    known = known_trace(step, "known_step")
    if isinstance(known, TracedStep) and are_alike(
        (known.inputs, known.memory, known.statics, known.params), (inputs, memory, statics, params)
    ):
        return replace(known, params=params)
    trace: Callable[..., TracedStep] = imported_late("stepnet.compiler.trace", "trace_step", "step")
    return trace(step, inputs, memory, statics, params)


def known_trace(function: Any, name: str) -> Any:
    """Returns the attribute with the trace of a function of a file, of any class where the function is the
    user's. None without it, and for a function around one, to which `functools.wraps` copies attributes.
    """
    return None if hasattr(function, "__wrapped__") else getattr(function, name, None)


def are_alike(known: Sequence[Any], given: Sequence[Any]) -> bool:
    """Tells whether structures of `Spec`s and arrays have equal forms and leaves in the same order, as a net
    reads them: arrays of equal shapes and dtypes, and equal `Spec`s. Dicts of another order are not alike.
    """
    return all(
        skeleton(one) == skeleton(other) and [*map(kind_of, leaves(one))] == [*map(kind_of, leaves(other))]
        for one, other in zip(known, given, strict=True)
    )


def kind_of(leaf: Any) -> Any:
    """Returns the facts of a `Spec` or array on which a net depends; for other leaves a unique object."""
    if is_array(leaf):
        return leaf.shape, leaf.dtype
    return leaf if isinstance(leaf, Spec) else object()
