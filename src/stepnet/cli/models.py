"""Models for the commands: the model of a file, and its name in a library."""

import re
from pathlib import Path
from typing import Any


def load_runnable(
    file: Path,
    chosen: Any,
    recurrent_only: bool,
    trust: bool,
    last: bool = False,
    steps: str | None = None,
) -> Any:
    """Reads the model of a file that `stepnet run` is to run: a `FileModel`, or the `Runnable` of a C
    library.

    chosen: the choice of layers and layouts in the file, as `choice` makes it. recurrent_only: leave other
    layers out. trust: permits to run the machine code of the library. last: whether the last output of each
    sequence is asked for. steps: "any" if no number in the file depends on the number of steps that it fixes.
    """
    if trust or file.suffix == ".so":
        from stepnet.build import load as load_library

        return load_library(file, trust=trust).runnable(last)
    from stepnet.compiler.values.arguments import is_any
    from stepnet.model.file import read_model

    return read_model(file, chosen, recurrent_only=recurrent_only, any_steps=is_any(steps))


def library_name(file: Path) -> str:
    """Makes a C identifier from the name of a model file, as the default prefix of a library's functions.

    >>> library_name(Path("models/speech 2.onnx")), library_name(Path("2nd.keras"))
    ('speech_2', 'model_2nd')
    """
    name = re.sub(r"[^0-9A-Za-z]+", "_", file.stem.encode("ascii", "ignore").decode()).strip("_")[:50]
    return name if name[:1].isalpha() else f"model_{name}".rstrip("_")
