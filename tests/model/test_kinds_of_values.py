"""Inputs and memories of every shape and dtype, and inputs read backwards beside forward ones: what a plain
loop over the numbers of each sequence in float64 gives.
"""

from functools import cache
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tolerance import assert_close

import stepnet as sn
from stepnet.errors import InputError

Array = np.ndarray
F32, F64 = np.float32, np.float64
ENGINES = pytest.mark.parametrize("engine", ["interpret", "llvm"])
LENGTHS = st.lists(st.sampled_from([0, 1, 2, 3, 7]), max_size=5)
WORDS = 6
DRAWN = np.random.default_rng(5)
PARAMS = {
    "E": DRAWN.uniform(-1, 1, (WORDS, 3)),
    "R": DRAWN.uniform(-1, 1, (3, 3)),
    "G": DRAWN.uniform(-1, 1, (2, 3)),
}
MEMORY = {
    "h": sn.Spec(3),
    "grid": sn.Spec((2, 3)),
    "level": sn.Spec(()),
    "count": sn.Spec((), np.int64),
    "small": sn.Spec((), np.int32),
    "pair": sn.Spec((2, 1), np.int64),
    "seen": sn.Spec((), bool),
    "marks": sn.Spec(4, bool),
}


def step(x: Any, m: Any, p: Any, index: Any) -> Any:
    """Five inputs and eight memories, each of another shape or dtype."""
    word, flag = x["word"], x["flag"]
    h = np.tanh(x["frame"] + p["E"][word] + m["h"] @ p["R"])
    level = np.where(flag, 0, m["level"] * 0.5 + h.sum(axis=-1))
    grid = 0.5 * m["grid"] + x["grid"] @ p["G"] + h[:, None, :]
    few = x["rest"][0]
    after = {
        "h": h,
        "grid": grid,
        "level": level,
        "count": m["count"] + np.where(flag, word, 1),
        "small": ((m["small"] * 3 + few[:, 0] - few[:, 1]) % 7).astype(np.int32),
        "pair": np.maximum(m["pair"] - 1, few[:, :, None]),
        "seen": m["seen"] | flag,
        "marks": m["marks"] ^ (np.arange(4) == (word % 4)[:, None]),
    }
    return {**after, "early": (index < 2) & ~m["seen"], "before": m["count"]}, after


def step_by_hand(x: Any, m: Any, index: int) -> Any:
    """The same on the numbers of one sequence, in float64."""
    word, flag, few = int(x["word"]), bool(x["flag"]), x["rest"][0].astype(int).tolist()
    h = np.tanh(x["frame"] + PARAMS["E"][word] + PARAMS["R"].T @ m["h"])
    marks = m["marks"].copy()
    marks[word % 4] = not marks[word % 4]
    after = {
        "h": h,
        "grid": np.array(
            [
                [m["grid"][i, j] / 2 + x["grid"][i] @ PARAMS["G"][:, j] + h[j] for j in range(3)]
                for i in range(2)
            ]
        ),
        "level": 0.0 if flag else m["level"] / 2 + h[0] + h[1] + h[2],
        "count": m["count"] + (word if flag else 1),
        "small": (m["small"] * 3 + few[0] - few[1]) % 7,
        "pair": np.array([[max(m["pair"][i, 0] - 1, few[i])] for i in range(2)]),
        "seen": m["seen"] or flag,
        "marks": marks,
    }
    return {**after, "early": index < 2 and not m["seen"], "before": m["count"]}, after


@cache
def recurrence(dtype: str, reverse: bool) -> sn.RNN:
    """The recurrence, compiled once for all examples."""
    params = {name: array.astype(dtype) for name, array in PARAMS.items()}
    return sn.RNN(step, params, memory=MEMORY, reverse=reverse)


def drawn_inputs(lengths: list[int], seed: int, dtype: str) -> dict[str, Any]:
    """Inputs from Raggeds of their own, of the same lengths."""
    random, total = np.random.default_rng(seed), sum(lengths)

    def ragged(values: Array) -> sn.Ragged:
        return sn.Ragged(values, (np.cumsum([0, *lengths], dtype=np.int64),))

    return {
        "word": ragged(random.integers(0, WORDS, total)),
        "flag": ragged(random.uniform(size=total) < 0.3),
        "frame": ragged(random.uniform(-1, 1, (total, 6)).astype(dtype)[:, ::2]),
        "grid": ragged(random.uniform(-1, 1, (total, 2, 2)).astype(dtype)),
        "rest": (ragged(random.integers(-9, 9, (total, 2)).astype(np.int32)), None),
    }


def drawn_memory(count: int, seed: int, dtype: str) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {
        name: (random.uniform(-4, 4, (count, *spec.shape))).astype(spec.dtype or dtype)
        for name, spec in MEMORY.items()
    }


def row_of(structure: Any, row: int, number: int) -> Any:
    """The numbers of one step of one sequence, floats in float64."""
    if isinstance(structure, sn.Ragged):
        value = structure.to_list()[row][number]
        return value.astype(F64) if value.dtype.kind == "f" else value
    if isinstance(structure, dict):
        return {name: row_of(one, row, number) for name, one in structure.items()}
    return tuple(None if one is None else row_of(one, row, number) for one in structure)


@pytest.mark.long(each=True, examples=8)
@ENGINES
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(max_examples=20)
@given(LENGTHS, st.booleans(), st.booleans(), st.booleans(), st.integers(0, 99))
def test_inputs_and_memories_of_every_kind(
    engine: str, dtype: str, lengths: list[int], reverse: bool, padded: bool, begun: bool, seed: int
) -> None:
    inputs = drawn_inputs(lengths, seed, dtype)
    zeros = {
        name: np.zeros((len(lengths), *spec.shape), spec.dtype or dtype) for name, spec in MEMORY.items()
    }
    first = drawn_memory(len(lengths), seed, dtype) if begun else zeros
    given_, sizes = inputs, None
    if padded:
        given_ = {name: one.to_padded(fill=True)[0] for name, one in inputs.items() if name != "rest"}
        given_["rest"], sizes = (inputs["rest"][0].to_padded(fill=1)[0], None), np.array(lengths, int)
    rnn = recurrence(dtype, reverse)
    outputs, final = rnn(given_, first if begun else None, lengths=sizes, engine=engine)
    wanted_dtypes = {name: np.dtype(spec.dtype or dtype) for name, spec in MEMORY.items()}
    assert {name: array.dtype for name, array in final.items()} == wanted_dtypes
    assert (outputs["early"].dtype, outputs["before"].dtype) == (np.bool_, np.int64)
    for row, length in enumerate(lengths):
        memory = {
            name: array[row].astype(F64) if array.dtype.kind == "f" else array[row]
            for name, array in first.items()
        }
        for index in range(length):
            number = length - 1 - index if reverse else index
            output, memory = step_by_hand(row_of(inputs, row, number), memory, index)
            assert set(output) == set(outputs)
            for name, right in output.items():
                assert_close(outputs[name][row][number], right, length, 16)
        for name, right in memory.items():
            assert_close(final[name][row], right, max(1, length), 16)


@ENGINES
def test_counters_alone_of_every_dtype(engine: str) -> None:
    """Memories that no float comes near, and one that holds more than a float can."""
    large = 2**53
    memory = {"i": sn.Spec((), np.int32), "l": sn.Spec((), np.int64), "b": sn.Spec((2, 3), bool)}

    def count(x: Any, m: Any, p: Any) -> Any:
        after = {"i": m["i"] - 2, "l": m["l"] + x, "b": ~m["b"]}
        return after["l"], after

    x = sn.Ragged.from_list([np.array([1, 1, 1]), np.array([], int), np.array([5])])
    first = {
        "i": np.array([1, 2, 3], np.int32),
        "l": np.array([large, 0, -large]),
        "b": np.zeros((3, 2, 3), bool),
    }
    outputs, final = sn.RNN(count, memory=memory)(x, first, engine=engine)
    assert outputs.values.tolist() == [large + 1, large + 2, large + 3, 5 - large]
    assert final["i"].tolist() == [-5, 2, 1]
    assert final["l"].tolist() == [large + 3, 0, 5 - large]
    assert final["b"][:, 1, 2].tolist() == [True, False, True]
    assert [array.dtype for array in final.values()] == [np.int32, np.int64, np.bool_]


# ---- backwards beside forward ------------------------------------------------------------------------------


@st.composite
def raggeds(draw: st.DrawFn) -> sn.Ragged:
    """Sequences of one to three levels, of any lengths, features and dtype."""
    offsets: list[Array] = []
    count = draw(st.integers(0, 4))
    for _ in range(draw(st.integers(1, 3))):
        lengths = draw(st.lists(st.sampled_from([0, 1, 2, 4]), min_size=count, max_size=count))
        offsets.append(np.cumsum([0, *lengths], dtype=np.int64))
        count = int(offsets[-1][-1])
    shape = (count, *draw(st.sampled_from([(), (1,), (2, 3)])))
    values = np.arange(np.prod(shape)).reshape(shape) % 251
    return sn.Ragged(values.astype(draw(st.sampled_from(["f4", "i8", "u1", "bool"]))), tuple(offsets))


def turned(sequences: Any, levels: int) -> Any:
    """Nested lists of arrays, each array from its last step to its first."""
    return [one[::-1] if levels == 1 else turned(one, levels - 1) for one in sequences]


@pytest.mark.long(examples=15)
@given(raggeds())
def test_reversed_turns_each_sequence_of_steps_round(sequences: sn.Ragged) -> None:
    before = sequences.values.copy()
    found = sequences.reversed()
    expected = sn.Ragged.from_list(
        turned(sequences.to_list(), sequences.levels), sequences.dtype, sequences.features, sequences.levels
    )
    assert found.equal(expected)
    assert found.reversed().equal(sequences)
    assert not np.shares_memory(found.values, sequences.values)
    assert np.array_equal(sequences.values, before)


def test_reversed_leaves_sequences_where_they_are() -> None:
    words = sn.Ragged.from_list([[1, 2, 3], [], [4], [5, 6]])
    assert words.reversed().to_list()[0].tolist() == [3, 2, 1]
    assert words.reversed().lengths.tolist() == [3, 0, 1, 2]
    assert words.group([2, 2]).reversed().to_list()[1][1].tolist() == [6, 5]
    assert sn.Ragged.from_list([], features=2).reversed().lengths.tolist() == []


@pytest.mark.long(examples=15)
@given(LENGTHS, st.integers(0, 3))
def test_padding_stays_behind(lengths: list[int], more: int) -> None:
    time = max(lengths, default=0) + more
    x = np.full((len(lengths), time), -1)
    for row, length in enumerate(lengths):
        x[row, :length] = np.arange(length) + 10 * row
    found, _ = sn.Ragged.from_padded(x, np.array(lengths, int)).reversed().to_padded(length=time, fill=-1)
    for row, length in enumerate(lengths):
        assert found[row].tolist() == [*(10 * row + np.arange(length)[::-1]), *[-1] * (time - length)]


def both_ways(x: Any, h: Any, p: Any) -> Any:
    h = np.tanh(x["forward"] @ p["G"] + 0.5 * x["backward"][:, :1] + h @ p["R"])
    return {"h": h, "pair": x["forward"] - x["backward"]}, h


@cache
def both_recurrence(dtype: str, reverse: bool) -> sn.RNN:
    return sn.RNN(both_ways, {n: a.astype(dtype) for n, a in PARAMS.items()}, memory=3, reverse=reverse)


@pytest.mark.long(each=True, examples=8)
@ENGINES
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(max_examples=20)
@given(LENGTHS, st.booleans(), st.booleans(), st.integers(0, 99))
def test_an_input_read_backwards_beside_a_forward_one(
    engine: str, dtype: str, lengths: list[int], reverse: bool, padded: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    x = sn.Ragged.from_list([random.uniform(-1, 1, (n, 2)) for n in lengths], dtype, 2)
    given_: Any = {"forward": x, "backward": x.reversed()}
    sizes = None
    if padded:
        given_, sizes = {name: one.to_padded()[0] for name, one in given_.items()}, np.array(lengths, int)
    outputs, final = both_recurrence(dtype, reverse)(given_, lengths=sizes, engine=engine)
    for row, length in enumerate(lengths):
        numbers, h = x.to_list()[row].astype(F64), np.zeros(3)
        for number in range(length)[:: -1 if reverse else 1]:
            ahead, back = numbers[number], numbers[length - 1 - number]
            h = np.tanh(ahead @ PARAMS["G"] + back[0] / 2 + h @ PARAMS["R"])
            assert_close(outputs["h"][row][number], h, length, 6)
            assert_close(outputs["pair"][row][number], ahead - back, 1, 1)
        assert_close(final[row], h, max(1, length), 6)


@pytest.mark.long(examples=6)
@ENGINES
@settings(max_examples=20)
@given(LENGTHS, st.integers(0, 99))
def test_reversed_there_and_back_is_a_recurrence_from_the_last_step(
    engine: str, lengths: list[int], seed: int
) -> None:
    """Bit for bit, for the steps are the same in the same order."""
    random = np.random.default_rng(seed)
    x = sn.Ragged.from_list([random.uniform(-1, 1, (n, 2)) for n in lengths], "float32", 2)
    there = {"forward": x, "backward": x}
    turned_ = {"forward": x.reversed(), "backward": x.reversed()}
    outputs, final = both_recurrence("float32", False)(turned_, engine=engine)
    expected, last = both_recurrence("float32", True)(there, engine=engine)
    for name, one in outputs.items():
        assert one.reversed().equal(expected[name])
    assert final.tobytes() == last.tobytes()


# ---- inputs that do not fit together -----------------------------------------------------------------------


def of_lengths(*lengths: int) -> sn.Ragged:
    return sn.Ragged.from_list([np.ones((n, 2), F32) for n in lengths], features=2)


DIFFERENT: dict[str, tuple[str, Any]] = {
    "the first": (
        "inputs `a` and `b` have sequences of different lengths: sequence 0 has length 3 in `a` and 2 in `b`",
        {"a": of_lengths(3, 1), "b": of_lengths(2, 1)},
    ),
    "a later one of the third input": (
        r"inputs `a` and `c\.1` have sequences of different lengths: "
        r"sequence 2 has length 0 in `a` and 4 in `c\.1`",
        {
            "a": of_lengths(3, 1, 0, 2),
            "b": of_lengths(3, 1, 0, 2),
            "c": (of_lengths(3, 1, 0, 2), of_lengths(3, 1, 4, 2)),
        },
    ),
    "as many steps in all": (
        "sequence 1 has length 1 in `x.0` and 2 in `x.1`",
        (of_lengths(3, 1, 2), of_lengths(3, 2, 1)),
    ),
    "fewer sequences": (
        "inputs `a` and `b` have different sequences: `a` has 3 of them, and `b` has 2",
        {"a": of_lengths(3, 1, 0), "b": of_lengths(3, 1)},
    ),
    "arrays": (
        r"inputs `a` and `b` have different batch and time: \(2, 3\) and \(2, 4\); several sequences are one "
        r"input: Ragged.from_list\(\[...\]\)",
        {"a": np.ones((2, 3, 1)), "b": np.ones((2, 4, 1))},
    ),
    "a Ragged among arrays": (
        "input b is a Ragged among arrays, unlike input a; give all inputs as Raggeds or all as arrays",
        {"a": np.ones((2, 3, 1)), "b": of_lengths(3, 3)},
    ),
    "an array among Raggeds": (
        "input a is a Ragged among arrays, unlike input b; give all inputs as Raggeds or all as arrays",
        {"a": of_lengths(3, 3), "b": np.ones((2, 3, 1))},
    ),
    "an array among Raggeds of several levels": (
        "input a is a Ragged among arrays, unlike input b; give all inputs as Raggeds",
        {"a": of_lengths(3, 3).group([1, 1]), "b": np.ones((2, 1, 1))},
    ),
    "the outer level": (
        "inputs `a` and `b` have sequences of different lengths: sequence 1 has length 0 in `a` and 1 in `b`",
        {"a": of_lengths(3, 1, 2).group([2, 0, 1]), "b": of_lengths(3, 1, 2).group([2, 1, 0])},
    ),
    "the inner level": (
        "inputs `a` and `b` have sequences of different lengths: "
        "sequence 1 of sequence 2 has length 2 in `a` and 5 in `b`",
        {"a": of_lengths(3, 1, 2).group([1, 0, 2]), "b": of_lengths(3, 1, 5).group([1, 0, 2])},
    ),
    "sequences beside sequences of sequences": (
        "inputs `b` and `a` have sequences of different lengths: sequence 1 has length 2 in `b` and 3 in `a`",
        {"a": of_lengths(1, 3), "b": of_lengths(3, 1, 5).group([1, 2])},
    ),
    "fewer sequences of sequences": (
        "inputs `a` and `b` have different sequences: `a` has 2 of them, and `b` has 1",
        {"a": of_lengths(3, 1).group([1, 1]), "b": of_lengths(3, 1).group([2])},
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_inputs_whose_lengths_differ(name: str) -> None:
    message, inputs = DIFFERENT[name]
    rnn = sn.RNN(lambda x, h, p: (None, h), memory=1)
    for run in (rnn, rnn.trace_steps):
        with pytest.raises(InputError, match=f"^{message}$" if message.startswith("inputs") else message):
            run(inputs)


@pytest.mark.parametrize("sequences", [of_lengths(3, 1), of_lengths(3, 1).group([1, 1])], ids=["one", "two"])
def test_lengths_beside_a_ragged(sequences: sn.Ragged) -> None:
    rnn = sn.RNN(lambda x, h, p: (None, h), memory=1)
    for given_ in (sequences, {"a": sequences, "b": sequences}):
        for run in (rnn, rnn.trace_steps):
            with pytest.raises(InputError, match="a Ragged knows its lengths; lengths= goes with an array"):
                run(given_, lengths=[1, 1])


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([2, 4], r"lengths\[1\] is 4; the array has 3 steps"),
        ([-1, 4], r"lengths\[0\] is -1; the array has 3 steps"),
        ([1], r"lengths are 2 whole numbers, one per sequence, not int64\[1\]"),
        ([1.0, 2.0], r"lengths are 2 whole numbers, one per sequence, not float64\[2\]"),
    ],
)
def test_lengths_that_arrays_do_not_have(lengths: list[Any], message: str) -> None:
    rnn = sn.RNN(lambda x, h, p: (None, h), memory=1)
    for run in (rnn, rnn.trace_steps):
        with pytest.raises(InputError, match=f"^{message}$"):
            run({"a": np.ones((2, 3, 1)), "b": np.ones((2, 3, 1))}, lengths=lengths)


def test_the_same_lengths_from_anywhere() -> None:
    """Offsets that are equal, and not the same array, are the same lengths."""
    rnn = sn.RNN(lambda x, h, p: (x[0] + x[1], h), memory=1)
    outputs, _ = rnn((of_lengths(2, 0, 1), of_lengths(1, 0, 2).take([2, 1, 0])), engine="interpret")
    assert outputs.lengths.tolist() == [2, 0, 1]
    assert outputs.values.tolist() == [[2, 2]] * 3
