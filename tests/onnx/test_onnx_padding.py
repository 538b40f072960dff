"""ONNX models with padded batches: masks by lengths, in whatever way they are written."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.errors import ModelError
from tests.onnx.onnx_models import FLOAT, assert_as_theirs, model_of, node, random, value

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
stepnet_onnx: Any = pytest.importorskip("stepnet.onnx")
onnx: Any = pytest.importorskip("onnx", reason="onnx is not installed")
helper: Any = onnx.helper
Array = np.ndarray
INT32, INT64, BOOL = 6, 7, 9
LENGTHS = np.array([4, 1, 5, 2], "int32")
X = random(4, 5, 3)
SIZES = [
    node("Shape", "x", "shape"),
    node("Gather", "shape one", "time"),
    node("Range", "zero time one", "steps"),
    node("Cast", "n", "whole", to=INT64),
    node("Unsqueeze", "whole axis", "lengths"),
]
ARRAYS: dict[str, Any] = {
    "zero": np.array(0),
    "one": np.array(1),
    "axis": np.array([1]),
    "last": np.array([2]),
    "none": np.float32(0),
    "ones": np.float32(1),
    "low": np.float32(-np.inf),
    "lower": np.float32(-1e9),
}
MASKS: dict[str, list[Any]] = {
    "less": [node("Less", "steps lengths", "m")],
    "greater": [node("Greater", "lengths steps", "m")],
    "less or equal, from one": [node("Add", "steps one", "count"), node("LessOrEqual", "count lengths", "m")],
    "the last and all before it": [
        node("Sub", "lengths one", "end"),
        node("LessOrEqual", "steps end", "m"),
    ],
    "not behind": [node("GreaterOrEqual", "steps lengths", "away"), node("Not", "away", "m")],
    "as floats": [
        node("Cast", "steps", "a", to=FLOAT),
        node("Cast", "lengths", "b", to=FLOAT),
        node("Less", "a b", "m"),
    ],
    "a difference": [node("Sub", "lengths steps", "left"), node("Greater", "left zero", "m")],
}
WIDE = [*SIZES, *MASKS["less"], node("Unsqueeze", "m last", "mask")]
MASKED: dict[str, list[Any]] = {
    "chosen": [node("Where", "mask x none", "z")],
    "product": [node("Cast", "mask", "f", to=FLOAT), node("Mul", "f x", "z")],
    "of a function": [node("Exp", "x", "e"), node("Where", "mask e none", "w"), node("Mul", "w x", "z")],
    "a divided one": [
        node("Where", "mask x none", "w"),
        node("Exp", "x", "e"),
        node("Div", "w e", "z"),
    ],
}
SUMMED = [node("ReduceSum", "z axis", "s", keepdims=0), node("Cast", "lengths", "c", to=FLOAT)]


def padded(nodes: list[Any], rank: int, kind: int = FLOAT, **arrays: Any) -> Any:
    inputs = [value("x", "n", "t", 3), value("n", "n", kind=INT32)]
    every = {name: np.asarray(array) for name, array in (ARRAYS | arrays).items()}
    return model_of(nodes, inputs, [value("y", *[None] * rank, kind=kind)], every)


def convolved(read: str, *pads: int) -> Any:
    """A convolution over the steps of a value, whose results behind the end of a sequence are masked."""
    nodes = [
        *WIDE,
        *MASKED["chosen"],
        node("Transpose", read, "t", perm=[0, 2, 1]),
        node("Conv", "t k", "c", pads=pads),
        node("Transpose", "c", "d", perm=[0, 2, 1]),
        node("Where", "mask d none"),
    ]
    return padded(nodes, 3, k=random(2, 3, 3))


def test_convolutions_of_steps_that_are_masked() -> None:
    assert_as_theirs(convolved("z", 1, 1), {"x": X, "n": LENGTHS})


def test_causal_convolutions_read_no_padding() -> None:
    assert_as_theirs(convolved("x", 2, 0), {"x": X, "n": LENGTHS})


def test_convolutions_that_read_padding_are_refused() -> None:
    assert "where it is not known to have 0: mask the steps" in refusal(convolved("x", 1, 1))


def refusal(model: Any) -> str:
    with pytest.raises(ModelError) as error:
        stepnet_onnx.Backend.run_model(model, {"x": X, "n": LENGTHS})
    return str(error.value)


# ---- masks -------------------------------------------------------------------------------------------------


@pytest.mark.long(each=True)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("engine", ["interpret", "llvm"])
def test_a_masked_mean_is_that_of_each_sequence(mask: str, engine: str) -> None:
    nodes = [*SIZES, *MASKS[mask], node("Unsqueeze", "m last", "mask"), *MASKED["chosen"], *SUMMED]
    model = padded([*nodes, node("Div", "s c")], 2)
    (made,) = stepnet_onnx.Backend.run_model(model, {"x": X, "n": LENGTHS}, engine=engine)
    wanted = np.stack([x[:length].astype("float64").mean(0) for x, length in zip(X, LENGTHS, strict=True)])
    assert_close(made, wanted, 5, 3)
    assert_as_theirs(model, {"x": X, "n": LENGTHS})


@pytest.mark.parametrize("way", MASKED)
def test_numbers_are_masked_in_many_ways(way: str) -> None:
    model = padded([*WIDE, *MASKED[way], node("ReduceSum", "z axis", "y", keepdims=0)], 2)
    assert_as_theirs(model, {"x": X, "n": LENGTHS})


@pytest.mark.parametrize("low", ["low", "lower"])
@pytest.mark.parametrize("op", ["ReduceMax", "Softmax"])
def test_low_numbers_behind_the_ends_are_no_maximum(op: str, low: str) -> None:
    last = node(op, "z", axes=[1]) if op == "ReduceMax" else node(op, "z", axis=1)
    model = padded([*WIDE, node("Where", f"mask x {low}", "z"), last], 3)
    assert_as_theirs(model, {"x": X, "n": LENGTHS})


def test_a_sequence_without_steps_has_the_maximum_of_its_padding() -> None:
    model = padded([*WIDE, node("Where", "mask x low", "z"), node("ReduceMax", "z", axes=[1])], 3)
    assert_as_theirs(model, {"x": X, "n": np.array([0, 1, 5, 0], "int32")})


def test_the_lengths_are_values() -> None:
    model = padded([*SIZES, node("Mul", "whole whole")], 1, INT64)
    assert_as_theirs(model, {"x": X, "n": LENGTHS})


def test_attention_of_masked_scores_is_a_product_over_the_steps() -> None:
    nodes = [
        *WIDE,
        node("MatMul", "x v", "scores"),
        node("Where", "mask scores low", "z"),
        node("Softmax", "z", "weights", axis=1),
        node("Transpose", "weights", "turned", perm=[0, 2, 1]),
        node("MatMul", "turned x"),
    ]
    model = padded(nodes, 3, v=random(3, 1, seed=2))
    assert_as_theirs(model, {"x": X, "n": LENGTHS})


ACROSS = [*WIDE, node("Transpose", "x", "t", perm=[0, 2, 1]), node("MatMul", "x t", "scores")]
"""The products of all steps of a padded sequence, and masks of its steps: `mask` at queries."""
OF_KEYS = node("Unsqueeze", "m axis", "keys")


@pytest.mark.parametrize("low", ["low", "lower"])
def test_attention_between_steps_whose_keys_are_masked(low: str) -> None:
    nodes = [
        *(*ACROSS, OF_KEYS, node("Where", f"keys scores {low}", "z"), node("Softmax", "z", "w", axis=2)),
        *(node("MatMul", "w x", "v"), node("Where", "mask v none")),
    ]
    assert_as_theirs(padded(nodes, 3), {"x": X, "n": LENGTHS})


def test_what_is_known_behind_the_ends_is_in_the_output() -> None:
    nodes = [*WIDE, node("Where", "mask x none", "z"), node("Exp", "z", "e"), node("MatMul", "e v")]
    assert_as_theirs(padded(nodes, 3, v=random(3, 2)), {"x": X, "n": LENGTHS})


UNMASKED: dict[str, tuple[list[Any], str]] = {
    "no mask": ([*WIDE, node("ReduceSum", "x axis", "y"), node("Not", "m", "unused")], "not known to have 0"),
    "a step too many": (
        [*SIZES, node("LessOrEqual", "steps lengths", "m"), node("Unsqueeze", "m last", "mask"),
         *MASKED["chosen"], node("ReduceSum", "z axis", "y")],
        "where it is not known to have 0",
    ),
    "the padding": (
        [*WIDE, node("Where", "mask none x", "z"), node("ReduceSum", "z axis", "y")],
        "where it is not known to have 0",
    ),
    "ones behind": (
        [*WIDE, node("Where", "mask x ones", "z"), node("ReduceSum", "z axis", "y")],
        "where it is not known to have 0",
    ),
    "zeros of a maximum": (
        [*WIDE, node("Where", "mask x none", "z"), node("ReduceMax", "z", "y", axes=[1])],
        "where it is not known to have -1e+09 or less",
    ),
    "a mean of the padding": (
        [*WIDE, node("Where", "mask x none", "z"), node("ReduceMean", "z", "y", axes=[1])],
        "it is over all steps, padding included, in a model with the lengths",
    ),
    "a product over the steps": (
        [*WIDE, node("Transpose", "x", "t", perm=[0, 2, 1]), node("MatMul", "t x")],
        "where it is not known to have 0",
    ),
    "a Gemm over the steps": (
        [*WIDE, node("Gather", "shape axis", "count"), node("Concat", "axis count", "row", axis=0),
         node("Expand", "ones row", "sums"),
         node("Transpose", "x", "turned", perm=[1, 0, 2]), node("Gather", "turned zero", "z", axis=2),
         node("Gemm", "sums z", "summed"), node("Unsqueeze", "summed last")],
        "where it is not known to have 0",
    ),
    "attention to the padding": (
        [*ACROSS, node("Softmax", "scores", "w", axis=2), node("MatMul", "w x", "v"),
         node("Where", "mask v none")],
        "where it is not known to have -1e+09 or less",
    ),
    "attention of masked queries to the padding": (
        [*ACROSS, node("Where", "mask scores low", "z"), node("Softmax", "z", "w", axis=2),
         node("MatMul", "w x", "v"), node("Where", "mask v none")],
        "where it is not known to have -1e+09 or less",
    ),
    "a sum from the end": (
        [*WIDE, node("CumSum", "x one", "y", reverse=1)],
        "where it is not known to have 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNMASKED)
def test_padding_that_would_count_is_refused_with_its_node(name: str) -> None:
    nodes, message = UNMASKED[name]
    said = refusal(padded(nodes, 3))
    assert message in said
    assert "\n  at node '" in said


def test_an_output_of_unknown_padding_is_refused() -> None:
    model = padded([*WIDE, node("Where", "mask x x", "z"), node("Exp", "z")], 3)
    assert refusal(model).startswith("output 'y' has unknown numbers after the ends of sequences")
    (made,) = stepnet_onnx.Backend.run_model(model, {"x": X, "n": np.full(4, 5, "int32")})
    assert_close(made, np.exp(X.astype("float64")))


def test_a_mask_is_no_work_at_the_steps_of_a_sequence() -> None:
    prepared = stepnet_onnx.Backend.prepare(
        padded([*WIDE, *MASKED["chosen"], node("ReduceSum", "z axis")], 3)
    )
    assert {n.operation for n in prepared.graph({}).net.nodes} == {"input", "reduce", "reshape"}


# ---- recurrences -------------------------------------------------------------------------------------------


def scanned(kept: list[Any], reverse: int, outputs: list[Any]) -> Any:
    """A model of a Scan whose body gets a mask [batch], and keeps its state by it or not."""
    body = helper.make_graph(
        [
            node("Tanh", "xs", "f"),
            node("Add", "hs f", "new"),
            helper.make_node("Constant", [], ["ax"], value=onnx.numpy_helper.from_array(np.array([1]))),
            node("Unsqueeze", "ms ax", "wide"),
            *kept,
            node("Exp", "after", "out"),
        ],
        "body",
        [value("hs", None, 3), value("xs", None, 3), value("ms", None, kind=BOOL)],
        [value("after", None, 3), value("out", None, 3)],
    )
    ways = {"scan_input_directions": [reverse] * 2, "scan_output_directions": [reverse]}
    nodes = [
        *SIZES,
        *MASKS["less"],
        helper.make_node(
            "Scan", ["h", "x", "m"], ["end", "every"], body=body, num_scan_inputs=2, scan_input_axes=[1, 1],
            name="scan", **ways,
        ),
    ]  # fmt: skip
    inputs = [value("h", "n", 3), value("x", "n", "t", 3), value("n", "n", kind=INT32)]
    return model_of(nodes, inputs, outputs, {name: np.asarray(array) for name, array in ARRAYS.items()})


KEPT = {
    "chosen": [node("Where", "wide new hs", "after")],
    "added": [
        node("Cast", "wide", "a", to=FLOAT),
        node("Not", "wide", "away"),
        node("Cast", "away", "b", to=FLOAT),
        node("Mul", "a new", "p"),
        node("Mul", "b hs", "q"),
        node("Add", "p q", "after"),
    ],
}
END = [value("end", None, 3)]


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("way", KEPT)
def test_a_state_that_the_padding_keeps_is_the_last_of_each_sequence(way: str, reverse: int) -> None:
    model = scanned(KEPT[way], reverse, END)
    assert_as_theirs(model, {"h": random(4, 3, seed=1), "x": X, "n": LENGTHS})


@pytest.mark.long(each=True)
@pytest.mark.parametrize(
    "body",
    [
        [node("Identity", "new", "after")],
        [node("Where", "wide hs new", "after")],
        [node("Not", "wide", "away"), node("Where", "away new hs", "after")],
        [node("Tanh", "hs", "old"), node("Where", "wide new old", "after")],
    ],
    ids=["always", "the other way", "negated", "changed"],
)
@pytest.mark.parametrize("reverse", [0, 1])
def test_a_state_that_the_padding_changes_is_refused(body: list[Any], reverse: int) -> None:
    fed = {"h": random(4, 3, seed=1), "x": X, "n": LENGTHS}
    with pytest.raises(ModelError, match=r"it runs into the padding"):
        stepnet_onnx.Backend.run_model(scanned(body, reverse, END), fed)


def test_the_state_of_another_scan_is_not_this_ones() -> None:
    """The first Scan gives its state before the step as an output, which the second takes for its own."""
    body = helper.make_graph(
        [node("Add", "a xs", "b"), node("Identity", "a", "o")],
        "first",
        [value("a", None, 3), value("xs", None, 3)],
        [value("b", None, 3), value("o", None, 3)],
    )
    other = helper.make_graph(
        [node("Identity", "ys", "d")],
        "second",
        [value("c", None, 3), value("ys", None, 3)],
        [value("d", None, 3)],
    )
    nodes = [
        *SIZES,
        *MASKS["less"],
        helper.make_node("Scan", ["h", "x"], ["e", "o"], body=body, num_scan_inputs=1, scan_input_axes=[1]),
        helper.make_node("Scan", ["h", "o"], ["end"], body=other, num_scan_inputs=1),
        node("Cast", "m", "used", to=FLOAT),
    ]
    inputs = [value("h", "n", 3), value("x", "n", "t", 3), value("n", "n", kind=INT32)]
    arrays = {name: np.asarray(array) for name, array in ARRAYS.items()}
    model = model_of(nodes, inputs, [value("end", None, 3), value("used", None, None)], arrays)
    with pytest.raises(ModelError, match="output 'end' cannot be computed: it runs into the padding"):
        stepnet_onnx.Backend.run_model(model, {"h": random(4, 3), "x": X, "n": LENGTHS})


# ---- models of PyTorch -------------------------------------------------------------------------------------


class Pooled(torch.nn.Module):
    """A mean, a maximum and attention over the steps, masked by lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.score = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

    def forward(self, x: Any, lengths: Any) -> Any:
        h = torch.tanh(self.inner(x))
        mask = (torch.arange(x.size(1))[None] < lengths[:, None])[..., None]
        mean = (h * mask).sum(1) / lengths[:, None]
        most = h.masked_fill(~mask, float("-inf")).max(1).values
        weights = torch.softmax(self.score(h).masked_fill(~mask, -1e9), 1)
        return torch.cat([mean, most, (weights * h).sum(1)], -1)


def test_a_masked_model_of_pytorch_runs_over_sequences_without_padding(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Pooled().eval()
    lengths = torch.tensor(LENGTHS.astype("int64"))
    open_ = {"x": {0: "batch", 1: "time"}, "lengths": {0: "batch"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (torch.tensor(X), lengths), tmp_path / "m.onnx", dynamo=False,
            input_names=["x", "lengths"], dynamic_axes=open_,
        )  # fmt: skip
    graph = stepnet_onnx.load(tmp_path / "m.onnx")
    words = sn.Ragged.from_list([x[:length] for x, length in zip(X, LENGTHS, strict=True)])
    with torch.no_grad():
        right = model.double()(torch.tensor(X).double(), lengths).numpy()
    assert_close(graph(words), right, 5, 10)
