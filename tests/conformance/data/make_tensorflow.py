"""Makes tensorflow.tar.xz and tensorflow.json: models of Keras 2 and TensorFlow, and what they compute.

Needs what the group peer-tensorflow of pyproject.toml has, in an environment of its own:
python tests/conformance/data/make_tensorflow.py
"""

import os

os.environ.update(TF_USE_LEGACY_KERAS="1", CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3")
os.environ.update(TF_ENABLE_ONEDNN_OPTS="0")

from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras as keras
from recording import FEATURES, STEPS, WORDS, Arrays, Corpus, padded, weights
from tf_keras import layers

EVERY = {"return_sequences": True}
RECURRENT = (layers.RNN, layers.Bidirectional)


def row(*parts: layers.Layer) -> keras.Model:
    """Layers over frames, one after another."""
    return keras.Sequential([keras.Input((None, FEATURES), name="frames"), *parts])


def texts(*parts: layers.Layer) -> keras.Model:
    """Layers over tokens, one after another."""
    return keras.Sequential([keras.Input((None,), name="tokens", dtype="int32"), *parts])


def lstm() -> keras.Model:
    """An LSTM with its outputs at every step."""
    return row(layers.LSTM(5, **EVERY))


def gru() -> keras.Model:
    """A GRU with reset_after=False and its outputs at every step."""
    return row(layers.GRU(5, reset_after=False, **EVERY))


def stack() -> keras.Model:
    """A GRU and an LSTM in both directions."""
    return row(layers.GRU(5, **EVERY), layers.Bidirectional(layers.LSTM(4, **EVERY)))


def backwards() -> keras.Model:
    """A SimpleRNN with go_backwards=True and its outputs at every step."""
    return row(layers.SimpleRNN(5, go_backwards=True, **EVERY))


def sentiment() -> keras.Model:
    """Embedding with mask_zero, LSTM, Dense."""
    embedding = layers.Embedding(WORDS, 5, mask_zero=True)
    return texts(embedding, layers.LSTM(6), layers.Dense(1, activation="sigmoid"))


def masked() -> keras.Model:
    """Masking, a GRU in both directions, TimeDistributed Dense."""
    both = layers.Bidirectional(layers.GRU(4, **EVERY))
    return row(layers.Masking(), both, layers.TimeDistributed(layers.Dense(3, activation="softmax")))


def sensors() -> keras.Model:
    """BatchNormalization, Conv1D, LSTM, Dense."""
    convolution = layers.Conv1D(6, 3, padding="same", activation="relu")
    return row(layers.BatchNormalization(), convolution, layers.LSTM(5), layers.Dense(3))


def normalised() -> keras.Model:
    """LSTM, LayerNormalization, GRU, Dense at every step."""
    return row(layers.LSTM(5, **EVERY), layers.LayerNormalization(), layers.GRU(4, **EVERY), layers.Dense(2))


def head() -> keras.Model:
    """LSTM and Dense at every step."""
    return row(layers.LSTM(5, **EVERY), layers.Dense(3, activation="tanh"))


Saving = Callable[[keras.Model, Path], None]


def checkpoint(model: keras.Model, path: Path) -> None:
    """A checkpoint of tf.train.Checkpoint."""
    tf.train.Checkpoint(model=model).write(str(path))


def saved_model(model: keras.Model, path: Path) -> None:
    """A SavedModel."""
    model.save(path, save_format="tf")


def h5(model: keras.Model, path: Path) -> None:
    """An .h5 of Keras 2."""
    model.save(path, save_format="h5")


def keras_2(model: keras.Model, path: Path) -> None:
    """A .keras of Keras 2."""
    model.save(path, save_format="keras")


def weights_alone(model: keras.Model, path: Path) -> None:
    """An .h5 of Keras 2 of weights."""
    model.save_weights(path, save_format="h5")


def tflite(model: keras.Model, path: Path) -> None:
    """A model of TFLite for one sequence of seven steps, with fused recurrences."""
    call = tf.function(lambda frames: model(frames, training=False))
    signature = call.get_concrete_function(tf.TensorSpec((1, STEPS, FEATURES), tf.float32, name="frames"))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([signature], model)
    path.write_bytes(converter.convert())


KINDS: dict[str, tuple[Saving, str, tuple[Callable[[], keras.Model], ...]]] = {
    "h5 of Keras 2": (h5, ".h5", (gru, stack, backwards, sentiment, masked, sensors)),
    "keras of Keras 2": (keras_2, ".keras", (normalised, lstm)),
    "weights.h5 of Keras 2": (weights_alone, ".weights.h5", (head,)),
    "SavedModel": (saved_model, "", (lstm, sentiment, sensors, masked)),
    "TensorFlow checkpoint": (checkpoint, "", (lstm, head)),
    "TFLite": (tflite, ".tflite", (lstm, head, sensors)),
}
MASKED = ("sentiment", "masked")


def interpreted(path: Path) -> tuple[Callable[[Arrays], Arrays], dict[str, str]]:
    """The results of TFLite for a file, and the operators of the file."""
    reference = tf.lite.experimental.OpResolverType.BUILTIN_REF
    interpreter = tf.lite.Interpreter(str(path), experimental_op_resolver_type=reference)
    found = {
        f"{one['op_name']}_{one['index']}": one["op_name"]
        for one in interpreter._get_ops_details()
        if one["op_name"] not in ("UNIDIRECTIONAL_SEQUENCE_LSTM", "DELEGATE")
    }

    def run(given: Arrays) -> Arrays:
        interpreter.allocate_tensors()
        interpreter.reset_all_variables()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], given["frames"])
        interpreter.invoke()
        return {
            one["name"].replace("/", "_"): interpreter.get_tensor(one["index"]).copy()
            for one in interpreter.get_output_details()
        }

    return run, found


def add(corpus: Corpus, kind: str, make: Callable[[], keras.Model]) -> None:
    """Saves one model as one kind of file, and runs it."""
    save, suffix, _ = KINDS[kind]
    keras.backend.clear_session()
    model, title = (
        make(),
        f"{make.__name__}_{kind.replace(' of ', '_').replace(' ', '_').replace('.', '_').lower()}",
    )
    for place, variable in enumerate(model.weights):
        variable.assign(weights(title, f"{place}/{variable.name.split(':')[0]}", tuple(variable.shape)))
    path = corpus.folder / f"{title}{suffix}"
    save(model, path)
    entry = model.inputs[0].name
    given = {entry: padded(title, f"{'gapped ' if make.__name__ in MASKED else ''}{entry}")}
    around = {one.name: type(one).__name__ for one in model.layers if not isinstance(one, RECURRENT)}
    limits, file = "", path.name

    def run(given: Arrays) -> Arrays:
        inputs = {
            key: array.astype("int32") if array.dtype.kind == "i" else array for key, array in given.items()
        }
        return {model.output_names[0]: model(inputs[entry], training=False).numpy()}

    if kind == "TFLite":
        limits = "one sequence of 7 steps"
        keras_2s = run(given)
        run, around = interpreted(path)
        (found,), (right,) = run({entry: given[entry][:1]}).values(), keras_2s.values()
        np.testing.assert_allclose(found, right[:1], atol=1e-5)
    elif kind == "TensorFlow checkpoint":
        file = f"{title}.index"
    corpus.add(
        run,
        given,
        results="row 0" if limits else "padded, alone",
        name=title,
        kind=kind,
        file=file,
        about=f"{(make.__doc__ or '').rstrip('.')}; {(save.__doc__ or '').rstrip('.')}",
        around=around,
        inputs={entry: f"{'gapped ' if make.__name__ in MASKED else ''}{entry}"},
        limits=limits,
    )


def main() -> None:
    corpus = Corpus("tf_keras and TensorFlow", f"tf_keras {keras.__version__}, tensorflow {tf.__version__}")
    for kind, (_, _, made) in KINDS.items():
        for make in made:
            add(corpus, kind, make)
    corpus.pack("tensorflow")


if __name__ == "__main__":
    main()
