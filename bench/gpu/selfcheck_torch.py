"""Checks modules of `stepnet.torch` on a GPU against torch.nn, and measures both.

    python -m bench.gpu.selfcheck_torch [results.json] [--checks] [--times] [--steps 1024]

Values and gradients are compared with torch.nn on the same GPU in float32, and with float64 on the CPU. Times
are medians of alternating runs, by CUDA events. Each case is a line, which says what failed, and the others
run on. It needs stepnet, NumPy and PyTorch, and nothing of the repository beside this file.
"""

import argparse
import json
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

import stepnet as sn
import stepnet.torch
from stepnet.torch.ready import MinimalGatedUnit

LENGTHS = [7, 20, 1, 13, 20, 3, 2, 11, 5, 20]
STEPS, FEATURES = max(LENGTHS), 24
RUNS, WARMUP = 7, 2
ROWS = 16
WIDTHS = 64, 128, 256, 512


def flat(results: Any) -> list[torch.Tensor]:
    """Lists the tensors of some results, those of a PackedSequence without its positions."""
    if isinstance(results, torch.nn.utils.rnn.PackedSequence):
        return [results.data]
    if isinstance(results, torch.Tensor):
        return [results]
    parts = results.values() if isinstance(results, dict) else results
    return [tensor for part in parts for tensor in flat(part)]


def answers(module: Any, call: Callable[[Any, Any], Any], x: torch.Tensor) -> list[torch.Tensor]:
    """Returns values, with and without gradients, and the gradients of the input and the parameters."""
    x = x.detach().clone().requires_grad_()
    module.zero_grad()
    own = flat(call(module, x))
    loss: Any = torch.zeros((), dtype=x.dtype, device=x.device)
    for tensor in own:
        weights = torch.linspace(-1, 1, tensor.numel(), dtype=x.dtype, device=x.device).view(tensor.shape)
        loss = loss + (tensor * weights).sum()
    loss.backward()
    with torch.no_grad():
        plain = flat(call(module, x))
    grads = [parameter.grad for parameter in module.parameters()]
    every = [*own, *plain, x.grad, *grads]
    return [torch.as_tensor(tensor).detach().double().cpu() for tensor in every]


def difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """Returns the largest difference of two lists of tensors, by the largest number of each tensor."""
    if [tensor.shape for tensor in one] != [tensor.shape for tensor in other]:
        return float("inf")
    parts = [
        float((a - b).abs().max() / b.abs().max().clamp(min=1e-3))
        for a, b in zip(one, other, strict=True)
        if a.numel()
    ]
    return max(parts, key=lambda part: float("inf") if part != part else part)


# ---- the modules -------------------------------------------------------------------------------------------


def on_padded(module: Any, x: torch.Tensor) -> Any:
    """Runs a module on sequences of equal length."""
    return module(x)


def on_packed(module: Any, x: torch.Tensor) -> Any:
    """Runs a module on a PackedSequence."""
    lengths = torch.tensor(LENGTHS)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    return module(packed)


def pair_of_layers(kind: str, units: int, engine: str = "cuda", **options: Any) -> tuple[Any, Any]:
    """Returns a layer of torch.nn and stepnet's with the same parameters."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, kind)(FEATURES, units, **options)
    ours = getattr(stepnet.torch, kind)(FEATURES, units, engine=engine, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


class Looped(torch.nn.Module):
    """A cell in a Python loop over the steps."""

    def __init__(self, cell: Any, units: int) -> None:
        """Takes the cell, and the width of its memory."""
        super().__init__()
        self.cell, self.units = cell, units

    def forward(self, x: torch.Tensor) -> Any:
        """Runs the cell over sequences [time, batch, features]; returns the outputs and the last memory."""
        h, outputs = x.new_zeros(x.shape[1], self.units), list[torch.Tensor]()
        for each in x.unbind(0):
            h = self.cell(each, h)
            outputs.append(h)
        return torch.stack(outputs), h


def minimal_gated_unit(units: int, engine: str = "cuda") -> tuple[Any, Any]:
    """Returns the minimal gated unit in a Python loop, and stepnet's recurrence of the same cell."""
    torch.manual_seed(0)
    ours = MinimalGatedUnit(FEATURES, units, engine=engine)
    cell: Any = MinimalGatedUnit(FEATURES, units).cell
    theirs = Looped(cell, units)
    cell.load_state_dict(cast("Any", ours).cell.state_dict())
    return theirs, ours


class DecayLoop(torch.nn.Module):
    """A gated decay, h' = sigmoid(a) h + x, in a Python loop over [batch, time, features]."""

    def __init__(self, a: torch.Tensor) -> None:
        """Takes the parameter."""
        super().__init__()
        self.a = torch.nn.Parameter(a.clone())

    def forward(self, x: torch.Tensor) -> Any:
        """Returns the outputs and the last memory."""
        h, outputs = torch.zeros_like(x[:, 0]), list[torch.Tensor]()
        for each in x.unbind(1):
            h = torch.sigmoid(self.a) * h + each
            outputs.append(torch.tanh(h))
        return torch.stack(outputs, 1), h


def decay(units: int, engine: str = "cuda") -> tuple[Any, Any]:
    """Returns a gated decay in a Python loop, and stepnet's Scan of it."""
    a = np.random.default_rng(0).normal(size=units).astype("f4")

    def step(x: Any, h: Any, a: Any) -> Any:
        """One step: the output and the next memory."""
        following = h / (1 + np.exp(-a)) + x
        return np.tanh(following), following

    scan = stepnet.torch.Scan(sn.RNN(step, a, memory=units), engine=engine)
    return DecayLoop(torch.from_numpy(a)), scan


CHECKS: dict[str, tuple[Callable[[], tuple[Any, Any]], Callable[[Any, Any], Any]]] = {
    "GRU 32": (lambda: pair_of_layers("GRU", 32), on_padded),
    "GRU 200": (lambda: pair_of_layers("GRU", 200), on_padded),
    "GRU 32, 2 layers, bidirectional, packed": (
        lambda: pair_of_layers("GRU", 32, num_layers=2, bidirectional=True),
        on_packed,
    ),
    "GRU 128, 2 layers": (lambda: pair_of_layers("GRU", 128, num_layers=2), on_padded),
    "LSTM 32": (lambda: pair_of_layers("LSTM", 32), on_padded),
    "LSTM 256": (lambda: pair_of_layers("LSTM", 256), on_padded),
    "LSTM 64, 2 layers, packed": (lambda: pair_of_layers("LSTM", 64, num_layers=2), on_packed),
    "LSTM 32, bidirectional, projected, packed": (
        lambda: pair_of_layers("LSTM", 32, bidirectional=True, proj_size=16),
        on_packed,
    ),
    "RNN 48": (lambda: pair_of_layers("RNN", 48), on_padded),
    "minimal gated unit 64": (lambda: minimal_gated_unit(64), on_padded),
    "minimal gated unit 256": (lambda: minimal_gated_unit(256), on_padded),
    "Scan of a decay": (lambda: decay(FEATURES), on_padded),
}


def check(name: str, device: str) -> dict[str, Any]:
    """Compares one case with the GPU's own layer in float32, and with float64 on the CPU."""
    make, call = CHECKS[name]
    theirs, ours = make()
    torch.manual_seed(1)
    x = torch.randn(STEPS, len(LENGTHS), FEATURES)
    exact = answers(theirs.double(), call, x.double())
    there = answers(theirs.float().to(device), call, x.to(device))
    begun = time.perf_counter()
    found = answers(ours.to(device), call, x.to(device))
    return {
        "stepnet to float64": difference(found, exact),
        "torch to float64": difference(there, exact),
        "stepnet to torch": difference(found, there),
        "seconds at first": round(time.perf_counter() - begun, 2),
    }


def in_order(device: str) -> dict[str, Any]:
    """Compares runs on a stream of its own, among other work of PyTorch, with the result of before."""
    _, ours = pair_of_layers("GRU", 64)
    ours.to(device)
    x = torch.randn(STEPS, ROWS, FEATURES, device=device)
    expected = answers(ours, on_padded, x)
    stream, worst = torch.cuda.Stream(), 0.0
    for _ in range(20):
        with torch.cuda.stream(stream):
            torch.mm(torch.randn(1000, 1000, device=device), torch.randn(1000, 1000, device=device))
            worst = max(worst, difference(answers(ours, on_padded, x), expected))
    return {"largest difference": worst}


def after_a_step_of_an_optimiser(device: str) -> dict[str, Any]:
    """Trains both layers by some steps, and compares their parameters."""
    theirs, ours = (module.to(device) for module in pair_of_layers("GRU", 64))
    x = torch.randn(STEPS, ROWS, FEATURES, device=device)
    for module in (theirs, ours):
        optimiser = torch.optim.SGD(module.parameters(), 0.1)
        for _ in range(5):
            optimiser.zero_grad()
            module(x)[0].square().mean().backward()
            optimiser.step()
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return {"largest difference": max(float((a - b).abs().max()) for a, b in pairs)}


# ---- times -------------------------------------------------------------------------------------------------


def forward(module: Any, x: Any) -> None:
    """Runs a module without gradients."""
    with torch.no_grad():
        module(x)


def training(module: Any, x: Any) -> None:
    """Runs a module and its gradients."""
    module.zero_grad(set_to_none=True)
    flat(module(x))[0].square().mean().backward()


def milliseconds(run: Callable[[], None]) -> float:
    """Measures a run by CUDA events: the time on the GPU, and that of the host if it is longer."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    run()
    last.record()
    last.synchronize()
    return first.elapsed_time(last)


def medians(runs: dict[str, Callable[[], None]], count: int = RUNS) -> dict[str, float]:
    """Runs several functions in turn; returns the median of each in milliseconds."""
    for run in runs.values():
        for _ in range(WARMUP):
            run()
    torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(count):
        for name, run in runs.items():
            times[name].append(milliseconds(run))
    return {name: round(statistics.median(own), 3) for name, own in times.items()}


def measured(kind: str, units: int, how: str, steps: int, device: str) -> dict[str, Any]:
    """Measures one case: stepnet beside torch.nn, or beside a Python loop for a cell that cuDNN lacks."""
    what = forward if how == "forward" else training
    x = torch.randn(steps, ROWS, FEATURES, device=device)
    if kind == "MinimalGatedUnit":
        theirs, ours = (module.to(device) for module in minimal_gated_unit(units))
        few = x[: steps // 16]  # a loop takes a tenth of a millisecond for each step
        loop = medians({"loop": lambda: what(theirs, few)}, 3)["loop"] * steps / len(few)
        return {**medians({"stepnet": lambda: what(ours, x)}), "loop": round(loop, 3)}
    theirs, ours = (module.to(device) for module in pair_of_layers(kind, units))
    return medians({"stepnet": lambda: what(ours, x), "torch.nn": lambda: what(theirs, x)})


def packed_times(units: int, how: str, steps: int, device: str) -> dict[str, Any]:
    """Measures a GRU on a PackedSequence of lengths from an eighth of the steps up."""
    what = forward if how == "forward" else training
    theirs, ours = (module.to(device) for module in pair_of_layers("GRU", units))
    lengths = torch.linspace(steps / 8, steps, ROWS).long()
    x = torch.randn(steps, ROWS, FEATURES, device=device)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    return medians({"stepnet": lambda: what(ours, packed), "torch.nn": lambda: what(theirs, packed)})


def main() -> None:
    """Runs the checks and the measurements, and writes their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", nargs="?", help="a JSON file for the results")
    parser.add_argument("--checks", action="store_true", help="only the checks")
    parser.add_argument("--times", action="store_true", help="only the measurements")
    parser.add_argument("--steps", type=int, default=1024, help="the steps of a sequence that is measured")
    parser.add_argument("--device", default="cuda", help="the device, for a trial without a GPU")
    given = parser.parse_args()
    results: dict[str, Any] = {"torch": torch.__version__}
    if torch.cuda.is_available():
        results |= {"gpu": torch.cuda.get_device_name(), "cudnn": torch.backends.cudnn.version()}
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def line(name: str, run: Callable[[], dict[str, Any]]) -> None:
        """Runs one case, prints it and writes all results so far."""
        try:
            results[name] = run()
        except Exception as error:  # the other cases are still of use
            results[name] = {"failed": f"{type(error).__name__}: {error}"[:2000]}
            traceback.print_exc()
        print(name, results[name], flush=True)
        if given.file:
            Path(given.file).write_text(json.dumps(results, indent=1))

    if not given.times:
        for name in CHECKS:
            line(name, lambda name=name: check(name, given.device))
        if given.device == "cuda":
            line("on a stream", lambda: in_order(given.device))
            line("training", lambda: after_a_step_of_an_optimiser(given.device))
    if not given.checks:
        for how in ("forward", "training"):
            for kind in ("GRU", "LSTM", "MinimalGatedUnit"):
                for units in WIDTHS:
                    case = kind, units, how, given.steps, given.device
                    line(f"{how} {kind} {units}, ms", lambda case=case: measured(*case))
            for units in (128, 512):
                case = units, how, given.steps, given.device
                line(f"{how} packed GRU {units}, ms", lambda case=case: packed_times(*case))


if __name__ == "__main__":
    main()
