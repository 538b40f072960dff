"""Parts of a schedule by what they wait for: waves of parts that do not depend on each other.

part 1  recurrence   x         -> a         wave 0   parts 1 and 2
part 2  recurrence   x         -> b
part 3  plain        a b       -> y         wave 1   part 3
"""

from collections.abc import Callable, Sequence
from itertools import groupby

from stepnet.plan.schedule import Part

Waves = tuple[tuple[int, ...], ...]
"""Parts by their places, those of a wave together."""


def waves_of(parts: Sequence[Part]) -> Waves:
    """The places of parts by wave: each reads results of waves before its own alone."""
    made: dict[int, int] = {}
    waves: dict[int, list[int]] = {}
    for place, part in enumerate(parts):
        wave = 1 + max((made.get(number, -1) for number in (*part.reads, *part.parameters)), default=-1)
        made |= {number: wave for number in part.results if number >= 0}
        waves.setdefault(wave, []).append(place)
    return tuple(tuple(waves[wave]) for wave in sorted(waves))


def runs_of(parts: Sequence[Part], fits: Callable[[int], bool]) -> list[tuple[int, ...]]:
    """The places of parts, those next to each other that fit a chain together, others alone."""
    runs: list[tuple[int, ...]] = []
    for fit, places in groupby(range(len(parts)), fits):
        numbers = tuple(places)
        runs += [numbers] if fit else [(place,) for place in numbers]
    return runs
