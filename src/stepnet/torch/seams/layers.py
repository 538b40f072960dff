"""The layers of transformers whose single tokens are one step: what they are made of, and if they changed.

A row of `LAYERS` says which step a class is, and where its parameters are. The row of a block is made of that
of its mixer: a block is a norm, the mixer, and the sum with what came in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import is_
from typing import Any, cast

from stepnet.torch.pytorch import pytorch
from stepnet.torch.seams.scan import Step
from stepnet.torch.seams.steps import DeltaLayer, Mamba2Layer, MambaLayer, ResidualBlock

torch: Any = pytorch("torch")
PLAIN = torch.nn.Parameter, torch.Tensor
MISSING = object()
class_of: Callable[[Any], Any] = cast("Any", type)
get: Callable[[dict[str, Any], str], Any] = dict[str, Any].get
HOOKS = "_forward_hooks", "_forward_pre_hooks"


@dataclass(frozen=True)
class TokenLayer:
    """Description of a layer of transformers whose single tokens run as one step of stepnet.

    Parts of the layer are named by their paths; the layer itself is "".

    Attributes:
        step: Makes the step from the options: from an input [rows, features], with the convolution's last
            inputs
            and the state as memory.
        options: The attributes that are the step's options, as (part, attribute).
        names: The step's parameters by name, as (part, name of the parameter there).
        parts: The required classes of the layer's parts, as module and name, by path; a part stands before
            the
            parts inside it. Layers of other libraries, such as quantized ones, are called Linear as well.
        config: The configuration of a small layer, for `check`.
        cached: The path of the part whose states are in the cache.
        arguments: Further arguments that `check` makes a small layer with.
    """

    step: Callable[..., Step]
    options: tuple[tuple[str, str], ...]
    names: dict[str, tuple[str, str]]
    parts: dict[str, str]
    config: dict[str, Any]
    cached: str = ""
    arguments: tuple[tuple[str, Any], ...] = ()

    def refusal(self, module: Any) -> str | None:
        """Returns the reason why the tokens of a layer cannot run as one step; None if they can."""
        for name, wanted in self.parts.items():
            parent, _, last = name.rpartition(".")
            part = part_of(module, parent)._modules.get(last)
            kind = class_of(part)
            if f"{kind.__module__}.{kind.__qualname__}" != wanted:
                return f"{name} is a {kind.__module__}.{kind.__qualname__}, not a {wanted}"
            if any(part.__dict__[hooks] for hooks in HOOKS) or "forward" in part.__dict__:
                return f"{name} has hooks or a forward of its own"
        for name in ("", *self.parts):
            activation = part_of(module, name).__dict__.get("activation", "silu")
            if activation not in ("silu", "swish"):
                return f"its activation is {activation}"
        for part, name in self.names.values():
            tensor = part_of(module, part)._parameters.get(name, MISSING)
            if tensor is not None and type(tensor) not in PLAIN:
                return f"{f'{part}.{name}'.lstrip('.')} is no plain parameter"
            if tensor is not None and tensor.is_inference():
                return "its parameters were made in inference mode, where PyTorch counts no changes"
        return None

    def options_of(self, module: Any) -> tuple[Any, ...]:
        """Reads the step's options from a layer."""
        return tuple(getattr(part_of(module, part), name) for part, name in self.options)

    def parameters(self, module: Any) -> dict[str, Any]:
        """Returns the step's parameters as tensors of a layer, without those that the layer does not have."""
        named = {key: part_of(module, part)._parameters[name] for key, (part, name) in self.names.items()}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


class Seen:
    """Record of all objects that `TokenLayer.refusal` looked at in a layer: while they are the same, its
    verdict holds.

    It is compared for each token, so positions are kept as mappings and keys, which are read without Python
    code. The layer itself is not referenced, because the layer references the object that runs its tokens.
    """

    def __init__(self, layer: TokenLayer, module: Any) -> None:
        self.own = ["activation", "_modules", "_parameters"]
        self.own += [name for part, name in layer.options if not part]
        self.own_values = [module.__dict__.get(name) for name in self.own]
        self.parts: list[Any] = [part_of(module, name) for name in layer.parts]
        self.kinds = [class_of(part) for part in self.parts]
        self.hooks = [part.__dict__[hooks] for part in self.parts for hooks in HOOKS]
        places = [
            (part.__dict__, key)
            for part in self.parts
            for key in ("activation", "forward", "_modules", "_parameters", *HOOKS)
        ]
        places += [(part_of(module, part).__dict__, name) for part, name in layer.options if part]
        for name in layer.parts:
            parent, _, last = name.rpartition(".")
            places.append((part_of(module, parent)._modules, last))
        places += [(part_of(module, part)._parameters, name) for part, name in layer.names.values()]
        self.mappings: list[dict[str, Any]] = [mapping for mapping, _ in places]
        self.keys = [key for _, key in places]
        self.values = [mapping.get(key) for mapping, key in places]

    def holds(self, module: Any) -> bool:
        """Tells whether the layer still has the same parts, parameters, options and hooks."""
        own: dict[str, Any] = module.__dict__
        return (
            all(map(is_, map(own.get, self.own), self.own_values))
            and all(map(is_, map(get, self.mappings, self.keys), self.values))
            and all(map(is_, [class_of(part) for part in self.parts], self.kinds))
            and not any(self.hooks)
        )


def part_of(module: Any, path: str) -> Any:
    """Returns the part of a layer at a path of names joined by dots; the layer itself for ""."""
    for name in path.split(".") if path else ():
        module = module._modules[name]
    return module


# ---- the table ---------------------------------------------------------------------------------------------

FILES = "transformers.models."
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
MAMBA = {
    **SHARED,
    "x_proj": ("x_proj", "weight"),
    "dt_proj": ("dt_proj", "weight"),
    "dt_bias": ("dt_proj", "bias"),
}
MAMBA_PARTS = {**PARTS, "x_proj": LINEAR, "dt_proj": LINEAR}
SMALL_MAMBA = {
    "hidden_size": 6,
    "intermediate_size": 8,
    "state_size": 3,
    "time_step_rank": 2,
    "num_hidden_layers": 1,
    "layer_norm_epsilon": 0.5,
}
FALCON_NORMS = "dt_layernorm", "b_layernorm", "c_layernorm"
FALCON_NORM = f"{FILES}falcon_mamba.modeling_falcon_mamba.FalconMambaWeightlessRMSNorm"


def mamba_of(*eps: float) -> MambaLayer:
    """Makes the step of a Mamba layer; with arguments, one that has norms of dt, B and C."""
    return MambaLayer(eps)


MIXERS = {
    "MambaMixer": TokenLayer(mamba_of, (), MAMBA, MAMBA_PARTS, SMALL_MAMBA),
    "FalconMambaMixer": TokenLayer(
        mamba_of,
        tuple((norm, "eps") for norm in FALCON_NORMS),
        MAMBA,
        MAMBA_PARTS | dict.fromkeys(FALCON_NORMS, FALCON_NORM),
        SMALL_MAMBA | {"mixer_rms_eps": 0.25},
        arguments=(("initialize_mixer_weights", False),),
    ),
    "Mamba2Mixer": TokenLayer(
        Mamba2Layer,
        (("", "n_groups"), ("norm", "group_size"), ("norm", "variance_epsilon")),
        {**SHARED, "dt_bias": ("", "dt_bias"), "norm": ("norm", "weight")},
        {**PARTS, "norm": f"{FILES}mamba2.modeling_mamba2.MambaRMSNormGated"},
        {
            "hidden_size": 8,
            "num_heads": 4,
            "head_dim": 4,
            "state_size": 3,
            "n_groups": 2,
            "num_hidden_layers": 1,
            "layer_norm_epsilon": 0.5,
        },
    ),
    "Qwen3NextGatedDeltaNet": TokenLayer(
        DeltaLayer,
        (("", "num_k_heads"), ("norm", "variance_epsilon")),
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
            "norm": f"{FILES}qwen3_next.modeling_qwen3_next.Qwen3NextRMSNormGated",
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


def block(mixer: str, file: str, norm: str) -> TokenLayer:
    """Makes the entry of `LAYERS` for a transformers block: a norm, a mixer layer, and the sum with the
    input.

    mixer: the class of the mixer.
    file: the module of transformers that has both.
    norm: the class of the norm.
    """
    inner = MIXERS[mixer]

    def inside(part: str) -> str:
        """Returns the path, in the block, of a part of the mixer."""
        return f"mixer.{part}".rstrip(".")

    def step(eps: float, *options: Any) -> Step:
        """Makes the block's step: the mixer's step behind a norm, added to the input."""
        return ResidualBlock(inner.step(*options), eps)

    return TokenLayer(
        step,
        (("norm", "variance_epsilon"), *((inside(part), name) for part, name in inner.options)),
        {key: (inside(part), name) for key, (part, name) in inner.names.items()}
        | {"scale": ("norm", "weight")},
        {"norm": f"{FILES}{file}.{norm}", "mixer": f"{FILES}{file}.{mixer}"}
        | {inside(part): kind for part, kind in inner.parts.items()},
        inner.config,
        "mixer",
    )


LAYERS = {
    **MIXERS,
    "MambaBlock": block("MambaMixer", "mamba.modeling_mamba", "MambaRMSNorm"),
    "FalconMambaBlock": block("FalconMambaMixer", "falcon_mamba.modeling_falcon_mamba", "FalconMambaRMSNorm"),
    "Mamba2Block": block("Mamba2Mixer", "mamba2.modeling_mamba2", "Mamba2RMSNorm"),
}
"""Layers whose tokens are one step, by their classes."""
