"""Which names are those of arrays of which records, and behind which prefix: in one pass over the names.

    encoder.rnn.weight_ih_l0   the last word is l: of 130 records only those with such an array are looked at
    encoder.norm.bias          `bias` behind "encoder.norm.", where nothing else is: no record is whole there

A spelling is the names that a template of a record stands for; many records share one, and each is matched
once. A record is whole behind a prefix where all its arrays are, but for those that may be missing.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import nsmallest
from string import ascii_letters
from typing import Any, TypeVar

from stepnet.layout.record import Record
from stepnet.layout.registry import records

DIGITS = re.compile(r"\d+\Z")
Key = TypeVar("Key")


@dataclass(frozen=True)
class Group:
    """The names behind a prefix that are those of a record: what is behind it by the whole name."""

    record: Record
    prefix: str
    names: Mapping[str, str]


@dataclass(frozen=True)
class Spelling:
    """The names that a template stands for behind a prefix, what these end in, and the places of the records
    that have them.
    """

    pattern: re.Pattern[str]
    tails: tuple[str, ...]
    users: tuple[int, ...]

    def match(self, name: str, lettered: str) -> re.Match[str] | None:
        """A name as the template stands for it, its first group the prefix; None for another one. lettered:
        the name without the digits at its end.
        """
        return self.pattern.fullmatch(name) if lettered.endswith(self.tails) else None


@dataclass(frozen=True)
class Index:
    """The spellings of some records, by the places of both.

    own, needed: the spellings of each record, and those that it has to have. by_word: the spellings by the
    last word of a name. by_first: the records by the first spelling that they have to have.
    """

    records: tuple[Record, ...]
    spellings: tuple[Spelling, ...]
    own: tuple[frozenset[int], ...]
    needed: tuple[frozenset[int], ...]
    by_word: Mapping[str, tuple[int, ...]]
    by_first: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class Spelled:
    """Names as they are spelled.

    marked: whether the marks of records count. behind: by prefix each spelling
    that is there with the place of the name, as one number, for there may be as many as names: the place
    times the number of spellings, and the spelling. shortest: of names that are spelled behind several
    prefixes, by their places, the length of the prefix for each spelling; names that are alike in that have
    one mapping.
    """

    index: Index
    marked: bool
    names: Sequence[str]
    behind: Mapping[str, list[int]]
    shortest: Mapping[int, Mapping[int, int]]

    def whole(self) -> Iterator[Group]:
        """Every record with every prefix behind which it is whole, in the order of records and then names."""
        prefixes: dict[int, list[str]] = {}  # and no groups yet, for there may be many times as many as names
        for prefix, entries in self.behind.items():
            held = self.by_spelling(entries)
            for first in held:
                for at in self.index.by_first.get(first, ()):
                    if self.index.needed[at] <= held.keys() and self.is_meant(at, prefix):
                        prefixes.setdefault(at, []).append(prefix)
        for at in sorted(prefixes):
            for prefix in prefixes[at]:
                group = self.group(at, prefix)[1]
                if group.names:
                    yield group

    def nearly(self, most: int) -> Iterator[tuple[tuple[int, int], tuple[int, int], Group]]:
        """Records that are not whole, so many of the nearest: the least that `find.misfits` can give for one,
        its place in the order, and what is there.
        """
        for least, at, _, prefix in nsmallest(most, self.parts(most)):
            place, group = self.group(at, prefix)
            if group.names:
                yield least, (at, place), group

    def parts(self, most: int) -> Iterator[tuple[tuple[int, int], int, int, str]]:
        """Every record with so many of the first prefixes behind which the same of its arrays are, at least
        half of those that it has to have, with the least misfit that they can be.
        """
        marks = {record.mark for record in self.index.records if record.mark}
        alike: Counter[Any] = Counter()
        for prefix, entries in self.behind.items():
            held = self.by_spelling(entries)
            counts = {place: len(names) for place, names in held.items()}
            part = last_part(prefix)
            kind = frozenset(counts.items()), frozenset(mark for mark in marks if re.search(mark, part))
            alike[kind] += 1
            if alike[kind] > most:
                continue
            for at in {at for place in held for at in self.index.spellings[place].users}:
                own, needed = self.index.own[at] & held.keys(), self.index.needed[at]
                if 2 * len(own & needed) < len(needed):  # most layers have a bias, and so are near none
                    continue
                if self.is_meant(at, prefix):
                    there, begins = sum(counts[place] for place in own), min(held[place][0] for place in own)
                    missing = len(needed - own)
                    yield (min(missing - there, there), -there), at, begins, prefix

    def by_spelling(self, entries: Iterable[int]) -> dict[int, list[int]]:
        """The places of names by spelling."""
        found: dict[int, list[int]] = {}
        for entry in entries:
            place, spelling = divmod(entry, len(self.index.spellings))
            found.setdefault(spelling, []).append(place)
        return found

    def is_meant(self, at: int, prefix: str) -> bool:
        """Whether the name of a layer has the mark of a record, where that counts."""
        mark = self.index.records[at].mark
        return not self.marked or not mark or re.search(mark, last_part(prefix)) is not None

    def group(self, at: int, prefix: str) -> tuple[int, Group]:
        """The names of a record behind a prefix, and the place of the first of them."""
        own, length, count = self.index.own[at], len(prefix), len(self.index.spellings)
        kept: list[int] = []
        for entry in self.behind[prefix]:
            place, spelling = divmod(entry, count)
            if spelling in own and (place not in self.shortest or self.is_shortest(place, own, length)):
                kept.append(place)
        behind = {name[length:]: name for name in map(self.names.__getitem__, kept)}
        return kept[0] if kept else 0, Group(self.index.records[at], prefix, behind)

    def is_shortest(self, place: int, own: frozenset[int], length: int) -> bool:
        """Whether no spelling of a record has a name behind a shorter prefix: `recurrent_kernel` is no
        `kernel` behind "recurrent_" where a record has both.
        """
        lengths = self.shortest[place]
        return all(lengths[spelling] >= length for spelling in own & lengths.keys())


def spelled(names: Iterable[str], among: Iterable[Record] | None, marked: bool | None = None) -> Spelled:
    """Names as the records have them; among and marked: as for `find`."""
    known = of_all() if among is None else index(tuple(among))
    behind: dict[str, list[int]] = {}
    shortest: dict[int, dict[int, int]] = {}
    alike: dict[tuple[tuple[int, int], ...], dict[int, int]] = {}
    count = len(known.spellings)
    listed = list(names)
    for at, name in enumerate(listed):
        lettered = DIGITS.sub("", name)
        lengths: dict[int, int] = {}
        for place in known.by_word.get(last_word(lettered), ()):
            if match := known.spellings[place].match(name, lettered):
                behind.setdefault(match[1], []).append(at * count + place)
                lengths[place] = match.end(1)
        if len(set(lengths.values())) > 1:
            shortest[at] = alike.setdefault(tuple(lengths.items()), lengths)
    return Spelled(known, among is None if marked is None else marked, listed, behind, shortest)


def last_word(name: str) -> str:
    """The letters at the end of a name.

    >>> last_word("encoder.weight_ih_l"), last_word("dense_1/kernel")
    ('l', 'kernel')
    """
    return name[len(name.rstrip(ascii_letters)) :]


def last_part(prefix: str) -> str:
    """The name of the layer that a prefix is.

    >>> last_part("encoder/basic_lstm_cell/")
    'basic_lstm_cell'
    """
    return re.split(r"[./]", prefix.rstrip("./_"))[-1].lower()


@cache
def of_all() -> Index:
    """The index of all records."""
    return index(tuple(records().values()))


def index(of: tuple[Record, ...]) -> Index:
    """The index of records."""
    held = [record.behind_prefix for record in of]
    tails = {text: record.tails(template) for record in of for template, text in record.behind_prefix.items()}
    places = {text: place for place, text in enumerate(tails)}
    needed = [
        [places[text] for template, text in texts.items() if not template.endswith("?")] for texts in held
    ]
    own = [frozenset(places[text] for text in texts.values()) for texts in held]
    users = inverse(enumerate(own))
    return Index(
        of,
        tuple(Spelling(re.compile(text), tails[text], users[place]) for text, place in places.items()),
        tuple(own),
        tuple(map(frozenset, needed)),
        inverse((places[text], map(last_word, ends)) for text, ends in tails.items()),
        inverse((at, first[:1]) for at, first in enumerate(needed)),
    )


def inverse(held: Iterable[tuple[int, Iterable[Key]]]) -> dict[Key, tuple[int, ...]]:
    """The places where each thing is, of what is at each place.

    >>> inverse([(0, "ab"), (1, "b")])
    {'a': (0,), 'b': (0, 1)}
    """
    found: dict[Key, dict[int, None]] = {}
    for place, things in held:
        for thing in things:
            found.setdefault(thing, {})[place] = None
    return {thing: tuple(at) for thing, at in found.items()}
