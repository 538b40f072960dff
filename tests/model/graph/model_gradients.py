"""The gradients of a model agree with differences of its calls, and are the same in machine code."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gradcheck import MOST, STEP
from random_gradients import cast, is_float, plain, random_like, values_of, with_plain
from tolerance import assert_close
from zoo import simple

import stepnet as sn
from stepnet.compiler.values import named_leaves, transform
from stepnet.ragged import offsets_of

Array = np.ndarray
LENGTHS = (3, 0, 1, 5)
LENGTH, WIDTH = 24, 16


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).uniform(-1, 1, shape)


def frames(*shape: int, lengths: tuple[int, ...] = LENGTHS) -> sn.Ragged:
    return sn.Ragged(numbers(sum(lengths), *shape), (offsets_of(lengths),))


def cotangents_of(outputs: Any, seed: int = 0) -> Any:
    return transform(lambda leaf: leaf if is_float(values_of(leaf)) else None, random_like(outputs, seed))


def assert_model(
    model: Any,
    params: Any,
    x: Any,
    statics: Any = None,
    narrow: tuple[str, ...] = ("float32",),
    initial: Any = None,
    **options: Any,
) -> None:
    """Asserts that the gradients of a model are what differences of calls say, and the same on llvm.

    Everything comes in float64. narrow: the dtypes on llvm. initial: the memories that calls begin with.
    """
    graph = sn.Graph(model, params)
    run = sn.vjp(graph)
    given = {"inputs": x, "statics": statics, "initial": initial}
    outputs, backward = run(x, statics=statics, initial=initial, engine="interpret", **options)
    called = graph(x, statics=statics, initial=initial, engine="interpret", **options)
    for one, other in zip(plain(outputs), plain(called), strict=True):
        assert_close(one, other, LENGTH, WIDTH)
    right = backward(cotangents_of(outputs))
    assert initial is not None or right.initial is None
    parts = {"params": graph.params, **given}
    slopes = {name: getattr(right, name) for name in parts}
    assert_alike(slopes, parts)

    def at(moved: Any) -> float:
        other = graph.with_params(moved["params"])
        made = other(moved["inputs"], moved["initial"], moved["statics"], engine="interpret", **options)
        pairs = zip(plain(made), plain(random_like(outputs, 0)), strict=True)
        return sum(float(np.sum(one * other)) for one, other in pairs if one.dtype.kind == "f")

    for name, part in parts.items():
        assert_slope(lambda moved, name=name: at(parts | {name: moved}), part, slopes[name])
    for dtype in narrow:
        given = {name: cast(part, dtype) for name, part in parts.items()}
        narrowed = sn.vjp(sn.Graph(model, given["params"]))
        results, back = narrowed(
            given["inputs"], statics=given["statics"], initial=given["initial"], engine="llvm", **options
        )
        found = back(cotangents_of(cast(outputs, dtype)))
        for one, wide in zip(plain(results), plain(outputs), strict=True):
            assert_close(one, wide, LENGTH, WIDTH, dtype)
        for name in parts:
            for one, wide in zip(plain(getattr(found, name)), plain(getattr(right, name)), strict=True):
                assert one.dtype == dtype
                assert_close(one, wide, LENGTH, WIDTH)


def assert_slope(at: Callable[[Any], float], part: Any, slopes: Any) -> None:
    """Asserts that gradients are what central differences say, along a random direction of each array."""
    known = {name: values_of(slope) for name, slope in named_leaves(slopes)}
    for place, (name, leaf) in enumerate(named_leaves(part)):
        array = values_of(leaf)
        assert (name in known) == (array.dtype.kind == "f")
        if name not in known:
            continue
        direction = np.random.default_rng(place).uniform(-1, 1, array.shape)
        ends = list[float]()
        for sign in (1, -1):
            arrays = plain(part)
            arrays[place] = array + sign * STEP * direction
            ends.append(at(with_plain(part, arrays)))
        right = (ends[0] - ends[1]) / (2 * STEP)
        away = abs(float(np.sum(known[name] * direction)) - right)
        assert away <= MOST * max(1, abs(right)), f"{name}: {away:.3g} away from {right:.6g}"


def assert_alike(slopes: Any, parts: Any) -> None:
    """Asserts that gradients have the form of what they are of: arrays, and Raggeds of the same lengths."""
    forms = dict(named_leaves(parts))
    for name, slope in named_leaves(slopes):
        assert type(slope) is type(forms[name])
        if isinstance(slope, sn.Ragged):
            for one, other in zip(slope.offsets, forms[name].offsets, strict=True):
                np.testing.assert_array_equal(one, other)


OWN = {"W": numbers(3, 3), "R": numbers(3, 3, seed=1)}


def own(params: Any, reverse: bool = False) -> sn.RNN:
    """A recurrence with parameters of its model."""
    return sn.RNN(simple, params, memory=3, reverse=reverse)
