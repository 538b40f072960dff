"""Rows of a stream that come, go, wait and are saved: each has the bits of the sequence run by itself.

The model of a stream is a list of users. Each has a memory, a count of steps and statics, and takes a step by
a call of the recurrence over a sequence of one step.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from same_bits import assert_same_bits
from zoo import uniform as drawn

import stepnet as sn
from stepnet import cells
from stepnet.compiler.values import leaves, transform
from stepnet.errors import InputError, StepnetError

Array = np.ndarray
RANDOM = np.random.default_rng(5)
numbers = partial(drawn, seed=0)


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


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "own"),
    [("gru", "llvm"), ("all", "llvm"), ("stack", "llvm"), ("keys", "llvm"), ("all", "interpret")],
)
def test_rows_have_the_bits_of_sequences_by_themselves(
    kind: str, own: str, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
):
    folder = tmp_path_factory.mktemp("rows")

    @settings(max_examples=20 if pytestconfig.option.long else 5, phases=[Phase.generate])
    @given(st.data())
    def run(data: st.DataObject) -> None:
        happens(Histories(data, KINDS[kind], own, folder), 14)

    run()


# ---- many rows, threads, and what was there before ---------------------------------------------------------


@pytest.mark.usefixtures("small_calls_are_shared", "same_threads")
@pytest.mark.parametrize("count", [1, 2])
def test_many_rows_in_any_slots(count: int):
    """More rows than run side by side, in sets of several threads, after growth and with gaps."""
    sn.set_threads(count)
    rnn, x = cells.rnn("gru", GRU.parameters(3, 40)), numbers(400, 6, 3, seed=7)
    whole, final = rnn(x)
    stream = rnn.stream(rows=90)
    stream.step(x[:90, 0])
    stream.add(310)
    stream.step(x[90:, 0], rows=range(90, 400))
    there = np.arange(400)
    for at in range(1, 6):
        gone = np.arange(at, len(there), 9)
        stream.drop(gone)
        there = np.delete(there, gone)
        np.testing.assert_array_equal(stream.step(x[there, at]), whole[there, at])
    np.testing.assert_array_equal(stream.state, final[there])


def test_each_row_counts_its_own_steps(engine: str):
    """Also where rows beside it are reset, wait or go on from others."""

    def numbered(x: Any, h: Any, p: Any, index: Any) -> tuple[Any, Any]:
        return index, h

    stream = sn.RNN(numbered, memory=1).stream(3, begun=[10, 20, 30], engine=engine)
    x = np.zeros((3, 1))
    assert stream.step(x).tolist() == [10, 20, 30]
    stream.reset(0)
    assert stream.step(x[:2], [1, 2]).tolist() == [21, 31]
    assert stream.step(x[:1], [2]).tolist() == [32]
    assert stream.step(x).tolist() == [0, 22, 33]
    stream.add(1, begun=5)
    stream.reorder([3, 1, 0, 2])
    assert stream.step(np.zeros((4, 1))).tolist() == [5, 23, 1, 34]


def test_rows_whose_statics_are_refused_are_not_there(engine: str):
    def step(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        h = h + x + np.tanh(p["E"][statics] @ p["W"])
        return h, h

    params = {"E": numbers(4, 3), "W": numbers(3, 3, seed=1)}
    rnn, x = sn.RNN(step, params, memory=3), numbers(2, 4, 3)
    stream = rnn.stream(2, statics=np.array([1, 3]), engine=engine)
    whole, _ = rnn(x, statics=np.array([1, 3]), engine=engine)
    np.testing.assert_array_equal(stream.step(x[:, 0]), whole[:, 0])
    if engine == "llvm":
        with pytest.raises(InputError, match="outside the rows of the parameter"):
            stream.add(statics=np.array([4]))
        with pytest.raises(InputError, match="outside the rows of the parameter"):
            stream.reset(0, statics=np.array([-5]))
    assert stream.rows == 2
    np.testing.assert_array_equal(stream.step(x[:, 1]), whole[:, 1])
    stream.add(3, statics=np.array([0, 2, 3]))
    np.testing.assert_array_equal(stream.step(x[:, 2], [0, 1]), whole[:, 2])
    new, _ = rnn(numbers(3, 1, 3), statics=np.array([0, 2, 3]), engine=engine)
    np.testing.assert_array_equal(stream.step(numbers(3, 1, 3)[:, 0], [2, 3, 4]), new[:, 0])


def test_a_stream_in_each_thread():
    rnn, wrong = KINDS["gru"].layer, list[int]()
    x = numbers(8, 40, 3, seed=9)
    right = rnn(x)[0]

    def run(own: int) -> None:
        stream = rnn.stream(rows=0)
        rows = since = 0
        for at in range(40):
            if at % 8 == 0:
                stream.add(1)
                rows, since = stream.rows, at
                stream.reset()
            outputs = stream.step(x[:rows, at - since])
            if not np.array_equal(outputs, right[:rows, at - since]):
                wrong.append(own)

    running = [threading.Thread(target=run, args=(own,)) for own in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong


# ---- what is wrong -----------------------------------------------------------------------------------------


def begun_stream(layers: int = 1, **options: Any) -> Any:
    rnn = cells.rnn("gru", GRU.parameters(3, 3))
    stream = (rnn if layers == 1 else sn.Stack([rnn] * layers)).stream(rows=2, **options)
    stream.step(numbers(2, 3))
    return stream


X = numbers(2, 3)
WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda stream: stream.step(X, rows=[1, 1]), "rows has the row 1 twice; name each row once"),
    (lambda stream: stream.step(X, rows=[0]), r"input x is \[2, 3\]; rows= names 1: \[1, features...\]"),
    (
        lambda stream: stream.step(X[:1], rows=2),
        "rows is an index from 0 to 1, several .*, not 2",
    ),
    (
        lambda stream: stream.step(X[:1].astype("f8"), rows=0),
        r"float64\[1, 3\]; those before were float32",
    ),
    (lambda stream: stream.drop(-1), "rows is an index from 0 to 1, several .*, not -1"),
    (
        lambda stream: stream.add(-1),
        "rows is how many rows are added, from 0 on, .*, not -1",
    ),
    (lambda stream: stream.add(2**24), "rows is how many .* with 2 at most 16777216"),
    (lambda stream: stream.add(2, begun=[1]), "begun is a whole number from 0, or 2 of them"),
    (
        lambda stream: stream.add(2, initial=X[:1]),
        r"the initial memory `\w+` is \[1, 3\]; it should be \[2, 3\]",
    ),
    (lambda stream: stream.add(2, statics=X), r"the statics are array; they were None"),
]


@pytest.mark.long(each=True)
@pytest.mark.parametrize(("call", "words"), WRONG)
@pytest.mark.parametrize("layers", [1, 2])
def test_what_is_refused_changes_nothing(layers: int, call: Callable[[Any], Any], words: str):
    stream = begun_stream(layers)
    if layers == 2 and ("initial memory" in words or "statics" in words):
        return  # which are tuples there
    before, state = stream.rows, leaves(stream.state)
    with pytest.raises(InputError, match=words):
        call(stream)
    assert stream.rows == before
    assert_same_bits(leaves(stream.state), state)


def test_errors_name_the_layer():
    stream = begun_stream(2)
    with pytest.raises(
        InputError, match=r"layer 1: the initial memory `\w+` is \[2, 3\]; it should be \[1, 3\]"
    ):
        stream.add(initial=(X[:1], X))
    with pytest.raises(
        InputError, match=r"layer 1: the initial memory `\w+` is \[2, 3\]; it should be \[1, 3\]"
    ):
        stream.reset(0, initial=(X[:1], X))
    with pytest.raises(InputError, match="layer 0: input x is float64"):
        stream.step(X.astype("f8"))


def test_rows_that_need_statics(engine: str):
    kind = KINDS["all"]
    stream = kind.layer.stream(1, statics=kind.statics(RANDOM, 1), engine=engine)
    stream.step(X[:1])
    with pytest.raises(InputError, match=r"the rows of this stream have statics, \{key: array\}; give"):
        stream.add()
    with pytest.raises(InputError, match="the statics have other features or dtypes than those"):
        stream.add(statics={"key": numbers(1, 5)})


def test_streams_without_rows(engine: str):
    rnn = KINDS["gru"].layer
    stream = rnn.stream(rows=0, engine=engine)
    with pytest.raises(InputError, match=r"the stream has no rows yet; add\(...\) some before"):
        stream.step(X[:0])
    with pytest.raises(InputError, match=r"rows is 0, and the stream has no rows; add\(...\) some"):
        stream.drop(0)
    stream.add(2)
    stream.drop([0, 1])
    stream.add(1, initial=numbers(1, 5))
    right, _ = rnn(X[:1, None], numbers(1, 5), engine=engine)
    np.testing.assert_array_equal(stream.step(X[:1]), right[:, 0])
    stream.drop(0)
    assert stream.step(X[:0]).shape == (0, 5)
    assert stream.state.shape == (0, 5)
    stream.reorder([])
    stream.reset()


def test_a_stream_of_a_bidirectional_is_refused():
    rnn = KINDS["gru"].layer
    both = sn.Bidirectional(rnn, cells.rnn("gru", GRU.parameters(3, 5), reverse=True))
    with pytest.raises(StepnetError, match="layer 1: layer 0: a Bidirectional begins at"):
        sn.Stack([rnn, sn.Stack([both])]).stream(rows=0)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (
            numbers(2, 4),
            r"input x is of float32\[4\] and 0 levels; .* float32\[3\] and 0",
        ),
        ({"a": X}, r"a step's inputs are \{a: array\}; those before were array"),
    ],
)
def test_a_called_step_unlike_those_before(x: Any, words: str):
    kind = KINDS["keys"]
    stream = kind.layer.stream(2, statics=kind.statics(RANDOM, 2))
    stream.step(X)
    with pytest.raises(InputError, match=words):
        stream.step(x)


# ---- arrays of the caller ----------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [False, True], ids=["stream", "add"])
@pytest.mark.parametrize("form", ["array", "tensor", "Ragged"])
def test_arrays_may_be_filled_anew_before_the_first_step(later: bool, form: str) -> None:
    """Memories, statics and counts of steps are those that were given, not what the arrays hold later."""
    memory, key, begun = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32), np.array([4, 7])

    def step(x: Any, h: Any, p: Any, statics: Any, index: Any) -> tuple[Any, Any]:
        once = sn.reduce(statics, "sum") if form == "Ragged" else statics
        return h + once + x + index.astype(np.float32)[:, None], h

    rnn = sn.RNN(step, memory=3)
    given: Any = key
    if form == "tensor":
        given = pytest.importorskip("torch").from_numpy(key)
    if form == "Ragged":
        given = sn.Ragged(key, (np.arange(3),))
    stream = rnn.stream(rows=0) if later else rnn.stream(rows=2, initial=memory, statics=given, begun=begun)
    if later:
        stream.add(rows=2, initial=memory, statics=given, begun=begun)
    for array in (memory, key, begun):
        array[...] = 99
    outputs = stream.step(np.zeros((2, 3), np.float32))
    assert outputs.tolist() == [[6.0] * 3, [9.0] * 3]


@pytest.mark.parametrize(("count", "new"), [(6, 1), (6, 5), (62, 3), (65, 65), (100, 1), (100, 30)])
def test_rows_come_go_wait_and_move_as_in_lists(count: int, new: int, tmp_path: Path) -> None:
    """Compared with sums and numbers of steps in lists: of few rows and many, which are kept otherwise."""
    random = np.random.default_rng(count + new)

    def step(x: Any, total: Any, params: Any, index: Any) -> tuple[Any, Any]:
        return {"total": total + x, "index": index}, total + x

    rnn = sn.RNN(step, memory=())
    stream, rows = rnn.stream(rows=count), [[0.0, 0] for _ in range(count)]

    def take(asked: Any, places: list[int]) -> None:
        x = random.integers(1, 100, len(places)).astype(float)
        made = stream.step(x, asked)
        assert made["index"].tolist() == [rows[place][1] for place in places]
        for value, place in zip(x.tolist(), places, strict=True):
            rows[place] = [rows[place][0] + value, rows[place][1] + 1]
        assert made["total"].tolist() == [rows[place][0] for place in places]

    for turn in range(6):
        take(None, [*range(len(rows))])
        one = int(random.integers(len(rows)))
        take(one, [one])
        some = random.permutation(len(rows))[: len(rows) // 2 + turn % 2]
        take(some, some.tolist())
        order = random.integers(0, len(rows), len(rows))
        stream.reorder(order)
        rows = [list(rows[source]) for source in order.tolist()]
        gone = set(random.choice(len(rows), new, replace=False).tolist())
        stream.drop(sorted(gone))
        rows = [own for row, own in enumerate(rows) if row not in gone]
        assert stream.add(rows=new + turn).tolist() == list(range(len(rows), len(rows) + new + turn))
        rows += [[0.0, 0] for _ in range(new + turn)]
        stream.reset(0)
        rows[0] = [0.0, 0]
        assert stream.state.tolist() == [total for total, _ in rows]
    stream.save(tmp_path / "rows.safetensors")
    stream = rnn.stream(rows=0)
    stream.load(tmp_path / "rows.safetensors")
    take(None, [*range(len(rows))])
    stream.reset()
    assert not np.any(stream.state)
