"""Counts the instructions of programs for Cortex-M in QEMU, exactly, by a plugin that counts at each address.

    python -m bench.devices.counting program.elf --core cortex-m4f      functions, and their instructions

`linked` makes programs of C sources and libraries, started by board.c, whose `say` prints numbers. A count is
of executed instructions: one in an IT block or under predication counts whether its condition holds or not,
and so does each `le` of a loop of Armv8.1-M, which takes no cycles on a Cortex-M55 after the first.
"""

import re
import shutil
import subprocess
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from stepnet.errors import InputError

HERE = Path(__file__).parent
GCC, QEMU = "arm-none-eabi-gcc", "qemu-system-arm"
NEEDED = GCC, "arm-none-eabi-nm", "arm-none-eabi-size", QEMU, "cc"
SECONDS = 300


@dataclass(frozen=True)
class Core:
    """A processor. options: those of GCC. machine: QEMU's board with it, or with one that has all its
    instructions. rom, ram: the first addresses of the board's memories.
    """

    options: tuple[str, ...]
    machine: str
    rom: int
    ram: int


def core(cpu: str, machine: str, rom: int, ram: int, unit: str = "") -> Core:
    """Returns a processor with a floating-point unit by GCC's name, or without."""
    floats = ("-mfloat-abi=hard", f"-mfpu={unit}") if unit else ("-mfloat-abi=soft",)
    return Core((f"-mcpu={cpu}", "-mthumb", *floats), machine, rom, ram)


CORES = {
    "cortex-m0plus": core("cortex-m0plus", "mps2-an385", 0, 0x20000000),
    "cortex-m4f": core("cortex-m4", "mps2-an386", 0, 0x20000000, "fpv4-sp-d16"),
    "cortex-m33": core("cortex-m33", "mps2-an505", 0x10000000, 0x38000000, "fpv5-sp-d16"),
    "cortex-m55": core("cortex-m55", "mps3-an547", 0, 0x20000000, "auto"),
}


@dataclass(frozen=True)
class Counted:
    """A run of a program. counts: how often the instruction at each address was executed. said: the numbers
    that it printed, by their names. text: all that it printed.
    """

    counts: Mapping[int, int]
    said: Mapping[str, Sequence[int]]
    text: str = ""

    @property
    def instructions(self) -> int:
        """All that were executed."""
        return sum(self.counts.values())


def missing(needed: Sequence[str] = NEEDED) -> list[str]:
    """Returns the programs that are not there, of those that counting needs."""
    return [name for name in needed if shutil.which(name) is None]


def check_tools(needed: Sequence[str] = NEEDED) -> None:
    """Raises `InputError` naming the programs that are not there."""
    if names := missing(needed):
        raise InputError(
            f"counting needs {', '.join(names)}: install them "
            "(packages of Debian: gcc-arm-none-eabi, qemu-system-arm, gcc)"
        )


def output_of(command: Sequence[str | Path]) -> str:
    """Returns what a command prints; raises `InputError` with its message where it fails."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise InputError(f"{Path(command[0]).name} failed with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def linked(folder: Path, name: str, core: Core, sources: Sequence[Path], options: Sequence[str] = ()) -> Path:
    """Returns a program of C sources, and libraries, for a core: name.elf in a folder.

    options: more of GCC's. Unused functions and data are left out.
    """
    program = folder / f"{name}.elf"
    places = [f"-Wl,--defsym=ROM_BEGIN={core.rom:#x},--defsym=RAM_BEGIN={core.ram:#x},--gc-sections"]
    own = ["-ffunction-sections", "-fdata-sections", f"-I{HERE}", "-nostartfiles", "-T", HERE / "board.ld"]
    files = [HERE / "board.c", *sources, "-lm", "-o", program]
    output_of([GCC, *core.options, "-ffp-contract=off", *own, *places, *options, *files])
    return program


def plugin(folder: Path) -> Path:
    """Returns the compiled plugin, in a folder."""
    (major,) = re.findall(r"version (\d+)", output_of([QEMU, "--version"]).partition("\n")[0])
    version = 2 if int(major) >= 9 else 1  # which QEMU accepts
    path = folder / "counting.so"
    source = HERE / "counting.c"
    output_of(["cc", "-O2", "-shared", "-fPIC", f"-DPLUGIN_VERSION={version}", source, "-o", path])
    return path


def counted(program: Path, core: Core, arguments: Sequence[str] = ()) -> Counted:
    """Returns the counts of a run of a program in its folder; raises `InputError` if it does not return 0.

    arguments: of its `main`, where that has files: without spaces.
    """
    check_tools()
    words = "".join(f",arg={word}" for word in (program.name, *arguments))
    with TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        command = [QEMU, "-M", core.machine, "-nographic", "-monitor", "none", "-serial", "none"]
        command += ["-semihosting-config", f"enable=on,target=native{words}", "-kernel", program]
        command += ["-plugin", f"{plugin(Path(folder))},into={counts}"]
        done = subprocess.run(
            [*map(str, command)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=SECONDS,
            cwd=program.parent,
        )
        if done.returncode:
            raise InputError(f"{program.name} ended with {done.returncode} in {QEMU}: {done.stderr[-2000:]}")
        text = done.stdout + done.stderr
        return Counted(counts_of(counts.read_text()), said_in(text), text)


def counts_of(text: str) -> dict[int, int]:
    """Returns the counts in a file of the plugin."""
    rows = (line.split() for line in text.splitlines())
    return {int(address, 16): int(count, 16) for address, count in rows}


def said_in(text: str) -> dict[str, list[int]]:
    """Returns the numbers that a program printed, by name: lines of a name and eight hexadecimal digits."""
    said = dict[str, list[int]]()
    for name, digits in re.findall(r"^(\w+) ([0-9a-f]{8})$", text, re.MULTILINE):
        said.setdefault(name, []).append(int(digits, 16))
    return said


def functions_of(program: Path) -> dict[int, str]:
    """Returns the functions of a program, by their addresses."""
    rows = (line.split() for line in output_of(["arm-none-eabi-nm", program]).splitlines())
    return {
        int(row[0], 16) & ~1: row[2]
        for row in rows
        if len(row) == 3 and row[1] in "tTwW" and row[2][0] != "$"
    }


def by_function(counts: Mapping[int, int], functions: Mapping[int, str]) -> Counter[str]:
    """Returns the instructions that each function executed."""
    begins, total = sorted(functions), Counter[str]()
    for address, count in counts.items():
        at = bisect_right(begins, address) - 1
        total[functions[begins[at]] if at >= 0 else "?"] += count
    return total


def more(longer: Counted, shorter: Counted) -> dict[int, int]:
    """Returns how often more each address was executed in the longer of two runs of the same code."""
    own = {address: count - shorter.counts.get(address, 0) for address, count in longer.counts.items()}
    return {address: count for address, count in own.items() if count}


def main(
    program: Annotated[Path, typer.Argument(help="A program for the board of a core.")],
    core: Annotated[str, typer.Option(help=f"One of {', '.join(CORES)}.")] = "cortex-m4f",
    addresses: Annotated[int, typer.Option(help="How many addresses to list, the most executed first.")] = 0,
) -> None:
    """Print the executed instructions of each function."""
    run = counted(program, CORES[core])
    for name, numbers in run.said.items():
        typer.echo(f"{name}: {', '.join(map(str, numbers))}")
    for name, number in by_function(run.counts, functions_of(program)).most_common():
        typer.echo(f"{number:12,}  {name}")
    for address, number in Counter(run.counts).most_common(addresses):
        typer.echo(f"{number:12,}  {address:#x}")


if __name__ == "__main__":
    typer.run(main)
