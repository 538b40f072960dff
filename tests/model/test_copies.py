"""The values that a recurrence keeps: its own parameters, which are copied, pickled and let go with it."""

import copy
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
from constants import Constants
from turns import in_turns
from zoo import simple as step

import stepnet as sn
from stepnet import cells
from stepnet.compiler.targets.cpu import engine as llvm_engine
from stepnet.compiler.targets.cpu.compile.compiled import CompiledPlans
from stepnet.compiler.values import leaves
from stepnet.errors import InputError
from stepnet.layout import layers
from stepnet.model import programs

Array = np.ndarray
X = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")


def weights(dtype: str = "float32") -> dict[str, Array]:
    random = np.random.default_rng(1)
    return {"W": random.normal(size=(3, 4)).astype(dtype), "R": random.normal(size=(4, 4)).astype(dtype)}


# ---- parameters are read when a recurrence is made


@pytest.mark.long(each=True)
@pytest.mark.parametrize("used", [False, True])
def test_later_changes_of_parameters_change_nothing(engine: str, used: bool):
    params = weights()
    rnn = sn.RNN(step, params, memory=4)
    expected = sn.RNN(step, weights(), memory=4)(X, engine=engine)[0]
    mask = np.ones((2, 5), bool)
    if used:
        rnn(X, engine="llvm")
    params["W"][...] = 0
    params["R"] = np.zeros((4, 4), "float32")
    np.testing.assert_array_equal(rnn(X, engine=engine)[0], expected)
    np.testing.assert_array_equal(rnn(X, mask=mask, engine=engine)[0], expected)
    stream = rnn.stream(2, engine=engine)
    np.testing.assert_array_equal(stream.step(X[:, 0]), expected[:, 0])
    wide = sn.RNN(step, weights(), memory=4)(X.astype("float64"), engine=engine)[0]
    np.testing.assert_array_equal(rnn(X.astype("float64"), engine=engine)[0], wide)


def test_a_recurrences_own_parameters_are_not_written_to():
    rnn = sn.RNN(step, weights(), memory=4)
    with pytest.raises(ValueError, match="read-only"):
        rnn.params["W"][...] = 0


# ---- the order of bytes


@pytest.mark.long(each=True)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8"])
def test_every_array_may_have_its_bytes_in_the_other_order(engine: str, dtype: str):
    other, random = np.dtype(dtype).newbyteorder(), np.random.default_rng(2)

    def drawn(*shape: int) -> Array:
        return random.integers(-4, 5, shape).astype(dtype)

    x, h, s, w, c = drawn(2, 3, 4), drawn(2, 4), drawn(2, 4), drawn(4, 4), drawn(4)

    def recurrence(order: Any) -> sn.RNN:
        constant = c.astype(order)

        def body(x: Any, h: Any, w: Any, statics: Any) -> tuple[Any, Any]:
            h = x * constant + statics * 2 - h + w[1] + np.array(4, order) * constant[0]
            return h, h

        return sn.RNN(body, w.astype(order), memory=sn.Spec(4, dtype))

    def result(order: Any) -> Any:
        return recurrence(order)(x.astype(order), h.astype(order), s.astype(order), engine=engine)

    for mine, right in zip(result(other), result(dtype), strict=True):
        np.testing.assert_array_equal(mine, right)
        assert mine.dtype.isnative


def test_parameters_of_a_product_may_have_their_bytes_in_the_other_order(engine: str):
    right = sn.RNN(step, weights(), memory=4)(X, engine=engine)[0]
    np.testing.assert_array_equal(sn.RNN(step, weights(">f4"), memory=4)(X, engine=engine)[0], right)
    stream = sn.RNN(step, weights(">f4"), memory=4).stream(2, engine=engine)
    np.testing.assert_array_equal(stream.step(X[:, 0].astype(">f4")), right[:, 0])


# ---- pickle and copy


def with_statics(x: Any, h: Any, params: Any, statics: Any, index: Any) -> tuple[Any, Any]:
    h = np.tanh(x @ params["W"] + h @ params["R"] + statics) + index.astype("float32")[:, None]
    return h, h


def ends(output: Any, memory: Any) -> Any:
    return output[:, 0] > 0.5


def nested(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
    outputs, last = INNER(x, initial="zeros")
    h = np.tanh(last + h)
    return sn.reduce(outputs, "mean"), h


INNER = cells.rnn("gru", cells.CELLS["gru"].parameters(3, 4))
DEEP = sn.Ragged.from_list([[X[0, :3], X[1, :2]], [X[0]]])
GRU = cells.CELLS["gru"].parameters(3, 4)
LSTM = {
    "kernel": np.ones((3, 16), "float32") / 3,
    "recurrent_kernel": np.eye(4, 16, dtype="float32"),
    "bias": np.zeros(16, "float32"),
}
HARD = {"gate_activation": "hard_sigmoid"}


def block() -> sn.RNN:
    """The recurrence that a with-block makes."""
    rnn = sn.create_rnn_op(output_num=1)
    with rnn.stepnet():
        x = rnn.add_input(X)
        h = rnn.add_memory(shape=[3])
        h.update(np.tanh(x + h.pre_state()))
        rnn.add_outputs(h)
    return rnn.recurrence


MADE: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "step": (sn.RNN(step, weights(), memory=4), (X,)),
    "every option": (
        sn.RNN(
            with_statics,
            weights(),
            memory=sn.Spec(4, "float32"),
            inputs=3,
            statics=4,
            reverse=True,
            unroll=3,
        ),
        (X, None, np.ones((2, 4), "float32")),
    ),
    "until": (sn.RNN(step, weights(), memory=4, until=ends), (X,)),
    "cell": (cells.rnn("gru", GRU), (X,)),
    "directions": (
        sn.Bidirectional(cells.rnn("gru", GRU), cells.rnn("gru", GRU, reverse=True), "sum"),
        (X,),
    ),
    "layers": (
        sn.Stack([cells.rnn("gru", GRU), cells.rnn("gru", cells.CELLS["gru"].parameters(4, 5))]),
        (X,),
    ),
    "nested": (sn.RNN(nested, memory=4), (DEEP,)),
    "block": (block(), ({"x": X},)),
    "equations": (layers(LSTM, "keras.lstm", semantics=HARD), (X,)),
}


@pytest.mark.long(every=2)
@pytest.mark.parametrize(("name", "used"), in_turns(MADE, [False, True]))
def test_pickles_and_copies_give_the_same_bits(name: str, used: bool):
    made, given = MADE[name]
    if used:
        made(*given)
    again = [pickle.loads(pickle.dumps(made)), copy.deepcopy(made), copy.copy(made)]
    right = leaves(made(*given))
    for one in again:
        assert repr(one) == repr(made)
        for mine, theirs in zip(leaves(one(*given)), right, strict=True):
            assert mine.equal(theirs) if isinstance(mine, sn.Ragged) else np.array_equal(mine, theirs)


def test_a_pickle_holds_no_machine_code():
    rnn = sn.RNN(step, weights(), memory=4)
    before = pickle.dumps(rnn)
    rnn(X)
    assert pickle.dumps(rnn) == before


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_stream_says_how_it_is_continued_elsewhere(duplicate: Any):
    stream = sn.RNN(step, weights(), memory=4).stream(2)
    stream.step(X[:, 0])
    with pytest.raises(InputError, match=r"a stream is not copied or pickled: .* initial=stream\.state"):
        duplicate(stream)


# ---- memory


def test_what_a_recurrence_captured_goes_with_it():
    captured = np.ones((4, 4))

    def holds(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        h = np.tanh(x[:, :1] + h @ captured + params)
        return h, h

    rnn = sn.RNN(holds, np.ones(4), memory=4)
    rnn(X)
    nets = [weakref.ref(rnn.net), weakref.ref(rnn.plan.net), weakref.ref(rnn.plan.body)]
    assert all(net() is not None for net in nets)
    del rnn
    gc.collect()
    assert [net() for net in nets] == [None] * 3


def test_equal_recurrences_are_compiled_once():
    compiled = [
        llvm_engine.LlvmEngine().compile_plan(sn.RNN(step, weights(), memory=4, inputs=3).plan).compiled
        for _ in range(2)
    ]
    assert compiled[0] is compiled[1]


def test_both_directions_are_compiled_once(engine: str):
    forward, backward = (sn.RNN(step, weights(), memory=4, inputs=3, reverse=way) for way in (False, True))
    compiled = [llvm_engine.LlvmEngine().compile_plan(rnn.plan).compiled for rnn in (forward, backward)]
    assert compiled[0] is compiled[1]
    for lengths in ([5, 5], [4, 0], [1, 3]):  # each on the code of both
        x = sn.Ragged.from_list([np.random.default_rng(n).normal(size=(n, 3)) for n in lengths])
        turned = sn.Ragged.from_list([np.array(row[::-1]) for row in x])
        outputs, final = backward(x, engine=engine)
        expected, expected_final = forward(turned, engine=engine)
        np.testing.assert_array_equal(final, expected_final)
        for row, other in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(row, other[::-1])


def test_compiled_plans_are_kept_up_to_so_many_bytes(constants: Constants):
    def kernel(number: int) -> Any:
        def numbered(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
            h = np.tanh(x @ params["W"] + h * (number + 0.5))
            return h, h

        return sn.RNN(numbered, weights(), memory=4, inputs=3)

    one = llvm_engine.LlvmEngine().compile_plan(kernel(0).plan).compiled.bytes
    kept = CompiledPlans(int(3.5 * one))
    constants(llvm_engine, KEPT=kept)
    rnns = [kernel(number) for number in range(5)]
    for rnn in rnns:
        rnn(X)
        assert len(kept.entries) <= 3
    assert len(kept.entries) == 3
    first = next(iter(kept.entries))
    kernel(2)(X)
    assert next(iter(kept.entries)) != first, "what was used last is kept longest"
    for number, rnn in enumerate(rnns):  # those that are no longer kept still run
        np.testing.assert_array_equal(rnn(X)[0], kernel(number)(X)[0])


def test_a_plan_larger_than_all_that_is_kept_is_kept_alone(constants: Constants):
    kept = CompiledPlans(1)
    constants(llvm_engine, KEPT=kept)
    cells.rnn("gru", GRU)(X)
    sn.RNN(step, weights(), memory=4)(X)
    assert len(kept.entries) == 1


def test_a_recurrence_keeps_the_traces_of_so_many_kinds_of_inputs(engine: str, constants: Constants):
    constants(programs, MOST_KINDS=4)

    def any_width(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        return x, h + x.sum(axis=-1)

    rnn = sn.RNN(any_width, None, memory=())
    for width in range(1, 8):
        _, final = rnn(np.ones((1, 2, width), "float32"), engine=engine)
        assert final.tolist() == [2 * width]
    assert len(rnn.programs.by_specs) == len(rnn.programs.by_arrays) == programs.MOST_KINDS
    assert rnn(np.ones((1, 2, 1), "float32"), engine=engine)[1].tolist() == [2]
