"""The type rules of operations: from the types of the operands to those of the results. A rule raises
`NetError` for operands that its operation cannot take.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from stepnet.compiler.net.decays import decay_operands, gradient_sizes
from stepnet.compiler.net.extensions import Extension
from stepnet.compiler.net.meanings import REDUCTIONS
from stepnet.compiler.net.pairs import OVER, PAIRED, keys_of, pairs_of, queries_of
from stepnet.compiler.net.recur import Order
from stepnet.compiler.net.types import (
    CONST,
    ROWS,
    STEPS,
    Extent,
    Type,
    extent_of,
    extent_text,
    is_derived,
    is_pairs,
    is_static_extent,
    joint_extent,
    whole_axis,
)
from stepnet.compiler.net.windows import WINDOWED, Window, is_own_axis
from stepnet.compiler.values.dtypes import COMPUTED, DTYPES
from stepnet.errors import NetError

Array = np.ndarray
ENDS = ("first", "last")
"""The single steps of a sequence to which `expand` can write; by default it writes to all."""
FLOAT = "float32"
TOTALS = ("contract", "scatter", "reduce")
"""Operations that reduce over all rows. A `reduce` does so only if its operand has one value per row, and a
`contract` unless its result has one."""
BETWEEN_STEPS = (*WINDOWED, *PAIRED, "arrange", "extend", "matrix_gradients")
"""Operations that read other steps of a sequence than that of their result."""
Attributes = Mapping[str, Any]
TypeRule = Callable[[Sequence[Type], Attributes], tuple[Type, ...]]
KEPT = 1024


def with_cache(rule: TypeRule) -> TypeRule:
    """Adds a cache to a type rule (a function from operands' types to results' types) that calls NumPy, as
    every pass calls the rules with the same arguments.

    The key contains the types of the attributes' numbers, as exponents 2 and 2.0 are equal but give different
    dtypes.
    """

    @lru_cache(KEPT)
    def cached(
        operands: tuple[Type, ...], pairs: tuple[tuple[str, Any], ...], kinds: Any
    ) -> tuple[Type, ...]:
        """Applies the type rule (which computes types of results from those of operands), and caches its
        result. pairs: the attributes by name. kinds: the types of their values, which tell 1, 1.0 and True
        apart in the key of the cache.
        """
        return rule(operands, dict(pairs))

    def types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
        """Looks the result types up in the cache."""
        return cached(tuple(operands), tuple(attributes.items()), tuple(map(type, attributes.values())))

    return types


def pointwise_types(meaning: Callable[..., Array]) -> TypeRule:
    """Makes the type rule (which computes the type of the result) of a pointwise operation from `meaning`,
    its NumPy function. Feature shapes are broadcast, and the dtype is the one that NumPy gives.
    """

    @with_cache
    def types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
        """Returns the result type of an elementwise operation: the shape by broadcasting, the dtype by
        applying the operation to empty arrays. Raises `NetError` for shapes or dtypes that do not fit.
        """
        try:
            shape = np.broadcast_shapes(*(operand.shape for operand in operands))
        except ValueError:
            shapes = " and ".join(operand.element for operand in operands)
            raise NetError(f"feature shapes do not fit together: {shapes}") from None
        try:
            probe = meaning(*(np.ones(0, operand.dtype) for operand in operands), **attributes)
        except TypeError as error:  # for instance, NumPy does not subtract booleans
            raise NetError(str(error)) from None
        if probe.dtype.name not in COMPUTED:
            dtypes = ", ".join(operand.dtype for operand in operands)
            raise NetError(
                f"the result for {dtypes} would be of dtype {probe.dtype}, which a net does not support"
            )
        return (Type(joint_extent(operands), shape, probe.dtype.name),)

    return types


def element_types(meaning: Callable[..., Array]) -> TypeRule:
    """Makes the type rule (which computes the types of results) of an operation within the features of each
    entry, such as a view or a sum over features, by applying its NumPy function (`meaning`) to arrays of zero
    rows.
    """

    @with_cache
    def types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
        """Returns the result type of an operation within elements: shape and dtype by applying it to arrays
        of zero rows. Raises `NetError` for operands of several extents (such as one value per row and one per
        step), and for shapes that do not fit.
        """
        extent = joint_extent(operands)
        if any(operand.extent != extent for operand in operands):
            raise NetError("the operands of an operation within elements must have the same extent")
        probes = [np.empty((0, *operand.shape), operand.dtype) for operand in operands]
        try:
            result = meaning(*probes, **attributes)
        except ValueError as error:
            raise NetError(str(error)) from None
        return (Type(extent, result.shape[1:], result.dtype.name),)

    return types


def cast_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result type of cast: the operand's, in the dtype of the attribute `dtype`. Raises
    `NetError` for a cast to a storage dtype, such as bfloat16, of anything but floats.
    """
    operand, dtype = operands[0], str(attributes["dtype"])
    result = Type(operand.extent, operand.shape, dtype)
    if DTYPES[dtype].is_stored and not operand.is_float:
        raise NetError(f"{operand.dtype} cannot be cast to {dtype}: only floats can")
    return (result,)


def computing(rule: TypeRule) -> TypeRule:
    """Makes a type rule (a function from operands' types to results' types) that also refuses operands of
    dtypes that are only stored, such as bfloat16, which must be cast before computing.
    """

    def types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
        """Raises `NetError` for an operand of a dtype that is only stored, such as bfloat16; else returns the
        result types by the rule.
        """
        for operand in operands:
            if DTYPES[operand.dtype].is_stored:
                raise NetError(
                    f"{operand.dtype} is a storage dtype: cast the value to {operand.computed.dtype} to "
                    "compute with it"
                )
        return rule(operands, attributes)

    return types


@with_cache
def matmul_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result type of matmul: [..., k] with a constant [k, n] gives [..., n]. Raises `NetError`
    for other operands; the attributes are not read.
    """
    left, right = operands
    if right.extent != CONST:
        raise NetError("the right side of a matmul must be a parameter")
    if not left.shape or len(right.shape) != 2 or left.shape[-1] != right.shape[0]:
        raise NetError(
            f"{left.element} @ {right.element} does not fit: "
            "the last size of the left must be the first of the right"
        )
    dtype = np.result_type(left.dtype, right.dtype).name
    return (Type(left.extent, (*left.shape[:-1], right.shape[1]), dtype),)


def products_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result types of `products`: one for each sum x1 @ W1 + x2 @ W2 + ..., that of its terms.
    Raises `NetError` if the terms of a sum have different types, or the matrices do not divide into sums.

    operands: the types of x1, x2, ... (`lefts` many, an attribute), then of the matrices of each sum in turn.
    """
    lefts: int = attributes["lefts"]
    left_operands, rights = operands[:lefts], operands[lefts:]
    if not left_operands or not rights or len(rights) % lefts:
        raise NetError(f"{len(rights)} right sides are not a multiple of {lefts} left sides")
    types = [
        matmul_types((left_operands[at % lefts], right), attributes)[0] for at, right in enumerate(rights)
    ]
    sums = [types[at : at + lefts] for at in range(0, len(types), lefts)]
    if any(len(set(terms)) > 1 for terms in sums):
        raise NetError("products that are added must have the same type")
    return tuple(terms[0] for terms in sums)


def gather_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result type of gather: constant [n, b...] and integers [a...] give [a..., b...], rows of
    the constant. The attributes are not read. Raises `NetError` for other operands.
    """
    table, index = operands
    if table.extent != CONST or not table.shape:
        raise NetError("gather takes rows of a parameter with at least one axis")
    if DTYPES[index.dtype].kind != "integer":
        raise NetError(f"gather takes integer indices, not {index.dtype}; cast them with .astype(np.int64)")
    return (Type(index.extent, index.shape + table.shape[1:], table.dtype),)


def scatter_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result type of scatter: integers [a...] and values [a..., b...] give [rows, b...], with
    `rows` an attribute. Raises `NetError` for other operands.
    """
    index, values = operands
    leading = values.shape[: len(index.shape)]
    if DTYPES[index.dtype].kind != "integer" or index.extent != values.extent or leading != index.shape:
        raise NetError(f"scatter takes integer indices and one value per index, not {index} and {values}")
    return (Type(CONST, (attributes["rows"], *values.shape[len(index.shape) :]), values.dtype),)


def constant_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result type of a constant: that of its array."""
    value = attributes["value"].value
    return (Type(CONST, value.shape, value.dtype.name),)


def input_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result type of an input: the one declared in the attribute `type`."""
    return (attributes["type"],)


def index_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result type of index, the index of the step: an integer per row."""
    return (Type(ROWS, (), "int64"),)


def result_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the type that a `result` node, by its attribute `of`, picks among the results it reads."""
    of: int = attributes["of"]
    return (operands[of],)


def expand_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result type of expand: the operand's features at a deeper extent (such as per step for a
    value per sequence), with each value repeated.

    With the attribute `how` a value is only written to the first or last step of each sequence, and other
    steps are zeros. Raises `NetError` for an extent that is not deeper, and with `how` not deeper by one
    axis.
    """
    extent, operand = attributes["extent"], operands[0]
    if (how := attributes.get("how")) not in (None, *ENDS) or (
        how and len(extent) != len(operand.extent) + 1
    ):
        raise NetError(
            f"expand writes to the first or last step of one more axis, not {how!r} from {operand}"
        )
    if extent[: len(operand.extent)] != operand.extent or extent == operand.extent:
        raise NetError(f"expand goes to a deeper extent, which {'/'.join(extent)} is not for {operand}")
    return (operand.at(extent),)


def reduce_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result type of reduce: the operand's features at the operand's extent without its innermost
    axis, such as per sequence for a value per step.

    Raises `NetError` for a constant, an unknown reduction, or one that changes the dtype.
    """
    if not operands[0].extent:
        raise NetError("reduce takes a value with one entry per row or per step, not a constant")
    if attributes["how"] not in REDUCTIONS:
        raise NetError(f"a reduction is one of {', '.join(REDUCTIONS)}, not {attributes['how']}")
    if REDUCTIONS[str(attributes["how"])](np.zeros((1, 1), operands[0].dtype)).dtype != operands[0].dtype:
        raise NetError(
            f"the {attributes['how']} of {operands[0].dtype} would have another dtype; cast the operand first"
        )
    return (operands[0].at(operands[0].extent[:-1]),)


def windows_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result type of windows, which gives each step some neighbouring steps as features: the
    operand's features with one more axis, of `size`, ahead. The attribute `steps` names the axis of the
    windows, if it does not follow from that of the operand.
    """
    (operand,), window = operands, window_of(operands[0], attributes)
    axis = attributes.get("steps", operand.extent[-1] if window.keeps_lengths else None)
    extent = at_axis(operand.extent, window.axis(operand.extent[-1]) if axis is None else axis)
    return (Type(extent, (window.size, *operand.shape), operand.dtype),)


def overlap_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result type of overlap, which adds each entry of a window to its step: the operand's
    features without the first axis, of the entries. The attribute `steps` names the axis of the steps, if it
    is another than that of the windows. Raises `NetError` for an operand of booleans, or of another number of
    entries than a window has.
    """
    (operand,), window = operands, window_of(operands[0], attributes)
    if operand.shape[:1] != (window.size,) or operand.dtype == "bool":
        raise NetError(f"overlap adds windows of {window.size} steps, which {operand} is not")
    extent = at_axis(operand.extent, attributes.get("steps", operand.extent[-1]))
    return (Type(extent, operand.shape[1:], operand.dtype),)


def at_axis(extent: Extent, axis: str) -> Extent:
    """Returns an extent, such as rows/steps, with another axis in place of that of its steps, for windows of
    which there are more or fewer than steps; raises `NetError` for sequences inside a step, and those that
    each row has once, which have as many windows as steps.
    """
    made = (*extent[:-1], axis)
    if made != extent and not all(own == STEPS or is_derived(own) for own in (extent, made)):
        raise NetError(
            "a stride, or another number of windows than steps, is for the steps of a model's sequences, not "
            f"for {extent_text(extent)}"
        )
    return made


def window_of(operand: Type, attributes: Attributes) -> Window:
    """Returns the window that the attributes of an operation describe; raises `NetError` if there is no such
    window, or if the operand has no steps. A window is the neighbouring steps that are copied to each step,
    as for a convolution.
    """
    window = Window.of(attributes)
    if window.refusal is not None:
        raise NetError(window.refusal)
    if len(operand.extent) < 2:
        raise NetError(f"a window is of the steps of a sequence, which {operand} has not")
    return window


def scores_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result type of scores, which multiplies each query with its keys (steps of two sequences):
    one entry for each pair of a query and a key, with the features of these but the last axis, which is
    summed over.

    The attribute `causal` says whether a query is paired only with the keys up to its own index. Raises
    `NetError` unless queries and keys have the same features, of floats.
    """
    query, key = operands
    if any(len(operand.extent) != len(STEPS) for operand in operands):
        raise NetError(f"pairs are of the steps of two sequences of each row, unlike {query} and {key}")
    if query.element != key.element or not query.shape or not query.is_float:
        raise NetError(f"queries and keys have the same features, of floats, unlike {query} and {key}")
    extent = pairs_of(query.extent, key.extent, attributes["causal"])
    return (Type(extent, query.shape[:-1], query.dtype),)


def mix_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result type of mix, which sums values with a weight for each pair of a query and a key
    (steps of two sequences): the features of the values, with one entry per query if the attribute `over` is
    "keys", or one per key if it is "queries". Raises `NetError` for operands that do not fit each other, and
    for another `over`.
    """
    (weights, values), over = operands, attributes["over"]
    if over not in OVER or not is_pairs(weights.extent):
        raise NetError(f"mix sums weights at pairs over one of {', '.join(OVER)}, not {weights} over {over}")
    given, made = keys_of(weights.extent), queries_of(weights.extent)
    if over == "queries":
        given, made = made, given
    if values.extent != given or values.shape[:-1] != weights.shape or not values.shape:
        raise NetError(
            f"weights {weights} go with values at {extent_text(given)}, an axis more, not {values}"
        )
    if values.dtype != weights.dtype or not values.is_float:
        raise NetError(f"weights and values are floats of one dtype, unlike {weights} and {values}")
    return (values.at(made),)


def arrange_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result type of arrange, which copies the steps of each sequence: the operand's features at
    the axis that the attribute `steps` names. Raises `NetError` unless that axis has the same steps: the
    operand's own axis, or the one along which a recurrence reads the same steps whole, or the reverse.
    Between the steps of an input with lengths of its own and others, both axes are accepted: a call checks
    that the lengths are equal.
    """
    (operand,), axis = operands, attributes["steps"]
    own = operand.extent[-1] if len(operand.extent) == len(STEPS) else ""
    are_steps = all(each == STEPS[-1] or is_derived((each,)) for each in (own, axis))
    may_be = are_steps and (is_own_axis(own) or is_own_axis(axis))
    if not own or not (may_be or axis in (own, whole_axis(own)) or own == whole_axis(axis)):
        raise NetError(f"arrange leads from steps to the same steps, not from {operand} to {axis}")
    return (operand.at((*ROWS, axis)),)


def matrix_gradients_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result type of matrix_gradients: all gradients at a step, one behind the other. Raises
    `NetError` for operands that do not fit a matrix of heads, keys and values.
    """
    given = decay_operands(operands, attributes["reads"], attributes["ends"])
    (heads, keys), values = given.reads[0].shape, given.d_reads[0].shape[-1]
    wanted = [
        *((each, STEPS, (heads, keys)) for each in (*given.reads, *given.keys)),
        *((each, STEPS, (heads, values)) for each in (*given.d_reads, *given.written)),
        (given.decay, STEPS, (heads, keys)[: len(given.decay.shape)]),
        *((each, ROWS, (heads, keys, values)) for each in (given.initial, given.last) if each is not None),
    ]
    if any(each != Type(extent, shape, FLOAT) for each, extent, shape in wanted):
        raise NetError(
            f"matrix_gradients takes vectors of {heads} heads of {keys} keys and {values} values in {FLOAT}"
        )
    return (Type(STEPS, (sum(gradient_sizes(given)),), FLOAT),)


def extend_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result type of extend, which puts copies of steps ahead of each sequence and behind it: the
    operand at the axis of more steps. Raises `NetError` for an operand without steps, and for numbers of
    steps that there cannot be.
    """
    (operand,), extension = operands, Extension.of(attributes)
    if extension.refusal is not None:
        raise NetError(extension.refusal)
    if len(operand.extent) != len(STEPS):
        raise NetError(f"extend puts steps at the ends of a model's sequences, not of {operand}")
    return (operand.at(at_axis(operand.extent, extension.axis(operand.extent[-1]))),)


def contract_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result type of contract: [..., k] and [..., n] of one extent (one per row or per step) give
    a constant [k, n], the sum of outer products. With the attribute `extent`, which is rows, the sum is over
    the steps of each row, and the result has one matrix for each row. Raises `NetError` for other operands.
    """
    left, right = operands
    extent: Extent = attributes.get("extent", CONST)
    if extent not in (CONST, ROWS) or (extent == ROWS and len(left.extent) != len(STEPS)):
        raise NetError(
            "contract sums over all rows or, with extent=rows, over the steps of each row, and cannot make "
            f"{extent_text(extent)} of {left}"
        )
    alike = left.extent == right.extent and left.shape[:-1] == right.shape[:-1]
    if not alike or not left.extent or not left.shape or not right.shape:
        raise NetError(
            f"contract takes two values of the same extent and leading feature axes, not {left} and {right}"
        )
    shape = (left.shape[-1], right.shape[-1])
    return (Type(extent, shape, np.result_type(left.dtype, right.dtype).name),)


def recur_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """Returns the result types of recur: the body's outputs per step, then the final value of each memory.

    The rows of the body (the net of a step) are the sequences that take the step: a value per row there is a
    value per step outside, and an inner sequence of each row is an inner sequence of each step outside.

    Raises `NetError` if operands or memories do not fit the body, if the body sums over all rows, or if it
    returns a constant or a static sequence (one that a row reads whole at each step, as keys of attention).
    """
    order, body = Order.of(attributes), attributes["body"]
    sequences = order.sequence_count
    if sequences < 1:
        raise NetError("a recurrence must run over at least one sequence")
    deep = recur_extent(operands, attributes)
    outputs, following = order.results_by_kind([body.nodes[result].type for result in body.results])
    for position, operand in enumerate(operands):
        inside = body.nodes[body.inputs[position]].type
        outside = CONST if inside.extent == CONST else deep[:-1] + inside.extent[1:]
        if position < sequences:
            outside = deeper(deep, inside.extent)
        if (outside, inside.shape, inside.dtype) != (operand.extent, operand.shape, operand.dtype):
            raise NetError(
                f"operand {position} of the recurrence is {operand}, but its body expects {inside}"
            )
    for memory, after in zip(order.operands_by_kind(operands).memories, following, strict=True):
        if memory.element != after.element:
            raise NetError(f"a memory enters the body as {memory.element} and leaves as {after.element}")
    for output in outputs:
        if is_static_extent(output.extent):
            raise NetError(f"an output is {output}, a sequence per row: reduce it to one value per row")
    for what, types in (("an output", outputs), ("a memory", following)):
        for type_ in types:
            if type_.extent == CONST:
                raise NetError(f"{what} of a body is {type_}, a constant for all rows: expand it to rows")
    for node in body.nodes:
        if node.operation in TOTALS and node.type.extent == CONST:
            raise NetError(
                f"a {node.operation} to const sums over all rows, which a body may not do: move it outside"
            )
        if node.operation in BETWEEN_STEPS:
            raise NetError(
                f"a body has one step at a time, and {node.operation} reads others: move it outside"
            )
    per_step = (output.at(deeper(deep, output.extent)) for output in outputs)
    return (*per_step, *(after.at(deep[:-1] + after.extent[1:]) for after in following))


def recur_extent(operands: Sequence[Type], attributes: Attributes) -> Extent:
    """Returns the extent of a recurrence's values per step, such as rows/steps, from the types of its
    operands and the attributes of its node.

    The first operand is a sequence, with one entry per step or, if each step reads an inner sequence, with
    deeper entries. In that case the axes of the inner sequence are removed from the end of its extent.
    """
    body = attributes["body"]
    inner = len(body.nodes[body.inputs[0]].type.extent) - 1
    return operands[0].extent[: len(operands[0].extent) - inner]


def deeper(deep: Extent, inside: Extent) -> Extent:
    """Returns the extent (axes along which a value has entries) that a value of a recurrence's body (the net
    of a step) has outside of it.

    inside: the extent of the value in the body. deep: the extent outside of one value per step, such as
        rows/steps.
    """
    return deep if len(inside) == 1 else extent_of(len(deep) + len(inside) - 1)
