"""The notation reads what it writes, and says what is wrong and where; so do records and semantics."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepnet.errors import LayoutError, printable
from stepnet.layout import Record, Semantics, record, records
from stepnet.layout.notation import (
    OF_ALL_GATES,
    PARAMETERS,
    Concatenation,
    ElementaryAxis,
    Flat,
    Loop,
    Term,
    parse,
    terms,
)
from stepnet.layout.semantics import Setting

TEXTS = sorted({text for each in records().values() for text in each.arrays.values()})


# ---- what is read is what is written -----------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_patterns_of_records_are_read_back(text: str):
    pattern = parse(text)
    assert parse(str(pattern)) == pattern
    assert str(pattern).replace("_n[", "[") == text.replace("_n[", "[")


LETTERS = st.sampled_from("hxkyLD")
ATOMS = st.builds(ElementaryAxis, LETTERS | st.integers(0, 40).map(str))
GATES = st.permutations("rzifgon").flatmap(lambda order: st.integers(1, 7).map(lambda n: "".join(order[:n])))


@st.composite
def some_terms(draw: Callable[..., Any], axes: int) -> Term:
    """A term of that many axes; whether its axes make sense is nothing to the notation."""
    parameter = draw(st.sampled_from(list(PARAMETERS)))
    found = [draw(st.lists(ATOMS, max_size=3)) for _ in range(axes)]
    gate, raw = "", "".join(draw(st.lists(LETTERS, max_size=3)))
    if axes and draw(st.booleans()):
        axis = draw(st.sampled_from(found))
        axis.insert(draw(st.integers(0, len(axis))), ElementaryAxis("g", draw(GATES)))
    elif parameter not in OF_ALL_GATES or draw(st.booleans()):
        gate = draw(st.sampled_from("rzifgon"))
    return Term(parameter, gate, tuple(map(tuple, found)), raw)


@st.composite
def some_stacks(draw: Callable[..., Any]) -> Concatenation:
    axes, count = draw(st.integers(0, 4)), draw(st.integers(1, 3))
    if axes == 0 or count == 1:
        return Concatenation((draw(some_terms(axes)),))
    found = [draw(some_terms(axes)) for _ in range(count)]
    return Concatenation(tuple(found), draw(st.integers(-1, axes - 1)))


def some_loops(inner: Any) -> Any:
    return st.builds(
        Loop, st.sampled_from(["L", "D", "LD"]), st.lists(inner, min_size=1, max_size=3).map(tuple)
    )


PARTS = st.recursive(some_stacks(), some_loops, max_leaves=6)
SHAPES = st.lists(st.lists(ATOMS, min_size=1, max_size=2).map(tuple), max_size=2).map(tuple)
FLATS = st.builds(Flat, st.lists(PARTS, min_size=1, max_size=3).map(tuple), SHAPES)


def alone(flat: Flat) -> Any:
    """A stack by itself is no vector of buffers."""
    return flat.segments[0] if len(flat.segments) == 1 and not flat.shape else flat


@given(FLATS)
def test_any_pattern_is_read_back(flat: Flat):
    pattern = alone(flat)
    pattern = Flat((pattern,)) if isinstance(pattern, Loop) else pattern
    assert parse(str(pattern)) == pattern


SIGNS = "WRbdpPq_nrzf hxkygLD:()[]{};|/~12\t%"


@st.composite
def misspelled(draw: Callable[..., Any]) -> str:
    """The text of a record with another piece in the place of one of its own, or pieces alone."""
    text = draw(st.sampled_from(TEXTS) | st.just(""))
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(start + 3, len(text))))
    return text[:start] + draw(st.text(SIGNS, max_size=6)) + text[end:]


@pytest.mark.long(examples=150)
@settings(max_examples=500)
@given(misspelled())
def test_any_other_text_says_where_it_is_wrong(text: str):
    said = error_of(text)
    if said is None:
        assert parse(str(parse(text))) == parse(text)
        return
    assert said.startswith(f"{printable(text)}: ")
    found = re.search(r" \(at character (\d+)\)$", said)
    assert found is not None
    assert 0 <= int(found[1]) <= len(text)


def error_of(text: str) -> str | None:
    """The message about a text; None where the text is in the notation. Any other error passes."""
    try:
        parse(text)
    except LayoutError as error:
        return str(error)
    return None


def test_spaces_are_of_no_meaning():
    assert parse(" W [ ( g:rzn h )x ] ") == parse("W[(g:rzn h) x]")
    assert parse("b[h]/d[h]") == parse("b[h] /0 d[h]")
    assert parse("W[x h~h x]") == parse("W[x h ~ h x]")
    assert parse("{LD:b[h];d[h]}") == parse("{L D: b[h]; d[h]}")


def test_a_term_without_gates_is_of_the_only_one():
    assert (
        parse("W[h x]")
        == parse("W_n[h x]")
        == Concatenation((Term("W", "n", ((ElementaryAxis("h"),), (ElementaryAxis("x"),))),))
    )
    assert terms(parse("P[y h]"))[0].gates == terms(parse("q[y]"))[0].gates == ""
    assert [term.gates for term in terms(parse("R[k (g:zr h)]; R_n[k h] : k (3 h)"))] == ["zr", "n"]


WRONG = [  # the text, what is said, and the character it is said of
    ("", "the text ends too early", 0),
    ("W[(h", "the text ends too early", 4),
    ("W[h x] /", "the text ends too early", 8),
    ("W[h x] W[h x]", "nothing more is expected", 6),
    ("W[h x]; R[h k] 3", "nothing more is expected", 14),
    ("W[h x] %", "this character is not part of the notation", 8),
    ("W[h   %]", "this character is not part of the notation", 7),
    ("W_[h x]", "this character is not part of the notation", 2),
    ("V[h x]", "a parameter is one of W R b d p P q", 1),
    ("W[h x]; u_n[h]", "a parameter is one of W R b d p P q", 11),
    ("W[(g:rzn h) u]", "no axis is called u; there are x h k y g L D", 13),
    ("W[h W_n]", "no axis is called W_n; there are x h k y g L D", 7),
    ("W[(g:rr h) x]", "the gates are different letters", 5),
    ("W[(g:12 h) x]", "the gates are different letters", 5),
    ("W[(g: h) x]", "the gates are different letters", 5),
    ("W_n[(g:rz h) x]", "the gate is named twice", 15),
    ("W[x h ~ (h x)]", "the axes of a raw buffer are letters", 14),
    ("W[x (g:rz h) ~ g:rz h]", "the axes of a raw buffer are letters", 22),
    ("W h x]", "[ is expected", 1),
    ("W[h x", "] is expected", 5),
    ("W[h x ~ h x", "] is expected", 11),
    ("W[g h]", ": is expected", 3),
    ("{L W[h x]}", ": is expected", 2),
    ("{L: W[h x]", "} is expected", 10),
    ("{h: W[h x]}", "a loop is over L, D or L D", 1),
    ("{D L: W[h x]}", "a loop is over L, D or L D", 4),
    ("{L L: W[h x]}", "a loop is over L, D or L D", 4),
    ("b[h] | d[h] / b[h]", "terms are concatenated along one axis", 18),
    ("W[h x] /1 R[h k] | b[h 1]", "terms are concatenated along one axis", 25),
    ("W[h x] / b[h]", "concatenated terms have the same number of axes, and the axis of concatenation", 13),
    (
        "W[h x] /2 R[h k]",
        "concatenated terms have the same number of axes, and the axis of concatenation",
        16,
    ),
]


@pytest.mark.parametrize(("text", "what", "place"), WRONG)
def test_what_is_not_in_the_notation(text: str, what: str, place: int):
    with pytest.raises(LayoutError) as error:
        parse(text)
    assert str(error.value) == f"{text}: {what} (at character {place})"


# ---- records -----------------------------------------------------------------------------------------------

GRU = {"w": "W[(g:rzn h) x]", "u": "R[(g:rzn h) k]"}


@pytest.mark.parametrize(
    ("cell", "arrays", "message"),
    [
        ("elman", GRU, "mine.gru: cell is one of rnn, gru, lstm, mgu, not 'elman'"),
        ("gru", GRU | {"more": "W_z[h x]"}, "mine.gru: W of gate z is in two places"),
        ("gru", GRU | {"more": "b[(g:rzn h)]; b_n[h]"}, "mine.gru: b of gate n is in two places"),
        ("gru", {"w": "W[(g:rn h) x]", "u": GRU["u"]}, "mine.gru: W of gate z is nowhere"),
        ("gru", {"w": GRU["w"]}, "mine.gru: R of gate r is nowhere"),
        ("gru", {"w": "W[(g:rzn h) k]"}, "mine.gru: W[(g:rzn h) k] has not the axes h x of W"),
        ("gru", {"w": "W[(g:rzn h)]"}, "mine.gru: W[(g:rzn h)] has not the axes h x of W"),
        ("gru", {"w": "W[(g:rzn h) 2 x]"}, "mine.gru: W[(g:rzn h) 2 x] has not the axes h x of W"),
        ("gru", {"w": "W[(g:rzn h) x x]"}, "mine.gru: W[(g:rzn h) x x] has an axis twice"),
        ("gru", {"w": "W[L (g:rzn h) L x]"}, "mine.gru: W[L (g:rzn h) L x] has an axis twice"),
        ("gru", {"w": "W[g:rz g:n h x]"}, "mine.gru: W[g:rz g:n h x] has an axis twice"),
        ("gru", {"w": "W[x (g:rzn h) ~ x h]"}, "mine.gru: W[x (g:rzn h) ~ x h]: a raw buffer is of hx"),
        ("gru", {"w": "W[(g:rfn h) x]"}, "mine.gru: W[(g:rfn h) x]: the cell gru has no gate f"),
        ("lstm", {"p": "P[(g:ifgo y) h]"}, "mine.gru: P[(g:ifgo y) h]: P has no gates"),
        ("lstm", {"p": "q_i[y]"}, "mine.gru: q_i[y]: q has no gates"),
    ],
)
def test_records_that_are_none(cell: str, arrays: dict[str, str], message: str):
    with pytest.raises(LayoutError) as error:
        Record("mine.gru", cell, arrays)
    assert str(error.value) == message


def test_a_coupled_gate_is_not_missed():
    arrays = {"w": "W[(g:fgo h) x]", "u": "R[(g:fgo h) k]"}
    assert Record("mine.lstm", "lstm", arrays, {"coupled": True}).gates == "fgo"
    with pytest.raises(LayoutError, match=re.escape("mine.lstm: W of gate i is nowhere")):
        Record("mine.lstm", "lstm", arrays, {"coupled": False})


# ---- semantics ---------------------------------------------------------------------------------------------

OPEN = Record("mine.gru", "gru", GRU, {"reset": Setting("lbr", {"after": 1, "before": 0})})
CLIPPED = Record("mine.gru", "gru", GRU, {"clip": Setting("clip"), "reset": "before"})


@pytest.mark.parametrize(
    ("settle", "message"),
    [
        (
            lambda: Semantics("gru", forget_bias=1.0),
            "semantics: the cell gru has no 'forget_bias'; it has reset, update, gate_activation, "
            "candidate_activation, clip",
        ),
        (
            lambda: OPEN.settled({"resets": "after"}),
            "mine.gru: the cell gru has no 'resets'; it has reset, update, gate_activation, "
            "candidate_activation, clip",
        ),
        (
            lambda: Record("mine.gru", "gru", GRU, {"update": "both"}),
            "mine.gru: update is one of 'keep', 'write', not 'both'",
        ),
        (lambda: OPEN.settled({"reset": 1}), "mine.gru: reset is one of 'after', 'before', not 1"),
        (lambda: CLIPPED.settled({"clip": "much"}), "mine.gru: clip is a number, not 'much'"),
        (lambda: Semantics("lstm", forget_bias=True), "semantics: forget_bias is a number, not True"),
        (
            lambda: OPEN.settled({}),
            "mine.gru: the arrays do not determine reset (its name there: lbr): "
            "say --semantics reset=VALUE (Python: semantics={'reset': 'after' or 'before'})",
        ),
        (
            lambda: CLIPPED.settled({}),
            "mine.gru: the arrays do not determine clip (its name there: clip): "
            "say --semantics clip=VALUE (Python: semantics={'clip': a number})",
        ),
        (
            lambda: record("torch.rnn").settled({"candidate_activation": "gelu"}),
            "torch.rnn has candidate_activation 'tanh' or 'relu', not 'gelu'",
        ),
        (
            lambda: CLIPPED.settled({"clip": 0.0, "reset": "after"}),
            "mine.gru has reset='before', which cannot be changed to 'after'",
        ),
        (
            lambda: OPEN.settled({"reset": "after", "update": "write"}),
            "mine.gru has update='keep', which cannot be changed to 'write'",
        ),
        (lambda: OPEN.translated({"lbr": 2}), "lbr of mine.gru is one of 1, 0, not 2"),
    ],
)
def test_semantics_that_do_not_go(settle: Callable[[], Any], message: str):
    with pytest.raises(LayoutError) as error:
        settle()
    assert str(error.value) == message


def test_what_is_given_is_the_semantics():
    assert OPEN.settled({"reset": "before"}) == Semantics("gru", reset="before")
    assert OPEN.settled({"reset": "after", "update": "keep"}) == Semantics("gru")
    assert CLIPPED.settled({"clip": 5, "reset": "before"}) == Semantics("gru", reset="before", clip=5)
    assert record("keras.rnn").settled({}) == Semantics("rnn")
    assert repr(Semantics("lstm", forget_bias=1.0)) == "Semantics(lstm: forget_bias=1.0)"
