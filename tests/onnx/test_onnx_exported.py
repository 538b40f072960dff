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


class Tagger(torch.nn.Module):
    """A tag for each frame [batch, time, features], from two layers in both directions."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(4, 4, 3, padding=1)
        self.rnn = kind(4, 5, 2, batch_first=True, bidirectional=True)
        self.out = torch.nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.rnn(self.conv(x.transpose(1, 2)).transpose(1, 2))[0])


@pytest.mark.parametrize("kind", [torch.nn.GRU, torch.nn.LSTM])
def test_zeros_of_a_fixed_batch_begin_any_number_of_sequences(kind: Any, tmp_path: Path) -> None:
    torch.manual_seed(3)
    tagger, path = Tagger(kind).eval(), tmp_path / "tagger.onnx"
    torch.onnx.export(tagger, (torch.randn(2, 6, 4),), path, dynamo=False)
    x = torch.randn(3, 9, 4)
    assert_close(sn.load(path)(x.numpy()), tagger(x).detach().numpy())


class Attention(torch.nn.Module):
    """Attention of the steps of [batch, time, features] over one another."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x)[0]


def test_attention_of_a_fixed_batch_is_that_of_any_number_of_sequences(tmp_path: Path) -> None:
    torch.manual_seed(5)
    model, path = Attention().eval(), tmp_path / "attention.onnx"
    torch.onnx.export(model, (torch.randn(3, 6, 8),), path, dynamo=False)
    x = torch.randn(2, 6, 8)
    assert_close(sn.load(path)(x.numpy()), model(x).detach().numpy())
    longer = torch.randn(2, 9, 8)
    assert_close(sn.load(path, steps="any")(longer.numpy()), model(longer).detach().numpy())


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (1, {}, "export it with two sequences or more"),
        (
            3,
            {"input_names": ["x"], "dynamic_axes": {"x": BATCH_TIME}},
            "a size is the number of steps of the example, .*, export with dynamo=True and dynamic_shapes=",
        ),
    ],
)
def test_attention_that_is_exported_with_numbers_of_its_example_says_how_to_export_it(
    count: int, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "attention.onnx"
    torch.onnx.export(Attention().eval(), (torch.randn(count, 6, 8),), path, dynamo=False, **options)
    with pytest.raises(ModelError, match=message):
        sn.load(path)


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


def test_attention_in_a_loop_reads_a_sequence_of_other_lengths(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    example = torch.zeros(2, 3, 8), torch.zeros(2, 4, 6)
    axes = {"frames": BATCH_TIME, "texts": {0: "batch", 1: "letters"}}
    model = exported(Decoder(attends=True), example, path, axes, scripted=True)
    graph = stepnet_onnx.load(path)
    frames = [uniform(steps, 8, seed=steps) for steps in (5, 2, 3)]
    texts = [uniform(steps, 6, seed=steps) for steps in (2, 7, 3)]
    made = graph({"frames": sn.Ragged.from_list(frames), "texts": sn.Ragged.from_list(texts)})
    for own, each, text in zip(made.to_list(), frames, texts, strict=True):
        assert_close(own, right(model, each[None], text[None])[0], 7, 10)
