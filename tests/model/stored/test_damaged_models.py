"""Files of models that are damaged, hostile or of a later version are refused, with what was expected."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import stepnet as sn
from stepnet.errors import FileError, LayoutError, ModelError, StepnetError
from tests.model.stored.saved_models import CASES

Document = dict[str, Any]
Arrays = dict[str, np.ndarray]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of a GRU."""
    return saved("gru", tmp_path)


def saved(name: str, folder: Path) -> Path:
    """The file of a model of the table."""
    case = CASES[name]()
    case.call(case.model)
    case.model.save(folder / f"{name}.stepnet")
    return folder / f"{name}.stepnet"


def parts(path: Path) -> tuple[Document, Arrays]:
    """The description and the arrays of a file."""
    with safe_open(path, "numpy") as whole:  # type: ignore[reportCallIssue]
        return json.loads(whole.metadata()["stepnet"]), load_file(path)


def write(path: Path, document: object, arrays: Arrays) -> None:
    """Writes a file of a description and arrays."""
    save_file(arrays, path, {"stepnet": json.dumps(document)})


def node(document: Document, operation: str) -> Document:
    """The first node of an operation in the net of a recurrence."""
    return next(each for each in document["model"]["body"]["nodes"] if each["op"] == operation)


def later(document: Document, arrays: Arrays) -> None:
    document |= {"version": 7, "written_by": "9.1"}


def no_version(document: Document, arrays: Arrays) -> None:
    document["version"] = "1"


def unknown_kind(document: Document, arrays: Arrays) -> None:
    document["model"]["kind"] = "Transformer"


def unknown_operation(document: Document, arrays: Arrays) -> None:
    node(document, "matmul")["op"] = "import os"


def operation_of_passes(document: Document, arrays: Arrays) -> None:
    node(document, "matmul")["op"] = "scatter"


def missing_array(document: Document, arrays: Arrays) -> None:
    del arrays["W"]


def other_weights(document: Document, arrays: Arrays) -> None:
    arrays["W"] = np.zeros((3, 13), "float32")


def other_dtype(document: Document, arrays: Arrays) -> None:
    arrays["W"] = arrays["W"].astype("float64")


def strange_dtype(document: Document, arrays: Arrays) -> None:
    arrays["W"] = arrays["W"].astype("uint8")


def dynamic_size(document: Document, arrays: Arrays) -> None:
    document["model"]["inputs"]["shape"] = [None]


def negative_size(document: Document, arrays: Arrays) -> None:
    document["model"]["inputs"]["shape"] = [-1]


def huge_size(document: Document, arrays: Arrays) -> None:
    document["model"]["inputs"]["shape"] = [2**60]


def later_operand(document: Document, arrays: Arrays) -> None:
    node(document, "matmul")["of"] = [0, 900]


def missing_operand(document: Document, arrays: Arrays) -> None:
    node(document, "add")["of"] = [0]


def third_operand(document: Document, arrays: Arrays) -> None:
    """NumPy would write the sum of two into it."""
    node(document, "add")["of"] *= 2


def wide_slice(document: Document, arrays: Arrays) -> None:
    """NumPy would cut it short, and machine code read beyond its rows."""
    node(document, "slice")["with"]["slices"] = [[0, 4000, 1]]


def ill_typed(document: Document, arrays: Arrays) -> None:
    node(document, "matmul")["of"] = [0, 0]


def result_of_a_value(document: Document, arrays: Arrays) -> None:
    """Traces read only recurrences so, and machine code knows no other values with results."""
    node(document, "sigmoid").update({"op": "result", "with": {"of": 0}})


def other_results(document: Document, arrays: Arrays) -> None:
    document["model"]["body"]["results"].append(0)


def other_memory(document: Document, arrays: Arrays) -> None:
    document["model"]["body"]["results"][-1] = 0


def endless_steps(document: Document, arrays: Arrays) -> None:
    document["model"]["unroll"] = 10**9


def extra_key(document: Document, arrays: Arrays) -> None:
    document["model"]["code"] = "print()"


def nested_structure(document: Document, arrays: Arrays) -> None:
    structure: Any = document["model"]["inputs"]
    for _ in range(100):
        structure = {"list": [structure]}
    document["model"]["inputs"] = structure


def nested_layers(document: Document, arrays: Arrays) -> None:
    for _ in range(100):
        document["model"] = {"kind": "Stack", "layers": [document["model"]], "report": None}


def reserved_name(document: Document, arrays: Arrays) -> None:
    document["model"]["output"] = {"named": "Point", "fields": ["class"], "values": [{}]}


def number_as_name(document: Document, arrays: Arrays) -> None:
    document["model"]["output"] = {"named": 5, "fields": ["x"], "values": [{}]}


REFUSED: dict[Callable[[Document, Arrays], None], tuple[type[StepnetError], str]] = {
    later: (FileError, r"its format is of version 7, written by stepnet '9\.1'; stepnet .* up to 3: install"),
    no_version: (FileError, "the version of its format is '1', not a whole number from 1"),
    unknown_kind: (ModelError, "a model is an RNN, a Stack, .* or an IntegerGraph, not 'Transformer'"),
    unknown_operation: (ModelError, "no operation is called 'import os'"),
    operation_of_passes: (ModelError, "no operation is called 'scatter'"),
    missing_array: (ModelError, "a parameter is the array 'W', which the file does not have"),
    other_weights: (
        ModelError,
        r"parameter W is const f32\[3, 13\], and the net of the model reads const f32\[3, 12\]",
    ),
    other_dtype: (ModelError, r"parameter W is const f64\[3, 12\], and the net of the model reads const f32"),
    strange_dtype: (ModelError, "a parameter, 'W', is of dtype uint8, which models do not have"),
    dynamic_size: (ModelError, "the inputs has a feature of size None: sizes of features are whole numbers"),
    negative_size: (ModelError, "the inputs has a feature of size -1: sizes of features are whole numbers"),
    huge_size: (ModelError, "a feature shape has at most 268435456 numbers"),
    later_operand: (ModelError, "matmul reads an operation that does not come before it"),
    missing_operand: (ModelError, "add has 2 operands, not 1"),
    third_operand: (ModelError, "add has 2 operands, not 4"),
    wide_slice: (ModelError, r"the slice \(0, 4000, 1\) reaches beyond 12 features"),
    ill_typed: (ModelError, "the right side of a matmul must be a parameter"),
    result_of_a_value: (ModelError, "the results of recurrences, and of nothing else, are read by `result`"),
    other_results: (ModelError, "its net has 3 results, and the model has 2"),
    other_memory: (ModelError, r"the memory `\w+` enters the step as f32\[4\] and leaves as f32\[3\]"),
    endless_steps: (ModelError, "unroll is a number of steps from 1 to 64"),
    extra_key: (ModelError, "an RNN has kind, name, .*, not .*'code'"),
    nested_structure: (ModelError, "the structure of the inputs is nested more than 64 deep"),
    nested_layers: (ModelError, "layers are nested more than 64 deep"),
    reserved_name: (ModelError, "the output: Type names and field names cannot be a keyword"),
    number_as_name: (ModelError, "(?<!the output: )the output is a text, not 5"),
}


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.__name__)
def test_what_does_not_fit_is_refused(change: Callable[[Document, Arrays], None], file: Path):
    error, message = REFUSED[change]
    document, arrays = parts(file)
    change(document, arrays)
    write(file, document, arrays)
    with pytest.raises(error, match=rf"^{file}: .*{message}"):
        sn.load(file)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"before": 5}, "has its own step between"),
        ({"size": 0, "before": 0}, "has at least one step"),
        ({"dilation": 2**40}, "reaches over at most"),
        ({"size": 2**30}, "a window has at most 65536 steps"),
        ({"before": -1}, "before of windows"),
    ],
)
def test_windows_that_there_are_not_are_refused(setting: dict[str, int], message: str, tmp_path: Path):
    path = saved("convolution", tmp_path)
    document, arrays = parts(path)
    (node,) = (node for node in document["model"]["net"]["nodes"] if node["op"] == "windows")
    node["with"] |= setting
    write(path, document, arrays)
    with pytest.raises(ModelError, match=message):
        sn.load(path)


@pytest.mark.parametrize(
    ("operation", "setting", "message"),
    [
        ("windows", {"stride": 0}, "a dilation and a stride of at least one"),
        ("overlap", {"lost": 9}, "there are at least no zeros around a sequence"),
        ("windows", {"same": "middle"}, "windows in the middle have no zeros of their own"),
        ("windows", {"before": 1}, "windows in the middle have no zeros of their own"),
        ("windows", {"stride": 2**40}, "reaches over at most"),
        ("overlap", {"steps": "rows"}, "steps of overlap is not an axis of steps: 'rows'"),
        ("overlap", {"steps": "steps[+0/0]"}, "steps of overlap is not an axis of steps"),
        ("overlap", {"steps": "words"}, "is for the steps of a model's sequences"),
        ("overlap", {"steps": 3}, "steps of overlap"),
    ],
)
def test_other_numbers_of_steps_that_there_are_not_are_refused(
    operation: str, setting: dict[str, Any], message: str, tmp_path: Path
):
    path = saved("strides", tmp_path)
    document, arrays = parts(path)
    node = next(node for node in document["model"]["net"]["nodes"] if node["op"] == operation)
    node["with"] |= setting
    write(path, document, arrays)
    with pytest.raises(ModelError, match=message):
        sn.load(path)


def scores_as_result(net: Document, place: int) -> None:
    net["results"] = [place]


def input_at_pairs(net: Document, place: int) -> None:
    net["nodes"][0]["with"]["type"]["extent"] = ["rows", "steps", "steps*"]


def other_side(net: Document, place: int) -> None:
    next(node for node in net["nodes"] if node["op"] == "mix")["with"] = {"over": "words"}


def no_flag(net: Document, place: int) -> None:
    net["nodes"][place]["with"] = {"causal": 2}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (scores_as_result, "a result of its net is %20, which is no single value of it"),
        (input_at_pairs, "is at pairs of steps, where a net has no inputs"),
        (other_side, "mix sums weights at pairs over one of keys, queries, not"),
        (no_flag, "causal of scores"),
    ],
)
def test_attention_that_there_is_not_is_refused(damage: Any, message: str, tmp_path: Path):
    path = saved("self_attention", tmp_path)
    document, arrays = parts(path)
    net = document["model"]["net"]
    damage(net, [node["op"] for node in net["nodes"]].index("scores"))
    write(path, document, arrays)
    with pytest.raises(ModelError, match=message):
        sn.load(path)


INTEGERS: dict[str, tuple[Callable[[Document], Any], str]] = {
    "magnitudes": (lambda step: step["largest"].pop(), r"a step of \d+ values has \d+ magnitudes"),
    "negative": (lambda step: step["largest"].__setitem__(0, -1), "is no finite number from 0 on"),
    "infinite": (lambda step: step["largest"].__setitem__(0, float("inf")), "is no finite number from 0 on"),
    "text": (lambda step: step["largest"].__setitem__(0, "1"), "a magnitude is a whole number"),
    "activations": (
        lambda step: step.update(activations="int4"),
        "are int8 or int16, not 'int4'",
    ),
    "value": (lambda step: step["outputs"][0].update(value=900), "an entry of outputs is %900, which is no"),
    "inputs": (lambda step: step["inputs"].clear(), "are not the inputs of its net"),
    "outputs": (lambda step: step["outputs"].pop(), "the outputs of the step of a model are"),
    "memory": (lambda step: step["memories"][0].update(after=0), "has other features or another dtype after"),
    "key": (lambda step: step.pop("memories"), "a step has net, inputs, outputs, memories"),
    "operation": (
        lambda step: next(each for each in step["net"]["nodes"] if each["op"] == "tanh").update(op="arctan"),
        "arctan has no form in integers",
    ),
}
"""Damages to the step of a model in integers, with what is said."""


@pytest.mark.parametrize("name", INTEGERS)
def test_a_calibration_that_does_not_fit_is_refused(name: str, tmp_path: Path):
    damage, message = INTEGERS[name]
    path = saved("integers", tmp_path)
    document, arrays = parts(path)
    damage(document["model"]["step"])
    write(path, document, arrays)
    with pytest.raises(StepnetError, match=message):
        sn.load(path)


def test_other_files_are_refused(file: Path, tmp_path: Path):
    whole, arrays = file.read_bytes(), load_file(file)
    contents = {
        "": "not a complete .stepnet file",
        "stepnet": "not a complete .stepnet file",
        "weights": "it has weights and no model: it was not written by model.save",
        "text": "its description of the model is no JSON",
        "list": "its description of the model is no JSON object",
    }
    save_file(arrays, tmp_path / "weights.stepnet")
    save_file(arrays, tmp_path / "text.stepnet", {"stepnet": "{"})
    save_file(arrays, tmp_path / "list.stepnet", {"stepnet": "[]"})
    (tmp_path / "stepnet.stepnet").write_bytes(b"stepnet" * 9)
    for name, message in contents.items():
        path = tmp_path / f"{name}.stepnet" if name else tmp_path / "empty.stepnet"
        path.touch()
        with pytest.raises(FileError, match=f"^{path}: .*{message}"):
            sn.load(path)
    with pytest.raises(FileError, match="there is no such file"):
        sn.load(tmp_path / "missing.stepnet")
    for length in range(0, len(whole), 61):
        file.write_bytes(whole[:length])
        with pytest.raises(FileError, match=f"^{file}: this is not a complete .stepnet file"):
            sn.load(file)


def test_bools_are_0_or_1(tmp_path: Path):
    flags = np.array([True, False, True])
    rnn = sn.RNN(lambda x, h, p: (np.where(p, x, h), h), flags, memory=3, inputs=3)
    rnn.save(tmp_path / "m.stepnet")
    assert sn.load(tmp_path / "m.stepnet").params.tolist() == flags.tolist()
    data = (tmp_path / "m.stepnet").read_bytes()
    assert data[-3:] == b"\1\0\1"
    (tmp_path / "m.stepnet").write_bytes(data[:-3] + b"\1\2\1")
    with pytest.raises(FileError, match="'param' has bools that are neither 0 nor 1"):
        sn.load(tmp_path / "m.stepnet")


def test_layouts_are_not_for_saved_models(file: Path):
    with pytest.raises(LayoutError, match="a saved model has no layouts, and is loaded whole"):
        sn.load(file, recurrent_only=True)


# ---- files changed at random -------------------------------------------------------------------------------

ODD: list[Any] = [
    *(None, True, 0, 1, -1, 2, 7, 2**31, 2**63, 2**80, 0.5, float("nan"), "", "x", "rows", "float16", "bool"),
    *("add", "recur", "slice", "gather", [], [0], [-1], [1, 2], {}, {"list": []}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in items for place in places(child, (*path, key)))]


def at(value: Any, path: tuple[Any, ...]) -> Any:
    """The value at a path."""
    for key in path:
        value = value[key]
    return value


def changed(document: Document, draw: random.Random) -> Document:
    """A copy of a description with some of its values changed, left out or doubled."""
    made = json.loads(json.dumps(document))
    for _ in range(draw.choice([1, 1, 2, 3])):
        path = draw.choice(places(made["model"])[1:])
        inside, key = at(made["model"], path[:-1]), path[-1]
        way = draw.random()
        if way < 0.3 and type(inside[key]) is int:
            inside[key] += draw.choice([-1, 1, 2, 64])
        elif way < 0.6:
            inside[key] = draw.choice(ODD)
        elif way < 0.8:
            inside[key] = json.loads(json.dumps(at(made["model"], draw.choice(places(made["model"])))))
        elif isinstance(inside, list) and way < 0.9:
            inside.insert(key, json.loads(json.dumps(inside[key])))
        else:
            inside.pop(key)
    return made


@pytest.mark.long(every=4)
@pytest.mark.parametrize(
    "name",
    [
        *("gru", "structures", "inner_sequences", "early_ends", "stack", "graph", "convolution", "strides"),
        "integers",
    ],
)
def test_a_description_changed_at_random_is_refused_or_runs(name: str, tmp_path: Path):
    path, case = saved(name, tmp_path), CASES[name]()
    document, arrays = parts(path)
    draw, read, said = random.Random(name), 0, list[str]()
    for _ in range(80):
        write(path, changed(document, draw), arrays)
        try:
            model = sn.load(path)
            read += 1
            if read < 4:
                case.call(model)
        except StepnetError as error:
            said.append(str(error))
    assert all(text.replace("\n  at ", "").isprintable() for text in said)


def test_bytes_changed_at_random_are_refused_or_read(file: Path):
    whole, draw, said = file.read_bytes(), random.Random(0), list[str]()
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(draw.choice([1, 2, 4])):
            data[draw.randrange(len(data))] = draw.randrange(256)
        file.write_bytes(data)
        try:
            sn.load(file)
        except StepnetError as error:
            said.append(str(error))
    assert len(said) > 100
    assert all(text.startswith(str(file)) for text in said)
