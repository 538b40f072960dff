"""ONNX models as graphs: ONNX's own tests of its operators, and exported models against onnxruntime."""

import importlib
import os
import subprocess
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.values import leaves
from stepnet.compiler.values.packages import numbers
from stepnet.errors import FileError, InputError, ModelError
from stepnet.importers.sizes import SEQUENCES, STEPS, Size
from stepnet.layout.files.store import Store
from stepnet.onnx.loading import loaded
from tests.onnx.onnx_models import FLOAT, OPSET, assert_as_theirs, model_of, node, random, theirs, value

onnx: Any = pytest.importorskip("onnx", reason="onnx is not installed")
torch: Any = pytest.importorskip("torch", reason="torch is not installed")
helper: Any = onnx.helper
numpy_helper: Any = onnx.numpy_helper
stepnet_onnx: Any = pytest.importorskip("stepnet.onnx")
Array = np.ndarray
KINDS = ("gru", "lstm", "rnn", "scan")


def node_cases() -> list[Any]:
    """ONNX's cases of the operators that are recurrences; those of others take seconds to make."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case import node as node_tests

        for kind in KINDS:  # to import their module makes the cases
            importlib.import_module(f"{node_tests.__name__}.{kind}")
    cases: list[Any] = node_tests._NodeTestCases
    return [case for case in cases if any(kind in case.name for kind in KINDS)]


# ---- ONNX's own tests --------------------------------------------------------------------------------------


@pytest.mark.long(each=True)
@pytest.mark.parametrize("case", node_cases(), ids=lambda case: case.name)
def test_onnxs_own_tests_of_its_operators(case: Any, engine: str) -> None:
    for inputs, outputs in case.data_sets:
        made = stepnet_onnx.Backend.run_model(case.model, inputs, engine=engine)
        assert len(made) == len(outputs)
        for actual, right in zip(made, outputs, strict=True):
            assert_close(actual, right, 5, 10)


def test_there_are_as_many_as_onnx_has() -> None:
    assert len(node_cases()) == (14 if numbers(onnx.__version__) < (1, 18) else 22)


# ---- models that PyTorch exports ---------------------------------------------------------------------------


class Classifier(torch.nn.Module):
    """An embedding, a recurrence, what becomes of its steps, and a linear layer."""

    def __init__(self, cell: str, batch_first: bool, both: bool, layers: int, how: str) -> None:
        super().__init__()
        self.how, self.time = how, 1 if batch_first else 0
        width = 12 if both else 6
        self.table = torch.nn.Embedding(50, 8)
        options = {"batch_first": batch_first, "bidirectional": both, "num_layers": layers}
        self.rnn = getattr(torch.nn, cell)(8, 6, **options)
        self.norm, self.scores, self.out = (
            torch.nn.LayerNorm(width),
            torch.nn.Linear(width, 1),
            torch.nn.Linear(width, 3),
        )

    def forward(self, words: Any) -> Any:
        h, last = self.rnn(self.table(words))
        time = self.time
        if self.how == "last":
            h = h[:, -1] if time else h[-1]
        elif self.how == "mean":
            h = h.mean(time)
        elif self.how == "max":
            h = h.max(time).values
        elif self.how == "states":
            last = last[0] if isinstance(last, tuple) else last
            h = torch.cat([last[-2], last[-1]], 1) if len(last) > 1 else last[-1]
        elif self.how == "tags":
            h = torch.relu(self.norm(h))
        elif self.how == "attention":
            h = (torch.softmax(self.scores(h), time) * h).sum(time)
        elif self.how == "product":
            weights = torch.softmax(self.scores(h), 1)
            h = torch.bmm(weights.transpose(1, 2), h).squeeze(1)
        return torch.log_softmax(self.out(h), -1)


CLASSIFIERS = [
    ("GRU", True, False, 1, "last"),
    ("GRU", False, True, 2, "tags"),
    ("LSTM", True, True, 1, "states"),
    ("LSTM", False, False, 2, "mean"),
    ("RNN", True, True, 1, "max"),
    ("GRU", False, False, 1, "attention"),
    ("LSTM", True, True, 1, "product"),
]


def exported(model: Any, example: Any, path: Path, dynamo: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            open_ = torch.export.Dim.DYNAMIC
            torch.onnx.export(
                model, (example,), path, dynamo=True, dynamic_shapes=({0: open_, 1: open_},), verbose=False
            )
        else:
            names = dict(enumerate("nt" if model.time else "tn"))
            torch.onnx.export(
                model, (example,), path, dynamo=False, input_names=["x"], dynamic_axes={"x": names}
            )


def assert_runs(graph: sn.Graph, model: Any, batch_first: bool, engine: str) -> None:
    words = [torch.randint(0, 50, (length,)) for length in (4, 1, 7)]
    made = graph(sn.Ragged.from_list([sequence.numpy() for sequence in words]), engine=engine)
    rows = made.to_list() if isinstance(made, sn.Ragged) else list(made)
    with torch.no_grad():
        for sequence, row in zip(words, rows, strict=True):
            right = model(sequence[None] if batch_first else sequence[:, None])
            right = right.squeeze(0 if batch_first or right.ndim == 2 else 1)
            assert_close(row, right.numpy(), 8, 30)


@pytest.mark.parametrize("case", CLASSIFIERS, ids=str)
def test_classifiers_run_over_sequences_of_any_length(case: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, batch_first = Classifier(*case).eval(), case[1]
    exported(model, torch.randint(0, 50, (3, 5) if batch_first else (5, 3)), tmp_path / "m.onnx", False)
    assert_runs(stepnet_onnx.load(tmp_path / "m.onnx"), model, batch_first, "interpret")


EXPORT = """
import sys, torch
from pathlib import Path
from tests.onnx.test_onnx import Classifier, exported
for cell in sys.argv[2:]:
    torch.manual_seed(0)
    model = Classifier(cell, True, True, 1, "states").eval()
    exported(model, torch.zeros(3, 5, dtype=torch.int64), Path(sys.argv[1], f"{cell}.onnx"), True)
"""
"""In a process of its own: PyTorch's newer exporter takes sizes for fixed that were so in earlier traces."""


@pytest.mark.long
def test_the_newer_exporter_too_and_in_machine_code(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    cells = ("GRU", "LSTM") if pytestconfig.option.long else ("LSTM",)
    paths = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-c", EXPORT, str(tmp_path), *cells]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": paths})
    for cell in cells:
        torch.manual_seed(0)
        model = Classifier(cell, True, True, 1, "states").eval()
        assert_runs(stepnet_onnx.load(tmp_path / f"{cell}.onnx"), model, True, "llvm")


# ---- models by hand, judged by onnxruntime -----------------------------------------------------------------


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@pytest.mark.long(examples=20)
@settings(max_examples=60)
@given(
    op=st.sampled_from([*GATES]),
    direction=st.sampled_from(["forward", "reverse", "bidirectional"]),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    extras=st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
)
def test_lengths_and_initial_states_are_as_onnxruntimes(
    op: str, direction: str, lengths: list[int], extras: tuple[bool, bool, bool, bool]
) -> None:
    bias, initial, after, peepholes = extras
    D, H, gates, count, time = (
        2 if direction == "bidirectional" else 1,
        3,
        GATES[op],
        len(lengths),
        max(lengths),
    )
    arrays = {"W": random(D, gates * H, 2), "R": random(D, gates * H, H, seed=1)}
    arrays |= {"B": random(D, 2 * gates * H, seed=2)} if bias else {}
    fed = {"X": random(time, count, 2, seed=3), "sequence_lens": np.array(lengths, "int32")}
    names = ["X", "W", "R", "B" if bias else "", "sequence_lens"]
    slots = ["initial_h", "initial_c"][: 2 if op == "LSTM" else 1]
    if initial:
        fed |= {slot: random(D, count, H, seed=4 + at) for at, slot in enumerate(slots)}
        names += slots
    if op == "LSTM" and peepholes:
        arrays["P"] = random(D, 3 * H, seed=6)
        names += [""] * (7 - len(names)) + ["P"]
    attributes = {"linear_before_reset": int(after)} if op == "GRU" else {}
    outputs = ["Y", "Y_h", "Y_c"][: 3 if op == "LSTM" else 2]
    made = helper.make_node(op, names, outputs, hidden_size=H, direction=direction, **attributes)
    kinds = {"int32": 6, "float32": FLOAT}
    shapes = {name: array.shape for name, array in fed.items()} | {"X": ("t", count, 2)}
    inputs = [value(name, *shapes[name], kind=kinds[str(array.dtype)]) for name, array in fed.items()]
    ends = [value("Y", "t", D, "n", H), *(value(name, D, "n", H) for name in outputs[1:])]
    assert_as_theirs(model_of([made], inputs, ends, arrays), fed)


ACTIVATIONS = [
    ("Affine", 0.5, 0.1),
    ("Elu", 1.5, None),
    ("HardSigmoid", 0.3, 0.4),
    ("LeakyRelu", 0.2, None),
    ("Relu", None, None),
    ("ScaledTanh", 0.7, 0.9),
    ("Softsign", None, None),
    ("ThresholdedRelu", 0.1, None),
]


@pytest.mark.parametrize(("name", "alpha", "beta"), ACTIVATIONS)
def test_every_activation_with_its_numbers_and_a_clip(
    name: str, alpha: float | None, beta: float | None
) -> None:
    attributes: dict[str, Any] = {"activations": [name], "clip": 0.9}
    attributes |= {"activation_alpha": [alpha]} if alpha is not None else {}
    attributes |= {"activation_beta": [beta]} if beta is not None else {}
    made = node("RNN", "X W R", "Y", hidden_size=3, **attributes)
    arrays = {"W": 2 * random(1, 3, 2), "R": random(1, 3, 3)}
    model = model_of([made], [value("X", "t", "n", 2)], [value("Y", "t", 1, "n", 3)], arrays)
    assert_as_theirs(model, {"X": random(4, 2, 2)})


POINTWISE = """
    Abs Acos Acosh Asin Asinh Atan Atanh
    Ceil Cos Cosh Elu Erf Exp Floor HardSigmoid HardSwish Identity LeakyRelu Neg Reciprocal Relu Round
    Selu Sigmoid Sign Sin Sinh Softplus Softsign Tan Tanh
"""


@pytest.mark.parametrize("op", POINTWISE.split())
def test_functions_of_single_numbers(op: str) -> None:
    model = model_of(
        [helper.make_node(op, ["x"], ["y"])], [value("x", "n", "t", 3)], [value("y", "n", "t", 3)]
    )
    assert_as_theirs(model, {"x": 2 * random(2, 4, 3)})


SHAPES: dict[str, tuple[list[Any], dict[str, Any], int]] = {
    "split": ([node("Split", "x", "a b", axis=2), node("Mul", "a b")], {}, 3),
    "concat": ([node("Concat", "x x", axis=-1)], {}, 3),
    "slice": ([node("Slice", "x b e a s")], {"b": [3], "e": [-9], "a": [2], "s": [-2]}, 3),
    "reshape": ([node("Reshape", "x s", "r"), node("ReduceMax", "r", axes=[3])], {"s": [0, 0, 2, 2]}, 4),
    "transposed": (
        [
            node("Transpose", "x", "r", perm=[1, 0, 2]),
            node("MatMul", "r w", "m"),
            node("Transpose", "m", perm=[1, 0, 2]),
        ],
        {"w": random(4, 3)},
        3,
    ),
    "normalised": ([node("LayerNormalization", "x w b")], {"w": random(4), "b": random(4)}, 3),
    "clip": ([node("Clip", "x l h")], {"l": np.float32(-0.2), "h": np.float32(0.3)}, 3),
    "where": ([node("Greater", "x l", "c"), node("Where", "c x l")], {"l": np.float32(0.1)}, 3),
    "argmax": ([node("ArgMax", "x", "a", axis=-1), node("Cast", "a", to=FLOAT)], {}, 3),
    "mean of steps": ([node("ReduceMean", "x", "m", axes=[1]), node("Sub", "x m")], {}, 3),
    "first step": ([node("Gather", "x i", axis=1)], {"i": 0}, 2),
    "last step": ([node("Slice", "x b e a")], {"b": [-1], "e": [2**63 - 1], "a": [1]}, 3),
    "flattened": ([node("ReduceSum", "x a", "m", keepdims=0), node("Flatten", "m")], {"a": [1]}, 2),
    "gemm": (
        [
            node("ReduceMax", "x", "m", axes=[1], keepdims=0),
            node("Gemm", "m w b", transB=1, alpha=0.5, beta=2.0),
        ],
        {"w": random(3, 4), "b": random(3)},
        2,
    ),
}


CONVOLUTIONS: dict[str, tuple[dict[str, Any], Array, tuple[int, int]]] = {
    "in the middle": ({"pads": [1, 1]}, random(5, 4, 3), (0, 0)),
    "causal": ({"pads": [4, 0], "dilations": [2]}, random(5, 4, 3), (0, 0)),
    "of one step": ({}, random(5, 4, 1), (0, 0)),
    "same, in groups": ({"auto_pad": "SAME_UPPER", "group": 2}, random(6, 2, 4), (0, 0)),
    "same, the zeros ahead": ({"auto_pad": "SAME_LOWER", "strides": [1]}, random(6, 4, 4), (0, 0)),
    "padded ahead": ({"kernel_shape": [3], "auto_pad": "VALID"}, random(4, 4, 3), (2, 0)),
    "padded twice": ({"pads": [1, 0], "group": 4}, random(4, 1, 4), (1, 1)),
    "a stride": ({"pads": [1, 1], "strides": [2]}, random(5, 4, 3), (0, 0)),
    "no zeros": ({"pads": [0, 1]}, random(5, 4, 2), (0, 0)),
    "same with a stride": ({"auto_pad": "SAME_UPPER", "strides": [3]}, random(5, 4, 4), (0, 0)),
    "same with a stride, the zeros ahead": (
        {"auto_pad": "SAME_LOWER", "strides": [2], "group": 2},
        random(6, 2, 5),
        (0, 0),
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_over_steps(name: str) -> None:
    attributes, weight, (before, after) = CONVOLUTIONS[name]
    nodes = [
        node("Transpose", "x", "t", perm=[0, 2, 1]),
        *([node("Pad", "t p", "z")] if before else []),
        node("Conv", ("z" if before else "t") + " w b", "c", **attributes),
        node("Transpose", "c", perm=[0, 2, 1]),
    ]
    arrays = {"w": weight, "b": random(len(weight)), "p": np.array([0, 0, before, 0, 0, after])}
    model = model_of(nodes, [value("x", "n", "t", 4)], [value("y", *"abc")], arrays)
    for steps in (5, 1):
        assert_as_theirs(model, {"x": random(2, steps, 4)})


@pytest.mark.parametrize("operator", ["Conv", "MaxPool"])
def test_steps_may_be_the_last_axis(operator: str) -> None:
    attributes = {"kernel_shape": [3], "pads": [1, 1]}
    nodes = [
        node(operator, "x w" if operator == "Conv" else "x", "c", **attributes),
        node("Transpose", "c", perm=[2, 0, 1]),
    ]
    arrays = {"w": random(4, 4, 3)} if operator == "Conv" else {}
    model = model_of(nodes, [value("x", "n", 4, "t")], [value("y", *"abc")], arrays)
    assert_as_theirs(model, {"x": random(2, 4, 5)})
    graph: Any = loaded(model, Store(None, model.ByteSize()), "made.onnx", {}, {})
    assert graph.model.inputs[0].axes == "N_T"


FEWER_AND_MORE: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "transposed": ("ConvTranspose", {"strides": [2], "pads": [1, 1]}, (4, 3, 4)),
    "transposed with more at the end": (
        "ConvTranspose",
        {"strides": [3], "dilations": [2], "output_padding": [1], "group": 2},
        (4, 2, 3),
    ),
    "maxima": ("MaxPool", {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}, ()),
    "maxima, same": ("MaxPool", {"kernel_shape": [2], "strides": [2], "auto_pad": "SAME_UPPER"}, ()),
    "means": ("AveragePool", {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}, ()),
    "means with zeros": (
        "AveragePool",
        {"kernel_shape": [3], "strides": [1], "pads": [1, 1], "count_include_pad": 1},
        (),
    ),
}


@pytest.mark.parametrize("name", FEWER_AND_MORE)
def test_fewer_and_more_steps_are_read_by_a_recurrence(name: str) -> None:
    operator, attributes, shape = FEWER_AND_MORE[name]
    features = shape[1] * attributes.get("group", 1) if shape else 4
    nodes = [
        node("Transpose", "x", "t", perm=[0, 2, 1]),
        node(operator, "t w" if shape else "t", "c", **attributes),
        node("Transpose", "c", "s", perm=[2, 0, 1]),
        node("GRU", "s W R", "h end", hidden_size=2, linear_before_reset=1),
        node("Squeeze", "h one", "q"),
        node("Transpose", "q", perm=[1, 0, 2]),
        node("Squeeze", "end zero", "last"),
        node("ReduceMean", "q", "mean", axes=[0], keepdims=0),
    ]
    arrays = {
        **({"w": random(*shape)} if shape else {}),
        "W": random(1, 6, features),
        "R": random(1, 6, 2),
        "one": np.array([1]),
        "zero": np.array([0]),
    }
    outputs = [value("y", *"abc"), value("last", *"ab"), value("mean", *"ab")]
    model = model_of(nodes, [value("x", "n", "t", 4)], outputs, arrays)
    for steps in (7, 6):
        assert_as_theirs(model, {"x": random(2, steps, 4)})


def test_fewer_steps_of_a_model_with_lengths_are_refused() -> None:
    nodes = [
        node("GRU", "x W R - lengths", "h", hidden_size=4, linear_before_reset=1),
        node("Squeeze", "h one", "q"),
        node("Transpose", "q", "t", perm=[1, 2, 0]),
        node("MaxPool", "t", kernel_shape=[2], name="odd"),
    ]
    arrays = {"W": random(1, 12, 4), "R": random(1, 12, 4), "one": np.array([1])}
    lengths = value("lengths", "n", kind=6)
    model = model_of(nodes, [value("x", "t", "n", 4), lengths], [value("y", *"abc")], arrays)
    with pytest.raises(
        ModelError, match=r"a pooling reads windows of steps, or gives other numbers of them(?s:.*)'odd'"
    ):
        loaded(model, Store(None, 1000), "m", {}, {})


@pytest.mark.parametrize("name", SHAPES)
def test_features_and_steps(name: str) -> None:
    nodes, arrays, rank = SHAPES[name]
    arrays = {title: np.asarray(array) for title, array in arrays.items()}
    model = model_of(nodes, [value("x", "n", "t", 4)], [value("y", *"abcd"[:rank])], arrays)
    assert_as_theirs(model, {"x": random(2, 5, 4)})


def scan_body() -> Any:
    nodes = [
        helper.make_node("MatMul", ["h", "R"], ["p"]),
        helper.make_node("Add", ["p", "x"], ["s"]),
        helper.make_node("Tanh", ["s"], ["after"]),
        helper.make_node("Mul", ["after", "scale"], ["out"]),
    ]
    return nodes, [value("after", "n", 3), value("out", "n", 3)]


@pytest.mark.parametrize("reverse", [0, 1])
def test_a_scan_whose_body_reads_what_is_around_it(reverse: int) -> None:
    nodes, outputs = scan_body()
    body = helper.make_graph(nodes, "cell", [value("h", "n", 3), value("x", "n", 3)], outputs)
    scan = helper.make_node(
        "Scan", ["h0", "X"], ["last", "every"], body=body, num_scan_inputs=1,
        scan_input_directions=[reverse], scan_output_directions=[reverse],
    )  # fmt: skip
    model = model_of(
        [helper.make_node("Exp", ["g"], ["scale"]), scan],
        [value("h0", 2, 3), value("X", 4, 2, 3), value("g", 2, 3)],
        [value("last", 2, 3), value("every", 4, 2, 3)],
        {"R": random(3, 3)},
    )
    assert_as_theirs(model, {"h0": random(2, 3), "X": random(4, 2, 3, seed=1), "g": random(2, 3, seed=2)})


@pytest.mark.parametrize("count", [0, 2])
def test_a_scan_without_one_body_is_refused(count: int, tmp_path: Path) -> None:
    """A file that ONNX's checker refuses too: none of two graphs is the body."""
    nodes, outputs = scan_body()
    graph = helper.make_graph(nodes[2:3], "cell", [value("h", "n", 3), value("s", "n", 3)], outputs[:1])
    more: Any = {"body": [graph] * count} if count else {}
    scan = helper.make_node("Scan", ["h0", "X"], ["last"], num_scan_inputs=1, **more)
    inputs, outputs = [value("h0", 2, 3), value("X", 4, 2, 3)], [value("last", 2, 3)]
    made = helper.make_model(helper.make_graph([scan], "made", inputs, outputs), ir_version=9)
    onnx.save(made, tmp_path / "m.onnx")
    with pytest.raises(
        ModelError, match=r"its attribute body is missing, or is not one graph\n  at node 'last' \(Scan\)"
    ):
        stepnet_onnx.load(tmp_path / "m.onnx")


def test_a_loop_over_the_steps_is_a_recurrence() -> None:
    nodes, outputs = scan_body()
    nodes = [
        helper.make_node("Gather", ["X", "i"], ["x"], axis=0),
        helper.make_node("Identity", ["go"], ["go_on"]),
        helper.make_node("Identity", ["two"], ["scale"]),
        *nodes,
    ]
    inputs = [value("i", kind=7), value("go", kind=9), value("h", 2, 3)]
    body = helper.make_graph(nodes, "cell", inputs, [value("go_on", kind=9), *outputs])
    around = [
        helper.make_node("Shape", ["X"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "zero"], ["T"]),
        helper.make_node("Loop", ["T", "true", "h0"], ["last", "every"], body=body),
    ]
    arrays = {"R": random(3, 3), "two": np.full(3, 2, "f4"), "zero": np.array(0), "true": np.array(True)}
    outputs = [value("last", "n", 3), value("every", "t", "n", 3)]
    model = model_of(around, [value("h0", 2, 3), value("X", "t", 2, 3)], outputs, arrays)
    assert_as_theirs(model, {"h0": random(2, 3), "X": random(5, 2, 3, seed=1)})


# ---- what is refused ---------------------------------------------------------------------------------------


def refusal(nodes: Any, arrays: Any = None, axes: Any = None, sizes: Any = ("n", "t", 4)) -> str:
    initial = [numpy_helper.from_array(np.asarray(array), name) for name, array in (arrays or {}).items()]
    graph = helper.make_graph(nodes, "made", [value("x", *sizes)], [value("y", *"abc")], initial)
    model = helper.make_model(graph, opset_imports=OPSET, ir_version=9)
    with pytest.raises((ModelError, InputError)) as error:
        loaded(model, Store(None, model.ByteSize()), "made.onnx", axes or {}, {})
    return str(error.value)


def test_an_operator_without_a_rule_is_named_with_its_node() -> None:
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"], name="first"),
        helper.make_node("Det", ["a"], ["y"], name="second"),
    ]
    assert refusal(nodes) == "made.onnx: Det not supported: Det 'second'; its 1 other nodes are"


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "all sequences": (
        node("ReduceMean", "x", axes=[0], name="odd"),
        {},
        "it goes over the sequences of [sequences, steps, 4], which mixes them: each sequence's results are "
        "its own",
    ),
    "some steps": (
        node("Slice", "x b e a", name="odd"),
        {"b": [1], "e": [3], "a": [1]},
        "it selects steps 1 to 3 in steps of 1: of sequences only all can be selected; of steps all, the "
        "first or the last, or all but some at the ends",
    ),
    "a convolution without a dilation": (
        node("Conv", "x w", name="odd", pads=[1, 1], dilations=[0]),
        {"w": random(2, 4, 3)},
        "there is no kernel of 3 with a stride of 1, a dilation of 0, and 1 and 1 steps of zeros",
    ),
    "a transposed convolution to some number of results": (
        node("ConvTranspose", "x w", name="odd", output_shape=[9]),
        {"w": random(4, 2, 3)},
        "its pads follow from the number of results, by auto_pad or output_shape: state them",
    ),
    "a pooling with more windows": (
        node("MaxPool", "x", name="odd", kernel_shape=[2], ceil_mode=1),
        {},
        "its ceil_mode is 1, which has windows that end beyond the sequence: it must be 0",
    ),
    "a convolution over features": (
        node("Conv", "x w", name="odd", pads=[1, 1]),
        {"w": random(2, 4, 3)},
        "a convolution of a model is over the steps of a tensor [sequences, features, steps], not of "
        "[sequences, steps, 4]",
    ),
    "a convolution over two axes": (
        node("Conv", "x w", name="odd", pads=[1, 1, 1, 1]),
        {"w": random(2, 4, 3, 3)},
        "a convolution over two axes is of [sequences, channels, rows, steps], with rows and "
        "steps in any order, and not of [sequences, steps, 4]",
    ),
    "a convolution of an array": (
        node("Conv", "w w", name="odd", pads=[1, 1]),
        {"w": random(4, 4, 3)},
        "a convolution of a model is over the steps of a tensor [sequences, features, steps], not of "
        "[4, 4, 3]",
    ),
    "a step in the middle": (
        node("Gather", "x i", axis=1, name="odd"),
        {"i": 2},
        "it selects step 2: only the first or the last can be selected; where an exporter wrote out a loop "
        "over the steps, load the model from the file of its own framework",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_uses_that_are_refused_name_the_node(name: str) -> None:
    made, arrays, message = REFUSED[name]
    assert refusal([made], arrays, {"x": "NT"}) == f"{message}\n  at node 'odd' ({made.op_type}) of made.onnx"


def test_steps_of_zeros_are_for_convolutions() -> None:
    nodes = [
        helper.make_node("Pad", ["x", "p"], ["t"]),
        helper.make_node("Tanh", ["t"], ["y"], name="odd"),
    ]
    said = "steps of zeros are put around sequences, which only a convolution may read"
    assert said in refusal(nodes, {"p": np.array([0, 2, 0, 0, 0, 0])}, {"x": "NT"})


def test_values_at_pairs_of_steps_are_no_outputs() -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["y"], name="scores"),
    ]
    assert "is a value at each pair of steps, of which a model returns none" in refusal(nodes)


def test_axes_are_checked() -> None:
    nodes = [helper.make_node("Tanh", ["x"], ["y"])]
    assert refusal(nodes, axes={"z": "NT"}) == "axes= names 'z', and the inputs are x"
    assert "the axes of 'x' are 'NTT', and it has 3" in refusal(nodes, axes={"x": "NTT"})
    assert "none of its inputs has an axis of steps" in refusal(nodes, axes={"x": "N"}, sizes=("n", 2, 4))
    open_ = refusal(nodes, sizes=("n", "t", "features"))
    assert "'x' has a feature whose size the model does not state" in open_


def test_padding_is_not_counted() -> None:
    nodes = [
        helper.make_node("GRU", ["x", "W", "R", "", "sequence_lens"], ["h"], hidden_size=2),
        helper.make_node("ReduceMean", ["h"], ["y"], axes=[0], name="mean"),
    ]
    arrays = {"W": random(1, 6, 4), "R": random(1, 6, 2)}
    initial = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    inputs = [value("x", "t", "n", 4), value("sequence_lens", "n", kind=6)]
    graph = helper.make_graph(nodes, "made", inputs, [value("y", *[None] * 4)], initial)
    with pytest.raises(
        ModelError, match=r"it is over all steps, padding included(.|\n)*at node 'mean' \(ReduceMean\)"
    ):
        stepnet_onnx.Backend.prepare(helper.make_model(graph, opset_imports=OPSET, ir_version=9)).graph({})


def test_lengths_as_an_input_are_those_of_all_sequences() -> None:
    nodes = [
        helper.make_node("GRU", [name, "W", "R", "", "sequence_lens"], ["", f"h{name}"], hidden_size=2)
        for name in "xz"
    ]
    nodes.append(helper.make_node("Sub", ["hx", "hz"], ["y"]))
    arrays = {"W": random(1, 6, 4), "R": random(1, 6, 2)}
    initial = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    inputs = [*(value(name, "t", "n", 4) for name in "xz"), value("sequence_lens", "n", kind=6)]
    made = helper.make_graph(nodes, "made", inputs, [value("y", *[None] * 3)], initial)
    graph = stepnet_onnx.Backend.prepare(helper.make_model(made, opset_imports=OPSET, ir_version=9)).graph({})
    rows = {
        name: sn.Ragged.from_list([random(count, 4), random(3, 4)]) for name, count in (("x", 2), ("z", 2))
    }
    assert graph(rows).shape == (2, 1, 2)
    rows["z"] = sn.Ragged.from_list([random(3, 4), random(3, 4)])
    with pytest.raises(ModelError, match="one of its inputs is the lengths of the sequences, so all inputs"):
        graph(rows)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"not a model")
    with pytest.raises(FileError, match="this is not a complete ONNX model"):
        stepnet_onnx.load(tmp_path / "m.onnx")
    with pytest.raises(InputError, match="device is 'CPU', not 'CUDA'"):
        stepnet_onnx.Backend.prepare(
            model_of([helper.make_node("Tanh", ["x"], ["y"])], [value("x", 1, 2)], [value("y", 1, 2)]), "CUDA"
        )


def test_a_model_of_a_hostile_size_is_refused() -> None:
    arrays = {"s": np.array([1 << 30, 1 << 30])}
    nodes = [
        helper.make_node("ConstantOfShape", ["s"], ["big"]),
        helper.make_node("Exp", ["big"], ["bigger"]),
        helper.make_node("ReduceSum", ["bigger"], ["one"], keepdims=0),
        helper.make_node("Add", ["x", "one"], ["y"], name="sum"),
    ]
    assert "numbers" in refusal(nodes, arrays)


def test_sizes_are_products() -> None:
    sequences, steps = Size((SEQUENCES,)), Size((STEPS,))
    assert sequences * steps == steps * sequences
    assert (sequences * 4) // sequences == 4
    assert (sequences * steps) // 1 == Size((SEQUENCES, STEPS))
    assert leaves({"size": sequences}) == [Size((SEQUENCES,))]


# ---- what models got wrong ---------------------------------------------------------------------------------

WEIGHTS = {"W": random(1, 4, 3, seed=1), "R": random(1, 4, 4, seed=2)}
STEPS_FIRST = [value("x", "t", "n", 3)]
STATES = [value("h", 1, "n", 4)]
LENGTHS_OF = np.array([2, 5, 3])
X = random(5, 3, 3)


def test_lengths_may_be_cast() -> None:
    nodes = [
        node("Cast", "n", "lengths", to=6),
        node("RNN", "x W R - lengths", "y h", hidden_size=4),
    ]
    model = model_of(nodes, [*STEPS_FIRST, value("n", "n", kind=7)], STATES, WEIGHTS)
    assert_as_theirs(model, {"x": X, "n": LENGTHS_OF})


def test_lengths_that_are_all_steps_may_be_computed() -> None:
    arrays = WEIGHTS | {"zero": np.array([0]), "one": np.array([1])}
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "steps"),
        node("Gather", "shape one", "count"),
        node("Expand", "steps count", "every"),
        node("Cast", "every", "lengths", to=6),
        node("RNN", "x W R - lengths", "y h", hidden_size=4),
    ]
    assert_as_theirs(model_of(nodes, STEPS_FIRST, STATES, arrays), {"x": X})


def test_lengths_of_the_file_are_refused() -> None:
    arrays = WEIGHTS | {"lengths": LENGTHS_OF.astype("int32")}
    nodes = [node("RNN", "x W R - lengths", "y h", hidden_size=4)]
    with pytest.raises(ModelError, match=r"neither an input of the model nor all steps\n  at node 'y"):
        stepnet_onnx.Backend.run_model(model_of(nodes, STEPS_FIRST, STATES, arrays), {"x": X})


def test_what_depends_on_padding_is_refused() -> None:
    nodes = [node("RNN", "x W R - n", "y -", hidden_size=4), node("RNN", "x W R", "z h", hidden_size=4)]
    inputs = [*STEPS_FIRST, value("n", "n", kind=6)]
    outputs = [value("y", "t", 1, "n", 4), value("h", *[None] * 3)]
    with pytest.raises(ModelError, match=r"output 'h' cannot be computed: it runs into"):
        stepnet_onnx.Backend.run_model(
            model_of(nodes, inputs, outputs, WEIGHTS), {"x": X, "n": LENGTHS_OF.astype("int32")}
        )


def test_a_recurrence_without_lengths_gives_its_steps_beside_one_that_has_them() -> None:
    nodes = [
        node("RNN", "x W R", "every -", hidden_size=4),
        node("Squeeze", "every axis", "z"),
        node("RNN", "z V R - n", "y h", hidden_size=4),
    ]
    arrays = WEIGHTS | {"V": random(1, 4, 4), "axis": np.array([1])}
    model = model_of(nodes, [*STEPS_FIRST, value("n", "n", kind=6)], STATES, arrays)
    assert_as_theirs(model, {"x": X, "n": LENGTHS_OF.astype("int32")})


def older(nodes: Any, opset: int, kind: int = FLOAT, **arrays: Array) -> Any:
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", "n", "t", 4, kind=kind)],
        [value("y", *[None] * 3, kind=kind)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("options", [{}, {"axis": 1}], ids=str)
def test_a_softmax_of_old_opsets_is_over_all_axes_behind(op: str, options: Any) -> None:
    with pytest.raises(ModelError, match="of opset 11 over several axes"):
        stepnet_onnx.Backend.run_model(older([node(op, "x", **options)], 11), {"x": random(2, 3, 4)})


def test_a_clip_of_old_opsets_has_attributes() -> None:
    assert_as_theirs(older([node("Clip", "x", min=-0.5, max=0.25)], 7), {"x": random(2, 3, 4)})


def test_whole_numbers_are_divided_as_in_c() -> None:
    model = older([node("Div", "x c")], 13, kind=7, c=np.array([2, -2, 3, -3]))
    assert_as_theirs(model, {"x": np.arange(-12, 12).reshape(2, 3, 4)})


@pytest.mark.parametrize(
    "bounds", [(2**40, 2**50, 1), (0, 2**40, -1), (-1, -(2**63), -1), (-9, 9, 2)], ids=str
)
def test_bounds_of_slices_beyond_all_features(bounds: tuple[int, ...]) -> None:
    a, b, step = (np.array([bound]) for bound in bounds)
    model = older([node("Slice", "x a b axes step")], 13, a=a, b=b, step=step, axes=np.array([2]))
    assert_as_theirs(model, {"x": random(2, 3, 4)})


NOT_COMPUTED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "the last of equal numbers": ([node("ArgMax", "x", axis=2, select_last_index=1)], {}, "takes the last"),
    "training": (
        [node("Dropout", "x r b")],
        {"r": np.float32(0.5), "b": np.array(True)},
        "it trains",
    ),
    "half of the steps": (
        [
            node("Shape", "x", "s"),
            node("Div", "s c", "half"),
            node("Slice", "half one two", "end"),
            node("Slice", "x zero end one"),
        ],
        {"c": np.array([1, 2, 1]), "zero": np.array([0]), "one": np.array([1]), "two": np.array([2])},
        "a part of the number",
    ),
    "as many steps as sequences": (
        [node("Shape", "x", "s"), node("Slice", "s zero one", "end"), node("Slice", "x zero end one")],
        {"zero": np.array([0]), "one": np.array([1])},
        "it selects steps 0 to",
    ),
    "steps are compared": (
        [
            node("Shape", "x", "s"),
            node("Equal", "s c", "e"),
            node("Cast", "e", "f", to=1),
            node("Add", "x f"),
        ],
        {"c": np.array([2, 3, 4])},
        "it compares the number",
    ),
    "fewer steps": (
        [node("Shape", "x", "s"), node("Less", "s c", "e"), node("Cast", "e", "f", to=1), node("Add", "x f")],
        {"c": np.array([9, 9, 9, 9])[:3]},
        "it computes with the number",
    ),
    "arrays that do not fit": (
        [node("MatMul", "c c", "e"), node("Add", "x e")],
        {"c": np.ones((2, 3), "float32")},
        "do not fit",
    ),
    "no step of a range": (
        [node("Range", "c c c", "e"), node("Add", "x e")],
        {"c": np.float32(0)},
        "do not fit",
    ),
    "a huge split": ([node("Split", "x", axis=2, num_outputs=10**10)], {}, "num_outputs is 10000000000"),
    "a huge product": (
        [node("MatMul", "c d", "e"), node("ReduceSum", "e", "f"), node("Add", "x f")],
        {"c": np.ones((2**14, 1), "float32"), "d": np.ones((1, 2**14), "float32")},
        "the most is",
    ),
}


@pytest.mark.parametrize("name", NOT_COMPUTED)
def test_what_would_be_wrong_or_huge_is_refused_with_its_node(name: str) -> None:
    nodes, arrays, message = NOT_COMPUTED[name]
    opset = 18 if name == "a huge split" else 13
    with pytest.raises(ModelError, match=rf"{message}[^\n]*\n  at node '"):
        stepnet_onnx.Backend.prepare(older(nodes, opset, **arrays)).run({"x": random(2, 3, 4)})


@pytest.mark.parametrize("opset", [8, 11])
def test_a_scan_with_outputs_forwards_of_inputs_backwards_is_refused(opset: int) -> None:
    one = [] if opset == 8 else ["n"]
    body = helper.make_graph(
        [node("Add", "s a", "b"), node("Identity", "b", "o")],
        "body",
        [value("s", *one, 3), value("a", *one, 3)],
        [value("b", *one, 3), value("o", *one, 3)],
    )
    ways = {"directions": [1]} if opset == 8 else {"scan_input_directions": [1]}
    scan = node("Scan", "- s0 x" if opset == 8 else "s0 x", "b y", body=body, num_scan_inputs=1, **ways)
    axes = ("n", "t", 3) if opset == 8 else ("t", "n", 3)
    graph = helper.make_graph([scan], "g", [value("s0", "n", 3), value("x", *axes)], [value("y", *axes)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    with pytest.raises(ModelError, match="in both directions"):
        stepnet_onnx.Backend.run_model(model, {"s0": random(3, 3), "x": random(3, 3, 3)})


@pytest.mark.parametrize("reverse", [0, 1])
def test_a_scan_into_the_padding_is_refused(reverse: int) -> None:
    ways = {"scan_input_directions": [reverse], "scan_output_directions": [reverse]}
    body = helper.make_graph(
        [node("Add", "s a", "b"), node("Identity", "b", "o")],
        "body",
        [value("s", "n", 3), value("a", "n", 3)],
        [value("b", "n", 3), value("o", "n", 3)],
    )
    nodes = [
        node("RNN", "x W R - n", "y", hidden_size=4),
        node("Scan", "s0 x", "h z", body=body, num_scan_inputs=1, **ways),
    ]
    outputs = [value("y", "t", 1, "n", 4), value("h", "n", 3), value("z", "t", "n", 3)]
    model = model_of(nodes, [*STEPS_FIRST, value("s0", "n", 3), value("n", "n", kind=6)], outputs, WEIGHTS)
    with pytest.raises(ModelError, match="it runs into the padding"):
        stepnet_onnx.Backend.run_model(model, {"x": X, "s0": X[0], "n": LENGTHS_OF.astype("int32")})


def test_steps_are_not_repeated() -> None:
    model = model_of(
        [node("Expand", "x s")], [value("x", "t", 1)], [value("y", None, 3)], {"s": np.array([1, 3])}
    )
    assert_as_theirs(model, {"x": random(4, 1)})


@pytest.mark.parametrize(("name", "key"), [("Affine", "alpha"), ("ScaledTanh", "beta")])
def test_an_activation_without_its_numbers_is_refused(name: str, key: str) -> None:
    alpha = {"activation_alpha": [0.5]} if key == "beta" else {}
    nodes = [node("RNN", "x W R", "y h", hidden_size=4, activations=[name], **alpha)]
    with pytest.raises(ModelError, match=f"its activation {name} needs a number in activation_{key}"):
        stepnet_onnx.Backend.run_model(model_of(nodes, STEPS_FIRST, STATES, WEIGHTS), {"x": X})


def test_first_states_may_be_concatenated_constants() -> None:
    arrays = {
        "W": random(2, 4, 3, seed=1),
        "R": random(2, 4, 4, seed=2),
        "a": random(1, 1, 4, seed=3),
        "b": random(1, 1, 4, seed=4),
        "place": np.array([1]),
        "wide": np.array([4]),
    }
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape place", "count"),
        node("Concat", "place count wide", "full", axis=0),
        node("Expand", "a full", "A"),
        node("Expand", "b full", "B"),
        node("Concat", "A B", "h0", axis=0),
        node("RNN", "x W R - - h0", "y h", hidden_size=4, direction="bidirectional"),
    ]
    assert_as_theirs(model_of(nodes, STEPS_FIRST, [value("h", 2, "n", 4)], arrays), {"x": X})


def test_an_output_may_be_a_constant_of_each_step() -> None:
    nodes = [node("Shape", "x", "s"), node("ConstantOfShape", "s")]
    assert_as_theirs(older(nodes, 13), {"x": random(2, 3, 4)})


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceMax"])
@pytest.mark.parametrize("axis", [1, 2])
def test_reductions_keep_the_dtype(op: str, axis: int) -> None:
    model = older([node(op, "x", axes=[axis], keepdims=1)], 13, kind=7)
    inputs = {"x": np.arange(-12, 12).reshape(2, 3, 4) ** 3 + 1}
    if op == "ReduceMean" and numbers(version("onnxruntime")) < (1, 20):
        pytest.skip("this onnxruntime has no mean of integers")
    [made], [right] = stepnet_onnx.Backend.run_model(model, inputs, engine="interpret"), theirs(model, inputs)
    assert made.dtype == right.dtype
    assert np.array_equal(made, right)


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64"])
@pytest.mark.parametrize("op", ["ReduceMin", "ReduceMax"])
def test_extremes_of_booleans_and_of_the_least_and_largest_integers(op: str, dtype: str, engine: str) -> None:
    """Over steps, beside NumPy, as onnxruntime has no kernel for booleans."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ends = np.array([0, 1] if dtype == "bool" else [np.iinfo(dtype).min, 3, np.iinfo(dtype).max], dtype)
    x = np.array(np.meshgrid(ends, ends, ends)).reshape(3, -1).T[:, :, None].repeat(4, 2)
    model = older([node(op, "x axis", keepdims=1)], 20, kind, axis=np.array([1]))
    (made,) = stepnet_onnx.Backend.run_model(model, {"x": x}, engine=engine)
    assert made.dtype == dtype
    assert np.array_equal(made, (np.min if op == "ReduceMin" else np.max)(x, axis=1, keepdims=True))


@pytest.mark.parametrize("dtype", ["bool", "int64", "float32"])
def test_the_least_of_no_steps_is_zero(dtype: str, engine: str, tmp_path: Path) -> None:
    """As every reduction of an empty sequence is."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = older([node("ReduceMin", "x axis", keepdims=1)], 20, kind, axis=np.array([1]))
    onnx.save(model, tmp_path / "m.onnx")
    graph = stepnet_onnx.load(tmp_path / "m.onnx")
    made = graph(sn.Ragged.from_list([np.ones((2, 4), dtype), np.ones((0, 4), dtype)]), engine=engine)
    assert made.dtype == dtype
    assert made.reshape(2, 4).tolist() == [[1] * 4, [0] * 4]


def test_a_power_has_the_dtype_of_its_base() -> None:
    assert_as_theirs(older([node("Pow", "x c")], 13, c=np.array(2)), {"x": random(2, 3, 4)})


@pytest.mark.parametrize(
    ("nodes", "arrays", "message"),
    [
        ([node("Shape", "x")], {}, "output 'y' is the number"),
        (
            [node("Shape", "x", "s"), node("ConstantOfShape", "s", "c"), node("Concat", "c s", axis=0)],
            {},
            "is not a feature",
        ),
        (
            [node("Shape", "x", "s"), node("Gather", "s o", "t"), node("Range", "z t p")],
            {"z": 0, "o": 1, "p": 2},
            "its bounds include the number",
        ),
    ],
    ids=["shape", "concat", "range"],
)
def test_sizes_that_are_values_are_refused(nodes: Any, arrays: Any, message: str) -> None:
    numbers: dict[str, Any] = {name: np.array(number) for name, number in arrays.items()}
    model = older(nodes, 13, **numbers)
    with pytest.raises(ModelError, match=message):
        loaded(model, Store(None, 1000), "m", {}, {})


def test_a_model_without_outputs_and_an_input_of_other_axes() -> None:
    model = older([node("Tanh", "x")], 13)
    with pytest.raises(
        InputError, match=r"input 'x' is float32 \[3, 4\]; the model states float32 \[\?, \?, 4\]"
    ):
        stepnet_onnx.Backend.prepare(model).run({"x": random(3, 4)})
    del model.graph.output[:]
    with pytest.raises(ModelError, match="m: it has no outputs"):
        loaded(model, Store(None, 1000), "m", {}, {})


def test_a_stream_is_refused_by_the_name_of_a_node(tmp_path: Path) -> None:
    """A model of a file has no line of the user's but that of `load`, which says nothing."""
    weights = {"W": random(1, 12, 3), "R": random(1, 12, 4)}
    gru = helper.make_node(
        "GRU", ["X", "W", "R"], ["Y"], name="back", hidden_size=4, direction="reverse", linear_before_reset=1
    )
    inputs, outputs = [value("X", "t", "n", 3)], [value("Y", "t", 1, "n", 4)]
    onnx.save(model_of([gru], inputs, outputs, weights), tmp_path / "m.onnx")
    graph = stepnet_onnx.load(tmp_path / "m.onnx")
    with pytest.raises(InputError, match=r"last step \(at node 'back' \(GRU\) of .*m\.onnx\); a stream"):
        graph.stream(2)
