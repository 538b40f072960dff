"""The choice how the gradient of a net runs: in chunks or blocks of steps, in two halves, or in pieces."""

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
from stepnet.model.gradients.in_sections import Sectioned
from stepnet.model.gradients.pieces import Checkpoint
from stepnet.model.gradients.runs import GradientRun
from stepnet.model.program import has_derived

EACH = "gradients of each sequence run step by step"
DERIVED = "a model with other numbers of steps than its inputs runs step by step"
PIECES = "a gradient with checkpoint= runs step by step"
"""Reasons why no steps are joined to blocks."""
NO_CHECKPOINT = {
    EACH: "checkpoint= adds up the gradients of parameters piece by piece: leave it out where they are "
    "per_sequence",
    DERIVED: "checkpoint= is not for models with other numbers of steps than the inputs, as after a stride: "
    "leave it out",
}


def gradient_run(
    programs: OrderedDict[Any, Any],
    key: Any,
    net: Net,
    wanted: Sequence[int],
    checkpoint: Checkpoint,
    engine: Order,
    is_each: bool = False,
) -> GradientRun:
    """Returns the programs of a net's gradient, which are made at first use and kept in `programs`. Raises
    `InputError` for a checkpoint where values have other numbers of steps than the inputs, or where each
    sequence has gradients of its own.

    programs: the cache of these programs.
    key: the key of the net in the cache, such as the program it belongs to.
    wanted: the positions of the inputs to differentiate.
    checkpoint: the argument of `vjp`; None for a gradient that saves all values, else it runs in pieces,
        which are ranges of steps.
    engine: the engines in order of preference. The costs of the first decide which steps run in chunks, or in
        blocks (several steps computed as one).
    is_each: whether gradients of parameters are those of each sequence, and not their sum.
    """
    alone = EACH if is_each else DERIVED if has_derived(net) else ""
    key, costs = (key, tuple(wanted), engine), planning_for(engine).costs.blocks
    with IMPORTS:  # late: few processes train
        from stepnet.compiler.grad.blocks import block_choices
        from stepnet.model.gradients.in_blocks import trained

    if checkpoint is None:
        return entry_of(programs, (*key, alone), lambda: trained(net, wanted, costs, alone, is_each))
    if alone:
        raise InputError(NO_CHECKPOINT[alone])

    def made() -> Sectioned:
        """Makes the programs, and notes the way in which each recurrence runs."""
        texts = tuple(map(str, block_choices(net, costs, PIECES).values()))
        return replace(checkpointed(net, wanted, costs.chunks), blocks=texts)

    return replace(entry_of(programs, (*key, PIECES), made), checkpoint=checkpoint)
