"""One token through a whole layer: what `generate` runs most, as a single step of stepnet.

    norm, in_proj, conv1d, x_proj, dt_proj, state space, gate, out_proj, sum      50 operations of PyTorch
        ->  one call of machine code on arrays that are laid out once for each cache

`layers` says which layers have such a step: mixers, and the blocks around them.

A layer does so where its parts are plain layers of torch.nn with plain parameters, without hooks; that is
looked at for each token. The states are read from the cache and written back there. Parameters are taken when
a cache is new, and anew where there is another one or PyTorch counts a change.
"""

import functools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any
from weakref import ref

from stepnet.torch.checks import DTYPES
from stepnet.torch.function import is_transformed
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import is_recorded
from stepnet.torch.seams.layers import LAYERS, Seen, TokenLayer, part_of
from stepnet.torch.seams.scan import ENGINE, ScanKey, scan_of
from stepnet.torch.seams.single import Single

torch: Any = pytorch("torch")
VERSION = attrgetter("_version")
KEPT = "_stepnets_token"
"""Attribute in which a layer keeps its prepared step for tokens. It is neither copied nor pickled."""


class Token:
    """Step of a whole layer for one token, prepared for a number of rows and for one cache at a time.

    Attributes:
        single: The prepared step.
        states: Weak references to the cache's states that it follows.
        marks: Addresses and version counts of the parameters, to notice changes.
    """

    def __init__(self, layer: str, module: Any, states: Sequence[Any]) -> None:
        named = LAYERS[layer].parameters(module)
        self.shapes = [state.shape for state in states]
        self.tensors, self.states, self.marks = list(named.values()), list[Any](), list[Any]()
        self.dtype, rows = self.tensors[0].dtype, self.shapes[0][0]
        dtype, features = DTYPES[self.dtype], self.tensors[0].shape[1]
        self.seen, options = Seen(LAYERS[layer], module), LAYERS[layer].options_of(module)
        memories = tuple(tuple(shape[1:]) for shape in self.shapes)
        params = tuple((name, tuple(tensor.shape)) for name, tensor in named.items())
        program = scan_of(
            ScanKey(LAYERS[layer].step(*options), (("x", (features,), dtype),), memories, params, dtype)
        ).program
        self.single = Single(program, rows, self.tensors)

    def fits(self, module: Any, states: Sequence[Any]) -> bool:
        """Tells whether the step is prepared for states of these shapes and for the layer as it now is."""
        return (
            self.seen.holds(module)
            and all(state.shape == shape for state, shape in zip(states, self.shapes, strict=True))
            and self.dtype == self.tensors[0].dtype
        )

    def follows(self, states: Sequence[Any]) -> bool:
        """Tells whether the step follows the cache with these states, and PyTorch counted no change of
        parameters.
        """
        return (
            len(self.states) == len(states)
            and all(own() is other for own, other in zip(self.states, states, strict=True))
            and self.marks == marks_of(self.tensors)
        )

    def follow(self, states: Sequence[Any]) -> None:
        """Switches to the cache with these states, and takes the parameters as they now are."""
        self.single.bind(ENGINE.get())
        self.marks, self.states = marks_of(self.tensors), [ref(state) for state in states]

    def __call__(self, x: Any, states: Sequence[Any]) -> Any:
        """Computes the output of a token x [rows, 1, features], and overwrites the cache's states with the
        next ones.
        """
        self.single((x, *states))
        output, *after = self.single.results
        for own, state in zip(after, states, strict=True):
            state.copy_(own)
        return output.clone()


def marks_of(tensors: Sequence[Any]) -> list[int]:
    """Returns addresses and version counts of tensors; equal lists mean that nothing has changed."""
    return [*map(torch.Tensor.data_ptr, tensors), *map(VERSION, tensors)]


def token_of(layer: str, module: Any, x: Any, cache: Any) -> Any:
    """Runs a single token through a whole layer as one step, prepared at the first token of a cache.

    Returns the output, or None if the layer has to run part by part. layer: its name in `LAYERS`. cache: the
    object of transformers that holds the layer's states.
    """
    if torch.is_grad_enabled() or is_recorded():
        return None
    if is_transformed() or torch.is_autocast_enabled("cpu"):
        return None
    index = part_of(module, LAYERS[layer].cached).layer_idx
    states = cache.get_conv_state(index, state_idx=0), cache.get_recurrent_state(index, state_idx=0)
    if any(state is None for state in states) or cache.is_recording_past(index):
        return None
    if has_global_hooks():
        return None
    # The step is taken out for this call, as several threads may generate.
    kept: Token | None = module.__dict__.pop(KEPT, None)
    fits = kept is not None and kept.fits(module, states)
    if kept is None or not fits or not kept.follows(states) or x.dtype != kept.dtype:
        if LAYERS[layer].refusal(module) is not None or not fits_step(LAYERS[layer], module, x, states):
            return None
        if kept is None or not fits:
            kept = Token(layer, module, states)
        kept.follow(states)
    output = kept(x, states)
    module.__dict__[KEPT] = kept
    return output


def has_global_hooks() -> bool:
    """Tells whether PyTorch has hooks for all modules, which the parts of a layer would have to call."""
    return bool(torch.nn.modules.module._has_any_global_hook())


def fits_step(layer: TokenLayer, module: Any, x: Any, states: Sequence[Any]) -> bool:
    """Tells whether input, parameters and states all lie on the CPU and have the same dtype."""
    tensors = (x, *layer.parameters(module).values(), *states)
    return x.dtype in DTYPES and all(
        tensor.dtype == x.dtype and tensor.device.type == "cpu" for tensor in tensors
    )


def with_tokens(layer: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a layer's forward so that a single token with a cache runs as one step."""

    @functools.wraps(forward)
    def stepped(
        self: Any, hidden_states: Any, cache_params: Any = None, attention_mask: Any = None, **kwargs: Any
    ) -> Any:
        """Runs a single token as one step if possible, and calls the layer's own forward otherwise."""
        is_plain = attention_mask is None and kwargs.get("cu_seq_lens_q") is None
        if is_plain and cache_params is not None and hidden_states.shape[1] == 1:
            output = token_of(layer, self, hidden_states, cache_params)
            if output is not None:
                return output
        return forward(self, hidden_states, cache_params, attention_mask, **kwargs)

    return stepped
