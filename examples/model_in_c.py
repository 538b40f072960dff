"""A model in C: built by stepnet, called by a program that knows no Python, as the sound arrives.

The GRU of stepnet's demo becomes a library for C, and `speaker_stream.c` is compiled against it. The program
runs two sequences of 13 and 7 frames in one call, and then the first in pieces of 6 as they arrive, and
compares the two bit by bit.

Run it from the root of the repository (a second; it needs Linux and a C compiler):

    .venv/bin/python examples/model_in_c.py [--cc CC] [--folder FOLDER] [--plot FILE]

`--plot` draws the states that C computed, beside those of Python, and needs matplotlib.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import stepnet as sn
from stepnet.build import build, load
from stepnet.layout import from_torch
from stepnet.layout.files.safetensors import read

EXAMPLES = Path(__file__).resolve().parent
DATA = EXAMPLES.parent / "src" / "stepnet" / "cli" / "data"
LENGTHS, FEATURES = (13, 7), 12


def compile_program(folder: Path, compiler: str) -> tuple[Path, Path, Any]:
    """Builds the library and the program in a folder; returns the program, the library and the model."""
    model = from_torch(read(DATA / "speaker_gru.safetensors"), prefix="gru.")
    made = build(model, folder, name="speaker_gru", inputs=FEATURES)
    program = folder / "stream"
    source = EXAMPLES / "speaker_stream.c"
    subprocess.run([compiler, source, f"-I{folder}", made.static, "-o", program], check=True)
    return program, made.shared, model


def sequences() -> sn.Ragged:
    """Returns the two sequences that the program in C makes up."""
    numbers = (np.arange(sum(LENGTHS) * FEATURES) % 17 / 8 - 1).reshape(-1, FEATURES).astype("float32")
    return sn.Ragged.from_list([numbers[: LENGTHS[0]], numbers[LENGTHS[0] :]])


def plot(states: np.ndarray, file: Path) -> None:
    """Draws some units of the states [time, units] over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(states[:, :12], linewidth=1)
    for end in range(6, len(states), 6):
        axes.axvline(end - 0.5, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="frame (dotted: where a piece ends)", ylabel="state of 12 units")
    axes.grid(alpha=0.3)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def main(arguments: list[str] | None = None) -> None:
    """Builds, compiles and runs the program, and compares the library with Python."""
    parser = argparse.ArgumentParser(description="Run a trained GRU from C.")
    parser.add_argument("--cc", default="cc", help="the C compiler")
    parser.add_argument("--folder", type=Path, help="where the files go; a temporary folder by default")
    parser.add_argument("--plot", type=Path, help="a picture of the states; needs matplotlib")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        program, library, model = compile_program(options.folder or Path(temporary), options.cc)
        print(subprocess.run([program], check=True, capture_output=True, text=True).stdout.strip())
        states = load(library, trust=True)({"x": sequences()})["y"]
    print("bitwise identical to Python:", bool(np.array_equal(states.values, model(sequences())[0].values)))
    if options.plot:
        plot(states.to_list()[0], options.plot)


if __name__ == "__main__":
    main()
