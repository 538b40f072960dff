"""Sequences written in machine code: the symbols are those of steps one by one, and of plain loops."""

import re
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest
from constants import Constants
from language_models import (
    CASES,
    EMBEDDED,
    HIDDEN,
    IDS,
    STARTS,
    SYMBOLS,
    TABLE,
    embedded,
    of_vectors,
    placed,
    ragged,
    weights,
)

import stepnet as sn
from stepnet.compiler.targets import Call
from stepnet.compiler.values import leaves
from stepnet.errors import InputError
from stepnet.model.generation import compiled as compiled_generation
from stepnet.model.generation import samplers
from stepnet.model.generation.decoder import Writer
from stepnet.model.generation.feedback import Choice
from stepnet.ragged import Positions

Array = np.ndarray
WAYS: list[dict[str, Any]] = [
    {"max_steps": 12},
    {"max_steps": 12, "stop": [2, 5]},
    {"max_steps": 2, "stop": [2, 5]},
    {"max_steps": 1, "stop": [2, 5]},
    {"max_steps": 12, "stop": range(SYMBOLS)},
    {"max_steps": 12, "stop": 4, "sampler": sn.sampling(2.0, top_k=4, top_p=0.9), "seed": 1},
]


# ---- the same symbols


@pytest.mark.long(every=4)
@pytest.mark.parametrize("name", CASES)
def test_symbols_are_those_of_steps_one_by_one(
    name: str, pieces: list[bool], one_by_one: Callable[..., Any]
) -> None:
    rnn, options = CASES[name]
    different = set[bytes]()
    for way in WAYS:
        found = sn.generate(rnn, ragged(STARTS), **options, **way)
        assert found.equal(one_by_one(sn.generate, rnn, ragged(STARTS), **options, **way)), way
        different.add(found.values.tobytes())
    assert pieces == [True] * len(pieces)
    assert len(pieces) >= 4
    assert len(different) >= 5


def test_symbols_are_those_of_a_plain_loop(pieces: list[bool]) -> None:
    params = weights(2, "float64", **EMBEDDED)
    found = sn.generate(CASES["float64"][0], ragged(STARTS), max_steps=12, stop=[2, 5])
    for start, symbols in zip(STARTS, found.to_list(), strict=True):
        h, given, wanted = np.zeros((1, HIDDEN)), list(start), list[int]()
        for at in range(len(start) + 11):
            scores, h = embedded(np.array([given[at]]), h, params)
            if at + 1 >= len(start):
                wanted.append(int(scores.argmax()))
                given.append(wanted[-1])
                if wanted[-1] in (2, 5):
                    break
        assert symbols.tolist() == wanted
    assert pieces == [True]
    assert len(set(found.lengths.tolist())) > 1


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", ["ids", "table", "statics", "stack", "float16"])
@pytest.mark.parametrize("tables", [True, False])
def test_memories_have_the_bits_of_a_stream(name: str, tables: bool, constants: Constants) -> None:
    """With rows of a table in the place of products, and without."""
    rnn, options = CASES[name]
    if not tables:
        constants("stepnet.model.generation.by_symbol", MOST_BYTES=0)
    constants(compiled_generation, KEPT=WeakKeyDictionary[Any, Any]())
    writer = Writer.of(rnn, options.get("feed"), None, "auto")
    stops = np.zeros(0, np.int64)
    front = writer.begin(ragged(STARTS), options.get("initial"), options.get("statics"), stops)
    wired = compiled_generation.Wired.of(writer, front, Choice(SYMBOLS, ()))
    assert isinstance(wired, compiled_generation.Wired)
    assert any(node.name == "by symbol" for node in wired.program.net.nodes) == tables
    first, count, rows = front.scores.argmax(axis=1), 6, len(STARTS)
    none = np.zeros(rows, bool)
    initial = [*wired.memories, first, front.begun, none, none]
    positions = Positions.end_to_end(np.arange(rows + 1) * count)
    call = Call(positions, [np.zeros(rows * count, bool)], initial, wired.statics)
    results = wired.program.bound("llvm")(call)
    stream = rnn.stream(rows, front.state, front.statics, begun=front.begun)
    symbols = first
    for at in range(count):
        symbols = stream.step(writer.feed(symbols)).argmax(axis=1)
        assert results.outputs[0].reshape(rows, count)[:, at].tolist() == symbols.tolist()
    for array, expected in zip(results.final, leaves(stream.state), strict=False):
        assert array.tobytes() == expected.tobytes()


def test_a_sequence_is_the_same_in_any_batch(pieces: list[bool]) -> None:
    """Also in batches so large that the machine code does not look itself which sequences have ended."""
    rnn = CASES["ids"][0]
    starts, options = np.arange(150) % SYMBOLS, {"max_steps": 30, "stop": 4, "sampler": sn.sampling(2.0)}
    every = sn.generate(rnn, starts, **options)
    assert len(set(every.lengths.tolist())) > 10
    for picked in ([0], [149, 3], list(range(40, 100))):
        assert sn.generate(rnn, starts[picked], identities=picked, **options).equal(every.take(picked))
    assert all(pieces)
    assert len(sn.generate(rnn, [], **options)) == 0


@pytest.mark.parametrize("name", ["statics", "positions"])
def test_pieces_change_nothing(name: str, constants: Constants) -> None:
    rnn, options = CASES[name]
    way: dict[str, Any] = {"max_steps": 12, "stop": 4, "sampler": sn.sampling(2.0)}
    whole = sn.generate(rnn, ragged(STARTS), **options, **way)
    for longest in (1, 3):
        constants(compiled_generation, MOST_STEPS=longest)
        assert sn.generate(rnn, ragged(STARTS), **options, **way).equal(whole)


# ---- errors, and what is fed behind the end


def test_what_is_behind_the_end_is_not_fed(pieces: list[bool], one_by_one: Callable[..., Any]) -> None:
    """The stop symbol has no embedding, and there is no position behind the last."""
    params = weights(5, **EMBEDDED, P=(8, HIDDEN))
    params["E"] = params["E"][:-1]
    rnn = sn.RNN(placed, params, memory=HIDDEN, inputs=IDS)
    options: dict[str, Any] = {"stop": SYMBOLS - 1, "max_steps": 8}
    starts = np.arange(SYMBOLS - 1)
    found = sn.generate(rnn, starts, **options)
    assert found.equal(one_by_one(sn.generate, rnn, starts, **options))
    assert set(found.lengths.tolist()) > {8}
    assert pieces == [True]
    with pytest.raises(InputError, match="an integer is outside the rows of the parameter"):
        sn.generate(rnn, starts, stop=SYMBOLS - 1, max_steps=10)


def test_a_score_that_is_no_number_raises_what_steps_raise(
    pieces: list[bool], one_by_one: Callable[..., Any]
) -> None:
    def step(x: Any, h: Any, p: Any) -> Any:
        return p[x] + np.where(h > 3, np.inf, 0.0)[:, None], h + 1

    for wrong in (np.inf, -np.inf, np.nan):
        rnn = sn.RNN(
            lambda x, h, p, wrong=wrong: (p[x] + np.where(h > 3, wrong, 0.0)[:, None], h + 1),
            weights(1, E=(SYMBOLS, SYMBOLS))["E"], memory=(), inputs=IDS,
        )  # fmt: skip
        with pytest.raises(InputError) as ours:
            sn.generate(rnn, [1, 2], max_steps=9)
        with pytest.raises(InputError) as theirs:
            one_by_one(sn.generate, rnn, [1, 2], max_steps=9)
        assert str(ours.value) == str(theirs.value)
        assert "the scores of row 0 have no highest" in str(ours.value)
        assert len(sn.generate(rnn, [1], max_steps=4)[0]) == 4
    assert pieces == [False, True] * 3


def test_a_table_that_changes_is_read_again() -> None:
    rnn, table = sn.RNN(of_vectors, weights(1, **EMBEDDED), memory=HIDDEN), TABLE.copy()
    before = sn.generate(rnn, [1], feed=table, max_steps=9)
    table[...] = table[::-1].copy()
    after = sn.generate(rnn, [1], feed=table, max_steps=9)
    assert not after.equal(before)
    assert after.equal(sn.generate(rnn, [1], feed=lambda symbols: table[symbols], max_steps=9))


# ---- why Python is needed


def attends(x: Any, h: Any, p: Any, statics: Any) -> Any:
    return sn.reduce(statics * h[:, None], "sum") @ p + p[x], h


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "feed": (CASES["ids"][0], {"feed": np.asarray}, "feed= is a function"),
    "scores": (CASES["ids"][0], {"scores": np.negative}, "scores= is a function"),
    "sampler": (
        CASES["ids"][0], {"sampler": lambda scores, random: scores.argmax(axis=1)},
        "sampler= is a function, and not one of sn.sampling",
    ),
    "few": (
        CASES["table"][0], {"feed": TABLE[:4], "stop": [4, 5, 6]},
        "there are scores of 7 symbols, and 4 can be fed",
    ),
    "engine": (CASES["ids"][0], {"engine": "interpret"}, "RNN(embedded, memory=array) runs on interpret"),
    "outputs": (
        sn.RNN(lambda x, h, p: ({"a": embedded(x, h, p)[0], "b": h}, h), weights(1, **EMBEDDED),
               memory=HIDDEN, inputs=IDS),
        {"scores": None}, "has several outputs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "outputs"])
def test_where_python_is_needed_there_is_a_reason(name: str, pieces: list[bool], reasons: list[str]) -> None:
    rnn, options, message = REFUSED[name]
    sn.generate(rnn, [1, 2, 3], max_steps=4, **options)
    assert reasons == [message]
    assert pieces == []


def test_symbols_are_drawn_among_few(constants: Constants, pieces: list[bool]) -> None:
    options: dict[str, Any] = {"max_steps": 5, "sampler": sn.sampling(2.0)}
    expected = sn.generate(CASES["ids"][0], [1, 2], **options)
    constants("stepnet.model.generation.feedback", MOST_SYMBOLS=SYMBOLS - 1)
    assert sn.generate(CASES["ids"][0], [1, 2], **options).equal(expected)
    assert pieces == [True]


# ---- drawing


@pytest.mark.long(each=True)
@pytest.mark.parametrize("engine", ["interpret", "llvm"])
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.3}, {"top_k": 3}, {"top_p": 0.6}, {"top_k": 5, "top_p": 0.95}]
)
def test_a_net_draws_what_arrays_draw(options: dict[str, Any], engine: str) -> None:
    """Equal scores and scores of -inf among them."""
    sampler, random = sn.sampling(**options), np.random.default_rng(2)
    scores = np.round(random.normal(size=(300, 9)) * 2).astype("float32")
    scores[random.random(size=scores.shape) < 0.1] = -np.inf
    numbers = random.random(300)
    rnn = sn.RNN(
        lambda x, h, p: (sampler.of_values(x["scores"], x["random"]), h),
        memory=1,
        inputs={"scores": 9, "random": sn.Spec((), "float64")},
    )
    found, _ = rnn({"scores": scores[None], "random": numbers[None]}, engine=engine)
    assert found[0].tolist() == sampler(scores, numbers).tolist()
    assert len(set(found[0].tolist())) > 3


# ---- ends in machine code


def test_until_ends_in_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is one call."""
    rnn = sn.RNN(lambda x, h, p: (h + x, h + x), memory=(), until=lambda output, memory: memory >= 100)
    x = np.ones((1, 5000))
    calls: list[int] = []
    bound = type(rnn.read(x, None, None, None).running.bound("auto"))
    run = bound.__call__

    def spied(self: Any, call: Call) -> Any:
        calls.append(call.positions.total)
        return run(self, call)

    monkeypatch.setattr(bound, "__call__", spied)
    outputs, final = rnn(x)
    assert outputs.lengths.tolist() == [100]
    assert final.tolist() == [100]
    assert calls == [5000]


def test_a_long_batch_is_written_call_by_call(pieces: list[bool]) -> None:
    assert samplers.MOST_SYMBOLS >= 100
    found = sn.generate(CASES["ids"][0], [1, 2], max_steps=700)
    again = sn.generate(CASES["ids"][0], [1, 2], max_steps=300)
    assert found.lengths.tolist() == [700, 700]
    assert [row[:300].tolist() for row in found.to_list()] == [row.tolist() for row in again.to_list()]
    assert re.fullmatch(r"\[True, True\]", str(pieces))
