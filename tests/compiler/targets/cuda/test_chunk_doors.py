"""Gradients of matrices by every way that there is to ask for them: all run in chunks of steps. In emulation,
beside the interpreter in float64; those of PyTorch are in `tests/torch`, and that of JAX in `tests/peers`.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.targets.cuda import decay_form, decay_time
from tests.compiler.targets.cuda.matrix_steps import MatrixStep, gated_delta, gla, mamba2
from tests.compiler.targets.cuda.tensor_loops import DEVICE

Array = np.ndarray
Found = dict[str, Array]
LENGTHS = 40, 0, 1, 17
PIECE = 16
SAID = "chunks of steps, by products of matrices"
STEP = mamba2()
CASES = {"mamba2": STEP, "gated_delta": gated_delta(), "gla": gla()}


def flat(gradients: Any) -> Found:
    """The gradients by name: of parameters, of inputs, and of the initial memories."""
    made: Found = {name: each.values for name, each in gradients.inputs.items()}
    made |= {} if gradients.params is None else gradients.params
    return made | ({} if gradients.initial is None else {"initial": gradients.initial})


def arguments(step: MatrixStep, dtype: str) -> tuple[Any, Any, Array, list[str]]:
    """Sequences, cotangents of the outputs, initial memories, and what is differentiated."""
    x = {name: each.with_values(each.values.astype(dtype)) for name, each in step.sequences(LENGTHS).items()}
    values = x["x" if "x" in x else "v"]
    chance = np.random.default_rng(3)
    seeds = values.with_values(chance.normal(size=values.values.shape).astype(dtype))
    wrt = ["inputs", "initial", *(["params"] if step.params is not None else [])]
    return x, seeds, step.initial(len(LENGTHS)).astype(dtype), wrt


def by_vjp(step: MatrixStep, engine: str, dtype: str, each: bool = False, **options: Any) -> Found:
    """By `sn.vjp`."""
    x, seeds, initial, wrt = arguments(step, dtype)
    gradient = sn.vjp(step.rnn(), per_sequence=each)
    _, backward = gradient(x, initial=initial, engine=engine, wrt=wrt, **options)
    return flat(backward(seeds, None))


def by_loss(step: MatrixStep, engine: str, dtype: str, **options: Any) -> Found:
    """By `sn.value_and_grad`, of a loss that has the same cotangents."""
    x, seeds, initial, wrt = arguments(step, dtype)

    def loss(outputs: Any, targets: Any) -> Any:
        return (outputs * targets).sum((-2, -1))

    train = sn.value_and_grad(loss, step.rnn(), reduce="sum")
    return flat(train(x, seeds, initial=initial, engine=engine, wrt=wrt, **options)[1])


def by_sequence(step: MatrixStep, engine: str, dtype: str) -> Found:
    """By `per_sequence=True`; those of parameters added up."""
    found = by_vjp(step, engine, dtype, each=True)
    return {name: each.sum(0) if name in (step.params or {}) else each for name, each in found.items()}


DOORS: dict[str, Callable[..., Found]] = {
    "vjp": by_vjp,
    "value_and_grad": by_loss,
    "per_sequence": by_sequence,
    "vjp, checkpoint": lambda *given: by_vjp(*given, checkpoint=PIECE),
    "value_and_grad, checkpoint": lambda *given: by_loss(*given, checkpoint=PIECE),
}


@cache
def right(name: str) -> Found:
    """The gradients that the interpreter finds in float64, step by step."""
    return by_vjp(CASES[name], "interpret", "f8")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "name", ["mamba2", *(pytest.param(name, marks=pytest.mark.long) for name in ("gated_delta", "gla"))]
)
def test_gradients_run_in_chunks_whatever_asks_for_them(name: str, door: str, codes: list[Any]) -> None:
    step = CASES[name]
    found = DOORS[door](step, "cuda-emulated", "f4")
    names = [code.name for code in codes]
    assert "gradients of a matrix" in names
    assert found.keys() == right(name).keys()
    for key, known in right(name).items():
        assert_close(found[key], known, max(LENGTHS), 16 * 32)
    if "checkpoint" not in door:
        same = by_vjp(step, "cuda-emulated", "f4")
        for key in set(same) - set(step.params or {}):
            np.testing.assert_array_equal(found[key], same[key], key)


def strided(x: Any, params: Any) -> Any:
    """A decaying linear attention, and the larger ones of two of its outputs."""
    return sn.max_pool1d(decaying({"q": x["q"], "k": x["k"], "g": x["g"], "v": x["v"]})[0], 2)


def documents(x: Any, params: Any) -> Any:
    """The same, whose values are sums over sequences inside its steps."""
    return decaying({"q": x["q"], "k": x["k"], "g": x["g"], "v": sn.reduce(x["v"], "sum")})[0]


def decaying_step(x: Any, S: Any, params: Any) -> Any:
    """A step of a decaying linear attention."""
    S = S * np.exp(x["g"])[:, :, None] + x["k"][:, :, None] * x["v"][:, None, :]
    return (S * x["q"][:, :, None]).sum(1), S


decaying = sn.RNN(decaying_step, memory=(16, 16))


@pytest.mark.parametrize("model", [strided, documents])
def test_models_with_other_sequences_besides_run_in_chunks(model: Any, codes: list[Any]) -> None:
    chance, offsets = np.random.default_rng(4), np.array([0, 6, 26])
    sizes = {"q": 16, "k": 16, "g": 1, "v": 16}
    values = {name: chance.normal(size=(26, size)) / 4 for name, size in sizes.items()}
    values["g"] = -np.abs(values["g"])
    inner = np.minimum(np.arange(27), 20)  # the last six steps have none
    found = list[Any]()
    for engine, dtype in (("interpret", "f8"), ("cuda-emulated", "f4")):
        x = {name: sn.Ragged(each.astype(dtype), (offsets,)) for name, each in values.items()}
        if model is documents:
            x["v"] = sn.Ragged(values["v"][:20].astype(dtype), (offsets, inner))
        outputs, backward = sn.vjp(sn.Graph(model))(x, engine=engine, wrt="inputs")
        found.append(backward(outputs.with_values(np.ones_like(outputs.values))).inputs)
    assert "gradients of a matrix" in [code.name for code in codes]
    for name in sizes:
        assert_close(found[1][name].values, found[0][name].values, 20, 256)


@pytest.mark.parametrize(("each", "checkpoint"), [(False, None), (True, None), (False, PIECE)])
def test_explain_says_so_for_each_of_them(each: bool, checkpoint: int | None) -> None:
    rnn = STEP.rnn()
    rnn({name: x[None] for name, x in STEP.values(2).items()})
    gradient = sn.vjp(rnn, per_sequence=each)
    assert f"blocks      {SAID}" in gradient.explain(engine="cuda-emulated", checkpoint=checkpoint)
    said = " ".join(gradient.explain(engine="llvm", checkpoint=checkpoint).split())
    if each:
        assert "blocks 1 step: gradients of each sequence run step by step" in said
    assert SAID not in said


def test_explain_has_the_time_of_each_kernel() -> None:
    rnn = STEP.rnn()
    rnn({name: x[None] for name, x in STEP.values(2).items()})
    text = " ".join(sn.vjp(rnn).explain(engine="cuda-emulated", rows=16, steps=64).split())
    form = decay_form(1, 1, 16, 32, "float32", DEVICE.shared)
    assert form is not None
    time = decay_time(form, 16, 2, DEVICE)
    assert f"in chunks, by products on tensor cores: {time:.2f} us for a step" in text
    assert f"{64 * time:,.0f} us predicted for 64 steps" in text
