"""The context for writing a function that a thread of a call runs: its words, its frame, and its waits."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar

from llvmlite import ir

from stepnet.compiler.native.call_words import FRAME, PROGRESS, WORDS
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code

Key = TypeVar("Key", str, int)


@contextmanager
def at_entry(code: Code) -> Generator[None]:
    """Context in which code is written at the end of a function's entry block, LLVM's first instructions of
    the function, which run once, ahead of all loops.
    """
    if code.block is code.function.entry_basic_block:
        yield
    else:
        with code.goto_entry_block():
            yield


class AtEntry(dict[Key, ir.Value]):
    """Values of a function. Each is written at its first use, at the end of the entry block: all code of the
    function can use it, and no function loads what it does not use.
    """

    def __init__(self, code: Code, write: Callable[[Key], ir.Value]) -> None:
        """Begins without values in the function of `code`. write: writes the value of a key at first use."""
        super().__init__()
        self.code, self.write = code, write

    def __missing__(self, key: Key) -> ir.Value:
        """Writes the code of a value at the beginning of the function, at its first use, and keeps it."""
        with at_entry(self.code):
            value = self[key] = self.write(key)
        return value


def function_code(
    module: ir.Module, processor: Processor, name: str, result: ir.Type, arguments: Sequence[ir.Type]
) -> Code:
    """Begins the body of an internal function of a module; returns the builder that writes it. If the module
    already declares the function, that declaration is used.

    result, arguments: the LLVM types of the result and of the arguments.
    """
    known = module.globals.get(name)
    function = ir.Function(module, ir.FunctionType(result, arguments), name) if known is None else known
    function.linkage = "internal"
    return Code(function.append_basic_block("entry"), processor)


class ThreadCode:
    """Function under construction that a thread of a call runs, with the registers that its code reads.

    argument, pointer: the argument words of the thread as integers and as pointers, by their names in
        `WORDS`.
    flag: the tests whether an argument word of the thread is not 0.
    """

    def __init__(self, code: Code, arguments: ir.Value, frame: ir.Value) -> None:
        """Takes the builder of the function, and pointers to argument words and frame (a thread's state)."""
        self.code, self.arguments, self.frame = code, arguments, frame
        self.argument = AtEntry[str](code, lambda name: self.argument_at(WORDS.index(name)))
        self.pointer = AtEntry[str](code, lambda name: self.pointer_at(WORDS.index(name)))
        self.flag = AtEntry[str](
            code, lambda name: code.icmp_signed("!=", self.argument[name], code.number(0))
        )

    @classmethod
    def of_frame(cls, code: Code) -> "ThreadCode":
        """Makes the context of a function whose first argument points to `FRAME`, a thread's state."""
        frame = code.function.args[0]
        return cls(code, code.read(POINTER, code.at(frame, 8 * FRAME.index("words")), 8), frame)

    def argument_at(self, index: int) -> ir.Value:
        """Writes a load of argument word number `index` (64 bits) of the thread, as an integer."""
        return self.code.read(I64, self.code.at(self.arguments, 8 * index), 8)

    def pointer_at(self, index: int) -> ir.Value:
        """Writes a load of argument word number `index` of the thread, as a pointer."""
        return self.code.read(POINTER, self.code.at(self.arguments, 8 * index), 8)

    # ---- tables, and words that are written

    def read(self, table: str, index: ir.Value) -> ir.Value:
        """Writes a load of the entry at an index of a table of integers. table: its name, as "lengths"."""
        return self.code.read_number(self.pointer[table], index)

    def set(self, table: str, index: ir.Value, value: ir.Value) -> None:
        """Writes a store to the entry at an index of a table of integers. table: its name, as "owner"."""
        self.code.write_number(value, self.pointer[table], index)

    def changes(self, step: ir.Value, kind: int) -> ir.Value:
        """Writes a test whether sequences begin or end in a step. kind: `BEGINS` or `ENDS`."""
        code = self.code
        bits = code.and_(self.read("step_changes", step), code.number(kind))
        return code.icmp_signed("!=", bits, code.number(0))

    def progress(self, name: str) -> ir.Value:
        """Writes a load of a word that the call's threads share. name: one of `PROGRESS`, as "pause"."""
        return self.code.read(I64, self.code.at(self.pointer["progress"], 8 * PROGRESS.index(name)), 8)

    def set_progress(self, name: str, value: ir.Value) -> None:
        """Writes a store to a word that the call's threads share. name: one of `PROGRESS`, as "pause"."""
        self.code.write(value, self.code.at(self.pointer["progress"], 8 * PROGRESS.index(name)), 8)

    def cell(self, name: str) -> ir.Value:
        """Computes the pointer to a word of the frame (a thread's state). name: one of `FRAME`, as "now"."""
        return self.code.at(self.frame, 8 * FRAME.index(name))

    def framed(self, name: str, type_: ir.Type = I64) -> ir.Value:
        """Writes a load, as `type_`, of a word of the thread's state. name: one of `FRAME`, such as "now"."""
        return self.code.read(type_, self.cell(name), 8)

    def call_plan(self, name: str, *arguments: ir.Value) -> None:
        """Writes a call of one of the functions that the model's own machine code gives to the driver. name:
        "block", which runs a block of steps (those computed together); "begin" or "end", which begins or ends
        a sequence. It gets the pointers to the thread's argument words and to its state, then `arguments`.
        """
        self.code.call_at(self.framed(name), ir.VoidType(), [self.arguments, self.frame, *arguments])

    # ---- threads

    @cached_property
    def threads(self) -> ir.Value:
        """The number of threads that share the steps, loaded once, at the beginning of the function."""
        with at_entry(self.code):
            return self.framed("threads")

    @cached_property
    def shared(self) -> ir.Value:
        """The test whether several threads share the steps, so that they must wait for each other."""
        with at_entry(self.code):
            return self.code.icmp_signed(">", self.threads, self.code.number(1))

    @cached_property
    def is_first_thread(self) -> ir.Value:
        """The test whether this thread is the first of the call."""
        with at_entry(self.code):
            return self.code.not_(self.flag["thread"])

    @contextmanager
    def by_first_thread(self) -> Generator[None]:
        """Context manager: only the first thread of the call runs the code that is written inside."""
        with self.code.when(self.is_first_thread):
            yield

    def wait(self) -> None:
        """Writes a barrier of threads that share steps; the frame's word "waited" adds up the time waited."""
        with self.code.when(self.shared):
            self.code.function_call("driver_wait", ir.VoidType(), [self.frame])
