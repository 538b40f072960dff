"""Sounds for the examples: speech-like sounds of made speakers, and noises, at 8 kHz.

A speaker has a pitch, and formants in proportion to others'. Words are syllables of vowels with hisses,
hums or bursts around, as a formant synthesiser makes them: harmonics of the pitch and noise, each weighted
by resonances. Formants of vowels: G. E. Peterson and H. L. Barney, "Control methods used in a study of the
vowels", 1952.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray
Random = np.random.Generator
RATE, FRAME = 8000, 64
"""Samples a second, and of a frame: 8 ms."""
VOWELS = np.array(
    [
        (270, 2290, 3010),
        (390, 1990, 2550),
        (530, 1840, 2480),
        (660, 1720, 2410),
        (730, 1090, 2440),
        (570, 840, 2410),
        (440, 1020, 2240),
        (300, 870, 2240),
        (640, 1190, 2390),
        (490, 1350, 1690),
    ]
)
"""Three formants of each vowel of men, in Hz."""
NASAL = (280, 1000, 2200)
BANDWIDTHS = np.array((70.0, 100.0, 150.0))
FREQUENCIES = np.arange(FRAME + 1) * (RATE / 2 / FRAME)
WINDOW = np.sin(np.pi * (np.arange(2 * FRAME) + 0.5) / (2 * FRAME))
"""The window of two frames: its squares in steps of a frame add up to 1."""


@dataclass
class Course:
    """The course of a voice by frames: its formants [frames, 3], the strengths of voice and of hiss, and the
    middle of the hiss in Hz.
    """

    formants: list[Array] = field(default_factory=list)
    voice: list[float] = field(default_factory=list)
    hiss: list[float] = field(default_factory=list)
    middle: list[float] = field(default_factory=list)

    def add(self, frames: int, formants: Array, voice: float, hiss: float, middle: float = 2500.0) -> None:
        """Goes on for some frames."""
        self.formants += [formants] * frames
        self.voice += [voice] * frames
        self.hiss += [hiss] * frames
        self.middle += [middle] * frames


def syllable(course: Course, random: Random, stress: float) -> None:
    """Adds a consonant, a vowel, and sometimes another consonant."""
    vowel = VOWELS[random.integers(len(VOWELS))]

    def consonant() -> None:
        """Adds a hiss, a hum or a burst."""
        kind, middle = random.integers(4), random.uniform(1500, 3800)
        if kind == 0:
            course.add(int(random.integers(6, 16)), vowel, 0.0, stress * random.uniform(0.1, 0.5), middle)
        elif kind == 1:
            course.add(int(random.integers(5, 11)), np.array(NASAL), 0.5 * stress, 0.0)
        elif kind == 2:
            course.add(int(random.integers(3, 8)), vowel, 0.0, 0.0)
            course.add(2, vowel, 0.0, stress * random.uniform(0.3, 0.8), middle)

    consonant()
    course.add(int(random.integers(9, 26)), vowel, stress, 0.01)
    if random.uniform() < 0.4:
        consonant()


def smoothed(values: Array, frames: int) -> Array:
    """Averages over some frames around each."""
    padded = np.pad(values, [(frames // 2, frames - 1 - frames // 2)] + [(0, 0)] * (values.ndim - 1), "edge")
    sums = np.cumsum(np.concatenate([np.zeros_like(padded[:1]), padded]), 0)
    return (sums[frames:] - sums[:-frames]) / frames


def wander(random: Random, frames: int, over: int) -> Array:
    """Makes a number that wanders, with a mean square of 1. over: the frames in which it becomes another."""
    return smoothed(random.normal(size=frames + over), over)[over:] * over**0.5


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


def harmonics(random: Random, pitch: Array, formants: Array, strength: Array) -> Array:
    """Makes a voice: pitch [frames] in Hz, formants [frames, 3], strength [frames]."""
    steps = (np.arange(FRAME) + 0.5) / FRAME
    along = np.append(pitch, pitch[-1])
    at = (along[:-1, None] * (1 - steps) + along[1:, None] * steps).ravel()
    phase, count = 2 * np.pi * np.cumsum(at) / RATE, int(RATE / 2 / pitch.min())
    whole = np.zeros(len(at))
    for number in range(1, count + 1):
        ratio = (number * pitch)[:, None] / formants
        bands = (number * pitch)[:, None] * BANDWIDTHS / formants**2
        resonance = np.prod(1 / np.sqrt((1 - ratio**2) ** 2 + bands**2), axis=1)
        size = strength * resonance / number**0.5 * (number * pitch < RATE / 2 - 100)
        size = np.append(size, size[-1])
        sizes = (size[:-1, None] * (1 - steps) + size[1:, None] * steps).ravel()
        whole += sizes * np.sin(number * phase + random.uniform(0, 2 * np.pi))
    return whole


def speech(random: Random, frames: int) -> tuple[Array, Array]:
    """Makes words of one new speaker: samples [64 frames], with a mean square of 1 while somebody speaks, and
    whether somebody does, [frames].
    """
    course, tall = Course(), random.uniform(0.9, 1.25)
    pause = VOWELS[8]
    course.add(int(random.integers(5, 60)), pause, 0.0, 0.0)
    while len(course.voice) < frames:
        for _ in range(random.integers(1, 5)):
            syllable(course, random, random.uniform(0.5, 1.2))
        course.add(int(random.integers(4, 90)), pause, 0.0, 0.0)
    formants = smoothed(np.array(course.formants[:frames], float), 5) * tall
    voice, hiss = (smoothed(np.array(each[:frames]), 3) for each in (course.voice, course.hiss))
    base = 75 * tall ** random.uniform(1, 5) * random.uniform(1, 1.3)
    waves = np.sin(np.arange(frames) / random.uniform(15, 40)) + 0.3 * wander(random, frames, 20)
    pitch = base * np.exp(0.12 * waves)
    middles = smoothed(np.array(course.middle[:frames]), 3)[:, None]
    spectrum = hiss[:, None] / (1 + ((FREQUENCIES - middles) / 700) ** 2)
    samples = harmonics(random, pitch, formants, voice) + 3 * shaped(random, spectrum)
    active = smoothed(np.maximum(voice, hiss), 7) > 0.02
    power = np.mean(np.square(samples[np.repeat(active, FRAME)])) if active.any() else 1.0
    return samples / np.sqrt(power), active


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
KNOWN: tuple[Noise, ...] = (slope, hum, fan, clicks, tones)
NEW: tuple[Noise, ...] = (rain, wind, engine)
"""The noises of training, and those that are only heard in tests."""


@dataclass(frozen=True)
class Scene:
    """Speech in noise: both [64 frames], and whether somebody speaks [frames]."""

    clean: Array
    noise: Array
    active: Array

    @property
    def noisy(self) -> Array:
        """The sound of both, in float32."""
        return (self.clean + self.noise).astype(np.float32)


def scene(seed: int, frames: int, noise: Noise, decibels: float, loudness: float = 0.1) -> Scene:
    """Makes a scene of one speaker in a noise. decibels: how much stronger speech is, while somebody speaks.
    loudness: the speech's root mean square.
    """
    random = np.random.default_rng(seed)
    clean, active = speech(random, frames)
    behind = scaled(noise(random, frames)) * 10 ** (-decibels / 20)
    return Scene(clean * loudness, behind * loudness, active)
