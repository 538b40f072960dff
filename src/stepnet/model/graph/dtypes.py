"""Checks of the dtypes of a call's inputs against the dtypes that a model was exported or traced with."""

from collections.abc import Mapping
from typing import Any

from stepnet.compiler.values.dtypes import DTYPES
from stepnet.compiler.values.structure import arranged, named_leaves
from stepnet.errors import InputError


def check_dtypes(origin: str, declared: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raises `InputError` for an input of a call that is computed in another dtype than the model has.

    Whole numbers may have any width, and half precision is computed in float32.

    origin: where the model has its dtypes from, for the message, such as its file. declared, given: the
    `Spec`s of the inputs by name.
    """
    expected = dict(named_leaves(dict(declared)))
    for name, spec in named_leaves(arranged(dict(given), dict(declared))):
        ours, theirs = DTYPES[expected[name].dtype], DTYPES[spec.dtype]
        if ours.kind != theirs.kind or (ours.kind == "float" and ours.compute != theirs.compute):
            raise InputError(
                f"input {name} has dtype {spec.dtype}, and {origin} has {expected[name].dtype}: cast it, as "
                f"{name}.astype('{expected[name].dtype}')"
            )
