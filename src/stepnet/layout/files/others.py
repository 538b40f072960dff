"""The other arrays of a file, renamed and transposed for another framework if it is certain what they are.

    torch  head.weight [out, in], head.bias [out]   ->   flax  head/kernel [in, out], head/bias

A row of `CONVENTIONS` says how a framework names the arrays of a dense layer, and which axis is the outputs'.
A matrix is converted only if it certainly belongs to a dense layer: the file says so, or there is a bias of
the same layer whose length is the number of outputs by the framework's convention, and not the number of
inputs. A square matrix stays unchanged unless the file says what it is. So does a matrix without a bias,
which may be an embedding table.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Convention:
    """Names and axes of dense layers and embeddings in a framework.

    weight, bias, embedding: the names of their arrays. outputs_first: whether matrices are [out, in]. signs:
    the separators that may stand before these names.
    """

    weight: str
    bias: str
    outputs_first: bool
    embedding: str
    signs: str = "./"

    @property
    def roles(self) -> dict[str, tuple[str, ...]]:
        """The array names of this framework for the layers "dense" (weight, bias) and "embedding" (table)."""
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
    """The meaning of an array: part `role` (weight, bias) of a layer, as in `Convention.parts[kind]`."""

    kind: str
    layer: str
    role: int


@dataclass(frozen=True)
class RenamedArray:
    """The new name of an array, and whether it was transposed."""

    name: str
    transposed: bool = False

    def __str__(self) -> str:
        return f"{self.name}{' (transposed)' if self.transposed else ''}"


@dataclass(frozen=True)
class Others:
    """The other arrays of a new file.

    arrays: the arrays, by their new names.
    moved: the new place of each array that was renamed or transposed.
    foreign: the framework to whose conventions the others were not converted; empty if they have these.
    """

    arrays: Mapping[str, Array] = field(default_factory=dict[str, Array])
    moved: Mapping[str, RenamedArray] = field(default_factory=dict[str, RenamedArray])
    foreign: str = ""


def others(
    rest: Mapping[str, Array],
    stated: Mapping[str, Stated],
    source: str,
    target: str,
    sign: str,
    suffix: str = "",
) -> Others:
    """Renames and transposes the arrays of a file that are in no recurrent layer (`rest`) by the conventions
    of another framework, if it is certain what they are. The others stay unchanged.

    stated: the meaning of arrays for which the file specifies it. source, target: the old and the new
    framework. sign: the separator between layer and array names in the new file. suffix: a suffix that array
    names in the old file may have.

    >>> head = {"head.weight": np.ones((5, 3)), "head.bias": np.ones(5), "table.weight": np.ones((5, 3))}
    >>> done = others(head, {}, "torch", "flax", "/")
    >>> {name: array.shape for name, array in done.arrays.items()}
    {'head/kernel': (3, 5), 'head/bias': (5,), 'table.weight': (5, 3)}
    >>> {name: str(place) for name, place in done.moved.items()}
    {'head.weight': 'head/kernel (transposed)', 'head.bias': 'head/bias'}
    """
    if source == target:
        return Others(rest)
    old_convention, new_convention = CONVENTIONS.get(source), CONVENTIONS.get(target)
    if old_convention is None or new_convention is None:
        return Others(rest, foreign=target)
    kinds = {**by_name(rest, old_convention, suffix), **stated}
    moved: dict[str, RenamedArray] = {}
    arrays: dict[str, Array] = {}
    for name, array in rest.items():
        new_array = RenamedArray(name)
        if name in kinds:
            kind = kinds[name]
            is_transposed = (
                kind.kind == "dense"
                and array.ndim == 2
                and old_convention.outputs_first != new_convention.outputs_first
            )
            new_array = moved[name] = RenamedArray(
                f"{kind.layer}{sign}{new_convention.roles[kind.kind][kind.role]}", is_transposed
            )
        if new_array.name in arrays:
            return Others(rest, foreign=target)  # two arrays would get the same name: all keep their own
        arrays[new_array.name] = np.ascontiguousarray(array.T) if new_array.transposed else array
    return Others(arrays, moved, target)


def by_name(rest: Mapping[str, Array], convention: Convention, suffix: str = "") -> dict[str, Stated]:
    """Finds the arrays of dense layers and embeddings among `rest`, the arrays that are in no recurrent
    layer, by their names and shapes. Returns {array name: kind of layer, name of the layer, role}, only of
    arrays for which this is certain.

    convention: the framework's array names and order of axes. suffix: a suffix that array names in the file
    may have.
    """
    layers: dict[str, dict[str, str]] = {}
    for name in rest:
        short = name.removesuffix(suffix)
        cut = max(short.rfind(sign) for sign in convention.signs)
        if cut > 0:
            layers.setdefault(short[:cut], {})[short[cut + 1 :]] = name
    stated: dict[str, Stated] = {}
    for layer, names in layers.items():
        for kind, roles in convention.roles.items():
            if names.keys() == set(roles) and is_certain(
                kind, [rest[names[role]] for role in roles], convention
            ):
                stated |= {names[role]: Stated(kind, layer, index) for index, role in enumerate(roles)}
    return stated


def is_certain(kind: str, arrays: list[Array], convention: Convention) -> bool:
    """Returns True if the shapes of `arrays` confirm that they are a layer of `kind`, as their names say:
    "dense" (a matrix and a bias) if the bias has as many numbers as the matrix has outputs, and the matrix
    has another number of inputs; "embedding" if the array is a matrix, in a framework where no dense layer
    has an array of this name.

    convention: the framework's array names and order of axes.
    """
    if kind == "embedding":
        return arrays[0].ndim == 2 and convention.embedding != convention.weight
    matrix, bias = arrays
    if matrix.ndim != 2 or bias.ndim != 1:
        return False
    outputs, inputs = matrix.shape if convention.outputs_first else matrix.shape[::-1]
    return len(bias) == outputs != inputs
