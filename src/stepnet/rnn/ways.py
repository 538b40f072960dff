"""The ways to run the gradient of a net: in two halves, in pieces, or partly by native gradients of
engines.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stepnet.engines import Order, order_of
from stepnet.engines.pairs import has_nets, has_pairs, refused
from stepnet.net.ir import Net
from stepnet.rnn.checkpoint import checkpointed
from stepnet.rnn.gradient_runs import GradientRun
from stepnet.rnn.gradients import Programs
from stepnet.rnn.paired import paired
from stepnet.rnn.pieces import Checkpoint

IN_PIECES = "checkpoint= runs pieces of the steps again, and its backward pass needs all steps at once"


def gradient_run(
    programs: Programs,
    key: Any,
    net: Net,
    wanted: Sequence[int],
    checkpoint: Checkpoint,
    engine: Order = "auto",
) -> GradientRun:
    """The object that runs the gradient of a net with respect to the inputs at these positions.

    programs, key: where it is kept, and by what the net is known there. Raises `RefusedError` where no engine
    that is asked for has the gradient.
    """
    key = key, tuple(wanted)
    if checkpoint is not None:
        if not has_nets(engine):
            raise refused(dict.fromkeys(order_of(engine), IN_PIECES))
        made = programs.get((*key, "in pieces"), lambda: checkpointed(net, wanted))
        return replace(made, checkpoint=checkpoint)
    if has_pairs(engine):
        return programs.get((*key, engine), lambda: paired(net, wanted, engine))
    from stepnet.rnn.in_blocks import trained  # late: not everybody trains

    return programs.get((*key, "at once"), lambda: trained(net, wanted))
