"""Recurrent layers that lack an array, or have one with a wrong name or shape.

    decoder/kernel, decoder/recurent_kernel, decoder/bias     recurrent_kernel has a wrong name
    decoder/kernel, decoder/bias                              any layer may have these

`find` leaves such a layer out, as it does layers of other kinds. It is told from these by the names of the
arrays that it has. Which names are evidence of a recurrent layer follows from the records. Names of required
arrays in records with a mark are common, and so are single letters, except for those of recurrent weights and
biases. A long name of several words is evidence by itself (`weight_hh_l0`). Any other is evidence if half of
the record's arrays are there, or if the layer has the name of its cell (`encoder/gru_1`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from itertools import islice
from string import ascii_letters
from typing import Any

from stepnet.compiler.values.records import dataclass
from stepnet.layout.find import ALIKE, MOST_TRIED, misfits, missing_text
from stepnet.layout.names import Group, Index, innermost_name, match_names
from stepnet.layout.possible import axes_of
from stepnet.layout.record import Record
from stepnet.layout.registry import records
from stepnet.layout.sizes import Shape, Sizes

MOST = 20  # the most damaged layers that are listed
LONG = 5  # the letters that a name of several words needs to be evidence by itself
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


@dataclass(frozen=True)
class Damage:
    """A recurrent layer that lacks an array, or has one with a wrong name or shape.

    Attributes:
        prefix: The prefix of the names of its arrays.
        names: The full names of the arrays that it has.
        layout: The name of the layout that comes nearest.
        reason: Why the arrays do not fit that layout, for a message.
    """

    prefix: str
    names: tuple[str, ...]
    layout: str
    reason: str


@dataclass(frozen=True)
class LayerEvidence:
    """Names of a layout's arrays by how strongly they hint at a recurrent layer; each is an index of a
    spelling (name pattern).

    names: spellings that are evidence only together with others of the layout (see `has_evidence`).
    long: the spellings among `names` with more than one letter.
    alone: spellings that are evidence by themselves.
    usual: spellings that are evidence only in a layer named after its cell, such as `gru_1`: names of
        required weights (in a record with a mark also of biases) with more than one letter.
    """

    names: frozenset[int]
    long: frozenset[int]
    alone: frozenset[int]
    usual: frozenset[int]


def damaged(shapes: Mapping[str, Shape], among: Iterable[Record]) -> tuple[Damage, ...]:
    """Returns at most `MOST` damaged layers among arrays that belong to no layer, in the order of the arrays.
    No array is in two of them: candidates with the fewest wrong arrays, less the right ones, are taken first.

    shapes: the arrays' shapes by name. among: the layouts (arrangements of weights) that the file may have,
    the most likely first.

    >>> from stepnet.layout import record
    >>> arrays = {"rnn.weight_ih_l0": (9, 2), "rnn.weight_hh_l0": (9, 4), "head.weight": (5, 3)}
    >>> for layer in damaged(arrays, [record("torch.gru")]):
    ...     print(layer.layout, "--", layer.reason)
    torch.gru -- rnn.weight_hh_l0 has shape (9, 4) where (9, 3) is expected of 2 inputs, 3 hidden
    """
    order = {name: position for position, name in enumerate(shapes)}
    measures: dict[Any, tuple[int, int]] = {}
    found: list[tuple[Any, Group]] = []
    for candidate in islice(candidates(shapes, tuple(among)), MOST_TRIED):
        record, names = candidate.record, candidate.names
        key = record.name, tuple((short_name, shapes[name]) for short_name, name in names.items())
        if key not in measures:  # layers that differ only in the prefix are equally near
            measures[key] = misfits(record, candidate.prefix, names, shapes)[0]
        wrong, count = measures[key]
        found.append(((wrong, not is_named_after(record, candidate.prefix), count), candidate))
    used: set[str] = set()
    layers: list[Damage] = []
    for _, candidate in sorted(found, key=lambda measured: measured[0]):
        names = candidate.names.values()
        if used.isdisjoint(names):
            used.update(names)
            ordered = tuple(sorted(names, key=order.__getitem__))
            layers.append(Damage(candidate.prefix, ordered, candidate.record.name, reason(candidate, shapes)))
    return tuple(sorted(layers, key=lambda layer: order[layer.names[0]])[:MOST])


def reason(candidate: Group, shapes: Mapping[str, Shape]) -> str:
    """Returns the reason why the arrays of a candidate layer do not fit its layout (a framework's arrangement
    of weights), for a message: the first array with a wrong name, or else the arrays with wrong shapes and
    the missing ones.

    shapes: the shapes of all arrays, by full name.
    """
    record, prefix, names = candidate.record, candidate.prefix, candidate.names
    for short_name, name in names.items():
        if name != prefix + short_name:
            return missing_text(prefix, short_name, [name[len(prefix) :]])
    used = set(names.values())
    others = [name[len(prefix) :] for name in shapes if name.startswith(prefix) and name not in used]
    return misfits(record, prefix, names, shapes, others)[1]


def candidates(shapes: Mapping[str, Shape], among: tuple[Record, ...]) -> Iterator[Group]:
    """Yields candidates for damaged layers, by prefix of array names and then by layout (arrangement of
    weights). A candidate is a record (the layout of a kind of layer) at a prefix whose arrays do not all fit
    it. It has distinctive names (`has_evidence`), or a name that is almost a distinctive one, or common names
    in a layer that is named after its cell. Layers whose weights are no matrices are left out.

    shapes: the shapes of arrays that belong to no layer, by name. among: the layouts to look for.
    """
    matched_names = match_names(shapes, among, marked=True)
    index = matched_names.index
    evidence = [evidence_of(record, index) for record in index.records]
    wrong_names = misspelled(shapes, among)
    convincing: dict[frozenset[int], dict[int, bool]] = {}
    for prefix, entries in matched_names.matches.items():
        present = frozenset(matched_names.by_spelling(entries))
        if present not in convincing:  # many prefixes have the same kinds of names
            layout_indices = sorted(
                {layout_index for spelling in present for layout_index in index.spellings[spelling].users}
            )
            convincing[present] = {
                layout_index: has_evidence(index, evidence[layout_index], layout_index, present)
                for layout_index in layout_indices
            }
        for layout_index, is_evidence in convincing[present].items():
            record, renamed = index.records[layout_index], dict[str, str]()
            if not is_evidence:
                wrong = wrong_names.get(prefix, {})
                renamed = {
                    short_name: name
                    for short_name, name in wrong.items()
                    if record.parsed_name(short_name) is not None
                }
                is_usual = (
                    not evidence[layout_index].usual.isdisjoint(present)
                    or len(index.needed[layout_index] & present) > 1
                )
                if not renamed and not (is_usual and is_named_after(record, prefix)):
                    continue
            if matched_names.is_meant(layout_index, prefix):
                names = {**renamed, **matched_names.group(layout_index, prefix)[1].names}
                if names and is_of_matrices(
                    record, {short_name: shapes[name] for short_name, name in names.items()}
                ):
                    yield Group(record, prefix, names)


def evidence_of(record: Record, index: Index) -> LayerEvidence:
    """Sorts the array names of a layout (a framework's arrangement of weights) by how strongly they hint at a
    recurrent layer; returns the indices of their name patterns in `index`, in the sets of `LayerEvidence`.
    Names that other layers have too are no evidence, and names of one letter only if the array holds
    recurrent weights (R) or their bias (d).
    """
    indices = {
        spelling.pattern.pattern: spelling_index for spelling_index, spelling in enumerate(index.spellings)
    }
    names, long, alone, usual = set[int](), set[int](), set[int](), set[int]()
    for template, text in record.prefixed_patterns.items():
        name, spelling_index = fixed_text(template), indices[text]
        letters, parameters = sum(map(name.count, ascii_letters)), record.parameters(template)
        is_usual = letters > 1 and not template.endswith("?") and bool(record.mark or parameters & {*"WR"})
        usual |= {spelling_index} if is_usual else set()
        if name in common() or not parameters & {*("WRbd" if letters > 1 else "Rd")}:
            continue
        names.add(spelling_index)
        long |= {spelling_index} if letters > 1 else set()
        alone |= {spelling_index} if is_distinctive(name) else set()
    return LayerEvidence(frozenset(names), frozenset(long), frozenset(alone), frozenset(usual))


def fixed_text(template: str) -> str:
    """Returns the fixed text of a template of an array's name: without layer, direction and the ? at its end.

    >>> fixed_text("weight_hh_l{L}{D}"), fixed_text("{D}{L}_i2h_weight"), fixed_text("bias?")
    ('weight_hh_l', '_i2h_weight', 'bias')
    """
    return re.sub(r"\{[LDC]/?\}|\?$", "", template)


def is_distinctive(name: str) -> bool:
    """Tells if an array's name alone is evidence of a recurrent layer: of several words, of `LONG` letters or
    more, and without a path to a layer in a layer.

    >>> [is_distinctive(name) for name in ("weight_hh", "WeightH", "w_h", "weights", "gates/kernel")]
    [True, True, False, False, False]
    """
    trailing_words = WORD.findall(name)
    return (
        len(trailing_words) > 1 and sum(map(len, trailing_words)) >= LONG and re.search("[./]", name) is None
    )


def misspelled(shapes: Iterable[str], among: Iterable[Record]) -> dict[str, dict[str, str]]:
    """Finds arrays whose names are almost, but not exactly, those of recurrent weights or biases in the
    layouts (arrangements of weights) `among` that are evidence alone (`is_distinctive`). shapes: the names of
    all arrays. Returns the full names: by prefix, then by the name that was meant.
    """
    distinctive: dict[str, None] = {}
    for record in among:
        for entry in record.entries(Sizes(1, 1)):
            last_part = fixed_text(entry.template)
            if (
                last_part not in common()
                and record.parameters(entry.template) & {*"Rd"}
                and is_distinctive(last_part)
            ):
                distinctive[entry.name] = None
    near: dict[str, list[str]] = {}
    found: dict[str, dict[str, str]] = {}
    for name in shapes:
        last_part = re.split("[./]", name)[-1]
        if last_part not in near:
            near[last_part] = (
                [] if last_part in distinctive else get_close_matches(last_part, distinctive, 1, ALIKE)
            )
        for expected in near[last_part]:
            found.setdefault(name.removesuffix(last_part), {})[expected] = name
    return found


@cache
def common() -> frozenset[str]:
    """Returns array names that are no evidence of a recurrent layer, because other layers have them too, such
    as `kernel`: the required arrays of layouts (arrangements of weights) that are recognised only with a
    layer's name (`Record.mark`).
    """
    marked = [record for record in records().values() if record.mark]
    return frozenset(name for record in marked for name in record.arrays if not name.endswith("?"))


def has_evidence(index: Index, evidence: LayerEvidence, record_index: int, present: frozenset[int]) -> bool:
    """Tells if the array names at a prefix are enough evidence of a layer of one layout (a framework's
    arrangement of weights) to report it as damaged: a name that is evidence by itself; or one that is
    evidence with half of the layout's arrays, or, if it has several letters, with half of the required
    arrays; or the names of all required arrays.

    record_index: the index of the layout. evidence: the names of its arrays that are evidence. present: the
    names at the prefix. Names are indices of spellings (name patterns).
    """
    layout_names, needed = index.own[record_index], index.needed[record_index]
    return (
        not evidence.alone.isdisjoint(present)
        or (not evidence.names.isdisjoint(present) and 2 * len(layout_names & present) >= len(layout_names))
        or (not evidence.long.isdisjoint(present) and 2 * len(needed & present) >= len(needed))
        or needed <= present
    )


def is_named_after(record: Record, prefix: str) -> bool:
    """Tells whether a layer, whose name is the end of `prefix`, is named after the cell of a layout (a
    framework's arrangement of weights), as "encoder.lstm_1" is; "cell" and a number at the end do not matter.

    >>> from stepnet.layout import record
    >>> lstm = record("keras.lstm")
    >>> [is_named_after(lstm, prefix) for prefix in ("encoder/lstm_1/", "LSTMCell_0/", "lstm_head/")]
    [True, True, False]
    """
    return re.search(rf"{record.cell}(_?cell)?(_?\d+)?$", innermost_name(prefix)) is not None


def is_of_matrices(record: Record, shapes: Mapping[str, Shape]) -> bool:
    """Tells if any weight (W or R, input or recurrent) among arrays has as many axes as in a layout (a
    framework's arrangement of weights), or if no array is a weight. A convolutional layer, which is to be
    left out, may have arrays of the same names, with more axes. `shapes` are by the layout's names.
    """
    fitting: list[bool] = []
    for short_name, shape in shapes.items():
        parsed = record.parsed_name(short_name)
        if parsed is not None and record.parameters(parsed[0]) & {*"WR"}:
            fitting.append(axes_of(record.patterns[parsed[0]]) == len(shape))
    return any(fitting) or not fitting
