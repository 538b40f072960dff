"""A compiler for recurrent networks: one step as equations in, machine code for whole sequences out."""

from importlib import import_module
from typing import TYPE_CHECKING

from stepnet.engines.threads import set_threads
from stepnet.engines.watching import Progress
from stepnet.errors import StepnetError
from stepnet.explain.progress import progress
from stepnet.ragged import Ragged
from stepnet.rnn.nested import expand, reduce, softmax_over_steps
from stepnet.rnn.recurrence import RNN, scan
from stepnet.trace.functions import (
    elu,
    erf,
    gelu,
    hard_sigmoid,
    layer_norm,
    leaky_relu,
    one_hot,
    relu,
    selu,
    sigmoid,
    silu,
    softmax,
    softplus,
    softsign,
)
from stepnet.trace.step import Spec
from stepnet.values.version import __version__

if TYPE_CHECKING:
    from stepnet import cells, layout
    from stepnet.graph.graph import Graph
    from stepnet.graph.quantize import quantize
    from stepnet.layout.convert import Conversion, convert
    from stepnet.model_file import load
    from stepnet.rnn import builder, masks
    from stepnet.rnn.beams import beam_search
    from stepnet.rnn.builder import create_rnn_op, foreach
    from stepnet.rnn.compose import Bidirectional, Stack
    from stepnet.rnn.cotangents import vjp
    from stepnet.rnn.generate import generate
    from stepnet.rnn.gradients import Gradients
    from stepnet.rnn.losses import value_and_grad
    from stepnet.rnn.samplers import sampling

__all__ = [
    "RNN",
    "Bidirectional",
    "Conversion",
    "Gradients",
    "Graph",
    "Progress",
    "Ragged",
    "Spec",
    "Stack",
    "StepnetError",
    "__version__",
    "beam_search",
    "builder",
    "cells",
    "convert",
    "create_rnn_op",
    "elu",
    "erf",
    "expand",
    "foreach",
    "gelu",
    "generate",
    "hard_sigmoid",
    "layer_norm",
    "layout",
    "leaky_relu",
    "load",
    "masks",
    "one_hot",
    "progress",
    "quantize",
    "reduce",
    "relu",
    "sampling",
    "scan",
    "selu",
    "set_threads",
    "sigmoid",
    "silu",
    "softmax",
    "softmax_over_steps",
    "softplus",
    "softsign",
    "value_and_grad",
    "vjp",
]


MODULES = {
    "builder": "stepnet.rnn.builder",
    "cells": "stepnet.cells",
    "layout": "stepnet.layout",
    "masks": "stepnet.rnn.masks",
}
HOMES = {
    "Bidirectional": "stepnet.rnn.compose",
    "Conversion": "stepnet.layout.convert",
    "Gradients": "stepnet.rnn.gradients",
    "Graph": "stepnet.graph.graph",
    "Stack": "stepnet.rnn.compose",
    "beam_search": "stepnet.rnn.beams",
    "convert": "stepnet.layout.convert",
    "create_rnn_op": "stepnet.rnn.builder",
    "foreach": "stepnet.rnn.builder",
    "generate": "stepnet.rnn.generate",
    "load": "stepnet.model_file",
    "quantize": "stepnet.graph.quantize",
    "sampling": "stepnet.rnn.samplers",
    "value_and_grad": "stepnet.rnn.losses",
    "vjp": "stepnet.rnn.cotangents",
}
"""Public modules and names that running a recurrence does not need, and where they are. They are imported
when they are first used, which takes a third off the time of `import stepnet`."""


def __getattr__(name: str) -> object:
    """A public name that is imported when it is first used (PEP 562)."""
    if name in MODULES:
        value: object = import_module(MODULES[name])
    elif name in HOMES:
        value = getattr(import_module(HOMES[name]), name)
    else:
        raise AttributeError(f"module 'stepnet' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What users are meant to use: the modules that it is made of are none of theirs."""
    return sorted({*__all__} | ({"torch"} & globals().keys()))
