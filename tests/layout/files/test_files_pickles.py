"""Pickles as plain values: what Python writes is read, and nothing that one asks for is ever run."""

import io
import os
import pickle
import pickletools
import random
import struct
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constants import Constants
from containers import Runs
from hypothesis import given
from hypothesis import strategies as st
from memory import memory

from stepnet.errors import FileError
from stepnet.layout.files.pickles import opcodes as pickles
from stepnet.layout.files.pickles.machine import FileRange
from stepnet.layout.files.pickles.objects import attributes
from stepnet.layout.files.pickles.values import (
    Name,
    Pairs,
    PersistentReference,
    PickledCall,
    children,
    dump,
    leaves,
)

PROTOCOLS = range(6)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 2000), 1 << 2000),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner),
        st.tuples(inner, inner),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers()), inner),
        st.dictionaries(st.text(), inner).map(OrderedDict),
    ),
    max_leaves=20,
)


def loaded(data: bytes, names: frozenset[str] = frozenset(), **options: Any) -> Any:
    return pickles.load(FileRange(io.BytesIO(data), 0, len(data)), names, "save the arrays alone", **options)


def plain(value: Any) -> Any:
    """The value that was read, in the form of Python's own reader."""
    match value:
        case Pairs():
            return {key: plain(item) for key, item in value.items}
        case bytearray():
            return bytes(value)
        case list():
            return [plain(item) for item in value]
        case tuple():
            return tuple(plain(item) for item in value)
        case _:
            return value


def refusal(data: bytes, **options: Any) -> str:
    with pytest.raises(FileError) as caught:
        loaded(data, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.isprintable()
    return message


@pytest.mark.long(each=True, examples=10)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(tree=TREES)
def test_what_python_writes_is_read(protocol: int, tree: object):
    assert plain(loaded(pickle.dumps(tree, protocol))) == tree


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_containers_of_every_kind(protocol: int):
    shared = ["a" * 300, b"b" * 300]
    default = defaultdict(list, {"x": [1]})
    tree = [shared, shared, Counter("aab"), default, {3}, frozenset({4}), {1: 2}, float("inf"), "\ud800\n'\\"]
    found = plain(loaded(pickle.dumps(tree, protocol)))
    assert found == [
        shared,
        shared,
        {"a": 2, "b": 1},
        {"x": [1]},
        [3],
        [4],
        {1: 2},
        float("inf"),
        "\ud800\n'\\",
    ]


def test_strings_and_dictionaries_of_python_2():
    items = b"U\x03abcI7\n"
    assert plain(loaded(b"\x80\x02(" + items + b"d.")) == {"abc": 7}
    assert loaded(b"T\x04\x00\x00\x00\xc3\xa9\xc3\xa9.") == "éé"
    assert loaded(b"T\x04\x00\x00\x00\xc3\xa9\xc3\xa9.", encoding="latin-1") == "Ã©Ã©"
    ordered = (
        b"ccollections\nOrderedDict\n(]q\x01(](" + items + b"e](" + items.replace(b"abc", b"abd") + b"eetR."
    )
    assert plain(loaded(ordered)) == {"abc": 7, "abd": 7}
    assert "has a broken SHORT_BINSTRING at byte 0" in refusal(b"U\x01\xff.")


def test_calls_are_only_noted():
    found = loaded(b"cmy.module\nmake\n(K\x01tR}X\x01\x00\x00\x00aK\x02sb.", frozenset({"my.module.make"}))
    assert isinstance(found, PickledCall)
    assert (found.name, found.arguments, plain(found.state)) == ("my.module.make", (1,), {"a": 2})
    found = loaded(b"\x8c\x02my\x8c\x04make\x93)\x81.", frozenset({"my.make"}))
    assert isinstance(found, PickledCall)
    assert found.name == "my.make"
    named = loaded(b"cmy.module\nmake\n.", frozenset({"my.module.make"}))
    assert isinstance(named, Name)
    assert loaded(b"K\x07Q.", persistent=lambda identity: [identity]) == [7]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_run(tmp_path: Path, protocol: int):
    mark = tmp_path / "ran"
    calls = {
        "posix.system": Runs(os.system, f"echo > {mark}"),
        "builtins.eval": Runs(eval, f"open({str(mark)!r}, 'w')"),
        "builtins.exec": Runs(exec, f"open({str(mark)!r}, 'w')"),
        "io.open": Runs(open, str(mark), "w"),
        "posix.mkdir": Runs(os.mkdir, str(mark)),
    }
    for name, value in calls.items():
        data = pickle.dumps({"weights": [value]}, protocol)
        assert (
            refusal(data) == f"the file asks to run {name}, which stepnet never does; save the arrays alone"
        )
        assert not mark.exists()
    pickle.loads(pickle.dumps(calls["posix.mkdir"], protocol))
    assert mark.exists()  # and Python's own reader runs it


NAMED = [
    "os\nsystem",
    "nt\nsystem",
    "builtins\neval",
    "__builtin__\nexec",
    "builtins\ngetattr",
    "sys\nmodules",
]
NAMED += [
    "subprocess\nPopen",
    "importlib\nimport_module",
    "operator\nattrgetter",
    "torch\nload",
    "numpy\nload",
]
NAMED += [
    "numpy.testing._private.utils\nrunstring",
    "functools\npartial",
    "copyreg\n_reconstructor",
    "a\n\x1b[2J\tb",
]


@pytest.mark.parametrize("name", NAMED)
def test_names_outside_the_table_are_refused(name: str):
    module, _, text = name.partition("\n")
    shown = f"{'builtins' if module == '__builtin__' else module}.{text}"
    shown = shown if shown.isprintable() else ascii(shown)
    expected = f"the file asks to run {shown}, which stepnet never does; save the arrays alone"
    assert refusal(f"c{name}\n(K\x01tR.".encode()) == expected
    assert refusal(pickle.dumps(module)[:-1] + pickle.dumps(text)[:-1] + b"\x93.") == expected


def anything(data: bytes) -> object:
    """The value of a pickle that may name anything."""
    return pickles.load(FileRange(io.BytesIO(data), 0, len(data)))


@pytest.mark.parametrize("name", NAMED)
def test_without_a_table_names_are_no_more_than_names(name: str):
    module, _, text = name.partition("\n")
    full = f"{'builtins' if module == '__builtin__' else module}.{text}"
    for data in (f"c{name}\n(K\x01tR.", f"(c{name}\nK\x01o.", f"(K\x01i{name}\n."):
        made = anything(data.encode())
        assert isinstance(made, PickledCall)
        assert made.name == full


class Own:
    """An object of a class that nobody has but this file."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


class Words(dict[str, object]):
    """A dictionary of a class of its own."""


class Row(list[object]):
    """A list of a class of its own."""


@pytest.mark.parametrize("protocol", range(6))
def test_objects_are_their_attributes(protocol: int):
    words, row = Words(a=1, b=2), Row([3, 4])
    words.note, row.note = "w", "r"  # type: ignore[attr-defined]
    own = Own(text="here", words=words, row=row)
    made = anything(pickle.dumps(own, protocol))
    assert isinstance(made, PickledCall)
    held = dict(attributes(made))
    assert held["text"] == "here"
    for name, items in {"words": [("a", 1), ("b", 2)], "row": [(0, 3), (1, 4)]}.items():
        inner = held[name]
        assert isinstance(inner, PickledCall)
        pairs = [*inner.items, *(pair for part in inner.arguments for pair in children(part))]
        assert pairs == items
        assert attributes(inner) == [("note", name[0])]


UNNEEDED = [
    info for info in pickletools.opcodes if info.code.encode("latin-1") not in {*pickles.ACTIONS, b"."}
]


def test_opcodes_that_arrays_do_without():
    names = {info.name for info in UNNEEDED}
    assert names == {
        "STRING", "LONG4", "NEXT_BUFFER", "READONLY_BUFFER", "EXT1", "EXT2", "EXT4", "PERSID",
    }  # fmt: skip
    for info in UNNEEDED:
        message = refusal(b"N" + info.code.encode("latin-1") + b"\0" * 20)
        assert message == f"its pickle has opcode {info.name} at byte 1, which arrays do without"
    assert "opcode 255, which is none, at byte 1" in refusal(b"N\xff.")


HOSTILE = {
    "nothing": (b"", "cut off at byte 0"),
    "no end": (b"N", "cut off at byte 1"),
    "an empty stack": (b".", "takes a value where there is none"),
    "below a mark": (b"K\x01(\x85.", "takes a value where there is none"),
    "no mark": (b"K\x01t.", "closes a mark that is not open"),
    "marks": (b"(" * 2000, "nests deeper than 1000"),
    "a note far away": (b"]r\xff\xff\xff\xff.", "notes a value as number 4294967295 after 0 others"),
    "a note below none": (b"]p-1\n.", "notes a value as number -1 after 0 others"),
    "a note of nothing": (b"q\x00.", "takes a value where there is none"),
    "no such note": (b"h\x00.", "wants value 0 of the 0 it has noted"),
    "no such note in a line": (b"g-1\n.", "wants value -1 of the 0 it has noted"),
    "a huge text": (b"X\xff\xff\xff\xff.", "cut off"),
    "a huger text": (b"\x8d" + b"\xff" * 8 + b".", "cut off"),
    "huge bytes": (b"\x8e" + struct.pack("<Q", 1 << 62) + b".", "cut off"),
    "a huge array of bytes": (b"\x96" + struct.pack("<Q", 1 << 62) + b".", "cut off"),
    "a text of negative length": (b"T\xff\xff\xff\xff.", "cut off"),
    "a huge frame": (b"\x95" + b"\xff" * 8 + b".", "cut off"),
    "no text": (b"X\x01\x00\x00\x00\xff.", "has a broken BINUNICODE at byte 0"),
    "no number": (b"Ix\n.", "has a broken INT at byte 0"),
    "a number of many digits": (b"L" + b"9" * 10000 + b"\n.", "has a broken LONG at byte 0"),
    "no fraction": (b"Fx\n.", "has a broken FLOAT at byte 0"),
    "no name": (b"c\xff\n\xff\n.", "has a broken GLOBAL at byte 0"),
    "a line without an end": (b"I1.", "cut off"),
    "a key without a value": (b"}(K\x01u.", "has a key without a value"),
    "values in no dictionary": (b"](K\x01K\x02u.", "has type list where Pairs must be"),
    "values in no list": (b"}K\x01a.", "has type Pairs where list must be"),
    "a call of no name": (b"K\x01)R.", "has type int where Name must be"),
    "a call with no tuple": (b"cbuiltins\nint\n]R.", "has type list where tuple must be"),
    "a name of no texts": (b"K\x01K\x02\x93.", "has type int where str must be"),
    "a dictionary of a number": (b"ccollections\nOrderedDict\nK\x01\x85R.", "makes a container of type int"),
    "a dictionary of threes": (b"ccollections\nOrderedDict\n]]K\x01aa\x85R.", "has a key without a value"),
    "no bytes": (b"c_codecs\nencode\nX\x02\0\0\0\xc4\x80X\6\0\0\0latin1\x86R.", "has a broken REDUCE"),
    "an encoding": (b"c_codecs\nencode\nX\1\0\0\0aX\3\0\0\0hex\x86R.", "encodes something other than bytes"),
    "values outside": (b"K\x01Q.", "asks for values outside it"),
    "a new protocol": (b"\x80\x06N.", "is of a protocol above 5"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles(name: str):
    data, expected = HOSTILE[name]
    with memory() as peak:
        assert expected in refusal(data)
        assert peak() < 1 << 20


def test_the_number_of_opcodes_has_a_limit(constants: Constants):
    assert pickles.OPCODES * 300 < 1 << 30
    constants(pickles, OPCODES=1000)
    assert loaded(b"]" * 999 + b".") == []
    assert refusal(b"]" * 1000 + b".") == "its pickle has more than 1000 opcodes, which no state dict needs"


def test_bytes_and_containers_are_not_multiplied():
    text = b"X" + struct.pack("<I", 100_000) + b"a" * 100_000 + b"q\x00X\6\0\0\0latin1q\x01"
    once = b"c_codecs\nencode\nh\x00h\x01\x86R"
    assert loaded(text + once + b".") == bytearray(b"a" * 100_000)
    assert "makes more out of its values than it holds" in refusal(text + once * 100 + b".")
    items = b"](" + b"](K\x01K\x02e" * 1000 + b"eq\x00"
    once = b"ccollections\nOrderedDict\nh\x00\x85R"
    assert len(loaded(items + once + b".").items) == 1000
    assert "makes more out of its values than it holds" in refusal(items + once * 1000 + b".")


@pytest.mark.parametrize("opcodes", [b"]" + b"\x85" * 200_000, b"]" * 200_000, b"]" + b"]\x85b" * 100_000])
def test_deep_and_wide_values_are_let_go(opcodes: bytes):
    value = loaded(opcodes + b".")
    assert isinstance(value, list | tuple)
    del value


def is_float(value: object) -> bool:
    return isinstance(value, float)


def test_walking_in_order():
    tree = Pairs([("b", 1.0), ("a", Pairs([(3, [2.0, "x", (3.0,)]), (None, 4.0)])), ("c", [[]])])
    assert list(leaves(tree, is_float)) == [("b", 1.0), ("a.3.0", 2.0), ("a.3.2.0", 3.0), ("a.None", 4.0)]
    assert list(leaves(5.0, is_float)) == [("", 5.0)]


def laughs(width: int, depth: int) -> bytes:
    """A list of the same list of the same list, with billions of ways through it."""
    data = b"]q\x00"
    for level in range(depth):
        data += (
            b"](" + b"h" + bytes([level]) + (b"h" + bytes([level])) * (width - 1) + b"eq" + bytes([level + 1])
        )
    return data + b"."


def test_walking_has_limits():
    message = "its dictionaries and lists share too many parts, or are too many"
    with pytest.raises(FileError, match=message):
        list(leaves(loaded(laughs(10, 50)), is_float))
    with pytest.raises(FileError, match="nest deeper than 100"):
        list(leaves(loaded(b"]" + b"\x85" * 1000 + b"."), is_float))
    with pytest.raises(FileError, match="nest deeper than 100"):
        list(leaves(loaded(b"]q\x00h\x00a."), is_float))
    with pytest.raises(FileError, match=r"under a key that is a tuple, which makes no name; use a text$"):
        list(leaves(Pairs([((1, 2), 3.0)]), is_float))
    with pytest.raises(FileError, match=r"two arrays of the name 'a\.b'$"):
        list(leaves(Pairs([("a.b", 1.0), ("a", Pairs([("b", 2.0)]))]), is_float))
    with pytest.raises(FileError, match="a name of more than 1000 characters"):
        list(leaves(Pairs([("a" * 1001, 1.0)]), is_float))
    with pytest.raises(FileError, match=r"of the name '\\x1b\[2J', which cannot be printed"):
        list(leaves(Pairs([("\x1b[2J", 1.0)]), is_float))


def test_long_keys_are_not_multiplied():
    tree = Pairs([("a" * 1_000_000, [[1] for _ in range(10_000)])])
    with memory() as peak:
        assert list(leaves(tree, is_float)) == []
        assert peak() < 1 << 22


def test_what_is_written_is_read():
    array = np.arange(6, dtype=">i2").reshape(2, 3).T
    tree = Pairs(
        [("é", (1, -1, 1 << 40, -(1 << 40), None, True, False, ())), ("array", array), ("n", Name("a.b.c"))]
    )
    stream = io.BytesIO()
    dump(
        Pairs(
            [("tree", tree), ("call", PickledCall("a.f", (1,), (2,))), ("out", PersistentReference(("x", 3)))]
        ),
        stream.write,
        4,
    )
    found = loaded(
        stream.getvalue(), frozenset({"a.b.c", "a.f"}), persistent=lambda identity: ["out", identity]
    )
    assert isinstance(found, Pairs)
    values: dict[Any, Any] = dict(found.items)
    first = dict(values["tree"].items)
    assert first["é"] == (1, -1, 1 << 40, -(1 << 40), None, True, False, ())
    assert bytes(first["array"]) == np.ascontiguousarray(array, "<i2").tobytes()
    assert first["n"].text == "a.b.c"
    assert (values["call"].name, values["call"].arguments, values["call"].state) == ("a.f", (1,), (2,))
    assert values["out"] == ["out", ("x", 3)]
    with pytest.raises(TypeError, match="no pickle of a set"):
        dump({1}, stream.write, 4)


def test_random_opcodes_never_raise_anything_else():
    draw = random.Random(0)
    codes = [
        *pickles.ACTIONS,
        *[b"N", b"]", b"}", b"(", b")", b"K\x01", b"X\x01\x00\x00\x00a", b"ccollections\nOrderedDict\n"],
    ]
    ended = 0
    for _ in range(5000):
        data = b"".join(
            draw.choice(codes) + draw.randbytes(draw.choice([0, 0, 0, 1, 2]))
            for _ in range(draw.randint(1, 30))
        )
        try:
            list(leaves(loaded(data + b"."), lambda value: isinstance(value, int)))
            ended += 1
        except FileError:
            pass
    assert 20 < ended < 4000
