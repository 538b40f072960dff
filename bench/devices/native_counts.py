"""Counts the instructions of a program of this machine, exactly, in Valgrind's `callgrind`."""

import re
import shutil
import subprocess
from pathlib import Path

from stepnet.errors import InputError

SECONDS = 600
TOOL = "valgrind"


def executed(program: Path, inside: str) -> int:
    """Returns the instructions that a program executes inside of a function, with what it calls.

    inside: the function's name in C; it must not be inlined. Raises `InputError` if Valgrind is missing or
    does not know an instruction, or if the program does not return 0 or does not call the function.
    """
    if shutil.which(TOOL) is None:
        raise InputError(f"counting needs {TOOL}: install it (a package of Debian)")
    options = ["--tool=callgrind", "--callgrind-out-file=/dev/null", f"--toggle-collect={inside}"]
    command = [TOOL, *options, str(program)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=SECONDS
    )
    text = done.stderr.decode(errors="replace")
    if done.returncode:
        raise InputError(f"{program.name} ended with {done.returncode} in {TOOL}: {text[-2000:]}")
    collected = re.search(r"Collected : (\d+)", text)
    count = int(collected[1]) if collected else 0
    if not count:
        raise InputError(f"{program.name} never called {inside}, or it was inlined")
    return count
