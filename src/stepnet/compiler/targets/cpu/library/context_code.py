"""Generates a library's functions except `run`: they create and free contexts, load weights, and name errors.

    inside   name_new(&context)
    beside   name_new(weights, bytes, &context)     name_open(path, &context)

A weights file has a header that identifies its library, and a checksum that detects damage. It holds no code.
"""

import struct
from collections.abc import Iterable, Sequence

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.library.call_block import LibraryBlock
from stepnet.compiler.targets.cpu.library.library_code import LibraryCode, function
from stepnet.compiler.targets.cpu.library.objects import OWN
from stepnet.compiler.targets.cpu.library.platforms import Platform
from stepnet.compiler.targets.cpu.library.processor_code import write_missing
from stepnet.compiler.targets.cpu.library.recipe import Recipe
from stepnet.compiler.targets.cpu.library.workspaces import CONTEXT
from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.writing.code import I32, I64, POINTER
from stepnet.compiler.targets.library import CODES, ERRORS
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass

MAGIC = b"stepnet\x01"
HEAD = struct.Struct("<8sQQQ32x")
"""The header of a weights file: magic number, identity of its library, byte count, checksum."""
FACTOR = 0x9E3779B97F4A7C15


def checksum(data: bytes) -> int:
    """Computes the 64-bit checksum of a weights file: from the last 64-bit word on, each is added and the sum
    is multiplied by `FACTOR`. data: the weights, a multiple of 8 bytes.

    >>> checksum(bytes(8)), hex(checksum((1).to_bytes(8, "little")))
    (0, '0x9e3779b97f4a7c15')
    """
    # This equals a sum of the words times powers of the factor, which NumPy computes at once.
    words = np.frombuffer(data, "<u8")
    with np.errstate(over="ignore"):
        powers = np.cumprod(np.full(len(words), FACTOR, np.uint64), dtype=np.uint64)
        return int((words * powers).sum(dtype=np.uint64))


def weights_file(weights: bytes, identity: int) -> bytes:
    """Makes a weights file: a header with a checksum and `identity`, the number by which the library knows
    its weights, then the weights.
    """
    return HEAD.pack(MAGIC, identity, len(weights), checksum(weights)) + weights


@dataclass(frozen=True)
class ContextCode:
    """Generates all functions of a C library except `run`, which `RunCode` generates. name: the prefix of the
    library's functions. block: the layout of a context. identity: a number that identifies the code that the
    weights are for. beside: the weights are in a file of their own. description: the text that the library
    returns about itself.
    """

    module: ir.Module
    platform: Platform
    name: str
    recipe: Recipe
    block: LibraryBlock
    identity: int
    beside: bool
    description: str

    def write(self) -> None:
        """Generates the library's functions besides `run`: describe, error, free, new, and open if the
        weights are in a file of their own.
        """
        base = self.platform.base
        self.write_error()
        self.write_free()
        _, code = function(self.module, base, f"{self.name}_describe", POINTER, [], public=True)
        code.ret(code.text(self.description))
        make = self.write_make()
        if not self.beside:
            _, code = function(self.module, base, f"{self.name}_new", I32, [POINTER], public=True)
            (out,) = code.function.args
            weights = ir.GlobalVariable(
                self.module, ir.ArrayType(ir.IntType(8), 0), f"{self.name}{OWN}weights"
            )
            code.ret(code.call(make, [weights, ir.Constant(POINTER, None), out]))
            return
        check = self.write_check()
        self.write_new(make, check)
        self.write_open(make, check)

    @computed_once
    def missing(self) -> tuple[ir.Function, tuple[str, ...]] | None:
        """The function that finds what the processor lacks, with its texts; None where nothing is checked."""
        if not self.platform.needs:
            return None
        name, prefix = f"{self.name}_missing", f"{self.name}{OWN}"
        return write_missing(self.module, self.platform.base, name, prefix, self.platform.needs)

    def write_error(self) -> None:
        """Generates the C function name_error(code), which returns the text of an error code. A number that
        is no error code has a text too, and that for another processor says what this one lacks.
        """
        _, code = function(self.module, self.platform.base, f"{self.name}_error", POINTER, [I32], public=True)
        code_argument = code.function.args[0]
        for number, (name, text) in enumerate(ERRORS.items()):
            if name != "PROCESSOR":
                is_code = code.icmp_signed("==", code_argument, ir.Constant(I32, number))
                code.return_when(is_code, code.text(text))
        is_other = code.icmp_signed("!=", code_argument, ir.Constant(I32, CODES["PROCESSOR"]))
        code.return_when(is_other, code.text("this is not an error code"))
        if self.missing is not None:
            lacks, texts = self.missing
            missing = code.call(lacks, [])
            for number, text in enumerate(texts, 1):
                is_missing = code.icmp_signed("==", missing, ir.Constant(I32, number))
                code.return_when(is_missing, code.text(f"{ERRORS['PROCESSOR']}: {text}"))
        code.ret(code.text(ERRORS["PROCESSOR"]))

    def write_free(self) -> None:
        """Generates the C function name_free(context), which frees a context. NULL is allowed."""
        _, code = function(
            self.module, self.platform.base, f"{self.name}_free", ir.VoidType(), [POINTER], public=True
        )
        context = code.function.args[0]
        with code.when(code.not_(code.is_null(context))):
            for name in ("arena", "own"):
                code.system("free", ir.VoidType(), code.pointer_at(context, CONTEXT[name]))
            code.system("free", ir.VoidType(), context)
        code.ret_void()

    def write_make(self) -> ir.Function:
        """Generates the internal function make(weights, own, out), which creates a context (the memory of
        calls) and stores its address at `out`, or NULL if it fails. weights: the pointer to the constants.
        own: memory to free with the context, or NULL. Its result is an error code.
        """
        base = self.platform.base
        ir_function, code = function(self.module, base, f"{self.name}_make", I32, [POINTER] * 3, public=False)
        weights, own, out = ir_function.args
        code.fail_when(code.is_null(out), "NULL")
        code.write(ir.Constant(POINTER, None), out, 8)
        if self.missing is not None:
            number = code.call(self.missing[0], [])
            code.fail_when(code.icmp_signed("!=", number, ir.Constant(I32, 0)), "PROCESSOR")
        size = code.number(self.block.contexts.bytes)
        context = code.system("aligned_alloc", POINTER, code.number(LINE), size)
        code.fail_when(code.is_null(context), "MEMORY")
        code.zero_bytes(context, size)
        code.set_word(context, CONTEXT["weights"], weights)
        code.set_word(context, CONTEXT["own"], own)
        self.block.write_table(code, context, weights)
        code.write(context, out, 8)
        code.ret(ir.Constant(I32, CODES["OK"]))
        return ir_function

    # ---- weights beside the library

    def write_check(self) -> ir.Function:
        """Generates the internal function check(head, weights), which detects wrong or damaged weights. head,
        weights: pointers to the header of a weights file, and to the weights after it. The function compares
        magic number, identity, size and checksum with the library's; its result is an error code.
        """
        ir_function, code = function(
            self.module, self.platform.base, f"{self.name}_check", I32, [POINTER, POINTER], public=False
        )
        head, weights = ir_function.args
        magic = int.from_bytes(MAGIC, "little", signed=True)
        for offset, number in ((0, magic), (8, signed(self.identity)), (16, len(self.recipe.weights))):
            other = code.icmp_signed("!=", code.word(head, offset), code.number(number))
            code.fail_when(other, "OTHER_WEIGHTS")
        total, count = code.alloca(I64), len(self.recipe.weights) // 8
        code.store(code.number(0), total)
        with code.loop(code.number(0), code.number(count)) as offset:
            word = code.read_number(weights, code.sub(code.number(count - 1), offset))
            added = code.mul(code.add(code.load(total), word), code.number(signed(FACTOR)))
            code.store(added, total)
        differs = code.icmp_signed("!=", code.load(total), code.word(head, 24))
        code.fail_when(differs, "DAMAGED_WEIGHTS")
        code.ret(ir.Constant(I32, CODES["OK"]))
        return ir_function

    def write_new(self, make: ir.Function, check: ir.Function) -> None:
        """Generates the C function name_new(weights, bytes, out), which creates a context (the memory of
        calls) from a weights file in memory. make, check: the internal functions that create a context and
        check weights.
        """
        base = self.platform.base
        arguments = [POINTER, I64, POINTER]
        _, code = function(self.module, base, f"{self.name}_new", I32, arguments, public=True)
        data, size, out = code.function.args
        self.check_pointers(code, data, out)
        file_size = code.number(HEAD.size + len(self.recipe.weights))
        code.fail_when(code.icmp_signed("!=", size, file_size), "OTHER_WEIGHTS")
        buffer = self.allocate_buffer(code)
        code.copy_bytes(buffer, data, file_size)
        self.finish_opening(code, buffer, make, check, out)

    def write_open(self, make: ir.Function, check: ir.Function) -> None:
        """Generates the C function name_open(path, out), which creates a context (the memory of calls) from a
        weights file. make, check: the internal functions that create a context and check weights.
        """
        base = self.platform.base
        _, code = function(self.module, base, f"{self.name}_open", I32, [POINTER, POINTER], public=True)
        path, out = code.function.args
        self.check_pointers(code, path, out)
        buffer = self.allocate_buffer(code)
        file = code.system("fopen", POINTER, path, code.text("rb"))
        self.fail_and_free(code, code.is_null(file), buffer, "FILE")
        # Tries to read one more byte: a longer file does not belong to this library.
        file_size = HEAD.size + len(self.recipe.weights)
        count = code.system("fread", I64, buffer, code.number(1), code.number(file_size + 1), file)
        failed = code.icmp_signed("!=", code.system("ferror", I32, file), ir.Constant(I32, 0))
        code.system("fclose", I32, file)
        self.fail_and_free(code, failed, buffer, "FILE")  # of a folder, too
        self.fail_and_free(
            code, code.icmp_signed("!=", count, code.number(file_size)), buffer, "OTHER_WEIGHTS"
        )
        self.finish_opening(code, buffer, make, check, out)

    def check_pointers(self, code: LibraryCode, given: ir.Value, out: ir.Value) -> None:
        """Writes code that returns the error code "NULL" if the pointer to the weights or to their path,
        `given`, is NULL, or if `out` is, where the pointer to the context goes. NULL is written there first,
        so that a caller may free the context after any error.
        """
        code.fail_when(code.is_null(out), "NULL")
        code.write(ir.Constant(POINTER, None), out, 8)
        code.fail_when(code.is_null(given), "NULL")

    def allocate_buffer(self, code: LibraryCode) -> ir.Value:
        """Writes the allocation of a buffer for a weights file, with room for one byte more, by which too
        long files are detected. If memory is missing, the function returns an error code. Returns the
        buffer's pointer.
        """
        size = HEAD.size + len(self.recipe.weights) + LINE
        buffer = code.system("aligned_alloc", POINTER, code.number(LINE), code.number(size))
        code.fail_when(code.is_null(buffer), "MEMORY")
        return buffer

    def fail_and_free(self, code: LibraryCode, condition: ir.Value, buffer: ir.Value, name: str) -> None:
        """Writes code that frees a buffer and returns the error `name` of `ERRORS` if a condition holds."""
        with code.when(condition):
            code.system("free", ir.VoidType(), buffer)
        code.fail_when(condition, name)

    def finish_opening(
        self, code: LibraryCode, buffer: ir.Value, make: ir.Function, check: ir.Function, out: ir.Value
    ) -> None:
        """Writes the end of `name_new` and `name_open`: checks the weights, makes the context (the memory of
        calls), returns the error code. buffer: holds the weights file, and is freed if that fails. make,
        check: the functions to call for this. out: where the pointer to the context goes. If it succeeds, the
        context owns the buffer.
        """
        weights = code.at(buffer, HEAD.size)
        result = code.alloca(I32)
        code.store(code.call(check, [buffer, weights]), result)
        ok = ir.Constant(I32, CODES["OK"])
        with code.when(code.icmp_signed("==", code.load(result), ok)):
            code.store(code.call(make, [weights, buffer, out]), result)
        with code.when(code.icmp_signed("!=", code.load(result), ok)):
            code.system("free", ir.VoidType(), buffer)
        code.ret(code.load(result))


def signed(number: int) -> int:
    """Reinterprets an unsigned 64-bit integer as signed, because LLVM's constants are signed here."""
    return number - 2**64 if number >= 2**63 else number


def public_names(name: str, beside: bool, counts: Iterable[str]) -> Sequence[str]:
    """Lists the C functions of a library, such as "gru_run". beside: with `open` for a weights file. counts:
    those that give the numbers of steps of outputs.
    """
    suffixes = "new", *(["open"] if beside else []), "run", "free", "error", "describe"
    return [*(f"{name}_{suffix}" for suffix in suffixes), *counts]
