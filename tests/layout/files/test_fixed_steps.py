"""Models of a fixed number of steps in all formats: with a number that may have been computed of it, they are
for that number of steps alone, unless the user states otherwise; else they are for any.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from containers import unpacked
from tolerance import assert_close

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
from command_line import stepnet as command
from linux_alone import skip_elsewhere

import stepnet as sn
from stepnet.build import build
from stepnet.errors import InputError, StepnetError
from tests.layout.files.data.make_fixed_steps import COMPUTED, FEATURES, FREE, OTHERS, STEPS

layers: Any = keras.layers
ops: Any = keras.ops
pytestmark = pytest.mark.filterwarnings("ignore")
DATA = Path(__file__).parent / "data"
ENDINGS = {"tflite": ".tflite", "openvino": ".xml", "paddle": ".json"}
ARRAYS = {"earlier half", "last alone", "positions", "decay"}
NOT_READ = {
    "tflite": {*ARRAYS, "copies", "sum of copies", "threshold"},
    "openvino": {*ARRAYS, "of each step", "all but the first"},
    "paddle": {*ARRAYS, "of each step", "strided", "up to sixteen"},
}
"""The models of each format that are not read for any number of steps, as those with an array of 13 steps."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of what data/make_fixed_steps.py made, in a folder for each format."""
    folder = tmp_path_factory.mktemp("fixed")
    for kind in ENDINGS:
        (folder / kind).mkdir()
        unpacked(DATA / f"fixed_steps_{kind}.tar.xz", folder / kind)
    return folder


def check_steps(graph: Any, arrays: Any, name: str, steps: int) -> None:
    """Asserts that a graph gives what the framework gives for a number of steps."""
    found = np.asarray(graph(arrays[f"x/{steps}"]))
    assert_close(found, arrays[f"{name}/{steps}"].reshape(found.shape), STEPS, 30)


def check_only_own(graph: Any, arrays: Any, name: str) -> None:
    """Asserts that a graph is right for its own number of steps, and refuses others with the number."""
    check_steps(graph, arrays, name, STEPS)
    with pytest.raises(
        InputError, match=rf"was written for 13 steps, and the sequence has {OTHERS}; the number"
    ):
        graph(arrays[f"x/{OTHERS}"])


def saved(folder: Path) -> dict[str, np.ndarray]:
    """The arrays that a framework computed, in memory: an error would keep their file open."""
    with np.load(folder / "arrays.npz") as file:
        return dict(file)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("kind", ENDINGS)
@pytest.mark.parametrize("name", [*COMPUTED, *FREE])
def test_a_number_that_was_computed_is_for_the_steps_of_the_file(kind: str, name: str, folder: Path):
    path = folder / kind / f"{name.replace(' ', '_')}{ENDINGS[kind]}"
    arrays = saved(folder / kind)
    if name in NOT_READ[kind]:
        with pytest.raises(StepnetError):
            sn.load(path)
        return
    graph = sn.load(path)
    if name in COMPUTED:
        check_only_own(graph, arrays, name)
    else:
        for steps in (STEPS, OTHERS):
            check_steps(graph, arrays, name, steps)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("tflite", r"0.0769231 of .* \(MUL\) of"),
        ("openvino", r"13 of .* \(Divide\) of"),
        ("paddle", r"0.0769231 of .* \(scale\)"),
    ],
)
def test_steps_any_says_that_no_number_depends_on_them(kind: str, number: str, folder: Path):
    path, arrays = folder / kind / f"quotient{ENDINGS[kind]}", saved(folder / kind)
    x, said = (
        arrays[f"x/{OTHERS}"],
        rf"the number {number}(.|\n)* depend on it: (save|convert) .* open number",
    )
    with pytest.raises(InputError, match=said):
        sn.load(path)(x)
    assert_close(np.asarray(sn.load(path, steps="any")(x)), x.sum(1) / STEPS, STEPS, 10)


OPENVINO_MAXIMUM = """<net name="m" version="11"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="2,13,4" element_type="f32"/>
<output><port id="0" precision="FP32"><dim>2</dim><dim>13</dim><dim>4</dim></port></output></layer>
<layer id="1" name="order" type="Const" version="opset1">
<data element_type="i64" shape="3" offset="0" size="24"/>
<output><port id="0" precision="I64"><dim>3</dim></port></output></layer>
<layer id="2" name="channels" type="Transpose" version="opset1">
<input><port id="0" precision="FP32"><dim>2</dim><dim>13</dim><dim>4</dim></port>
<port id="1" precision="I64"><dim>3</dim></port></input>
<output><port id="2" precision="FP32"><dim>2</dim><dim>4</dim><dim>13</dim></port></output></layer>
<layer id="3" name="largest" type="MaxPool" version="opset1">
<data kernel="13" strides="1" pads_begin="0" pads_end="0" rounding_type="floor" auto_pad="explicit"/>
<input><port id="0" precision="FP32"><dim>2</dim><dim>4</dim><dim>13</dim></port></input>
<output><port id="1" precision="FP32"><dim>2</dim><dim>4</dim><dim>1</dim></port></output></layer>
<layer id="4" name="y" type="Result" version="opset1">
<input><port id="0" precision="FP32"><dim>2</dim><dim>4</dim><dim>1</dim></port></input></layer>
</layers><edges><edge from-layer="0" from-port="0" to-layer="2" to-port="0"/>
<edge from-layer="1" from-port="0" to-layer="2" to-port="1"/>
<edge from-layer="2" from-port="2" to-layer="3" to-port="0"/>
<edge from-layer="3" from-port="1" to-layer="4" to-port="0"/></edges></net>"""


def test_a_maximum_of_all_steps_of_openvino_is_for_the_steps_of_the_file(tmp_path: Path):
    path = tmp_path / "m.xml"
    path.write_text(OPENVINO_MAXIMUM)
    path.with_suffix(".bin").write_bytes(np.array([0, 2, 1]).tobytes())
    graph = sn.load(path)
    x = np.random.default_rng(0).normal(size=(2, STEPS, FEATURES)).astype("float32")
    found = np.asarray(graph(x))
    assert_close(found, x.max(1).reshape(found.shape), STEPS)
    with pytest.raises(InputError, match=r"13 steps, and sequence 0 has 26; the number 13 of .* \(MaxPool\)"):
        graph(np.concatenate([x, x], 1))


# ---- Keras -------------------------------------------------------------------------------------------------


KERAS_COMPUTED: dict[str, tuple[Any, str]] = {
    "a quotient": (lambda x: ops.sum(x, 1) / x.shape[1], r"13 of .* \(\w*Divide\)"),
    "a factor": (lambda x: ops.multiply(ops.sum(x, 1), 1 / x.shape[1]), r"0.0769231 of .* \(Multiply\)"),
    "a root": (lambda x: ops.sum(x, 1) * x.shape[1] ** -0.5, r"0.27735 of .* \(Multiply\)"),
    "a sum": (lambda x: ops.mean(x, 1) + x.shape[1], r"13 of .* \(Add\)"),
    "a power": (lambda x: ops.power(ops.abs(ops.sum(x, 1)), 1 / x.shape[1]), "0.0769231 of"),
    "a maximum": (lambda x: ops.maximum(ops.sum(x, 1), x.shape[1] / 10), r"1.3 of .* \(Maximum\)"),
    "limits": (lambda x: ops.clip(x, -x.shape[1] / 10, x.shape[1] / 10), r"-1.3 of .* \(Clip\)"),
    "a choice": (lambda x: ops.where(ops.greater(x, x.shape[1] / 10), x, -x), r"1.3 of .* \(Greater\)"),
    "the later steps": (lambda x: x[:, x.shape[1] // 2 :], r"6 of .* \(GetItem\)"),
    "the earlier steps": (lambda x: ops.mean(x[:, : -(x.shape[1] // 2)], 1), r"-6 of .* \(GetItem\)"),
    "copies": (lambda x: ops.repeat(ops.mean(x, 1), x.shape[1], 1), r"13 of .* \(Repeat\)"),
    "steps left out": (lambda x: layers.Cropping1D((x.shape[1] // 2, 0))(x), r"6 of .* \(Cropping1D\)"),
    "zeros": (
        lambda x: layers.GlobalAveragePooling1D()(
            layers.Conv1D(3, 3)(layers.ZeroPadding1D((0, 16 - x.shape[1]))(x))
        ),
        r"3 of .* \(ZeroPadding1D\)",
    ),
    "windows of all steps": (
        lambda x: layers.MaxPooling1D(x.shape[1])(x), r"13 of .* \(MaxPooling1D\)"
    ),
    "as many steps": (
        lambda x: layers.GRU(3)(layers.RepeatVector(x.shape[1])(layers.GRU(3)(x))),
        r"13 of .* \(RepeatVector\)",
    ),
    "a vector beside each step": (
        lambda x: layers.Concatenate()([x, layers.RepeatVector(x.shape[1])(layers.GRU(3)(x))]),
        r"13 of .* \(RepeatVector\)",
    ),
    "as many features": (
        lambda x: ops.sum(layers.Reshape((x.shape[1], 2))(layers.Dense(2 * x.shape[1])(ops.mean(x, 1))), 1),
        r"13 of .* \(Reshape\)",
    ),
}  # fmt: skip
"""Numbers that Python computes of the shape of an input, and what the message says of them."""
KERAS_FREE: dict[str, Any] = {
    "layers": lambda x: layers.Dense(3, activation="softmax")(layers.LSTM(4)(layers.LayerNormalization()(x))),
    "settings": lambda x: layers.LeakyReLU(0.2)(layers.Rescaling(1 / 255)(layers.Conv1D(3, 3)(x))),
    "one minus": lambda x: (1 - ops.sigmoid(x)) * ops.square(x) ** 0.5,
    "means": lambda x: layers.GlobalAveragePooling1D()(layers.UpSampling1D(3)(x)),
}


def keras_of(made: Any, steps: int | None, weights: Any = None) -> Any:
    keras.utils.set_random_seed(0)
    x = keras.Input((steps, FEATURES))
    model = keras.Model(x, made(x))
    model.set_weights(model.get_weights() if weights is None else weights)
    return model


def predicted(model: Any, steps: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(1).normal(size=(2, steps, FEATURES)).astype("float32")
    return {f"x/{steps}": x, f"y/{steps}": np.asarray(model.predict(x, verbose=0))}


@pytest.mark.long(every=3)
@pytest.mark.parametrize("name", KERAS_COMPUTED)
def test_a_number_in_a_keras_model_is_for_the_steps_of_its_input(name: str, tmp_path: Path):
    made, words = KERAS_COMPUTED[name]
    model, path = keras_of(made, STEPS), tmp_path / "m.keras"
    model.save(path)
    arrays = predicted(model, STEPS)
    graph = sn.load(path)
    check_steps(graph, arrays, "y", STEPS)
    x = np.zeros((1, OTHERS, FEATURES), "float32")
    said = rf"m.keras was written for 13 steps, and the sequence has 5; the number {words}"
    with pytest.raises(
        InputError, match=said + r"(.|\n)*: save a model whose Input has an open number of steps"
    ):
        graph(x)
    if name != "a vector beside each step":  # for any number, these are not the steps of x
        assert sn.load(path, steps="any")(x) is not None


def test_a_stream_of_a_model_for_one_number_of_steps_says_why_not(tmp_path: Path):
    path = tmp_path / "m.keras"
    keras_of(lambda x: layers.GRU(3, return_sequences=True)(x) * 0.5, STEPS).save(path)
    with pytest.raises(InputError, match="written for 13 steps, and a stream has any number of them; the nu"):
        sn.load(path).stream(1)
    assert sn.load(path, steps="any").stream(1) is not None


def test_a_library_of_a_model_for_one_number_of_steps_says_so_in_its_header(tmp_path: Path):
    skip_elsewhere()
    path = tmp_path / "m.keras"
    keras_of(lambda x: layers.GRU(3)(x) * 0.5, STEPS).save(path)
    with pytest.raises(InputError, match="written for 13 steps, and a stream has any number of them; the nu"):
        build(sn.load(path), tmp_path, stream=True)
    header = build(sn.load(path), tmp_path / "c").header.read_text()
    assert "a sequence has 13 of them. The results of" in " ".join(header.split())


def test_a_model_for_one_number_of_steps_is_converted_with_a_note_and_verified_at_it(tmp_path: Path):
    path, saved = tmp_path / "m.keras", tmp_path / "m.stepnet"
    keras_of(lambda x: layers.GRU(3)(x) * 0.5, STEPS).save(path)
    code, said, stderr = command("convert", path, saved)
    assert code == 0, stderr
    words = " ".join(f"{said} {stderr}".split())
    assert (
        "the file is for 13 steps; a model that is written from it gives NaN for sequences of other lengths, "
        "because the number 0.5 of "
    ) in words
    code, said, stderr = command("verify", path, saved)
    assert code == 0, stderr
    assert f", {5 * STEPS} steps)" in " ".join(said.split())


def test_a_model_that_makes_features_of_steps_is_converted_with_a_note(tmp_path: Path):
    path = tmp_path / "m.keras"
    keras_of(lambda x: layers.Dense(2)(layers.Flatten()(x)), STEPS).save(path)
    code, said, stderr = command("convert", path, tmp_path / "m.stepnet")
    assert code == 0, stderr
    words = " ".join(f"{said} {stderr}".split())
    assert "makes features: results for sequences of other lengths may be NaN" in words
    assert "NaN is in" not in words


@pytest.mark.parametrize("name", KERAS_FREE)
def test_settings_of_keras_layers_are_for_any_number_of_steps(name: str, tmp_path: Path):
    model, path = keras_of(KERAS_FREE[name], STEPS), tmp_path / "m.keras"
    model.save(path)
    graph, opened = sn.load(path), keras_of(KERAS_FREE[name], None, model.get_weights())
    for steps in (STEPS, OTHERS):
        check_steps(graph, predicted(opened, steps), "y", steps)
