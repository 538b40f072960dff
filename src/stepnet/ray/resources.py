"""Resources that workers reserve in Ray: their number, and processors and memory of each."""

from typing import Any, cast

from stepnet.compiler.targets.threads import threads_set
from stepnet.compiler.values.arguments import is_integer, shown, whole
from stepnet.errors import InputError
from stepnet.ray.installed import installed

ActorPoolStrategy: Any = installed("ray.data").ActorPoolStrategy

PROCESS = 1 << 28
"""The bytes of a worker without a model: Python, Ray, pyarrow, and caches of stepnet."""
COPIES = 3
"""The number of copies of the parameters in a worker: as bytes, as arrays, and packed for the engine."""


def pool(concurrency: Any) -> Any:
    """Returns Ray's pool of workers: a fixed number, a range, or as many as there is work for.

    >>> pool((1, 4)).min_size, pool((1, 4)).max_size, pool(3).min_size
    (1, 4, 3)
    """
    if concurrency is None:
        return ActorPoolStrategy()
    meaning = "concurrency is the number of workers, from 1 on, or the least and the most, as (1, 8)"
    if not isinstance(concurrency, tuple):
        return ActorPoolStrategy(size=whole(concurrency, meaning, 1))
    bounds = cast("tuple[Any, ...]", concurrency)
    if len(bounds) != 2 or not all(map(is_integer, bounds)) or not 1 <= bounds[0] <= bounds[1]:
        raise InputError(f"{meaning}, not {shown(bounds)}")
    return ActorPoolStrategy(min_size=int(bounds[0]), max_size=int(bounds[1]))


def processors(num_cpus: Any) -> tuple[int | float, int]:
    """Returns the number of processors that Ray reserves for a worker, and the number of its threads.

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
            f"not {shown(num_cpus)}"
        )
    count = max(1, int(num_cpus))
    return (float(num_cpus) if num_cpus < 1 else count), min(count, limit or count)


def worker_bytes(call: int, model: int) -> int:
    """Returns the memory to reserve for a worker. call: the bytes of a call. model: the bytes of the pickled
    model.

    Blocks are not counted: they are in Ray's object store.
    """
    return PROCESS + call + COPIES * model
