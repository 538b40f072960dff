"""Times recurrences with weights in bfloat16 and int8, beside float32 and beside other runtimes.

    python bench/bits.py                            an LSTM and a GRU at five sizes
    python bench/bits.py --cell lstm --batch 64 --hidden 512
    python bench/bits.py --training                 outputs, and gradients of parameters and inputs
    python bench/bits.py --json

As many inputs as units. All have the same weights and the same arrays, and alternate in one process, with a
pause before each turn, since threads may spin for a while. A time is the median of all turns; `away` is the
root of the mean square of the differences from float32, relative to that of the outputs; in training of the
gradients of the inputs.

    stepnet                float32
    stepnet bfloat16/int8  `sn.quantize(rnn, [x], dtype)`
    oneDNN bfloat16/int8   the same with engine="onednn", for the cells that it has; in training the `vjp` of
a layer of `stepnet.onednn`
    torch                  `torch.nn.LSTM`, `torch.nn.GRU`
    torch bfloat16         the module in bfloat16, whose memories are in bfloat16 too
    torch int8             `torch.ao.quantization.quantize_dynamic`
    onnxruntime            the operator LSTM or GRU
    onnxruntime int8       DynamicQuantizeLSTM, by `onnxruntime.quantization.quantize_dynamic`; it has no GRU

It stops if an output is further away than `MOST`.
"""

import copy
import io
import json
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import onnxruntime
import onnxruntime.quantization
import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn
from stepnet import onednn
from stepnet.compiler.targets.threads import threads
from stepnet.errors import RefusedError

Array = np.ndarray
Run = Callable[[], Any]
CASES = [(1, 256), (1, 1024), (16, 256), (64, 256), (64, 512)]
CELLS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
MOST, PAUSE = 0.1, 0.1


@dataclass(frozen=True)
class Row:
    """The result of one runtime and dtype (`way`) for one case: milliseconds, stepnet's time in float32
    divided by that, and how far the outputs are from float32.
    """

    cell: str
    batch: int
    hidden: int
    way: str
    milliseconds: float
    times: float
    away: float


def exported(module: Any, x: torch.Tensor) -> bytes:
    """Exports a PyTorch module to the bytes of an ONNX file; x: an example input."""
    data: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), data, dynamo=False, input_names=["x"])
    return data.getvalue()


def quantized(model: bytes) -> bytes:
    """Converts the bytes of an ONNX file to one with recurrences in int8."""
    logging.getLogger().setLevel(logging.ERROR)  # hides its advice to run a pass that changes nothing here
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        before.write_bytes(model)
        onnxruntime.quantization.quantize_dynamic(before, after, op_types_to_quantize=["LSTM"])
        return after.read_bytes()


def session(model: bytes, x: Array) -> Run:
    """Returns a function that runs the bytes of an ONNX file on x in onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    made = onnxruntime.InferenceSession(model, options)
    return lambda: made.run(None, {"x": x})[0]


def ways(cell: str, batch: int, hidden: int, steps: int) -> dict[str, Run]:
    """Returns the functions that run a case, by name, stepnet in float32 first.

    Each returns its outputs [batch, time, hidden]; all have the same weights.
    """
    torch.manual_seed(0)
    module = CELLS[cell](hidden, hidden, batch_first=True).eval()
    given = torch.randn(batch, steps, hidden)
    low, x = given.bfloat16(), given.numpy()
    weights = {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}
    rnn: Any = sn.layout.layers(weights, f"torch.{cell}")
    runs: dict[str, Run] = {"stepnet": lambda: rnn(x)[0]}

    def add(name: str, dtype: str, engine: str) -> None:
        """Adds a run of the quantized recurrence to `runs`, unless the engine refuses it."""
        try:
            made: Any = sn.quantize(rnn, [x], dtype, engine=engine)
        except RefusedError:
            return
        runs[name] = lambda: made(x, engine=engine)[0]

    for engine, title in (("llvm", "stepnet"), ("onednn", "oneDNN")):
        for dtype in ("bfloat16", "int8"):
            add(f"{title} {dtype}", dtype, engine)
    in_bfloat16 = CELLS[cell](hidden, hidden, batch_first=True).eval()
    in_bfloat16.load_state_dict(module.state_dict())
    in_bfloat16.bfloat16()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        in_int8: Any = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(module), {CELLS[cell]})
    runs["torch"] = lambda: module(given)[0].numpy()
    runs["torch bfloat16"] = lambda: in_bfloat16(low)[0].float().numpy()
    runs["torch int8"] = lambda: in_int8(given)[0].numpy()
    model = exported(module, given)
    runs["onnxruntime"] = session(model, x)
    if cell == "lstm":
        runs["onnxruntime int8"] = session(quantized(model), x)
    return runs


def training_ways(cell: str, batch: int, hidden: int, steps: int) -> dict[str, Run]:
    """Returns the functions that run a case and compute its gradients of parameters and inputs, by name.

    Each returns the gradients of the inputs; all have the same weights.
    """
    torch.manual_seed(0)
    modules = {"torch": CELLS[cell](hidden, hidden, batch_first=True)}
    modules["torch bfloat16"] = copy.deepcopy(modules["torch"]).bfloat16()
    x, cotangent = torch.randn(batch, steps, hidden), torch.randn(batch, steps, hidden)
    weights = {name: tensor.detach().numpy() for name, tensor in modules["torch"].state_dict().items()}
    rnn: Any = sn.layout.layers(weights, f"torch.{cell}")
    layers = {"stepnet": rnn, "stepnet bfloat16": sn.quantize(rnn, [x.numpy()], "bfloat16")}
    primitives = onednn.layer(weights, f"torch.{cell}", dtype="bfloat16")

    def by_stepnet(layer: Any) -> Run:
        """Returns the function that computes gradients by `sn.vjp`."""
        run = sn.vjp(layer)

        def gradients() -> Array:
            """Runs forward and backward, to be timed; returns the gradients of the inputs."""
            _, backward = run(x.numpy(), wrt=("params", "inputs"))
            return backward(cotangent.numpy()).inputs

        return gradients

    def by_onednn() -> Array:
        """Runs forward and backward on oneDNN, to be timed; returns the gradients of the inputs."""
        _, _, pullback = primitives.vjp(x.numpy())
        return pullback(cotangent.numpy())["x"]

    def by_torch(module: Any) -> Run:
        """Returns the function that computes gradients by PyTorch's autograd."""
        dtype = next(module.parameters()).dtype
        given, along = x.to(dtype).requires_grad_(), cotangent.to(dtype)

        def gradients() -> Array:
            """Runs forward and backward in PyTorch, to be timed; returns the gradients of the inputs."""
            module.zero_grad()
            given.grad = None
            with torch.enable_grad():
                module(given)[0].backward(along)
            assert given.grad is not None
            return given.grad.float().numpy()

        return gradients

    runs: dict[str, Run] = {name: by_stepnet(layer) for name, layer in layers.items()}
    runs["oneDNN bfloat16"] = by_onednn
    return runs | {name: by_torch(module) for name, module in modules.items()}


def timed(runs: dict[str, Run], cell: str, batch: int, hidden: int, rounds: int) -> list[Row]:
    """Times the runs of a case in alternation, a result for each; raises `SystemExit` if one is inexact."""
    made = {name: np.asarray(run(), np.float64) for name, run in runs.items()}
    right = made["stepnet"]
    away = {name: float(np.sqrt(np.mean((y - right) ** 2) / np.mean(right**2))) for name, y in made.items()}
    for name, error in away.items():
        if not error < MOST:
            raise SystemExit(f"the outputs of {name} are {100 * error:.2g}% away from those in float32")
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            time.sleep(PAUSE)
            run()
            begun = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begun)
    return [
        Row(
            cell,
            batch,
            hidden,
            name,
            1e3 * median(times),
            median(a / b for a, b in zip(seconds["stepnet"], times, strict=True)),
            away[name],
        )
        for name, times in seconds.items()
    ]


def main(
    cell: Annotated[list[str] | None, typer.Option(help="lstm or gru; both without it.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences, with --hidden.")] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Inputs and units, with --batch.")] = None,
    steps: Annotated[int, typer.Option("--time", min=1, help="Steps.")] = 50,
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 15,
    training: Annotated[bool, typer.Option("--training", help="Gradients too.")] = False,
    threads_: Annotated[int | None, typer.Option("--threads", min=1, help="Threads of all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Time recurrences with weights in fewer bits, and print a table or JSON."""
    if (batch is None) != (hidden is None):
        raise typer.BadParameter("--batch and --hidden are given together, or not at all")
    if wrong := set(cell or []) - CELLS.keys():
        raise typer.BadParameter(f"--cell is one of {', '.join(CELLS)}, not {wrong.pop()}")
    sn.set_threads(threads_)
    torch.set_num_threads(threads())
    sizes = CASES if batch is None or hidden is None else [(batch, hidden)]
    cases = [(name, *size) for name in cell or CELLS for size in sizes]
    runs_of = training_ways if training else ways
    quiet = Console(stderr=True, quiet=as_json)
    with torch.no_grad():
        rows = [
            row
            for case in track(cases, "running", console=quiet, transient=True)
            for row in timed(runs_of(*case, steps), *case, rounds)
        ]
    if as_json:
        print(json.dumps({"threads": threads(), "rows": [asdict(row) for row in rows]}, indent=2))
        return
    table = Table(title=f"{steps} steps, {threads()} threads")
    for name in ("cell", "batch x hidden", "", "milliseconds", "times as fast", "away"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for row in rows:
        size, figures = f"{row.batch}x{row.hidden}", (f"{row.milliseconds:.3g}", f"{row.times:.2f}")
        table.add_row(row.cell, size, row.way, *figures, f"{100 * row.away:.2g}%")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
