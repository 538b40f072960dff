"""Gradients that keep memories of some steps alone: beside those that keep everything, and differences."""

from collections.abc import Callable
from functools import cache
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from callers import threads
from hypothesis import given, settings
from random_gradients import assert_differences, cast, gradients_by, plain
from same_bits import assert_same_bits
from tolerance import assert_close
from turns import in_turns

import stepnet as sn
from stepnet.cells import CELLS
from stepnet.compiler.grad.sections import sections
from stepnet.compiler.net import Builder
from stepnet.errors import InputError
from tests.model.gradients.test_gradients import (
    LAYERS,
    PARAMS,
    STEPS,
    WIDTH,
    both,
    cell,
    documents,
    nested,
    normed,
    numbers,
    sequences,
    shelves,
    squares,
    three_levels,
    with_inner_parameters,
)

Array = np.ndarray
SIZES = (1, 2, 5, "sqrt", 100)
KINDS = ("params", "inputs", "initial", "statics")
GRU, LSTM, BOTH = cell("gru", dtype="float32"), cell("lstm", dtype="float32"), both("float32")
STACK = sn.Stack([GRU, cell("gru", 4, dtype="float32")])


@cache
def kept_cell(name: str, reverse: bool) -> sn.RNN:
    """A cell in single precision."""
    return cell(name, 3, reverse, "float32")


@cache
def kept_step(name: str) -> sn.RNN:
    """A kind of step in single precision."""
    return STEPS[name][0]("float32")


@cache
def kept_layers(name: str) -> Any:
    """Layers in single precision."""
    return LAYERS[name]("float32")


@cache
def kept_nested(enters: bool, reverse: bool) -> sn.RNN:
    """A nested recurrence in single precision."""
    return nested("float32", enters, reverse)


@cache
def run_of(layer: Any) -> Any:
    """`vjp` of a layer, which keeps its programs."""
    return sn.vjp(layer)


def assert_like_all(
    layer: Any, options: dict[str, Any], checkpoint: Any, length: int, bits: bool = True
) -> None:
    """Asserts that the gradients of a call are those that it has without checkpoint.

    bits: whether those of inputs and initial memories have the same bits, as a net of one direction gives.
    """
    results, right = gradients_by(run_of(layer), options, 7)
    others, found = gradients_by(run_of(layer), options, 7, checkpoint=checkpoint)
    assert_same_bits(others, results) if bits else assert_near(others, results, length)
    for kind in KINDS:
        one, other = getattr(found, kind), getattr(right, kind)
        if bits and kind in ("inputs", "initial"):
            assert_same_bits(one, other)
        else:
            assert_near(one, other, length)


def assert_near(one: Any, other: Any, length: int) -> None:
    """Asserts that two structures agree but for rounding."""
    for found, right in zip(plain(one), plain(other), strict=True):
        assert found.dtype == right.dtype
        assert_close(found, right, length, WIDTH)


# ---- what is called ----------------------------------------------------------------------------------------


WAYS = [("llvm", 2), ("interpret", "sqrt"), ("llvm", "sqrt"), ("interpret", 2)]


@pytest.mark.long(every=len(WAYS))
@pytest.mark.parametrize(("name", "way"), in_turns(STEPS, WAYS), ids=str)
def test_every_kind_of_step(name: str, way: tuple[str, Any]) -> None:
    engine, checkpoint = way
    _, options = STEPS[name]
    options = {
        key: cast(part, "float32") if key in ("sequences", "statics") else part
        for key, part in options.items()
    }
    assert_like_all(kept_step(name), options | {"engine": engine}, checkpoint, 24)


@pytest.mark.long(every=10)
@pytest.mark.parametrize(("name", "reverse"), in_turns(CELLS, [False, True]))
def test_every_cell(name: str, reverse: bool) -> None:
    layer, x = kept_cell(name, reverse), cast(sequences(3), "float32")
    for checkpoint in SIZES:
        assert_like_all(layer, {"sequences": x}, checkpoint, 24)


RUN = [("llvm", False), ("interpret", True), ("llvm", True), ("interpret", False)]


@pytest.mark.long(each=True)
@pytest.mark.parametrize("checkpoint", [2, "sqrt"])
@pytest.mark.parametrize(("engine", "last_only"), RUN)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_both_directions(name: str, engine: str, last_only: bool, checkpoint: Any) -> None:
    x = cast(sequences(3), "float32")
    options = {"sequences": x, "last_only": last_only, "engine": engine}
    assert_like_all(kept_layers(name), options, checkpoint, 48, bits=False)


@pytest.mark.long(every=2)
@pytest.mark.parametrize(("reverse", "last_only"), in_turns([False, True], [False, True]))
def test_layers_of_one_direction_have_the_same_bits(reverse: bool, last_only: bool) -> None:
    stack = sn.Stack([cell("gru", 3, reverse, "float32"), cell("lstm", 4, reverse, "float32")])
    options = {"sequences": cast(sequences(3), "float32"), "last_only": last_only}
    for checkpoint in SIZES:
        assert_like_all(stack, options, checkpoint, 48)


@pytest.mark.long(every=2)
@pytest.mark.parametrize(("enters", "reverse"), in_turns([False, True], [False, True]))
def test_nested_recurrences(enters: bool, reverse: bool, engine: str) -> None:
    layer = kept_nested(enters, reverse)
    options = {"sequences": cast(documents(), "float32"), "engine": engine}
    for checkpoint in (1, 2, 100):
        assert_like_all(layer, options, checkpoint, 48)


def test_inner_recurrences_with_parameters_of_the_step() -> None:
    options = {"sequences": cast(documents(), "float32")}
    assert_like_all(with_inner_parameters("float32"), options, 2, 48)


@pytest.mark.parametrize("enters", [False, True])
def test_three_levels(enters: bool) -> None:
    assert_like_all(three_levels("float32", enters), {"sequences": cast(shelves(), "float32")}, 2, 48)


@pytest.mark.long(every=3)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("masked", ["repeat", "zero"])
def test_masks_in_both_directions(masked: str, reverse: bool) -> None:
    options = {
        "sequences": numbers(4, 6, 3).astype("float32"),
        "mask": numbers(4, 6) > -0.2,
        "masked": masked,
    }
    layer = kept_cell("lstm", reverse)
    for checkpoint in SIZES:
        assert_like_all(layer, options | {"lengths": np.array([6, 0, 2, 1])}, checkpoint, 24)


@pytest.mark.parametrize("reverse", [False, True])
def test_steps_are_counted_from_those_before(reverse: bool) -> None:
    def counted(x: Any, h: Any, p: Any, index: Any) -> Any:
        h = np.tanh(x @ p["W"] + h @ p["R"] * (1 + index[:, None]).astype(h.dtype) / 8)
        return h, h

    layer = sn.RNN(counted, cast(PARAMS, "float32"), memory=3, reverse=reverse)
    x = cast(sequences(3), "float32")
    for begun in (None, np.array([0, 4, 2, 3])):
        for checkpoint in (1, 2):
            assert_like_all(layer, {"sequences": x, "begun": begun}, checkpoint, 24)


@pytest.mark.parametrize("reverse", [False, True])
def test_rows_that_end_early(reverse: bool) -> None:
    ending = sn.RNN(
        normed, cast(PARAMS, "float32"), memory=3, reverse=reverse, until=lambda y, h: h[:, 0] > 0.2
    )
    x = cast(sequences(3, lengths=(5, 0, 1, 4, 6)), "float32")
    assert_like_all(ending, {"sequences": x}, 2, 24)


@pytest.mark.long(every=3)
@pytest.mark.parametrize(
    "lengths", [(), (0,), (0, 0), (1,), (1, 1, 0), (4, 4), (1, 9, 0, 2)], ids=lambda lengths: str(lengths)
)
def test_any_lengths(lengths: tuple[int, ...]) -> None:
    parts = [numbers(length, 3) for length in lengths]
    x = sn.Ragged.from_list(parts) if parts else sn.Ragged(np.zeros((0, 3)), (np.zeros(1, "int64"),))
    for layer in (GRU, BOTH):
        for checkpoint in SIZES:
            options = {"sequences": cast(x, "float32")}
            assert_like_all(layer, options, checkpoint, 48, bits=isinstance(layer, sn.RNN))


def test_a_stream_that_goes_on() -> None:
    x = numbers(4, 9, 3).astype("float32")
    _, between = LSTM(x[:, :4])
    for checkpoint in SIZES:
        assert_like_all(LSTM, {"sequences": x[:, 4:], "initial": between}, checkpoint, 24)


def test_half_precision_adds_up_in_single() -> None:
    layer = sn.RNN(normed, cast(PARAMS, "float16"), memory=3)
    assert_like_all(layer, {"sequences": numbers(2, 40, 3).astype("float16")}, 1, 120)
    scaled = sn.RNN(lambda x, h, p: (x * p, h), np.ones(1, "float16"), memory=1)
    _, backward = sn.vjp(scaled)(np.ones((1, 3000, 1), "float16"), checkpoint=1, engine="interpret")
    # In half precision 2048 + 1 is 2048.
    assert backward(np.ones((1, 3000, 1), "float16")).params == 3000


@pytest.mark.long(every=2)
@pytest.mark.parametrize("wrt", [(), "params", "inputs", "initial", "statics"])
def test_what_is_not_asked_for_is_none(wrt: Any) -> None:
    x = cast(sequences(3), "float32")
    for layer in (GRU, BOTH, STACK):
        (outputs, final), backward = run_of(layer)(x, wrt=wrt, checkpoint=2)
        _, every = run_of(layer)(x, checkpoint=2)
        found, right = backward(outputs, final), every(outputs, final)
        for kind in KINDS:
            if kind == wrt:
                assert_same_bits(getattr(found, kind), getattr(right, kind))
            else:
                assert getattr(found, kind) is None


def test_a_backward_is_called_as_often_as_one_likes() -> None:
    x = cast(sequences(3), "float32")
    for layer in (LSTM, BOTH):
        (outputs, final), backward = run_of(layer)(x, checkpoint=2)
        for cotangents in ((outputs, final), (outputs, None), (None, final)):
            first, again = backward(*cotangents), backward(*cotangents)
            for one, other in zip(plain(vars(first)), plain(vars(again)), strict=True):
                assert_same_bits(one, other)
        assert not any(one.any() for one in plain(vars(backward())))


# ---- what is drawn at random -------------------------------------------------------------------------------


@pytest.mark.long(examples=6)
@settings(max_examples=25)
@given(
    name=st.sampled_from(sorted(CELLS)),
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    size=st.one_of(st.integers(1, 14), st.just("sqrt")),
    reverse=st.booleans(),
    form=st.sampled_from(["ragged", "rows", "steps"]),
)
def test_random_cells_lengths_and_pieces(
    name: str, lengths: list[int], size: Any, reverse: bool, form: str
) -> None:
    layer, options = kept_cell(name, reverse), dict[str, Any]()
    if form == "ragged":
        options["sequences"] = cast(sequences(3, lengths=tuple(lengths)), "float32")
    else:
        shape = (len(lengths), max(lengths), 3) if form == "rows" else (max(lengths), len(lengths), 3)
        options = {"sequences": numbers(*shape).astype("float32"), "lengths": np.array(lengths)}
        options |= {"time_major": form == "steps"}
    assert_like_all(layer, options, size, 48)


@pytest.mark.parametrize("make", [lambda: cell("gru"), lambda: both("float64")], ids=["gru", "directions"])
def test_gradients_are_those_of_differences(make: Callable[[], Any]) -> None:
    layer, x = make(), sequences(3)
    programs = sn.vjp(layer)
    _, found = gradients_by(programs, {"sequences": x}, 3, checkpoint=2)

    def run(moved: Any) -> Any:
        return programs(moved["sequences"], params=moved["params"], engine="interpret")[0]

    given_ = {"sequences": x, "params": layer.params}
    assert_differences(run, given_, {"sequences": found.inputs, "params": found.params}, 3)


# ---- bits --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_calls_are_shared")
def test_gradients_have_the_same_bits_for_any_number_of_threads() -> None:
    lengths = (30, 0, 17, 5) * 6
    x = cast(sequences(3, lengths=lengths), "float32")
    run, found = run_of(BOTH), list[Any]()
    for count in (1, 2, 3):
        with threads(count):
            (outputs, final), backward = run(x, checkpoint="sqrt")
            found.append(backward(outputs, final))
    for other in found[1:]:
        for one, right in zip(plain(vars(other)), plain(vars(found[0])), strict=True):
            assert_same_bits(one, right)


def test_gradients_of_a_sequence_have_the_same_bits_in_any_batch() -> None:
    run, x = run_of(GRU), cast(sequences(3), "float32")
    (outputs, final), backward = run(x, checkpoint=2)
    gradients = backward(outputs, final)
    for place in range(len(x)):
        (part, last), alone = run(x[place : place + 1], checkpoint=2)
        found = alone(part, last)
        assert_same_bits(found.inputs[0], gradients.inputs[place])
        assert_same_bits(found.initial[0], gradients.initial[place])


# ---- losses ------------------------------------------------------------------------------------------------


@pytest.mark.long(each=True)
@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("make", [cell, both], ids=["gru", "directions"])
def test_a_loss_and_its_gradients(make: Any, last_only: bool, engine: str) -> None:
    layer, x = make("gru" if make is cell else "float64"), sequences(3)
    features = 4 if make is cell else 8
    targets = numbers(4, features) if last_only else sequences(features)
    options = {"last_only": last_only, "wrt": ("params", "inputs", "initial"), "engine": engine}
    train = sn.value_and_grad(squares, layer)
    value, right = train(x, targets, **options)
    for checkpoint in (2, "sqrt"):
        other, found = train(x, targets, checkpoint=checkpoint, **options)
        assert_close(other, value, 9, WIDTH)
        for kind in KINDS[:3]:
            assert_near(getattr(found, kind), getattr(right, kind), 24)


def test_a_loss_of_the_last_memories() -> None:
    layer, x = cell("lstm"), sequences(3)

    def loss(y: Any, targets: Any, final: Any) -> Any:
        return np.sum(final["c"] * final["h"], axis=-1)

    train = sn.value_and_grad(loss, layer, reduce="sum")
    (value, right), (other, found) = train(x), train(x, checkpoint=2)
    assert_close(other, value, 5, WIDTH)
    assert_near(found.params, right.params, 9)


# ---- what is kept ------------------------------------------------------------------------------------------


def test_what_is_kept_is_the_memories_of_each_piece() -> None:
    run, x = run_of(LSTM), numbers(2, 100, 3).astype("float32")
    for checkpoint, count in ((None, 100), (10, 9), ("sqrt", 9), (30, 3), (100, 0), (1000, 0)):
        _, backward = run(x, checkpoint=checkpoint)
        kept = sum(array.nbytes for array in backward.saved)
        values = 7 if checkpoint is None else 2  # h, c, four gates and tanh(c); or h and c
        assert kept == 2 * count * values * 4 * 4


def test_a_sequence_that_has_ended_keeps_nothing() -> None:
    x = cast(sequences(3, lengths=(100, *[1] * 50)), "float32")
    _, backward = run_of(GRU)(x, checkpoint=10)
    assert sum(array.nbytes for array in backward.saved) == 9 * 4 * 4


# ---- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 2.5, "log", True, [3]])
def test_what_no_checkpoint_is(value: Any) -> None:
    message = f"checkpoint is None, 'sqrt' or how many steps .*, not {value!r}".replace("[", r"\[")
    with pytest.raises(InputError, match=message):
        sn.vjp(cell("gru"))(sequences(3), checkpoint=value)
    with pytest.raises(InputError, match=message):
        sn.value_and_grad(squares, cell("gru"))(sequences(3), sequences(4), checkpoint=value)


def test_a_net_that_adds_steps_up_has_no_sections() -> None:
    GRU(np.zeros((1, 1, 3), "float32"))
    net, builder = GRU.net, Builder()
    place: list[int] = []
    for node in net.nodes:
        place.append(builder.copy(node, [place[operand] for operand in node.inputs]))
    for how in ("sum", "first"):
        made = builder.net([builder.add("reduce", place[net.results[0]], how=how)])
        with pytest.raises(InputError, match=f"the {how} over steps is known only after all steps"):
            sections(made)
    assert len(sections(builder.net([builder.add("reduce", place[net.results[0]], how="last")]))) == 1


def test_numbers_of_numpy_are_steps() -> None:
    size: Any = np.int32(2)
    _, backward = sn.vjp(cell("gru"))(sequences(3), checkpoint=size)
    assert backward().params["W"].shape == (3, 12)


@pytest.mark.parametrize("joined", [False, True])
def test_a_projection_ahead_of_a_cell_has_the_same_bits(joined: bool) -> None:
    """Both products become one in every half of the gradient, or in none."""

    def step(x: Any, h: Any, p: Any) -> Any:
        made = x @ p["P"]
        h = np.tanh(np.concatenate([made, h], axis=-1) @ p["W"] if joined else made @ p["W"] + h @ p["R"])
        return h, h

    random = np.random.default_rng(8)
    shapes = {"P": (2, 31), "W": (38 if joined else 31, 7), "R": (7, 7)}
    rnn = sn.RNN(step, {name: random.normal(size=shape) / 4 for name, shape in shapes.items()}, memory=7)
    assert_like_all(rnn, {"sequences": random.normal(size=(3, 9, 2))}, 2, 9)


def test_saved_values_that_need_no_recurrence(engine: str) -> None:
    """The part that runs again has no recurrence after the passes, so its memory is none of that net."""

    def step(x: Any, h: Any, params: Any) -> Any:
        return np.tanh(x @ params["V"]) @ params["W"], 0.5 * h + 1

    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=(3, 3)) for name in "VW"}
    run = sn.vjp(sn.RNN(step, params, memory=sn.Spec((3,), "float64")))
    x = rng.normal(size=(2, 5, 3))
    gradients = list[Any]()
    for checkpoint in (None, 2):
        (y, final), backward = run(x, engine=engine, checkpoint=checkpoint)
        gradients.append(backward(y, final))
    assert_same_bits(gradients[1].inputs, gradients[0].inputs)
    assert_same_bits(gradients[1].initial, gradients[0].initial)
    for name, right in gradients[0].params.items():
        assert_close(gradients[1].params[name], right, 10)
