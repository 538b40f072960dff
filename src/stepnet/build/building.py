"""`build`: makes a library for C, with all its files."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, cast, overload

from stepnet.build.device_builds import (
    DeviceBuild,
    DeviceTarget,
    built_frames,
    device_build,
    is_device_target,
)
from stepnet.build.header import header
from stepnet.build.model import built_model
from stepnet.compiler.targets import library_engine
from stepnet.compiler.targets.frame import DEVICES
from stepnet.compiler.values.arguments import choice, flag, local_path, short_repr
from stepnet.compiler.values.c_names import HEADERS, is_reserved
from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError, InputError
from stepnet.layout.files.paths import free, new_file
from stepnet.model.graph.graph import Graph
from stepnet.model.streams.composed import stream_refusal

LibraryTarget = Literal["native", "generic", "x86-64-v3", "x86-64-v4", "aarch64"]
"""The targets of libraries for Linux."""
WEIGHTS = ("inside", "beside")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,59}")


@dataclass(frozen=True)
class Build:
    """The files of a library for C that were built.

    Attributes:
        header: The header that C programs include.
        static: The static library, lib*.a.
        shared: The shared library, lib*.so.
        manifest: The description of what was built and of its arrays, as JSON.
        weights: The file of weights; None if the library holds them.
    """

    header: Path
    static: Path
    shared: Path
    manifest: Path
    weights: Path | None = None


class BuildOptions(TypedDict, total=False):
    """The keywords of `build` besides the target, for its types."""

    name: str
    weights: str
    inputs: Any
    statics: Any
    stream: bool
    force: bool
    left_out: Sequence[str]
    ram: int | None
    flash: int | None
    package: str | None
    dtype: str | None


@overload
def build(
    model: Any, folder: str | Path, *, target: DeviceTarget, **options: Unpack[BuildOptions]
) -> DeviceBuild: ...
@overload
def build(
    model: Any, folder: str | Path, *, target: LibraryTarget = "native", **options: Unpack[BuildOptions]
) -> Build: ...
@overload
def build(
    model: Any, folder: str | Path, *, target: str, **options: Unpack[BuildOptions]
) -> Build | DeviceBuild: ...
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
    ram: int | None = None,
    flash: int | None = None,
    package: str | None = None,
    dtype: str | None = None,
) -> Build | DeviceBuild:
    """Builds a library for C from a model: a header, a static and a shared library, and a manifest. With
    target="c" it builds portable C99 instead: a header, a source and a manifest; and with the name of a
    device a package for it.

    The library needs no Python, only the system's C library. To build it needs neither a compiler nor a
    linker. Its results have the bits of the llvm engine on the same processor.

    Args:
        model: An `RNN`, a `Stack`, a `Bidirectional` or a `Graph`.
        folder: The folder for the files name.h, libname.a, libname.so and name.json. It is created if it is
            missing.
        name: The name of the library, and the prefix of its functions: letters, digits and underscores.
        target: The processor: "native" for the one at hand, "generic" for all of its family, "x86-64-v3"
            (AVX2), "x86-64-v4" (AVX-512), or "aarch64". All are for Linux, and the first two are built
            there alone. "c" is source code for any compiler, which runs one frame of one sequence at a time,
            without a heap, as on microcontrollers. The devices run such frames too: "wasm32" (browsers and
            node), "cortex-m0plus", "cortex-m4f", "cortex-m33", "cortex-m55", "armv7", "riscv64",
            "riscv64-plain" (without vectors), "riscv32", "aarch64-macos", "x86_64-macos", "aarch64-windows"
            and "x86_64-windows"; "wasm32-plain" is WebAssembly without SIMD alone.
        weights: "inside" the library, or "beside" it, in the file name.weights.
        inputs: The features of the inputs, as for `RNN`, if the model was made without them.
        statics: The features of the statics, if the model was made without them.
        stream: Whether the library of a graph takes and gives its memories, those of `Graph.stream`, so that
            a sequence goes on in another call. A value that a sequence has once is then given at each step.
        force: Whether to replace existing files.
        left_out: The names of what the file of the model has besides it, which the header lists.
        ram: The bytes of RAM of the machine that source code is for, if it is to be checked that they are
            enough.
        flash: The same of its bytes of flash, for weights and tables, and for a device also for code.
        package: The kind of package for a device: "npm" for browsers; "cmake" elsewhere, and for
            microcontrollers also "zephyr" (a module) and "arduino" (a library). None is the first of these.
        dtype: The dtype in which source code and devices store matrices and tables: "float16" or "bfloat16",
            to which they are rounded. None for those of the model.

    Returns:
        The paths of the files: a `Build`, or a `DeviceBuild` for source code and devices.

    Raises:
        InputError: For other arguments.
        RefusedError: For a model with a part that is not machine code, naming the part and the reason; and
            for one that does not fit into `ram` and `flash`, saying what takes how much.
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
    if not isinstance(cast("Any", name), str) or not NAME.fullmatch(name) or is_reserved(name):
        raise InputError(
            "name is what the library's functions begin with: a letter, then letters, digits and "
            f"underscores, at most 60 characters and no keyword of C, not {short_repr(name)}"
        )
    if name.lower() in HEADERS:
        raise InputError(f"name {name!r} would hide the header {name.lower()}.h of C: give another name")
    graph = model if isinstance(model, Graph) else None
    one_frame = is_device_target(target)
    if (flag(stream, "stream") or one_frame) and graph is not None:
        graph.check_any_steps()
    if is_device_target(target):
        made = built_frames(
            model,
            name,
            target,
            beside=beside,
            inputs=inputs,
            statics=statics,
            left_out=left_out,
            ram=ram,
            flash=flash,
            package=package,
            dtype=dtype,
        )
        return device_build(name, made, write_files(directory, made.contents, flag(force, "force")))
    if ram is not None or flash is not None:
        raise InputError(
            "ram and flash are limits of source code and devices: give them with target='c' or a device"
        )
    if dtype is not None:
        raise InputError(
            "dtype is that of weights in source code and devices: give it with target='c' or a device"
        )
    if package is not None:
        raise InputError(f"package is the kind of package for a device: {', '.join(DEVICES)}")
    if getattr(model, "frame_step", None) is not None:
        raise InputError(
            "a model in integers alone runs one frame at a time: give target='c' or the name of a device"
        )
    engine = library_engine()
    call = built_model(model, engine.name, inputs, statics, flag(stream, "stream"))
    if (reason := stream_refusal(call.net)) is not None and stream:
        raise InputError(
            f"this model has no stream: {reason}; without stream a library takes whole sequences"
        )
    library = engine.library(call, name, target, beside)
    contents = {
        f"{name}.h": header(
            library.about, repr(model), reason is None, left_out, graph and graph.only_steps, call.least_steps
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
    contents: the bytes of each file, by its place in the folder. force: whether to replace existing files.
    Raises `FileError` if the folder cannot be made, or a file not be written.
    """
    if folder.is_file():
        raise FileError(f"{folder}: this is a file, and a library has several files: name a folder for them")
    try:
        for place in (folder, *((folder / name).parent for name in contents)):
            place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: the folder cannot be made ({error.strerror or error})") from error
    paths = [free(folder / name, force) for name in contents]
    for path, data in zip(paths, contents.values(), strict=True):
        with new_file(path, force) as partial:
            partial.write_bytes(data)
    return paths
