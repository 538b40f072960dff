"""How the kernels of a chain share the threads in a call.

    kernels   1 2 3: a stack     waves of the chain   (1) (2) (3)     arranged   (1 2) (3)
    kernels   1 2: directions                         (1 2)                      (1 2), or (1) (2)

Each call is weighed by its size (`plan/partition.py`), and the answer is kept for the next one of that size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stepnet.engines.base import Call
from stepnet.engines.llvm.running.laid import Laid
from stepnet.engines.llvm.running.native import DECIDED, Native
from stepnet.engines.processor import machine_for
from stepnet.engines.threads import threads
from stepnet.plan.load import Load, Machine, Size
from stepnet.plan.partition import AtOnce, Wavefront, Way, at_once, wavefront
from stepnet.plan.waves import Waves

Key = tuple[Any, ...]
Decided = TypeVar("Decided", AtOnce, Wavefront)


@dataclass
class Arrangement:
    """How the calls of all kernels run.

    waves: the kernels that run at the same time. ways: how each call is shared between threads. blocks: of
    each kernel of a wavefront, the steps of a block, for which it waits for the kernel before it in its wave;
    0 for the others.
    """

    waves: Waves
    ways: list[Way]
    blocks: list[int]

    def set(self, places: Sequence[int], ways: Sequence[Way], block: int = 0) -> None:
        """Sets how some kernels run."""
        for place, way in zip(places, ways, strict=True):
            self.ways[place], self.blocks[place] = way, block


@dataclass(frozen=True)
class Arranger:
    """What arranges the calls of kernels. waves, lines: as in `plan/waves.py`, of their places."""

    natives: Sequence[Native]
    waves: Waves
    lines: Waves = ()
    decided: dict[Key, AtOnce] = field(default_factory=dict[Key, AtOnce])
    fronts: dict[Key, Wavefront] = field(default_factory=dict[Key, Wavefront])

    def arranged(self, calls: Sequence[Call], laid: Sequence[Laid]) -> Arrangement:
        """How calls run, whose sequences are laid out so."""
        most, waves = threads(), list[tuple[int, ...]]()
        sizes = [native.size(call) for native, call in zip(self.natives, calls, strict=True)]
        ways = [native.partition(size, most).chosen for native, size in zip(self.natives, sizes, strict=True)]
        made = Arrangement((), ways, [0] * len(ways))
        # A kernel whose sequences may end early cannot be followed.
        able = most > 1 and all(call.until is None for call in calls)
        lines = {line[0]: line for line in self.lines if able and have_same_lanes(line, laid)}
        behind = {place for line in lines.values() for place in line[1:]}
        for wave in self.waves:
            first = wave[0]
            if first in lines:
                waves += self.groups(lines[first], sizes, most, made)
            elif first not in behind:
                waves += self.abreast(wave, sizes, most, made)
        made.waves = tuple(waves)
        return made

    def abreast(
        self, wave: tuple[int, ...], all_sizes: Sequence[Size], most: int, made: Arrangement
    ) -> Waves:
        """The waves of kernels that do not depend on each other."""
        if len(wave) == 1 or most == 1:
            return tuple((place,) for place in wave)
        sizes = tuple(all_sizes[place] for place in wave)
        loads, machine = self.loads(wave)
        decided = kept(self.decided, (most, wave, sizes), lambda: at_once(loads, sizes, most, machine))
        if decided.order is None:
            return tuple((place,) for place in wave)
        made.set(wave, decided.ways)
        return (tuple(wave[place] for place in decided.order),)

    def groups(self, line: tuple[int, ...], sizes: Sequence[Size], most: int, made: Arrangement) -> Waves:
        """The waves of kernels that may follow one another."""
        size, (loads, machine) = sizes[line[0]], self.loads(line)
        decided = kept(self.fronts, (most, line, size), lambda: wavefront(loads, size, most, machine))
        groups, first = list[tuple[int, ...]](), 0
        for count, block in decided.groups:
            last = first + count
            groups.append(line[first:last])
            made.set(line[first:last], decided.ways[first:last], block)
            first = last
        return tuple(groups)

    def loads(self, places: Sequence[int]) -> tuple[list[Load], Machine]:
        """What kernels do at each step, and what they do it on."""
        natives = [self.natives[place] for place in places]
        return [native.compiled.load for native in natives], machine_for(natives[0].target.vector_bytes)


def have_same_lanes(line: tuple[int, ...], laid: Sequence[Laid]) -> bool:
    """Whether kernels run over the same sequences: then a step of one is the same step of the others."""
    return all(laid[place] is laid[line[0]] for place in line)


def kept(known: dict[Key, Decided], key: Key, decide: Callable[[], Decided]) -> Decided:
    """What was decided for a key before, else what is decided now."""
    answer = known.get(key)
    if answer is None:
        if len(known) >= DECIDED:
            known.clear()
        answer = known[key] = decide()
    return answer
