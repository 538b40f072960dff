"""Compares the gradient of a net with central differences of the net."""

from collections.abc import Sequence

import numpy as np

from stepnet.compiler.grad import jvp, vjp
from stepnet.compiler.net import CONST, LevelSizes, Net, Type, interpret
from stepnet.ragged import offsets_of

Array = np.ndarray
LENGTHS = (3, 0, 1, 5)
STEP = 1e-6
MOST = 1e-7
"""The error of central differences in float64, at most, for functions without large third derivatives."""


def segments_of(lengths: Sequence[int] = LENGTHS, **levels: Array) -> LevelSizes:
    """Sequences of these lengths. levels: the offsets of sequences that rows have besides, by axis."""
    return LevelSizes(len(lengths), (offsets_of(lengths),), beside=levels)


def numbers(type_: Type, segments: LevelSizes, seed: int) -> Array:
    """Numbers of a type: from -1 to 1, or small whole ones."""
    random = np.random.default_rng(seed)
    count = () if type_.extent == CONST else (segments.count(type_.extent),)
    shape = (*count, *type_.shape)
    if type_.is_float:
        return random.uniform(-1, 1, shape).astype(type_.dtype)
    return random.integers(0, 2, shape).astype(type_.dtype)


def arrays_for(net: Net, segments: LevelSizes, seed: int = 0) -> list[Array]:
    """Numbers for all inputs of a net."""
    return [numbers(net.type_of(one), segments, seed + place) for place, one in enumerate(net.inputs)]


def along(net: Net, arrays: Sequence[Array], segments: LevelSizes, cotangents: Sequence[Array]) -> float:
    """The sum of a net's floating-point results, weighted."""
    made = interpret(net, arrays, segments)
    floats = [array for array in made if array.dtype.kind == "f"]
    return sum(float(np.sum(a * b)) for a, b in zip(floats, cotangents, strict=True))


def assert_gradient(
    net: Net, segments: LevelSizes, arrays: Sequence[Array] | None = None, order: int = 1
) -> Net:
    """Asserts that the gradient of a net is right, in a random direction of each input; gives its net.

    order: up to which derivative.
    """
    given = list(arrays_for(net, segments) if arrays is None else arrays)
    gradient = vjp(net)
    types = [gradient.type_of(number) for number in gradient.inputs[len(given) :]]
    cotangents = [numbers(type_, segments, 100 + place) for place, type_ in enumerate(types)]
    made = interpret(gradient, [*given, *cotangents], segments)
    results, gradients = made[: len(net.results)], made[len(net.results) :]
    for found, right in zip(results, interpret(net, given, segments), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-12)
    places = [place for place, number in enumerate(net.inputs) if net.type_of(number).is_float]
    for place, found in zip(places, gradients, strict=True):
        assert found.shape == given[place].shape
        direction = np.random.default_rng(place).uniform(-1, 1, given[place].shape)
        ends: list[float] = []
        for sign in (1, -1):
            moved = [*given]
            moved[place] = given[place] + sign * STEP * direction
            ends.append(along(net, moved, segments, cotangents))
        right = (ends[0] - ends[1]) / (2 * STEP)
        away = abs(float(np.sum(found * direction)) - right)
        assert away <= MOST * max(1, abs(right)), f"input {place}: {away:.3g} away from {right:.6g}\n{net}"
    if order > 1:
        assert_gradient(gradient, segments, [*given, *cotangents], order - 1)
    return gradient


def assert_tangent(
    net: Net, segments: LevelSizes, arrays: Sequence[Array] | None = None, differences: bool = True
) -> Net:
    """Asserts that the tangent of a net is right in a random direction of all inputs; gives its net.

    It is that of central differences, unless `differences` is False, and the adjoint of the gradient: the
    cotangents u give <u, J v> = <J^T u, v>.
    """
    given = list(arrays_for(net, segments) if arrays is None else arrays)
    tangent = jvp(net)
    types = [tangent.type_of(number) for number in tangent.inputs[len(given) :]]
    moved = [numbers(type_, segments, 200 + place) for place, type_ in enumerate(types)]
    made = interpret(tangent, [*given, *moved], segments)
    results, found = made[: len(net.results)], made[len(net.results) :]
    for one, right in zip(results, interpret(net, given, segments), strict=True):
        np.testing.assert_allclose(one, right, rtol=1e-12, atol=1e-12)
    if differences:
        places = [place for place, number in enumerate(net.inputs) if net.type_of(number).is_float]
        ends: list[list[Array]] = []
        for sign in (1, -1):
            there = [*given]
            for place, direction in zip(places, moved, strict=True):
                there[place] = given[place] + sign * STEP * direction
            ends.append([array for array in interpret(net, there, segments) if array.dtype.kind == "f"])
        for one, ahead, behind in zip(found, *ends, strict=True):
            right = (ahead - behind) / (2 * STEP)
            assert one.shape == right.shape
            assert (np.abs(one - right) <= 10 * MOST * np.maximum(1, np.abs(right))).all(), net
    cotangents = [numbers(net.type_of(n), segments, 300 + n) for n in net.results if net.type_of(n).is_float]
    gradients = interpret(vjp(net), [*given, *cotangents], segments)[len(net.results) :]
    pairs = [*zip(cotangents, found, strict=True)], [*zip(gradients, moved, strict=True)]
    ours, theirs = (sum(float(np.sum(a * b)) for a, b in pair) for pair in pairs)
    assert abs(ours - theirs) <= 1e-11 * max(1, abs(theirs)), f"{ours} is not {theirs}\n{net}"
    return tangent
