"""What is timed: a cell at one size, with weights and inputs from a seed, or the demo's utterances."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from stepnet.cli.demo import DATA
from stepnet.errors import InputError

Array = np.ndarray

# The gates of each cell, hence the width of its weights. Their equations are in peers/equations.py.
GATES = {"gru": 3, "lstm": 4, "minimal": 2, "custom": 2}
# Those that have a second bias, added to the recurrent product.
TWO_BIASES = ("gru",)


@dataclass(frozen=True)
class Case:
    """One cell at one size. `time` is the longest sequence's number of steps; `data` is "random" or "vowels".
    training: whether gradients are computed too, of the inputs and of all weights.

    >>> print(Case("gru", 16, 100, 256, 256, ragged=True))
    gru 16x256 ragged
    >>> Case("gru", 1, 100, 64, 64).weight_bytes
    49152
    """

    cell: str
    batch: int
    time: int
    inputs: int
    hidden: int
    ragged: bool = False
    dtype: str = "float32"
    data: str = "random"
    training: bool = False

    def __post_init__(self) -> None:
        if self.cell not in GATES:
            raise InputError(
                f"no cell of the benchmark is called {self.cell!r}; there are {', '.join(GATES)}"
            )
        if self.dtype not in ("float32", "float64"):
            raise InputError(f"the benchmark runs in float32 or float64, not in {self.dtype!r}")
        for name in ("batch", "time", "inputs", "hidden"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it should be 1 or more")

    def __str__(self) -> str:
        size = "vowels" if self.data == "vowels" else f"{self.batch}x{self.hidden}"
        parts = [self.cell, size, "ragged" if self.ragged else "dense"]
        if self.time != 100 and self.data == "random":
            parts.append(f"T={self.time}")
        if self.inputs != self.hidden and self.data == "random":
            parts.append(f"I={self.inputs}")
        if self.dtype != "float32":
            parts.append(self.dtype)
        if self.training:
            parts.append("training")
        return " ".join(parts)

    @property
    def lengths(self) -> Array:
        """The steps of each sequence, int64 [batch]: all `time`, or uniform from a quarter of it upwards."""
        if self.data == "vowels":
            return np.array([len(frames) for frames in vowels()], np.int64)
        if not self.ragged:
            return np.full(self.batch, self.time, np.int64)
        lengths = np.random.default_rng(1).integers(max(1, self.time // 4), self.time + 1, self.batch)
        lengths[0] = self.time
        return lengths

    @property
    def steps(self) -> int:
        """The steps of all sequences together."""
        return int(self.lengths.sum())

    @property
    def flops(self) -> int:
        """The multiplications and additions of the matrix products of one run, padding not counted.

        Training has three of each product: for the outputs, for the cotangents, and for the weights.
        """
        products = 3 if self.training else 1
        return 2 * products * self.steps * GATES[self.cell] * self.hidden * (self.inputs + self.hidden)

    @property
    def weight_bytes(self) -> int:
        """The bytes of the recurrent weights, which every step reads."""
        return GATES[self.cell] * self.hidden**2 * np.dtype(self.dtype).itemsize

    @property
    def answers(self) -> dict[str, tuple[int, ...]]:
        """The shapes of what a run is compared by: its outputs, or the gradients of all that it is given."""
        if not self.training:
            return {"outputs": (self.steps, self.hidden)}
        return {"values": (self.steps, self.inputs)} | self.weight_shapes

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights by name."""
        width = GATES[self.cell] * self.hidden
        shapes: dict[str, tuple[int, ...]] = {
            "W": (self.inputs, width),
            "R": (self.hidden, width),
            "b": (width,),
        }
        if self.cell in TWO_BIASES:
            shapes["d"] = (width,)
        if self.cell == "custom":
            shapes["v"] = (self.hidden,)
        return shapes

    @property
    def record(self) -> dict[str, Any]:
        """The case as plain data: what workers are told and what is saved."""
        return asdict(self)

    def arrays(self, seed: int = 0) -> dict[str, Array]:
        """Weights W [inputs, gates hidden], R [hidden, gates hidden], b (and d) [gates hidden], values
        [steps, inputs] with the sequences end to end, lengths [batch], and for training the cotangents
        [steps, hidden] of the outputs.

        Weights are uniform in ±1/sqrt(hidden), as frameworks start them.
        """
        random, bound = np.random.default_rng(seed), self.hidden**-0.5
        numbers = {name: random.uniform(-bound, bound, shape) for name, shape in self.weight_shapes.items()}
        if self.data == "vowels":
            numbers["values"] = np.concatenate(vowels())
        else:
            numbers["values"] = random.standard_normal((self.steps, self.inputs))
        if self.training:
            numbers["cotangents"] = random.standard_normal((self.steps, self.hidden))
        arrays = {name: array.astype(self.dtype) for name, array in numbers.items()}
        arrays["lengths"] = self.lengths
        return arrays


@cache
def vowels() -> tuple[Array, ...]:
    """All 640 utterances of the Japanese Vowels data, each [frames, 12]."""
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError("the vowels are a Parquet file: pip install --group bench") from error
    column = parquet.read_table(DATA / "japanese_vowels.parquet").column("frames")
    return tuple(np.array(frames, np.float32) for frames in column.to_pylist())


def vowels_case(hidden: int = 256, training: bool = False) -> Case:
    """The demo's batch: every utterance, a GRU of this width."""
    lengths = [len(frames) for frames in vowels()]
    return Case("gru", len(lengths), max(lengths), 12, hidden, True, data="vowels", training=training)


def grid(
    cells: Sequence[str],
    batches: Iterable[int],
    hiddens: Iterable[int],
    ragged: Iterable[bool],
    time: int = 100,
    dtype: str = "float32",
    training: bool = False,
) -> list[Case]:
    """Every combination, but no ragged batch of one sequence; inputs are as wide as the memory.

    >>> [str(case) for case in grid(["gru"], [1, 2], [8], [False, True])]
    ['gru 1x8 dense', 'gru 2x8 dense', 'gru 2x8 ragged']
    """
    hiddens, ragged = list(hiddens), list(ragged)
    return [
        Case(cell, batch, time, hidden, hidden, uneven, dtype, training=training)
        for cell in cells
        for batch in batches
        for hidden in hiddens
        for uneven in ragged
        if batch > 1 or not uneven
    ]


TARGET_SIZES = ((1, 64), (1, 256), (1, 512), (1, 1024), (16, 256), (64, 256), (64, 512), (64, 1024))


def target_cases() -> list[Case]:
    """The sizes that stepnet promises a speed for."""
    return [Case("gru", batch, 100, hidden, hidden) for batch, hidden in TARGET_SIZES] + [vowels_case()]
