"""Steps that are nearly a known cell are not taken for one: by hand, and by random changes of known cells."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_steps import RandomStep, random_steps
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.net import Builder, Net, Recur
from stepnet.compiler.plan.recognise import Recognised, Refused, check, recognise
from stepnet.errors import NetError
from tests.compiler.plan.recognise.cell_spellings import H, Spelling, X, both
from tests.compiler.plan.recognise.test_spellings import drawn

Step = Callable[..., Any]


def params(**shapes: tuple[int, ...]) -> dict[str, Any]:
    """Random parameters of these shapes."""
    random = np.random.default_rng(3)
    return {name: random.normal(size=shape) for name, shape in shapes.items()}


def gate(name: str, x: Any, h: Any, p: Any) -> Any:
    """The input of a gate."""
    place = "rznifgo".index(name)
    return x @ p["W"][place] + h @ p["R"][place] + p["b"][place]


def gru(n_of: Callable[..., Any], h_of: Callable[..., Any]) -> Step:
    """A GRU with another candidate, or another next memory."""

    def step(x: Any, h: Any, p: Any) -> Any:
        r, z = (sn.sigmoid(gate(name, x, h, p)) for name in "rz")
        h = h_of(z, h, n_of(x, h, r, p), r, x, p)
        return h, h

    return step


def plain_n(x: Any, h: Any, r: Any, p: Any) -> Any:
    return np.tanh(x @ p["W"][2] + r * (h @ p["R"][2]) + p["b"][2])


def plain_h(z: Any, h: Any, n: Any, *_: Any) -> Any:
    return z * h + (1 - z) * n


def lstm(**changed: Callable[..., Any]) -> Step:
    """An LSTM some of whose equations are others, by the name of what they give."""

    def step(x: Any, m: Any, p: Any) -> Any:
        h, c = m["h"], m["c"]
        a = {name: gate(name, x, h, p) for name in "ifgo"}
        ways: dict[str, Callable[..., Any]] = {
            "f": lambda v: sn.sigmoid(v["a"]["f"]),
            "g": lambda v: np.tanh(v["a"]["g"]),
            "i": lambda v: sn.sigmoid(v["a"]["i"]),
            "C": lambda v: v["f"] * v["c"] + v["i"] * v["g"],
            "o": lambda v: sn.sigmoid(v["a"]["o"]),
            "H": lambda v: v["o"] * np.tanh(v["C"]),
        }
        values: dict[str, Any] = {"x": x, "h": h, "c": c, "a": a, "p": p}
        for name, way in (ways | changed).items():
            values[name] = way(values)
        return values["H"], {"h": values["H"], "c": values["C"]}

    return step


MISSES: dict[str, tuple[Step, str]] = {
    "both biases and the input inside of the reset": (
        gru(lambda x, h, r, p: np.tanh(r * (x @ p["W"][2] + h @ p["R"][2] + p["b"][2])), plain_h),
        "the reset gate r does not multiply the memory's product alone",
    ),
    "no reset": (
        gru(lambda x, h, r, p: np.tanh(gate("n", x, h, p)), plain_h),
        "the candidate n has no reset gate",
    ),
    "two products of the memory": (
        gru(lambda x, h, r, p: np.tanh(gate("n", x, h, p) + r * (h @ p["R"][2])), plain_h),
        "the reset gate r does not multiply the memory's product alone",
    ),
    "resets of both kinds": (
        gru(lambda x, h, r, p: np.tanh(x @ p["W"][2] + r * ((r * h) @ p["R"][2])), plain_h),
        "more than products",
    ),
    "a gate without effect on h": (
        gru(plain_n, lambda z, h, n, *_: h + (1 - z) * n),
        "a memory without a matrix",
    ),
    "nearly 1 - z": (gru(plain_n, lambda z, h, n, *_: z * h + (0.999 - z) * n), "z h + (1 - z) n"),
    "decayed": (gru(plain_n, lambda z, h, n, *_: 0.999 * (z * h + (1 - z) * n)), "z h + (1 - z) n"),
    "zoneout": (
        gru(plain_n, lambda z, h, n, *_: 0.9 * (z * h + (1 - z) * n) + 0.1 * h),
        "a memory without a matrix",
    ),
    "a skip connection": (
        gru(plain_n, lambda z, h, n, r, x, p: z * h + (1 - z) * n + x @ p["W"][0]),
        "z h + (1 - z) n",
    ),
    "another gate in one place": (
        gru(plain_n, lambda z, h, n, r, *_: z * h + (1 - r) * n),
        "z h + (1 - z) n",
    ),
    "units turned around": (
        gru(plain_n, lambda z, h, n, *_: z * h[:, ::-1] + (1 - z) * n),
        "z h + (1 - z) n",
    ),
    "squared": (gru(plain_n, lambda z, h, n, *_: z * z * h + (1 - z * z) * n), "z h + (1 - z) n"),
    "a sine": (
        gru(lambda x, h, r, p: np.sin(x @ p["W"][2] + r * (h @ p["R"][2])), plain_h),
        "it computes sin, which no known cell does",
    ),
    "a leaky relu": (
        gru(lambda x, h, r, p: sn.leaky_relu(x @ p["W"][2] + r * (h @ p["R"][2])), plain_h),
        "it computes greater_equal, which",
    ),
    "different activations of gates": (
        lambda x, h, p: (
            h,
            plain_h(
                sn.hard_sigmoid(gate("z", x, h, p)),
                h,
                plain_n(x, h, sn.sigmoid(gate("r", x, h, p)), p),
            ),
        ),
        "different activations",
    ),
    "a hidden unit of its own": (
        lambda x, h, p: (h, np.tanh(x @ p["W"][0] + h * p["b"][0])),
        "a memory without a matrix",
    ),
    "two layers in a step": (
        lambda x, h, p: (h, np.tanh(np.tanh(x @ p["W"][0] + h @ p["R"][0]) @ p["R"][1])),
        "more than products",
    ),
    "a product of the input and the memory": (
        lambda x, h, p: (h, np.tanh(x @ p["W"][0] * (h @ p["R"][0]))),
        "more than products",
    ),
    "layer normalisation": (
        lambda x, h, p: (h, np.tanh(sn.layer_norm(x @ p["W"][0] + h @ p["R"][0]))),
        "sum",
    ),
    "clipped to bounds of two sizes": (
        lambda x, h, p: (h, np.tanh(np.clip(x @ p["W"][0] + h @ p["R"][0], -1, 2))),
        "more than products",
    ),
}
LSTMS: dict[str, tuple[Step, str]] = {
    "no forget gate": (lstm(f=lambda v: 1), "not multiplied by one forget gate"),
    "a cell that is added to": (
        lstm(C=lambda v: v["c"] + v["i"] * v["g"]),
        "not multiplied by one forget gate",
    ),
    "i twice": (lstm(C=lambda v: v["f"] * v["c"] + v["i"] * v["i"] * v["g"]), "not i g"),
    "h in place of c": (lstm(C=lambda v: v["f"] * v["h"] + v["i"] * v["g"]), "no term f c"),
    "the old cell on its way out": (
        lstm(H=lambda v: v["o"] * np.tanh(v["c"])),
        "no memory is o activation(c')",
    ),
    "nearly coupled": (lstm(i=lambda v: 0.999 - v["f"]), "not i g"),
    "a gate in place of the candidate": (lstm(C=lambda v: v["f"] * v["c"] + v["i"] + v["g"]), "not i g"),
    "the new cell's peephole for i, and the old one's for o": (
        lstm(o=lambda v: sn.sigmoid(v["a"]["o"] + v["p"]["b"][0] * v["c"])),
        "output gate o reads a memory without a matrix",
    ),
    "a peephole of the next cell for i": (
        lstm(
            i=lambda v: sn.sigmoid(v["a"]["i"] + v["p"]["b"][0] * (v["f"] * v["c"] + v["g"])),
        ),
        "input gate i reads more",
    ),
    "a peephole of the candidate": (
        lstm(g=lambda v: np.tanh(v["a"]["g"] + v["p"]["b"][0] * v["c"])),
        "candidate g reads a memory without a matrix",
    ),
    "a peephole by a matrix": (
        lstm(f=lambda v: sn.sigmoid(v["a"]["f"] + v["c"] @ v["p"]["R"][0])),
        "forget gate f reads a memory by a matrix",
    ),
    "layer normalisation of the cell": (
        lstm(H=lambda v: v["o"] * np.tanh(sn.layer_norm(v["C"]))),
        "sum",
    ),
    "zoneout of the cell": (
        lstm(C=lambda v: 0.9 * (v["f"] * v["c"] + v["i"] * v["g"]) + 0.1 * v["c"]),
        "forget gate",
    ),
    "a residual": (lstm(H=lambda v: v["o"] * np.tanh(v["C"]) + v["x"] @ v["p"]["W"][0]), "no memory is o"),
    "different activations of gates": (
        lstm(o=lambda v: sn.hard_sigmoid(v["a"]["o"])),
        "different activations",
    ),
}


@pytest.mark.parametrize("name", MISSES)
def test_a_near_miss_with_one_memory_is_refused(name: str) -> None:
    step, reason = MISSES[name]
    made = sn.RNN(step, params(W=(7, X, H), R=(7, H, H), b=(7, H)), memory=H, inputs=sn.Spec(X, "float64"))
    refused = recognise(made.program.traced.recur())
    assert isinstance(refused, Refused), f"{refused}"
    assert reason in str(refused)


@pytest.mark.parametrize("name", LSTMS)
def test_a_near_miss_with_a_cell_is_refused(name: str) -> None:
    step, reason = LSTMS[name]
    made = sn.RNN(
        step,
        params(W=(7, X, H), R=(7, H, H), b=(7, H)),
        memory={"h": H, "c": H},
        inputs=sn.Spec(X, "float64"),
    )
    refused = recognise(made.program.traced.recur())
    assert isinstance(refused, Refused), f"{refused}"
    assert reason in str(refused)


def test_the_plain_cells_of_these_tables_are_recognised() -> None:
    arrays = params(W=(7, X, H), R=(7, H, H), b=(7, H))
    for step, memory in ((gru(plain_n, plain_h), H), (lstm(), {"h": H, "c": H})):
        assert isinstance(recognise(sn.RNN(step, arrays, memory=memory, inputs=X).net), Recognised)


# ---- what is no cell at all --------------------------------------------------------------------------------


def test_recurrences_that_no_cell_is_like_are_refused() -> None:
    R = np.ones((H, H))

    def reason(step: Step, **options: Any) -> str:
        made: dict[str, Any] = {"memory": H, "inputs": H} | options
        return str(recognise(sn.RNN(step, R, **made).net))

    def counted(x: Any, h: Any, p: Any, index: Any) -> Any:
        return h, np.tanh(h @ p) * (index[:, None] + 1)

    def told(x: Any, h: Any, p: Any, statics: Any) -> Any:
        return h, np.tanh(h @ p + statics)

    assert "carries 3 memories" in reason(lambda x, m, p: (x, m), memory={"a": H, "b": H, "c": H})
    assert "a memory is f64[2, 2]" in reason(lambda x, h, p: (x, h), memory=(2, 2), inputs=2)
    assert "a memory is i64[]" in reason(lambda x, h, p: (x, h + 1), memory=sn.Spec((), "int64"))
    assert "computes with i64[1]" in reason(counted)
    assert "a static, which no known cell has" in reason(told, statics=H)
    assert "not multiplied by a matrix" in reason(lambda x, h, p: (h, np.tanh(x @ p)))
    masked = sn.RNN(lambda x, h, p: (h, np.where(x > 0, np.tanh(x @ p + h @ p), h)), R, memory=H, inputs=H)
    assert isinstance(recognise(masked.net), Refused)


def test_integers_are_refused() -> None:
    def step(x: Any, h: Any, p: Any) -> Any:
        return h, np.tanh(x @ p + h @ p + ((x > 0) + (x > 1)) * h)

    def scaled(x: Any, h: Any, p: Any) -> Any:
        return h, np.tanh(h @ p + x * np.ones(H))

    R = np.ones((H, H))
    rnn = sn.RNN(scaled, R, memory=H, inputs=sn.Spec(H, "int32"))
    assert "it computes with i32[4]" in str(recognise(rnn.net))
    rnn = sn.RNN(step, R, memory=H, inputs=H)
    assert "it computes with bool[4]" in str(recognise(rnn.net))


def test_a_net_without_one_recurrence_is_refused() -> None:
    assert str(recognise(Builder().net([]))) == "the net has no recurrences instead of one"


def test_what_is_rounded_is_refused() -> None:
    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh((x @ p).astype(np.float32).astype(np.float64) + h @ p)
        return h, h

    rnn = sn.RNN(step, np.ones((H, H)), memory=H, inputs=sn.Spec(H, "float64"))
    assert "it rounds f64[4] to f32" in str(recognise(rnn.net))


def test_an_error_of_ours_is_noticed() -> None:
    """The check runs both sides: with the wrong arrays they differ."""
    known = recognise(Spelling().rnn().net)
    assert isinstance(known, Recognised)
    builder = Builder()
    places = [builder.input(known.weights.type_of(n), "") for n in known.weights.inputs]
    inner = dict(zip(known.weights.inputs, places, strict=True))
    for number, node in enumerate(known.weights.nodes):
        if number not in inner:
            inner[number] = builder.copy(node, [inner[operand] for operand in node.inputs])
    results = [builder.add("negative", inner[n]) for n in known.weights.results]
    with pytest.raises(NetError, match="was taken for gru: reset='after', update='keep'"):
        check(type(known)(**{**vars(known), "weights": builder.net(results)}))


@pytest.mark.long(examples=30)
@settings(max_examples=100)
@given(random_steps())
def test_steps_that_are_no_cells_are_refused_or_right(step: RandomStep) -> None:
    known = recognise(step.rnn("float64").program.traced.recur())
    if isinstance(known, Refused):
        assert known.reason
    else:
        check(known)


def test_functions_of_functions_take_no_long_time() -> None:
    """Each reads the one before twice: to go along every path would take 2 ** 40 steps."""

    def step(x: Any, h: Any, p: Any) -> Any:
        for _ in range(40):
            h = np.sin(h) * np.arctan(h)
        return h, h

    assert "sin" in str(recognise(sn.RNN(step, memory=H, inputs=X).net))


# ---- random changes ----------------------------------------------------------------------------------------


def changed(draw: Any, recur: Recur) -> Recur:
    """A recurrence in which one thing is another: an operand, an operation, or a number."""
    body = recur.body
    values = [
        n for n, node in enumerate(body.nodes) if node.operation not in ("input", "constant") and node.inputs
    ]
    at = draw(st.sampled_from(values))
    how = draw(st.sampled_from(("operand", "operation", "factor", "term", "sign")))
    builder, place = Builder(), list[int]()
    for number, node in enumerate(body.nodes):
        operands = [place[n] for n in node.inputs]
        if number == at and how == "operand":
            turn = draw(st.integers(0, len(operands) - 1))
            wanted = builder.type_of(operands[turn])
            alike = [n for n in place if builder.type_of(n) == wanted and n != operands[turn]]
            operands[turn] = draw(st.sampled_from(alike)) if alike else operands[turn]
        swapped = {
            "add": "subtract",
            "subtract": "add",
            "multiply": "add",
            "sigmoid": "tanh",
            "tanh": "sigmoid",
        }
        if number == at and how == "operation" and node.operation in swapped:
            place.append(builder.add(swapped[node.operation], *operands))
        else:
            place.append(builder.copy(node, operands))
        if number == at and how in ("factor", "term", "sign") and node.type.is_float:
            number = {"factor": 0.999, "term": 0.125, "sign": -1.0}[how]
            operation = "add" if how == "term" else "multiply"
            constant = builder.constant(np.array(number, node.type.dtype))
            place[-1] = builder.add(operation, place[-1], constant)
    net: Net = builder.net(place[n] for n in body.results)
    return Recur(net, recur.sequence_count, recur.memory_count)


OUTCOMES: list[str] = []


@pytest.mark.long(examples=40)
@settings(max_examples=200)
@given(st.data(), drawn())
def test_a_changed_cell_is_never_taken_for_what_it_is_not(data: Any, spelling: Spelling) -> None:
    recur = changed(data.draw, spelling.rnn().program.traced.recur())
    known = recognise(recur)
    if isinstance(known, Refused):
        OUTCOMES.append("refused")
        return
    check(known)
    ours, theirs = both(recur, known)
    for mine, other in zip(ours, theirs, strict=True):
        assert_close(other, mine, length=3, width=4 * (X + H))
    OUTCOMES.append("still a cell")


def test_changes_end_both_ways() -> None:
    """Of the random changes above many make something else, and many another cell of the same kind."""
    if OUTCOMES:
        assert min(OUTCOMES.count("refused"), OUTCOMES.count("still a cell")) > len(OUTCOMES) / 20
