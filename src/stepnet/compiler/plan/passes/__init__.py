"""The passes, in the order they run. Each takes a net and returns a net that computes the same.

Every net is checked when it is made, so a pass cannot return an invalid one.
"""

from collections.abc import Callable

from stepnet.compiler.net.encodings import Precision
from stepnet.compiler.net.ir import Net
from stepnet.compiler.plan.passes.chain import chain
from stepnet.compiler.plan.passes.columns import columns
from stepnet.compiler.plan.passes.factor import factor
from stepnet.compiler.plan.passes.fold import fold
from stepnet.compiler.plan.passes.hoist import hoist
from stepnet.compiler.plan.passes.inside import inside
from stepnet.compiler.plan.passes.join import join
from stepnet.compiler.plan.passes.legalise import legalise
from stepnet.compiler.plan.passes.merge import merge
from stepnet.compiler.plan.passes.narrow import in_precision, narrow
from stepnet.compiler.plan.passes.prune import prune
from stepnet.compiler.plan.passes.regroup import regroup
from stepnet.compiler.plan.passes.sink import sink
from stepnet.compiler.plan.passes.split import split
from stepnet.compiler.plan.passes.split_concat_matmul import split_concat_matmul

Pipeline = tuple[Callable[[Net], Net], ...]

PIPELINE: Pipeline = (
    prune,
    fold,
    chain,
    split_concat_matmul,
    split,
    factor,
    regroup,
    columns,
    legalise,
    narrow,
    inside,
    hoist,
    sink,
    fold,
    merge,
    join,
)
"""The passes for machine code of the CPU, which engines may use as they are."""


def optimised(net: Net, pipeline: Pipeline) -> Net:
    """Applies `pipeline`, the passes of an engine, to a net, in order; returns a net that computes the same
    faster.
    """
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
