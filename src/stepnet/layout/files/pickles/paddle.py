"""Reads and writes the .pdparams files of paddle.save as arrays by name, without Paddle.

1  A file is a pickle of a dictionary of NumPy arrays or, if it is more than a state dict, of pairs of a
   parameter's name and an array. Nothing that it names is run or imported.
2  Paddle stores bfloat16 as uint16. It has no uint16 of its own.
3  A parameter of a layer may be saved under several names. The file also has Paddle's own name of each
   parameter, which tells which of them are one array.
4  Pickles of protocols 2 and 3 hold no array of more than a gigabyte; paddle.save cuts it into slices.

Source: python/paddle/framework/io.py and io_utils.py, and python/paddle/pir/core.py for the dtypes, of Paddle
3.0.
"""

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import ml_dtypes
import numpy as np

from stepnet.compiler.values.dtypes import same_bits
from stepnet.errors import FileError
from stepnet.layout.files.paths import new_file, opened
from stepnet.layout.files.pickles.machine import FileRange
from stepnet.layout.files.pickles.numpy_array import NAMES, array_of, described, is_numpy
from stepnet.layout.files.pickles.opcodes import load
from stepnet.layout.files.pickles.values import (
    Name,
    Pairs,
    PickledCall,
    array_name,
    check_writable,
    dump,
    is_shape,
    leaves,
    tuple_items,
)

Array = np.ndarray

ADVICE = "save layer.state_dict() on its own, which holds arrays only"
PARAMETERS = "StructuredToParameterName@@"  # the key of Paddle's own names of the parameters
SLICES = "UnpackBigParamInfor@@"  # the key of the list of arrays that are cut into slices
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# The dtypes that Paddle means, by their names in pickles.
DTYPES: dict[str, np.dtype[np.generic]] = {
    "f8": np.dtype(np.float64),
    "f4": np.dtype(np.float32),
    "f2": np.dtype(np.float16),
    "u2": BFLOAT16,
    "i8": np.dtype(np.int64),
    "i4": np.dtype(np.int32),
    "i2": np.dtype(np.int16),
    "i1": np.dtype(np.int8),
    "u1": np.dtype(np.uint8),
    "b1": np.dtype(np.bool_),
    "c16": np.dtype(np.complex128),
    "c8": np.dtype(np.complex64),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}


def read(path: str | Path) -> dict[str, Array]:
    """Reads the arrays of a .pdparams file by name, as NumPy arrays in this machine's byte order.

    Names are the keys of dictionaries and the numbers in lists that lead to an array, joined by dots. A
    single array has Paddle's name or "tensor". Other contents are left out. uint16 becomes bfloat16.

    Raises `FileError`, with the path, for a file that is truncated, foreign or asks to run code, and for
    arrays that hold no numbers.

    >>> read("model.pdparams")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.pdparams: there is no such file
    """
    with opened(path) as (stream, size):
        if stream.peek(1)[:1] != b"\x80":
            raise FileError("this is not a file of paddle.save, which writes pickles of protocol 2 and later")
        return arrays_in(load(FileRange(stream, 0, size), NAMES, ADVICE, encoding="latin-1"), size)


def arrays_in(value: object, size: int) -> dict[str, Array]:
    """Returns the arrays in the value of a pickle by name. Joins those that Paddle cut into slices, and makes
    names of one parameter share an array. size: the file's bytes, a limit for the arrays together. Raises
    `FileError` if they have more bytes.
    """
    if is_array(value):
        own = tuple_items(value)
        value = Pairs([(own[0] if own else "tensor", value)])
    items = value.items if isinstance(value, Pairs) else []
    slices = [info for key, info in items if key == SLICES]
    tables = [table.items for key, table in items if key == PARAMETERS and isinstance(table, Pairs)]
    parameters = {name: own for table in tables for name, own in table if isinstance(name, str)}
    if items:
        value = Pairs([(key, item) for key, item in items if key not in (PARAMETERS, SLICES)])
    arrays: dict[str, Array] = {}
    array_of_call: dict[int, Array] = {}  # by the id of the call, as one array may have two names
    total = 0
    for name, leaf in leaves(value, is_array):
        pair = tuple_items(leaf)
        if pair:
            parameters[name] = pair[0]
        call = cast(PickledCall, pair[1] if pair else leaf)
        if id(call) not in array_of_call:
            dtype, shape, order, data = described(name, call, DTYPES, ADVICE)
            total += math.prod(shape) * dtype.itemsize
            if total > size:
                raise FileError("its arrays have more bytes than itself")
            array = array_of(name, dtype, shape, order, data)
            array_of_call[id(call)] = array.view(BFLOAT16) if array.dtype == np.uint16 else array
        arrays[name] = array_of_call[id(call)]
    for info in slices:
        join_slices(arrays, info)
    return share_equal_arrays(arrays, parameters)


def share_equal_arrays(arrays: dict[str, Array], parameters: Mapping[str, object]) -> dict[str, Array]:
    """Makes names of one parameter with equal numbers share an array; changes and returns `arrays`.

    parameters: Paddle's own name of the parameter, by the arrays' names.
    """
    by_parameter: dict[str, Array] = {}
    for name, array in arrays.items():
        parameter = parameters.get(name)
        other = by_parameter.setdefault(parameter, array) if isinstance(parameter, str) else array
        if same_bits(other, array):
            arrays[name] = other
    return arrays


def is_array(value: object) -> bool:
    """Returns True if a value of a pickle is an array, or a pair of a parameter's name and an array."""
    pair = tuple_items(value)
    return is_numpy(value) or (len(pair) == 2 and isinstance(pair[0], str) and is_numpy(pair[1]))


def join_slices(arrays: dict[str, Array], slices: object) -> None:
    """Joins arrays that paddle.save cut into slices, under their own names in place of the slices'.

    slices: the list of these in the file: {name: {"OriginShape": ..., "slices": names}}. Raises `FileError`
    if they do not fit.
    """
    for key, value in slices.items if isinstance(slices, Pairs) else ():
        name = array_name((key,))
        fields = (
            {field: item for field, item in value.items if isinstance(field, str)}
            if isinstance(value, Pairs)
            else {}
        )
        shape, names = fields.get("OriginShape"), fields.get("slices")
        slice_names = cast(list[object], names) if isinstance(names, list) else []
        pieces = [arrays.pop(piece) for piece in slice_names if isinstance(piece, str) and piece in arrays]
        flat = len(pieces) == len(slice_names) and all(piece.ndim == 1 for piece in pieces)
        if not flat or len({piece.dtype for piece in pieces}) != 1 or not is_shape(shape) or name in arrays:
            raise FileError(f"{name!r} is cut into slices that the file does not hold")
        lengths = cast(tuple[int, ...], shape)
        if math.prod(lengths) != sum(piece.size for piece in pieces):
            raise FileError(f"{name!r} of shape {lengths} is cut into slices of another size")
        arrays[name] = np.concatenate(pieces).reshape(lengths)


def write(path: str | Path, arrays: Mapping[str, Array], force: bool = False) -> None:
    """Writes arrays by name as a state dict that paddle.load reads, bit for bit; bfloat16 becomes uint16.

    Raises `FileError`, with the path, if the file exists, unless `force`, if it cannot be written, and for
    names and dtypes that Paddle lacks.

    >>> write("model.pdparams", {"weight": np.array(["a"])})
    Traceback (most recent call last):
    stepnet.errors.FileError: model.pdparams: 'weight' is of dtype <U1, which Paddle does not have
    """
    check_writable(path, arrays, CODES, "Paddle")
    tree = Pairs([(name, array_call(array)) for name, array in arrays.items()])
    with new_file(path, force) as partial, open(partial, "wb") as stream:
        dump(tree, stream.write, 4)


def array_call(array: Array) -> PickledCall:
    """Returns the record of the call that rebuilds an array from its bytes when a pickle is loaded, with
    names of functions that all versions of NumPy know, to write it.
    """
    code = CODES[array.dtype.newbyteorder("=")]
    order = "|" if array.dtype.itemsize == 1 else "<" if sys.byteorder == "little" else ">"
    dtype = PickledCall("numpy.dtype", (code, False, True), (3, order, None, None, None, -1, -1, 0))
    empty = (Name("numpy.ndarray"), (0,), "b")
    return PickledCall(
        "numpy.core.multiarray._reconstruct", empty, (1, array.shape, dtype, False, np.asarray(array))
    )
