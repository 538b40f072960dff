"""Times the gated delta rule of stepnet, PyTorch and transformers in training: alone, and in a model.

    python bench/delta_rules.py [--steps N]

The model is that of examples/delta_characters.py. What differs is the implementation of the delta rule:
`stepnet.torch.Scan`, a loop of PyTorch's operations, and torch_chunk_gated_delta_rule of transformers, which
is written with PyTorch's operations too and takes 64 steps at a time. The convolution of the model is
stepnet's in all of them.

Models of the same weights learn the same pieces in alternation in one process, with the same number of
threads. Their losses are compared, and so are outputs and gradients of the rule alone. A time is the median
of all turns but the first, and a ratio that of each turn's times.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
example: Any = import_module("delta_characters")
Inputs = dict[str, Tensor]


def looped(x: Inputs, memory: Tensor | None) -> tuple[Tensor, Tensor]:
    """Computes the gated delta rule as a loop over steps in PyTorch; returns the outputs and the last memory.

    x: q, k, v, g and beta, [batch, steps, heads, ...]. memory: the initial one, None for zeros.
    """
    rows, heads, key, value = *x["k"].shape[:1], *x["k"].shape[2:], x["v"].shape[-1]
    state = x["q"].new_zeros(rows, heads, key, value) if memory is None else memory
    decay, outputs = x["g"].exp(), list[Tensor]()
    for time_ in range(x["q"].shape[1]):
        q, k, v, beta = (x[name][:, time_] for name in ("q", "k", "v", "beta"))
        state = state * decay[:, time_, :, None, None]
        error = beta[..., None] * (v - (k[..., None, :] @ state)[..., 0, :])
        state = state + k[..., None] * error[..., None, :]
        outputs.append((q[..., None, :] @ state)[..., 0, :])
    return torch.stack(outputs, 1), state


def chunked() -> Callable[[Inputs, Tensor | None], tuple[Tensor, Tensor]]:
    """Returns the gated delta rule by transformers' function, whose own scaling of queries is undone."""
    module = import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    function = module.torch_chunk_gated_delta_rule

    def rule(x: Inputs, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        """Computes outputs and last memory by transformers' function, whose scaling of q is undone."""
        q = x["q"] * x["q"].shape[-1] ** 0.5
        rest = (x[name] for name in ("k", "v", "g", "beta"))
        return function(q, *rest, initial_state=memory, output_final_state=True)

    return rule


RULES: dict[str, Callable[[], Any]] = {
    "stepnet": lambda: example.delta_rule(),
    "PyTorch, a loop": lambda: looped,
    "transformers, in chunks": lambda: chunked(),
}


def inputs() -> Inputs:
    """Returns random inputs of the delta rule (q, k, v, g, beta) in the model's sizes, with gradients."""
    torch.manual_seed(0)
    lead = example.ROWS, example.PIECE, example.HEADS
    q, k, v = (torch.nn.functional.normalize(torch.randn(*lead, example.KEY), dim=-1) for _ in range(3))
    x = {"q": q, "k": k, "v": v, "g": -torch.rand(lead), "beta": torch.rand(lead)}
    return {name: tensor.requires_grad_() for name, tensor in x.items()}


def alone(rule: Any) -> Callable[[], list[Tensor]]:
    """Returns a function that runs a rule forward and backward, and returns outputs and gradients."""
    x = inputs()

    def turn() -> list[Tensor]:
        """Runs the rule and its gradients, to be timed; returns outputs and gradients."""
        outputs, _ = rule(x, None)
        return [outputs.detach(), *torch.autograd.grad(outputs.sum(), list(x.values()))]

    return turn


def in_model(rule: Callable[[], Any], corpus: Any, steps: int) -> Callable[[], list[Tensor]]:
    """Returns a function that trains the example's model with a rule for one step, for its loss."""
    training = example.Training(corpus, steps, rule)
    return lambda: [torch.tensor(training.step())]


def timed(title: str, turns: dict[str, Callable[[], list[Tensor]]], count: int, most: float) -> None:
    """Times functions in alternation, and prints the times; `SystemExit` if results differ by over `most`.

    turns: the functions by name; each returns its results. count: the number of rounds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for place in range(count):
        results = dict[str, list[Tensor]]()
        for name, turn in turns.items():
            begun = time.perf_counter()
            results[name] = turn()
            seconds[name].append(time.perf_counter() - begun)
        for name, tensors in results.items():
            pairs = zip(tensors, results["stepnet"], strict=True)
            if (away := max(float((a - b).abs().max()) for a, b in pairs)) > most:
                raise SystemExit(f"turn {place} of {name} gives results that differ by {away:.2g}")
    print(title)
    for name, times in seconds.items():
        ratio = median(a / b for a, b in zip(times[1:], seconds["stepnet"][1:], strict=True))
        print(f"  {name:24} {1e3 * median(times[1:]):8.1f} ms  {ratio:5.2f} times stepnet's")


def main(arguments: list[str] | None = None) -> None:
    """Times the rule alone, and steps of training, and prints the times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=16)
    steps = parser.parse_args(arguments).steps
    if steps < 2:
        parser.error("--steps is 2 or more: the first turn does not count")
    sizes = f"{example.ROWS} rows of {example.PIECE} steps, {example.HEADS} heads of {example.KEY}"
    threads = f"{torch.get_num_threads()} threads"
    rules = {name: alone(rule()) for name, rule in RULES.items()}
    timed(f"the delta rule and its gradients, {sizes}, {threads}", rules, steps, 1e-4)
    corpus = example.Corpus.of(example.text())
    models = {name: in_model(rule, corpus, steps) for name, rule in RULES.items()}
    timed(f"a step of training, {example.LAYERS} layers of {example.WIDTH}, {threads}", models, steps, 1e-2)


if __name__ == "__main__":
    main()
