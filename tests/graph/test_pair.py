"""Both directions as one layer, and layers as one recurrence: where they are, and what they compute."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import assert_close

import stepnet as sn
from stepnet.net.interpret import Segments, interpret
from stepnet.net.ir import Net, without_unused
from stepnet.plan.joined import layers_in
from stepnet.plan.passes.pair import Pair, candidates, pairs
from stepnet.plan.passes.pieces import Cells
from stepnet.plan.passes.stack import Stack, layers_of, stacks, steps_up
from stepnet.plan.recognise import recognise

Model = Callable[[Any], Any]


def cell(
    name: str, inputs: int, hidden: int, reverse: bool = False, seed: int = 0, dtype: str = "float32"
) -> sn.RNN:
    params = sn.cells.CELLS[name].parameters(inputs, hidden, seed=seed, dtype=dtype)
    return sn.cells.rnn(name, params, reverse=reverse)


def own(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    h = np.sin(x @ p + h / 2)
    return h, h


def net_of(model: Model, inputs: int = 3, statics: int | None = None) -> Net:
    if statics is None:
        return sn.Graph(lambda x, p: model(x), inputs=inputs).net
    return sn.Graph(lambda x, p, statics: model((x, statics)), inputs=inputs, statics=statics).net


F = cell("gru", 3, 4)
B = cell("gru", 3, 4, reverse=True, seed=1)
UP = cell("gru", 4, 4, seed=2)


def concat(*values: Any) -> Any:
    return np.concatenate(values, axis=-1)


# ---- pairs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["simple_rnn", "gru", "gru_reset_before", "lstm"])
@pytest.mark.parametrize("merge", ["concat", "sum"])
def test_both_directions_are_a_pair(name: str, merge: str) -> None:
    both = sn.Bidirectional(cell(name, 3, 4), cell(name, 3, 4, reverse=True, seed=1), merge=merge)
    net = net_of(lambda x: np.tanh(both(x)[0]))
    (pair,) = pairs(net)
    assert pair.merge == merge
    assert [net.nodes[n].recur.reverse for n in (pair.forward, pair.backward)] == [False, True]
    assert net.nodes[pair.output].operation in ("concatenate", "add")


def test_a_sum_has_no_order() -> None:
    net = net_of(lambda x: B(x)[0] + F(x)[0])
    (pair,) = pairs(net)
    assert not net.nodes[pair.forward].recur.reverse


def test_last_memories_may_be_read() -> None:
    def model(x: Any) -> Any:
        (f, fh), (b, bh) = F(x), B(x)
        return concat(f, b), fh, bh

    net = net_of(model)
    (pair,) = pairs(net)
    assert len(pair.piece(net).results) == 3


def other_input(x: Any) -> Any:
    return concat(F(x)[0], B(2 * x)[0])


def chained(x: Any) -> Any:
    f, h = F(x)
    return concat(f, B(x, initial=h)[0])


def read_elsewhere(x: Any) -> Any:
    f, b = F(x)[0], B(x)[0]
    return concat(f, b), sn.reduce(f, "mean")


def a_result(x: Any) -> Any:
    f, b = F(x)[0], B(x)[0]
    return concat(f, b), b


UNPAIRED: dict[str, tuple[Model, str]] = {
    "another input": (other_input, "they run over different sequences"),
    "product": (lambda x: F(x)[0] * B(x)[0], "they are merged by multiply of 2 values"),
    "a third": (lambda x: concat(F(x)[0], B(x)[0], x), "they are merged by concatenate of 3 values"),
    "backward first": (
        lambda x: concat(B(x)[0], F(x)[0]),
        "they are not a forward recurrence followed by a reverse",
    ),
    "one direction": (
        lambda x: F(x)[0] + cell("gru", 3, 4, seed=3)(x)[0],
        "they are not a forward recurrence",
    ),
    "read elsewhere": (read_elsewhere, "an output is also read elsewhere"),
    "a result": (a_result, "an output is also read elsewhere"),
    "other cells": (
        lambda x: concat(F(x)[0], cell("lstm", 3, 4, reverse=True)(x)[0]),
        "they are different cells: gru and lstm",
    ),
    "other settings": (
        lambda x: concat(F(x)[0], cell("gru_reset_before", 3, 4, reverse=True)(x)[0]),
        "they are different cells: gru and gru, or settings of it",
    ),
    "sizes": (lambda x: concat(F(x)[0], cell("gru", 3, 5, reverse=True)(x)[0]), "they have 4 and 5 units"),
    "unknown": (
        lambda x: concat(F(x)[0], sn.RNN(own, np.ones((3, 4), "f4"), memory=4, reverse=True)(x)[0]),
        "one is not a known cell: it computes sin",
    ),
    "one begins with the other's end": (chained, "one depends on the other"),
}


@pytest.mark.parametrize(("model", "reason"), UNPAIRED.values(), ids=UNPAIRED)
def test_what_is_no_pair(model: Model, reason: str) -> None:
    net = net_of(model)
    assert pairs(net) == ()
    (refused,) = [why for _, why in candidates(net, Cells(net))]
    assert isinstance(refused, str)
    assert reason in refused


# ---- stacks ------------------------------------------------------------------------------------------------


def both(inputs: int, seed: int, merge: str = "concat") -> sn.Bidirectional:
    return sn.Bidirectional(
        cell("gru", inputs, 4, seed=seed), cell("gru", inputs, 4, reverse=True, seed=seed + 1), merge=merge
    )


def test_layers_are_a_stack() -> None:
    net = net_of(lambda x: cell("gru", 4, 4, seed=3)(UP(F(x)[0])[0])[0] @ np.ones((4, 2), "f4"))
    (stack,) = stacks(net)
    assert len(stack.layers) == 3
    assert list(stack.layers) == sorted(n for n, node in enumerate(net.nodes) if node.operation == "recur")


def test_layers_of_both_directions_are_a_stack_of_pairs() -> None:
    net = net_of(lambda x: both(8, 2)(both(3, 0)(x)[0])[0])
    (stack,) = stacks(net)
    assert stack.layers == pairs(net)
    assert len(stack.layers) == 2


def skipped(x: Any) -> Any:
    f = F(x)[0]
    return UP(f)[0] + f


def with_another(x: Any) -> Any:
    return cell("gru", 7, 4)(concat(F(x)[0], x))[0]


UNSTACKED: dict[str, tuple[Model, str]] = {
    "directions": (lambda x: cell("gru", 4, 4, reverse=True)(F(x)[0])[0], "they run in different directions"),
    "cells": (lambda x: cell("lstm", 4, 4)(F(x)[0])[0], "they are different cells: gru and lstm"),
    "sizes": (lambda x: cell("gru", 4, 5)(F(x)[0])[0], "they have 4 and 5 units"),
    "skip": (skipped, "the output between them is also read elsewhere"),
    "unknown": (
        lambda x: sn.RNN(own, np.ones((4, 4), "f4"), memory=4)(F(x)[0])[0],
        "one is not a known cell: it computes sin",
    ),
    "a pair below": (lambda x: cell("gru", 8, 4)(both(3, 0)(x)[0])[0], "one runs in both directions"),
    "merges": (
        lambda x: both(4, 2)(both(3, 0, "sum")(x)[0])[0],
        "their directions are merged by sum and by concat",
    ),
}


@pytest.mark.parametrize(("model", "reason"), UNSTACKED.values(), ids=UNSTACKED)
def test_what_is_no_stack(model: Model, reason: str) -> None:
    net = net_of(model)
    assert stacks(net) == ()
    climbs = steps_up(net, layers_of(net, pairs(net)), Cells(net))
    reasons = [why for _, why in climbs if isinstance(why, str)]
    assert len(reasons) == 1
    assert reason in reasons[0]


def test_work_between_layers_is_no_stack() -> None:
    assert stacks(net_of(lambda x: UP(np.tanh(F(x)[0]))[0])) == ()
    assert stacks(net_of(with_another)) == ()


# ---- what they compute -------------------------------------------------------------------------------------


@st.composite
def layered(draw: st.DrawFn) -> Model:
    """Layers of random cells, sizes, directions and merges, with skips and work between."""
    plan = [
        (
            draw(st.sampled_from(["gru", "lstm", "simple_rnn"])),
            draw(st.sampled_from([2, 3])),
            draw(st.sampled_from(["forward", "backward", "concat", "sum", "swapped"])),
            draw(st.sampled_from(["", "", "", "tanh", "skip"])),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]

    def model(x: Any) -> Any:
        for place, (name, hidden, how, between) in enumerate(plan):
            made = [
                cell(name, x.shape[-1], hidden, reverse, 2 * place + reverse, "float64")(x)[0]
                for reverse in (False, True)
            ]
            merges = {"forward": lambda m: m[0], "backward": lambda m: m[1], "sum": lambda m: m[0] + m[1]}
            merges |= {"concat": lambda m: concat(*m), "swapped": lambda m: concat(m[1], m[0])}
            y = merges[how](made)
            x = {"": y, "tanh": np.tanh(y), "skip": concat(x, y)}[between]
        return x, sn.reduce(x, "sum")

    return model


def pieces(net: Net) -> Iterator[Any]:
    for made in (*pairs(net), *stacks(net)):
        assert isinstance(made, Pair | Stack)
        yield made.piece(net)


@pytest.mark.long(examples=12)
@settings(max_examples=40, deadline=None)
@given(model=layered())
def test_a_piece_computes_what_the_net_does(model: Model) -> None:
    net = sn.Graph(lambda x, p: model(x), inputs=sn.Spec(3, "float64")).net
    random, segments = np.random.default_rng(0), Segments(3, (np.array([0, 4, 4, 9]),))
    arrays = [
        random.normal(size=(9, 3)) if place == 0 else random.normal(size=net.type_of(number).shape)
        for place, number in enumerate(net.inputs)
    ]
    for piece in pieces(net):
        values = interpret(without_unused(net.nodes, (*piece.reads, *piece.results)), arrays, segments)
        given_, right = values[: len(piece.reads)], values[len(piece.reads) :]
        for made, expected in zip(interpret(piece.net, given_, segments), right, strict=True):
            assert_close(made, expected, 9, 30, "float64")


def test_pieces_occur() -> None:
    """The random models above are worth their time."""
    net = net_of(lambda x: both(8, 2)(both(3, 0)(x)[0])[0])
    assert [type(made).__name__ for made in (*pairs(net), *stacks(net))] == ["Pair", "Pair", "Stack"]


def test_explain_names_them() -> None:
    graph = sn.Graph(
        lambda x, p: both(8, 2, "sum")(both(3, 0, "sum")(x)[0] @ p)[0], np.ones((4, 8), "f4"), inputs=3
    )
    lines = graph.explain().splitlines()
    assert lines[:3] == [
        "recurrences 0 and 1: both directions of a layer, added",
        "recurrences 2 and 3: both directions of a layer, added",
        "",
    ]
    stacked = sn.Graph(lambda x, p: UP(F(x)[0])[0], inputs=3)
    assert stacked.explain().startswith("recurrences 0; 1: layers, each on the one before\n\nparts")
    assert sn.Graph(lambda x, p: F(x)[0], inputs=3).explain().startswith("each sequence from its first step")


def test_explain_recognises_each_recurrence_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()

    def counted(node: Any) -> Any:
        asked.append(node)
        return recognise(node)

    monkeypatch.setattr("stepnet.plan.passes.pieces.recognise", counted)
    net = net_of(lambda x: both(8, 2)(both(3, 0)(x)[0])[0])
    assert len(layers_in(net)) == 3
    assert len(asked) == 4
