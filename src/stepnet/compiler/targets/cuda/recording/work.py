"""The work of a recorded call, and the memory that it needs when it is given again.

arena        all values that are no results; two share bytes where one is not needed any more before the
other is
results      each in memory of its own, which the caller keeps
arguments    where the caller has them
"""

from collections.abc import Container, Sequence
from dataclasses import replace
from operator import le
from typing import NamedTuple

from stepnet.compiler.targets.cuda.device import (
    ALLOCATE,
    Device,
    DeviceArray,
    DeviceWork,
    RepeatedWork,
    aligned,
)
from stepnet.compiler.targets.cuda.recording.notes import CallNotes, ResultPlace
from stepnet.compiler.values.records import dataclass
from stepnet.ragged.offsets import offsets_of


@dataclass(frozen=True)
class Recording:
    """The work of a call, to be given again on other memory.

    device: the device. work: gives it. arena: the bytes for values that are no results. sizes: the sizes of
    the memory of results. results: for each result the memory that it is in, with its offset, shape and
    dtype.
    """

    device: Device
    work: RepeatedWork
    arena: int
    sizes: tuple[int, ...]
    results: tuple[ResultPlace, ...]

    @classmethod
    def of(cls, notes: CallNotes, results: Sequence[ResultPlace], shared: slice) -> "Recording":
        """Plans the memory of later calls from the notes of one, and prepares its work.

        results: where the results of that call lie. shared: the results that may lie in one memory.
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
    """Groups the memories of results: each is a group of its own, but the `shared` ones form one group.

    numbers: the number of the memory of each result. shared: the results that may lie together.

    >>> rooms_of([4, 7, 5, 6, 4], slice(1, 4))
    [[4], [7, 5, 6]]
    """
    alone = dict.fromkeys([*numbers[: shared.start], *numbers[shared.stop :]])
    together = [number for number in dict.fromkeys(numbers[shared]) if number not in alone]
    return [*([number] for number in alone), *([together] if together else [])]


def moved(piece: DeviceWork, known: dict[int, tuple[int, int]]) -> DeviceWork:
    """Returns a piece of work with other numbers of memory. known: for each number the new one, and the
    offset in that memory in bytes.
    """
    if not piece.bases:
        return piece
    pairs = zip(piece.bases, piece.offsets, strict=True)
    bases, offsets = zip(*((known[b][0], known[b][1] + offset) for b, offset in pairs), strict=True)
    return replace(piece, bases=bases, offsets=offsets)


class Span(NamedTuple):
    """The time in which a value is needed, as numbers of pieces of work of each stream.

    begin: those that are ahead of every piece which reads or writes the value. end: those up to the last such
    piece of each stream.
    """

    begin: tuple[int, ...]
    end: tuple[int, ...]

    def is_ahead(self, other: "Span") -> bool:
        """Tells whether nothing needs the value any more when the first piece needs another one."""
        return all(map(le, self.end, other.begin))


def spans_of(work: Sequence[DeviceWork], others: Container[int]) -> dict[int, Span]:
    """Returns for each value in the arena the span of work that needs it.

    others: the numbers of memory that is not in the arena.
    """
    streams = range(1 + max((piece.stream for piece in work), default=0))
    clocks = [[0 for _ in streams] for _ in streams]  # for each stream what is ahead of its next piece
    marks, spans = dict[int, list[int]](), dict[int, Span]()
    for piece in work:
        ahead = clocks[piece.stream]
        if piece.kind == "mark":
            marks[piece.count] = [*ahead]
        elif piece.kind == "follow":
            ahead[:] = map(max, ahead, marks[piece.count])
        else:
            begin = tuple(ahead)
            ahead[piece.stream] += 1
            end = tuple(count if stream == piece.stream else 0 for stream, count in enumerate(ahead))
            for number in piece.bases:
                if number >= 0 and number not in others:
                    known = spans.get(number, Span(begin, end))
                    spans[number] = Span(tuple(map(min, known.begin, begin)), tuple(map(max, known.end, end)))
    return spans


def arranged(counts: dict[int, int], spans: dict[int, Span]) -> tuple[dict[int, int], int]:
    """Arranges values in an arena so that values needed at the same time do not overlap: the largest first,
    each at the lowest free offset.

    counts: the bytes of each value, by its number. spans: when it is needed.

    Returns the offset of each value, and the bytes of the arena.

    >>> arranged({0: 512, 1: 256, 2: 256}, {n: Span((n,), (n + 2,)) for n in range(3)})
    ({0: 0, 1: 512, 2: 0}, 768)
    """
    placed, end = dict[int, int](), 0
    sizes = {number: aligned(count) for number, count in counts.items()}
    for number in sorted(sizes, key=lambda each: (-sizes[each], each)):
        span = spans[number]
        beside = sorted(
            (placed[other], sizes[other])
            for other in placed
            if not (span.is_ahead(spans[other]) or spans[other].is_ahead(span))
        )
        offset = 0
        for begin, size in beside:
            if offset + sizes[number] <= begin:
                break
            offset = max(offset, begin + size)
        placed[number], end = offset, max(end, offset + sizes[number])
    return {number: placed[number] for number in sorted(placed)}, end
