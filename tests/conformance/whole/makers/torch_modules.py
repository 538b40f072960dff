"""Modules of PyTorch of the sorts that people export: the models of `make_onnx.py` and `make_pt2.py`.

Each is small, with random weights. Sequences are [batch, time, features] unless a class says otherwise.
"""

# pyright: basic, reportPrivateImportUsage=false

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

# ---- taggers and classifiers -------------------------------------------------------------------------------


class Tagger(nn.Module):
    """Embeds tokens, runs a bidirectional stack and scores tags at every step."""

    def __init__(self, layer=nn.LSTM, words=30, width=8, hidden=8, tags=5, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        self.rnn = layer(width, hidden, layers, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(2 * hidden, tags)

    def forward(self, tokens):
        return self.head(self.rnn(self.embedding(tokens))[0])


class PackedTagger(Tagger):
    """The same over packed sequences, with their lengths as an input."""

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return functional.log_softmax(self.head(hidden), -1)


class WordsAndCasing(nn.Module):
    """Reads two sequences, words and features of their letters; gives tags and chunks."""

    def __init__(self):
        super().__init__()
        self.words, self.casing = nn.Embedding(30, 8), nn.Embedding(4, 3)
        self.rnn = nn.LSTM(8 + 3 + 2, 8, batch_first=True, bidirectional=True)
        self.tags, self.chunks = nn.Linear(16, 6), nn.Linear(16, 3)

    def forward(self, words, casing, features):
        x = torch.cat([self.words(words), self.casing(casing), features], dim=-1)
        hidden = torch.relu(self.rnn(x)[0])
        return self.tags(hidden), torch.softmax(self.chunks(hidden), dim=2)


class LastState(nn.Module):
    """Classifies a sequence by the last state of a stack."""

    def __init__(self, layer=nn.GRU, inputs=6, hidden=10, classes=4, layers=2):
        super().__init__()
        self.rnn = layer(inputs, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        state = self.rnn(x)[1]
        state = state[0] if isinstance(state, tuple) else state
        return functional.softmax(self.head(state[-1]), dim=1)


class LastStep(nn.Module):
    """Forecasts a horizon from the last step of an LSTM over a window."""

    def __init__(self, layers=1):
        super().__init__()
        self.rnn = nn.LSTM(3, 12, layers, batch_first=True)
        self.head = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 6))

    def forward(self, window):
        return self.head(self.rnn(window)[0][:, -1, :])


class AttentionPooling(nn.Module):
    """Classifies by a weighted mean of the steps of a BiLSTM that a mask keeps."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.rnn = nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.scores = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))
        self.head = nn.Linear(12, 3)

    def forward(self, tokens, mask):
        hidden, _ = self.rnn(self.embedding(tokens))
        scores = self.scores(hidden).squeeze(-1).masked_fill(mask == 0, -1e9)
        weights = torch.softmax(scores, dim=1)
        pooled = torch.bmm(weights.unsqueeze(1), hidden).squeeze(1)
        return self.head(pooled), weights


class EinsumPooling(nn.Module):
    """Pools a BiGRU by several heads of attention, written with einsum."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(5, 6, batch_first=True, bidirectional=True)
        self.queries = nn.Parameter(torch.randn(3, 12) * 0.4)
        self.head = nn.Linear(36, 4)

    def forward(self, x):
        hidden, _ = self.rnn(x)
        weights = torch.einsum("btd,hd->bth", hidden, self.queries).softmax(dim=1)
        pooled = torch.einsum("bth,btd->bhd", weights, hidden)
        return self.head(pooled.flatten(1))


class SentencePair(nn.Module):
    """Compares two sentences by the maxima of one BiLSTM over each."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.rnn = nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Linear(48, 10), nn.Tanh(), nn.Linear(10, 3))

    def encoded(self, tokens):
        return self.rnn(self.embedding(tokens))[0].max(dim=1).values

    def forward(self, premise, hypothesis):
        u, v = self.encoded(premise), self.encoded(hypothesis)
        return self.head(torch.cat([u, v, (u - v).abs(), u * v], dim=1))


class TextCNN(nn.Module):
    """Classifies tokens by maxima over time of convolutions of several widths."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 8)
        self.convolutions = nn.ModuleList(nn.Conv1d(8, 6, width, padding=width // 2) for width in (2, 3, 4))
        self.head = nn.Linear(18, 4)

    def forward(self, tokens):
        x = self.embedding(tokens).transpose(1, 2)
        maxima = [torch.relu(each(x)).amax(dim=2) for each in self.convolutions]
        return self.head(torch.cat(maxima, 1))


class MaskedMean(nn.Module):
    """Averages the first steps of each sequence, as many as its length says."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(5, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x, lengths):
        hidden, _ = self.rnn(x)
        mask = (
            (torch.arange(x.shape[1], device=x.device)[None, :] < lengths[:, None]).unsqueeze(-1).to(x.dtype)
        )
        return self.head((hidden * mask).sum(1) / mask.sum(1).clamp(min=1.0))


class Statistics(nn.Module):
    """Embeds a speaker: dilated convolutions, then mean and deviation over time (an x-vector)."""

    def __init__(self):
        super().__init__()
        self.frames = nn.Sequential(
            nn.Conv1d(6, 12, 5), nn.ReLU(), nn.BatchNorm1d(12),
            nn.Conv1d(12, 12, 3, dilation=2), nn.ReLU(), nn.BatchNorm1d(12),
            nn.Conv1d(12, 16, 1), nn.ReLU(), nn.BatchNorm1d(16),
        )  # fmt: skip
        self.segment = nn.Sequential(nn.Linear(32, 10), nn.BatchNorm1d(10))

    def forward(self, features):
        x = self.frames(features.transpose(1, 2))
        pooled = torch.cat([x.mean(dim=2), x.std(dim=2)], dim=1)
        return functional.normalize(self.segment(pooled), dim=1)


# ---- encoders of speech ------------------------------------------------------------------------------------


class CRNN(nn.Module):
    """Reads lines of text in images [batch, 1, height, width]: convolutions, then BiLSTMs over the width."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2),
            nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d((2, 1)),
            nn.Conv2d(8, 8, (2, 1)), nn.ReLU(),
        )  # fmt: skip
        self.rnn = nn.LSTM(8, 8, bidirectional=True)
        self.embedding = nn.Linear(16, 11)

    def forward(self, image):
        features = self.features(image).squeeze(2).permute(2, 0, 1)
        hidden, _ = self.rnn(features)
        steps, batch, width = hidden.size()
        scores = self.embedding(hidden.view(steps * batch, width))
        return functional.log_softmax(scores.view(steps, batch, -1), dim=2)


class Normalised(nn.Module):
    """Batch normalisation of the features of all steps of all sequences."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        steps, batch = x.size(0), x.size(1)
        return self.norm(x.reshape(steps * batch, -1)).view(steps, batch, -1)


class DeepSpeech(nn.Module):
    """Convolutions over a spectrogram [batch, frequencies, time], then GRUs whose directions are summed."""

    def __init__(self):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(8, 10, 5, stride=2, padding=2), nn.BatchNorm1d(10), nn.Hardtanh(0, 20),
            nn.Conv1d(10, 10, 3, padding=1), nn.BatchNorm1d(10), nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.rnns = nn.ModuleList(nn.GRU(10, 10, bidirectional=True) for _ in range(2))
        self.norm = Normalised(10)
        self.head = nn.Linear(10, 7, bias=False)

    def forward(self, spectrogram):
        x = self.front(spectrogram).permute(2, 0, 1).contiguous()
        for number, rnn in enumerate(self.rnns):
            x = self.norm(x) if number else x
            x, _ = rnn(x)
            x = x.view(x.size(0), x.size(1), 2, -1).sum(2)
        return self.head(x).transpose(0, 1).log_softmax(dim=-1)


class PyramidalEncoder(nn.Module):
    """A listener: each layer reads pairs of the steps of the layer below."""

    def __init__(self):
        super().__init__()
        self.first = nn.LSTM(4, 5, batch_first=True, bidirectional=True)
        self.second = nn.LSTM(20, 5, batch_first=True, bidirectional=True)

    def forward(self, x):
        hidden, _ = self.first(x)
        batch, steps, width = hidden.shape
        paired = hidden.contiguous().view(batch, steps // 2, width * 2)
        return self.second(paired)[0]


class Spotter(nn.Module):
    """Spots a keyword: depthwise separable convolutions, then a mean over time."""

    def __init__(self, classes=5):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv1d(8, 12, 5, stride=2, padding=2, bias=False), nn.BatchNorm1d(12), nn.ReLU6()
        )
        self.blocks = nn.Sequential(*(self.block(12) for _ in range(2)))
        self.head = nn.Linear(12, classes)

    @staticmethod
    def block(width):
        return nn.Sequential(
            nn.Conv1d(width, width, 3, padding=1, groups=width, bias=False), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 1, bias=False), nn.BatchNorm1d(width), nn.ReLU(),
        )  # fmt: skip

    def forward(self, features):
        x = self.blocks(self.stem(features))
        return self.head(functional.adaptive_avg_pool1d(x, 1).flatten(1))


class SqueezedSpotter(Spotter):
    """The same with channels that are weighed by their means, and pooling by twos before."""

    def __init__(self):
        super().__init__()
        self.pool = nn.AvgPool1d(2, stride=2)
        self.squeeze = nn.Sequential(nn.Linear(12, 4), nn.SiLU(), nn.Linear(4, 12), nn.Hardsigmoid())

    def forward(self, features):
        x = self.blocks(self.pool(self.stem(features)))
        x = x * self.squeeze(x.mean(-1)).unsqueeze(-1)
        return self.head(x.mean(dim=-1))


class CBHG(nn.Module):
    """A bank of convolutions, a maximum of neighbours, highway layers and a BiGRU (of Tacotron)."""

    def __init__(self):
        super().__init__()
        self.bank = nn.ModuleList(nn.Conv1d(6, 4, width, padding=width // 2) for width in (1, 2, 3))
        self.pool = nn.MaxPool1d(2, stride=1, padding=1)
        self.projection = nn.Conv1d(12, 6, 3, padding=1)
        self.highway = nn.ModuleList(nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)]) for _ in range(2))
        self.rnn = nn.GRU(6, 5, batch_first=True, bidirectional=True)

    def forward(self, x):
        steps = x.size(1)
        channels = x.transpose(1, 2)
        banked = torch.cat([torch.relu(each(channels))[:, :, :steps] for each in self.bank], dim=1)
        x = self.projection(self.pool(banked)[:, :, :steps]).transpose(1, 2) + x
        for made, gate in self.highway:
            keep = torch.sigmoid(gate(x))
            x = torch.relu(made(x)) * keep + x * (1 - keep)
        return self.rnn(x)[0]


# ---- encoders of other sequences ---------------------------------------------------------------------------


class Encoder(nn.Module):
    """Encodes packed sentences; the last states of both directions begin a decoder."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 6)
        self.rnn = nn.GRU(6, 7, bidirectional=True)
        self.bridge = nn.Linear(14, 9)

    def forward(self, source, lengths):
        packed = pack_padded_sequence(self.embedding(source), lengths, enforce_sorted=False)
        outputs, hidden = self.rnn(packed)
        outputs, _ = pad_packed_sequence(outputs)
        return outputs, torch.tanh(self.bridge(torch.cat((hidden[-2], hidden[-1]), dim=1)))


class Autoencoder(nn.Module):
    """Repeats the last state of an encoder at every step of a decoder."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.LSTM(4, 6, batch_first=True)
        self.decoder = nn.LSTM(6, 6, batch_first=True)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        code = self.encoder(x)[1][0][-1]
        made = self.head(self.decoder(code.unsqueeze(1).expand(-1, x.size(1), -1))[0])
        return made, (made - x).pow(2).mean(dim=(1, 2))


class Autoregressive(nn.Module):
    """A probabilistic forecaster: series scaled by their means; a mean and a deviation at every step."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 8, 2, batch_first=True)
        self.mean, self.deviation = nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, target, covariates):
        scale = target.abs().mean(dim=1, keepdim=True) + 1
        hidden, _ = self.rnn(torch.cat([(target / scale).unsqueeze(-1), covariates], dim=-1))
        mean = self.mean(hidden).squeeze(-1) * scale
        return mean, functional.softplus(self.deviation(hidden)).squeeze(-1) * scale


class Residual(nn.Module):
    """A stack of LSTMs, each normalised before and added to what it read."""

    def __init__(self, layer=nn.LSTM, width=8, count=2):
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(count))
        self.rnns = nn.ModuleList(layer(width, width, batch_first=True) for _ in range(count))
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        x = functional.gelu(self.embed(x))
        for norm, rnn in zip(self.norms, self.rnns, strict=True):
            x = x + rnn(norm(x))[0]
        return self.head(x)


class Rectified(nn.Module):
    """A time-major stack of recurrences with rectifiers, in both directions: [time, batch, features]."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(4, 6, 2, nonlinearity="relu", bidirectional=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        hidden, last = self.rnn(x)
        return self.head(hidden), last


class Stream(nn.Module):
    """Takes states and gives them back, for calls on pieces of a stream."""

    def __init__(self, layers=2):
        super().__init__()
        self.rnn = nn.LSTM(5, 8, layers, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x, h, c):
        hidden, (h, c) = self.rnn(x, (h, c))
        return torch.sigmoid(self.head(hidden)), h, c


class CachedConvolution(nn.Module):
    """A causal convolution on pieces of one stream, with the last frames and a state of a GRU as cache."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(5, 8, 3)
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, frames, cache, state):
        x = torch.cat([cache, frames], dim=2)
        hidden, state = self.rnn(functional.relu(self.convolution(x)).transpose(1, 2), state)
        return torch.sigmoid(self.head(hidden)), x[:, :, -2:], state


class Denoiser(nn.Module):
    """Gains of bands and a voice activity from three GRUs (as RNNoise)."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(10, 6)
        self.voice = nn.GRU(6, 6, batch_first=True)
        self.noise = nn.GRU(22, 8, batch_first=True)
        self.denoise = nn.GRU(24, 10, batch_first=True)
        self.activity, self.gains = nn.Linear(6, 1), nn.Linear(10, 5)

    def forward(self, features):
        first = torch.tanh(self.dense(features))
        voice = self.voice(first)[0]
        noise = self.noise(torch.cat([first, voice, features], -1))[0]
        denoised = self.denoise(torch.cat([noise, voice, features], -1))[0]
        return torch.sigmoid(self.gains(denoised)), torch.sigmoid(self.activity(voice))


class Predictor(nn.Module):
    """The prediction network of a transducer: tokens and states in, outputs and states out."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.rnn = nn.LSTM(6, 8, 2)
        self.head = nn.Linear(8, 20)

    def forward(self, targets, h, c):
        x = self.embedding(targets).transpose(0, 1)
        hidden, (h, c) = self.rnn(x, (h, c))
        return self.head(hidden.transpose(0, 1)).log_softmax(-1), h, c


class Unrolled(nn.Module):
    """Cells called in a loop of the code over a window of fixed length."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LSTMCell(4, 6), nn.GRUCell(6, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        h, c = x.new_zeros(x.size(0), 6), x.new_zeros(x.size(0), 6)
        state, outputs = h, []
        for step in range(5):
            h, c = self.first(x[:, step], (h, c))
            state = self.second(h, state)
            outputs.append(self.head(state))
        return torch.stack(outputs, dim=1)


class Reversed(nn.Module):
    """Two GRUs of one direction each; the second reads the steps backwards."""

    def __init__(self):
        super().__init__()
        self.forwards, self.backwards = nn.GRU(4, 6, batch_first=True), nn.GRU(4, 6, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        forwards, _ = self.forwards(x)
        backwards, _ = self.backwards(x.flip(1))
        return self.head(torch.cat([forwards, backwards.flip([1])], dim=-1))


# ---- convolutions ------------------------------------------------------------------------------------------


class GatedConvolutions(nn.Module):
    """Causal dilated convolutions with gates, residuals and skips (as WaveNet); [batch, channels, time]."""

    def __init__(self):
        super().__init__()
        self.input = nn.Conv1d(3, 6, 1)
        self.layers = nn.ModuleList(nn.Conv1d(6, 12, 2, dilation=dilation) for dilation in (1, 2, 4))
        self.residuals = nn.ModuleList(nn.Conv1d(6, 6, 1) for _ in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(6, 8, 1) for _ in range(3))
        self.output = nn.Sequential(nn.ReLU(), nn.Conv1d(8, 8, 1), nn.ReLU(), nn.Conv1d(8, 4, 1))

    def forward(self, x):
        x, total = self.input(x), 0.0
        for layer, residual, skip in zip(self.layers, self.residuals, self.skips, strict=True):
            filtered, gate = layer(functional.pad(x, (layer.dilation[0], 0))).chunk(2, dim=1)
            made = torch.tanh(filtered) * torch.sigmoid(gate)
            total, x = total + skip(made), x + residual(made)
        return self.output(total)


class TemporalBlock(nn.Module):
    """Two causal convolutions that cut off what padding adds at the end, and a residual."""

    def __init__(self, inputs, outputs, dilation):
        super().__init__()
        self.excess = 2 * dilation
        sizes = {"kernel_size": 3, "padding": self.excess, "dilation": dilation}
        self.first = nn.utils.parametrizations.weight_norm(nn.Conv1d(inputs, outputs, **sizes))
        self.second = nn.utils.parametrizations.weight_norm(nn.Conv1d(outputs, outputs, **sizes))
        self.down = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x):
        made = torch.relu(self.first(x)[:, :, : -self.excess].contiguous())
        made = torch.relu(self.second(made)[:, :, : -self.excess].contiguous())
        return torch.relu(made + (x if self.down is None else self.down(x)))


class TemporalNetwork(nn.Module):
    """A temporal convolutional network that classifies at every step."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(TemporalBlock(4, 6, 1), TemporalBlock(6, 6, 2))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.blocks(x.transpose(1, 2)).transpose(1, 2))


class GatedLinear(nn.Module):
    """Convolutions with gated linear units and residuals, as language models of convolutions have them."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(25, 6)
        self.convolutions = nn.ModuleList(nn.Conv1d(6, 12, 3) for _ in range(2))
        self.head = nn.Linear(6, 9)

    def forward(self, tokens):
        x = self.embedding(tokens).transpose(1, 2)
        for convolution in self.convolutions:
            x = (functional.glu(convolution(functional.pad(x, (2, 0))), dim=1) + x) * 0.5**0.5
        return self.head(x.transpose(1, 2))


class ConformerConvolution(nn.Module):
    """The module of convolutions of a Conformer, twice, with half steps of feed-forward layers."""

    def __init__(self, width=8):
        super().__init__()
        self.feed = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 16), nn.SiLU(), nn.Linear(16, width))
        self.before = nn.LayerNorm(width)
        self.wide = nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, 5, padding=2, groups=width)
        self.norm = nn.BatchNorm1d(width)
        self.narrow = nn.Conv1d(width, width, 1)
        self.after = nn.LayerNorm(width)

    def forward(self, x):
        x = x + 0.5 * self.feed(x)
        made = functional.glu(self.wide(self.before(x).transpose(1, 2)), dim=1)
        made = functional.silu(self.norm(self.depthwise(made)))
        return self.after(x + self.narrow(made).transpose(1, 2))


class Upsampler(nn.Module):
    """A vocoder: frames become samples by transposed convolutions; [batch, bands, frames]."""

    def __init__(self):
        super().__init__()
        self.before = nn.Conv1d(6, 8, 5, padding=2)
        self.up = nn.ModuleList([nn.ConvTranspose1d(8, 6, 4, 2, 1), nn.ConvTranspose1d(6, 4, 4, 2, 1)])
        self.blocks = nn.ModuleList(
            [nn.Conv1d(6, 6, 3, padding=1), nn.Conv1d(4, 4, 3, dilation=2, padding=2)]
        )
        self.after = nn.Conv1d(4, 1, 5, padding=2)

    def forward(self, mel):
        x = self.before(mel)
        for up, block in zip(self.up, self.blocks, strict=True):
            x = up(functional.leaky_relu(x, 0.1))
            x = x + block(functional.leaky_relu(x, 0.1))
        return torch.tanh(self.after(functional.leaky_relu(x)))


class Enhancer(nn.Module):
    """Halves time, runs a GRU there, and doubles it again; rectifiers have slopes of their own."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv1d(4, 8, 4, stride=2, padding=1), nn.PReLU(8))
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.up = nn.Sequential(nn.ConvTranspose1d(16, 6, 4, stride=2, padding=1), nn.PReLU())
        self.mask = nn.Conv1d(6, 4, 1)

    def forward(self, spectrum):
        x = self.down(spectrum)
        hidden = self.rnn(x.transpose(1, 2))[0].transpose(1, 2)
        return spectrum * torch.sigmoid(self.mask(self.up(torch.cat([x, hidden], dim=1))))


class Separator(nn.Module):
    """Blocks of Conv-TasNet: rectifiers with slopes, norms of groups, depthwise convolutions."""

    def __init__(self, width=6, inner=8):
        super().__init__()
        self.norm = nn.GroupNorm(1, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(width, inner, 1), nn.PReLU(), nn.GroupNorm(2, inner),
                nn.Conv1d(inner, inner, 3, padding=dilation, dilation=dilation, groups=inner), nn.PReLU(),
                nn.GroupNorm(1, inner), nn.Conv1d(inner, width, 1),
            ) for dilation in (1, 2)
        )  # fmt: skip
        self.masks = nn.Conv1d(width, 2 * width, 1)

    def forward(self, mixture):
        x = self.norm(mixture)
        for block in self.blocks:
            x = x + block(x)
        masks = torch.sigmoid(self.masks(x)).view(x.size(0), 2, -1, x.size(2))
        return masks * mixture.unsqueeze(1)


# ---- self-attention ----------------------------------------------------------------------------------------


class Attending(nn.Module):
    """An LSTM, then a layer of a transformer over its steps."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(5, 8, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(self.rnn(x)[0]))


class MaskedAttention(nn.Module):
    """Learned positions, self-attention written by hand with a mask of padding, and a mean."""

    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads, self.width = heads, width
        self.tokens, self.positions = nn.Embedding(30, width), nn.Embedding(40, width)
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, tokens, mask):
        batch, steps = tokens.shape
        x = self.tokens(tokens) + self.positions(torch.arange(steps, device=tokens.device))
        q, k, v = self.joined(x).view(batch, steps, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1) / (self.width // self.heads) ** 0.5
        scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e9)
        made = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, steps, self.width)
        x = self.norm(x + self.out(made)) * mask.unsqueeze(-1)
        return self.head(x.sum(1) / mask.sum(1, keepdim=True))


class Projected(nn.Module):
    """An LSTM whose states are projected to fewer numbers."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(5, 10, 2, batch_first=True, proj_size=4)

    def forward(self, x):
        hidden, (h, c) = self.rnn(x)
        return {"hidden": hidden, "states": (h, c)}


# ---- with control flow, scripted ---------------------------------------------------------------------------


class Voice(nn.Module):
    """A voice detector of pieces of a stream: a transform by convolution, an encoder and a cell."""

    def __init__(self, window):
        super().__init__()
        self.window = window
        self.transform = nn.Conv1d(1, 10, window // 4, stride=window // 8, bias=False)
        self.encoder = nn.Conv1d(5, 8, 3, stride=2, padding=1)
        self.rnn = nn.LSTMCell(8, 8)
        self.head = nn.Conv1d(8, 1, 1)

    def forward(self, x: Tensor, state: Tensor):
        transformed = self.transform(functional.pad(x, (0, self.window // 8)).unsqueeze(1))
        magnitude = torch.sqrt(transformed[:, :5] ** 2 + transformed[:, 5:] ** 2)
        encoded = functional.relu(self.encoder(magnitude)).mean(-1)
        h, c = self.rnn(encoded, (state[0], state[1]))
        speech = torch.sigmoid(self.head(functional.relu(h).unsqueeze(-1)))
        return speech.squeeze(-1), torch.stack([h, c])


class VoiceOfRate(nn.Module):
    """A detector for each of two sampling rates; the rate is an input."""

    def __init__(self):
        super().__init__()
        self.fast, self.slow = Voice(64), Voice(32)

    def forward(self, x: Tensor, state: Tensor, rate: Tensor):
        if rate == 16000:
            speech, state = self.fast(x, state)
        else:
            speech, state = self.slow(x, state)
        return speech, state


class SpeechDecoder(nn.Module):
    """A decoder of Tacotron: at every frame, attention over a text, two cells and a frame."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LSTMCell(12, 8), nn.LSTMCell(16, 8)
        self.query, self.memory = nn.Linear(8, 6, bias=False), nn.Linear(8, 6, bias=False)
        self.score, self.frame = nn.Linear(6, 1, bias=False), nn.Linear(16, 4)

    def forward(self, memory: Tensor, frames: Tensor):
        keys = self.memory(memory)
        h = torch.zeros(memory.size(0), 8)
        c, h2, c2 = torch.zeros_like(h), torch.zeros_like(h), torch.zeros_like(h)
        context, outputs = torch.zeros_like(h), torch.zeros(0, memory.size(0), 4)
        for step in range(frames.size(0)):
            h, c = self.first(torch.cat([frames[step], context], -1), (h, c))
            scores = self.score(torch.tanh(keys + self.query(h).unsqueeze(1))).squeeze(-1)
            context = torch.bmm(torch.softmax(scores, 1).unsqueeze(1), memory).squeeze(1)
            h2, c2 = self.second(torch.cat([h, context], -1), (h2, c2))
            outputs = torch.cat([outputs, self.frame(torch.cat([h2, context], -1)).unsqueeze(0)], 0)
        return outputs


def with_statistics(module: nn.Module) -> nn.Module:
    """Gives batch normalisations statistics, as training would; returns the module for inference."""
    for each in module.modules():
        if isinstance(each, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(each.running_mean, 0, 0.3)  # pyright: ignore[reportArgumentType]
            nn.init.uniform_(each.running_var, 0.5, 2)  # pyright: ignore[reportArgumentType]
            nn.init.uniform_(each.weight, 0.5, 1.5)
            nn.init.normal_(each.bias, 0, 0.3)
    return module.eval()
