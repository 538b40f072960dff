"""The machine code that runs a call block; see `call_block`."""

from collections.abc import Sequence

from llvmlite import ir

from stepnet.compiler.native.call_words import PROGRESS
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.running.call_block import (
    ALLOCATED,
    COPY,
    DONE,
    FAILED,
    FRESH,
    HEAD,
    INDEX_OUTSIDE,
    LIST,
    NEXT,
    NO_ARRAY,
    PAUSED,
    SPACE,
    TASK,
)
from stepnet.compiler.targets.cpu.running.new_arrays import NEW
from stepnet.compiler.targets.cpu.writing.code import I32, I64, POINTER
from stepnet.compiler.targets.cpu.writing.word_code import WordCode, internal


def write_call_block(processor: Processor) -> ir.Module:
    """Generates the LLVM module of two functions that run a call block (the tasks of a prepared call, and the
    list of its array objects): `run_block` at the pointer that is its argument, and `run_list`, which Python
    calls with the list.
    """
    module = ir.Module("call_block")
    module.triple = ""
    run_block = block_function(module, processor, "run_block", of_objects=True)
    run_block.linkage = ""
    list_function(module, processor, run_block)
    return module


def list_function(module: ir.Module, processor: Processor, run_block: ir.Function) -> None:
    """Generates the function `run_list` by the interface of Python in C: a built-in function that begins a
    call on a list of arrays, to which it adds the new ones, and returns the result of `run_block` as an
    `int`. It is bound to the address of the block, and lets other threads of Python run meanwhile.
    """
    add, code = internal(module, processor, "add_arrays", I64, [POINTER, POINTER])
    write_additions(code, *add.args)
    function, code = internal(module, processor, "run_list", POINTER, [POINTER, POINTER])
    function.linkage = ""
    block, objects = (
        code.call_at(code.address("PyLong_AsVoidPtr"), POINTER, [function.args[0]]),
        function.args[1],
    )
    result = code.alloca(I64)
    code.store(code.call(add, [block, objects]), result)
    code.return_when(
        code.icmp_signed("==", code.load(result), code.number(FAILED)), ir.Constant(POINTER, None)
    )
    with code.when(code.icmp_signed("==", code.load(result), code.number(DONE))):
        code.set_word(block, 8 * LIST, objects)
        code.set_word(block, 8 * NEXT, FRESH)
        thread = code.call_at(code.address("PyEval_SaveThread"), POINTER, [])
        code.store(code.call(run_block, [block]), result)
        code.call_at(code.address("PyEval_RestoreThread"), ir.VoidType(), [thread])
    code.ret(code.call_at(code.address("PyLong_FromLongLong"), POINTER, [code.load(result)]))


def write_additions(code: WordCode, block: ir.Value, objects: ir.Value) -> None:
    """Writes the body of a function that allocates the new arrays of a call, and appends them to the list of
    its arrays, `objects`, unless this has them. It returns DONE, NO_ARRAY if one is large, or FAILED, with an
    exception of Python.
    """
    table, count, given = (code.word(block, 8 * (len(HEAD) + place)) for place in range(len(ALLOCATED)))
    size = code.word(code.at(objects, code.word(block, 8 * HEAD.index("items_offset"))), -8)
    code.return_when(code.icmp_signed("!=", size, given), code.number(DONE))
    with code.loop(code.number(0), count) as place:
        entry = code.at(code.inttoptr(table, POINTER), code.mul(place, code.number(8 * len(NEW))))
        make, dtype, axes, sizes, rows, most = (code.word(entry, 8 * word) for word in range(len(NEW)))
        number, pointers = (
            code.word(code.inttoptr(rows, POINTER)),
            (code.inttoptr(each, POINTER) for each in (dtype, sizes)),
        )
        code.return_when(code.less(most, number), code.number(NO_ARRAY))
        kind, own = pointers
        code.set_word(own, 0, number)
        code.call_at(code.address("Py_IncRef"), ir.VoidType(), [kind])  # the function takes a reference
        arguments = code.trunc(axes, I32), own, kind, ir.Constant(I32, 0)
        array = code.call_at(make, POINTER, arguments)
        code.return_when(
            code.icmp_signed("==", code.ptrtoint(array, I64), code.number(0)), code.number(FAILED)
        )
        failed = code.call_at(code.address("PyList_Append"), I32, [objects, array])
        code.call_at(code.address("Py_DecRef"), ir.VoidType(), [array])
        code.return_when(code.icmp_signed("!=", failed, ir.Constant(I32, 0)), code.number(FAILED))
    code.ret(code.number(DONE))


def block_function(module: ir.Module, processor: Processor, name: str, of_objects: bool) -> ir.Function:
    """Generates the function that runs a call block; returns it. A call block is memory with the tasks of a
    prepared call and, for each call, the values that the tasks' arguments get, such as addresses of arrays.
    The function takes the pointer to it. Libraries for C have one too.

    of_objects: whether these values are array objects in a list of Python, from which the code reads the
        addresses. In a library's block they are the addresses themselves, and the arguments to set are given
        by their offset in the block, not by pointer.
    """
    function, code = internal(module, processor, name, I64, [POINTER])
    BlockCode(code, function.args[0], of_objects).write()
    return function


class BlockCode:
    """Writer of the code that runs a call block: a prepared call's tasks, and the values of their words."""

    def __init__(self, code: WordCode, block: ir.Value, of_objects: bool) -> None:
        """Prepares to write the code that runs a call block (the tasks of a prepared call, and the values of
        a call), and writes loads of its first words, `HEAD`. block: the pointer to it. of_objects: whether
        the values are array objects in a list of Python, not addresses.
        """
        self.code, self.block, self.of_objects = code, block, of_objects
        self.head = {name: code.read_number(block, code.number(place)) for place, name in enumerate(HEAD)}
        self.copies, self.tasks, self.spaces = (
            code.inttoptr(self.head[name], POINTER) for name in ("copies", "tasks", "spaces")
        )

    def write(self) -> None:
        """Writes the body of the function that runs a call block (the words that describe a prepared call).
        For a new call it first copies the addresses and resets the workspaces. It runs the tasks one after
        the other, and returns PAUSED if one pauses. After the last task it returns DONE, or INDEX_OUTSIDE if
        the status of a workspace says so. A workspace is the scratch memory of a compiled part.
        """
        code, zero = self.code, self.code.number(0)
        outside = code.alloca(I64)
        code.store(zero, outside)
        with code.when(code.icmp_signed("<", self.head["next"], zero)):
            self.copy()
            self.reset()
        first = code.select(code.icmp_signed("<", self.head["next"], zero), zero, self.head["next"])
        with code.loop(first, self.head["task_count"]) as task:
            code.write_number(task, self.block, code.number(NEXT))
            argument = code.inttoptr(self.of_task(task, "task"), POINTER)
            more = code.call_at(self.of_task(task, "function"), I64, [argument])
            code.return_when(code.less(more, zero), code.number(INDEX_OUTSIDE))
            code.return_when(code.icmp_signed("!=", more, zero), code.number(PAUSED))
        with code.loop(zero, self.head["space_count"]) as space:
            status = code.read(I64, self.of_space(space, "status"), 8)
            code.store(code.or_(code.load(outside), status), outside)
        failed = code.icmp_signed("!=", code.load(outside), zero)
        code.ret(code.select(failed, code.number(INDEX_OUTSIDE), code.number(DONE)))

    def of_task(self, task: ir.Value, name: str) -> ir.Value:
        """Writes a load of the word `name`, one of `TASK`, from entry number `task` of the table of tasks."""
        return self.entry(self.tasks, task, TASK, name)

    def of_space(self, space: ir.Value, name: str) -> ir.Value:
        """Writes a load of the pointer `name`, one of `SPACE`, of a workspace (the scratch memory of a
        compiled part): from entry number `space` of the table of workspaces.
        """
        return self.code.inttoptr(self.entry(self.spaces, space, SPACE, name), POINTER)

    def entry(self, table: ir.Value, number: ir.Value, names: Sequence[str], name: str) -> ir.Value:
        """Writes a load of the 64-bit word `name` of entry number `number` of a table of the call block (the
        words that describe a prepared call). table: the pointer to it. names: the names of an entry's words,
        in order.
        """
        code = self.code
        place = code.add(code.mul(number, code.number(len(names))), code.number(names.index(name)))
        return code.read_number(table, place)

    def copy(self) -> None:
        """Writes code that copies the call's values, such as the addresses of the elements of its arrays, to
        the arguments of the tasks. The code returns NO_ARRAY at the first object of another type.
        """
        code, values = self.code, self.code.at(self.block, 8 * len(HEAD))
        if self.of_objects:
            values = code.inttoptr(code.add(self.head["list"], self.head["items_offset"]), POINTER)
            values = code.pointer_at(values)
        with code.loop(code.number(0), self.head["copy_count"]) as copy:
            source, word = (self.entry(self.copies, copy, COPY, name) for name in COPY)
            value = code.read_number(values, source)
            if self.of_objects:
                data = code.inttoptr(code.add(value, self.head["data_offset"]), POINTER)
                other = code.icmp_signed("!=", code.word(data, -8), self.head["array_type"])
                code.return_when(other, code.number(NO_ARRAY))
                value, target = code.word(data, 0), code.inttoptr(word, POINTER)
            else:
                target = code.at(self.block, word)
            code.write(value, target, 8)

    def reset(self) -> None:
        """Writes code that resets, before a run, the counts of finished work and the status word of every
        workspace (scratch memory of a compiled part).
        """
        code = self.code
        with code.loop(code.number(0), self.head["space_count"]) as space:
            progress, status = (self.of_space(space, name) for name in SPACE)
            for place, name in enumerate(PROGRESS):
                code.set_word(progress, 8 * place, int(name == "threads"))
            code.set_word(status, 0, 0)
