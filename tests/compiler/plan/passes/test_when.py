"""When a value is known, which is another thing than how many there are of it."""

import numpy as np

from stepnet.compiler.net import CONST, ROWS, STEPS, Builder, Recur, Type
from stepnet.compiler.plan.passes.when import When, known_once, when, when_inside


def of(extent: tuple[str, ...], *shape: int) -> Type:
    return Type(extent, shape, "float32")


def test_around_a_loop() -> None:
    inside = Builder()
    x, h = inside.input(of(ROWS, 2), "x"), inside.input(of(ROWS, 2), "h")
    after = inside.add("add", x, h)
    recur = Recur(inside.net([after, after]), 1, 1)
    builder = Builder()
    frames, s = builder.input(of(STEPS, 2), "frames"), builder.input(of(ROWS, 2), "s")
    weights = builder.input(of(CONST, 2, 3), "weights")
    zeros = builder.add("expand", builder.constant(np.zeros(2, np.float32)), extent=ROWS)
    (y,), (last,) = recur.add_results(builder, [frames, zeros])
    expected = {
        weights: When.ONCE,
        builder.add("tanh", weights): When.ONCE,
        zeros: When.ONCE,
        builder.add("matmul", s, weights): When.PER_SEQUENCE,
        builder.add("add", frames, builder.add("expand", s, extent=STEPS)): When.BEFORE,
        builder.add("expand", builder.constant(np.ones(2, np.float32)), extent=STEPS): When.BEFORE,
        y: When.AFTER,
        builder.add("matmul", last, weights): When.AFTER,
        builder.add("reduce", frames, how="sum"): When.AFTER,
        (contract := builder.add("contract", frames, frames)): When.TOTAL,
        builder.add("multiply", contract, contract): When.TOTAL,
        builder.add("reduce", s, how="mean"): When.TOTAL,
        builder.add("matmul", s, contract): When.TOTAL,
    }
    net = builder.net(range(len(builder.nodes)))
    known = when(net)
    assert {number: known[number] for number in expected} == expected
    assert contract not in known_once(net)
    assert weights in known_once(net)
    assert zeros not in known_once(net), "there are as many as rows"


def test_inside_a_loop() -> None:
    inside = Builder()
    x, h, s = (inside.input(of(ROWS, 2), name) for name in "xhs")
    weights = inside.input(of(CONST, 2, 2), "weights")
    index = inside.add("index")
    products = [inside.add("matmul", value, weights) for value in (x, h, s)]
    result = inside.add("add", inside.add("add", *products[:2]), products[2])
    body = inside.net([result, h])
    place = {node.name: number for number, node in enumerate(body.nodes)}
    known = when_inside(Recur(body, 1, 1))
    names = {"x": When.BEFORE, "h": When.IN, "s": When.PER_SEQUENCE, "weights": When.ONCE}
    assert {name: known[place[name]] for name in names} == names
    made = [known[n] for n, node in enumerate(body.nodes) if node.operation == "matmul"]
    assert made == [When.BEFORE, When.IN, When.PER_SEQUENCE]
    counted = when_inside(Recur(inside.net([index, h]), 1, 1))
    assert counted[-1] == When.IN
