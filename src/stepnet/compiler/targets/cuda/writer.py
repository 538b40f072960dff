"""Writes a kernel as LLVM code: its arguments, who runs it, shared memory, barriers, elements of arrays."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.writing.code import I32, I64, POINTER, Code, load_vector, store_vector
from stepnet.compiler.targets.cuda.device import DeviceCode, Exchange

Value = ir.Value
VOID = ir.VoidType()
SCALAR = Processor("gpu", "", "", 4, 255)
"""A GPU as the writers of elementwise operations see it: one number per register."""


class KernelWriter(Code):
    """Writer of one kernel.

    writer = KernelWriter("doubled", ["x", "y", "count"])
    with writer.over_all(writer.word("count")) as i:
        x = writer.read_element("float32", writer.pointer("x"), i)
        writer.write_element("float32", writer.fadd(x, x), writer.pointer("y"), i)
    code = writer.finished(threads=128)
    """

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        """Begins a kernel. arguments: the names of its words of 64 bits: addresses and integers."""
        module = ir.Module()
        function = ir.Function(module, ir.FunctionType(VOID, [I64] * len(arguments)), "kernel")
        super().__init__(function.append_basic_block("entry"), SCALAR)
        self.name, self.text_module = name, module
        self.words = dict(zip(arguments, function.args, strict=True))
        self.pointers = {
            name: self.function_call("in_main", POINTER, [word]) for name, word in self.words.items()
        }
        self.thread: Value = self.zext(self.function_call("thread", I32, []), I64)
        self.block_index: Value = self.zext(self.function_call("block", I32, []), I64)
        self.blocks: Value = self.zext(self.function_call("blocks_launched", I32, []), I64)
        self.threads: Value = self.zext(self.function_call("threads_of_block", I32, []), I64)

    def word(self, name: str) -> Value:
        """Returns an argument as an integer."""
        return self.words[name]

    def pointer(self, name: str) -> Value:
        """Returns an argument as a pointer into main memory, which is the memory of the device."""
        return self.pointers[name]

    def shared(self, offset: "int | Value") -> Value:
        """Writes the address of a byte of the block's shared memory."""
        return self.at(self.function_call("shared", POINTER, []), offset)

    def barrier(self) -> None:
        """Writes a barrier: no thread of the block goes on until all have come here. All of them must."""
        self.function_call("barrier", VOID, [])

    def element(self, dtype: str, pointer: Value, index: Value) -> Value:
        """Writes the address of an element of an array of a dtype."""
        return self.at(pointer, self.mul(index, self.number(np.dtype(dtype).itemsize)))

    def read_element(self, dtype: str, pointer: Value, index: Value) -> Value:
        """Writes a load of an element of an array; returns the register. A bool is one bit there."""
        size = np.dtype(dtype).itemsize
        return load_vector(self, dtype, 1, self.element(dtype, pointer, index), size)

    def write_element(self, dtype: str, value: Value, pointer: Value, index: Value) -> None:
        """Writes a store of a register as an element of an array."""
        size = np.dtype(dtype).itemsize
        store_vector(self, dtype, value, self.element(dtype, pointer, index), size)

    @contextmanager
    def over_threads(self, count: "int | Value") -> Generator[Value]:
        """Writes a loop that shares the numbers 0, 1, ... < `count` out among the threads of the block."""
        stop = self.number(count) if isinstance(count, int) else count
        with self.loop(self.thread, stop, self.threads) as index:
            yield index

    @contextmanager
    def over_all(self, count: "int | Value") -> Generator[Value]:
        """Writes a loop that shares the numbers 0, 1, ... < `count` out among all threads of all blocks."""
        stop = self.number(count) if isinstance(count, int) else count
        first = self.add(self.mul(self.block_index, self.threads), self.thread)
        with self.loop(first, stop, self.mul(self.blocks, self.threads)) as index:
            yield index

    def finished(
        self, threads: int, shared: int = 0, group: int = 1, exchange: Exchange = "none"
    ) -> DeviceCode:
        """Ends the kernel; returns its code. The parameters are the fields of the code."""
        self.ret_void()
        return DeviceCode(self.name, str(self.text_module), len(self.words), threads, shared, group, exchange)
