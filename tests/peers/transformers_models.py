"""Models of transformers, run by stepnet and as they are: small ones of random numbers, family by family.

python transformers_models.py FILE [EVERY [FAMILY ...]]    writes as JSON what each check says: "" if it holds

With EVERY each family has its report, which comes first, and each such check, from another one on.
"""

import copy
import functools
import inspect
import io
import json
import os
import pickle
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
import torch
import transformers
from tolerance import distance
from torch.fx.experimental.proxy_tensor import make_fx
from transformers.models.mamba import modeling_mamba
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru

import stepnet.torch
from stepnet.compiler.net.tolerance import tolerance
from stepnet.torch.patches.transformers import patch as patches
from stepnet.torch.patches.transformers import scan as scans
from stepnet.torch.patches.transformers import tokens
from stepnet.torch.patches.transformers.check import flat, layer_difference
from stepnet.torch.patches.transformers.rebind import innermost
from stepnet.torch.patches.transformers.table import FUNCTIONS, METHODS, MIXERS, STATES

transformers.logging.set_verbosity_error()
PAGE = Path(__file__).parents[2] / "docs" / "transformers.md"
WORDS, ROWS, STEPS, WIDTH = 23, 3, 7, 16
MASKS = {
    "none": None,
    "right": [[1] * 7, [1] * 4 + [0] * 3, [1] * 1 + [0] * 6],
    "left": [[1] * 7, [0] * 3 + [1] * 4, [0] * 6 + [1]],
    "gaps": [[1, 0, 1, 1, 0, 1, 1], [0, 1, 0, 0, 1, 1, 0], [1] * 7],
}
COMMON = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "pad_token_id": 0,
}
ATTENTION = {"num_attention_heads": 2, "num_key_value_heads": 2}
GATED = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 3,
    "layer_types": ["linear_attention", "full_attention"],
}
EXPERTS = {
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
}
MAMBA_2 = {
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 4,
    "mamba_chunk_size": 4,
}


@dataclass(frozen=True)
class Family:
    """A family of models. name: of its classes, before Config and ForCausalLM. layers: how many are patched.

    functions: of one of the layers that stepnet runs. masks: those that its models take. words: how many
    generate draws; 0 for models that cannot, as they are. token: the layer of which a token is one step; a
    block holds a layer of those that are counted.
    """

    name: str
    layers: int
    functions: tuple[str, ...]
    config: dict[str, Any] = field(default_factory=dict)
    masks: tuple[str, ...] = tuple(MASKS)
    model: str = ""
    words: int = 6
    token: str = ""

    def made(self, dtype: Any) -> Any:
        """A model of this family, of random numbers."""
        torch.manual_seed(0)
        kind = getattr(transformers, f"{self.name}Config")
        config = kind(**{**COMMON, **self.config}, experts_implementation="eager")  # others lack float64
        torch.set_default_dtype(torch.float64 if dtype == torch.float64 else torch.float32)
        try:
            model = getattr(transformers, self.model or f"{self.name}ForCausalLM")(config)
        finally:
            torch.set_default_dtype(torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.1)
        return model.to(dtype).eval()


SCAN = ("mamba_selective_scan", "mamba_selective_state_update")
CHUNK = ("mamba2_chunk_scan", "mamba2_selective_state_update")
KIMI = ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention")
DELTA = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
FAMILIES = {
    "mamba": Family("Mamba", 2, SCAN, {"state_size": 4, "intermediate_size": 32}, token="MambaBlock"),
    "falcon_mamba": Family(
        "FalconMamba", 2, SCAN, {"state_size": 4, "intermediate_size": 32}, token="FalconMambaBlock"
    ),
    "jamba": Family(
        "Jamba",
        1,
        SCAN,
        {
            **ATTENTION,
            "mamba_d_state": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 1,
            "num_experts_per_tok": 1,
        },
        token="JambaMambaMixer",
    ),
    "zamba": Family(
        "Zamba",
        3,
        SCAN,
        {
            **ATTENTION,
            "num_hidden_layers": 3,
            "layers_block_type": ["mamba", "hybrid", "hybrid"],
            "mamba_d_state": 4,
            "mamba_dt_rank": 2,
            "n_mamba_heads": 2,
        },
        token="ZambaMambaMixer",
    ),
    "mamba2": Family(
        "Mamba2",
        2,
        CHUNK,
        {
            "num_heads": 4,
            "head_dim": 8,
            "state_size": 4,
            "n_groups": 2,
            "chunk_size": 4,
            "intermediate_size": 32,
        },
        token="Mamba2Block",
    ),
    "zamba2": Family(
        "Zamba2",
        2,
        CHUNK,
        {
            **ATTENTION,
            "layers_block_type": ["mamba", "hybrid"],
            "mamba_d_state": 4,
            "n_mamba_heads": 4,
            "mamba_ngroups": 2,
            "chunk_size": 4,
            "adapter_rank": 4,
        },
        token="Zamba2MambaMixer",
    ),
    "bamba": Family(
        "Bamba", 1, CHUNK, {**ATTENTION, **MAMBA_2, "attn_layer_indices": [1]}, token="BambaMixer"
    ),
    "nemotron_h": Family(
        "NemotronH",
        1,
        CHUNK,
        {
            **ATTENTION,
            "layers_block_type": ["mamba", "attention"],
            "head_dim": 8,
            "ssm_state_size": 4,
            "mamba_num_heads": 4,
            "mamba_head_dim": 8,
            "n_groups": 2,
            "chunk_size": 4,
        },
        token="NemotronHMamba2Mixer",
    ),
    "granitemoehybrid": Family(
        "GraniteMoeHybrid",
        1,
        CHUNK,
        {
            **ATTENTION,
            **MAMBA_2,
            "layer_types": ["mamba", "attention"],
            "num_local_experts": 0,
            "shared_intermediate_size": 8,
        },
        token="GraniteMoeHybridMambaLayer",
    ),
    "falcon_h1": Family(
        "FalconH1",
        2,
        CHUNK,
        {**ATTENTION, **MAMBA_2, "mamba_d_ssm": 32, "head_dim": 8},
        token="FalconH1Mixer",
    ),
    "qwen3_next": Family(
        "Qwen3Next",
        1,
        DELTA,
        {**ATTENTION, **GATED, "head_dim": 8, "mlp_only_layers": [0, 1]},
        token="Qwen3NextGatedDeltaNet",
    ),
    "qwen3_5": Family(
        "Qwen3_5Text",
        1,
        DELTA,
        {**ATTENTION, **GATED, "head_dim": 8},
        model="Qwen3_5ForCausalLM",
        token="Qwen3_5GatedDeltaNet",
    ),
    "qwen3_5_moe": Family(
        "Qwen3_5MoeText",
        1,
        DELTA,
        {**ATTENTION, **GATED, **EXPERTS, "head_dim": 8},
        model="Qwen3_5MoeForCausalLM",
        token="Qwen3_5MoeGatedDeltaNet",
    ),
    "qwen4_exp": Family(
        "Qwen4ExpText",
        1,
        DELTA,
        {
            **ATTENTION,
            **GATED,
            **EXPERTS,
            "num_experts_per_tok": 2,  # of one in two, rounding decides which it is
            "head_dim": 8,
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 8,
            "indexer_budget": 32,
            "indexer_compress_ratio": 2,
            "hc_count": 2,
            "hc_lowrank": 4,
            "ple_layer_ids": [1],
            "ngram_vocab_size_base": 31,
            "make_ngram_vocab_size_divisible_by": 1,
            "split_ngram_parts": 1,
            "heads_per_ngram": 2,
            "eos_token_id": 0,
        },
        model="Qwen4ExpForCausalLM",
        token="Qwen4ExpTextGatedDeltaNet",
    ),
    "olmo_hybrid": Family("OlmoHybrid", 1, DELTA, {**ATTENTION, **GATED}, token="OlmoHybridGatedDeltaNet"),
    "kimi_linear": Family(
        "KimiLinear",
        1,
        KIMI,
        {
            **ATTENTION,
            "layer_types": ["linear_attention", "full_attention"],
            "mlp_layer_types": ["dense", "dense"],
            "linear_head_dim": 4,
            "linear_num_heads": 2,
            "kv_lora_rank": 8,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 8,
        },
        token="KimiLinearDeltaAttention",
    ),
    "bailing_hybrid": Family(
        "BailingHybrid",
        1,
        KIMI,
        {
            **ATTENTION,
            "layer_types": ["linear_attention", "full_attention"],
            "mlp_layer_types": ["dense", "dense"],
            "head_dim": 4,
            "kv_lora_rank": 8,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
            "num_mtp_layers": 0,
        },
        token="BailingHybridDeltaAttention",
    ),
    "glm5_next": Family(
        "Glm5Next",
        1,
        KIMI,
        {
            "text_config": {
                **COMMON,
                **ATTENTION,
                "layer_types": ["linear_attention", "full_attention"],
                "mlp_layer_types": ["dense", "dense"],
                "linear_head_dim": 4,
                "linear_num_heads": 2,
                "q_lora_rank": 8,
                "kv_lora_rank": 8,
                "qk_nope_head_dim": 8,
                "v_head_dim": 8,
                "index_topk": 32,
                "index_head_dim": 8,
                "index_n_heads": 2,
                "hc_mult": 2,
            },
            "vision_config": {
                "depth": 1,
                "hidden_size": 8,
                "intermediate_size": 8,
                "num_heads": 2,
                "out_hidden_size": WIDTH,
                "projection_intermediate_size": 8,
            },
        },
        model="Glm5NextForConditionalGeneration",
        token="Glm5NextTextLinearAttention",
    ),
    "minimax": Family(
        "MiniMax",
        1,
        ("forward",),
        {
            **ATTENTION,
            "layer_types": ["linear_attention", "full_attention"],
            "head_dim": 8,
            "block_size": 4,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
        },
        token="MiniMaxLightningAttention",
    ),
    "lfm2": Family(
        "Lfm2",
        1,
        (),
        {**ATTENTION, "layer_types": ["conv", "full_attention"], "block_multiple_of": 4},
        token="Lfm2ShortConv",
    ),
    "lfm2_moe": Family(
        "Lfm2Moe",
        1,
        (),
        {**ATTENTION, **EXPERTS, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
        token="Lfm2MoeShortConv",
    ),
    "lfm3": Family(
        "Lfm3",
        1,
        (),
        {**ATTENTION, "head_dim": 8, "layer_types": ["conv", "full_attention"]},
        token="Lfm3ShortConv",
    ),
    "recurrent_gemma": Family(
        "RecurrentGemma",
        2,
        ("_rnn_scan",),
        {
            "num_attention_heads": 2,
            "lru_width": WIDTH,
            "num_hidden_layers": 3,
            "attention_window_size": 8,
            "block_types": ["recurrent", "recurrent", "attention"],
        },
    ),
    # Caches of xLSTM have the sizes of its layers only for multiples of 64.
    "xlstm": Family("xLSTM", 2, ("forward",), {"hidden_size": 128, "num_heads": 2, "chunk_size": 4}),
    "rwkv": Family(
        "Rwkv", 2, ("rwkv_linear_attention",), {"attention_hidden_size": WIDTH, "context_length": 64}
    ),
}
CHECKS = dict[str, Callable[[Family], None]]()


def check(function: Callable[[Family], None]) -> Callable[[Family], None]:
    """A check of one family."""
    CHECKS[function.__name__] = function
    return function


class Wide:
    """PyTorch with float64 in the place of float32, for the files of transformers."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def in_float64() -> Iterator[None]:
    """transformers without its casts to float32, so that its models compute in float64 throughout."""
    files = [module for name, module in sys.modules.items() if name.startswith("transformers.models.")]
    own, narrow = [file for file in files if getattr(file, "torch", None) is torch], torch.Tensor.float
    patches.accelerated.cache_clear()
    for file in own:
        file.torch = Wide()
    torch.Tensor.float = torch.Tensor.double
    RecurrentGemmaRglru._rnn_scan.__defaults__ = (torch.float64,)
    try:
        yield
    finally:
        RecurrentGemmaRglru._rnn_scan.__defaults__ = (torch.float32,)
        torch.Tensor.float = narrow
        for file in own:
            file.torch = torch
        patches.accelerated.cache_clear()


def both(family: Family, dtype: Any) -> tuple[Any, Any, Any]:
    """The model as it is, a copy that stepnet runs, and what was replaced there."""
    theirs = family.made(dtype)
    ours = copy.deepcopy(theirs)
    return theirs, ours, stepnet.torch.accelerate(ours)


def words(rows: int = ROWS, steps: int = STEPS) -> Any:
    return torch.from_numpy(np.random.default_rng(1).integers(1, WORDS, (rows, steps)))


def masked(name: str) -> Any:
    mask = MASKS[name]
    return None if mask is None else torch.tensor(mask)


def total(results: Any) -> Any:
    """One number of all logits, in which no two count the same."""
    return (
        results * torch.cos(torch.arange(results.numel(), dtype=results.dtype)).reshape(results.shape)
    ).sum()


def run(model: Any, mask: str) -> tuple[Any, dict[str, Any]]:
    """The logits where there is no padding, and the gradients of all parameters."""
    model.zero_grad()
    kept = masked(mask)
    logits = model(words(), attention_mask=kept, use_cache=False).logits
    seen = logits if kept is None else logits[kept.bool()]
    total(seen).backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return seen.detach(), grads


def compare(ours: Any, theirs: Any, dtype: str, what: str) -> None:
    """Asserts that arrays agree, seen from their largest number. Each of them may be away from what is exact
    by the tolerance.
    """
    assert ours.dtype == theirs.dtype, what
    a, r = ours.double().numpy(), theirs.double().numpy()
    largest = max(1.0, np.abs(r).max(initial=0))
    away, most = distance(a / largest, r / largest), 2 * tolerance(dtype, STEPS, WIDTH * 8)
    assert away <= most, f"{what}: {away:.3g} away, where {most:.3g} is allowed"


def compared(family: Family, dtype: str, masks: tuple[str, ...]) -> None:
    theirs, ours, _ = both(family, getattr(torch, dtype))
    theirs.train(), ours.train()
    for mask in masks:
        (x, dx), (y, dy) = run(ours, mask), run(theirs, mask)
        assert dx.keys() == dy.keys()
        compare(x, y, dtype, f"the logits under the mask {mask}")
        for name in dx:
            compare(dx[name], dy[name], dtype, f"the gradient of {name} under the mask {mask}")


def generated(model: Any, **options: Any) -> Any:
    return model.generate(words(), max_new_tokens=5, pad_token_id=0, eos_token_id=None, **options)


@contextmanager
def counted() -> Iterator[list[str]]:
    """The layers through which tokens went as one step."""
    own, seen = tokens.token_of, list[str]()

    def token_of(layer: str, *args: Any) -> Any:
        output = own(layer, *args)
        if output is not None:
            seen.append(layer)
        return output

    tokens.token_of = token_of
    try:
        yield seen
    finally:
        tokens.token_of = own


@check
def report(family: Family) -> None:
    _, _, done = both(family, torch.float32)
    known = [patches.class_patch(type(module).stepnets.theirs) for module in done.replaced.values()]
    layers = [each for each in known if tuple(each.run) == family.functions]
    assert len(layers) == family.layers, f"replaced: {done}"
    assert all(tuple(each.run) in (family.functions, ()) for each in known), f"{done}"
    kinds = [type(module).__name__ for module in done.replaced.values()]
    assert kinds.count(family.token) == (family.layers if family.token else 0), f"{done}"
    assert all(each.tokens for each in known) == bool(family.token), f"{done}"
    name = next(name for name, each in FAMILIES.items() if each is family)
    assert stated()[name] == cells(family, list(layers[0].run.values())), name


def stated() -> dict[str, list[str]]:
    """The cells of the table of models in the page, by the models' folders."""
    table = PAGE.read_text(encoding="utf-8").partition("| models |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
    return {name: others for first, *others in rows for name in re.findall(r"`(\w+)`", first)}


def cells(family: Family, run: list[Any]) -> list[str]:
    """The cells of a family in the page's table, from stepnet's tables: prefill, training, tokens, and the
    first and last of these in 16 bits. run: the rows of a layer's functions."""
    is_whole = any(not row.is_token for row in run)
    is_half_token = any(row.is_half_refused for row in run)  # also where it is the recurrence alone
    whole = "block" if family.token.endswith("Block") else "layer" if family.token else "recurrence"
    longer = "yes" if is_whole else "no"
    half = whole if family.token or is_half_token else "no"
    return [longer, longer, whole, longer, half]


@check
def forward_and_gradients(family: Family) -> None:
    compared(family, "float32", family.masks)


@check
def float64(family: Family) -> None:
    with in_float64():
        compared(family, "float64", ("none", "right"))


@check
def half(family: Family) -> None:
    """In bfloat16 it is as near to the float32 model with the same weights as that of transformers, and a
    model gives the same bits whether it becomes half before or after."""
    ours = near_in_half(family, logits)
    _, after, _ = both(family, torch.float32)
    assert torch.equal(logits(after.bfloat16()), logits(ours))


def near_in_half(family: Family, results: Callable[[Any], Any]) -> Any:
    """Asserts that results of the bfloat16 model are as near to those of the float32 model with the same
    weights as the results of transformers are. Gives the model."""
    theirs, ours, _ = both(family, torch.bfloat16)
    exact = results(copy.deepcopy(theirs).float())
    if family.name == "xLSTM":  # its functions in transformers multiply float32 by bfloat16, and raise
        most = 4 * torch.finfo(torch.bfloat16).eps * exact.abs().max()
    else:
        most = 1.5 * (results(theirs).double() - exact).square().mean().sqrt()
    away = (results(ours).double() - exact).square().mean().sqrt()
    assert away <= most, f"{away:.3g} away, where {most:.3g} is allowed"
    return ours


@check
def half_gradients(family: Family) -> None:
    def gradients(model: Any) -> Any:
        return torch.cat([gradient.flatten() for _, gradient in sorted(run(model, "none")[1].items())])

    near_in_half(family, gradients)


@check
def half_tokens(family: Family) -> None:
    """The logits of words that are given, one by one with the cache: as one step where a layer has one."""
    with counted() as seen:
        near_in_half(family, logits_of_given)
    assert seen == [family.token] * (family.layers * 4 if family.token else 0), f"tokens of layers: {seen}"


def logits_of_given(model: Any) -> Any:
    """The logits of `generate` for the same words whatever the model prefers."""
    wanted = iter(words(steps=STEPS + 5)[:, STEPS:].T)

    def only(_: Any, scores: Any) -> Any:
        return torch.full_like(scores, -torch.inf).scatter(1, next(wanted)[:, None], 0.0)

    said = generated(
        model, do_sample=False, logits_processor=[only], output_logits=True, return_dict_in_generate=True
    )
    return torch.stack(said.logits)


@check
def generate(family: Family) -> None:
    theirs, ours, _ = both(family, torch.float32)
    options = {"max_new_tokens": family.words, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    options |= {"output_logits": True, "return_dict_in_generate": True}
    for mask in [name for name in ("none", "left") if name in family.masks and family.words]:
        given = {"attention_mask": masked(mask)} if mask != "none" else {}
        with counted() as seen:
            x, y = (model.generate(words(), **given, **options) for model in (ours, theirs))
        layers = family.layers * (family.words - 1) if family.token else 0
        assert seen == [family.token] * layers, f"tokens of whole layers: {seen}"
        assert torch.equal(x.sequences, y.sequences), f"other words under the mask {mask}"
        for step, (a, b) in enumerate(zip(x.logits, y.logits, strict=True)):
            compare(a, b, "float32", f"the logits of word {step} under the mask {mask}")


@check
def undone(family: Family) -> None:
    theirs, ours, done = both(family, torch.float32)
    kinds = [type(module) for module in theirs.modules()]
    done.undo()
    assert [type(module) for module in ours.modules()] == kinds
    with torch.no_grad():
        x, y = (model(words(), use_cache=False).logits for model in (ours, theirs))
    assert torch.equal(x, y), "undone, it gives other bits"


# ---- what does not depend on the family --------------------------------------------------------------------

SCAN_OF_THEIRS = modeling_mamba.mamba_selective_scan
ALONE = dict[str, Callable[[], None]]()
MAMBA = FAMILIES["mamba"]


def alone(function: Callable[[], None]) -> Callable[[], None]:
    """A check of its own."""
    ALONE[function.__name__] = function
    return function


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(words(), use_cache=False).logits


def reasons(model: Any) -> set[str]:
    """Why layers and functions of a model were left, once each."""
    done = stepnet.torch.accelerate(model)
    done.undo()
    return set(done.left.values())


@contextmanager
def other_scan(scan: Any) -> Iterator[None]:
    """transformers' Mamba with another function in the place of its scan."""
    own = modeling_mamba.mamba_selective_scan
    modeling_mamba.mamba_selective_scan = scan
    clear()
    try:
        yield
    finally:
        modeling_mamba.mamba_selective_scan = own
        clear()


def clear() -> None:
    """Forgets what is known of classes."""
    patches.class_patch.cache_clear()
    patches.accelerated.cache_clear()


@alone
def copies_and_files() -> None:
    _, ours, _ = both(MAMBA, torch.float32)
    right, file = logits(ours), io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    copies = copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), torch.load(file, weights_only=False)
    for other in copies:
        assert torch.equal(logits(other), right)
        assert isinstance(other.backbone.layers[0].mixer, modeling_mamba.MambaMixer)
        assert set(stepnet.torch.accelerate(other).left.values()) == {"it is stepnet's already"}


@alone
def tokens_in_bfloat16_are_one_step() -> None:
    """A token after a cache, also in a model converted afterwards; dtypes are those of transformers."""
    theirs, ours, done = both(MAMBA, torch.bfloat16)
    later = both(MAMBA, torch.float32)[1].bfloat16()
    later.load_state_dict(theirs.state_dict())
    assert {type(layer).__name__ for layer in done.replaced.values()} == {"MambaBlock", "MambaMixer"}
    assert "MambaMixer (mamba_selective_scan, tokens)" in str(done)
    for is_wide, model in product((True, False), (ours, later)):
        layer = model.backbone.layers[0]
        layer.residual_in_fp32 = theirs.backbone.layers[0].residual_in_fp32 = is_wide
        with torch.no_grad(), counted() as seen:
            cache = theirs(torch.arange(8)[None], use_cache=True).cache_params
            x = torch.randn(1, 1, WIDTH).bfloat16()
            y, z = (each(x, cache_params=copy.deepcopy(cache)) for each in (layer, theirs.backbone.layers[0]))
        assert seen == ["MambaBlock"]
        assert y.dtype == z.dtype == (torch.float32 if is_wide else torch.bfloat16)
        assert (y.double() - z.double()).abs().max() <= 0.02 * z.abs().max()


@alone
def tokens_of_mixed_dtypes_run_part_by_part() -> None:
    """PyTorch says what is wrong: the linear layers of a step have one dtype, which its tokens have too."""
    _, ours, _ = both(MAMBA, torch.bfloat16)
    layer = ours.backbone.layers[0].mixer
    with torch.no_grad():
        cache = ours(torch.arange(8)[None], use_cache=True).cache_params
        x = torch.randn(1, 1, WIDTH)
        with pytest.raises(RuntimeError, match="dtype"):
            layer(x, cache_params=cache)
        layer.out_proj.float()
        with pytest.raises(RuntimeError, match="dtype"):
            layer(x.bfloat16(), cache_params=cache)


@alone
def tokens_with_weights_in_fewer_bits() -> None:
    """As one step they are those of the same rounded weights part by part, up to rounding of float32."""
    for name, weights in product(("mamba", "bamba", "qwen3_5", "lfm2"), ("bfloat16", "int8")):
        family = FAMILIES[name]
        model = family.made(torch.float32)
        exact = logits_of_given(model)
        stepnet.torch.accelerate(model, linear=weights)
        with counted() as seen:
            ours = logits_of_given(model)
        assert set(seen) == {family.token}, f"{name} in {weights}"
        with part_by_part():
            theirs = logits_of_given(model)
        compare(ours, theirs, "float32", f"the logits of {name} in {weights}")
        assert (ours - exact).abs().max() > 1e-4 * exact.abs().max(), "the weights are not rounded"


@alone
def tokens_with_weights_in_fewer_bits_continue_prompts() -> None:
    """A prompt and tokens after it have the logits of one prompt, as `dt_proj`, whose weight transformers'
    mixers read themselves, is exact in both.
    """
    sizes = {"state_size": 4, "intermediate_size": 32, "time_step_rank": 6}
    for name, weights in product(("Mamba", "FalconMamba"), ("bfloat16", "int8")):
        model = Family(name, 2, SCAN, sizes).made(torch.float32).eval()
        with torch.no_grad():
            for layer in model.backbone.layers:
                layer.mixer.dt_proj.weight.mul_(100)  # so that logits depend on it
        done = stepnet.torch.accelerate(model, linear=weights)
        left = "layers of Mamba multiply by the weight of dt_proj themselves"
        assert [why for layer, why in done.left.items() if layer.endswith("dt_proj")] == [left, left]
        given, cache, ours = words(), None, list[Any]()
        with torch.no_grad(), counted() as seen:
            whole = model(given, use_cache=False).logits
            for part in (given[:, : STEPS - 4], *given[:, STEPS - 4 :].split(1, dim=1)):
                said = model(part, cache_params=cache, use_cache=True)
                cache = said.cache_params
                ours.append(said.logits)
        assert seen == [f"{name}Block"] * 8, seen
        compare(torch.cat(ours, 1), whole, "float32", f"the logits of {name} in {weights}")


@alone
def tokens_of_layers_with_weights_of_different_dtypes_run_part_by_part() -> None:
    model = MAMBA.made(torch.float32)
    stepnet.torch.accelerate(model, linear="int8")
    with counted() as seen:
        generated(model, do_sample=False)
        assert set(seen) == {"MambaBlock"}
        del seen[:]
        model.backbone.layers[0].mixer.in_proj.weights = "bfloat16"
        generated(model, do_sample=False)
    assert seen.count("MambaBlock") == 4
    mixed = "its linear layers have weights in bfloat16 and int8, not all in one"
    why = {
        name: patches.LAYERS[name].refusal(layer)
        for name, layer in {
            "MambaBlock": model.backbone.layers[0],
            "MambaMixer": model.backbone.layers[0].mixer,
        }.items()
    }
    assert why == {"MambaBlock": mixed, "MambaMixer": mixed}
    done = stepnet.torch.accelerate(FAMILIES["zamba"].made(torch.float32), linear="int8")
    own = "single tokens run part by part, some of its products are no linear layers"
    assert any(text.startswith(own) for text in done.left.values())


@alone
def tokens_that_are_padding_run_part_by_part() -> None:
    theirs, ours, _ = both(FAMILIES["bamba"], torch.float32)
    with torch.no_grad():
        cache = theirs(torch.arange(16).reshape(2, 8), use_cache=True).past_key_values
        x = torch.randn(2, 1, WIDTH)
        for mask in (torch.ones(2, 1), torch.tensor([[1.0], [0.0]])):
            with counted() as seen:
                y, z = (
                    model.model.layers[0].mamba(
                        x, cache_params=copy.deepcopy(cache), attention_mask=mask.bool()
                    )
                    for model in (ours, theirs)
                )
            assert seen == ["BambaMixer"] * bool(mask.all())
            compare(y, z, "float32", f"tokens under the mask {mask.tolist()}")


@contextmanager
def part_by_part() -> Iterator[None]:
    """Layers whose tokens run part by part."""
    own = tokens.token_of
    tokens.token_of = lambda *_: None
    try:
        yield
    finally:
        tokens.token_of = own


@alone
def tokens_of_a_model_converted_to_float32_are_one_step() -> None:
    theirs, ours, _ = both(MAMBA, torch.bfloat16)
    for model in (theirs, ours):
        model.float()
    assert set(stepnet.torch.accelerate(ours).left.values()) == {"it is stepnet's already"}
    theirs, ours, _ = both(FAMILIES["qwen3_next"], torch.bfloat16)
    with counted() as seen:
        generated(ours.float(), do_sample=False)
    assert set(seen) == {"Qwen3NextGatedDeltaNet"}, seen


@alone
def layers_whose_forward_was_replaced_are_left() -> None:
    theirs, ours, done = both(MAMBA, torch.float32)
    done.undo()
    for model in (theirs, ours):
        own_forward_of_the_mixer(model.backbone.layers[0])
    done = stepnet.torch.accelerate(ours)
    assert "its forward was replaced" in done.left["backbone.layers.0.mixer"], str(done)
    assert "backbone.layers.0.mixer" not in done.replaced
    assert torch.equal(generated(ours, do_sample=False), generated(theirs, do_sample=False))


@alone
def other_models_are_as_before() -> None:
    theirs, _, _ = both(MAMBA, torch.float32)
    before = logits(theirs)
    kind = type(theirs.backbone.layers[0].mixer)
    _, ours, _ = both(MAMBA, torch.float32)
    logits(ours)
    assert modeling_mamba.mamba_selective_scan is SCAN_OF_THEIRS
    assert type(theirs.backbone.layers[0].mixer) is kind is modeling_mamba.MambaMixer
    assert torch.equal(logits(theirs), before)


@alone
def what_is_left() -> None:
    convolution = "PyTorch's own convolution takes less time"
    assert reasons(MAMBA.made(torch.float32)) == {convolution}
    tokens = "single tokens of 16-bit models run in transformers' own functions, which take less time"
    assert reasons(MAMBA.made(torch.bfloat16)) == {convolution}
    assert tokens in reasons(FAMILIES["recurrent_gemma"].made(torch.bfloat16))
    other = (
        "its parameters are torch.float8_e4m3fn: only float32, float64, float16 and bfloat16 are supported"
    )
    assert reasons(MAMBA.made(torch.float8_e4m3fn)) == {other}
    # The layer that stepnet runs has no parameters; those of what holds it count.
    assert reasons(FAMILIES["xlstm"].made(torch.float8_e4m3fn)) == {other}
    elsewhere = MAMBA.made(torch.float32).to("meta")
    assert reasons(elsewhere) == {
        "its parameters are on meta: stepnet runs this layer on the CPU and on GPUs that its engine "
        '"cuda" takes; move the model there first'
    }


@alone
def recurrences_without_a_function_are_named() -> None:
    options = {"num_experts": 2, "moe_intermediate_size": 8, "router_hidden_size": 8, "head_dim": 8}
    model = transformers.ZayaForCausalLM(transformers.ZayaConfig(**{**COMMON, **ATTENTION, **options}))
    done = stepnet.torch.accelerate(model)
    why = "left, its recurrence is written inside its class, not as a function that stepnet can replace"
    assert str(done).splitlines() == [f"model.layers.{n}.self_attn.qkv_proj: {why}" for n in range(2)]


@alone
def all_layers_with_states_are_known() -> None:
    """Of the classes of transformers whose code uses states of caches, functions and classes of the tables,
    or recurrent layers of torch.nn; the page has their folders."""
    own = {*STATES, *FUNCTIONS, *(name.partition(".")[0] for name in METHODS)} - {"time_shift"}
    words = re.compile(rf"\b({'|'.join(own)}|nn\.(LSTM|GRU|RNN)(Cell)?)\b")
    folder = Path(transformers.__file__).parent / "models"
    seen, unknown, folders = 0, set[str](), set[str]()
    for path in folder.glob("*/modeling_*.py"):
        if not words.search(path.read_text(encoding="utf-8")):
            continue
        folders.add(path.parent.name)
        file = import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        for kind in vars(file).values():
            if not inspect.isclass(kind) or kind.__module__ != file.__name__ or "forward" not in vars(kind):
                continue
            if words.search(inspect.getsource(innermost(kind.forward))):
                seen += 1
                unknown |= set() if patches.is_known(kind) else {kind.__qualname__}
    assert seen >= 25
    assert not unknown
    assert folders == set(stated())


@alone
def lightning_attention_goes_on_from_a_cache() -> None:
    """Several steps after others, with gradients and without, and beams, whose states are reordered."""
    theirs, ours, _ = both(FAMILIES["minimax"], torch.float32)
    options = {"num_beams": 3, "do_sample": False}
    assert torch.equal(generated(ours, **options), generated(theirs, **options))
    for is_training in (False, True):
        results = list[Any]()
        for model in (ours, theirs):
            with torch.set_grad_enabled(is_training):
                cache = model(words(steps=3), use_cache=True).past_key_values
                results.append(model(words(), past_key_values=cache, use_cache=True).logits)
        compare(*(result.detach() for result in results), "float32", f"the logits, gradients {is_training}")
    for result in results:
        total(result).backward()
    for (name, mine), own in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if own.grad is not None:
            compare(mine.grad, own.grad, "float32", f"the gradient of {name}")


@alone
def an_overridden_forward_that_stepnet_replaces() -> None:
    theirs = FAMILIES["minimax"].made(torch.float32)
    kind = type(theirs.model.layers[0].self_attn)

    class Louder(kind):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    theirs.model.layers[0].self_attn.__class__ = Louder
    why = "it overrides the forward of MiniMaxLightningAttention, and may compute something else"
    assert reasons(theirs) == {why}


@alone
def without_the_patch_nothing_is_replaced() -> None:
    model, known = MAMBA.made(torch.float32), stepnet.torch.patches.PATCHES
    right = logits(model)
    stepnet.torch.patches.PATCHES = {}
    try:
        done = stepnet.torch.accelerate(model)
        assert not done.replaced
        assert "no patches for layers of other libraries are installed" in str(done)
        assert torch.equal(logits(model), right)
    finally:
        stepnet.torch.patches.PATCHES = known


@alone
def make_fx_holds_the_functions_of_transformers() -> None:
    _, ours, _ = both(MAMBA, torch.float32)
    mixer, x, other = ours.backbone.layers[0].mixer, *torch.randn(2, ROWS, STEPS, WIDTH)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            graph = make_fx(mixer)(x)
            compare(graph(other).detach(), mixer(other).detach(), "float32", f"gradients {gradients}")


@alone
def modes_of_xlstm() -> None:
    theirs, ours, _ = both(FAMILIES["xlstm"], torch.float32)
    first, second = (model.backbone.blocks[0].mlstm_layer.mlstm_backend for model in (ours, theirs))
    x = [torch.randn(ROWS, 2, 8, size) for size in (32, 32, 64)] + [torch.randn(ROWS, 2, 8) for _ in range(2)]
    for mode, states in (("train", False), ("train", True), ("train", None), ("inference", False)):
        results = [backend(*x, mode=mode, return_last_states=states) for backend in (first, second)]
        a, b = map(flat, results)
        assert len(a) == len(b), f"{mode}, {states}"
        for one, other in zip(a, b, strict=True):
            compare(one, other, "float32", f"mode {mode}, {states}")


@alone
def a_class_with_a_forward_of_its_own() -> None:
    class Louder(modeling_mamba.MambaMixer):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return 2 * super().forward(*args, **kwargs)

    model = MAMBA.made(torch.float32)
    for block in model.backbone.layers:
        block.mixer.__class__ = Louder
    kind = f"{__name__}.{Louder.__qualname__}"
    assert reasons(model) == {
        "it overrides the forward of MambaMixer, and may compute something else",
        "single tokens run part by part, "
        f"mixer is a {kind}, not a transformers.models.mamba.modeling_mamba.MambaMixer",
    }


@alone
def a_function_that_computes_something_else() -> None:
    theirs = modeling_mamba.mamba_selective_scan

    @functools.wraps(theirs)
    def doubled(*args: Any, **kwargs: Any) -> Any:
        outputs = innermost(theirs)(*args, **kwargs)
        return (2 * outputs[0], outputs[1]) if isinstance(outputs, tuple) else 2 * outputs

    def bare(hidden_states: Any, dt: Any, A: Any, E: Any) -> Any:
        return hidden_states

    del doubled.__wrapped__
    doubled.__signature__ = inspect.signature(theirs)
    for scan, why in (
        (doubled, "its result 0 differs from stepnet's"),
        (bare, "hidden_states, dt, A, E,"),
    ):
        with other_scan(scan):
            model = MAMBA.made(torch.float32)
            done = stepnet.torch.accelerate(model)
            assert why in done.left["backbone.layers.0.mixer.mamba_selective_scan"], str(done)
            if scan is doubled:
                assert torch.equal(logits(model), logits(MAMBA.made(torch.float32)))


@alone
def tokens_are_one_step() -> None:
    theirs, ours, _ = both(MAMBA, torch.float32)
    for options in ({"do_sample": False}, {"num_beams": 2, "do_sample": False}):
        with counted() as seen:
            assert torch.equal(generated(ours, **options), generated(theirs, **options))
        assert seen == ["MambaBlock"] * 2 * 4, seen  # layers, and tokens behind the one that the prompt gives
    with counted() as seen, torch.enable_grad():
        cache = ours(words(), use_cache=True).cache_params
        ours(words(steps=1), cache_params=cache, use_cache=True)
    assert not seen, "with gradients a token runs part by part"


@alone
def changed_parameters_are_seen() -> None:
    theirs, ours, _ = both(MAMBA, torch.float32)
    generated(ours)
    for model in (ours, theirs):
        for block in model.backbone.layers:
            block.mixer.in_proj.weight.data.mul_(-3)  # which PyTorch does not count
            block.mixer.x_proj.weight = torch.nn.Parameter(block.mixer.x_proj.weight.detach() * 2)
    assert torch.equal(generated(ours), generated(theirs))
    with torch.no_grad():
        caches = [model(words(), use_cache=True).cache_params for model in (ours, theirs)]
        for scale in (1.0, -2.0):  # changes while a cache goes on, which PyTorch counts
            results = []
            for model, cache in zip((ours, theirs), caches, strict=True):
                model.backbone.layers[0].mixer.out_proj.weight.mul_(scale)
                results.append(model(words(steps=1), cache_params=cache, use_cache=True).logits)
            compare(*results, "float32", f"the logits after a change by {scale}")


@alone
def parts_with_hooks_run_part_by_part() -> None:
    cases = {"mixer.in_proj": [], "mixer": ["MambaMixer"], "norm": ["MambaMixer"]}
    for part, alone in cases.items():
        theirs, ours, done = both(MAMBA, torch.float32)
        done.undo()
        for model in (ours, theirs):
            hooked = model.backbone.layers[0].get_submodule(part)
            hooked.register_forward_hook(lambda module, x, y: y * 2)
        done = stepnet.torch.accelerate(ours)
        why = f"single tokens run part by part, {part} has hooks or a forward of its own"
        assert done.left["backbone.layers.0.forward"] == why, str(done)
        assert ("backbone.layers.0.mixer.forward" in done.left) == (not alone), str(done)
        assert not {"backbone.layers.1.forward", "backbone.layers.1.mixer.forward"} & done.left.keys()
        with counted() as seen:
            assert torch.equal(generated(ours, do_sample=False), generated(theirs, do_sample=False))
        assert seen == [*alone, "MambaBlock"] * 4, seen


def new_weight(mixer: Any) -> None:
    mixer.in_proj.weight = torch.nn.Parameter(mixer.in_proj.weight.detach() * 1.5)


def new_part(mixer: Any) -> None:
    mixer.out_proj = torch.nn.Linear(mixer.out_proj.in_features, mixer.out_proj.out_features)


def new_bias(mixer: Any) -> None:
    mixer.in_proj.bias = torch.nn.Parameter(torch.ones(mixer.in_proj.out_features))


def a_hook(mixer: Any) -> None:
    mixer.out_proj.register_forward_hook(lambda module, x, y: y * 2)


def own_forward(mixer: Any) -> None:
    theirs = mixer.in_proj.forward
    mixer.in_proj.forward = lambda x: theirs(x) * 2


def other_activation(mixer: Any) -> None:
    mixer.activation = "gelu"


def other_norm(mixer: Any) -> None:
    mixer.norm.variance_epsilon = 0.5


def other_decays(mixer: Any) -> None:
    mixer.slope_rate = mixer.slope_rate * 2


def other_decays_in_place(mixer: Any) -> None:
    mixer.slope_rate.mul_(2)


def other_norm_of_b(mixer: Any) -> None:
    mixer.b_layernorm.eps = 0.5


def other_gate(mixer: Any) -> None:
    mixer.norm.activation = "gelu"


def parametrized(mixer: Any) -> None:
    torch.nn.utils.parametrize.register_parametrization(mixer, "A_log", Shifted())


class Shifted(torch.nn.Module):
    """A parameter and one."""

    def forward(self, weight: Any) -> Any:
        return weight + 1


CHANGES = new_weight, new_part, new_bias, a_hook, own_forward, other_activation, parametrized


def new_scale(block: Any) -> None:
    block.norm.weight = torch.nn.Parameter(block.norm.weight.detach() * 1.5)


def other_eps(block: Any) -> None:
    block.norm.variance_epsilon = 0.5


def other_kind_of_norm(block: Any) -> None:
    block.norm = torch.nn.LayerNorm(WIDTH)


def new_mixer(block: Any) -> None:
    block.mixer = type(block.mixer)(block.config, layer_idx=block.layer_idx)


def a_hook_of_the_mixer(block: Any) -> None:
    block.mixer.register_forward_hook(lambda module, x, y: y * 2)


def a_hook_ahead_of_the_norm(block: Any) -> None:
    block.norm.register_forward_pre_hook(lambda module, x: (x[0] + 1,))


def own_forward_of_the_mixer(block: Any) -> None:
    theirs = block.mixer.forward
    block.mixer.forward = lambda *args, **kwargs: theirs(*args, **kwargs) * 2


def other_class_of_mixer(block: Any) -> None:
    theirs = type(block.mixer)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return 2 * theirs.forward(self, *args, **kwargs)

    block.mixer.__class__ = type(theirs.__name__, (theirs,), {"forward": forward})


BLOCK_CHANGES = (
    new_scale,
    other_eps,
    other_kind_of_norm,
    new_mixer,
    a_hook_of_the_mixer,
    a_hook_ahead_of_the_norm,
    own_forward_of_the_mixer,
    other_class_of_mixer,
)


@torch.no_grad()
def after_a_change(model: Any, change: Callable[[Any], None], kinds: Collection[str]) -> Any:
    """Logits of a token ahead of a change of each layer of these classes, and of one after it."""
    torch.manual_seed(0)
    first = model(words(), use_cache=True)
    name = next(name for name in ("cache_params", "past_key_values") if name in first)
    cache = {name: first[name], "use_cache": True}
    before = model(words(steps=1), **cache).logits
    for layer in list(model.modules()):
        if type(layer).__name__ in kinds:
            change(layer)
    return torch.cat([before, model(words(steps=1), **cache).logits])


@alone
def layers_that_change_while_a_cache_goes_on() -> None:
    cases = [
        ("mamba", MIXERS, CHANGES),
        ("mamba2", MIXERS, (new_weight, other_norm)),
        ("qwen3_next", MIXERS, (other_norm, other_gate)),
        ("mamba", ["MambaBlock"], BLOCK_CHANGES),
        ("mamba2", ["Mamba2Block"], (new_scale, other_eps)),
        ("falcon_mamba", MIXERS, [other_norm_of_b]),
        ("minimax", MIXERS, (other_norm, other_decays, other_decays_in_place)),
    ]
    for name, kinds, changes in cases:
        for change in changes:
            theirs, ours, _ = both(FAMILIES[name], torch.float32)
            right = after_a_change(theirs, change, kinds)
            compare(after_a_change(ours, change, kinds), right, "float32", f"logits after {change.__name__}")


@alone
def a_block_that_computes_something_else() -> None:
    theirs = modeling_mamba.MambaRMSNorm.forward
    modeling_mamba.MambaRMSNorm.forward = lambda self, x: 2 * theirs(self, x)
    clear()
    layer_difference.cache_clear()
    try:
        theirs_model, ours, done = both(MAMBA, torch.float32)
        why = "single tokens run part by part, this version of transformers has a different layer: "
        assert done.left["backbone.layers.0.forward"].startswith(why), str(done)
        assert "backbone.layers.0" not in done.replaced
        with counted() as seen:
            assert torch.equal(generated(ours, do_sample=False), generated(theirs_model, do_sample=False))
        assert seen == ["MambaMixer"] * 2 * 4, seen
    finally:
        modeling_mamba.MambaRMSNorm.forward = theirs
        clear()
        layer_difference.cache_clear()


@alone
def layers_are_checkpointed_as_before() -> None:
    """Gradients that recompute blocks, which are classes that transformers wraps when they are derived."""
    calls, grads = list[int](), list[dict[str, Any]]()
    for model in both(MAMBA, torch.float32)[:2]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        blocks = model.backbone.layers
        seen = [block._gradient_checkpointing_func for block in blocks]
        for block, own in zip(blocks, seen, strict=True):
            block._gradient_checkpointing_func = lambda *args, own=own: calls.append(1) or own(*args)
        grads.append(run(model, "none")[1])
        assert len(calls) == len(blocks), f"{len(calls)} of {len(blocks)} blocks are checkpointed"
        calls.clear()
    for name in grads[1]:
        compare(grads[0][name], grads[1][name], "float32", f"the gradient of {name}")


@alone
def hooks_of_all_modules_are_called() -> None:
    theirs, ours, _ = both(MAMBA, torch.float32)
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, x, y: y * 2 if type(module) is torch.nn.Linear else None
    )
    try:
        assert torch.equal(generated(ours, do_sample=False), generated(theirs, do_sample=False))
    finally:
        hook.remove()


class Adapted(torch.nn.Module):
    """A layer beside an adapter, which has the weights of the layer, as those of PEFT do."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.adapter = inner, torch.nn.Linear(inner.in_features, inner.out_features)

    weight = property(lambda self: self.inner.weight)
    bias = property(lambda self: self.inner.bias)

    def forward(self, x: Any) -> Any:
        return self.inner(x) + self.adapter(x)


Linear = type("Linear", (Adapted,), {})


@alone
def layers_of_other_libraries_run_part_by_part() -> None:
    for name in ("mamba", "mamba2"):
        for first in (True, False):
            theirs = FAMILIES[name].made(torch.float32)
            ours = copy.deepcopy(theirs)
            if not first:
                stepnet.torch.accelerate(ours)
            for model in (theirs, ours):
                torch.manual_seed(0)
                for block in model.backbone.layers:
                    block.mixer.in_proj = Linear(block.mixer.in_proj)
            if first:
                done = stepnet.torch.accelerate(ours)
                why = f"in_proj is a {__name__}.Linear, not a torch.nn.modules.linear.Linear"
                assert why in done.left["backbone.layers.0.mixer.forward"], str(done)
            assert torch.equal(generated(ours, do_sample=False), generated(theirs, do_sample=False))


@alone
def models_made_in_inference_mode() -> None:
    with torch.inference_mode():
        theirs, ours, done = both(MAMBA, torch.float32)
        assert torch.equal(generated(ours, do_sample=False), generated(theirs, do_sample=False))
    assert "made in inference mode" in done.left["backbone.layers.0.mixer.forward"], str(done)


@alone
def tokens_after_those_in_inference_mode() -> None:
    theirs, ours, _ = both(MAMBA, torch.float32)
    with torch.inference_mode():
        generated(ours, do_sample=False)
    assert torch.equal(generated(ours, do_sample=False), generated(theirs, do_sample=False))


@alone
def gradients_through_a_cache() -> None:
    theirs, ours, _ = both(FAMILIES["mamba2"], torch.float32)
    grads = list[dict[str, Any]]()
    for model in (ours, theirs):
        cache = model(words(), use_cache=True).cache_params
        total(model(words(steps=3), cache_params=cache, use_cache=True).logits).backward()
        grads.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    for name in grads[0]:
        compare(grads[0][name], grads[1][name], "float32", f"the gradient of {name}")


@alone
def words_of_rwkv_one_by_one() -> None:
    """Of a single row: of several, transformers' layer gives each the states of all as further steps."""
    results = list[Any]()
    with torch.no_grad():
        for model in both(FAMILIES["rwkv"], torch.float32)[:2]:
            state = model(words(1), use_cache=True).state
            for word in (3, 5):
                last = model(torch.tensor([[word]]), state=state, use_cache=True)
                state = last.state
            results.append(last.logits)
    compare(*results, "float32", "the logits of the second word")


@alone
def gradients_of_one_word_of_rwkv() -> None:
    names = list[set[str]]()
    for model in both(FAMILIES["rwkv"], torch.float32)[:2]:
        total(model(words(steps=1), use_cache=False).logits).backward()
        names.append({name for name, p in model.named_parameters() if p.grad is not None})
    assert names[0] == names[1]


@alone
def graphs_hold_transformers_own_functions() -> None:
    theirs, ours, _ = both(MAMBA, torch.float32)
    compiled = torch.compile(ours, backend="eager")
    compare(logits(compiled), logits(theirs), "float32", "the logits of a compiled model")


@alone
def threads_generate_side_by_side() -> None:
    theirs, ours, _ = both(MAMBA, torch.float32)
    right = generated(theirs, do_sample=False)
    with ThreadPoolExecutor(4) as pool:
        for words in pool.map(lambda _: generated(ours, do_sample=False), range(8)):
            assert torch.equal(words, right)


@alone
def padding_is_not_run() -> None:
    lengths, own = list[Any](), scans.positions_of

    def seen(rows: int, time: int) -> Any:
        positions = own(rows, time)
        lengths.append(positions.lengths.tolist())
        return positions

    _, ours, _ = both(FAMILIES["qwen3_5"], torch.float32)
    scans.positions_of = seen
    try:
        for mask, expected in (("right", [7, 4, 1]), ("left", [7] * 3), ("gaps", [7] * 3), ("none", [7] * 3)):
            lengths.clear()
            run(ours, mask)
            # Gradients without padding are recurrences of their own.
            assert lengths, mask
            assert all(each == expected for each in lengths), f"{mask}: {lengths}"
    finally:
        scans.positions_of = own


@alone
def packed_sequences_are_refused_by_transformers() -> None:
    _, ours, _ = both(FAMILIES["qwen3_5"], torch.float32)
    place = torch.tensor([0, 3, STEPS], dtype=torch.int32)
    with pytest.raises(ValueError, match="packed sequences"):
        ours(words(1), cu_seq_lens_q=place, use_cache=False)


def said(function: Callable[..., None], *arguments: Any) -> str:
    """The message of a check: empty where it holds."""
    try:
        function(*arguments)
    except Exception as error:  # a failure of any kind is what is said
        lines = traceback.format_exception(error)
        return "".join(lines[-3:])[-1500:]
    return ""


def main(out: str, every: str = "1", *names: str) -> None:
    """Runs the checks, or those of these families."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    result = {
        f"{name} {title}": said(function, FAMILIES[name])
        for row, name in enumerate(names or FAMILIES)
        for column, (title, function) in enumerate(CHECKS.items())
        if not column or (row + column) % int(every) == 0
    }
    if not names:
        result |= {title: said(function) for title, function in ALONE.items()}
    Path(out).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
