"""Nets of random steps: one around another, and one that writes symbols; each with the loop that is right."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from random_steps import RandomStep, Sequences, wide

import stepnet as sn
from stepnet.compiler.values import leaves, rebuild, transform

Array = np.ndarray
POOLED: dict[str, Callable[[Array], Array]] = {
    "sum": lambda values: values.sum(0),
    "mean": lambda values: values.mean(0),
    "max": lambda values: values.max(0),
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}


def floats(step: RandomStep) -> dict[str, int]:
    """The number of floats in each memory of a step, its counter aside."""
    return {name: prod(spec.shape) for name, spec in step.memory.items() if spec.dtype is None}


def mixed(matrices: Any, memories: Any, shapes: dict[str, sn.Spec]) -> dict[str, Any]:
    """Values of these shapes, each made of all memories: by tanh, so that they stay within [-1, 1]."""
    found: dict[str, Any] = {}
    for name, parts in matrices.items():
        flat = [memories[one].reshape(-1, matrix.shape[0]) @ matrix for one, matrix in parts.items()]
        found[name] = np.tanh(sum(flat[1:], flat[0])).reshape(-1, *shapes[name].shape)
    return found


@dataclass(frozen=True)
class Nesting:
    """A random step around another. What the inner one remembers at its end enters the outer memories.

    carried: whether the inner memories begin as what the outer ones hold, so that both are one loop.
    reduction: what becomes of the inner outputs, over the steps of their sequence; None leaves them.
    """

    inner: RandomStep
    outer: RandomStep
    dtype: str
    reverse: bool
    carried: bool
    reduction: str | None

    @cached_property
    def params(self) -> dict[str, Any]:
        """The parameters of the outer step, and matrices between the memories of the two."""
        random, outer, inner = np.random.default_rng(5), floats(self.outer), floats(self.inner)

        def matrices(to: dict[str, int], of: dict[str, int]) -> dict[str, Any]:
            return {
                a: {
                    b: (random.uniform(-1, 1, (m, n)) / m).astype(np.float32).astype(self.dtype)
                    for b, m in of.items()
                }
                for a, n in to.items()
            }

        own = {name: array.astype(self.dtype) for name, array in self.outer.params.items()}
        return {"own": own, "up": matrices(outer, inner), "down": matrices(inner, outer)}

    def rnn(self, reverse: bool) -> sn.RNN:
        """The whole as a recurrence."""
        inner = self.inner.rnn(self.dtype, self.reverse)

        def run(x: Any, first: Any, still: Any) -> Any:
            outputs, final = inner(x, initial="zeros" if first is None else first, statics=still)
            how = self.reduction
            pooled = None if how is None else transform(lambda value: sn.reduce(value, how), outputs)
            return pooled, final

        return sn.RNN(self.step(run), self.params, memory=self.outer.memory, reverse=reverse)

    def step(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The step around what runs the inner recurrence."""

        def nested(x: Any, memory: Any, params: Any, statics: Any, index: Any) -> Any:
            first = None
            if self.carried:
                first = mixed(params["down"], memory, self.inner.memory)
                first |= {"count": index * 0} if "count" in self.inner.memory else {}
            pooled, final = run(x["inner"], first, x["still"])
            above = mixed(params["up"], final, self.outer.memory)
            new = {
                name: 0.5 * (memory[name] + above[name]) if name in above else memory[name] for name in memory
            }
            output, after = self.outer.function(x["outer"], new, params["own"], statics=statics, index=index)
            return (output, pooled), after

        return nested

    def by_hand(self, x: Any, first: Any, still: Any) -> Any:
        """The results of the inner recurrence for one sequence, by a loop: `run` on arrays."""
        step, length = self.inner, len(next(iter(x.values())))
        params = transform(wide, step.params)
        blank = {name: np.zeros((1, *spec.shape), spec.dtype or "f8") for name, spec in step.memory.items()}
        memory, outputs = first or blank, dict[int, Any]()
        for count, at in enumerate(reversed(range(length)) if self.reverse else range(length)):
            here = {name: array[at : at + 1] for name, array in x.items()}
            outputs[at], memory = step.function(here, memory, params, statics=still, index=np.array([count]))
        if self.reduction is None:
            return None, memory
        if not outputs:
            here = {name: np.zeros((1, *spec.shape)) for name, spec in step.inputs.items()}
            output, _ = step.function(here, memory, params, statics=still, index=np.zeros(1, np.int64))
            return transform(np.zeros_like, output), memory
        columns = zip(*(leaves(outputs[at]) for at in range(length)), strict=True)
        return rebuild(outputs[0], [POOLED[self.reduction](np.stack(column)) for column in columns]), memory

    def loop(self, given: "Groups", reverse: bool) -> tuple[list[list[Any]], list[Any]]:
        """Per group the outputs of its steps, and its last memory, in float64."""
        shown, finals = list[list[Any]](), list[Any]()
        step, params = self.step(self.by_hand), transform(wide, self.params)
        initial = given.flat.initial or {
            name: np.zeros((len(given), *spec.shape), spec.dtype or "f8")
            for name, spec in self.outer.memory.items()
        }
        for place, length in enumerate(given.flat.lengths.tolist()):
            memory, statics = (
                transform(lambda array, place=place: wide(array[place : place + 1]), part)
                for part in (initial, given.flat.statics)
            )
            outputs = dict[int, Any]()
            for count, at in enumerate(reversed(range(length)) if reverse else range(length)):
                x = given.step(place, at)
                outputs[at], memory = step(x, memory, params, statics, np.array([count]))
            shown.append([outputs[at] for at in range(length)])
            finals.append(memory)
        return shown, finals


@dataclass(frozen=True)
class Groups:
    """The arguments of a call of a nesting.

    flat: what the outer step is given. words: per inner input sequences of all groups, one after the other.
    still: the inner statics of each.
    """

    flat: Sequences
    words: dict[str, sn.Ragged]
    still: Any

    def __len__(self) -> int:
        return len(self.flat.lengths)

    @property
    def inputs(self) -> Any:
        """All sequences, as a recurrence takes them."""
        (outer,) = next(iter(self.flat.inputs.values())).offsets
        inner = {name: sn.Ragged(one.values, (outer, *one.offsets)) for name, one in self.words.items()}
        still = transform(lambda array: sn.Ragged(array, (outer,)), self.still)
        return {"inner": inner, "outer": self.flat.inputs, "still": still}

    def step(self, place: int, at: int) -> Any:
        """One step of one group in float64, as arrays of one row."""
        (outer,) = next(iter(self.flat.inputs.values())).offsets
        sentence = int(outer[place]) + at
        return {
            "inner": {name: wide(np.asarray(ragged[sentence])) for name, ragged in self.words.items()},
            "outer": {
                name: wide(np.asarray(ragged[place])[at : at + 1])
                for name, ragged in self.flat.inputs.items()
            },
            "still": transform(lambda array: wide(array[sentence : sentence + 1]), self.still),
        }


# ---- symbols ------------------------------------------------------------------


@dataclass(frozen=True)
class Writer:
    """A random step as a model of symbols: a table gives its inputs, and scores are made of its memories."""

    inner: RandomStep
    symbols: int

    @cached_property
    def table(self) -> dict[str, Array]:
        """Per input what each symbol is."""
        random = np.random.default_rng(6)
        return {
            name: random.uniform(-1, 1, (self.symbols, *spec.shape))
            for name, spec in self.inner.inputs.items()
        }

    @cached_property
    def params(self) -> dict[str, Any]:
        """The parameters of the step, and the matrices that make scores."""
        random = np.random.default_rng(7)
        scores = {
            name: random.uniform(-1, 1, (size, self.symbols)) for name, size in floats(self.inner).items()
        }
        return {"own": self.inner.params, "scores": {"all": scores}}

    def feed(self, symbols: Array) -> dict[str, Array]:
        """The inputs of symbols [rows]."""
        return {name: rows[symbols] for name, rows in self.table.items()}

    def step(self, x: Any, memory: Any, params: Any, statics: Any, index: Any) -> Any:
        """The step, whose output are scores."""
        _, after = self.inner.function(x, memory, params["own"], statics=statics, index=index)
        shape = {"all": sn.Spec(self.symbols)}
        return mixed(params["scores"], after, shape)["all"], after

    def rnn(self) -> sn.RNN:
        """The model."""
        return sn.RNN(self.step, self.params, memory=self.inner.memory)

    def loop(
        self, said: list[int], memory: Any, statics: Any, most: int, stops: tuple[int, ...]
    ) -> list[int]:
        """The sequence after one start: the symbol of the highest score is fed back."""
        written, ahead = list[int](), list(said)
        for count in range(len(said) + most - 1):
            x = self.feed(np.array([ahead[count]]))
            scores, memory = self.step(x, memory, self.params, statics, np.array([count]))
            if count >= len(said) - 1:
                written.append(int(scores[0].argmax()))
                ahead.append(written[-1])
                if written[-1] in stops:
                    break
        return written
