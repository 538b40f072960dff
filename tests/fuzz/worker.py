"""Reads mutants in a process of its own, whose memory and time are limited; ends at the first that fails.

    python worker.py ORIGINALS FOLDER SEED FIRST END

FOLDER/number says which mutant is being read. What fails ends the process by a signal, by the watch over its
time, or by its traceback on stderr: nothing is caught but `StepnetError`.
"""

import faulthandler
import importlib
import json
import pickle
import resource
import sys
from pathlib import Path

from mutants import mutant
from originals import Original

from stepnet.errors import StepnetError
from stepnet.files.checkpoint import sstable
from stepnet.files.formats import FORMATS, kind, read

SECONDS = 10
MEMORY = 1 << 30  # bytes of addresses beyond those that imports take
RESIDENT = 1 << 27  # bytes that reading a small file may take, whatever it says
CHECKED = sstable.CHECKED
LIBRARIES = ("onnx", "google.protobuf.message", "msgpack", "safetensors.numpy", "h5py")


def main(file: str, folder: str, seed: str, first: str, end: str) -> None:
    """Reads the mutants of some numbers."""
    originals: tuple[Original, ...] = pickle.loads(Path(file).read_bytes())
    for name in LIBRARIES:
        importlib.import_module(name)
    for form in FORMATS:
        assert form.code
    faulthandler.enable()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    for number in range(int(first), int(end)):
        Path(folder, "number").write_text(str(number))
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        sstable.CHECKED = CHECKED * ((number // 20 % 2))  # behind a wrong checksum every other one is read all the same
        tried(mutant(int(seed), number, originals), Path(folder))
        faulthandler.cancel_dump_traceback_later()
    Path(folder, "number").write_text(end)


def tried(spoilt: Original, folder: Path) -> None:
    """Reads a mutant; whatever it is, an error is a `StepnetError` that can be printed."""
    for name, data in spoilt.files.items():
        (folder / name).write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        model = read(folder / spoilt.main)
        for module in model.modules:
            describe(module)
    except StepnetError as error:
        assert str(error).isprintable(), f"an error cannot be printed: {error!r}"
        assert len(str(error)) < 20_000, f"an error of {len(str(error))} characters"
    taken = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert taken < RESIDENT, f"{taken} bytes of memory for {len(spoilt.files[spoilt.main])} of a file"
    for name in spoilt.files:
        (folder / name).unlink()


def describe(module) -> None:
    """Asks a module for what `stepnet show` says of it."""
    json.dumps([module.name, module.notes, module.reverse, module.merge])
    try:
        module.told()
        module.record.settled(module.semantics)
    except StepnetError as error:
        assert len(str(error)) < 20_000


if __name__ == "__main__":
    main(*sys.argv[1:])
