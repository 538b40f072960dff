"""The machine code that runs a call block; see `call_block`."""

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.call_words import PROGRESS
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.running.call_block import (
    COPY,
    DONE,
    HEAD,
    INDEX_OUTSIDE,
    NEXT,
    NO_ARRAY,
    PAUSED,
    TASK,
)
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER
from stepnet.compiler.targets.cpu.writing.word_code import WordCode


def write_call_block(processor: Processor) -> ir.Module:
    """Generates the LLVM module of the function `run_block`, which runs a call block (the tasks and array
    addresses of a prepared call) at the pointer that is its argument.
    """
    module = ir.Module("call_block")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "run_block")
    BlockCode(WordCode(function.append_basic_block("entry"), processor), function.args[0]).write()
    return module


class BlockCode:
    """Writer of the code that runs a call block: a prepared call's tasks, and its array objects."""

    def __init__(self, code: WordCode, block: ir.Value) -> None:
        """Writes loads of the first words (`HEAD`) of the call block at the pointer `block`."""
        self.code, self.block = code, block
        self.head = {name: code.read_number(block, code.number(place)) for place, name in enumerate(HEAD)}
        self.copies, self.tasks = (code.inttoptr(self.head[name], POINTER) for name in ("copies", "tasks"))

    def write(self) -> None:
        """Writes the body of the function that runs a call block. For a new call it first copies the
        addresses and resets the tasks. It runs the tasks one after the other, and returns PAUSED if one
        pauses. After the last task it returns DONE, or INDEX_OUTSIDE if the status of a task says so.
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
            code.return_when(code.icmp_signed("!=", more, zero), code.number(PAUSED))
        with code.loop(zero, self.head["task_count"]) as task:
            status = code.read(I64, code.inttoptr(self.of_task(task, "status"), POINTER), 8)
            code.store(code.or_(code.load(outside), status), outside)
        failed = code.icmp_signed("!=", code.load(outside), zero)
        code.ret(code.select(failed, code.number(INDEX_OUTSIDE), code.number(DONE)))

    def of_task(self, task: ir.Value, name: str) -> ir.Value:
        """Writes a load of the word `name`, one of `TASK`, from entry number `task` of the table of tasks."""
        place = self.code.add(
            self.code.mul(task, self.code.number(len(TASK))), self.code.number(TASK.index(name))
        )
        return self.code.read_number(self.tasks, place)

    def copy(self) -> None:
        """Writes code that copies the addresses of the elements of the call's arrays to the arguments of the
        tasks. The code returns NO_ARRAY at the first object of another type.
        """
        code = self.code
        with code.loop(code.number(0), self.head["copy_count"]) as copy:
            entry = code.at(self.copies, code.mul(copy, code.number(8 * len(COPY))))
            source, word = (code.read_number(entry, code.number(COPY.index(name))) for name in COPY)
            array = code.read_number(self.block, code.add(source, code.number(len(HEAD))))
            data = code.inttoptr(code.add(array, self.head["data_offset"]), POINTER)
            other = code.icmp_signed("!=", code.word(data, -8), self.head["array_type"])
            code.return_when(other, code.number(NO_ARRAY))
            code.write(code.word(data, 0), code.inttoptr(word, POINTER), 8)

    def reset(self) -> None:
        """Writes code that resets the progress and the status of all tasks; one thread runs each."""
        code = self.code
        with code.loop(code.number(0), self.head["task_count"]) as task:
            write_fresh(code, *(code.inttoptr(self.of_task(task, name), POINTER) for name in TASK[2:]))


def write_fresh(code: WordCode, progress: ir.Value, status: ir.Value) -> None:
    """Writes code that resets the progress and the status of a kernel, which one thread then runs. Libraries
    for C do the same.

    progress, status: the pointers to these words.
    """
    for place, name in enumerate(PROGRESS):
        code.set_word(progress, 8 * place, int(name == "threads"))
    code.set_word(status, 0, 0)
