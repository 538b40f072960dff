"""ONNX's operators that move axes, and those that compute shapes: a table.

A shape is a constant whose numbers may be a `Size`, so shapes are computed by the same rules as constants.
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
    """Shape: the sizes of all axes."""
    sizes = call.x.sizes[call.attributes.get("start", 0) : call.attributes.get("end")]
    return constant(shape_array(sizes))


def shape_array(sizes: Sequence[Any]) -> Array:
    """Sizes as an array: of int64 where all are known."""
    if all(isinstance(size, int) for size in sizes):
        return np.array(sizes, np.int64)
    made = np.empty(len(sizes), object)
    made[:] = list(sizes)
    return made


def transpose(call: Call) -> Placed:
    """Transpose."""
    x = call.x
    order = [x.axis(axis) for axis in call.attributes.get("perm", range(len(x.axes))[::-1])]
    if sorted(order) != list(range(len(x.axes))):
        raise ModelError(f"its perm {order} is no order of {len(x.axes)} axes")
    features = [x.axes[:axis].count(FEATURE) for axis in order if x.axes[axis] == FEATURE]
    value = x.value if features == sorted(features) else moved(x.value, features)
    return x.with_value(value, "".join(x.axes[axis] for axis in order))


def moved(value: Any, order: list[int]) -> Any:
    """A value with its features in another order."""
    if isinstance(value, Traced) and not value.is_constant:
        return value.transpose(0, *(1 + place for place in order))
    return np.transpose(value, order)


def unsqueeze(call: Call) -> Placed:
    """Unsqueeze: new features of size one."""
    x, stated = call.x, call.whole(1, "axes") or []
    axes = sorted(x.axis(axis, len(stated)) for axis in stated)
    letters = list(x.axes)
    for axis in axes:
        letters.insert(axis, FEATURE)
    value, made = x.value, "".join(letters)
    features = list(x.features)
    for axis in axes:
        features.insert(made[:axis].count(FEATURE), 1)
    return x.with_value(reshaped(value, features), made)


def squeeze(call: Call) -> Placed:
    """Squeeze: features of size one left out."""
    x, stated = call.x, call.whole(1, "axes")
    if stated is None:
        axes = [axis for axis, size in enumerate(x.sizes) if isinstance(size, int) and size == 1]
    else:
        axes = [x.axis(axis) for axis in stated]
    for axis in axes:
        if x.axes[axis] != FEATURE:
            raise AxesError(f"it leaves out the axis of the {words(x.axes[axis])}")
        if x.sizes[axis] != 1:
            raise ModelError(f"it leaves out an axis of {x.sizes[axis]} numbers")
    dropped = {x.feature(axis) for axis in axes}
    features = [size for place, size in enumerate(x.features) if place - len(x.features) not in dropped]
    letters = "".join(letter for axis, letter in enumerate(x.axes) if axis not in axes)
    return x.with_value(reshaped(x.value, features), letters)


def reshape(call: Call) -> Placed:
    """Reshape."""
    target = list(np.ravel(call.operand(1).array)) if call.optional(1) else list(call.attributes["shape"])
    if not call.attributes.get("allowzero"):
        target = [call.x.sizes[place] if is_number(size, 0) else size for place, size in enumerate(target)]
    return as_sizes(call.x, target)


def is_number(size: Any, number: int) -> bool:
    """Whether a size is a known number, and this one."""
    return not isinstance(size, Size) and int(size) == number


def flatten(call: Call) -> Placed:
    """Flatten: all axes before one, and all others, become one each."""
    x = call.x
    axis = x.axis(int(call.attributes.get("axis", 1)), 1)
    return as_sizes(x, [product(x.sizes[:axis]), product(x.sizes[axis:])])


def as_sizes(x: Placed, target: Sequence[Any]) -> Placed:
    """A value in another shape. Sequences and steps stay axes of their own, features are joined and cut."""
    sizes, target = list(x.sizes), list(target)
    open_ = [place for place, size in enumerate(target) if is_number(size, -1)]
    if len(open_) > 1:
        raise ModelError(f"its shape {target} has several open sizes")
    if open_:
        target[open_[0]] = product(sizes) // product(size for size in target if not is_number(size, -1))
    if x.is_constant and not x.axes.strip(FEATURE):
        return constant(x.array.reshape([int(size) for size in target]))
    letters, features, left = "", list[int](), 0
    groups = matched(sizes, target)
    for before, after in groups:
        inside, left = x.axes[left : left + len(before)], left + len(before)
        own = inside.replace(FEATURE, "")
        kept = [size for size in after if not (own and is_axis(size, own, x))]
        mixed = len(own) > 1 or len(after) - len(kept) != len(own)
        if mixed or any(isinstance(size, Size) for size in kept):
            raise ModelError(f"it makes {target} of [{words(x.axes)}]: sequences, steps and features mix")
        letters += "".join(own if own and is_axis(size, own, x) else FEATURE for size in after)
        features += [int(size) for size in kept]
    return x.with_value(reshaped(x.value, features), letters)


def is_axis(size: Any, letter: str, x: Placed) -> bool:
    """Whether a size is that of the sequences, or of the steps."""
    return Size(letter, stated=dict(x.stated).get(letter)) == size


def matched(before: list[Any], after: list[Any]) -> list[tuple[list[Any], list[Any]]]:
    """The smallest groups of neighbouring sizes that have the same product in both shapes, in order."""
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
                raise ModelError(f"{before[::-1]} has another number of numbers than {after[::-1]}")
        groups.append((left, right))
    return groups


def is_more(left: list[Any], right: list[Any]) -> bool:
    """Whether one group has to wait for the other to grow."""
    a, b = product(left), product(right)
    if isinstance(a, Size) != isinstance(b, Size):
        return isinstance(a, Size)
    if isinstance(a, Size) and isinstance(b, Size):
        return (len(a.letters), a.times) > (len(b.letters), b.times)
    return a > b


def expand(call: Call) -> Placed:
    """Expand: a value broadcast to a shape, which may be that of all sequences."""
    return repeated(call.x, list(np.ravel(call.operand(1).array)))


def repeated(x: Placed, target: Sequence[Any]) -> Placed:
    """A value broadcast to a shape."""
    rank = max(len(target), len(x.axes))
    letters, sizes = FEATURE * (rank - len(x.axes)) + x.axes, [1] * (rank - len(x.axes)) + list(x.sizes)
    target = [1] * (rank - len(target)) + list(target)
    made, kept, features = "", list[int](), list[int]()
    for letter, size, wanted in zip(letters, sizes, target, strict=True):
        axis = wanted.letters if isinstance(wanted, Size) else ""
        if letter != FEATURE:
            if not (is_number(wanted, 1) or size == wanted):
                raise AxesError(f"it repeats the {words(letter)} to {wanted}")
            made += letter
        elif axis:
            if not is_number(size, 1) or len(axis) > 1:
                raise AxesError(f"{size} numbers are repeated for each of the {words(axis)}")
            made += axis
        else:
            made += FEATURE
            kept.append(int(size))
            features.append(int(size) if is_number(wanted, 1) else int(wanted))
    return x.with_value(broadcast(reshaped(x.value, kept), features), made)


def broadcast(value: Any, features: Sequence[int]) -> Any:
    """A value with features of these sizes."""
    check_room(features)
    if isinstance(value, Traced):
        rows = () if value.is_constant else (value.shape[0],)
        return np.broadcast_to(value, (*rows, *features)) if value.type.shape != tuple(features) else value
    return np.broadcast_to(value, features)


def constant_of_shape(call: Call) -> Placed:
    """ConstantOfShape: one number in a shape."""
    filling = np.asarray(call.attributes.get("value", np.zeros(1, "float32"))).reshape(())
    return repeated(constant(filling), list(np.ravel(call.x.array)))


def range_(call: Call) -> Placed:
    """Range of known numbers, or of as many as there are steps."""
    numbers = [call.operand(place) for place in range(3)]
    begin, end, step = (number.array.item() for number in numbers)
    if isinstance(end, Size) and (begin, step) == (0, 1) and end.times == 1 and call.like is not None:
        if end.letters != STEPS:
            raise AxesError("it counts sequences, of which there are not as many in each call")
        value = index_of(call.like).astype(np.result_type(numbers[0].value, numbers[2].value))
        return Placed(value, STEPS, fact=STEP if call.padded else None)
    if isinstance(begin, Size | Last) or isinstance(end, Size | Last) or isinstance(step, Size | Last):
        raise ModelError("it counts sequences or steps, of which there are not as many in each call")
    check_room([int(abs((end - begin) / step))])
    return constant(np.arange(begin, end, step))


def literal(call: Call) -> Placed:
    """Constant."""
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
    raise ModelError("this constant is no array of numbers")


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
