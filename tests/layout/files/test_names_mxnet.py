"""The names under which MXNet saves layers: files of MXNet 1.9.1, by data/make_mxnet.py."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close

from stepnet.layout.files import convert_file, mxnet, read

DATA = Path(__file__).parent / "data"
HIDDEN, TIME = 4, 5
with np.load(DATA / "mxnet.npz") as arrays:
    GAVE: dict[str, Any] = dict(arrays)
FILES = {
    "mxnet_blocks": ("encoder.", "mxnet.lstm_unfused", ["head.weight", "head.bias"]),
    "mxnet_prefixes": ("model_lstm0_", "mxnet.lstm", ["model_dense0_weight", "model_dense0_bias"]),
    "mxnet_export": ("model_lstm0_", "mxnet.lstm", ["model_dense0_weight", "model_dense0_bias"]),
}


@pytest.mark.parametrize("name", FILES)
def test_a_layer_is_found_by_the_names_of_each_way_of_saving_and_goes_back_to_them(tmp_path: Path, name: str):
    source, out, back = DATA / f"{name}.params", tmp_path / "lstm.pt", tmp_path / "back.params"
    front, layout, rest = FILES[name]
    done = convert_file(source, "torch", out, check=True)
    assert (done.reports[front].source, done.reports[front].exact) == (layout, True)
    assert (list(done.account.left), done.account.spare) == (rest, {})
    module = torch.nn.LSTM(GAVE["x"].shape[-1], HIDDEN, 2, batch_first=True, bidirectional=True)
    module.load_state_dict(torch.load(out, weights_only=True))
    with torch.no_grad():
        found = module(torch.from_numpy(GAVE["x"]))[0].numpy()
    assert_close(found, GAVE["encoder"], length=TIME, width=HIDDEN, dtype="float32")
    convert_file(source, "torch", out, rest="copy", force=True)
    convert_file(out, layout, back, rest="copy")
    held, again = mxnet.read(source), mxnet.read(back)
    assert held.keys() == again.keys()
    assert all(held[name].tobytes() == again[name].tobytes() for name in held)


def test_cells_are_found_by_their_prefix_and_by_their_path(tmp_path: Path):
    rng = np.random.default_rng(0)
    cell = {"i2h_weight": (16, 3), "h2h_weight": (16, 4), "i2h_bias": (16,), "h2h_bias": (16,)}
    for front in ("lstm2_", "0."):
        numbers = {f"{front}{name}": rng.normal(size=shape) for name, shape in cell.items()}
        mxnet.write(tmp_path / "cell.params", numbers, force=True)
        (module,) = read(tmp_path / "cell.params").modules
        assert (module.name, module.layout) == (front, "mxnet.lstm_cell")
    both = {f"{way}_cell.{name}": rng.normal(size=shape) for way in "lr" for name, shape in cell.items()}
    mxnet.write(tmp_path / "both.params", both)
    (module,) = read(tmp_path / "both.params").modules
    assert (module.name, module.layout, module.solved_sizes().directions) == ("", "mxnet.lstm_cell", 2)
