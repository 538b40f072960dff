"""Results of the frameworks themselves are those of their layouts; differences are noticed."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import stepnet
from tolerance import tolerance

from stepnet.cli.report.verdicts import random_module
from stepnet.layout import Weights, frameworks, record, verify
from stepnet.layout.files import LayoutChoice, weights
from stepnet.layout.frameworks import FRAMEWORKS, KERAS, ONNX, TORCH
from stepnet.layout.semantics import Setting
from stepnet.layout.verify import LENGTHS, FrameworkResult, framework_result, outputs_of
from stepnet.ragged import Ragged

INPUTS, HIDDEN = 5, 7
BOTH = {"layers": 2, "directions": 2}
KERAS_BACKEND = "; KERAS_BACKEND=torch sets another backend"
EVERY = (*TORCH, *KERAS, *ONNX)


def side(
    layout: str, sizes: dict[str, int] | None = None, semantics: dict[str, Any] | None = None, **changes: Any
) -> Weights:
    """Random weights of a layout."""
    choice = LayoutChoice(sizes=sizes or {}, semantics=semantics or {})
    return replace(weights(random_module(record(layout), choice, seed=2)), **changes)


def without(one: Weights, text: str) -> Weights:
    """A side without the arrays whose names have a text in them."""
    return replace(one, arrays={name: array for name, array in one.arrays.items() if text not in name})


def asked(one: Weights) -> FrameworkResult:
    """The results of a side's framework on a few short sequences."""
    random = np.random.default_rng(3)
    sequences = Ragged.from_list([random.normal(size=(length, INPUTS)) for length in (0, 1, 4)])
    found = framework_result(one, sequences, outputs_of(one.layers(np.float64), sequences))
    assert found is not None
    return found


def check(one: Weights) -> FrameworkResult:
    """Asserts that the framework of a side was asked, and gave the same."""
    found = asked(one)
    assert found.reason is None
    assert found.difference is not None
    assert found.agrees, str(found)
    return found


@pytest.mark.long(each=True)
@pytest.mark.parametrize("layout", EVERY)
@pytest.mark.parametrize("sizes", [{}, {"layers": 2}, {"directions": 2}, BOTH], ids=str)
def test_each_framework_gives_what_its_layout_says(layout: str, sizes: dict[str, int]):
    found = check(side(layout, sizes))
    assert found.dtype == ("float64" if layout in TORCH else "float32")


@pytest.mark.parametrize("layout", EVERY)
def test_and_so_it_does_without_biases(layout: str):
    one = side(layout, BOTH)
    bare = without(one, "B" if layout in ONNX else "bias")
    assert len(bare.arrays) < len(one.arrays)
    check(bare)


def settings() -> list[Any]:
    """Every value of every setting of the layouts that are asked."""
    return [
        pytest.param(layout, field, value, id=f"{layout} {field}={value}")
        for layout in EVERY
        for field, setting in record(layout).settings().items()
        for value in setting.values or (0.3,)
        if (layout, field) != ("keras.lstm", "output_activation")  # one setting for two fields there
    ]


@pytest.mark.parametrize(("layout", "field", "value"), settings())
def test_each_setting_means_there_what_it_means_here(layout: str, field: str, value: Any):
    semantics = {field: value}
    if layout == "keras.lstm" and field == "candidate_activation":
        semantics["output_activation"] = value
    one = side(layout, semantics=semantics)
    if field != "clip":  # what has no bounds grows with large weights
        one = replace(one, arrays={name: array / 8 for name, array in one.arrays.items()})
    check(one)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("merge", ["concat", "sum", "average", "product"])
@pytest.mark.parametrize("layout", KERAS)
def test_keras_merges_two_directions(layout: str, merge: str):
    check(side(layout, {"directions": 2}, merge=merge))


@pytest.mark.parametrize("layout", [*KERAS, *ONNX])
def test_one_direction_that_runs_backward(layout: str):
    check(side(layout, reverse=True))
    check(side(layout, {"layers": 2}, reverse=True))


def test_peepholes_are_left_out_or_not():
    assert set(side("onnx.lstm").arrays) == {"W", "R", "B", "P"}
    check(without(side("onnx.lstm"), "P"))


@pytest.mark.parametrize("dtype", ["float16", "float32", ">f4"])
def test_weights_of_other_dtypes(dtype: str):
    one = side("torch.gru")
    found = check(replace(one, arrays={name: array.astype(dtype) for name, array in one.arrays.items()}))
    assert found.dtype == "float64"


def test_what_is_allowed_is_what_tests_allow():
    one = side("onnx.gru")
    verdict = verify(one, one, frameworks=True)
    largest = max(1, verdict.largest)
    assert len(verdict.own) == 2
    for one in verdict.own:
        assert one.allowed == 2 * largest * tolerance("float32", max(LENGTHS), INPUTS + HIDDEN)
    exact = tolerance("float64", max(LENGTHS), INPUTS + HIDDEN)
    assert exact < verdict.allowed < 3 * exact * largest


# ---- what is wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "order", "wrong"),
    [("torch.gru", "rzn", "zrn"), ("keras.lstm", "ifgo", "ifog"), ("onnx.lstm", "iofg", "ifog")],
)
def test_a_record_that_says_another_order_is_seen(layout: str, order: str, wrong: str):
    right = record(layout)
    arrays = {name: text.replace(f"g:{order}", f"g:{wrong}") for name, text in right.arrays.items()}
    assert arrays != right.arrays
    found = asked(replace(side(layout), layout=replace(right, arrays=arrays)))
    assert found.difference is not None
    assert found.difference > 1e-2
    assert not found.agrees
    assert "rounding" in str(found)


@pytest.fixture
def negated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frameworks that are given what is not theirs: the negative of one array."""
    right = frameworks.answer

    def answer(given: Any, sequences: Any) -> Any:
        name = next(iter(given.arrays))
        return right(replace(given, arrays={**given.arrays, name: -given.arrays[name]}), sequences)

    monkeypatch.setattr(sys.modules[Weights.__module__], "answer", answer)


@pytest.mark.usefixtures("negated")
@pytest.mark.parametrize("layout", EVERY)
def test_wrong_weights_are_seen(layout: str):
    found = asked(side(layout, {"directions": 2}))
    assert found.difference is not None
    assert found.difference > 1e-2
    assert not found.agrees


@pytest.mark.usefixtures("negated")
def test_and_the_command_fails():
    code, text, errors = stepnet("verify", "torch.gru", "haste.gru")
    assert (code, errors) == (1, "stepnet: the weights: the difference is more than rounding\n")
    assert text.startswith("largest difference 0 (outputs")
    assert f"    torch {torch.__version__} itself: largest difference " in text
    assert "is rounding (torch.gru, float64)" in text


def test_sides_that_differ_fail_the_command(tmp_path: Path):
    gru = torch.nn.GRU(INPUTS, HIDDEN)
    torch.save(gru.state_dict(), tmp_path / "one.pt")
    state = gru.state_dict()
    state["weight_hh_l0"] = -state["weight_hh_l0"]
    torch.save(state, tmp_path / "other.pt")
    code, text, errors = stepnet("verify", tmp_path / "one.pt", tmp_path / "other.pt", "--json")
    (verdict,) = json.loads(text)["modules"].values()
    assert code == 1
    assert errors.count("\n") == 1
    assert verdict["difference"] > 1e-2 > verdict["allowed"]
    assert [one["framework"] for one in verdict["own"]] == ["torch", "torch"]
    assert all(one["difference"] <= one["allowed"] for one in verdict["own"])


def test_nan_differs_from_a_number_and_not_from_itself():
    one = side("torch.rnn")
    spoiled = replace(one, arrays={name: array * np.nan for name, array in one.arrays.items()})
    itself = verify(spoiled, spoiled)
    assert (itself.difference, itself.agrees, itself.differs) == (0, False, False)
    assert str(itself) == f"not verified: {itself.unverified}"
    verdict = verify(one, spoiled)
    assert verdict.difference == np.inf
    assert not verdict.agrees


# ---- what is not compared ----------------------------------------------------------------------------------


def test_layouts_of_others_ask_nobody():
    one = side("haste.gru")
    assert verify(one, one, frameworks=True).own == ()
    assert verify(side("torch.gru"), side("torch.gru")).own == ()


@pytest.mark.parametrize("layout", ["torch.gru", "keras.gru", "onnx.gru"])
def test_what_is_not_installed_is_not_spoken_of(layout: str, monkeypatch: pytest.MonkeyPatch):
    name = next(row.name for row in FRAMEWORKS if layout in row.layouts)
    monkeypatch.setitem(sys.modules, name, None)
    said = ["--semantics", "reset=after"] if layout == "onnx.gru" else []
    code, text, _ = stepnet("verify", layout, layout, *said)
    assert (code, text.count("\n")) == (0, 1)
    _, text, _ = stepnet("verify", layout, layout, *said, "--json")
    (verdict,) = json.loads(text)["modules"].values()
    for one in verdict["own"]:
        assert (one["framework"], one["reason"]) == (name, "it is not installed")
        assert one["difference"] is None


def test_what_a_framework_lacks_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "onnx", None)
    found = asked(side("onnx.lstm"))
    assert str(found) == "onnxruntime itself: not compared: it needs onnx, which is not installed"
    assert found.asked
    assert found.agrees
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_BACKEND", "absent")
    assert asked(side("keras.lstm")).reason == f"it needs absent, which is not installed{KERAS_BACKEND}"
    monkeypatch.delenv("KERAS_BACKEND")
    (tmp_path / "keras.json").write_text('{"backend": "missing"}')
    assert asked(side("keras.lstm")).reason == f"it needs missing, which is not installed{KERAS_BACKEND}"
    (tmp_path / "keras.json").unlink()
    assert frameworks.keras_needs() == ("keras", "tensorflow")
    assert "keras" not in sys.modules
    monkeypatch.undo()
    check(side("keras.lstm"))
    monkeypatch.setenv("KERAS_BACKEND", "absent")  # which is too late for the Keras that is imported
    check(side("keras.lstm"))


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (side("torch.gru", reverse=True), "it has no layer that runs backward alone"),
        (
            side("torch.lstm", {"directions": 2}, merge="sum"),
            "it concatenates the outputs of both directions, and here merge is 'sum'",
        ),
        (
            side("onnx.rnn", {"directions": 2}, merge="average"),
            "it concatenates the outputs of both directions, and here merge is 'average'",
        ),
        (
            side("torch.lstm_projection", {"projected": HIDDEN}),
            "it projects to less than 7 hidden, and here to 7",
        ),
        (
            side("keras.lstm", semantics={"candidate_activation": "relu"}),
            "it has one activation for relu and tanh",
        ),
    ],
    ids=["backward", "merged", "merged nodes", "projected", "two activations"],
)
def test_what_a_framework_cannot_be_set_to_is_said(one: Weights, reason: str):
    found = asked(one)
    assert (found.reason, found.difference, found.agrees, found.asked) == (reason, None, True, True)
    assert str(found) == f"{found.framework} itself: not compared: {reason}"


def test_what_a_framework_raises_is_the_reason():
    one = side("keras.gru")
    unknown = Setting("activation", {"relu": "of tomorrow"}, usual="relu")
    later = replace(record("keras.gru"), semantics={"reset": "after", "candidate_activation": unknown})
    reason = asked(replace(one, layout=later, semantics={})).reason
    assert reason is not None
    assert reason.startswith("ValueError: Could not interpret activation function identifier: of tomorrow")


def test_no_framework_is_imported_unless_it_is_asked():
    code = (
        "import sys; from stepnet.layout import verify; from stepnet.cli.report.verdicts import *\n"
        "module = random_module(record('torch.gru'), LayoutChoice(), 0)\n"
        "from stepnet.layout.files.interchange import weights\n"
        "verify(weights(module), weights(module))\n"
        "assert not {'torch', 'keras', 'onnx', 'onnxruntime'} & set(sys.modules), list(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_a_file_of_keras_without_its_backend_is_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setenv("KERAS_BACKEND", "absent")
    torch.save(torch.nn.LSTM(INPUTS, HIDDEN).state_dict(), tmp_path / "lstm.pt")
    code, text, _ = stepnet(
        "convert", tmp_path / "lstm.pt", "--to", "keras", "-o", tmp_path / "lstm.keras", "--verify"
    )
    assert code == 0
    assert f"keras itself: not compared: it needs absent, which is not installed{KERAS_BACKEND}" in text


def test_a_conversion_is_compared_with_both_frameworks(tmp_path: Path):
    torch.manual_seed(1)
    torch.save(torch.nn.LSTM(INPUTS, HIDDEN).state_dict(), tmp_path / "lstm.pt")
    convert = ("convert", tmp_path / "lstm.pt", "--to", "keras", "-o", tmp_path / "lstm.keras", "--verify")
    code, text, _ = stepnet(*convert)
    assert code == 0
    assert f"    torch {torch.__version__} itself: largest difference " in text
    assert " itself: largest difference " in text.split("    keras ")[1]
    code, text, _ = stepnet(*convert, "--force", "--json")
    (verdict,) = json.loads(text)["verified"].values()
    assert [one["layout"] for one in verdict["own"]] == ["torch.lstm", "keras.lstm"]
