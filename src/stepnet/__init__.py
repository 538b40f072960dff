"""A compiler for recurrent networks: one step as equations in, machine code for whole sequences out."""

from stepnet import cells, layout
from stepnet.engines.progress import progress
from stepnet.engines.threads import set_threads
from stepnet.engines.watching import Progress
from stepnet.errors import StepnetError
from stepnet.graph.graph import Graph
from stepnet.graph.quantize import quantize
from stepnet.layout.convert import Conversion, convert
from stepnet.ragged import Ragged
from stepnet.rnn import builder, masks
from stepnet.rnn.beams import beam_search
from stepnet.rnn.builder import create_rnn_op, foreach
from stepnet.rnn.compose import Bidirectional, Stack
from stepnet.rnn.cotangents import vjp
from stepnet.rnn.generate import generate
from stepnet.rnn.gradients import Gradients
from stepnet.rnn.losses import value_and_grad
from stepnet.rnn.nested import expand, reduce, softmax_over_steps
from stepnet.rnn.recurrence import RNN, scan
from stepnet.rnn.samplers import sampling
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


def __dir__() -> list[str]:
    """What users are meant to use: the modules that it is made of are none of theirs."""
    return sorted({*__all__, "torch"} & globals().keys())
