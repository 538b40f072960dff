"""Both directions of a layer, and layers, on the engine onednn: what they compute, and what runs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import assert_close
from zoo import sequences

import stepnet as sn
from stepnet import onednn
from stepnet.compiler.values import leaves

pytestmark = pytest.mark.usefixtures("dnnl")
Array = np.ndarray
HIDDEN = 4
BOTH = ("onednn", "llvm")


def cell(
    name: str, inputs: int, reverse: bool = False, seed: int = 0, dtype: str = "float32", hidden: int = HIDDEN
) -> sn.RNN:
    kind = sn.cells.CELLS[name]
    sizes: Any = {"projected": 3} if "P" in kind.further else {}
    params = kind.parameters(inputs, hidden, seed=seed, **sizes)
    cast = {key: array.astype(dtype) for key, array in params.items()}
    return sn.cells.rnn(name, cast, reverse=reverse)


def both(
    name: str, inputs: int, seed: int = 0, merge: str = "concat", dtype: str = "float32", hidden: int = HIDDEN
) -> sn.Bidirectional:
    made = (cell(name, inputs, reverse, seed + reverse, dtype, hidden) for reverse in (False, True))
    return sn.Bidirectional(*made, merge=merge)


def flat(value: Any) -> list[Array]:
    return [np.asarray(getattr(leaf, "values", leaf)) for leaf in leaves(value)]


# ---- what they compute -------------------------------------------------------------------------------------

NAMES = list(sn.cells.CELLS)
LENGTHS = st.one_of(
    st.lists(st.integers(0, 6), max_size=5),
    st.tuples(st.integers(1, 4), st.integers(0, 6)).map(lambda pair: [pair[1]] * pair[0]),
)


@dataclass(frozen=True)
class Case:
    """Layers of one cell: directions and merges from the first on, and how they are called."""

    name: str
    hidden: int
    layers: tuple[str, ...]
    lengths: tuple[int, ...]
    begins: bool
    last_only: bool

    @property
    def output(self) -> int:
        """The size of h."""
        return 3 if self.name == "lstm_projection" else self.hidden

    def stack(self, dtype: str) -> sn.Stack:
        made, inputs = list[Any](), 5
        for place, way in enumerate(self.layers):
            if way in ("concat", "sum"):
                made.append(both(self.name, inputs, 2 * place, way, dtype, self.hidden))
            else:
                made.append(cell(self.name, inputs, way == "reverse", 2 * place, dtype, self.hidden))
            inputs = self.output * (2 if way == "concat" else 1)
        return sn.Stack(made)

    def initial(self, dtype: str) -> Any:
        random = np.random.default_rng(7)

        def memory() -> Any:
            h, c = (
                random.normal(size=(len(self.lengths), size)).astype("f4").astype(dtype)
                for size in (self.output, self.hidden)
            )
            return {"h": h, "c": c} if self.name.startswith("lstm") else h

        made = [
            {"forward": memory(), "backward": memory()} if way in ("concat", "sum") else memory()
            for way in self.layers
        ]
        return made if self.begins else None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ways = draw(st.lists(st.sampled_from(["forward", "reverse", "concat", "sum"]), min_size=1, max_size=3))
    return Case(
        draw(st.sampled_from(NAMES)),
        draw(st.sampled_from([3, 4, 17])),
        tuple(ways),
        tuple(draw(LENGTHS)),
        draw(st.booleans()),
        # The last step alone is taken by another part, unless it is all in the plan of one recurrence.
        draw(st.booleans()) and ways not in (["forward"], ["reverse"]),
    )


@pytest.mark.long(examples=20)
@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_layers_compute_what_the_interpreter_does_in_float64(case: Case) -> None:
    x = sequences(list(case.lengths), 5)
    options: Any = {"last_only": case.last_only}
    low, high = case.stack("float32"), case.stack("float64")
    right = high(x.with_values(x.values.astype("f8")), case.initial("float64"), engine="interpret", **options)
    for _ in range(2):  # the second call is frozen
        made = low(x, case.initial("float32"), engine="onednn", **options)
        for ours, theirs in zip(flat(made), flat(right), strict=True):
            assert_close(ours, theirs, 6 * len(case.layers), 5 + case.hidden, "float32")


@pytest.mark.long(every=6)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reverse", [False, True])
def test_three_layers_of_one_direction(name: str, reverse: bool) -> None:
    output = 3 if name == "lstm_projection" else HIDDEN
    for inputs in (5, output):
        ours = made = list[list[np.ndarray]]()
        for dtype in ("float32", "float64"):
            sizes = (inputs, output, output)
            stack = sn.Stack([cell(name, size, reverse, n, dtype) for n, size in enumerate(sizes)])
            made = [
                flat(stack(x.with_values(x.values.astype(dtype)), engine=("onednn", "interpret")))
                for lengths in ([3, 3], [5], [4, 0, 6], [0], [])
                for x in [sequences(lengths, inputs)]
            ]
            if dtype == "float32":
                ours = made
        for one, other in zip(ours, made, strict=True):
            for low, right in zip(one, other, strict=True):
                assert_close(low, right, 18, 2 * HIDDEN, "float32")


def test_padded_arrays_and_those_with_time_first() -> None:
    layer = sn.Stack([both("gru", 3), both("lstm", 8, 2)])
    x = np.random.default_rng(0).normal(size=(3, 6, 3)).astype("f4")
    for lengths in (None, [6, 2, 0], [4, 4, 4]):
        for array, major in ((x, False), (np.ascontiguousarray(x.swapaxes(0, 1)), True)):
            for _ in range(3):
                made = layer(array, engine="onednn", time_major=major, lengths=lengths)
                right = layer(array, engine="interpret", time_major=major, lengths=lengths)
                for ours, theirs in zip(flat(made), flat(right), strict=True):
                    assert_close(ours, theirs, 12, 12)


def test_other_parameters() -> None:
    graph = sn.Graph(Both(), both_params(0), inputs=3)
    x = sequences([4, 4], 3)
    for made in (graph, graph.with_params(both_params(5))):
        assert_close(made(x, engine="onednn").values, made(x, engine="interpret").values, 4, 8)
    first, second = (each(x, engine="onednn").values for each in (graph, made))
    assert np.abs(first - second).max() > 0.01


def both_params(seed: int) -> Any:
    kind = sn.cells.CELLS["gru"]
    return [kind.parameters(3, HIDDEN, seed=seed), kind.parameters(3, HIDDEN, seed=seed + 1)]


class Both:
    """A model whose parameters are those of both directions."""

    def __call__(self, x: Any, p: Any) -> Any:
        step = sn.cells.CELLS["gru"].step
        return np.concatenate([recurrence(step, x, p[0], False), recurrence(step, x, p[1], True)], axis=-1)


def recurrence(step: Any, x: Any, params: Any, reverse: bool) -> Any:
    """A recurrence whose parameters are those of the model."""
    rnn = sn.RNN(step, params, memory=HIDDEN, reverse=reverse)
    return rnn(x)[0]


# ---- which primitives run ----------------------------------------------------------------------------------


def test_each_direction_is_a_primitive_and_equal_layers_share_one() -> None:
    stack = sn.Stack([cell("gru", HIDDEN), cell("gru", HIDDEN, seed=1)])
    for layer, inputs, count in ((both("gru", 3), 3, 2), (stack, HIDDEN, 1)):
        for lengths in ([4, 4, 4], [5], [4, 2], [4, 0]):
            onednn.clear()
            layer(sequences(lengths, inputs), engine="onednn")
            assert onednn.counters()["primitives"].misses == count
            assert onednn.counters()["weights"].misses == 2


def runs() -> list[Any]:
    """The primitives that are kept."""
    from stepnet.compiler.targets.onednn.run import RUNS

    return [run for run, _ in RUNS.values.values()]


def test_c_is_computed_where_it_is_read_alone() -> None:
    """c at the end of sequences of different lengths takes a primitive for each length."""
    lstm = cell("lstm", 3)
    x = sequences([1, 2, 3, 4, 7], 3)

    def outputs(x: Any, p: Any) -> Any:
        return np.tanh(lstm(np.tanh(x))[0]) + cell("lstm", 3, True, 1)(np.tanh(x))[0]

    def with_c(x: Any, p: Any) -> Any:
        h, last = lstm(np.tanh(x))
        return h, last["c"]

    for model, steps in ((outputs, {7}), (with_c, {1, 3})):
        graph = sn.Graph(model, inputs=3)
        onednn.clear()
        made, right = (graph(x, engine=engine) for engine in (BOTH, "interpret"))
        for ours, theirs in zip(flat(made), flat(right), strict=True):
            assert_close(ours, theirs, 7, 8)
        assert {run.steps for run in runs()} == steps


class Tagger:
    """Two layers of both directions, what is read besides, and work around them."""

    def __init__(self) -> None:
        self.first, self.second = both("gru", 6), both("gru", 8, 2)

    def __call__(self, words: Any, p: Any) -> Any:
        h, last = self.first(p["table"][words])
        h, _ = self.second(h)
        return {
            "tags": sn.softmax(h @ p["W"]),
            "end": last["backward"] + last["forward"],
            "mean": sn.reduce(h, "sum"),
        }


def tagger() -> sn.Graph:
    random = np.random.default_rng(0)
    params = {"table": random.normal(size=(20, 6)).astype("f4"), "W": random.normal(size=(8, 5)).astype("f4")}
    return sn.Graph(Tagger(), params, inputs=sn.Spec((), "int64"))


def test_a_graph_with_other_work_around_its_layers() -> None:
    graph = tagger()
    for lengths in ([4, 4, 4], [3], [5, 0, 2], [0], []):
        words = sequences(lengths, 1)
        words = words.with_values(np.arange(sum(lengths)) % 20)
        for _ in range(3):
            made, right = (graph(words, engine=engine) for engine in (BOTH, "interpret"))
            for ours, theirs in zip(flat(made), flat(right), strict=True):
                assert_close(ours, theirs, 10, 40)
