"""The call block of a library: its tasks as values, and the code that lays it out in a context and fills it.

    copies     (value, word), ...            in the library: which words each value of a call is copied to
    tasks      (function, words), ...        in the context, written when it is made
    spaces     (progress, status), ...       the same
    block      head | values                 in the context; each call writes the values

The function that runs a block is that of prepared calls in Python (`call_block_code.py`).
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import field
from struct import Struct

from llvmlite import ir

from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.waves import Across
from stepnet.compiler.targets.cpu.library.library_code import LibraryCode
from stepnet.compiler.targets.cpu.library.workspaces import Contexts
from stepnet.compiler.targets.cpu.running.across import WORD, WORDS, function_of, numbers_of
from stepnet.compiler.targets.cpu.running.across_code import across_function
from stepnet.compiler.targets.cpu.running.call_block import (
    COPY,
    FRESH,
    HEAD,
    INDEX_OUTSIDE,
    NEXT,
    SPACE,
    TASK,
)
from stepnet.compiler.targets.cpu.running.call_block_code import block_function
from stepnet.compiler.values.records import dataclass

Key = Hashable
"""The key of a value of a call: the node number of a value of the net, or what the number or array is for."""


@dataclass(frozen=True)
class LibraryTask:
    """A task of a call. function: its name in the library. words: the offset of its argument words in a
    context (the memory of calls). sources: the keys of the values that each call copies, by word. fixed: the
    words that all calls of a context have in common: "context" or "weights" and an offset there, or "" and a
    number. space: the offsets of the words of the progress and of the status of a kernel, which each call
    resets; empty for a task that is no kernel.
    """

    function: str
    words: int
    sources: Mapping[int, Key] = field(default_factory=dict[int, Key])
    fixed: Mapping[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])
    space: tuple[int, ...] = ()


def across_task(
    code: LibraryCode, contexts: Contexts, across: Across, source: Key, result: Key, from_zero: bool = False
) -> LibraryTask:
    """Makes the task of an operation across extents, such as a sum over steps, and generates its function in
    the module of `code`.

    contexts: the memory of calls, to which the task's argument words are added. source, result: the keys of
    its values. from_zero: whether sums begin at 0, and not at the first step's value.
    """
    function = across_function(code.module, code.processor, *function_of(across), from_zero=from_zero)
    (*_, read), (*_, made) = across.extents
    rows, first, last = "rows", ("offsets", read), ("lengths", read)
    if across.source.extent == CONST:
        # A constant is repeated as the only row, which has all entries of the result.
        rows, last = "one", ("count", across.result.extent)
    places = rows, first, last, "numbers", ("offsets", made), ("lengths", made)
    sources = dict[int, Key](enumerate((source, result, *places)))
    fixed = {word: ("", number) for word, number in enumerate(numbers_of(across), len(sources))}
    if across.in_place:  # a new context has zeros
        fixed[WORD["zeros"]] = "context", contexts.take(across.source.size * across.source.itemsize)
    return LibraryTask(function.name, contexts.take(8 * len(WORDS)), sources, fixed)


class LibraryBlock:
    """The call block of a library, which has all tasks of a call. keys: the keys of the values of a call, in
    the order in which they lie in the block.
    """

    def __init__(self, tasks: Iterable[LibraryTask], contexts: Contexts) -> None:
        """Assigns offsets in a context (the memory of calls) to the call block (the words that describe a
        call), with a word for each value that the tasks read; to the table of the tasks; and to the table of
        the words that each call resets.
        """
        self.tasks, self.contexts = list(tasks), contexts
        self.keys = list(dict.fromkeys(key for task in self.tasks for key in task.sources.values()))
        self.start = contexts.take(8 * (len(HEAD) + len(self.keys)))
        self.spaces = [task.space for task in self.tasks if task.space]
        self.task_table = contexts.take(8 * len(TASK) * len(self.tasks))
        self.space_table = contexts.take(8 * len(SPACE) * len(self.spaces))

    def write_table(self, code: LibraryCode, context: ir.Value, weights: ir.Value) -> None:
        """Writes code that fills those words of a new context (the memory of calls) that all of its calls
        have in common: the head of the call block, its tasks, and their fixed argument words. The context's
        bytes are zeros before. context, weights: the pointers to it and to the weights.
        """
        block, bases = code.at(context, self.start), {"context": context, "weights": weights}
        place = {key: number for number, key in enumerate(self.keys)}
        copies = [
            (place[key], task.words + 8 * word - self.start)
            for task in self.tasks
            for word, key in task.sources.items()
        ]
        pack = Struct(f"<{len(COPY)}q").pack
        head = (code.data(b"".join(pack(*copy) for copy in copies)), len(copies))
        tables = code.at(context, self.task_table), len(self.tasks), code.at(context, self.space_table)
        for number, value in enumerate((*head, *tables, len(self.spaces))):
            code.set_word(block, 8 * number, value)
        for number, offset in enumerate(offset for space in self.spaces for offset in space):
            code.set_word(context, self.space_table + 8 * number, code.at(context, offset))
        for number, task in enumerate(self.tasks):
            entry = code.at(context, self.task_table + 8 * len(TASK) * number)
            for word, value in enumerate((code.address(task.function), code.at(context, task.words))):
                code.set_word(entry, 8 * word, value)
            for word, (base, value) in task.fixed.items():
                code.set_word(context, task.words + 8 * word, code.at(bases[base], value) if base else value)

    def write_run(
        self, code: LibraryCode, name: str, context: ir.Value, values: Mapping[Key, ir.Value]
    ) -> ir.Value:
        """Writes code that fills the call block (the table of a call's values, and its tasks) with the values
        of a call, and runs its tasks. Returns whether an integer is outside the rows of a parameter that it
        indexes.
        name: the name of the function that runs a block. context: the pointer to the memory of calls, which
            has the block. values: the number or pointer of each value of the call, by its key.
        """
        block = code.at(context, self.start)
        for number, key in enumerate(self.keys):
            code.set_word(block, 8 * (len(HEAD) + number), values[key])
        code.set_word(block, 8 * NEXT, FRESH)
        run = block_function(code.module, code.processor, name, of_objects=False)
        return code.icmp_signed("==", code.call(run, [block]), code.number(INDEX_OUTSIDE))
