"""`RNN` and `scan`: sequences in every form in which they come, and results in the form of what was given."""

from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from random_steps import RandomStep, random_steps, right, sequences_for
from same_bits import assert_same_bits
from tolerance import assert_close
from zoo import simple

import stepnet as sn
from stepnet.compiler.values import leaves
from stepnet.errors import InputError

Array = np.ndarray
F32 = np.float32
ENGINES = pytest.mark.parametrize("engine", ["interpret", "llvm"])
REVERSE = pytest.mark.parametrize("reverse", [False, True])
LENGTHS = (3, 0, 1, 4)
PARAMS = {
    "W": np.random.default_rng(1).uniform(-1, 1, (2, 3)).astype(F32),
    "R": np.random.default_rng(2).uniform(-1, 1, (3, 3)).astype(F32),
}


def sequences(seed: int = 0, dtype: Any = F32) -> list[Array]:
    random = np.random.default_rng(seed)
    return [random.uniform(-1, 1, (length, 2)).astype(dtype) for length in LENGTHS]


def by_hand(
    xs: list[Array], initial: Array | None = None, reverse: bool = False
) -> tuple[list[Array], Array]:
    """The simple recurrence as a loop: per sequence the outputs, and the last memories."""
    outputs: list[Array] = []
    finals: list[Array] = []
    for place, x in enumerate(xs):
        h = np.zeros((1, 3), F32) if initial is None else initial[place : place + 1]
        found: dict[int, Array] = {}
        for at in reversed(range(len(x))) if reverse else range(len(x)):
            found[at], h = simple(x[at : at + 1], h, PARAMS)
        outputs.append(np.concatenate([np.zeros((0, 3), F32), *(found[at] for at in range(len(x)))]))
        finals.append(h)
    return outputs, np.concatenate(finals)


@pytest.mark.long(examples=8)
@settings(max_examples=25)
@given(st.data(), random_steps(), st.booleans())
def test_random_steps_are_what_a_loop_over_arrays_gives(
    data: st.DataObject, step: RandomStep, reverse: bool
) -> None:
    batch = data.draw(sequences_for(step, "float64"))
    rnn = step.rnn("float64", reverse)
    outputs, final = rnn(batch.inputs, batch.initial, batch.statics, engine="interpret")
    expected, expected_final = right(step, batch, reverse)
    for output, wanted in zip(leaves(outputs), expected, strict=True):
        for found, one in zip(output, wanted, strict=True):
            assert len(found) == len(one)
            if len(one):
                assert_close(found, one, length=5, width=32)
    for name, one in expected_final.items():
        assert_close(final[name], one, length=5, width=32)


# ---- sequences in, sequences out ------------------------------------------------------------------


@ENGINES
@REVERSE
def test_a_ragged_for_a_ragged(engine: str, reverse: bool) -> None:
    xs = sequences()
    outputs, final = sn.RNN(simple, PARAMS, memory=3, reverse=reverse)(sn.Ragged.from_list(xs), engine=engine)
    expected, expected_final = by_hand(xs, reverse=reverse)
    assert isinstance(outputs, sn.Ragged)
    assert outputs.lengths.tolist() == list(LENGTHS)
    assert_close(outputs.values, np.concatenate(expected), 4, 3)
    assert_close(final, expected_final, 4, 3)
    assert outputs.dtype == final.dtype == F32


@ENGINES
@REVERSE
def test_an_array_for_an_array_with_zeros_beyond_the_lengths(engine: str, reverse: bool) -> None:
    xs = sequences()
    padded, lengths = sn.Ragged.from_list(xs).to_padded(fill=77)
    rnn = sn.RNN(simple, PARAMS, memory=3, reverse=reverse)
    outputs, final = rnn(padded, lengths=lengths, engine=engine)
    expected, expected_final = by_hand(xs, reverse=reverse)
    assert outputs.shape == (4, 4, 3)
    for output, one in zip(outputs, expected, strict=True):
        assert_close(output[: len(one)], one, 4, 3)
        assert not output[len(one) :].any()
    assert_close(final, expected_final, 4, 3)


@ENGINES
def test_an_array_without_lengths_is_all_steps(engine: str) -> None:
    x = np.stack([sequences(seed)[3] for seed in range(3)])
    outputs, final = sn.RNN(simple, PARAMS, memory=3)(x, engine=engine)
    assert_close(outputs, np.stack(by_hand(list(x))[0]), 4, 3)
    assert_close(final, outputs[:, -1], 4, 3)


@ENGINES
@REVERSE
@pytest.mark.parametrize("ragged", [True, False])
def test_last_only_is_each_sequences_own_last(engine: str, reverse: bool, ragged: bool) -> None:
    xs = sequences()
    rnn = sn.RNN(simple, PARAMS, memory=3, reverse=reverse)
    given_: Any = sn.Ragged.from_list(xs)
    padded, lengths = given_.to_padded()
    given_, lengths = (given_, None) if ragged else (padded, lengths.tolist())
    last, final = rnn(given_, lengths=lengths, last_only=True, engine=engine)
    expected = by_hand(xs, reverse=reverse)[1]
    assert isinstance(last, np.ndarray)
    assert_close(last, expected, 4, 3)
    assert_close(final, expected, 4, 3)
    assert not last[1].any()


@ENGINES
def test_initial_memories(engine: str) -> None:
    xs = sequences()
    initial = np.random.default_rng(5).uniform(-1, 1, (4, 3)).astype(F32)
    kept = initial.copy()
    outputs, final = sn.RNN(simple, PARAMS, memory=3)(sn.Ragged.from_list(xs), initial, engine=engine)
    expected, expected_final = by_hand(xs, initial)
    assert_close(outputs.values, np.concatenate(expected), 4, 3)
    assert_close(final, expected_final, 4, 3)
    assert final[1].tolist() == initial[1].tolist(), "a sequence of no steps keeps its memory"
    assert initial.tobytes() == kept.tobytes()


@ENGINES
@pytest.mark.parametrize("batch", [0, 1, 3])
def test_no_steps_and_no_sequences(engine: str, batch: int) -> None:
    rnn = sn.RNN(simple, PARAMS, memory=3)
    outputs, final = rnn(np.zeros((batch, 0, 2), F32), engine=engine)
    assert (outputs.shape, final.shape) == ((batch, 0, 3), (batch, 3))
    outputs, final = rnn(sn.Ragged(np.zeros((0, 2), F32), (np.zeros(batch + 1, np.int64),)), engine=engine)
    assert (len(outputs), final.shape) == (batch, (batch, 3))
    last, _ = rnn(np.zeros((batch, 0, 2), F32), last_only=True, engine=engine)
    assert last.shape == (batch, 3)
    assert not last.any()
    assert not final.any()


FORMS: dict[str, Callable[[Array], Any]] = {
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "every other": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "transposed": lambda x: np.asfortranarray(x),
    "time first": lambda x: x.transpose(1, 0, 2).copy().transpose(1, 0, 2),
    "backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
    "big-endian": lambda x: x.astype(">f4"),
    "part of a larger one": lambda x: np.pad(x, 2)[2:-2, 2:-2, 2:-2],
    "nested lists": lambda x: [[list(map(F32, step)) for step in one] for one in x],
}


@ENGINES
@pytest.mark.parametrize("form", [name for name in FORMS if name != "nested lists"])
def test_arrays_in_any_form(engine: str, form: str) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (3, 4, 2)).astype(F32)
    initial = np.random.default_rng(1).uniform(-1, 1, (3, 3)).astype(F32)
    rnn = sn.RNN(simple, PARAMS, memory=3)
    expected = rnn(x, initial, engine=engine)
    laid = FORMS[form](x)
    first = FORMS[form](initial[:, None])[:, 0]
    for actual, wanted in zip(rnn(laid, first, engine=engine), expected, strict=True):
        assert actual.tobytes() == wanted.tobytes()
    assert np.array_equal(laid, x), "what was given is left as it was"


@ENGINES
@pytest.mark.parametrize("called", [False, True])
def test_read_only_parameters_and_later_changes(engine: str, called: bool) -> None:
    """A recurrence has the parameters it was made with, whether it was called before they changed or not."""
    params = {name: array.copy() for name, array in PARAMS.items()}
    params["R"].setflags(write=False)
    rnn = sn.RNN(simple, params, memory=3)
    x = np.ones((1, 2, 2), F32)
    expected = sn.RNN(simple, PARAMS, memory=3)(x, engine=engine)
    if called:
        rnn(x, engine=engine)
    params["R"].setflags(write=True)
    for array in params.values():
        array[...] = 7
    del params["W"]
    assert_same_bits(rnn(x, engine=engine), expected)


# ---- dtypes ------------------------------------------------------------------


@pytest.mark.long(each=True)
@ENGINES
@pytest.mark.parametrize(
    ("inputs", "params", "expected"),
    [("f4", "f4", "f4"), ("f8", "f4", "f8"), ("f4", "f8", "f8"), ("f8", "f8", "f8")],
)
def test_results_have_the_promoted_dtype(engine: str, inputs: str, params: str, expected: str) -> None:
    given_ = {name: array.astype(params) for name, array in PARAMS.items()}
    rnn = sn.RNN(simple, given_, memory=3)
    outputs, final = rnn(np.ones((2, 3, 2), inputs), engine=engine)
    assert outputs.dtype == final.dtype == np.dtype(expected)
    wanted, _ = by_hand([np.ones((3, 2), F32)])
    assert_close(outputs[0], wanted[0], 3, 3, F32)


@ENGINES
def test_one_recurrence_serves_several_kinds_of_input(engine: str) -> None:
    rnn = sn.RNN(lambda x, h, p: (x * 2, h + x.sum(axis=-1)), memory=())
    for dtype in ("f4", "f8", "f4"):
        for features in (1, 3):
            outputs, final = rnn(np.ones((2, 3, features), dtype), engine=engine)
            assert (outputs.dtype, outputs.shape) == (np.dtype(dtype), (2, 3, features))
            assert final.tolist() == [3 * features] * 2
    assert rnn.net.type_of(rnn.net.inputs[0]).dtype == "float32", "the net is the latest one"


@ENGINES
def test_a_memory_of_a_declared_dtype(engine: str) -> None:
    def step(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
        positive = x[:, 0] > 0
        count = memory["count"] + positive.astype(np.int64)
        return count, {"count": count, "any": memory["any"] | positive, "wide": memory["wide"] + x}

    memory = {"count": sn.Spec((), np.int64), "any": sn.Spec((), bool), "wide": sn.Spec(1, np.float64)}
    x = np.array([[[1], [-1], [2]], [[-1], [-2], [-3]]], F32)
    outputs, final = sn.RNN(step, memory=memory)(x, engine=engine)
    assert outputs.dtype == np.int64
    assert outputs.tolist() == [[1, 1, 2], [0, 0, 0]]
    assert final["any"].tolist() == [True, False]
    assert (final["wide"].dtype, final["wide"].tolist()) == (np.float64, [[2.0], [-6.0]])


@ENGINES
def test_integers_alone(engine: str) -> None:
    step: Any = lambda x, h, p: (h // 2, h + x)  # noqa: E731
    x = np.arange(6).reshape(1, 6)
    outputs, final = sn.RNN(step, memory=sn.Spec((), np.int64))(x, engine=engine)
    assert outputs.tolist() == [[0, 0, 0, 1, 3, 5]]
    assert final.tolist() == [15]


@ENGINES
def test_tokens_and_an_embedding(engine: str) -> None:
    table = np.random.default_rng(0).uniform(-1, 1, (7, 2)).astype(F32)
    tokens = sn.Ragged.from_list([np.array([3, 6, 0]), np.array([], np.int64), np.array([1])])
    params = PARAMS | {"E": table}
    outputs, _ = sn.RNN(lambda x, h, p: simple(p["E"][x], h, p), params, memory=3)(tokens, engine=engine)
    expected, _ = by_hand([table[ids] for ids in tokens])
    assert outputs.dtype == F32
    assert_close(outputs.values, np.concatenate(expected), 3, 3)


# ---- structures ------------------------------------------------------------------


class State(NamedTuple):
    """A memory as a person may define it."""

    h: Any
    c: Any


MEMORIES: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "dict": ({"h": 3, "c": 3}, lambda m: (m["h"], m["c"]), lambda h, c: {"h": h, "c": c}),
    "tuple": ((sn.Spec(3), sn.Spec(3)), lambda m: m, lambda h, c: (h, c)),
    "namedtuple": (State(3, 3), lambda m: (m.h, m.c), lambda h, c: State(h, c)),
    "nested": (
        {"a": ({"h": 3},), "c": 3},
        lambda m: (m["a"][0]["h"], m["c"]),
        lambda h, c: {"a": ({"h": h},), "c": c},
    ),
    "list": ([sn.Spec(3), sn.Spec(3)], lambda m: m, lambda h, c: (h, c)),
}


@pytest.mark.long(each=True)
@ENGINES
@pytest.mark.parametrize("name", MEMORIES)
def test_memories_of_every_structure(engine: str, name: str) -> None:
    memory, taken, put = MEMORIES[name]

    def step(x: Any, state: Any, p: Any) -> tuple[Any, Any]:
        h, c = taken(state)
        h = np.tanh(x @ p["W"] + h @ p["R"])
        return h, put(h, c + h)

    xs = sequences()
    rnn = sn.RNN(step, PARAMS, memory=memory)
    outputs, final = rnn(sn.Ragged.from_list(xs), engine=engine)
    expected, last = by_hand(xs)
    h, c = taken(final)
    assert_close(h, last, 4, 3)
    assert_close(c, np.stack([one.sum(axis=0) for one in expected]), 4, 3)
    if name == "namedtuple":
        assert isinstance(final, State)
    again, _ = rnn(sn.Ragged.from_list(xs), initial=final, engine=engine)
    assert again.values.shape == outputs.values.shape


@ENGINES
def test_inputs_and_outputs_of_every_structure(engine: str) -> None:
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        left, (right_, number) = x["left"], x["rest"]
        return {"sum": left + right_, "more": (number * 2, None, State(left, h))}, h + left

    random = np.random.default_rng(0)
    offsets = (np.array([0, 2, 2, 5]),)
    left, right_ = (random.uniform(-1, 1, (5, 3)).astype(F32) for _ in range(2))
    number = np.arange(5)
    given_ = {
        "left": sn.Ragged(left, offsets),
        "rest": (sn.Ragged(right_, offsets), sn.Ragged(number, offsets)),
    }
    outputs, final = sn.RNN(step, memory=3)(given_, engine=engine)
    assert outputs["sum"].values.tolist() == (left + right_).tolist()
    assert outputs["more"][0].values.tolist() == (number * 2).tolist()
    assert outputs["more"][1] is None
    assert isinstance(outputs["more"][2], State)
    assert outputs["more"][2].c[0].tolist() == [[0, 0, 0], left[0].tolist()]
    assert_close(final[2], left[2:].sum(axis=0), 3, 3)
    last, _ = sn.RNN(step, memory=3)(given_, last_only=True, engine=engine)
    assert last["more"][0].tolist() == [2, 0, 8]


@ENGINES
def test_no_output(engine: str) -> None:
    x = np.ones((2, 3, 2), F32)
    outputs, final = sn.RNN(lambda x, h, p: (None, h + x), memory=2)(x, engine=engine)
    assert outputs is None
    assert final.tolist() == [[3, 3]] * 2


@ENGINES
@REVERSE
def test_statics_and_the_index(engine: str, reverse: bool) -> None:
    def step(x: Any, h: Any, p: Any, *, index: Any, statics: Any) -> tuple[Any, Any]:
        h = h + x * statics["scale"][:, None] + statics["shift"]
        return (h, index), h

    xs = sequences()
    scale, shift = np.arange(4, dtype=F32), np.ones((4, 2), F32) / 2
    rnn = sn.RNN(step, memory=2, reverse=reverse)
    (outputs, index), final = rnn(
        sn.Ragged.from_list(xs), statics={"scale": scale, "shift": shift}, engine=engine
    )
    for place, x in enumerate(xs):
        steps = list(range(len(x)))
        assert index[place].tolist() == (steps[::-1] if reverse else steps)
        assert_close(final[place], (x * scale[place] + shift[place]).sum(axis=0), 4, 2)
    assert index.dtype == np.int64
    assert outputs.values.shape == (8, 2)


# ---- scan, and looking at a recurrence ------------------------------------------------------------------


@ENGINES
def test_scan(engine: str) -> None:
    xs = sequences()
    initial = np.random.default_rng(5).uniform(-1, 1, (4, 3)).astype(F32)
    outputs, final = sn.scan(simple, initial, sn.Ragged.from_list(xs), PARAMS, engine=engine)
    expected, last = by_hand(xs, initial)
    assert_close(outputs.values, np.concatenate(expected), 4, 3)
    assert_close(final, last, 4, 3)
    totals, final = sn.scan(
        lambda x, h, p: (h["n"], {"n": h["n"] + x}),
        {"n": np.array([10, 20])},
        np.array([[1, 2], [3, 4]]),
        engine=engine,
    )
    assert totals.tolist() == [[10, 11], [20, 23]]
    assert final["n"].tolist() == [13, 27]


def test_with_inputs_given_it_can_be_looked_at_before_the_first_call() -> None:
    rnn = sn.RNN(simple, PARAMS, memory=3, inputs=2)
    assert str(rnn.net).startswith("net(\n    x: rows/steps f32[2],")
    assert len(rnn.plan.loop) == 1
    assert "tanh" in rnn.explain("interpret")


def test_without_inputs_it_can_be_looked_at_after_the_first_call() -> None:
    rnn = sn.RNN(simple, PARAMS, memory=3)
    with pytest.raises(InputError, match="the inputs are not known yet"):
        _ = rnn.net
    rnn(np.ones((1, 1, 2), F32), engine="interpret")
    assert rnn.net == sn.RNN(simple, PARAMS, memory=3, inputs=2).net


def test_text_of_an_rnn() -> None:
    assert (
        repr(sn.RNN(simple, PARAMS, memory={"h": 3}, reverse=True))
        == "RNN(simple, memory={h: array}, reverse=True)"
    )


def test_inputs_other_than_those_it_was_made_for() -> None:
    rnn = sn.RNN(simple, PARAMS, memory=3, inputs=2)
    with pytest.raises(
        sn.StepnetError, match=r"input x has features \[5\]; this recurrence was made for \[2\]"
    ):
        rnn(np.zeros((1, 4, 5)))
    with pytest.raises(
        sn.StepnetError, match=r"the inputs `x` are \{a: array\}; this recurrence was made for"
    ):
        rnn({"a": np.zeros((1, 4, 2))})


@pytest.mark.long(each=True)
@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("beside", [False, True])
def test_results_may_be_written_to_and_are_nobody_elses(
    beside: bool, steps: int, last_only: bool, engine: str
) -> None:
    def step(x: Any, h: Any, params: Any, statics: Any) -> Any:
        return (x, params), {"as it was": h["as it was"], "constant": params}

    xs, params = np.ones((2, steps, 3)), np.ones(3)
    initial = {"as it was": np.ones((2, 3)), "constant": np.ones((2, 3))}
    statics: Any = sn.Ragged.from_list([np.ones((2, 3))] * 2) if beside else np.ones((2, 3))
    rnn = sn.RNN(step, params, memory={"as it was": 3, "constant": 3})
    given = (xs, params, *initial.values(), statics.values if beside else statics)
    results = rnn(xs, initial, statics, last_only=last_only, engine=engine)
    for array in leaves(results):
        assert array.flags.writeable
        assert not any(np.shares_memory(array, other) for other in given)
        array[...] = 7
    np.testing.assert_array_equal(initial["as it was"], np.ones((2, 3)))
