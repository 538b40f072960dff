"""`build`: makes a library for C, with all its files."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from stepnet.build.header import header
from stepnet.build.model import KEYWORDS, built_model
from stepnet.compiler.targets import library_engine
from stepnet.compiler.values.arguments import choice, flag, local_path, short_repr
from stepnet.errors import FileError, InputError
from stepnet.layout.files.paths import free, new_file
from stepnet.model.graph.graph import Graph
from stepnet.model.streams.composed import stream_refusal

WEIGHTS = ("inside", "beside")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,59}")


@dataclass(frozen=True)
class Build:
    """The files of a library that was built.

    Attributes:
        header: The header that C programs include.
        static: The static library, lib*.a.
        shared: The shared library, lib*.so.
        manifest: The description of the library and its arrays, as JSON.
        weights: The file of weights; None if the library holds them.
    """

    header: Path
    static: Path
    shared: Path
    manifest: Path
    weights: Path | None


def build(
    model: Any,
    folder: str | Path,
    *,
    name: str = "model",
    target: str = "native",
    weights: str = "inside",
    inputs: Any = None,
    statics: Any = None,
    stream: bool = False,
    force: bool = False,
    left_out: Sequence[str] = (),
) -> Build:
    """Builds a library for C from a model: a header, a static and a shared library, and a manifest.

    The library needs no Python, only the system's C library. To build it needs neither a compiler nor a
    linker. Its results have the bits of the llvm engine on the same processor.

    Args:
        model: An `RNN`, a `Stack`, a `Bidirectional` or a `Graph`.
        folder: The folder for the files name.h, libname.a, libname.so and name.json. It is created if it is
            missing.
        name: The name of the library, and the prefix of its functions: letters, digits and underscores.
        target: The processor: "native" for the one at hand, "generic" for all of its family, "x86-64-v3"
            (AVX2), "x86-64-v4" (AVX-512), or "aarch64". All are for Linux, and the first two are built
            there alone.
        weights: "inside" the library, or "beside" it, in the file name.weights.
        inputs: The features of the inputs, as for `RNN`, if the model was made without them.
        statics: The features of the statics, if the model was made without them.
        stream: Whether the library of a graph takes and gives its memories, those of `Graph.stream`, so that
            a sequence goes on in another call. A value that a sequence has once is then given at each step.
        force: Whether to replace existing files.
        left_out: The names of what the file of the model has besides it, which the header lists.

    Returns:
        The paths of the files.

    Raises:
        InputError: For other arguments.
        RefusedError: For a model with a part that is not machine code, naming the part and the reason.
        FileError: If a file exists, unless `force`, or cannot be written; for a folder that is a URL.

    >>> import tempfile
    >>> from stepnet import cells
    >>> from stepnet.build import build
    >>> gru = cells.rnn("gru", cells.CELLS["gru"].parameters(inputs=8, hidden=16))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = build(gru, folder, name="gru", target="x86-64-v3", inputs=8)
    ...     made.shared.name, "int gru_run(" in made.header.read_text()
    ('libgru.so', True)
    """
    directory = local_path(folder, "folder", "a library is written to a folder of this machine: give one")
    beside = choice(weights, "weights is 'inside' or 'beside'", WEIGHTS) == "beside"
    if not isinstance(cast("Any", name), str) or not NAME.fullmatch(name) or name in KEYWORDS:
        raise InputError(
            "name is what the library's functions begin with: a letter, then letters, digits and "
            f"underscores, at most 60 characters and no keyword of C, not {short_repr(name)}"
        )
    graph = model if isinstance(model, Graph) else None
    if flag(stream, "stream") and graph is not None:
        graph.check_any_steps()
    engine = library_engine()
    call = built_model(model, engine.name, inputs, statics, flag(stream, "stream"))
    if (reason := stream_refusal(call.net)) is not None and stream:
        raise InputError(
            f"this model has no stream: {reason}; without stream a library takes whole sequences"
        )
    library = engine.library(call, name, target, beside)
    contents = {
        f"{name}.h": header(
            library.about,
            repr(model),
            reason is None,
            left_out,
            graph and graph.only_steps,
            call.least_steps,
        ).encode(),
        f"lib{name}.a": library.static,
        f"lib{name}.so": library.shared,
        f"{name}.json": library.about.text(indent=2).encode() + b"\n",
    }
    if beside:
        contents[f"{name}.weights"] = library.weights
    paths = write_files(directory, contents, flag(force, "force"))
    return Build(*paths[:4], weights=paths[4] if beside else None)


def write_files(folder: Path, contents: Mapping[str, bytes], force: bool) -> list[Path]:
    """Writes the files of a library into a folder, which is created if it is missing; returns their paths.
    contents: the bytes of each file, by file name. force: whether to replace existing files. Raises
    `FileError` if the folder cannot be made, or a file not be written.
    """
    if folder.is_file():
        raise FileError(f"{folder}: this is a file, and a library has several files: name a folder for them")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: the folder cannot be made ({error.strerror or error})") from error
    paths = [free(folder / name, force) for name in contents]
    for path, data in zip(paths, contents.values(), strict=True):
        with new_file(path, force) as partial:
            partial.write_bytes(data)
    return paths
