"""Losses and tangents of models with equal nets have one program, whoever asks for them."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import stepnet as sn
from stepnet.compiler import targets

Array = np.ndarray
X = np.random.default_rng(0).standard_normal((3, 5, 2)).astype("f4")
ENGINES = "interpret", "llvm", "cuda-emulated"


def step(x: Any, h: Any, p: Any) -> Any:
    """A step with a product."""
    h = np.tanh(x @ p["W"] + h @ p["R"])
    return h, h


def other_step(x: Any, h: Any, p: Any) -> Any:
    """Another step of the same parameters."""
    h = np.tanh(x @ p["W"] - h @ p["R"])
    return h, h


def model(seed: int, step: Callable[..., Any] = step) -> sn.RNN:
    """A recurrence of its own, with parameters of its own."""
    chance = np.random.default_rng(seed)
    shapes = {"W": (2, 4), "R": (4, 4)}
    return sn.RNN(
        step, {n: chance.normal(0, 0.5, shape).astype("f4") for n, shape in shapes.items()}, memory=4
    )


def squared(outputs: Any, targets: Any) -> Any:
    """A loss."""
    return ((outputs - targets) ** 2).sum(-1)


def tangents(rnn: sn.RNN, engine: str) -> Array:
    """The tangents of outputs, by a function that is made for them."""
    (_, _), (moved, _) = sn.jvp(rnn)(X, {"params": rnn.params}, engine=engine)
    return moved


def value(rnn: sn.RNN, engine: str, checkpoint: Any = None) -> Array:
    """The gradients of a loss, by a function that is made for them."""
    run = sn.value_and_grad(squared, rnn)
    return run(X, np.ones((3, 5, 4), "f4"), engine=engine, checkpoint=checkpoint)[1].params["R"]


def in_pieces(rnn: sn.RNN, engine: str) -> Array:
    """The same, with the steps recomputed."""
    return value(rnn, engine, 2)


class CountedEngine:
    """An engine that counts what it compiles."""

    def __init__(self, engine: Any, counts: list[str]) -> None:
        self.engine, self.counts = engine, counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def compile(self, schedule: Any) -> Any:
        """Compiles a schedule, and counts it."""
        self.counts.append(self.engine.name)
        return self.engine.compile(schedule)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The compilations of the engines "counted llvm" and so on."""
    counts = list[str]()
    for name in ENGINES:
        engine: Any = CountedEngine(targets.engine_named(name), counts)
        monkeypatch.setitem(targets.ENGINES, f"counted {name}", lambda engine=engine: engine)  # type: ignore[arg-type]
    yield counts
    targets.engine.cache_clear()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("run", [tangents, value])
def test_models_with_equal_nets_share_what_is_compiled(
    run: Callable[..., Array], engine: str, compiled: list[str]
) -> None:
    first, second = model(1), model(2)
    engine = f"counted {engine}"
    results = [run(first, engine)]
    assert len(compiled) == 1
    results += [run(first, engine), run(second, engine), run(model(1), engine)]
    assert len(compiled) == 1
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[3])
    for rnn, made in ((first, results[0]), (second, results[2])):
        np.testing.assert_allclose(made, run(rnn, "interpret"), rtol=2e-5, atol=2e-6)
    before = len(compiled)
    other = run(model(1, other_step), engine)
    assert len(compiled) == before + 1
    assert not np.allclose(other, results[0])


def test_losses_that_recompute_share_the_gradients_of_the_model(compiled: list[str]) -> None:
    first = model(3)
    in_pieces(first, "counted llvm")
    before = len(compiled)
    in_pieces(first, "counted llvm")
    assert len(compiled) == before


def test_a_loss_that_reads_other_values_has_a_program_of_its_own(compiled: list[str]) -> None:
    """The function is the same, but not what it computes."""
    rnn, scale = model(4), [1.0]

    def scaled(outputs: Any, targets: Any) -> Any:
        """A loss that reads a list."""
        return scale[0] * ((outputs - targets) ** 2).sum(-1)

    aims = np.zeros((3, 5, 4), "f4")
    first, _ = sn.value_and_grad(scaled, rnn)(X, aims, engine="counted llvm")
    scale[0] = 3.0
    second, _ = sn.value_and_grad(scaled, rnn)(X, aims, engine="counted llvm")
    assert second == pytest.approx(3 * first, rel=1e-5)
    assert len(compiled) == 2


def test_a_program_goes_with_its_models(compiled: list[str]) -> None:
    def own_step(x: Any, h: Any, p: Any) -> Any:
        """A step that no other test has."""
        h = np.tanh(x @ p["W"] * (h @ p["R"]))
        return h, h

    tangents(model(5, own_step), "counted interpret")
    assert len(compiled) == 1
    gc.collect()
    tangents(model(5, own_step), "counted interpret")
    assert len(compiled) == 2
