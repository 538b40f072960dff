"""Waves and lines of a schedule. The parts of a wave do not depend on each other. The recurrences of a line
may run at the same time, each some steps behind the one before.

part 1  recurrence   x         -> a         wave 0   parts 1 and 2
part 2  recurrence   x         -> b
part 3  plain        a b       -> y         wave 1   part 3

part 1  recurrence   x         -> a         line     parts 1, 2, 3: each step of one needs the outputs of
part 2  recurrence   a         -> b                  this step, not the last memory, of the one before
part 3  recurrence   b         -> c

Between two waves run operations across extents: a value repeated for the steps, or their mean. Every target
has them for values in its memory (`net/memory.py`); on the CPU most are machine code, which runs in one go
with the kernels (`targets/cpu/running/across.py`).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple, Self

from stepnet.compiler.net.extensions import Extension
from stepnet.compiler.net.ir import Builder, Net, Node
from stepnet.compiler.net.pairs import PAIRED, keys_of, queries_of
from stepnet.compiler.net.types import STEPS, Extent, Type, is_pairs
from stepnet.compiler.net.windows import WINDOWED, Window
from stepnet.compiler.plan.schedule import Part
from stepnet.compiler.values.records import dataclass

Waves = tuple[tuple[int, ...], ...]
"""The positions of parts in the schedule, those of each wave (or line) together."""


@dataclass(frozen=True)
class Across:
    """An operation between two extents, or between the steps of a sequence.

    operation: "expand", "reduce", "windows", "overlap", "arrange", "extend"; "pairs" for operations at pairs
        of steps.
    how: the reduction, such as "mean"; of an expansion "repeat", or the end at which the value is put,
        "first" or "last", with zeros elsewhere; of an extension its mode; of others their operation.
    source, result: the types of the two values; `source` is that of the first one that pairs read.
    window: the steps of a window; None for other operations.
    in_place: whether the result is not the windows, but the addresses of the steps in them, for products that
        read them in place.
    body: the net of operations at pairs of steps: one alone, or those of a group (`pairs.py`).
    extension: the copies of steps at the ends of sequences; None for other operations.
    """

    operation: str
    how: str
    source: Type
    result: Type
    window: Window | None = None
    in_place: bool = False
    body: Net | None = None
    extension: Extension | None = None

    @classmethod
    def of(cls, net: Net, part: Part, in_place: Collection[int] = ()) -> Self:
        """Describes the operation that a part of a schedule consists of, so that it can be run: an expansion
        to steps, a reduction over steps, windows of neighbouring steps, or an operation on pairs of steps
        (queries and keys). part: a part of the kind "across".
        in_place: the windows whose steps products read in place; the operation then writes addresses of
        steps.
        """
        assert part.node is not None
        node, types = part.node, (net.type_of(part.reads[0]), net.type_of(part.results[0]))
        body = part.body
        if body is None and node.operation in PAIRED:
            body = body_of(node, map(net.type_of, node.inputs))
        if body is not None:
            return cls("pairs", "pairs", *types, body=body)
        if node.operation in WINDOWED:
            window, placed = Window.of(node.attributes), part.results[0] in in_place
            return cls(node.operation, node.operation, *types, window, placed)
        if node.operation == "extend":
            extension = Extension.of(node.attributes)
            return cls(node.operation, extension.how, *types, extension=extension)
        return cls(node.operation, node.attributes.get("how", "repeat"), *types)

    @property
    def is_between_steps(self) -> bool:
        """Tells whether it makes steps of a sequence from other steps of it, by windows or an extension."""
        return self.window is not None or self.extension is not None

    @property
    def extents(self) -> tuple[Extent, ...]:
        """The extents (such as rows/steps) of the sequences that the operation goes over: (source, result)
        for windows and extensions; (queries, keys, pairs) for pairs of steps; for a repeat or a reduction the
        deeper extent of operand and result, twice.
        """
        if self.is_between_steps:
            return self.source.extent, self.result.extent
        if self.body is not None:
            pairs = pairs_extent(self.body)
            return queries_of(pairs), keys_of(pairs), pairs
        deepest = max(self.source.extent, self.result.extent, STEPS, key=len)
        return deepest, deepest


def body_of(node: Node, operands: Iterable[Type]) -> Net:
    """Makes the net of a single operation on pairs of steps (a query with each of its keys), such as
    `scores`, for a part that consists of this operation. operands: the types of its operands, which become
    the inputs.
    """
    builder = Builder()
    inputs = [builder.input(type_, f"value{place}") for place, type_ in enumerate(operands)]
    return builder.net([builder.add(node.operation, *inputs, **node.attributes)])


def pairs_extent(body: Net) -> Extent:
    """Returns the extent of the pairs of a body."""
    return next(node.type.extent for node in body.nodes if is_pairs(node.type.extent))


def read_in_place(parts: Sequence[Part], together: Sequence[Part]) -> set[int]:
    """Returns the windows of steps that are not copied, as products read the steps where they lie by address:
    if only parts that run together (`together`) read them, since the addresses are valid while these run.
    parts: all parts of the schedule.
    """
    others = [part for part in parts if all(part is not own for own in together)]
    read = {number for part in others for number in part.reads}
    return {number for part in together for number in part.windows} - read


class RunOrder(NamedTuple):
    """The order in which parts run as one: kernels by wave, and operations across extents between the waves.

    waves, lines: the kernels that do not depend on each other, and the recurrences that may run at the same
        time, by their positions among the kernels.
    needs: for each operation across extents, the kernels that must have run, also by position.
    """

    waves: Waves
    lines: Waves
    needs: tuple[frozenset[int], ...]


def order_of(parts: Sequence[Part]) -> RunOrder:
    """Finds the order (by waves: kernels, that is compiled parts, that may run at the same time) in which
    adjacent parts of a schedule run in one call: kernels of recurrences and of plain parts, and operations
    between them that repeat a value along steps or reduce steps to one. A kernel that reads the result of
    such an operation also waits for the kernels whose results the operation reads.
    """
    behind, needs = dict[int, frozenset[int]](), list[frozenset[int]]()
    kernels, wave_of = list[Part](), dict[int, int]()
    for part in parts:
        waits = frozenset[int]().union(*(behind.get(number, ()) for number in part.reads))
        if part.kind == "across":
            read = waits.union(part.reads)
            behind[part.results[0]] = read
            needs.append(frozenset(wave_of[number] for number in read if number in wave_of))
        else:
            wave_of |= {number: len(kernels) for number in part.results if number >= 0}
            reads, statics = (*part.reads, *sorted(waits)), part.statics + len(waits)
            kernels.append(replace(part, reads=reads, statics=statics))
    return RunOrder(waves_of(kernels), lines_of(kernels), tuple(needs))


def waves_of(parts: Sequence[Part]) -> Waves:
    """Sorts the parts of a schedule into waves: parts of a wave read only results of earlier waves, so they
    may run at the same time. Returns the positions in `parts`, by wave.
    """
    wave_of: dict[int, int] = {}
    waves: dict[int, list[int]] = {}
    for index, part in enumerate(parts):
        wave = 1 + max((wave_of.get(number, -1) for number in (*part.reads, *part.parameters)), default=-1)
        wave_of |= {number: wave for number in part.results if number >= 0}
        waves.setdefault(wave, []).append(index)
    return tuple(tuple(waves[wave]) for wave in sorted(waves))


def lines_of(parts: Sequence[Part]) -> Waves:
    """Finds lines: recurrences that may run at the same time, each some steps behind the one before. Returns
    the positions in `parts`, by line.

    Each is the only part of its wave (parts that do not depend on each other), so nothing runs between them.
    """
    lines: list[tuple[int, ...]] = []
    line: tuple[int, ...] = ()
    for wave in waves_of(parts):
        (index, *others) = wave
        if not others and line and all(follows(parts[index], parts[ahead]) for ahead in line):
            line += (index,)
            continue
        lines.append(line)
        line = () if others else (index,)
    return tuple(line for line in (*lines, line) if len(line) > 1)


def follows(part: Part, ahead: Part) -> bool:
    """Tells whether the recurrence `part` can run at the same time as `ahead`, some steps behind it.

    It can if both run in the same direction over the same sequences, and it reads only outputs of the other,
    each at its own step.
    """
    if part.plan is None or ahead.plan is None or part.extent != STEPS or ahead.extent != STEPS:
        return False
    if (
        {part.kind, ahead.kind} != {"recurrence"}
        or ahead.last_only
        or part.is_bound_per_call
        or ahead.is_bound_per_call
    ):
        return False
    last = len(part.reads) - part.memories - part.statics
    others = {*part.reads[last:], *part.parameters} - {-1}
    outputs = {ahead.results[index] for index in ahead.plan.ends.steps}
    others |= {*part.reads[:last]} & ({*ahead.results} - outputs)
    return part.plan.reverse == ahead.plan.reverse and others.isdisjoint(ahead.results)


def runs_of(parts: Sequence[Part], fits: Callable[[int], bool]) -> list[tuple[int, ...]]:
    """Groups adjacent parts of a schedule that can run as one call of machine code. Returns the positions in
    `parts`, by group, in order.

    fits: tells whether the part at a position can run in such a call; every other part is a group alone.
    """
    runs: list[tuple[int, ...]] = []
    for fit, indices in groupby(range(len(parts)), fits):
        numbers = tuple(indices)
        runs += [numbers] if fit else [(index,) for index in numbers]
    return runs
