"""The files of a step of a model in C99, with the memory that they take of a machine."""

import json
from collections.abc import Mapping
from dataclasses import asdict

from stepnet.compiler.targets.frame.c99 import CProgram
from stepnet.compiler.targets.frame.lowering import lowered_step
from stepnet.compiler.targets.frame.program import FrameProgram
from stepnet.compiler.targets.frame.sizes import FrameSizes, check_fits
from stepnet.compiler.targets.frame.step import ModelStep
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.version import __version__


@dataclass(frozen=True)
class BuiltSource:
    """The files of a frame program, not yet written.

    program: the program. contents: the bytes of each file, by its path in the folder. sizes: the RAM, flash
    and multiply-adds that a frame takes.
    """

    program: FrameProgram
    contents: Mapping[str, bytes]
    sizes: FrameSizes


def built_source(
    step: ModelStep, name: str, about: str, ram: int | None = None, flash: int | None = None
) -> BuiltSource:
    """Writes a step of a model as C99: header, source and manifest.

    name: the prefix of the functions. about: the model, as text. ram, flash: the bytes that a machine has;
    None for enough. Raises `RefusedError` for an operation without a form, and for a model that does not fit.
    """
    program = lowered_step(step)
    written = CProgram(program, name, " ".join(about.split()).replace("*/", "* /"))
    check_fits(program, written.sizes, ram, flash)
    contents = {
        f"{name}.h": written.header().encode(),
        f"{name}.c": written.source().encode(),
        f"{name}.json": manifest(written, "c", about),
    }
    return BuiltSource(program, contents, written.sizes)


def manifest(declared: CProgram, target: str, about: str) -> bytes:
    """Returns the description of a program as JSON. target: the platform that it is for. about: the model, as
    text.
    """
    arrays = [
        {"name": each.name, "kind": each.kind, "dtype": each.dtype, "size": each.size, "title": each.title}
        for each in (*declared.ends, *declared.memories)
    ]
    described = {
        "stepnet": __version__,
        "name": declared.name,
        "target": target,
        "model": about,
        "sizes": asdict(declared.sizes),
        "arrays": arrays,
    }
    return json.dumps(described, indent=2).encode() + b"\n"
