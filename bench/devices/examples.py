"""The examples for microcontrollers on emulated ones: their programs in C, and the instructions of a frame.

    python -m bench.devices examples

The models are trained for a moment only: the instructions are about the same for all weights.
"""

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from bench.devices.counting import (
    CORES,
    GCC,
    by_function,
    check_tools,
    counted,
    functions_of,
    linked,
    output_of,
)

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = {"motor_monitor": (1,), "noise_suppression": (1, 12), "voice_activity": (1, 12)}
"""By example, how long its model is trained: epochs, and scenes."""
FRAMES = 80
LIBRARY = ("memcpy", "memset", "__aeabi_", "sqrt")
"""The beginnings of names of functions that a model calls from the compiler's library."""


@dataclass(frozen=True)
class BoardRun:
    """A run of a program over frames. outputs: as it wrote them [frames, outputs]. said: what it printed.
    instructions: those of a frame, in functions of the model and of the compiler's library.
    """

    outputs: np.ndarray
    said: str
    instructions: float


def built(name: str, folder: Path) -> Any:
    """Trains an example for a moment, and makes it in a folder. Returns its `Example`."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return import_module(name).make(folder, *EXAMPLES[name])


def on_board(example: Any, core: str) -> BoardRun:
    """Runs the program of an example over its first frames, which it reads from a file: half of them, and
    all, so that instructions of a frame can be told.
    """
    folder, (y,) = example.folder, example.made.program.of("output")
    options = ["-O2", "-ffp-contract=off", "--specs=rdimon.specs", "-DFILES", f"-I{folder}"]
    program = linked(folder, "board", CORES[core], example.sources, options)
    objects = folder / "model.o"
    output_of([GCC, *CORES[core].options, *options[:2], "-c", example.sources[1], "-o", objects])
    own = {*functions_of(objects).values()}
    totals, text = list[int](), ""
    for count in (FRAMES // 2, FRAMES):
        (folder / "some").write_bytes(example.codes[:count].tobytes())
        run = counted(program, CORES[core], ("some", "given"))
        functions = by_function(run.counts, functions_of(program))
        totals.append(sum(n for name, n in functions.items() if name in own or name.startswith(LIBRARY)))
        text = run.text
    outputs = np.fromfile(folder / "given", y.dtype).reshape(-1, y.size)
    return BoardRun(outputs, text, (totals[1] - totals[0]) / (FRAMES - FRAMES // 2))


def command(
    cores: Annotated[str, typer.Option(help=f"Of {', '.join(CORES)}, by commas.")] = "cortex-m4f,cortex-m55",
) -> None:
    """Print the instructions that a frame of each example takes of each core."""
    check_tools()
    for name in EXAMPLES:
        with TemporaryDirectory() as folder:
            example = built(name, Path(folder))
            for core in cores.split(","):
                count = on_board(example, core).instructions
                typer.echo(f"{name} on {core}: {count:,.0f} instructions a frame")
