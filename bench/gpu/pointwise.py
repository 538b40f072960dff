"""Every pointwise operation, for all dtypes that it takes: as kernels for a GPU or its emulation, and as code
of the CPU engine, so that their bits can be compared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
from llvmlite import ir

from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.ops import OPERATIONS
from stepnet.compiler.net.types import ROWS, Type
from stepnet.compiler.targets.cpu.machine.machine_code import MachineCode
from stepnet.compiler.targets.cpu.machine.object_code import object_code
from stepnet.compiler.targets.cpu.machine.processor import Processor, host_processor
from stepnet.compiler.targets.cpu.writing.code import POINTER, Code, load_vector, store_vector
from stepnet.compiler.targets.cpu.writing.pointwise import POINTWISE, pointwise
from stepnet.compiler.targets.cuda import Device, DeviceCode, KernelWriter, empty, get, put
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.errors import NetError

Array = np.ndarray
EXPONENTS = 2.0, 0.5, -1.0, 3.0, 1.7, -0.3
THREADS, BLOCKS = 128, 3
RANDOM = 3000
"""The random numbers of each array, besides those at the edges of its dtype."""
ORDINARY = 0, 0.1, 0.5, 1, 1.5, 2.5, 3, 7, 20, 88.5, 2.0**24 - 1, 2.0**31, 1e30


@dataclass(frozen=True)
class Case:
    """An operation on operands of some dtypes."""

    node: Node
    dtypes: tuple[str, ...]

    def __str__(self) -> str:
        """Names the case, such as "add(float32, float32)"."""
        exponent = "".join(f" {value}" for _, value in self.node.pairs)
        return f"{self.node.operation}{exponent}({', '.join(self.dtypes)}) -> {self.node.type.dtype}"


def operand_dtypes(operation: str) -> Iterator[tuple[tuple[str, ...], tuple[tuple[str, object], ...]]]:
    """Yields dtypes of operands, and attributes, that are tried with an operation."""
    names = tuple(DTYPES)
    for one in names:
        if operation == "cast":
            yield from (((one,), (("dtype", to),)) for to in names)
        elif operation == "power":
            yield from (((one,), (("exponent", exponent),)) for exponent in EXPONENTS)
        elif operation == "where":
            yield ("bool", one, one), ()
        else:
            yield (one,) * getattr(OPERATIONS[operation].meaning, "nin", 1), ()
    if operation in ("add", "multiply", "less", "remainder"):
        yield from ((pair, ()) for pair in (("int32", "float64"), ("bool", "float32"), ("int32", "int64")))


@cache
def cases() -> tuple[Case, ...]:
    """Returns all cases: each operation of the CPU engine with the dtypes that it takes."""
    found = list[Case]()
    for operation in POINTWISE:
        for dtypes, pairs in operand_dtypes(operation):
            try:
                types = OPERATIONS[operation].types([Type(ROWS, (), d) for d in dtypes], dict(pairs))
            except (NetError, TypeError, ValueError):
                continue
            found.append(Case(Node(operation, tuple(range(len(dtypes))), types, pairs), dtypes))
    return tuple(found)


@cache
def groups() -> dict[tuple[str, ...], tuple[Case, ...]]:
    """Returns the cases by the dtypes of their operands: those of a group are one kernel."""
    return {
        dtypes: tuple(case for case in cases() if case.dtypes == dtypes)
        for dtypes in dict.fromkeys(case.dtypes for case in cases())
    }


@np.errstate(all="ignore")
def edges(dtype: str) -> Array:
    """Returns numbers at the edges of a dtype."""
    if dtype == "bool":
        return np.array([False, True])
    if np.dtype(dtype).kind == "i":
        info = np.iinfo(dtype)
        return np.array([0, 1, -1, 2, -3, 7, 100, info.max, info.min, info.min + 1], dtype)
    made = np.array(ORDINARY, "f8").astype(dtype)
    width = made.dtype.itemsize
    lowest = np.array([1, 2, 3], f"u{width}").view(made.dtype)
    infinite = np.array([np.inf], "f8").astype(dtype)
    largest = (infinite.view(f"u{width}") - np.array(1, f"u{width}")).view(made.dtype)
    positive = np.concatenate([made, lowest, infinite, largest])
    nan = np.array([np.nan], "f8").astype(dtype)
    return np.concatenate([positive, (-positive.astype("f8")).astype(dtype), nan])


@np.errstate(all="ignore")
def operands(dtypes: Sequence[str], seed: int = 0) -> list[Array]:
    """Returns an array for each operand: all combinations of numbers at the edges, then random bits."""
    random = np.random.default_rng(seed)
    columns = list(zip(*product(*(range(len(edges(dtype))) for dtype in dtypes)), strict=True))
    made = list[Array]()
    for dtype, column in zip(dtypes, columns, strict=True):
        width = np.dtype(dtype).itemsize
        bits = random.integers(0, 2 if dtype == "bool" else 256, RANDOM * width, np.uint8).view(
            np.dtype(dtype)
        )
        some = random.normal(0, 8, RANDOM)
        near = (some > 0 if dtype == "bool" else some).astype(dtype)
        made.append(np.concatenate([edges(dtype)[list(column)], bits, near]))
    return made


def kernel(name: str, group: Sequence[Case]) -> DeviceCode:
    """Returns a kernel that computes all cases of a group, whose words are the number of elements, the
    operands and the results.
    """
    dtypes = group[0].dtypes
    reads = [f"x{n}" for n in range(len(dtypes))]
    writer = KernelWriter(name, ["count", *reads, *(f"y{n}" for n in range(len(group)))])
    with writer.over_all(writer.word("count")) as i:
        values = [
            writer.read_element(dtype, writer.pointer(read), i)
            for read, dtype in zip(reads, dtypes, strict=True)
        ]
        for n, case in enumerate(group):
            result = pointwise(writer, case.node, values, list(dtypes))
            writer.write_element(case.node.type.dtype, result, writer.pointer(f"y{n}"), i)
    return writer.finished(threads=THREADS)


def on_device(device: Device, group: Sequence[Case], arrays: Sequence[Array]) -> list[Array]:
    """Returns the results of a group's kernel on a device."""
    given = [put(device, array) for array in arrays]
    made = [empty(device, arrays[0].shape, case.node.type.dtype) for case in group]
    words = [arrays[0].size, *(array.address for array in (*given, *made))]
    device.launch(kernel(f"pointwise of {', '.join(group[0].dtypes)}", group), BLOCKS, words)
    return [get(array) for array in made]


def on_cpu(group: Sequence[Case], arrays: Sequence[Array], processor: Processor | None = None) -> list[Array]:
    """Returns the results of the CPU engine's code, in vectors, for a group of cases."""
    processor = processor or host_processor()
    width, count = processor.vector_bytes // 8, arrays[0].size
    padded = [np.concatenate([array, array[: -count % width]]) for array in arrays]
    made = [np.empty(padded[0].shape, case.node.type.dtype) for case in group]
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER]), "computed")
    code = Code(function.append_basic_block("entry"), processor)
    table = function.args[0]
    pointers = [code.read(POINTER, code.at(table, 8 * n), 8) for n in range(len(arrays) + len(group))]

    def place(dtype: str, pointer: ir.Value, index: ir.Value) -> ir.Value:
        """Returns the address of an element."""
        return code.at(pointer, code.mul(index, code.number(np.dtype(dtype).itemsize)))

    dtypes = group[0].dtypes
    with code.loop(code.number(0), code.number(padded[0].size), width) as i:
        values = [
            load_vector(code, dtype, width, place(dtype, pointer, i), 1)
            for dtype, pointer in zip(dtypes, pointers, strict=False)
        ]
        for case, pointer in zip(group, pointers[len(arrays) :], strict=True):
            result = pointwise(code, case.node, values, list(dtypes))
            store_vector(code, case.node.type.dtype, result, place(case.node.type.dtype, pointer, i), 1)
    code.ret_void()
    addresses = np.array([array.ctypes.data for array in (*padded, *made)], np.int64)
    machine_code = MachineCode(object_code(module, processor))  # it must live as long as it runs
    machine_code.function("computed").call(addresses.ctypes.data)
    return [array[:count] for array in made]


@np.errstate(all="ignore")
def differing(ours: Array, theirs: Array) -> Array:
    """Returns where two arrays have other bits, but for NaN, whose bits are of no account."""
    assert ours.dtype == theirs.dtype
    different = ours.view(f"u{ours.itemsize}") != theirs.view(f"u{ours.itemsize}")
    if DTYPES[ours.dtype.name].kind == "float":
        different &= ~(np.isnan(ours.astype("f8")) & np.isnan(theirs.astype("f8")))
    return np.flatnonzero(different)
