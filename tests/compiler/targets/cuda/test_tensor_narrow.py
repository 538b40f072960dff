"""Steps with values of several widths on tensor cores: layer-normed cells, beside the interpreter."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.targets.cuda import refuse
from stepnet.compiler.targets.cuda.tensor.narrow import narrow
from tests.compiler.targets.cuda.tensor_loops import RAGGED, as_given, backward_of, step_model, step_plan
from tests.compiler.targets.cuda.test_tensor_loops import BLOCK, CLUSTER, TAGGED, case_of

W = 16


def normalised(v: Any) -> Any:
    """A vector without its mean, divided by its deviation."""
    away = v - v.mean(-1, keepdims=True)
    return away / np.sqrt((away * away).mean(-1, keepdims=True) + 1e-5)


def layer_normed_gru(x: Any, h: Any, p: Any) -> Any:
    """A GRU that normalises both of its products over all gates."""
    a, b = normalised(x @ p["W"]), normalised(h @ p["R"]) * p["g"] + p["b"]
    r, z = sn.sigmoid(a[..., :W] + b[..., :W]), sn.sigmoid(a[..., W : 2 * W] + b[..., W : 2 * W])
    h = z * h + (1 - z) * np.tanh(a[..., 2 * W :] + r * b[..., 2 * W :])
    return h, h


def layer_normed_lstm(x: Any, memory: Any, p: Any) -> Any:
    """An LSTM that normalises its gates together, and its memory."""
    h, c = memory
    i, f, g, o = np.split(normalised(np.concatenate([x, h], -1) @ p["W"]) * p["g"], 4, axis=-1)
    c = sn.sigmoid(f + 1) * c + sn.sigmoid(i) * np.tanh(g)
    h = sn.sigmoid(o) * np.tanh(normalised(c))
    return h, [h, c]


def highest_gate(x: Any, h: Any, p: Any) -> Any:
    """A step whose two gates are divided by the sum of both, and whose output is the wide value itself."""
    both = np.abs(np.tanh(h @ p["R"] + x[..., :1]))
    share = both / (1 + both.sum(-1, keepdims=True))
    return share, share[..., :W] - share[..., W:] + 0.5 * h


GRU = {"W": (6, 3 * W), "R": (W, 3 * W), "g": (3 * W,), "b": (3 * W,)}
STEPS: dict[str, Callable[[], Any]] = {
    "gru": lambda: step_plan(layer_normed_gru, W, **GRU),
    "lstm": lambda: step_plan(layer_normed_lstm, [W, W], W=(6 + W, 4 * W), g=(4 * W,)),
    "highest": lambda: step_plan(highest_gate, W, R=(W, 2 * W)),
}


@pytest.mark.long(every=2)
@pytest.mark.parametrize("schedule", [BLOCK, TAGGED, CLUSTER], ids=lambda its: its.exchange)
@pytest.mark.parametrize("name", STEPS)
def test_values_of_several_widths_give_what_the_interpreter_gives(name: str, schedule: Any):
    plan, lengths = STEPS[name](), RAGGED if schedule is BLOCK else [3, 0, 2]
    case = case_of(plan, lengths, reverse=schedule is CLUSTER)
    assert as_given(case, plan).step.refusal is not None
    assert case.step.width == W
    found = case.run(replace(schedule, parts=4, ahead=2), seed=3, groups=1)
    expected = as_given(case, plan).expected()
    for ours, theirs in zip([*found[0], *found[1]], [*expected[0], *expected[1]], strict=True):
        assert_close(ours, theirs, max(lengths), 16 * W)


def test_sums_of_not_a_number_stay_in_their_sequence():
    """Also of the one that GPUs compute, in which all bits but the sign are set."""
    case = case_of(STEPS["gru"](), [3, 2, 4])
    right = case.run(BLOCK)[1][0]
    case.memories[0].view("u4")[1, 5] = 0x7FFFFFFF
    found = case.run(BLOCK)[1][0]
    assert np.isnan(found[1]).all()
    assert np.array_equal(found[[0, 2]], right[[0, 2]])


def test_blocks_publish_sums_of_units_that_are_only_summed():
    step = case_of(STEPS["gru"]()).step
    assert len(step.lefts) == 2
    assert len(step.summed) == 1


def test_all_schedules_give_sums_over_units_the_same_bits():
    case = case_of(STEPS["lstm"](), [3, 0, 2])
    first = case.run(replace(BLOCK, parts=2))[0][0]
    for seed, its in enumerate((TAGGED, CLUSTER, replace(TAGGED, exchange="grid"))):
        assert np.array_equal(case.run(replace(its, parts=2), seed)[0][0], first), its.name


def test_gates_of_a_wide_product_share_its_left_operand():
    step = case_of(STEPS["gru"]()).step
    product = next(each for each in step.sums.values() if each.rights)
    assert (product.results, len(product.lefts)) == (3, 1)
    assert [(rows.column, rows.columns, rows.stride) for (rows,) in product.rights] == [
        (place * W, W, 3 * W) for place in range(3)
    ]
    assert step.exchanges == 2  # of the memory and of the squares: no mean is taken in a step


def test_gradients_of_a_layer_normed_gru_run_on_tensor_cores():
    rnn = step_model(layer_normed_gru, W, **GRU)
    assert refuse(rnn.plan) is refuse(backward_of(rnn)) is None
    x = np.random.default_rng(0).normal(size=(3, 5, 6))
    exact = sn.RNN(layer_normed_gru, {n: p.astype("f8") for n, p in rnn.params.items()}, memory=W)

    def run(model: sn.RNN, inputs: Any, engine: str, lengths: list[int]) -> list[Any]:
        (outputs, final), backward = sn.vjp(model)(inputs, lengths=lengths, engine=engine)
        made = backward(outputs, final)
        return [outputs, final, made.inputs, *(made.params[name] for name in GRU)]

    found = run(rnn, x.astype("f4"), "cuda-emulated", [5, 0, 3])
    for one, other in zip(found, run(exact, x, "interpret", [5, 0, 3]), strict=True):
        assert_close(one, other, 3 * 5, 3 * W)
    alone = rnn(x[2:].astype("f4"), lengths=[3], engine="cuda-emulated")[0]
    assert np.array_equal(np.asarray(alone)[0], np.asarray(found[0])[2])


@pytest.mark.parametrize(
    "step",
    [
        lambda x, h, p: (h, (h @ p["R"]).sum(-1, keepdims=True) * (h @ p["R"])[..., 4 : 4 + W]),
        lambda x, h, p: (h, np.tanh(h @ p["R"])[..., ::2] + 0 * (h @ p["R"]).sum(-1, keepdims=True)),
        lambda x, h, p: (h, np.cumsum(np.tanh(h @ p["R"]), -1)[..., :W]),
    ],
)
def test_values_that_are_not_read_in_parts_are_refused(step: Any):
    assert refuse(step_plan(step, W, R=(W, 2 * W))) is not None


def test_a_product_with_several_results_of_another_width_is_read_as_it_is() -> None:
    def step(x: Any, h: Any, p: Any) -> Any:
        both = (h @ p["W"]).reshape(-1, 2, 2).transpose(0, 2, 1)
        h = np.tanh(x[:, :1] + (sn.sigmoid(both[:, 0]) * np.tanh(both[:, 1])) @ p["R"])
        return h, h

    plan = step_plan(step, 5, W=(5, 4), R=(2, 5))
    assert "products" in {node.operation for node in plan.body.nodes}
    same = narrow(plan.body, 5)
    assert same is not None
    assert [node.operation for node in same.nodes] == [node.operation for node in plan.body.nodes]
