"""Times a model of transformers without and with `stepnet.torch.accelerate`: forward, tokens, training.

    python bench/transformers_models.py [mamba] [2]
    python bench/transformers_models.py [mamba] [2] --linear

The arguments are a name of `CONFIGS` and the number of threads. The same model twice in one process, with the
same number of threads, timed in alternation; medians, and the ratio of theirs to ours. The time of a token is
that of `generate` for a prompt of 8, by its number of tokens.

With `--linear` a larger model, whose tokens are bound by reading its weights, is timed with its linear layers
in float32, bfloat16 and int8 as well: the prompt and the tokens, beside the time that reading the weights
takes, and the difference of the logits. With one thread these are processor times, for busy machines.
"""

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch

import stepnet
import stepnet.torch

transformers: Any = import_module("transformers")  # in an environment of its own
TOKENS, NEW, LAYERS, WIDTH, WORDS = 256, 64, 4, 256, 1000
ROUNDS = {"forward": 9, "token": 15, "training": 3}
ATTENTION = {"intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
WIDE = {"vocab_size": 8000, "hidden_size": 1024, "num_hidden_layers": 8}
"""The sizes of the larger model."""
PROMPT = 128
"""The words of its prompt."""
BYTES = {None: 4, "bfloat16": 2, "int8": 1}
"""The bytes of a weight by the argument `linear=`."""
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
    "llama": ("Llama", {"intermediate_size": 2816, "num_attention_heads": 16}),
}


def model_of(name: str, **sizes: int) -> Any:
    """Makes the model `name`, a key of `CONFIGS`, with random weights. sizes: other sizes than the small."""
    kind, options = CONFIGS[name]
    torch.manual_seed(0)
    small = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS}
    config = getattr(transformers, f"{kind}Config")(**(small | options | sizes))
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


def read_rate() -> float:
    """Returns the bytes per second at which NumPy reads memory, on one thread."""
    array = np.ones(64 * 2**20, np.float32)
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        array.sum()
        times.append(time.perf_counter() - begin)
    return array.nbytes / min(times)


def linear_layers(name: str, rounds: int = 3, new: int = 5) -> None:
    """Times a larger model without stepnet and with its linear layers in each dtype, and prints the times of
    a prompt of `PROMPT` words and of a token, and the differences of the logits.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    models = {"transformers": model_of(name, **WIDE)}
    for linear in BYTES:
        models[linear or "float32"] = copy.deepcopy(models["transformers"])
        stepnet.torch.accelerate(models[linear or "float32"], linear=linear)
    weights = sum(
        part.weight.numel() for part in models["transformers"].modules() if type(part) is torch.nn.Linear
    )
    rate, words = read_rate(), torch.arange(PROMPT)[None] * 7 % WORDS
    options: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    times, logits = {title: ([], []) for title in models}, dict[str, Any]()
    for turn in range(rounds + 1):
        for title, model in models.items():
            lengths = list[float]()
            for count in (1, 1 + new):
                begin = clock()
                model.generate(words[:, :8], max_new_tokens=count, **options)
                lengths.append(clock() - begin)
            begin = clock()
            with torch.no_grad():
                logits[title] = model(words, use_cache=False).logits
            if turn:
                times[title][0].append(1000 * (lengths[1] - lengths[0]) / new)
                times[title][1].append(1000 * (clock() - begin))
    right = logits["transformers"]
    print(f"{name}: {weights / 1e6:.0f} million weights in linear layers; NumPy reads {rate / 1e9:.1f} GB/s")
    for title, (tokens, prompts) in times.items():
        size = weights * BYTES[title if title in BYTES else None]
        away = float((logits[title] - right).norm() / right.norm())
        print(
            f"{title:12}  {size / 2**20:4.0f} MiB, read in {1000 * size / rate:5.1f} ms  token "
            f"{statistics.median(tokens):6.1f} ms (least {min(tokens):.1f})  prompt of {PROMPT} "
            f"{statistics.median(prompts):5.0f} ms  logits {away:.1e} away"
        )


def main(name: str) -> None:
    """Times a model without and with stepnet, and prints the times."""
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
    parser = argparse.ArgumentParser()
    parser.add_argument("name", nargs="?", default="mamba", choices=CONFIGS)
    parser.add_argument("threads", nargs="?", type=int, default=2)
    parser.add_argument("--linear", action="store_true")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(given.threads)
    stepnet.set_threads(given.threads)
    if given.linear:
        linear_layers(given.name)
    else:
        main(given.name)
