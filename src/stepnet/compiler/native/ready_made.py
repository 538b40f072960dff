"""Ready-made calls: machine code of known models that comes with wheels, for calls that nothing stored.

    codes    object code of a plan, in which sizes are places for numbers      a few per processor
    models   a digest of all of a model but the values of its parameters  ->   the numbers of its sizes,
             where its parameters belong, the words and the results of its calls

`release/ready_made.py` makes them: the writers of kernels write the code, as for any other plan, for models
of several sizes; where texts differ in numbers alone, they become one code. What runs are therefore the same
operations in the same order as in code that is compiled for the model, and results have the same bits.
"""

import os
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.disk import entry
from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.disk.entry import NotDataError
from stepnet.compiler.disk.folder import NotUsableError
from stepnet.compiler.disk.sources import PACKAGE, contents, sizes
from stepnet.compiler.disk.weights import apart
from stepnet.compiler.native.call_words import FRAME, PROGRESS, WORDS
from stepnet.compiler.native.frozen import (
    ADDRESS,
    CODE,
    DATA,
    REST,
    FrozenCall,
    FrozenKernel,
    FrozenResult,
    ReadyCall,
    SingleArrayCall,
    ready_call,
)
from stepnet.compiler.native.identity import chosen_processor, processor_lines
from stepnet.compiler.native.spaces import LINE, part_sizes, whole_lines
from stepnet.compiler.native.system import clock
from stepnet.compiler.values.hashing import digest_of_texts
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import rebuilder

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ready_made_calls")
PROJECT = os.path.join(os.path.dirname(os.path.dirname(PACKAGE)), "pyproject.toml")
"""The file that is beside the sources of a clone, and not beside those of an installed package."""
AVX2 = "avx2 bmi1 bmi2 f16c fma abm movbe popcnt"
FLAGS = {
    "x86-64-v4": f"{AVX2} avx512bw avx512cd avx512dq avx512f avx512vl",
    "x86-64-v3": AVX2,
}
"""The instruction sets with ready-made code, widest first, and Linux's names for what each of them needs."""
WRITERS = (
    *("compiler/net/", "compiler/plan/", "compiler/native/frozen", "compiler/native/ready_made.py"),
    *(
        f"compiler/targets/cpu/{name}/"
        for name in ("compile", "emit", "lower", "machine", "products", "writing")
    ),
)
"""The modules that determine ready-made code: what their paths begin with."""
MOST_LANES, BLOCK_ROWS = 64, 64
"""The most sequences of a ready-made call, and the most rows of a block of steps."""
MOST_PRODUCTS = 2**27
"""The most multiply-adds of a call: some milliseconds. Larger calls are worth compiling, and several threads.
"""
NEAR = 28_000
"""The bytes of a value that compression looks back to from a like one: within 32 KiB of the same place."""
CLOCK = "system_clock"
"""The name of the system's clock among the functions of a frozen call."""
SLICE = 0.05
"""The seconds after which code returns, so that interrupts are handled."""
MOST_SHAPES = 4
"""The number of shapes of calls that ready-made code runs: a model with more of them is worth making."""


@dataclass(frozen=True)
class ReadyCode:
    """Machine code with places for numbers.

    text: the digest of the text that it was compiled from.
    code: its bytes. entry: the offset of the function that runs a call.
    addresses: a row for each address in it: its offset, its base (the code, or a function of `names`), and
        what is added to that.
    places: a row for each place: its offset, the index of the number there, and what is added to that.
    """

    text: str
    code: bytes
    entry: int
    addresses: np.ndarray
    names: tuple[str, ...]
    places: np.ndarray


@dataclass(frozen=True)
class ParameterMove:
    """Numbers of parameters, and where machine code reads them among the constants.

    first, distances, shape: where they are there: the first one, and the distances between them per axis.
    sources: for each of one or two parameters, whose sum they are: its index, and (first, distances) in it.
    """

    first: int
    distances: tuple[int, ...]
    shape: tuple[int, ...]
    sources: tuple[tuple[int, tuple[int, tuple[int, ...]]], ...]


@dataclass(frozen=True)
class ReadyResult:
    """A result of a call: an array of every step or of the last, its features, and its address's word."""

    every_step: bool
    features: int
    word: int


@dataclass(frozen=True)
class KnownModel:
    """A model of known sizes.

    code: the index of its code. numbers: those of the code's places.
    products: the multiply-adds of a step.
    constants, moves: the bytes of the constants, and what is moved there.
    strides: the bytes of a row of each record.
    words: the number of argument words. given: the one with the address of the array of a call.
    features: those of a step of that array.
    results, structure: the arrays that a call returns, and the structure they are in.
    """

    code: int
    numbers: tuple[int, ...]
    products: int
    constants: int
    moves: tuple[ParameterMove, ...]
    strides: dict[str, int]
    words: int
    given: int
    features: int
    results: tuple[ReadyResult, ...]
    structure: Any


FORM = Serializer(ReadyCode, KnownModel, ParameterMove, ReadyResult)


def packed(value: ReadyCode | KnownModel, like: bytes = b"") -> bytes:
    """Returns a piece of a file with ready-made code. like: the bytes of a value that is like this one."""
    compressor = zlib.compressobj(9, zdict=like[:NEAR])
    return compressor.compress(FORM.packed(value)) + compressor.flush()


def unpacked(piece: bytes, like: bytes = b"") -> Any:
    """Returns the code, or the known model, in a piece of a file."""
    return FORM.unpacked(zlib.decompressobj(zdict=like[:NEAR]).decompress(piece))


class ReadyMade(NamedTuple):
    """The ready-made code for an instruction set, as pieces: a call needs two of them.

    version: the digest of the sizes of the sources that wrote it, and of what its calls agree on with them.
    sources: the digest of the contents of these sources.
    first: the bytes of a code that the others are like, as all have the driver of calls. codes: the codes.
    models: the known models, by the digests of their files without weights.
    """

    version: str
    sources: str
    first: bytes
    codes: tuple[bytes, ...]
    models: dict[str, bytes]

    def code(self, index: int) -> ReadyCode:
        """Unpacks a code."""
        return unpacked(self.codes[index], zlib.decompress(self.first))

    def model(self, name: str) -> KnownModel | None:
        """Unpacks the known model whose file without weights has this digest; None for an unknown one."""
        return unpacked(self.models[name]) if name in self.models else None


def instruction_set(chosen: str, lines: Sequence[str]) -> str | None:
    """Returns the widest instruction set with ready-made code that this processor has; None if there is none.

    chosen: the name of the only one that is wanted, as STEPNET_CPU names it; "" for any. lines: Linux's lines
    on the processor.
    """
    has = {flag for line in lines if line.startswith("flags") for flag in line.split()}
    # An emulator may present another processor to the process than the system describes.
    known = getattr(np._core._multiarray_umath, "__cpu_features__", {})  # pyright: ignore
    needed = {"x86-64-v4": "AVX512_SKX", "x86-64-v3": "FMA3"}
    names = [name for name, flags in FLAGS.items() if {*flags.split()} <= has and known.get(needed[name])]
    wanted = names if chosen in ("", "native") else [name for name in names if name == chosen]
    return wanted[0] if wanted else None


def version() -> str:
    """Computes a digest of the sources that write ready-made code, and of what its calls and these sources
    agree on: the argument words, and the sizes of scratch memory. Raises `NotUsableError`.
    """
    records = {"now": 256, "lane": 320, "block": 384, "nowhere": 448}
    agreed = WORDS, PROGRESS, FRAME, part_sizes(records, 3, 5, 7)
    return digest_of_texts(sizes(*WRITERS), repr(agreed))


@cache
def ready_made(name: str) -> ReadyMade | None:
    """Reads the ready-made code for an instruction set; None if there is none, as in a clone before `make
    ready-made`, if its file was changed, or if other sources wrote it.
    """
    file = f"{name}.calls"
    try:
        with open(os.path.join(FOLDER, file), "rb") as opened:
            payload = entry.read(file, opened.read())
        pieces = None if payload is None else FORM.unpacked(payload)
        if not isinstance(pieces, tuple) or pieces[:1] != (version(),):
            return None
        made = ReadyMade(*pieces)
        # Sources that are edited may keep their sizes. Those of an installed package are not.
        return made if not os.path.exists(PROJECT) or made.sources == contents(*WRITERS) else None
    except (OSError, NotDataError, NotUsableError):
        return None


def state() -> str:
    """Says whether there is ready-made code for this processor, for `stepnet doctor`."""
    try:
        name = instruction_set(chosen_processor(), processor_lines())
    except OSError:  # another system than Linux
        name = None
    if name is None:
        return "none for this processor: models are compiled"
    if (made := ready_made(name)) is not None:
        return f"of {len(made.models)} models for {name}"
    if os.path.exists(os.path.join(FOLDER, f"{name}.calls")):
        return f"not used for {name}: damaged, or other sources wrote it; make ready-made writes it anew"
    return f"not there for {name}: wheels have it, and make ready-made writes it in a clone"


def suits(model: KnownModel, shape: Sequence[int]) -> bool:
    """Tells whether a ready-made call runs over an array of this shape: of a few sequences with steps, and
    not so large that compiling and several threads pay.
    """
    if len(shape) != 3 or shape[2] != model.features:
        return False
    rows, steps, _ = shape
    return 0 < rows <= MOST_LANES and steps > 0 and rows * steps * model.products <= MOST_PRODUCTS


def constants_of(model: KnownModel, parameters: Sequence[np.ndarray]) -> np.ndarray:
    """Puts the numbers of parameters, flat arrays of float32, where machine code reads them."""
    constants = np.zeros(model.constants // 4, np.float32)
    with np.errstate(all="ignore"):  # parameters may have NaN and infinity
        for move in model.moves:
            target = strided(constants, move.shape, move.first, move.distances)
            views = [strided(parameters[index], move.shape, *where) for index, where in move.sources]
            target[...] = views[0] if len(views) == 1 else views[0] + views[1]
    return constants


def strided(numbers: np.ndarray, shape: tuple[int, ...], first: int, distances: Sequence[int]) -> np.ndarray:
    """Returns a view of a flat array of float32, at distances per axis; `ValueError` beyond its end."""
    return np.ndarray(shape, np.float32, numbers, 4 * first, [4 * each for each in distances])


def ready_made_call(
    code: ReadyCode, model: KnownModel, parameters: Sequence[np.ndarray], shape: Sequence[int]
) -> FrozenCall:
    """Makes a call of a known model over an array of a shape that suits it, as if it had been frozen.

    code: the machine code of the model. parameters: flat arrays of float32.
    """
    rows, steps, _ = shape
    data, begin, known = call_data(model, constants_of(model, parameters), rows, steps)
    scratch = len(data)
    block = block_steps(rows, steps)
    for name, size in part_sizes(model.strides, rows, block * rows, block).items():
        known[name] = scratch
        scratch += size
    filled, addresses = filled_code(code, model.numbers)
    names = (*code.names, REST, CLOCK)
    addresses += [(DATA, begin + 8 * WORDS.index(name), DATA, place) for name, place in known.items()]
    for name, function in (("rest", REST), ("clock", CLOCK)):
        base = DATA + 1 + len(code.names) + (REST, CLOCK).index(function)
        addresses.append((DATA, begin + 8 * WORDS.index(name), base, 0))
    shapes = [(*((rows, steps) if each.every_step else (rows,)), each.features) for each in model.results]
    return FrozenCall(
        code=filled,
        data=bytes(data),
        scratch=scratch - len(data),
        addresses=np.array(addresses, np.int64),
        names=names,
        kernels=(FrozenKernel(code.entry, begin, known["status"], known["progress"]),),
        begun=tuple(int(name == "threads") for name in PROGRESS),
        pause=PROGRESS.index("pause"),
        tiles=False,
        shared=True,  # so that its runs are timed, and a model that runs often is made
        inputs=(begin // 8 + model.given,),
        results=tuple(
            FrozenResult(own, "<f4", (begin // 8 + each.word,))
            for own, each in zip(shapes, model.results, strict=True)
        ),
    )


def block_steps(rows: int, steps: int) -> int:
    """Returns the number of steps of a block: as many as keep its rows in a near cache."""
    return max(1, min(steps, BLOCK_ROWS // rows))


def call_data(
    model: KnownModel, constants: np.ndarray, rows: int, steps: int
) -> tuple[bytearray, int, dict[str, int]]:
    """Lays out what calls of arrays of some rows and steps read: constants, tables of sequences that lie end
    to end and have a lane each, and argument words. Returns the bytes, the offset of the words, and those of
    all else by the names of their words.
    """
    words = np.zeros(model.words, np.int64)
    ticks = int(SLICE * clock().per_second)
    numbers = {"lanes": rows, "block_steps": block_steps(rows, steps), "steps": steps, "slice": ticks}
    for name, number in numbers.items():
        words[WORDS.index(name)] = number
    arrays = {
        "constants": constants,
        "order": np.arange(rows),
        "first": np.arange(rows + 1),
        "lane_steps": np.full(rows, steps),
        "starts": np.arange(rows) * steps,
        "lengths": np.full(rows, steps),
        "step_offsets": np.arange(steps),
        "": words,
    }
    data, known = bytearray(), dict[str, int]()
    for name, array in arrays.items():
        known[name] = len(data)
        data += array.tobytes() + bytes(whole_lines(array.nbytes + LINE) - array.nbytes)
    return data, known.pop(""), known


def filled_code(code: ReadyCode, numbers: Sequence[int]) -> tuple[bytes, list[tuple[int, int, int, int]]]:
    """Puts numbers into the places of machine code; returns it, and the addresses that belong into it."""
    filled = bytearray(code.code)
    for offset, index, added in code.places.tolist():
        ADDRESS.pack_into(filled, offset, (numbers[index] + added) % 2**64)
    return bytes(filled), [(CODE, offset, base, added) for offset, base, added in code.addresses.tolist()]


class ReadyMadeCalls:
    """Calls of a known model on one array each, by ready-made code.

    name: of the instruction set. runs: the number of calls so far.
    single: the call of the last shape. shapes: the number of shapes so far.
    """

    def __init__(
        self, name: str, code: ReadyCode, model: KnownModel, parameters: Sequence[np.ndarray]
    ) -> None:
        """Takes the name of an instruction set, code, the model that it is of, and its parameters."""
        self.name, self.code, self.model, self.parameters = name, code, model, parameters
        self.single: SingleArrayCall | None = None
        self.shapes = self.runs = 0

    def described(self) -> str | None:
        """Says how many calls have run so, and by code for which instruction set; None if none has."""
        if not self.runs:
            return None
        calls = f"{self.runs} call" + "s" * (self.runs != 1)
        return f"{calls} before the model was made ran by ready-made code ({self.name})"

    def run(self, given: Any) -> tuple[Any] | None:
        """Runs a call on an array; returns its results, or None, having done nothing, for what ready-made
        code is not for: another argument, a large one, one of many shapes.
        """
        if type(given) is not np.ndarray or given.dtype != np.float32 or not suits(self.model, given.shape):
            return None
        single = self.single
        if single is None or single.shape != given.shape:
            if self.shapes == MOST_SHAPES or (call := self.ready(given.shape)) is None:
                return None
            made = rebuilder(self.model.structure)
            single = self.single = SingleArrayCall([call], given.shape, given.dtype, made)
            self.shapes += 1
        results = single.run(given)
        self.runs += results is not None
        return results

    def ready(self, shape: tuple[int, ...]) -> ReadyCall | None:
        """Makes the call for arrays of a shape."""
        return ready_call(ready_made_call(self.code, self.model, self.parameters, shape))


def known_call(contents: bytes, is_onnx: bool) -> ReadyMadeCalls | None:
    """Returns the calls of the model in a file by ready-made code for this processor, or for the one that
    STEPNET_CPU names; None if there is none. contents, is_onnx: as for `calls_of`.
    """
    try:
        name = instruction_set(chosen_processor(), processor_lines())
    except OSError:  # another system than Linux
        return None
    return None if name is None else calls_of(contents, is_onnx, name)


def calls_of(contents: bytes, is_onnx: bool, name: str) -> ReadyMadeCalls | None:
    """Returns the calls of the model in a file by ready-made code for an instruction set; None if the package
    has none.

    contents, is_onnx: the bytes of the file, and whether it is an .onnx file, or a .stepnet file. name: of
    the instruction set.
    """
    if (made := ready_made(name)) is None or (known := apart(contents, is_onnx)) is None:
        return None
    model = made.model(known[0])
    return None if model is None else ReadyMadeCalls(name, made.code(model.code), model, known[1])
