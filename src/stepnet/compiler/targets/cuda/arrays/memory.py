"""The memory of a device as that of a target: rows moved, reduced, and paired by kernels.

    put, get, copy, ...     the device's own copies
    take, write, repeat     the kernel `moved`: rows by indices
    reduce                  the kernel `reduced`: all sequences at once, long ones in parts
    windowed, paired        a kernel each

Indices and offsets come from the host. Small ones are kept on the device by their contents, as the calls of a
model mostly have the same; and so is what follows from offsets alone, such as the sequence of each entry.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from math import gcd, prod
from typing import Any, cast
from weakref import finalize

import numpy as np

from stepnet.compiler.net.decays import DecayOperands
from stepnet.compiler.net.pairs import PairPlaces
from stepnet.compiler.net.windows import Window, check_room
from stepnet.compiler.targets.cuda.chunked.decay_form import ALIGNED, form_of
from stepnet.compiler.targets.cuda.device import (
    Allocation,
    Device,
    DeviceArray,
    DeviceCode,
    empty,
    for_all_streams,
    get,
    put,
)
from stepnet.compiler.targets.cuda.written import kernel_code
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.compiler.values.once import entry_of
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray
THREADS = 256
"""The threads of a block that moves rows, or adds them up."""
CHAINS = 8
"""The threads that share a sum over a sequence."""
PART = 1024
"""The rows of a sequence that are reduced at a time; the results of the parts are reduced after them."""
FEW = 8
"""The blocks of each multiprocessor that share the rows of a kernel."""
MOST_BYTES = 2**16
"""The largest array of indices that is found again by its contents."""
MOST_OWNERS = 2**17
"""The most entries whose sequences are kept."""
MOST_KEPT = 128
"""The largest number of arrays that are kept."""


class CudaMemory:
    """Memory of a device whose buffers are `DeviceArray`s; it is a `TargetMemory`.

    not_resident: how many blocks run at once of loops that need more, by the digests of their codes.
    """

    def __init__(self, device: Device, precision: str = "float32") -> None:
        """Takes the device whose memory it is. precision: in which its kernels multiply matrices."""
        self.device, self.precision = device, precision
        self.kept = OrderedDict[Hashable, DeviceArray]()
        self.constants = dict[int, DeviceArray]()
        self.not_resident = dict[str, int]()

    # ---- arrays

    def put(self, array: "Array | DeviceArray") -> DeviceArray:
        """Copies an array of the host to the device; returns an array of the device as it is."""
        if isinstance(array, DeviceArray) and array.device is self.device:
            return array
        return put(self.device, get(array) if isinstance(array, DeviceArray) else array)

    def put_constant(self, array: "Array | DeviceArray") -> DeviceArray:
        """Copies an array of the host, which nothing changes, to the device. A read-only one, such as a
        parameter of a model, is copied once, and stays there as long as it exists on the host.
        """
        if not isinstance(array, np.ndarray):
            return self.put(array)
        found = self.constants.get(id(array))
        if found is None:
            found = self.put(array)
            cast("Allocation", found.owner).is_of_model = True
            if not array.flags.writeable and array.base is None:
                self.constants[id(array)] = found
                finalize(array, self.constants.pop, id(array), None).atexit = False
        return found

    def get(self, buffer: DeviceArray) -> Array:
        """Copies an array of the device to the host."""
        return get(buffer)

    def zeros(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """Makes an array of zeros with this shape and dtype."""
        made = empty(self.device, shape, np.dtype(dtype).name)
        if made.nbytes:
            self.device.clear(made.address, made.nbytes)
        return made

    def copy(self, buffer: DeviceArray) -> DeviceArray:
        """Copies an array within the device."""
        made = empty(self.device, buffer.shape, buffer.dtype)
        if made.nbytes:
            self.device.copy(made.address, buffer.address, made.nbytes)
        return made

    def contiguous(self, buffer: DeviceArray) -> DeviceArray:
        """Returns the array: all arrays of a device are C-contiguous."""
        return buffer

    # ---- rows

    def take(self, buffer: DeviceArray, indices: Array) -> DeviceArray:
        """Makes an array of the rows at `indices`, which may count from the end; `IndexError` for others."""
        made = empty(self.device, (len(indices), *buffer.shape[1:]), buffer.dtype)
        origins = self.indices(checked_indices(indices, buffer.shape[0]))
        self.move(made, buffer, len(indices), None, origins)
        return made

    def write(self, buffer: DeviceArray, indices: Array, rows: DeviceArray) -> None:
        """Replaces the rows of an array at `indices`, which are distinct, by as many rows or a single one, of
        the same dtype. Raises `IndexError` for an index outside of the array.
        """
        places = self.indices(checked_indices(indices, buffer.shape[0]))
        features = prod(buffer.shape[1:])
        is_one = rows.size == features and (len(indices) != 1 or rows.shape != buffer.shape)
        if not is_one and rows.size != len(indices) * features:
            raise ValueError(f"{len(indices)} rows of {buffer.shape[1:]} cannot be those of {rows.shape}")
        if rows.dtype != buffer.dtype:
            raise ValueError(f"rows of {rows.dtype} cannot replace rows of {buffer.dtype}")
        self.move(buffer, rows, len(indices), places, None, is_one=is_one)

    def repeat(self, buffer: DeviceArray, counts: Array) -> DeviceArray:
        """Repeats each row i of an array `counts[i]` times."""
        offsets = offsets_of(counts)
        made = empty(self.device, (int(offsets[-1]), *buffer.shape[1:]), buffer.dtype)
        self.move(made, buffer, made.shape[0], None, self.owners(offsets))
        return made

    def plus(self, integers: DeviceArray, number: int) -> DeviceArray:
        """Returns int64s with a number added to each."""
        made = empty(self.device, integers.shape, "int64")
        words = [made.address, integers.address, made.size, number]
        launch_over(self.device, kernel_code("arrays.moves.plus"), made.size, words)
        return made

    def rows(self, buffer: DeviceArray, count: int) -> DeviceArray:
        """Makes an array of `count` rows, each of which is the whole given array."""
        made = empty(self.device, (count, *buffer.shape), buffer.dtype)
        self.move(made, buffer, count, None, None, is_one=True)
        return made

    def move(
        self,
        target: DeviceArray,
        source: DeviceArray,
        count: int,
        places: DeviceArray | None,
        origins: DeviceArray | None,
        is_one: bool = False,
    ) -> None:
        """Copies `count` rows of one array to another.

        places, origins: where each row goes in the target and comes from in the source; None for its number.
        is_one: whether the source is one row, for all.
        """
        row = prod(target.shape[1:]) * np.dtype(target.dtype).itemsize
        if not row or not count:
            return
        word = word_of(row, target, source)
        words, code = (
            row // word,
            kernel_code("arrays.moves.moved", word, places is not None, origins is not None),
        )
        stride, shift = 0 if is_one else words, shift_of(words)
        addresses = [0 if array is None else array.address for array in (target, source, places, origins)]
        launch_over(self.device, code, count << shift, [*addresses, count, words, stride, shift])

    # ---- sequences

    def reduce(
        self, how: str, buffer: DeviceArray, offsets: Array, order: Array | None = None
    ) -> DeviceArray:
        """Reduces each sequence's rows to one by `how`: "sum", "mean", "max", "first" or "last"; zeros for
        empty ones.

        order: the row of the buffer that each row of the sequences is, for a sum; None for their own order.
        """
        if how in ("first", "last"):
            return self.ends(buffer, offsets, how == "first")
        dtype = sum_dtype(how, buffer.dtype)
        target = dtype if how == "mean" and dtype == "float64" else buffer.dtype
        parts = offsets_of(-(-np.diff(offsets) // PART))
        if int(parts[-1]) == np.count_nonzero(np.diff(offsets)):
            return self.reduced(how, buffer, offsets, offsets, dtype, target, order)
        numbers = np.arange(int(parts[-1])) - np.repeat(parts[:-1], np.diff(parts))
        begins = np.repeat(offsets[:-1], np.diff(parts)) + numbers * PART
        within = np.append(begins, offsets[-1])
        buffer = self.reduced("max" if how == "max" else "sum", buffer, within, within, dtype, dtype, order)
        return self.reduced(how, buffer, parts, offsets, dtype, target)

    def reduced(
        self,
        how: str,
        buffer: DeviceArray,
        offsets: Array,
        lengths: Array,
        dtype: str,
        target: str,
        order: Array | None = None,
    ) -> DeviceArray:
        """Reduces each sequence's rows to one, in one kernel.

        offsets: where the sequences begin and end. lengths: offsets whose differences a mean divides by.
        dtype, target: the dtypes of sums and of the result. order: see `reduce`.
        """
        sequences, features = len(offsets) - 1, prod(buffer.shape[1:])
        made = empty(self.device, (sequences, *buffer.shape[1:]), target)
        if not made.nbytes:
            return made
        shift = min(shift_of(features), 5)
        tiles = -(-features >> shift)
        code = kernel_code("arrays.sums.reduced", how, buffer.dtype, dtype, target, order is not None)
        arrays = [None if each is None else self.indices(each) for each in (offsets, lengths, order)]
        begins, counts, places = (0 if each is None else each.address for each in arrays)
        words = [made.address, buffer.address, begins, counts, sequences, features, tiles, shift, places]
        launch_over(self.device, code, sequences * tiles * CHAINS << shift, words)
        return made

    def ends(self, buffer: DeviceArray, offsets: Array, first: bool) -> DeviceArray:
        """Takes the first or the last row of each sequence; zeros for empty ones."""
        filled = np.flatnonzero(np.diff(offsets))
        made = self.zeros((len(offsets) - 1, *buffer.shape[1:]), buffer.dtype)
        at = (offsets[:-1] if first else offsets[1:] - 1)[filled]
        self.move(made, buffer, len(filled), self.indices(filled), self.indices(at))
        return made

    def windowed(
        self, operation: str, buffer: DeviceArray, made: Array, offsets: Array, window: Window
    ) -> DeviceArray:
        """Copies windows of rows, or adds them up: the operation "windows" or "overlap".

        made, offsets: where each sequence begins and ends in the result and in the given array.
        """
        check_room(operation, made, offsets, window)
        copies, count = operation == "windows", int(made[-1])
        features = buffer.shape[1:] if copies else buffer.shape[2:]
        windows, steps = (made, offsets) if copies else (offsets, made)
        shape = (count, window.size, *features) if copies else (count, *features)
        result = empty(self.device, shape, buffer.dtype)
        if not result.nbytes:
            return result
        befores = window.befores(np.diff(steps))
        indices = [self.owners(made), *map(self.indices, (windows, steps, befores))]
        words = [result.address, buffer.address, *(array.address for array in indices)]
        words += [count, window.size, window.dilation, window.stride]
        width = prod(features)
        if copies:
            row = width * np.dtype(buffer.dtype).itemsize
            word = word_of(row, result, buffer)
            code, width = kernel_code("arrays.moves.windows", word), row // word
        else:
            code = kernel_code("arrays.sums.overlap", buffer.dtype)
        shift = shift_of(width)
        launch_over(self.device, code, count << shift, [*words, width, shift])
        return result

    def paired(
        self, operation: str, first: DeviceArray, second: DeviceArray, pairs: PairPlaces, over: str
    ) -> DeviceArray:
        """Computes values at pairs of steps, or sums over pairs: the operation "scores" or "mix".

        over: "keys" or "queries" for "mix": what the sums are over.
        """
        is_scores = operation == "scores"
        *heads, size = second.shape[1:]
        if is_scores:
            shape, owners = (int(pairs.offsets[-1]), *heads), pairs.offsets
        else:
            owners = pairs.queries if over == "keys" else pairs.keys
            shape = (int(owners[-1]), *second.shape[1:])
        made = empty(self.device, shape, second.dtype)
        if not made.nbytes:
            return made
        arrays = [self.owners(owners), *map(self.indices, pairs)]
        shift = shift_of(prod(shape[1:]))
        words = [made.address, first.address, second.address, *(array.address for array in arrays)]
        words += [shape[0], prod(heads), size, shift]
        if is_scores:
            words.append(self.owners(pairs.queries).address)
        code = (
            kernel_code("arrays.sums.scores", first.dtype)
            if is_scores
            else kernel_code("arrays.sums.mix", first.dtype, over)
        )
        launch_over(self.device, code, shape[0] << shift, words)
        return made

    def matrix_gradients(
        self, operands: DecayOperands[DeviceArray], offsets: Array, reverse: bool
    ) -> DeviceArray:
        """Computes the gradients of a matrix that decays, with a block for each head of a sequence."""
        heads, form = form_of(operands, self.precision, self.device.facts.shared)
        assert form is not None, "the gradient does not fit, which `TrainedChunks` refuses"
        shape = int(offsets[-1]), heads * form.gradients
        rows, made = len(offsets) - 1, empty(self.device, shape, "float32")
        if not made.nbytes:
            return made
        chunks = int(offsets[-1]) // form.steps + rows
        scratch = empty(self.device, (chunks, heads, form.keys, form.values), "float32")
        ends = [0 if each is None else each.address for each in (operands.initial, operands.last)]
        given = operands.decay, *operands.reads, *operands.d_reads, *operands.keys, *operands.written
        vectors = [array if array.address % ALIGNED == 0 else self.copy(array) for array in given]
        words = [made.address, self.indices(offsets).address, scratch.address, heads, int(reverse)]
        words += [vectors[0].address, *ends, *(array.address for array in vectors[1:])]
        code = kernel_code("chunked.decays.decay_code", form)
        self.device.launch(code, rows * heads, words)
        return made

    # ---- indices, launches

    def indices(self, array: Array) -> DeviceArray:
        """Copies integers to the device as int64; small arrays are kept there, by their contents."""
        indices = np.ascontiguousarray(array, np.int64)
        if indices.nbytes > MOST_BYTES:
            return put(self.device, indices)
        return entry_of(self.kept, indices.tobytes(), lambda: put(self.device, indices), MOST_KEPT)

    def owners(self, offsets: Array) -> DeviceArray:
        """Makes int64 indices on the device: for each entry the index of its sequence. Short arrays are kept,
        by the offsets of the sequences.
        """
        if offsets[-1] > MOST_OWNERS or len(offsets) > MOST_OWNERS:
            return self.found_owners(offsets)
        key = "owners", np.ascontiguousarray(offsets, np.int64).tobytes()
        return entry_of(self.kept, key, lambda: self.found_owners(offsets), MOST_KEPT)

    def found_owners(self, offsets: Array) -> DeviceArray:
        """Finds the sequence of each entry by a kernel."""
        with for_all_streams(self.device):
            made = empty(self.device, (int(offsets[-1]),), "int64")
            if made.nbytes:
                words = [made.address, self.indices(offsets).address, len(offsets) - 1, made.size]
                launch_over(self.device, kernel_code("arrays.moves.owners"), made.size, words)
        return made


def word_of(row_bytes: int, *arrays: DeviceArray) -> int:
    """Returns the bytes of the largest word by which rows of `row_bytes` bytes of arrays can be moved."""
    return gcd(16, row_bytes, *(array.address for array in arrays))


def shift_of(count: int) -> int:
    """Returns the binary logarithm of the number of threads that share a row of `count` elements."""
    return min(max(count - 1, 0).bit_length(), THREADS.bit_length() - 1)


def sum_dtype(how: str, dtype: str) -> str:
    """Returns the dtype of a reduction such as "sum": float64 for the mean of other than floats."""
    row = DTYPES[dtype]
    return "float64" if how == "mean" and row.kind != "float" else row.compute


def launch_over(device: Device, code: DeviceCode, threads: int, words: Sequence[Any]) -> None:
    """Runs a kernel with work for `threads` threads, whose loops adapt to the number of threads launched."""
    most = FEW * device.facts.multiprocessors
    device.launch(code, min(-(-threads // code.threads), most), words)


def checked_indices(indices: Array, count: int) -> Array:
    """Returns indices of rows counted from the first; negative ones count from the end. Raises `IndexError`
    for an index outside of an array of `count` rows.
    """
    if not len(indices):
        return indices
    low, high = int(indices.min()), int(indices.max())
    if low < -count or high >= count:
        raise IndexError(f"index {high if high >= count else low} is outside of {count} rows")
    return np.where(indices < 0, indices + count, indices) if low < 0 else indices
