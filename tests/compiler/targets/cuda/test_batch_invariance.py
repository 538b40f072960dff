"""The same bits for a sequence in every batch, on GPUs so small that the batch decides the kernel."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from zoo import rnn_of

import stepnet as sn
from stepnet.compiler import targets
from stepnet.compiler.targets import engine_named
from stepnet.compiler.values import leaves

Array = np.ndarray
FEATURES = 40
SIZES = (2, 6, 132)
"""The multiprocessors of the emulated GPUs."""
OPTIONS = ("", ":tf32", ":batch-invariant", ":tf32:batch-invariant")


@cache
def small(multiprocessors: int, options: str) -> Any:
    """An engine for an emulated GPU with so many multiprocessors. options: words after its name."""
    engine: Any = engine_named(f"cuda-emulated{options}")
    facts = replace(engine.device.facts, multiprocessors=multiprocessors)
    device = type(engine.device)(facts=facts)
    return replace(engine, device=device, name=f"small {multiprocessors}{options}")


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the engines for small GPUs known by their names."""
    for made in (small(count, options) for count in SIZES for options in OPTIONS):
        monkeypatch.setitem(targets.ENGINES, made.name, lambda made=made: made)  # type: ignore[arg-type]
    yield
    targets.engine.cache_clear()


# ---- models ------------------------------------------------------------------------------------------------


def params_of(**shapes: tuple[int, ...]) -> dict[str, Array]:
    """Parameters of these shapes."""
    random = np.random.default_rng(0)
    return {name: random.normal(0, 0.3, shape).astype("f4") for name, shape in shapes.items()}


def cell(name: str) -> Callable[[int], Any]:
    """Makes a function that makes a recurrence of a cell, with so many units."""
    return lambda units: rnn_of(name, FEATURES, units)


def normed(units: int) -> sn.RNN:
    """A step with sums over its units."""

    def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        made = x @ params["W"] + h @ params["U"]
        made = np.tanh(made / np.sqrt(1 + np.mean(made * made, axis=-1, keepdims=True)))
        return made, made

    return sn.RNN(step, params_of(W=(FEATURES, units), U=(units, units)), memory=units)


def decay(units: int) -> sn.RNN:
    """A step whose units are alone, after a product of all steps."""

    def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        made = h * params["a"] + x @ params["W"]
        return made, made

    return sn.RNN(step, params_of(W=(FEATURES, units), a=(units,)), memory=units)


def graph(units: int) -> sn.Graph:
    """Products of many terms, two directions, a softmax over steps and a sum of them, attention."""
    both = sn.Bidirectional(rnn_of("gru", 8, units), rnn_of("gru", 8, units, reverse=True))

    def model(x: Any, params: Any) -> Any:
        wide = np.tanh(x @ params["wide"])  # sums of several parts
        h, _ = both(wide @ params["narrow"])
        weights = sn.softmax_over_steps(h @ params["v"])
        return sn.reduce(weights[:, None] * h, "sum") @ params["last"], sn.attention(h, h, h, heads=2)

    shapes = {"wide": (FEATURES, 700), "narrow": (700, 8), "v": (2 * units,), "last": (2 * units, 3)}
    return sn.Graph(model, params_of(**shapes))


MODELS = {
    "gru": cell("gru"),
    "lstm": cell("lstm"),
    "minimal_gated_unit": cell("minimal_gated_unit"),
    "normed": normed,
    "decay": decay,
    "graph": graph,
}


@cache
def model_of(name: str, units: int) -> Any:
    """A model by its name."""
    return MODELS[name](units)


# ---- the check ---------------------------------------------------------------------------------------------


def values_of(model: Any, x: sn.Ragged, engine: str, has_gradients: bool) -> list[list[Array]]:
    """The values of each sequence: outputs, final memories, and the gradients of inputs if wanted."""
    if has_gradients:
        results, back = sn.vjp(model)(x, engine=engine)
        made = [*leaves(results), (back(*results) if model.gives_final else back(results)).inputs]
    else:
        made = leaves(model(x, engine=engine))
    return [[np.asarray(leaf[row]) for leaf in made] for row in range(len(x))]


def sequences_of(lengths: list[int], chance: int = 0) -> list[Array]:
    """Sequences of these lengths."""
    random = np.random.default_rng(chance)
    return [random.normal(size=(length, FEATURES)).astype("f4") for length in lengths]


def are_same(model: Any, sequences: list[Array], rows: list[int], engine: str, has_gradients: bool) -> bool:
    """Tells whether some of the sequences have the bits in a batch of their own that they have in all."""
    together, apart = (
        values_of(model, sn.Ragged.from_list(each), engine, has_gradients)
        for each in (sequences, [sequences[row] for row in rows])
    )
    return all(
        one.tobytes() == other.tobytes()
        for row, own in zip(rows, apart, strict=True)
        for one, other in zip(together[row], own, strict=True)
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, ...]:
    """A model, sequences, some rows of them, the words of an engine, and whether gradients are compared."""
    model = model_of(draw(st.sampled_from(sorted(MODELS))), draw(st.sampled_from([8, 24, 40])))
    lengths = draw(st.lists(st.integers(0, 3), min_size=20, max_size=60))
    rows = draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=3, unique=True))
    engine = f"small {draw(st.sampled_from(SIZES))}{draw(st.sampled_from(['', ':tf32']))}:batch-invariant"
    return model, sequences_of(lengths, draw(st.integers(0, 99))), rows, engine, draw(st.booleans())


def test_a_sequence_has_the_same_bits_in_every_batch(pytestconfig: pytest.Config) -> None:
    is_long = pytestconfig.option.long

    @seed(pytestconfig.option.seed if is_long else 0)
    @settings(
        max_examples=100 if is_long else 2,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(cases())
    def run(case: Any) -> None:
        assert are_same(*case)

    run()


def test_without_the_option_large_batches_have_their_own_order_of_sums() -> None:
    """A GRU of 40 units, on 6 multiprocessors: another schedule is faster by a tenth for 80 sequences."""
    model, sequences = model_of("gru", 40), sequences_of([2] * 80)
    assert not are_same(model, sequences, [3], "small 6", False)
    assert are_same(model, sequences, [3], "small 6:batch-invariant", False)
