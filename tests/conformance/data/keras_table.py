"""The table of models of Keras, and what their builders share.

A function builds a model; its decorator says which inputs it takes, in order, and what is saved.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import keras
from recording import FEATURES

EVERY = {"return_sequences": True}


@dataclass(frozen=True)
class Maker:
    """A function that makes a model, the inputs that it takes, and the results it can give.

    around: what is no layer and yet not Keras' own, such as an activation.
    """

    build: Callable[[], keras.Model]
    inputs: tuple[str, ...] = ("frames",)
    suffix: str = ".keras"
    around: dict[str, str] = field(default_factory=dict)
    results: str = "padded, alone"
    limits: str = ""


MAKERS: list[Maker] = []


def model(*inputs: str, **options) -> Callable:
    """Adds a function to the table."""

    def adding(build: Callable[[], keras.Model]) -> Callable[[], keras.Model]:
        MAKERS.append(Maker(build, inputs or ("frames",), **options))
        return build

    return adding


def frames(name: str = "frames", features: int = FEATURES):
    return keras.Input((None, features), name=name)


def words(name: str = "tokens"):
    return keras.Input((None,), name=name, dtype="int32")


def row(*parts) -> keras.Sequential:
    """Layers over frames, one after another."""
    return keras.Sequential([frames(), *parts])


def texts(*parts) -> keras.Sequential:
    """Layers over tokens, one after another."""
    return keras.Sequential([words(), *parts])
