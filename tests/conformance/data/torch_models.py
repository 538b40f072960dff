"""Models as users of PyTorch write them: recurrent layers alone, and with all that stands around them.

Each row of MODELS makes one, and says which inputs it takes, in order.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from recording import CONTEXT, FEATURES, WORDS
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

HIDDEN = 5


class Steps(nn.Module):
    """A recurrent layer, and its outputs at every step alone."""

    def __init__(self, rnn: nn.RNNBase):
        super().__init__()
        self.rnn = rnn

    def forward(self, frames: Tensor) -> Tensor:
        return self.rnn(frames)[0]


class ByLastState(nn.Module):
    """LSTM, Linear of the last layer's last state: a classifier."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, HIDDEN, num_layers=2, batch_first=True, dropout=0.2)
        self.fc = nn.Linear(HIDDEN, 3)

    def forward(self, frames: Tensor) -> Tensor:
        _, (h, _) = self.lstm(frames)
        return self.fc(h[-1])


class ByBothLastStates(nn.Module):
    """GRU in both directions, Linear of both last states, softmax: a classifier."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(FEATURES, HIDDEN, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * HIDDEN, 3)

    def forward(self, frames: Tensor) -> Tensor:
        h = self.gru(frames)[1]
        return torch.softmax(self.fc(torch.cat([h[-2], h[-1]], dim=1)), dim=-1)


class ByLastOutput(nn.Module):
    """GRU, Linear of the last output, sigmoid: a classifier."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(FEATURES, HIDDEN, batch_first=True)
        self.head = nn.Sequential(nn.Linear(HIDDEN, 4), nn.ReLU(), nn.Dropout(0.3), nn.Linear(4, 2))

    def forward(self, frames: Tensor) -> Tensor:
        return torch.sigmoid(self.head(self.gru(frames)[0][:, -1]))


class Tagger(nn.Module):
    """Embedding, LSTM in both directions, Linear, log_softmax."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 4, padding_idx=0)
        self.lstm = nn.LSTM(4, HIDDEN, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * HIDDEN, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.log_softmax(self.fc(self.lstm(self.embedding(tokens))[0]), dim=-1)


class Language(nn.Module):
    """Embedding, two LSTMs, Linear with the weights of the Embedding: a model of language."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, HIDDEN)
        self.lstm = nn.LSTM(HIDDEN, HIDDEN, num_layers=2, batch_first=True)
        self.fc = nn.Linear(HIDDEN, WORDS)
        self.fc.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc(self.lstm(self.embedding(tokens))[0])


class Lines(nn.Module):
    """Conv2d, BatchNorm2d, ReLU and max pooling over heights, GRU in both directions, Linear: a CRNN."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d((2, 1))
        )
        self.gru = nn.GRU(3 * FEATURES // 2, 4, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(8, 6)

    def forward(self, frames: Tensor) -> Tensor:
        picture = self.convolution(frames.transpose(1, 2).unsqueeze(1))
        columns = picture.permute(0, 3, 1, 2).flatten(2)
        return self.fc(self.gru(columns)[0]).log_softmax(-1)


class Voice(nn.Module):
    """Conv1d, ReLU, LSTM, Linear, sigmoid: where there is speech."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(FEATURES, 6, 3, padding=1)
        self.lstm = nn.LSTM(6, HIDDEN, batch_first=True)
        self.fc = nn.Linear(HIDDEN, 1)

    def forward(self, frames: Tensor) -> Tensor:
        y = torch.relu(self.convolution(frames.transpose(1, 2))).transpose(1, 2)
        return torch.sigmoid(self.fc(self.lstm(y)[0])).squeeze(-1)


class Speech(nn.Module):
    """Linear with clipped ReLU, RNN of relu in both directions, added, BatchNorm1d, Linear, log_softmax."""

    def __init__(self):
        super().__init__()
        self.before = nn.Sequential(
            nn.Linear(FEATURES, 6), nn.Hardtanh(0, 20), nn.Linear(6, 6), nn.Hardtanh(0, 20)
        )
        self.rnn = nn.RNN(6, HIDDEN, nonlinearity="relu", batch_first=True, bidirectional=True)
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.fc = nn.Linear(HIDDEN, 6)

    def forward(self, frames: Tensor) -> Tensor:
        y = self.rnn(self.before(frames))[0]
        y = y[..., :HIDDEN] + y[..., HIDDEN:]
        y = self.norm(y.transpose(1, 2)).transpose(1, 2)
        return torch.log_softmax(self.fc(y), dim=-1)


class Packed(nn.Module):
    """LSTM in both directions over a packed sequence, Linear of the padded outputs."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, HIDDEN, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * HIDDEN, 3)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(frames, lengths, batch_first=True)
        return self.fc(pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0])


class Translator(nn.Module):
    """GRU over embedded tokens, whose state another begins with, Linear: sequence to sequence."""

    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, 4), nn.Embedding(WORDS, 4)
        self.encoder = nn.GRU(4, HIDDEN, batch_first=True)
        self.decoder = nn.GRU(4, HIDDEN, batch_first=True)
        self.fc = nn.Linear(HIDDEN, WORDS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        state = self.encoder(self.source(source))[1]
        return self.fc(self.decoder(self.target(target), state)[0])


class Residual(nn.Module):
    """Linear, and GRUs whose outputs are added to their inputs, with LayerNorm between."""

    def __init__(self):
        super().__init__()
        self.before = nn.Linear(FEATURES, HIDDEN)
        self.lower, self.upper = (nn.GRU(HIDDEN, HIDDEN, batch_first=True) for _ in range(2))
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, frames: Tensor) -> Tensor:
        y = self.before(frames)
        y = self.norm(y + self.lower(y)[0])
        return y + self.upper(y)[0]


class Pooled(nn.Module):
    """LSTM in both directions, the mean of its outputs weighted by Linear, tanh and softmax, Linear."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, HIDDEN, batch_first=True, bidirectional=True)
        self.weight, self.fc = nn.Linear(2 * HIDDEN, 1), nn.Linear(2 * HIDDEN, 2)

    def forward(self, frames: Tensor) -> Tensor:
        y = self.lstm(frames)[0]
        weight = torch.softmax(torch.tanh(self.weight(y)), dim=1)
        return self.fc((y * weight).sum(1))


class Sensors(nn.Module):
    """BatchNorm1d over features, GRU, mean and largest of the outputs, Linear."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(FEATURES)
        self.gru = nn.GRU(FEATURES, HIDDEN, batch_first=True)
        self.fc = nn.Linear(2 * HIDDEN, 3)

    def forward(self, frames: Tensor) -> Tensor:
        y = self.gru(self.norm(frames.transpose(1, 2)).transpose(1, 2))[0]
        return self.fc(torch.cat([y.mean(1), y.amax(1)], dim=-1))


class Streaming(nn.Module):
    """LSTM whose states come in and go out, LayerNorm, Linear with GELU."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, HIDDEN, batch_first=True)
        self.norm, self.fc = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 2)

    def forward(self, frames: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (h, c) = self.lstm(frames, (h, c))
        return nn.functional.gelu(self.fc(self.norm(y))), h, c


class Attention(nn.Module):
    """GRU, attention of its outputs to themselves with a residual, Linear."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(FEATURES, HIDDEN, batch_first=True)
        self.query, self.key, self.value = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.fc = nn.Linear(HIDDEN, 2)

    def forward(self, frames: Tensor) -> Tensor:
        y = self.gru(frames)[0]
        seen = nn.functional.scaled_dot_product_attention(self.query(y), self.key(y), self.value(y))
        return self.fc(y + seen)


class WakeWord(nn.Module):
    """Conv1d with a stride, BatchNorm1d, ReLU, GRU, Linear of the last output."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(FEATURES, 6, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.gru = nn.GRU(6, HIDDEN, batch_first=True)
        self.fc = nn.Linear(HIDDEN, 2)

    def forward(self, frames: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.convolution(frames.transpose(1, 2)))).transpose(1, 2)
        return self.fc(self.gru(y)[0][:, -1, :])


class TwoOutputs(nn.Module):
    """LSTM, a Linear at every step, and one of the last state: two outputs."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, HIDDEN, batch_first=True)
        self.each, self.whole = nn.Linear(HIDDEN, 3), nn.Linear(HIDDEN, 1)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        y, (h, _) = self.lstm(frames)
        return torch.softmax(self.each(y), dim=-1), torch.sigmoid(self.whole(h[-1]))


class Conditioned(nn.Module):
    """Linear of numbers of the sequence as the first state of a GRU, Linear."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(CONTEXT, HIDDEN)
        self.gru = nn.GRU(FEATURES, HIDDEN, batch_first=True)
        self.fc = nn.Linear(HIDDEN, 2)

    def forward(self, frames: Tensor, context: Tensor) -> Tensor:
        return self.fc(self.gru(frames, torch.tanh(self.first(context)).unsqueeze(0))[0])


@dataclass(frozen=True)
class Made:
    """A module, with the kind of each input by its name; `about` in place of its docstring."""

    make: Callable[[], nn.Module]
    inputs: dict[str, str]
    outputs: tuple[str, ...] = ("outputs",)
    axes: str = "batch"
    about: str = ""


FRAMES, TOKENS = {"frames": "frames"}, {"tokens": "tokens"}
GRU_ENDS, LSTM_ENDS = ("outputs", "h_n"), ("outputs", "h_n", "c_n")


def recurrent(kind: type[nn.RNNBase], about: str, hidden: int = HIDDEN, **options) -> Made:
    """A row of a recurrent layer alone."""
    axes = "batch" if options.setdefault("batch_first", True) else "time"
    ends = LSTM_ENDS if kind is nn.LSTM else GRU_ENDS
    return Made(lambda: kind(FEATURES, hidden, **options), FRAMES, ends, axes, about)


def steps(kind: type[nn.RNNBase], about: str, **options) -> Made:
    """A row of a recurrent layer of which only the outputs are read."""
    options.setdefault("batch_first", True)
    return Made(lambda: Steps(kind(FEATURES, HIDDEN, **options)), FRAMES, about=about)


MODELS = {
    "lstm": recurrent(nn.LSTM, "nn.LSTM, batch first"),
    "lstm_steps": steps(nn.LSTM, "nn.LSTM, its outputs alone"),
    "lstm_time_major": recurrent(nn.LSTM, "nn.LSTM, time first", batch_first=False),
    "lstm_stack_both": recurrent(
        nn.LSTM, "two nn.LSTM in both directions", num_layers=2, bidirectional=True, hidden=3
    ),
    "lstm_projected": recurrent(nn.LSTM, "nn.LSTM with proj_size=3", proj_size=3),
    "lstm_without_bias": recurrent(nn.LSTM, "nn.LSTM without biases", bias=False),
    "gru": recurrent(nn.GRU, "nn.GRU, batch first"),
    "gru_time_major": recurrent(nn.GRU, "nn.GRU, time first", batch_first=False),
    "gru_stack": recurrent(nn.GRU, "three nn.GRU", num_layers=3, dropout=0.2),
    "gru_both_steps": steps(nn.GRU, "nn.GRU in both directions, its outputs alone", bidirectional=True),
    "rnn_tanh": recurrent(nn.RNN, "nn.RNN of tanh"),
    "rnn_relu_stack_both": recurrent(
        nn.RNN, "two nn.RNN of relu in both directions", num_layers=2, bidirectional=True, nonlinearity="relu"
    ),
    "by_last_state": Made(ByLastState, FRAMES, ("classes",)),
    "by_both_last_states": Made(ByBothLastStates, FRAMES, ("classes",)),
    "by_last_output": Made(ByLastOutput, FRAMES, ("classes",)),
    "tagger": Made(Tagger, TOKENS, ("tags",)),
    "language": Made(Language, TOKENS, ("logits",)),
    "lines": Made(Lines, FRAMES, ("letters",)),
    "voice": Made(Voice, FRAMES, ("speech",)),
    "speech": Made(Speech, FRAMES, ("letters",)),
    "packed": Made(Packed, {"frames": "frames", "lengths": "lengths"}, ("classes",)),
    "translator": Made(Translator, {"source": "tokens", "target": "tokens"}, ("logits",)),
    "residual": Made(Residual, FRAMES),
    "pooled": Made(Pooled, FRAMES, ("classes",)),
    "sensors": Made(Sensors, FRAMES, ("classes",)),
    "streaming": Made(Streaming, {"frames": "frames", "h": "state", "c": "state"}, ("classes", "h_n", "c_n")),
    "attention": Made(Attention, FRAMES),
    "wake_word": Made(WakeWord, FRAMES, ("classes",)),
    "two_outputs": Made(TwoOutputs, FRAMES, ("steps", "whole")),
    "conditioned": Made(Conditioned, {"frames": "frames", "context": "context"}, ("steps",)),
}
