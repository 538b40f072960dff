"""The machine code of a kernel for a GPU, by NVIDIA's assembler ptxas, and what it says of it.

The CUDA driver has an assembler of its own, so this is for explanations and tests alone.
"""

import re
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.targets.cpu.machine.stored_code import keep, read
from stepnet.compiler.targets.cuda.device import DeviceCode
from stepnet.compiler.targets.cuda.ptx import processor_of, translated
from stepnet.compiler.values.records import dataclass
from stepnet.errors import LibraryError

PACKAGE, INSIDE = "nvidia", ("cuda_nvcc/bin/ptxas", "cu13/bin/ptxas")
"""The package of Python with the assembler, `nvidia-cuda-nvcc`, and its place there."""
NUMBERS = {
    "registers": r"Used (\d+) registers",
    "spilled": r"(\d+) bytes spill stores",
    "stack": r"(\d+) bytes stack frame",
    "shared": r"(\d+) bytes smem",
}
"""Where the numbers stand in what ptxas prints."""


@dataclass(frozen=True)
class Assembled:
    """A kernel as machine code of a GPU.

    cubin: the machine code. registers: the number of registers of a thread. spilled: the bytes of registers
    that a thread keeps in memory. stack: the bytes of memory of a thread. shared: the bytes of shared memory
    that the code declares, besides those of the launch.
    """

    cubin: bytes
    registers: int
    spilled: int
    stack: int
    shared: int


FORM = Serializer(Assembled)
"""The form on disk of what was assembled, by the code and the assembler."""


@cache
def ptxas() -> str | None:
    """Returns the path of ptxas, of the package or of the system; None if it is not installed."""
    spec = find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for inside in INSIDE:
            if Path(folder, inside).is_file():
                return str(Path(folder, inside))
    return shutil.which("ptxas")


@cache
def version_of(program: str) -> str:
    """Returns what an assembler says of its version, which it may keep to a script in front of it. Raises
    `LibraryError` if it does not run.
    """
    return run(program, "--version").stdout


def run(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs an assembler. Raises `LibraryError` if it cannot be run."""
    try:
        command = [program, *arguments]
        return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise LibraryError(f"{program}, which has the registers of kernels, does not run: {error}") from error


def assembled(code: DeviceCode, capability: tuple[int, int] = (9, 0)) -> Assembled:
    """Returns the machine code of a kernel for a compute capability, and its registers, as kept on disk or
    assembled now. Raises `LibraryError` if ptxas is not installed or does not run, and with its own words if
    it refuses the kernel.
    """
    program = ptxas()
    if program is None:
        raise LibraryError(
            "ptxas is not installed, which has the registers of kernels: pip install nvidia-cuda-nvcc"
        )
    key = code.key, capability, version_of(program)
    if (known := read("gpu", FORM, key)) is not None:
        return cast("Assembled", known)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(translated(code, capability))
        said = run(program, "-v", f"-arch={processor_of(capability)}", str(source), "-o", str(target))
        if said.returncode or not target.is_file():
            raise LibraryError(f"ptxas refuses the kernel {code.name!r}: {said.stderr.strip()}")
        found = {name: re.search(pattern, said.stderr) for name, pattern in NUMBERS.items()}
        numbers = {name: int(match[1]) if match else 0 for name, match in found.items()}
        made = Assembled(target.read_bytes(), **numbers)
    keep("gpu", FORM, key, made)
    return made
