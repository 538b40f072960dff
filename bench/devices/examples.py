"""The examples for microcontrollers on emulated ones: instructions of a frame, and a sum of what they give.

    python -m bench.devices examples

The models are trained for a moment only: the instructions are about the same for all weights.
"""

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer

from bench.devices.counting import CORES, by_function, check_tools, counted, functions_of, linked
from stepnet.build import DeviceBuild

MAIN = """\
#include "board.h"
#include "{name}.h"

static {name}_context context;
static const union {{
    unsigned char bytes[{bytes}];
    int aligned;
}} frames = {{{{ {data} }}}};
static struct {{
    {outputs}
}} y;

int main(void)
{{
    unsigned sum = 2166136261U;
    if ({name}_reset(&context)) return 1;
    for (unsigned at = 0; at < {count}; at++) {{
        if ({name}_step(&context, (const void *)&frames.bytes[at * {size}], {places})) return 2;
        for (unsigned place = 0; place < {given}; place++) {{
            sum = (sum ^ ((const unsigned char *)&y)[place]) * 16777619U;
        }}
    }}
    say("sum", sum);
    return 0;
}}
"""
FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = {
    "motor_monitor": ("monitor", (1,)),
    "noise_suppression": ("suppressor", (1, 8)),
    "voice_activity": ("voice", (1, 8)),
}
"""By example, the name of its model in C, and how long it is trained: epochs, and scenes."""
FRAMES = 20


@dataclass(frozen=True)
class BoardRun:
    """A run of frames. outputs: the FNV-1a sum of the bytes of all outputs. instructions: of a frame."""

    outputs: int
    instructions: float


def built(example: str, folder: Path) -> tuple[DeviceBuild, np.ndarray]:
    """Trains an example for a moment, and builds it in a folder. Returns the build, and frames [20, inputs]
    as its program takes them.
    """
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    made: DeviceBuild = import_module(example).make(folder, *EXAMPLES[example][1])[1]
    (x,) = made.program.of("input")
    (file,) = (each for each in folder.iterdir() if each.suffix in (".f32", ".frames"))
    return made, np.fromfile(file, x.dtype).reshape(-1, x.size)[:FRAMES]


def on_board(made: DeviceBuild, name: str, frames: np.ndarray, core: str) -> BoardRun:
    """Runs frames [frames, inputs], as the program takes them, through a build of source code: half of them,
    and all, so that instructions of a frame can be told.
    """
    assert made.source is not None
    folder, outputs = made.source.parent, made.program.of("output")
    c_types = {"float32": "float", "int16": "short", "int8": "signed char"}
    totals, sum_ = list[int](), 0
    for count in (len(frames) // 2, len(frames)):
        data = np.ascontiguousarray(frames[:count]).tobytes()
        main = folder / "main.c"
        main.write_text(
            MAIN.format(
                name=name,
                bytes=len(data),
                data=", ".join(map(str, data)),
                count=count,
                size=len(data) // count,
                outputs=" ".join(f"{c_types[each.dtype]} {each.name}[{each.size}];" for each in outputs),
                places=", ".join(f"y.{each.name}" for each in outputs),
                given=sum(each.bytes for each in outputs),
            )
        )
        options = ["-O2", "-ffp-contract=off", f"-I{folder}"]
        program = linked(folder, "board", CORES[core], [main, made.source], options)
        run = counted(program, CORES[core])
        functions = by_function(run.counts, functions_of(program))
        totals.append(functions.total() - functions["main"])
        (sum_,) = run.said["sum"]
    return BoardRun(sum_, (totals[1] - totals[0]) / (len(frames) - len(frames) // 2))


def command(
    cores: Annotated[str, typer.Option(help=f"Of {', '.join(CORES)}, by commas.")] = "cortex-m4f,cortex-m55",
) -> None:
    """Print the instructions that a frame of each example takes of each core."""
    check_tools()
    for example, (name, _) in EXAMPLES.items():
        with TemporaryDirectory() as folder:
            made, frames = built(example, Path(folder))
            for core in cores.split(","):
                count = on_board(made, name, frames, core).instructions
                typer.echo(f"{example} on {core}: {count:,.0f} instructions a frame")
