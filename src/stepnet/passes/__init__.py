"""The passes, in the order they run: each takes a net and gives a net that computes the same.

Every net is checked when it is made, so an illegal one never leaves the pass that made it.
"""

from collections.abc import Callable

from stepnet.ir import Net
from stepnet.passes.fold import fold
from stepnet.passes.hoist import hoist
from stepnet.passes.join import join
from stepnet.passes.legalise import legalise
from stepnet.passes.part import part
from stepnet.passes.prune import prune
from stepnet.passes.regroup import regroup
from stepnet.passes.sink import sink
from stepnet.passes.split import split

PIPELINE: tuple[Callable[[Net], Net], ...] = (
    prune,
    fold,
    part,
    split,
    regroup,
    legalise,
    hoist,
    sink,
    fold,
    join,
)


def optimised(net: Net) -> Net:
    """The net after every pass."""
    for one in PIPELINE:
        net = one(net)
    return net
