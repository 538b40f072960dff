"""Reads the facts in a built library's file before it is loaded, so that no wrong file is executed."""

import platform
import sys

from stepnet.compiler.targets.cpu.library.platforms import MACHINES
from stepnet.compiler.targets.cpu.library.shared import SHARED
from stepnet.compiler.targets.cpu.machine.elf import HEADER, SECTION
from stepnet.errors import FileError

DESCRIBE = b"_describe"
"""The end of the name of the function that returns a library's description."""


def library_name(data: bytes) -> str:
    """Reads the prefix of a library's function names from its file, where "prefix_describe" is one of the
    symbols.

    data: the bytes of the file. Raises `FileError` for a file that is no library of stepnet, is incomplete,
    or is for another processor.
    """
    if data[:4] != b"\x7fELF" or len(data) < HEADER.size or HEADER.unpack_from(data)[1] != SHARED:
        raise FileError("this is not a shared library for Linux")
    machine = HEADER.unpack_from(data)[2]
    here = {"x86_64": "x86-64", "aarch64": "aarch64"}.get(platform.machine(), "")
    if sys.platform != "linux" or machine != MACHINES.get(here):
        known = {number: name for name, number in MACHINES.items()}.get(machine, "another processor")
        raise FileError(
            f"the library is for Linux on {known}, and this is {sys.platform} on {platform.machine()}"
        )
    # The system's loader maps the file without a look at its size: access to a missing part ends the
    # process. The table of sections is the last part of a library that stepnet wrote.
    _, _, _, _, _, _, table, *_, count, _ = HEADER.unpack_from(data)
    if len(data) < table + SECTION.size * count:
        raise FileError(
            f"the library has {len(data)} of {table + SECTION.size * count} bytes: it was not copied "
            "to its end; build or copy it again"
        )
    end = data.find(DESCRIBE + b"\0")
    name = data[data.rfind(b"\0", 0, end) + 1 : end] if end >= 0 else b""
    if not name.isascii() or not name.decode("ascii", "replace").isidentifier():
        raise FileError("this is not a library that stepnet built")
    return name.decode()
