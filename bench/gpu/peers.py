"""Times PyTorch's recurrences on the same GPU: cuDNN as PyTorch chooses it, loops, and compiled loops."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import torch

from bench.gpu.bundle import STEPS, Bundle

WIDTHS, BATCHES = (64, 128, 256, 512, 1024), (1, 16, 64)
ROUNDS = 5
CELLS = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}
NUMBERS = {
    "float32": (torch.float32, False),
    "float32, TF32 allowed": (torch.float32, True),
    "bfloat16": (torch.bfloat16, True),
    "float16": (torch.float16, True),
}
"""The dtype of a module, and whether float32 products may be rounded to TF32."""


def versions() -> dict[str, Any]:
    """Returns the versions of PyTorch and its libraries."""
    return {
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(),
    }


def allow_tf32(allowed: bool) -> None:
    """Sets whether float32 products may be rounded to TF32, in cuBLAS and cuDNN."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def microseconds_of_step(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Returns the median microseconds of a step of a call, after two calls that do not count."""
    seconds = list[float]()
    for _ in range(2 + rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return median(seconds[2:]) / STEPS * 1e6


@torch.inference_mode()
def modules(_: Bundle) -> Iterator[tuple[str, Any]]:
    """Yields the microseconds of a step of PyTorch's modules, with the products over inputs."""
    yield "versions", versions()
    for cell, kind in CELLS.items():
        for numbers, (dtype, tf32) in NUMBERS.items():
            allow_tf32(tf32)
            for width in WIDTHS:
                module = kind(width, width).to("cuda", dtype).eval()
                found = dict[int, Any]()
                for batch in BATCHES:
                    x = torch.randn(STEPS, batch, width, device="cuda", dtype=dtype)
                    found[batch] = microseconds_of_step(lambda module=module, x=x: module(x))
                yield f"{cell} {width}, {numbers}", found
    module = CELLS["lstm"](768, 768).to("cuda", torch.float16).eval()
    x = torch.randn(STEPS, 16, 768, device="cuda", dtype=torch.float16)
    yield "lstm 768, float16", {16: microseconds_of_step(lambda: module(x))}


@torch.inference_mode()
def large_batches(_: Bundle) -> Iterator[tuple[str, Any]]:
    """Yields the microseconds of a step of PyTorch's GRU for large batches."""
    for numbers, (dtype, tf32) in NUMBERS.items():
        allow_tf32(tf32)
        for width in (64, 128, 256):
            module = torch.nn.GRU(width, width).to("cuda", dtype).eval()
            found = dict[int, float]()
            for batch in (64, 128, 256, 512, 1024):
                x = torch.randn(STEPS, batch, width, device="cuda", dtype=dtype)
                found[batch] = microseconds_of_step(lambda module=module, x=x: module(x), 3)
            yield f"gru {width}, {numbers}", found


@torch.inference_mode()
def packed(_: Bundle) -> Iterator[tuple[str, Any]]:
    """Yields the microseconds of a step of modules on packed sequences, of equal and of ragged lengths."""
    allow_tf32(False)
    for cell, kind in CELLS.items():
        for width in (128, 256, 512):
            module = kind(width, width).to("cuda").eval()
            found = dict[str, float]()
            for batch in (16, 64):
                for name, least in (("equal", STEPS), ("ragged", STEPS // 8)):
                    lengths = torch.linspace(STEPS, least, batch).long()
                    x = torch.randn(STEPS, batch, width, device="cuda")
                    together = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)
                    call = lambda module=module, together=together: module(together)  # noqa: E731
                    found[f"{batch} {name}"] = microseconds_of_step(call, 3)
            yield f"{cell} {width}, packed", found


@torch.inference_mode()
def products(_: Bundle) -> Iterator[tuple[str, Any]]:
    """Yields the microseconds per step of the products with inputs, which go before the loop."""
    for numbers, (dtype, tf32) in NUMBERS.items():
        allow_tf32(tf32)
        for width in WIDTHS:
            found = dict[int, float]()
            weights = torch.randn(width, 3 * width, device="cuda", dtype=dtype)
            for batch in BATCHES:
                x = torch.randn(STEPS * batch, width, device="cuda", dtype=dtype)
                found[batch] = microseconds_of_step(lambda x=x, weights=weights: x @ weights)
            yield f"three gates of {width}, {numbers}", found
    copied = torch.randn(1 << 28, device="cuda")
    other = torch.empty_like(copied)
    seconds = microseconds_of_step(lambda: other.copy_(copied)) * STEPS / 1e6
    yield "copy, bytes per second", 2 * copied.nbytes / seconds


def gru_step(x: torch.Tensor, h: torch.Tensor, R: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """Returns the next state of a GRU. x: the products with inputs."""
    r, z, n = x.chunk(3, -1)
    rh, zh, nh = (h @ R).chunk(3, -1)
    r, z = torch.sigmoid(r + rh), torch.sigmoid(z + zh)
    n = torch.tanh(n + r * (nh + d))
    return n + z * (h - n)


def mgu_step(x: torch.Tensor, h: torch.Tensor, R: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """Returns the next state of a minimal gated unit, the second product of which needs the first gate."""
    width = h.shape[-1]
    f = torch.sigmoid(x[:, :width] + h @ R[:, :width])
    n = torch.tanh(x[:, width : 2 * width] + (f * h) @ R[:, width : 2 * width])
    return h + f * (n - h)


STEP_FUNCTIONS = {"gru": gru_step, "minimal_gated_unit": mgu_step}


@torch.inference_mode()
def loops(_: Bundle) -> Iterator[tuple[str, Any]]:
    """Yields the microseconds of a step of loops in Python, and of the same loops captured as graphs."""
    allow_tf32(False)
    for cell, step in STEP_FUNCTIONS.items():
        for width in (64, 256, 512):
            for batch in BATCHES:
                yield f"{cell} {width}, {batch} sequences", loop_times(step, width, batch)


def loop_times(step: Callable[..., torch.Tensor], width: int, batch: int) -> dict[str, float]:
    """Returns the times of one loop, eager and as a graph."""
    x = torch.randn(STEPS, batch, 3 * width, device="cuda")
    R, d = torch.randn(width, 3 * width, device="cuda") * width**-0.5, torch.randn(width, device="cuda")
    outputs = torch.empty(STEPS, batch, width, device="cuda")
    begun = torch.zeros(batch, width, device="cuda")

    def loop() -> None:
        """Runs all steps."""
        h = begun
        for t in range(STEPS):
            h = step(x[t], h, R, d)
            outputs[t] = h

    found = {"loop": microseconds_of_step(loop, 1)}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loop()
    found["graph"] = microseconds_of_step(graph.replay, 3)
    return found


@torch.inference_mode()
def compiled(_: Bundle) -> Iterator[tuple[str, Any]]:
    """Yields the microseconds of a step of a loop whose step torch.compile compiles, and its seconds."""
    allow_tf32(False)
    for batch in BATCHES:
        width, begun = 256, time.perf_counter()
        x = torch.randn(STEPS, batch, 3 * width, device="cuda")
        R, d = torch.randn(width, 3 * width, device="cuda") * width**-0.5, torch.randn(width, device="cuda")
        step = torch.compile(gru_step, dynamic=False)
        start = torch.zeros(batch, width, device="cuda")
        step(x[0], start, R, d)
        seconds = time.perf_counter() - begun

        loop = partial(steps_of, step, x, start, R, d)
        found = {"loop": microseconds_of_step(loop, 1), "compile seconds": seconds}
        yield f"gru 256, {batch} sequences", found


def steps_of(
    step: Callable[..., torch.Tensor], x: torch.Tensor, h: torch.Tensor, *parameters: torch.Tensor
) -> torch.Tensor:
    """Runs all steps of a loop; returns the last state."""
    for t in range(STEPS):
        h = step(x[t], h, *parameters)
    return h
