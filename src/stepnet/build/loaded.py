"""`load`: calls a built library from Python by ctypes, to compare it with the model that it was built from.

To load a shared library executes its code with all rights of the process. So nothing is loaded unless the
caller states that the library is trusted, and no other file refers to one: a manifest is only data. The names
and arguments of the functions are read from the library itself.
"""

import ctypes
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from stepnet.arrow.runnable import Runnable
from stepnet.build.description import ArrayText, Description
from stepnet.build.library_code import CODE
from stepnet.build.platforms import MACHINES
from stepnet.build.shared import SHARED
from stepnet.compiler.targets.cpu.machine.elf import HEADER, SECTION
from stepnet.compiler.trace.step import Spec
from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import FileError, InputError, LibraryError
from stepnet.layout.files.paths import existing
from stepnet.layout.options import option
from stepnet.ragged import Ragged

Array = np.ndarray
LIBRARY = ".so"
DESCRIBE = b"_describe"
ANOTHER = (
    "this process has loaded another library from here before: "
    "load it in a new process, or from another folder"
)


class Functions:
    """The C functions of a loaded library, as ctypes functions with the types of their arguments."""

    def __init__(self, library: Any, name: str) -> None:
        """Looks up the functions of a ctypes library, and parses its description to know the arguments of
        `run`. name: the prefix of the functions' names. Raises `AttributeError` if a function is missing.
        """

        def function(name_: str, result: Any, *arguments: Any) -> Any:
            """Returns the library's function prefix_name, with the ctypes of its result and arguments set."""
            c_function = library[f"{name}_{name_}"]
            c_function.restype, c_function.argtypes = result, arguments
            return c_function

        pointer = ctypes.c_void_p
        self.describe = function("describe", ctypes.c_char_p)
        self.error = function("error", ctypes.c_char_p, ctypes.c_int)
        self.free = function("free", None, pointer)
        self.about = Description.read(self.describe())
        arrays = [pointer] * len(self.about.arrays)
        self.run = function("run", ctypes.c_int, pointer, ctypes.c_int64, pointer, *arrays)
        if self.about.weights is None:
            self.new = function("new", ctypes.c_int, pointer)
        else:
            self.open = function("open", ctypes.c_int, ctypes.c_char_p, pointer)


class Library:
    """A loaded library, called like its C function, with arrays by name. Only one thread runs it at a time;
    others wait.

    Attributes:
        path: The file.
        about: The description that the library holds.

    >>> import tempfile, numpy as np, stepnet as sn
    >>> from stepnet import cells
    >>> from stepnet.build import build, load
    >>> gru = cells.rnn("gru", cells.CELLS["gru"].parameters(inputs=8, hidden=16))
    >>> x = sn.Ragged.from_list([np.ones((3, 8), "float32"), np.ones((1, 8), "float32")])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     library = load(build(gru, folder, inputs=8).shared, trust=True)
    >>> results = library({"x": x})
    >>> bool((results["y"].values == gru(x)[0].values).all()), results["final"].shape
    (True, (2, 16))
    """

    def __init__(self, path: Path, functions: "Functions", about: Description, beside: Path | None) -> None:
        """Creates a context of the library, which holds its weights and the memory for calls. beside: the
        weights file; None if the library holds the weights. Raises an error if they do not fit.
        """
        self.path, self.about, self._functions = path, about, functions
        self._files = (path,) if beside is None else (path, beside)
        self._context, self._lock = ctypes.c_void_p(), Lock()
        out = ctypes.byref(self._context)
        self.check(functions.new(out) if beside is None else functions.open(os.fsencode(beside), out))

    def __del__(self) -> None:
        if self.__dict__.get("_context"):
            self._functions.free(self._context)

    def __call__(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the library; returns its results by name: a `Ragged` for values per step, an array for others.

        Args:
            arrays: The inputs by name: `Ragged`s of equal lengths for sequences, arrays [sequences,
                features...] for values per sequence. Initial memories may be left out.

        Raises:
            InputError: For arrays that do not fit.
        """
        if not isinstance(arrays, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"a library takes a dict of arrays by name, not {short_repr(arrays)}")
        texts = self.about.arrays
        known = [each.name for each in texts if each.kind not in ("output", "final")]
        unknown = [name for name in arrays if name not in known]
        missing = [
            each.name
            for each in texts
            if each.name in known and not each.optional and each.name not in arrays
        ]
        if unknown or missing:
            raise InputError(
                f"the library takes arrays called {', '.join(known)}, not {', '.join(arrays) or 'none'}"
            )
        offsets = self.offsets(arrays)
        rows, steps = len(offsets) - 1, int(offsets[-1])
        call_arrays = list[Array | None]()
        results = dict[str, Array]()
        for each in texts:
            count = rows if each.by_row else steps
            if each.kind in ("output", "final"):
                results[each.name] = np.zeros((count, *each.shape), np.dtype(each.dtype))
                call_arrays.append(results[each.name])
            elif arrays.get(each.name) is None:
                call_arrays.append(None)
            else:
                call_arrays.append(check_array(each, arrays[each.name], count))
        pointers = [None if array is None else array.ctypes.data for array in call_arrays]
        with self._lock:  # only one thread at a time may use a context
            code = self._functions.run(self._context, rows, offsets.ctypes.data, *pointers)
        self.check(code)
        by_row = {each.name for each in texts if each.by_row}
        return {
            name: array if name in by_row else Ragged(array, (offsets,)) for name, array in results.items()
        }

    def runnable(self) -> Runnable:
        """Returns the library as a function of one `Ragged`, for `stepnet run`. Raises `InputError` unless
        the library needs one array of sequences and has one output per step.
        """
        needed = [array for array in self.about.arrays if not array.optional]
        outputs = [array for array in self.about.arrays if array.kind == "output" and not array.by_row]
        if [array.kind for array in needed] != ["sequence"] or len(outputs) != 1:
            names = ", ".join(array.name for array in needed)
            raise InputError(
                f"{self.path}: a library that runs over a file takes one array of sequences and gives one "
                f"output of each step; this one takes {names}, and gives {len(outputs)} of these"
            )
        (text,), (output,) = needed, outputs
        shape = tuple(text.shape)

        def run(sequences: Ragged) -> Ragged:
            """Runs the library over sequences of its only input; returns its only output per step."""
            result: Ragged = self({text.name: sequences})[output.name]
            return result

        def content() -> list[Array]:
            """Returns the bytes of the library's files (code, weights), which identify the model."""
            return [np.fromfile(path, np.uint8) for path in self._files]

        return Runnable(Spec(shape, text.dtype), run, values=content)

    def offsets(self, arrays: Mapping[str, Any]) -> Array:
        """Returns the common offsets of a call's input sequences, by which C code finds them. Raises
        `InputError` if they differ, or an input is no `Ragged` of one level.
        """
        sequences = [array.name for array in self.about.arrays if array.kind == "sequence"]
        offsets = list[Array]()
        for name in sequences:
            ragged = arrays[name]
            if not isinstance(ragged, Ragged) or ragged.levels != 1:
                raise InputError(f"{name} is a Ragged of one level, not {short_repr(ragged)}")
            offsets.append(np.ascontiguousarray(ragged.offsets[0], np.int64))
        if any(not np.array_equal(offsets[0], other) for other in offsets[1:]):
            raise InputError(f"{', '.join(sequences)} must have the same lengths, and these do not")
        return offsets[0]

    def check(self, code: int) -> None:
        """Raises the error for a code that a C function of the library returned; 0 is success. It is an
        `InputError` for an index out of range, else a `LibraryError`.
        """
        if code:
            kind = InputError if code == CODE["INDEX"] else LibraryError
            raise kind(f"{self.path}: {self._functions.error(code).decode()}")


def check_array(text: ArrayText, value: Any, count: int) -> Array:
    """Returns an input array of a call, contiguous, as C code reads it. text: the description that the array
    must fit. value: an array, or a `Ragged`. count: the number of sequences or steps. Raises `InputError` if
    dtype or shape differ.
    """
    array = np.ascontiguousarray(value.values if isinstance(value, Ragged) else value)
    if array.shape != (count, *text.shape) or array.dtype != np.dtype(text.dtype):
        raise InputError(
            f"{text.name} is {text.dtype}{[count, *text.shape]}, not {array.dtype}{list(array.shape)}"
        )
    return array


def load(path: str | Path, *, trust: bool = False, weights: str | Path | None = None) -> Library:
    """Loads a shared library that `build` made into this process.

    Args:
        path: The library, lib*.so.
        trust: States that the library is trusted. It is machine code: once loaded, it may do everything that
            this process may. Load only what you built yourself.
        weights: The file of weights of a library that has them beside it; by default the file of its name in
            the folder of the library.

    Returns:
        A `Library`.

    Raises:
        InputError: Unless it is trusted, and for a file that is not a library.
        FileError: For a file that is missing, was not built by stepnet, or is for another processor.
        LibraryError: If the library refuses its weights, or the processor.
    """
    path = existing(path)
    if path.suffix != LIBRARY:
        raise InputError(f"{path}: only the shared library itself, lib*.so, can be loaded")
    if trust is not True:
        raise InputError(
            f"{path}: a library is machine code, which may do all that this process may: "
            f"{option('trust')} says that you trust it"
        )
    data = path.read_bytes()
    name = library_name(path, data)
    try:
        functions = Functions(ctypes.CDLL(str(path.resolve())), name)
    except OSError as error:
        raise FileError(f"{path}: the library cannot be loaded ({error})") from error
    except AttributeError as error:  # the process may have loaded another library from this path
        raise FileError(
            f"{path}: a function is missing ({error}): stepnet did not build this library, or {ANOTHER}"
        ) from error
    about = functions.about
    if functions.describe() not in data:
        raise FileError(f"{path}: {ANOTHER}")
    if about.weights is None:
        return Library(path, functions, about, None)
    return Library(
        path, functions, about, existing(path.with_name(about.weights) if weights is None else weights)
    )


def library_name(path: Path, data: bytes) -> str:
    """Reads the prefix of a library's function names from its file, where "prefix_describe" is one of the
    symbols. It runs before the library is loaded, so that wrong files are refused. data: the bytes of the
    file. Raises `FileError` for a file that is no library of stepnet, is incomplete, or is for another
    processor.
    """
    if data[:4] != b"\x7fELF" or len(data) < HEADER.size or HEADER.unpack_from(data)[1] != SHARED:
        raise FileError(f"{path}: this is not a shared library for Linux")
    machine = HEADER.unpack_from(data)[2]
    here = {"x86_64": "x86-64", "aarch64": "aarch64"}.get(platform.machine(), "")
    if sys.platform != "linux" or machine != MACHINES.get(here):
        known = {number: name for name, number in MACHINES.items()}.get(machine, "another processor")
        raise FileError(
            f"{path}: the library is for Linux on {known}, and this is {sys.platform} on {platform.machine()}"
        )
    # The system's loader maps the file without a look at its size: access to a missing part ends the
    # process. The table of sections is the last part of a library that stepnet wrote.
    _, _, _, _, _, _, table, *_, count, _ = HEADER.unpack_from(data)
    if len(data) < table + SECTION.size * count:
        raise FileError(
            f"{path}: the library has {len(data)} of {table + SECTION.size * count} bytes: it was not copied "
            "to its end; build or copy it again"
        )
    end = data.find(DESCRIBE + b"\0")
    name = data[data.rfind(b"\0", 0, end) + 1 : end] if end >= 0 else b""
    if not name.isascii() or not name.decode("ascii", "replace").isidentifier():
        raise FileError(f"{path}: this is not a library that stepnet built")
    return name.decode()
