"""The sums over sequences in machine code: against float64, for every processor, dtype and layout."""

from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from entered import entered
from hypothesis import given, settings
from random_totals import on_llvm
from tolerance import assert_close
from zoo import rnn_of

import stepnet as sn
from stepnet.compiler.net import HOST, ROWS, STEPS, Builder, Recur, Type
from stepnet.compiler.targets import Call
from stepnet.compiler.targets.cpu import Processor, available_processors
from stepnet.compiler.targets.cpu.running.sums import reduced
from stepnet.ragged import Positions, offsets_of

Array = np.ndarray
PROCESSORS = available_processors()
BY_NUMPY = "finish.py by_numpy"


def right(values: Array, places: Array, offsets: Array) -> Array:
    """The sums in float64, one sequence at a time."""
    wide = values.astype("float64")[places]
    return np.array([wide[a:b].sum(axis=0) for a, b in pairwise(offsets)])


@pytest.mark.long(examples=10)
@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: processor.name)
@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    shape=st.sampled_from([(1,), (3,), (16,), (64,), (70,), (5, 7), ()]),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 99),
)
def test_they_are_the_sums(
    processor: Processor, lengths: list[int], shape: tuple[int, ...], dtype: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows = sum(lengths) + 3
    values = random.uniform(-1, 1, (rows, *shape)).astype(dtype)
    places, offsets = random.permutation(rows)[: sum(lengths)], offsets_of(np.array(lengths))
    found = reduced("sum", values, places, offsets, processor)
    assert found.dtype == values.dtype
    assert_close(found, right(values, places, offsets), max(lengths))


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: processor.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("how", ["sum", "mean", "max"])
def test_reductions_are_those_of_a_chain_of_rows(processor: Processor, how: str, dtype: str) -> None:
    """Also of whole numbers, which NumPy divides, and of numbers that are none."""
    random = np.random.default_rng(0)
    for columns in (1, 3, 16, 70):
        values = np.asarray(random.normal(size=(20, columns)) * 100, dtype)
        if dtype.startswith("float"):
            values[3, 0] = np.nan
        places, offsets = random.permutation(20), np.array([0, 7, 7, 8, 20])
        found = reduced(how, values, places, offsets, processor)
        expected = np.zeros((4, columns), "float64" if how == "mean" and dtype.startswith("int") else dtype)
        for own, (a, b) in zip(expected, pairwise(offsets), strict=True):
            rows = values[places[a:b]]
            for number, row in enumerate(rows):
                own[:] = (
                    row
                    if how == "max" and number == 0
                    else (np.maximum if how == "max" else np.add)(own, row)
                )
            if how == "mean":
                own /= own.dtype.type(max(1, b - a))
        np.testing.assert_array_equal(found, expected, strict=True)


def test_reductions_of_sequences_need_no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a first and in a prepared call, of sequences with padding and without."""
    gru, x = rnn_of("gru", 4, 8), np.random.default_rng(0).normal(size=(3, 5, 4)).astype("f4")

    def model(x: Any, params: Any) -> Any:
        h, _ = gru(x)
        counts = (h > 0).astype("int32")
        return tuple(
            sn.reduce(*each) for each in ((h, "mean"), (h, "max"), (counts, "sum"), (counts, "mean"))
        )

    graph, lengths = sn.Graph(model), [5, 2, 1]
    expected = [graph(x, engine="interpret"), graph(x, engine="interpret", lengths=lengths)]
    monkeypatch.setattr("stepnet.compiler.targets.cpu.running.finish.FinishCall.by_numpy", None)
    monkeypatch.setattr(type(HOST), "reduce", None)
    for _ in range(3):
        for made, right in zip((graph(x), graph(x, lengths=lengths)), expected, strict=True):
            for ours, theirs in zip(made, right, strict=True):
                assert_close(ours, theirs, 5, 8)


def test_a_sequence_has_its_own_bits() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, (50, 37)).astype("float32")
    alone = reduced("sum", values, np.arange(20, 45), np.array([0, 25]), PROCESSORS[0])
    beside = reduced("sum", values, np.r_[5:12, 20:45], np.array([0, 7, 32]), PROCESSORS[0])
    assert alone[0].tobytes() == beside[1].tobytes()


def test_other_dtypes_are_added_by_numpy() -> None:
    values = np.arange(12).reshape(4, 3)
    found = reduced("sum", values, np.array([2, 0, 1]), np.array([0, 2, 3]), PROCESSORS[0])
    assert (found.dtype, found.tolist()) == (values.dtype, [[6, 8, 10], [3, 4, 5]])


def test_a_row_that_is_no_number_stays_in_its_sequence() -> None:
    values = np.ones((4, 20), "float32")
    values[3] = np.nan
    found = reduced("sum", values, np.array([0, 1, 3]), np.array([0, 2, 3]), PROCESSORS[0])
    assert (found[0] == 2).all()
    assert np.isnan(found[1]).all()


@pytest.mark.parametrize("columns", [1, 2, 37])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_maxima_over_all_rows_are_those_of_numpy(columns: int, dtype: str) -> None:
    builder = Builder()
    x, h = (builder.input(Type(at, (columns,), dtype), str(at)) for at in (STEPS, ROWS))
    body = Builder()
    inner = [body.input(Type(ROWS, (columns,), dtype), name) for name in "xh"]
    recur = Recur(body.net([body.add("add", *inner)] * 2), 1, 1)
    _, (final,) = recur.add_results(builder, [x, h])
    run = on_llvm(builder.net([builder.add("reduce", final, how="max")]), [])
    for rows in (1, 9, 300):
        values = np.random.default_rng(rows).uniform(-9, 9, (rows, columns)).astype(dtype)
        if dtype.startswith("f") and rows > 1:
            values[rows // 2, 0] = np.nan
        call = Call(Positions.end_to_end(np.arange(rows + 1)), [values], [None])
        made, names = entered(run, call)
        assert BY_NUMPY not in names
        np.testing.assert_array_equal(made.totals[0], values.max(axis=0), strict=True)


def product(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    y = np.tanh(x @ p["weight"] + h)
    return y, y


def composed(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    """The same of a weight that is a function of parameters."""
    scaled = p["half"] * p["scale"]
    return product(x, h, {"weight": np.concatenate([scaled, -p["other"].T], axis=-1)})


def test_functions_of_totals_have_the_bits_of_numpy() -> None:
    """In a first and in a prepared call, whose parameters change."""
    random, steps = np.random.default_rng(0), np.random.default_rng(1)
    shapes = {"half": (3, 4), "scale": (3, 4), "other": (5, 3)}
    params = {name: random.standard_normal(shape).astype("f4") for name, shape in shapes.items()}
    whole = sn.vjp(sn.RNN(product, {"weight": np.zeros((3, 9), "f4")}, memory=9))
    run = sn.vjp(sn.RNN(composed, params, memory=9))
    for call in range(4):
        x = steps.standard_normal((6, 2, 3)).astype("f4")
        given = {name: array + call for name, array in params.items()}
        weight = np.concatenate([given["half"] * given["scale"], -given["other"].T], axis=-1)
        (outputs, _), backward = run(x, params=given)
        right = whole(x, params={"weight": weight})[1](outputs).params["weight"]
        gradients, names = entered(backward, outputs)
        made = gradients.params
        assert BY_NUMPY not in names
        np.testing.assert_array_equal(made["half"], right[:, :4] * given["scale"], strict=True)
        np.testing.assert_array_equal(made["scale"], right[:, :4] * given["half"], strict=True)
        np.testing.assert_array_equal(made["other"], -right[:, 4:].T, strict=True)


def shifted(x: Any, h: Any, shift: Any) -> tuple[Any, Any]:
    y = x + shift
    return y, y


@pytest.mark.parametrize("columns", [1, 2, 37])
def test_sums_over_all_rows_have_the_bits_of_numpy(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a first and in a prepared call; NumPy adds a single column in another order than several."""
    monkeypatch.setattr("stepnet.compiler.targets.cpu.running.finish.FinishCall.by_numpy", None)
    random = np.random.default_rng(columns)
    run = sn.vjp(sn.RNN(shifted, np.zeros(columns, "f4"), memory=columns))
    for rows in (1, 7, 8, 300, 1031):
        x, given = (random.standard_normal((rows, 1, columns)).astype("f4") for _ in range(2))
        for _ in range(4):
            _, backward = run(x)
            np.testing.assert_array_equal(backward(given).params, given[:, 0].sum(axis=0), strict=True)
