"""Scenes for the examples: recorded speech in noises, at 8 kHz.

A scene has one speaker, who says digits with pauses between. Noises are made, but for the babble of others,
which is recorded as well. Speakers of the test, and most kinds of its noises, are not those of training.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from spoken_digits import FOLDER, RATE, TEST, TRAINING, read

Array = np.ndarray
Random = np.random.Generator
FRAME, FADED = 64, 40
"""The samples of a frame, 8 ms, and of the beginning of a recording in which it becomes loud."""
DECIBELS, EACH = (0, 5, 10), 4
"""The strengths of speech in tests, beside that of noise, and the scenes of each noise and strength."""
FREQUENCIES = np.arange(FRAME + 1) * (RATE / 2 / FRAME)
WINDOW = np.sin(np.pi * (np.arange(2 * FRAME) + 0.5) / (2 * FRAME))
"""The window of two frames: its squares in steps of a frame add up to 1."""


def wander(random: Random, frames: int, over: int) -> Array:
    """Makes a number that wanders, with a mean square of 1. over: the frames in which it becomes another."""
    return np.convolve(random.normal(size=frames + over - 1), np.full(over, over**-0.5), "valid")


def shaped(random: Random, weights: Array) -> Array:
    """Makes noise with a spectrum [frames, 65] of its own in each frame."""
    frames = len(weights)
    white = random.normal(size=(frames + 1) * FRAME)
    spans = np.stack([white[:-FRAME].reshape(frames, FRAME), white[FRAME:].reshape(frames, FRAME)], 1)
    parts = np.fft.irfft(np.fft.rfft(spans.reshape(frames, -1) * WINDOW) * weights) * WINDOW
    whole = np.zeros((frames + 1, FRAME))
    whole[:-1] += parts[:, :FRAME]
    whole[1:] += parts[:, FRAME:]
    return whole[:-1].ravel()


# ---- speech


@cache
def recordings(speaker: str) -> list[Array]:
    """Returns what a speaker says: samples, which begin and end softly."""
    soft = np.sin(np.pi / 2 * (np.arange(FADED) + 0.5) / FADED) ** 2
    words = [each.samples.copy() for each in read(FOLDER / f"{speaker}.au")]
    for word in words:
        word[:FADED] *= soft
        word[-FADED:] *= soft[::-1]
    return words


def spoken(word: Array) -> Array:
    """Tells where something is heard [samples]: the energies around are at most 25 dB below the largest."""
    energies = np.convolve(np.square(word), np.ones(5 * FRAME), "same")
    return energies > energies.max() * 10**-2.5


def faster(word: Array, times: float) -> Array:
    """Returns samples as a player gives them that runs faster: so the voice is higher, too."""
    return np.interp(np.arange(0, len(word) - 1, times), np.arange(len(word)), word)


def speech(random: Random, frames: int, speaker: str, tempo: float = 1.0) -> tuple[Array, Array]:
    """Puts recordings of a speaker and pauses together: samples [64 frames], with a mean square of 1 while
    somebody speaks, and whether somebody does, [frames].
    """
    samples, heard = np.zeros(frames * FRAME), np.zeros(frames * FRAME, bool)
    at = int(random.integers(5 * FRAME, 60 * FRAME))
    while at < len(samples):
        words = recordings(speaker)
        word = faster(words[int(random.integers(len(words)))], tempo)
        loud = spoken(word)
        word = word * random.uniform(0.5, 1.2) / np.sqrt(np.mean(np.square(word[loud])))
        room = len(samples) - at
        samples[at : at + len(word)], heard[at : at + len(word)] = word[:room], loud[:room]
        at += len(word) + int(random.integers(80 * FRAME if random.uniform() < 0.4 else 8 * FRAME))
    power = np.mean(np.square(samples[heard])) if heard.any() else 1.0
    return samples / np.sqrt(power), heard.reshape(-1, FRAME).mean(1) > 0.5


def babble(random: Random, frames: int, speakers: Sequence[str]) -> Array:
    """Makes a babble of recordings: five voices of speakers, who do not pause."""
    whole = np.zeros(frames * FRAME)
    for _ in range(5):
        words = [scaled(word) for word in recordings(speakers[int(random.integers(len(speakers)))])]
        chosen = [words[at] for at in random.integers(len(words), size=2 + frames // 15)]
        stream = np.concatenate(chosen)[random.integers(2000) :]
        whole += np.resize(stream, len(whole)) * random.uniform(0.7, 1.3)
    return whole


# ---- noises


def slope(random: Random, frames: int) -> Array:
    """Makes noise whose spectrum falls, from white to brown, and which is louder at times."""
    weights = np.maximum(FREQUENCIES, 60) ** -random.uniform(0, 1)
    louder = np.exp(random.uniform(0, 0.8) * wander(random, frames, int(random.integers(10, 80))))
    return shaped(random, louder[:, None] * weights)


def hum(random: Random, frames: int) -> Array:
    """Makes a hum of 50 or 60 Hz with harmonics, above a noise."""
    time, base = np.arange(frames * FRAME) / RATE, random.choice([50, 60])
    buzz = np.zeros(len(time))
    for k in range(1, 20):
        buzz += random.uniform() / k * np.sin(2 * np.pi * k * base * time + random.uniform(0, 6))
    return scaled(buzz) + random.uniform(0.2, 1) * scaled(slope(random, frames))


def fan(random: Random, frames: int) -> Array:
    """Makes a noise with resonances, which comes and goes with the blades."""
    peaks = sum(np.exp(-(((FREQUENCIES - random.uniform(100, 3500)) / 200) ** 2)) for _ in range(4))
    weights = np.maximum(FREQUENCIES, 100) ** -0.7 * (1 + 5 * peaks)
    blades = 1 + 0.4 * np.sin(2 * np.pi * random.uniform(0.5, 8) * np.arange(frames) * FRAME / RATE)
    return shaped(random, blades[:, None] * weights)


def clicks(random: Random, frames: int) -> Array:
    """Makes short knocks, as of keys, above a noise."""
    loud = (random.uniform(size=frames) < 0.03) * random.uniform(1, 6, frames)
    falling = np.convolve(loud, np.exp(-np.arange(8) / 2))[:frames]
    weights = np.exp(-(((FREQUENCIES - random.uniform(500, 3500)) / 1200) ** 2))
    return shaped(random, falling[:, None] * weights) + 0.3 * scaled(slope(random, frames))


def tones(random: Random, frames: int) -> Array:
    """Makes a whine: a wandering tone with harmonics, which comes and goes, above a noise."""
    pitch = random.uniform(60, 900) * np.exp(random.uniform(0, 0.1) * wander(random, frames, 50))
    phase = 2 * np.pi * np.cumsum(np.repeat(pitch, FRAME)) / RATE
    count, falls = min(20, int(RATE / 2.5 / pitch.max())), random.uniform(0.3, 1.5)
    whine = np.zeros(len(phase))
    for k in range(1, count + 1):
        whine += np.sin(k * phase + random.uniform(0, 6)) / k**falls
    louder = np.repeat(np.exp(random.uniform(0, 0.7) * wander(random, frames, 30)), FRAME)
    return scaled(louder * whine) + random.uniform(0.2, 1) * scaled(slope(random, frames))


def rain(random: Random, frames: int) -> Array:
    """Makes many drops: impulses at random in a resonance."""
    drops = (random.uniform(size=frames * FRAME) < 0.02) * random.exponential(size=frames * FRAME)
    time = np.arange(40) / RATE
    drop = np.exp(-time * 900) * np.sin(2 * np.pi * random.uniform(1500, 3000) * time)
    return np.convolve(drops, drop)[: frames * FRAME] + 0.02 * random.normal(size=frames * FRAME)


def wind(random: Random, frames: int) -> Array:
    """Makes gusts: a dark noise that is loud at times."""
    gusts = np.exp(1.2 * wander(random, frames, 60))
    return shaped(random, gusts[:, None] * np.maximum(FREQUENCIES, 60) ** -1.4)


def engine(random: Random, frames: int) -> Array:
    """Makes an engine: harmonics of 25 to 60 Hz of which the speed wanders, above a dark noise."""
    speed = random.uniform(25, 60) * np.exp(0.2 * wander(random, frames, 100))
    phase = 2 * np.pi * np.cumsum(np.repeat(speed, FRAME)) / RATE
    strokes = np.zeros(len(phase))
    for k in range(1, 40):
        strokes += random.exponential() / k**0.7 * np.sin(k * phase + random.uniform(0, 6))
    dark = np.tile(np.maximum(FREQUENCIES, 60) ** -1.0, (frames, 1))
    return scaled(strokes) + 0.5 * scaled(shaped(random, dark))


def scaled(samples: Array) -> Array:
    """Returns samples with a mean square of 1."""
    return samples / np.sqrt(np.mean(np.square(samples)))


Noise = Callable[[Random, int], Array]
KNOWN: dict[str, Noise | None] = {
    "slope": slope,
    "hum": hum,
    "fan": fan,
    "clicks": clicks,
    "tones": tones,
    "babble": None,
}
NEW: dict[str, Noise | None] = {"rain": rain, "wind": wind, "engine": engine, "babble": None}
"""The noises of training, and those that are only heard in tests, by name; None is the babble of others."""


@dataclass(frozen=True)
class Scene:
    """Speech in noise: both [64 frames], and whether somebody speaks [frames]. name: of the noise."""

    clean: Array
    noise: Array
    active: Array
    name: str
    decibels: float

    @property
    def noisy(self) -> Array:
        """The sound of both, in float32."""
        return (self.clean + self.noise).astype(np.float32)


def scene(
    seed: int, frames: int, name: str, decibels: float, loudness: float = 0.1, training: bool = False
) -> Scene:
    """Makes a scene of one speaker in a noise. decibels: how much stronger speech is, while somebody speaks.
    loudness: the speech's root mean square. training: with the speakers of training, faster or slower.
    """
    random = np.random.default_rng(seed)
    speaker, *others = random.permutation(TRAINING if training else TEST)
    clean, active = speech(random, frames, speaker, random.uniform(0.85, 1.2) if training else 1.0)
    noise = {**KNOWN, **NEW}[name]
    behind = babble(random, frames, others) if noise is None else noise(random, frames)
    behind = scaled(behind) * 10 ** (-decibels / 20)
    return Scene(clean * loudness, behind * loudness, active, name, decibels)


def training_scenes(seed: int, count: int, frames: int, most: float) -> list[Scene]:
    """Makes scenes of known noises, from -3 decibels to the most, at several loudnesses."""
    random, names = np.random.default_rng(seed), list(KNOWN)
    rows = [(random.uniform(-3, most), 10 ** random.uniform(-1.8, -0.6)) for _ in range(count)]
    return [
        scene(seed + number, frames, names[number % len(names)], *row, training=True)
        for number, row in enumerate(rows)
    ]


def held_out(seed: int, frames: int) -> list[Scene]:
    """Makes the scenes of a test, of new noises and speakers: the noises in turn, at three strengths."""
    rows = [(name, decibels) for name in NEW for decibels in DECIBELS for _ in range(EACH)]
    return [scene(seed + number, frames, *row) for number, row in enumerate(rows)]
