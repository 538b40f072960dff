"""One token through a whole layer as a single step of stepnet: most of the work of `generate`.

    norm, in_proj, conv1d, x_proj, dt_proj, state space, gate, out_proj, sum      50 operations of PyTorch
        ->  one call of machine code on arrays that are laid out once for each cache

The rows of `table.LAYERS` are the layers with such a step: mixers, and the blocks around them.

A layer runs so if its parts are plain layers of torch.nn and transformers with plain parameters, without
hooks; this is checked for each token. States are read from the cache and written back there. Parameters are
packed for a new cache, and again for another cache or when PyTorch counts a change.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any
from weakref import ref

from stepnet.torch.marks import marks_of, packed_marks
from stepnet.torch.patches.transformers.records import HOOKS, TokenLayer, class_of, holder_of, part_of
from stepnet.torch.patches.transformers.scan import ENGINE, ScanKey, dtype_of, name_of, scan_of
from stepnet.torch.patches.transformers.single import Single
from stepnet.torch.patches.transformers.table import LAYERS
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import is_transformed
from stepnet.torch.sequences import DTYPES, HOST

torch: Any = pytorch("torch")
TOKEN = "_stepnets_token"
"""Attribute in which a layer keeps its prepared step for tokens. It is neither copied nor pickled."""
CACHES = ("cache_params", "past_key_values")
"""The names of the argument of a layer that is the cache."""
PACKED = "cu_seq_lens_q", "cu_seqlens", "seq_idx"
"""Arguments of sequences end to end in one row."""
increment_version: Callable[[Any], None] = torch.autograd.graph.increment_version
get: Callable[[dict[str, Any], str], Any] = dict[str, Any].get


class Seen:
    """Snapshot of all objects in a layer on which `TokenLayer.refusal` depends: while `is_unchanged` says
    that they are the same, its verdict is valid.

    It is compared for each token, so positions are stored as mappings and keys, which are read without Python
    code. The layer itself is not referenced, because the layer references the object that runs its tokens.
    """

    def __init__(self, layer: TokenLayer, module: Any) -> None:
        """Records the parts, options, engines, parameters and hooks of a layer (`module`). layer: its entry
        in the table `LAYERS`, which names them.
        """
        self.own = ["activation", "engine", "_modules", "_parameters"]
        self.own += [name for part, name in layer.options if not part] + [layer.widens] * bool(layer.widens)
        self.own_values = [module.__dict__.get(name) for name in self.own]
        self.parts: list[Any] = [part_of(module, name) for name in layer.parts]
        self.kinds = [class_of(part) for part in self.parts]
        self.hooks = [part.__dict__[hooks] for part in self.parts for hooks in HOOKS]
        places = [
            (part.__dict__, key)
            for part in self.parts
            for key in ("activation", "forward", "weights", "_modules", "_parameters", *HOOKS)
        ]
        places += [(part_of(module, part).__dict__, name) for part, name in layer.options if part]
        for name in layer.parts:
            parent, _, last = name.rpartition(".")
            places.append((part_of(module, parent)._modules, last))
        places += [(holder_of(module, part, name), name) for part, name in layer.names.values()]
        self.mappings: list[dict[str, Any]] = [mapping for mapping, _ in places]
        self.keys = [key for _, key in places]
        self.values = [mapping.get(key) for mapping, key in places]

    def is_unchanged(self, module: Any) -> bool:
        """Tells whether the layer has the parts, parameters and options of the snapshot, and no hooks."""
        own: dict[str, Any] = module.__dict__
        return (
            all(map(is_, map(own.get, self.own), self.own_values))
            and all(map(is_, map(get, self.mappings, self.keys), self.values))
            and all(map(is_, [class_of(part) for part in self.parts], self.kinds))
            and not any(self.hooks)
        )


class Token:
    """Step of a whole layer for one token, prepared for a number of rows and for one cache at a time.

    The step overwrites the states of the cache in place. It has their addresses, and does not keep them
    alive: a call is for states that `is_bound_to` has compared.

    Attributes:
        single: The prepared step.
        seen: What the step depends on in the layer, to notice changes.
        tensors: The parameters.
        dtypes: The dtypes of the parameters.
        dtype: The dtype of the tokens.
        output: The dtype of the outputs.
        shapes: The shapes of the states that it is prepared for.
        states: Weak references to the states of the cache that it is bound to.
        addresses: The addresses of the numbers of the states.
        marks: Addresses and version counts of the parameters, to notice changes.
    """

    def __init__(self, layer: TokenLayer, module: Any, states: Sequence[Any]) -> None:
        """Prepares the step that runs one token through a layer (`module`). layer: its entry in the table
        `LAYERS`. states: examples of the cache's states.
        """
        self.layer, named = layer, layer.parameters(module)
        self.shapes = [state.shape for state in states]
        self.tensors, self.states, self.marks = list(named.values()), list[Any](), list[Any]()
        self.addresses = list[int]()
        self.dtypes, rows = [tensor.dtype for tensor in self.tensors], self.shapes[0][0]
        dtype, features = name_of(dtype_of(self.tensors[0])), named["in_proj"].shape[1]
        self.dtype = self.output = None
        self.seen = Seen(layer, module)
        memories = tuple(tuple(shape[1:]) for shape in self.shapes)
        params = tuple((name, tuple(each.shape), name_of(each.dtype)) for name, each in named.items())
        step = layer.step(*layer.options_of(module))
        weights, exact = layer.rounding(module)
        x = ("x", (features,), dtype)
        net = scan_of(ScanKey(step, (x,), memories, params, dtype, weights=weights, exact=exact))
        self.single = Single(net, rows, self.tensors)

    def fits(self, module: Any, states: Sequence[Any]) -> bool:
        """Tells whether the prepared step is valid: the same layer, unchanged, and states of its shapes."""
        return self.seen.is_unchanged(module) and all(
            state.shape == shape for state, shape in zip(states, self.shapes, strict=True)
        )

    def is_bound_to(self, x: Any, states: Sequence[Any]) -> bool:
        """Tells whether the compiled step for single tokens was last bound to a cache with exactly these
        states and to tokens of the dtype of x, and its parameters are unchanged.
        """
        return (
            x.dtype == self.dtype
            and len(self.states) == len(states)
            and all(own() is other for own, other in zip(self.states, states, strict=True))
            and self.marks == marks_of(self.tensors)
            and self.addresses == [*map(torch.Tensor.data_ptr, states)]
        )

    def bind_to(self, module: Any, x: Any, states: Sequence[Any]) -> None:
        """Binds the prepared step to the cache that has these states, to tokens such as x, and to the current
        parameters of the layer (`module`). Stores all of them, so that `is_bound_to` notices a change.
        """
        self.single.bind(ENGINE.get(), states)
        self.addresses = [*map(torch.Tensor.data_ptr, states)]
        self.dtype, self.output = x.dtype, self.layer.dtype_of_output(module, x)
        self.marks, self.states = packed_marks(self.tensors), [ref(state) for state in states]

    def __call__(self, x: Any, states: Sequence[Any]) -> Any:
        """Runs one token through the prepared layer: returns the output for the token x [rows, 1, features],
        and overwrites the cache's states with the next ones.
        """
        self.single((x, *states))
        output, *after = self.single.results
        for own, state in zip(after, states, strict=True):
            if own is not None:
                state.copy_(own)
            elif not state.is_inference():  # then PyTorch counts changes
                increment_version(state)
        return output.clone() if output.dtype == self.output else output.to(self.output)


def token_of(name: str, module: Any, x: Any, cache: Any) -> Any:
    """Runs a single token through a whole layer as one step, prepared at the first token of a cache.

    Returns the output, or None if the layer must run its parts one by one: where gradients are enabled, in
    transforms, with autocast or hooks, or if the layer or the cache does not fit the step. Graphs record the
    layer of transformers (`with_engine` of `patch.py`).

    name: the layer's key in `LAYERS`. x: the token [rows, 1, features].
    cache: the object of transformers that has the layer's states.
    """
    if torch.is_grad_enabled() or x.dtype not in DTYPES:
        return None
    if is_transformed() or torch.is_autocast_enabled("cpu"):
        return None
    layer = LAYERS[name]
    index = part_of(module, layer.cached).layer_idx
    states = layer.states.of(cache, index)
    if any(state is None for state in states):
        return None
    if torch.nn.modules.module._has_any_global_hook():
        return None
    # The step is removed while in use, as several threads may generate.
    token: Token | None = module.__dict__.pop(TOKEN, None)
    fits = token is not None and token.fits(module, states)
    if token is None or not fits or not token.is_bound_to(x, states):
        if layer.refusal(module) is not None or not fits_step(layer, module, x, states):
            return None
        if token is None or not fits or token.dtypes != [tensor.dtype for tensor in token.tensors]:
            token = Token(layer, module, states)
        token.bind_to(module, x, states)
    output = token(x, states)
    module.__dict__[TOKEN] = token
    return (output, states[0].clone()) if layer.returns_state else output


def is_all(mask: Any) -> bool:
    """Tells whether an attention mask for one token is None, or says that the token of every row is there."""
    return mask is None or (mask.dim() == 2 and mask.shape[1] == 1 and bool(mask.all()))


def fits_step(layer: TokenLayer, module: Any, x: Any, states: Sequence[Any]) -> bool:
    """Tells whether x, a layer's parameters and its states are on the CPU, in dtypes of prepared steps."""
    tensors = (x, *layer.parameters(module).values(), *states)
    is_here = all(tensor.device.type == HOST for tensor in tensors)
    return is_here and layer.has_dtypes(module, x, states)


def with_tokens(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a layer's forward: a single token with a cache runs as one step. name: its key in `LAYERS`."""
    _, _, *names = inspect.signature(forward).parameters
    cached = next(name for name in names if name in CACHES)

    @functools.wraps(forward)
    def stepped(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs a single token with a cache, without padding or packed sequences, as one step, if that is
        possible; calls the layer's forward otherwise.
        """
        if hidden_states.shape[1] == 1 and hidden_states.device.type == HOST:
            given = kwargs if not args else dict(zip(names, args, strict=False)) | kwargs
            cache = given.get(cached)
            if (
                cache is not None
                and all(given.get(name) is None for name in PACKED)
                and is_all(given.get("attention_mask"))
            ):
                output = token_of(name, self, hidden_states, cache)
                if output is not None:
                    return output
        return forward(self, hidden_states, *args, **kwargs)

    return stepped
