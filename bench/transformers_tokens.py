"""Times one token of a block of Mamba beside the reading of its weights.

    python bench/transformers_tokens.py [float32] [2] [768 1024 2048]

The arguments are the dtype of the model, the number of threads, and sizes of the hidden state. A token runs
through as many blocks as have `BYTES` of weights together, and at least `FEWEST`, so that the weights of each
come from memory. In alternation the same number of bytes is summed by the same number of threads: that is the
rate at which the machine reads. Prints medians over the rounds, the median of the ratios of reading to the
token in each round, and the same of the fastest of each. With one thread, its processor time is taken: other
processes on a busy machine do not count.
"""

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

modeling: Any = import_module("transformers.models.mamba.modeling_mamba")  # in an environment of its own
BYTES, FEWEST, ROUNDS, PROMPT = 1 << 29, 16, 15, 8


class Tokens:
    """A stack of accelerated blocks of Mamba with a cache, through which tokens run one by one.

    Attributes:
        bytes: Those of the weights of one block.
        blocks: The blocks.
    """

    def __init__(self, width: int, dtype: Any) -> None:
        """Makes blocks with random weights, and their states by a prompt. width: the size of the hidden
        state. dtype: of the weights.
        """
        torch.manual_seed(0)
        config = modeling.MambaConfig(hidden_size=width, num_hidden_layers=FEWEST)
        first = modeling.MambaBlock(config, layer_idx=0)
        self.bytes = sum(tensor.numel() for tensor in first.parameters()) * dtype.itemsize
        count = max(FEWEST, BYTES // self.bytes)
        self.config = modeling.MambaConfig(hidden_size=width, num_hidden_layers=count)
        blocks = [modeling.MambaBlock(self.config, layer_idx=number) for number in range(count)]
        self.blocks = torch.nn.ModuleList(blocks).to(dtype).eval()
        stepnet.torch.accelerate(self.blocks)
        self.cache = modeling.DynamicCache(config=self.config)
        self.word = torch.randn(1, 1, width, dtype=dtype)
        self.through(torch.randn(1, PROMPT, width, dtype=dtype))

    def __call__(self) -> None:
        """Runs one token through all blocks."""
        self.through(self.word)

    def through(self, x: Any) -> None:
        """Runs words [1, steps, width] through all blocks."""
        with torch.no_grad():
            for block in self.blocks:
                x = block(x, cache_params=self.cache)


def seconds(function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Returns the seconds of one call."""
    begin = clock()
    function()
    return clock() - begin


def main(dtype: str = "float32", threads: str = "2", *widths: str) -> None:
    """Prints a line for each width; the arguments are those of the program."""
    torch.set_num_threads(int(threads))
    stepnet.set_threads(int(threads))
    for width in map(int, widths or ("768", "1024", "2048")):
        tokens = Tokens(width, getattr(torch, dtype))
        count = len(tokens.blocks)
        weights = torch.ones(count * tokens.bytes // 4)
        for function in (tokens, tokens, weights.sum):
            function()
        clock = time.thread_time if threads == "1" else time.perf_counter
        pairs = [(seconds(tokens, clock), seconds(weights.sum, clock)) for _ in range(ROUNDS)]
        token, reading = (statistics.median(times) / count for times in zip(*pairs, strict=True))
        ratio = statistics.median(read / ran for ran, read in pairs)
        least = [min(times) / count for times in zip(*pairs, strict=True)]
        print(
            f"hidden {width}, {count} blocks of {tokens.bytes / 1e6:.1f} MB in {dtype}, {threads} threads: "
            f"token {1e6 * token:.0f} us, reading {1e6 * reading:.0f} us "
            f"({tokens.bytes / reading / 1e9:.1f} GB/s), {100 * ratio:.0f}%; "
            f"fastest {1e6 * least[0]:.0f} and {1e6 * least[1]:.0f} us, {100 * least[1] / least[0]:.0f}%"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
