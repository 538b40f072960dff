"""The engine that runs each part of a model, and where the results stay."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from installed_onednn import missing_onednn
from planned import CPU
from random_models import WORDS, RandomModel, random_models
from tolerance import assert_close
from zoo import rnn_of

import stepnet as sn
from stepnet.compiler.net import HOST, Net
from stepnet.compiler.plan import Plan, Schedule
from stepnet.compiler.targets import choose, engine_named, engines_of
from stepnet.compiler.targets.assignment import AssignedEngines, assign_engines, choice
from stepnet.errors import RefusedError
from stepnet.model.nets import run_net
from stepnet.model.program import NetProgram

BOTH = ("onednn", "llvm")
RANDOM = np.random.default_rng(0)
WORD = sn.Spec((), "int64")


def matrix(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype("f4") / 2


gru = partial(rnn_of, "gru")


def unknown(inputs: int, hidden: int) -> sn.RNN:
    """A cell of nobody's."""

    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = np.sin(x @ p + h / 2)
        return h, h

    return sn.RNN(step, matrix(inputs, hidden), memory=hidden)


needs_onednn = pytest.mark.skipif(missing_onednn() is not None, reason=str(missing_onednn()))


def engines_in(graph: sn.Graph, asked: Any) -> list[str]:
    """The engine of each recurrence, and of each other part with a plan, in order."""
    schedule = graph.program.schedule_for(asked)
    chosen = [choice(plan, engines_of(asked)) for plan in schedule.plans]
    return [each.engine.name if each.engine else "none" for each in chosen]


class Tagger:
    """Two directions, another cell on top, and three kinds of outputs."""

    def __init__(self) -> None:
        self.layer = sn.Bidirectional(gru(8, 6), gru(8, 6, reverse=True, seed=1))
        self.own = unknown(12, 4)

    def __call__(self, words: Any, p: Any) -> Any:
        h, _ = self.layer(p["table"][words] @ p["P"])
        own, _ = self.own(h)
        return {"tags": sn.softmax(h @ p["W"]), "mood": sn.reduce(h, "mean"), "own": sn.reduce(own, "last")}


def tagger() -> sn.Graph:
    params = {"table": matrix(20, 8), "P": matrix(8, 8), "W": matrix(12, 5)}
    return sn.Graph(Tagger(), params, inputs=WORD)


def leaves(outputs: dict[str, Any]) -> list[np.ndarray]:
    return [getattr(outputs[name], "values", outputs[name]) for name in sorted(outputs)]


@needs_onednn
@pytest.mark.parametrize("asked", [BOTH, ("onednn", "interpret"), ("onednn", "auto")], ids=str)
def test_each_part_runs_on_the_first_engine_that_takes_it(asked: Any) -> None:
    graph, last = tagger(), {"interpret": "interpret"}.get(asked[1], "llvm")
    assert engines_in(graph, asked) == [last, "onednn", "onednn", last, last]
    for lengths in ([3, 0, 5], [4, 4], [], [0]):
        words = sn.Ragged(RANDOM.integers(0, 20, sum(lengths)), (np.cumsum([0, *lengths]),))
        for _ in range(3):
            pairs = zip(
                leaves(graph(words, engine=asked)), leaves(graph(words, engine="interpret")), strict=True
            )
            for made, right in pairs:
                assert_close(made, right, 6, 30)


def multiplied(hidden: int) -> sn.RNN:
    """A GRU whose inputs enter the gates as they are, as Paddle's operator gru has it."""

    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        u, r = np.split(sn.sigmoid(x[:, : 2 * hidden] + h @ p["G"]), 2, axis=-1)
        n = np.tanh(x[:, 2 * hidden :] + (r * h) @ p["C"])
        h = u * n + (1 - u) * h
        return h, h

    return sn.RNN(step, {"G": matrix(hidden, 2 * hidden), "C": matrix(hidden, hidden)}, memory=hidden)


@needs_onednn
def test_a_projection_moves_into_a_recurrence_of_onednn_and_a_lookup_stays() -> None:
    """Paddle's fc_gru: the product becomes the input projection of oneDNN's GRU, bias included."""

    def model(words: Any, p: Any) -> Any:
        return multiplied(6)(p["table"][words] @ p["P"] + p["b"])[0]

    graph = sn.Graph(model, {"table": matrix(9, 3), "P": matrix(3, 18), "b": matrix(18)}, inputs=WORD)
    schedule = graph.program.schedule_for(BOTH)
    assert engines_in(graph, BOTH) == ["llvm", "onednn"]
    body = next(node.recur.body for node in schedule.net.nodes if node.operation == "recur")
    assert [node.operation for node in body.nodes].count("matmul") == 3
    assert [node.operation for node in schedule.net.nodes].count("gather") == 1
    words = sn.Ragged.from_list([np.array([1, 2, 3]), np.array([8])])
    assert_close(graph(words, engine=BOTH).values, graph(words, engine="interpret").values, 3, 12)


@needs_onednn
def test_what_no_engine_ahead_needs_moves_in_as_ever() -> None:
    """The unknown cell is llvm's either way, so the projection behind it is inside."""

    def model(x: Any, p: Any) -> Any:
        h = unknown(3, 6)(x)[0]
        return gru(6, 4)(np.tanh(h @ p))[0]

    graph = sn.Graph(model, matrix(6, 6), inputs=3)
    schedule = graph.program.schedule_for(BOTH)
    assert [part.kind for part in schedule.parts] == ["recurrence", "recurrence"]
    assert engines_in(graph, BOTH) == ["llvm", "onednn"]


@needs_onednn
def test_float64_is_of_the_next_engine() -> None:
    graph = sn.Graph(lambda x, p: gru(3, 4, dtype="float64")(x)[0], inputs=sn.Spec(3, "float64"))
    assert engines_in(graph, BOTH) == ["llvm"]


def test_all_parts_on_one_engine_are_that_engine() -> None:
    graph = tagger()
    program = graph.program
    assert choose(program.schedule_for(("llvm", "interpret")), ("llvm", "interpret"))[0].name == "llvm"
    assert program.schedule_for("llvm") is program.schedule_for("auto") is graph.schedule


class Choosy:
    """An engine that refuses plans with some operation, and runs others as the interpreter does."""

    name, memory, runs_gradients, has_same_bits = "choosy", HOST, True, False
    pipeline, costs = CPU.pipeline, CPU.costs

    def __init__(self, *operations: str) -> None:
        self.operations = operations

    def refuse_plan(self, plan: Plan) -> str | None:
        inside = {node.operation for net in (plan.net, plan.body) for node in net.nodes}
        return next((f"it has no {name}" for name in self.operations if name in inside), None)

    def refuse(self, schedule: Schedule) -> str | None:
        return next((reason for plan in schedule.plans if (reason := self.refuse_plan(plan))), None)

    def compile_plan(self, plan: Plan) -> Any:
        return engine_named("interpret").compile_plan(plan)

    def compile(self, schedule: Schedule) -> Any:
        raise AssertionError("it refuses a part")


SOME = ("tanh", "gather", "exp", "matmul", "concatenate", "add")


@pytest.mark.long(examples=8)
@settings(max_examples=40)
@given(model=random_models(), refused=st.sets(st.sampled_from(SOME), max_size=3))
def test_nets_compute_the_same_wherever_parts_run(model: RandomModel, refused: set[str]) -> None:
    graph = sn.Graph(model, model.structure, inputs=WORD)
    words = sn.Ragged(np.random.default_rng(0).integers(0, WORDS, 8), (np.array([0, 3, 3, 8]),))
    reading = graph.reading(words)
    arrays = [*reading.batch.arrays, *graph.program.params]
    engines = (Choosy(*refused), engine_named("interpret"))
    placed = assign_engines(graph.net, engines)
    right = run_net(NetProgram(graph.net), arrays, reading.call, "interpret")
    program = NetProgram(graph.net)
    kernel: Any = AssignedEngines(engines).compile(placed)  # pyright: ignore[reportArgumentType]
    made = kernel.bind([arrays[place] for place in program.ends.parameters])(reading.call)
    for left, other in zip(right, in_net_order(program, made), strict=True):
        assert_close(left, other, 6, 200, "float64")


def in_net_order(program: NetProgram, results: Any) -> list[np.ndarray]:
    places = (*program.ends.steps, *program.ends.rows)
    by_place = dict(zip(places, results.arrays, strict=True))
    return [by_place[place] for place in range(len(by_place))]


@pytest.mark.long(examples=6)
@settings(max_examples=20)
@given(model=random_models(), refused=st.sets(st.sampled_from(SOME), max_size=3))
def test_it_is_a_fixed_point(model: RandomModel, refused: set[str]) -> None:
    """Placing what is placed moves nothing: no pass waits for another."""
    engines: Any = (Choosy(*refused), engine_named("interpret"))
    graph = sn.Graph(model, model.structure, inputs=WORD)
    first: Net = assign_engines(graph.net, engines).net
    assert assign_engines(first, engines).net == first


def test_explain_shows_the_engine_of_each_part_and_the_refusals() -> None:
    text = tagger().explain(("onednn", "llvm"))
    part = text.split("part 3:")[1] if missing_onednn() is None else text
    assert "  engine      llvm\n  onednn      refuses: " in part
    if missing_onednn() is None:
        assert "oneDNN has no such cell: it computes sin" in text
        assert "  onednn      refuses: it has no recurrence" in text
        assert "  engine      onednn\n" in text
    assert "  engine      " not in tagger().explain()


def test_parts_that_no_engine_runs_are_refused_with_all_reasons() -> None:
    if missing_onednn() is not None:
        pytest.skip("without oneDNN it has one reason for all")
    with pytest.raises(RefusedError, match="onednn: oneDNN has no such cell: it computes sin"):
        tagger()(sn.Ragged.from_list([np.array([1])]), engine="onednn")
