"""Converts and checks what callers pass: arrays by name, their dtype, sizes and semantics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np

from stepnet.compiler.values.arguments import array_of, is_array, is_tensor, mapping
from stepnet.errors import InputError, LayoutError
from stepnet.layout.places import Array
from stepnet.layout.sizes import Sizes

FLOATS = ("float16", "bfloat16", "float32", "float64")


def as_arrays(arrays: Mapping[str, Any]) -> dict[str, Array]:
    """Converts the user's arrays and tensors to NumPy arrays; raises `LayoutError` unless all are floats."""
    if isinstance(arrays, str | Path):
        raise InputError(
            f"weights are arrays by name, and not a file: stepnet convert {arrays} writes a new file"
        )
    held = "weights are arrays by name, as a state dict has them"
    if isinstance(arrays, list) and all(map(is_array, cast("list[Any]", arrays))):
        held += ", or of a layer of Keras {each.name: each.numpy() for each in layer.weights}"
    named = mapping(arrays, held)
    return {name: as_array(name, value) for name, value in named.items()}


def as_semantics(semantics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns a copy of the user's values for a layer's function, by field of `Semantics`; {} for None."""
    return {} if semantics is None else dict(mapping(semantics, "semantics are values by field"))


def as_array(name: str, value: Any) -> Array:
    """Converts an array or tensor (also on a GPU) to a NumPy array in native byte order, copied only if
    necessary. Raises `LayoutError` for dtypes not in `FLOATS`. `name` is the array's, for messages.
    """
    if is_tensor(value):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            import torch

            value = value.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    array = array_of(value, name)
    if array.dtype.name not in FLOATS:
        floats = ", ".join(FLOATS)
        raise LayoutError(f"{name} holds {array.dtype.name}; weights are one of {floats}: cast them")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def one_dtype(arrays: Mapping[str, Array]) -> np.dtype[Any]:
    """Returns the common dtype of all arrays; raises `LayoutError` if there are several, or no arrays."""
    dtypes = {array.dtype: name for name, array in arrays.items()}
    if len(dtypes) > 1:
        dtype_of_each = ", ".join(f"{name} is {dtype.name}" for dtype, name in dtypes.items())
        raise LayoutError(f"the arrays have several dtypes ({dtype_of_each}): cast them to one")
    if not dtypes:
        raise LayoutError("no arrays are given")
    return next(iter(dtypes))


def size_mapping(sizes: Mapping[str, int] | Sizes | None) -> Mapping[str, int | None]:
    """Converts the sizes of a layer that the user states, a mapping such as {"hidden": 64} or a `Sizes`, to a
    mapping by name; None to an empty one. Raises `InputError` for other values.
    """
    if sizes is None:
        return {}
    return vars(sizes) if isinstance(sizes, Sizes) else mapping(sizes, "sizes are whole numbers by name")
