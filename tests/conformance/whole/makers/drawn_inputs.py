"""Inputs of models, drawn at random by their axes, for the generators of models that are not Keras'."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from recording import Arrays, Recorder, Run

STEPS = (7, 5, 9)
"""The steps of a batch of three sequences, and of two sequences alone."""


@dataclass(frozen=True)
class Input:
    """An input of a model: its axes, as "N T 5", and what its numbers are.

    Attributes:
        axes: N is the batch, B a batch of one, T the steps, T5 five steps, U those of a second sequence; the
            rest are sizes.
        kind: "real", "tokens", "lengths" (of each sequence, known to stepnet), "counts" (the same, which it
            is given), "mask" (ones for the steps of each sequence) or "same" (one number).
        limit: The number of tokens, the size of real numbers or the one number.
        dtype: The dtype of the array.
    """

    axes: str
    kind: str = "real"
    limit: float = 1.0
    dtype: str = "f4"

    @property
    def letters(self) -> list[str]:
        """The axes, one word each."""
        return self.axes.split()

    @property
    def open(self) -> dict[int, str]:
        """The axes that have any size, by their numbers."""
        return {number: axis for number, axis in enumerate(self.letters) if axis in OPEN}

    def place(self, first: str) -> int | None:
        """The number of the axis of the batch ("NB") or of steps ("TU"); None if there is none."""
        return next((number for number, axis in enumerate(self.letters) if axis[0] in first), None)

    def drawn(self, random: np.random.Generator, rows: int, steps: int) -> np.ndarray:
        """Draws an array for `rows` sequences of `steps` steps each, with the model's order of axes."""
        sizes = {"N": rows, "B": 1, "T": steps, "U": steps + 2}
        shape = [sizes[axis] if axis in sizes else int(axis.removeprefix("T")) for axis in self.letters]
        match self.kind:
            case "tokens":
                drawn = random.integers(1, int(self.limit), shape)
            case "lengths" | "counts":
                drawn = np.full(shape, steps)
            case "mask" | "same":
                drawn = np.full(shape, self.limit)
            case _:
                drawn = random.normal(0, self.limit, shape)
        return np.asarray(drawn, self.dtype)


OPEN = ("N", "T", "U")


def moved(array: np.ndarray, batch: int | None, steps: int | None) -> np.ndarray:
    """Returns an array with the batch as first axis, a new one if it has none, and steps as second."""
    if batch is None:
        array, batch, steps = array[None], 0, None if steps is None else steps + 1
    places = [batch] if steps is None else [batch, steps]
    return np.moveaxis(array, places, range(len(places)))


def moved_back(array: np.ndarray, batch: int | None, steps: int | None) -> np.ndarray:
    """Undoes `moved`."""
    if batch is None:
        return np.asarray(array[0]) if steps is None else np.moveaxis(array[0], 0, steps)
    places = [batch] if steps is None else [batch, steps]
    return np.moveaxis(array, range(len(places)), places)


def real(axes: str, scale: float = 1.0) -> Input:
    """An input of real numbers."""
    return Input(axes, "real", scale)


def tokens(axes: str, limit: int) -> Input:
    """An input of whole numbers from 1 to below `limit`."""
    return Input(axes, "tokens", limit, "i8")


LENGTHS = Input("N", "lengths", dtype="i8")
COUNTS = Input("N", "counts", dtype="i8")
MASK = Input("N T", "mask")
ONES = Input("N T", "same")
"""A mask of a model whose backward recurrence would read the padding: of sequences of one length."""


def record(
    recorder: Recorder,
    name: str,
    file: str,
    about: str,
    inputs: Mapping[str, Input],
    run: Run,
    steps: tuple[int, int, int] = STEPS,
) -> None:
    """Runs a model on inputs that it draws, and adds it to a recorder, with the batch as first axis of all.

    Args:
        recorder: It has the model's file in its folder.
        name: The name of the model.
        file: The name of its file.
        about: What the model is.
        inputs: The inputs by name. With lengths or a mask among them, the rows of the batch are the single
            sequences, padded.
        run: What the framework gives.
        steps: The steps of the batch, and of two sequences alone.
    """
    random = np.random.default_rng(list(name.encode()))
    places = {key: (each.place("NB"), each.place("TU")) for key, each in inputs.items()}

    given = {key: each for key, each in inputs.items() if each.kind != "lengths"}
    with_steps = [key for key in inputs if places[key][1] is not None]

    def drawn(rows: int, count: int) -> Arrays:
        return {key: moved(each.drawn(random, rows, count), *places[key]) for key, each in given.items()}

    def result(arrays: Arrays) -> Arrays:
        rows, longest = arrays[with_steps[0]].shape[:2] if with_steps else (0, 0)
        known = np.array(steps if rows > 1 else [longest])
        every = {key: arrays.get(key, known.astype(each.dtype)) for key, each in inputs.items()}
        return run({key: moved_back(array, *places[key]) for key, array in every.items()})

    if any(each.kind in ("lengths", "counts", "mask") for each in inputs.values()):
        alone = [drawn(1, count) for count in steps]
        padded = {key: joined([arrays[key] for arrays in alone], places[key][1]) for key in given}
        lengths = {key: list(steps) for key in with_steps}
    else:
        padded, alone, lengths = drawn(3, steps[0]), [drawn(1, count) for count in steps[1:]], None
    first, second = map(result, alone[-2:])
    outputs = {key: axes_of(array, first[key], second[key]) for key, array in result(padded).items()}
    recorder.add(
        name,
        file,
        f"{about}: {', '.join(f'{key} [{each.axes}]' for key, each in inputs.items())}",
        lambda arrays: {key: moved(array, *outputs[key]) for key, array in result(arrays).items()},
        padded,
        alone,
        lengths,
        with_steps,
    )


def joined(arrays: list[np.ndarray], steps: int | None) -> np.ndarray:
    """Joins arrays of single sequences to a batch; zeros fill the steps, the axis `steps`, that one lacks."""
    if steps is None:
        return np.concatenate(arrays)
    longest = max(array.shape[1] for array in arrays)
    batch = np.zeros((len(arrays), longest, *arrays[0].shape[2:]), arrays[0].dtype)
    for row, array in zip(batch, arrays, strict=True):
        row[: array.shape[1]] = array[0]
    return batch


def axes_of(padded: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[int | None, int | None]:
    """The axes of the batch and of the steps in an output, which are those whose sizes differ between calls.

    Args:
        padded: The output for a batch of three.
        first: The output for a sequence alone.
        second: The output for another sequence alone, with another number of steps.
    """
    sizes = [*zip(padded.shape, first.shape, second.shape, strict=True)]
    steps = [number for number, (_, a, b) in enumerate(sizes) if a != b]
    rows = [number for number, each in enumerate(sizes) if each == (3, 1, 1)]
    ones = [number for number, each in enumerate(sizes) if each == (1, 1, 1)]
    return next(iter(rows or ones), None), next(iter(steps), None)


def batch(inputs: Mapping[str, Input], steps: int = STEPS[0]) -> Arrays:
    """Draws a batch with which a model is traced."""
    random = np.random.default_rng(0)
    return {key: each.drawn(random, 3, steps) for key, each in inputs.items()}
