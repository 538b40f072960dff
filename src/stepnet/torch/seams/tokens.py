"""One token through a whole layer: what `generate` runs most, as a single step of stepnet.

    in_proj, conv1d, x_proj, dt_proj, state space, gate, out_proj      some 40 operations of PyTorch
        ->  one call of machine code on arrays that are laid out once for each cache

A layer does so where its parts are plain layers of torch.nn with plain parameters, without hooks; that is
looked at for each token. The states are read from the cache and written back there. Parameters are taken when
a cache is new, and anew where there is another one or PyTorch counts a change.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, cast
from weakref import ref

from stepnet.torch.checks import DTYPES
from stepnet.torch.function import is_transformed
from stepnet.torch.pytorch import pytorch
from stepnet.torch.seams.scan import ENGINE, Kind, Step, scan_of
from stepnet.torch.seams.single import Single
from stepnet.torch.seams.steps import DeltaLayer, Mamba2Layer, mamba_layer

torch: Any = pytorch("torch")
PLAIN = torch.nn.Parameter, torch.Tensor
MISSING = object()
KEPT = "_stepnets_token"
"""Where a layer keeps what runs its tokens. It is not copied and not pickled."""


@dataclass(frozen=True)
class Layer:
    """A layer whose tokens are one step.

    Attributes:
        step: The step of a layer, by its options: from its input [rows, features], with the convolution's
            last inputs and the state as memory.
        options: The options of a layer.
        names: The parameters of the step, each with the part of the layer that has it, or "", and its name
            there.
        parts: The classes of the layers that it is made of, by name. They are known by their modules, too:
            layers of other libraries, as those of quantized weights, are called Linear as well.
        config: The sizes of a small one, for `check`.
    """

    step: Callable[..., Step]
    options: Callable[[Any], tuple[Any, ...]]
    names: dict[str, tuple[str, str]]
    parts: dict[str, str]
    config: dict[str, Any]

    def refusal(self, module: Any) -> str | None:
        """Why the tokens of a layer are not one step; None if they are."""
        for holder in (module, *module._modules.values()):
            own: dict[str, Any] = holder.__dict__
            activation = own.get("activation", "silu")
            if activation not in ("silu", "swish"):
                return f"its activation is {activation}"
        for name, wanted in self.parts.items():
            part = module._modules.get(name)
            kind: Any = cast("Any", type(part))
            if f"{kind.__module__}.{kind.__qualname__}" != wanted:
                return f"{name} is a {kind.__module__}.{kind.__qualname__} and no {wanted}"
            if part._forward_hooks or part._forward_pre_hooks or "forward" in part.__dict__:
                return f"{name} has hooks or a forward of its own"
        for part, name in self.names.values():
            tensor = owner(module, part)._parameters.get(name, MISSING)
            if tensor is not None and type(tensor) not in PLAIN:
                return f"{f'{part}.{name}'.lstrip('.')} is no plain parameter"
            if tensor is not None and tensor.is_inference():
                return "its parameters were made in inference mode, where PyTorch counts no changes"
        return None

    def seen(self, module: Any) -> list[Any]:
        """What `refusal` looks at: as long as these are the same objects, a layer is as it was."""
        parts, objects = module._modules, [module.__dict__.get("activation")]
        for name in self.parts:
            part = parts.get(name)
            own: dict[str, Any] = {} if part is None else part.__dict__
            is_hooked = own.get("_forward_hooks") or own.get("_forward_pre_hooks") or "forward" in own
            objects += part, part.__class__, own.get("activation"), bool(is_hooked)
        for part, name in self.names.values():
            holder = parts.get(part) if part else module
            objects.append(None if holder is None else holder._parameters.get(name, MISSING))
        return objects

    def parameters(self, module: Any) -> dict[str, Any]:
        """The tensors of the step's parameters, without those that the layer does not have."""
        named = {key: owner(module, part)._parameters[name] for key, (part, name) in self.names.items()}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


def owner(module: Any, part: str) -> Any:
    """A part of a layer, or the layer."""
    return module._modules[part] if part else module


SHARED = {
    "in_proj": ("in_proj", "weight"),
    "in_bias": ("in_proj", "bias"),
    "conv": ("conv1d", "weight"),
    "conv_bias": ("conv1d", "bias"),
    "A_log": ("", "A_log"),
    "D": ("", "D"),
    "out_proj": ("out_proj", "weight"),
    "out_bias": ("out_proj", "bias"),
}
LINEAR, CONVOLUTION = "torch.nn.modules.linear.Linear", "torch.nn.modules.conv.Conv1d"
PARTS = {"in_proj": LINEAR, "conv1d": CONVOLUTION, "out_proj": LINEAR}
LAYERS = {
    "MambaMixer": Layer(
        lambda: mamba_layer,
        lambda module: (),
        {
            **SHARED,
            "x_proj": ("x_proj", "weight"),
            "dt_proj": ("dt_proj", "weight"),
            "dt_bias": ("dt_proj", "bias"),
        },
        {**PARTS, "x_proj": LINEAR, "dt_proj": LINEAR},
        {
            "hidden_size": 6,
            "intermediate_size": 8,
            "state_size": 3,
            "time_step_rank": 2,
            "num_hidden_layers": 1,
        },
    ),
    "Mamba2Mixer": Layer(
        Mamba2Layer,
        lambda module: (module.n_groups, module.norm.group_size, module.norm.variance_epsilon),
        {**SHARED, "dt_bias": ("", "dt_bias"), "norm": ("norm", "weight")},
        {**PARTS, "norm": "transformers.models.mamba2.modeling_mamba2.MambaRMSNormGated"},
        {
            "hidden_size": 8,
            "num_heads": 4,
            "head_dim": 4,
            "state_size": 3,
            "n_groups": 2,
            "num_hidden_layers": 1,
        },
    ),
    "Qwen3NextGatedDeltaNet": Layer(
        DeltaLayer,
        lambda module: (module.num_k_heads, module.norm.variance_epsilon),
        {
            **{name: place for name, place in SHARED.items() if name not in ("in_bias", "D", "out_bias")},
            "in_proj": ("in_proj_qkvz", "weight"),
            "rates": ("in_proj_ba", "weight"),
            "dt_bias": ("", "dt_bias"),
            "norm": ("norm", "weight"),
        },
        {
            "in_proj_qkvz": LINEAR,
            "in_proj_ba": LINEAR,
            "conv1d": CONVOLUTION,
            "out_proj": LINEAR,
            "norm": "transformers.models.qwen3_next.modeling_qwen3_next.Qwen3NextRMSNormGated",
        },
        {
            "hidden_size": 6,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 3,
            "linear_value_head_dim": 2,
            "num_hidden_layers": 1,
            "layer_types": ["linear_attention"],
        },
    ),
}


class Token:
    """A layer's token, prepared for a number of rows.

    It follows one cache at a time. marks: by what the parameters are known to be the same.
    """

    def __init__(self, layer: str, module: Any, states: Sequence[Any]) -> None:
        named = LAYERS[layer].parameters(module)
        self.shapes = [state.shape for state in states]
        self.tensors, self.states, self.marks = list(named.values()), list[Any](), list[Any]()
        self.dtype, rows = self.tensors[0].dtype, self.shapes[0][0]
        dtype, features = DTYPES[self.dtype], self.tensors[0].shape[1]
        self.seen, self.options = LAYERS[layer].seen(module), LAYERS[layer].options(module)
        memories = tuple(tuple(shape[1:]) for shape in self.shapes)
        params = tuple((name, tuple(tensor.shape)) for name, tensor in named.items())
        program = scan_of(
            Kind(LAYERS[layer].step(*self.options), (("x", (features,)),), memories, params, dtype)
        ).program
        self.single = Single(program, rows, self.tensors)

    def fits(self, module: Any, layer: str, states: Sequence[Any]) -> bool:
        """Whether it is prepared for states of these shapes, and the layer as it is."""
        return (
            all(map(is_, self.seen, LAYERS[layer].seen(module)))
            and all(state.shape == shape for state, shape in zip(states, self.shapes, strict=True))
            and self.dtype == self.tensors[0].dtype
            and self.options == LAYERS[layer].options(module)
        )

    def follows(self, states: Sequence[Any]) -> bool:
        """Whether it follows the cache of these states, and no change of its parameters was counted since."""
        return (
            len(self.states) == len(states)
            and all(own() is other for own, other in zip(self.states, states, strict=True))
            and self.marks == marks_of(self.tensors)
        )

    def follow(self, states: Sequence[Any]) -> None:
        """Follows another cache, with the parameters as they now are."""
        self.single.bind(ENGINE.get())
        self.marks, self.states = marks_of(self.tensors), [ref(state) for state in states]

    def __call__(self, x: Any, states: Sequence[Any]) -> Any:
        """The output of a token [rows, 1, features]; the states become the next ones."""
        self.single((x, *states))
        output, *after = self.single.results
        for own, state in zip(after, states, strict=True):
            state.copy_(own)
        return output.clone()


def marks_of(tensors: Sequence[Any]) -> list[tuple[int, int]]:
    """Where tensors lie, and how often PyTorch has changed them."""
    return [(tensor.data_ptr(), tensor._version) for tensor in tensors]


def token_of(layer: str, module: Any, x: Any, cache: Any) -> Any:
    """The output of a layer for a single token, or None where the layer runs part by part."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return None
    if is_transformed() or torch.is_autocast_enabled("cpu"):
        return None
    index = module.layer_idx
    states = cache.get_conv_state(index, state_idx=0), cache.get_recurrent_state(index, state_idx=0)
    if any(state is None for state in states) or cache.is_recording_past(index):
        return None
    if has_global_hooks():
        return None
    # It is taken out for this call: several threads may generate.
    kept: Token | None = module.__dict__.pop(KEPT, None)
    fits = kept is not None and kept.fits(module, layer, states)
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
    """Whether there are hooks that PyTorch calls for all modules, and so for the parts of a layer."""
    return bool(torch.nn.modules.module._has_any_global_hook())


def fits_step(layer: Layer, module: Any, x: Any, states: Sequence[Any]) -> bool:
    """Whether all that a step reads has one dtype, and lies on the CPU as arrays do."""
    tensors = (x, *layer.parameters(module).values(), *states)
    return x.dtype in DTYPES and all(
        tensor.dtype == x.dtype and tensor.device.type == "cpu" for tensor in tensors
    )


def with_tokens(layer: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward that runs a single token of a cache as one step."""

    @functools.wraps(forward)
    def stepped(
        self: Any, hidden_states: Any, cache_params: Any = None, attention_mask: Any = None, **kwargs: Any
    ) -> Any:
        is_plain = attention_mask is None and kwargs.get("cu_seq_lens_q") is None
        if is_plain and cache_params is not None and hidden_states.shape[1] == 1:
            output = token_of(layer, self, hidden_states, cache_params)
            if output is not None:
                return output
        return forward(self, hidden_states, cache_params, attention_mask, **kwargs)

    return stepped
