"""Every kind of model on the emulation of a GPU, against the interpreter."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from device_models import MODELS, gru, same
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from random_gradients import gradients_of, plain
from random_steps import random_steps
from random_ways import (
    DTYPES,
    LONGEST,
    WIDTH,
    alone,
    assert_right,
    assert_same_bits,
    in_float64,
    sequences_for,
)
from tolerance import assert_close

import stepnet as sn
import stepnet.cuda
from stepnet.compiler.values import leaves
from stepnet.errors import InputError

ENGINE = "cuda-emulated"


@pytest.mark.long(every=2)
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_every_kind_of_model_runs_on_a_gpu(make: Callable[[], Any]) -> None:
    run = make()
    width = 16 * 16 if make.__name__ == "training_in_blocks" else 16  # of the matrix that is its memory
    same(run(ENGINE), run("interpret"), width=width)


# ---- random steps ------------------------------------------------------------------------------------------

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def random(count: int, check: Callable[[st.DataObject], None], config: pytest.Config) -> None:
    """Runs a check on `count` random steps, with --long on 50 times as many."""

    @seed(f"{config.option.seed if config.option.long else 0} {check.__name__}")
    @settings(
        max_examples=50 * count if config.option.long else count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=SLOW,
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        check(data)

    run()


def in_batch_and_alone(data: st.DataObject) -> None:
    """A step against the interpreter in float64; a sequence has the same bits alone and in the batch."""
    step, dtype, reverse = data.draw(random_steps()), data.draw(DTYPES), data.draw(st.booleans())
    batch = data.draw(sequences_for(step, dtype))
    rnn = step.rnn(dtype, reverse)
    found = rnn(batch.inputs, batch.initial, batch.statics, engine=ENGINE)
    assert_right(found, in_float64(step, batch, reverse))
    for place in range(len(batch.lengths)):
        one = batch[place : place + 1]
        outputs, final = rnn(one.inputs, one.initial, one.statics, engine=ENGINE)
        assert_same_bits(final, alone(found[1], place))
        for part, whole in zip(leaves(outputs), leaves(found[0]), strict=True):
            assert_same_bits(part[0], whole[place])


def with_gradients(data: st.DataObject) -> None:
    """Gradients of a step against those of the interpreter, both in float64."""
    step, reverse = data.draw(random_steps()), data.draw(st.booleans())
    batch = data.draw(sequences_for(step, "float64"))
    given = {"sequences": batch.inputs, "initial": batch.initial, "statics": batch.statics}
    given = {name: part for name, part in given.items() if part is not None}
    rnn = step.rnn("float64", reverse)

    def run(engine: str) -> list[Any]:
        results, made = gradients_of(rnn, given, 0, engine=engine)
        return plain([*results, made.params, made.inputs, made.initial, made.statics])

    for one, other in zip(run(ENGINE), run("interpret"), strict=True):
        assert_close(one, other, LONGEST + int(batch.lengths.sum()), WIDTH)


@pytest.mark.long
@pytest.mark.parametrize(("check", "count"), [(in_batch_and_alone, 6), (with_gradients, 3)])
def test_random_steps(
    check: Callable[[st.DataObject], None], count: int, pytestconfig: pytest.Config
) -> None:
    random(count, check, pytestconfig)


def test_gradients_of_parameters_that_functions_change() -> None:
    """Products of all steps, and totals of which functions are the gradients."""
    chance = np.random.default_rng(0)
    shapes = {"W": (80, 70), "R": (80, 80), "Q": (80, 80), "b": (4,), "c": (80,)}
    params = {name: chance.normal(size=shape) * 0.05 for name, shape in shapes.items()}

    def step(x: Any, h: Any, p: Any) -> Any:
        h = x @ (p["W"] * 2).T + (h @ np.tanh(p["R"])) @ p["Q"] + p["b"].sum(-1, keepdims=True) * p["c"]
        return np.tanh(h), np.tanh(h)

    rnn = sn.RNN(step, params, memory=80, inputs=70)
    x = chance.normal(size=(3, 7, 70))

    def run(engine: str) -> Any:
        (outputs, final), backward = sn.vjp(rnn)(x, lengths=[7, 3, 0], engine=engine)
        made = backward(outputs, final)
        return outputs, final, made.params, made.inputs

    for one, other in zip(leaves(run(ENGINE)), leaves(run("interpret")), strict=True):
        assert_close(one, other, 21, 3 * 80)


def test_every_nan_stays_in_its_own_sequence() -> None:
    """Also the one that GPUs compute, in which all bits but the sign are set."""
    rnn, x = gru(3, 16), np.random.default_rng(0).normal(size=(3, 4, 3)).astype("f4")
    initial = np.zeros((3, 16), "f4")
    right = rnn(x, initial, engine=ENGINE)[0]
    initial.view(np.uint32)[1, 5] = 0x7FFFFFFF
    found = rnn(x, initial, engine=ENGINE)[0]
    assert np.isnan(found[1]).all()
    assert_same_bits([found[0], found[2]], [right[0], right[2]])


def test_functions_of_plain_units_give_0_below_the_smallest_number_with_all_digits() -> None:
    """As the instructions of GPUs do, and right values down to there."""

    def step(x: Any, h: Any, p: Any) -> Any:
        a = x + np.tanh(h @ p)
        return {"sigmoid": sn.sigmoid(a), "exp": np.exp(a), "log": -sn.softplus(-a)}, np.tanh(h @ p)

    rnn = sn.RNN(step, np.zeros((64, 64), "f4"), memory=64, inputs=64)
    points = np.array([-100, -90, -88, -87, -80, -1, 0, 50], "f4")
    x = np.repeat(points[None, :, None], 64, 2)
    found, _ = rnn(x, engine=ENGINE)
    exact = points.astype("f8")
    right = {"sigmoid": 1 / (1 + np.exp(-exact)), "exp": np.exp(exact), "log": -np.logaddexp(0, -exact)}
    for name, values in right.items():
        own = found[name][0, :, 0]
        normal = np.abs(values) >= np.finfo("f4").tiny
        np.testing.assert_allclose(own[normal], values[normal], rtol=4 * 2.0**-23, atol=0)
        np.testing.assert_array_equal(own[~normal], 0)


@pytest.mark.parametrize("model", [None, "x", sn.RNN])
def test_what_is_no_model_has_no_kernels(model: Any) -> None:
    for run in (lambda: stepnet.cuda.ptx(model), lambda: stepnet.cuda.emulate(model, np.ones((1, 2, 3)))):
        with pytest.raises(
            InputError, match=r"kernels are of an RNN, .* not .*: give a model .* sn.load\(path\)"
        ):
            run()


def test_emulation_takes_no_engine() -> None:
    with pytest.raises(InputError, match=r"emulate takes no engine=, as it runs a model by 'cuda-emulated'"):
        stepnet.cuda.emulate(gru(3, 4), np.ones((1, 2, 3), "f4"), engine="cuda-emulated:tf32")


def test_units_that_read_no_inputs() -> None:
    """A thread runs all steps of a unit, which read its memory and a static alone."""

    def step(x: Any, h: Any, p: Any, statics: Any) -> Any:
        return h - statics, h + (np.tanh(statics) - h) / 2

    rnn, x = sn.RNN(step, memory=3, inputs=2, statics=3), np.ones((2, 5, 2))
    given = {"initial": np.ones((2, 3)), "statics": np.arange(6.0).reshape(2, 3), "lengths": [5, 2]}
    same(rnn(x, **given, engine=ENGINE), rnn(x, **given, engine="interpret"))


def test_short_sums_of_short_sums_and_other_orders_take_no_longer_to_compile() -> None:
    """Written as one expression, a step would have 3 ** 12 and 2 ** 12 terms."""

    def step(x: Any, h: Any, p: Any) -> Any:
        total, turned = x + h, x - h
        for _ in range(12):
            total = total - total.mean(axis=-1, keepdims=True) / 2
            turned = (turned + np.flip(turned, axis=-1) / 2) / 2
        return total + turned, total - turned

    rnn, x = sn.RNN(step, memory=3, inputs=3), np.random.default_rng(0).normal(size=(2, 3, 3))
    same(rnn(x, engine=ENGINE), rnn(x, engine="interpret"))
