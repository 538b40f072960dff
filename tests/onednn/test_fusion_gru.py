"""fusion_gru beside a plain loop in float64: Paddle's own cases, and those that its tests leave out."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from tolerance import assert_close

import stepnet as sn
from stepnet import onednn
from stepnet.compiler.targets.onednn import OneDnnLibrary
from stepnet.errors import InputError
from tests.onednn.oracle import Case, Right, case, gru

pytestmark = pytest.mark.usefixtures("dnnl")
Settings = dict[str, Any]


def check(made: tuple[Any, Any], right: Right, inputs: Case) -> None:
    """Asserts outputs and final memories."""
    outputs, final = made
    assert list(outputs.lengths) == [len(rows) for rows in right.outputs]
    longest = max(map(len, right.outputs), default=0)
    width = inputs.inputs + inputs.hidden
    for ours, rows in zip(outputs.to_list(), right.outputs, strict=True):
        assert_close(ours, rows.astype(np.float32), longest, width)
    assert_close(final, right.h.astype(np.float32), longest, width)
    assert outputs.dtype == final.dtype == np.float32


def run(inputs: Case, **settings: Any) -> None:
    """Runs the operator and checks it."""
    check(onednn.fusion_gru(*inputs.arguments(), **settings), gru(inputs, **settings), inputs)


BASE = case([2, 4, 3])
WAYS = [
    {"is_reverse": reverse, "origin_mode": origin} for reverse in (False, True) for origin in (False, True)
]


@pytest.mark.parametrize("settings", WAYS, ids=str)
@pytest.mark.parametrize("left", [(), ("h0",), ("bias",), ("h0", "bias")], ids=str)
def test_base(settings: Settings, left: tuple[str, ...]):
    run(BASE.without(*left), **settings)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("settings", WAYS, ids=str)
@pytest.mark.parametrize(
    "lengths",
    [
        [3],
        [1],
        [4, 4, 4],
        [1, 1, 1],
        [2, 0, 4],
        [0, 3, 4],
        [0, 3, 0],
        [0, 0],
        [0],
        [],
        [5, 5, 2, 2, 5, 2],
        [7, 1, 11, 13, 2, 3, 5],
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17],
    ],
    ids=str,
)
def test_lengths(settings: Settings, lengths: list[int]):
    run(case(lengths), **settings)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("settings", WAYS, ids=str)
@pytest.mark.parametrize(
    ("inputs", "hidden"), [(36, 8), (8, 8), (17, 15), (3, 16), (1, 1), (13, 31), (65, 33)]
)
def test_sizes(settings: Settings, inputs: int, hidden: int):
    run(case([2, 4, 3], inputs, hidden), **settings)


def test_uniform_weights():
    """Paddle's own data: numbers from 0 to 1."""
    random = np.random.default_rng(0)

    def uniform(*shape: int) -> Any:
        return random.random(shape, dtype=np.float32)

    run(
        Case(
            [uniform(n, 3) for n in (2, 4, 3)], uniform(3, 5), uniform(3, 15), uniform(5, 15), uniform(1, 15)
        )
    )


def test_large_inputs_saturate():
    run(replace(BASE, x=[100 * x for x in BASE.x], bias=10 * BASE.bias))


def test_a_long_sequence():
    run(case([200, 3]), is_reverse=True)


@pytest.mark.parametrize("settings", WAYS, ids=str)
def test_everything_changes_between_calls(settings: Settings):
    """h0, the batch and the longest length, up and down; the same longest length with other batches."""
    whole = case([4, 2, 3, 4, 1, 7])
    for rows in ([0, 1], [0, 1, 2, 3], [3], [5, 0], [0, 1], [2, 4], [4], [5, 4, 3, 2, 1, 0]):
        for h0 in (whole.h0, None, -2 * whole.h0):
            begin = None if h0 is None else h0[rows]
            run(replace(whole, x=[whole.x[row] for row in rows], h0=begin), **settings)


@pytest.mark.parametrize("name", ["weight_x", "weight_h", "bias"])
def test_weights_changed_in_place_are_seen(name: str):
    inputs = case([2, 4, 3])
    run(inputs)
    getattr(inputs, name)[0, 1] += 1
    run(inputs)
    getattr(inputs, name)[0, 1] -= 1
    run(inputs)


def test_weights_changed_to_nan_are_seen():
    inputs = case([2])
    run(inputs)
    inputs.weight_x[0, 0] = np.nan
    assert np.isnan(onednn.fusion_gru(*inputs.arguments())[1][0, 0])


@pytest.mark.long(each=True)
@pytest.mark.parametrize("activation", ["tanh", "relu", "identity", "sigmoid"])
@pytest.mark.parametrize("gate_activation", ["sigmoid", "tanh", "relu"])
@pytest.mark.parametrize("is_reverse", [False, True])
def test_activations(activation: str, gate_activation: str, is_reverse: bool):
    settings: Any = {"activation": activation, "gate_activation": gate_activation}
    run(case([2, 0, 3]), is_reverse=is_reverse, **settings)
    layer = onednn.gru_layer(BASE.weight_x, BASE.weight_h, BASE.bias, **settings)
    assert layer.engine == ("onednn" if (activation, gate_activation) == ("tanh", "sigmoid") else "llvm")
    if layer.reason is not None:
        assert "onednn.gru has " in layer.reason


def test_arrays_come_back_as_arrays():
    inputs = case([4, 4])
    x = np.stack(inputs.x)
    outputs, final = onednn.fusion_gru(x, *inputs.arguments()[1:])
    right = gru(inputs)
    assert_close(outputs, np.stack(right.outputs).astype(np.float32), 4, 8)
    assert_close(final, right.h.astype(np.float32), 4, 8)
    none, _ = onednn.fusion_gru(x[:, :0], *inputs.arguments()[1:])
    assert none.shape == (2, 0, 5)


def test_arrays_that_are_not_contiguous():
    inputs = case([4, 2])
    twice = replace(
        inputs,
        x=[np.repeat(x, 2, 1)[:, ::2] for x in inputs.x],
        weight_x=np.asfortranarray(inputs.weight_x),
        weight_h=np.repeat(inputs.weight_h, 2, 0)[::2],
        h0=inputs.h0[::-1],
    )
    run(twice)
    ragged = inputs.ragged
    strided = ragged.with_values(np.repeat(ragged.values, 2, 1)[:, ::2])
    check(onednn.fusion_gru(strided, *inputs.arguments()[1:]), gru(inputs), inputs)


@pytest.mark.parametrize("lengths", [[4], [4, 2], [3, 3]], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_inputs_of_fewer_bits(lengths: list[int], dtype: str):
    """With weights in float32 they are computed in float32."""
    inputs = case(lengths)
    low = replace(inputs, x=[x.astype(dtype) for x in inputs.x])
    exact = replace(inputs, x=[x.astype("f4") for x in low.x])
    check(onednn.fusion_gru(*low.arguments()), gru(exact), inputs)


def test_inputs_are_not_changed():
    inputs = case([4])
    ragged, *others = inputs.arguments()
    before = [np.array(a) for a in (ragged.values, *others)]
    onednn.fusion_gru(ragged, *others)
    outputs, _ = onednn.fusion_gru(ragged, *others)
    for array, old in zip((ragged.values, *others), before, strict=True):
        np.testing.assert_array_equal(array, old)
    kept = np.array(outputs.values)
    onednn.fusion_gru(case([4], seed=1).ragged, *others)  # results are the caller's own
    np.testing.assert_array_equal(outputs.values, kept)


def test_a_layer_is_the_operator_without_its_comparisons():
    layer = onednn.gru_layer(BASE.weight_x, BASE.weight_h, BASE.bias, origin_mode=True)
    check(layer(BASE.ragged, BASE.h0, reverse=True), gru(BASE, is_reverse=True, origin_mode=True), BASE)


def test_two_threads_of_the_library(dnnl: OneDnnLibrary):
    one = onednn.fusion_gru(*case([9, 5, 7], 16, 48).arguments())
    sn.set_threads(2)
    two = onednn.fusion_gru(*case([9, 5, 7], 16, 48).arguments())
    assert_close(two[0].values, one[0].values, 9, 64)
    assert onednn.counters()["primitives"].misses == 2


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("x is a Ragged or an array", {"x": np.zeros((2, 3), "f4")}),
    ("a step of x has shape (4,), and the weights are for (3,)", {"x": np.zeros((2, 3, 4), "f4")}),
    ("x has dtype float64", {"x": np.zeros((2, 3, 3))}),
    ("x has 2 levels", {"x": sn.Ragged.from_list([[np.zeros((2, 3), "f4")]])}),
    ("h0 has shape (2, 5), and must have (3, 5)", {"h0": np.zeros((2, 5), "f4")}),
    ("h0 has dtype float64", {"h0": np.zeros((3, 5))}),
    ("weight_x and weight_h have shapes (3, 14)", {"weight_x": np.zeros((3, 14), "f4")}),
    ("weight_x and weight_h have shapes", {"weight_h": np.zeros(75, "f4")}),
    ("bias has shape (14,), and must have 15 numbers", {"bias": np.zeros(14, "f4")}),
    (
        "WeightX has dtype float64",
        {name: getattr(BASE, name).astype("f8") for name in ("weight_x", "weight_h", "bias")},
    ),
    ("activation is one of sigmoid, tanh", {"activation": "cosh"}),
    ("is_reverse is True or False", {"is_reverse": 1}),
    ("origin_mode is True or False", {"origin_mode": "no"}),
    ("dtype is one of float32", {"dtype": "float8"}),
    ("dtype is one of float32", {"dtype": ["int8"]}),
    ("calibration is a Calibration, as calibrate makes it", {"dtype": "int8", "calibration": [1]}),
    ("library is a text or a Path, not 3", {"library": 3}),
    ("library is a text or a Path, not []", {"library": []}),
]


@pytest.mark.parametrize(("message", "wrong"), WRONG, ids=[message for message, _ in WRONG])
def test_wrong_arguments(message: str, wrong: Settings):
    names = ("x", "h0", "weight_x", "weight_h", "bias")
    with pytest.raises(InputError) as error:
        onednn.fusion_gru(**(dict(zip(names, BASE.arguments(), strict=True)) | wrong))
    assert message in str(error.value)


@pytest.mark.long(examples=15)
@given(
    lengths=st.lists(st.integers(0, 9), max_size=7),
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    left=st.sets(st.sampled_from(["h0", "bias"])),
    is_reverse=st.booleans(),
    origin_mode=st.booleans(),
    seed=st.integers(0, 9),
)
def test_random_calls(
    lengths: list[int],
    sizes: tuple[int, int],
    left: set[str],
    is_reverse: bool,
    origin_mode: bool,
    seed: int,
):
    """One after the other, with all that is kept from those before."""
    inputs = case(lengths, *sizes, seed=seed).without(*left)
    run(inputs, is_reverse=is_reverse, origin_mode=origin_mode)
