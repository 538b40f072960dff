"""Instructions and memory of a step of an LSTM and of a GRU in integers on Cortex-M, beside CMSIS-NN.

    python -m bench.devices lstm --cmsis CMSIS-NN          a folder with its sources
    python -m bench.devices lstm --alone --units 64

Layers have int8 weights, 12 inputs, and int8 or int16 activations. Own ones run by the C source of a build,
compiled by GCC, and by the package for the core; CMSIS-NN by its sources, compiled by the same GCC with the
same options, in the form of rounding that takes the fewest instructions. It has no GRU. All run a whole
sequence in one call, and the outputs are compared with float32. Instructions are counted in an emulator,
exactly: see counting.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.progress import track

from bench.devices.cmsis import forms_of, peer_programs, sources
from bench.devices.counting import CORES, check_tools
from bench.devices.layers import LARGEST, Layer, own_programs
from bench.devices.programs import Measured, measured
from bench.rows import write_rows
from stepnet.errors import InputError

CELLS, UNITS = ("lstm", "gru"), (32, 64, 128)
PACKAGE, SOURCE, PEER = "package", "C", "CMSIS-NN"


@dataclass(frozen=True)
class Row:
    """A layer on a core. takes: what it takes, by who computes it. form: how CMSIS-NN rounds."""

    core: str
    layer: Layer
    takes: dict[str, Measured]
    form: str = ""

    @property
    def ratio(self) -> float | None:
        """Returns the instructions of CMSIS-NN over the fewest own ones."""
        if PEER not in self.takes:
            return None
        own = min(each.instructions for name, each in self.takes.items() if name != PEER)
        return self.takes[PEER].instructions / own

    def shown(self, what: str) -> dict[str, Any]:
        """Returns columns for a table. what: an attribute of `Measured`."""
        layer = {"cell": self.layer.cell, "units": self.layer.units, "activations": self.layer.activations}
        numbers = dict.fromkeys((PACKAGE, SOURCE, PEER), "")
        numbers |= {name: f"{round(getattr(each, what)):,}" for name, each in self.takes.items()}
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        return {"core": self.core, **layer, **numbers} | ({"ratio": ratio} if what == "instructions" else {})


def row(core: str, layer: Layer, cmsis: Path | None, options: Sequence[str]) -> Row:
    """Returns what a layer takes on a core. cmsis: the folder with the sources of CMSIS-NN."""
    wanted, takes, form = layer.last(), dict[str, Measured](), ""
    for name in (PACKAGE, SOURCE):
        with TemporaryDirectory() as folder:
            made = own_programs(layer, core, Path(folder), name == SOURCE, options)
            takes[name] = measured(made, wanted)
    if cmsis is not None and layer.cell == "lstm":
        found = dict[str, Measured]()
        for each in forms_of(core):
            with TemporaryDirectory() as folder:
                found[each] = measured(peer_programs(layer, core, Path(folder), cmsis, each, options), wanted)
        form = min(found, key=lambda each: found[each].instructions)
        takes[PEER] = found[form]
    return Row(core, layer, takes, form)


def rows(
    cores: Sequence[str],
    layers: Sequence[Layer],
    cmsis: Path | None,
    options: Sequence[str],
) -> Iterator[Row]:
    """Yields what layers take on cores."""
    cases = [(core, layer) for core in cores for layer in layers]
    for core, layer in track(cases, "layers", transient=True):
        yield row(core, layer, cmsis, options)


def one_of(values: Sequence[str] | None, known: Sequence[str], name: str) -> list[str]:
    """Returns the values, or all that are known without any; raises `InputError` for another one."""
    for value in values or ():
        if value not in known:
            raise InputError(f"--{name} is one of {', '.join(known)}, not {value}")
    return [*(values or known)]


def checked_peer(cmsis: Path | None, alone: bool) -> None:
    """Raises `InputError` if it is not said where CMSIS-NN is, or if it is not there."""
    if (cmsis is None) != alone:
        raise InputError(
            "give --cmsis FOLDER, a checkout of github.com/ARM-software/CMSIS-NN to compare with, or --alone"
        )
    if cmsis is not None:
        for dtype in LARGEST:
            sources(cmsis, dtype)


def command(
    cmsis: Annotated[Path | None, typer.Option(help="A folder with the sources of CMSIS-NN.")] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Leave CMSIS-NN out.")] = False,
    core: Annotated[list[str] | None, typer.Option(help=f"{', '.join(CORES)}; all by default.")] = None,
    cell: Annotated[list[str] | None, typer.Option(help="lstm, gru; both by default.")] = None,
    units: Annotated[list[int] | None, typer.Option(help="32, 64 and 128 by default.", min=1)] = None,
    activations: Annotated[list[str] | None, typer.Option(help="int8, int16; both by default.")] = None,
    optimise: Annotated[str, typer.Option(help="GCC's level.")] = "-O3",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Count what a step of an LSTM and of a GRU takes of Cortex-M, beside CMSIS-NN."""
    check_tools()
    checked_peer(cmsis, alone)
    cores = one_of(core, [*CORES], "core")
    dtypes = one_of(activations, [*LARGEST], "activations")
    cells = one_of(cell, CELLS, "cell")
    layers = [Layer(each, size, dtype) for each in cells for size in units or UNITS for dtype in dtypes]
    found = [*rows(cores, layers, cmsis, [optimise])]
    if as_json:
        write_rows([asdict(each) | {"ratio": each.ratio} for each in found], True, "")
        return
    for what in ("instructions", "flash", "ram", "stack"):
        write_rows(
            [each.shown(what) for each in found], False, what + (" per step" if "inst" in what else ", bytes")
        )
