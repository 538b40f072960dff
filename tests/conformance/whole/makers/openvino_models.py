"""Models of PyTorch that are exported as ONNX for OpenVINO to convert.

    python tests/conformance/whole/openvino_models.py FOLDER

needs torch, and writes FOLDER/NAME.onnx for each model.
"""

import sys
import warnings
from pathlib import Path

import torch
from recording import generator
from torch import Tensor, nn

WORDS = 11


class Keywords(nn.Module):
    """Keyword spotting: Conv1d with strides, BatchNorm1d, MaxPool1d, a mean over time, Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv1d(5, 6, 4, stride=2), nn.BatchNorm1d(6), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(6, 6, 3)
        )
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolutions(x.transpose(1, 2))
        return torch.softmax(self.out(nn.functional.adaptive_avg_pool1d(x, 1).squeeze(-1)), -1)


class Tagger(nn.Module):
    """Words to tags: Embedding, bidirectional LSTM, Linear, the log of a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = (
            nn.Embedding(WORDS, 5),
            nn.LSTM(5, 4, bidirectional=True, batch_first=True),
        )
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.log_softmax(self.out(self.lstm(self.embedding(x))[0]), -1)


class Voice(nn.Module):
    """Detection of voice: LayerNorm, two GRUs, Linear, sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.normal, self.gru, self.out = nn.LayerNorm(5), nn.GRU(5, 6, 2, batch_first=True), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.out(self.gru(self.normal(x))[0]))


class Causal(nn.Module):
    """A TCN: steps padded in front, dilated Conv1d, PReLU, residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(5, 6, 1)
        self.convolutions = nn.ModuleList([nn.Conv1d(6, 6, 3, dilation=d) for d in (1, 2, 4)])
        self.bend, self.out = nn.PReLU(6), nn.Conv1d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.transpose(1, 2))
        for convolution in self.convolutions:
            pad = 2 * convolution.dilation[0]
            x = x + self.bend(convolution(nn.functional.pad(x, (pad, 0))))
        return self.out(x).transpose(1, 2)


class TextCnn(nn.Module):
    """Embedding, Conv1d of two widths, maxima over time, Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 5)
        self.convolutions = nn.ModuleList([nn.Conv1d(5, 4, width) for width in (2, 3)])
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x).transpose(1, 2)
        found = [torch.relu(one(x)).max(-1).values for one in self.convolutions]
        return self.out(torch.cat(found, -1))


class Forecaster(nn.Module):
    """LSTM, its last output, Linear with GELU, SiLU and Hardswish between."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 6, batch_first=True)
        self.out = nn.Sequential(
            nn.Linear(6, 6),
            nn.GELU(),
            nn.Linear(6, 6),
            nn.SiLU(),
            nn.Linear(6, 6),
            nn.Hardswish(),
            nn.Linear(6, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0][:, -1])


class Separator(nn.Module):
    """A mask of two sources: Conv1d, AvgPool1d of one stride, GLU, squeeze and excitation, sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pool = nn.Conv1d(5, 8, 3, padding=1), nn.AvgPool1d(3, 1, 1, count_include_pad=False)
        self.squeeze, self.excite, self.out = nn.Linear(4, 3), nn.Linear(3, 4), nn.Conv1d(4, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.glu(self.pool(self.first(x.transpose(1, 2))), 1)
        weights = torch.sigmoid(self.excite(torch.relu(self.squeeze(y.mean(-1)))))
        return torch.sigmoid(self.out(y * weights[:, :, None])).transpose(1, 2) * x.repeat(1, 1, 2)


MODELS = {
    "keywords": Keywords,
    "tagger": Tagger,
    "voice": Voice,
    "causal": Causal,
    "text_cnn": TextCnn,
    "forecaster": Forecaster,
    "separator": Separator,
}


def draw(model: nn.Module, name: str) -> None:
    """Gives a model weights that depend on names alone."""
    for key, value in model.state_dict().items():
        random = generator(f"{name}/{key}")
        if value.dtype.is_floating_point:
            positive = "var" in key or (value.ndim == 1 and "weight" in key)
            found = random.uniform(0.5, 1.5, value.shape) if positive else random.normal(0, 0.4, value.shape)
            value.copy_(torch.from_numpy(found))


def main(folder: Path) -> None:
    """Exports all models, with any number of sequences and of steps."""
    for name, make in MODELS.items():
        model = make().eval()
        draw(model, name)
        entry = "words" if hasattr(model, "embedding") else "frames"
        example = torch.ones(2, 20, dtype=torch.int64) if entry == "words" else torch.ones(2, 20, 5)
        with warnings.catch_warnings(action="ignore"):
            torch.onnx.export(
                model,
                (example,),
                folder / f"{name}.onnx",
                dynamo=False,
                input_names=[entry],
                output_names=["result"],
                dynamic_axes={entry: {0: "batch", 1: "time"}},
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
