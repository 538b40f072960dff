"""A kernel bound to its parameters: the argument words of a call, and the work before and after the steps."""

from collections.abc import Sequence
from dataclasses import replace
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.compiler.native.call_words import ARRAYS, CALL_WORDS, WORDS
from stepnet.compiler.native.spaces import SLACK
from stepnet.compiler.net.meanings import OUTSIDE
from stepnet.compiler.plan.load import CallSize
from stepnet.compiler.plan.partition import Partition, partition
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.base import Array, Call
from stepnet.compiler.targets.cpu.compile.compiled import CompiledPlan
from stepnet.compiler.targets.cpu.costs import machine_for
from stepnet.compiler.targets.cpu.machine.lazy import late_import
from stepnet.compiler.targets.cpu.machine.machine_code import NativeFunction
from stepnet.compiler.targets.cpu.machine.memory import pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.products.constants import constant_values
from stepnet.compiler.targets.cpu.products.tiles import MOST_ROWS
from stepnet.compiler.targets.cpu.rates import FORCED
from stepnet.compiler.targets.cpu.running.finish import Finish
from stepnet.compiler.targets.cpu.running.form import (
    ArrayKinds,
    CallArrays,
    CallForm,
    offsets_by_axis,
    words_of,
)
from stepnet.compiler.targets.cpu.running.sequence_layout import SequenceLayout
from stepnet.compiler.targets.cpu.running.workspace import WORD, Workspace
from stepnet.errors import IndexOutsideError

if TYPE_CHECKING:
    from stepnet.compiler.targets.cpu.running.refill import Refill

# The number of sequences per call of machine code, so that interrupts are handled in between.
SEQUENCES = 256
# The largest number of call sizes for which the division among threads is cached.
DECIDED = 256
# The byte offsets of the words that each call writes, and of the pointers to arrays after them.
CALL, POINTERS = 8 * WORD[CALL_WORDS[0]], 8 * len(WORDS)


class Native:
    """Kernel bound to its parameters. It holds no state of calls, so threads may share it."""

    def __init__(
        self,
        plan: Plan,
        compiled: CompiledPlan,
        constants: Array,
        finish: Finish | None,
        processor: Processor,
    ) -> None:
        """Takes a plan (the operations of a part in their order), its compiled machine code, the memory with
        the constants that this reads, the work after the loop over steps (None for none), and the processor.
        """
        self.plan, self.compiled, self.finish, self.processor = plan, compiled, finish, processor
        self.refill: Refill | None = None
        self.constants = constants
        self.memories = [plan.net.type_of(plan.net.inputs[place]) for place in plan.ends.memories]
        words = compiled.arguments
        self.array_words = [word for kind in ARRAYS for word in words[kind]]
        # The permutation from the order of arrays to that of their words: pointers are written in one go.
        self.in_words = sorted(range(len(self.array_words)), key=self.array_words.__getitem__)
        self.pack = Struct(f"{len(CALL_WORDS) + len(self.array_words)}q").pack_into
        self.pack_pointers = Struct(f"{len(self.array_words)}q").pack_into
        self.padded = {each.argument: each for each in compiled.inner if each.padded != each.type.size}
        self.partitions: dict[tuple[int, CallSize], Partition] = {}
        self.fewest: dict[int, int] = {}
        self.by_sequence = compiled.sequences is not None or compiled.ended is not None
        self.kind = self.kind_of(plan)

    def kind_of(self, plan: Plan) -> ArrayKinds:
        """Determines the kinds and types of the arrays that every call of a kernel (the compiled code of
        `plan`, a part's operations) reads and writes, such as outputs, initial memories (recurrent states)
        that need zeros where a call omits them, and the buffer of values computed once per sequence.
        """
        types = [plan.net.type_of(result) for result in plan.net.results]
        places = plan.ends.steps, plan.ends.rows, plan.ends.totals
        outputs, rows, totals = ([types[place] for place in kind] for kind in places)
        wanted = [
            self.finish is not None or word in self.compiled.required_arguments
            for word in self.compiled.arguments["initial"]
        ]
        filled = {place: self.memories[place] for place, want in enumerate(wanted) if want}
        record = self.compiled.strides["sequence"] if self.by_sequence else 0
        kinds = ("inputs", "statics")
        padded = {
            (kind, place): (self.padded[word].type, self.padded[word].padded)
            for kind in kinds
            for place, word in enumerate(self.compiled.arguments[kind])
            if word in self.padded
        }
        return ArrayKinds(outputs, rows, totals, filled, self.finish, record, self.compiled.axes, padded)

    def rebind(self, parameters: Sequence[Array]) -> bool:
        """Replaces the parameters, in the memory of this kernel (compiled code); returns False, with no
        effect, if they are not C-contiguous arrays.
        """
        if not all(array.flags.c_contiguous for array in parameters):
            return False
        if self.refill is None:
            like = [
                array.copy() for array in parameters
            ]  # tied weights may be one array; copies are distinct
            values = constant_values(self.plan, like)
            wanted = () if self.finish is None else tuple(self.finish.constants)
            entries = self.compiled.constants
            facts = self.plan, entries, self.constants, like, values, wanted, self.processor
            self.refill = late_import("running.refill").Refill(*facts)
        return self.rebind_at([pointer(array) for array in parameters])

    def rebind_at(self, addresses: Sequence[int]) -> bool:
        """Replaces the parameters, in the memory of this kernel (compiled code), by C-contiguous ones at
        addresses; returns False if none were replaced before.
        """
        refill: Any = self.refill
        if refill is None:
            return False
        known = refill(addresses)
        if self.finish is not None and known:
            self.finish.constants.update({number: array.copy() for number, array in known.items()})
        return True

    # ---- the arguments of a call

    def size(self, call: Call) -> CallSize:
        """Returns the size of a call (sequences, steps, steps of inner sequences), to estimate its time."""
        size = SequenceLayout.of(call.positions).size
        return (
            size._replace(inner_steps=words_of(self.compiled.axes, call.positions))
            if self.compiled.axes
            else size
        )

    def with_places(self, call: Call) -> Call:
        """Returns a call that has the addresses of steps in place of windows (copies of neighbouring steps),
        where products read windows in place; the call itself if it has them, or no windows. The arrays of
        `call` must be kept meanwhile.
        """
        places = {place: call.sequences[place] for place in self.plan.windows}
        copied = {place: array for place, array in places.items() if array.dtype != np.int64}
        if not copied:
            return call
        sequences = [
            places_of(array) if place in copied else array for place, array in enumerate(call.sequences)
        ]
        return replace(call, sequences=sequences)

    def partition(self, size: CallSize, most: int) -> Partition:
        """Decides how at most `most` threads divide a call of this size, by estimated times. Cached."""
        key = most, size
        known = self.partitions.get(key)
        if known is None:
            if len(self.partitions) >= DECIDED:
                self.partitions.clear()
            machine = machine_for(self.processor)
            known = self.partitions[key] = partition(self.compiled.load, size, most, machine, FORCED.get())
        return known

    def fewest_lanes(self, together: int) -> int:
        """Returns the number of lanes (slots that run sequences) from which more gain little, of a thread of
        `together` that share each step: at most the rows of the largest register tile.
        """
        if together not in self.fewest:
            machine = machine_for(self.processor)
            self.fewest[together] = self.compiled.load.fewest_rows(together, MOST_ROWS, machine)
        return self.fewest[together]

    @property
    def rows_are_alone(self) -> bool:
        """Tells whether no step of the kernel depends on another one of its sequence."""
        return self.compiled.load.is_plain

    @property
    def defers(self) -> bool:
        """Tells whether calls of this kernel (compiled part) run machine code alone, without work by Python
        before or after it, so that a chain, which runs several parts in one go, can include them.
        """
        return not self.by_sequence and self.finish is None and not self.padded

    @property
    def ends_early(self) -> bool:
        """Tells whether the kernel (compiled code with parameters) can run calls whose sequences end early,
        by a condition in the step: there is no work after the loop, and the initial memories (recurrent
        states) are those of the call.
        """
        recurrence, net = self.plan.recurrence, self.plan.net
        first = recurrence.recur.operands_by_kind(recurrence.inputs).memories
        same = first == [net.inputs[place] for place in self.plan.ends.memories]
        return same and self.finish is None

    def room(self, call: Call) -> int:
        """Returns the number of steps of inner sequences for which a call needs scratch memory; 0 if there
        are no inner sequences. It is rounded up from the longest one, to a power of two and some slack, so
        that similar calls can share the memory.
        """
        longest = [
            int(np.diff(array).max(initial=0))
            for array in offsets_by_axis(self.compiled.axes, call.positions)
        ]
        return (1 << max(longest).bit_length()) + SLACK if longest else 0

    def workspace(
        self, lanes: int, together: int, room: int, ends: bool, block: int = 0, part: tuple[int, int] = (0, 1)
    ) -> Workspace:
        """Allocates scratch memory and arguments for a kernel (compiled code) to run some sequences.

        lanes, together: the numbers of sequences at a time, and of threads that share each step.
        room: the number of steps of inner sequences that there is memory for.
        ends: whether sequences may end early. block: the most steps of a block (0: as many as fit).
        part: (number, count), where `count` workspaces divide the rows of each block.
        """
        compiled, reverse = self.compiled, self.plan.reverse
        return Workspace(compiled, self.constants, lanes, together, reverse, room, ends, block, part)

    def words(self, call: Call, arrays: CallArrays, ticks: int, lanes: tuple[int, ...]) -> list[int]:
        """Lists the arguments of the machine code for a call and a set of lanes (slots that run sequences),
        in the order of `CALL_WORDS` and the arrays' pointers. ticks: the number of clock ticks after which
        the machine code returns, even if it is not done; 0 for no limit. lanes: the arguments that describe
        the set of lanes. The arguments begin with the number of ticks, and whether only the last output of
        each sequence is wanted.
        """
        before = 0
        if self.compiled.counts:
            offset = call.step_offset
            before = pointer(SequenceLayout.of(call.positions).no_steps if offset is None else offset)
        record = pointer(arrays.record)
        return [ticks, call.last_only, record, before, *lanes, *arrays.pointers(self.in_words)]

    # ---- the work before and after the steps

    def begin(self, call: Call, arrays: CallArrays) -> None:
        """Does the work of a call before its steps: computes the values that each sequence has once. arrays:
        all arrays of the call.
        """
        if self.compiled.sequences is not None:
            self.for_each_sequence(self.compiled.sequences, arrays)

    def made_of(self, arrays: CallArrays) -> list[bytes]:
        """Returns the contents, as bytes, of the arrays from which values are computed once per sequence.
        They are compared with those of the next call: if they are equal, the values need not be computed
        again.

        arrays: all arrays of the call.
        """
        by_word = dict(zip(self.array_words, arrays.in_order, strict=True))
        read = (by_word[word] for word in self.compiled.sequence_arguments)
        return [array.tobytes() for array in read if array is not None]

    def for_each_sequence(self, function: NativeFunction, arrays: CallArrays) -> None:
        """Runs a function of machine code that computes values once per sequence, some sequences at a time so
        that interrupts are handled. It reads and writes the arrays of a call. Raises
        `IndexOutsideError` if an index is outside its table.
        """
        status = np.zeros(1, np.int64)
        words = self.row_words(arrays, status)
        for first in range(0, arrays.batch, SEQUENCES):
            words[WORD["first"]], words[WORD["lanes"]] = first, min(SEQUENCES, arrays.batch - first)
            function.call(pointer(words))
        if status[0]:
            raise IndexOutsideError(OUTSIDE)

    def row_words(self, arrays: CallArrays, status: Array) -> Array:
        """Makes the argument words of machine code that computes values once per sequence, but for the
        numbers of the sequences. arrays: all arrays of the call. status: the word that is set if an index is
        outside its table.
        """
        words = np.zeros(self.compiled.argument_count, np.int64)
        words[self.array_words] = list(map(pointer, arrays.in_order))
        for name, array in {"constants": self.constants, "sequence": arrays.record, "status": status}.items():
            words[WORD[name]] = pointer(array)
        return words

    def end(self, form: CallForm, arrays: CallArrays) -> None:
        """Does the work of a call after its steps: computes reductions of sequences, values that each
        sequence has once, and totals of all rows. Does nothing if there is no such work.

        form: knows what remains to be done after the loop. arrays: all arrays of the call.
        """
        if form.finish is None:
            return
        values = {**form.finish.constants, **arrays.nodes}
        form.finish.run(self.plan.reduced, values, ())
        if self.compiled.ended is not None:
            self.for_each_sequence(self.compiled.ended, arrays)
        form.finish.run(self.plan.total, values, arrays.of_functions)
        form.finish.copy(values, arrays.results.totals)


def places_of(windows: Array) -> Array:
    """Returns the addresses of the steps [windows, size] of copied windows [windows, size, features]."""
    count, size, features = windows.shape
    step = features * windows.itemsize
    return np.arange(count * size, dtype=np.int64).reshape(count, size) * step + pointer(windows)
