"""Models for the commands: the model of a file, and its name in a library."""

import re
from pathlib import Path
from typing import Any


def runnable(file: Path, chosen: Any, recurrent_only: bool, trust: bool) -> Any:
    """The `FileModel` of a file, or the runnable of a library that is trusted."""
    if trust or file.suffix == ".so":
        from stepnet.build import load as load_library

        return load_library(file, trust=trust).runnable()
    from stepnet.model_file import read_model

    return read_model(file, chosen, recurrent_only=recurrent_only)


def library_name(file: Path) -> str:
    """A name for the library of a file.

    >>> library_name(Path("models/speech 2.onnx")), library_name(Path("2nd.keras"))
    ('speech_2', 'model_2nd')
    """
    name = re.sub(r"[^0-9A-Za-z]+", "_", file.stem.encode("ascii", "ignore").decode()).strip("_")[:50]
    return name if name[:1].isalpha() else f"model_{name}".rstrip("_")
