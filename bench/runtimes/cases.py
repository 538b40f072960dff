"""The cases that are timed: a cell at one size, with weights and inputs from a seed, or real utterances."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from bench.runtimes.peers.equations import CELLS, Shapes
from stepnet.cli.demo import DATA
from stepnet.errors import InputError

Array = np.ndarray


@dataclass(frozen=True)
class Mode:
    """A way to run and time a case.

    title, unit: for the reader of its times.
    scale: how many of its units a second has.
    by_step: whether the time is of one step, and not of all.
    products: how many times the products of a forward pass it computes.
    """

    title: str
    unit: str = "milliseconds"
    scale: float = 1e3
    by_step: bool = False
    products: int = 1


MODES = {
    "forward": Mode(""),
    "training": Mode("training", products=3),
    "stream": Mode("stream", "microseconds a step", 1e6, by_step=True),
    "start": Mode("first result"),
    "cold start": Mode("first result ever"),
}
"""forward: outputs of all steps. training: forward, backward, and the gradients of inputs and weights.
stream: one step at a time, the state carried on. start: from the start of a process to its first outputs,
with the caches on disk that an earlier process left. cold start: the same with empty caches.
"""


def same(batch: int, time: int) -> Array:
    """Returns the lengths of a batch of sequences that all have `time` steps."""
    return np.full(batch, time, np.int64)


def uniform(batch: int, time: int) -> Array:
    """Returns random lengths of a batch of sequences, from a quarter of `time` to `time`."""
    lengths = np.random.default_rng(1).integers(max(1, time // 4), time + 1, batch)
    lengths[0] = time
    return lengths


def lognormal(batch: int, time: int) -> Array:
    """Returns random lengths as of sentences and recordings: log-normal around `time` / 8, up to `time`."""
    random = np.random.default_rng(1)
    lengths = np.exp(random.normal(np.log(time / 8), 0.8, batch)).astype(np.int64)
    lengths = np.clip(lengths, max(1, time // 100), time)
    lengths[0] = time
    return lengths


def of_vowels(batch: int, time: int) -> Array:
    """Returns the lengths of the utterances of Japanese Vowels; both arguments are ignored."""
    return np.array([len(frames) for frames in vowels()], np.int64)


LENGTHS: dict[str, Callable[[int, int], Array]] = {
    "dense": same,
    "ragged": uniform,
    "log-normal": lognormal,
    "vowels": of_vowels,
}
"""The functions that make the lengths of a case, from the number of sequences and the longest one's steps, by
the case's `lengths`.
"""

# Numbers that weights are uniform between, where it is not ±1/sqrt(hidden), as frameworks start them.
# With gains of 1 on what is normalized of the memory, a recurrence of random weights is chaotic: float32
# departs from float64 by 1e-3 within 100 steps.
RANGES = {"a": (0.5, 0.999), "gW": (0.5, 1.5), "gR": (0.05, 0.15), "gc": (0.5, 1.5)}


DEVICES = ("cpu", "cuda", "cuda-emulated")
"""Where a case is run: on the processor, on a GPU, or in the emulation of one, to try cases without a GPU."""


@dataclass(frozen=True)
class Case:
    """One cell at one size. `time` is the longest sequence's number of steps, `lengths` a name of LENGTHS,
    `mode` one of MODES; `directions` is 2 for both, `busy` a number of processes that count meanwhile, and
    `device` one of DEVICES.

    >>> print(Case("gru", 16, 100, 256, 256, "ragged"))
    gru 16x256 ragged
    >>> Case("gru", 1, 100, 64, 64).weight_bytes
    49152
    """

    cell: str
    batch: int
    time: int
    inputs: int
    hidden: int
    lengths: str = "dense"
    dtype: str = "float32"
    mode: str = "forward"
    layers: int = 1
    directions: int = 1
    busy: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Raises `InputError` for values that the benchmark does not have."""
        tables = ("cell", CELLS), ("lengths", LENGTHS), ("mode", MODES), ("device", DEVICES)
        for name, known in tables:
            if getattr(self, name) not in known:
                raise InputError(
                    f"the benchmark has no {name} {getattr(self, name)!r}; there are {', '.join(known)}"
                )
        if self.dtype not in ("float32", "float64"):
            raise InputError(f"the benchmark runs in float32 or float64, not in {self.dtype!r}")
        for name in ("batch", "time", "inputs", "hidden", "layers", "directions"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it should be 1 or more")
        if self.directions > 2:
            raise InputError(f"directions is {self.directions}; it should be 1 or 2")

    def __str__(self) -> str:
        """Formats the case in a few words, for tables: the cell, its sizes and what is not usual."""
        size = "vowels" if self.lengths == "vowels" else f"{self.batch}x{self.hidden}"
        parts = [self.cell, size, "ragged" if self.lengths == "vowels" else self.lengths]
        if self.lengths != "vowels":
            parts += [f"T={self.time}"] if self.time != 100 else []
            parts += [f"I={self.inputs}"] if self.inputs != self.hidden else []
        parts += [self.dtype] if self.dtype != "float32" else []
        parts += [f"{self.layers} layers"] if self.layers > 1 else []
        parts += ["both directions"] if self.directions > 1 else []
        parts += [MODES[self.mode].title] if self.mode != "forward" else []
        parts += [f"beside {self.busy} busy"] if self.busy else []
        parts += [f"on {self.device}"] if self.device != "cpu" else []
        return " ".join(parts)

    @property
    def ragged(self) -> bool:
        """True if the sequences differ in length."""
        return self.lengths != "dense"

    @property
    def training(self) -> bool:
        """True if gradients are computed too."""
        return self.mode == "training"

    @property
    def starts(self) -> bool:
        """True if each run is a process of its own."""
        return self.mode in ("start", "cold start")

    @property
    def steps_of(self) -> Array:
        """The steps of each sequence, int64 [batch]."""
        return LENGTHS[self.lengths](self.batch, self.time)

    @property
    def steps(self) -> int:
        """The steps of all sequences together."""
        return int(self.steps_of.sum())

    @property
    def outputs(self) -> int:
        """The number of features of an output, both directions together."""
        return self.hidden * self.directions

    @property
    def flops(self) -> int:
        """The multiplications and additions of the products with weights in one run, padding not counted.

        Training has three of each product: for the outputs, for the cotangents, and for the weights.
        """
        numbers = sum(int(np.prod(shape)) for shape in self.weight_shapes.values() if len(shape) > 1)
        return 2 * MODES[self.mode].products * self.steps * numbers

    @property
    def weight_bytes(self) -> int:
        """The bytes of the recurrent weights, which every step reads; for a cell without any, of a state."""
        shapes = [shape for name, shape in self.weight_shapes.items() if name.rpartition(".")[2] == "R"]
        numbers = sum(int(np.prod(shape)) for shape in shapes) or self.hidden
        return numbers * np.dtype(self.dtype).itemsize

    @property
    def answers(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the results to compare, by name: outputs, or in training gradients of all inputs."""
        if not self.training:
            return {"outputs": (self.steps, self.outputs)}
        return {"values": (self.steps, self.inputs)} | self.weight_shapes

    @property
    def weight_shapes(self) -> Shapes:
        """The shapes of the weights by name: "layer.direction.W" with several layers or directions."""
        cell = CELLS[self.cell]
        if self.layers == self.directions == 1:
            return cell.weights(self.inputs, self.hidden)
        return {
            f"{layer}.{direction}.{name}": shape
            for layer in range(self.layers)
            for direction in range(self.directions)
            for name, shape in cell.weights(self.outputs if layer else self.inputs, self.hidden).items()
        }

    @property
    def record(self) -> dict[str, Any]:
        """The case as plain data, which worker processes read and files of results hold."""
        return asdict(self)

    def arrays(self, seed: int = 0) -> dict[str, Array]:
        """Makes the arrays of the case: weights by name, "values" [steps, inputs] with the sequences end to
        end, "lengths" [batch], and for training "cotangents" [steps, outputs] of the outputs.
        """
        random, bound = np.random.default_rng(seed), self.hidden**-0.5
        numbers = {
            name: random.uniform(*RANGES.get(name.rpartition(".")[2], (-bound, bound)), shape)
            for name, shape in self.weight_shapes.items()
        }
        if self.lengths == "vowels":
            numbers["values"] = np.concatenate(vowels())
        else:
            numbers["values"] = random.standard_normal((self.steps, self.inputs))
        if self.training:
            numbers["cotangents"] = random.standard_normal((self.steps, self.outputs))
        arrays = {name: array.astype(self.dtype) for name, array in numbers.items()}
        arrays["lengths"] = self.steps_of
        return arrays


@cache
def vowels() -> tuple[Array, ...]:
    """Reads all 640 utterances of the Japanese Vowels data, each [frames, 12]."""
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError("the vowels are a Parquet file: pip install --group bench") from error
    column = parquet.read_table(DATA / "japanese_vowels.parquet").column("frames")
    return tuple(np.array(frames, np.float32) for frames in column.to_pylist())
