"""Whole models on the command line: `show` lists layers, `convert` saves, and `verify` compares them."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from command_line import refusal, stepnet

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
from keras import layers

import stepnet as sn
from stepnet.compiler.values import transform
from tests.paddle.test_paddle_programs import written

pytestmark = pytest.mark.filterwarnings("ignore")  # .h5 is called legacy
ROWS = [
    ("words", "Dense", "[sequences, steps, 5]", 3 * 5 + 5),
    ("both", "Bidirectional", "[sequences, steps, 8]", 2 * (5 * 16 + 4 * 16 + 16)),
    ("gru", "GRU", "[sequences, 3]", 8 * 9 + 3 * 9 + 2 * 9),
    ("dense", "Dense", "[sequences, 2]", 3 * 2 + 2),
]
"""The layers of `tagger`: name, class, output and parameters."""


def tagger(path: Path, seed: int = 0) -> Path:
    """A file of a Keras model with random weights, which are all different."""
    made: Any = keras.Sequential(
        [
            keras.Input((None, 3)),
            layers.Masking(name="masking"),
            layers.Dense(5, name="words"),
            layers.Bidirectional(layers.LSTM(4, return_sequences=True), name="both"),
            layers.Dropout(0.3),
            layers.GRU(3, name="gru"),
            layers.Dense(2, name="dense"),
        ]
    )
    random = np.random.default_rng(seed)
    for variable in made.variables:
        if "seed" not in variable.path:
            variable.assign(random.normal(size=variable.shape))
    made.save(path)
    return path


def joined(stderr: str) -> str:
    """The words of an error about the command line, without the frame around it."""
    return " ".join(stderr.replace("│", " ").split())


def shown(*arguments: object) -> dict[str, Any]:
    code, stdout, stderr = stepnet("show", *arguments, "--json")
    assert (code, stderr) == (0, "")
    return json.loads(stdout)


@pytest.mark.parametrize("ending", [".keras", ".h5"])
def test_show_lists_the_layers_of_a_model_with_shapes_and_parameters(tmp_path: Path, ending: str):
    path = tagger(tmp_path / f"tagger{ending}")
    found = shown(path)
    summary = found["summary"]
    rows = [(row["name"], row["kind"], row["output"], row["parameters"]) for row in summary["rows"]]
    assert rows == [("masking", "Masking", "[sequences, steps, 3]", 0), *ROWS]
    assert summary["parameters"] == sum(row[-1] for row in ROWS)
    assert summary["bytes"] == 4 * summary["parameters"]
    assert summary["outputs"] == {"output": "[sequences, 2]"}
    assert [module["name"] for module in found["modules"]] == ["both", "gru"]
    _, stdout, _ = stepnet("show", path)
    assert "gru (GRU)" in stdout
    assert "[sequences, steps, 8]" in stdout
    assert f"parameters: {summary['parameters']} (" in stdout


def test_a_saved_model_is_shown_by_its_recurrences_and_products(tmp_path: Path):
    path = tmp_path / "tagger.stepnet"
    sn.load(tagger(tmp_path / "tagger.keras")).save(path)
    found = shown(path)["summary"]
    kinds = [(row["kind"], row["output"]) for row in found["rows"]]
    assert kinds == [
        ("matmul", "[sequences, steps, 5]"),
        ("recurrence", "[sequences, steps, 4]"),
        ("recurrence", "[sequences, steps, 8]"),
        ("recurrence", "[sequences, 3]"),
        ("matmul", "[sequences, 2]"),
    ]
    assert found["parameters"] == sum(row[-1] for row in ROWS)
    page = tmp_path / "tagger.html"
    assert stepnet("show", path, "--html", page)[0] == 0
    assert "<svg" in page.read_text("utf-8")
    assert "a saved model has no layouts, and is shown whole" in refusal("show", path, "--to", "torch.gru")


def test_a_saved_model_of_two_outputs_has_the_shape_of_each(tmp_path: Path):
    one = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(inputs=3, hidden=4))
    params = {"tags": np.ones((4, 5)), "class": np.ones((4, 2)), "shift": np.ones(5), "bias": np.ones(2)}

    def both(x: Any, params: Any) -> Any:
        h, last = one(x)
        tags, scores = h @ params["tags"], last @ params["class"]
        return {
            "tags": tags + params["shift"],
            "class": scores + params["bias"],
            "mean": sn.reduce(h, "mean"),
        }

    path = tmp_path / "both.stepnet"
    sn.Graph(both, params, inputs=3).save(path)
    found = shown(path)["summary"]
    assert [(row["kind"], row["output"], row["parameters"]) for row in found["rows"]] == [
        ("recurrence", "[sequences, steps, 4]", 3 * 12 + 4 * 12 + 2 * 12),
        ("matmul", "[sequences, steps, 5]", 4 * 5 + 5),
        ("matmul", "[sequences, 2]", 4 * 2 + 2),
    ]
    assert found["outputs"]["mean"] == "[sequences, 4]"


def test_a_factor_of_an_output_that_others_read_has_a_row(tmp_path: Path):
    one = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(inputs=3, hidden=4))
    params = {"tags": np.ones((4, 5)), "scale": np.ones(4)}
    graph = sn.Graph(
        lambda x, p: {"tags": (h := one(x)[0]) @ p["tags"], "scaled": h * p["scale"]}, params, inputs=3
    )
    graph.save(tmp_path / "scaled.stepnet")
    rows = shown(tmp_path / "scaled.stepnet")["summary"]["rows"]
    assert [(row["kind"], row["output"], row["parameters"]) for row in rows] == [
        ("recurrence", "[sequences, steps, 4]", 3 * 12 + 4 * 12 + 2 * 12),
        ("matmul", "[sequences, steps, 5]", 4 * 5),
        ("multiply", "[sequences, steps, 4]", 4),
    ]


def test_a_whole_model_without_recurrent_layers_is_shown(tmp_path: Path):
    x = keras.Input((None, 4))
    y: Any = layers.GlobalAveragePooling1D(name="mean")(layers.Conv1D(3, 3, name="windows")(x))
    path, page = tmp_path / "mean.keras", tmp_path / "mean.html"
    made: Any = keras.Model(x, layers.Dense(2, name="scores")(y))
    made.save(path)
    found = shown(path)
    assert found["modules"] == []
    assert [(row["name"], row["kind"], row["parameters"]) for row in found["summary"]["rows"]] == [
        ("windows", "Conv1D", 3 * 4 * 3 + 3),
        ("mean", "GlobalAveragePooling1D", 0),
        ("scores", "Dense", 3 * 2 + 2),
    ]
    assert stepnet("show", path, "--html", page)[0] == 0
    assert "<svg" in page.read_text("utf-8")
    assert "no recurrent layer of a known layout is here" in refusal("show", path, "--to", "torch.gru")


def test_a_program_of_paddle_is_shown_whole(tmp_path: Path):
    path = written("pdmodel lstm", tmp_path)
    found = shown(path)
    assert [row["kind"] for row in found["summary"]["rows"]] == ["mul", "elementwise_add", "lstm"]
    assert "modules" not in found
    page = tmp_path / "lstm.html"
    assert stepnet("show", path, "--html", page)[0] == 0
    assert "<svg" in page.read_text("utf-8")


def test_a_file_of_weights_has_no_summary(tmp_path: Path):
    np.savez(
        tmp_path / "gru.npz", kernel=np.ones((2, 9)), recurrent_kernel=np.ones((3, 9)), bias=np.ones((2, 9))
    )
    found = shown(tmp_path / "gru.npz", "--from", "keras.gru")
    assert found["summary"] is None
    assert len(found["modules"]) == 1


def test_convert_saves_a_whole_model(tmp_path: Path):
    source, out = tagger(tmp_path / "tagger.keras"), tmp_path / "tagger.stepnet"
    code, stdout, stderr = stepnet("convert", source, out, "--verify")
    assert (code, stderr) == (0, "")
    assert stdout.splitlines()[-1] == f"{out}: the whole model"
    assert stdout.startswith("whole model: largest difference 0 ")
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")
    found, right = (np.asarray(sn.load(each)(x)) for each in (out, source))
    assert found.tobytes() == right.tobytes()
    assert "there already" in refusal("convert", source, "-o", out)
    code, stdout, _ = stepnet("convert", source, "-o", out, "--force", "--json")
    assert code == 0
    assert json.loads(stdout) == {"output": str(out), "verified": {}, "left_out": [], "notes": {}}


def test_convert_writes_a_whole_model_as_onnx(tmp_path: Path):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    source, out, again = tagger(tmp_path / "m.keras"), tmp_path / "m.onnx", tmp_path / "again.onnx"
    code, stdout, stderr = stepnet("convert", source, out, "--verify")
    assert (code, stderr) == (0, "")
    assert stdout.splitlines()[-1] == f"{out}: the whole model"
    assert stdout.startswith("whole model: largest difference ")
    sn.load(source).save(tmp_path / "m.stepnet")
    assert stepnet("convert", tmp_path / "m.stepnet", again)[0] == 0
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")
    right = np.asarray(sn.load(source)(x))
    for path in (out, again):
        (made,) = runtime.InferenceSession(str(path)).run(None, {"x": x})
        np.testing.assert_allclose(made, right, rtol=0, atol=1e-6)
    assert "there already" in refusal("convert", source, out)


def test_a_saved_model_of_tokens_is_not_verified_over_random_ones(tmp_path: Path):
    made = [keras.Input((None,), dtype="int32"), layers.Embedding(9, 4), layers.GRU(3)]
    keras.Sequential(made).save(tmp_path / "m.keras")
    code, _, stderr = stepnet("convert", tmp_path / "m.keras", tmp_path / "m.stepnet", "--verify")
    assert code == 3
    assert "not verified: " in stderr
    assert "for which no range is known" in stderr
    words = tmp_path / "words.parquet"
    parquet.write_table(pa.table({"x": [[1, 2], [8]]}), words)
    again = "convert", tmp_path / "m.keras", tmp_path / "m.stepnet", "--force", "--inputs", words
    code, stdout, _ = stepnet(*again, "--verify", "--column", "x")
    assert code == 0
    assert "2 sequences, 3 steps)" in stdout
    code, _, stderr = stepnet(*again)
    assert code == 2
    assert "--inputs are the sequences of --verify: give --verify too" in joined(stderr)
    assert sn.load(tmp_path / "m.stepnet")(np.array([[1, 2]], "int32")).shape == (1, 3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{keras}", "{out}", "--to", "torch"), "are not for a .stepnet file of a model"),
        (("{keras}", "-o", "{folder}/new.pt"), "give the layout or framework of the new file: --to torch"),
        (("{keras}", "{folder}/new.h5"), "give the layout or framework of the new file: --to keras"),
        (("{keras}",), "give the new file once"),
        (("{keras}", "{out}", "--column", "x"), "--column names a column of --inputs: give --inputs too"),
        (
            ("{keras}", "{folder}/new.pt", "--to", "torch", "--steps", "any"),
            "--steps and --inputs are for a ",
        ),
    ],
)
def test_a_conversion_that_states_too_much_or_too_little_is_wrong_usage(
    tmp_path: Path, arguments: tuple[str, ...], words: str
):
    names = {"keras": tagger(tmp_path / "m.keras"), "out": tmp_path / "m.stepnet", "folder": tmp_path}
    code, _, stderr = stepnet("convert", *(word.format(**names) for word in arguments))
    assert code == 2
    assert words in joined(stderr)


@pytest.mark.parametrize(
    ("ending", "words"),
    [(".pt", "stepnet build"), (".onnx", "without --to writes it as ONNX"), (".stepnet", "copy the file")],
)
def test_a_saved_model_is_not_converted_and_what_to_do_is_said(tmp_path: Path, ending: str, words: str):
    path = tmp_path / "m.stepnet"
    sn.load(tagger(tmp_path / "m.keras")).save(path)
    said = refusal("convert", path, "--to", "torch", "-o", tmp_path / f"new{ending}")
    assert "a saved model has a net, and no layers of a layout to convert" in said
    assert words in said


def test_a_kind_of_file_that_is_not_written_is_said_before_its_layout(tmp_path: Path):
    said = refusal("convert", tagger(tmp_path / "m.keras"), tmp_path / "m.pt2")
    assert "stepnet reads PyTorch export files, and does not write them" in said


def test_a_damaged_model_is_not_converted(tmp_path: Path):
    path = tmp_path / "m.stepnet"
    path.write_bytes(b"\0" * 5)
    said = refusal("convert", path, "-o", tmp_path / "new.stepnet")
    assert "m.stepnet: this is not a complete .stepnet file" in said


def test_verify_compares_whole_models(tmp_path: Path):
    first, second = tagger(tmp_path / "a.keras"), tagger(tmp_path / "b.keras", seed=1)
    saved = tmp_path / "a.stepnet"
    sn.load(first).save(saved)
    assert stepnet("verify", first, saved)[0] == 0
    assert stepnet("verify", second, saved)[0] == 1
    assert "a saved model has no layouts: give another file, not keras.gru" in refusal(
        "verify", saved, "keras.gru"
    )


def test_verify_of_models_without_recurrences_compares_them_or_says_why_not(tmp_path: Path):
    paths = [tmp_path / "one.keras", tmp_path / "two.keras", tmp_path / "flat.keras"]
    for path, size in zip(paths, (1, 2, 3), strict=True):
        steps = [keras.Input((None, 3)), layers.Conv1D(4, 3, padding="same"), layers.Dense(size)]
        keras.Sequential(steps if size < 3 else [keras.Input((3,)), layers.Dense(2)]).save(path)
    code, stdout, _ = stepnet("verify", paths[0], paths[0])
    assert (code, stdout.partition(" (")[0]) == (0, "whole model: largest difference 0")
    for other, words in (
        (paths[1], "the models have different outputs"),
        (paths[2], "the models take different inputs"),
    ):
        code, _, stderr = stepnet("verify", paths[0], other)
        assert code == 3, stderr
        assert words in stderr


def test_files_without_recurrences_are_compared_whole(tmp_path: Path):
    first, second = (
        keras.Sequential([keras.Input((None, 3)), layers.Dense(3), layers.Dense(3)]) for _ in range(2)
    )
    for name, made in (("a", first), ("b", second)):
        made.save(tmp_path / f"{name}.keras")
    code, stdout, _ = stepnet("verify", tmp_path / "a.keras", tmp_path / "b.keras")
    assert (code, stdout[:32]) == (1, "whole model: largest difference ")
    second.set_weights(first.get_weights())
    second.save(tmp_path / "b.keras")
    assert stepnet("verify", tmp_path / "a.keras", tmp_path / "b.keras")[0] == 0


def layers_with_states() -> dict[str, Any]:
    """Layers with memories of every structure, and the features of their outputs."""
    random = np.random.default_rng(3)
    params = {name: random.normal(size=(3, 3)).astype("float32") for name in ("W", "R")}

    def of(memory: Any, read: Any, write: Any, reverse: bool = False) -> sn.RNN:
        """A recurrence with a memory of this structure: `read` takes a state out, `write` puts it in."""

        def step(x: Any, m: Any, p: Any) -> Any:
            h = np.tanh(x @ p["W"] + read(m) @ p["R"])
            return h, write(h)

        return sn.RNN(step, params, memory=memory, inputs=3, reverse=reverse)

    def plain(reverse: bool = False) -> sn.RNN:
        return of(3, lambda m: m, lambda h: h, reverse)

    named = of({"h": 3}, lambda m: m["h"], lambda h: {"h": h})
    nested = of({"s": {"h": 3}, "t": [3]}, lambda m: m["s"]["h"], lambda h: {"s": {"h": h}, "t": [h]})
    return {
        "plain": plain(),
        "tuple": of((sn.Spec(3), sn.Spec(3)), lambda m: m[0], lambda h: (h, 2 * h)),
        "list": of([3, 3], lambda m: m[1], lambda h: [h, h]),
        "nested": nested,
        "stack": sn.Stack([plain(), named, sn.Bidirectional(plain(), plain(True), merge="sum")]),
        "stacks": sn.Stack([sn.Stack([plain(), named]), nested]),
        "lstm": sn.cells.rnn("lstm", sn.cells.CELLS["lstm"].parameters(inputs=3, hidden=4)),
    }


@pytest.mark.long(every=3)
@pytest.mark.parametrize("name", layers_with_states())
def test_a_saved_layer_is_verified_against_its_onnx_model(tmp_path: Path, name: str):
    model, path, made = layers_with_states()[name], tmp_path / "m.stepnet", tmp_path / "m.onnx"
    model(np.ones((1, 1, 3), "float32"))
    model.save(path)
    code, stdout, stderr = stepnet("convert", path, made, "--verify")
    assert (code, stderr) == (0, "")
    assert "whole model: largest difference" in stdout
    model.with_params(transform(lambda array: 1.01 * array, model.params)).save(path, force=True)
    assert stepnet("verify", path, made)[0] == 1


def test_final_states_that_differ_are_found(tmp_path: Path):
    def saved(factor: float) -> Path:
        path = tmp_path / f"{factor}.stepnet"
        memory = sn.Spec(3), sn.Spec(3)
        rnn = sn.RNN(lambda x, m, p: (x, (x, factor * x)), memory=memory, inputs=3)
        rnn.save(path, force=True)
        return path

    made = tmp_path / "m.onnx"
    assert stepnet("convert", saved(1), made)[0] == 0
    assert stepnet("verify", saved(1), made)[0] == 0
    assert stepnet("verify", saved(2), made)[0] == 1


def test_the_recurrent_layers_of_weights_are_saved_as_a_model(tmp_path: Path):
    weights, saved = tmp_path / "weights.pt", tmp_path / "gru.stepnet"
    model = torch.nn.ModuleDict({"gru": torch.nn.GRU(3, 4, batch_first=True), "tag": torch.nn.Linear(4, 2)})
    torch.save(model.state_dict(), weights)
    assert "say --recurrent-only" in refusal("convert", weights, saved)
    _, stdout, _ = stepnet("convert", weights, saved, "--recurrent-only")
    assert stdout.splitlines()[-1] == f"{saved}: the recurrent layers"
    x = np.ones((1, 5, 3), "float32")
    with torch.no_grad():
        right = model["gru"](torch.from_numpy(x))[0].numpy()
    assert np.allclose(sn.load(saved)(x)[0], right, atol=1e-6)
