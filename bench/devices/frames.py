"""Frames through a built model on an emulated board: instructions of a frame, and a sum of the outputs."""

from dataclasses import dataclass

import numpy as np

from bench.devices.counting import CORES, by_function, counted, functions_of, linked
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


@dataclass(frozen=True)
class FramesRun:
    """A run of frames. outputs: the FNV-1a sum of the bytes of all outputs. instructions: of a frame."""

    outputs: int
    instructions: float


def run_frames(made: DeviceBuild, name: str, frames: np.ndarray, core: str, level: str = "-O2") -> FramesRun:
    """Runs frames [frames, inputs], as the program takes them, through a build of source code or a package:
    half of them, and all, so that instructions of a frame can be told.

    name: that of the model in C. level: the optimisation of GCC.
    """
    assert made.header is not None
    code = made.source or made.static
    assert code is not None
    folder, outputs = made.manifest.parent, made.program.of("output")
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
        options = [level, "-ffp-contract=off", f"-I{made.header.parent}"]
        program = linked(folder, "board", CORES[core], [main, code], options)
        run = counted(program, CORES[core])
        functions = by_function(run.counts, functions_of(program))
        totals.append(functions.total() - functions["main"])
        (sum_,) = run.said["sum"]
    return FramesRun(sum_, (totals[1] - totals[0]) / (len(frames) - len(frames) // 2))
