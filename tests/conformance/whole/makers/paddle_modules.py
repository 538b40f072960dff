"""Layers of Paddle of the sorts that people save: the models of `make_paddle.py`."""

# pyright: basic

import paddle
from paddle import nn
from paddle.nn import functional


class Tagger(nn.Layer):
    """Embeds tokens, runs a bidirectional stack and scores tags at every step."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.rnn = nn.LSTM(8, 8, num_layers=2, direction="bidirect", dropout=0.1)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens):
        return self.head(self.rnn(self.embedding(tokens))[0])


class Lengths(nn.Layer):
    """Classifies sequences by the last states of a GRU that stops at their lengths."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 6, padding_idx=0)
        self.rnn = nn.GRU(6, 8, direction="bidirect")
        self.head = nn.Linear(16, 3)

    def forward(self, tokens, lengths):
        _, last = self.rnn(self.embedding(tokens), sequence_length=lengths)
        return functional.softmax(self.head(paddle.concat([last[-2], last[-1]], axis=-1)))


class CRNN(nn.Layer):
    """Reads lines of text in images [batch, 1, height, width], as PaddleOCR does."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2D(1, 6, 3, padding=1, bias_attr=False), nn.BatchNorm2D(6), nn.Hardswish(),
            nn.MaxPool2D(2, 2),
            nn.Conv2D(6, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2D((4, 1), (4, 1)),
        )  # fmt: skip
        self.rnn = nn.LSTM(8, 8, direction="bidirect", num_layers=2)
        self.head = nn.Linear(16, 11)

    def forward(self, image):
        x = paddle.transpose(paddle.squeeze(self.features(image), axis=2), [0, 2, 1])
        return functional.softmax(self.head(self.rnn(x)[0]), axis=2)


class Spotter(nn.Layer):
    """Spots a keyword: depthwise separable convolutions, then a mean over time."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1D(8, 12, 5, stride=2, padding=2), nn.BatchNorm1D(12), nn.ReLU(),
            nn.Conv1D(12, 12, 3, padding=1, groups=12, bias_attr=False), nn.BatchNorm1D(12), nn.ReLU6(),
            nn.Conv1D(12, 12, 1, bias_attr=False), nn.BatchNorm1D(12), nn.ReLU6(),
        )  # fmt: skip
        self.head = nn.Linear(12, 4)

    def forward(self, mfcc):
        return self.head(functional.adaptive_avg_pool1d(self.features(mfcc), 1).flatten(1))


class TextCNN(nn.Layer):
    """Classifies tokens by maxima over time of convolutions of several widths."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 8)
        self.convolutions = nn.LayerList([nn.Conv1D(8, 6, width, padding=width // 2) for width in (2, 3, 4)])
        self.head = nn.Linear(18, 4)

    def forward(self, tokens):
        x = self.embedding(tokens).transpose([0, 2, 1])
        maxima = [functional.relu(each(x)).max(axis=-1) for each in self.convolutions]
        return functional.log_softmax(self.head(paddle.concat(maxima, axis=1)))


class AttentionPooling(nn.Layer):
    """Classifies by a weighted mean of the steps of a BiGRU that a mask keeps."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(5, 6, direction="bidirect")
        self.attend, self.score = nn.Linear(12, 8), nn.Linear(8, 1, bias_attr=False)
        self.head = nn.Linear(12, 3)

    def forward(self, x, mask):
        hidden, _ = self.rnn(x)
        scores = self.score(paddle.tanh(self.attend(hidden))) + (1.0 - mask.unsqueeze(-1)) * -1e9
        weights = functional.softmax(scores, axis=1)
        pooled = paddle.matmul(weights, hidden, transpose_x=True).squeeze(1)
        return self.head(pooled), weights.squeeze(-1)


class Attending(nn.Layer):
    """A layer of a transformer behind an LSTM."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(5, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu")
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(self.rnn(x)[0]))


class DeepSpeech(nn.Layer):
    """Convolutions over frames, then GRUs in both directions with norms between."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1D(8, 10, 5, stride=2, padding=2)
        self.norm = nn.BatchNorm1D(10)
        self.rnns = nn.LayerList([nn.GRU(size, 6, direction="bidirect") for size in (10, 12)])
        self.norms = nn.LayerList([nn.LayerNorm(12) for _ in range(2)])
        self.head = nn.Linear(12, 7)

    def forward(self, frames):
        x = functional.hardtanh(self.norm(self.convolution(frames)), 0.0, 20.0).transpose([0, 2, 1])
        for rnn, norm in zip(self.rnns, self.norms):  # noqa: B905 - Paddle converts this loop
            x = norm(rnn(x)[0])
        return functional.log_softmax(self.head(x), axis=-1)


class Stream(nn.Layer):
    """Takes states and gives them back, for calls on pieces of a stream."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(5, 8, num_layers=2)
        self.head = nn.Linear(8, 4)

    def forward(self, x, h, c):
        hidden, (h, c) = self.rnn(x, (h, c))
        return functional.sigmoid(self.head(hidden)), h, c


class GatedConvolutions(nn.Layer):
    """Causal dilated convolutions with gates, residuals and skips; [batch, channels, time]."""

    def __init__(self):
        super().__init__()
        self.input = nn.Conv1D(3, 6, 1)
        self.layers = nn.LayerList([nn.Conv1D(6, 12, 2, dilation=dilation) for dilation in (1, 2)])
        self.residuals = nn.LayerList([nn.Conv1D(6, 6, 1) for _ in range(2)])
        self.skips = nn.LayerList([nn.Conv1D(6, 8, 1) for _ in range(2)])
        self.output = nn.Conv1D(8, 4, 1)

    def forward(self, x):
        x = self.input(x)
        total = 0.0
        for number, dilation in enumerate((1, 2)):
            padded = functional.pad(x, [dilation, 0], data_format="NCL")
            filtered, gate = paddle.chunk(self.layers[number](padded), 2, axis=1)
            made = paddle.tanh(filtered) * functional.sigmoid(gate)
            total = total + self.skips[number](made)
            x = x + self.residuals[number](made)
        return self.output(functional.relu(total))


class Separator(nn.Layer):
    """Gated linear units and norms of groups around convolutions, with rectifiers that have slopes."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Conv1D(6, 16, 3, padding=1), nn.Conv1D(8, 6, 1)
        self.norm, self.slope = nn.GroupNorm(2, 8), nn.PReLU()

    def forward(self, mixture):
        made = self.slope(self.norm(functional.glu(self.wide(mixture), axis=1)))
        return mixture * functional.sigmoid(self.narrow(made))


class Forecaster(nn.Layer):
    """Forecasts a horizon from the last step of an LSTM over scaled windows, with a deviation."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 8)
        self.mean, self.deviation = nn.Linear(8, 6), nn.Linear(8, 6)

    def forward(self, window):
        level = window.mean(axis=1, keepdim=True)
        scale = (window - level).abs().mean(axis=1, keepdim=True) + 0.1
        last = self.rnn((window - level) / scale)[0][:, -1]
        mean = self.mean(last) * scale[:, 0, :1] + level[:, 0, :1]
        return mean, functional.softplus(self.deviation(last))


class Encoder(nn.Layer):
    """Encodes sentences; the last states of both directions begin a decoder."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 6)
        self.rnn = nn.GRU(6, 7, direction="bidirect")
        self.bridge = nn.Linear(14, 9)

    def forward(self, source):
        outputs, last = self.rnn(self.embedding(source))
        joined = last.transpose([1, 0, 2]).reshape([-1, 14])
        return outputs, paddle.tanh(self.bridge(joined))


class Upsampler(nn.Layer):
    """A vocoder: frames become samples by transposed convolutions; [batch, bands, frames]."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.Conv1D(6, 8, 5, padding=2), nn.Conv1D(4, 1, 5, padding=2)
        self.up = nn.LayerList([nn.Conv1DTranspose(8, 6, 4, 2, 1), nn.Conv1DTranspose(6, 4, 4, 2, 1)])

    def forward(self, mel):
        x = self.before(mel)
        for number in range(2):
            x = self.up[number](functional.leaky_relu(x, 0.1))
        return paddle.tanh(self.after(functional.leaky_relu(x, 0.1)))


class TimeMajor(nn.Layer):
    """A time-major stack of recurrences with rectifiers in both directions, and its maxima over time."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.SimpleRNN(4, 6, num_layers=2, direction="bidirect", activation="relu", time_major=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        hidden, last = self.rnn(x)
        return self.head(hidden), last, hidden.max(axis=0)
