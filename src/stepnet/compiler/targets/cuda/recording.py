"""The work of a recorded call, and the memory that it needs when it is given again.

arena        all values that are no results; two share bytes where one is not needed any more before the
other is
results      each in memory of its own, which the caller keeps
arguments    where the caller has them
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from stepnet.compiler.targets.cuda.device import (
    ALLOCATE,
    Device,
    DeviceArray,
    DeviceWork,
    RepeatedWork,
    aligned,
)
from stepnet.compiler.targets.cuda.noting import CallNotes, ResultPlace
from stepnet.ragged.offsets import offsets_of


@dataclass(frozen=True)
class Recording:
    """The work of a call, to be given again on other memory.

    device: the device. work: gives it. arena: the bytes for values that are no results. sizes: those of the
    memory of results. results: which memory each of them is in, with its offset, shape and dtype.
    """

    device: Device
    work: RepeatedWork
    arena: int
    sizes: tuple[int, ...]
    results: tuple[ResultPlace, ...]

    @classmethod
    def of(cls, notes: CallNotes, results: Sequence[ResultPlace], shared: slice) -> "Recording":
        """Plans the memory of later calls from the notes of one, and prepares its work.

        results: where the results of that call lie. shared: those of them that may lie in one memory.
        """
        rooms = rooms_of([place.number for place in results], shared)
        given = [number for number, count in enumerate(notes.memory) if count < 0]
        known = {-1: (-1, 0)}  # for each number of memory the new one, and how far behind its beginning
        sizes = list[int]()
        for at, numbers in enumerate(rooms):
            offsets = offsets_of([aligned(notes.memory[number]) for number in numbers]).tolist()
            known |= {number: (1 + at, offset) for number, offset in zip(numbers, offsets, strict=False)}
            sizes.append(offsets[-1])
        known |= {number: (1 + len(rooms) + at, 0) for at, number in enumerate(given)}
        spans = spans_of(notes.work, known)
        offsets, arena = arranged({number: notes.memory[number] for number in spans}, spans)
        known |= {number: (0, offset) for number, offset in offsets.items()}
        places = tuple(
            ResultPlace(known[number][0] - 1, known[number][1] + offset, shape, dtype)
            for number, offset, shape, dtype in results
        )
        work = [moved(piece, known) for piece in notes.work]
        repeated = notes.device.repeated(work, tuple(notes.constants.values()))
        return cls(notes.device, repeated, arena, tuple(sizes), places)

    def __call__(self, arguments: Sequence[DeviceArray]) -> list[DeviceArray]:
        """Gives the work of a call on other arguments; returns its results, in memory of their own."""
        device, allocate = self.device, ALLOCATE.get()
        rooms = [allocate(device, count) for count in (self.arena, *self.sizes)]
        self.work([room.address for room in rooms] + [array.address for array in arguments])
        del rooms[0]
        return [
            DeviceArray(device, rooms[number].address + offset, shape, dtype, rooms[number])
            for number, offset, shape, dtype in self.results
        ]


def rooms_of(numbers: Sequence[int], shared: slice) -> list[list[int]]:
    """Returns which memory of results lies together: each alone, but for the shared ones.

    numbers: the number of the memory of each result. shared: which of these results may lie together.

    >>> rooms_of([4, 7, 5, 6, 4], slice(1, 4))
    [[4], [7, 5, 6]]
    """
    alone = dict.fromkeys([*numbers[: shared.start], *numbers[shared.stop :]])
    together = [number for number in dict.fromkeys(numbers[shared]) if number not in alone]
    return [*([number] for number in alone), *([together] if together else [])]


def moved(piece: DeviceWork, known: dict[int, tuple[int, int]]) -> DeviceWork:
    """Returns a piece of work with other numbers of memory. known: for each number the new one, and how many
    bytes behind its beginning the memory lies.
    """
    pairs = zip(piece.bases, piece.offsets, strict=True)
    bases, offsets = zip(*((known[b][0], known[b][1] + offset) for b, offset in pairs), strict=True)
    return replace(piece, bases=bases, offsets=offsets)


def spans_of(work: Sequence[DeviceWork], others: Container[int]) -> dict[int, tuple[int, int]]:
    """Returns for each value in the arena the first and the last piece of work that reads or writes it.

    others: the numbers of memory that is not in the arena.
    """
    spans = dict[int, tuple[int, int]]()
    for at, piece in enumerate(work):
        for number in piece.bases:
            if number >= 0 and number not in others:
                spans[number] = spans.get(number, (at, at))[0], at
    return spans


def arranged(counts: dict[int, int], spans: dict[int, tuple[int, int]]) -> tuple[dict[int, int], int]:
    """Arranges values in an arena, so that those which are needed at one time do not overlap: the largest
    first, each as far in front as it can be.

    counts: the bytes of each value, by its number. spans: the first and the last time that it is needed.

    Returns the offset of each value, and the bytes of the arena.

    >>> arranged({0: 512, 1: 256, 2: 256}, {0: (0, 1), 1: (1, 2), 2: (2, 3)})
    ({0: 0, 1: 512, 2: 0}, 768)
    """
    placed, end = dict[int, int](), 0
    sizes = {number: aligned(count) for number, count in counts.items()}
    for number in sorted(sizes, key=lambda each: (-sizes[each], each)):
        first, last = spans[number]
        beside = sorted(
            (placed[other], sizes[other])
            for other in placed
            if spans[other][0] <= last and first <= spans[other][1]
        )
        offset = 0
        for begin, size in beside:
            if offset + sizes[number] <= begin:
                break
            offset = max(offset, begin + size)
        placed[number], end = offset, max(end, offset + sizes[number])
    return {number: placed[number] for number in sorted(placed)}, end
