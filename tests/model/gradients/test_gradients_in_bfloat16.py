"""Gradients of recurrences in bfloat16, beside PyTorch with the same rule as a loop of its own."""

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from callers import threads
from same_bits import assert_same_bits
from tolerance import assert_close
from zoo import normal as random_normal
from zoo import rnn_of

import stepnet as sn
from stepnet.compiler.values import leaves
from stepnet.errors import RefusedError

Array = np.ndarray
RANDOM = np.random.default_rng(0)
NEARER = 20
"""The factor by which a gradient is nearer to the judge than to float32, at least. The rest is a number that
lies between two of bfloat16 and is rounded to the other one."""


normal = partial(random_normal, seed=RANDOM)


# ---- the judge ---------------------------------------------------------------------------------------------


class RoundedProduct(torch.autograd.Function):
    """x @ W in float32 of sides rounded to bfloat16, and its gradients: products of rounded sides again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, W)
        return low(x) @ low(W)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (x, W), (d,) = ctx.saved_tensors, cotangents
        return low(d) @ low(W).T, low(x).T @ low(d)


def low(x: torch.Tensor) -> torch.Tensor:
    """The numbers rounded to bfloat16."""
    return x.bfloat16().float()


def rounded(x: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    return RoundedProduct.apply(x, W)  # pyright: ignore[reportReturnType]


def plain(x: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    return x @ W


def gru(product: Any, x: torch.Tensor, p: dict[str, torch.Tensor]) -> torch.Tensor:
    """A GRU whose reset gate stands behind the product, over one sequence [time, inputs]."""
    h, outputs = torch.zeros(1, p["R"].shape[0]), []
    for step in x:
        rx, zx, nx = (product(step[None], p["W"]) + p["b"]).chunk(3, dim=1)
        rh, zh, nh = (product(h, p["R"]) + p["d"]).chunk(3, dim=1)
        r, z = torch.sigmoid(rx + rh), torch.sigmoid(zx + zh)
        h = (1 - z) * torch.tanh(nx + r * nh) + z * h
        outputs.append(h)
    return torch.cat(outputs)


def own(product: Any, x: torch.Tensor, p: dict[str, torch.Tensor]) -> torch.Tensor:
    """A cell of two phases over one sequence, whose second product is of this step's own results."""
    h, outputs = torch.zeros(1, p["R"].shape[0]), []
    for step in x:
        u = product(step[None], p["W"])
        z = torch.sigmoid(u + product(h, p["R"]))
        h = z * h + (1 - z) * torch.sin(u + product(z * h, p["V"]))
        outputs.append(h)
    return torch.cat(outputs)


def own_step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    u = x @ p["W"]
    z = sn.sigmoid(u + h @ p["R"])
    h = z * h + (1 - z) * np.sin(u + (z * h) @ p["V"])
    return h, h


def own_layer(inputs: int, units: int) -> sn.RNN:
    shapes = {"W": (inputs, units), "R": (units, units), "V": (units, units)}
    params = {name: normal(*shape) / shape[0] ** 0.5 for name, shape in shapes.items()}
    return sn.RNN(own_step, params, memory=units, inputs=inputs)


gru_layer = partial(rnn_of, "gru", seed=1)


def judged(loop: Any, product: Any, x: sn.Ragged, p: Any, d: Array) -> tuple[dict[str, Array], Array]:
    """The gradients of parameters and inputs by PyTorch."""
    params = {name: torch.tensor(array, requires_grad=True) for name, array in p.items()}
    values = torch.tensor(x.values, requires_grad=True)
    made = [loop(product, part, params) for part in values.split(x.lengths.tolist()) if len(part)]
    torch.cat(made).backward(torch.tensor(d))
    grads = {name: array.grad for name, array in params.items()} | {"x": values.grad}
    arrays = {name: grad.numpy() for name, grad in grads.items() if grad is not None}
    return arrays, arrays.pop("x")


def distance(one: Array, other: Array) -> float:
    return float(np.linalg.norm(one.astype("f8") - other))


CELLS = {"a GRU": (gru_layer, gru), "a cell of two phases": (own_layer, own)}


@pytest.mark.long(every=5)
@pytest.mark.parametrize("engine", ["llvm", "interpret"])
@pytest.mark.parametrize("sizes", [(3, 17), (8, 16), (33, 5)], ids=str)
@pytest.mark.parametrize(("make", "loop"), CELLS.values(), ids=CELLS)
def test_gradients_are_those_of_products_that_round(make: Any, loop: Any, sizes: Any, engine: str) -> None:
    inputs, units = sizes
    exact = make(inputs, units)
    x = sn.Ragged.from_list([normal(length, inputs) for length in (7, 0, 12, 1)])
    d = normal(len(x.values), units)
    layer = sn.quantize(exact, [x], "bfloat16")
    (outputs, _), backward = sn.vjp(layer)(x, engine=engine)
    gradients = backward(outputs.with_values(d))
    right, right_x = judged(loop, rounded, x, exact.params, d)
    in_float32, in_float32_x = judged(loop, plain, x, exact.params, d)
    assert gradients.inputs.values.dtype == np.float32
    pairs = [(gradients.inputs.values, right_x, in_float32_x)]
    pairs += [(gradients.params[name], right[name], in_float32[name]) for name in right]
    for made, judge, float32 in pairs:
        assert distance(float32, judge) > 0
        assert NEARER * distance(made, judge) < distance(float32, judge)


# ---- the promises of gradients -----------------------------------------------------------------------------


@pytest.mark.usefixtures("small_calls_are_shared")
def test_bits_depend_on_neither_batch_nor_threads() -> None:
    layer = sn.quantize(gru_layer(6, 33), [normal(1, 4, 6)], "bfloat16")
    parts = [normal(length, 6) for length in (9, 1, 17, 4, 4)]
    x = sn.Ragged.from_list(parts)
    d = normal(len(x.values), 33)
    run = sn.vjp(layer)

    def gradients(sequences: sn.Ragged, cotangent: Array) -> Any:
        (outputs, _), backward = run(sequences)
        return backward(outputs.with_values(cotangent))

    whole = gradients(x, d)
    (begin, *_), ends = np.split(whole.inputs.values, x.offsets[0][1:-1]), x.offsets[0]
    assert_same_bits(gradients(sn.Ragged.from_list(parts[:1]), d[: ends[1]]).inputs.values, begin)
    for count in (1, 2, 3):
        with threads(count):
            assert_same_bits(leaves(gradients(x, d).params), leaves(whole.params))


def test_a_model_is_trained_as_its_layers_are() -> None:
    params = gru_layer(5, 8).params
    x, d = normal(3, 6, 5), normal(3, 6, 8)
    graph = sn.Graph(lambda x, p: sn.cells.rnn("gru", p)(x)[0], params)
    _, backward = sn.vjp(sn.quantize(graph, [x], "bfloat16"))(x)
    (_, _), of_layer = sn.vjp(sn.quantize(gru_layer(5, 8), [x], "bfloat16"))(x)
    made, right = backward(d), of_layer(d)
    for name in params:
        np.testing.assert_array_equal(made.params[name], right.params[name], strict=True)
    np.testing.assert_array_equal(made.inputs, right.inputs, strict=True)


def test_float32_parameters_learn() -> None:
    """Steps far smaller than bfloat16 resolves add up: the parameters that are changed are float32."""
    layer = sn.quantize(gru_layer(3, 4), [normal(1, 5, 3)], "bfloat16")
    x, target = normal(2, 6, 3), normal(2, 6, 4)
    train = sn.value_and_grad(lambda y, target: ((y - target) ** 2).sum(-1), layer)
    params = layer.params
    first, gradients = train(x, target, params=params)
    for _ in range(400):
        _, gradients = train(x, target, params=params)
        params = {name: array - 5e-3 * gradients.params[name] for name, array in params.items()}
    value, _ = train(x, target, params=params)
    assert value < 0.9 * first


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("checkpoint", [None, 2])
def test_a_loss_computes_with_outputs_and_targets_of_16_bits(dtype: str, checkpoint: int | None) -> None:
    """Its value is that of the rounded outputs, in float32; gradients are those of float32, rounded."""
    kind = np.dtype(dtype) if dtype == "float16" else ml_dtypes.bfloat16
    W, x, target = (array.astype(kind) for array in (normal(3, 3), normal(2, 6, 3), normal(2, 6, 3)))
    train = sn.value_and_grad(lambda y, aim: ((y - aim) ** 2).sum(-1), of_product(W))
    value, gradients = train(x, target, wrt=("params", "inputs"), checkpoint=checkpoint)
    outputs = of_product(W)(x)[0].astype("float32")
    right = ((outputs - target.astype("float32")) ** 2).sum(-1).mean()
    assert_close(value, right, width=36)
    wide = sn.value_and_grad(lambda y, aim: ((y - aim) ** 2).sum(-1), of_product(W.astype("float32")))
    _, exact = wide(x.astype("float32"), target.astype("float32"), wrt=("params", "inputs"))
    for own, judge in ((gradients.params, exact.params), (gradients.inputs, exact.inputs)):
        assert own.dtype == kind
        assert distance(own.astype("float32"), judge) < 2**-6 * distance(judge, np.zeros_like(judge))


def of_product(W: Array) -> sn.RNN:
    """A recurrence with one matrix."""
    return sn.RNN(lambda x, h, W: (h + x, np.tanh(x @ W + h)), W, memory=3)


def test_int8_has_no_gradient() -> None:
    message = "a recurrence in int8 has no gradient: train the one that `quantize` was given, in float32 or"
    x = normal(2, 5, 6)
    cell = gru_layer(6, 9)
    graph = sn.Graph(lambda x, p: sn.cells.rnn("gru", p)(x)[0], cell.params)
    for model in (cell, sn.Stack([cell]), graph):
        with pytest.raises(RefusedError, match=message):
            sn.vjp(sn.quantize(model, [x], "int8"))(x)


def test_llvm_has_the_gradients_of_onednn() -> None:
    exact = sn.cells.rnn("lstm", sn.cells.CELLS["lstm"].parameters(32, 32, seed=1))
    x, d = normal(4, 10, 32), normal(4, 10, 32)
    layer = sn.quantize(exact, [x], "bfloat16")
    made, own = (sn.vjp(layer)(x, engine=engine)[1](d).inputs for engine in ("onednn", "llvm"))
    np.testing.assert_array_equal(made, own)
    right = sn.vjp(exact)(x)[1](d).inputs
    assert 2**-12 < distance(made, right) / distance(right, np.zeros_like(right)) < 2**-6
