"""Both directions of a layer, and layers, in one primitive: what they compute, and what is refused."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import assert_close

import stepnet as sn
from stepnet import onednn
from stepnet.engines import choose, joinings
from stepnet.engines.onednn import joined as module
from stepnet.graph.programs import GraphProgram, in_precisions
from stepnet.net.ir import Builder, Net
from stepnet.net.precision import Precision
from stepnet.net.types import STEPS, Type
from stepnet.plan.schedule import Part, Schedule
from stepnet.values.structure import leaves

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


def ragged(lengths: list[int], features: int, seed: int = 0) -> sn.Ragged:
    values = np.random.default_rng(seed).normal(size=(sum(lengths), features)).astype("f4")
    return sn.Ragged(values, (np.cumsum([0, *lengths]),))


def parts_of(layer: Any, engine: Any = "onednn") -> tuple[Part, ...]:
    """The parts of the layer's latest program."""
    *_, program = layer.run.programs.values()
    return program.schedule_for(engine).parts


def joined_in(parts: tuple[Part, ...]) -> list[tuple[int, str]]:
    """How many layers each joined part has, and its merge."""
    return [(len(part.members), part.merge) for part in parts if part.kind == "joined"]


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


@pytest.mark.long(examples=12)
@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_layers_compute_what_the_interpreter_does_in_float64(case: Case) -> None:
    x = ragged(list(case.lengths), 5)
    options: Any = {"last_only": case.last_only}
    low, high = case.stack("float32"), case.stack("float64")
    right = high(x.with_values(x.values.astype("f8")), case.initial("float64"), engine="interpret", **options)
    for _ in range(2):  # the second call is frozen
        made = low(x, case.initial("float32"), engine="onednn", **options)
        for ours, theirs in zip(flat(made), flat(right), strict=True):
            assert_close(ours, theirs, 6 * len(case.layers), 5 + case.hidden, "float32")


@pytest.mark.long(examples=6)
@settings(max_examples=20, deadline=None)
@given(case=cases())
def test_in_one_piece_they_give_what_the_parts_give_apart(case: Case) -> None:
    x, stack = ragged(list(case.lengths), 5), case.stack("float32")
    reading = stack.run.read(x, case.initial("float32"), None, None, case.last_only)
    program = reading.program
    results = []
    for schedule in (program.schedule, program.schedule_for("onednn")):
        engine, _ = choose(schedule, "onednn")
        results.append(engine.compile(schedule).bind(program.params)(reading.call).arrays)
    for apart, joined in zip(*results, strict=True):
        assert_close(joined, apart, 6 * len(case.layers), 5 + case.hidden)


@pytest.mark.long(every=3)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reverse", [False, True])
def test_three_layers_of_one_direction(name: str, reverse: bool) -> None:
    """The last two or, with inputs as many as units, all three; with all lengths and first memories."""
    output = 3 if name == "lstm_projection" else HIDDEN
    for inputs, count in ((5, 2), (output, 3)):
        ours = made = list[list[np.ndarray]]()
        for dtype in ("float32", "float64"):
            sizes = (inputs, output, output)
            stack = sn.Stack([cell(name, size, reverse, n, dtype) for n, size in enumerate(sizes)])
            made = [
                flat(stack(x.with_values(x.values.astype(dtype)), engine=("onednn", "interpret")))
                for lengths in ([3, 3], [5], [4, 0, 6], [0], [])
                for x in [ragged(lengths, inputs)]
            ]
            if dtype == "float32":
                assert joined_in(parts_of(stack, "onednn")) == [(count, "")]
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
    x = ragged([4, 4], 3)
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


def primitives_of(layer: Any, lengths: list[int], inputs: int) -> int:
    """How many primitives a first call makes."""
    onednn.clear()
    layer(ragged(lengths, inputs), engine="onednn")
    return onednn.counters()["primitives"].misses


def test_equal_lengths_are_one_primitive_and_others_one_for_each_direction() -> None:
    layer = both("gru", 3)
    assert [primitives_of(layer, lengths, 3) for lengths in ([4, 4, 4], [5], [4, 2], [4, 0])] == [1, 1, 2, 2]
    assert primitives_of(layer, [0], 3) == 0
    onednn.clear()
    for _ in range(4):
        layer(ragged([4, 4, 4], 3), engine="onednn")
    counts = onednn.counters()
    assert (counts["primitives"].misses, counts["weights"].misses) == (1, 1)
    assert counts["primitives"].hits >= 3


def test_layers_of_one_direction_are_one_primitive_unless_inner_memories_are_read() -> None:
    stack = sn.Stack([cell("gru", HIDDEN), cell("gru", HIDDEN, seed=1)])
    assert primitives_of(stack, [4, 4], HIDDEN) == 1
    assert primitives_of(stack, [4, 2], HIDDEN) == 1  # both have the same primitive: of one layer
    assert [(run.recurrence.layers) for run in runs()] == [1]

    graph = sn.Graph(lambda x, p: stack(x)[0], inputs=HIDDEN)
    onednn.clear()
    x = ragged([4, 2, 0], HIDDEN)
    assert_close(graph(x, engine="onednn").values, graph(x, engine="interpret").values, 8, 8)
    assert [run.recurrence.layers for run in runs()] == [2]


def runs() -> list[Any]:
    """The primitives that are kept."""
    from stepnet.engines.onednn.run import RUNS

    return [run for run, _ in RUNS.values.values()]


def test_large_layers_with_one_row_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = sn.Stack([cell("lstm", HIDDEN), cell("lstm", HIDDEN, seed=1)])
    monkeypatch.setattr(module, "LARGE", 100)
    for lengths, layers in (([4], 1), ([4, 4], 2)):
        onednn.clear()
        x = ragged(lengths, HIDDEN)
        made, right = (stack(x, engine=engine) for engine in ("onednn", "interpret"))
        for ours, theirs in zip(flat(made), flat(right), strict=True):
            assert_close(ours, theirs, 8, 8)
        assert {run.recurrence.layers for run in runs()} == {layers}


def test_c_is_computed_where_it_is_read_alone() -> None:
    """c at the end of sequences of different lengths takes a primitive for each length."""
    lstm = cell("lstm", 3)
    x = ragged([1, 2, 3, 4, 7], 3)

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


# ---- what is joined, and what is refused -------------------------------------------------------------------


def reasons(model: Any, inputs: Any = 3, params: Any = None, marks: Any = ()) -> list[tuple[bool, str]]:
    """What becomes of the layers of a model: whether they are joined, and the reason if not."""
    graph = sn.Graph(model, params, inputs=inputs)
    net = graph.net
    numbers = [number for number, node in enumerate(net.nodes) if node.operation == "recur"]
    net = in_precisions(net, dict(zip(numbers, marks, strict=False)))
    return [(made.part is not None, made.reason) for made in joinings(Schedule(net), BOTH)]


INT8, BF16 = Precision("int8", 0, 0.02, 128.0), Precision("bfloat16", 0)
NO_STACK = "oneDNN joins the two directions of several layers only after the last layer"


def test_a_layer_of_both_directions_is_joined() -> None:
    assert reasons(lambda x, p: both("gru", 3)(x)[0]) == [(True, "")]
    assert reasons(lambda x, p: both("gru", 3, merge="sum")(x)[0]) == [(True, "")]
    assert reasons(lambda x, p: both("gru", 8, 2)(both("gru", 3)(x)[0])[0]) == [
        (False, NO_STACK),
        (True, ""),
        (True, ""),
    ]


def has_bfloat16() -> bool:
    from stepnet.engines.onednn.library import library

    return library().lacks("bfloat16") is None


REFUSED: dict[str, tuple[str, tuple[Precision, ...], str]] = {
    "one in int8": ("concat", (INT8,), "they run in float32 and int8, and a primitive has one dtype"),
    "one in bfloat16": ("sum", (BF16,), "they run in bfloat16 and float32, and a primitive has one dtype"),
    "both in int8": ("concat", (INT8, INT8), "in int8 oneDNN has one scale for the weights of all layers"),
    "a sum in bfloat16": ("sum", (BF16, BF16), "oneDNN rounds the sum of both directions to bfloat16"),
}


@pytest.mark.parametrize(("merge", "marks", "reason"), REFUSED.values(), ids=REFUSED)
def test_precisions_that_are_not_joined(merge: str, marks: tuple[Precision, ...], reason: str) -> None:
    if "bfloat16" in reason and not has_bfloat16():
        pytest.skip("no instructions for bfloat16")
    ((is_joined, why),) = reasons(lambda x, p: both("lstm", 3, merge=merge)(x)[0], marks=marks)
    assert not is_joined
    assert reason in why


def test_both_in_bfloat16_are_joined_and_give_the_same() -> None:
    if not has_bfloat16():
        pytest.skip("no instructions for bfloat16")
    graph = sn.Graph(lambda x, p: both("lstm", 3)(x)[0], inputs=3)
    numbers = [number for number, node in enumerate(graph.net.nodes) if node.operation == "recur"]
    low = in_precisions(graph.net, dict.fromkeys(numbers, BF16))
    program: GraphProgram = graph._programs.program
    reading = graph._programs.read(ragged([5, 5], 3))
    made = []
    for schedule in (
        Schedule(low),
        Schedule(low, low, tuple(j.part for j in joinings(Schedule(low), BOTH) if j.part)),
    ):
        engine, _ = choose(schedule, BOTH)
        made.append(engine.compile(schedule).bind(program.params)(reading.call).outputs[0])
    assert np.abs(made[0] - graph(ragged([5, 5], 3)).values).max() > 0
    assert_close(made[1], made[0], 5, 8)


def with_work_between(x: Any, p: Any) -> Any:
    """The second layer begins with what is computed from the last memory of the first."""
    h, last = cell("gru", HIDDEN)(x)
    return cell("gru", HIDDEN, seed=1)(h, initial=np.tanh(last))[0]


def entwined(x: Any, p: Any) -> Any:
    """Two stacks, each of which begins its second layer with the memory of the other's first."""
    a, a_last = cell("gru", HIDDEN)(x)
    b, b_last = cell("gru", HIDDEN, seed=1)(np.tanh(x))
    above = cell("gru", HIDDEN, seed=2)(a, initial=b_last)[0]
    return above + cell("gru", HIDDEN, seed=3)(b, initial=a_last)[0]


def staggered(x: Any, p: Any) -> Any:
    """A layer of which one direction could run earlier than the other, and what reads its memory."""
    _, other = cell("gru", 3, seed=5)(np.tanh(x))
    f, last = cell("gru", 3)(x)
    b, _ = cell("gru", 3, True, 1)(x, initial=np.tanh(other))
    above, _ = cell("gru", 3, seed=6)(np.sin(x), initial=np.tanh(last))
    return np.concatenate([f, b], axis=-1), above


def test_a_part_runs_when_all_that_it_reads_is_there() -> None:
    assert reasons(staggered) == [(True, "")]
    graph, x = sn.Graph(staggered, inputs=3), ragged([3, 3], 3)
    made, right = (graph(x, engine=engine) for engine in (BOTH, "interpret"))
    for ours, theirs in zip(flat(made), flat(right), strict=True):
        assert_close(ours, theirs, 6, 8)


def with_total(net: Net) -> Net:
    """The net with a parameter that is a sum over all rows."""
    builder, places = Builder(is_model=True), list[int]()
    for node in net.nodes:
        if node.operation == "input" and node.type.shape == (3, 3 * HIDDEN):
            z = builder.input(Type(STEPS, (3 * HIDDEN,), "float32"), "z")
            places.append(builder.add("contract", places[0], z))
        else:
            places.append(builder.copy(node, [places[operand] for operand in node.inputs]))
    return builder.net(places[result] for result in net.results)


def test_parameters_that_are_known_late_are_refused() -> None:
    layer = both("gru", 3)
    net = with_total(sn.Graph(lambda x, p: layer(x)[0], inputs=3).net)
    (made,) = joinings(Schedule(net), BOTH)
    assert (made.part, made.reason) == (None, "their parameters are results of other parts")


def test_layers_that_need_their_own_results_are_apart() -> None:
    for model, joined in ((with_work_between, [False]), (entwined, [True, False])):
        made = reasons(model, HIDDEN)
        assert [each for each, _ in made] == joined
        assert made[-1][1] == "one of them depends on the results of another through other parts"
        graph, x = sn.Graph(model, inputs=HIDDEN), ragged([3, 3], HIDDEN)
        assert_close(graph(x, engine=BOTH).values, graph(x, engine="interpret").values, 6, 8)


def test_sizes_that_differ_are_layer_by_layer() -> None:
    ((is_joined, reason),) = reasons(lambda x, p: cell("gru", HIDDEN, seed=1)(cell("gru", 3)(x)[0])[0])
    assert not is_joined
    assert reason == (
        "oneDNN computes several layers together only if the first has as many inputs as the others: "
        "it has 3, and they have 4"
    )


def test_what_other_engines_run_is_not_asked() -> None:
    graph = sn.Graph(lambda x, p: both("gru", 3)(x)[0], inputs=3)
    assert joinings(graph.schedule, "llvm") == joinings(graph.schedule, ("llvm", "onednn")) == []
    assert [part.kind for part in graph._programs.program.schedule_for(("llvm", "onednn")).parts] == [
        "recurrence",
        "recurrence",
        "plain",
    ]


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


def test_a_graph_profits_too() -> None:
    graph = tagger()
    for lengths in ([4, 4, 4], [3], [5, 0, 2], [0], []):
        words = ragged(lengths, 1)
        words = words.with_values(np.arange(sum(lengths)) % 20)
        for _ in range(3):
            made, right = (graph(words, engine=engine) for engine in (BOTH, "interpret"))
            for ours, theirs in zip(flat(made), flat(right), strict=True):
                assert_close(ours, theirs, 10, 40)
    assert joined_in(graph._programs.program.schedule_for(BOTH).parts) == [(1, "concat"), (1, "concat")]


def test_it_is_explained_and_drawn() -> None:
    text = tagger().explain(BOTH)
    assert text.splitlines()[:6] == [
        "recurrences 0 and 1; 2 and 3: layers, each on the one before",
        f"    onednn runs them part by part: {NO_STACK}",
        "recurrences 0 and 1: both directions of a layer, side by side",
        "    onednn runs them in one piece",
        "recurrences 2 and 3: both directions of a layer, side by side",
        "    onednn runs them in one piece",
    ]
    assert "  1    both directions of a layer over rows/steps in one piece, all sequences at once\n" in text
    assert "part 1.1:\n  engine      onednn\n" in text
    drawn = tagger().draw(engine=BOTH)
    assert "GRU, 4 units, both directions" in drawn
    assert drawn.count("(onednn)") == 2
    assert drawn.count("(llvm)") == 3
    stack = sn.Stack([cell("gru", HIDDEN), cell("gru", HIDDEN, seed=1)])
    for each in stack.layers:
        each(ragged([1], HIDDEN))
    assert stack.explain("onednn").startswith(
        "recurrences 0; 1: layers, each on the one before\n    onednn runs them in one piece\n\nlayer 0:\n"
    )
    assert stack.explain("llvm").startswith("layer 0:\n")
    graph = sn.Graph(lambda x, p: stack(x)[0], inputs=HIDDEN)
    assert "2 layers of GRU, 4 units" in graph.draw(engine="onednn")
