"""Readers and writers of model files.

A file is untrusted data. No code in it runs, and a damaged or hostile file raises `FileError`.

The names of `HOMES` are imported when they are first used: a few modules of this folder belong to a stage
before those that the others need.
"""

from typing import TYPE_CHECKING, Any

from stepnet.compiler.values.fork_guard import imported_late

if TYPE_CHECKING:
    from stepnet.layout.files.choice import LayoutChoice
    from stepnet.layout.files.formats import FORMATS, kind, read, write
    from stepnet.layout.files.interchange import convert_file
    from stepnet.layout.files.model import FileContents, Module
    from stepnet.layout.files.verified import weights

__all__ = [
    "FORMATS",
    "FileContents",
    "LayoutChoice",
    "Module",
    "convert_file",
    "kind",
    "read",
    "weights",
    "write",
]

HOMES = {
    "LayoutChoice": "choice",
    "FORMATS": "formats",
    "FileContents": "model",
    "Module": "model",
    "convert_file": "interchange",
    "kind": "formats",
    "read": "formats",
    "weights": "verified",
    "write": "formats",
}


def __getattr__(name: str) -> Any:
    """Imports a name in `HOMES` at its first use; raises `AttributeError` for other names."""
    return imported_late(__name__, name, HOMES.get(name))
