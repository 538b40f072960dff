"""Streams: steps one at a time are bit for bit what the whole sequence gives."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from random_steps import RandomStep, random_steps, sequences_for
from tolerance import assert_close
from zoo import rnn_of

import stepnet as sn
from stepnet import cells
from stepnet.compiler.values import leaves, transform
from stepnet.errors import InputError, StepError, StepnetError

Array = np.ndarray


def steps(count: int, rows: int, features: int = 3, seed: int = 0) -> Array:
    """Inputs [rows, steps, features]."""
    return np.random.default_rng(seed).normal(size=(rows, count, features)).astype("float32")


@pytest.mark.long(every=2)
@pytest.mark.parametrize("cell", sorted(cells.CELLS))
def test_every_cell_ends_in_the_same_state(cell: str):
    rnn = rnn_of(cell, 3, 5)
    x = steps(7, 2)
    whole, final = rnn(x)
    stream = rnn.stream(rows=2)
    given = np.stack([stream.step(x[:, at]) for at in range(7)], 1)
    np.testing.assert_array_equal(given, whole)
    for one, other in zip(leaves(stream.state), leaves(final), strict=True):
        np.testing.assert_array_equal(one, other)


def test_many_rows_and_threads():
    rnn = rnn_of("gru", 3, 16)
    x = steps(4, 300)
    whole, _ = rnn(x)
    stream = rnn.stream(rows=300)
    np.testing.assert_array_equal(np.stack([stream.step(x[:, at]) for at in range(4)], 1), whole)


def test_pieces_of_both_kinds_continue_one_another(engine: str):
    rnn = rnn_of("gru", 3, 5)
    x = steps(9, 2)
    whole, _ = rnn(x, engine=engine)
    first, state = rnn(x[:, :4], engine=engine)
    stream = rnn.stream(2, initial=state, engine=engine)
    rest = [stream.step(x[:, at]) for at in range(4, 9)]
    np.testing.assert_array_equal(np.concatenate([first, np.stack(rest, 1)], 1), whole)


def test_what_is_given_back_stays_as_it_was():
    stream = rnn_of("gru", 3, 5).stream()
    x = steps(2, 1)
    first = stream.step(x[:, 0])
    state = stream.state
    kept = first.copy(), state.copy()
    stream.step(x[:, 1])
    np.testing.assert_array_equal((first, state), kept)


# ---- beginning anew ----------------------------------------------------------------------------------------


def test_reset_begins_rows_anew(engine: str):
    rnn = rnn_of("gru", 3, 5)
    x = steps(3, 3)
    stream = rnn.stream(3, engine=engine)
    first = stream.step(x[:, 0])
    stream.step(x[:, 1])
    stream.reset(rows=[0, 2])
    again = stream.step(x[:, 0])
    np.testing.assert_array_equal(again[[0, 2]], first[[0, 2]])
    assert np.abs(again[1] - first[1]).max() > 1e-3
    stream.reset()
    np.testing.assert_array_equal(stream.step(x[:, 0]), first)


def test_reset_to_the_first_memory_or_a_given_one():
    rnn = rnn_of("gru", 3, 5)
    random = np.random.default_rng(3)
    initial, other = (random.normal(size=(2, 5)).astype("float32") for _ in range(2))
    x = steps(2, 2)
    stream = rnn.stream(2, initial=initial)
    first = stream.step(x[:, 0])
    stream.step(x[:, 1])
    stream.reset(rows=np.array([False, True]))
    np.testing.assert_array_equal(stream.step(x[:, 0])[1], first[1])
    stream.reset(rows=0, initial=other[:1])
    np.testing.assert_array_equal(stream.state[0], other[0])
    right, _ = rnn(x[:1, :1], initial=other[:1])
    np.testing.assert_array_equal(stream.step(x[:, 0])[0], right[0, 0])


def test_steps_are_counted_from_the_reset(engine: str):
    def step(x: Any, h: Any, p: Any, index: Any) -> tuple[Any, Any]:
        return x * 0 + index[:, None], h

    stream = sn.RNN(step, memory=1, inputs=sn.Spec(1, "float32")).stream(2, engine=engine)
    x = np.ones((2, 1), "float32")
    counted = [stream.step(x)[:, 0].tolist() for _ in range(2)]
    stream.reset(rows=1)
    counted.append(stream.step(x)[:, 0].tolist())
    assert counted == [[0, 0], [1, 1], [2, 0]]


def test_statics_belong_to_rows_and_change_with_them(engine: str):
    def step(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        return x + np.tanh(statics * 2), h

    rnn = sn.RNN(step, memory=1)
    x, still = np.ones((2, 1), "float32"), np.array([[1.0], [2.0]], "float32")
    stream = rnn.stream(2, statics=still, engine=engine)
    before = stream.step(x)
    stream.reset(rows=0, statics=np.array([[5.0]], "float32"))
    after = stream.step(x)
    right, _ = rnn(x[:, None], statics=np.array([[5.0], [2.0]], "float32"), engine=engine)
    np.testing.assert_array_equal(after, right[:, 0])
    assert before[0] != after[0]
    with pytest.raises(InputError, match="the statics have other features or dtypes than those"):
        stream.reset(rows=0, statics=np.array([[5.0, 1.0]], "float32"))


# ---- rows that go on from others ---------------------------------------------------------------------------


@pytest.mark.long(examples=8)
@settings(max_examples=25)
@given(st.data(), random_steps(), st.sampled_from(["interpret", "llvm"]))
def test_reordered_rows_go_on_as_those_they_come_from(data: st.DataObject, step: RandomStep, engine: str):
    """Before every step some rows go on from others: each is the sequence that was fed to it on its way."""
    batch = data.draw(sequences_for(step, "float32"))
    rows, count = len(batch.lengths), 4
    if not rows or not int(batch.lengths.min()):
        return
    rnn = step.rnn("float32")
    first = transform(lambda ragged: np.stack([one[0] for one in ragged]), batch.inputs)
    statics = transform(lambda one: np.repeat(np.asarray(one)[:1], rows, axis=0), batch.statics)
    stream = rnn.stream(rows, batch.initial, statics, engine)
    orders = [np.arange(rows), *(data.draw(st.permutations(range(rows))) for _ in range(count - 1))]
    orders[1] = np.array(orders[1]) // 2
    fed, origin, given = np.zeros((rows, 0), int), np.arange(rows), None
    for order in orders:
        if fed.shape[1]:
            stream.reorder(order)
        fed = np.concatenate([fed[order], np.arange(rows)[:, None]], axis=1)
        origin = origin[order]
        given = stream.step(first)
    whole, final = rnn(
        transform(lambda one: one[fed], first),
        transform(lambda one: np.asarray(one)[origin], batch.initial),
        statics,
        last_only=True,
        engine=engine,
    )
    for one, other in zip(leaves((given, stream.state)), leaves((whole, final)), strict=True):
        np.testing.assert_array_equal(one, other)


def keyed(x: Any, h: Any, p: Any, statics: Any, index: Any) -> tuple[Any, Any]:
    """Adds what each row has besides, and counts its steps."""
    h = h + x + (statics if isinstance(p, dict) else sn.reduce(statics, "sum"))
    return {"h": h, "index": index}, h


@pytest.mark.parametrize("beside", [False, True])
def test_memory_and_count_move_and_statics_stay(beside: bool, engine: str):
    still = np.array([[1.0], [10.0], [100.0]])
    statics = sn.Ragged.from_padded(still[:, None]) if beside else still
    rnn = sn.RNN(keyed, None if beside else {"p": still}, memory=1)
    stream = rnn.stream(3, statics=statics, begun=[0, 5, 7], engine=engine)
    x = np.zeros((3, 1))
    stream.step(x)
    stream.reorder([2, 0, 0])
    assert stream.state.tolist() == [[100], [1], [1]]
    found = stream.step(x)
    assert found["h"].tolist() == [[101], [11], [101]]
    assert found["index"].tolist() == [8, 1, 1]
    stream.reset(rows=1)
    stream.reorder(np.array([1, 1, 2], np.uint8))
    found = stream.step(x)
    assert found["h"].tolist() == [[1], [10], [201]]
    assert found["index"].tolist() == [0, 0, 2]


def test_a_stack_is_reordered_in_every_layer(engine: str):
    gru = cells.CELLS["gru"]
    layers = [cells.rnn("gru", gru.parameters(inputs, hidden=4)) for inputs in (3, 4)]
    stack, x, order = sn.Stack([layers[0], sn.Stack([layers[1]])]), steps(4, 3), [1, 2, 1]
    stream = stack.stream(3, engine=engine)
    for at in range(2):
        stream.step(x[:, at])
    stream.reorder(order)
    rest = [stream.step(x[order][:, at]) for at in (2, 3)]
    whole, final = stack(x, engine=engine)
    np.testing.assert_array_equal(np.stack(rest, axis=1), whole[order][:, 2:])
    for one, other in zip(leaves(stream.state), leaves(final), strict=True):
        np.testing.assert_array_equal(one, other[order])


WRONG_ORDERS: list[Any] = [
    0,
    [0],
    [0, 1, 2],
    [0, 2],
    [0, -1],
    [0.0, 1.0],
    [[0], [1]],
    np.array([True, True]),
    "ab",
    None,
]


@pytest.mark.long(each=True)
@pytest.mark.parametrize("order", WRONG_ORDERS)
@pytest.mark.parametrize("layers", [1, 2])
def test_orders_that_there_are_not(layers: int, order: Any):
    rnn = rnn_of("gru", 5, 5)
    stream = (sn.Stack([rnn, rnn]) if layers == 2 else rnn).stream(rows=2)
    x = steps(2, 2, 5)
    stream.step(x[:, 0])
    before = leaves(stream.state)
    with pytest.raises(InputError, match="rows is 2 indices from 0 to 1, where each row goes on from, not"):
        stream.reorder(order)
    for memory, kept in zip(leaves(stream.state), before, strict=True):
        np.testing.assert_array_equal(memory, kept)


def test_nothing_to_reorder_before_the_first_step():
    with pytest.raises(InputError, match="nothing was stepped yet: give the rows of initial= in the order"):
        rnn_of("gru", 3, 5).stream(rows=2).reorder([1, 0])


# ---- structures --------------------------------------------------------------------------------------------


def test_structures_come_back_as_structures():
    def step(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
        return {"sum": x["a"] + x["b"], "count": memory["n"]}, {"n": memory["n"] + 1}

    stream = sn.RNN(step, memory={"n": sn.Spec((), "int64")}).stream(2)
    x = {"a": np.ones((2, 1), "float32"), "b": np.full((2, 1), 2, "float32")}
    stream.step(x)
    given = stream.step(x)
    assert given["sum"].tolist() == [[3.0], [3.0]]
    assert given["count"].tolist() == [1, 1]
    assert stream.state["n"].tolist() == [2, 2]
    with pytest.raises(InputError, match=r"a step's inputs are array; those before were \{a: array, b"):
        stream.step(np.ones((2, 1), "float32"))


# ---- what is wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.ones((3, 3), "float32"), r"input x is \[3, 3\]; the stream has 2 rows: \[2, features...\]"),
        (np.ones(3, "float32"), r"input x is \[3\]; the stream has 2 rows"),
        (np.float32(1), r"input x is \[\]; the stream has 2 rows"),
        (np.ones((2, 4), "float32"), r"input x is float32\[2, 4\]; those before were float32\[2, 3\]"),
        (np.ones((2, 3)), r"input x is float64\[2, 3\]; those before were float32\[2, 3\]"),
    ],
)
def test_a_step_unlike_those_before(given: Array, expected: str):
    stream = rnn_of("gru", 3, 5).stream(rows=2)
    stream.step(steps(1, 2)[:, 0])
    with pytest.raises(InputError, match=expected):
        stream.step(given)


def test_a_first_step_of_another_number_of_rows():
    with pytest.raises(InputError, match=r"input x is \[1, 3\]; the stream has 2 rows"):
        rnn_of("gru", 3, 5).stream(rows=2).step(steps(1, 1)[:, 0])


@pytest.mark.parametrize("inputs", [None, 3])
def test_a_step_with_an_axis_of_steps(inputs: int | None):
    step = sn.RNN(lambda x, h, p: (h, h + x @ p), np.ones((3, 5), "float32"), memory=5, inputs=inputs)
    said = r"takes \[rows, features...\], without an axis of steps, and an input is \[2, 1, 3\]: "
    with pytest.raises(StepnetError, match=said):
        step.stream(rows=2).step(np.ones((2, 1, 3), "float32"))
    matrices = sn.RNN(lambda x, h, p: (h, h + x), memory=(1, 3))
    assert matrices.stream(rows=2).step(np.ones((2, 1, 3), "float32")).shape == (2, 1, 3)


@pytest.mark.parametrize("rows", [-1, 1.5, "two"])
def test_a_number_of_rows_that_is_none(rows: Any):
    with pytest.raises(InputError, match="rows is how many sequences are stepped side by side, from 0 to"):
        rnn_of("gru", 3, 5).stream(rows=rows)


@pytest.mark.parametrize("rows", [2, -1, [0, 5], 0.5, np.array([True]), [[0]]])
def test_rows_that_there_are_not(rows: Any):
    stream = rnn_of("gru", 3, 5).stream(rows=2)
    stream.step(steps(1, 2)[:, 0])
    with pytest.raises(InputError, match="rows is an index from 0 to 1, several of them or a mask"):
        stream.reset(rows=rows)


def test_backward_recurrences_have_no_stream():
    with pytest.raises(InputError, match="begins at a sequence's last step: it has no stream"):
        rnn_of("gru", 3, 5, reverse=True).stream()


def test_until_is_for_whole_sequences():
    params = cells.CELLS["gru"].parameters(inputs=3, hidden=5)
    rnn = sn.RNN(cells.gru, params, memory=5, until=lambda output, memory: output[:, 0] > 0)
    with pytest.raises(InputError, match="a stream runs on: it has no until="):
        rnn.stream()


def test_the_state_before_the_first_step_is_what_rows_begin_with(engine: str) -> None:
    rnn, chance = rnn_of("gru", 3, 5), np.random.default_rng(0)
    begin, added = (chance.normal(size=(rows, 5)).astype("f4") for rows in (2, 1))
    stream = rnn.stream(2, initial=begin, engine=engine)
    stream.add(2)
    stream.add(1, initial=added)
    stream.drop([0, 3])
    before = stream.state
    np.testing.assert_array_equal(before, np.concatenate([begin[1:], np.zeros((1, 5)), added]))
    assert before.dtype == np.float32
    before[:] = 7
    x = chance.normal(size=(3, 3)).astype("f4")
    outputs = stream.step(x)
    other = rnn.stream(3, initial=stream.state, engine=engine)
    np.testing.assert_array_equal(other.state, stream.state)
    expected = rnn(x[:, None], initial=np.concatenate([begin[1:], np.zeros((1, 5), "f4"), added]))[0][:, 0]
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


def test_the_dtype_of_the_state_is_known_as_inputs_are(engine: str) -> None:
    def step(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
        return memory["h"] + x * p, {"h": memory["h"] + x}

    rnn = sn.RNN(step, np.ones(3, "f4"), memory={"h": 3})
    layers = sn.Stack([rnn, rnn]).stream(2, initial=({"h": np.ones((2, 3))}, None), engine=engine)
    first, second = layers.state
    assert (first["h"].dtype, second["h"].dtype) == (np.float64, np.float32)
    assert rnn.stream(0, engine=engine).state["h"].shape == (0, 3)
    with pytest.raises(InputError, match=r"the initial memory `h` is \[1, 3\]; it should be \[2, 3\]"):
        rnn.stream(2, initial={"h": np.ones((1, 3))}, engine=engine).state  # noqa: B018
    rnn(np.ones((1, 2, 3)), engine=engine)
    assert rnn.stream(2, engine=engine).state["h"].dtype == np.float64


def test_the_state_of_a_graph_is_known_with_its_inputs(engine: str) -> None:
    rnn = rnn_of("gru", 3, 5)
    graph = sn.Graph(lambda x, p, statics: rnn(x, initial=np.tanh(statics))[0])
    statics = np.ones((2, 5), "f4")
    stream = graph.stream(2, statics=statics, engine=engine)
    with pytest.raises(InputError, match="the memory of a graph follows from its inputs, which are"):
        stream.state  # noqa: B018
    graph(np.ones((2, 1, 3), "f4"), statics=statics, engine=engine)
    for own in leaves(stream.state):
        np.testing.assert_allclose(own, np.tanh(statics), rtol=1e-6)
    given = graph.stream(2, statics=statics, initial=stream.state, engine=engine)
    assert all(map(np.array_equal, leaves(given.state), leaves(stream.state)))


def test_before_the_first_step():
    stream = rnn_of("gru", 3, 5).stream()
    with pytest.raises(InputError, match="nothing was stepped yet"):
        stream.reset(rows=0)
    stream.reset()


def test_numbers_outside_a_table_are_said_and_the_stream_goes_on():
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = h + p[x]
        return h, h

    table = np.arange(4, dtype="float32").reshape(4, 1)
    stream = sn.RNN(step, table, memory=1).stream()
    assert stream.step(np.array([3])).tolist() == [[3.0]]
    with pytest.raises(InputError, match="outside the rows of the parameter"):
        stream.step(np.array([4]))
    stream.reset()
    assert stream.step(np.array([2])).tolist() == [[2.0]]


def test_a_stream_of_sequences_that_were_begun(engine: str):
    def step(x: Any, h: Any, p: Any, index: Any) -> tuple[Any, Any]:
        return index, h + x

    stream = sn.RNN(step, memory=2).stream(rows=2, begun=[5, 0], engine=engine)
    found = [stream.step(np.ones((2, 2))).tolist() for _ in range(2)]
    assert found == [[5, 0], [6, 1]]
    stream.reset(0)
    assert stream.step(np.ones((2, 2))).tolist() == [0, 2]
    with pytest.raises(InputError, match="begun is a whole number from 0, or 2 of them"):
        sn.RNN(step, memory=2).stream(rows=2, begun=-1)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("beside", [False, True])
def test_reset_after_a_call_of_another_dtype(beside: bool, engine: str) -> None:
    def step(x: Any, h: Any, params: Any, statics: Any) -> Any:
        h = h + x + (sn.reduce(statics, "sum") if beside else statics)
        return h, h

    def given(dtype: Any) -> dict[str, Any]:
        static = np.ones((2, 3), dtype)
        return {"statics": sn.Ragged.from_padded(static[:, None]) if beside else static, "engine": engine}

    rnn, x = sn.RNN(step, memory=3), np.ones((2, 3))
    stream = rnn.stream(2, **given(np.float64))
    stream.step(x)
    rnn(np.ones((2, 4, 3), np.float32), **given(np.float32))
    initial = np.full((2, 3), 0.1)
    stream.reset(initial=initial)
    np.testing.assert_array_equal(stream.state, initial)
    np.testing.assert_array_equal(stream.step(x), initial + x + 1)


@pytest.mark.parametrize("beside", [False, True])
def test_a_step_that_was_refused_leaves_a_stream_as_it_was(beside: bool, engine: str) -> None:
    def step(x: Any, h: Any, params: Any, statics: Any) -> Any:
        h = h + x + (sn.reduce(statics, "sum") if beside else statics)
        return h, h

    static = np.ones((2, 3), np.float32)
    given = sn.Ragged.from_padded(static[:, None]) if beside else static
    stream = sn.RNN(step, memory=3).stream(2, statics=given, engine=engine)
    with pytest.raises(StepError, match=r"feature shapes do not fit together: f32\[3\] and f32\[7\]"):
        stream.step(np.ones((2, 7), np.float32))
    np.testing.assert_array_equal(stream.state, np.zeros((2, 3)))
    np.testing.assert_array_equal(stream.step(static), 2 * static)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_step_that_is_refused_is_not_taken(layers: int, engine: str):
    def looked_up(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        h = h + params["E"][x]
        return h, h

    def counted(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        return x, h + 1

    table = {"E": np.ones((3, 2), "float32")}
    below = sn.RNN(counted, memory=1, inputs=sn.Spec((), "int64"))
    above = sn.RNN(looked_up, table, memory=2, inputs=sn.Spec((), "int64"))
    stream = (sn.Stack([below, above]) if layers == 2 else above).stream(engine=engine)
    stream.step(np.array([1]))
    before = leaves(stream.state)
    with pytest.raises(InputError, match=r"outside|out of bounds"):
        stream.step(np.array([3]))
    for memory, kept in zip(leaves(stream.state), before, strict=True):
        np.testing.assert_array_equal(memory, kept)
    stream.step(np.array([2]))
    assert leaves(stream.state)[-1].tolist() == [[2, 2]]


def test_what_is_made_of_statics_is_made_anew_when_they_are_others() -> None:
    def step(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        h = np.tanh(x + h + np.exp(statics @ p))
        return h, h

    params, x = np.eye(3), np.ones((2, 3))
    first, second = np.zeros((2, 3)), np.full((2, 3), -1.0)
    rnn = sn.RNN(step, params, memory=3)
    stream = rnn.stream(2, statics=first)
    stream.step(x)
    stream.reset(statics=second)
    right, _ = rnn(x[:, None], statics=second, engine="interpret")
    assert_close(stream.step(x), right[:, 0], 1, 3)
