"""Figures of programs for devices: what is compared is the same model, and what is missing is named."""

from pathlib import Path

import numpy as np
import onnxruntime
from tolerance import assert_close
from typer.testing import CliRunner
from zoo import rnn_of

from bench.devices.__main__ import app
from bench.devices.browser import one_frame


def test_the_model_of_one_frame_is_the_gru_with_its_memory(tmp_path: Path):
    gru = rnn_of("gru", 5, 7)
    x, h = (np.random.default_rng(1).normal(size=(1, size)).astype("f4") for size in (5, 7))
    one_frame(gru, 5, 7, tmp_path / "gru.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "gru.onnx")
    own = np.asarray(session.run(["h_next"], {"x": x[None], "h": h[None]})[0])
    assert_close(own[0], gru(x[:, None].astype("f8"), h.astype("f8"), engine="interpret")[1], 1, 16)


def test_a_folder_without_the_package_is_refused(tmp_path: Path):
    told = CliRunner().invoke(app, ["browser", "--onnxruntime", str(tmp_path)])
    assert told.exit_code == 2
    assert "npm install --prefix" in told.output
    assert "Missing option '--onnxruntime'" in CliRunner().invoke(app, ["browser"]).output
