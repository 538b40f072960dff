"""Noise suppression on a microcontroller: sound in, sound out, and all between is one step.

A step takes 64 new samples of 8 kHz, which are 8 ms. It computes the spectrum of these and the 64 before, and
the energies of 16 bands. A GRU, trained in PyTorch, gives a gain for each band; the weighted spectrum becomes
samples again, which are 64 behind those that came. The speech is recorded, `sounds.py` puts it into noises,
and nothing is downloaded. Speakers and noises of the test were not trained on.

This whole step becomes C99, which `noise_suppression.c` runs frame by frame.

Run it from the root of the repository (a minute; it needs a C compiler):

    .venv/bin/python examples/noise_suppression.py build/noise [--epochs N]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from on_devices import Array, Example, Network, Parameters, fitted, made, main
from sound_features import BANDS, QUIET, bands, features, spectra
from sounds import DECIBELS, FRAME, NEW, WINDOW, Scene, held_out, training_scenes

import stepnet as sn
from stepnet.cli.demo import gru

HIDDEN, EPOCHS = 48, 30
SCENES, FRAMES, BATCH = 360, 250, 40
SEEDS = {"training": 0, "test": 1_000_000}
"""The first numbers of scenes: each has a speaker of its own."""
SPAN = 2 * FRAME


def waves() -> Parameters:
    """Returns constants of the step: cosines and sines of the transform, the window, and the weights with
    which a spectrum becomes samples again.
    """
    turns = 2 * np.pi / SPAN * np.outer(np.arange(FRAME + 1), np.arange(FRAME + 1))
    back = np.full(FRAME + 1, 2 / SPAN)
    back[[0, -1]] /= 2
    known = {"cosines": np.cos(turns), "sines": np.sin(turns)[1:-1, 1:-1], "window": WINDOW, "back": back}
    return {name: value.astype(np.float32) for name, value in known.items()}


# ---- training


def away(gains: torch.Tensor, noisy: torch.Tensor, clean: torch.Tensor) -> torch.Tensor:
    """Computes the noise that is left, and the speech that is lost, of each sequence: in decibels of the
    speech, the mean.
    """
    left = (gains[..., None] * torch.view_as_real(noisy) - torch.view_as_real(clean)).square().sum((1, 2, 3))
    speech = torch.view_as_real(clean).square().sum((1, 2, 3))
    return 10 * torch.log10(left / speech).mean()


def train(epochs: int = EPOCHS, count: int = SCENES) -> Parameters:
    """Returns the parameters of trained gains by their names in PyTorch, with the `mean` and `deviation` of
    features.
    """
    torch.manual_seed(0)
    scenes = training_scenes(SEEDS["training"], count, FRAMES, 15)
    noisy, clean = (
        torch.from_numpy(np.stack([spectra(each) for each in part]))
        for part in ([one.noisy for one in scenes], [one.clean for one in scenes])
    )
    heard = features(noisy.numpy())
    mean, deviation = heard.mean((0, 1)), heard.std((0, 1))
    inputs, triangles = torch.from_numpy((heard - mean) / deviation), torch.from_numpy(bands().T.copy())
    network = Network(BANDS, HIDDEN, BANDS)

    def loss(chosen: torch.Tensor) -> torch.Tensor:
        """The distance from speech of the sound that gains leave."""
        return away(torch.sigmoid(network(inputs[chosen])) @ triangles, noisy[chosen], clean[chosen])

    return {**fitted(network, loss, count, BATCH, epochs, 5e-3), "mean": mean, "deviation": deviation}


# ---- the step


def halves(span: Array) -> tuple[Array, Array]:
    """Returns the even part [rows, 65] and the odd part [rows, 63] of 128 samples around their beginning."""
    turned = span[:, :FRAME:-1]
    even = np.concatenate([span[:, :1], span[:, 1:FRAME] + turned, span[:, FRAME : FRAME + 1]], 1)
    return even, span[:, 1:FRAME] - turned


def suppress(x: Array, memory: Parameters, p: Parameters) -> tuple[Array, Parameters]:
    """Computes one frame: 64 samples with less noise, and what is kept: the samples, the GRU's memory, and
    the second half of the sound made so far.
    """
    even, odd = halves(np.concatenate([memory["before"], x], 1) * p["window"])
    real, imaginary = even @ p["cosines"], odd @ p["sines"]
    squares = real * real
    inner = squares[:, 1:FRAME] + imaginary * imaginary
    energies = np.concatenate([squares[:, :1], inner, squares[:, FRAME:]], 1) @ p["bands"]
    heard = (np.log(energies + QUIET) - p["mean"]) / p["deviation"]
    weights = {name.removeprefix("gru."): value for name, value in p.items()}
    _, h = gru(heard, memory["h"], weights)
    gains = sn.sigmoid(h @ p["head.weight"].T + p["head.bias"]) @ p["bands"].T * p["back"]
    even, odd = (real * gains) @ p["cosines"], (imaginary * gains[:, 1:FRAME]) @ p["sines"]
    first = np.concatenate([even[:, :1], even[:, 1:FRAME] + odd], 1) * p["window"][:FRAME]
    second = np.concatenate([even[:, FRAME:], (even[:, 1:FRAME] - odd)[:, ::-1]], 1) * p["window"][FRAME:]
    return memory["made"] + first, {"before": x, "h": h, "made": second}


def suppressor(params: Parameters) -> sn.RNN:
    """Returns the step with trained parameters."""
    memory = {"before": FRAME, "h": HIDDEN, "made": FRAME}
    return sn.RNN(suppress, {**params, **waves(), "bands": bands()}, memory=memory)


# ---- the test


def scenes() -> list[Scene]:
    """Makes the scenes of the test."""
    return held_out(SEEDS["test"], FRAMES)


def ratio(clean: Array, heard: Array) -> float:
    """Returns how much stronger speech is than what else is heard, in decibels, whatever the loudness of the
    sound: the SI-SDR of J. Le Roux, S. Wisdom, H. Erdogan, J. R. Hershey, "SDR - half-baked or well done?",
    2019.
    """
    speech = clean * (heard @ clean) / (clean @ clean)
    return float(10 * np.log10(np.sum(np.square(speech)) / np.sum(np.square(heard - speech))))


@dataclass(frozen=True)
class Improvement:
    """The mean ratio of speech to noise before and after, in decibels."""

    before: float
    after: float


def judge(scenes: Sequence[Scene], sounds: Array) -> Improvement:
    """Compares sounds [scenes, samples] with the speech of scenes. Sounds are a frame behind."""
    before = [ratio(each.clean, each.noisy) for each in scenes]
    after = [ratio(each.clean[:-FRAME], y[FRAME:]) for each, y in zip(scenes, sounds, strict=True)]
    return Improvement(float(np.mean(before)), float(np.mean(after)))


def make(folder: Path, epochs: int = EPOCHS, count: int = SCENES) -> Example:
    """Makes the suppressor in C99 and the sound of the test in a folder."""
    sound = np.concatenate([each.noisy for each in scenes()])
    return made(
        folder, "suppressor", Path(__file__), suppressor(train(epochs, count)), sound.reshape(-1, FRAME)
    )


def report(example: Example, sounds: Array) -> None:
    """Prints how much noise was taken away."""
    rows = scenes()
    sounds = sounds.reshape(len(rows), -1)
    for name in NEW:
        for decibels in DECIBELS:
            own = [at for at, row in enumerate(rows) if (row.name, row.decibels) == (name, decibels)]
            found = judge([rows[at] for at in own], sounds[own])
            print(f"{name} at {decibels} dB: from {found.before:.1f} to {found.after:.1f} dB")
    found = judge(rows, sounds)
    print(f"all: {found.after - found.before:.1f} dB better")


if __name__ == "__main__":
    main(__doc__, make, report, EPOCHS)
