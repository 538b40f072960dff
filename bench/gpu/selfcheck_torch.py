"""Checks modules of `stepnet.torch` on a GPU against torch.nn, and measures both.

Values and gradients are compared with torch.nn on the same GPU in float32, and with float64 on the CPU. Times
are medians of alternating runs.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

import stepnet as sn
import stepnet.torch
from bench.gpu.place import Place, Rows
from stepnet.compiler.net.tolerance import tolerance
from stepnet.torch.ready import MinimalGatedUnit

LENGTHS = [7, 20, 1, 13, 20, 3, 2, 11, 5, 20]
STEPS, FEATURES = max(LENGTHS), 24
RUNS, WARMUP = 7, 2
ROWS = 16
WIDEST = 256
"""The units of the widest module that is checked."""
FAR = 2 * tolerance("float32", STEPS * len(LENGTHS), 2 * WIDEST)
"""The largest difference from float64, by the largest number of a tensor, that is rounding."""
FEW = ("GRU 32",)
"""The checks that are tried in emulation."""
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


CHECKS: dict[str, tuple[Callable[[str], tuple[Any, Any]], Callable[[Any, Any], Any]]] = {
    "GRU 32": (lambda engine: pair_of_layers("GRU", 32, engine), on_padded),
    "GRU 200": (lambda engine: pair_of_layers("GRU", 200, engine), on_padded),
    "GRU 32, 2 layers, bidirectional, packed": (
        lambda engine: pair_of_layers("GRU", 32, engine, num_layers=2, bidirectional=True),
        on_packed,
    ),
    "GRU 128, 2 layers": (lambda engine: pair_of_layers("GRU", 128, engine, num_layers=2), on_padded),
    "LSTM 32": (lambda engine: pair_of_layers("LSTM", 32, engine), on_padded),
    "LSTM 256": (lambda engine: pair_of_layers("LSTM", 256, engine), on_padded),
    "LSTM 64, 2 layers, packed": (lambda engine: pair_of_layers("LSTM", 64, engine, num_layers=2), on_packed),
    "LSTM 32, bidirectional, projected, packed": (
        lambda engine: pair_of_layers("LSTM", 32, engine, bidirectional=True, proj_size=16),
        on_packed,
    ),
    "RNN 48": (lambda engine: pair_of_layers("RNN", 48, engine), on_padded),
    "minimal gated unit 64": (lambda engine: minimal_gated_unit(64, engine), on_padded),
    "minimal gated unit 256": (lambda engine: minimal_gated_unit(256, engine), on_padded),
    "Scan of a decay": (lambda engine: decay(FEATURES, engine), on_padded),
}


def check(name: str, place: Place) -> dict[str, Any]:
    """Compares one case with the GPU's own layer in float32, and with float64 on the CPU."""
    make, call = CHECKS[name]
    theirs, ours = make(place.name)
    device = place.torch_device
    torch.manual_seed(1)
    x = torch.randn(STEPS, len(LENGTHS), FEATURES)
    exact = answers(theirs.double(), call, x.double())
    there = answers(theirs.float().to(device), call, x.to(device))
    begun = time.perf_counter()
    found = answers(ours.to(device), call, x.to(device))
    away = difference(found, exact)
    return {
        "right": away < FAR,
        "stepnet to float64": away,
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
    """Measures a run, waited for: the time on the GPU, and that of the host if it is longer."""
    first = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - first) * 1e3


def medians(runs: dict[str, Callable[[], None]], count: int) -> dict[str, float]:
    """Runs several functions in turn; returns the median of each in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(-WARMUP if count > 1 else 0, count):
        for name, run in runs.items():
            took = milliseconds(run)
            if turn >= 0:
                times[name].append(took)
    return {name: round(statistics.median(own), 3) for name, own in times.items()}


def measured(place: Place, kind: str, units: int, how: str) -> dict[str, Any]:
    """Measures one case: stepnet beside torch.nn, or beside a Python loop for a cell that cuDNN lacks."""
    what = forward if how == "forward" else training
    steps, count, device = place.sized(1024, 16), place.sized(RUNS, 1), place.torch_device
    x = torch.randn(steps, place.sized(ROWS, 2), FEATURES, device=device)
    if kind == "MinimalGatedUnit":
        theirs, ours = (module.to(device) for module in minimal_gated_unit(units, place.name))
        few = x[: steps // 16]  # a loop takes a tenth of a millisecond for each step
        loop = medians({"loop": lambda: what(theirs, few)}, min(count, 3))["loop"] * steps / len(few)
        return {**medians({"stepnet": lambda: what(ours, x)}, count), "loop": round(loop, 3)}
    theirs, ours = (module.to(device) for module in pair_of_layers(kind, units, place.name))
    return medians({"stepnet": lambda: what(ours, x), "torch.nn": lambda: what(theirs, x)}, count)


def packed_times(place: Place, units: int, how: str) -> dict[str, Any]:
    """Measures a GRU on a PackedSequence of lengths from an eighth of the steps up."""
    what = forward if how == "forward" else training
    steps, rows, device = place.sized(1024, 16), place.sized(ROWS, 2), place.torch_device
    theirs, ours = (module.to(device) for module in pair_of_layers("GRU", units, place.name))
    lengths = torch.linspace(steps / 8, steps, rows).long()
    x = torch.randn(steps, rows, FEATURES, device=device)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    runs = {"stepnet": lambda: what(ours, packed), "torch.nn": lambda: what(theirs, packed)}
    return medians(runs, place.sized(RUNS, 1))


def torch_checks(place: Place) -> Rows:
    """Yields how far values and gradients of modules are from those of torch.nn and of float64."""
    in_float32()
    for name in place.sized(tuple(CHECKS), FEW):
        yield name, check(name, place)
    if not place.is_emulated:
        yield "on a stream", in_order(place.torch_device)
        yield "training", after_a_step_of_an_optimiser(place.torch_device)


def torch_times(place: Place) -> Rows:
    """Yields the milliseconds of modules, forward and with gradients, beside PyTorch."""
    in_float32()
    for how in ("forward", "training"):
        for kind in place.sized(("GRU", "LSTM", "MinimalGatedUnit"), ("GRU", "MinimalGatedUnit")):
            for units in place.sized(WIDTHS, (16,)):
                yield f"{how} {kind} {units}, ms", measured(place, kind, units, how)
        for units in place.sized((128, 512), (16,) if how == "forward" else ()):
            yield f"{how} packed GRU {units}, ms", packed_times(place, units, how)


def in_float32() -> None:
    """Lets PyTorch multiply float32 as such, and not as TF32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
