"""A cell of one's own in Keras, trained on the task of the paper.

The independently recurrent network (S. Li and others, "Independently recurrent neural network (IndRNN):
building a longer and deeper RNN", CVPR 2018): h' = relu(W x + u h + b), where u is a vector. The adding
problem (S. Hochreiter and J. Schmidhuber, 1997): a sequence of random numbers, two of which are marked; the
answer is their sum. To answer 1 always is wrong by 0.167 (mean square).

Run it from the root of the repository (some ten seconds on two processors):

    .venv/bin/python examples/keras_cell.py [--steps N]
"""

import argparse
import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

import stepnet.keras

HIDDEN, TIME, ROWS = 64, 60, 50
STEPS, LEARNING_RATE = 400, 5e-3
ops: Any = keras.ops


@keras.saving.register_keras_serializable(package="examples")
class IndRNNCell(keras.layers.Layer):
    """One step: h' = relu(W x + u h + b)."""

    def __init__(self, units: int, **options: Any) -> None:
        super().__init__(**options)
        self.units = self.state_size = units
        self.inner = keras.layers.Dense(units)

    def build(self, input_shape: Any) -> None:
        """Makes W, b and u."""
        self.inner.build(input_shape)
        self.own = self.add_weight(shape=(self.units,), initializer=keras.initializers.RandomUniform(0, 1))

    def call(self, inputs: Any, states: Any) -> Any:
        """The next h."""
        h = ops.relu(self.inner(inputs) + self.own * states[0])
        return h, [h]

    def get_config(self) -> dict[str, Any]:
        """The configuration from which Keras makes the cell anew."""
        return {**super().get_config(), "units": self.units}


def problem(random: np.random.Generator) -> tuple[Any, Any]:
    """Sequences [rows, time, 2] of numbers and marks, and the answers [rows, 1]."""
    x = np.zeros((ROWS, TIME, 2), "float32")
    x[..., 0] = random.random((ROWS, TIME))
    for first in (0, TIME // 2):
        x[np.arange(ROWS), first + random.integers(TIME // 2, size=ROWS), 1] = 1
    return x, (x[..., 0] * x[..., 1]).sum(1, keepdims=True)


def train(layers: Any = stepnet.keras, count: int = STEPS) -> tuple[Any, list[float]]:
    """The model, and the loss of each step of training. layers: whose `RNN` runs the cells."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((TIME, 2)),
            layers.RNN(IndRNNCell(HIDDEN), return_sequences=True),
            layers.RNN(IndRNNCell(HIDDEN)),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(LEARNING_RATE, clipnorm=1.0), "mse")
    random = np.random.default_rng(1)
    return model, [float(model.train_on_batch(*problem(random))) for _ in range(count)]


def main(arguments: list[str] | None = None) -> None:
    """Trains, and prints how wrong the answers are, and what ran."""
    parser = argparse.ArgumentParser(description="Train the independently recurrent network to add.")
    parser.add_argument("--steps", type=int, default=STEPS)
    model, losses = train(count=parser.parse_args(arguments).steps)
    print(f"wrong by {losses[0]:.4f} at first, {np.mean(losses[-20:]):.4f} at last (mean square)")
    print(stepnet.keras.report(model))


if __name__ == "__main__":
    main()
