"""Voice activity on a microcontroller without floats: does somebody speak, in frames of 8 ms?

A GRU hears the logarithms of the energies of 16 bands, and says how sure it is that somebody spoke 48 ms
ago. It is trained in PyTorch on recorded speech, which `sounds.py` puts into noises; nothing is downloaded.
Where somebody speaks the energies of the recordings tell. The test has other speakers and noises.
`sn.quantize` makes the GRU a model of integers alone, which becomes C99: `voice_activity.c` runs it frame by
frame.

Run it from the root of the repository (half a minute; it needs a C compiler):

    .venv/bin/python examples/voice_activity.py build/voice [--epochs N]
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from on_devices import Array, Example, Network, Parameters, fitted, made, main
from sound_features import BANDS, features, spectra
from sounds import NEW, Scene, held_out, training_scenes
from torch import nn

import stepnet as sn
from stepnet.cli.demo import gru

HIDDEN, EPOCHS = 32, 30
SCENES, FRAMES, BATCH = 480, 250, 24
SEEDS = {"training": 2_000_000, "test": 3_000_000}
"""The first numbers of scenes: each has a speaker of its own."""
ACTIVATIONS = "int8"
DELAY = 6
"""The frames that are heard after the one that is decided on."""


def heard(scenes: list[Scene]) -> Array:
    """Returns the features of scenes [scenes, frames, 16]."""
    return np.stack([features(spectra(each.noisy)) for each in scenes])


@dataclass(frozen=True)
class Trained:
    """A trained detector: parameters by their names in PyTorch, and what features are scaled by: their means
    and deviations. samples: some scaled features of training [scenes, frames, 16].
    """

    params: Parameters
    mean: Array
    deviation: Array
    samples: Array

    def scaled(self, values: Array) -> Array:
        """Returns features as the detector takes them."""
        return ((values - self.mean) / self.deviation).astype(np.float32)


def train(epochs: int = EPOCHS, count: int = SCENES) -> Trained:
    """Trains a detector on scenes."""
    torch.manual_seed(0)
    scenes = training_scenes(SEEDS["training"], count, FRAMES, 20)
    values = heard(scenes)
    mean, deviation = values.mean((0, 1)), values.std((0, 1))
    scaled = ((values - mean) / deviation).astype(np.float32)
    inputs = torch.from_numpy(scaled)
    active = torch.from_numpy(np.stack([each.active for each in scenes]).astype(np.float32))
    network = Network(BANDS, HIDDEN, 1)

    def loss(chosen: torch.Tensor) -> torch.Tensor:
        """The cross-entropy of what is told, which is `DELAY` frames behind."""
        sure, right = network(inputs[chosen])[:, DELAY:, 0], active[chosen, :-DELAY]
        return nn.functional.binary_cross_entropy_with_logits(sure, right)

    return Trained(fitted(network, loss, count, BATCH, epochs, 1e-2), mean, deviation, scaled[::8])


def detect(x: Array, h: Array, p: Parameters) -> tuple[Array, Array]:
    """Computes one frame: how sure it is that somebody speaks, and the GRU's memory."""
    _, h = gru(x, h, {name.removeprefix("gru."): value for name, value in p.items()})
    return sn.sigmoid(h @ p["head.weight"].T + p["head.bias"]), h


# ---- the test


def scenes() -> list[Scene]:
    """Makes the scenes of the test."""
    return held_out(SEEDS["test"], FRAMES)


@dataclass(frozen=True)
class Judgement:
    """The parts of frames that are decided right, of frames with speech that are missed, and of frames
    without that are taken for speech.
    """

    right: float
    missed: float
    false: float


def judge(decisions: Array, active: Array) -> Judgement:
    """Compares decisions [frames], which are `DELAY` frames behind, with the truth [frames]."""
    decisions, active = decisions[DELAY:], active[:-DELAY]
    spoken, quiet = decisions[active], decisions[~active]
    return Judgement(float(np.mean(decisions == active)), float(np.mean(~spoken)), float(np.mean(quiet)))


def make(folder: Path, epochs: int = EPOCHS, count: int = SCENES) -> Example:
    """Makes the detector in C99 of integers, and the frames of the test, in a folder."""
    trained = train(epochs, count)
    rnn = sn.RNN(detect, trained.params, memory=HIDDEN)
    small = sn.quantize(rnn, [trained.samples], "int8", activations=ACTIVATIONS)
    frames = trained.scaled(heard(scenes()).reshape(-1, BANDS))
    return made(folder, "voice", Path(__file__), rnn, frames, small)


def report(example: Example, sure: Array) -> None:
    """Prints how often the detector is right, in floats and in C."""
    rows, (y,) = scenes(), example.made.program.of("output")
    assert y.scale is not None
    active = np.concatenate([each.active for each in rows])
    in_floats = example.rnn(example.frames[None])[0][0, :, 0] > 0.5
    in_c = sure[:, 0] > int(0.5 / y.scale)
    for name, decisions in {"in float32": in_floats, "in C": in_c}.items():
        found = judge(decisions, active)
        print(f"{name}: {found.right:.1%} of {len(active)} frames right, ", end="")
        print(f"{found.missed:.1%} of speech missed, {found.false:.1%} false alarms")
    for name in NEW:
        own = np.repeat([each.name == name for each in rows], FRAMES)
        print(f"in {name}: {judge(in_c[own], active[own]).right:.1%} of frames right")


if __name__ == "__main__":
    main(__doc__, make, report, EPOCHS)
