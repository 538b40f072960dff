"""A file that Keras saved, served faster with one line: `stepnet.keras.accelerate()`.

Without a file, one is made first, as anybody would make it with Keras alone: a classifier of Japanese Vowels,
270 utterances of 7 to 26 frames. Utterances of a batch are padded, and the padding is masked.

Run it from the root of the repository (half a minute on two processors):

    .venv/bin/python examples/keras_serve.py [FILE.keras] [--epochs N]
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import pyarrow.parquet as parquet

import stepnet.keras

DATA = Path(__file__).resolve().parents[1] / "src" / "stepnet" / "cli" / "data" / "japanese_vowels.parquet"
FEATURES, UNITS, SPEAKERS, EPOCHS, BATCH, ROUNDS = 12, 64, 9, 3, 30, 5


def read(split: str) -> tuple[Any, Any]:
    """The utterances of one split [utterances, frames, features], with zeros behind each, and their speakers
    counted from 0.
    """
    rows = parquet.read_table(DATA, filters=[("split", "==", split)])
    frames = [np.array(one, "float32") for one in rows["frames"].to_pylist()]
    x = np.zeros((len(frames), max(map(len, frames)), FEATURES), "float32")
    for row, one in zip(x, frames, strict=True):
        row[: len(one)] = one
    return x, np.array(rows["speaker"].to_pylist()) - 1


def save(path: Path, epochs: int = EPOCHS) -> None:
    """Trains a classifier with Keras alone, and saves it."""
    keras.utils.set_random_seed(0)
    model: Any = keras.Sequential(
        [
            keras.Input((None, FEATURES)),
            keras.layers.Masking(),
            keras.layers.Bidirectional(keras.layers.GRU(UNITS)),
            keras.layers.Dense(SPEAKERS, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy")
    model.fit(*read("train"), BATCH, epochs, verbose=0)
    model.save(path)


def served(model: Any, x: Any) -> tuple[Any, float]:
    """The answers to one request after the other, and the milliseconds of a request."""
    requests = np.array_split(x, max(1, len(x) // BATCH))
    answers, times = list[Any](), list[float]()
    for _ in range(2):  # the first round does not count
        answers, times = [], []
        for request in requests[:ROUNDS]:
            begun = time.perf_counter()
            answers.append(model.predict_on_batch(request))
            times.append(time.perf_counter() - begun)
    return np.concatenate(answers), 1000 * median(times)


def main(arguments: list[str] | None = None) -> None:
    """Loads a file, and prints how long requests take without and with stepnet, and how far they differ."""
    parser = argparse.ArgumentParser(description="Serve a file that Keras saved.")
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder, "speakers.keras")
        if options.file is None:
            save(path, options.epochs)
        model = keras.saving.load_model(path)
    x, speakers = read("test")
    right, theirs = served(model, x)
    with stepnet.keras.accelerate():  # the line
        answers, ours = served(model, x)
    print(f"a request of {BATCH} utterances: {theirs:.1f} ms by Keras, {ours:.1f} ms by stepnet")
    print(f"the answers differ by {abs(answers - right).max():.1e} at most")
    told = answers.argmax(1) == speakers[: len(answers)]
    print(f"{100 * told.mean():.1f}% of {len(told)} utterances right")


if __name__ == "__main__":
    main()
