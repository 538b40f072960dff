"""Makes saved_model.tar.xz: a Keras model exported and saved, and what TensorFlow computes.

Needs TensorFlow, which the tests do not: python make_saved_model.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import keras
import numpy as np
import tensorflow as tf
from packing import pack

with TemporaryDirectory() as folder:
    keras.utils.set_random_seed(3)
    x = keras.Input((None, 2), name="x")
    y = keras.layers.GRU(3, return_sequences=True, bias_initializer="random_normal", name="encoder")(x)
    y = keras.layers.Bidirectional(keras.layers.LSTM(3, return_sequences=True), name="both")(y)
    model = keras.Model(x, keras.layers.Dense(2, name="head")(y))
    model.export(f"{folder}/exported", verbose=False)
    tf.saved_model.save(model, f"{folder}/saved")
    inputs = np.random.default_rng(0).normal(size=(2, 5, 2)).astype("f4")
    outputs = keras.Model(x, y)(inputs).numpy()
    head = {f"head/{weight.name}": weight.numpy() for weight in model.get_layer("head").weights}
    np.savez(f"{folder}/outputs.npz", inputs=inputs, outputs=outputs, **head)
    pack("saved_model", Path(folder))
