"""An index that finds, in one pass over names, the records whose arrays have these names after a prefix.

    encoder.rnn.weight_ih_l0   the last word is l: of 130 records, only those with such an array are tried
    encoder.norm.bias          only `bias` after "encoder.norm.": no record is complete at this prefix

A spelling is a pattern for the names of a record's template. Records share spellings, and each spelling is
matched once. A record is complete at a prefix if all its arrays are present, except for optional ones.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from heapq import nsmallest
from string import ascii_letters
from typing import Any, TypeVar

from stepnet.compiler.values.records import dataclass
from stepnet.layout.record import Record
from stepnet.layout.registry import records

DIGITS = re.compile(r"\d+\Z")
Key = TypeVar("Key")


@dataclass(frozen=True)
class Group:
    """Arrays at one prefix whose names match a record (the layout of one kind of layer).

    names: the full names, by the names without the prefix.
    """

    record: Record
    prefix: str
    names: Mapping[str, str]


@dataclass(frozen=True)
class Spelling:
    """The possible names of one array of a layout, after any prefix.

    pattern: a regular expression for the names; its group 1 is the prefix.
    tails: the endings of the names.
    users: the indices of the records (layouts) that have the array.
    """

    pattern: re.Pattern[str]
    tails: tuple[str, ...]
    users: tuple[int, ...]

    def match(self, name: str, lettered: str) -> re.Match[str] | None:
        """Matches an array's name; returns a match whose group 1 is the prefix, or None if the name does not
        match. `lettered`, the name without the digits at its end, is tested first because that is faster.
        """
        return self.pattern.fullmatch(name) if lettered.endswith(self.tails) else None


@dataclass(frozen=True)
class Index:
    """The spellings (patterns for array names) of some records (layouts), both referred to by their indices.

    own, needed: for each record, its spellings, and the spellings of its required arrays.
    by_word: the spellings, by the last word of a name.
    by_first: the records, by the first spelling of a required array.
    """

    records: tuple[Record, ...]
    spellings: tuple[Spelling, ...]
    own: tuple[frozenset[int], ...]
    needed: tuple[frozenset[int], ...]
    by_word: Mapping[str, tuple[int, ...]]
    by_first: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class Spelled:
    """Names of arrays, matched with the spellings (patterns for array names) of an index.

    marked: whether layers must match the marks of records.
    names: all names, matched or not.
    matches: the matches, by prefix. A match is one number, to save memory: the index of the name times the
        number of spellings, plus the index of the spelling.
    shortest: for names that match after several prefixes, the length of the shortest prefix for each
        spelling, by the index of the name; equal mappings are shared.
    """

    index: Index
    marked: bool
    names: Sequence[str]
    matches: Mapping[str, list[int]]
    shortest: Mapping[int, Mapping[int, int]]

    def complete_groups(self) -> Iterator[Group]:
        """Yields each set of arrays that may be a layer, whose shapes `find` then tests: arrays with a common
        prefix that include all those that a record (a layout of weights) requires, if the layer's name
        matches the record's mark (`is_meant`). They are ordered by record, then by name.
        """
        prefixes: dict[int, list[str]] = {}  # groups are built one at a time, because there may be very many
        for prefix, entries in self.matches.items():
            names_by_spelling = self.by_spelling(entries)
            for spelling_index in names_by_spelling:
                for record_index in self.index.by_first.get(spelling_index, ()):
                    if self.index.needed[record_index] <= names_by_spelling.keys() and self.is_meant(
                        record_index, prefix
                    ):
                        prefixes.setdefault(record_index, []).append(prefix)
        for record_index in sorted(prefixes):
            for prefix in prefixes[record_index]:
                group = self.group(record_index, prefix)[1]
                if group.names:
                    yield group

    def nearly(self, most: int) -> Iterator[tuple[tuple[int, int], tuple[int, int], Group]]:
        """Yields the candidates for layers (a record at a prefix) that are nearest to complete, the nearest
        first, for a message about a missing layer.

        most: the largest number of candidates. Yields tuples (a lower bound of the measure of `find.misfits`;
        (the index of the record, that of the first name); the arrays).
        """
        for least, record_index, _, prefix in nsmallest(most, self.incomplete_groups(most)):
            first_name, arrays = self.group(record_index, prefix)
            if arrays.names:
                yield least, (record_index, first_name), arrays

    def incomplete_groups(self, most: int) -> Iterator[tuple[tuple[int, int], int, int, str]]:
        """Yields the incomplete layers that a message about a missing layer may mention: a record (a layout
        of weights) at a prefix where at least half of the arrays that it requires are present.

        most: the largest number of prefixes that are used among those with equally many names for the same
        arrays. Yields tuples (a lower bound of the measure of `find.misfits`, by which the nearest are
        chosen; the index of the record; the index of the first name; the prefix).
        """
        marks = {record.mark for record in self.index.records if record.mark}
        prefix_counts: Counter[Any] = Counter()
        for prefix, entries in self.matches.items():
            names_by_spelling = self.by_spelling(entries)
            counts = {spelling_index: len(names) for spelling_index, names in names_by_spelling.items()}
            layer_name = innermost_name(prefix)
            kind = frozenset(counts.items()), frozenset(mark for mark in marks if re.search(mark, layer_name))
            prefix_counts[kind] += 1
            if prefix_counts[kind] > most:
                continue
            for record_index in {
                layout_index
                for spelling_index in names_by_spelling
                for layout_index in self.index.spellings[spelling_index].users
            }:
                spellings, needed = (
                    self.index.own[record_index] & names_by_spelling.keys(),
                    self.index.needed[record_index],
                )
                if 2 * len(spellings & needed) < len(
                    needed
                ):  # a bias alone is no sign of a record: most layers have one
                    continue
                if self.is_meant(record_index, prefix):
                    present, missing = (
                        sum(counts[spelling_index] for spelling_index in spellings),
                        len(needed - spellings),
                    )
                    first_name = min(names_by_spelling[spelling_index][0] for spelling_index in spellings)
                    yield (min(missing - present, present), -present), record_index, first_name, prefix

    def by_spelling(self, entries: Iterable[int]) -> dict[int, list[int]]:
        """Decodes matches: returns the indices of the matched names by spelling (name pattern) index. Each
        match is one number, the name's index * the number of spellings + the spelling's index.
        """
        names_by_spelling: dict[int, list[int]] = {}
        for entry in entries:
            name_index, spelling = divmod(entry, len(self.index.spellings))
            names_by_spelling.setdefault(spelling, []).append(name_index)
        return names_by_spelling

    def is_meant(self, record_index: int, prefix: str) -> bool:
        """Tells if a layer's name, the end of `prefix`, fits the record's mark (a pattern), if it counts."""
        mark = self.index.records[record_index].mark
        return not self.marked or not mark or re.search(mark, innermost_name(prefix)) is not None

    def group(self, record_index: int, prefix: str) -> tuple[int, Group]:
        """Returns the arrays of a record (a layout of weights) at a prefix as a `Group`, after the index of
        the first of their names among all names. The group is empty if its names belong to a shorter prefix
        (see `is_shortest`).
        """
        spellings, length, count = self.index.own[record_index], len(prefix), len(self.index.spellings)
        matches: list[int] = []
        for entry in self.matches[prefix]:
            name_index, spelling = divmod(entry, count)
            if spelling in spellings and (
                name_index not in self.shortest or self.is_shortest(name_index, spellings, length)
            ):
                matches.append(name_index)
        short_names = {name[length:]: name for name in map(self.names.__getitem__, matches)}
        return matches[0] if matches else 0, Group(self.index.records[record_index], prefix, short_names)

    def is_shortest(self, name_index: int, spellings: frozenset[int], length: int) -> bool:
        """Tells if, of the record's spellings (name patterns) that match a name after some prefix, none does
        so after a prefix shorter than `length`: `recurrent_kernel` is not `kernel` with the prefix
        "recurrent_" if the record has both. name_index, spellings: the indices of the name and of the
        record's spellings.
        """
        lengths = self.shortest[name_index]
        return all(lengths[spelling] >= length for spelling in spellings & lengths.keys())


def match_names(names: Iterable[str], among: Iterable[Record] | None, marked: bool | None = None) -> Spelled:
    """Matches the names of arrays with the array names of records (layouts of weights); returns the matches,
    in which `find` looks for layers.

    among: the records; None for all. marked: whether the name of a layer must match the mark of its record (a
    pattern such as lstm, for layouts whose array names are common); by default only if `among` is None.
    """
    lookup = full_index() if among is None else index(tuple(among))
    matches: dict[str, list[int]] = {}
    shortest: dict[int, dict[int, int]] = {}
    shared_lengths: dict[tuple[tuple[int, int], ...], dict[int, int]] = {}
    count = len(lookup.spellings)
    all_names = list(names)
    for name_index, name in enumerate(all_names):
        lettered = DIGITS.sub("", name)
        lengths: dict[int, int] = {}
        for spelling_index in lookup.by_word.get(trailing_letters(lettered), ()):
            if match := lookup.spellings[spelling_index].match(name, lettered):
                matches.setdefault(match[1], []).append(name_index * count + spelling_index)
                lengths[spelling_index] = match.end(1)
        if len(set(lengths.values())) > 1:
            shortest[name_index] = shared_lengths.setdefault(tuple(lengths.items()), lengths)
    return Spelled(lookup, among is None if marked is None else marked, all_names, matches, shortest)


def trailing_letters(name: str) -> str:
    """Returns the letters at the end of a name, as a key to look up the layouts (arrangements of weights)
    that may have such an array.

    >>> trailing_letters("encoder.weight_ih_l"), trailing_letters("dense_1/kernel")
    ('l', 'kernel')
    """
    return name[len(name.rstrip(ascii_letters)) :]


def innermost_name(prefix: str) -> str:
    """Returns the name of the innermost layer in a prefix of arrays' names, in lower case, to compare it with
    the names of cells and with the marks of layouts (patterns for such names).

    >>> innermost_name("encoder/basic_lstm_cell/")
    'basic_lstm_cell'
    """
    return re.split(r"[./]", prefix.rstrip("./_"))[-1].lower()


@cache
def full_index() -> Index:
    """Returns the index of the array names of all known layouts; it is built once."""
    return index(tuple(records().values()))


def index(layouts: tuple[Record, ...]) -> Index:
    """Builds the index that finds which of these records (layouts of weights) have an array of a given name:
    by patterns for their arrays' names, which several records may share.
    """
    patterns = [record.prefixed_patterns for record in layouts]
    tails = {
        text: record.tails(template)
        for record in layouts
        for template, text in record.prefixed_patterns.items()
    }
    index_of = {text: number for number, text in enumerate(tails)}
    needed = [
        [index_of[text] for template, text in texts.items() if not template.endswith("?")]
        for texts in patterns
    ]
    spellings_of = [frozenset(index_of[text] for text in texts.values()) for texts in patterns]
    users = inverse(enumerate(spellings_of))
    return Index(
        layouts,
        tuple(Spelling(re.compile(text), tails[text], users[number]) for text, number in index_of.items()),
        tuple(spellings_of),
        tuple(map(frozenset, needed)),
        inverse((index_of[text], map(trailing_letters, ends)) for text, ends in tails.items()),
        inverse((at, first[:1]) for at, first in enumerate(needed)),
    )


def inverse(values_at: Iterable[tuple[int, Iterable[Key]]]) -> dict[Key, tuple[int, ...]]:
    """Inverts a mapping from indices to values, for look-ups: returns the indices at which each value occurs.

    >>> inverse([(0, "ab"), (1, "b")])
    {'a': (0,), 'b': (0, 1)}
    """
    indices: dict[Key, dict[int, None]] = {}
    for index, values in values_at:
        for value in values:
            indices.setdefault(value, {})[index] = None
    return {value: tuple(found) for value, found in indices.items()}
