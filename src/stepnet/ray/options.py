"""Checks of the options that `predict` passes on to Ray, which itself reads them only when it runs."""

from collections.abc import Mapping
from typing import Any, cast

from stepnet.compiler.values.arguments import shown
from stepnet.errors import InputError, named
from stepnet.ray.installed import installed

remote: Any = installed("ray").remote

BATCHES = "batch_size", "batch_format", "zero_copy_batch", "compute", "udf_modifying_row_count"
ARGUMENTS = "fn_args", "fn_kwargs", "fn_constructor_args", "fn_constructor_kwargs"
ACTOR = "name", "namespace", "get_if_exists", "lifetime"
REFUSED = {
    **dict.fromkeys((*BATCHES, *ARGUMENTS), "is set by predict"),
    **dict.fromkeys(ACTOR, "belongs to a single actor, and there may be several workers"),
    "max_concurrency": "is 1: a worker runs one block at a time, in the memory reserved",
    "num_gpus": "reserves GPUs, and models run on CPUs",
}
"""Options of Ray that `predict` does not take, each with the reason."""
FUNCTION = "ray_remote_args_fn"
"""The option of `map_batches` that actors do not have: a function that returns options of actors."""


def check_options(options: Mapping[str, Any]) -> None:
    """Raises `InputError` for options that `predict` sets itself, and for options that Ray's actors refuse.

    >>> check_options({"resources": {"fast": 1}})
    >>> check_options({"resources": 5})
    Traceback (most recent call last):
    stepnet.errors.InputError: Ray does not take resources=5: The type of keyword 'resources' must be
    (<class 'dict'>, <class 'NoneType'>), but received type <class 'int'>
    """
    passed = {name: value for name, value in options.items() if name != FUNCTION}
    check_accepted(passed)
    if FUNCTION in options:
        given = options_of(options[FUNCTION])
        with named(f"the options that {FUNCTION} returned"):
            check_accepted(given)


def options_of(function: Any) -> Mapping[str, Any]:
    """Calls a function for the options that it returns, as Ray does for each worker."""
    if not callable(function):
        raise InputError(f"{FUNCTION} is a function that returns options, not {shown(function)}")
    given = function()
    if not isinstance(given, Mapping):
        raise InputError(
            f"{FUNCTION} is a function that returns options, a dict, and it returned {shown(given)}"
        )
    return cast("Mapping[str, Any]", given)


def check_accepted(passed: Mapping[str, Any]) -> None:
    """Raises `InputError` for options that `predict` sets itself, and those that Ray's actors refuse."""
    for name in passed:
        if name in REFUSED:
            raise InputError(f"{name} {REFUSED[name]}: leave it out")
    resources = passed.get("resources")
    if isinstance(resources, Mapping):
        for name, amount in cast("Mapping[Any, Any]", resources).items():
            if not isinstance(name, str) or isinstance(amount, bool) or not isinstance(amount, int | float):
                raise InputError(
                    "resources are amounts of Ray's resources by their names, as {'fast': 1}, not "
                    f"{shown(resources)}"
                )
    try:
        if passed:
            remote(**passed)(OptionCheck)
    except (TypeError, ValueError) as error:
        text = ", ".join(f"{name}={shown(value)}" for name, value in passed.items())
        raise InputError(f"Ray does not take {text}: {error}") from error


class OptionCheck:
    """A class for Ray to check options with; it is never started."""
