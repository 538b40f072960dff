"""When each part of a recurrence is done: once, per sequence, before the loop, in it by phase, after it."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from planned import CPU, plan
from random_steps import RandomStep, random_steps

import stepnet as sn
from stepnet import cells
from stepnet.compiler.net import CONST, ROWS, STEPS, Builder, Net, Type
from stepnet.compiler.net.ir import all_nodes
from stepnet.compiler.plan import Plan
from stepnet.compiler.plan.plan import KNOWN, new_plan
from stepnet.compiler.trace.lines import written_at
from stepnet.errors import NetError

H = 3
PARAMS = {
    name: np.ones(shape, np.float32)
    for name, shape in {"W": (2, 3 * H), "R": (H, 3 * H), "b": (3 * H,), "V": (H, 2), "S": (H, H)}.items()
}


def planned(step: Any, memory: Any = H, **options: Any) -> Plan:
    return sn.RNN(step, PARAMS, memory=memory, inputs=2, **options).plan


def kinds(net: Net, numbers: Any) -> list[str]:
    return [net.nodes[number].operation for number in numbers]


def gru_after(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    r, z, n = np.split(x @ p["W"] + p["b"], 3, axis=-1)
    hr, hz, hn = np.split(h @ p["R"], 3, axis=-1)
    z = sn.sigmoid(z + hz)
    h = z * h + (1 - z) * np.tanh(n + sn.sigmoid(r + hr) * hn)
    return h, h


def gru_before(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    r, z, n = np.split(x @ p["W"] + p["b"], 3, axis=-1)
    r = sn.sigmoid(r + h @ p["R"][:, :H])
    z = sn.sigmoid(z + h @ p["R"][:, H : 2 * H])
    h = z * h + (1 - z) * np.tanh(n + (r * h) @ p["R"][:, 2 * H :])
    return h, h


def lstm(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
    h, c = memory["h"], memory["c"]
    i, f, g = np.split(x @ p["W"] + h @ p["R"], 3, axis=-1)
    c = sn.sigmoid(f) * c + sn.sigmoid(i) * np.tanh(g)
    return np.tanh(c), {"h": np.tanh(c), "c": c}


def normalised(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    h = np.tanh(sn.layer_norm(x @ p["W"][:, :H] + h @ p["S"]))
    return h, h


def test_gru_with_reset_after_has_one_phase() -> None:
    found = planned(gru_after)
    assert len(found.loop) == 1
    assert kinds(found.body, found.loop[0])[:1] == ["products"]
    assert kinds(found.body, found.loop[0]).count("products") == 1


def test_gru_with_reset_before_has_two_phases() -> None:
    found = planned(gru_before)
    assert len(found.loop) == 2
    first, second = (kinds(found.body, phase) for phase in found.loop)
    assert "products" in first
    assert "matmul" in second


def test_lstm_has_one_phase() -> None:
    assert len(planned(lstm, {"h": H, "c": H}).loop) == 1


def test_pointwise_work_waits_for_those_who_read_it() -> None:
    """Else the whole of a matrix memory is written and read again between two phases."""

    def step(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
        key = x / np.abs(x).sum(axis=-1, keepdims=True)
        written = memory["C"] * np.float32(0.5) + key[:, :, None] * x[:, None, :]
        return written.sum(axis=-1), {"C": written}

    made = sn.RNN(step, memory={"C": (4, 4)}, inputs=4).plan
    ((_, net, phases),) = ((name, net, phases) for name, net, phases in made.stages if net is made.body)
    found = {phase for phase, numbers in enumerate(phases) for n in numbers if net.type_of(n).size == 16}
    assert len(found) == 1


def test_a_sum_over_features_starts_new_phases() -> None:
    found = planned(normalised)
    assert "matmul" in kinds(found.body, found.loop[0])
    assert [kinds(found.body, phase).count("sum") for phase in found.loop] == [0, 1, 0, 1, 0]


def test_features_in_another_order_start_a_new_phase() -> None:
    assert len(planned(lambda x, h, p: (h, np.tanh(h) * 2)).loop) == 1
    assert len(planned(lambda x, h, p: (h, np.tanh(h[:, ::-1]) * 2)).loop) == 1, "the old memory is all there"
    assert len(planned(lambda x, h, p: (h, np.tanh(np.tanh(h)[:, ::-1]) + h)).loop) == 2


def test_products_over_inputs_are_done_before_the_loop() -> None:
    found = planned(gru_after)
    assert len(found.before) == 1
    assert kinds(found.net, found.before[0]).count("products") == 1
    assert found.after == ()
    assert found.sequence == ()


def test_an_output_projection_is_done_after_the_loop() -> None:
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        _, h = gru_after(x, h, p)
        return h @ p["V"], h

    found = planned(step)
    assert [kinds(found.net, phase) for phase in found.after] == [["matmul"]]
    assert len(found.loop) == 1


def test_what_needs_statics_alone_is_done_once_per_sequence() -> None:
    def step(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        h = np.tanh(h @ p["S"] + statics @ p["S"])
        return h, h

    found = planned(step, statics=H)
    assert [kinds(found.net, phase) for phase in found.sequence] == [["matmul"]]
    assert kinds(found.body, found.loop[0]) == ["matmul", "add", "tanh"]


def test_what_needs_parameters_alone_is_done_once() -> None:
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = np.tanh(h @ (p["S"] / np.sqrt(np.sum(p["S"] ** 2))))
        return h, h

    found = planned(step)
    assert kinds(found.net, found.once) == ["multiply", "sum", "sqrt", "divide"]
    assert kinds(found.body, found.loop[0]) == ["matmul", "tanh"]


def test_what_needs_the_index_stays_in_the_loop() -> None:
    def step(x: Any, h: Any, p: Any, index: Any) -> tuple[Any, Any]:
        h = np.where(index[:, None] % 2 == 0, np.tanh(h @ p["S"]), h)
        return h, h

    found = planned(step)
    assert "remainder" in [node.operation for node in found.body.nodes]
    assert found.before == ()


def test_reverse_is_said() -> None:
    assert planned(gru_after, reverse=True).reverse
    assert not planned(gru_after).reverse


def test_a_plan_has_one_recurrence() -> None:
    builder = Builder()
    x = builder.input(Type(STEPS, (1,), "float32"), "x")
    with pytest.raises(NetError, match="a plan needs a net with exactly one recurrence; this net has 0"):
        plan(builder.net([x]))


@pytest.mark.long(examples=8)
@settings(max_examples=25)
@given(random_steps(), st.booleans())
def test_every_node_is_done_at_one_time_after_what_it_reads(step: RandomStep, reverse: bool) -> None:
    found = step.rnn("float32", reverse).plan
    for name, net, phases in found.stages:
        done = {number: place for place, phase in enumerate(phases) for number in phase}
        assert len(done) == sum(len(phase) for phase in phases)
        for number, place in done.items():
            read = [operand for operand in net.nodes[number].inputs if operand in done]
            assert all(done[operand] <= place for operand in read), name
    outside = [
        number for _, net, phases in found.stages if net is found.net for phase in phases for number in phase
    ]
    assert not set(outside) & set(found.once)
    for number, node in enumerate(found.net.nodes):
        if node.kind in ("matmul", "pointwise", "reduce", "gather"):
            assert number in (found.once if node.types[0].extent == CONST else outside)
            assert node.types[0].extent in (CONST, ROWS, STEPS)
    inside = {number for phase in found.loop for number in phase}
    for number, node in enumerate(found.body.nodes):
        if node.kind in ("matmul", "pointwise", "reduce", "gather") and node.types[0].extent != CONST:
            assert number in inside
        if node.types[0].extent == CONST:
            assert node.kind == "source", "what is known before any step is not left in the loop"


@pytest.mark.parametrize("name", cells.CELLS)
def test_both_directions_have_the_plan_that_each_would_have(name: str):
    made = list[Plan]()
    KNOWN.clear()
    for reverse in (False, True, False):
        traced = cells.rnn(name, cells.CELLS[name].parameters(5, 4, seed=0), reverse=reverse).schedule.traced
        made.append(plan(traced))
        assert made[-1] == new_plan(traced, CPU)
        assert made[-1].reverse is reverse
        assert made[-1].traced is traced
    assert len(KNOWN) == 1
    assert made[0].key == made[1].key == new_plan(made[1].traced, CPU).key


def test_equal_nets_of_other_lines_have_plans_of_their_own():
    def lines(line: str) -> Net:
        with written_at(line):
            return sn.RNN(lambda x, h, p: (h + x, h + x), memory=4, inputs=4).schedule.traced

    made = [plan(lines(line)) for line in ("a.py:1", "a.py:2", "a.py:1")]
    sources = [{node.source for node in all_nodes(plan.net)} - {""} for plan in made]
    assert sources == [{"a.py:1"}, {"a.py:2"}, {"a.py:1"}]


def test_a_plan_reads_no_other_steps() -> None:
    recurrence = sn.RNN(gru_after, PARAMS, memory=H)
    graph = sn.Graph(lambda x, p: recurrence(sn.conv1d(x, p))[0], np.ones((2, 2, 3), "float32"), inputs=2)
    with pytest.raises(NetError, match="windows reads other steps of a sequence; a plan cannot run it"):
        plan(graph.net)
    assert [part.kind for part in graph.schedule.parts] == ["across", "recurrence"]
