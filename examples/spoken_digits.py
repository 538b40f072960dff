"""Recorded digits for the examples: six people at 8 kHz, a file of each in the folder `recordings`.

A file is of the format `.au`, which players play: samples of 8 bits by the mu-law of ITU-T G.711, one after
the other. The annotation of the file has the digit, the take and the number of samples of each recording.
recordings/README.md says where they come from.

The files are made from a clone of the Free Spoken Digit Dataset so:

    .venv/bin/python examples/spoken_digits.py free-spoken-digit-dataset
"""

import argparse
import struct
import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Array = np.ndarray
FOLDER = Path(__file__).with_name("recordings")
RATE = 8000
TRAINING, TEST = ("jackson", "lucas", "nicolas", "theo"), ("george", "yweweler")
TAKES = {**dict.fromkeys(TRAINING, 3), **dict.fromkeys(TEST, 2)}
"""The takes of each digit, by speaker: more of those whom models are trained on."""
TAKEN, LONGEST, FRAME = 50, 4400, 64
"""The takes there are in the data set, the most samples of one that is chosen, and the samples of a frame."""
HEAD, MAGIC, MULAW, BIAS = struct.Struct(">4s5I"), b".snd", 1, 132


def decoded() -> Array:
    """Returns the number [256] that each byte of the mu-law means, between -1 and 1."""
    code = 255 - np.arange(256)
    size = ((8 * (code & 15) + BIAS) << (code >> 4 & 7)) - BIAS
    return (np.where(code & 128, -size, size) / 2**15).astype(np.float32)


@dataclass(frozen=True)
class Recording:
    """A digit as somebody said it, by the number of the take, and its samples [samples]."""

    digit: int
    take: int
    samples: Array


def read(path: Path) -> list[Recording]:
    """Returns the recordings of a file; raises `ValueError` if it is not as `write` makes it."""
    data = path.read_bytes()
    magic, begin, size, coding, rate, channels = HEAD.unpack_from(data.ljust(HEAD.size, b"\0"))
    if (magic, coding, rate, channels, begin + size) != (MAGIC, MULAW, RATE, 1, len(data)):
        raise ValueError(f"{path} is no whole .au file of one channel in mu-law at {RATE} Hz")
    lines = [row.split() for row in data[HEAD.size : begin].rstrip(b"\0").splitlines()]
    whole = all(len(row) == 3 and all(map(bytes.isdigit, row)) for row in lines)
    rows = [[*map(int, row)] for row in lines] if whole else []
    if not rows or sum(row[2] for row in rows) != size:
        raise ValueError(f"{path} has no annotation with the digit, take and samples of each recording")
    samples = decoded()[np.frombuffer(data, np.uint8, offset=begin)]
    ends = np.cumsum([row[2] for row in rows])
    parts = np.split(samples, ends[:-1])
    return [Recording(row[0], row[1], part) for row, part in zip(rows, parts, strict=True)]


def write(path: Path, recordings: list[Recording]) -> None:
    """Writes recordings into a file, each sample as the nearest that the mu-law has."""
    numbers = decoded()
    order = np.argsort(numbers, kind="stable")
    between = (numbers[order][1:] + numbers[order][:-1]) / 2
    codes = [order[np.searchsorted(between, each.samples)].astype(np.uint8) for each in recordings]
    text = "".join(f"{each.digit} {each.take} {len(each.samples)}\n" for each in recordings).encode()
    text += b"\0" * (8 - len(text) % 8)
    size = sum(map(len, codes))
    head = HEAD.pack(MAGIC, HEAD.size + len(text), size, MULAW, RATE, 1)
    path.write_bytes(head + text + b"".join(code.tobytes() for code in codes))


# ---- from the data set


def taken(path: Path, digit: int, take: int) -> Recording:
    """Reads a recording of the data set: without its mean, and with a peak of 1."""
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2), path
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(float)
    samples -= samples.mean()
    return Recording(digit, take, samples / np.abs(samples).max())


def clearness(recording: Recording) -> float:
    """Returns how many times more energy is in the loudest quarter of frames than in the quietest tenth."""
    whole = recording.samples[: len(recording.samples) // FRAME * FRAME].reshape(-1, FRAME)
    energies = np.sort(np.square(whole).mean(1))
    return float(
        energies[-len(energies) // 4 :].mean() / (energies[: max(2, len(energies) // 10)].mean() + 1e-9)
    )


def chosen(clone: Path, speaker: str) -> list[Recording]:
    """Returns the clearest takes of each digit of a speaker that are not too long."""
    found = list[Recording]()
    for digit in range(10):
        paths = [clone / "recordings" / f"{digit}_{speaker}_{take}.wav" for take in range(TAKEN)]
        takes = [taken(path, digit, take) for take, path in enumerate(paths)]
        takes = sorted((each for each in takes if len(each.samples) <= LONGEST), key=clearness)
        found += takes[: -TAKES[speaker] - 1 : -1]
    return found


def main(arguments: list[str] | None = None) -> None:
    """Makes the files of the folder `recordings`."""
    parser = argparse.ArgumentParser(description="Choose recordings of the Free Spoken Digit Dataset.")
    parser.add_argument("clone", type=Path, help="the folder of a clone of the data set")
    parser.add_argument("--into", type=Path, default=FOLDER, help="the folder of the files")
    options = parser.parse_args(arguments)
    for speaker in TAKES:
        recordings = chosen(options.clone, speaker)
        write(options.into / f"{speaker}.au", recordings)
        seconds = sum(len(each.samples) for each in recordings) / RATE
        print(f"{speaker}: {len(recordings)} recordings, {seconds:.1f} seconds")


if __name__ == "__main__":
    main()
