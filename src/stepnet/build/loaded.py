"""`load`: calls a built library from Python by ctypes, to compare it with the model that it was built from.

To load a shared library executes its code with all rights of the process. So nothing is loaded unless the
caller states that the library is trusted, and no other file refers to one: a manifest is only data. The names
and arguments of the functions are read from the library itself.
"""

import ctypes
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from stepnet.arrow.runnable import Runnable
from stepnet.compiler.net.windows import derived_offsets
from stepnet.compiler.targets import library_engine
from stepnet.compiler.targets.library import CODES, ArrayText, Description
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import FileError, IndexOutsideError, InputError, LibraryError, named
from stepnet.layout.files.paths import existing
from stepnet.layout.options import option
from stepnet.ragged import Ragged

Array = np.ndarray
LIBRARY = ".so"
KINDS = {CODES["INDEX"]: IndexOutsideError, CODES["TOO_SHORT"]: InputError}
"""The classes of the errors for codes that are about the values of a call."""
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
            """Returns the C function "prefix_name" of a library, with the types of result and arguments."""
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
        """Creates a context of the library, which holds its weights and the memory for calls. functions: the
        C functions of the library. about: its description. beside: the weights file; None if the library
        holds the weights. Raises an error if they do not fit.
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
        rows, call_arrays = len(offsets) - 1, list[Array | None]()
        results = dict[str, Array]()
        along = {each.axis: derived_offsets(each.axis, offsets) for each in texts if not each.by_row}
        for each in texts:
            count = rows if each.by_row else int(along[each.axis][-1])
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
        self.check(code, integers_text(arrays) if code == CODES["INDEX"] else "")
        return {
            each.name: made if each.by_row else Ragged(made, (along[each.axis],))
            for each in texts
            if (made := results.get(each.name)) is not None
        }

    def runnable(self, last: bool = False) -> Runnable:
        """Returns the library as a function of one `Ragged`, for `stepnet run`. Raises `InputError` unless
        the library needs one array of sequences and has one output, and if the last output of each sequence
        is asked for (`last`) and the library gives those of all steps.
        """
        needed = [array for array in self.about.arrays if not array.optional]
        outputs = [array for array in self.about.arrays if array.kind == "output"]
        if [array.kind for array in needed] != ["sequence"] or len(outputs) != 1:
            names, given = (", ".join(array.name for array in arrays) for arrays in (needed, outputs))
            values = ", ".join(f"{array.name!r}: {array.name}" for array in needed)
            raise InputError(
                f"{self.path}: a library that runs over a file takes one array of sequences and gives one "
                f"output; this one takes {names}, and gives {given}: in Python, "
                f"stepnet.build.load(path, trust=True)({{{values}}}) runs it"
            )
        (text,), (output,) = needed, outputs
        if last and not output.by_row:
            raise InputError(
                f"{self.path}: this library gives {output.name} of each step, and not the last of each "
                "sequence: leave out --result last, and take the last of each list"
            )
        shape = tuple(text.shape)

        def run(sequences: Ragged) -> Any:
            """Runs the library over sequences of its only input; returns its only output."""
            return self({text.name: sequences})[output.name]

        def digest(_: Spec) -> str:
            """Returns a digest of the library's files (code, weights), which identifies the model."""
            return " ".join(sha256(path.read_bytes()).hexdigest() for path in self._files)

        return Runnable(Spec(shape, text.dtype), run, digest)

    def offsets(self, arrays: Mapping[str, Any]) -> Array:
        """Returns the common offsets of a call's input sequences, by which C code finds them. Raises
        `InputError` if they differ, or an input is no `Ragged` of one level of nesting.
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

    def check(self, code: int, besides: str = "") -> None:
        """Raises the error for a code that a C function of the library returned; 0 is success. It is an
        `IndexOutsideError` for an index out of range, an `InputError` for a sequence that is too short, else
        a `LibraryError`.

        besides: text that the message adds about the arguments of a call.
        """
        if code:
            raise KINDS.get(code, LibraryError)(
                f"{self.path}: {self._functions.error(code).decode()}{besides}"
            )


def integers_text(arrays: Mapping[str, Any]) -> str:
    """Returns the ranges of the integers that a call of a library was given, for the message about one that
    is outside of a parameter.
    """
    texts = list[str]()
    for name, value in arrays.items():
        array = np.asarray(value.values if isinstance(value, Ragged) else value)
        if array.dtype.kind == "i" and array.size:
            texts.append(f"`{name}` has integers from {array.min()} to {array.max()}")
    return f": {', '.join(texts)}" if texts else ""


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

    >>> import tempfile, numpy as np, stepnet as sn
    >>> from stepnet import cells
    >>> from stepnet.build import build, load
    >>> gru = cells.rnn("gru", cells.CELLS["gru"].parameters(inputs=8, hidden=16))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     library = load(build(gru, folder, inputs=8).shared, trust=True)
    >>> library({"x": sn.Ragged.from_list([np.ones((5, 8), "float32")])})["final"].shape
    (1, 16)
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
    with named(str(path)):
        name = library_engine().library_name(data)
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
