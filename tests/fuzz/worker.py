"""Reads mutants in a process of its own, whose memory and time are limited; ends at the first that fails.

    python worker.py ORIGINALS FOLDER SEED FIRST END

FOLDER/number says which mutant is being read. What fails ends the process by a signal, by the watch over its
time, or by its traceback on stderr: nothing is caught but `StepnetError`.
"""

import faulthandler
import importlib
import pickle
import sys
from io import StringIO
from pathlib import Path

from mutants import mutant
from originals import Original
from rich.console import Console

import stepnet as sn
from stepnet.cli.report.show import print_module, unsettled
from stepnet.errors import StepnetError
from stepnet.layout.files import FORMATS, checksums, read

SECONDS = 10
MEMORY = 1 << 30  # bytes of addresses beyond those that imports take
RESIDENT = 1 << 27  # bytes that reading a small file may take, whatever it says
CHECKS = checksums.is_whole, lambda *_: True
LONGEST = 20_000  # characters of an error
LIBRARIES = ("onnx", "google.protobuf.message", "msgpack", "safetensors.numpy", "h5py")


def main(file: str, folder: str, seed: str, first: str, end: str) -> None:
    """Reads the mutants of some numbers."""
    originals: tuple[Original, ...] = pickle.loads(Path(file).read_bytes())
    for name in LIBRARIES:
        importlib.import_module(name)
    for form in FORMATS:
        assert form.code
    import resource

    faulthandler.enable()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    for number in range(int(first), int(end)):
        Path(folder, "number").write_text(str(number))
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        # Behind a wrong checksum every other one is read all the same.
        checksums.is_whole = CHECKS[number // 20 % 2]
        tried(mutant(int(seed), number, originals), Path(folder))
        faulthandler.cancel_dump_traceback_later()
    Path(folder, "number").write_text(end)


def tried(spoilt: Original, folder: Path) -> None:
    """Reads a mutant and shows it; whatever it is, an error is a `StepnetError` that can be printed."""
    for name, data in spoilt.files.items():
        (folder / name).write_bytes(data)
    before, said = peak(), ""
    try:
        if spoilt.kind == "stepnet":
            sn.load(folder / spoilt.main)
        else:
            show(folder / spoilt.main)
        if spoilt.kind == "pt2":
            sn.load(folder / spoilt.main)
    except StepnetError as error:
        said = str(error).replace("\n  at ", " at ")
    assert said.isprintable(), f"an error cannot be printed: {said!r}"
    assert len(said) < LONGEST, f"an error of {len(said)} characters"
    taken = peak() - before
    assert taken < RESIDENT, f"{taken} bytes of memory for {len(spoilt.files[spoilt.main])} of a file"
    for name in spoilt.files:
        (folder / name).unlink()


def show(path: Path) -> None:
    """Reads the modules of a file and shows each."""
    for module in read(path).modules:
        text = StringIO()
        if not unsettled(module):
            print_module(module, None, Console(file=text, width=100, highlight=False))
        assert text.getvalue().replace("\n", "").isprintable(), f"{module} is shown as {text.getvalue()!r}"


def peak() -> int:
    """The most bytes of memory that this process ever had."""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(*sys.argv[1:])
