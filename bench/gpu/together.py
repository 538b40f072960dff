"""Checks of kernels whose threads work together, for any device: a GPU, or its emulation."""

from collections.abc import Callable

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cuda import Device, DeviceArray, DeviceCode, KernelWriter, empty, get, put

Array = np.ndarray
I32, I64, F32, VOID = ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.VoidType()
QUAD, FOUR = ir.LiteralStructType([F32] * 4), ir.VectorType(F32, 4)
ERROR = 1e-5
"""The most that a sum of a few products of the tensor cores is away from that in float64."""


def launched(device: Device, code: DeviceCode, blocks: int, *arguments: DeviceArray | int) -> None:
    """Launches a kernel, with arrays by their addresses."""
    device.launch(code, blocks, [one if isinstance(one, int) else one.address for one in arguments])


def doubled(device: Device) -> None:
    """Each number of an array that is no multiple of the threads is added to itself."""
    writer = KernelWriter("doubled", ["x", "y", "count"])
    with writer.over_all(writer.word("count")) as i:
        x = writer.read_element("float32", writer.pointer("x"), i)
        writer.write_element("float32", writer.fadd(x, x), writer.pointer("y"), i)
    x = np.arange(100_001, dtype="f4")
    given, made = put(device, x), empty(device, x.shape, "float32")
    launched(device, writer.finished(128), 7, given, made, x.size)
    assert np.array_equal(get(made), 2 * x)


def counts(device: Device) -> None:
    """Threads know their numbers, and those of the launch."""
    writer = KernelWriter("counts", ["y"])
    with writer.over_all(1000) as i:
        value = writer.add(writer.mul(writer.block_index, writer.number(1000)), writer.thread)
        writer.write_element("int64", value, writer.pointer("y"), i)
    made, place = empty(device, (1000,), "int64"), np.arange(1000) % 288
    launched(device, writer.finished(96), 3, made)
    assert np.array_equal(get(made), place // 96 * 1000 + place % 96)


def reversed_in_blocks(barriers: int) -> DeviceCode:
    """Each block puts its numbers in shared memory, and each thread reads that of another one; three times.

    barriers: how many of the two barriers of each time there are.
    """
    writer = KernelWriter("reversed", ["x", "y"])
    place = writer.add(writer.mul(writer.block_index, writer.threads), writer.thread)
    value = writer.read_element("float32", writer.pointer("x"), place)
    last = writer.sub(writer.sub(writer.threads, writer.number(1)), writer.thread)
    for _ in range(3):
        writer.write_element("float32", value, writer.shared(0), writer.thread)
        if barriers > 0:
            writer.barrier()
        value = writer.read_element("float32", writer.shared(0), last)
        if barriers > 1:
            writer.barrier()
    writer.write_element("float32", value, writer.pointer("y"), place)
    return writer.finished(64, shared=256)


def barriers(device: Device) -> None:
    """Threads of a block hand numbers to each other in shared memory."""
    x = np.arange(64 * 50, dtype="f4")
    given, made = put(device, x), empty(device, x.shape, "float32")
    launched(device, reversed_in_blocks(2), 50, given, made)
    assert np.array_equal(get(made), x.reshape(50, 64)[:, ::-1].ravel())


def operands(depth: int) -> tuple[list[Array], Array]:
    """Returns operands of a product in the order of registers, and the product in float64."""
    random = np.random.default_rng(depth)
    a, b, c = (random.standard_normal(shape).astype("f4") for shape in ((16, depth), (depth, 8), (16, 8)))
    mask = np.uint32(0xFFFFE000 if depth == 8 else 0xFFFF0000)
    a, b = ((one.view("u4") & mask).view("f4") for one in (a, b))
    lanes = np.arange(32)
    row, rest = lanes // 4, lanes % 4

    def register(matrix: Array, above: Array, first: Array) -> Array:
        """Returns a register of all lanes: one number, or two that are next to each other."""
        if depth == 8:
            return matrix[above, first]
        low, high = (matrix[above, 2 * first + n].view("u4") for n in (0, 1))
        return ((low >> np.uint32(16)) | high).view("f4")

    lefts = [register(a, row + 8 * (n & 1), rest + 4 * (n >> 1)) for n in range(4)]
    rights = [register(np.ascontiguousarray(b.T), row, rest + 4 * n) for n in range(2)]
    sums = [c[row + 8 * (n >> 1), 2 * rest + (n & 1)] for n in range(4)]
    product = a.astype("f8") @ b + c
    expected = np.stack([product[row + 8 * (n >> 1), 2 * rest + (n & 1)] for n in range(4)])
    return [*lefts, *rights, *sums], expected


def products(depth: int) -> Callable[[Device], None]:
    """Returns the check of the product of the tensor cores. depth: 8 for tf32, 16 for bfloat16."""
    turned = ir.Constant(I32, -(2**31) if depth == 8 else -(2**31) + 2**15)

    def check(device: Device) -> None:
        """Two warps add a product, subtract it, and add it."""
        writer = KernelWriter("products", ["x", "y"])

        def place(n: int) -> ir.Value:
            """Returns the index of a register of this thread."""
            return writer.add(writer.number(64 * n), writer.thread)

        registers = [writer.read_element("float32", writer.pointer("x"), place(n)) for n in range(10)]
        for _ in range(3):
            quad = writer.function_call(f"mma{depth}", QUAD, registers)
            registers[6:] = [writer.extract_value(quad, n) for n in range(4)]
            bits = [writer.xor(writer.bitcast(one, I32), turned) for one in registers[:4]]
            registers[:4] = [writer.bitcast(one, F32) for one in bits]
        for n, value in enumerate(registers[6:]):
            writer.write_element("float32", value, writer.pointer("y"), place(n))
        arrays, expected = operands(depth)
        given, made = put(device, np.stack([arrays, arrays], 1)), empty(device, (4, 2, 32), "float32")
        launched(device, writer.finished(64), 1, given, made)
        assert np.abs(get(made) - expected[:, None]).max() < ERROR

    return check


def shuffles(dtype: str) -> Callable[[Device], None]:
    """Returns the check of numbers of other lanes of a warp."""

    def check(device: Device) -> None:
        """Each lane takes the number of the lane 16 further, then of that 3 further."""
        writer = KernelWriter("shuffled", ["x", "y"])
        value = writer.read_element(dtype, writer.pointer("x"), writer.thread)
        for lanes in (16, 3):
            arguments = [value, ir.Constant(I32, lanes)]
            value = writer.function_call(f"shuffle_down_{dtype}", value.type, arguments)
            writer.function_call("warp_barrier", VOID, [])
        writer.write_element(dtype, value, writer.pointer("y"), writer.thread)
        x = np.arange(64, dtype=dtype)
        given, made = put(device, x), empty(device, (64,), dtype)
        launched(device, writer.finished(64), 1, given, made)
        lane = np.arange(64) % 32
        first, second = (np.arange(64) + np.where(lane + lanes < 32, lanes, 0) for lanes in (16, 3))
        assert np.array_equal(get(made), x[first][second])

    return check


def errors(device: Device) -> None:
    """The first error of all threads is kept whole."""
    writer = KernelWriter("failing", ["errors"])
    tens = writer.mul(writer.thread, writer.number(10))
    arguments = [writer.add(tens, writer.number(n)) for n in range(3)]
    writer.function_call("record_error", VOID, [writer.pointer("errors"), *arguments])
    found = put(device, np.zeros(4, np.int64))
    launched(device, writer.finished(64), 2, found)
    kind, node, value, row = get(found)
    assert (kind, value, row, node % 10) == (1, node + 1, node + 2, 0)


def clusters(device: Device) -> None:
    """Blocks of a cluster write to each other's shared memory."""
    writer = KernelWriter("pushed", ["y"])
    other = writer.urem(writer.add(writer.block_index, writer.number(1)), writer.number(4))
    value: ir.Value = writer.spread(writer.sitofp(writer.block_index, F32), 4)
    writer.function_call("arrive", VOID, [])  # a block must not be written to before it runs
    writer.function_call("wait", VOID, [])
    with writer.when(writer.icmp_signed("==", writer.thread, writer.number(0))):
        arguments = [writer.trunc(other, I32), ir.Constant(I32, 16), value]
        writer.function_call("write_to", VOID, arguments)
    writer.function_call("arrive", VOID, [])
    writer.function_call("wait", VOID, [])
    found = writer.extract_element(writer.read(FOUR, writer.shared(16), 16), ir.Constant(I32, 3))
    writer.write_element("float32", found, writer.pointer("y"), writer.block_index)
    made = empty(device, (8,), "float32")
    launched(device, writer.finished(32, shared=32, group=4, exchange="cluster"), 8, made)
    assert get(made).tolist() == [3, 0, 1, 2, 7, 4, 5, 6]


def counters(device: Device) -> None:
    """Blocks wait until all have written, by a counter."""
    writer = KernelWriter("counted", ["counter", "x", "y"])
    counter, blocks = writer.pointer("counter"), writer.trunc(writer.blocks, I32)
    with writer.when(writer.icmp_signed("==", writer.thread, writer.number(0))):
        writer.write_element("int64", writer.block_index, writer.pointer("x"), writer.block_index)
        writer.function_call("release", VOID, [counter])

    def is_early() -> ir.Value:
        """Writes the condition that some blocks have not come."""
        return writer.icmp_signed("<", writer.function_call("acquire", I32, [counter]), blocks)

    with writer.loop_while(is_early):
        pass
    other = writer.sub(writer.sub(writer.blocks, writer.number(1)), writer.block_index)
    value = writer.read_element("int64", writer.pointer("x"), other)
    writer.write_element("int64", value, writer.pointer("y"), writer.block_index)
    arrays = put(device, np.zeros(1, np.int64)), empty(device, (5,), "int64"), empty(device, (5,), "int64")
    launched(device, writer.finished(32, group=5, exchange="grid"), 5, *arrays)
    assert get(arrays[2]).tolist() == [4, 3, 2, 1, 0]


def tags(device: Device) -> None:
    """Blocks wait for a number of another one by its tag."""
    writer = KernelWriter("tagged", ["x", "y"])
    tag, x = ir.Constant(I32, 7), writer.pointer("x")

    def place(block: ir.Value) -> ir.Value:
        """Returns the address of the two numbers of a block, each with its tag."""
        return writer.at(x, writer.mul(block, writer.number(16)))

    with writer.when(writer.icmp_signed("<", writer.thread, writer.number(2))):
        at = writer.at(place(writer.block_index), writer.mul(writer.thread, writer.number(8)))
        value = writer.sitofp(writer.add(writer.block_index, writer.thread), F32)
        writer.function_call("write_tagged", VOID, [at, value, tag])
    other = writer.sub(writer.sub(writer.blocks, writer.number(1)), writer.block_index)
    found = writer.alloca(QUAD)

    def is_early() -> ir.Value:
        """Writes the condition that a tag of the two numbers is an old one."""
        writer.function_call("pause", VOID, [])
        quad = writer.function_call("read_tagged", QUAD, [place(other)])
        writer.write(quad, found, 16)
        there = [writer.bitcast(writer.extract_value(quad, n), I32) for n in (1, 3)]
        late = [writer.icmp_signed("==", one, tag) for one in there]
        return writer.not_(writer.and_(*late))

    with writer.loop_while(is_early):
        pass
    value = writer.extract_value(writer.read(QUAD, found, 16), 2)
    writer.write_element("float32", value, writer.pointer("y"), writer.block_index)
    arrays = put(device, np.zeros(20, np.float32)), empty(device, (5,), "float32")
    launched(device, writer.finished(32, group=5, exchange="grid"), 5, *arrays)
    assert get(arrays[1]).tolist() == [5, 4, 3, 2, 1]


TOGETHER: dict[str, Callable[[Device], None]] = {
    "copies": doubled,
    "counts": counts,
    "barriers": barriers,
    "products of tf32": products(8),
    "products of bfloat16": products(16),
    "shuffles of float32": shuffles("float32"),
    "shuffles of float64": shuffles("float64"),
    "errors": errors,
    "clusters": clusters,
    "counters": counters,
    "tags": tags,
}
"""The checks by their names. Each raises `AssertionError` if its results are wrong."""
