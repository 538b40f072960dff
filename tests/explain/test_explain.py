"""The plan as text and as facts: a golden text, costs by hand, and names given before they are read."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from planned import schedule

import stepnet as sn
from stepnet import cells
from stepnet.compiler.net import ROWS, STEPS, Builder, Node, Recur, Type
from stepnet.compiler.targets import engine_named
from stepnet.explain.document import DocumentTable, OperationLine, TitledSection, headed
from stepnet.explain.expressions import expression, view
from stepnet.explain.facts import StageFacts, explanation
from stepnet.explain.plan import explain
from stepnet.explain.text import WIDTH, WRAPPED, amount, text

INPUTS, HIDDEN = 3, 4
GRU = """\
each sequence from its first step
  inputs      x f32[3]
  memories    h f32[4]
  parameters  W f32[3, 12], R f32[4, 12], b f32[12], d f32[12]

engine: llvm
  llvm        chosen
  interpret   runs it if asked for

once: 8 flop, 64 B of weights, 32 B of values
  %1 = b[:4] + d[:4]                                                                          f32[4]
  %2 = b[4:8] + d[4:8]                                                                        f32[4]

before the loop, per step: 84 flop, 192 B of weights, 60 B of values
  %3, %4, %5 = x @ [W[:, :4] | W[:, 4:8] | W[:, 8:]]                                      3 x f32[4]
  %6 = %1 + %3                                                                                f32[4]
  %7 = %2 + %4                                                                                f32[4]
  %8 = b[8:] + %5                                                                             f32[4]

in the loop, per step: 308 flop, 208 B of weights, 80 B of values
  %9, %10, %11 = h @ [R[:, :4] | R[:, 4:8] | R[:, 8:]]                                    3 x f32[4]
  %12 = %6 + %9                                                                               f32[4]
  %13 = sigmoid(%12)                                                                          f32[4]
  %14 = %7 + %10                                                                              f32[4]
  %15 = sigmoid(%14)                                                                          f32[4]
  %16 = %11 + d[8:]                                                                           f32[4]
  %17 = %13 * %16                                                                             f32[4]
  %18 = %8 + %17                                                                              f32[4]
  %19 = tanh(%18)                                                                             f32[4]
  %20 = h - %19                                                                               f32[4]
  %21 = %15 * %20                                                                             f32[4]
  %22 = %19 + %21                                                                             f32[4]

results
  output = %22
  next h = %22"""


def step(x, h, params):
    a = x @ params["W"] + params["b"]
    b = h @ params["R"] + params["d"]
    r = sn.sigmoid(a[:, :HIDDEN] + b[:, :HIDDEN])
    z = sn.sigmoid(a[:, HIDDEN : 2 * HIDDEN] + b[:, HIDDEN : 2 * HIDDEN])
    n = np.tanh(a[:, 2 * HIDDEN :] + r * b[:, 2 * HIDDEN :])
    h = n + z * (h - n)
    return h, h


def gru() -> sn.RNN:
    shapes = {"W": (INPUTS, 12), "R": (HIDDEN, 12), "b": (12,), "d": (12,)}
    params = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    return sn.RNN(step, params, memory=HIDDEN, inputs=INPUTS)


def everything(x, memory, params, statics, index):
    h, c = memory["h"], memory["c"]
    query = np.tanh(statics @ params["S"] * 2)
    z = sn.softmax(sn.layer_norm(np.concatenate([x, h], axis=-1) @ params["W"]) + query)
    h = np.where(index[:, None] < 3, h, z * -(c**2))
    return {"y": sn.relu(h @ params["O"]), "k": x.max(axis=-1)}, {"h": h, "c": c + 1}


def of_everything() -> sn.RNN:
    shapes = {"W": (INPUTS + 8, 8), "S": (5, 8), "O": (8, 2)}
    params = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    return sn.RNN(
        everything, params, memory={"h": 8, "c": 8}, inputs=INPUTS, statics=sn.Spec(5), reverse=True
    )


def named_cells() -> Iterator[sn.RNN]:
    for name, cell in cells.CELLS.items():
        yield cells.rnn(name, cell.parameters(inputs=INPUTS, hidden=HIDDEN))


def test_golden_text_of_a_gru(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("STEPNET_CPU", raising=False)  # which would have a line of its own
    assert gru().explain() == GRU


def test_costs_of_a_gru_by_hand():
    once, before, loop = explanation(gru().schedule).stages
    # The two biases of r and of z are added once; before the loop each gate adds one.
    assert once == StageFacts("once", once.phases, 2 * HIDDEN, 4 * 4 * HIDDEN, 4 * 2 * HIDDEN)
    assert before == StageFacts(
        "before", before.phases, 2 * INPUTS * 12 + 3 * HIDDEN, 4 * (INPUTS * 12 + 12), 4 * (INPUTS + 12)
    )
    functions = 3 * 15 + 8  # two sigmoids and a tanh; and eight additions and the like
    assert loop == StageFacts(
        "loop", loop.phases, 2 * HIDDEN * 12 + functions * HIDDEN, 4 * (HIDDEN * 12 + 4), 4 * (12 + 4 + 4)
    )


def test_numbers_of_a_step_are_no_weights():
    # A power of a base that changes is computed in float64, with constants such as 0, 1 and infinity.
    weights = {"w": np.ones((3, 4), np.float32)}
    rnn = sn.RNN(lambda x, h, p: (sn.sigmoid(x @ p["w"]) ** np.abs(h),) * 2, weights, memory=4, inputs=3)
    lines = [line for line in rnn.explain().splitlines() if "of weights" in line]
    assert [line.split(", ")[-2] for line in lines] == ["48 B of weights"]


def test_every_stage_and_end_is_there():
    facts = explanation(of_everything().schedule, "interpret")
    assert [stage.name for stage in facts.stages] == ["sequence", "before", "loop", "after"]
    assert (facts.inputs, facts.statics, facts.reverse) == ({"x": "f32[3]"}, {"static": "f32[5]"}, True)
    assert facts.memories == {"h": "f32[8]", "c": "f32[8]"}
    assert list(facts.results) == ["output 0", "output 1", "next h", "next c"]
    assert len(facts.stages[2].phases) > 3  # a layer norm and a softmax need results across units
    text = of_everything().explain("interpret")
    assert text.startswith("each sequence from its last step")
    assert "  phase 4\n" in text
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize("rnn", [gru(), of_everything(), *named_cells()], ids=str)
def test_each_number_is_given_once_before_it_is_read(rnn: sn.RNN):
    facts = explanation(rnn.schedule, "interpret")
    given: list[str] = []
    for stage in facts.stages:
        for phase in stage.phases:
            for line in phase:
                assert set(re.findall(r"%\d+", line.text)) <= set(given), line
                given += line.gives
    assert given == [f"%{number}" for number in range(1, len(given) + 1)]
    read = [number for value in facts.results.values() for number in re.findall(r"%\d+", value)]
    assert set(read) <= set(given)


def test_engines_that_refuse_say_why(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(type(engine_named("llvm")), "refuse", lambda self, schedule: "it is Sunday")
    schedule = gru().schedule
    assert "engine: none of those asked for\n  llvm        refuses: it is Sunday" in explain(schedule)
    assert explanation(schedule, ("llvm", "interpret")).engine == "interpret"


def test_an_engine_there_is_not():
    with pytest.raises(sn.StepnetError, match="no engine is called 'tpu'"):
        gru().explain("tpu")


@pytest.mark.parametrize(
    ("operation", "told", "shape", "text"),
    [
        ("slice", {"slices": ((0, 4, 1),)}, (4,), "v[:]"),
        ("slice", {"slices": ((1, 3, 1), (0, 5, 2))}, (4, 5), "v[1:3, ::2]"),
        ("slice", {"slices": ((3, -1, -1),)}, (4,), "v[::-1]"),
        ("slice", {"slices": ((2, 0, -1),)}, (4,), "v[2:0:-1]"),
        ("reshape", {"rank": 1, "shape": (2, 2)}, (4,), "v.reshape(2, 2)"),
        ("transpose", {"order": (1, 0)}, (2, 3), "v.T"),
        ("transpose", {"order": (1, 2, 0)}, (2, 3, 4), "v.transpose(1, 2, 0)"),
        ("take", {"axis": -1, "indices": (3, 1)}, (2, 4), "v[:, [3, 1]]"),
        ("take", {"axis": -1, "indices": tuple(range(9))}, (9,), "v[[0, 1, 2, 3, 4, 5, ...]]"),
        ("broadcast", {"rank": 1, "shape": (2, 4)}, (4,), "v"),
    ],
)
def test_views_read_as_they_are_written(operation: str, told: dict, shape: tuple[int, ...], text: str):
    assert view("v", shape, made(operation, [Type(ROWS, shape, "float32")], **told)) == text


@pytest.mark.parametrize(
    ("operation", "count", "told", "text"),
    [
        ("subtract", 2, {}, "a - b"),
        ("greater_equal", 2, {}, "a >= b"),
        ("negative", 1, {}, "-a"),
        ("power", 1, {"exponent": 2.5}, "a ** 2.5"),
        ("cast", 1, {"dtype": "int64"}, "i64(a)"),
        ("concatenate", 2, {"axis": -1}, "[a | b]"),
        ("tanh", 1, {}, "tanh(a)"),
        ("sum", 1, {"axes": (-1,)}, "sum(a, axes=(-1,))"),
    ],
)
def test_operations_read_as_they_are_written(operation: str, count: int, told: dict, text: str):
    node = made(operation, [Type(ROWS, (4,), "float32")] * count, **told)
    assert expression(node, ["a", "b"][:count]) == text


def made(operation: str, types: list[Type], **told: Any) -> Node:
    builder = Builder()
    operands = [builder.input(type_, f"v{place}") for place, type_ in enumerate(types)]
    return builder.nodes[builder.add(operation, *operands, **told)]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (3 * 10**12, "3.0 TB"),
    ],
)
def test_amounts_have_few_digits(count: int, text: str):
    assert amount(count, "B") == text


def test_what_is_done_in_the_end_is_said() -> None:
    inside = Builder()
    x, h = (inside.input(Type(ROWS, (2,), "float32"), name) for name in "xh")
    after = inside.add("tanh", inside.add("add", x, h))
    builder = Builder()
    frames = builder.input(Type(STEPS, (2,), "float32"), "frames")
    zeros = builder.add("expand", builder.constant(np.zeros(2, np.float32)), extent=ROWS)
    (y,), (last,) = Recur(inside.net([after, after]), 1, 1).add_results(builder, [frames, zeros])
    doubled = builder.add("add", last, builder.add("reduce", y, how="sum"))
    text = explain(schedule(builder.net([builder.add("contract", frames, y), y, last, doubled])))
    assert text.partition("in the end")[1:] == (
        "in the end",
        """\
, of each sequence's steps: 0 flop, 16 B of values
  %3 = sum of %2 over its sequence                                                            f32[2]

in the end, per sequence: 2 flop, 24 B of values
  %4 = %2 + %3                                                                                f32[2]

in the end, once: 8 flop, 32 B of values
  %5 = sum of the outer products of frames and %2                                          f32[2, 2]

results
  total = %5
  output = %2
  next h = %2
  row = %4""",
    )


# ---- the printer -------------------------------------------------------------------------------------------


def test_items_are_indented_below_their_title_and_gaps_are_empty_lines() -> None:
    inner = TitledSection("phase 1", (OperationLine(("%1", "%2"), "x @ W", "2 x f32[4]"),))
    last = " " * (WIDTH - len("    %1, %2 = x @ W") - len("2 x f32[4]"))
    assert text([TitledSection("loop", ("a note\nof two lines", "", inner)), TitledSection("results")]) == (
        f"loop\n  a note\n  of two lines\n\n  phase 1\n    %1, %2 = x @ W{last}2 x f32[4]\n\nresults"
    )


def test_without_a_title_items_stand_one_below_the_other() -> None:
    first, second = headed("layer 0:", [TitledSection("engine: llvm", ("chosen",)), TitledSection("results")])
    assert text([first, second]) == "layer 0:\nengine: llvm\n  chosen\n\nresults"


def test_columns_are_as_wide_as_said_or_as_their_widest_cell() -> None:
    rows = (("W", "96 B", "per step"), ("weights", "1.2 kB", ""))
    assert text([TitledSection("", (DocumentTable(rows),))]) == "W        96 B    per step\nweights  1.2 kB"
    assert (
        text([TitledSection("", (DocumentTable(rows, ("<", ">")),))])
        == "W          96 B  per step\nweights  1.2 kB"
    )
    assert (
        text([TitledSection("", (DocumentTable(rows, ("<4", ">7")),))])
        == "W       96 B per step\nweights  1.2 kB"
    )
    assert text([TitledSection("none", (DocumentTable(()),))]) == "none"


def test_the_last_cell_goes_on_below_itself() -> None:
    words = " ".join(["word"] * 40)
    first, *others = text(
        [TitledSection("", (DocumentTable((("llvm", words),), ("<11",), wraps=True),))]
    ).splitlines()
    assert first.startswith("llvm        word")
    assert others
    assert all(line.startswith(" " * 12 + "word") and len(line) <= WRAPPED for line in others)
