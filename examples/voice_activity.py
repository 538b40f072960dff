"""Voice activity on a microcontroller without floats: does somebody speak, in frames of 8 ms?

A GRU hears the logarithms of the energies of 16 bands, and says how sure it is that somebody spoke 48 ms
ago. It is trained in PyTorch on made speakers in made noises, of `sounds.py`, so there is nothing to
download. The test has other speakers and noises. `sn.quantize` makes it a model of integers alone, which
becomes C99: `voice_activity.c` runs it frame by frame.

Run it from the root of the repository (half a minute; it needs a C compiler):

    .venv/bin/python examples/voice_activity.py build/voice [--epochs N]
"""

import argparse
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress
from sound_features import BANDS, features, spectra
from sounds import FRAME, KNOWN, NEW, RATE, Scene, scene
from torch import nn

import stepnet as sn
import stepnet.torch
from stepnet.build import DeviceBuild, build
from stepnet.cli.demo import gru

Array = np.ndarray
Parameters = dict[str, Array]
HIDDEN, EPOCHS = 32, 30
SCENES, FRAMES, BATCH = 240, 250, 24
SEEDS = {"training": 2_000_000, "test": 3_000_000}
"""The first numbers of scenes: each has a speaker of its own."""
DECIBELS = (0, 5, 10)
"""The strengths of speech in scenes of the test, compared with that of noise."""
EACH = 4
"""The scenes of the test for each noise and strength."""
ACTIVATIONS = "int8"
DELAY = 6
"""The frames that are heard after the one that is decided on."""


def training_scenes(count: int) -> list[Scene]:
    """Makes scenes of known noises, from -3 to 20 decibels, at several loudnesses."""
    random = np.random.default_rng(SEEDS["training"])
    rows = [(random.uniform(-3, 20), 10 ** random.uniform(-1.8, -0.6)) for _ in range(count)]
    return [
        scene(SEEDS["training"] + number, FRAMES, KNOWN[number % len(KNOWN)], decibels, loudness)
        for number, (decibels, loudness) in enumerate(rows)
    ]


def heard(scenes: list[Scene]) -> Array:
    """Returns the features of scenes [scenes, frames, 16]."""
    return np.stack([features(spectra(each.noisy)) for each in scenes])


class Detector(nn.Module):
    """A GRU that tells in each frame how sure it is that somebody speaks."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = stepnet.torch.GRU(BANDS, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits [sequences, frames] for features that are scaled."""
        return self.head(self.gru(x)[0])[..., 0]


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
    scenes = training_scenes(count)
    values = heard(scenes)
    mean, deviation = values.mean((0, 1)), values.std((0, 1))
    scaled = ((values - mean) / deviation).astype(np.float32)
    inputs = torch.from_numpy(scaled)
    active = torch.from_numpy(np.stack([each.active for each in scenes]).astype(np.float32))
    model = Detector()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    with Progress() as progress:
        task, loss = progress.add_task("training", total=epochs), torch.zeros(())
        for _ in range(epochs):
            for chosen in torch.randperm(count).split(BATCH):
                loss = nn.functional.binary_cross_entropy_with_logits(
                    model(inputs[chosen])[:, DELAY:], active[chosen, :-DELAY]
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            schedule.step()
            progress.update(task, advance=1, description=f"loss {loss.item():.3f}")
    params = {name: value.numpy() for name, value in model.state_dict().items()}
    return Trained(params, mean, deviation, scaled[::8])


def detect(x: Array, h: Array, p: Parameters) -> tuple[Array, Array]:
    """Computes one frame: how sure it is that somebody speaks, and the GRU's memory."""
    _, h = gru(x, h, {name.removeprefix("gru."): value for name, value in p.items()})
    return sn.sigmoid(h @ p["head.weight"].T + p["head.bias"]), h


# ---- the test


def held_out() -> list[Scene]:
    """Makes the scenes of the test: of noises and speakers that are new."""
    rows = [(noise, decibels) for noise in NEW for decibels in DECIBELS for _ in range(EACH)]
    return [
        scene(SEEDS["test"] + number, FRAMES, noise, decibels)
        for number, (noise, decibels) in enumerate(rows)
    ]


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


def make(folder: Path, epochs: int = EPOCHS, count: int = SCENES) -> tuple[sn.RNN, DeviceBuild, Array]:
    """Makes the detector in C99 of integers, and the frames of the test, in a folder. Returns it in floats,
    the build, and the frames [frames, 16] as it takes them.
    """
    trained = train(epochs, count)
    rnn = sn.RNN(detect, trained.params, memory=HIDDEN)
    small = sn.quantize(rnn, [trained.samples], "int8", activations=ACTIVATIONS)
    made = build(small, folder, name="voice", target="c", inputs=BANDS, force=True)
    frames = trained.scaled(heard(held_out()).reshape(-1, BANDS))
    (x,) = made.program.of("input")
    assert x.scale is not None
    most = np.iinfo(x.dtype).max
    codes = np.clip(np.rint(frames / x.scale), -most, most).astype(x.dtype)
    (folder / "held_out.frames").write_bytes(codes.tobytes())
    return rnn, made, frames


def run(
    folder: Path, compiler: str = "cc", flags: tuple[str, ...] = ("-std=c99", "-O2")
) -> tuple[Array, Array]:
    """Compiles the detector of a folder and runs it on the frames of the test; returns its integers, and its
    decisions [frames].
    """
    sources = Path(__file__).with_suffix(".c"), folder / "voice.c"
    subprocess.run([compiler, *flags, *sources, f"-I{folder}", "-o", folder / "run"], check=True)
    with (folder / "held_out.frames").open("rb") as frames:
        done = subprocess.run([folder / "run"], stdin=frames, capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    return np.array([int(row[0]) for row in rows], np.int16), np.array([row[1:] == ["voice"] for row in rows])


def main(arguments: list[str] | None = None) -> None:
    """Trains, builds and runs the detector, and prints what it takes and how often it is right."""
    parser = argparse.ArgumentParser(description="Make voice activity detection in C, and run it.")
    parser.add_argument("folder", type=Path, help="the folder for the source code and the program")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args(arguments)
    rnn, made, frames = make(options.folder, options.epochs)
    print(f"RAM {made.sizes.ram_bytes} bytes, constants {made.sizes.constant_bytes} bytes, ", end="")
    print(f"{made.sizes.multiply_adds} multiply-adds per frame of {1000 * FRAME // RATE} ms")
    scenes = held_out()
    active = np.concatenate([each.active for each in scenes])
    _, in_c = run(options.folder)
    for name, decisions in {"in float32": rnn(frames[None])[0][0, :, 0] > 0.5, "in C": in_c}.items():
        found = judge(decisions, active)
        print(f"{name}: {found.right:.1%} of {len(active)} frames right, ", end="")
        print(f"{found.missed:.1%} of speech missed, {found.false:.1%} false alarms")
    for at, noise in enumerate(NEW):
        own = slice(at * len(active) // len(NEW), (at + 1) * len(active) // len(NEW))
        print(f"in {noise.__name__}: {judge(in_c[own], active[own]).right:.1%} of frames right")


if __name__ == "__main__":
    main()
