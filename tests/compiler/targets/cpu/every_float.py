"""The errors of the elementary functions of the llvm engine, for every float32 that there is.

    python -m tests.compiler.targets.cpu.every_float              all functions, this machine's best processor
    python -m tests.compiler.targets.cpu.every_float sigmoid tanh some of them
    python -m tests.compiler.targets.cpu.every_float exp --target generic    no fused multiply-add

A function of one float32 has 2^32 arguments, few enough to try them all. The truth is NumPy's in float64 (the
C library's for erf), whose own error is some 2^-27 of a float32's ulp. An ulp is the distance between
neighbouring float32 around the true value. Where the truth is infinite or NaN in float32, so must the result
be. The exit status is 1 where a function is outside its bound, or has a wrong infinity or NaN.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from math import pi, sqrt
from multiprocessing import get_context
from multiprocessing.pool import Pool

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from stepnet.compiler.targets.cpu import ELEMENTARY, Processor, available_processors
from tests.compiler.targets.cpu.test_maths import BOUNDS, WIDE, Function, compiled, lanes_of, spacing

PATTERNS = 2**32
BLOCK = 2**22


@dataclass(frozen=True)
class Worst:
    """The greatest distance from the truth among some arguments, where it is, and how many results should be
    infinite or NaN and are something else.
    """

    ulp: float
    argument: float
    wrong: int

    def __or__(self, other: "Worst") -> "Worst":
        """That of both."""
        larger = max(self, other, key=lambda worst: worst.ulp)
        return Worst(larger.ulp, larger.argument, self.wrong + other.wrong)


def truth(name: str, x: NDArray) -> NDArray:
    """The function in float64."""
    with np.errstate(all="ignore"):
        wide = x.astype("f8")
        return erf(wide) if name == "erf" else WIDE[name](wide)


def erf(x: NDArray) -> NDArray:
    """The error function: by the C library, number by number, where it is neither 2 x / sqrt(π) nor ±1."""
    size = np.abs(x)
    result = np.where(size < 1, 2 / sqrt(pi) * x, np.sign(x))
    between = (size > 2**-16) & (size < 6)
    result[between] = WIDE["erf"](x[between]) if between.any() else ()
    return result


def worst_of(function: Function, name: str, bits: NDArray) -> Worst:
    """The worst of the arguments with these bits."""
    x = bits.astype("u4").view("f4")
    got, wanted = function(x), truth(name, x)
    with np.errstate(all="ignore"):
        rounded = wanted.astype("f4")
        finite = np.isfinite(rounded)
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        away = np.abs(got - wanted) / spacing(np.where(finite, wanted, 1), "f4")
    away[~finite] = 0
    away[finite & ~np.isfinite(got)] = np.inf
    place = int(away.argmax())
    return Worst(float(away[place]), float(x[place]), int(np.count_nonzero(~same & ~finite)))


def processor_named(name: str) -> Processor:
    """The processor of that name, among those that this machine runs."""
    return next(processor for processor in available_processors() if processor.name == name)


def worst_of_block(job: tuple[str, str, int]) -> Worst:
    """The worst of a block of arguments: the function, the processor and the first bits."""
    name, processor_name, first = job
    processor = processor_named(processor_name)
    function = compiled(processor, "f4", lanes_of(processor, "f4"))[name]
    return worst_of(function, name, np.arange(first, first + BLOCK, dtype="u8"))


def worst_of_all(pool: Pool, name: str, processor: str) -> Worst:
    """The worst of all arguments."""
    jobs = [(name, processor, first) for first in range(0, PATTERNS, BLOCK)]
    found: Iterable[Worst] = pool.imap_unordered(worst_of_block, jobs)
    shown = track(
        found, description=f"{name:8}", total=len(jobs), console=Console(stderr=True), transient=True
    )
    return reduce(Worst.__or__, shown)


def main() -> None:
    """Show the worst of each function, in a table as the documentation has it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("functions", nargs="*", metavar="FUNCTION", help="all where none is named")
    processors = [processor.name for processor in available_processors()]
    parser.add_argument("--target", choices=processors, default=processors[0])
    options = parser.parse_args()
    if unknown := set(options.functions) - set(ELEMENTARY):
        parser.error(f"no such function: {', '.join(sorted(unknown))}; there are {', '.join(ELEMENTARY)}")
    table = Table(title=f"{PATTERNS:,} numbers each, on {processor_named(options.target)}")
    for heading in ("function", "greatest error, ulp", "at", "bound", "wrong inf or NaN", "seconds"):
        table.add_column(heading, justify="left" if heading == "function" else "right")
    kept = True
    with get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        for name in options.functions or ELEMENTARY:
            begun = time.perf_counter()
            worst = worst_of_all(pool, name, options.target)
            kept &= worst.ulp <= BOUNDS[name] and not worst.wrong
            error, seconds = f"{worst.ulp:.3f}", f"{time.perf_counter() - begun:.0f}"
            place = f"{worst.argument:.9g}"
            table.add_row(name, error, place, f"{BOUNDS[name]:g}", str(worst.wrong), seconds)
    Console().print(table)
    sys.exit(not kept)


if __name__ == "__main__":
    main()
