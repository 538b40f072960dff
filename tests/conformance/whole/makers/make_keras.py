"""Makes saved/keras.tar.xz and saved/h5.tar.xz: models of Keras 3 as .keras, and as its older .h5.

    python tests/conformance/whole/make_keras.py

needs Keras with PyTorch; the lists say which version the saved ones are of.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import keras_series
import keras_sounds
import keras_texts
from keras_table import EXAMPLES, add
from recording import Recorder

SUFFIXES = {"keras": ".keras", "h5": ".h5"}

MODULES = (keras_series, keras_sounds, keras_texts)  # each adds its models to EXAMPLES

for kind, suffix in SUFFIXES.items():
    recorder = Recorder(kind, f"keras {keras.__version__}")
    for example in EXAMPLES[kind]:
        add(recorder, example, suffix)
    recorder.pack()
