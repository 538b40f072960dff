"""ONNX's operators that move and reshape axes, and those that compute shapes, as a table of rules.

A shape is a constant whose elements may be a `Size`, so shapes are computed by the same rules as constants.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.errors import ModelError
from stepnet.graph.operators.call import Call, Rules
from stepnet.graph.operators.facts import STEP
from stepnet.graph.operators.placed import AxesError, Placed, check_room, constant, reshaped, words
from stepnet.graph.operators.sizes import FEATURE, STEPS, Last, Size, product
from stepnet.rnn.counting import index_of
from stepnet.trace.traced import Traced

Array = np.ndarray


def shape(call: Call) -> Placed:
    """The result of Shape: the sizes of the axes."""
    sizes = call.x.sizes[call.attributes.get("start", 0) : call.attributes.get("end")]
    return constant(shape_array(sizes))


def shape_array(sizes: Sequence[Any]) -> Array:
    """Sizes as an array: of int64 if all are known, else of objects."""
    if all(isinstance(size, int) for size in sizes):
        return np.array(sizes, np.int64)
    array = np.empty(len(sizes), object)
    array[:] = list(sizes)
    return array


def transpose(call: Call) -> Placed:
    """The result of Transpose."""
    x = call.x
    order = [x.axis(axis) for axis in call.attributes.get("perm", range(len(x.axes))[::-1])]
    if sorted(order) != list(range(len(x.axes))):
        raise ModelError(f"its perm {order} is not a permutation of {len(x.axes)} axes")
    features = [x.axes[:axis].count(FEATURE) for axis in order if x.axes[axis] == FEATURE]
    value = x.value if features == sorted(features) else transpose_features(x.value, features)
    return x.with_value(value, "".join(x.axes[axis] for axis in order))


def transpose_features(value: Any, order: list[int]) -> Any:
    """A value with its features in another order."""
    if isinstance(value, Traced) and not value.is_constant:
        return value.transpose(0, *(1 + place for place in order))
    return np.transpose(value, order)


def unsqueeze(call: Call) -> Placed:
    """The result of Unsqueeze: a value with new features of size one."""
    x, stated = call.x, call.whole(1, "axes") or []
    axes = sorted(x.axis(axis, len(stated)) for axis in stated)
    letters = list(x.axes)
    for axis in axes:
        letters.insert(axis, FEATURE)
    new_axes = "".join(letters)
    features = list(x.features)
    for axis in axes:
        features.insert(new_axes[:axis].count(FEATURE), 1)
    return x.with_value(reshaped(x.value, features), new_axes)


def squeeze(call: Call) -> Placed:
    """The result of Squeeze: a value without some features of size one."""
    x, stated = call.x, call.whole(1, "axes")
    if stated is None:
        axes = [axis for axis, size in enumerate(x.sizes) if isinstance(size, int) and size == 1]
    else:
        axes = [x.axis(axis) for axis in stated]
    for axis in axes:
        if x.axes[axis] != FEATURE:
            raise AxesError(f"it removes the axis of the {words(x.axes[axis])}: only features can be removed")
        if x.sizes[axis] != 1:
            raise ModelError(f"it removes an axis of size {x.sizes[axis]}: only size 1 can be removed")
    dropped = {x.feature(axis) for axis in axes}
    features = [size for place, size in enumerate(x.features) if place - len(x.features) not in dropped]
    letters = "".join(letter for axis, letter in enumerate(x.axes) if axis not in axes)
    return x.with_value(reshaped(x.value, features), letters)


def reshape(call: Call) -> Placed:
    """The result of Reshape."""
    target = list(np.ravel(call.operand(1).array)) if call.optional(1) else list(call.attributes["shape"])
    if not call.attributes.get("allowzero"):
        target = [call.x.sizes[place] if is_number(size, 0) else size for place, size in enumerate(target)]
    return as_sizes(call.x, target)


def is_number(size: Any, number: int) -> bool:
    """Whether a size is known and equals a number."""
    return not isinstance(size, Size) and int(size) == number


def flatten(call: Call) -> Placed:
    """The result of Flatten: the axes before `axis` become the first of two axes, the others the second."""
    x = call.x
    axis = x.axis(int(call.attributes.get("axis", 1)), 1)
    return as_sizes(x, [product(x.sizes[:axis]), product(x.sizes[axis:])])


def as_sizes(x: Placed, target: Sequence[Any]) -> Placed:
    """A value in another shape.

    target: the sizes of the new axes; -1 for one size that follows from the others.

    Features may be merged and split. The axes of sequences and steps must remain separate axes.
    """
    sizes, target = list(x.sizes), list(target)
    open_ = [place for place, size in enumerate(target) if is_number(size, -1)]
    if len(open_) > 1:
        raise ModelError(f"its shape {target} has several sizes of -1: only one can be inferred")
    if open_:
        target[open_[0]] = product(sizes) // product(size for size in target if not is_number(size, -1))
    if x.is_constant and not x.axes.strip(FEATURE):
        return constant(x.array.reshape([int(size) for size in target]))
    letters, features, left = "", list[int](), 0
    groups = matched(sizes, target)
    for before, after in groups:
        group_axes, left = x.axes[left : left + len(before)], left + len(before)
        letter = group_axes.replace(FEATURE, "")  # of sequences or steps, if one of them is in the group
        kept = [size for size in after if not (letter and is_axis(size, letter, x))]
        mixed = len(letter) > 1 or len(after) - len(kept) != len(letter)
        if mixed or any(isinstance(size, Size) for size in kept):
            raise ModelError(
                f"it reshapes [{words(x.axes)}] to {target}, which mixes sequences, steps and features"
            )
        letters += "".join(letter if letter and is_axis(size, letter, x) else FEATURE for size in after)
        features += [int(size) for size in kept]
    return x.with_value(reshaped(x.value, features), letters)


def is_axis(size: Any, letter: str, x: Placed) -> bool:
    """Whether a size is that of an axis of a value: of its sequences or of its steps, by letter."""
    return Size(letter, stated=dict(x.stated).get(letter)) == size


def matched(before: list[Any], after: list[Any]) -> list[tuple[list[Any], list[Any]]]:
    """Both shapes divided into the smallest groups of adjacent sizes with equal products, in order."""
    groups: list[tuple[list[Any], list[Any]]] = []
    before, after = before[::-1], after[::-1]
    while before or after:
        left, right = [before.pop()] if before else [], [after.pop()] if after else []
        while product(left) != product(right):
            if before and not is_more(left, right):
                left.append(before.pop())
            elif after:
                right.append(after.pop())
            elif before:
                left.append(before.pop())
            else:
                raise ModelError("it reshapes a value to a shape with another number of elements")
        groups.append((left, right))
    return groups


def is_more(left: list[Any], right: list[Any]) -> bool:
    """Whether the product of the left group is larger, so that the right group must grow next."""
    a, b = product(left), product(right)
    if isinstance(a, Size) != isinstance(b, Size):
        return isinstance(a, Size)
    if isinstance(a, Size) and isinstance(b, Size):
        return (len(a.letters), a.times) > (len(b.letters), b.times)
    return a > b


def expand(call: Call) -> Placed:
    """The result of Expand: a value broadcast to a shape, whose axes may include sequences or steps."""
    return repeated(call.x, list(np.ravel(call.operand(1).array)))


def repeated(x: Placed, target: Sequence[Any]) -> Placed:
    """A value broadcast to a shape, in which a `Size` is the axis of sequences or steps."""
    rank = max(len(target), len(x.axes))
    letters, sizes = FEATURE * (rank - len(x.axes)) + x.axes, [1] * (rank - len(x.axes)) + list(x.sizes)
    target = [1] * (rank - len(target)) + list(target)
    new_axes, kept, features = "", list[int](), list[int]()
    for letter, size, wanted in zip(letters, sizes, target, strict=True):
        axis = wanted.letters if isinstance(wanted, Size) else ""
        if letter != FEATURE:
            if not (is_number(wanted, 1) or size == wanted):
                raise AxesError(f"it broadcasts the axis of the {words(letter)} to the size {wanted}")
            new_axes += letter
        elif axis:
            if not is_number(size, 1) or len(axis) > 1:
                raise AxesError(f"it broadcasts an axis of size {size} to that of the {words(axis)}")
            new_axes += axis
        else:
            new_axes += FEATURE
            kept.append(int(size))
            features.append(int(size) if is_number(wanted, 1) else int(wanted))
    return x.with_value(broadcast(reshaped(x.value, kept), features), new_axes)


def broadcast(value: Any, features: Sequence[int]) -> Any:
    """A value with its features broadcast to these sizes."""
    check_room(features)
    if isinstance(value, Traced):
        rows = () if value.is_constant else (value.shape[0],)
        return np.broadcast_to(value, (*rows, *features)) if value.type.shape != tuple(features) else value
    return np.broadcast_to(value, features)


def constant_of_shape(call: Call) -> Placed:
    """The result of ConstantOfShape: an array filled with one number."""
    filling = np.asarray(call.attributes.get("value", np.zeros(1, "float32"))).reshape(())
    return repeated(constant(filling), list(np.ravel(call.x.array)))


def range_(call: Call) -> Placed:
    """The result of Range: a constant if its bounds are known, or the index of each step if it ends at the
    number of steps.
    """
    numbers = [call.operand(place) for place in range(3)]
    begin, end, step = (number.array.item() for number in numbers)
    if isinstance(end, Size) and (begin, step) == (0, 1) and end.times == 1 and call.like is not None:
        if end.letters != STEPS:
            raise AxesError("it is a range over the sequences, whose number differs between calls")
        value = index_of(call.like).astype(np.result_type(numbers[0].value, numbers[2].value))
        return Placed(value, STEPS, fact=STEP if call.padded else None)
    if isinstance(begin, Size | Last) or isinstance(end, Size | Last) or isinstance(step, Size | Last):
        raise ModelError(
            "its bounds include the number of sequences or steps, which differs between calls; a range over "
            "steps is supported from 0 to their number in steps of 1"
        )
    check_room([int(abs((end - begin) / step))])
    return constant(np.arange(begin, end, step))


def literal(call: Call) -> Placed:
    """The result of Constant."""
    kinds = {
        "value": None,
        "value_float": "float32",
        "value_floats": "float32",
        "value_int": "int64",
        "value_ints": "int64",
    }
    for name, dtype in kinds.items():
        if name in call.attributes:
            return constant(np.asarray(call.attributes[name], dtype))
    raise ModelError(
        f"this constant is not an array of numbers: it has {', '.join(call.attributes) or 'none'}"
    )


SHAPING: dict[str, Rules] = {
    "Constant": literal,
    "ConstantOfShape": constant_of_shape,
    "Expand": expand,
    "Flatten": flatten,
    "Range": range_,
    "Reshape": reshape,
    "Shape": shape,
    "Squeeze": squeeze,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}
"""The rule of each operator."""
