"""Instructions and flash of a step of an LSTM and of a GRU with weights in float32, float16 and bfloat16.

    python -m bench.devices weights

Layers have 12 inputs. The package for a core, and the C source by GCC at -O3, run in an emulator that counts
(counting.py); the C source also on this machine, in Valgrind. Both give the same bits.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.progress import track

from bench.devices.counting import CORES, check_tools, output_of
from bench.devices.frames import run_frames
from bench.devices.layers import INPUTS, Layer, samples
from bench.devices.native_counts import executed
from bench.rows import write_rows
from stepnet.build import DeviceBuild, build
from stepnet.errors import InputError

DTYPES = {"float32": None, "float16": "float16", "bfloat16": "bfloat16"}
CELLS = ("gru", "lstm")
FRAMES = 8
NATIVE = {"x86-64, SSE2": ("-O3",), "x86-64-v3": ("-O3", "-march=x86-64-v3")}
"""Options of GCC on this machine, by what it compiles for."""
MAIN = """
#include "m.h"
static m_context context;
static float x[M_X_SIZE], y[M_Y_SIZE];
int main(void)
{
    if (m_reset(&context)) return 1;
    for (unsigned at = 0; at < %d; at++) {
        x[at] = 1.0F;
        if (m_step(&context, x, y)) return 2;
    }
    return 0;
}
"""


def built(layer: Layer, dtype: str | None, folder: Path, target: Any) -> DeviceBuild:
    """Returns a build of a layer with weights in a dtype, as C or for a core."""
    made = build(layer.model(), folder, name="m", target=target, inputs=INPUTS, dtype=dtype)
    assert isinstance(made, DeviceBuild)
    return made


def native(made: DeviceBuild, options: Sequence[str]) -> float:
    """Returns the instructions of a frame of C source on this machine."""
    folder = made.manifest.parent
    (folder / "main.c").write_text(MAIN % FRAMES)
    program = folder / "main"
    own = ["cc", "-std=c99", *options, f"-I{folder}", folder / "main.c", folder / "m.c"]
    output_of([*own, "-lm", "-o", program])
    return executed(program, "m_step") / FRAMES


def rows(cores: Sequence[str], units: int) -> Iterator[dict[str, Any]]:
    """Yields what a step takes: of each cell, with weights in each dtype. units: the memories."""
    cases = [(cell, dtype) for cell in CELLS for dtype in DTYPES]
    for cell, dtype in track(cases, "layers", transient=True):
        layer, found = Layer(cell, units, ""), dict[str, Any]()
        for core in cores:
            bits = set[int]()
            for name, target in (("package", core), ("C", "c")):
                with TemporaryDirectory() as folder:
                    made = built(layer, DTYPES[dtype], Path(folder), target)
                    run = run_frames(made, "m", samples()[0], core, "-O3")
                found[f"{core}, {name}"] = f"{run.instructions:,.0f}"
                bits.add(run.outputs)
            if len(bits) > 1:
                raise InputError(
                    f"the {cell} with weights in {dtype} has other bits in C than in the package"
                )
        with TemporaryDirectory() as folder:
            made = built(layer, DTYPES[dtype], Path(folder), "c")
            found |= {name: f"{native(made, options):,.0f}" for name, options in NATIVE.items()}
        yield {"cell": cell, "weights": dtype, **found, "constants, bytes": made.sizes.constant_bytes}


def command(
    cores: Annotated[str, typer.Option(help=f"Of {', '.join(CORES)}, by commas.")] = "cortex-m4f,cortex-m55",
    units: Annotated[int, typer.Option(help="The memories of a layer.", min=1)] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Count what a step takes with weights in float32, float16 and bfloat16."""
    check_tools()
    write_rows([*rows(cores.split(","), units)], as_json, "instructions per step")
