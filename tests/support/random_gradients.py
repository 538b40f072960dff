"""Gradients of random steps: those of the interpreter in float64 against central differences, and those of
each engine, in both dtypes, against the interpreter's.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.values import leaves, named_leaves, rebuild, transform

Array = np.ndarray
STEP = 1e-6
MOST = 2e-6
KINK = 1e-4
"""The least difference of the slopes ahead and behind at a kink. Those of a curve differ by STEP times its
second derivative, which is in the tens."""


def values_of(leaf: Any) -> Array:
    """An array, or those of a Ragged end to end."""
    return leaf.values if isinstance(leaf, sn.Ragged) else leaf


def plain(structure: Any) -> list[Array]:
    """The arrays of a structure, those of Raggeds end to end."""
    return [values_of(leaf) for leaf in leaves(structure)]


def with_plain(structure: Any, arrays: list[Array]) -> Any:
    """The structure with other arrays."""
    pairs = zip(leaves(structure), arrays, strict=True)
    made = [one.with_values(array) if isinstance(one, sn.Ragged) else array for one, array in pairs]
    return rebuild(structure, made)


def cast(structure: Any, dtype: Any) -> Any:
    """The structure with its floats in a dtype."""
    arrays = [array.astype(dtype) if array.dtype.kind == "f" else array for array in plain(structure)]
    return with_plain(structure, arrays)


def random_like(structure: Any, seed: int) -> Any:
    """Numbers from -1 to 1 in the place of all floats."""
    random = np.random.default_rng(seed)
    return with_plain(structure, [random.uniform(-1, 1, a.shape).astype(a.dtype) for a in plain(structure)])


def gradients_of(layer: Any, given: dict[str, Any], seed: int, **options: Any) -> tuple[Any, Any]:
    """The results of a layer, and its gradients for random cotangents of these. given: what `vjp` takes."""
    return gradients_by(sn.vjp(layer), given, seed, **options)


def gradients_by(run: Any, given: dict[str, Any], seed: int, **options: Any) -> tuple[Any, Any]:
    """The same by what `vjp` gave, which keeps its programs."""
    results, backward = run(**given, **options)
    outputs, final = (
        transform(lambda leaf: leaf if is_float(leaf) else None, random_like(part, seed)) for part in results
    )
    return results, backward(outputs, final)


def is_float(leaf: Any) -> bool:
    return leaf.dtype.kind == "f"


def weighted(results: Any, seed: int) -> float:
    """The sum of the floats of results, each times its cotangent."""
    total = 0.0
    for part in results:
        pairs = zip(plain(part), plain(random_like(part, seed)), strict=True)
        total += sum(float(np.sum(one * other)) for one, other in pairs if one.dtype.kind == "f")
    return total


def assert_differences(run: Callable[[Any], Any], given: Any, gradients: Any, seed: int) -> None:
    """Asserts that gradients are what differences say, in a random direction of all that is given.

    Where the differences ahead and behind are not the same there is a kink, which has no slope.
    """
    arrays, known = plain(given), dict(named_leaves(gradients))
    slopes = [values_of(known.get(name, np.zeros(()))) for name, _ in named_leaves(given)]
    assert known.keys() == {name for name, leaf in named_leaves(given) if is_float(values_of(leaf))}
    random = np.random.default_rng(seed)
    directions = [random.uniform(-1, 1, one.shape) * (one.dtype.kind == "f") for one in arrays]

    def at(way: float) -> float:
        moved = [
            a + way * STEP * d if a.dtype.kind == "f" else a for a, d in zip(arrays, directions, strict=True)
        ]
        return weighted(run(with_plain(given, moved)), seed)

    behind, here, ahead = at(-1), at(0), at(1)
    right = (ahead - behind) / (2 * STEP)
    if abs(ahead - 2 * here + behind) > STEP * KINK * max(1, abs(right)):
        return
    found = sum(
        float(np.sum(s * d))
        for s, d, a in zip(slopes, directions, arrays, strict=True)
        if a.dtype.kind == "f"
    )
    assert abs(found - right) <= MOST * max(1, abs(right)), (found, right)


def assert_adjoint(
    layer: Any, given: dict[str, Any], slopes: dict[str, Any], seed: int, **options: Any
) -> None:
    """Asserts that the tangents of a layer are the adjoint of its gradients: <u, J v> = <J^T u, v>.

    given: what `vjp` takes. slopes: the gradients J^T u, by argument; None for integers.
    """
    directions = {name: None if part is None else random_like(part, seed) for name, part in slopes.items()}
    results, tangents = sn.jvp(layer)(
        **given, tangents=directions, params=layer.params, engine="interpret", **options
    )
    ours = 0.0
    for part, moved in zip(results, tangents, strict=True):
        known = dict(named_leaves(moved))  # those of integers are None
        for name, cotangent in named_leaves(random_like(part, seed)):
            ours += float(np.sum(values_of(cotangent) * values_of(known[name]))) if name in known else 0.0
    pairs = zip(plain(list(slopes.values())), plain(list(directions.values())), strict=True)
    theirs = sum(float(np.sum(slope * direction)) for slope, direction in pairs)
    assert abs(ours - theirs) <= 1e-9 * max(1, abs(theirs)), (ours, theirs)


def assert_gradients(
    make: Callable[[str], Any],
    given: dict[str, Any],
    seed: int,
    length: int,
    width: int,
    dtype: str = "float32",
) -> None:
    """Asserts that the gradients of a layer are right on every engine.

    make: the layer whose parameters have a dtype. given: what `vjp` takes, numbers in float64. dtype: of the
    engine that compiles.
    """
    layer = make("float64")
    names = {"params": "params", "sequences": "inputs", "initial": "initial", "statics": "statics"}
    options = {name: part for name, part in given.items() if name not in names}
    given = {name: part for name, part in given.items() if name in names}
    programs = sn.vjp(layer)
    _, right = gradients_by(programs, given, seed, engine="interpret", **options)
    parts = {"params": layer.params, **given}

    def run(moved: Any) -> Any:
        results, _ = programs(**moved, engine="interpret", **options)
        return results

    slopes = {name: getattr(right, names[name]) for name in parts}
    assert_differences(run, parts, slopes, seed)
    assert_adjoint(layer, given, {names[name]: part for name, part in slopes.items()}, seed, **options)
    narrow = {name: cast(part, dtype) for name, part in given.items()}
    _, found = gradients_of(make(dtype), narrow, seed, engine="llvm", **options)
    for name in names.values():
        pairs = zip(plain(getattr(found, name)), plain(getattr(right, name)), strict=True)
        for one, wide in pairs:
            assert one.dtype == dtype
            assert_close(one, wide, length, width)
