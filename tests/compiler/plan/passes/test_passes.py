"""Each pass gives a net that computes the same, and the pipeline gives the nets that the plan is made for."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from interpreted import interpreted
from random_steps import RandomStep, random_steps, sequences_for
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.net import CONST, ROWS, STEPS, Builder, Net, Type, widened
from stepnet.compiler.plan import PIPELINE, optimised
from stepnet.compiler.plan.passes.factor import factor
from stepnet.compiler.plan.passes.fold import fold
from stepnet.compiler.plan.passes.legalise import legalise
from stepnet.compiler.targets import Call, engine_named
from stepnet.compiler.trace import Spec
from stepnet.compiler.values import leaves
from stepnet.ragged import Positions

Array = np.ndarray
SIZE = 3


def call_of(given_: Any, step: RandomStep) -> Call:
    """A call of the net itself, past all the checks of `RNN`."""
    first = next(iter(given_.inputs.values()))
    initial = [None] * len(step.memory) if given_.initial is None else list(given_.initial.values())
    arrays = [ragged.values for ragged in given_.inputs.values()]
    positions = Positions.end_to_end(first.offsets[0])
    return Call(positions, arrays, initial, leaves(given_.statics))


@pytest.mark.long(examples=15)
@settings(max_examples=60)
@given(st.data(), random_steps(), st.booleans())
def test_every_pass_keeps_what_is_computed(data: st.DataObject, step: RandomStep, reverse: bool) -> None:
    rnn = step.rnn("float64", reverse)
    call = call_of(data.draw(sequences_for(step, "float64")), step)
    parameters = list(step.params.values())
    expected = interpreted(rnn.net, parameters, call)
    net = rnn.net
    for one in engine_named("cuda-emulated").pipeline:  # that of the CPU, and a pass for GPUs
        net = one(net)
        found = interpreted(net, parameters, call)
        for actual, wanted in zip(
            found.outputs + found.final, expected.outputs + expected.final, strict=True
        ):
            assert actual.dtype == wanted.dtype, one.__name__
            assert_close(actual, wanted, length=5, width=64)


@pytest.mark.long(examples=5)
@settings(max_examples=15)
@given(random_steps())
def test_a_net_made_twice_is_the_same_net_and_the_same_text(step: RandomStep) -> None:
    once, again = step.rnn("float32"), step.rnn("float32")
    assert once.net == again.net
    assert str(once.net) == str(again.net)
    assert str(once.plan.net) == str(again.plan.net)


@pytest.mark.long(examples=5)
@settings(max_examples=15)
@given(random_steps())
def test_widened_has_no_float32_left(step: RandomStep) -> None:
    net = widened(optimised(step.rnn("float32").net, PIPELINE))
    assert "f32" not in str(net)
    assert "float32" not in str(net)


# ---- spelling does not matter ------------------------------------------------------------------


def finish(r: Any, z: Any, n: Any, h: Any) -> tuple[Any, Any]:
    """The end of a GRU: the gates are given before their functions, n as one of r."""
    z = sn.sigmoid(z)
    h = z * h + (1 - z) * np.tanh(n(sn.sigmoid(r)))
    return h, h


def sliced(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    a, b = x @ p["W"] + p["b"], h @ p["R"] + p["d"]
    return finish(
        a[:, :SIZE] + b[:, :SIZE],
        a[:, SIZE : 2 * SIZE] + b[:, SIZE : 2 * SIZE],
        lambda r: a[:, 2 * SIZE :] + r * b[:, 2 * SIZE :],
        h,
    )


def separate(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    def gate(place: int) -> tuple[Any, Any]:
        part = slice(place * SIZE, (place + 1) * SIZE)
        return x @ p["W"][:, part] + p["b"][part], h @ p["R"][:, part] + p["d"][part]

    (xr, hr), (xz, hz), (xn, hn) = gate(0), gate(1), gate(2)
    return finish(xr + hr, xz + hz, lambda r: xn + r * hn, h)


def split(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    xr, xz, xn = np.split(x @ p["W"] + p["b"], 3, axis=1)
    hr, hz, hn = np.split(h @ p["R"] + p["d"], 3, axis=-1)
    return finish(xr + hr, xz + hz, lambda r: xn + r * hn, h)


def reshaped(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    a = (x @ p["W"] + p["b"]).reshape(x.shape[0], 3, SIZE)
    b = (h @ p["R"] + p["d"]).reshape(-1, 3, SIZE)
    return finish(a[:, 0] + b[:, 0], a[:, 1] + b[:, 1], lambda r: a[:, 2] + r * b[:, 2], h)


def interleaved(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    order = np.arange(3 * SIZE).reshape(3, SIZE).T.ravel()
    a = x @ p["W"][:, order] + p["b"][order]
    b = h @ p["R"][:, order] + p["d"][order]
    return finish(a[:, ::3] + b[:, ::3], a[:, 1::3] + b[:, 1::3], lambda r: a[:, 2::3] + r * b[:, 2::3], h)


def beside(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    """Input and memory side by side, with one matrix for r and z."""
    both = np.concatenate([x, h], axis=-1)
    cut = 2 * SIZE
    joint = np.concatenate([p["W"], p["R"]], axis=0)[:, :cut]
    g = both @ joint + p["b"][:cut] + p["d"][:cut]
    xn, hn = x @ p["W"][:, cut:] + p["b"][cut:], h @ p["R"][:, cut:] + p["d"][cut:]
    return finish(g[:, :SIZE], g[:, SIZE:], lambda r: xn + r * hn, h)


SPELLINGS: list[Callable[..., Any]] = [sliced, separate, split, reshaped, interleaved, beside]


def gru_params(dtype: str = "float64", inputs: int = 2) -> dict[str, Array]:
    shapes = {"W": (inputs, 3 * SIZE), "R": (SIZE, 3 * SIZE), "b": (3 * SIZE,), "d": (3 * SIZE,)}
    random = np.random.default_rng(3)
    return {name: random.uniform(-1, 1, shape).astype(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize("step", SPELLINGS, ids=lambda step: step.__name__)
def test_spelling_does_not_matter(step: Callable[..., Any]) -> None:
    """However it is written: one phase, three products in the loop and three before it, each in one go."""
    params = gru_params()
    plan = sn.RNN(step, params, memory=SIZE, inputs=2).plan
    assert len(plan.loop) == 1
    assert counted(plan.body) == [3]
    assert counted(plan.net) == [3]
    x = np.random.default_rng(0).uniform(-1, 1, (2, 4, 2))
    actual, _ = sn.RNN(step, params, memory=SIZE)(x, engine="interpret")
    expected, _ = sn.RNN(sliced, params, memory=SIZE)(x, engine="interpret")
    assert_close(actual, expected, length=4, width=SIZE)
    call = Call(Positions.end_to_end(np.array([0, 4, 8])), [x.reshape(8, 2)], [None])
    assert_close(
        interpreted(plan.net, params.values(), call).outputs[0].reshape(2, 4, SIZE),
        expected,
        4,
        SIZE,
    )


def counted(net: Net) -> list[int]:
    """The number of results of each product of a net, except products over parameters alone."""
    return [
        len(node.types) for node in net.nodes if node.kind == "matmul" and all(t.extent for t in node.types)
    ]


# ---- what single passes do ------------------------------------------------------------------


def optimised_body(step: Callable[..., Any], **options: Any) -> Net:
    ones = np.ones((SIZE, SIZE))
    return sn.RNN(step, {"W": ones, "R": ones, "V": ones}, memory=SIZE, inputs=SIZE, **options).plan.body


def operations(net: Net) -> list[str]:
    return [node.operation for node in net.nodes if node.operation not in ("input", "result")]


def test_hoist_leaves_what_needs_the_memory() -> None:
    body = optimised_body(lambda x, h, p: (None, np.tanh(np.exp(x) @ p["W"] + h @ p["R"])))
    assert operations(body) == ["matmul", "add", "tanh"]


SHAPES = st.tuples(*[st.sampled_from([1, 4])] * 3)


@pytest.mark.long(examples=12)
@settings(max_examples=40)
@given(st.lists(SHAPES, min_size=2, max_size=4), st.sampled_from([(-1,), (-2,), (-3,), (-1, -2), (-1, -3)]))
def test_sums_are_not_over_what_is_the_same_along_them(shapes: list[tuple[int, int, int]], axes: Any) -> None:
    shapes = [*shapes, (1, 4, 1), (4, 1, 4)]
    builder = Builder()
    inputs = [builder.input(Type(STEPS, shape, "float64"), f"x{at}") for at, shape in enumerate(shapes)]
    product = inputs[0]
    for each in inputs[1:]:
        product = builder.add("multiply", product, each)
    net = builder.net([builder.add("sum", product, axes=axes)])
    after = factor(net)
    (total,) = (node for node in after.nodes if node.operation == "sum")
    summed = after.nodes[total.inputs[0]]
    assert all(summed.type.shape[axis] == 4 for axis in axes)
    read = [node for node in after.nodes if node.operation == "multiply" and node.type == summed.type]
    sides = [after.type_of(number).shape for node in read for number in node.inputs]
    assert all(any(shape[axis] == 4 for axis in axes) for shape in sides)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((3, *shape)) for shape in shapes]
    call = Call(Positions.end_to_end(np.array([0, 3])), arrays)
    (actual,), (wanted,) = (interpreted(each, (), call).outputs for each in (after, net))
    assert_close(actual, wanted, length=1, width=64)


def test_sums_over_no_axes_have_no_factors_taken_out() -> None:
    builder = Builder()
    x, y = (builder.input(Type(STEPS, (2, 3), "float64"), name) for name in "xy")
    net = builder.net([builder.add("sum", builder.add("multiply", x, y), axes=())])
    assert factor(net) == net


def test_a_decay_is_not_multiplied_with_each_number_of_a_matrix_to_be_summed() -> None:
    def step(x: Any, memory: Any, params: Any) -> Any:
        decayed = memory * x["a"][:, None, None]
        written = x["v"] - (decayed * x["k"][:, :, None]).sum(1)
        return written, decayed + x["k"][:, :, None] * written[:, None]

    inputs = {"a": Spec((), "float32"), "k": Spec((8,), "float32"), "v": Spec((16,), "float32")}
    plan = sn.RNN(step, memory=(8, 16), inputs=inputs).plan
    (total,) = (node for node in plan.body.nodes if node.operation == "sum")
    product = plan.body.nodes[total.inputs[0]]
    assert product.operation == "multiply"
    assert plan.recurrence.recur.memories[0] in product.inputs


@pytest.mark.long(each=True)
@pytest.mark.parametrize("size", [1e12, 1e-13], ids=["large", "small"])
@pytest.mark.parametrize("scale", ["constant", "maximum"])
def test_squares_of_numbers_that_were_scaled_do_not_overflow(scale: str, size: float) -> None:
    def step(x: Any, memory: Any, params: Any) -> Any:
        memory = 0.5 * memory + x["k"][:, :, None] * x["v"][:, None]
        largest = np.abs(memory).max(1, keepdims=True) if scale == "maximum" else size**2
        scaled = memory * (1 / largest)
        return (scaled * scaled).sum(1), memory

    rng = np.random.default_rng(0)
    x = {name: (size * rng.uniform(0.5, 2, (2, 3, n))).astype("float32") for name, n in (("k", 8), ("v", 16))}
    rnn = sn.RNN(step, memory=Spec((8, 16), "float32"))
    expected, _ = sn.RNN(step, memory=Spec((8, 16), "float64"))(
        {name: each.astype("float64") for name, each in x.items()}, engine="interpret"
    )
    assert_close(rnn(x)[0], expected, length=3, width=8)


def test_regroup_adds_first_what_needs_no_memory() -> None:
    body = optimised_body(lambda x, h, p: (None, np.tanh(h @ p["R"] + x @ p["W"] + 1.0)))
    assert operations(body) == ["matmul", "add", "tanh"]


def test_sink_takes_an_output_projection_out() -> None:
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = np.tanh(x + h @ p["R"])
        return sn.softmax(h @ p["V"]), h

    plan = sn.RNN(step, {"R": np.ones((3, 3)), "V": np.ones((3, 4))}, memory=3, inputs=3).plan
    assert operations(plan.body) == ["matmul", "add", "tanh"]
    assert [plan.net.nodes[n].operation for phase in plan.after for n in phase].count("matmul") == 1
    assert plan.before == ()


def test_sink_leaves_vectors_where_they_are_joined_as_they_are_computed() -> None:
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        above, below = np.tanh(x + h @ p["R"]), np.tanh(x - h @ p["R"])
        return sn.softmax(np.concatenate([above, below], axis=-1)), above * below

    plan = sn.RNN(step, {"R": np.ones((3, 3))}, memory=3, inputs=3).plan
    assert "concatenate" in operations(plan.body)
    after = [plan.net.nodes[n].operation for phase in plan.after for n in phase]
    assert "exp" in after
    assert "concatenate" not in after


def test_sink_leaves_what_a_sum_over_a_memory_needs() -> None:
    def step(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
        """Reads a large memory, which stays in the loop, by what another output adds up, which leaves it."""
        S, seen = memory["S"], np.tanh(x + memory["h"])
        read = (S * seen[:, :, None]).sum(1) @ p["V"]
        return (read, seen.sum(-1)), {"S": 0.5 * S + x[:, :, None], "h": 0.5 * memory["h"] + x}

    rnn = sn.RNN(step, {"V": np.ones((32, 5))}, memory={"S": (64, 32), "h": 64})
    x = np.random.default_rng(0).normal(size=(2, 6, 64))
    (read, total), _ = rnn(x, engine="llvm")
    matrix, h = np.zeros((2, 64, 32)), np.zeros((2, 64))
    for at in range(6):
        seen = np.tanh(x[:, at] + h)
        np.testing.assert_allclose(read[:, at], np.einsum("rkv,rk->rv", matrix, seen) @ np.ones((32, 5)))
        np.testing.assert_allclose(total[:, at], seen.sum(-1))
        matrix, h = 0.5 * matrix + x[:, at, :, None], 0.5 * h + x[:, at]


def test_sink_leaves_a_small_output_inside() -> None:
    body = optimised_body(lambda x, h, p: (h * 2, np.tanh(x + h @ p["R"])))
    assert "multiply" in operations(body)


def test_fold_computes_constants_and_drops_what_is_idle() -> None:
    body = optimised_body(
        lambda x, h, p: (None, np.tanh(h @ p["R"] * (0.5 * np.sqrt(np.arange(3.0))).astype("f8").reshape(3)))
    )
    assert operations(body).count("constant") == 1
    assert "sqrt" not in operations(body)


def test_equal_work_is_done_once() -> None:
    body = optimised_body(lambda x, h, p: (None, np.tanh(h @ p["R"]) * np.tanh(h @ p["R"])))
    assert operations(body) == ["matmul", "tanh", "multiply"]


def test_legalise_leaves_products_of_vectors_and_reductions_of_two_axes() -> None:
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        product = h @ p["W"]
        return None, np.tanh(product - np.mean(product, axis=(1,), keepdims=True)) + np.max(
            x, axis=(1, 2), keepdims=True
        )

    net = sn.RNN(step, {"W": np.ones((2, 2))}, memory=(3, 2), inputs=(3, 2)).plan
    ranks: dict[str, list[int]] = {"matmul": [], "reduce": []}
    for part in (net.body, net.net):
        for node in part.nodes:
            if node.kind in ranks:
                ranks[node.kind].append(len(part.nodes[node.inputs[0]].type.shape))
    assert ranks["matmul"]
    assert set(ranks["matmul"]) == {1}
    assert len(ranks["reduce"]) == 2
    assert set(ranks["reduce"]) == {2}


def rows_of(p: Any, h: Any, order: tuple[int, ...], others: str = "") -> Any:
    """Products of rows of a memory, side by side; the last one with a matrix of another name."""
    names = [*["W"] * (len(order) - 1), others or "W"]
    return np.concatenate([h[:, row] @ p[name] for row, name in zip(order, names, strict=True)], axis=-1)


@pytest.mark.parametrize(
    ("product", "shapes"),
    [
        (lambda p, h: (h @ p["W"]).reshape(-1, 12), [(3, 4)]),
        (
            lambda p, h: (h @ p["W"] * (h.reshape(-1, 4, 3)[:, :3, :1] @ p["U"])).reshape(-1, 12),
            [*[(1,)] * 3, (3, 4)],
        ),
        (lambda p, h: rows_of(p, h, (0, 1, 2)), [(3, 4)]),
        (lambda p, h: rows_of(p, h, (0, 2, 1)), [(4,)] * 3),
        (lambda p, h: np.concatenate([rows_of(p, h, (0, 1)), h[:, 0] * 2], axis=-1), [(4,)] * 2),
        (lambda p, h: rows_of(p, h, (0, 1, 2), "V"), [(4,)] * 3),
        (lambda p, h: rows_of(p, np.swapaxes(h, 1, 2)[:, :, :3].reshape(-1, 3, 4), (0, 1, 2)), [(4,)] * 3),
    ],
)
def test_vectors_that_lie_one_after_the_other_are_multiplied_together(
    product: Any, shapes: list[tuple[int, ...]]
) -> None:
    """On a GPU, whose threads read a matrix once for several vectors."""
    random = np.random.default_rng(0)

    def step(x: Any, h: Any, p: Any) -> Any:
        return None, np.tanh(product(p, h).reshape(-1, 3, 4) + x[:, None])

    params = {name: random.normal(size=(4 if name in "WV" else 1, 4)) for name in "WVU"}
    rnn, x = sn.RNN(step, params, memory=(3, 4), inputs=4), random.normal(size=(2, 5, 4))
    net = optimised(rnn.net, engine_named("cuda-emulated").pipeline)
    (body,) = [node.recur.body for node in net.nodes if node.operation == "recur"]
    found = [body.type_of(node.inputs[0]).shape for node in body.nodes if node.kind == "matmul"]
    assert sorted(found) == shapes
    (_, final), (_, expected) = (rnn(x, engine=engine) for engine in ("cuda-emulated", "interpret"))
    assert_close(final, expected, length=5, width=4)


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_legalise_keeps_the_encoding_of_the_weights(shape: tuple[int, ...]) -> None:
    builder = Builder()
    x = builder.input(Type(ROWS, shape, "float32"), "x")
    W = builder.input(Type(CONST, (4, 2), "float32"), "W")
    net = legalise(builder.net([builder.add("matmul", x, W, weights="int8")]))
    kept = [node.attributes.get("weights") for node in net.nodes if node.kind == "matmul"]
    assert kept == ["int8"] * (3 if len(shape) > 1 else 1)


def test_an_integer_product_of_floats_is_cast_first() -> None:
    """A one-hot of integers, say: NumPy promotes, engines want one dtype."""
    step: Any = lambda x, h, p: (None, np.tanh((x > 0) @ p["W"] + h))  # noqa: E731
    plan = sn.RNN(step, {"W": np.ones((3, 3), np.float32)}, memory=3, inputs=3).plan
    assert [plan.net.type_of(node.inputs[0]).dtype for node in plan.net.nodes if node.kind == "matmul"] == [
        "float32"
    ]


# ---- what gradients need ---------------------------------------------------------------------------


def of_steps(builder: Builder, size: int, name: str) -> int:
    return builder.input(Type(STEPS, (size,), "float32"), name)


def test_views_of_views_are_one_view_and_a_transposed_contract_is_a_contract() -> None:
    builder = Builder()
    x, y = of_steps(builder, 3, "x"), of_steps(builder, 2, "y")
    W = builder.input(Type(CONST, (3, 2), "float32"), "W")
    turned = builder.add("transpose", builder.add("transpose", W, order=(1, 0)), order=(1, 0))
    product = builder.add("matmul", x, turned)
    net = fold(builder.net([product, builder.add("transpose", builder.add("contract", x, y), order=(1, 0))]))
    assert [node.operation for node in net.nodes].count("transpose") == 0
    (contract,) = [node for node in net.nodes if node.operation == "contract"]
    assert [net.nodes[operand].name for operand in contract.inputs] == ["y", "x"]


def test_hoist_makes_no_stream_wider() -> None:
    """1 - z z is computed in the loop from z, which is there; tanh(z) and a product leave it."""

    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = h * (1 - x * x) * x + np.tanh(x) * (x @ p["W"])
        return h, h

    plan = sn.RNN(step, {"W": np.ones((3, 3), "float32")}, memory=3, inputs=3).plan
    assert len(plan.recurrence.recur.sequences) == 2  # x, and the product with tanh(x)
    before = [plan.net.nodes[number].operation for phase in plan.before for number in phase]
    assert sorted(before) == ["matmul", "multiply", "tanh"]


def test_only_products_known_at_one_time_are_added_up_in_one() -> None:
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        first = np.tanh(h["a"] @ p["A"] + h["b"] @ p["B"] + x)
        after = np.tanh(first @ p["A"] + h["a"] @ p["B"])
        return after, {"a": first, "b": after}

    params = {name: np.ones((4, 4), "float32") for name in "AB"}
    plan = sn.RNN(step, params, memory={"a": 4, "b": 4}, inputs=4).plan
    sides = [len(node.sides[0]) for node in plan.body.nodes if node.kind == "matmul"]
    assert sorted(sides) == [1, 1, 2]


def test_a_read_out_of_a_matrix_stays_where_a_product_follows():
    def step(x: Any, memory: Any, params: Any) -> Any:
        state = 0.5 * memory + x["k"][..., None] * x["v"][:, None]
        return (state * x["k"][..., None]).sum(-2) @ params["V"], state

    rnn = sn.RNN(
        step,
        {"V": np.ones((64, 8), "f4")},
        memory=(64, 64),
        inputs={name: Spec((64,), "float32") for name in "kv"},
    )
    (plan,) = rnn.schedule.plans
    outputs = [plan.body.type_of(number).size for number in plan.recurrence.recur.outputs]
    assert outputs == [64]
