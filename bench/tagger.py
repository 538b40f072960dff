"""Times a whole model, a tagger of words, beside onnxruntime, PyTorch and oneDNN.

    python -m bench.tagger                    batches of 1 and of 50 sentences of 5 to 60 words
    python -m bench.tagger --batch 8 --hidden 256
    python -m bench.tagger --json

An embedding of 128, a bidirectional GRU of two layers, 128 units each, and a linear layer, float32. stepnet
runs the graph of the module (`stepnet.torch.graph`) over the sentences as they are. onnxruntime runs the
model that PyTorch exports, and PyTorch the module itself, over padded batches; the padding is made
beforehand. oneDNN is `engine=("onednn", "llvm")`, if it is installed.

All have the same sentences, others in every turn, in alternation in one process. Before a turn is a pause,
since threads may spin for a while. A time is the median of all turns, and a ratio that of each round's. The
results are compared first: of the longest sentence, as padding changes those of the others.
"""

import io
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

import numpy as np
import onnxruntime
import torch
import typer
from rich.console import Console
from rich.progress import track

import stepnet as sn
import stepnet.torch
from bench.printing import print_rows
from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.targets.threads import threads
from stepnet.errors import RefusedError

Array = np.ndarray
Run = Callable[["Batch"], Any]
PAUSE, EMBEDDING, SHORTEST, LONGEST = 0.01, 128, 5, 60


class Tagger(torch.nn.Module):
    """The model that is timed: an embedding, a bidirectional GRU of two layers, and a linear layer."""

    def __init__(self, words: int, hidden: int, tags: int) -> None:
        """Makes the layers of the tagger; their weights are random."""
        super().__init__()
        self.table = torch.nn.Embedding(words, EMBEDDING)
        self.gru = torch.nn.GRU(EMBEDDING, hidden, 2, bidirectional=True, batch_first=True)
        self.out = torch.nn.Linear(2 * hidden, tags)

    def forward(self, words: Any) -> Any:
        """Returns the logarithms of the probabilities of the tags of each word."""
        h, _ = self.gru(self.table(words))
        return torch.log_softmax(self.out(h), -1)


@dataclass(frozen=True)
class Batch:
    """Sentences of words, end to end for stepnet, and padded for the others."""

    sentences: sn.Ragged
    padded: Array

    @classmethod
    def drawn(cls, random: np.random.Generator, count: int, words: int) -> "Batch":
        """Returns a batch of `count` random sentences of numbers below `words`."""
        lengths = random.integers(SHORTEST, LONGEST + 1, count)
        sentences = sn.Ragged.from_list([random.integers(0, words, length) for length in lengths])
        return cls(sentences, sentences.to_padded()[0])

    @property
    def longest(self) -> int:
        """The index of the longest sentence."""
        return int(np.argmax(np.diff(self.sentences.offsets[0])))


@dataclass(frozen=True)
class Row:
    """The result of one peer for one size of batches: milliseconds, and its time over stepnet's."""

    batch: int
    peer: str
    milliseconds: float
    ratio: float


def exported(module: Tagger) -> onnxruntime.InferenceSession:
    """Exports the model by PyTorch, and loads it in onnxruntime."""
    axes = {0: "batch", 1: "time"}
    data: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.zeros(2, 3, dtype=torch.int64),),
            data,
            dynamo=False,
            input_names=["words"],
            dynamic_axes={"words": axes},
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    return onnxruntime.InferenceSession(data.getvalue(), options)


def peers(module: Tagger) -> dict[str, Run]:
    """Returns functions that run the model, by name, stepnet's first; each returns a batch's tags."""
    graph = stepnet.torch.graph(module, torch.zeros(2, 3, dtype=torch.int64))
    session = exported(module)

    def ours(engine: Any) -> Run:
        """Returns the function that runs stepnet's graph of the module on an engine."""
        return lambda batch: graph(batch.sentences, engine=engine)

    runs: dict[str, Run] = {
        "stepnet": ours("auto"),
        "onnxruntime": lambda batch: session.run(None, {"words": batch.padded})[0],
        "torch": lambda batch: module(torch.from_numpy(batch.padded)).numpy(),
    }
    try:
        ours(("onednn", "llvm"))(Batch.drawn(np.random.default_rng(0), 1, module.table.num_embeddings))
        runs["oneDNN"] = ours(("onednn", "llvm"))
    except RefusedError:
        pass
    return runs


def check(runs: dict[str, Run], batch: Batch, hidden: int) -> None:
    """Raises `SystemExit` if the peers' results differ from stepnet's for the longest sentence of a batch."""
    row = batch.longest
    made = {name: run(batch) for name, run in runs.items()}
    tags = {name: value[row] for name, value in made.items()}
    for name, value in tags.items():
        away = float(np.abs(np.asarray(value) - np.asarray(tags["stepnet"])).max())
        if away > 10 * tolerance("float32", LONGEST, 2 * hidden):
            raise SystemExit(f"the results of stepnet and {name} differ by {away:.2g}")


def timed(runs: dict[str, Run], count: int, words: int, hidden: int, rounds: int) -> list[Row]:
    """Times the peers on batches of `count` sentences in alternation; returns a result for each."""
    random = np.random.default_rng(count)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    check(runs, Batch.drawn(random, count, words), hidden)
    for _ in range(rounds):
        batches = [Batch.drawn(random, count, words) for _ in range(max(1, 20 // count))]
        for name, run in runs.items():
            time.sleep(PAUSE)
            run(batches[0])
            begun = time.perf_counter()
            for batch in batches:
                run(batch)
            seconds[name].append((time.perf_counter() - begun) / len(batches))
    return [
        Row(
            count,
            name,
            1e3 * median(times),
            median(a / b for a, b in zip(times, seconds["stepnet"], strict=True)),
        )
        for name, times in seconds.items()
    ]


def main(
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Sentences; 1 and 50 without it.")] = None,
    words: Annotated[int, typer.Option(min=1, help="Words of the embedding.")] = 5000,
    hidden: Annotated[int, typer.Option(min=1, help="Units of each direction.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 31,
    threads_: Annotated[int | None, typer.Option("--threads", min=1, help="Threads of all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Time a tagger of words beside onnxruntime, PyTorch and oneDNN, and print a table or JSON."""
    sn.set_threads(threads_)
    torch.set_num_threads(threads())
    torch.manual_seed(0)
    module = Tagger(words, hidden, 10).eval()
    quiet = Console(stderr=True, quiet=as_json)
    with torch.no_grad():
        runs = peers(module)
        rows = [
            row
            for count in track(batch or [1, 50], "tagging", console=quiet, transient=True)
            for row in timed(runs, count, words, hidden, rounds)
        ]
    columns = {
        "batch": "{row.batch}",
        "": "{row.peer}",
        "milliseconds": "{row.milliseconds:.3f}",
        "times stepnet's": "{row.ratio:.2f}",
    }
    print_rows(rows, "Milliseconds for a batch of sentences of 5 to 60 words", columns, as_json)


if __name__ == "__main__":
    typer.run(main)
