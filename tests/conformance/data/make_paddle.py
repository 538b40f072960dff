"""Makes paddle.tar.xz and paddle.json: programs and weights that Paddle saved, and what Paddle computes.

Needs what the group peer-paddle of pyproject.toml has, in an environment of its own:
python tests/conformance/data/make_paddle.py
"""

from pathlib import Path

import paddle
from paddle import nn
from recording import FEATURES, WORDS, Arrays, Corpus, padded, weights

HIDDEN = 5


class Steps(nn.Layer):
    """A recurrent layer, and its outputs alone."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, frames):
        return self.rnn(frames)[0]


class Classifier(nn.Layer):
    """LSTM, Linear of its last state, softmax."""

    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(FEATURES, HIDDEN), nn.Linear(HIDDEN, 3)

    def forward(self, frames):
        return nn.functional.softmax(self.fc(self.lstm(frames)[1][0][-1]))


class Tagger(nn.Layer):
    """Embedding, a GRU in both directions, Linear."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 4)
        self.gru = nn.GRU(4, HIDDEN, direction="bidirect")
        self.fc = nn.Linear(2 * HIDDEN, 4)

    def forward(self, tokens):
        return self.fc(self.gru(self.embedding(tokens))[0])


class Speech(nn.Layer):
    """Conv1D, BatchNorm1D, ReLU, two LSTMs, LayerNorm, Linear, sigmoid."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv1D(FEATURES, 6, 3, padding=1), nn.BatchNorm1D(6)
        self.lstm, self.after = nn.LSTM(6, HIDDEN, num_layers=2), nn.LayerNorm(HIDDEN)
        self.fc = nn.Linear(HIDDEN, 1)

    def forward(self, frames):
        y = nn.functional.relu(self.norm(self.convolution(frames.transpose([0, 2, 1])))).transpose([0, 2, 1])
        return nn.functional.sigmoid(self.fc(self.after(self.lstm(y)[0])))


MODELS = {
    "lstm_steps": (lambda: Steps(nn.LSTM(FEATURES, HIDDEN)), "frames", "nn.LSTM, its outputs alone"),
    "gru_both": (
        lambda: Steps(nn.GRU(FEATURES, HIDDEN, num_layers=2, direction="bidirect")),
        "frames",
        "two nn.GRU in both directions, their outputs alone",
    ),
    "classifier": (Classifier, "frames", ""),
    "tagger": (Tagger, "tokens", ""),
    "speech": (Speech, "frames", ""),
}
PROGRAMS = ("lstm_steps", "gru_both", "classifier", "tagger", "speech")
WEIGHTS = ("gru_both", "speech")


def filled(name: str) -> nn.Layer:
    """A model with random numbers in all its arrays."""
    model = MODELS[name][0]()
    model.eval()
    for key, array in model.state_dict().items():
        positive = "gamma" if "norm" in key.lower() and key.endswith("weight") else ""
        key = key.replace("_variance", "_var")
        scale = "gamma" if positive or key.endswith("_var") or key == "after.weight" else ""
        array.set_value(weights(name, key + scale, tuple(array.shape)))
    return model


def operators(path: Path) -> dict[str, str]:
    """The operators of a saved program but its recurrent ones and its parameters."""
    program = paddle.jit.load(str(path)).program()
    names = [one.name() for one in program.global_block().ops]
    skipped = ("pd_op.rnn", "builtin.", "pd_op.data", "pd_op.fetch", "pd_op.feed", "pd_op.full")
    return {f"{name}_{place}": name for place, name in enumerate(names) if not name.startswith(skipped)}


def add(corpus: Corpus, name: str, program: bool) -> None:
    """Saves one model as a program or as its weights, and runs it."""
    model, (make, entry, about) = filled(name), MODELS[name]
    title = f"{name}_{'program' if program else 'weights'}"
    file = f"{title}.json" if program else f"{title}.pdparams"
    around = {key: type(part).__name__ for key, part in model.named_sublayers()}
    around = {
        key: kind
        for key, kind in around.items()
        if not isinstance(getattr(nn, kind, None), type)
        or not issubclass(getattr(nn, kind), nn.layer.rnn.RNNBase)
    }
    around = {
        key: kind for key, kind in around.items() if "Cell" not in kind and kind not in ("RNN", "BiRNN")
    }
    if program:
        kind = "int64" if entry == "tokens" else "float32"
        shape = [None, None] if entry == "tokens" else [None, None, FEATURES]
        spec = paddle.static.InputSpec(shape, kind, name=entry)
        paddle.jit.save(
            paddle.jit.to_static(model, input_spec=[spec], full_graph=True), str(corpus.folder / title)
        )
        around |= operators(corpus.folder / title)
        model = paddle.jit.load(str(corpus.folder / title))
    else:
        paddle.save(model.state_dict(), str(corpus.folder / file))

    def run(given: Arrays) -> Arrays:
        return {"outputs": model(paddle.to_tensor(given[entry])).numpy()}

    corpus.add(
        run,
        {entry: padded(title, entry)},
        name=title,
        kind="Paddle program" if program else "pdparams",
        file=file,
        about=about or (make.__doc__ or "").rstrip("."),
        around=around,
        inputs={entry: entry},
    )


def main() -> None:
    corpus = Corpus("Paddle", paddle.__version__)
    for name in PROGRAMS:
        add(corpus, name, program=True)
    for name in WEIGHTS:
        add(corpus, name, program=False)
    corpus.pack("paddle")


if __name__ == "__main__":
    main()
