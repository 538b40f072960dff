"""Modules as people write them: classifiers, taggers, language models, encoders."""

import warnings
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import stepnet.torch

WORDS = 20


class Recurrent(nn.Module):
    """Words, embedded, and a recurrent layer over them. kind: of the layer."""

    def __init__(self, kind: Any = nn.GRU, **options: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 5)
        options = {"batch_first": True} | options
        self.rnn = kind(5, 4, **options)
        width = options.get("proj_size", 4) * (2 if options.get("bidirectional") else 1)
        self.out = nn.Linear(width, 3)


class Sentiment(Recurrent):
    """The last state of an LSTM, classified."""

    def __init__(self) -> None:
        super().__init__(nn.LSTM, num_layers=2, dropout=0.5)
        self.dropout = nn.Dropout(0.3)

    def forward(self, words: Any) -> Any:
        _, (h, _) = self.rnn(self.dropout(self.embed(words)))
        return functional.log_softmax(self.out(self.dropout(h[-1])), dim=1)


class Directions(Recurrent):
    """The last states of both directions."""

    def __init__(self) -> None:
        super().__init__(nn.GRU, num_layers=2, bidirectional=True)

    def forward(self, words: Any) -> Any:
        h = self.rnn(self.embed(words))[1]
        return self.out(torch.cat([h[-2], h[-1]], 1))


class Tagger(Recurrent):
    """Tags of each step, time first."""

    def __init__(self) -> None:
        super().__init__(nn.LSTM, bidirectional=True, batch_first=False)

    def forward(self, words: Any) -> Any:
        return torch.softmax(self.out(self.rnn(self.embed(words))[0]), -1)


class MaxPooled(Recurrent):
    """The largest of each feature over time."""

    def __init__(self) -> None:
        super().__init__(nn.LSTM, bidirectional=True)

    def forward(self, words: Any) -> Any:
        h = self.rnn(self.embed(words))[0]
        return (
            self.out(torch.max(h, dim=1)[0]),
            h.amax(1),
            self.out(h.mean(dim=1)),
            h.sum(1, keepdim=True).squeeze(1),
        )


class Transposed(Recurrent):
    """Pooling of features that come before the steps."""

    def forward(self, words: Any) -> Any:
        h = self.rnn(self.embed(words))[0].transpose(1, 2)
        return self.out(functional.relu(h).max(2).values), self.out(h.mean(-1))


class AttentionPooled(Recurrent):
    """A sum of steps weighted by a softmax over them."""

    def __init__(self) -> None:
        super().__init__(nn.GRU, bidirectional=True)
        self.score = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, words: Any) -> Any:
        h = self.rnn(self.embed(words))[0]
        weights = torch.softmax(self.score(h), dim=1)
        return self.out((weights * h).sum(1)), weights.squeeze(-1)


class QueryAttention(Recurrent):
    """Steps that are weighted by their products with the last state."""

    def forward(self, words: Any) -> Any:
        h, last = self.rnn(self.embed(words))
        query = last.squeeze(0)
        scores = torch.bmm(h, query.unsqueeze(2)).squeeze(2)
        weights = functional.softmax(scores, 1)
        context = torch.bmm(weights.unsqueeze(1), h).squeeze(1)
        return self.out(context), self.out(torch.matmul(h.transpose(1, 2), weights.unsqueeze(-1)).squeeze(-1))


class LuongAttention(Recurrent):
    """A state repeated at each step, beside the step."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.v = nn.Linear(8, 4), nn.Parameter(torch.randn(4))

    def forward(self, words: Any) -> Any:
        h, last = self.rnn(self.embed(words))
        repeated = last[-1].unsqueeze(1).repeat(1, words.size(1), 1)
        energy = torch.tanh(self.attend(torch.cat((repeated, h), dim=2)))
        weights = functional.softmax(energy @ self.v, dim=1)
        expanded = last[-1][:, None].expand(-1, h.shape[1], -1)
        return torch.einsum("nt,ntf->nf", weights, h), (expanded * h).sum(-1)


class LanguageModel(nn.Module):
    """The next word, by the embedding's own table, from steps that are flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 4)
        self.rnn = nn.LSTM(4, 4, num_layers=2)
        self.decode = nn.Linear(4, WORDS)
        self.decode.weight = self.embed.weight

    def forward(self, words: Any) -> Any:
        output, _ = self.rnn(self.embed(words))
        decoded = self.decode(output.view(output.size(0) * output.size(1), output.size(2)))
        return functional.log_softmax(decoded.view(output.size(0), output.size(1), -1), dim=-1)


class Acoustic(nn.Module):
    """Normalised layers over frames, and a residual one."""

    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8), nn.Hardtanh(0, 20))
        self.rnns = nn.ModuleList(nn.GRU(8, 4, bidirectional=True, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.output = nn.Linear(8, 5)

    def forward(self, frames: Any) -> Any:
        x = self.input(frames)
        for rnn, norm in zip(self.rnns, self.norms, strict=True):
            x = x + functional.gelu(norm(rnn(x)[0]))
        return self.output(x).log_softmax(-1)


class Convolved(nn.Module):
    """A convolution in the middle of the steps, a recurrence, and a causal convolution of each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.below = nn.Conv1d(6, 8, 3, padding="same", groups=2)
        self.rnn = nn.GRU(8, 4, batch_first=True)
        self.above = nn.Conv1d(4, 4, 3, dilation=2, groups=4, bias=False)

    def forward(self, frames: Any) -> Any:
        x = functional.silu(self.below(frames.transpose(1, 2))).transpose(1, 2)
        return self.above(functional.pad(self.rnn(x)[0].transpose(1, 2), (4, 0))).transpose(1, 2)


class Speech(nn.Module):
    """A recurrence of fewer steps, by convolutions and pooling, and back to more by a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.below = nn.Conv1d(6, 8, 3, stride=2, padding=1)
        self.largest, self.mean = nn.MaxPool1d(2, stride=1, padding=1), nn.AvgPool1d(3, 1, 1)
        self.rnn = nn.GRU(8, 4, batch_first=True, bidirectional=True)
        self.above = nn.ConvTranspose1d(8, 3, 4, stride=2, padding=1, groups=1)

    def forward(self, frames: Any) -> Any:
        x = self.mean(self.largest(functional.relu(self.below(frames.transpose(1, 2)))))
        h = self.rnn(x.transpose(1, 2))[0]
        weights = torch.softmax(h.sum(-1, keepdim=True), 1)
        return self.above(h.transpose(1, 2)).transpose(1, 2), (weights * h).sum(1), h[:, -1], h.amax(1)


class Snake(nn.Module):
    """x + sin(a x)^2 / a, for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.rand(1, channels, 1) + 0.5)

    def forward(self, x: Any) -> Any:
        return x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).pow(2)


def weighted(layer: Any) -> Any:
    """The layer with the older weight_norm, which a hook computes, as published decoders of audio have it."""
    with warnings.catch_warnings(action="ignore"):
        return nn.utils.weight_norm(layer)


class CausalDecoder(nn.Module):
    """As EnCodec's decoder: recurrences, and transposed convolutions whose last results are left out."""

    def __init__(self) -> None:
        super().__init__()
        norm: Any = nn.utils.parametrizations.weight_norm
        self.below = norm(nn.Conv1d(6, 8, 3))
        self.rnn = nn.LSTM(8, 8, num_layers=2, batch_first=True)
        self.up = nn.ModuleList([norm(nn.ConvTranspose1d(8, 4, 6, 3)), norm(nn.ConvTranspose1d(4, 4, 4, 2))])
        self.inner, self.out = nn.Conv1d(4, 4, 3, dilation=2), nn.Conv1d(4, 1, 3)

    def forward(self, frames: Any) -> Any:
        x = self.below(functional.pad(frames.transpose(1, 2), (2, 0))).transpose(1, 2)
        x = (self.rnn(x)[0] + x).transpose(1, 2)
        for layer in self.up:
            up: Any = layer
            more = up(functional.elu(x))
            trim = up.kernel_size[0] - up.stride[0]
            x = more[..., : more.shape[-1] - trim]
            x = x + self.inner(functional.pad(functional.elu(x), (4, 0)))
        return self.out(functional.pad(functional.elu(x), (2, 0))).transpose(1, 2)


class CentredDecoder(nn.Module):
    """As DAC's decoder: Snakes, weight_norm, transposed convolutions with zeros at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            weighted(nn.Conv1d(6, 8, 7, padding=3)),
            Snake(8),
            weighted(nn.ConvTranspose1d(8, 4, 6, 3, padding=2, output_padding=1)),
            Snake(4),
            weighted(nn.Conv1d(4, 2, 7, padding=9, dilation=3)),
            nn.Tanh(),
        )

    def forward(self, frames: Any) -> Any:
        return self.layers(frames.transpose(1, 2)).transpose(1, 2)


class Cut(nn.Module):
    """Convolutions of which steps are left out at the ends, and steps that are repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 6, 3, padding=4, dilation=2)
        self.up = nn.Upsample(scale_factor=2)
        self.norm = nn.GroupNorm(2, 6)

    def forward(self, frames: Any) -> Any:
        x = frames.transpose(1, 2)
        x = functional.relu(self.conv(x)[:, :, :-4].contiguous() + x)
        longer = functional.pad(x, (2, 3))
        apart = frames[:, 1:] - frames[:, :-1]
        cut = self.conv(longer)[..., 2:-3]
        several = self.norm(self.up(x)), x.repeat_interleave(3, 2), cut, cut[:, :2, ::2]
        return apart, *(each.transpose(1, 2) for each in several)


class Normalised(nn.Module):
    """Batch normalisation of features that stand before the steps, in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.rnn = nn.RNN(6, 4, nonlinearity="relu", batch_first=True, bias=False)
        norm: Any = self.norm
        nn.init.uniform_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2)

    def forward(self, frames: Any) -> Any:
        x = self.norm(frames.transpose(1, 2)).transpose(1, 2)
        return self.rnn(x)[0].flip(-1)


class Speaker(nn.Module):
    """Means and deviations over time."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 5, proj_size=3, batch_first=True)
        self.out = nn.Linear(6, 4)

    def forward(self, frames: Any) -> Any:
        h = self.rnn(frames)[0]
        deviation = (h.var(1, unbiased=False) + 1e-3).sqrt()
        return functional.normalize(self.out(torch.cat([h.mean(1), deviation], -1)), dim=-1)


class Packed(Recurrent):
    """A layer over packed sequences."""

    def __init__(self) -> None:
        super().__init__(nn.LSTM, bidirectional=True)

    def forward(self, words: Any, lengths: Any) -> Any:
        packed = pack_padded_sequence(
            self.embed(words), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        output, (h, c) = self.rnn(packed)
        padded, _ = pad_packed_sequence(output, batch_first=True)
        return self.out(torch.cat([h[0], c[1]], -1)), self.out(padded)


class Masked(Recurrent):
    """A mean over the steps that a mask leaves, and the output at the last of them."""

    def forward(self, words: Any, lengths: Any) -> Any:
        h = self.rnn(self.embed(words))[0]
        mask = torch.arange(words.size(1))[None, :] < lengths[:, None]
        mean = (h * mask.unsqueeze(-1)).sum(1) / lengths.unsqueeze(1)
        scores = h.sum(-1).masked_fill(~mask, float("-inf"))
        place = (lengths - 1).view(-1, 1, 1).expand(-1, 1, h.size(2))
        last = h[torch.arange(h.size(0)), lengths - 1]
        return mean, torch.softmax(scores, 1), h.gather(1, place).squeeze(1), last


class Ends(Recurrent):
    """First and last steps."""

    def forward(self, words: Any) -> Any:
        h = self.rnn(self.embed(words))[0]
        return {
            "ends": torch.stack([h[:, -1], h[:, 0], h[:, -1:].squeeze(1)], dim=1),
            "mean": h.sum(1) / h.size(1),
            "unit": torch.linalg.vector_norm(h, dim=1),
        }


class Started(nn.Module):
    """States that are made of a static, and zeros that the module makes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(2, 8)
        self.first = nn.GRU(6, 4, num_layers=2, batch_first=True)
        self.second = nn.LSTM(4, 4, batch_first=True)

    def forward(self, frames: Any, speaker: Any) -> Any:
        begun = torch.tanh(self.start(speaker)).view(-1, 2, 4).transpose(0, 1).contiguous()
        h, _ = self.first(frames, begun)
        zeros = torch.zeros(1, frames.size(0), 4, dtype=frames.dtype)
        h, (_, c) = self.second(h, (zeros, zeros))
        return h * speaker[:, None, :1], c


class Own(nn.Module):
    """Layers of stepnet.torch: one in the place of torch.nn's, and one of a cell from a paper."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = stepnet.torch.GRU(6, 4, batch_first=True, bidirectional=True)
        cell = nn.GRUCell(8, 3)
        self.cell = stepnet.torch.Recurrence(cell, (torch.zeros(1, 8), torch.zeros(1, 3)), batch_first=True)

    def forward(self, frames: Any) -> Any:
        return self.cell(self.gru(frames)[0])


class Positions(Recurrent):
    """Embedded positions, and a sum of all steps so far."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(50, 5)

    def forward(self, words: Any) -> Any:
        x = self.embed(words) + self.places(torch.arange(words.shape[1]))
        return self.rnn(x)[0].cumsum(1)


class Heads(Recurrent):
    """Attention with several heads, each with a learned query."""

    def __init__(self) -> None:
        super().__init__(nn.GRU, bidirectional=True)
        self.query = nn.Parameter(torch.randn(2, 4))

    def forward(self, words: Any) -> Any:
        h = self.rnn(self.embed(words))[0]
        keys = h.view(h.size(0), h.size(1), 2, 4).permute(0, 2, 1, 3)
        scores = (keys * self.query[:, None]).sum(-1)
        weights = scores.softmax(-1)
        joined = torch.matmul(weights.unsqueeze(2), keys).squeeze(2)
        return self.out(joined.reshape(-1, 8))


class Translator(nn.Module):
    """A decoder from the state of an encoder, whose steps attend to all steps of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.told = nn.GRU(6, 8, batch_first=True, bidirectional=True)
        self.said = nn.LSTM(6, 16, batch_first=True)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, source: Any, target: Any) -> Any:
        told, state = self.told(source)
        state = torch.cat([state[0], state[1]], 1).unsqueeze(0)
        said, _ = self.said(target, (state, torch.zeros_like(state)))
        mixed, _ = self.attention(said, told, told, need_weights=False)
        return said + mixed, told.mean(1)


class Siamese(Recurrent):
    """Two readings of the same layer, compared."""

    def read(self, words: Any) -> Any:
        return self.rnn(self.embed(words))[0].mean(1)

    def forward(self, first: Any, second: Any) -> Any:
        a, b = self.read(first), self.read(second)
        return self.out(a + b), torch.exp(-(a - b).abs().sum(1)), functional.cosine_similarity(a, b)
