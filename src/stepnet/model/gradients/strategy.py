"""The choice how the gradient of a net runs: in two halves, in pieces, or in blocks of steps."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stepnet.compiler.net.ir import Net
from stepnet.compiler.targets import Order, planning_for
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.once import entry_of
from stepnet.errors import InputError
from stepnet.model.gradients.checkpoint import checkpointed
from stepnet.model.gradients.pieces import Checkpoint
from stepnet.model.gradients.runs import GradientRun, Halved
from stepnet.model.program import has_derived


def gradient_run(
    programs: OrderedDict[Any, Any],
    key: Any,
    net: Net,
    wanted: Sequence[int],
    checkpoint: Checkpoint,
    engine: Order,
) -> GradientRun:
    """Returns the programs of a net's gradient, which are made at first use and kept in `programs`. Raises
    `InputError` for a checkpoint where values have other numbers of steps than the inputs.

    programs: the cache of these programs.
    key: the key of the net in the cache, such as the program it belongs to.
    wanted: the positions of the inputs to differentiate.
    checkpoint: the argument of `vjp`; None for a gradient that saves all values, else it runs in pieces,
        which are ranges of steps.
    engine: the engines in order of preference. The costs of the first decide which steps run in blocks
        (several steps computed as one).
    """
    key = key, tuple(wanted)
    if has_derived(net):
        if checkpoint is not None:
            raise InputError(
                "checkpoint= is not for models with other numbers of steps than the inputs, as after a "
                "stride: leave it out"
            )
        return entry_of(programs, (*key, "in halves"), lambda: Halved.of(net, wanted))
    if checkpoint is not None:
        made = entry_of(programs, (*key, "in pieces"), lambda: checkpointed(net, wanted))
        return replace(made, checkpoint=checkpoint)
    with IMPORTS:  # late: few processes train
        from stepnet.model.gradients.in_blocks import trained

    costs = planning_for(engine).costs.blocks
    return entry_of(programs, (*key, engine), lambda: trained(net, wanted, costs))
