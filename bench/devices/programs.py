"""Programs that run a layer on a core, and what a step of it takes: instructions, flash, RAM and stack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.devices.counting import CORES, by_function, counted, functions_of, linked, more, output_of
from stepnet.errors import InputError

STEPS = 8
"""The steps of the shorter program."""
MOST_ERROR = 0.1
"""The largest difference from float32 of outputs between -1 and 1; another function differs by more."""


@dataclass(frozen=True)
class Programs:
    """Programs of the same code: `short` runs STEPS steps, `long` twice as many, `without` has no layer.

    core: a name of CORES. scale: that of the integers of outputs.
    """

    core: str
    short: Path
    long: Path
    without: Path
    scale: float


@dataclass(frozen=True)
class Measured:
    """Measurements of a layer. instructions: those of a step. functions: the same by function. flash: bytes
    of code and constants, with those of libraries. ram: bytes that are not on the stack. stack: bytes of it.
    """

    instructions: float
    functions: Mapping[str, float]
    flash: int
    ram: int
    stack: int


def programs(
    folder: Path, core: str, files: Sequence[Path], options: Sequence[str], scale: float
) -> Programs:
    """Returns programs of C files and libraries in a folder. The files look at STEPS and WITHOUT."""
    runs = {"short": (STEPS, ()), "long": (2 * STEPS, ()), "without": (STEPS, ("-DWITHOUT",))}
    paths = {
        name: linked(folder, name, CORES[core], files, [*options, f"-DSTEPS={steps}", *added])
        for name, (steps, added) in runs.items()
    }
    return Programs(core, **paths, scale=scale)


def sections(table: str) -> tuple[int, int]:
    """Returns the bytes in flash and in RAM, of what `size` prints; variables with values are in both."""
    text, data, bss = map(int, table.splitlines()[1].split()[:3])
    return text + data, data + bss


def measured(made: Programs, wanted: np.ndarray) -> Measured:
    """Returns what a layer takes. wanted: the outputs of the last step of the long program, in float32.

    Raises `InputError` if a program fails, or if it computes something else.
    """
    core = CORES[made.core]
    shorter, longer, empty = (counted(path, core) for path in (made.short, made.long, made.without))
    own = np.array(longer.said["y"], "u4").view("i4") * made.scale
    if not (error := np.abs(own - wanted).max()) <= MOST_ERROR:
        raise InputError(f"{made.long} is no such layer: its outputs differ by {error:.3f} from float32")
    steps = more(longer, shorter)
    names = by_function(steps, functions_of(made.long))
    sizes = [sections(output_of(["arm-none-eabi-size", path])) for path in (made.short, made.without)]
    (flash, ram), (other_flash, other_ram) = sizes
    return Measured(
        sum(steps.values()) / STEPS,
        {name: count / STEPS for name, count in names.most_common()},
        flash - other_flash,
        ram - other_ram,
        shorter.said["stack"][0] - empty.said["stack"][0],
    )
