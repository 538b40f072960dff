"""Reads the LSTMs of a Core ML model as modules, from a .mlpackage folder or a .mlmodel file.

    Manifest.json                              names the file of the model
    Data/com.apple.CoreML/model.mlmodel        a message of Protocol Buffers: a program of operations
    Data/com.apple.CoreML/weights/weight.bin   the constants that are not in the program itself

Programs (ML Program, iOS 15 on) are read. The neural networks of older models are not. GRUs are not, because
two of Apple's documents disagree on their reset.

Source: mlmodel/format/Model.proto and MIL.proto, and mlmodel/src/MILBlob/Blob/StorageFormat.hpp, of
coremltools 9.0.
"""

import math
import struct
from collections.abc import Collection, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError, LayoutError
from stepnet.layout.files import jsons
from stepnet.layout.files.axes import Axes
from stepnet.layout.files.checkpoint.file import varints
from stepnet.layout.files.checkpoint.protobuf import Message, message
from stepnet.layout.files.model import Array, FileContents, Module
from stepnet.layout.files.paths import existing
from stepnet.layout.files.store import OBJECT, Store
from stepnet.layout.registry import record

LARGEST = 1 << 31  # bytes of a message
DEPTH = 20  # the deepest nesting of blocks
OPERATION, INPUT = 8 * OBJECT, 2 * OBJECT  # approximate bytes of memory for an operation and for an input
PROGRAM = 502  # the field of a model that is a program
KINDS = {
    1: np.dtype(np.bool_),
    10: np.dtype(np.float16),
    11: np.dtype(np.float32),
    12: np.dtype(np.float64),
    13: np.dtype(ml_dtypes.bfloat16),
    21: np.dtype(np.int8),
    22: np.dtype(np.int16),
    23: np.dtype(np.int32),
    24: np.dtype(np.int64),
    31: np.dtype(np.uint8),
    32: np.dtype(np.uint16),
}
IMMEDIATE = {
    1: 3,
    11: 1,
    12: 6,
    23: 2,
    24: 5,
}  # the field of a TensorValue for each kind; the others lie in `bytes`
BYTES, TEXTS = 7, 4
STRING = 2
BLOB = struct.Struct("<2I2Q")  # a mark, the kind, the size and the place of a constant
MARK = 0xDEADBEEF
FRONT = "@model_path/"
WEIGHTS = tuple(
    f"{name}{way}" for way in ("", "_back") for name in ("weight_ih", "weight_hh", "bias", "peephole")
)
STATES = ("initial_h", "initial_c")
BEGINS = {
    "constant": "is a constant in the file, which is left out",
    "given": "is given when the model runs",
}
SETTINGS = ("recurrent_activation", "cell_activation", "activation", "clip")
STRAIGHT = {"transpose", "reshape", "squeeze", "expand_dims", "cast", "identity"}
# The name of the input that has the numbers of a transpose, reshape and so on.
NUMBERS = {"transpose": "perm", "reshape": "shape", "squeeze": "axes", "expand_dims": "axes"}
MOVES = STRAIGHT | {"slice_by_index", "slice_by_size", "split", "tile", "gather"}
FAR = 64  # the most operations between an LSTM and the source of its input
OTHERS = {
    "gru": "on whose reset two of Apple's documents disagree",
    "rnn": "for which there is no layout",
}


@dataclass(frozen=True)
class CoreMLOperation:
    """An operation of a Core ML program: the names of inputs and outputs, and the value of a constant."""

    type: str
    inputs: dict[str, str]
    outputs: tuple[str, ...]
    value: Message | None = None


@dataclass(frozen=True)
class CoreMLProgram:
    """The operations of a Core ML model, with tables to look up their inputs.

    folder: the folder with the files of weights.
    operations: the operations, in order of execution.
    makers: the operation that computes each value, by the value's name.
    blobs: the contents of the files of weights that were read.
    """

    folder: Path
    operations: tuple[CoreMLOperation, ...]
    makers: dict[str, CoreMLOperation] = field(default_factory=dict[str, CoreMLOperation])
    blobs: dict[Path, Array] = field(default_factory=dict[Path, Array])


def read(path: Path) -> FileContents:
    """Reads the LSTMs of a Core ML model as modules (recurrent layers); raises `FileError`, with the path, if
    it is damaged or also has GRUs or RNNs, which are not read.
    """
    try:
        file = model_file(path)
        if file.stat().st_size > LARGEST:
            raise FileError(f"it has more than {LARGEST} bytes")
        program = program_of(file)
        modules = tuple(
            module(program, operation) for operation in program.operations if operation.type == "lstm"
        )
        for operation in program.operations:
            if operation.type in OTHERS:
                raise FileError(
                    f"it has a {operation.type} {operation.outputs[0]!r}, {OTHERS[operation.type]}"
                )
        used = {name for recurrent in modules for name in recurrent.names.values()}
        rest = {
            operation.outputs[0]: array
            for operation in program.operations
            if operation.type == "const" and operation.outputs[0] not in used
            for array in [constant(program, operation)]
            if isinstance(array, np.ndarray) and array.dtype.kind != "b"  # flags and texts are settings
        }
        return FileContents(str(path), modules, rest, tuple(unconverted(program)), unspecified="")
    except FileError as error:
        has_path = str(error).startswith(str(path))
        raise FileError(str(error) if has_path else f"{path}: {error}") from None
    except OSError as error:
        raise FileError(f"{path}: it cannot be read ({error.strerror or error})") from error


def model_file(path: Path) -> Path:
    """Returns the path of the Core ML model (.mlmodel) that the manifest of the folder `path` (a .mlpackage)
    names, or `path` itself if it is a file; raises `FileError` if it is missing.
    """
    if not path.is_dir():
        return existing(path)
    manifest = jsons.read(path / "Manifest.json")
    entries: Any = manifest.get("itemInfoEntries")
    root: Any = (
        cast("dict[str, Any]", entries).get(str(manifest.get("rootModelIdentifier"))) if entries else None
    )
    model_path = cast("dict[str, Any]", root).get("path") if isinstance(root, dict) else None
    if not isinstance(model_path, str):
        raise FileError("its Manifest.json does not say which file is the model")
    return path_inside(path, f"Data/{model_path}")


def path_inside(folder: Path, relative_path: str) -> Path:
    """Returns the path of the file `relative_path` of a Core ML model, below its folder `folder`; raises
    `FileError` if the file is missing or lies elsewhere.
    """
    for name in relative_path.split("/"):
        folder = jsons.within(folder, name)
    if not folder.is_file():
        raise FileError(f"its file {relative_path[:200]} is missing")
    return folder


def program_of(file: Path) -> CoreMLProgram:
    """Reads the operations of the Core ML program in a .mlmodel; raises `FileError` for other kinds of model,
    and for values that have the same name or one that cannot be printed.
    """
    data = memoryview(file.read_bytes())
    model = message(data, Store(None, len(data)))
    if PROGRAM not in model.fields:
        raise FileError(
            "it is no ML Program; convert it with convert_to='mlprogram', or convert its original model"
        )
    functions = [entry.submessage(2) for entry in model.submessage(PROGRAM).messages(2)]
    blocks = [entry.submessage(2) for function in functions for entry in function.messages(3)]
    operations = tuple(operation for block in blocks for operation in operations_in(block))
    makers: dict[str, CoreMLOperation] = {}
    for operation in operations:
        for name in operation.outputs:
            if name in makers or not name.isprintable() or len(name) > 1000:
                raise FileError(f"two values are called {name[:100]!a}, or it cannot be printed")
            makers[name] = operation
    return CoreMLProgram(file.parent, operations, makers)


def operations_in(block: Message, depth: int = 0) -> Iterator[CoreMLOperation]:
    """Yields the operations of a block of a Core ML program and of the blocks in it, in order, except
    operations without outputs. depth: the number of blocks around this one; beyond a limit `FileError` is
    raised.
    """
    if depth > DEPTH:
        raise FileError(f"its blocks nest deeper than {DEPTH}")
    for proto in block.messages(3):
        attributes = {entry.text(1): entry.submessage(2) for entry in proto.messages(5)}
        inputs = {entry.text(1): entry.submessage(2).submessage(1).text(1) for entry in proto.messages(2)}
        outputs = tuple(output.text(1) for output in proto.messages(3))
        block.store.take(OPERATION + INPUT * (len(inputs) + len(outputs)), "its operations")
        if outputs:
            yield CoreMLOperation(proto.text(1), inputs, outputs, attributes.get("val"))
        for inner in proto.messages(4):
            yield from operations_in(inner, depth + 1)


def module(program: CoreMLProgram, operation: CoreMLOperation) -> Module:
    """Converts an LSTM operation of a Core ML program to a module (recurrent layer): its weights, settings
    and direction, and notes on its initial state and outputs. Raises `FileError` if weights are no constants,
    or for settings that no layout (a framework's arrangement of weights) can express.
    """
    name = operation.outputs[0]
    weights = {weight: operation.inputs[weight] for weight in WEIGHTS if weight in operation.inputs}
    arrays: dict[str, Array] = {}
    for weight, source in weights.items():
        value = constant(program, maker_of(program, source))
        if not isinstance(value, np.ndarray):
            raise FileError(f"lstm {name!r} takes {weight} from {source!r}, which is no constant of numbers")
        arrays[weight] = value
    settings: dict[str, Any] = {"clip": 0.0}  # the operator's default: no clipping
    for setting in SETTINGS:
        if setting in operation.inputs:
            value = constant(program, maker_of(program, operation.inputs[setting]))
            settings[setting] = (
                float(value.reshape(-1)[0]) if isinstance(value, np.ndarray) and value.size else value
            )
    direction = operation.inputs.get("direction")
    way = constant(program, maker_of(program, direction)) if direction else "forward"
    try:
        semantics = record("coreml.lstm").translated(settings)
    except LayoutError as error:
        raise FileError(f"lstm {name!r}: {error}") from error
    begins = {state: initial_state(program, operation.inputs.get(state, "")) for state in STATES}
    computed = [state for state, (kind, _) in begins.items() if kind == "computed"]
    return Module(
        name,
        ("coreml.lstm",),
        arrays,
        weights,
        semantics=semantics,
        follows=preceding_lstm(program, operation),
        reverse=way == "reverse",
        notes=tuple(f"{state} {BEGINS[kind]}" for state, (kind, _) in begins.items() if kind in BEGINS),
        use=tuple(uses(program, operation, way)),
        alone=f"starts from what other operations compute ({' and '.join(computed)})" if computed else "",
        besides=tuple(name for kind, name in begins.values() if kind == "constant"),
    )


def uses(program: CoreMLProgram, operation: CoreMLOperation, direction: object) -> Iterator[str]:
    """Yields notes for the user on how a Core ML model uses an LSTM other than by all its outputs in order.

    direction: the constant of its direction; "reverse" for an LSTM that runs from the last step. operation:
    the LSTM.
    """
    if not returns_all_steps(program, operation):
        yield "its model uses only its last output"
    if direction == "reverse":
        yield "it runs from the last step, and Core ML does not document the order of its outputs"


def returns_all_steps(program: CoreMLProgram, operation: CoreMLOperation) -> bool:
    """Returns True if an LSTM of a Core ML program returns all outputs, and not the last one only."""
    value = constant(program, maker_of(program, operation.inputs.get("output_sequence", "")))
    return isinstance(value, np.ndarray) and bool(value.all())


def traced_back(program: CoreMLProgram, name: str, kinds: Collection[str]) -> list[str]:
    """Returns the names of a Core ML value and of the values that it is computed from through operations of
    the types `kinds`, each the input `x` of the operation before. The last name is the source: the output of
    an operation of another type, or an input of the model.
    """
    names = [name]
    while (maker := maker_of(program, names[-1])) is not None and maker.type in kinds and len(names) < FAR:
        names.append(maker.inputs.get("x", ""))
    return names


def preceding_lstm(program: CoreMLProgram, operation: CoreMLOperation) -> str:
    """Returns the name of the LSTM of a Core ML program whose outputs at all steps are the input of
    `operation`, perhaps through operations that move numbers and leave the axes as they were; "" if the input
    is anything else.
    """
    *through, name = traced_back(program, operation.inputs.get("x", ""), STRAIGHT)
    below = maker_of(program, name)
    if (
        below is None
        or below.type != "lstm"
        or name != below.outputs[0]
        or not returns_all_steps(program, below)
    ):
        return ""
    outputs = axes = Axes(("T", "B", "H"), {})
    for passed in reversed(through):
        axes = axes and axes_after(program, program.makers[passed], axes)
    return name if axes == outputs else ""


def axes_after(program: CoreMLProgram, operation: CoreMLOperation, axes: Axes) -> Axes | None:
    """Returns the axes of an array after a Core ML operation that only moves its numbers, such as a
    transpose; None if they are unknown. axes: those before it.
    """
    if operation.type in ("cast", "identity"):
        return axes
    numbers = constant(program, maker_of(program, operation.inputs.get(NUMBERS[operation.type], "")))
    if not isinstance(numbers, np.ndarray):
        return axes.squeezed(()) if operation.type == "squeeze" else None
    how = {
        "transpose": axes.transposed,
        "reshape": axes.reshaped,
        "squeeze": axes.squeezed,
        "expand_dims": axes.expanded,
    }
    return how[operation.type]([int(number) for number in numbers.reshape(-1)])


def unconverted(program: CoreMLProgram) -> Iterator[str]:
    """Yields "name (type)" for each operation of a Core ML program that is not converted, to list them for
    the user: all but LSTMs, constants, and operations that only move the inputs and weights of LSTMs.
    """
    seen: set[str] = set()
    for operation in program.operations:
        if operation.type == "lstm":
            operands = [name for slot, name in operation.inputs.items() if slot != "x"]
            seen |= {name for source in operands for name in traced_back(program, source, MOVES)}
            seen |= (
                {*traced_back(program, operation.inputs.get("x", ""), STRAIGHT)}
                if preceding_lstm(program, operation)
                else set()
            )
    for operation in program.operations:
        if operation.type not in ("lstm", "const") and not seen & {*operation.outputs}:
            yield f"{operation.outputs[0]} ({operation.type})"


def maker_of(program: CoreMLProgram, name: str) -> CoreMLOperation | None:
    """Returns the Core ML operation that computes the value `name`; None for an input of the model."""
    return program.makers.get(name)


def initial_state(program: CoreMLProgram, name: str) -> tuple[str, str]:
    """Finds the source of an LSTM's initial state, the value `name` of a Core ML program: returns the kind of
    the source, and the name of the source value.

    The kind is "constant" (other than zeros), "given" (an input of the model), "computed", or "" for zeros.
    """
    source = traced_back(program, name, MOVES)[-1]
    maker = maker_of(program, source)
    if maker is None:
        return ("given" if source else ""), source
    if maker.type == "fill":  # with zeros, unless it has a value
        source = maker.inputs.get("value", "")
        maker = maker_of(program, source)
    value = constant(program, maker)
    if isinstance(value, np.ndarray):
        return ("constant" if value.any() else ""), source
    return ("computed" if source else ""), source


def constant(program: CoreMLProgram, operation: CoreMLOperation | None) -> Array | str | None:
    """Returns the value of an operation of a Core ML program if it is a constant: an array, or a text.
    Returns None for other operations, and for dtypes that are not read. Raises `FileError` if the shape and
    the bytes do not fit.
    """
    if operation is None or operation.type != "const" or operation.value is None:
        return None
    type_ = operation.value.submessage(2).submessage(1)
    kind, tensor = type_.number(1), operation.value.submessage(3).submessage(1)
    if kind == STRING:
        return tensor.submessage(TEXTS).text(1)
    if kind not in KINDS:
        return None
    shape = tuple(dimension.submessage(1).number(1) for dimension in type_.messages(3))
    size = math.prod(shape) * KINDS[kind].itemsize
    if 5 in operation.value.fields:
        data = blob(program, operation.value.submessage(5))
    elif kind in IMMEDIATE:
        held = joined_bytes(tensor.submessage(IMMEDIATE[kind]))
        data = held
        if KINDS[kind].kind != "f":
            data = b"".join(varint.astype(KINDS[kind]).tobytes() for varint in varints(held))
    else:
        data = joined_bytes(tensor.submessage(BYTES))
    if len(data) != size:
        raise FileError(f"{operation.outputs[0]!r} of {shape} has {len(data)} bytes in place of {size}")
    return np.frombuffer(data, KINDS[kind].newbyteorder("<") if kind != 13 else KINDS[kind]).reshape(shape)


def joined_bytes(proto: Message) -> bytes:
    """Joins the pieces of a constant's bytes in a Core ML program, `proto`; counts their memory."""
    pieces = proto.pieces(1)
    proto.store.room(8 * sum(map(len, pieces)), "a constant")
    proto.store.take(sum(map(len, pieces)), "its constants")
    return b"".join(bytes(piece) for piece in pieces)


def blob(program: CoreMLProgram, proto: Message) -> memoryview:
    """Returns the bytes of a Core ML constant in a file of weights, which `proto` names with the offset of a
    header there. Raises `FileError` if the file is not below the model, or is cut off. It is read once, and
    kept in `program.blobs`.
    """
    name, offset = proto.text(1), proto.number(2)
    if not name.startswith(FRONT):
        raise FileError(f"it names the file {name[:100]!a}, which is not below the model")
    path = path_inside(program.folder, name.removeprefix(FRONT))
    if path not in program.blobs:
        program.blobs[path] = np.fromfile(path, np.uint8)
    data = program.blobs[path].data
    if offset + BLOB.size > len(data):
        raise FileError(f"its file {path.name} is cut off")
    mark, _, size, start = BLOB.unpack_from(data, offset)
    if mark != MARK or start + size > len(data):
        raise FileError(f"its file {path.name} is cut off, or has no constant at byte {offset}")
    return data[start : start + size]
