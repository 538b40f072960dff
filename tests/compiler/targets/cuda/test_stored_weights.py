"""Weights of 16 bits on tensor cores, in emulation: loops, products of stages, whole models and gradients."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from llvmlite import ir
from tolerance import distance, tolerance

import stepnet as sn
import stepnet.torch
from stepnet.compiler.net import Builder, Net
from stepnet.compiler.plan import Plan
from stepnet.compiler.plan.passes.rewrite import rewritten
from stepnet.compiler.targets.cuda import CudaOptions
from stepnet.compiler.targets.cuda.stages import stage_codes
from stepnet.compiler.targets.cuda.tensor import exchanges
from stepnet.compiler.targets.cuda.tensor.numbers import FACTS, numbers_of
from tests.compiler.targets.cuda.tensor_loops import (
    DEVICE,
    RAGGED,
    Case,
    TensorSchedule,
    TensorShape,
    TensorStep,
    backward_plan,
    cell_plan,
    loops_of,
    step_plan,
)

Array = np.ndarray
ENGINE = "cuda-emulated"
HALVES = ("bfloat16", "float16")
BLOCK = TensorSchedule(chains=3)
SCHEDULES = [BLOCK, *(TensorSchedule(2, kind, chains=3) for kind in ("grid", "tagged", "cluster"))]
STEPS: dict[str, Callable[[str], Plan]] = {
    "gru": lambda dtype: cell_plan("gru", 24, dtype),
    "lstm": lambda dtype: cell_plan("lstm", 16, dtype),
    "minimal_gated_unit": lambda dtype: cell_plan("minimal_gated_unit", 20, dtype),
    "backward gru": lambda dtype: backward_plan("gru", 20, dtype),
    "backward lstm": lambda dtype: backward_plan("lstm", 16, dtype),
}


def case_of(plan: Plan, lengths: list[int] = RAGGED, reverse: bool = False) -> Case:
    """Random operands for the step of a plan, with parameters in their digits."""
    return Case.drawn(TensorStep.of(plan), lengths, reverse)


def assert_close(actual: Any, right: Any, length: int, width: int, dtype: str = "") -> None:
    """Asserts that arrays agree within the tolerance of a dtype, by default that of the actual one."""
    ours, theirs = np.asarray(actual), np.asarray(right)
    assert ours.shape == theirs.shape
    assert distance(ours, theirs) <= tolerance(dtype or ours.dtype.name, length, width)


def assert_right(case: Case, found: tuple[list[Array], list[Array]]) -> None:
    """Asserts that results are those of the interpreter in float64, up to rounding in their dtypes."""
    expected = case.expected()
    for ours, theirs in zip([*found[0], *found[1]], [*expected[0], *expected[1]], strict=True):
        assert_close(ours, theirs, max(case.lengths), 4 * case.step.width)


def numbers_in(shape: TensorShape) -> set[str]:
    """The numbers that the products of a loop multiply."""
    return {shape.numbers(each) for each in shape.step.sums.values()}


def stepped(dtype: str, units: int = 72, features: int = 80) -> tuple[sn.RNN, Array]:
    """A recurrence with parameters and sequences of a dtype, whose products over inputs are large."""
    chance = np.random.default_rng(0)
    shapes = {"W": (features, units), "R": (units, units), "b": (units,)}
    params = {name: chance.normal(0, 0.1, shape).astype(dtype) for name, shape in shapes.items()}

    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(x @ p["W"] + h @ p["R"] + p["b"])
        return h, h

    return sn.RNN(step, params, memory=units), chance.normal(size=(3, 6, features)).astype(dtype)


# ---- loops


@pytest.mark.long(each=True)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda its: its.exchange)
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", STEPS)
def test_loops_give_what_the_interpreter_gives(name: str, dtype: str, parts: int, schedule: TensorSchedule):
    case = case_of(STEPS[name](dtype), reverse=parts == 2)
    its = replace(schedule, parts=parts, ahead=1 + parts % 3, resident=2 if parts == 1 else 100)
    assert numbers_in(TensorShape(case.step, its)) == {f"float32-{dtype}"}
    assert_right(case, case.run(its, seed=parts, groups=1 if parts < 4 else None))


@pytest.mark.parametrize("dtype", HALVES)
def test_schedules_and_orders_of_threads_give_the_same_bits(dtype: str):
    case = case_of(cell_plan("simple_rnn", 24, dtype), [4, 2, 5])
    first, *others = (case.run(its, seed)[1][0] for seed, its in enumerate(SCHEDULES))
    others.append(case.run(replace(BLOCK, resident=1, ahead=2), 5)[1][0])
    assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_sequence_has_the_same_bits_alone_and_in_any_batch(dtype: str):
    case = case_of(cell_plan("gru", 16, dtype))
    last = case.run(BLOCK, groups=1)[1][0]
    for row in (0, 8):
        alone = case.alone(row)
        assert np.array_equal(alone.run(BLOCK, seed=row)[1][0][0], last[row])


@pytest.mark.long(every=2)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("precision", "least", "most"), [("float32", 0, 6e-7), ("tf32", 1e-7, 1e-3), ("bfloat16", 1e-4, 1e-2)]
)
def test_values_have_the_digits_of_the_precision(dtype: str, precision: Any, least: float, most: float):
    case = case_of(cell_plan("simple_rnn", 24, dtype), [5, 2])
    its = TensorSchedule(numbers=precision, parts=2, chains=3)
    away = np.abs(case.run(its)[1][0] - case.expected()[1][0]).max()
    assert least <= away < most


@pytest.mark.parametrize("dtype", HALVES)
def test_memories_of_any_size_keep_their_digits(dtype: str):
    """Numbers of float16 alone would overflow, or have too few digits."""

    def linear(x: Any, h: Any, p: Any) -> Any:
        after = (h @ p["R"]) * 2 + x[..., :1]
        return after, after

    plan = step_plan(linear, 16, dtype, R=(16, 16))
    for size in (1e-12, 1e9):
        case = case_of(plan, [3, 1])
        case.memories = [size * each for each in case.memories]
        case.sequences = [0 * each for each in case.sequences]
        found, right = case.run(BLOCK)[1][0], case.expected()[1][0]
        assert_close(found / np.abs(right).max(), right / np.abs(right).max(), 3, 16, "float32")


@pytest.mark.parametrize(("dtype", "numbers"), [("bfloat16", "bfloat16"), ("float16", "tf32-float16")])
def test_values_that_a_step_rounds_are_multiplied_once(dtype: str, numbers: str):
    step = TensorStep.of(cell_plan("gru", 24, dtype))

    def rounded(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
        node = net.nodes[number]
        if node.kind != "matmul":
            return None
        lefts = len(node.sides[0])
        stored = [builder.add("cast", each, dtype=dtype) for each in operands[:lefts]]
        wide = [builder.add("cast", each, dtype="float32") for each in stored]
        return builder.copy(node, [*wide, *operands[lefts:]])

    case = Case.drawn(replace(step, body=rewritten(step.body, rounded)), RAGGED)
    shape = TensorShape(case.step, BLOCK)
    assert numbers_in(shape) == {numbers}
    assert shape.instructions == TensorShape(step, BLOCK).instructions // (3 if dtype == "bfloat16" else 2)
    assert_right(case, case.run(BLOCK))


@pytest.mark.parametrize("precision", ["float32", "tf32"])
@pytest.mark.parametrize("dtype", HALVES)
def test_weights_that_are_split_at_each_step_give_the_same_bits(dtype: str, precision: Any):
    """Weights of bfloat16 take as many registers as they are multiplied, and are not split."""
    case = case_of(cell_plan("gru", 40, dtype), [3, 0, 2])
    whole = TensorSchedule(2, "tagged", precision, 3 if precision == "float32" else 1, 8)
    late = replace(whole, resident=1, unsplit=2, places=1)
    shape = TensorShape(case.step, late)
    assert [facts.is_split for facts in shape.multiplied] == [dtype == "float16"]
    first, second = case.run(whole), case.run(late, 3)
    np.testing.assert_array_equal(first[1][0], second[1][0])
    if precision == "float32":
        assert_right(case, second)


@pytest.mark.parametrize("dtype", HALVES)
def test_columns_of_weights_of_16_bits(dtype: str):
    case = case_of(cell_plan("layer_normed", 16, dtype), [3, 0, 2])
    assert numbers_in(TensorShape(case.step, BLOCK)) == {f"float32-{dtype}", "sums"}
    assert_right(case, case.run(replace(BLOCK, parts=4)))


def test_sums_over_units_keep_left_operands_in_float32():
    step = TensorStep.of(cell_plan("layer_normed", 16))
    shape = TensorShape(step, TensorSchedule(numbers="bfloat16", states="bfloat16"))
    assert shape.misfit(DEVICE) == "its products do not all round to bfloat16"
    assert not loops_of(cell_plan("layer_normed", 64), "bfloat16")[0].shape.is_packed


def test_a_step_may_have_weights_of_several_dtypes():
    chance = np.random.default_rng(0)
    shapes = {"W": (6, 20), "R": (20, 20), "Q": (20, 20)}
    params = {name: chance.normal(0, 0.4, shape).astype("f4") for name, shape in shapes.items()}
    params["Q"] = params["Q"].astype("bfloat16")

    def step(x: Any, h: Any, p: Any) -> Any:
        after = np.tanh(x @ p["W"] + (h @ p["R"]) * sn.sigmoid(h @ p["Q"]))
        return after, after

    rnn = sn.RNN(step, params, memory=20)
    rnn(np.zeros((1, 1, 6), "f4"))
    case = case_of(rnn.plan)
    for parts in (1, 4):
        its = replace(BLOCK, parts=parts, resident=3)
        assert numbers_in(TensorShape(case.step, its)) == {"float32", "float32-bfloat16"}
        assert_right(case, case.run(its))


# ---- left operands in bfloat16


@pytest.mark.long(each=True)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda its: its.exchange)
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("name", ["gru", "backward lstm"])
def test_left_operands_in_bfloat16_give_the_same_bits(name: str, parts: int, schedule: TensorSchedule):
    case = case_of(STEPS[name]("float32"))
    its = replace(schedule, numbers="bfloat16", parts=parts, ahead=1 + parts % 3, resident=2)
    found = (case.run(each, seed) for seed, each in enumerate((its, replace(its, states="bfloat16"))))
    for one, other in zip(*(outputs + last for outputs, last in found), strict=True):
        np.testing.assert_array_equal(one, other)


def test_numbers_of_exchanges_begin_anew(constants: Any):
    case = case_of(cell_plan("gru", 24))
    tagged = TensorSchedule(2, "tagged", numbers="bfloat16", states="bfloat16")
    expected = case.run(tagged)[0][0]
    constants(exchanges, LOWER=ir.Constant(ir.IntType(32), 3))
    np.testing.assert_array_equal(case.run(tagged, 3)[0][0], expected)
    with pytest.raises(RuntimeError, match="deadlock: 32 of 96 threads wait for each other"):
        case.run(tagged, missing=1)


def test_left_operands_in_bfloat16_take_half_the_room():
    step = TensorStep.of(cell_plan("gru", 32))
    wide, packed = (
        TensorShape(step, TensorSchedule(2, "tagged", numbers="bfloat16", states=states))
        for states in ("float32", "bfloat16")
    )
    assert (wide.states_bytes, wide.scratch) == (2 * 32 * 8 * 4, 256 + 2 * 2 * 32 * 8 * 4)
    assert (packed.states_bytes, packed.scratch) == (2 * 32 * 8 * 2, 256 + 2 * 2 * 32 * 8 * 2)
    exact = TensorShape(step, TensorSchedule(states="bfloat16"))
    assert exact.misfit(DEVICE) == "its products do not all round to bfloat16"


# ---- the choice


def test_weights_of_16_bits_take_half_the_room():
    whole, half = (TensorShape(TensorStep.of(cell_plan("gru", 64, d)), BLOCK) for d in ("float32", "float16"))
    assert whole.operands == 2 * half.operands
    away = replace(BLOCK, resident=0)
    sizes = [TensorShape(each.step, away) for each in (whole, half)]
    weights = [each.shared_bytes - each.states_bytes for each in sizes]
    assert weights[0] == 2 * weights[1]


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_wide_steps_take_less_time_in_16_bits(name: str):
    whole = loops_of(cell_plan(name, 1024))[0].microseconds
    assert loops_of(cell_plan(name, 1024, "bfloat16"))[0].microseconds < 0.75 * whole
    best = loops_of(cell_plan(name, 1024), "bfloat16")[0]
    assert best.microseconds < 0.5 * whole
    assert best.shape.is_packed


@pytest.mark.parametrize("dtype", HALVES)
def test_an_explanation_says_what_is_multiplied(dtype: str):
    rnn, x = stepped(dtype)
    rnn(x, engine=ENGINE)
    assert f"weights of {dtype}" in rnn.explain(ENGINE, rows=3, steps=6)


@pytest.mark.parametrize(
    ("precision", "weights", "values", "numbers"),
    [
        ("float32", None, None, "float32"),
        ("bfloat16", "float16", None, "bfloat16"),
        ("float32", "bfloat16", "float16", "tf32-bfloat16"),
        ("float32", "float16", "bfloat16", "tf32-float16"),
        ("tf32", "bfloat16", None, "tf32-bfloat16"),
        ("tf32", None, "bfloat16", "tf32"),
    ],
)
def test_numbers_follow_from_both_sides(precision: Any, weights: Any, values: Any, numbers: str):
    assert numbers_of(precision, weights, values) == numbers
    assert len(FACTS[numbers_of(precision, weights, values)].terms) <= 4


# ---- products of stages


def products_of(plan: Plan) -> list[Any]:
    """The products ahead of the loop of a plan that the library computes."""
    return [code for code in stage_codes(plan, "before") if hasattr(code, "rights")]


@pytest.mark.parametrize(
    ("dtype", "inputs", "way"),
    [
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float16", "float16", "tf32"),
        ("bfloat16", "float32", "float32-bfloat16"),
        ("float16", "float32", "float32-float16"),
        ("float32", "bfloat16", "bfloat16-float32"),
        ("float32", "float32", "float32"),
    ],
)
def test_products_over_inputs_take_sides_as_they_are_stored(dtype: str, inputs: str, way: str):
    rnn, x = stepped(dtype)
    x = x.astype(inputs)
    found, expected = rnn(x, engine=ENGINE), rnn(x, engine="interpret")
    (code,) = products_of(rnn.plan)
    assert CudaOptions().way("float32", *code.stored) == way
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, 6, 160)


def test_products_of_a_quantized_model_round_both_sides():
    rnn, x = stepped("float32")
    small = sn.quantize(rnn, [sn.Ragged.from_list(list(x))], "bfloat16")
    found, expected = small(x, engine=ENGINE), small(x, engine="interpret")
    assert [code.is_rounded for code in products_of(small.plan)] == [True]
    assert_close(found[0], expected[0], 6, 160, "bfloat16")


# ---- whole models


@pytest.mark.long(every=4)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("word", ["", ":bfloat16"])
def test_gradients_of_parameters_of_16_bits(dtype: str, word: str):
    rnn, x = stepped(dtype)

    def run(engine: str) -> list[Array]:
        (outputs, final), backward = sn.vjp(rnn)(x, lengths=[6, 0, 3], engine=engine)
        made = backward(outputs, final)
        return [outputs, final, *made.params.values(), made.inputs]

    for one, other in zip(run(ENGINE + word), run("interpret"), strict=True):
        assert one.dtype == other.dtype
        size = np.abs(other.astype("f8")).max()
        assert_close(one / size, other / size, 9, 160, "bfloat16" if word else one.dtype.name)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layers_of_pytorch(dtype: torch.dtype):
    torch.manual_seed(0)
    layer, wide = stepnet.torch.GRU(80, 72, engine=ENGINE).to(dtype), torch.nn.GRU(80, 72).double()
    wide.load_state_dict({name: each.double() for name, each in layer.state_dict().items()})
    x = torch.randn(5, 3, 80).to(dtype).requires_grad_()
    exact = x.detach().double().requires_grad_()
    name = str(dtype).removeprefix("torch.")
    results = [layer(x), wide(exact)]
    for outputs, last in results:
        (outputs.double().square().sum() + last.double().sum()).backward()
    for ours, theirs in zip(*results, strict=True):
        assert_close(ours.detach().double(), theirs.detach(), 5, 72, name)
    pairs = [(x, exact), *zip(layer.parameters(), wide.parameters(), strict=True)]
    for ours, theirs in pairs:
        assert ours.grad is not None
        assert theirs.grad is not None
        size = theirs.grad.abs().max()
        assert_close(ours.grad.double() / size, theirs.grad / size, 15, 72, name)
