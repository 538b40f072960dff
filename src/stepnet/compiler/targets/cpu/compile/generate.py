"""The LLVM module of a lowered plan: its functions `run`, `sequences`, `ended` and `totals`."""

from dataclasses import replace

from llvmlite import ir

from stepnet.compiler.native.call_words import WORDS
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.compile.compiled import Layout
from stepnet.compiler.targets.cpu.emit.block import write_run
from stepnet.compiler.targets.cpu.emit.emit import emit
from stepnet.compiler.targets.cpu.emit.stage import StageCode, StageRows
from stepnet.compiler.targets.cpu.lower.lowered import Lowered, RowWork
from stepnet.compiler.targets.cpu.lower.needs import Needs
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.records import Field
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code


def llvm_module(program: Lowered, processor: Processor) -> ir.Module:
    """Generates the LLVM module of a plan, lowered to loops over memory, for a processor."""
    module = ir.Module("stepnet")
    module.triple = ""
    write_functions(module, program, processor)
    return module


def layout_of(plan: Plan, program: Lowered, processor: Processor) -> Layout:
    """Describes the machine code of a plan (which operation of a net runs when) for its callers: which
    arguments and memory it needs.

    program: the plan, lowered to loops for a processor.
    """
    return Layout(
        Needs.of(plan),
        program.program.memories,
        replace(program.constants, known={}),
        program.program.strides,
        processor.vector_bytes,
        program.arguments,
        program.required_arguments,
        () if program.sequence is None else tuple(word for word, _ in program.sequence.inputs),
        program.program.index is not None,
        program.load,
        program.program.axes,
        program.program.inner_arrays,
    )


def write_functions(
    module: ir.Module, program: Lowered, processor: Processor, prefix: str = ""
) -> tuple[str, ...]:
    """Writes the functions of a plan that is lowered (a part's operations, as loops over values in memory)
    into a module; returns their names, without the prefix that they have in the module. run: runs the
    sequences of a call. sequences, ended: compute values once per sequence, ahead of the loop and after it.
    totals: computes functions of totals (values over all rows). Those without work are left out.
    """
    write_run(module, prefix, program.program, processor)
    works = {"sequences": program.sequence, "ended": program.ended, "totals": program.totals}
    for name, work in works.items():
        if work is not None:
            write_rows(module, prefix + name, work, program, processor)
    return "run", *(name for name, work in works.items() if work is not None)


def write_rows(module: ir.Module, name: str, work: RowWork, program: Lowered, processor: Processor) -> None:
    """Writes a function that computes values once per sequence, ahead of the loop or after it, in the record
    of each sequence (the memory with its values), or functions of totals (values over all sequences) in a
    single record. The function's arguments `first` and `lanes` say for which sequences: the first one, and
    how many. Its result is 0: a task of a call is done.

    name: the name of the function in the module. work: the loops to write, and the arrays to copy in and out.
    program: all loops of the model's code, with the layout of the records.
    """
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), name)
    code = Code(function.append_basic_block("entry"), processor)

    def argument(index: int) -> ir.Value:
        """Writes a load of the argument at a position."""
        return code.read(I64, code.at(function.args[0], 8 * index), 8)

    def pointer(name: str) -> ir.Value:
        """Writes a load of the argument `name` as a pointer."""
        return code.inttoptr(argument(WORDS.index(name)), POINTER)

    strides = program.program.strides
    count, first = argument(WORDS.index("lanes")), argument(WORDS.index("first"))
    records = code.at(pointer("sequence"), code.mul(first, code.number(strides[work.record])))
    rows = StageRows({work.record: records}, strides, count)

    def copy(copies: tuple[tuple[int, Field], ...], out: bool) -> None:
        """Writes copies between arrays of the call and fields of each sequence's record (its values in
        memory).

        copies: for each copy, the position of the argument that points to the array, and the field (place in
        the record).
        out: whether to copy from the fields to the arrays.
        """
        arrays = [
            (
                code.at(code.inttoptr(argument(index), POINTER), code.mul(first, code.number(field.bytes))),
                field,
            )
            for index, field in copies
        ]
        with code.loop(code.number(0), count) as row:
            for array, field in arrays:
                outside = code.at(array, code.mul(row, code.number(field.bytes)))
                inside = code.at(rows.at(code, work.record, row), field.offset)
                target, source = (outside, inside) if out else (inside, outside)
                code.copy_bytes(target, source, field.bytes)

    copy(work.inputs, out=False)
    one, zero = code.number(1), code.number(0)
    stage = StageCode(
        code, work.net, rows, pointer("constants"), pointer("status"), zero, one, program.program.width
    )
    for loops in work.loops:
        for loop in loops:
            emit(stage, loop)
    if work.outputs:
        copy(work.outputs, out=True)
    code.ret(zero)
