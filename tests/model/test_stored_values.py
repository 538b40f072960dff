"""Gradients that read values stored in bfloat16, beside PyTorch's autograd, whose hooks round what it saves,
and beside the interpreter in float64.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from same_bits import assert_same_bits
from tolerance import assert_close, distance, tolerance
from zoo import normal

import stepnet as sn
import stepnet.torch
from stepnet.errors import InputError

Array = np.ndarray
SIZE, LENGTHS = 16, (7, 3, 1, 12)
NEARER = 20
"""The factor by which a gradient is nearer to that of the judge than to the exact one, at least."""


def weights(kind: str, dtype: str) -> dict[str, Array]:
    made = sn.cells.CELLS[kind].parameters(inputs=SIZE, hidden=SIZE)
    return {name: array.astype(dtype) for name, array in made.items()}


def cell(kind: str, dtype: str = "float32", **options: Any) -> sn.RNN:
    return sn.cells.rnn(kind, weights(kind, dtype), **options)


def fast_weights(dtype: str) -> sn.RNN:
    """Its memory is a matrix, so that its gradient runs in blocks of steps."""

    def step(x: Any, S: Any, p: Any) -> Any:
        k = np.tanh(x @ p["K"])
        S = 0.9 * S + k[:, :, None] * (x @ p["V"])[:, None, :]
        return (S * k[:, :, None]).sum(1), S

    params = {name: (0.2 * normal(SIZE, SIZE, seed=seed)).astype(dtype) for seed, name in enumerate("KV")}
    return sn.RNN(step, params, memory=(SIZE, SIZE))


def model(x: Any, p: Any) -> Any:
    h, _ = sn.cells.rnn("gru", p["gru"])(x)
    return h @ p["W"]


EPSILON = 1e-3


def normed(features: int, dtype: str) -> sn.RNN:
    """Its norm divides by the root of a variance that may be 0, and of `EPSILON`."""

    def step(x: Any, h: Any, p: Any) -> Any:
        h = sn.layer_norm(np.tanh(x @ p["W"] + h @ p["R"]), epsilon=EPSILON)
        return h, h

    shapes = {"W": (SIZE, features), "R": (features, features)}
    params = {name: normal(*shape, seed=8).astype(dtype) for name, shape in shapes.items()}
    return sn.RNN(step, params, memory=features)


@pytest.mark.parametrize("features", [1, 2])
def test_a_norm_of_few_features_magnifies_errors_by_its_divisor_at_most(features: int) -> None:
    stored = gradients(sn.vjp(normed(features, "float32"), saved="bfloat16"), ragged())
    right = gradients(sn.vjp(normed(features, "float64")), ragged("float64"), engine="interpret")
    most = tolerance("bfloat16", max(LENGTHS), sum(LENGTHS)) / np.sqrt(EPSILON)
    assert max(map(distance, stored, right)) < most


MODELS: dict[str, Callable[[str], Any]] = {
    "stack": lambda dtype: sn.Stack([cell("gru", dtype), cell("gru", dtype, reverse=True)]),
    "directions": lambda dtype: sn.Bidirectional(cell("lstm", dtype), cell("lstm", dtype, reverse=True)),
    "blocks": fast_weights,
    "graph": lambda dtype: sn.Graph(model, {"gru": weights("gru", dtype), "W": normal(SIZE, 3, dtype=dtype)}),
    "lstm": lambda dtype: cell("lstm", dtype),
}


def ragged(dtype: str = "float32") -> sn.Ragged:
    draw = np.random.default_rng(1)
    parts = (draw.normal(size=(length, SIZE)).astype("float32") for length in LENGTHS)
    return sn.Ragged.from_list([part.astype(dtype) for part in parts])


def leaves(params: Any) -> list[Array]:
    """The arrays of parameters, in a dict of dicts, or a tuple of dicts for layers."""
    if isinstance(params, dict | tuple):
        parts = params.values() if isinstance(params, dict) else params
        return [array for part in parts for array in leaves(part)]
    return [params]


def outputs_of(results: Any) -> Any:
    """The outputs of a call, which are also their cotangents: those of half the sum of their squares."""
    return results[0] if isinstance(results, tuple) else results


def gradients(run: Any, x: Any, **options: Any) -> list[Array]:
    results, backward = run(x, **options)
    made = backward(outputs_of(results))
    return [*leaves(made.params), made.inputs.values]


def kept(run: Any, x: Any) -> int:
    """The bytes that a first call saves for its gradients alone."""
    results, backward = run(x)
    own = [getattr(each, "values", each) for each in (results[0], *leaves(results[1]))]
    saved = [array for array in backward.saved if not any(np.shares_memory(array, one) for one in own)]
    return sum(array.nbytes for array in saved)


@pytest.mark.long(every=3)
@pytest.mark.parametrize("name", MODELS)
def test_half_the_bytes_are_saved_and_no_result_changes(name: str) -> None:
    model = MODELS[name]("float32")
    exact, stored = sn.vjp(model), sn.vjp(model, saved="bfloat16")
    assert_same_bits(exact(ragged())[0], stored(ragged())[0])
    right = gradients(sn.vjp(MODELS[name]("float64")), ragged("float64"), engine="interpret")
    found, *_ = [gradients(stored, ragged()) for _ in range(3)][::-1]  # the later calls are prepared
    for low, judge in zip(found, right, strict=True):
        assert_close(low, judge, max(LENGTHS), sum(LENGTHS), "bfloat16")
    assert distance(found[0], right[0]) > 100 * distance(gradients(exact, ragged())[0], right[0])


@pytest.mark.parametrize("name", ["lstm", "stack"])
def test_bytes(name: str) -> None:
    """Half of those that the backward pass alone reads; not the outputs that the second layer reads too."""
    model = MODELS[name]("float32")
    between = 4 * sum(LENGTHS) * SIZE if name == "stack" else 0
    exact, stored = (kept(sn.vjp(model, saved=saved), ragged()) for saved in (None, "bfloat16"))
    assert 2 * (stored - between) == exact - between


# ---- the judge ---------------------------------------------------------------------------------------------

VIEWS = ("TBackward0", "UnsqueezeBackward0", "SelectBackward0", "UnbindBackward0")
"""The functions that make a view of an input or a parameter, which is saved as it is."""


def lstm(x: torch.Tensor, p: dict[str, torch.Tensor]) -> torch.Tensor:
    """An LSTM over one sequence [time, inputs], as a loop."""
    h = c = torch.zeros(1, SIZE)
    outputs: list[torch.Tensor] = []
    for step in x:
        i, f, g, o = (step[None] @ p["W"] + p["b"] + h @ p["R"] + p["d"]).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.cat(outputs)


def judged(x: sn.Ragged, params: dict[str, Array], pack: Callable[[torch.Tensor], Any]) -> list[Array]:
    """The gradients of an LSTM by PyTorch, which saves what `pack` makes of computed values."""
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in params.items()}
    values = torch.tensor(x.values, requires_grad=True)

    def packed(saved: torch.Tensor) -> torch.Tensor:
        return pack(saved) if saved.grad_fn is not None and saved.grad_fn.name() not in VIEWS else saved

    with torch.autograd.graph.saved_tensors_hooks(packed, torch.Tensor.float):
        made = torch.cat([lstm(part, tensors) for part in values.split(x.lengths.tolist())])
    made.backward(made.detach())
    return [tensor.grad.numpy() for tensor in (*tensors.values(), values) if tensor.grad is not None]


def test_gradients_are_those_of_rounded_values() -> None:
    rnn = cell("lstm")
    found = gradients(sn.vjp(rnn, saved="bfloat16"), ragged())
    right = judged(ragged(), rnn.params, torch.Tensor.bfloat16)
    exact = judged(ragged(), rnn.params, torch.Tensor.clone)
    for one, judge, other in zip(found, right, exact, strict=True):
        assert NEARER * np.linalg.norm(one - judge) < np.linalg.norm(one - other)


# ---- ways to run -------------------------------------------------------------------------------------------


def test_a_sequence_has_the_same_bits_in_any_batch() -> None:
    run = sn.vjp(cell("gru"), saved="bfloat16")
    parts = ragged().to_list()

    def of(places: list[int]) -> list[Array]:
        results, backward = run(sn.Ragged.from_list([parts[place] for place in places]))
        return backward(outputs_of(results)).inputs.to_list()

    whole = of([0, 1, 2, 3])
    for place in range(len(parts)):
        assert_same_bits(of([place])[0], whole[place])


@pytest.mark.long(every=2)
@pytest.mark.parametrize("options", [{}, {"checkpoint": 4}, {"engine": "interpret"}], ids=str)
def test_every_way_to_run_reads_the_same_values(options: Any) -> None:
    rnn = cell("lstm")
    right = gradients(sn.vjp(rnn, saved="bfloat16"), ragged())

    def loss(y: Any, target: Any) -> Any:
        return 0.5 * np.sum(y * y, axis=-1)

    train = sn.value_and_grad(loss, rnn, reduce="sum", saved="bfloat16")
    _, made = train(ragged(), ragged(), wrt=("params", "inputs"), **options)
    exact = gradients(sn.vjp(rnn), ragged())
    ways = (
        [*leaves(made.params), made.inputs.values],
        gradients(sn.vjp(rnn, saved="bfloat16"), ragged(), **options),
    )
    for found in ways:
        for one, judge, other in zip(found, right, exact, strict=True):
            assert NEARER * np.linalg.norm(one - judge) < np.linalg.norm(one - other)


def test_gradients_of_each_sequence_read_them_too() -> None:
    run = sn.vjp(cell("gru"), saved="bfloat16", per_sequence=True)
    each, whole = gradients(run, ragged()), gradients(sn.vjp(cell("gru"), saved="bfloat16"), ragged())
    for one, other in zip(each[:-1], whole[:-1], strict=True):
        assert np.allclose(one.sum(0), other, atol=1e-4)


EXAMPLE = torch.zeros(1, SIZE), torch.zeros(1, SIZE)
MODULES = {
    "GRU": partial(stepnet.torch.GRU, SIZE, SIZE, batch_first=True),
    "Recurrence": lambda **options: stepnet.torch.Recurrence(
        torch.nn.GRUCell(SIZE, SIZE), EXAMPLE, **options
    ),
    "Scan": lambda **options: stepnet.torch.Scan(cell("gru"), **options),
}


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", MODULES)
def test_modules_of_pytorch(name: str) -> None:
    """The results have the same bits."""
    x = torch.randn(3, 5, SIZE, generator=torch.Generator().manual_seed(0))
    modules = MODULES[name](), MODULES[name](saved="bfloat16")
    modules[1].load_state_dict(modules[0].state_dict())
    both: list[list[torch.Tensor]] = []
    for module in modules:
        outputs, _ = module(x)
        both.append([outputs, *torch.autograd.grad(outputs.square().sum(), list(module.parameters()))])
    assert torch.equal(both[0][0], both[1][0])
    for one, other in zip(both[0][1:], both[1][1:], strict=True):
        assert not torch.equal(one, other)
        assert_close(other, one, 5, 15, "bfloat16")


# ---- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [sn.vjp, partial(sn.value_and_grad, lambda y, t: y[:, 0])], ids=["vjp", "loss"]
)
def test_other_dtypes_are_refused(make: Any) -> None:
    with pytest.raises(InputError, match="saved is None or 'bfloat16', not 'int8'"):
        make(cell("gru"), saved="int8")


def test_graphs_of_pytorch_refuse_it() -> None:
    layer = stepnet.torch.GRU(3, 4, saved="bfloat16")
    with pytest.raises(InputError, match="cannot use saved="):
        torch.export.export(layer, (torch.zeros(5, 2, 3),))


def test_explain_names_what_is_stored() -> None:
    text = sn.vjp(cell("gru"), saved="bfloat16").explain("params")
    assert "saved: 160 B per step\n  h               bf16[16]" in text
