"""Makes keras.tar.xz and keras.json: models that Keras 3 saved, as .keras and .h5, and what Keras computes.

Runs in the environment of the tests: python tests/conformance/data/make_keras.py
"""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import keras_models  # noqa: F401  these three fill the table
import keras_recurrent  # noqa: F401
import keras_users  # noqa: F401
import numpy as np
from keras_table import MAKERS, Maker
from recording import Corpus, padded, weights

RECURRENT = ("LSTM", "GRU", "SimpleRNN", "RNN", "Bidirectional")


def fill(model: keras.Model, name: str) -> None:
    """Gives a model random weights; what a Normalization counted stays."""
    for place, variable in enumerate(model.weights):
        if not variable.path.endswith("count"):
            variable.assign(weights(name, f"{place}/{variable.path}", tuple(variable.shape)))
    for layer in model.layers:
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


def around(model: keras.Model) -> dict[str, str]:
    """All layers and operations of a model but its inputs and its recurrent layers."""
    found = {}
    parts = model.layers if isinstance(model, keras.Sequential) else model.operations
    for part in parts:
        if isinstance(part, keras.Model):
            found |= {part.name: type(part).__name__, **around(part)}
        elif type(part).__name__ not in ("InputLayer", *RECURRENT):
            found[part.name] = type(part).__name__
    return found


def add(corpus: Corpus, make: Maker) -> None:
    """Builds, fills, saves and runs one model."""
    keras.utils.clear_session()
    model = make.build()
    name = make.build.__name__
    fill(model, name)
    file = f"{name}{make.suffix}"
    path = str(corpus.folder / file)
    if make.suffix == ".weights.h5":
        model.save_weights(path)
    else:
        model.save(path)
        model = keras.models.load_model(path, safe_mode=False)  # what the file says is what is run
    inputs = dict(zip((one.name for one in model.inputs), make.inputs, strict=True))
    shapes = {
        one.name: tuple(one.shape[1 if kind == "context" else 2 :])
        for one, kind in zip(model.inputs, make.inputs, strict=True)
    }
    batch = {key: padded(f"{name}/{key}", kind, shapes[key]) for key, kind in inputs.items()}
    names = [tensor._keras_history.operation.name for tensor in model.outputs]
    unique = names if len(set(names)) == len(names) else [f"{one}_{i}" for i, one in enumerate(names)]

    def run(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        for layer in model.layers:
            if getattr(layer, "stateful", False):
                layer.reset_state()
        called = [given[key] for key in inputs]
        made = keras.tree.flatten(model(called if len(called) > 1 else called[0], training=False))
        return dict(zip(unique, map(keras.ops.convert_to_numpy, made), strict=True))

    stands = {**around(model), **make.around}
    corpus.add(
        run,
        batch,
        results=make.results,
        name=name,
        kind=make.suffix.removeprefix("."),
        file=file,
        about=" ".join((make.build.__doc__ or "").split()).rstrip("."),
        around=stands,
        inputs=inputs,
        limits=make.limits,
    )


def main() -> None:
    corpus = Corpus("keras", keras.__version__)
    for make in MAKERS:
        add(corpus, make)
    corpus.pack("keras")


if __name__ == "__main__":
    main()
