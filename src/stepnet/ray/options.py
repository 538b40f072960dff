"""Options of Ray for workers: those of users, and the resources that workers reserve.

Ray reads options only when it runs, so they are checked here.
"""

from collections.abc import Mapping
from typing import Any, cast

from stepnet.compiler.targets.threads import threads_set
from stepnet.compiler.values.arguments import checked_integer, is_integer, short_repr
from stepnet.errors import InputError, named
from stepnet.ray.installed import installed

remote: Any = installed("ray").remote
ActorPoolStrategy: Any = installed("ray.data").ActorPoolStrategy

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
PROCESS = 1 << 28
"""The bytes of a worker without a model: Python, Ray, pyarrow, and caches of stepnet."""
COPIES = 3
"""The number of copies of the parameters in a worker: as bytes, as arrays, and packed for the engine."""


def check_options(options: Mapping[str, Any]) -> None:
    """Raises `InputError` for options that `predict` sets itself, and for options that Ray's actors refuse,
    also among those that a function in the option `FUNCTION` returns.

    >>> check_options({"resources": {"fast": 1}})
    >>> check_options({"resources": 5})
    Traceback (most recent call last):
    stepnet.errors.InputError: Ray does not take resources=5: The type of keyword 'resources' must be
    (<class 'dict'>, <class 'NoneType'>), but received type <class 'int'>
    """
    passed = {name: value for name, value in options.items() if name != FUNCTION}
    check_accepted(passed)
    if FUNCTION in options:
        chosen = options_of(options[FUNCTION])
        with named(f"the options that {FUNCTION} returned"):
            check_accepted(chosen)


def options_of(function: Any) -> Mapping[str, Any]:
    """Returns the options that the user's function gives; calls it as Ray does for each worker. Raises
    `InputError` unless it is a function that returns a dict.
    """
    if not callable(function):
        raise InputError(f"{FUNCTION} is a function that returns options, not {short_repr(function)}")
    options = function()
    if not isinstance(options, Mapping):
        raise InputError(
            f"{FUNCTION} is a function that returns options, a dict, and it returned {short_repr(options)}"
        )
    return cast("Mapping[str, Any]", options)


def check_accepted(passed: Mapping[str, Any]) -> None:
    """Raises `InputError` for options that `predict` sets itself, or that Ray's actors refuse."""
    for name in passed:
        if name in REFUSED:
            raise InputError(f"{name} {REFUSED[name]}: leave it out")
    resources = passed.get("resources")
    if isinstance(resources, Mapping):
        for name, amount in cast("Mapping[Any, Any]", resources).items():
            if not isinstance(name, str) or isinstance(amount, bool) or not isinstance(amount, int | float):
                raise InputError(
                    "resources are amounts of Ray's resources by their names, as {'fast': 1}, not "
                    f"{short_repr(resources)}"
                )
    try:
        if passed:
            remote(**passed)(OptionCheck)
    except (TypeError, ValueError) as error:
        text = ", ".join(f"{name}={short_repr(value)}" for name, value in passed.items())
        raise InputError(f"Ray does not take {text}: {error}") from error


class OptionCheck:
    """A class for Ray to check options with; it is never started."""


def pool(concurrency: Any) -> Any:
    """Returns Ray's pool of workers for the user's argument `concurrency`: a number, (least, most), or None
    for as many as there is work for. Raises `InputError` for other values.

    >>> pool((1, 4)).min_size, pool((1, 4)).max_size, pool(3).min_size
    (1, 4, 3)
    """
    if concurrency is None:
        return ActorPoolStrategy()
    meaning = "concurrency is the number of workers, from 1 on, or the least and the most, as (1, 8)"
    if not isinstance(concurrency, tuple):
        return ActorPoolStrategy(size=checked_integer(concurrency, meaning, 1))
    bounds = cast("tuple[Any, ...]", concurrency)
    if len(bounds) != 2 or not all(map(is_integer, bounds)) or not 1 <= bounds[0] <= bounds[1]:
        raise InputError(f"{meaning}, not {short_repr(bounds)}")
    return ActorPoolStrategy(min_size=int(bounds[0]), max_size=int(bounds[1]))


def processors(num_cpus: Any) -> tuple[int | float, int]:
    """Returns (number of processors that Ray reserves for a worker, number of the worker's threads).

    num_cpus: the processors that the user asks for, a whole number, or a part of one (one thread); None for
        the number of `sn.set_threads`, or 1. That number bounds the threads. `InputError` for other values.

    >>> processors(1), processors(0.5)
    ((1, 1), (0.5, 1))
    """
    limit = threads_set()
    if num_cpus is None:
        return limit or 1, limit or 1
    number = isinstance(num_cpus, float) or is_integer(num_cpus)
    if not number or not (0 < num_cpus < 1 or (num_cpus >= 1 and num_cpus % 1 == 0)):
        raise InputError(
            "num_cpus is the number of processors of a worker, from 1 on, or a part of one between 0 and 1, "
            f"not {short_repr(num_cpus)}"
        )
    count = max(1, int(num_cpus))
    return (float(num_cpus) if num_cpus < 1 else count), min(count, limit or count)


def worker_bytes(call: int, model: int) -> int:
    """Returns the bytes to reserve for a worker: its process, a model `call`, and copies of the `model`."""
    return PROCESS + call + COPIES * model
