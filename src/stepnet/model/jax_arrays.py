"""JAX arrays in calls of models: they enter as NumPy arrays of the same memory, and results leave as JAX's.
`device_arrays.py` handles arrays on a GPU, and arrays of other libraries.

    rnn(x)      x --view--> rnn(array) --DLPack--> outputs, final

Results of a call share no memory with its arguments or one another. JAX takes memory without a copy if it
begins at a multiple of 64 bytes, as large results do, and copies it otherwise.
"""

import sys
from collections.abc import Callable
from typing import Any

from stepnet.compiler.values.arguments import array_of, is_jax_array, is_tensor
from stepnet.compiler.values.structure import leaves, transform
from stepnet.ragged import Ragged


def has_jax_arrays(sequences: Any) -> bool:
    """Tells whether one of the inputs of a call is an array of JAX, or a Ragged of one."""
    return "jax" in sys.modules and any(is_jax_array(values_of(leaf)) for leaf in leaves(sequences))


def has_device_arrays(sequences: Any) -> bool:
    """Tells whether one of the inputs of a call is an array on a GPU, of stepnet or of another library."""
    return any(is_on_device(leaf) for leaf in leaves(sequences))


def is_on_device(value: Any) -> bool:
    """Tells whether a value is an array on a GPU: a result of an earlier call, a tensor of PyTorch or an
    array of JAX there, or one of a class with the CUDA array interface.
    """
    if is_jax_array(value):
        jax: Any = sys.modules["jax"]
        is_traced = isinstance(value, jax.core.Tracer)
        return not is_traced and {device.platform for device in value.devices()} <= {"gpu", "cuda"}
    if is_tensor(value):
        return value.device.type == "cuda"
    return hasattr(value.__class__, "__cuda_array_interface__")


def called_on_arrays(call: Callable[[Any], Any], sequences: Any) -> Any:
    """Calls a model on NumPy arrays in place of JAX's; returns its results as arrays of JAX. call: the model,
    as a function of its inputs. sequences: the inputs, in their structure.
    """
    arrays = transform(lambda leaf: with_values(leaf, array_of(values_of(leaf), "an input")), sequences)
    return transform(lambda leaf: with_values(leaf, jax_array(values_of(leaf))), call(arrays))


def values_of(leaf: Any) -> Any:
    """Returns an array unchanged, and the array of a Ragged."""
    return leaf.values if isinstance(leaf, Ragged) else leaf


def with_values(leaf: Any, values: Any) -> Any:
    """Returns an array, or the Ragged of it where `leaf` is a Ragged."""
    return leaf.with_values(values) if isinstance(leaf, Ragged) else values


def jax_array(array: Any) -> Any:
    """Returns an array as one of JAX, without a copy where JAX can read it in place."""
    numpy: Any = sys.modules["jax"].numpy
    # DLPack has no dtypes of packages such as bfloat16, and NumPy gives it no array that is read-only.
    in_place = array.flags.writeable and array.dtype.kind in "biuf"
    return numpy.from_dlpack(array) if in_place else numpy.asarray(array)
