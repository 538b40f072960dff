"""Import of JAX by name, since few of its types are known, with an error that says how to install it."""

from importlib import import_module
from typing import Any

from stepnet.errors import InputError


def installed(name: str) -> Any:
    """Imports a module of JAX; raises `InputError` where it is missing, or of a JAX without callbacks that
    read arrays in place.

    >>> installed("jax.numpy").tanh(0.0).item()
    0.0
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(f"stepnet.jax needs JAX 0.7 or later ({error}): pip install -U jax") from error
