"""Each of oneDNN's recurrences by itself: cells, directions, dtypes; what is refused, and how."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close, distance, tolerance

from stepnet.compiler.targets.onednn import OneDnnLibrary
from stepnet.compiler.targets.onednn.interface import UNIMPLEMENTED
from stepnet.compiler.targets.onednn.padding import padding_of
from stepnet.compiler.targets.onednn.primitives import PrimitiveRun, RecurrenceWeights
from stepnet.compiler.targets.onednn.recurrence import CELLS, OneDnnRecurrence
from stepnet.compiler.targets.onednn.run import run_recurrence
from stepnet.errors import InputError, RefusedError
from tests.onednn.oracle import sigmoid

Array = np.ndarray
Arrays = dict[str, Array]
ACTIVATIONS: dict[str, Any] = {"tanh": np.tanh, "relu": lambda a: np.maximum(a, 0), "sigmoid": sigmoid}


def step(
    recurrence: OneDnnRecurrence, w: Arrays, x: Array, h: Array, c: Array, a: Array
) -> tuple[Array, Array]:
    """One step of oneDNN's equations for all rows, in float64; w of one direction."""
    from_x = np.einsum("ni,igh->gnh", x, w["weights_layer"])
    from_h = np.einsum("ni,igh->gnh", h, w["weights_iter"])
    b = w["bias"][:, None]
    if recurrence.cell == "rnn":
        return ACTIVATIONS[recurrence.activation](from_x[0] + from_h[0] + b[0]), c
    if recurrence.cell == "lstm":
        i, f, g, o = from_x + from_h + b
        p_i, p_f, p_o = w.get("weights_peephole", np.zeros((3, recurrence.hidden)))
        c = sigmoid(f + p_f * c) * c + sigmoid(i + p_i * c) * np.tanh(g)
        h = sigmoid(o + p_o * c) * np.tanh(c)
        return (h @ w["weights_projection"] if recurrence.projected else h), c
    u, r = sigmoid(from_x[:2] + from_h[:2] + b[:2])
    if recurrence.cell.endswith("augru"):
        u = (1 - a) * u
    if recurrence.cell.startswith("lbr"):
        n = np.tanh(from_x[2] + b[2] + r * (from_h[2] + b[3]))
    else:
        n = np.tanh(from_x[2] + b[2] + (r * h) @ w["weights_iter"][:, 2])
    return u * h + (1 - u) * n, c


def right(recurrence: OneDnnRecurrence, w: Arrays, inputs: Arrays) -> Arrays:
    """The right results of a primitive: outputs, and the last memories."""
    x = inputs["src_layer"].astype(np.float64)
    own = {name: array[0, 0].astype(np.float64) for name, array in w.items()}
    h = inputs["src_iter"][0, 0].astype(np.float64)
    c = inputs["src_iter_c"][0, 0].astype(np.float64) if "src_iter_c" in inputs else h
    outputs = np.zeros((*x.shape[:2], recurrence.output))
    for t in reversed(range(len(x))) if recurrence.direction == "right2left" else range(len(x)):
        a = inputs["attention"][t] if "attention" in inputs else np.zeros(1)
        h, c = step(recurrence, own, x[t], h, c, a)
        outputs[t] = h
    return {"dst_layer": outputs, "dst_iter": h[None, None], "dst_iter_c": c[None, None]}


def drawn(recurrence: OneDnnRecurrence, steps: int, rows: int) -> tuple[Arrays, Arrays]:
    """Random weights, and random inputs."""
    random = np.random.default_rng(0)
    slots = [slot for slot in recurrence.slots if not slot.startswith("dst")]
    scale = 1 / np.sqrt(recurrence.hidden)
    arrays = {s: (scale * random.normal(size=recurrence.shape(s, steps, rows))).astype("f4") for s in slots}
    if "attention" in arrays:
        arrays["attention"] = sigmoid(arrays["attention"])
    weights = {name: arrays.pop(name) for name in recurrence.weights}
    return weights, arrays


def check(
    dnnl: OneDnnLibrary, recurrence: OneDnnRecurrence, steps: int = 4, rows: int = 3, roundings: int = 16
) -> None:
    """Runs a primitive and compares all that it gives."""
    weights, inputs = drawn(recurrence, steps, rows)
    run = PrimitiveRun(dnnl, recurrence, steps, rows)
    RecurrenceWeights.of(recurrence, weights).bind(run)
    for name, array in inputs.items():
        run.view(name)[...] = array
    run.run()
    wanted = right(recurrence, weights, inputs)
    width = recurrence.inputs + recurrence.hidden
    bound = tolerance(recurrence.dtype, steps, width if recurrence.dtype == "float32" else 1, roundings)
    for name in recurrence.slots:
        if name.startswith("dst"):
            away = distance(run.view(name), wanted[name])
            assert away <= bound, f"{name} of {recurrence}: {away:.3g} away, where {bound:.3g} is allowed"


def needs(dnnl: OneDnnLibrary, dtype: str) -> None:
    """Skips where the processor lacks a dtype."""
    if reason := dnnl.lacks(dtype):
        pytest.skip(reason)


PLAIN = [
    *(OneDnnRecurrence("rnn", 3, 5, activation=name) for name in ACTIVATIONS),
    OneDnnRecurrence("lstm", 3, 5),
    OneDnnRecurrence("lstm", 3, 5, peephole=True),
    OneDnnRecurrence("lstm", 3, 5, projected=2),
    OneDnnRecurrence("lstm", 3, 5, projected=2, peephole=True),
    OneDnnRecurrence("gru", 3, 5),
    OneDnnRecurrence("lbr_gru", 3, 5),
]
WAYS = ["left2right", "right2left"]
ATTENDED = [OneDnnRecurrence("augru", 3, 5), OneDnnRecurrence("lbr_augru", 3, 5)]


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("direction", WAYS)
@pytest.mark.parametrize("recurrence", PLAIN, ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_cells(dnnl: OneDnnLibrary, recurrence: OneDnnRecurrence, direction: str, training: bool):
    check(dnnl, replace(recurrence, direction=direction, training=training))


@pytest.mark.parametrize("recurrence", ATTENDED, ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_attention(dnnl: OneDnnLibrary, recurrence: OneDnnRecurrence, training: bool):
    check(dnnl, replace(recurrence, training=training))


@pytest.mark.parametrize("lengths", [[2, 0, 5, 5], [4, 4], [3]], ids=str)
@pytest.mark.parametrize("recurrence", ATTENDED, ids=str)
def test_attention_over_ragged_sequences(
    dnnl: OneDnnLibrary, recurrence: OneDnnRecurrence, lengths: list[int]
):
    weights, inputs = drawn(recurrence, sum(lengths), 1)
    x, attention = inputs["src_layer"][:, 0], inputs["attention"][:, 0]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    numbers = RecurrenceWeights.of(recurrence, weights)
    places = padding_of(offsets, False)
    made = run_recurrence(dnnl, recurrence, numbers, places, x, attention=attention)
    double = run_recurrence(
        dnnl, recurrence, numbers, places, x.astype("f8"), attention=attention.astype("f8")
    )
    assert_close(double.outputs, made.outputs)
    for row, (first, end) in enumerate(pairwise(offsets)):
        alone = {
            "src_layer": x[first:end, None],
            "attention": attention[first:end, None],
            "src_iter": np.zeros((1, 1, 1, recurrence.hidden)),
        }
        wanted = right(recurrence, weights, alone)
        assert_close(made.outputs[first:end], wanted["dst_layer"][:, 0].astype("f4"), 5, 8)
        assert_close(made.h[row], wanted["dst_iter"][0, 0, 0].astype("f4"), 5, 8)


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("direction", WAYS)
@pytest.mark.parametrize("recurrence", [r for r in (*PLAIN, *ATTENDED) if not r.projected], ids=str)
def test_halves(dnnl: OneDnnLibrary, recurrence: OneDnnRecurrence, direction: str, dtype: str):
    needs(dnnl, dtype)
    if recurrence.row.one_direction and direction != "left2right":
        pytest.skip("one direction alone")
    check(dnnl, replace(recurrence, dtype=dtype, direction=direction), roundings=2)


@pytest.mark.long(each=True)
@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (1, 7), (7, 1), (11, 13)])
@pytest.mark.parametrize("recurrence", [*PLAIN, *ATTENDED], ids=str)
def test_shapes(dnnl: OneDnnLibrary, recurrence: OneDnnRecurrence, steps: int, rows: int):
    check(dnnl, replace(recurrence, inputs=7, hidden=17, projected=recurrence.projected and 11), steps, rows)


REFUSED = {
    "oneDNN has the cell lbr_gru in float32, bfloat16, float16, not in int8": OneDnnRecurrence(
        "lbr_gru", 3, 5, dtype="int8"
    ),
    "oneDNN has gradients of the cell gru in float32, bfloat16, not in float16": OneDnnRecurrence(
        "gru", 3, 5, dtype="float16", training=True
    ),
    "oneDNN runs projections of an LSTM in float32 only, not in bfloat16": OneDnnRecurrence(
        "lstm", 3, 5, 2, dtype="bfloat16"
    ),
    "oneDNN runs the cell augru only from left to right, not right2left": OneDnnRecurrence(
        "augru", 3, 5, direction="right2left"
    ),
    "oneDNN has the activations relu, tanh, sigmoid, not elu": OneDnnRecurrence(
        "rnn", 3, 5, activation="elu"
    ),
    "int8 needs a calibration: call quantize with samples for this engine": OneDnnRecurrence(
        "gru", 3, 5, dtype="int8"
    ),
    "direction is one of left2right, right2left, not up": OneDnnRecurrence("gru", 3, 5, direction="up"),
}


@pytest.mark.parametrize(("reason", "recurrence"), REFUSED.items(), ids=REFUSED)
def test_refused(dnnl: OneDnnLibrary, reason: str, recurrence: OneDnnRecurrence):
    assert recurrence.refuse(dnnl) == reason
    with pytest.raises(RefusedError, match="onednn: "):
        PrimitiveRun(dnnl, recurrence, 2, 2)


def test_an_instruction_set_that_is_missing(dnnl: OneDnnLibrary):
    old = replace(dnnl, isa=0x7)
    assert old.lacks("bfloat16") == "this processor has no instructions for bfloat16 that oneDNN could use"
    assert OneDnnRecurrence("gru", 3, 5, dtype="float16").refuse(old) is not None
    assert (old.largest_weight, replace(dnnl, isa=0x67).largest_weight) == (63, 127)


class Refusing:
    """The functions of a library that has no recurrences for an instruction set that it uses."""

    def __init__(self, functions: Any) -> None:
        self.functions = functions

    def __getattr__(self, name: str) -> Any:
        refuses = name == "dnnl_gru_forward_primitive_desc_create"
        return (lambda *_: UNIMPLEMENTED) if refuses else getattr(self.functions, name)


def test_a_dtype_that_the_library_has_no_recurrences_in(dnnl: OneDnnLibrary):
    half = replace(dnnl, functions=Refusing(dnnl.functions), isa=0xFEF)
    reason = half.lacks("float16")
    assert reason is not None
    assert reason.endswith("primitive_desc_create, asked for a recurrence in float16")
    assert OneDnnRecurrence("lstm", 3, 5, dtype="float16").refuse(half) == reason
    assert half.lacks("float32") is None


def test_weights_of_the_wrong_shape():
    recurrence = OneDnnRecurrence("gru", 3, 5)
    arrays = {name: np.zeros(recurrence.shape(name, 0, 0), "f4") for name in recurrence.weights}
    assert (
        RecurrenceWeights.of(recurrence, {**arrays, "bias": np.ones((1, 1, 3, 5))}).arrays["bias"].dtype
        == np.float32
    )
    with pytest.raises(InputError, match=r"weights_iter of gru .* is of shape \(5, 5\)"):
        RecurrenceWeights.of(recurrence, {**arrays, "weights_iter": np.zeros((5, 5))})
    with pytest.raises(InputError, match=r"weights_layer of gru .* is missing"):
        RecurrenceWeights.of(recurrence, {"weights_iter": arrays["weights_iter"]})
    assert (
        not RecurrenceWeights.of(recurrence, {n: a for n, a in arrays.items() if n != "bias"})
        .arrays["bias"]
        .any()
    )


def test_every_cell_has_its_row():
    assert {cell.biases for cell in CELLS.values()} == {1, 3, 4}


def test_a_padding_counts_the_bytes_of_all_its_tables():
    padding = replace(padding_of(np.array([0, 2, 2, 5]), False), source=np.zeros(5, np.int64))
    tables = [value for value in vars(padding).values() if isinstance(value, np.ndarray)]
    assert len(tables) == 5
    assert padding.bytes == sum(table.nbytes for table in tables)
