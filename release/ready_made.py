"""Makes the ready-made code of known models, which wheels have for calls that nothing stored.

    python release/ready_made.py            writes src/stepnet/compiler/native/ready_made_calls/
    python release/ready_made.py --check    exits with 1 if it would write something else now

Any processor of x86-64 writes the code for all instruction sets: what calls read is found by a call of its
own code, and the rest by the description of the code that is written.

Each model is read, planned and written as any other one, in several sizes. Where the texts of its kernels
differ in numbers alone, these become places in one code. Where its parameters belong among the constants is
found by parameters that are all different numbers.
"""

import json
import os
import platform
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from stepnet import cells, load
from stepnet.compiler.disk import entry, store
from stepnet.compiler.disk.sources import contents as contents_of_sources
from stepnet.compiler.disk.weights import apart
from stepnet.compiler.native.frozen import CODE
from stepnet.compiler.native.ready_made import (
    FLAGS,
    FOLDER,
    FORM,
    WRITERS,
    KnownModel,
    ParameterMove,
    ReadyCode,
    ReadyMade,
    ReadyResult,
    packed,
    version,
)
from stepnet.compiler.native.ready_made import ready_made as read_ready_made
from stepnet.compiler.targets.cpu.compile.compiled import DRIVER
from stepnet.compiler.targets.cpu.compile.generate import layout_of, llvm_module
from stepnet.compiler.targets.cpu.library.recipe import pack_constants
from stepnet.compiler.targets.cpu.lower.program import lowered
from stepnet.compiler.targets.cpu.machine.object_code import emit_all
from stepnet.compiler.targets.cpu.machine.processor import NAMED, Processor
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.targets.cpu.products.constants import (
    Constants,
    Elements,
    PackedParameters,
    constant_values,
)
from stepnet.compiler.targets.cpu.running.freezing import Freezing
from stepnet.compiler.values.fork_guard import run_in_thread
from stepnet.compiler.values.hashing import digest_of_texts
from stepnet.model import ready
from stepnet.model.stored import ENDING
from stepnet.onnx import save

SIZES = (64, 128, 256, 512)
CELLS = ("gru", "lstm")
NUMBER = re.compile(r"(?<![\w.%@])-?\d+")
"""A number in LLVM's text that is no part of a name."""
PLACE = "number_"
"""The begin of the names of places, which are followed by the index of the number."""
SECOND, MATRIX = 2**12, 2**13
"""The least number of the second vector of parameters, and the size from which parameters are matrices."""
Array = np.ndarray


class Example(NamedTuple):
    """A model of one size.

    name: the digest of its file without weights. text: of its kernel, in LLVM's language.
    facts: what is known about it, by the fields of `KnownModel`, but for its code and numbers.
    """

    name: str
    text: str
    facts: Mapping[str, Any]


def example(contents: bytes, ending: str, processor: Processor) -> Example | None:
    """Reads and plans a model, and finds what its calls read and return; None if its calls are too large to
    be frozen.

    contents, ending: of a file. processor: the one that code is written for.
    """
    known = apart(contents, ending == ready.ONNX)
    assert known is not None
    own = tensors(contents, ending)
    model, stored = frozen(with_weights(contents, own), ending, known[0])
    if stored is None:
        return None
    native, call = model.program.bound(("llvm",)).native, stored.frozen
    program = lowered(native.plan, processor)
    layout = layout_of(native.plan, program, processor)
    # So the words of this processor's call are those of a call of the code that is written.
    assert layout.arguments == native.compiled.arguments
    values = constant_values(native.plan, model.program.params)
    constants = pack_constants(layout.constants, values, processor)
    begin = call.kernels[0].words
    results = [
        ReadyResult(len(each.shape) == 3, each.shape[-1], each.words[0] - begin // 8) for each in call.results
    ]
    products = [each for _, each in layout.constants.entries if isinstance(each, PackedParameters)]
    facts = {
        "products": sum(each.sources[0].type.size * len(each.sources) for each in products),
        "constants": layout.constants.size,
        "moves": tuple(moves(layout.constants, constants, own)),
        "strides": layout.strides,
        "words": layout.argument_count,
        "given": call.inputs[0] - begin // 8,
        "features": stored.shape[-1],
        "results": tuple(results),
        "structure": stored.structure,
    }
    return Example(known[0], str(llvm_module(program, processor)), facts)


def frozen(contents: bytes, ending: str, key: str) -> tuple[Any, ready.StoredCall | None]:
    """Loads a file and calls its model, which stores the call under a key if it is not too large; returns the
    model and the stored call.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"model{ending}"
        file.write_bytes(contents)
        model = load(file)
    model.programs.calls.keeper = ready.Keeper(key, model.gives_final, model.params)
    features = model.program.net.type_of(model.program.net.inputs[0]).size
    model(np.zeros((2, 3, features), "f4"))
    return model, store.value("call", key, ready.FORM)


class Tensor(NamedTuple):
    """Parameters in a file: the number of the flat array with them, the first one in it, and how many.

    at: the offset of the first one in the file. least: the least of the numbers that tell where they come
    from. step: the distance between these.
    """

    array: int
    first: int
    size: int
    at: int
    least: int
    step: int


def tensors(contents: bytes, ending: str) -> list[Tensor]:
    """Lists the parameters in a file, with numbers that tell them apart: 1, 2, ... in matrices, one after the
    other. Those of one vector are smaller than `SECOND`, those of another one are multiples of it, as they
    may be added. In an .onnx file the halves of a vector are two.
    """
    known = apart(contents, ending == ready.ONNX)
    assert known is not None
    begins = [contents.index(array.tobytes()) for array in known[1]]
    if ending == ready.ONNX:
        sizes = [(index, array.size) for index, array in enumerate(known[1])]
        pieces = [
            (index, place, size // count)
            for index, size in sizes
            for count in [1 + (size < MATRIX)]
            for place in range(0, size, size // count)
        ]
    else:
        header = json.loads(contents[8 : begins[0]])
        offsets = sorted(each["data_offsets"] for name, each in header.items() if name != "__metadata__")
        pieces = [(0, begin // 4, (end - begin) // 4) for begin, end in offsets]
    found, least, steps = list[Tensor](), 1, [SECOND, 1]
    for index, first, size in pieces:
        step = 1 if size >= MATRIX else steps.pop()
        own = step if size < MATRIX else least
        found.append(Tensor(index, first, size, begins[index] + 4 * first, own, step))
        least += size if size >= MATRIX else 0
    return found


def with_weights(contents: bytes, own: Iterable[Tensor]) -> bytes:
    """Returns a file whose parameters are the numbers that tell where they come from."""
    changed = bytearray(contents)
    for each in own:
        numbers = each.least + each.step * np.arange(each.size)
        changed[each.at : each.at + 4 * each.size] = numbers.astype("<f4").tobytes()
    return bytes(changed)


def moves(layout: Constants, packed: Array, own: Sequence[Tensor]) -> Iterator[ParameterMove]:
    """Finds where parameters belong among the constants of a kernel, from their layout and from those of
    parameters that tell it.
    """
    vectors = sorted((each for each in own if each.size < MATRIX), key=lambda each: each.step)
    constants = packed[: layout.size // 4 * 4].view("f4").astype(int)
    for offset, each in layout.entries:
        first = offset // 4
        if isinstance(each, PackedParameters):
            inner, size = each.sources[0].type.shape
            gates, width = len(each.sources), each.width
            numbers = constants[first:][: inner * size * gates].reshape(size // width, inner, gates, width)
            axes = inner * gates * width, gates * width, 1
            for gate in range(gates):
                part = numbers[:, :, gate]
                is_of = [t.size >= MATRIX and t.least <= part.min() < t.least + t.size for t in own]
                tensor = own[is_of.index(True)]
                source = tensor.array, place(part - tensor.least + tensor.first)
                yield ParameterMove(first + gate * width, axes, part.shape, (source,))
        else:
            assert isinstance(each, Elements)
            numbers = constants[first:][: each.bytes // 4]
            parts = zip(vectors, (numbers % SECOND, numbers // SECOND), strict=True)
            sources = [
                (tensor.array, place(part - 1 + tensor.first)) for tensor, part in parts if part[0] > 0
            ]
            yield ParameterMove(first, (1,), numbers.shape, tuple(sources))


def place(numbers: Array) -> tuple[int, tuple[int, ...]]:
    """Returns the first number, and the distances between numbers per axis, which are the same everywhere."""
    return int(numbers.flat[0]), distances(numbers)


def distances(numbers: Array) -> tuple[int, ...]:
    """Returns the distances between numbers per axis, which must be the same everywhere."""
    steps = [
        int(np.diff(numbers, axis=axis).flat[0]) if size > 1 else 0 for axis, size in enumerate(numbers.shape)
    ]
    right = sum(
        np.arange(size).reshape([-1 if own == axis else 1 for own in range(numbers.ndim)]) * step
        for axis, (size, step) in enumerate(zip(numbers.shape, steps, strict=True))
    )
    assert np.array_equal(numbers, numbers.flat[0] + right)
    return tuple(steps)


def ready_made(examples: Sequence[Example], processor: Processor) -> ReadyMade:
    """Makes codes and models of examples: one code for those whose texts differ in numbers alone. A size
    whose text is like no other one is left out, as it would take a code of its own.
    """
    alike = dict[str, list[Example]]()
    for each in examples:
        alike.setdefault(NUMBER.sub("", each.text), []).append(each)
    codes, models = list[ReadyCode](), dict[str, bytes]()
    for group in alike.values():
        if len(group) == 1:
            continue
        found = zip(*(NUMBER.findall(each.text) for each in group), strict=True)
        numbers, indices = dict[tuple[str, ...], int](), list[int | None]()
        for each in found:
            is_one = len(set(each)) == 1
            indices.append(None if is_one else numbers.setdefault(each, len(numbers)))
        codes.append(code_of(with_places(group[0].text, indices), processor))
        for number, each in enumerate(group):
            own = tuple(int(values[number]) for values in numbers)
            models[each.name] = packed(KnownModel(code=len(codes) - 1, numbers=own, **each.facts))
    first = FORM.packed(codes[0])
    return ReadyMade(
        version(),
        contents_of_sources(*WRITERS),
        zlib.compress(first, 9),
        tuple(packed(code, first) for code in codes),
        models,
    )


def with_places(text: str, indices: Sequence[int | None]) -> str:
    """Returns the text of a kernel with places for some of its numbers: addresses that the loader knows.

    indices: for each number the index of that place; None for those that stay.
    """
    left = iter(indices)

    def replaced(number: re.Match[str]) -> str:
        """Returns a number as it is, or its place."""
        index = next(left)
        return number[0] if index is None else f'ptrtoint (ptr @"{PLACE}{index}" to i64)'

    changed = NUMBER.sub(replaced, text)
    count = max((index for index in indices if index is not None), default=-1) + 1
    return "\n".join([changed, *(f'@"{PLACE}{index}" = external global i8' for index in range(count)), ""])


def code_of(text: str, processor: Processor) -> ReadyCode:
    """Compiles the text of a kernel for a processor, and joins it with the driver that it calls."""
    (plan,) = run_in_thread(lambda: emit_all([text], processor))
    joined, code = Freezing([], [], 0), bytearray()
    functions = joined.joined(code, machine_code(DRIVER, processor).object, {})
    entry_ = joined.joined(code, plan, functions)["run"]
    names = [name for name in joined.names if not name.startswith(PLACE)]
    addresses, places = list[tuple[int, int, int]](), list[tuple[int, int, int]]()
    for _, offset, base, added in joined.addresses:
        name = joined.names[base - 2] if base > 1 else ""
        if name.startswith(PLACE):
            places.append((offset, int(name.removeprefix(PLACE)), added))
        else:
            addresses.append((offset, base if base == CODE else 2 + names.index(name), added))
    rows = [np.array(each, np.int64).reshape(-1, 3) for each in (addresses, places)]
    return ReadyCode(digest_of_texts(text), bytes(code), entry_, rows[0], tuple(names), rows[1])


def contents_of(cell: str, inputs: int, hidden: int, ending: str) -> bytes:
    """Returns a file of a layer."""
    layer = cells.rnn(cell, cells.CELLS[cell].parameters(inputs, hidden, seed=0))
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"model{ending}"
        if ending == ready.ONNX:
            save(layer, file)
        else:
            layer.save(file)
        return file.read_bytes()


def made(name: str, sizes: Sequence[int] = SIZES) -> ReadyMade:
    """Makes the ready-made code for an instruction set, of models with inputs and units of these sizes."""
    processor, every = NAMED[name], product(CELLS, sizes, sizes, (ready.ONNX, ENDING))
    examples = (example(contents_of(*each), each[-1], processor) for each in every)
    return ready_made([each for each in examples if each is not None], processor)


def is_written_now(own: ReadyMade, known: ReadyMade) -> bool:
    """Tells whether ready-made code is of the same texts, for the same models. Another version of LLVM writes
    other code from these, which computes the same numbers.
    """
    texts, right = ([made.code(n).text for n in range(len(made.codes))] for made in (own, known))
    names = own.models.keys() | known.models.keys()
    same = [own.model(name) == known.model(name) for name in names]
    return own[:2] == known[:2] and texts == right and all(same)


def write(own: ReadyMade, name: str, folder: Path) -> None:
    """Writes ready-made code for an instruction set into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = f"{name}.calls"
    (folder / file).write_bytes(entry.file_contents(file, FORM.packed(tuple(own))))


def main() -> None:
    """Writes or checks the code for each instruction set."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        sys.exit("ready-made code is for x86-64 on Linux, and is written there: its addresses are so in ELF")
    with TemporaryDirectory() as folder:
        os.environ |= {"STEPNET_CACHE": "1", "STEPNET_CACHE_DIR": folder}
        for name in FLAGS:
            own = made(name)
            if "--check" not in sys.argv:
                write(own, name, Path(FOLDER))
            elif (known := read_ready_made(name)) is None or not is_written_now(own, known):
                sys.exit(f"the code for {name} is missing or not up to date: make ready-made")


if __name__ == "__main__":
    main()
