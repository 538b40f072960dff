"""Arrangement of the kernels of a chain on threads: which run at the same time, and on which threads.

    kernels                   waves of the chain   arranged by cost
    1 2 3, a stack            (1) (2) (3)          (1 2) (3)         1 and 2 as a wavefront
    1 2, both directions      (1 2)                (1 2) or (1) (2)  at the same time, or one after the other

The cost is estimated from the size of the call (`compiler/plan/partition.py`); decisions are cached by size.
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, TypeVar

from stepnet.compiler.plan.load import CallSize, Load, Machine
from stepnet.compiler.plan.partition import CallPartition, Concurrency, Wavefront, at_once, wavefront
from stepnet.compiler.plan.waves import Waves
from stepnet.compiler.targets.base import Call
from stepnet.compiler.targets.cpu.costs import machine_for
from stepnet.compiler.targets.cpu.running.native import DECIDED, Native
from stepnet.compiler.targets.cpu.running.sequence_layout import SequenceLayout
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.values.records import dataclass

Key = tuple[Any, ...]
Decided = TypeVar("Decided", Concurrency, Wavefront)


@dataclass
class Arrangement:
    """Decision how the calls of all kernels of a chain run on threads.

    waves: the kernels that run at the same time, by position.
    ways: for each kernel, how threads divide its call.
    blocks: for each kernel of a wavefront (layers of a stack, each some steps behind the one below), the
        steps of a block, before which it waits for the kernel below it; 0 for other kernels.
    """

    waves: Waves
    ways: list[CallPartition]
    blocks: list[int]

    def set(self, places: Sequence[int], ways: Sequence[CallPartition], block: int = 0) -> None:
        """Sets how threads divide the calls of some kernels (compiled parts) of a chain, which runs in one
        go.

        places: the positions of the kernels.
        ways: for each of them, how threads divide its call.
        block: the number of steps of a block, if the kernels run as a wavefront (layers of a stack at the
            same time, each some steps behind the one below); 0 if they do not.
        """
        for place, way in zip(places, ways, strict=True):
            self.ways[place], self.blocks[place] = way, block


@dataclass(frozen=True)
class Arranger:
    """Decides which kernels of a chain run at the same time, and how threads divide the call of each.

    natives: the kernels.
    waves, lines: the kernels that do not depend on each other, and the layers of each stack, by the positions
        of the kernels (see `compiler/plan/waves.py`).
    decided, fronts: the decisions so far, by size.
    """

    natives: Sequence[Native]
    waves: Waves
    lines: Waves = ()
    decided: dict[Key, Concurrency] = field(default_factory=dict[Key, Concurrency])
    fronts: dict[Key, Wavefront] = field(default_factory=dict[Key, Wavefront])

    def arranged(self, calls: Sequence[Call], laid: Sequence[SequenceLayout]) -> Arrangement:
        """Decides, by estimated times, which kernels (compiled parts) of a chain run at the same time, and
        how threads divide each call. calls, laid: the call of each kernel, and the layout of its sequences
        (which slot of the loop runs which).
        """
        most, waves = threads(), list[tuple[int, ...]]()
        sizes = [native.size(call) for native, call in zip(self.natives, calls, strict=True)]
        ways = [native.partition(size, most).chosen for native, size in zip(self.natives, sizes, strict=True)]
        arrangement = Arrangement((), ways, [0] * len(ways))
        # The progress of a kernel whose sequences may end early is unknown, so it cannot lead a wavefront.
        able = most > 1 and all(call.until is None for call in calls)
        lines = {line[0]: line for line in self.lines if able and have_same_lanes(line, laid)}
        behind = {place for line in lines.values() for place in line[1:]}
        for wave in self.waves:
            first = wave[0]
            if first in lines:
                waves += self.groups(lines[first], sizes, most, arrangement)
            elif first not in behind:
                waves += self.abreast(wave, sizes, most, arrangement)
        arrangement.waves = tuple(waves)
        return arrangement

    def abreast(
        self, wave: tuple[int, ...], all_sizes: Sequence[CallSize], most: int, made: Arrangement
    ) -> Waves:
        """Decides whether kernels (compiled parts of a net) that do not depend on each other run at the same
        time: returns one wave (kernels that run at once), or one wave each. Stores in `made` how threads
        divide the calls. wave: the positions of the kernels. all_sizes: the sizes of the calls of all
        kernels. most: the largest number of threads.
        """
        if len(wave) == 1 or most == 1:
            return tuple((place,) for place in wave)
        sizes = tuple(all_sizes[place] for place in wave)
        loads, machine = self.loads(wave)
        decided = kept(self.decided, (most, wave, sizes), lambda: at_once(loads, sizes, most, machine))
        if decided.order is None:
            return tuple((place,) for place in wave)
        made.set(wave, decided.ways)
        return (tuple(wave[place] for place in decided.order),)

    def groups(self, line: tuple[int, ...], sizes: Sequence[CallSize], most: int, made: Arrangement) -> Waves:
        """Decides which layers of a stack run as a wavefront, each some steps behind the one below: returns
        waves, groups of consecutive layers that run at the same time. Stores in `made` how threads divide the
        calls. line: the positions of the layers' kernels (compiled parts). sizes: the sizes of the calls of
        all kernels. most: the largest number of threads.
        """
        own, (loads, machine) = tuple(sizes[place] for place in line), self.loads(line)
        decided = kept(self.fronts, (most, line, own), lambda: wavefront(loads, own, most, machine))
        groups, first = list[tuple[int, ...]](), 0
        for count, block in decided.groups:
            last = first + count
            groups.append(line[first:last])
            made.set(line[first:last], decided.ways[first:last], block)
            first = last
        return tuple(groups)

    def loads(self, places: Sequence[int]) -> tuple[list[Load], Machine]:
        """Returns the work of the kernels at `places`, and the machine's rates, to estimate times."""
        natives = [self.natives[place] for place in places]
        return [native.compiled.load for native in natives], machine_for(natives[0].processor)


def have_same_lanes(line: tuple[int, ...], laid: Sequence[SequenceLayout]) -> bool:
    """Tells whether kernels (compiled parts) run over the same sequences, and so in the same lanes (slots of
    the loop).

    line: the positions of the kernels. laid: for each kernel, the layout of the sequences of its call.
    """
    return all(laid[place] is laid[line[0]] for place in line)


def kept(known: dict[Key, Decided], key: Key, decide: Callable[[], Decided]) -> Decided:
    """Returns the cached decision on how threads divide calls, for a key; if there is none, calls `decide`
    and caches its result. A full cache is emptied first. known: the cache.
    """
    answer = known.get(key)
    if answer is None:
        if len(known) >= DECIDED:
            known.clear()
        answer = known[key] = decide()
    return answer
