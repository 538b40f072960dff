"""Writes a kernel as LLVM code: its arguments, who runs it, shared memory, barriers, elements of arrays."""

from collections.abc import Callable, Generator, Sequence
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

    def any_of_block(self, condition: Value) -> Value:
        """Writes a barrier; returns whether the condition is true for any thread of the block."""
        found = self.function_call("any_of_block", I32, [self.zext(condition, I32)])
        return self.icmp_signed("!=", found, ir.Constant(I32, 0))

    def carry(
        self,
        start: int,
        stop: "int | Value",
        initial: Sequence[Value],
        write_body: Callable[[Value, list[Value]], Sequence[Value]],
        *,
        step: int = 1,
        runs: bool = False,
        turns: int = 0,
    ) -> list[Value]:
        """Writes a loop that carries values in registers. turns: how many turns are written side by side; 0
        for as many as LLVM thinks best, which may be all.
        """
        last = list[ir.Block]()

        def noted(index: Value, values: list[Value]) -> Sequence[Value]:
            """Writes a turn, and notes the block in which it ends."""
            results = write_body(index, values)
            last.append(self.block)
            return results

        found = super().carry(start, stop, initial, noted, step=step, runs=runs)
        for block in last if turns else ():
            assert block.terminator is not None
            block.terminator.set_metadata("llvm.loop", LoopFacts(self.text_module, turns))
        return found

    def carry_while(
        self,
        initial: Sequence[Value],
        holds: Callable[[list[Value]], Value],
        write_body: Callable[[list[Value]], Sequence[Value]],
    ) -> list[Value]:
        """Writes a loop that carries values in registers as long as a condition is true; returns the last.

        holds: writes the condition on the present values. write_body: writes an iteration, which takes the
            present values; returns the next ones.
        """
        before, values = self.block, list[ir.PhiInstr]()

        def runs() -> Value:
            """Writes the condition."""
            values.extend(self.phi(value.type) for value in initial)
            return holds([*values])

        with self.loop_while(runs):
            following = [*write_body([*values])]
            for phi, first, then in zip(values, initial, following, strict=True):
                phi.add_incoming(first, before)
                phi.add_incoming(then, self.block)
        return [*values]

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

    def either(
        self, condition: Value, write: Callable[[], Sequence[Value]], otherwise: Sequence[Value]
    ) -> list[Value]:
        """Writes values that are computed only if a condition holds; else they are those of `otherwise`."""
        before, inside = self.block, self.append_basic_block("some")
        after = self.append_basic_block("after")
        self.cbranch(condition, inside, after)
        self.position_at_end(inside)
        written, last = write(), self.block
        self.branch(after)
        self.position_at_end(after)
        found = list[Value]()
        for value, other in zip(written, otherwise, strict=True):
            phi = self.phi(value.type)
            phi.add_incoming(value, last)
            phi.add_incoming(other, before)
            found.append(phi)
        return found

    def read_or(self, otherwise: Value, name: str, index: Value) -> Value:
        """Writes a load of a number of an array, or another number if there is no array."""
        is_given = self.icmp_signed("!=", self.word(name), self.number(0))
        return self.either(is_given, lambda: [self.read_number(self.pointer(name), index)], [otherwise])[0]

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
        self,
        threads: int,
        shared: int = 0,
        group: int = 1,
        exchange: Exchange = "none",
        resident: int = 1,
    ) -> DeviceCode:
        """Ends the kernel; returns its code. The parameters are the fields of the code."""
        self.ret_void()
        facts = len(self.words), threads, shared, group, exchange, resident
        return DeviceCode.of(self.name, str(self.text_module), *facts)


class LoopFacts(ir.MDValue):
    """Facts about a loop for LLVM: how many turns it writes side by side."""

    def __init__(self, module: ir.Module, turns: int) -> None:
        """Takes the module, and the number."""
        fact = module.add_metadata(["llvm.loop.unroll.count", ir.Constant(I32, turns)])
        super().__init__(module, [fact], str(len(module.metadata)))  # pyright: ignore[reportCallIssue]

    def descr(self, buf: list[str]) -> None:
        """Appends the text of the facts, which name themselves."""
        (fact,) = self.operands
        buf += (f"distinct !{{ {self.get_reference()}, {fact.get_reference()} }}", "\n")
