"""Checks that functions and layers of transformers compute the same as stepnet's: both run on a few numbers.

    hidden_states:bct A:cn ...  -->  tensors of random numbers  -->  theirs(...), ours(...)  -->  compared

A release of transformers may change a function and keep its name and arguments. The check runs when a model
is accelerated, so that such a function is left unchanged.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

from stepnet.compiler.net.tolerance import tolerance
from stepnet.torch.patches.transformers.records import FunctionPatch
from stepnet.torch.patches.transformers.scan import LENGTHS, on_engine
from stepnet.torch.patches.transformers.table import LAYERS
from stepnet.torch.patches.transformers.tokens import CACHES, Token
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
SIZES = {"b": 2, "t": 3, "c": 4, "n": 3, "h": 4, "g": 2, "p": 3, "k": 3, "v": 2, "1": 1}
"""The size of the axis of each letter."""
ENDINGS = (
    "MambaMixer",
    "Mamba2Mixer",
    "MambaLayer",
    "Mixer",
    "Block",
    "Backend",
    "GatedDeltaNet",
    "DeltaAttention",
    "LightningAttention",
    "LinearAttention",
    "ShortConv",
)
"""The endings of names of layers, in whose place names of configurations have TextConfig or Config."""
NEGATIVE = ("A", "g")
"""The tensors whose numbers are negative."""


@lru_cache
def difference(theirs: Callable[..., Any], patch: FunctionPatch, owner: Any) -> str | None:
    """Compares a function of transformers with stepnet's replacement on a few numbers, before it is replaced.

    Returns how they differ, as text; None if they are equal.

    theirs: the function without the decorators that look for kernels.
    patch: the table entry of the replacement.
    owner: the class whose method it is, or None for a plain function.
    """
    names, ours = (argument_names(function) for function in (theirs, patch.ours))
    if names != ours:
        return f"it takes the arguments {', '.join(names)}, and stepnet knows {', '.join(ours)}"
    first = () if owner is None else (small_layer(owner, patch),)
    for variant in patch.variants:
        given, known = (tensors(patch) | dict(variant) for _ in range(2))
        with torch.no_grad(), on_engine("interpret"):
            token = LENGTHS.set(None)
            try:
                results = flat(theirs(*first, **given)), flat(patch.ours(*first, **known))
            finally:
                LENGTHS.reset(token)
        number = first_apart([*results[0], *flat(given)], [*results[1], *flat(known)], SIZES["k"])
        if number is not None:
            return f"its result {number} differs from stepnet's for the same inputs"
    return None


def small_layer(owner: Any, patch: FunctionPatch) -> Any:
    """Makes the layer with which a method is compared, of random weights; None for a method that does not
    read its layer. owner: the class of the layer. patch: the method's table entry.
    """
    if not patch.config:
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return owner(config_of(owner, patch.config), **dict(patch.arguments))


@lru_cache
def layer_difference(kind: Any) -> str | None:
    """Compares a class of layers (`kind`) with its entry of `table.LAYERS`, a step that runs single tokens,
    before the step is used. Returns how they differ, as text; None if they are equal. A small layer with
    random weights runs three tokens by the code of transformers, and a fourth one by both.
    """
    layer, files = LAYERS[kind.__name__], sys.modules[kind.__module__]
    config = config_of(kind, layer.config)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        module = kind(config, layer_idx=0, **dict(layer.arguments))
        if layer.model is not None:
            model, path = layer.model
            module = getattr(files, model)(config).get_submodule(path)
        words = torch.randn(2, 4, config.hidden_size)
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape) / 2)
        cache = layer.states.cache(files, config)
        cached = {next(name for name in argument_names(kind.forward) if name in CACHES): cache}
        others = dict.fromkeys(("position_embeddings", "attention_mask") if layer.returns_state else ())
        module(words[:, :3], **others, **cached)
        before = [state.clone() for state in layer.states.of(cache, 0)]
        with on_engine("interpret"):
            token = Token(layer, module, before)
            token.bind_to(module, words, before)
            ours = token(words[:, 3:], before)
        theirs = flat(module(words[:, 3:], **others, **cached))[0]
    states = layer.states.of(cache, 0)
    if first_apart((theirs, *states), (ours, *before), config.hidden_size) is None:
        return None
    return "this version of transformers has a different layer: its result for a token differs from stepnet's"


def first_apart(theirs: Sequence[Any], ours: Sequence[Any], width: int) -> int | None:
    """Finds the first pair of tensors of transformers (`theirs`) and of stepnet (`ours`) that differ by more
    than rounding; returns its index, None if none do.

    They may differ by four times the usual `tolerance` of a step, relative to numbers larger than 1. width:
    the number of terms in the sums of a step, by which rounding errors grow.
    """
    most = 4 * tolerance("float32", length=SIZES["t"], width=width)
    for number, (x, y) in enumerate(zip(theirs, ours, strict=True)):
        if x.shape != y.shape or bool(((x - y).abs() > most * x.abs().clamp(min=1)).any()):
            return number
    return None


def config_of(kind: Any, options: Any) -> Any:
    """Makes the configuration of a small layer of transformers of the class `kind`, for a comparison with
    stepnet's. options: the configuration's arguments. Its class is found by the name of `kind` with another
    ending: MambaConfig for MambaMixer.
    """
    file, name = sys.modules[kind.__module__], kind.__name__
    names = (
        f"{name.removesuffix(ending)}{last}"
        for ending in ENDINGS
        if name.endswith(ending)
        for last in ("TextConfig", "Config")
    )
    return next(getattr(file, each) for each in names if hasattr(file, each))(**dict(options))


@lru_cache
def argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Lists the names of a function's arguments, without **kwargs, to compare and call functions."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD)


def tensors(patch: FunctionPatch) -> dict[str, Any]:
    """Makes the arguments for a comparison of functions: equal random tensors each time, and the options.

    patch: the table entry, which has a letter for each axis of each tensor. Numbers along an axis with a
    capital letter are equal, tensors in `NEGATIVE` are negative, and `reset` is bool.
    """
    random = torch.Generator().manual_seed(0)
    arguments = dict(patch.options)
    for name, _, letters in (word.rpartition(":") for word in patch.sizes.split()):
        own = [1 if letter.isupper() else SIZES[letter] for letter in letters]
        whole = [SIZES[letter.lower()] for letter in letters]
        numbers = torch.rand(own, generator=random) - (1.0 if name in NEGATIVE else 0.0)
        arguments[name] = numbers > 0.5 if name == "reset" else numbers.expand(whole)
    return arguments


def flat(value: Any) -> list[Any]:
    """Lists the tensors in nested results or arguments, in order, as float32, to compare them."""
    if isinstance(value, torch.Tensor):
        return [value.float()]
    if isinstance(value, dict):
        return flat(list(cast("dict[str, Any]", value).values()))
    if isinstance(value, list | tuple):
        return [tensor for part in cast("list[Any]", value) for tensor in flat(part)]
    return []
