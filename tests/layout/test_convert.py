"""Conversions between every two records: the same function, and there and back, bit for bit where that is
said; what is refused is refused for reasons that are true.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tolerance import assert_close

import stepnet as sn
from stepnet.errors import ConversionError
from stepnet.layout import Conversion, Record, Semantics, Sizes, convert, records, registry
from stepnet.layout.moves import Move
from stepnet.layout.places import ParameterBlock
from stepnet.layout.semantics import FIELDS, SYMMETRIC, Setting
from tests.layout.layout_cases import (
    DTYPES,
    Array,
    Arrays,
    Case,
    bits,
    cases,
    outputs,
    rounded,
    same_bits,
    tamed,
    values,
    views,
    weights,
)

CASES = cases()
SIZES = Sizes(inputs=2, hidden=3, projected=2)
SQUARE = Sizes(inputs=2, hidden=3, projected=3)  # at which a projection may change nothing


def there(case: Case, target: Record, sizes: Sizes, arrays: Mapping[str, Any], **options: Any) -> Conversion:
    return convert(arrays, case.record, target, sizes=sizes, semantics=case.open_fields, **options)


def back(case: Case, done: Conversion) -> Conversion:
    """A conversion undone, with what its report says."""
    report = done.report
    given = report.open_fields | {"target": case.open_fields}
    return convert(done.arrays, report.target, case.record, sizes=report.target_sizes, semantics=given)


@cache
def alike(cell: str) -> tuple[Record, ...]:
    return tuple(record for record in records().values() if record.cell == cell)


# ---- every two ---------------------------------------------------------------------------------------------


Share = Callable[[Case, list[Record], int, int], list[Record]]


@pytest.fixture
def share(request: pytest.FixtureRequest) -> Share:
    """A function that gives one of so many parts of a case's targets, all with --long: all turns together
    are all of them, and case by case another part begins.
    """

    def share(case: Case, targets: list[Record], turn: int, parts: int) -> list[Record]:
        long = request.config.getoption("--long")
        first = 0 if long else (CASES.index(case) + turn) % parts
        return targets[first :: 1 if long else parts]

    return share


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_pair(case: Case, share: Share):
    """From a record to others: what is made is the same function and comes back; what can be is made.

    To a twentieth of the others, and to all of them in `make test-long`.
    """
    for directions, every in by_directions(case).items():
        targets = share(case, every, 0, 20)
        sizes, square = (case.sizes(replace(each, directions=directions)) for each in (SIZES, SQUARE))
        refused = pairs(case, sizes, weights(case.record, sizes), targets)
        left = pairs(case, square, tame(case.record, square), refused)
        assert not [target.name for target in left if possible(case, target, directions)]


def by_directions(case: Case) -> dict[int, list[Record]]:
    """The records of its cell by how many directions a layer is of that may become them: as many as theirs,
    or else one, but that of a case is always of its own.
    """
    made: dict[int, list[Record]] = {}
    for target in alike(case.record.cell):
        made.setdefault(case.record.ways or target.ways or 1, []).append(target)
    return made


ONE = Sizes(inputs=1, hidden=1, projected=1)
ZEROS = {"nothing": "", "biases and peepholes": "bdpq", "all": "WRbdpPq"}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("zero", ZEROS)
def test_every_pair_of_one_unit_and_of_zeros(case: Case, zero: str, share: Share):
    """A converted layer is the same function, and each reason of a refusal is true of these very numbers.

    Every sixth pair has its turn with one kind of zeros, and all with each kind in `make test-long`.
    """
    for directions, every in by_directions(case).items():
        targets = share(case, every, [*ZEROS].index(zero), 6 * len(ZEROS))
        sizes = case.sizes(replace(ONE, directions=directions))
        arrays = weights(case.record, sizes)
        for block, view in views(case.record, sizes, arrays).items():
            if block.parameter in ZEROS[zero]:
                view[...] = 0
        right = outputs(case.record, case.meaning, sizes, arrays)
        for target in targets:
            try:
                done = there(case, target, sizes, arrays)
            except ConversionError as error:
                assert_true(str(error), case, target, values(case.record, sizes, arrays))
            else:
                assert_same_function(done, right)


def pairs(case: Case, sizes: Sizes, arrays: Arrays, targets: list[Record]) -> list[Record]:
    """The targets that a case cannot become; what is made of it for all others is checked."""
    right = outputs(case.record, case.meaning, sizes, arrays)
    refused: list[Record] = []
    for target in targets:
        try:
            done = there(case, target, sizes, arrays)
        except ConversionError as error:
            assert_true(str(error), case, target, values(case.record, sizes, arrays))
            refused.append(target)
            continue
        assert possible(case, target, sizes.directions)
        assert_same_function(done, right)
        assert_comes_back(case, sizes, arrays, done)
    return refused


def tame(record: Record, sizes: Sizes) -> Arrays:
    """Weights that every layout has a place for."""
    found = tamed(record, sizes, weights(record, sizes))
    for block, view in views(record, sizes, found).items():
        if (block.parameter, block.gate) == ("R", "n") and record.cell != "rnn":
            view[...] *= np.eye(*view.shape) if view.ndim == 2 else np.eye(sizes.hidden).reshape(view.shape)
    return found


def assert_same_function(done: Conversion, right: Array):
    """Asserts that results in float64 are the same but for what the report lists as rounded."""
    report = done.report
    found = outputs(report.layout, report.target_semantics, report.target_sizes, done.arrays)
    assert_close(found, right, 3, 3, np.float64 if report.exact else np.float32)


LOST = "has a projection, and"  # what cannot be made again


def assert_comes_back(case: Case, sizes: Sizes, arrays: Arrays, done: Conversion):
    """Each number comes back, but for the two of a sum: these as their sum, and its roundings."""
    if case.record.projection and not done.report.layout.projection:
        with pytest.raises(ConversionError, match=LOST):
            back(case, done)
        return
    again = back(case, done)
    assert again.arrays.keys() <= arrays.keys()
    one, other = (values(case.record, sizes, these) for these in (arrays, again.arrays))
    summed = {term for move in moves(done, "summed") for term, _ in move.terms if len(move.terms) > 1}
    for block, right in one.items():
        if block not in other:
            assert not right.any(), block
        elif block in summed:
            away = np.abs(added(block, one) - added(block, other)).max()
            assert away <= (done.report.rounding + again.report.rounding) * (1 + 1e-12), block
        elif done.report.exact and again.report.exact:
            assert np.array_equal(other[block], right), block
        else:
            assert_close(other[block], right)


def moves(done: Conversion, kind: str) -> list[Move]:
    return [move for step in done.report.steps if step.kind == kind for move in step.moves]


def added(block: ParameterBlock, blocks: Mapping[ParameterBlock, Array]) -> Array:
    """Both biases of a gate as one, exactly: these are sums of two float32 numbers of like size."""
    both = [blocks.get(replace(block, parameter=parameter)) for parameter in "bd"]
    return np.sum([one.astype(np.float64) for one in both if one is not None], axis=0)


def possible(case: Case, target: Record, directions: int) -> bool:
    """True if weights that every layout has a place for can be the target's, by the two functions and by
    their numbers of directions.
    """
    source, taken = case.meaning, dict[str, set[Any]]()
    for name in FIELDS[target.cell]:
        value = getattr(source, name)
        known = target.semantics.get(name, getattr(Semantics(target.cell), name))
        if isinstance(known, Setting) and known.allows(value):
            taken.setdefault(known.name, set()).add(value)
        elif (
            known != value
            and name != "reset"  # these have a diagonal R_n
            and not (name == "update" and source.cell == "gru" and source.gate_activation in SYMMETRIC)
            and not (name == "forget_bias" and has_biases(target))
            and not (name == "coupled" and source.gate_activation in SYMMETRIC and not source.forget_bias)
        ):
            return False
    one_each = all(len(chosen) == 1 for chosen in taken.values())
    places = target.ways in (None, directions) and (case.record.projection or not target.projection)
    return one_each and places


def has_biases(target: Record) -> bool:
    return any(term.parameter in "bd" for term in target.terms())


def test_the_function_keeps_its_name():
    """The package of records, whose files are loaded when first asked for, has the same name."""
    assert records() is sn.layout.records() is registry.records()


# ---- why not -----------------------------------------------------------------------------------------------

Blocks = dict[ParameterBlock, Array]
Truth = Callable[[Case, Record, Blocks, re.Match[str]], bool]


def block_of(name: str) -> ParameterBlock:
    """The block of a name as reports have it: W_i, or P, or W_i, backward."""
    block, _, way = name.partition(", ")
    parameter, _, gate = block.partition("_")
    return ParameterBlock(parameter, gate, direction=int(way == "backward"))


def listed(text: str) -> list[str]:
    """The names, or equations, of "p_i, p_i, backward and p_f"."""
    return re.split(", (?!backward)| and ", text)


def each_is(names: str, value: str) -> str:
    """The equations of "p_i and p_f must be 0"."""
    return " and ".join(f"{name} = {value}" for name in listed(names))


def missed(blocks: Blocks, text: str) -> bool:
    """True if each equation of a text, such as "b_i + d_i = 0 and W_i = -W_f", fails for a number."""
    for part in listed(text):
        what, must = part.split(" = ")
        found = sum(blocks[block_of(name)].astype("f8") for name in what.split(" + "))
        wanted = -blocks[block_of(must[1:])] if "_" in must else float(must)
        if not np.any(found != wanted):
            return False
    return True


def no_place(case: Case, target: Record, blocks: Blocks, match: re.Match[str]) -> bool:
    named = [block_of(name) for names in listed(match[1]) for name in names.split(" + ")]
    terms = [(term.parameter, gate) for term in target.terms() for gate in term.gates or ("",)]
    held = any((block.parameter, block.gate) in terms for block in named)
    equations = match[2] if "=" in match[2] else each_is(match[1], match[2])
    return not held and missed(blocks, equations)


def only_reset(case: Case, target: Record, blocks: Blocks, match: re.Match[str]) -> bool:
    biases = {term.parameter for term in target.terms() if term.parameter in "bd" and "n" in term.gates}
    return biases <= {"d"} and target.semantics["reset"] == "after" and missed(blocks, each_is(match[1], "0"))


def no_projection(case: Case, target: Record, blocks: Blocks, match: re.Match[str]) -> bool:
    named = [blocks[block_of(name)] for name in listed(match[1])]
    return not target.projection and not any(np.array_equal(one, np.eye(*one.shape)) for one in named)


def projects(case: Case, target: Record, blocks: Blocks, match: re.Match[str]) -> bool:
    has, none = (target, case.record) if target.projection else (case.record, target)
    return match.groups() == (has.name, none.name) and has.projection and not none.projection


def not_coupled(case: Case, target: Record, blocks: Blocks, match: re.Match[str]) -> bool:
    equations = match[1] if "=" in match[1] else each_is(match[1], match[2])
    return target.semantics.get("coupled") is True and missed(blocks, equations)


def no_forget_bias(case: Case, target: Record, blocks: Blocks, match: re.Match[str]) -> bool:
    return case.meaning.forget_bias != target.semantics.get("forget_bias", 0.0) and not has_biases(target)


def resets(case: Case, target: Record, blocks: Blocks, match: re.Match[str]) -> bool:
    one, other = case.meaning.reset, target.semantics["reset"]
    source, name, theirs, names, same = match.groups()
    squares = [blocks[block_of(square)] for square in listed(names)]
    diagonal = any(np.array_equal(square, np.diag(np.diag(square))) for square in squares)
    said = (source, name, theirs, same) == (one, target.name, other, one)
    return said and one != other and not diagonal


def resets_no_bias(case: Case, target: Record, blocks: Blocks, match: re.Match[str]) -> bool:
    return (
        match[1] == target.name
        and target.semantics["reset"] == "before"
        and missed(blocks, each_is(match[2], "0"))
    )


def minimal(case: Case, target: Record, blocks: Blocks, match: re.Match[str]) -> bool:
    return case.record.cell == "mgu" and case.meaning.update != target.semantics.get("update", "keep")


def is_another(case: Case, target: Record, blocks: Blocks, match: re.Match[str]) -> bool:
    field, value, theirs = match.groups()
    known = target.semantics.get(field, getattr(Semantics(target.cell), field))
    fits = known.allows(value) if isinstance(known, Setting) else known == value
    return getattr(case.meaning, field) == value != theirs and not fits


COUNTS = {"one direction": 1, "both directions": 2}


def of_directions(case: Case, target: Record, blocks: Blocks, match: re.Match[str]) -> bool:
    theirs, own = (COUNTS[count] for count in match.groups()[1:])
    here = len({block.direction for block in blocks})
    return (match[1], theirs, own) == (target.name, target.ways, here) and theirs != own


REASONS: dict[str, Truth] = {
    r"(\S+) is of (one direction|both directions), and here (one direction|both directions) would be": (
        of_directions
    ),
    r"the target has no place for ([^;]+?), so \1 must be (\S+), and \w+ \w+ not": no_place,
    r"the target has no place for ([^;]+?), so ([^;]+) must hold, and they do not": no_place,
    r"the target has no bias of n that it does not reset, so ([^;]+?) must be 0, "
    r"and \w+ \w+ not": only_reset,
    r"the target has no projection, so (P[^;]*?) must be the identity, and \w+ \w+ not": (no_projection),
    r"(\S+) has a projection(?: to 2)?, and (\S+) has none": projects,
    r"i is 1 - f in the target, so ([^;=]+?) must be (\S+), and \w+ \w+ not": not_coupled,
    r"i is 1 - f in the target, so ([^;]+) must hold, and they do not": not_coupled,
    r"(\S+) resets no bias, so (d_n[^;]*?) must be 0, and \w+ \w+ not": resets_no_bias,
    r"the target has no bias for f that takes \S+": no_forget_bias,
    r"the source resets (\w+) the recurrent product and (\S+) (\w+) it: R_n \(r h\) and r \(R_n h\) are "
    r"equal for every r only if R_n is diagonal, so (R_n[^;]*?) must be diagonal, and \w+ \w+ "
    r"not; a target that resets (\w+) it asks for no such R_n": resets,
    r"the update gate also resets, and negating its weights would invert both": minimal,
    r"the source's (\w+) is (\S+), and \S+ has (\S+): these are different functions": is_another,
}


def assert_true(text: str, case: Case, target: Record, blocks: Blocks):
    """A refusal names at least one reason, all of which are known here and true."""
    rest = text.removeprefix(f"{case.record.name} cannot become {target.name}: ")
    assert rest != text
    reasons = 0
    for pattern, true in REASONS.items():
        for match in re.finditer(pattern, rest):
            assert true(case, target, blocks, match), match[0]
            reasons += 1
        rest = re.sub(pattern, "", rest)
    assert reasons
    assert not rest.strip("; "), text


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm", "mgu"])
def test_cells_are_not_one_another(cell: str):
    first = {case.record.cell: case for case in reversed(CASES)}
    case = first.pop(cell)
    sizes = case.sizes(SIZES)
    for other in first.values():
        name = other.record.name
        with pytest.raises(
            ConversionError, match=f"cannot become {name}: the cell of {case.record.name} is {cell}, and"
        ):
            there(case, other.record, sizes, weights(case.record, sizes))


# ---- any numbers, any sizes, any arrays --------------------------------------------------------------------


def held(array: Array, form: str) -> Array:
    """The same numbers, otherwise in memory."""
    if form == "fortran":
        return np.asfortranarray(array)
    if form == "backwards":
        flipped = np.flip(array).copy()
        return np.flip(flipped)
    if form == "gaps":
        wide = np.repeat(array, 3, axis=-1)
        return wide[..., ::3]
    if form == "read only":
        array = array.copy()
        array.flags.writeable = False
        return array
    if form == "big endian" and array.dtype.kind == "f":
        return array.astype(array.dtype.newbyteorder(">"))
    return array.copy()


ENOUGH = 100  # conversions of random weights that are made, of 400
FORMS = ("plain", "fortran", "backwards", "gaps", "read only", "big endian")
SPECIALS = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0**-24, -(2.0**-133), 6e4, -3e38)


def numbers(kind: str, shape: tuple[int, ...], dtype: np.dtype[Any], random: np.random.Generator) -> Array:
    """Numbers of a kind: any bits at all, those that are hard, whole ones, and none."""
    if kind == "any bits":
        whole = random.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
        return whole.view(dtype)[..., 0].copy()
    with np.errstate(over="ignore"):
        if kind == "special":
            return random.choice(SPECIALS, shape).astype(dtype)
        return (random.integers(-4, 5, shape) if kind == "whole" else np.zeros(shape)).astype(dtype)


@st.composite
def conversions(draw: Any) -> tuple[Case, Record, Sizes, Arrays]:
    """A case with weights, and a target: arrays in any form."""
    case = draw(st.sampled_from(CASES))
    target = draw(st.sampled_from(alike(case.record.cell)))
    hidden = draw(st.integers(1, 4))
    layers, directions = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    projected = draw(st.integers(1, hidden))
    sizes = case.sizes(Sizes(draw(st.integers(1, 4)), hidden, projected, layers, directions))
    dtype = DTYPES[draw(st.sampled_from(list(DTYPES)))]
    kind = draw(st.sampled_from(("any bits", "special", "whole", "zeros")))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    shapes = {name: array.shape for name, array in weights(case.record, sizes).items()}
    arrays = {name: numbers(kind, shape, dtype, random) for name, shape in shapes.items()}
    zero = draw(st.sampled_from(("pq", "bdpq", None)))
    if zero:
        arrays = tamed(case.record, sizes, arrays, zero)
    forms = st.sampled_from(FORMS)
    return case, target, sizes, {name: held(array, draw(forms)) for name, array in arrays.items()}


def test_every_number_is_where_and_what_the_report_says():
    """Moved and negated bit for bit, summed exactly and then rounded to the nearest; nothing else happens."""
    made: list[str] = []

    @settings(max_examples=400)
    @given(conversions())
    def check(drawn: tuple[Case, Record, Sizes, Arrays]):
        if reports_what_it_did(drawn):
            made.append(str(drawn[0]))

    check()
    assert len(made) > ENOUGH


def reports_what_it_did(drawn: tuple[Case, Record, Sizes, Arrays]) -> bool:
    """True if weights were converted; asserts that the conversion is as the report says."""
    case, target, sizes, arrays = drawn
    before = {name: array.copy() for name, array in arrays.items()}
    try:
        done = there(case, target, sizes, arrays)
    except ConversionError:
        return False
    finally:
        assert all(same_bits(arrays[name], array) for name, array in before.items())
    native = {name: array.astype(array.dtype.newbyteorder("=")) for name, array in before.items()}
    found = values(target, done.report.target_sizes, done.arrays)
    source = values(case.record, sizes, native)
    assert {move.target for step in done.report.steps for move in step.moves} == set(found)
    for step in done.report.steps:
        rounding = max(assert_made(move, source, found[move.target]) for move in step.moves)
        assert step.rounding == pytest.approx(rounding, rel=1e-12, abs=0)
    for array in done.arrays.values():
        assert array.dtype == next(iter(native.values())).dtype
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert not any(np.shares_memory(array, one) for one in arrays.values())
    return True


def assert_made(move: Move, source: Blocks, found: Array) -> float:
    """A block of the target is what a move makes of those of the source. Its largest rounding."""
    terms = [(source[block], sign) for block, sign in move.terms]
    if move.kind == "filled":
        assert same_bits(found, np.full_like(found, move.constant))
        return 0.0
    if move.kind in ("moved", "negated"):
        [(block, sign)] = terms
        flipped = bits(block) ^ (0 if sign > 0 else np.array(1 << 8 * block.itemsize - 1, bits(block).dtype))
        assert np.array_equal(bits(found), flipped)
        return 0.0
    constants = [Fraction(move.constant)] if move.constant else []
    roundings = [0.0]
    for place in np.ndindex(found.shape):
        added = [float(block[place]) * sign for block, sign in terms]
        if all(map(np.isfinite, added)):
            exactly = sum(map(Fraction, added), sum(constants, Fraction()))
            assert found[place] == rounded(exactly, found.dtype)
            away = Fraction(float(found[place])) - exactly if np.isfinite(found[place]) else np.inf
            roundings.append(abs(float(away)))
        else:
            with np.errstate(invalid="ignore"):
                assert np.array_equal(float(found[place]), np.sum(added), equal_nan=True)
    return max(roundings)


def test_there_and_back():
    """Whatever is only moved and negated comes back with all its bits, of any layers and directions."""
    numbers: list[int] = []

    @settings(max_examples=200)
    @given(conversions())
    def check(drawn: tuple[Case, Record, Sizes, Arrays]):
        if kept := blocks_that_come_back(drawn):
            numbers.append(kept)

    check()
    assert len(numbers) > ENOUGH // 2


def blocks_that_come_back(drawn: tuple[Case, Record, Sizes, Arrays]) -> int:
    """The number of blocks that came back, each with all its bits; 0 if the weights are not converted."""
    case, target, sizes, arrays = drawn
    try:
        done = there(case, target, sizes, arrays)
        again = back(case, done)
    except ConversionError:
        return 0
    kept = {block for kind in ("moved", "negated") for move in moves(done, kind) for block, _ in move.terms}
    alone = {move.target for kind in ("moved", "negated") for move in moves(again, kind)}
    one, other = (values(case.record, sizes, these) for these in (arrays, again.arrays))
    for block in kept & alone:
        native = one[block].astype(one[block].dtype.newbyteorder("="))
        assert same_bits(other[block], native), block
    return len(kept & alone)


def test_arrays_of_other_libraries_and_lists():
    """Tensors are read as they are, bfloat16 and those that want gradients too; lists are float64."""
    module = torch.nn.GRU(2, 3, 2, bidirectional=True)
    own = {name: value.detach().numpy() for name, value in module.named_parameters()}
    right = convert(own, "torch.gru", "keras.gru").arrays
    found = sn.convert(dict(module.named_parameters()), "torch.gru", "keras.gru").arrays
    assert all(same_bits(found[name], right[name]) for name in right)
    halves = convert(dict(module.bfloat16().named_parameters()), "torch.gru", "keras.gru").arrays
    assert {array.dtype for array in halves.values()} == {DTYPES["bfloat16"]}
    assert all(same_bits(halves[name], right[name].astype("bfloat16")) for name in right)
    lists = {name: array.tolist() for name, array in own.items()}
    found = convert(lists, "torch.gru", "keras.gru").arrays
    assert all(same_bits(found[name], right[name].astype("float64")) for name in right)


def test_a_place_that_repeats_is_read_as_often():
    """A broadcast array, whose steps in memory are 0, is as good as its copy."""
    once = {"kernel": np.broadcast_to(np.float32(3), (2, 9)), "recurrent_kernel": np.ones((3, 9), "float32")}
    copies = {name: array.copy() for name, array in once.items()}
    found, right = (convert(arrays, "keras.gru", "cudnn.gru_no_bias").arrays for arrays in (once, copies))
    assert same_bits(found["weight_space"], right["weight_space"])
    assert (
        views(records()["cudnn.gru_no_bias"], Sizes(2, 3), found)[ParameterBlock("W", "z")].tolist()
        == [[3, 3]] * 3
    )
