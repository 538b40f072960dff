"""Generates the call of one compiled plan within `run`: argument words, work per sequence, steps and sums."""

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from stepnet.build.arena import Space
from stepnet.build.library_code import LibraryCode
from stepnet.build.recipe import PlanKernel
from stepnet.build.workspaces import WorkspaceOffsets
from stepnet.compiler.net.types import ROWS
from stepnet.compiler.plan.waves import Across
from stepnet.compiler.targets.cpu.machine.call_words import WORDS
from stepnet.compiler.targets.cpu.running.across import function_of, numbers_of
from stepnet.compiler.targets.cpu.running.across_code import across_function
from stepnet.compiler.targets.cpu.running.call_block_code import write_fresh
from stepnet.compiler.targets.cpu.running.lengths import LAID
from stepnet.compiler.targets.cpu.running.workspace import SLACK
from stepnet.compiler.targets.cpu.writing.code import I64
from stepnet.compiler.targets.packed import PIECES

WORD = {name: 8 * index for index, name in enumerate(WORDS)}


@dataclass(frozen=True)
class LayoutPointers:
    """Pointers to the layout of a call's sequences: where each begins and in which lane (slot that runs one
    after another) it runs. starts, lengths: the arrays of sequences' starts and lengths. laid: the result of
    `lay`, at the offsets `LAID`. rows: the number of sequences.
    """

    starts: ir.Value
    lengths: ir.Value
    laid: ir.Value
    rows: ir.Value


class KernelCode:
    """Generates the call of one compiled part (the machine code of one plan) in `run`."""

    def __init__(self, number: int, step: PlanKernel, workspace: WorkspaceOffsets) -> None:
        """Reads which memory the compiled part `step` needs. number: its index among the recipe's operations,
        which tells its arrays from those of other parts. workspace: the offsets of its memory in a context
        (the memory that calls work in).
        """
        self.number, self.step, self.workspace, self.layout = number, step, workspace, step.layout
        plan, needs = step.plan, step.layout.needs
        self.plan, self.needs = plan, needs
        self.finals = [slot for slot in needs.finals if slot is not None]
        self.record = self.layout.strides["sequence"] if {"sequences", "ended"} & {*step.functions} else 0

    # ---- memory

    def spaces(self) -> dict[object, Space]:
        """Returns the sizes of the arrays in a call's memory that only this compiled part uses. Their keys
        begin with the part's number: (part, "record") for values that are computed before a sequence's first
        step, (part, "output", index) for outputs that nothing else reads, and (part, node number) for final
        values and values for the work after the loop.
        """
        spaces = dict[object, Space]()
        if self.record:
            more = SLACK + (PIECES if self.step.plain else 0)
            spaces[self.number, "record"] = Space(per_row=self.record, fixed=more * self.record)
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
        """Returns the size of the array for a value of this part's net in every step, or only one per
        sequence. number: the value's node number.
        """
        type_ = self.plan.net.type_of(number)
        bytes_ = type_.size * type_.itemsize
        by_row = type_.extent == ROWS or self.step.last_only
        # The values of a part without a recurrence are laid out as sequences, with one row for each.
        fixed = PIECES * bytes_ if self.step.plain else 0
        steps = bytes_ if self.step.plain != "rows" else 0
        return Space(0 if by_row else steps, bytes_ if by_row or self.step.plain == "rows" else 0, 64 + fixed)

    def result_of(self, index: int) -> int:
        """Returns the node number, in the model's net, of one of this part's results per sequence; -1 if
        nothing reads it. index: the index among these results; negative if there is no result, which gives
        -1.
        """
        return self.step.rows[index] if index >= 0 else -1

    # ---- the code

    def write(self, run: Any, status: ir.Value) -> None:
        """Writes the code that runs this part, into the function `run`. run: the `RunCode`, whose arrays and
        values the part reads and writes. status: a pointer to a word, which the code sets if an integer is
        outside the rows of a parameter that it indexes.
        """
        code: LibraryCode = run.code
        self.run, self.code, self.laid = run, code, run.laid[self.step.plain]
        self.words = code.at(run.context, self.workspace.words)
        self.lanes = code.word(self.laid.laid, LAID["lanes"])
        self.arrays = self.array_words()
        for word, pointer in self.arrays.items():
            code.set_word(self.words, 8 * word, pointer)
        status_word = code.at(run.context, self.workspace.offsets["status"])
        write_fresh(code, code.at(run.context, self.workspace.offsets["progress"]), status_word)
        if self.record:
            record = run.arena[self.number, "record"]
            size = code.mul(code.add(self.laid.rows, code.number(SLACK)), code.number(self.record))
            code.zero_bytes(record, size)
            self.set_argument("sequence", record)
        if self.step.last_only:
            for number, word in zip(self.step.outputs, self.layout.arguments["outputs"], strict=True):
                assert number >= 0
                type_ = run.model.net.type_of(number)
                size = code.mul(self.laid.rows, code.number(type_.size * type_.itemsize))
                code.zero_bytes(self.arrays[word], size)
        self.call_per_sequence("sequences")
        self.copy_unchanged_memories()
        self.steps()
        self.reduce()
        self.call_per_sequence("ended")
        code.store(code.or_(code.load(status), code.word(status_word)), status)

    def set_argument(self, name: str, value: "ir.Value | int") -> None:
        """Writes code that stores `value` as the argument called `name` of the compiled part."""
        self.code.set_word(self.words, WORD[name], value)

    def array_words(self) -> dict[int, ir.Value]:
        """Returns the pointer to each array that the compiled part reads or writes, by the index of the
        64-bit argument word in which the code expects it.

        Kinds of arrays: "kept" are values of all steps that are read after the loop, "reduced" are reductions
        of such values over each sequence, and "ended" are values per sequence that are computed after the
        steps.
        """
        run, step, words = self.run, self.step, self.layout.arguments
        zeros = run.arena["zeros"]

        def row(slot: Any) -> ir.Value:
            """Returns the pointer to the array of a value per sequence: a result, or memory of this part."""
            number = self.result_of(slot.index)
            return run.values[number] if number >= 0 else run.arena[self.number, slot.number]

        outputs = [
            run.values[number] if number >= 0 else run.arena[self.number, "output", index]
            for index, number in enumerate(step.outputs)
        ]
        arrays: dict[str, list[ir.Value]] = {
            "inputs": [run.values[number] for number in step.inputs],
            "initial": [zeros if number < 0 else run.values[number] for number in step.initial],
            "final": [row(slot) for slot in self.finals],
            "statics": [run.values[number] for number in step.statics],
            "outputs": outputs,
            "kept": [run.arena[self.number, number] for number in self.needs.kept],
            "reduced": [run.arena[self.number, number] for number in self.needs.reduced],
            "ended": [row(slot) for slot in self.needs.ended],
        }
        addresses = dict[int, ir.Value]()
        for kind, pointers in arrays.items():
            addresses |= dict(zip(words[kind], pointers, strict=True))
        return addresses

    def call_per_sequence(self, function: str) -> None:
        """Writes a call of the compiled part's function "sequences" or "ended", which computes values once
        per sequence before or after the steps, if it has one.
        """
        name = self.step.functions.get(function)
        if name is not None:
            self.set_argument("first", 0)
            self.set_argument("lanes", self.laid.rows)
            self.code.function_call(name, ir.VoidType(), [self.words])

    def copy_unchanged_memories(self) -> None:
        """Writes code that copies the initial memories of sequences without steps to their final ones, as the
        steps never write these. Missing initial memories are zeros.
        """
        code = self.code
        pairs = [(begin, word) for begin, word, _ in self.layout.memories if word >= 0]
        if not pairs:
            return
        with code.loop(code.number(0), self.laid.rows) as row:
            empty = code.icmp_signed("==", code.read_number(self.laid.lengths, row), code.number(0))
            with code.when(empty):
                for begin, word in pairs:
                    target = code.at(self.arrays[word], code.mul(row, code.number(begin.bytes)))
                    if begin.field is not None:
                        stride = code.number(self.layout.strides["sequence"])
                        record = code.at(self.run.arena[self.number, "record"], code.mul(row, stride))
                        code.copy_bytes(target, code.at(record, begin.field.offset), begin.bytes)
                    elif begin.argument >= 0:
                        source = code.at(self.arrays[begin.argument], code.mul(row, code.number(begin.bytes)))
                        code.copy_bytes(target, source, begin.bytes)
                    else:
                        code.zero_bytes(target, begin.bytes)

    def steps(self) -> None:
        """Writes the call of the compiled part's main function, which runs the steps of all sequences. Its
        argument words state the lanes (slots that run one sequence after another), the order and lengths of
        the sequences, and how many steps form a block (as many as fit the cache).
        """
        code, laid = self.code, self.laid
        with code.when(code.less(code.number(0), self.lanes)):
            block = code.sdiv(code.number(self.workspace.rows), self.lanes)
            self.set_argument("block_steps", code.larger(block, code.number(1)))
            self.set_argument("lanes", self.lanes)
            self.set_argument("steps", code.word(laid.laid, LAID["steps"]))
            self.set_argument("order", code.pointer_at(laid.laid, LAID["order"]))
            self.set_argument("first", code.at(laid.laid, LAID["first"]))
            self.set_argument("lane_steps", code.at(laid.laid, LAID["lane_steps"]))
            self.set_argument("starts", laid.starts)
            self.set_argument("lengths", laid.lengths)
            self.set_argument("step_offsets", self.run.arena["numbers"])
            self.set_argument("begun", self.run.arena["begun"])
            self.set_argument("until", 0)
            code.function_call(self.step.functions["run"], I64, [self.words])

    def reduce(self) -> None:
        """Writes code for the sums, means and maxima over the steps of each sequence that this compiled part
        contains. It reads inputs of the part, or values that the steps have stored in the arena (the memory
        of a call).
        """
        net, run = self.plan.net, self.run
        numbers = dict(
            zip([net.inputs[index] for index in self.plan.ends.sequences], self.step.inputs, strict=True)
        )
        values = {inner: run.values[outer] for inner, outer in numbers.items()}
        values |= {number: run.arena[self.number, number] for number in self.needs.kept}
        for number in self.needs.reduced:
            node = net.nodes[number]
            values[number] = run.arena[self.number, number]
            across = Across("reduce", node.attributes["how"], net.type_of(node.inputs[0]), node.type)
            function = across_function(
                self.code.module, self.code.processor, *function_of(across), from_zero=True
            )
            row_arrays = run.rows, run.offsets, run.arena["lengths"], run.arena["numbers"]
            last = map(self.code.number, numbers_of(across))
            self.code.call(function, [values[node.inputs[0]], values[number], *row_arrays, *last])
