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
from stepnet.torch.seams.steps import Block, DeltaLayer, Mamba2Layer, MambaLayer

torch: Any = pytorch("torch")
PLAIN = torch.nn.Parameter, torch.Tensor
MISSING = object()
class_of: Callable[[Any], Any] = cast("Any", type)
get: Callable[[dict[str, Any], str], Any] = dict[str, Any].get
HOOKS = "_forward_hooks", "_forward_pre_hooks"


@dataclass(frozen=True)
class Layer:
    """A layer whose tokens are one step.

    Parts are named by their paths in the layer; the layer itself is "".

    Attributes:
        step: The step of a layer, by its options: from its input [rows, features], with the convolution's
            last inputs and the state as memory.
        options: The attributes that are the options, each with the part that has it.
        names: The parameters of the step, each with the part that has it and its name there.
        parts: The classes of the layers that it is made of, by name, those that hold others first. They are
            known by their modules, too: layers of other libraries, as those of quantized weights, are called
            Linear as well.
        config: The sizes of a small one, for `check`.
        cached: The part whose states are in the cache.
        arguments: Those that `check` makes a small one with, beside its configuration.
    """

    step: Callable[..., Step]
    options: tuple[tuple[str, str], ...]
    names: dict[str, tuple[str, str]]
    parts: dict[str, str]
    config: dict[str, Any]
    cached: str = ""
    arguments: tuple[tuple[str, Any], ...] = ()

    def refusal(self, module: Any) -> str | None:
        """Why the tokens of a layer are not one step; None if they are."""
        for name, wanted in self.parts.items():
            parent, _, last = name.rpartition(".")
            part = part_of(module, parent)._modules.get(last)
            kind = class_of(part)
            if f"{kind.__module__}.{kind.__qualname__}" != wanted:
                return f"{name} is a {kind.__module__}.{kind.__qualname__} and no {wanted}"
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
        """The options of a layer."""
        return tuple(getattr(part_of(module, part), name) for part, name in self.options)

    def parameters(self, module: Any) -> dict[str, Any]:
        """The tensors of the step's parameters, without those that the layer does not have."""
        named = {key: part_of(module, part)._parameters[name] for key, (part, name) in self.names.items()}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


class Seen:
    """All that `refusal` looked at in a layer, and its options: as long as these are the same objects, the
    layer is as it was.

    It is looked at for each token, so the places are kept as mappings and keys, which are read without Python
    code. The layer itself is not held: it holds what runs its tokens.
    """

    def __init__(self, layer: Layer, module: Any) -> None:
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
        """Whether the layer is as it was."""
        own: dict[str, Any] = module.__dict__
        return (
            all(map(is_, map(own.get, self.own), self.own_values))
            and all(map(is_, map(get, self.mappings, self.keys), self.values))
            and all(map(is_, [class_of(part) for part in self.parts], self.kinds))
            and not any(self.hooks)
        )


def part_of(module: Any, path: str) -> Any:
    """The part of a layer at this path; the layer at ""."""
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
    """A layer of Mamba, with norms of dt, B and C if these are given."""
    return MambaLayer(eps)


MIXERS = {
    "MambaMixer": Layer(mamba_of, (), MAMBA, MAMBA_PARTS, SMALL_MAMBA),
    "FalconMambaMixer": Layer(
        mamba_of,
        tuple((norm, "eps") for norm in FALCON_NORMS),
        MAMBA,
        MAMBA_PARTS | dict.fromkeys(FALCON_NORMS, FALCON_NORM),
        SMALL_MAMBA | {"mixer_rms_eps": 0.25},
        arguments=(("initialize_mixer_weights", False),),
    ),
    "Mamba2Mixer": Layer(
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
    "Qwen3NextGatedDeltaNet": Layer(
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


def block(mixer: str, file: str, norm: str) -> Layer:
    """The row of a block, of the name of its mixer; file: where transformers has both, and its norm."""
    inner = MIXERS[mixer]

    def inside(part: str) -> str:
        return f"mixer.{part}".rstrip(".")

    def step(eps: float, *options: Any) -> Step:
        return Block(inner.step(*options), eps)

    return Layer(
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
