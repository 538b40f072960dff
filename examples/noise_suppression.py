"""Noise suppression on a microcontroller: sound in, sound out, and all between is one step.

A step takes 64 new samples of 8 kHz, which are 8 ms. It computes the spectrum of these and the 64 before, and
the energies of 16 bands. A GRU, trained in PyTorch, gives a gain for each band; the weighted spectrum becomes
samples again, which are 64 behind those that came. Speech and noises are made by `sounds.py`, so there is
nothing to download. Speakers and noises of the test were not trained on.

This whole step becomes C99, which `noise_suppression.c` runs frame by frame.

Run it from the root of the repository (a minute; it needs a C compiler):

    .venv/bin/python examples/noise_suppression.py build/noise [--epochs N]
"""

import argparse
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress
from sound_features import BANDS, QUIET, bands, features, spectra
from sounds import FRAME, KNOWN, NEW, RATE, WINDOW, Scene, scene
from torch import nn

import stepnet as sn
import stepnet.torch
from stepnet.build import DeviceBuild, build
from stepnet.cli.demo import gru

Array = np.ndarray
Parameters = dict[str, Array]
HIDDEN, EPOCHS = 48, 40
SCENES, FRAMES, BATCH = 240, 250, 40
SEEDS = {"training": 0, "test": 1_000_000}
"""The first numbers of scenes: each has a speaker of its own."""
DECIBELS = (0, 5, 10)
"""The strengths of speech in scenes of the test, compared with that of noise."""
EACH = 4
"""The scenes of the test for each noise and strength."""
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


class Gains(nn.Module):
    """A GRU that gives a gain for each band."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = stepnet.torch.GRU(BANDS, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, BANDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The gains [sequences, frames, 16] for logarithms of energies."""
        return torch.sigmoid(self.head(self.gru(x)[0]))


def training_scenes(count: int) -> list[Scene]:
    """Makes scenes of known noises, from -3 to 15 decibels, at several loudnesses."""
    random = np.random.default_rng(SEEDS["training"])
    rows = [(random.uniform(-3, 15), 10 ** random.uniform(-1.8, -0.6)) for _ in range(count)]
    return [
        scene(number, FRAMES, KNOWN[number % len(KNOWN)], decibels, loudness)
        for number, (decibels, loudness) in enumerate(rows)
    ]


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
    scenes = training_scenes(count)
    noisy, clean = (
        torch.from_numpy(np.stack([spectra(each) for each in part]))
        for part in ([one.noisy for one in scenes], [one.clean for one in scenes])
    )
    heard = features(noisy.numpy())
    mean, deviation = heard.mean((0, 1)), heard.std((0, 1))
    inputs, triangles = torch.from_numpy((heard - mean) / deviation), torch.from_numpy(bands().T.copy())
    model = Gains()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    with Progress() as progress:
        task, loss = progress.add_task("training", total=epochs), torch.zeros(())
        for _ in range(epochs):
            for chosen in torch.randperm(count).split(BATCH):
                loss = away(model(inputs[chosen]) @ triangles, noisy[chosen], clean[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            schedule.step()
            progress.update(task, advance=1, description=f"away from speech by {loss.item():.1f} dB")
    known = {name: value.numpy() for name, value in model.state_dict().items()}
    return {**known, "mean": mean, "deviation": deviation}


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


def held_out() -> list[tuple[str, int, Scene]]:
    """Makes the scenes of the test, of new noises and speakers, with the noise's name and strength."""
    rows = [(noise, decibels) for noise in NEW for decibels in DECIBELS for _ in range(EACH)]
    return [
        (noise.__name__, decibels, scene(SEEDS["test"] + number, FRAMES, noise, decibels))
        for number, (noise, decibels) in enumerate(rows)
    ]


def ratio(clean: Array, heard: Array) -> float:
    """Returns how much stronger speech is than what else is heard, in decibels."""
    return float(10 * np.log10(np.mean(np.square(clean)) / np.mean(np.square(heard - clean))))


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


def make(folder: Path, epochs: int = EPOCHS, count: int = SCENES) -> tuple[sn.RNN, DeviceBuild]:
    """Makes the suppressor in C99 and the sound of the test in a folder. Returns it in Python, and the
    build.
    """
    rnn = suppressor(train(epochs, count))
    made = build(rnn, folder, name="suppressor", target="c", inputs=FRAME, force=True)
    sound = np.concatenate([each.noisy for _, _, each in held_out()])
    (folder / "noisy.f32").write_bytes(sound.astype("<f4").tobytes())
    return rnn, made


def run(folder: Path, compiler: str = "cc", flags: tuple[str, ...] = ("-std=c99", "-O2")) -> Array:
    """Compiles the suppressor of a folder, runs it on the sound of the test, and returns its sound."""
    sources = Path(__file__).with_suffix(".c"), folder / "suppressor.c"
    subprocess.run([compiler, *flags, *sources, f"-I{folder}", "-lm", "-o", folder / "run"], check=True)
    with (folder / "noisy.f32").open("rb") as noisy, (folder / "quiet.f32").open("wb") as quiet:
        subprocess.run([folder / "run"], stdin=noisy, stdout=quiet, check=True)
    return np.fromfile(folder / "quiet.f32", "<f4")


def main(arguments: list[str] | None = None) -> None:
    """Trains, builds and runs the suppressor, and prints what it takes and how much noise it takes away."""
    parser = argparse.ArgumentParser(description="Make noise suppression in C, and run it.")
    parser.add_argument("folder", type=Path, help="the folder for the source code and the program")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args(arguments)
    _, made = make(options.folder, options.epochs)
    print(f"RAM {made.sizes.ram_bytes} bytes, constants {made.sizes.constant_bytes} bytes, ", end="")
    print(f"{made.sizes.multiply_adds} multiply-adds per frame of {1000 * FRAME // RATE} ms")
    rows = held_out()
    sounds = run(options.folder).reshape(len(rows), -1)
    for noise in NEW:
        for decibels in DECIBELS:
            own = [at for at, row in enumerate(rows) if row[:2] == (noise.__name__, decibels)]
            found = judge([rows[at][2] for at in own], sounds[own])
            print(f"{noise.__name__} at {decibels} dB: from {found.before:.1f} to {found.after:.1f} dB")
    found = judge([each for _, _, each in rows], sounds)
    print(f"all: {found.after - found.before:.1f} dB better")


if __name__ == "__main__":
    main()
