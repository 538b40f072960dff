"""Models of speech as PyTorch exports them, whole: branches, loops over cells, and images of steps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close
from zoo import uniform

import stepnet as sn
from stepnet.errors import ModelError
from tests.onnx.onnx_models import stepnet_onnx

pytestmark = pytest.mark.filterwarnings("ignore")
BATCH_TIME = {0: "batch", 1: "time"}


class Voice(torch.nn.Module):
    """Voice activity of frames [batch, features, time]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(4, 6, 3, padding=1)
        self.lstm = torch.nn.LSTM(6, 5, batch_first=True)
        self.out = torch.nn.Conv1d(5, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, _ = self.lstm(torch.relu(self.conv(x)).transpose(1, 2))
        return torch.sigmoid(self.out(torch.relu(h.transpose(1, 2))))


class ByRate(torch.nn.Module):
    """One model of two, by the sampling rate."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = Voice(), Voice()

    def forward(self, x: torch.Tensor, rate: int) -> torch.Tensor:
        if rate == 16000:  # noqa: SIM108 - a script has no conditional expression of modules
            y = self.wide(x)
        else:
            y = self.narrow(x)
        return y


class Columns(torch.nn.Module):
    """A text line [batch, 1, rows, columns], read column by column."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3, padding=1),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(4, 6, (4, 3), padding=(0, 1)),
        )
        self.lstm = torch.nn.LSTM(6, 4, bidirectional=True)
        self.out = torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.conv(x).squeeze(2).permute(2, 0, 1))[0])


class Decoder(torch.nn.Module):
    """Two cells over frames, frame by frame, with a list of outputs."""

    def __init__(self, attends: bool = False) -> None:
        super().__init__()
        self.first, self.second = torch.nn.LSTMCell(8, 6), torch.nn.LSTMCell(6, 6)
        self.query, self.out = torch.nn.Linear(6, 6), torch.nn.Linear(6, 4)
        self.attends = attends

    def forward(self, frames: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(frames.size(0), 6)
        h1, c1, h2, c2 = zeros, zeros, zeros, zeros
        outs = []
        for i in range(frames.size(1)):
            h1, c1 = self.first(frames[:, i], (h1, c1))
            read = h1
            if self.attends:
                weights = torch.softmax((texts * self.query(h1).unsqueeze(1)).sum(2), 1)
                read = (texts * weights.unsqueeze(2)).sum(1)
            h2, c2 = self.second(read, (h2, c2))
            outs.append(self.out(h2))
        return torch.stack(outs, 1)


def exported(model: Any, example: Any, path: Path, axes: dict[str, Any], scripted: bool) -> Any:
    torch.manual_seed(0)
    made = torch.jit.script(model.eval()) if scripted else model.eval()
    torch.onnx.export(
        made, example, path, dynamo=False, input_names=[*axes], dynamic_axes=axes, opset_version=17
    )
    return model


def right(model: Any, *inputs: Any) -> np.ndarray:
    with torch.no_grad():
        return model(*(torch.tensor(x) if isinstance(x, np.ndarray) else x for x in inputs)).numpy()


def test_a_branch_by_the_sampling_rate_is_each_calls_own(tmp_path: Path) -> None:
    path, axes = tmp_path / "m.onnx", {"x": {0: "batch", 2: "time"}, "rate": {}}
    model = exported(ByRate(), (torch.zeros(2, 4, 5), 16000), path, axes, scripted=True)
    graph = stepnet_onnx.load(path)
    x = uniform(3, 4, 7, seed=0)
    for rate in (16000, 8000):
        made = graph(np.ascontiguousarray(x.swapaxes(1, 2)), statics={"rate": np.full(3, rate)})
        assert_close(np.asarray(made).swapaxes(1, 2), right(model, x, rate), 7, 10)


def test_columns_of_an_image_are_steps(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = exported(Columns(), (torch.zeros(1, 1, 8, 6),), path, {"x": {0: "batch", 3: "time"}}, False)
    graph = stepnet_onnx.load(path)
    images = [uniform(1, 1, 8, columns, seed=columns) for columns in (6, 11)]
    made = graph(sn.Ragged.from_list([np.moveaxis(image[0], 2, 0) for image in images]))
    for own, image in zip(made.to_list(), images, strict=True):
        assert_close(own, right(model, image)[:, 0], 11, 30)


def test_cells_in_a_loop_with_a_list_are_a_recurrence(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    example = torch.zeros(2, 3, 8), torch.zeros(2, 4, 6)
    axes = {"frames": BATCH_TIME, "texts": {0: "batch", 1: "letters"}}
    model = exported(Decoder(), example, path, axes, scripted=True)
    graph = stepnet_onnx.load(path)
    frames = [uniform(steps, 8, seed=steps) for steps in (5, 2)]
    made = graph(sn.Ragged.from_list(frames))
    for own, each in zip(made.to_list(), frames, strict=True):
        assert_close(own, right(model, each[None], np.zeros((1, 4, 6), "f4"))[0], 5, 10)


def test_attention_in_a_loop_is_refused_by_what_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    example = torch.zeros(2, 3, 8), torch.zeros(2, 4, 6)
    axes = {"frames": BATCH_TIME, "texts": {0: "batch", 1: "letters"}}
    exported(Decoder(attends=True), example, path, axes, scripted=True)
    with pytest.raises(
        ModelError,
        match=r"each step of a body reads all steps of 'texts', \[sequences, steps, 6\], as attention does",
    ):
        stepnet_onnx.load(path)
