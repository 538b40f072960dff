"""Measures the limits of the processor: multiply-adds a second, and bytes a second where weights lie.

Both are loops of generated code, like the engine's own, in the vector width of the engine's processor.
"""

import ctypes
import os
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor, host_processor, requested

ACCUMULATORS = 24  # enough to hide the latency of a multiply-add; with as few registers as 16, half as many
SECONDS = 0.01  # the length of one measurement
I32, I64 = ir.IntType(32), ir.IntType(64)
ADDRESS = I64  # pointers come from ctypes as numbers


@dataclass(frozen=True)
class Peak:
    """The measured limits of a machine: floating operations a second (a multiply-add is two), bytes a second,
    and the share of the processors' time that measuring got: less than 1 if other processes were busy too.
    """

    flops: float
    bandwidth: float
    quiet: float

    @classmethod
    def of(cls, peaks: Sequence["Peak"]) -> "Peak":
        """Combines several measurements: the highest limits, and the median share of the processors' time."""
        return cls(
            max(peak.flops for peak in peaks),
            max(peak.bandwidth for peak in peaks),
            median(peak.quiet for peak in peaks),
        )


def peak(dtype: str, weight_bytes: int, threads: int) -> Peak:
    """Measures the limits of `threads` threads now; weight_bytes: the memory that they read together."""
    flops, quiet = multiply_adds(dtype, threads)
    return Peak(flops, streaming(weight_bytes, threads), quiet)


def multiply_adds(dtype: str, threads: int) -> tuple[float, float]:
    """Measures floating operations a second of all threads, and the share of processor time they had.

    >>> flops, quiet = multiply_adds("float32", threads=1)
    >>> flops > 1e8, 0 < quiet <= 1
    (True, True)
    """
    processor = host_processor()
    lanes = processor.vector_bytes // np.dtype(dtype).itemsize
    function = code().multiply_add[dtype]

    def run(repeats: int) -> None:
        """Runs the compiled loop of multiply-adds, in one thread."""
        function(repeats, 0)

    repeats, quiet = rate(run, threads)
    return 2 * lanes * accumulators(processor) * repeats, quiet


def streaming(size: int, threads: int) -> float:
    """Measures the bytes a second of all threads together, each reading its part of `size` repeatedly."""
    block = host_processor().vector_bytes * accumulators(host_processor())
    blocks = max(1, size // threads // block)
    parts = [np.ones(blocks * block + 64, np.uint8) for _ in range(threads)]  # written, to be mapped
    addresses = [(-part.ctypes.data % 64) + part.ctypes.data for part in parts]

    def run(repeats: int) -> None:
        """Takes a part that no other thread reads, and reads it repeatedly."""
        address = addresses.pop()
        code().read(repeats, address, blocks)
        addresses.append(address)

    repeats, _ = rate(run, threads)
    return blocks * block * repeats


def rate(run: Callable[[int], None], threads: int) -> tuple[float, float]:
    """Measures a loop in all threads: repeats a second together, and the share of the processors' time that
    they had meanwhile. run: takes the number of repeats.
    """
    with ThreadPoolExecutor(threads) as pool:

        def seconds(repeats: int) -> float:
            """Returns the seconds in which all threads together do `repeats` repeats each."""
            begin = time.perf_counter()
            list(pool.map(run, [repeats] * threads))
            return time.perf_counter() - begin

        repeats = 1
        while min(seconds(repeats), seconds(repeats)) < SECONDS / 2:  # the first starts the threads
            repeats *= 2
        cpu = time.process_time()
        took = [seconds(repeats) for _ in range(3)]
        quiet = (time.process_time() - cpu) / sum(took) / threads
        return threads * repeats / min(took), min(1.0, quiet)


# ---- the code


@dataclass(frozen=True)
class Measures:
    """The generated functions that measure the processor. `engine` holds their memory."""

    engine: llvm.ExecutionEngine
    multiply_add: dict[str, Callable[[int, int], None]]
    read: Callable[[int, int, int], None]


@cache
def code() -> Measures:
    """Generates and compiles the measuring functions for this processor."""
    processor = host_processor()
    module = ir.Module("machine")
    for dtype, element in (("float32", ir.FloatType()), ("float64", ir.DoubleType())):
        write_multiply_add(
            module, dtype, ir.VectorType(element, processor.vector_bytes // np.dtype(dtype).itemsize)
        )
    write_read(module, processor)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        processor.cpu, processor.features, opt=3
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), machine)
    engine.finalize_object()

    def function(name: str, arguments: int) -> Callable[..., None]:
        """Returns a compiled function by name, which takes so many 64-bit integers."""
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)
        return kind(engine.get_function_address(name))

    return Measures(engine, {name: function(name, 2) for name in ("float32", "float64")}, function("read", 3))


def accumulators(processor: Processor) -> int:
    """Returns the number of vectors that the loops add to side by side, by the processor's registers."""
    return ACCUMULATORS if processor.registers >= 32 else ACCUMULATORS // 2


def started(module: ir.Module, name: str, arguments: int) -> tuple[ir.IRBuilder, ir.Function]:
    """Starts an LLVM function of 64-bit integers that returns nothing; returns a builder and it."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * arguments), name)
    return ir.IRBuilder(function.append_basic_block()), function


def repeated(
    builder: ir.IRBuilder,
    count: ir.Value,
    totals: Sequence[ir.Value],
    body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """Writes a loop of `count` rounds of body(round, totals) -> totals; returns the totals after the last."""
    before = builder.block
    head = builder.append_basic_block()
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64)
    index.add_incoming(ir.Constant(I64, 0), before)
    carried = [builder.phi(total.type) for total in totals]
    found = body(index, list(carried))
    following = builder.add(index, ir.Constant(I64, 1))
    for phi, first, then in zip([index, *carried], [None, *totals], [following, *found], strict=True):
        if first is not None:
            phi.add_incoming(first, before)
        phi.add_incoming(then, builder.block)
    after = builder.append_basic_block()
    builder.cbranch(builder.icmp_signed("<", following, count), head, after)
    builder.position_at_end(after)
    return found


def used(builder: ir.IRBuilder, totals: Sequence[ir.Value], address: ir.Value) -> None:
    """Writes a store of the totals if the address is 1 (it never is), so that LLVM must compute them."""
    with builder.if_then(builder.icmp_signed("==", address, ir.Constant(I64, 1))):
        pointer = builder.inttoptr(address, totals[0].type.as_pointer())
        for place, total in enumerate(totals):
            builder.store(total, builder.gep(pointer, [ir.Constant(I64, place)]), align=1)


def write_multiply_add(module: ir.Module, name: str, vector: ir.VectorType) -> None:
    """Writes name(repeats, address): in every repeat one multiply-add to each accumulator."""
    builder, function = started(module, name, 2)
    suffix = f"v{vector.count}f{32 if isinstance(vector.element, ir.FloatType) else 64}"
    fused = ir.Function(module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.{suffix}")
    factor = ir.Constant(vector, [ir.Constant(vector.element, 0.5)] * vector.count)
    # From the argument, so that nothing of it is computed beforehand.
    undefined = ir.Constant(vector, ir.Undefined)
    lane = builder.insert_element(
        undefined, builder.sitofp(function.args[0], vector.element), ir.Constant(I32, 0)
    )
    lanes = ir.Constant(ir.VectorType(I32, vector.count), [ir.Constant(I32, 0)] * vector.count)
    x = builder.shuffle_vector(lane, undefined, lanes)

    def body(index: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        """Writes one round of the loop: adds a product to each accumulator."""
        return [builder.call(fused, [total, factor, x]) for total in totals]

    # Each starts from another number, so that no two are the same computation.
    starts = [
        ir.Constant(vector, [ir.Constant(vector.element, float(place))] * vector.count)
        for place in range(accumulators(host_processor()))
    ]
    totals = repeated(builder, function.args[0], starts, body)
    used(builder, totals, function.args[1])
    builder.ret_void()


def write_read(module: ir.Module, processor: Processor) -> None:
    """Writes read(repeats, address, blocks), which adds each vector of the blocks to an accumulator."""
    builder, function = started(module, "read", 3)
    repeats, address, blocks = function.args
    vector = ir.VectorType(I64, processor.vector_bytes // 8)
    count = accumulators(processor)
    pointer = builder.inttoptr(address, vector.as_pointer())

    def block(index: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        """Writes the reading of one block: adds each of its vectors to an accumulator."""
        first = builder.mul(index, ir.Constant(I64, count))
        found: list[ir.Value] = []
        for place, total in enumerate(totals):
            at = builder.gep(pointer, [builder.add(first, ir.Constant(I64, place))])
            found.append(builder.add(total, builder.load(at, align=processor.vector_bytes)))
        return found

    def once(index: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        """Writes the inner loop, which reads all blocks once."""
        return repeated(builder, blocks, totals, block)

    zero = ir.Constant(vector, [ir.Constant(I64, 0)] * vector.count)
    totals = repeated(builder, repeats, [zero] * count, once)
    used(builder, totals, address)
    builder.ret_void()


# ---- the machine in words


def facts(threads: int) -> dict[str, Any]:
    """Describes the machine by name and value, so that its numbers can be judged.

    "instructions" is there if STEPNET_CPU restricts them to those of a narrower processor.
    """
    return {
        "processor": processor(),
        "family": ".".join(cpuinfo(name) for name in ("cpu family", "model")).strip("."),
        "processors": os.cpu_count(),
        "threads": threads,
        "vectors": str(host_processor()),
        **({"instructions": requested()} if requested() not in ("", "native") else {}),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


def processor() -> str:
    """Returns the processor's own name, or LLVM's for its kind."""
    return cpuinfo("model name") or platform.processor() or llvm.get_host_cpu_name()


def cpuinfo(name: str) -> str:
    """Returns the value that Linux gives for the first processor under this name; "" elsewhere."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line.partition(":") for line in file]
    except OSError:
        return ""
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")
