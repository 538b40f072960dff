"""Times a model of transformers without and with `stepnet.torch.accelerate`: forward, tokens, training.

    python bench/transformers_models.py [mamba] [2]

The arguments are a name of `CONFIGS` and the number of threads. The same model twice in one process, with the
same number of threads, timed in alternation; medians, and the ratio of theirs to ours. The time of a token is
that of `generate` for a prompt of 8, by its number of tokens.
"""

import copy
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

import stepnet
import stepnet.torch

transformers: Any = import_module("transformers")  # in an environment of its own
TOKENS, NEW, LAYERS, WIDTH, WORDS = 256, 64, 4, 256, 1000
ROUNDS = {"forward": 9, "token": 15, "training": 3}
ATTENTION = {"intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("Mamba", {}),
    "falcon_mamba": ("FalconMamba", {}),
    "mamba2": ("Mamba2", {"num_heads": 8, "head_dim": 64, "state_size": 64, "n_groups": 1, "chunk_size": 64}),
    "qwen3_next": (
        "Qwen3Next",
        {
            "layer_types": ["linear_attention"] * (LAYERS - 1) + ["full_attention"],
            "mlp_only_layers": list(range(LAYERS)),
            **ATTENTION,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "head_dim": 64,
        },
    ),
    "minimax": (
        "MiniMax",
        {
            **ATTENTION,
            "layer_types": ["linear_attention"] * (LAYERS - 1) + ["full_attention"],
            "head_dim": 64,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
        },
    ),
    "lfm2": ("Lfm2", {**ATTENTION, "layer_types": ["conv"] * (LAYERS - 1) + ["full_attention"]}),
    "xlstm": ("xLSTM", {"num_heads": 4}),
    "rwkv": ("Rwkv", {"attention_hidden_size": WIDTH}),
}


def model_of(name: str) -> Any:
    """Makes the model `name`, a key of `CONFIGS`, with random weights."""
    kind, options = CONFIGS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=LAYERS, **options
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def forward(model: Any, words: Any) -> None:
    """Runs the model over all words."""
    with torch.no_grad():
        model(words, use_cache=False)


def token(model: Any, words: Any) -> None:
    """Generates `NEW` tokens from the first 8 words."""
    model.generate(words[:, :8], max_new_tokens=NEW, do_sample=False, pad_token_id=0, eos_token_id=None)


def training(model: Any, words: Any) -> None:
    """Runs one step of training on the words."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    model(words, labels=words, use_cache=False).loss.backward()
    optimizer.step()
    model.eval()


def seconds(function: Callable[[Any, Any], None], model: Any, words: Any) -> float:
    """Returns the seconds of one call of a function of model and words."""
    begin = time.perf_counter()
    function(model, words)
    return time.perf_counter() - begin


def main(name: str = "mamba", count: str = "2") -> None:
    """Times a model without and with stepnet, and prints the times; count: the number of threads."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(int(count))
    stepnet.set_threads(int(count))
    theirs = model_of(name)
    ours = copy.deepcopy(theirs)
    stepnet.torch.accelerate(ours)
    words = torch.arange(TOKENS)[None] * 7 % WORDS
    for function in (forward, token, training):
        for _ in range(3):
            function(ours, words)
        function(theirs, words)
        pairs = [
            (seconds(function, theirs, words), seconds(function, ours, words))
            for _ in range(ROUNDS[function.__name__])
        ]
        scale = 1000 / (NEW if function is token else 1)
        slow, fast = (statistics.median(times) * scale for times in zip(*pairs, strict=True))
        print(
            f"{name} {function.__name__}: {slow:.2f} ms theirs, {fast:.2f} ms ours, {slow / fast:.1f} times"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
