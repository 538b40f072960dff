"""The machine code that reads the tensors of a call from their objects; see `tensors`."""

from collections.abc import Sequence

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.running.call_block import DONE, FRESH, LIST, NEXT, NO_ARRAY
from stepnet.compiler.targets.cpu.running.tensors import DLTENSOR, GAP, TABLE, TENSOR, VALUE
from stepnet.compiler.targets.cpu.writing.code import I32, I64, POINTER
from stepnet.compiler.targets.cpu.writing.word_code import WordCode, internal
from stepnet.compiler.values.lending import ON_CPU, ROOM


def write_tensors(processor: Processor) -> ir.Module:
    """Generates the LLVM module of two built-in functions of Python, by its interface in C: `read_tensors` of
    a list of tensors, and `run_tensors`, which then runs a call block, and lets other threads run meanwhile.
    Both are bound to the address of the table of tensors.
    """
    module = ir.Module("tensors")
    module.triple = ""
    function, code = internal(module, processor, "read", I64, [POINTER, POINTER])
    TensorCode(code, *function.args).write()
    for name in ("read_tensors", "run_tensors"):
        write_built_in(module, processor, name, function)
    return module


def write_built_in(module: ir.Module, processor: Processor, name: str, read: ir.Function) -> None:
    """Generates the built-in function `name`, which calls `read`, and runs the block if its name says so."""
    function, code = internal(module, processor, name, POINTER, [POINTER, POINTER])
    function.linkage = ""
    table = code.call_at(code.address("PyLong_AsVoidPtr"), POINTER, [function.args[0]])
    result = code.alloca(I64)
    code.store(code.call(read, [table, function.args[1]]), result)
    if name == "run_tensors":
        with code.when(code.icmp_signed("==", code.load(result), code.number(DONE))):
            thread = code.call_at(code.address("PyEval_SaveThread"), POINTER, [])
            block = code.pointer_at(table, 8 * TABLE.index("block"))
            code.set_word(block, 8 * LIST, code.word(table, 8 * TABLE.index("list")))
            code.set_word(block, 8 * NEXT, FRESH)
            code.store(code.call_at(code.word(table, 8 * TABLE.index("run")), I64, [block]), result)
            code.call_at(code.address("PyEval_RestoreThread"), ir.VoidType(), [thread])
    code.ret(code.call_at(code.address("PyLong_FromLongLong"), POINTER, [code.load(result)]))


class TensorCode:
    """Writer of the code that reads tensors: it returns `NO_ARRAY` at the first that lends no memory."""

    def __init__(self, code: WordCode, table: ir.Value, objects: ir.Value) -> None:
        """Prepares to write the code, and writes loads of the table's words. objects: the pointer to the list
        of the tensor objects.
        """
        self.code = code
        self.words = {name: code.word(table, 8 * place) for place, name in enumerate(TABLE)}
        items = code.at(objects, self.words["items_offset"])
        self.count, self.items = code.word(items, -8), code.pointer_at(items)
        self.lent = code.stack_memory(8 * (len(DLTENSOR) + 2 * ROOM), 8)

    def write(self) -> None:
        """Writes the body of the function: it reads all tensors, writes the addresses of the values to their
        records, and sets gaps to zero.
        """
        code, zero = self.code, self.code.number(0)
        self.refuse(code.icmp_signed("!=", self.count, self.words["tensor_count"]))
        with code.loop(zero, self.words["tensor_count"]) as place:
            self.read(place)
        with code.loop(zero, self.words["value_count"]) as place:
            tensor, start = self.entry("values", place, VALUE)
            record = code.add(code.mul(place, code.number(2)), code.number(1))
            self.put(record, self.begin_of(tensor, start))
        with code.loop(zero, self.words["gap_count"]) as place:
            tensor, start, count = self.entry("gaps", place, GAP)
            code.zero_bytes(code.inttoptr(self.begin_of(tensor, start), POINTER), count)
        code.ret(code.number(DONE))

    def read(self, place: ir.Value) -> None:
        """Writes code that stores the begin of tensor number `place`, or of the memory in place of None."""
        code = self.code
        object_ = code.read_number(self.items, place)
        begin = code.mul(place, code.number(8 * len(TENSOR)))
        row = code.at(code.inttoptr(self.words["tensors"], POINTER), begin)
        _, instead, form, axes, sizes = (code.word(row, 8 * index) for index in range(len(TENSOR)))
        code.set_word(row, 0, instead)
        with code.when(code.icmp_signed("!=", object_, self.words["none"])):
            self.ask(object_)
            data, device, own, *arrays, start = (
                code.word(self.lent, 8 * index) for index in range(len(DLTENSOR))
            )
            kind = code.and_(device, code.number(2**32 - 1))
            self.refuse(code.icmp_signed("!=", kind, code.number(ON_CPU)))
            self.refuse(code.icmp_signed("!=", own, form))
            self.refuse(code.icmp_unsigned("<", data, self.words["least"]))
            known, *given = (code.inttoptr(each, POINTER) for each in (sizes, *arrays))
            with code.loop(code.number(0), axes) as axis:
                self.check(known, given, axis)
            code.set_word(row, 0, code.add(data, start))
        self.refuse(code.icmp_signed("==", code.word(row, 0), code.number(0)))

    def ask(self, object_: ir.Value) -> None:
        """Writes code that has the framework describe a tensor object, if it is of one of the two classes."""
        code = self.code
        tensor = code.inttoptr(object_, POINTER)
        kind = code.word(code.at(tensor, self.words["kind_offset"]))
        others = (code.icmp_signed("!=", kind, self.words[name]) for name in ("kind", "other_kind"))
        self.refuse(code.and_(*others))
        result = code.call_at(self.words["read"], I32, [tensor, self.lent])
        failed = code.icmp_signed("!=", result, ir.Constant(I32, 0))
        with code.when(failed):
            code.call_at(code.address("PyErr_Clear"), ir.VoidType(), [])
        self.refuse(failed)

    def check(self, known: ir.Value, given: Sequence[ir.Value], axis: ir.Value) -> None:
        """Writes code that refuses a tensor of another size or stride along an axis than is known.

        known: the pointer to the sizes and strides. given: those to the tensor's own.
        """
        code, first = self.code, self.code.mul(axis, self.code.number(2))
        size, stride = (code.read_number(known, code.add(first, code.number(place))) for place in range(2))
        own_size, own_stride = (code.read_number(each, axis) for each in given)
        is_any = code.icmp_signed("==", stride, code.number(-1))
        self.refuse(code.icmp_signed("!=", size, own_size))
        self.refuse(code.and_(code.not_(is_any), code.icmp_signed("!=", stride, own_stride)))

    def refuse(self, condition: ir.Value) -> None:
        """Writes code that returns `NO_ARRAY` if the condition is true."""
        self.code.return_when(condition, self.code.number(NO_ARRAY))

    def entry(self, name: str, place: ir.Value, words: Sequence[str]) -> list[ir.Value]:
        """Writes loads of the words of entry number `place` of the table `name`."""
        code, table = self.code, self.code.inttoptr(self.words[name], POINTER)
        first = code.mul(place, code.number(len(words)))
        return [code.read_number(table, code.add(first, code.number(index))) for index in range(len(words))]

    def begin_of(self, tensor: ir.Value, start: ir.Value) -> ir.Value:
        """Writes the sum of the address of a tensor's numbers, by its number, and a start in bytes."""
        code = self.code
        words = code.mul(tensor, code.number(len(TENSOR)))
        return code.add(code.read_number(code.inttoptr(self.words["tensors"], POINTER), words), start)

    def put(self, word: ir.Value, value: ir.Value) -> None:
        """Writes a store of a value to a word of the records."""
        self.code.write_number(value, self.code.inttoptr(self.words["records"], POINTER), word)
