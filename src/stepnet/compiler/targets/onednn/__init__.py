"""oneDNN's recurrences, through its C interface: an engine for the cells that it knows."""

from stepnet.compiler.targets.onednn.library import MISSING, OneDnnLibrary

__all__ = ["MISSING", "OneDnnLibrary"]
