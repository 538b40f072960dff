"""The passes, in the order they run. Each takes a net and returns a net that computes the same.

Every net is checked when it is made, so a pass cannot return an invalid one.
"""

from collections.abc import Callable
from importlib import import_module

from stepnet.compiler.net.encodings import Precision
from stepnet.compiler.net.ir import Net
from stepnet.compiler.plan.passes.narrow import in_precision, narrow
from stepnet.compiler.values.fork_guard import IMPORTS

Pass = Callable[[Net], Net]
Pipeline = tuple[Pass, ...]


def late(name: str) -> Pass:
    """Returns the pass of a name, which is imported when it first runs: a plan that is stored needs none."""

    def rewrite(net: Net) -> Net:
        """Runs the pass."""
        with IMPORTS:
            module = import_module(f"{__name__}.{name}")
        changed: Net = getattr(module, name)(net)
        return changed

    rewrite.__module__, rewrite.__name__ = f"{__name__}.{name}", name
    rewrite.__qualname__ = name
    return rewrite


FOLD, SINK = late("fold"), late("sink")
PIPELINE: Pipeline = (
    late("prune"),
    FOLD,
    *map(late, ("chain", "split_concat_matmul", "split", "factor", "regroup", "columns", "legalise")),
    narrow,
    *map(late, ("inside", "hoist")),
    SINK,
    FOLD,
    *map(late, ("merge", "join")),
)
"""The passes for machine code of the CPU, which engines may use as they are."""


def optimised(net: Net, pipeline: Pipeline) -> Net:
    """Applies the passes of an engine, `pipeline`, to a net in order; returns an equivalent, faster net."""
    for rewrite in pipeline:
        net = rewrite(net)
    return net


def narrowed_step(body: Net, precision: Precision | None, pipeline: Pipeline) -> Net:
    """Returns `body`, the net of a recurrence's step, with its weights encoded in fewer bits, by `pipeline`,
    the passes of an engine; `body` itself if `precision` is that of float32 or None.
    """
    if precision is None or not precision.is_low:
        return body
    return in_precision(narrowed(body, pipeline), precision)


def narrowed(net: Net, pipeline: Pipeline) -> Net:
    """Applies the passes of `pipeline`, those of an engine, up to `narrow`, which gives the products that are
    to be computed in fewer bits the encoding of their weights, such as int8; returns the new net.
    """
    for rewrite in pipeline[: pipeline.index(narrow) + 1]:
        net = rewrite(net)
    return net
