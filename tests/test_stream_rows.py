"""Rows of a stream that come, go, wait and are saved: each has the bits of the sequence run by itself.

The model of a stream is a list of users. Each has a memory, a count of steps and statics, and takes a step by
a call of the recurrence over a sequence of one step.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from same_bits import assert_same_bits

import stepnet as sn
from stepnet import cells
from stepnet.values.structure import leaves, transform

Array = np.ndarray
RANDOM = np.random.default_rng(5)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype("float32")


# ---- recurrences of several kinds --------------------------------------------------------------------------


def with_all(x: Any, memory: Any, p: Any, statics: Any, index: Any) -> tuple[Any, Any]:
    """A vector, a matrix and a count in the memory; statics, of which something is computed once per row; and
    the number of the step.
    """
    key = np.tanh(statics["key"] @ p["K"])
    matrix = 0.5 * memory["matrix"] + key[:, :, None] * x[:, None, :]
    h = np.tanh(memory["h"] @ p["R"] + np.sum(matrix, axis=2) + 0.1 * index.astype(np.float32)[:, None])
    return {"h": h, "count": memory["count"]}, {"h": h, "matrix": matrix, "count": memory["count"] + 1}


def counting(x: Any, h: Any, p: Any, index: Any) -> tuple[Any, Any]:
    h = 0.9 * h + x @ p
    return h + index.astype(np.float32)[:, None], h


def over_keys(x: Any, h: Any, p: Any, statics: Any, index: Any) -> tuple[Any, Any]:
    h = np.tanh(h + x + sn.reduce(statics["keys"], "sum") * p + index.astype(np.float32)[:, None])
    return h, h


MEMORY = {"h": 3, "matrix": (3, 3), "count": sn.Spec((), "int64")}
PARAMS = {"K": numbers(4, 3, seed=1), "R": numbers(3, 3, seed=2)}
GRU = cells.CELLS["gru"]
Drawn = Callable[[np.random.Generator, int], Any]


@dataclass(frozen=True)
class Kind:
    """A recurrence of three inputs, and what makes memories and statics for so many rows; None for none."""

    layer: Any
    initial: Drawn
    statics: Drawn = lambda random, rows: None


def uniform(random: np.random.Generator, *shape: int) -> Array:
    return random.uniform(-1, 1, shape).astype("float32")


def all_of(random: np.random.Generator, rows: int) -> Any:
    return {
        "h": uniform(random, rows, 3),
        "matrix": uniform(random, rows, 3, 3),
        "count": random.integers(0, 9, rows),
    }


def keys(random: np.random.Generator, rows: int) -> Any:
    lengths = random.integers(0, 4, rows)
    return {"keys": sn.Ragged(uniform(random, int(lengths.sum()), 3), (np.append(0, lengths.cumsum()),))}


ALL = sn.RNN(with_all, PARAMS, memory=MEMORY)
KINDS = {
    "gru": Kind(cells.rnn("gru", GRU.parameters(3, 5)), lambda random, rows: uniform(random, rows, 5)),
    "all": Kind(ALL, all_of, lambda random, rows: {"key": uniform(random, rows, 4)}),
    "stack": Kind(
        sn.Stack(
            [
                sn.RNN(counting, numbers(3, 3, seed=3), memory=3),
                sn.Stack([cells.rnn("lstm", cells.CELLS["lstm"].parameters(3, 4))]),
            ]
        ),
        lambda random, rows: (
            uniform(random, rows, 3),
            ({"h": uniform(random, rows, 4), "c": uniform(random, rows, 4)},),
        ),
    ),
    "keys": Kind(
        sn.RNN(over_keys, numbers(3, seed=4), memory=3), lambda random, rows: uniform(random, rows, 3), keys
    ),
}


def row(structure: Any, place: int) -> Any:
    """One row of a structure, which is still a batch."""
    return transform(
        lambda leaf: leaf.take([place]) if isinstance(leaf, sn.Ragged) else leaf[place : place + 1], structure
    )


# ---- the model ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class User:
    """A row by itself. first: the memory that it began with; None for zeros."""

    layer: Any
    engine: str
    memory: Any
    first: Any
    statics: Any
    begun: int

    def step(self, x: Array) -> tuple[Any, "User"]:
        outputs, memory = self.layer(
            x[None, None], self.memory, self.statics, begun=self.begun, engine=self.engine
        )
        output = transform(lambda leaf: leaf[0, 0], outputs)
        return output, replace(self, memory=memory, begun=self.begun + 1)


class Histories:
    """A stream and its model, to both of which the same is done."""

    def __init__(self, data: st.DataObject, kind: Kind, engine: str, folder: Path) -> None:
        self.data, self.kind, self.engine, self.folder = data, kind, engine, folder
        self.random = np.random.default_rng(data.draw(st.integers(0, 2**32), label="seed"))
        self.users: list[User] = []
        self.stream = kind.layer.stream(rows=0, engine=engine)
        self.stepped = False

    def some(self, least: int = 0) -> list[int]:
        """Rows in any order."""
        every = st.permutations(range(len(self.users)))
        count = self.data.draw(st.integers(least, len(self.users)))
        return list(self.data.draw(every))[:count]

    def add(self) -> None:
        count = self.data.draw(st.integers(0, 5), label="rows that are added")
        memory, statics = self.kind.initial(self.random, count), self.kind.statics(self.random, count)
        begun = self.random.integers(0, 100, count)
        known = self.data.draw(st.booleans(), label="with a memory")
        indices = self.stream.add(count, memory if known else None, statics, begun=begun)
        assert indices.tolist() == list(range(len(self.users), len(self.users) + count))
        for place in range(count):
            own = row(memory, place) if known else None
            self.users.append(
                User(self.kind.layer, self.engine, own, own, row(statics, place), int(begun[place]))
            )

    def drop(self) -> None:
        gone = self.some()
        self.stream.drop(gone)
        self.users = [user for place, user in enumerate(self.users) if place not in gone]

    def step(self) -> None:
        rows = self.some() if self.data.draw(st.booleans(), label="a step of some") else None
        if not self.stepped and not self.users:
            return
        places = range(len(self.users)) if rows is None else rows
        x = uniform(self.random, len(places), 3)
        outputs = self.stream.step(x, rows)
        self.stepped = True
        for at, place in enumerate(places):
            output, self.users[place] = self.users[place].step(x[at])
            assert_same_bits(transform(lambda leaf, at=at: leaf[at], outputs), output)

    def reset(self) -> None:
        rows = self.some()
        memory = self.kind.initial(self.random, len(rows)) if self.data.draw(st.booleans()) else None
        statics = self.kind.statics(self.random, len(rows)) if self.data.draw(st.booleans()) else None
        self.stream.reset(rows, memory, statics)
        for at, place in enumerate(rows):
            user = self.users[place]
            self.users[place] = replace(
                user,
                memory=user.first if memory is None else row(memory, at),
                statics=user.statics if statics is None else row(statics, at),
                begun=0,
            )

    def reorder(self) -> None:
        order = [self.data.draw(st.integers(0, len(self.users) - 1)) for _ in self.users]
        self.stream.reorder(order)
        before = list(self.users)
        for place, source in enumerate(order):
            user = before[source]
            self.users[place] = replace(before[place], memory=user.memory, begun=user.begun)

    def save(self) -> None:
        """Rows that are saved come back, behind the others or in a stream of their own."""
        rows, path = self.some(), self.folder / "rows.safetensors"
        self.stream.save(path, rows, force=True)
        kept = [self.users[place] for place in rows]
        if self.data.draw(st.booleans(), label="into a stream of their own"):
            self.stream, self.users = self.kind.layer.stream(rows=0, engine=self.engine), []
        assert len(self.stream.load(path)) == len(rows)
        self.users += kept

    def check(self) -> None:
        assert self.stream.rows == len(self.users)
        if not self.stepped:
            return
        state = self.stream.state
        for place, user in enumerate(self.users):
            own = leaves(row(state, place))
            assert_same_bits(
                own, [np.zeros_like(leaf) for leaf in own] if user.memory is None else leaves(user.memory)
            )


def happens(histories: Histories, count: int) -> None:
    """So many things happen to a stream."""
    histories.add()
    for _ in range(count):
        what = ["add", "drop", "step", "step"]
        if histories.stepped:
            what += ["reset", "reorder", "save"]
        getattr(histories, histories.data.draw(st.sampled_from(what)))()
        histories.check()


@pytest.mark.parametrize(
    ("kind", "own"),
    [("gru", "llvm"), ("all", "llvm"), ("stack", "llvm"), ("keys", "llvm"), ("all", "interpret")],
)
def test_rows_have_the_bits_of_sequences_by_themselves(
    kind: str, own: str, tmp_path_factory: pytest.TempPathFactory
):
    folder = tmp_path_factory.mktemp("rows")

    @settings(max_examples=20, phases=[Phase.generate])
    @given(st.data())
    def run(data: st.DataObject) -> None:
        happens(Histories(data, KINDS[kind], own, folder), 14)

    run()
