"""Files of one framework as files of another, by the command line, and what the frameworks make of them."""

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from command_line import refusal, stepnet
from safetensors.numpy import load_file, save_file
from tolerance import assert_close
from torch import nn

from stepnet.layout.files import FORMATS, read

INPUTS, HIDDEN = 5, 8
MODULES = {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}


class Speech(nn.Module):
    """A recurrent module, and a head that no layout knows."""

    def __init__(self, cell: str, layers: int, both: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        options: Any = {"num_layers": layers, "bidirectional": both, "batch_first": True}
        self.rnn = MODULES[cell](INPUTS, HIDDEN, **options)
        self.head = nn.Linear(HIDDEN * (2 if both else 1), 3)


def saved(path: Path, cell: str = "gru", layers: int = 2, both: bool = True) -> Speech:
    speech = Speech(cell, layers, both)
    torch.save(speech.state_dict(), path)
    return speech


def recurrent(speech: Speech) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in speech.rnn.state_dict().items()}


def outputs(speech: Speech, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return speech.rnn(torch.from_numpy(x))[0].numpy()


X = np.random.default_rng(5).normal(size=(3, 7, INPUTS)).astype("float32")


@pytest.mark.long(each=True)
@pytest.mark.parametrize("cell", MODULES)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("both", [False, True])
def test_a_state_dict_becomes_an_onnx_model_that_runs_and_back(
    tmp_path: Path, cell: str, layers: int, both: bool
):
    speech = saved(tmp_path / "speech.pt", cell, layers, both)
    said = ("--semantics", "nonlinearity=tanh") if cell == "rnn" else ()
    code, text, _ = stepnet(
        "convert", tmp_path / "speech.pt", "--to", "onnx", "-o", tmp_path / "speech.onnx", "--verify", *said
    )
    assert code == 0
    assert "recurrent layers agree (2 left out: head.weight, head.bias): largest difference 0 " in text
    session = onnxruntime.InferenceSession(tmp_path / "speech.onnx", providers=["CPUExecutionProvider"])
    assert_close(session.run(["output"], {"input": X})[0], outputs(speech, X), length=7, width=HIDDEN)
    assert stepnet("convert", tmp_path / "speech.onnx", "--to", "torch", "-o", tmp_path / "back.pt")[0] == 0
    back = torch.load(tmp_path / "back.pt", weights_only=True)
    assert list(back)
    assert back.keys() == speech.rnn.state_dict().keys()
    for name, value in speech.rnn.state_dict().items():
        assert torch.equal(back[name], value), name


def test_many_names_that_are_left_out_are_counted(tmp_path: Path):
    state = torch.nn.GRU(3, 4).state_dict(prefix="rnn.") | {f"{at}.bias": torch.ones(2) for at in range(12)}
    torch.save(state, tmp_path / "m.pt")
    ask = ("verify", tmp_path / "m.pt", tmp_path / "m.pt", "--recurrent-only")
    code, text, _ = stepnet(*ask)
    assert code == 0
    assert (
        "agree (12 left out: 0.bias, 1.bias, 2.bias, 3.bias, 4.bias, 5.bias, 6.bias, 7.bias, 8.bias" in text
    )
    assert "9.bias and 2 more)" in text
    assert json.loads(stepnet(*ask, "--json")[1])["left_out"] == [f"{at}.bias" for at in range(12)]


@pytest.mark.parametrize("ending", ["weights.h5", "keras"])
def test_half_precision_in_a_file_of_keras_is_rounding(tmp_path: Path, ending: str):
    """Its reader widens float16, and PyTorch on the CPU has not all that Keras needs to load such a model."""
    saved(tmp_path / "speech.pt", layers=1, both=False)
    out = tmp_path / f"gru.{ending}"
    code, text, said = stepnet(
        "convert", tmp_path / "speech.pt", "--to", "keras", "-o", out, "--dtype", "float16", "--verify"
    )
    assert "rounded once, by" in text
    assert "where" not in text
    assert out.exists()
    if ending == "keras" and code == 3:
        assert "not verified: the weights: keras does not load" in said
    else:
        assert (code, said) == (0, "")


def test_rest_is_copied_under_its_own_names(tmp_path: Path):
    speech = saved(tmp_path / "speech.pt")
    out = tmp_path / "speech.safetensors"
    assert stepnet("convert", tmp_path / "speech.pt", "--to", "mxnet", "-o", out, "--rest", "copy")[0] == 0
    found = load_file(out)
    np.testing.assert_array_equal(found["head.weight"], speech.head.weight.detach().numpy())
    np.testing.assert_array_equal(found["rnn.r1_h2h_bias"], speech.rnn.bias_hh_l1_reverse.detach().numpy())
    assert len(found) == 16 + 2


def test_a_raw_buffer_is_exactly_what_cudnn_takes(tmp_path: Path):
    speech = saved(tmp_path / "speech.pt")
    out = tmp_path / "buffer.json"
    assert stepnet("convert", tmp_path / "speech.pt", "--to", "cudnn.gru", "-o", out, "--verify")[0] == 0
    matrices = [w.reshape(-1) for ws in speech.rnn.all_weights for w in ws[:2]]
    vectors = [b for ws in speech.rnn.all_weights for b in ws[2:]]
    flat = torch.cat([*matrices, *vectors]).detach().numpy()
    np.testing.assert_array_equal(np.fromfile(tmp_path / "buffer.bin", "<f4"), flat)
    assert stepnet("convert", out, "--to", "torch.gru", "-o", tmp_path / "back.pt")[0] == 0
    for name, value in torch.load(tmp_path / "back.pt", weights_only=True).items():
        assert torch.equal(value, speech.rnn.state_dict()[name])


@pytest.mark.long(every=2)
@pytest.mark.parametrize("ending", [".safetensors", ".npz", ".pt", ".msgpack", ".pdparams", ".params"])
def test_every_kind_of_arrays_by_name_gives_them_back(tmp_path: Path, ending: str):
    target = {".msgpack": "flax", ".pdparams": "paddle", ".params": "mxnet"}.get(ending, "torch")
    speech = saved(tmp_path / "speech.pt", "lstm")
    out = tmp_path / f"copy{ending}"
    assert stepnet("convert", tmp_path / "speech.pt", "--to", target, "-o", out, "--verify")[0] == 0
    (module,) = read(out).modules
    assert module.layout == {"paddle": "paddle.lstm"}.get(target, f"{target}.lstm")
    if target != "flax":  # which has one bias
        assert stepnet("convert", out, "--to", "torch", "-o", tmp_path / "back.pt")[0] == 0
        back = torch.load(tmp_path / "back.pt", weights_only=True)
        assert all(torch.equal(back[name], value) for name, value in speech.rnn.state_dict().items())


def test_a_conversion_as_json(tmp_path: Path):
    saved(tmp_path / "speech.pt", "lstm", layers=1, both=False)
    out = tmp_path / "speech.npz"
    code, text, _ = stepnet(
        "convert", tmp_path / "speech.pt", "--to", "keras", "-o", out, "--json", "--verify"
    )
    assert code == 0
    said = json.loads(text)
    (report,) = said["modules"].values()
    assert (report["source"], report["target"], report["exact"]) == ("torch.lstm", "keras.lstm", False)
    assert 0 < report["rounding"] < 1e-7
    (verdict,) = said["verified"].values()
    assert 0 < verdict["difference"] < 1e-7


def test_what_both_sides_say_is_said_once(tmp_path: Path):
    torch.save(
        {f"rnn.{name}": array for name, array in nn.LSTM(2, 3).state_dict().items()}, tmp_path / "x.pt"
    )
    code, text, _ = stepnet(
        *("convert", tmp_path / "x.pt", "--to", "torch", "-o", tmp_path / "y.pt", "--verify")
    )
    assert code == 0
    assert text.startswith("rnn: torch.lstm -> torch.lstm: ")
    assert text.count(" itself: ") == 1
    assert "note: names do not begin with 'rnn.', as the new file has this layer alone\n" in text
    assert text.endswith("y.pt: 1 recurrent layer\n")


def test_exact_refuses_what_is_rounded_and_writes_nothing(tmp_path: Path):
    saved(tmp_path / "speech.pt", "lstm", layers=1, both=False)
    out = tmp_path / "speech.npz"
    said = refusal("convert", tmp_path / "speech.pt", "--to", "keras", "-o", out, "--exact")
    assert "rounded once, by" in said
    assert [path.name for path in tmp_path.iterdir()] == ["speech.pt"]


def test_an_output_that_is_there_is_replaced_only_by_force(tmp_path: Path):
    saved(tmp_path / "speech.pt")
    out = tmp_path / "speech.npz"
    out.write_text("mine")
    said = refusal("convert", tmp_path / "speech.pt", "--to", "torch", "-o", out)
    assert said == f"{out}: the file is there already; --force (Python: force=True) replaces it"
    assert out.read_text() == "mine"
    assert stepnet("convert", tmp_path / "speech.pt", "--to", "torch", "-o", out, "--force")[0] == 0
    assert out.read_bytes()[:2] == b"PK"


def test_what_cannot_be_told_is_asked_for(tmp_path: Path):
    save_file({"weight_space": np.ones(63, "float32")}, tmp_path / "flat.safetensors")
    flat = tmp_path / "flat.safetensors"
    said = refusal("convert", flat, "--to", "torch.gru", "-o", tmp_path / "o.pt")
    assert "which shapes do not distinguish: say --from LAYOUT (Python: layout=LAYOUT)" in said
    said = refusal("convert", flat, "--from", "cudnn.gru", "--to", "torch.gru", "-o", tmp_path / "o.pt")
    assert "63 numbers, which fit several sizes of cudnn.gru (18 inputs, 1 hidden; 2 inputs, 3 hidden" in said
    given = ("--from", "cudnn.gru", "--to", "torch.gru", "--size", "hidden=3", "--size", "inputs=2")
    assert stepnet("convert", flat, *given, "-o", tmp_path / "o.pt")[0] == 0


def test_a_reset_before_gru_is_nothing_for_cudnn(tmp_path: Path):
    arrays = {"kernel": np.ones((2, 9)), "recurrent_kernel": np.ones((3, 9)), "bias": np.ones(9)}
    np.savez(tmp_path / "keras.npz", **arrays)
    said = refusal(
        "convert", tmp_path / "keras.npz", "--from", "keras.gru_reset_before", "--to", "cudnn", "-o", "x.json"
    )
    assert "the source resets before the recurrent product" in said
    assert not Path("x.json").exists()


def test_unknown_layouts_and_frameworks_and_endings(tmp_path: Path):
    saved(tmp_path / "speech.pt")
    model = tmp_path / "speech.pt"
    assert "no layout is called 'torch.grus' (did you mean torch.gru" in refusal(
        "convert", model, "--to", "torch.grus", "-o", tmp_path / "o.pt"
    )
    assert "no framework is called 'touch' (did you mean torch?); there are stepnet, torch" in refusal(
        "convert", model, "--to", "touch", "-o", tmp_path / "o.pt"
    )
    assert "openvino has no layout for a mgu" not in refusal("convert", model, "--to", "coreml", "-o", "o.pt")
    said = refusal("convert", model, "--to", "torch", "-o", tmp_path / "o.xyz")
    assert all(ending in said for one in FORMATS if one.is_written for ending in one.endings)


def test_files_compared_with_files_and_layouts(tmp_path: Path):
    saved(tmp_path / "speech.pt", "lstm")
    stepnet("convert", tmp_path / "speech.pt", "--to", "onnx", "-o", tmp_path / "speech.onnx")
    code, text, _ = stepnet("verify", tmp_path / "speech.pt", tmp_path / "speech.onnx")
    assert (code, text.count("largest difference 0 ")) == (0, 1)
    code, text, _ = stepnet("verify", tmp_path / "speech.pt", "keras.lstm", "--json")
    (verdict,) = json.loads(text)["modules"].values()
    assert 0 < verdict["difference"] < 1e-7
    saved(tmp_path / "other.pt", "lstm", both=False)
    assert "outputs at a step" in refusal("verify", tmp_path / "speech.pt", tmp_path / "other.pt")
    code, text, _ = stepnet("verify", "torch.gru", "haste.gru")
    assert "largest difference 0 " in text


def test_layouts_are_listed(tmp_path: Path):
    code, text, _ = stepnet("layouts")
    assert (code, "torch.gru " in text, "flax.mgu" in text) == (0, True, True)
    code, text, _ = stepnet("layouts", "keras.cudnn_gru")
    assert "W[x (g:zrn h) ~ h x]" in text
    code, text, _ = stepnet("layouts", "--json")
    assert len(json.loads(text)) > 100
    assert "(did you mean keras.gru" in refusal("layouts", "keras.grue")


def test_the_page_of_layouts_is_as_the_records_are():
    script = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "layouts_page.py"))
    assert script["PAGE"].read_text(encoding="utf-8") == script["markdown"](), "run: make layouts"


def test_show_lists_modules_and_what_is_open(tmp_path: Path):
    saved(tmp_path / "speech.pt", "gru")
    _, text, _ = stepnet("show", tmp_path / "speech.pt", "--to", "cudnn.gru", "--json")
    (module,) = json.loads(text)["modules"]
    assert module["layouts"] == ["torch.gru"]
    assert module["sizes"]["hidden"] == HIDDEN
    assert module["report"]["exact"] is True
    assert json.loads(text)["rest"] == ["head.weight", "head.bias"]
    save_file({"weight_space": np.ones(63, "float32")}, tmp_path / "flat.safetensors")
    _, text, _ = stepnet("show", tmp_path / "flat.safetensors", "--json")
    assert "which shapes do not distinguish" in json.loads(text)["modules"][0]["open"]


def test_layers_of_an_onnx_file_run(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    speech = saved(tmp_path / "speech.pt", "lstm")
    stepnet("convert", tmp_path / "speech.pt", "--to", "onnx", "-o", tmp_path / "speech.onnx")
    parquet.write_table(pa.table({"x": X.tolist()}), tmp_path / "x.parquet")
    out = tmp_path / "y.parquet"
    assert stepnet("run", tmp_path / "speech.onnx", "--input", tmp_path / "x.parquet", "-o", out)[0] == 0
    rows = parquet.read_table(out).column("outputs").to_pylist()
    assert [*rows[0]] == ["output", "final_h_0", "final_c_0", "final_h_1", "final_c_1"]
    found = np.array([row["output"] for row in rows], "float32")
    assert_close(found, outputs(speech, X), length=7, width=HIDDEN)
