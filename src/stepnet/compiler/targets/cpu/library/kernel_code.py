"""The tasks of one compiled plan in a call: work ahead of the steps, the steps, sums, values per sequence.

words     the plan's argument words, which all its tasks share, and the number of sequences
"""

from collections.abc import Iterable, Iterator
from typing import Any

from llvmlite import ir

from stepnet.compiler.native.spaces import SLACK
from stepnet.compiler.net.types import ROWS, Extent
from stepnet.compiler.plan.waves import Across
from stepnet.compiler.targets.cpu.library.arena import Space
from stepnet.compiler.targets.cpu.library.call_block import Key, LibraryTask, across_task
from stepnet.compiler.targets.cpu.library.library_code import LibraryCode
from stepnet.compiler.targets.cpu.library.recipe import PlanKernel
from stepnet.compiler.targets.cpu.library.workspaces import Contexts, WorkspaceOffsets
from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.running.call_block import SPACE
from stepnet.compiler.targets.cpu.running.workspace import WORD
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER
from stepnet.compiler.targets.cpu.writing.word_code import WordCode, internal


class KernelCode:
    """Makes the tasks that run one compiled part (the machine code of one plan) in a call."""

    def __init__(self, number: int, step: PlanKernel, contexts: Contexts) -> None:
        """Adds the memory that the compiled part `step` needs to the layout of a context (the memory that
        calls work in). number: its index among the recipe's operations, which tells its arrays from those of
        other parts.
        """
        self.number, self.step, self.layout, self.contexts = number, step, step.layout, contexts
        self.plan, self.needs = step.plan, step.layout.needs
        self.workspace = WorkspaceOffsets.of(step.layout, contexts)
        self.finals = [slot for slot in self.needs.finals if slot is not None]
        # Nothing reads the final memories of a part without a recurrence.
        finals = () if step.is_plain else self.layout.memories
        self.memories = [(begin, word) for begin, word, _ in finals if word >= 0]
        self.record = self.layout.strides["sequence"] if {"sequences", "ended"} & {*step.functions} else 0
        self.works_on_rows = bool(self.record or step.last_only or self.memories)

    # ---- memory

    def spaces(self) -> dict[object, Space]:
        """Returns the sizes of the arrays in a call's memory that only this compiled part uses. Their keys
        begin with the part's number: (part, "record") for values that are computed before a sequence's first
        step, (part, "output", index) for outputs that nothing else reads, and (part, node number) for final
        values and values for the work after the loop.
        """
        spaces = dict[object, Space]()
        if self.record:
            rows = {} if self.step.is_plain else {ROWS: self.record}
            spaces[self.number, "record"] = Space(rows, (SLACK + 1) * self.record)
        hidden = [slot.number for slot in (*self.finals, *self.needs.ended) if self.result_of(slot.index) < 0]
        for number in (*hidden, *self.needs.kept, *self.needs.reduced):
            spaces[self.number, number] = self.space(number)
        for index, number in enumerate(self.step.outputs):
            if number < 0:
                spaces[self.number, "output", index] = self.space(
                    self.plan.net.results[self.plan.ends.steps[index]]
                )
        return spaces

    def space(self, number: int) -> Space:
        """Returns the size of the array for a value of this part's net: for an entry per step of all
        sequences, or per sequence.

        number: the value's node number.
        """
        type_ = self.plan.net.type_of(number)
        bytes_ = type_.size * type_.itemsize
        if type_.extent != ROWS and not self.step.last_only:
            return Space({self.step.extent: bytes_})
        # The values of a part without a recurrence are the steps of one sequence.
        return Space({}, LINE + bytes_) if self.step.is_plain else Space({ROWS: bytes_})

    def result_of(self, index: int) -> int:
        """Returns the node number, in the model's net, of one of this part's results per sequence; -1 if
        nothing reads it. index: the index among these results; negative if there is no result, which gives
        -1.
        """
        return self.step.rows[index] if index >= 0 else -1

    # ---- the tasks

    def tasks(self, code: LibraryCode, name: str) -> Iterator[LibraryTask]:
        """Yields the tasks that run this compiled part, in order: the work ahead of the steps, the steps of
        all sequences, reductions over the steps of each, and the values per sequence that follow. Generates
        the functions of the first and the last in the module of `code`. name: the prefix of their names.
        """
        words, functions, offsets = self.workspace.words, self.step.functions, self.workspace.offsets
        fixed = {WORD[name]: ("context", offset) for name, offset in offsets.items()}
        fixed[WORD["constants"]] = "weights", self.step.constants
        fixed[WORD["reverse"]] = "", int(self.plan.reverse)
        fixed[WORD["last_only"]] = "", int(self.step.last_only)
        if self.works_on_rows:
            yield LibraryTask(self.write_rows(code, f"{name}_before_{self.number}", "sequences"), words)
        space = tuple(offsets[name] for name in SPACE)
        yield LibraryTask(functions["run"], words, self.sources(), fixed, space)
        yield from self.reductions(code)
        if "ended" in functions:
            yield LibraryTask(self.write_rows(code, f"{name}_after_{self.number}", "ended"), words)

    @property
    def laid(self) -> tuple[Extent, bool]:
        """The layout of the sequences over which this compiled part runs: their extent (axes such as rows and
        steps), and whether all of its values are one sequence. Parts with the same one share its tables.
        """
        return self.step.extent, self.step.is_plain

    def sources(self) -> dict[int, Key]:
        """Returns the keys of the values that each call copies to the argument words, by word: the layout of
        the sequences in lanes (slots that run one sequence after another), and the arrays.
        """
        names = "steps", "lanes", "order", "first", "lane_steps", "starts", "lengths"
        sources: dict[int, Key] = {WORD[name]: (*self.laid, name) for name in names}
        sources[WORD["block_steps"]] = *self.laid, "block_steps", self.workspace.rows
        sources[WORD["step_offsets"]] = "numbers"
        if self.works_on_rows:
            sources[self.layout.argument_count] = *self.laid, "rows"
        if self.layout.counts:
            sources[WORD["begun"]] = "begun"
        if self.record:
            sources[WORD["sequence"]] = self.number, "record"
        return sources | self.array_keys()

    def array_keys(self) -> dict[int, Key]:
        """Returns the key (a node's number, or a name) of each array that this compiled part of a C library
        reads or writes, by the index of the 64-bit argument word in which the code expects it.

        Kinds of arrays: "kept" are values of all steps that are read after the loop, "reduced" are reductions
        of such values over each sequence, and "ended" are values per sequence that are computed after the
        steps.
        """
        step, own = self.step, self.number

        def row(slot: Any) -> Key:
            """Returns the key of the array of a value per sequence: a result, or memory of this part."""
            number = self.result_of(slot.index)
            return number if number >= 0 else (own, slot.number)

        arrays: dict[str, Iterable[Key]] = {
            "inputs": step.inputs,
            "initial": ("zeros" if number < 0 else number for number in step.initial),
            "final": map(row, self.finals),
            "statics": step.statics,
            "outputs": (n if n >= 0 else (own, "output", index) for index, n in enumerate(step.outputs)),
            "kept": ((own, number) for number in self.needs.kept),
            "reduced": ((own, number) for number in self.needs.reduced),
            "ended": map(row, self.needs.ended),
        }
        words = self.layout.arguments
        every = {
            word: key for kind, keys in arrays.items() for word, key in zip(words[kind], keys, strict=True)
        }
        # The code of the steps takes NULL for zeros.
        needed = self.layout.required_arguments
        return {word: key for word, key in every.items() if key != "zeros" or word in needed}

    def reductions(self, code: LibraryCode) -> Iterator[LibraryTask]:
        """Yields the tasks of the sums, means and maxima over the steps of each sequence that this compiled
        part contains. They read inputs of the part, or values that the steps have stored in the arena (the
        memory of a call).
        """
        net, needs = self.plan.net, self.needs
        inputs = [net.inputs[index] for index in self.plan.ends.sequences]
        keys: dict[int, Key] = dict(zip(inputs, self.step.inputs, strict=True))
        keys |= {number: (self.number, number) for number in (*needs.kept, *needs.reduced)}
        for number in needs.reduced:
            node = net.nodes[number]
            source = net.type_of(node.inputs[0]).at(self.step.extent)
            across = Across("reduce", node.attributes["how"], source, node.type)
            read, made = keys[node.inputs[0]], keys[number]
            yield across_task(code, self.contexts, across, read, made, from_zero=True)

    # ---- the code

    def write_rows(self, library: LibraryCode, name: str, kind: str) -> str:
        """Generates the function of the work per sequence ahead of the steps, if `kind` is "sequences", or
        behind them, if it is "ended"; returns its name. It takes a pointer to the argument words. Ahead of
        the steps, it also fills arrays that these do not write whole.
        """
        function, code = internal(library.module, library.processor, name, I64, [POINTER])
        (words,) = function.args
        rows = code.word(words, 8 * self.layout.argument_count)
        if kind == "sequences":
            self.clear(code, words, rows)
        if kind in self.step.functions:
            first, lanes = (8 * WORD[name] for name in ("first", "lanes"))
            known = code.word(words, first), code.word(words, lanes)
            code.set_word(words, first, 0)
            code.set_word(words, lanes, rows)
            code.function_call(self.step.functions[kind], I64, [words])
            code.set_word(words, first, known[0])
            code.set_word(words, lanes, known[1])
        if kind == "sequences":
            self.copy_unchanged_memories(code, words, rows)
        code.ret(code.number(0))
        return name

    def clear(self, code: WordCode, words: ir.Value, rows: ir.Value) -> None:
        """Writes code that fills with zeros the buffers of values per sequence, and outputs of last steps.

        words: the pointer to the argument words. rows: the number of sequences.
        """
        net, cleared = self.plan.net, list[tuple[int, ir.Value, int]]()
        if self.record:
            cleared.append((WORD["sequence"], code.add(rows, code.number(SLACK)), self.record))
        if self.step.last_only:
            types = [net.type_of(net.results[index]) for index in self.plan.ends.steps]
            outputs = zip(self.layout.arguments["outputs"], types, strict=True)
            cleared += [(word, rows, type_.size * type_.itemsize) for word, type_ in outputs]
        for word, count, bytes_ in cleared:
            size = code.mul(count, code.number(bytes_))
            code.zero_bytes(code.pointer_at(words, 8 * word), size)

    def copy_unchanged_memories(self, code: WordCode, words: ir.Value, rows: ir.Value) -> None:
        """Writes code that copies the initial memories (recurrent states) of sequences without steps to their
        final ones, as the steps never write these. Missing initial memories are zeros.

        words: the pointer to the argument words. rows: the number of sequences.
        """
        if not self.memories:
            return
        given = self.array_keys()
        with code.loop(code.number(0), rows) as row:
            length = code.read_number(code.pointer_at(words, 8 * WORD["lengths"]), row)
            with code.when(code.icmp_signed("==", length, code.number(0))):
                for begin, word in self.memories:

                    def value(word: int, stride: int) -> ir.Value:
                        """Writes the pointer to the sequence's value in the array of an argument word."""
                        return code.at(code.pointer_at(words, 8 * word), code.mul(row, code.number(stride)))

                    target = value(word, begin.bytes)
                    if begin.field is not None:
                        record = value(WORD["sequence"], self.record)
                        code.copy_bytes(target, code.at(record, begin.field.offset), begin.bytes)
                    elif begin.argument in given:
                        code.copy_bytes(target, value(begin.argument, begin.bytes), begin.bytes)
                    else:
                        code.zero_bytes(target, begin.bytes)
