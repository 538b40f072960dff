"""Weights of every record, and what is known of them without converting: for the tests of conversions.

A case is a record with what its layout leaves open. Its blocks are looked at through the places that the
record says (test_places proves those), and its numbers are compared by their bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

from stepnet.layout import Record, Semantics, Sizes, records
from stepnet.layout.equations import step_of
from stepnet.layout.layers import blocks
from stepnet.layout.places import ParameterBlock, regions

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]

DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
BEYOND = {"float16": 16, "bfloat16": 128, "float32": 128, "float64": 1024}  # 2 to this is past the largest
MOST = np.finfo(np.float64).max
CHOICES = {"forget_bias": (1.0,), "gate_activation": ("sigmoid",), "candidate_activation": ("tanh",)}


@dataclass(frozen=True)
class Case:
    """A record with a value for each field that it leaves open."""

    record: Record
    open_fields: Mapping[str, Any]

    @property
    def meaning(self) -> Semantics:
        """The function that its numbers parametrise."""
        return self.record.settled(self.open_fields)

    def sizes(self, sizes: Sizes) -> Sizes:
        """Sizes at which it has a place for its weights."""
        return fitting(self.record, sizes)

    def __str__(self) -> str:
        said = [str(value) for name, value in self.open_fields.items() if name not in CHOICES]
        return " ".join([self.record.name, *said])


def fitting(record: Record, sizes: Sizes) -> Sizes:
    """These sizes, or those nearest to them at which a record has a place for layers."""
    ways = record.ways or sizes.directions
    own = replace(sizes, projected=sizes.projected if record.projection else None, directions=ways)
    return replace(own, inputs=own.inputs_of(1)) if record.misfit(own) else own


def cases() -> list[Case]:
    """Every record, once for each sense that its z may have and each place of its reset."""
    found: list[Case] = []
    for record in records().values():
        asked = [name for name, setting in record.settings().items() if setting.usual is None]
        variants: list[dict[str, Any]] = [{}]
        for name in asked:
            values = CHOICES.get(name) or tuple(record.settings()[name].values or ())
            variants = [variant | {name: value} for variant in variants for value in values]
        found += [Case(record, variant) for variant in variants]
    return found


# ---- weights -----------------------------------------------------------------------------------------------


def weights(record: Record, sizes: Sizes, dtype: Any = np.float32, seed: int = 0) -> Arrays:
    """Normal numbers for every array of a record, in its order."""
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(dtype) for name, shape in record.shapes(sizes).items()}


def tamed(record: Record, sizes: Sizes, arrays: Arrays, zero: str = "bdpq") -> Arrays:
    """The same weights without whatever some layout has no place for: these biases and peepholes are zero, a
    projection changes nothing, and input gates are 1 - f.
    """
    found = {name: array.copy() for name, array in arrays.items()}
    places = views(record, sizes, found)
    for block, view in places.items():
        if block.parameter in zero:
            view[...] = 0
        elif block.parameter == "P":
            view[...] = np.eye(*view.shape)
        elif block.gate == "i":
            view[...] = -places[replace(block, gate="f")]
    return found


def views(record: Record, sizes: Sizes, arrays: Mapping[str, Array]) -> dict[ParameterBlock, Array]:
    """Every block as it lies in arrays; of a raw one, the place that holds its buffer."""
    return {
        region.block: region.view(arrays[region.array])
        for region in regions(record, sizes)
        if region.array in arrays
    }


def values(record: Record, sizes: Sizes, arrays: Mapping[str, Array]) -> dict[ParameterBlock, Array]:
    """Every block in its own axes: [hidden, inputs] and so on."""
    return {block: view.reshape(block.shape(sizes)) for block, view in views(record, sizes, arrays).items()}


def bits(array: Array) -> Array:
    """Numbers as whole numbers that are equal only where all bits are."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def same_bits(one: Array, other: Array) -> bool:
    """True if two arrays are of one dtype, of one shape and equal to the last bit, NaNs and all."""
    return (one.dtype, one.shape) == (other.dtype, other.shape) and bool((bits(one) == bits(other)).all())


# ---- what is right -----------------------------------------------------------------------------------------


def outputs(record: Record, meaning: Semantics, sizes: Sizes, arrays: Mapping[str, Array]) -> Array:
    """The results of layers for some sequences, in float64; in the second direction from their last step."""
    x = np.random.default_rng(5).normal(size=(3, 2, sizes.inputs))
    grid = blocks(record, sizes, dict(arrays), np.dtype(np.float64))
    step = step_of(meaning)
    for layer in range(sizes.layers):
        given: list[Array] = []
        for way in range(sizes.directions):
            params: dict[str, Any] = dict(grid[layer, way])
            params |= {name: params[name][""] for name in "Pq" if name in params}
            zeros = [np.zeros((2, size)) for size in (sizes.output, sizes.hidden)]
            memory: Any = {"h": zeros[0], "c": zeros[1]} if meaning.cell == "lstm" else zeros[0]
            rows: list[Array] = []
            for at in x[:: 1 - 2 * way]:
                row, memory = step(at, memory, params)
                rows.append(row)
            given.append(np.stack(rows[:: 1 - 2 * way]))
        x = np.concatenate(given, -1)
    return x


def rounded(exactly: Fraction, dtype: np.dtype[Any]) -> Array:
    """The number of a dtype nearest to a fraction, of two the one with an even last bit."""
    if abs(exactly) >= Fraction(2) ** BEYOND[dtype.name]:
        return np.array(np.inf if exactly > 0 else -np.inf, dtype)
    with np.errstate(over="ignore"):
        start = np.array([min(abs(exactly), Fraction(MOST))], np.float64).astype(dtype)
    around = bits(start)[0].astype(np.int64) + np.arange(-2, 3)
    found = min(
        (abs(fraction(near, dtype) - abs(exactly)), int(near) % 2, int(near)) for near in around if near >= 0
    )[2]
    number = np.array([found], f"u{dtype.itemsize}").view(dtype)[0]
    return np.array(-number if exactly < 0 else number, dtype)


def fraction(near: int, dtype: np.dtype[Any]) -> Fraction:
    """The number of these bits; the one past the largest where they are infinity's."""
    number = float(np.array([near], f"u{dtype.itemsize}").view(dtype)[0])
    return Fraction(number) if np.isfinite(number) else Fraction(2) ** BEYOND[dtype.name]
