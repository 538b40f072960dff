"""Nets as JSON: their operations by name, with operands and attributes. Types are stored of inputs alone.

    %2 = slice %0 slices=((0, 4, 1),)    ->    {"op": "slice", "of": [0], "with": {"slices": [[0, 4, 1]]}}

A net of a file may have been written by anyone. Beyond the type rules, which every net obeys, it has to obey
what traces see to: slices and indices within their axes, and sizes that a model can have.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from stepnet.compiler.net.encodings import HALF, Precision
from stepnet.compiler.net.ir import Builder, Net, Node, unchecked_net
from stepnet.compiler.net.ops import OPERATIONS
from stepnet.compiler.net.pairs import PAIRED, keys_of, queries_of
from stepnet.compiler.net.types import AXES, ROWS, WHOLE, Extent, Literal, Type, is_pairs, is_sequence_axis
from stepnet.compiler.net.windows import is_derived_name
from stepnet.compiler.trace.spec import MOST_FEATURES, sizes_of
from stepnet.compiler.values.arguments import is_integer, short_repr
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.errors import InputError, ModelError, NetError, StepnetError
from stepnet.model.stored.arrays import Collected, Found
from stepnet.model.stored.checks import CHECKS, check_recur, unchecked
from stepnet.model.stored.fields import (
    Object,
    count,
    entries,
    flag,
    integer,
    keyed,
    mapping,
    number,
    several,
    text,
)

DEEPEST_NET = len(AXES) + 2
"""The deepest nesting of recurrences: each has an axis of its own."""
PRECISIONS = ("float32", "bfloat16", "int8", HALF)


class Attributes(NamedTuple):
    """Names of an operation's attributes: those that all its nodes have, and those that a node may have."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


STORED: dict[str, Attributes] = {
    **{name: Attributes() for name, row in OPERATIONS.items() if row.kind == "pointwise"},
    "power": Attributes(("exponent",)),
    "cast": Attributes(("dtype",)),
    "slice": Attributes(("slices",)),
    "reshape": Attributes(("rank", "shape")),
    "transpose": Attributes(("order",)),
    "broadcast": Attributes(("rank", "shape")),
    "take": Attributes(("axis", "indices")),
    "concatenate": Attributes(("axis",)),
    "sum": Attributes(("axes",)),
    "max": Attributes(("axes",)),
    "min": Attributes(("axes",)),
    "argmax": Attributes(("axes",)),
    "cumsum": Attributes(("axis",)),
    "cumprod": Attributes(("axis",)),
    "matmul": Attributes(),
    "gather": Attributes(),
    "input": Attributes(("type",)),
    "constant": Attributes(("value",)),
    "index": Attributes(),
    "result": Attributes(("of",)),
    "expand": Attributes(("extent",), ("how",)),
    "reduce": Attributes(("how",)),
    "windows": Attributes(("size", "dilation", "before"), ("stride", "lost", "same")),
    "overlap": Attributes(("size", "dilation", "before"), ("stride", "lost", "same", "steps")),
    "scores": Attributes(("causal",)),
    "mix": Attributes(("over",)),
    "arrange": Attributes(("reverse", "steps")),
    "extend": Attributes(("before", "after", "how")),
    "recur": Attributes(("body", "memories", "reverse", "sequences"), ("precision", "unroll")),
}
"""The operations of traced steps and models. Those that passes add are never stored."""


# ---- writing -----------------------------------------------------------------------------------------------


def net_data(net: Net, arrays: Collected) -> Object:
    """Converts a traced net to JSON for a file, and adds its constants to `arrays`. The lines of the user's
    code that nodes record are left out.
    """
    return {
        "nodes": [node_data(node, arrays) for node in net.nodes],
        "inputs": list(net.inputs),
        "results": list(net.results),
    }


def node_data(node: Node, arrays: Collected) -> Object:
    """Converts a node of a net to JSON for a file, and adds its constants to `arrays`; raises `ModelError`
    for an operation that files do not have.
    """
    if node.operation not in STORED:
        raise ModelError(f"the operation {node.operation!r} is not stored in a file")
    pairs = {name: attribute_data(value, node, arrays) for name, value in node.pairs}
    return {"op": node.operation, "of": list(node.inputs), "with": pairs, "name": node.name}


def attribute_data(value: Any, node: Node, arrays: Collected) -> Any:
    """Converts the value of a node's attribute to JSON for a file, nets and tuples in it included; arrays are
    added to `arrays`, and their names returned.
    """
    if isinstance(value, tuple):
        return [attribute_data(item, node, arrays) for item in cast("tuple[Any, ...]", value)]
    if isinstance(value, Type):
        return {"extent": list(value.extent), "shape": list(value.shape), "dtype": value.dtype}
    if isinstance(value, Literal):
        return arrays.add(value.value, node.name or "constant")
    if isinstance(value, Net):
        return net_data(value, arrays)
    if isinstance(value, Precision):
        return precision_data(value)
    return int(value) if is_integer(value) and not isinstance(value, bool) else value


def precision_data(precision: Precision | None) -> Object | None:
    """Returns the precision of a recurrence as JSON; None if it computes in the precision of its values."""
    return None if precision is None else {name: getattr(precision, name) for name in PRECISION_FIELDS}


PRECISION_FIELDS = ("dtype", "recurrence", "scale", "shift")


# ---- reading -----------------------------------------------------------------------------------------------


def net_of(data: Any, arrays: Found, depth: int = 0) -> Net:
    """Reads a net from JSON that `net_data` wrote to a file, and checks it; raises `ModelError` for one that
    is ill-formed.

    arrays: the arrays of the file, with the constants. depth: the number of nets around it, which is limited.
    """
    if depth > DEEPEST_NET:
        raise ModelError(f"its recurrences are nested more than {DEEPEST_NET} deep")
    given = keyed(data, "a net", "nodes", "inputs", "results")
    nodes = list[Node]()
    for place, node in enumerate(entries(given["nodes"], "the nodes of a net")):
        try:
            nodes.append(node_of(node, nodes, arrays, depth))
        except (ModelError, NetError) as error:
            raise ModelError(f"operation {place} of its net: {error}") from None
    inputs, results = (several(count, given[name], f"the {name} of a net") for name in ("inputs", "results"))
    declared = [place for place, node in enumerate(nodes) if node.operation == "input"]
    if sorted(inputs) != declared:
        raise ModelError("the inputs of its net are not its input nodes")
    for place in results:
        if place >= len(nodes) or nodes[place].operation == "recur" or is_pairs(nodes[place].type.extent):
            raise ModelError(f"a result of its net is %{place}, which is no single value of it")
    return unchecked_net(tuple(nodes), inputs, results)  # each node was checked above


def node_of(data: Any, nodes: Sequence[Node], arrays: Found, depth: int) -> Node:
    """Reads a node of a net from JSON (`data`); raises `ModelError` or `NetError` if it does not fit its
    operands.

    nodes: the nodes before it. arrays: the arrays of the file. depth: the number of nets around its own.
    """
    given = keyed(data, "an operation", "op", "of", "with", "name")
    operation = text(given["op"], "the name of an operation")
    if operation not in STORED:
        raise ModelError(f"no operation is called {short_repr(operation)}")
    inputs = several(count, given["of"], f"the operands of {operation}")
    if any(place >= len(nodes) for place in inputs):
        raise ModelError(f"{operation} reads an operation that does not come before it")
    if any((nodes[place].operation == "recur") != (operation == "result") for place in inputs):
        raise ModelError("the results of recurrences, and of nothing else, are read by `result`")
    check_number(operation, len(inputs))
    attributes = attributes_of(given["with"], operation, arrays, depth)
    types = types_of(operation, [type_ for place in inputs for type_ in nodes[place].types], attributes)
    CHECKS.get(operation, unchecked)([nodes[place].types[0] for place in inputs], attributes)
    for type_ in types:
        if type_.size > MOST_FEATURES or max(type_.shape, default=0) > MOST_FEATURES:
            raise ModelError(f"{operation} gives {type_}, more than {MOST_FEATURES} features")
    return Node(operation, inputs, types, tuple(sorted(attributes.items())), text(given["name"], "a name"))


def check_number(operation: str, given: int) -> None:
    """Raises `ModelError` for a number of operands that an operation does not have."""
    wanted = OPERANDS.get(operation)
    if given < 1 if wanted is None else given != wanted:
        raise ModelError(f"{operation} has {'1 or more' if wanted is None else wanted} operands, not {given}")


def operands_of(name: str) -> int | None:
    """Returns the number of operands that the operation `name` of a net takes, to check nets of files; None
    if it may take any number.
    """
    if name in ("concatenate", "recur"):
        return None
    one = ("result", "expand", "reduce", "windows", "overlap", "arrange", "extend")
    none = ("input", "constant", "index")
    known = {"where": 3, **dict.fromkeys(PAIRED, 2), **dict.fromkeys(one, 1), **dict.fromkeys(none, 0)}
    if name in known:
        return known[name]
    meaning = OPERATIONS[name].meaning
    if isinstance(meaning, np.ufunc):
        return meaning.nin
    kinds = [parameter.kind for parameter in inspect.signature(meaning).parameters.values()]
    return kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)


OPERANDS = {name: operands_of(name) for name in STORED}


def types_of(operation: str, operands: list[Type], attributes: Mapping[str, Any]) -> tuple[Type, ...]:
    """Computes the types (axes, features, dtype) of an operation's results from the types of its operands;
    raises `NetError` or `ModelError` for operands that do not fit the operation.
    """
    if operation == "result" and attributes["of"] >= len(operands):
        raise ModelError(f"result {attributes['of']} is read of an operation that has {len(operands)}")
    if operation == "recur":
        check_recur(operands, attributes)
    try:
        return OPERATIONS[operation].types(operands, attributes)
    except StepnetError:
        raise
    except (TypeError, ValueError, IndexError, OverflowError) as error:  # of NumPy, for other shapes
        raise ModelError(f"{operation} does not fit its operands: {short_repr(str(error))}") from None


# ---- attributes --------------------------------------------------------------------------------------------


def attributes_of(data: Any, operation: str, arrays: Found, depth: int) -> dict[str, Any]:
    """Returns the attributes of an operation in a saved model, from JSON (`data`), checked by the table of
    each operation's attributes; raises `ModelError` for others. arrays: the arrays of the file. depth: the
    number of recurrences around the operation.
    """
    required, optional = STORED[operation]
    given = mapping(data, f"the attributes of {operation}")
    if not set(required) <= set(given) <= {*required, *optional}:
        raise ModelError(f"the attributes of {operation} are {', '.join(required) or 'none'}")

    def checked(name: str, value: Any) -> Any:
        """Returns the value of one attribute, read from JSON; raises `ModelError` for an impossible value."""
        if name == "value":
            return Literal(arrays.get(value, "a constant"))
        if name == "body":
            return net_of(value, arrays, depth + 1)
        return READ[name](value, f"{name} of {operation}")

    return {name: checked(name, value) for name, value in given.items()}


def dtype_of(value: Any, what: str) -> str:
    """Returns a dtype's name from JSON; raises `ModelError` for other text. what: its name in messages."""
    if text(value, what) not in DTYPES:
        raise ModelError(f"{what} is one of {', '.join(DTYPES)}, not {short_repr(value)}")
    return value


def extent_of(value: Any, what: str) -> Extent:
    """Reads an extent, the axes along which a value has entries (such as sequences and steps), from JSON
    (`value`); raises `ModelError` for other axes. what: its name, for messages.
    """
    axes = several(text, value, what)
    if axes == AXES[: len(axes)] or (axes[:1] == ROWS and len(axes) == 2 and is_axis(axes[1])):
        return axes
    if is_pairs(axes) and all(extent_of(list(own), what) for own in (queries_of(axes), keys_of(axes))):
        return axes
    raise ModelError(f"{what} is no path of axes: {short_repr(axes)}")


def is_axis(name: str) -> bool:
    """Tells whether a name is that of a static sequence's steps, or of an axis derived from the steps."""
    return is_derived_name(name) or (bool(name) and not is_sequence_axis(name))


def steps_of(value: Any, what: str) -> str:
    """Returns the name of an axis of steps from JSON, or raises `ModelError`. what: its name."""
    own = text(value, what).removeprefix(WHOLE)
    if own not in AXES[1:] and not is_derived_name(own):
        raise ModelError(f"{what} is not an axis of steps: {short_repr(value)}")
    return value


def type_of(value: Any, what: str) -> Type:
    """Returns the type of an input of a net in a file, from JSON; raises `ModelError` for one that no input
    has. what: the name of the input, for messages.
    """
    given = keyed(value, what, "extent", "shape", "dtype")
    try:
        shape = sizes_of(several(integer, given["shape"], f"the shape of {what}"))
    except InputError as error:
        raise ModelError(str(error)) from None
    extent = extent_of(given["extent"], what)
    if is_pairs(extent):
        raise ModelError(f"{what} is at pairs of steps, where a net has no inputs")
    return Type(extent, shape, dtype_of(given["dtype"], what))


def precision_of(value: Any, what: str) -> Precision | None:
    """Returns the precision of a recurrence that `precision_data` wrote to a file as JSON (`value`), None for
    none; raises `ModelError` for others.
    """
    if value is None:
        return None
    given = keyed(value, what, *PRECISION_FIELDS)
    if given["dtype"] not in PRECISIONS:
        raise ModelError(f"{what} is one of {', '.join(PRECISIONS)}, not {short_repr(given['dtype'])}")
    scale, shift = given["scale"], float(number(given["shift"], what))
    scale = None if scale is None else float(number(scale, what))
    return Precision(given["dtype"], count(given["recurrence"], what), scale, shift)


def counts(value: Any, what: str) -> tuple[int, ...]:
    """Returns whole numbers from 0 on."""
    return several(count, value, what)


def integers(value: Any, what: str) -> tuple[int, ...]:
    """Returns whole numbers."""
    return several(integer, value, what)


READ: dict[str, Callable[[Any, str], Any]] = {
    "exponent": number,
    "dtype": dtype_of,
    "slices": lambda value, what: several(integers, value, what),
    "rank": count,
    "shape": counts,
    "order": counts,
    "axis": integer,
    "axes": integers,
    "indices": counts,
    "type": type_of,
    "of": count,
    "size": count,
    "dilation": count,
    "before": count,
    "after": count,
    "stride": count,
    "lost": integer,
    "same": text,
    "steps": steps_of,
    "causal": flag,
    "over": text,
    "extent": extent_of,
    "how": text,
    "memories": count,
    "sequences": count,
    "reverse": flag,
    "precision": precision_of,
    "unroll": count,
}
"""The function that reads each attribute, by its name: the same name means the same in all operations."""


# ---- into another net ------------------------------------------------------------------------------------


def copied(net: Net, builder: Builder, operands: Sequence[int]) -> list[int]:
    """Adds the operations of a net to another one; returns the numbers of its results there.

    Casts of inputs from a storage dtype, such as bfloat16, to the dtype of the computation are left out, and
    so are casts of results to a storage dtype: the trace around the net makes both. Other casts belong to the
    model, such as rounding to float16 and back, and stay.

    operands: the numbers of its inputs there, which have the dtypes in which they are computed.
    """
    places = dict(zip(net.inputs, operands, strict=True))
    for place, node in enumerate(net.nodes):
        if place in places:
            continue
        given = [places[operand] for operand in node.inputs]
        cast_before = node.operation == "cast" and builder.type_of(given[0]).dtype == node.type.dtype
        places[place] = given[0] if cast_before else builder.copy(node, given)
    return [places[uncast(net, result)] for result in net.results]


def uncast(net: Net, result: int) -> int:
    """Returns the number of a net's result, or of the value before a cast of it to a storage dtype."""
    node = net.nodes[result]
    return node.inputs[0] if node.operation == "cast" and DTYPES[node.type.dtype].is_stored else result
