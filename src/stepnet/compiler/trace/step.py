"""A traced step: its body net, and the structures of the user's inputs and results.

The body's inputs are in the order inputs, memories, statics, parameters. Its results are the outputs, and
then the next value of each memory.
"""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn, cast

from stepnet.compiler.net.ir import Builder
from stepnet.compiler.net.types import (
    CONST,
    ROWS,
    Extent,
    Type,
    extent_of,
    is_pairs,
    is_static_extent,
)
from stepnet.compiler.net.windows import own_axis
from stepnet.compiler.trace.draws import traced_purely
from stepnet.compiler.trace.lines import NamingLine, defined_at, refuse, written_at
from stepnet.compiler.trace.spec import ARGUMENTS, Spec, Step, TracedStep
from stepnet.compiler.trace.traced import Traced, array_of, not_one
from stepnet.compiler.values.arguments import (
    argument_names,
    check_signature,
    dtype_name,
    is_integer,
)
from stepnet.compiler.values.dtypes import COMPUTED, DTYPES, promoted_float
from stepnet.compiler.values.structure import (
    arranged,
    leaves,
    named_leaves,
    rebuild,
    skeleton,
    titled_leaves,
    transform,
)
from stepnet.errors import InputError, StepnetError

NO_STATICS = (
    "the step has a parameter `statics`, and failed without any: {}; give statics= to the call, and to what "
    "traces the step before a call: their features to RNN with inputs=, an example of them to quantize, "
    "trace and Recurrence"
)
NO_PARAMS = (
    "the step failed, and its recurrence has no parameters: {}; give them, as in RNN(step, params, memory=64)"
)


def trace_step(step: Step, inputs: Any, memory: Any, statics: Any, params: Any) -> TracedStep:
    """Traces a step: calls it once on placeholders, and records its operations as a net.

    inputs, memory, statics: structures of `Spec`s, which have dtypes. params: a structure of arrays.
    Raises `StepError`, with the user's line, for wrong results and for a step that draws random numbers.
    """

    def trace() -> TracedStep:
        """Traces the step once; it is called again if the check needs a second trace."""
        return traced_once(step, inputs, memory, statics, params)

    return traced_purely(step, trace, lambda traced: traced.body)


def traced_once(step: Step, inputs: Any, memory: Any, statics: Any, params: Any) -> TracedStep:
    """Traces a step: calls it once on placeholders, and records its operations as a net. There is no check
    for random numbers.

    inputs, memory, statics: structures of `Spec`s (features and dtypes); statics are values that a sequence
        has once. params: a structure of arrays. Raises `InputError` if the step cannot be called with these,
        and `StepError` for wrong results.
    """
    builder, last = Builder(), memory
    memory = transform(carried, memory)
    stored = promoted_float(leaf.dtype for leaf in (*leaves(inputs), *leaves(params)))
    arguments = argument_names(step, ARGUMENTS)
    traced = {
        kind: declared(builder, part, kind, extent, argument)
        for kind, part, extent, argument in (
            ("input", inputs, ROWS, arguments[0]),
            ("memory", memory, ROWS, arguments[1]),
            ("static", statics, ROWS, ""),
            ("parameter", params, CONST, arguments[2]),
        )
    }
    before = transform(lambda value: value, traced["memory"])  # a copy, as the step may change its dicts
    with NamingLine(step):
        check_signature(step, ARGUMENTS, ("statics", "index"))
        extras = extra_arguments(step, builder, NamedValues.of(traced["static"], "static", "statics"))
        if statics is not None and "statics" not in extras:
            raise InputError("statics were given, but the step has no parameter named `statics`")
        pairs = zip(("input", "memory", "parameter"), arguments, strict=True)
        x, values, given = (NamedValues.of(traced[kind], kind, argument) for kind, argument in pairs)
        try:
            returned = step(x, values, given, **extras)
        except (AttributeError, TypeError, StepnetError) as error:
            if "statics" in extras and statics is None and is_of_none(error):
                raise InputError(NO_STATICS.format(error)) from error
            if params is None and "'NoneType' object" in str(error):
                raise InputError(NO_PARAMS.format(error)) from error
            raise
    with NamingLine(step), written_at(defined_at(step)):
        if not isinstance(returned, tuple) or len(pair := cast("tuple[Any, ...]", returned)) != 2:
            raise refuse("a step returns (output, memory), as one tuple of two")
        output, after = pair
        following = next_memories(before, after, arguments[1])
        results = [
            row_value(builder, leaf, f"output `{name}`" if name else "the output")
            for name, leaf in named_leaves(output)
        ]
        results = [rounded(builder, number, stored) for number in results]
    body = builder.net(results + following)
    names = tuple(name or "output" for name, _ in named_leaves(output))
    output = blank(output)
    return TracedStep(body, inputs, memory, statics, params, output, names, last, arguments=arguments)


def is_of_none(error: Exception) -> bool:
    """Tells whether an error of Python, NumPy or stepnet says that a value is None."""
    texts = ("None", "dtype object") if isinstance(error, StepnetError) else ("NoneType",)
    return any(text in str(error) for text in texts)


class NamedValues(dict[str, Any]):
    """Values that a step reads by their names: refuses a name that is not there.

    what, argument: the word for such a value, and the name of the step's argument that holds the values.
    """

    def __init__(self, values: dict[str, Any], what: str, argument: str) -> None:
        """Copies the values."""
        super().__init__(values)
        self.what, self.argument = what, argument

    @classmethod
    def of(cls, structure: Any, what: str, argument: str) -> Any:
        """Makes the values of a dict, a list or a tuple, and returns any other structure as it is."""
        kinds: dict[Any, Any] = {dict: cls, list: ListedValues, tuple: TupledValues}
        kind = kinds.get(cast("Any", type(structure)))
        return structure if kind is None else kind(structure, what, argument)

    def __missing__(self, name: Any) -> None:
        """Raises `StepError` with the names that there are, in place of `KeyError`."""
        held = ", ".join(map(str, self)) or "none"
        raise refuse(f"there is no {self.what} {name!r} in `{self.argument}`; there are {held}")

    def __getattr__(self, name: str) -> Any:
        """Raises `StepError` for a name after a dot, as of a value's attribute."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise refuse(
            f"a {self.what} is read by its name in brackets, {self.argument}[{name!r}], and not as "
            f"{self.argument}.{name}"
        )

    def __array_ufunc__(self, *_: Any, **__: Any) -> NoReturn:
        """Called by NumPy for a function of one value: raises `StepError`."""
        raise not_one(self, self.argument)

    __array_function__ = __array_ufunc__


class ListedValues(list[Any]):
    """Values that a step reads by their places in a list: refuses a place that is not there, and a name.

    what, argument: the word for such a value, and the name of the step's argument that holds the values.
    """

    def __init__(self, values: list[Any], what: str, argument: str) -> None:
        """Copies the values."""
        super().__init__(values)
        self.what, self.argument = what, argument

    def __getitem__(self, place: Any) -> Any:
        """Returns a value, or several for a slice; raises `StepError` for a place that is not there."""
        check_place(self, place, self.what, self.argument)
        return super().__getitem__(place)


class TupledValues(tuple[Any, ...]):
    """Values that a step reads by their places in a tuple: refuses a place that is not there, and a name.

    what, argument: the word for such a value, and the name of the step's argument that holds the values.
    """

    what: str
    argument: str

    def __new__(cls, values: tuple[Any, ...], what: str, argument: str) -> "TupledValues":
        """Makes the tuple of the values."""
        made = super().__new__(cls, values)
        made.what, made.argument = what, argument
        return made

    def __getitem__(self, place: Any) -> Any:
        """Returns a value, or several for a slice; raises `StepError` for a place that is not there."""
        check_place(self, place, self.what, self.argument)
        return super().__getitem__(place)


def check_place(values: Sequence[Any], place: Any, what: str, argument: str) -> None:
    """Raises `StepError` for a place that a list or tuple of values does not have, and for a name.

    what, argument: the word for such a value, and the name of the step's argument that holds the values.
    """
    count = len(values)
    held = f"`{argument}` is a {'list' if isinstance(values, list) else 'tuple'} of {count}"
    last = f", to {argument}[{count - 1}]" if count > 1 else ""
    read = f": {argument}[0]{last}" if count else ""
    if isinstance(place, str):
        raise refuse(f"{held}, and has no {place!r}, as a dict has{read}")
    if is_integer(place) and not -count <= place < count:
        raise refuse(f"there is no {what} {place} in `{argument}`; {held}{read}")


UNNAMED = {"input": "x", "memory": "memory", "static": "static", "parameter": "param"}
"""The names of values that are in no structure, where no argument has them."""


def declared(builder: Builder, structure: Any, kind: str, extent: Extent, argument: str = "") -> Any:
    """Adds inputs to a net for a structure of `Spec`s or arrays; returns the structure of their values.

    kind: the word for such a value: "input", "memory", "static" (which may be sequences) or "parameter".
    argument: the name of the step's argument that has the structure; "" for the name in `UNNAMED`.
    extent: the extent (such as one value per row) of an input whose `Spec` has no inner levels and no axis.
    A value of a storage dtype is cast to the dtype in which it is computed.
    """
    values: list[Traced] = []
    for name, leaf in titled_leaves(structure, argument):
        axes = extent_of(len(extent) + (leaf.levels if isinstance(leaf, Spec) else 0))
        named = leaf.axis if isinstance(leaf, Spec) else ""
        if named and kind == "static":
            axes = (*axes, named)
        elif named and builder.is_model:
            axes = (*axes[:-1], own_axis(named))
        type_ = Type(axes, tuple(leaf.shape), dtype_name(leaf.dtype, f"{kind} {name}"))
        value = Traced(builder, builder.input(type_, name or UNNAMED[kind]))
        values.append(value.astype(type_.computed.dtype))
    return rebuild(structure, values)


def carried(spec: Spec) -> Spec:
    """Returns the `Spec` of a memory with the dtype in which it is computed and passed from step to step."""
    return replace(spec, dtype=DTYPES[str(spec.dtype)].compute)


def rounded(builder: Builder, number: int, dtype: str) -> int:
    """Casts an output to the storage dtype `dtype`, if it is one (such as bfloat16); returns the node."""
    stored = DTYPES[dtype].is_stored and builder.type_of(number).dtype == DTYPES[dtype].compute
    return builder.add("cast", number, dtype=dtype) if stored else number


def blank(structure: Any) -> Any:
    """Returns a copy of a structure with leaves 0, to describe results that are not known yet."""
    return rebuild(structure, [0] * len(leaves(structure)))


def extra_arguments(step: Step, builder: Builder, statics: Any) -> dict[str, Any]:
    """Makes the further arguments of a step, by name, as far as it has parameters with these names:
    `statics`, the values that each sequence has once, and `index`, the number of earlier steps, for which a
    node is added.
    """
    try:
        names = inspect.signature(step).parameters
    except (TypeError, ValueError):
        names = {}
    extras: dict[str, Any] = {}
    if "statics" in names:
        extras["statics"] = statics
    if "index" in names:
        extras["index"] = Traced(builder, builder.add("index"))
    return extras


def row_value(builder: Builder, leaf: Any, what: str) -> int:
    """Returns the number of a result of a step as one value per row; a constant is repeated in every row.
    Raises `StepError` for a value of another step, for a sequence, and for what is no value.

    what: the name of the result, for messages.
    """
    if not isinstance(leaf, Traced):
        array = array_of(leaf, what)
        if array.dtype.name not in COMPUTED:
            raise refuse(f"{what} is a {type(leaf).__name__}, not a value of the step")
        leaf = Traced(builder, builder.constant(array))
    if leaf.builder is not builder:
        raise refuse(f"{what} belongs to another step")
    if is_static_extent(leaf.type.extent):
        raise refuse(f"{what} is a sequence per row: reduce it to one value per row")
    if is_pairs(leaf.type.extent):
        raise refuse(f"{what} is a value at each pair of steps, of which a model returns none")
    return builder.add("expand", leaf.number, extent=ROWS) if leaf.is_constant else leaf.number


def next_memories(before: Any, after: Any, argument: str) -> list[int]:
    """Lists the numbers of the nodes that are the memories after a step, as results of the step's net.

    before, after: the structures of memories that the step takes and returns.
    argument: the name of the step's argument that has the memories, for messages.
    Raises `StepError` if structure, shape or dtype differ from those before the step.
    """
    after = arranged(after, before)
    if skeleton(before) != skeleton(after):
        raise refuse(
            f"the memory `{argument}` enters the step as {skeleton(before)} and leaves as {skeleton(after)}; "
            "return it with the structure it came in"
        )
    numbers: list[int] = []
    for (name, old), new in zip(titled_leaves(before, argument), leaves(after), strict=True):
        title = f"the memory `{name}`"
        number = row_value(old.builder, new, title)
        type_ = old.builder.type_of(number)
        if len(type_.extent) > 1:
            raise refuse(f"{title} leaves the step as an inner sequence: reduce it to one value per row")
        if type_.element != old.type.element:
            hint = " (cast it back with .astype)" if type_.shape == old.type.shape else ""
            if type_.dtype != old.type.dtype:
                hint += source_of_dtype(old.builder, number)
            raise refuse(
                f"{title} enters the step as {old.type.element} and leaves as {type_.element}; "
                f"return it with the shape and dtype it came in{hint}",
                old.builder.nodes[number].source,
            )
        numbers.append(number)
    return numbers


def source_of_dtype(builder: Builder, number: int) -> str:
    """Returns the end of a message that says where the dtype of a value comes from: an argument of the step,
    or a constant such as a NumPy scalar; "" for neither, as for a dtype to which the step casts.

    number: the value's node. Only nodes of its dtype are followed to their operands.
    """
    nodes, dtype, found, pending = builder.nodes, builder.type_of(number).dtype, set[int](), [number]
    while pending:
        if (place := pending.pop()) not in found:
            found.add(place)
            pending += [operand for operand in nodes[place].inputs if builder.type_of(operand).dtype == dtype]
    for place in sorted(found):
        if nodes[place].operation == "input":
            return f"; {dtype} comes from `{nodes[place].name}`"
    if any(nodes[place].operation == "constant" for place in found):
        return (
            f"; {dtype} comes from an array or a scalar of NumPy: give arrays a dtype, as np.zeros(8, "
            "np.float32), and make scalars numbers of Python, as float(np.sqrt(8))"
        )
    operands = {builder.type_of(operand).dtype for place in found for operand in nodes[place].inputs}
    if whole := {name for name in operands if DTYPES[name].kind == "integer"}:
        return f"; {dtype} comes from a value of {min(whole)} that meets floats: cast it with .astype"
    return ""
