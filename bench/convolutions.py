"""Times models with convolutions over steps, beside onnxruntime on the same ONNX file.

    python -m bench.convolutions                    batches of 1 and of 50 sequences of 50 to 300 frames
    python -m bench.convolutions --model vad --batch 8
    python -m bench.convolutions --processor-time   on a machine that runs other work, too
    python -m bench.convolutions --json

Three models of frames of 40 numbers, float32: a detector of speech (two convolutions, one with a stride, a
GRU and a linear layer), a recogniser (two convolutions, each with pooling, a bidirectional GRU and a linear
layer), and a stack of nine convolutions, of which one has a stride.

PyTorch exports each model once. stepnet loads the file (`stepnet.onnx.load`) and runs the sequences as they
are. onnxruntime runs padded batches; the padding is made beforehand. Both have the same sequences, others in
every turn, in alternation in one process. Before a turn is a pause, since threads may spin for a while. A
time is the median of all turns, and a ratio that of each round's. Processor time is that of one thread, and
leaves out what other work takes but for its share of the caches. The results are compared first: of the
longest sequence, as padding changes those of the others.
"""

import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import onnxruntime
import torch
import typer
from rich.console import Console
from rich.progress import track

import stepnet as sn
import stepnet.onnx
from bench.printing import print_rows
from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.targets.threads import threads

Array = np.ndarray
Run = Callable[["Batch"], Any]
PAUSE, FRAME, SHORTEST, LONGEST = 0.01, 40, 50, 300


class Model(torch.nn.Module):
    """Convolutions over the steps, a recurrence if there is one, and a linear layer, with random weights."""

    def __init__(self, convolutions: list[Any], recurrence: Any, inputs: int, outputs: int) -> None:
        """Takes the layers before and in the recurrence, None for none, and the sizes of the last one."""
        super().__init__()
        self.convolutions, self.recurrence = torch.nn.Sequential(*convolutions), recurrence
        self.out = torch.nn.Linear(inputs, outputs)

    def forward(self, frames: Any) -> Any:
        """Returns numbers for each step that the convolutions give, [batch, time, outputs]."""
        h = self.convolutions(frames.transpose(1, 2)).transpose(1, 2)
        if self.recurrence is not None:
            h, _ = self.recurrence(h)
        return self.out(h)


def layer(inputs: int, outputs: int, size: int, **options: Any) -> list[Any]:
    """Returns a convolution with as many zeros as keep the number of steps, and a ReLU."""
    before = (size - 1) * options.get("dilation", 1) // 2
    return [torch.nn.Conv1d(inputs, outputs, size, padding=before, **options), torch.nn.ReLU()]


def vad(units: int) -> Model:
    """Makes a detector of speech: one number for every second frame."""
    convolutions = [*layer(FRAME, units, 3), *layer(units, units, 3, stride=2)]
    return Model(convolutions, torch.nn.GRU(units, units, batch_first=True), units, 1)


def crnn(units: int) -> Model:
    """Makes a recogniser: the scores of 30 symbols for every fourth frame."""
    pool = torch.nn.MaxPool1d(2)
    convolutions = [*layer(FRAME, units, 5), pool, *layer(units, 2 * units, 3), pool]
    recurrence = torch.nn.GRU(2 * units, 2 * units, bidirectional=True, batch_first=True)
    return Model(convolutions, recurrence, 4 * units, 30)


def stack(units: int) -> Model:
    """Makes a stack of convolutions with more and more steps between those that are read."""
    convolutions = layer(FRAME, units, 5, stride=2)
    for dilation in (1, 2, 4, 8) * 2:
        convolutions += layer(units, units, 3, dilation=dilation)
    return Model(convolutions, None, units, 30)


MODELS = {"vad": vad, "crnn": crnn, "stack": stack}


@dataclass(frozen=True)
class Batch:
    """Sequences of frames, end to end for stepnet, and padded for onnxruntime."""

    frames: sn.Ragged
    padded: Array

    @classmethod
    def drawn(cls, random: np.random.Generator, count: int) -> "Batch":
        """Returns a batch of `count` random sequences."""
        lengths = random.integers(SHORTEST, LONGEST + 1, count)
        frames = sn.Ragged.from_list(
            [random.standard_normal((length, FRAME), dtype=np.float32) for length in lengths]
        )
        return cls(frames, frames.to_padded()[0])


@dataclass(frozen=True)
class Row:
    """The times of one model and size of batches in milliseconds, and onnxruntime's over stepnet's."""

    model: str
    batch: int
    stepnet: float
    onnxruntime: float
    ratio: float


def runs_of(module: Model, folder: Path) -> tuple[Run, Run]:
    """Returns the functions that run the ONNX file of a model, in `folder`: stepnet's and onnxruntime's."""
    path = folder / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.zeros(2, 20, FRAME),),
            str(path),
            dynamo=False,
            input_names=["frames"],
            dynamic_axes={"frames": {0: "batch", 1: "time"}},
        )
    graph = stepnet.onnx.load(path, axes={"frames": "NT"})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    session = onnxruntime.InferenceSession(path, options)
    return lambda batch: graph(batch.frames), lambda batch: session.run(None, {"frames": batch.padded})[0]


def check(runs: tuple[Run, Run], batch: Batch, units: int) -> None:
    """Raises `SystemExit` if the results differ for the longest sequence of a batch."""
    row = int(np.argmax(batch.frames.lengths))
    ours, theirs = runs[0](batch)[row], runs[1](batch)[row]
    away = float(np.abs(np.asarray(ours) - theirs).max())
    if not away <= 10 * tolerance("float32", LONGEST, 10 * units):
        raise SystemExit(f"the results of stepnet and onnxruntime differ by {away:.2g}")


def timed(name: str, runs: tuple[Run, Run], count: int, rounds: int, clock: Callable[[], float]) -> Row:
    """Times both on batches of `count` sequences in alternation. clock: returns the time in seconds."""
    random, seconds = np.random.default_rng(count), (list[float](), list[float]())
    for _ in range(rounds):
        batches = [Batch.drawn(random, count) for _ in range(max(1, 20 // count))]
        for run, own in zip(runs, seconds, strict=True):
            time.sleep(PAUSE)
            run(batches[0])
            begun = clock()
            for batch in batches:
                run(batch)
            own.append((clock() - begun) / len(batches))
    ours, theirs = seconds
    ratio = median(b / a for a, b in zip(ours, theirs, strict=True))
    return Row(name, count, 1e3 * median(ours), 1e3 * median(theirs), ratio)


def main(
    model: Annotated[list[str] | None, typer.Option(help="Names of models; all without it.")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Sequences; 1 and 50 without it.")] = None,
    units: Annotated[int, typer.Option(min=1, help="Features of the convolutions.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 31,
    threads_: Annotated[int | None, typer.Option("--threads", min=1, help="Threads of both.")] = None,
    processor_time: Annotated[bool, typer.Option("--processor-time", help="That of one thread.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Time models with convolutions beside onnxruntime, and print a table or JSON."""
    sn.set_threads(1 if processor_time else threads_)
    clock = time.process_time if processor_time else time.perf_counter
    torch.manual_seed(0)
    names, rows = model or list(MODELS), list[Row]()
    for name in track(names, "timing", console=Console(stderr=True, quiet=as_json), transient=True):
        with tempfile.TemporaryDirectory() as folder:
            runs = runs_of(MODELS[name](units).eval(), Path(folder))
        for count in batch or [1, 50]:
            check(runs, Batch.drawn(np.random.default_rng(0), count), units)
            rows.append(timed(name, runs, count, rounds, clock))
    columns = {
        **{name: f"{{row.{name}}}" for name in ("model", "batch")},
        **{name: f"{{row.{name}:.3f}}" for name in ("stepnet", "onnxruntime")},
        "ratio": "{row.ratio:.2f}",
    }
    title = f"Milliseconds for a batch of sequences of {SHORTEST} to {LONGEST} frames"
    print_rows(rows, title, columns, as_json)


if __name__ == "__main__":
    typer.run(main)
