"""A compiler for recurrent networks: one step as equations in, machine code for whole sequences out."""

from importlib import import_module
from typing import TYPE_CHECKING

from stepnet.compiler.values.collector import paused_collector
from stepnet.compiler.values.fork_guard import IMPORTS, import_hooked
from stepnet.compiler.values.version import __version__, check_lock, has_lock
from stepnet.errors import StepnetError

if TYPE_CHECKING:
    from stepnet import cells, layout
    from stepnet.compiler.native.watching import Progress
    from stepnet.compiler.targets.threads import set_threads
    from stepnet.compiler.trace.functions import (
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
    from stepnet.compiler.trace.spec import Spec
    from stepnet.explain.progress import progress
    from stepnet.layout.convert import Conversion, convert
    from stepnet.model import builder, masks
    from stepnet.model.attention import attention
    from stepnet.model.builder import create_rnn_op, foreach
    from stepnet.model.compose import Bidirectional, Stack
    from stepnet.model.convolution import avg_pool1d, conv1d, conv_transpose1d, max_pool1d, pad_steps
    from stepnet.model.generation.beams import beam_search
    from stepnet.model.generation.generate import generate
    from stepnet.model.generation.samplers import sampling
    from stepnet.model.gradients.arguments import Gradients
    from stepnet.model.gradients.cotangents import vjp
    from stepnet.model.gradients.losses import value_and_grad
    from stepnet.model.gradients.tangents import jvp
    from stepnet.model.graph.graph import Graph
    from stepnet.model.graph.quantize import quantize
    from stepnet.model.loading import load
    from stepnet.model.model import Model
    from stepnet.model.nested import expand, reduce, softmax_over_steps
    from stepnet.model.recurrence import RNN, scan
    from stepnet.ragged import Ragged

check_lock(has_lock())

__all__ = [
    "RNN",
    "Bidirectional",
    "Conversion",
    "Gradients",
    "Graph",
    "Model",
    "Progress",
    "Ragged",
    "Spec",
    "Stack",
    "StepnetError",
    "__version__",
    "attention",
    "avg_pool1d",
    "beam_search",
    "builder",
    "cells",
    "conv1d",
    "conv_transpose1d",
    "convert",
    "create_rnn_op",
    "elu",
    "erf",
    "expand",
    "foreach",
    "gelu",
    "generate",
    "hard_sigmoid",
    "jvp",
    "layer_norm",
    "layout",
    "leaky_relu",
    "load",
    "masks",
    "max_pool1d",
    "one_hot",
    "pad_steps",
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


FRAMEWORKS = ("jax", "keras", "paddle", "ray", "torch")
MODULES = {
    "builder": "stepnet.model.builder",
    "cells": "stepnet.cells",
    "layout": "stepnet.layout",
    "masks": "stepnet.model.masks",
    **{name: f"stepnet.{name}" for name in ("arrow", "build", "onednn", "onnx", *FRAMEWORKS)},
}
FUNCTIONS = (
    *("elu", "erf", "gelu", "hard_sigmoid", "layer_norm", "leaky_relu", "one_hot", "relu", "selu", "sigmoid"),
    *("silu", "softmax", "softplus", "softsign"),
)
HOMES = {
    **dict.fromkeys(FUNCTIONS, "stepnet.compiler.trace.functions"),
    **dict.fromkeys(("expand", "reduce", "softmax_over_steps"), "stepnet.model.nested"),
    **dict.fromkeys(("RNN", "scan"), "stepnet.model.recurrence"),
    "Model": "stepnet.model.model",
    "Progress": "stepnet.compiler.native.watching",
    "Ragged": "stepnet.ragged",
    "Spec": "stepnet.compiler.trace.spec",
    "progress": "stepnet.explain.progress",
    "set_threads": "stepnet.compiler.targets.threads",
    "Bidirectional": "stepnet.model.compose",
    "Conversion": "stepnet.layout.convert",
    "Gradients": "stepnet.model.gradients.arguments",
    "Graph": "stepnet.model.graph.graph",
    "Stack": "stepnet.model.compose",
    "attention": "stepnet.model.attention",
    "avg_pool1d": "stepnet.model.convolution",
    "beam_search": "stepnet.model.generation.beams",
    "conv1d": "stepnet.model.convolution",
    "conv_transpose1d": "stepnet.model.convolution",
    "convert": "stepnet.layout.convert",
    "create_rnn_op": "stepnet.model.builder",
    "foreach": "stepnet.model.builder",
    "generate": "stepnet.model.generation.generate",
    "jvp": "stepnet.model.gradients.tangents",
    "load": "stepnet.model.loading",
    "max_pool1d": "stepnet.model.convolution",
    "pad_steps": "stepnet.model.convolution",
    "quantize": "stepnet.model.graph.quantize",
    "sampling": "stepnet.model.generation.samplers",
    "value_and_grad": "stepnet.model.gradients.losses",
    "vjp": "stepnet.model.gradients.cotangents",
}
"""Public modules and names, and where they are. They are imported when they are first used, so a process
imports what it needs and no more."""


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used (PEP 562); raises `AttributeError` for any other name."""
    home = MODULES.get(name) or HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stepnet' has no attribute '{name}'")
    if name in FRAMEWORKS:
        import_hooked()
    with IMPORTS, paused_collector():
        module = import_module(home)
    value: object = module if name in MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Returns the public names, without the package's modules; with `torch` once that is imported."""
    return sorted({*__all__} | ({"torch"} & globals().keys()))
