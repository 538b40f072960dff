"""Plain calls of shapes that were seen before: bit for bit what other calls give, in arrays of their own."""

import gc
import os
import warnings
import weakref
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from callers import on_threads
from constants import Constants
from same_bits import assert_same_bits

import stepnet as sn
from stepnet import cells
from stepnet.compiler.targets import Call
from stepnet.compiler.values import leaves, transform
from stepnet.errors import InputError
from stepnet.model import executables
from stepnet.model.programs import RAGGED_CALLS
from stepnet.ragged import Positions

Array = np.ndarray
RANDOM = np.random.default_rng(0)
GRU = cells.CELLS["gru"].parameters(5, 7)
LSTM = cells.CELLS["lstm"].parameters(5, 7)


def inputs(rows: int = 3, steps: int = 6) -> Array:
    return RANDOM.normal(size=(rows, steps, 5)).astype("f4")


def general(rnn: Any, x: Array, initial: Any = None, last_only: bool = False) -> Any:
    """The results by the way that all calls take."""
    return rnn(x, initial, begun=0, last_only=last_only)


def is_frozen(rnn: sn.Model) -> bool:
    """True if the shapes that were called last are frozen."""
    return any(rnn.programs.calls.idle.values())


def called_twice(rnn: Any, x: Any) -> Any:
    rnn(x)
    return rnn(x)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("cell", "params"), [("gru", GRU), ("lstm", LSTM)])
def test_calls_of_a_shape_give_what_other_calls_give(cell: str, params: Any, reverse: bool, last_only: bool):
    rnn = cells.rnn(cell, params, reverse=reverse)
    for _ in range(4):
        x = inputs()
        assert_same_bits(rnn(x, last_only=last_only), general(rnn, x, last_only=last_only))
    assert is_frozen(rnn)


def sequences(*lengths: int) -> sn.Ragged:
    return sn.Ragged.from_list([inputs(1, length)[0] for length in lengths])


@pytest.mark.long(every=3)
@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("layer", ["gru", "lstm", "stack", "graph"])
def test_raggeds_of_lengths_that_were_seen_give_what_other_calls_give(layer: str, last_only: bool):
    options: Any = {} if layer == "graph" else {"last_only": last_only}
    rnn = layer_of(layer)
    for lengths in ((3, 1, 6), (4,), (6, 3, 1)):
        for _ in range(RAGGED_CALLS + 2):
            x = sequences(*lengths)
            made, right = rnn(x, **options), layer_of(layer)(x, **options)  # the first call of a new one
            raggeds = [each for each in leaves(made) if isinstance(each, sn.Ragged)]
            assert len(raggeds) == (layer == "graph" or not last_only)
            assert all(each.offsets is x.offsets for each in raggeds)
            for ours, theirs in zip(leaves(made), leaves(right), strict=True):
                assert_same_bits(getattr(ours, "values", ours), getattr(theirs, "values", theirs))
        assert is_frozen(rnn)


def layer_of(name: str) -> Any:
    """A new recurrence, or several."""
    gru, above = cells.rnn("gru", GRU), cells.rnn("gru", cells.CELLS["gru"].parameters(7, 7))
    if name == "graph":
        return sn.Graph(lambda x, p: (gru(x)[1], np.tanh(above(gru(x)[0])[0])), inputs=5)
    return {"gru": gru, "lstm": cells.rnn("lstm", LSTM), "stack": sn.Stack([gru, above])}[name]


def test_other_raggeds_go_the_way_of_all_calls():
    """With empty sequences, with another order, and with features of another size."""
    rnn, x = cells.rnn("gru", GRU), sequences(3, 0, 2)
    for _ in range(3):
        assert_same_bits(rnn(x)[1][:1], rnn(x[:1])[1])
    called_twice(rnn, x[:1])
    with pytest.raises(InputError, match="time_major=True is for arrays"):
        rnn(x[:1], time_major=True)
    with pytest.raises(InputError, match="features"):
        rnn(x.with_values(x.values[:, :4]))


def test_lengths_that_come_once_replace_nothing_that_is_prepared():
    rnn, x = cells.rnn("gru", GRU), inputs()
    called_twice(rnn, x)
    prepared = list(rnn.programs.calls.idle)
    for length in range(1, 3 * executables.MOST_COUNTED):
        rnn(
            sequences(length, 4097)
        )  # with one of more than 4,096 steps a call is not prepared for any lengths
    assert list(rnn.programs.calls.idle) == prepared
    assert len(rnn.programs.calls.counts) == executables.MOST_COUNTED


def test_a_prepared_call_that_was_lost_is_prepared_again():
    """An interrupt between two instructions of Python may lose one, and an error while one is prepared."""
    calls, form = executables.Executables[str](), ("a form",)
    assert [calls.is_due(form) for _ in range(2)] == [False, True]
    calls.keep(form, "prepared", 0)
    assert calls.take(form) is not None
    for _ in range(executables.MOST_MISSED + 1):
        assert (calls.take(form), calls.is_due(form)) == (None, False)
    assert (calls.take(form), calls.is_due(form)) == (None, True)


def test_the_engines_of_a_frozen_call_may_be_several():
    rnn, x = cells.rnn("gru", GRU), inputs()
    for _ in range(3):
        assert_same_bits(rnn(x, engine=("llvm", "interpret")), general(rnn, x))
    assert is_frozen(rnn)
    with pytest.raises(InputError, match="engine is a name, or several"):
        rnn(x, engine=("llvm", 3))  # pyright: ignore[reportArgumentType]


def test_the_first_call_of_a_shape_freezes_nothing():
    rnn = cells.rnn("gru", GRU)
    rnn(inputs())
    assert not is_frozen(rnn)


def test_results_are_arrays_of_their_own():
    rnn = cells.rnn("gru", GRU)
    xs = [inputs() for _ in range(5)]
    results = [rnn(x) for x in xs]
    for x, result in zip(xs, results, strict=True):
        assert_same_bits(result, general(rnn, x))
    assert all(array.flags.writeable for array in results[-1])


def test_an_initial_memory_is_used_as_it_lies():
    rnn, x = cells.rnn("gru", GRU), inputs()
    called_twice(rnn, x)
    for _ in range(4):
        initial = RANDOM.normal(size=(3, 7)).astype("f4")
        before = initial.copy()
        assert_same_bits(rnn(x, initial), general(rnn, x, initial))
        assert np.array_equal(initial, before)


def layers() -> list[Any]:
    """A recurrence whose memory is a structure, and layers of it."""
    forward, backward, top = (
        cells.rnn("lstm", cells.CELLS["lstm"].parameters(size, 7), reverse=reverse)
        for size, reverse in ((5, False), (5, True), (14, False))
    )
    return [
        forward,
        sn.Bidirectional(forward, backward),
        sn.Stack([sn.Bidirectional(forward, backward), top]),
    ]


@pytest.mark.parametrize("layer", layers(), ids=["LSTM", "Bidirectional", "Stack"])
def test_initial_memories_in_a_structure_are_used_as_they_lie(layer: Any, monkeypatch: pytest.MonkeyPatch):
    x = inputs()
    _, memory = called_twice(layer, x)
    turned = transform(lambda array: RANDOM.normal(size=array.shape).astype("f4"), memory)
    expected = general(layer, x, turned)
    monkeypatch.setattr(type(layer), "read", None)
    assert_same_bits(layer(x, turned), expected)
    assert_same_bits(layer(x, other_order(turned)), expected)


def other_order(structure: Any) -> Any:
    """The structure with its dicts the other way round."""
    if isinstance(structure, dict):
        return {key: other_order(child) for key, child in reversed(structure.items())}
    return tuple(map(other_order, structure)) if isinstance(structure, tuple) else structure


def test_layers_that_begin_with_memories_for_some_are_run_as_ever():
    layer, x = layers()[2], inputs()
    _, memory = called_twice(layer, x)
    for initial in ((memory[0], None), (None, memory[1]), ({**memory[0], "forward": None}, memory[1])):
        assert_same_bits(layer(x, initial), general(layer, x, initial))


ODD_MEMORIES = [
    np.ones((3, 7), "f8"),
    np.ones((3, 7), ">f4"),
    np.ones((7, 3), "f4").T,
    "zeros",
]


@pytest.mark.parametrize("initial", ODD_MEMORIES, ids=["f8", "big-endian", "transposed", "zeros"])
def test_other_initial_memories_go_the_way_of_all_calls(initial: Any):
    rnn, x = cells.rnn("gru", GRU), inputs()
    called_twice(rnn, x)
    assert_same_bits(rnn(x, initial), general(rnn, x, initial))


def test_a_wrong_initial_memory_is_refused_as_before():
    rnn, x = cells.rnn("gru", GRU), inputs()
    called_twice(rnn, x)
    with pytest.raises(InputError, match=r"the initial memory `\w+` is \[2, 7\]; it should be \[3, 7\]"):
        rnn(x, np.ones((2, 7), "f4"))
    assert_same_bits(rnn(x), general(rnn, x))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.astype(">f4"),
        lambda x: np.asfortranarray(x),
        lambda x: x[:, ::2],
        lambda x: x.view(np.recarray),
        lambda x: x[:0],
        lambda x: x[:, :0],
    ],
    ids=["big-endian", "Fortran", "strided", "subclass", "no rows", "no steps"],
)
def test_other_arrays_of_the_shape_are_taken_too(change: Any):
    rnn = cells.rnn("gru", GRU)
    for _ in range(4):
        x = inputs()
        rnn(x)
        assert_same_bits(rnn(change(x)), general(rnn, np.ascontiguousarray(change(x), "f4")))


def test_each_dtype_has_its_own():
    rnn = cells.rnn("gru", GRU)
    for _ in range(3):
        x = inputs()
        assert rnn(x)[0].dtype == np.float32
        assert rnn(x.astype("f8"))[0].dtype == np.float64
        assert_same_bits(rnn(x), general(rnn, x))


def test_read_only_inputs_are_read():
    rnn = cells.rnn("gru", GRU)
    for _ in range(3):
        x = inputs()
        x.flags.writeable = False
        assert_same_bits(rnn(x), general(rnn, x))


def test_structures_come_back_as_ever():
    def step(x, memory, params):
        h = np.tanh(x @ params + memory["h"])
        return {"h": h, "twice": (h + h, x)}, {"h": h, "count": memory["count"] + 1}

    rnn = sn.RNN(step, np.ones((5, 4), "f4"), memory={"h": 4, "count": sn.Spec((), "int32")})
    for _ in range(4):
        x = inputs()
        outputs, final = rnn(x)
        assert_same_bits((outputs, final), general(rnn, x))
        assert list(outputs) == ["h", "twice"]
        assert final["count"].tolist() == [6, 6, 6]


def test_the_latest_trace_is_that_of_the_latest_call():
    rnn = cells.rnn("gru", GRU)
    x = inputs()
    for _ in range(3):
        rnn(x)
    single = rnn.program
    rnn(x.astype("f8"))
    assert rnn.program is not single
    rnn(x)
    assert rnn.program is single


def test_few_shapes_are_kept():
    rnn = cells.rnn("gru", GRU)
    for steps in range(1, executables.MOST_FORMS + 9):
        for _ in range(3):
            x = inputs(17, steps=steps)  # calls of few sequences of other sizes are prepared for any lengths
            found, final = rnn(np.swapaxes(x, 0, 1).copy(), time_major=True)
            assert_same_bits((np.swapaxes(found, 0, 1), final), general(rnn, x))
    assert len(rnn.programs.calls.idle) == executables.MOST_FORMS


def test_all_recurrences_together_keep_a_bounded_number_of_bytes(constants: Constants):
    constants(executables, RECENT=OrderedDict[Any, Any]())
    first, x = cells.rnn("gru", GRU), inputs(4)
    called_twice(first, x)
    ((_, size),) = executables.RECENT.values()
    assert size > 0
    constants(executables, MOST_BYTES=3 * size)
    others = [cells.rnn("gru", GRU) for _ in range(3)]
    for count, rnn in enumerate(others, 2):
        called_twice(rnn, x)
        assert len(executables.RECENT) == min(count, 3)
    assert [is_frozen(rnn) for rnn in (first, *others)] == [False, True, True, True]
    assert_same_bits(called_twice(first, x), general(first, x))
    assert [is_frozen(rnn) for rnn in (first, *others)] == [True, False, True, True]


def test_recurrences_that_are_gone_count_no_more(constants: Constants):
    constants(executables, RECENT=OrderedDict[Any, Any]())
    # All are made first: a later one could have the place in memory of one that is gone, and its key.
    (gone, *others), x = [cells.rnn("gru", GRU) for _ in range(3)], inputs()
    called_twice(others[0], x)
    ((_, size),) = executables.RECENT.values()
    called_twice(gone, x)
    calls = weakref.ref(gone.programs.calls)
    del gone
    gc.collect()
    assert calls() is None
    constants(executables, MOST_BYTES=2 * size)
    called_twice(others[1], x)
    assert owners() == [rnn.programs.calls for rnn in others]
    assert [is_frozen(rnn) for rnn in others] == [True, True]


def owners() -> list[Any]:
    """The caches whose executables count, the oldest first."""
    return [owner() for owner, _ in executables.RECENT.values()]


def test_threads_that_evict_at_once_leave_the_cache_in_order(constants: Constants):
    class Emptied(OrderedDict[Any, Any]):
        """A cache whose last entries another thread has evicted by the time of the first eviction."""

        def popitem(self, last: bool = True) -> Any:
            self.clear()
            return super().popitem(last)

    constants(executables, RECENT=Emptied(), MOST_BYTES=0)
    rnn, x = cells.rnn("gru", GRU), inputs()
    right = rnn(x)
    for _ in range(3):
        assert_same_bits(rnn(x)[0], right[0])


def test_a_frozen_call_keeps_its_constants():
    # Of several threads that make a first call at once each has a runner, of which one is kept.
    rnn, x = cells.rnn("gru", GRU), inputs(1, 6)
    right = rnn(x)
    bound = rnn.program.kernels["auto"].bind(leaves(rnn.params))
    call = Call(Positions.end_to_end(np.array([0, 6])), [x.reshape(6, 5)], [None])
    frozen, constants = bound.prepare(call), weakref.ref(bound.native.constants)  # type: ignore[attr-defined]
    del bound
    gc.collect()
    assert constants() is not None
    assert frozen is not None
    assert_same_bits(frozen.run([x.reshape(6, 5), None], None).outputs[0], right[0][0])


def test_the_caller_s_arrays_are_let_go():
    rnn, x, initial = cells.rnn("gru", GRU), inputs(), np.zeros((3, 7), "f4")
    kept = [weakref.ref(array) for array in (x, initial)]
    for _ in range(3):
        rnn(x, initial)
    assert is_frozen(rnn)
    del x, initial
    gc.collect()
    assert [array() for array in kept] == [None, None]


def test_calls_that_need_much_memory_are_not_frozen():
    def step(x: Any, memory: Any, _: Any) -> Any:
        memory = memory * 0.5 + x[:, :, None] * x[:, None, :]
        return memory.sum(axis=-1), memory

    rnn, x = sn.RNN(step, memory=(200, 200)), RANDOM.normal(size=(40, 3, 200)).astype("f4")
    for _ in range(3):
        assert_same_bits(rnn(x), general(rnn, x))
    assert not is_frozen(rnn)


def test_a_memory_in_a_structure_is_given_in_it_every_time():
    rnn = sn.RNN(lambda x, m, _: (x, {"h": m["h"] + x}), memory={"h": 5})
    for _ in range(4):
        with pytest.raises(InputError, match="initial is"):
            rnn(inputs(), np.zeros((3, 5), "f4"))
        rnn(inputs())
    assert is_frozen(rnn)


def test_an_integer_outside_a_table_is_refused_and_then_forgotten():
    rnn = sn.RNN(lambda x, h, p: (p[x], h), np.eye(3, dtype="f4"), memory=1, inputs=sn.Spec((), "int64"))
    good, bad = np.array([[0, 2]]), np.array([[0, 3]])
    for _ in range(3):
        assert_same_bits(rnn(good), general(rnn, good))
        with pytest.raises(InputError, match="outside the rows"):
            rnn(bad)


@pytest.mark.usefixtures("small_calls_are_shared", "same_threads")
def test_the_number_of_threads_may_change():
    rnn = cells.rnn("gru", cells.CELLS["gru"].parameters(5, 300))
    x = inputs(2, 40)
    right = general(rnn, x)
    for count in (1, 2, 3, 1, 2):
        sn.set_threads(count)
        for _ in range(3):
            assert_same_bits(rnn(x), right)


def test_threads_of_the_caller_share_no_frozen_call():
    rnn = cells.rnn("gru", GRU)
    xs = [inputs(4, 30) for _ in range(4)]
    right = [general(rnn, x) for x in xs]

    def call(place: int) -> None:
        for _ in range(300):
            assert_same_bits(rnn(xs[place]), right[place])

    on_threads(4, call)


def test_the_interpreter_has_no_quicker_way():
    rnn, x = cells.rnn("gru", GRU), inputs()
    results = [rnn(x, engine="interpret") for _ in range(3)]
    assert not is_frozen(rnn)
    assert_same_bits(results[0], results[2])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_prepares_calls_that_threads_of_its_parent_had_taken():
    rnn, x = cells.rnn("gru", GRU), inputs(17)  # many sequences: prepared for this size
    for _ in range(3):
        rnn(x)
    (form,) = rnn.programs.calls.idle
    taken = rnn.programs.calls.take(form)  # as another thread does at the moment of the fork
    assert taken is not None
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        child = os.fork()
    if not child:
        for _ in range(3):
            rnn(x)
        os._exit(0 if rnn.programs.calls.idle.get(form) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
