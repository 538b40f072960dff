"""Recurrences whose matrix decays by other memories: these have loops of their own, and it runs in chunks of
steps. In emulation, beside the interpreter in float64.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn

Array = np.ndarray
Arrays = dict[str, Array]
ENGINE = "cuda-emulated"
HEADS, KEYS, VALUES = 2, 16, 32
SHAPES = {"q": (HEADS, KEYS), "k": (HEADS, KEYS), "v": (HEADS, VALUES), "i": (HEADS,), "f": (HEADS,)}
MEMORY = {"C": (HEADS, KEYS, VALUES), "n": (HEADS, KEYS), "m": (HEADS,)}
SPELLED = {"D": (HEADS, VALUES, KEYS), "n": (HEADS, KEYS), "m": (HEADS,), "seen": ()}
LENGTHS = 40, 0, 1, 17
SIZE = KEYS * VALUES
CHUNKS, TRAINED = "steps at a time as products of matrices", "chunks of steps, by products of matrices"


def values(shapes: dict[str, tuple[int, ...]], *lead: int, dtype: str = "f4") -> Arrays:
    """Random arrays of these shapes, the same numbers in each dtype."""
    chance = np.random.default_rng(len(lead) + sum(lead))
    return {
        name: chance.normal(size=(*lead, *each)).astype("f4").astype(dtype) for name, each in shapes.items()
    }


def ragged(dtype: str = "f4") -> dict[str, sn.Ragged]:
    """The inputs of sequences of different lengths."""
    offsets = np.cumsum([0, *LENGTHS], dtype=np.int64)
    return {name: sn.Ragged(x, (offsets,)) for name, x in values(SHAPES, sum(LENGTHS), dtype=dtype).items()}


def mlstm(**options: Any) -> sn.RNN:
    """The cell of the library."""
    return sn.RNN(sn.cells.mlstm, memory=MEMORY, **options)


def said(rnn: Any, engine: str = "cuda") -> str:
    """The text of `explain`, in one line."""
    return " ".join(str(rnn.explain(engine, rows=16, steps=100)).split())


def own_spelling(x: Any, memory: Any, p: Any, statics: Any) -> tuple[Any, Any]:
    """An mLSTM with a plain exponential forget gate, which a static moves, values ahead of keys, another
    floor, and m as an output besides; a further memory, on which nothing but itself depends, counts.
    """
    D, n, m, seen = (memory[name] for name in ("D", "n", "m", "seen"))
    f = x["f"] + statics
    largest = np.maximum(f + m, x["i"])
    old, new = np.exp(f + m - largest), np.exp(x["i"] - largest)
    D = D * old[:, :, None, None] + (new[:, :, None] * x["v"])[..., None] * x["k"][:, :, None, :]
    n = n * old[:, :, None] + new[:, :, None] * x["k"]
    h = (D * x["q"][:, :, None, :]).sum(-1) / np.maximum(np.abs((n * x["q"]).sum(-1)), 1)[:, :, None]
    return {"h": h * p["scale"], "m": largest, "seen": seen}, {"D": D, "n": n, "m": largest, "seen": seen + 1}


def spelled(**options: Any) -> sn.RNN:
    """The same by a step of the user's."""
    return sn.RNN(own_spelling, {"scale": np.full((HEADS, VALUES), 0.5, "f4")}, memory=SPELLED, **options)


def projected(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
    """The cell of the library behind its projections, which the step computes."""
    return sn.cells.mlstm({name: (x @ p[name]).reshape(-1, *shape) for name, shape in SHAPES.items()}, memory)


def as_dict(outputs: Any) -> Arrays:
    """Outputs by name."""
    found = outputs if isinstance(outputs, dict) else {"h": outputs}
    return {name: np.asarray(getattr(each, "values", each)) for name, each in found.items()}


@pytest.mark.parametrize(("make", "memory"), [(mlstm, MEMORY), (spelled, SPELLED)])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_matrix_that_decays_by_another_memory_runs_in_chunks(
    make: Callable[..., sn.RNN], memory: dict[str, tuple[int, ...]], reverse: bool
) -> None:
    rnn = make(reverse=reverse)
    begin = values(memory, len(LENGTHS))
    statics = None if make is mlstm else np.linspace(-1, 1, 8, dtype="f4").reshape(4, HEADS)
    outputs, final = rnn(ragged(), begin, statics, engine=ENGINE)
    assert CHUNKS in said(rnn)
    exact: Any = {name: array.astype("f8") for name, array in begin.items()}
    right, last = rnn(
        ragged("f8"), exact, None if statics is None else statics.astype("f8"), engine="interpret"
    )
    for name, found in as_dict(outputs).items():
        assert_close(found, as_dict(right)[name], max(LENGTHS), SIZE)
    for name, found in final.items():
        assert_close(found, last[name], max(LENGTHS), SIZE)
    third = {name: x[3:4] for name, x in ragged().items()}
    own = None if statics is None else statics[3:4]
    alone, _ = rnn(third, {name: array[3:4] for name, array in begin.items()}, own, engine=ENGINE)
    for name, found in as_dict(alone).items():
        assert found.tobytes() == as_dict(outputs)[name][sum(LENGTHS[:3]) :].tobytes()


def test_explain_has_the_time_of_each_loop() -> None:
    """That of n is one of units alone: a small part of those of m and of the matrix. Stages are not in it."""
    text = " ".join(
        mlstm_after(mlstm(), values(SHAPES, 2, 5))
        .explain(engine="cuda-emulated", rows=16, steps=1000)
        .split()
    )
    whole, *each = [
        int(number.replace(",", "")) for number in re.findall(r"([\d,]+) us predicted(?!,)", text)
    ]
    assert len(each) == 3
    assert 0 <= whole - sum(each) <= 2
    assert "units are alone; 0.0" in text


def test_sums_of_the_adjoint_of_n_run_after_its_loop() -> None:
    """So that its units are alone, too; sums of up to 32 numbers need not leave it for that."""
    shapes = {**dict.fromkeys("qkv", (8, 48)), "i": (8,), "f": (8,)}
    rnn = sn.RNN(sn.cells.mlstm, memory={"C": (8, 48, 48), "n": (8, 48), "m": (8,)})
    found, run = list[Arrays](), sn.vjp(rnn)
    for engine, dtype in (("interpret", "f8"), (ENGINE, "f4")):
        outputs, backward = run(values(shapes, 1, 5, dtype=dtype), engine=engine)
        seeds = values({"h": outputs[0].shape}, dtype=dtype)
        found.append(backward(seeds["h"], None).inputs)
    for name, right in found[0].items():
        assert_close(found[1][name], right, 5, 48 * 48)
    text = " ".join(run.explain(engine=ENGINE, rows=16, steps=64).split())
    assert re.findall("moves values between units; (.{15})", text) == ["units are alone"] * 2


def test_streams_of_divided_recurrences_go_on_from_step_to_step() -> None:
    rnn, x = mlstm(), values(SHAPES, 2, 5)
    right, last = rnn(values(SHAPES, 2, 5, dtype="f8"), engine="interpret")
    stream = rnn.stream(rows=2, engine=ENGINE)
    for time in range(5):
        output = stream.step({name: each[:, time] for name, each in x.items()})
        assert_close(output, right[:, time], 5, SIZE)
    for name, found in stream.state.items():
        assert_close(found, last[name], 5, SIZE)


def test_masks_and_early_ends_keep_one_loop() -> None:
    """And are right."""
    x, exact = values(SHAPES, 3, 12), values(SHAPES, 3, 12, dtype="f8")
    mask = np.random.default_rng(3).uniform(size=(3, 12)) < 0.6
    ends = mlstm(until=lambda output, memory: output[:, 0, 0] > 0.5)
    assert CHUNKS not in said(mlstm_after(ends, x))
    cases: list[tuple[sn.RNN, dict[str, Any]]] = [(mlstm(), {"mask": mask}), (ends, {})]
    for rnn, options in cases:
        found, final = rnn(x, engine=ENGINE, **options)
        right, last = rnn(exact, engine="interpret", **options)
        assert_close(as_dict(found)["h"], as_dict(right)["h"], 12, SIZE)
        for name, each in final.items():
            assert_close(each, last[name], 12, SIZE)


def mlstm_after(rnn: sn.RNN, x: Arrays) -> sn.RNN:
    """The recurrence, which knows its inputs."""
    rnn(x, engine="interpret")
    return rnn


def reads_back(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
    """A memory depends on what is read of the matrix, which decays by it."""
    C, m = memory["C"], memory["m"]
    y = (C * x["q"][..., None]).sum(-2)
    kept = np.exp(-np.abs(m))[..., None, None]
    return y, {"C": kept * C + x["k"][..., None] * x["v"][..., None, :], "m": y.sum(-1)}


def two_matrices(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
    """Two matrices of one size."""
    C, m = memory["C"], memory["m"]
    y = (C * x["q"][..., None]).sum(-2) + (m * x["q"][..., None]).sum(-2)
    return y, {"C": C + x["k"][..., None] * x["v"][..., None, :], "m": 0.5 * m + x["k"][..., None]}


def counted(x: Any, memory: Any, p: Any, *, index: Any) -> tuple[Any, Any]:
    """Forgets by the number of the step."""
    return sn.cells.mlstm({**x, "f": x["f"] * index.astype("float32")[:, None]}, memory)


def flagged(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
    """Forgets by a flag, which is a memory."""
    on, own = memory["on"], {name: memory[name] for name in MEMORY}
    y, after = sn.cells.mlstm({**x, "f": np.where(on[:, None], x["f"], 1)}, own)
    return y, {**after, "on": x["f"][:, 0] > 0}


def rotated(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
    """Turns queries by constant angles, as rotary embeddings do."""
    angles = np.linspace(0.1, 1, KEYS // 2, dtype="f4")
    left, right = x["q"][..., : KEYS // 2], x["q"][..., KEYS // 2 :]
    turned = left * np.cos(angles) - right * np.sin(angles), right * np.cos(angles) + left * np.sin(angles)
    return sn.cells.mlstm({**x, "q": np.concatenate(turned, -1)}, memory)


@pytest.mark.parametrize(
    ("step", "memory"),
    [
        (rotated, MEMORY),
        (reads_back, {"C": (HEADS, KEYS, VALUES), "m": (HEADS,)}),
        (two_matrices, {"C": (HEADS, KEYS, VALUES), "m": (HEADS, KEYS, VALUES)}),
        (counted, MEMORY),
        (flagged, {**MEMORY, "on": sn.Spec((), "bool")}),
        (sn.cells.mlstm, {"C": (HEADS, 24, VALUES), "n": (HEADS, 24), "m": (HEADS,)}),
    ],
)
def test_other_recurrences_keep_one_loop(step: Any, memory: Any) -> None:
    rnn = sn.RNN(step, memory=memory)
    shapes = {**SHAPES, **dict.fromkeys("qk", (HEADS, memory["C"][1]))}
    found, _ = rnn(values(shapes, 1, 6), engine=ENGINE)
    text = said(rnn)
    right, _ = rnn(values(shapes, 1, 6, dtype="f8"), engine="interpret")
    assert_close(found, right, 6, SIZE)
    assert CHUNKS not in text
    assert "parts, in the order they run" not in text


def gradients(rnn: sn.RNN, engine: str, dtype: str, **options: Any) -> Arrays:
    """The gradients of inputs and initial memories, for random cotangents of all that it returns."""
    initial = values(MEMORY, len(LENGTHS), dtype=dtype)
    gradient = sn.vjp(rnn)
    wrt = ["inputs", "initial"]
    (outputs, final), backward = gradient(ragged(dtype), initial=initial, engine=engine, wrt=wrt, **options)
    (seed,) = values({"o": (HEADS, VALUES)}, sum(LENGTHS), dtype=dtype).values()
    last = None if options else {name: np.cos(initial[name]) for name in final}
    found = backward(outputs.with_values(seed), last)
    return {**{name: each.values for name, each in found.inputs.items()}, **found.initial}


@pytest.mark.parametrize("options", [{"reverse": False}, {"reverse": True}, {"checkpoint": 16}])
def test_gradients_of_divided_recurrences_run_in_chunks(options: dict[str, Any]) -> None:
    rnn = mlstm(reverse=options.pop("reverse", False))
    right = gradients(rnn, "interpret", "f8", **options)
    for name, found in gradients(rnn, ENGINE, "f4", **options).items():
        assert_close(found, right[name], max(LENGTHS), SIZE)
    assert TRAINED in " ".join(str(sn.vjp(rnn).explain(engine=ENGINE, rows=16, steps=64)).split())


def linear_with_projections(x: Any, C: Any, p: Any) -> tuple[Any, Any]:
    """Linear attention whose projections are in the step."""
    q, k, v = ((x @ p[name]).reshape(-1, *SHAPES[name]) for name in "qkv")
    C = 0.9 * C + k[..., None] * v[..., None, :]
    return (C * q[..., None]).sum(-2), C


def with_weights(step: Any, memory: Any, dtype: str) -> sn.RNN:
    """A recurrence whose parameters are those of projections of 8 inputs."""
    weights = values({name: (int(np.prod(shape)),) for name, shape in SHAPES.items()}, 8, dtype=dtype)
    return sn.RNN(step, {name: each / 4 for name, each in weights.items()}, memory=memory)


@pytest.mark.parametrize(
    ("step", "memory"), [(projected, MEMORY), (linear_with_projections, (HEADS, KEYS, VALUES))]
)
def test_projections_inside_a_step_leave_it_and_the_matrix_runs_in_chunks(step: Any, memory: Any) -> None:
    rnn, x = with_weights(step, memory, "f4"), values({"x": (8,)}, 2, 20)["x"]
    (right, _), behind = sn.vjp(with_weights(step, memory, "f8"))(x.astype("f8"), engine="interpret")
    (found, _), backward = sn.vjp(rnn)(x, engine=ENGINE)
    assert CHUNKS in said(rnn)
    assert_close(found, right, 20, SIZE)
    assert TRAINED in " ".join(str(sn.vjp(rnn).explain(engine=ENGINE, rows=16, steps=64)).split())
    seed = np.cos(right)
    gradients, true = backward(seed.astype("f4")), behind(seed)
    assert_close(gradients.inputs, true.inputs, 20, SIZE)
    assert_close(gradients.params["k"], true.params["k"], 40, SIZE)
