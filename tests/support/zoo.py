"""The zoo that tests share: recurrences of known cells, a small step, random arrays and sequences."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import stepnet as sn

Array = np.ndarray[Any, Any]
Seed = int | Sequence[int] | np.random.Generator | None


def rnn_of(
    name: str,
    inputs: int,
    hidden: int,
    *,
    seed: int = 0,
    dtype: Any = "float32",
    projected: int = 3,
    **options: Any,
) -> sn.RNN:
    """The recurrence of a known cell with random parameters.

    projected: the size of the projection, in a cell that has one. options: as `sn.cells.rnn` takes them.
    """
    known = sn.cells.CELLS[name]
    sizes = (inputs, hidden, projected) if "P" in known.further else (inputs, hidden)
    return sn.cells.rnn(name, known.parameters(*sizes, seed=seed, dtype=dtype), **options)


def simple(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    """The step of the simplest recurrence, with parameters W and R."""
    h = np.tanh(x @ p["W"] + h @ p["R"])
    return h, h


def sigmoid(x: Any) -> Any:
    """The logistic function of arrays."""
    return 1 / (1 + np.exp(-x))


def uniform(*shape: int, seed: Seed = None, dtype: Any = "float32", scale: float = 1) -> Array:
    """Random numbers from -scale to scale.

    seed: a number, or a generator, which goes on; by default the shape, so that other shapes have others.
    """
    return (generator(shape, seed).uniform(-1, 1, shape) * scale).astype(dtype)


def normal(*shape: int, seed: Seed = None, dtype: Any = "float32") -> Array:
    """Random numbers of the normal distribution; seed: as for `uniform`."""
    return generator(shape, seed).normal(size=shape).astype(dtype)


def generator(shape: tuple[int, ...], seed: Seed) -> np.random.Generator:
    """The generator of a seed; that of the shape where there is none."""
    return np.random.default_rng(shape if seed is None else seed)


def sequences(lengths: Sequence[int], *features: int, seed: Seed = 0, dtype: Any = "float32") -> sn.Ragged:
    """Sequences of random numbers of the normal distribution, by their lengths."""
    values = normal(int(sum(lengths)), *features, seed=seed, dtype=dtype)
    return sn.Ragged(values, (np.cumsum([0, *lengths], dtype=np.int64),))
