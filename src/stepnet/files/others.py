"""The arrays of a file beside its recurrent layers, as another framework has them: what is certain is moved.

    torch  head.weight [out, in], head.bias [out]   ->   flax  head/kernel [in, out], head/bias

What a framework calls the parts of a dense layer, and which axis its outputs are along, is a row of
`CONVENTIONS`. A matrix is moved only where more than its shape says that it is a dense layer's: the file
itself, or its name beside that of a bias which has as many numbers as the matrix has outputs by the
framework's convention, and not as many as it has inputs. So a square matrix of which the file says nothing
stays as it is, and so does one without a bias, which may be a table of embeddings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Convention:
    """What a framework calls the arrays of a dense layer and of a table of embeddings, and whether its
    matrices are [out, in]; and the signs before such a name.
    """

    weight: str
    bias: str
    outputs_first: bool
    embedding: str
    signs: str = "./"

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """The names of a layer's arrays by its kind."""
        return {"dense": (self.weight, self.bias), "embedding": (self.embedding,)}


TORCH = Convention("weight", "bias", True, "weight")
ROWS = Convention("weight", "bias", False, "weight")
FLAX = Convention("kernel", "bias", False, "embedding")
KERAS = Convention("kernel", "bias", False, "embeddings")
CONVENTIONS = {
    "torch": TORCH,  # torch/nn/modules/linear.py, sparse.py of PyTorch 2.13
    "candle": TORCH,  # candle-nn/src/linear.rs, embedding.rs
    "equinox": TORCH,  # equinox/nn/_linear.py, _embedding.py
    "mlx": TORCH,  # python/mlx/nn/layers/linear.py, embedding.py
    "mxnet": Convention("weight", "bias", True, "weight", "_."),  # python/mxnet/gluon/nn/basic_layers.py
    "paddle": ROWS,  # python/paddle/nn/layer/common.py
    "burn": ROWS,  # crates/burn-nn/src/modules/linear.rs
    "keras": KERAS,  # keras/src/layers/core/dense.py, embedding.py
    "keras2": KERAS,
    "flax": FLAX,  # flax/linen/linear.py
    "nnx": FLAX,  # flax/nnx/nn/linear.py
    "haiku": Convention("w", "b", False, "embeddings"),  # haiku/_src/basic.py, embed.py
    "chainer": Convention("W", "b", True, "W"),  # chainer/links/connection/linear.py, embed_id.py
}


@dataclass(frozen=True)
class Stated:
    """What a file itself says that an array is: a part of a layer of a kind, as `Convention.parts` has them,
    and what the layer is called.
    """

    kind: str
    layer: str
    part: int


@dataclass(frozen=True)
class Place:
    """Where an array went: its new name, and whether its axes changed places."""

    name: str
    transposed: bool = False

    def __str__(self) -> str:
        return f"{self.name}{' (transposed)' if self.transposed else ''}"


@dataclass(frozen=True)
class Others:
    """The other arrays of a new file by name, and of those that were moved where each went.

    foreign: the framework to whose conventions those not moved were not converted; empty where they are of
    that framework.
    """

    arrays: Mapping[str, Array] = field(default_factory=dict[str, Array])
    moved: Mapping[str, Place] = field(default_factory=dict[str, Place])
    foreign: str = ""


def others(
    rest: Mapping[str, Array],
    stated: Mapping[str, Stated],
    source: str,
    target: str,
    sign: str,
    suffix: str = "",
) -> Others:
    """The other arrays of a file as a framework has them, as far as it is certain what they are.

    stated: what the file itself says of some. source, target: the frameworks. sign: what the new file has
    between the name of a layer and those of its arrays. suffix: what the old one may have behind each name.

    >>> head = {"head.weight": np.ones((5, 3)), "head.bias": np.ones(5), "table.weight": np.ones((5, 3))}
    >>> done = others(head, {}, "torch", "flax", "/")
    >>> {name: array.shape for name, array in done.arrays.items()}
    {'head/kernel': (3, 5), 'head/bias': (5,), 'table.weight': (5, 3)}
    >>> {name: str(place) for name, place in done.moved.items()}
    {'head.weight': 'head/kernel (transposed)', 'head.bias': 'head/bias'}
    """
    if source == target:
        return Others(rest)
    here, there = CONVENTIONS.get(source), CONVENTIONS.get(target)
    if here is None or there is None:
        return Others(rest, foreign=target)
    known = {**by_name(rest, here, suffix), **stated}
    moved: dict[str, Place] = {}
    arrays: dict[str, Array] = {}
    for name, array in rest.items():
        place = Place(name)
        if name in known:
            own = known[name]
            turned = own.kind == "dense" and array.ndim == 2 and here.outputs_first != there.outputs_first
            place = moved[name] = Place(f"{own.layer}{sign}{there.parts[own.kind][own.part]}", turned)
        if place.name in arrays:
            return Others(rest, foreign=target)  # two would have one name: each keeps its own
        arrays[place.name] = np.ascontiguousarray(array.T) if place.transposed else array
    return Others(arrays, moved, target)


def by_name(rest: Mapping[str, Array], convention: Convention, suffix: str = "") -> dict[str, Stated]:
    """What arrays are certain to be by their names, and by those and the shapes of their neighbours."""
    layers: dict[str, dict[str, str]] = {}
    for name in rest:
        own = name.removesuffix(suffix)
        cut = max(own.rfind(sign) for sign in convention.signs)
        if cut > 0:
            layers.setdefault(own[:cut], {})[own[cut + 1 :]] = name
    found: dict[str, Stated] = {}
    for layer, names in layers.items():
        for kind, parts in convention.parts.items():
            if names.keys() == set(parts) and is_certain(
                kind, [rest[names[part]] for part in parts], convention
            ):
                found |= {names[part]: Stated(kind, layer, place) for place, part in enumerate(parts)}
    return found


def is_certain(kind: str, arrays: list[Array], convention: Convention) -> bool:
    """Whether arrays that are called as the parts of a layer of a kind can be nothing else."""
    if kind == "embedding":
        return arrays[0].ndim == 2 and convention.embedding != convention.weight
    matrix, bias = arrays
    if matrix.ndim != 2 or bias.ndim != 1:
        return False
    outputs, inputs = matrix.shape if convention.outputs_first else matrix.shape[::-1]
    return len(bias) == outputs != inputs
