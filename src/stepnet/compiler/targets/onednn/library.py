"""The shared library of oneDNN: its path, the checks of whether stepnet can use it, and its functions.

If the library is missing or unsuitable, the engine refuses with the reason; the rest of stepnet works.
"""

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from ctypes import byref, c_int, c_void_p
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from math import prod
from pathlib import Path
from typing import Any

from stepnet.compiler.targets.onednn.interface import (
    CPU,
    DIRECTIONS,
    DTYPES,
    FUNCTIONS,
    INFERENCE,
    ISA_BF16,
    ISA_F16,
    ISA_VNNI,
    MAJOR,
    QUERY_DIMS,
    QUERY_DTYPE,
    QUERY_NDIMS,
    RETURNS,
    RUNTIMES,
    STATUSES,
    TAGS,
    UNIMPLEMENTED,
    USABLE_RUNTIMES,
    Dims,
)
from stepnet.compiler.values.arguments import file_path
from stepnet.compiler.values.records import dataclass
from stepnet.errors import LibraryError, RefusedError, pip_command

VARIABLE = "STEPNET_ONEDNN"
WHEEL = "onednn-cpu-gomp"
NAMES = {"linux": "libdnnl.so.3", "darwin": "libdnnl.3.dylib", "win32": "dnnl.dll"}
NAME = NAMES.get(sys.platform, NAMES["linux"])
HAS_WHEEL = sys.platform == "linux" and platform.machine() == "x86_64"
"""True if the package index has a oneDNN for this machine that stepnet can use."""


def how_to_install(has_wheel: bool, name: str) -> str:
    """Returns the command that installs oneDNN, or what else to do for it. has_wheel: whether the package
    index has it for the machine. name: the file name of the library there.
    """
    if has_wheel:
        return pip_command("stepnet[onednn]")
    there_is_none = f"build oneDNN {MAJOR}, of which there is no package for this machine"
    return f"{there_is_none}, and set {VARIABLE} to the path of its {name}"


INSTALL = how_to_install(HAS_WHEEL, NAME)
MISSING = f"oneDNN is not installed: {INSTALL}" + f", or set {VARIABLE} to the path of {NAME}" * HAS_WHEEL


FORKED: list[bool] = []
"""Not empty in a process forked after a library was loaded: the library's threads do not survive a fork."""


@dataclass(frozen=True, eq=False)
class OneDnnLibrary:
    """Loaded library of oneDNN, its version, and its engine for the processor.

    path: the path of the file.
    functions: the loaded functions.
    version: such as (3, 2, 0).
    runtime: the name of its threading runtime.
    isa: the bits of the instruction sets that it uses.
    engine: the handle of its engine for the processor.
    """

    path: str
    functions: Any
    version: tuple[int, int, int]
    runtime: str
    isa: int
    engine: c_void_p

    def __repr__(self) -> str:
        """Describes the library for the user: its version, threading runtime and path."""
        return f"oneDNN {'.'.join(map(str, self.version))} ({self.runtime}; {self.path})"

    def call(self, name: str, *arguments: Any, asked: str = "") -> None:
        """Calls oneDNN's function `name`. If it fails, raises `RefusedError` if oneDNN does not implement
        what was requested, else `LibraryError`. asked: what was requested, for the message.
        """
        status = getattr(self.functions, name)(*arguments)
        if status:
            raise failure(self, name, status, asked)

    def lacks(self, dtype: str) -> str | None:
        """Returns the reason why recurrences in bfloat16 or float16 cannot run on this processor; None if
        they can. dtype: the dtype; for others than these, the result is None.
        """
        bit = {"bfloat16": ISA_BF16, "float16": ISA_F16}.get(dtype, 0)
        if bit and not self.isa & bit:
            return f"this processor has no instructions for {dtype} that oneDNN could use"
        return refusal(self, dtype) if bit else None

    @property
    def largest_weight(self) -> int:
        """The largest int8 weight without overflow: 63 if the processor adds pairs in 16 bits, else 127."""
        return 127 if self.isa & ISA_VNNI else 63

    def check_process(self) -> None:
        """Raises `LibraryError` in a forked process, in which the threads of the library do not exist."""
        if FORKED:
            raise LibraryError(
                "oneDNN was loaded before this process was forked, and its threads are not in it; start the "
                "process by multiprocessing's 'spawn' or 'forkserver', or load oneDNN in it alone"
            )

    def limit_threads(self, count: int) -> None:
        """Sets the number of oneDNN's threads for this Python thread's calls. Does nothing without OpenMP."""
        if hasattr(self.functions, "omp_set_num_threads"):
            self.functions.omp_set_num_threads(c_int(count))


def failure(library: OneDnnLibrary, name: str, status: int, asked: str) -> LibraryError | RefusedError:
    """Makes the exception for oneDNN's function `name`, which returned `status` when asked for `asked`."""
    status_name = STATUSES[status] if 0 <= status < len(STATUSES) else f"status {status}"
    subject = f"{name}, asked for {asked}" if asked else name
    kind = RefusedError if status == UNIMPLEMENTED else LibraryError
    return kind(f"oneDNN {'.'.join(map(str, library.version))} says {status_name} to {subject}")


def library(path: str | None = None) -> OneDnnLibrary:
    """Returns the library of oneDNN at a path, loaded at the first call; by default the one that the
    environment variable STEPNET_ONEDNN names, or else the installed one.

    Raises:
        LibraryError: If there is no usable library, with the reason.
    """
    if path is None or path == "":
        return load_library(os.environ.get(VARIABLE) or "")
    return load_library(str(file_path(path, "library")))


@cache
def load_library(path: str) -> OneDnnLibrary:
    """Loads the library at a path, once per path; "" stands for the installed one, the first of the
    candidates. Raises `LibraryError` if there is none, or if it cannot be used.
    """
    for candidate in (path,) if path else candidates():
        return open_library(candidate)
    raise LibraryError(MISSING)


def after_fork() -> None:
    """Records, in a forked process, that a library was loaded before: its threads do not survive a fork."""
    if load_library.cache_info().currsize:
        FORKED.append(True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=after_fork)


def candidates() -> Iterator[str]:
    """Yields the paths of installed libraries that exist: the Python wheel's, then the environment's."""
    try:
        files = distribution(WHEEL).files or ()
        paths = [Path(str(file.locate())) for file in files if file.name == NAME]
    except PackageNotFoundError:
        paths = []
    # On Windows wheels and conda have libraries in another folder of the environment.
    folders = Path(sys.prefix, "lib"), Path(sys.prefix, "Library", "bin")
    for path in (*paths, *(folder / NAME for folder in folders)):
        if path.exists():
            yield str(path.resolve())


def open_library(path: str) -> OneDnnLibrary:
    """Opens the library at a path, declares its functions to ctypes, and checks its version, its threading
    runtime and its constants. Returns it with an engine for the processor. Raises `LibraryError` if it cannot
    be used.
    """
    try:
        functions = ctypes.CDLL(path)
    except OSError as error:
        raise LibraryError(
            f"{path} cannot be loaded as oneDNN: {error}"
            + f"; pip install {WHEEL} has one that needs nothing else" * HAS_WHEEL
        ) from None
    lacking = [name for name in FUNCTIONS if not hasattr(functions, name)]
    if lacking:
        raise LibraryError(f"{path} is not oneDNN {MAJOR}: it has no function {lacking[0]}")
    for name, types in FUNCTIONS.items():
        declared = getattr(functions, name)
        declared.argtypes, declared.restype = types, RETURNS.get(name, c_int)
    version = functions.dnnl_version().contents
    number = (version.major, version.minor, version.patch)
    text = f"{path} is oneDNN {'.'.join(map(str, number))}"
    if version.major != MAJOR:
        raise LibraryError(f"{text}, and stepnet calls version {MAJOR}")
    runtime = RUNTIMES.get(version.cpu_runtime, str(version.cpu_runtime))
    if version.cpu_runtime not in USABLE_RUNTIMES:
        raise LibraryError(
            f"{text} built for {runtime}, which finds no processor here"
            + f"; pip install {WHEEL}: it has one that does" * HAS_WHEEL
        )
    engine = c_void_p()
    status = functions.dnnl_engine_create(byref(engine), CPU, 0)
    if status:
        raise LibraryError(f"{text}, and finds no processor: {STATUSES[status]}")
    onednn = OneDnnLibrary(path, functions, number, runtime, functions.dnnl_get_effective_cpu_isa(), engine)
    check_descriptors(onednn)
    return onednn


def check_descriptors(onednn: OneDnnLibrary) -> None:
    """Raises `LibraryError` unless the library reads memory descriptors the way this module writes them. This
    checks that the constants of dtypes and layouts are those of the loaded version.
    """
    sizes = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1, "uint8": 1}
    for dtype, size in sizes.items():
        for tag, dims in (("abc", (2, 3, 5)), ("abcd", (1, 2, 3, 5)), ("abcde", (1, 2, 3, 5, 7))):
            descriptor = new_memory_descriptor(onednn, dims, dtype, tag)
            ndims, number, read = c_int(), c_int(), ctypes.POINTER(ctypes.c_int64)()
            query = onednn.functions.dnnl_memory_desc_query
            query(descriptor, QUERY_NDIMS, byref(ndims))
            query(descriptor, QUERY_DTYPE, byref(number))
            query(descriptor, QUERY_DIMS, byref(read))
            bytes_ = onednn.functions.dnnl_memory_desc_get_size(descriptor)
            same = (ndims.value, number.value) == (len(dims), DTYPES[dtype])
            same = same and bool(read) and tuple(read[: len(dims)]) == dims
            same = same and bytes_ == size * prod(dims)
            onednn.functions.dnnl_memory_desc_destroy(descriptor)
            if not same:
                raise LibraryError(
                    f"{onednn} interprets the description {dtype}{list(dims)} differently: its "
                    "constants are not those of versions 3.2 to 3.7"
                )


def new_memory_descriptor(library: OneDnnLibrary, dims: tuple[int, ...], dtype: str, tag: str) -> c_void_p:
    """Makes a memory descriptor of oneDNN (shape, dtype and layout); returns its handle, which the caller
    must destroy. dims: the shape. tag: the layout, a key of `TAGS` such as "abc".
    """
    handle = c_void_p()
    name = "dnnl_memory_desc_create_with_tag"
    library.call(name, byref(handle), len(dims), Dims(*dims), DTYPES[dtype], TAGS[tag])
    return handle


@cache
def refusal(library: OneDnnLibrary, dtype: str) -> str | None:
    """Returns oneDNN's reason for refusing recurrences in this dtype, found by requesting a GRU of one unit;
    None if it has them. The instruction set alone does not tell: versions differ in the dtypes that they
    implement with it.
    """
    step, state = ((1, 1, 1), dtype, "abc"), ((1, 1, 1, 1), dtype, "abcd")
    weights, bias = ((1, 1, 1, 3, 1), dtype, "any"), ((1, 1, 3, 1), "float32", "abcd")
    memories = [
        new_memory_descriptor(library, *memory)
        for memory in (step, state, weights, weights, bias, step, state)
    ]
    direction, descriptor = DIRECTIONS["left2right"], c_void_p()
    try:
        library.call(
            "dnnl_gru_forward_primitive_desc_create",
            byref(descriptor),
            library.engine,
            INFERENCE,
            direction,
            *memories,
            0,
            None,
            asked=f"a recurrence in {dtype}",
        )
    except RefusedError as error:
        return str(error)
    finally:
        for memory in memories:
            library.functions.dnnl_memory_desc_destroy(memory)
    library.functions.dnnl_primitive_desc_destroy(descriptor)
    return None
