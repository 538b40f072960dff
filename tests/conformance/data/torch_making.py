"""Modules with weights, their inputs and their lines in a manifest, whatever they are saved as."""

from collections.abc import Iterable

import numpy as np
import torch
from recording import CONTEXT, FEATURES, Arrays, padded, weights
from torch import nn
from torch_models import HIDDEN, MODELS, Made

SHAPES = {"frames": (FEATURES,), "context": (CONTEXT,), "state": (1, HIDDEN), "tokens": (), "lengths": ()}
LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
VIEWS = ("zeros", "size", "select", "slice", "dim", "len", "__contains__", "eq", "ne", "__is__", "__not__")
"""Operators that recurrent layers are, and those with which PyTorch's own layers prepare what they take."""


def filled(name: str) -> nn.Module:
    """A module with random numbers in all its arrays, ready to run."""
    module = MODELS[name].make().eval().requires_grad_(False)
    for key, array in module.state_dict().items():
        if array.is_floating_point():
            scale = "gamma" if "norm" in key and key.endswith("weight") else ""
            array.copy_(torch.from_numpy(weights(name, key + scale, tuple(array.shape))))
    return module


def batch(name: str, made: Made) -> Arrays:
    """The padded inputs of a model."""
    return {key: padded(f"{name}/{key}", kind, SHAPES[kind]) for key, kind in made.inputs.items()}


def around(module: nn.Module) -> dict[str, str]:
    """All modules in a module that are no recurrent layer, by name."""
    parts = {name: part for name, part in module.named_modules() if name}
    return {name: type(part).__name__ for name, part in parts.items() if not isinstance(part, nn.RNNBase)}


def operators(kinds: Iterable[str]) -> dict[str, str]:
    """The operators of a graph that compute something outside its recurrences, as ATen has them."""
    names = {kind.replace("::", ".").split(".")[1] for kind in kinds if kind.startswith("aten")}
    return {f"aten.{name}": name for name in sorted(names - {*LAYERS, *VIEWS})}


def flat(results: object) -> list[np.ndarray]:
    """The arrays of what a module gives, in order."""
    if isinstance(results, torch.Tensor):
        return [results.numpy()]
    return [array for one in results for array in flat(one)]


def called(module: nn.Module, made: Made, given: Arrays) -> Arrays:
    """The outputs of a module for inputs, by name."""
    results = module(*map(torch.from_numpy, given.values()))
    return dict(zip(made.outputs, flat(results), strict=True))


def about(name: str) -> str:
    """A model in one line."""
    made = MODELS[name]
    return made.about or (made.make.__doc__ or "").rstrip(".")
