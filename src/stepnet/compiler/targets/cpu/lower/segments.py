"""Choice of the phases of a step that run lane by lane: those with work on words, between products of rows.

    phase 1    q = h @ Q               all rows: a product is faster with many rows
    phase 2    s = k * expand(q)       lane by lane: the words of one row, then those of the next
    phase 3    m = reduce(s)
    phase 4    h' = tanh(m @ C)        all rows

The words of a row stay in the cache from phase to phase, and no barrier between threads is needed.
"""

from collections.abc import Iterable
from functools import cached_property

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import Type
from stepnet.compiler.plan.phases import is_of_recurrence
from stepnet.compiler.targets.cpu.lower.loops import (
    CopyLoop,
    EncodeLoop,
    FiberLoop,
    InnerLoop,
    InnerReduceLoop,
    LaneLoop,
    Loop,
    Phase,
    UnitLoop,
)
from stepnet.compiler.values.records import dataclass

FOLDED = ("sum", "max", "min")
"""Reductions over the features of words into which the preceding pointwise work is fused."""


@dataclass(frozen=True)
class Segments:
    """Segments of a stage: runs of phases that one lane (slot for a sequence) completes before the next lane
    begins them.

    inside: whether the stage is a step, which may have inner sequences.
    phases: the numbers of the nodes of each phase.
    """

    net: Net
    inside: bool
    phases: tuple[tuple[int, ...], ...]

    def axis(self, type_: Type) -> str:
        """Returns a type's axis of inner sequences; "" for one value per row, and outside a step."""
        return type_.extent[-1] if self.inside and len(type_.extent) > 1 else ""

    def is_over_inner_steps(self, number: int) -> bool:
        """Tells whether a node is a reduction over the words (steps of an inner sequence) of each row."""
        return self.inside and self.net.nodes[number].operation == "reduce"

    def folds(self, number: int) -> bool:
        """Tells whether a node reduces all features of each word (inner step) to one number, as a `FoldLoop`
        does.

        The operation is a sum, max or min (`FOLDED`), and keeps the dtype.
        """
        node = self.net.nodes[number]
        if node.operation not in FOLDED or not self.axis(node.types[0]):
            return False
        read = self.net.type_of(node.inputs[0])
        return bool(read.size) and node.type.size == 1 and read.dtype == node.type.dtype

    def is_per_inner_step(self, number: int) -> bool:
        """Tells whether a node has or reduces values of inner steps, and so runs lane by lane."""
        node = self.net.nodes[number]
        if self.is_recurrence(number):
            return False
        return bool(self.axis(node.types[0])) or self.is_over_inner_steps(number)

    def is_recurrence(self, number: int) -> bool:
        """Tells whether a node is an inner recurrence, or one of its results."""
        return self.net.nodes[number].operation == "recur" or is_of_recurrence(self.net, number)

    @cached_property
    def numbering(self) -> tuple[list[int], set[int]]:
        """Two results, for the phases (work between two barriers) of a stage: the number of each phase's
        segment, or 0 if it is in none; and the indices of the phases that begin a segment.

        A segment is a run of phases that one lane (slot for a sequence) completes before the next lane. It
        begins with a phase that has work on words (inner steps). It ends with the last such phase before a
        phase with a matrix product over rows, which needs all rows at once.
        """
        nodes = self.net.nodes
        has_inner_steps = [any(map(self.is_per_inner_step, phase)) for phase in self.phases]
        products = [
            any(
                (nodes[n].kind == "matmul" and not self.is_per_inner_step(n)) or self.is_recurrence(n)
                for n in phase
            )
            for phase in self.phases
        ]
        numbers, begins = list[int](), set[int]()
        latest, is_open = 0, False
        for index in range(len(self.phases)):
            relevant = (q for q in range(index, len(self.phases)) if has_inner_steps[q] or products[q])
            following = next(relevant, index)
            continues = is_open and has_inner_steps[following] and not products[following]
            if has_inner_steps[index] and not continues:
                latest += 1
                begins.add(index)
            is_open = has_inner_steps[index] or continues
            numbers.append(latest if is_open else 0)
        return numbers, begins

    def segment_of(self, phase: int) -> int:
        """Returns the segment (a run of phases, done lane by lane) of a phase; 0 if it runs for all rows."""
        return self.numbering[0][phase]

    def begins(self, phase: int) -> bool:
        """Tells whether a phase (work between two barriers) begins a segment: a run of phases that one lane
        (sequence) completes before the next, so that its loops over rows come before the lanes' work.
        """
        return phase in self.numbering[1]

    def are_separated(self, first: int, second: int) -> bool:
        """Tells whether other lanes (sequences) run between two phases, which are in different segments."""
        return self.segment_of(first) != self.segment_of(second)


def lane_by_lane(
    segments: Segments, phases: Iterable[tuple[list[Loop], list[Loop | InnerLoop]]]
) -> list[Phase]:
    """Lists a stage's work between barriers of threads. Phases that run lane by lane, one sequence
    completely before the next, are merged to one `LaneLoop`.

    phases: for each phase, the copies and encodings that its loops read, and its loops.
    """
    lowered, work = list[Phase](), list[tuple[str, Loop]]()
    for index, (copies, loops) in enumerate(phases):
        inner = [loop for loop in loops if isinstance(loop, InnerLoop)]
        steps = copies, [loop for loop in loops if not isinstance(loop, InnerLoop)]
        by_axis = [(axis_of(loop), loop) for step in steps for loop in step]
        if segments.segment_of(index) and not segments.begins(index):
            assert not inner
            work += by_axis
            continue
        if inner:  # inner loops read the copies, which therefore come before them
            work += [(axis, loop) for axis, loop in by_axis if axis and loop in copies]
            by_axis = [(axis, loop) for axis, loop in by_axis if not (axis and loop in copies)]
        lowered.append(LaneLoop(tuple(work)))
        lowered += [[loop for loop in step if not axis_of(loop)] for step in steps]
        lowered += inner
        work = [(axis, loop) for axis, loop in by_axis if axis]
    return [*(phase for phase in lowered if phase), *([LaneLoop(tuple(work))] if work else [])]


def axis_of(loop: Loop) -> str:
    """Returns the axis of inner sequences over whose words (steps) a loop goes; "" for a loop over rows.

    It is that of the record (kind of memory) that the loop stores to, "words AXIS" or "kept AXIS".
    """
    if isinstance(loop, InnerReduceLoop):
        return loop.axis
    if isinstance(loop, FiberLoop):
        return ""
    if isinstance(loop, UnitLoop):
        targets = tuple(target for _, target in loop.stores)
    elif isinstance(loop, CopyLoop | EncodeLoop):
        targets = (loop.target,)
    else:
        targets = loop.targets
    kind, _, axis = targets[0].record.partition(" ") if targets else ("", "", "")
    return axis if kind in ("words", "kept") else ""
