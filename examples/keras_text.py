"""A classifier of text in Keras: does a paragraph describe types and their methods, or statements?

The text is Python's own documentation (pydoc_data.topics), which every Python brings along: the paragraphs of
its topics on types, and of those on statements. The model is an embedding, an LSTM with both dropouts, and a
dense layer. Paragraphs are as long as they are: zeros behind them are masked, and masked steps are left out.

Run it from the root of the repository (half a minute on two processors):

    .venv/bin/python examples/keras_text.py [--epochs N] [--units N]
"""

import argparse
import os
import re
from collections import Counter
from pydoc_data.topics import topics
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

import stepnet.keras

TYPES = (
    "types",
    "string-methods",
    "typesseq",
    "typesmapping",
    "formatstrings",
    "strings",
    "bltin-type-objects",
)
STATEMENTS = (
    "compound",
    "assignment",
    "execmodel",
    "import",
    "function",
    "class",
    "try",
    "with",
    "for",
    "del",
)
WORDS, LONGEST, EPOCHS, UNITS, BATCH = 1500, 60, 6, 64, 32


def paragraphs(names: tuple[str, ...]) -> list[list[str]]:
    """The words of each paragraph of some topics, in small letters."""
    parts = [part for name in names for part in topics[name].split("\n\n")]
    words = [re.findall(r"[a-z]+", part.lower())[:LONGEST] for part in parts]
    return [part for part in words if len(part) >= 5]


def read() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """The paragraphs and what they are about, to train with and to test with: numbers of words
    [paragraphs, time], with zeros behind each, and 1 for statements.
    """
    kinds = [paragraphs(TYPES), paragraphs(STATEMENTS)]
    counts = Counter(word for kind in kinds for part in kind for word in part)
    number = {word: place + 1 for place, (word, _) in enumerate(counts.most_common(WORDS))}
    labels = np.repeat(np.arange(2, dtype="float32"), [len(kind) for kind in kinds])[:, None]
    numbers = np.zeros((len(labels), LONGEST), "int32")
    for row, part in zip(numbers, kinds[0] + kinds[1], strict=True):
        row[: len(part)] = [number.get(word, 0) or WORDS + 1 for word in part]
    test = np.arange(len(labels)) % 5 == 0
    return (numbers[~test], labels[~test]), (numbers[test], labels[test])


def model(layers: Any = stepnet.keras, units: int = UNITS) -> Any:
    """The model. layers: whose LSTM it has, that of stepnet.keras or of keras.layers."""
    made = keras.Sequential(
        [
            keras.layers.Embedding(WORDS + 2, units, mask_zero=True),
            layers.LSTM(units, dropout=0.2, recurrent_dropout=0.2),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    made.compile(keras.optimizers.Adam(3e-3), "binary_crossentropy", metrics=["accuracy"])
    return made


def train(
    layers: Any = stepnet.keras, epochs: int = EPOCHS, units: int = UNITS
) -> tuple[Any, list[float], float]:
    """A trained model, the loss of each epoch, and the share of test paragraphs told right."""
    keras.utils.set_random_seed(0)
    (x, y), (test_x, test_y) = read()
    made = model(layers, units)
    history = made.fit(x, y, BATCH, epochs, verbose=0)
    return made, history.history["loss"], made.evaluate(test_x, test_y, verbose=0)[1]


def main(arguments: list[str] | None = None) -> None:
    """Trains, and prints how many paragraphs are told right, and what ran."""
    parser = argparse.ArgumentParser(description="Train a classifier of paragraphs.")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--units", type=int, default=UNITS)
    options = parser.parse_args(arguments)
    made, losses, share = train(epochs=options.epochs, units=options.units)
    print(
        f"{100 * share:.1f}% of the test paragraphs right after {len(losses)} epochs; loss {losses[-1]:.3f}"
    )
    print(stepnet.keras.report(made))


if __name__ == "__main__":
    main()
