"""Recurrent layers among arrays by names and shapes: found behind any prefix, asked for where two layouts
fit, and said why not; with a great many names, and with names made to take long.
"""

import re
import sys
import time
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepnet.errors import LayoutError
from stepnet.layout import Record, Sizes, find, record, records
from stepnet.layout.find import Match, nearest, why_not
from stepnet.layout.names import innermost_name, match_names
from stepnet.layout.possible import conditions, possible

Shapes = dict[str, tuple[int, ...]]


def shapes_of(name: str, sizes: Sizes, prefix: str = "") -> Shapes:
    """The arrays of a record at these sizes, behind a prefix."""
    return {prefix + array: shape for array, shape in record(name).shapes(sizes).items()}


def without(shapes: Shapes, *names: str) -> Shapes:
    assert shapes.keys() >= set(names)
    return {name: shape for name, shape in shapes.items() if name not in names}


def said(found: tuple[Match, ...]) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.prefix, tuple(one.layouts)) for one in found]


GRU, LSTM = shapes_of("torch.gru", Sizes(2, 3)), shapes_of("torch.lstm", Sizes(5, 4))
HEAD: Shapes = {"head.weight": (5, 3), "head.bias": (5,), "steps": ()}


# ---- what is found -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefix", ["", "rnn.", "model/encoder/", "a:b|", "weight_ih_l0.", "bias_", "é-", "0."]
)
def test_a_layer_is_found_behind_any_prefix(prefix: str):
    given_shapes = {prefix + name: shape for name, shape in GRU.items()} | HEAD
    (found,) = find(given_shapes)
    assert (found.prefix, found.layout) == (prefix, "torch.gru")
    assert dict(found.names) == {name: prefix + name for name in GRU}


@pytest.mark.parametrize("prefix", ["rnn", "x1", "model.rnn"])
def test_a_prefix_ends_in_no_letter_or_digit(prefix: str):
    assert find({prefix + name: shape for name, shape in GRU.items()}) == ()


@pytest.mark.parametrize("name", records())
def test_the_arrays_of_every_record_are_found(name: str):
    ways = record(name).ways
    for directions in (1, 2) if ways is None else (ways,):
        sizes = Sizes(5, 3, 2 if record(name).projection else None, directions=directions)
        front = f"model.{record(name).mark or 'layer'}."
        shapes = shapes_of(name, sizes, front) | HEAD
        (found,) = find(shapes, [record(name)])
        assert (found.prefix, found.layouts) == (front, (name,))
        assert list(found.names.values()) == list(without(shapes, *HEAD))
        (one,) = [one for one in find(shapes) if one.names == found.names]
        assert any(record(other).same_as(record(name)) for other in one.layouts)


def test_several_layers_are_found_in_the_order_of_their_arrays():
    given_shapes = (
        {f"decoder.{name}": shape for name, shape in LSTM.items()}
        | HEAD
        | {f"encoder.{name}": shape for name, shape in GRU.items()}
    )
    assert said(find(given_shapes)) == [("decoder.", ("torch.lstm",)), ("encoder.", ("torch.gru",))]
    turned = dict(reversed(given_shapes.items()))
    assert said(find(turned)) == [("encoder.", ("torch.gru",)), ("decoder.", ("torch.lstm",))]
    assert list(find(turned)[0].names) == list(reversed(GRU))


def test_layers_and_directions_are_one_stack():
    (found,) = find(shapes_of("torch.lstm", Sizes(2, 3, layers=3, directions=2), "rnn."))
    assert (found.layout, len(found.names)) == ("torch.lstm", 24)
    (found,) = find(shapes_of("keras.gru", Sizes(2, 3, directions=2), "rnn/"), [record("keras.gru")])
    assert (found.prefix, len(found.names)) == ("rnn/", 6)


def test_the_larger_layer_takes_its_arrays():
    """One direction of a Bidirectional is a layer too, and is not found beside the whole."""
    shapes = shapes_of("keras.gru", Sizes(2, 3, directions=2))
    assert said(find(shapes, [record("keras.gru")])) == [("", ("keras.gru",))]
    del shapes["backward/kernel"]
    assert find(shapes, [record("keras.gru")]) == ()
    assert "keras.gru comes nearest, but backward/kernel is missing" in str(nearest(shapes))


def test_no_array_is_in_two_layers():
    """The kernel and the bias of keras.rnn are also a tf1.rnn, of fewer inputs."""
    shapes = shapes_of("keras.rnn", Sizes(5, 3))
    both = [record("tf1.rnn"), record("keras.rnn")]
    assert said(find(shapes, both)) == [("", ("keras.rnn",))]
    assert said(find(without(shapes, "recurrent_kernel"), both)) == [("", ("tf1.rnn",))]


def test_what_shapes_do_not_tell_apart_is_asked_for():
    (found,) = find(shapes_of("keras.gru", Sizes(2, 3), "gru/"))
    assert found.layouts == ("keras.gru", "keras2.gru")
    with pytest.raises(LayoutError) as error:
        found.layout  # noqa: B018
    assert str(error.value) == (
        "kernel, recurrent_kernel, bias fit keras.gru and keras2.gru, which shapes do not distinguish: "
        "say --from LAYOUT (Python: layout=LAYOUT)"
    )
    (found,) = find(shapes_of("keras.gru", Sizes(2, 3)), [record("keras2.gru"), record("torch.gru")])
    assert found.layout == "keras2.gru"


def test_layouts_that_say_the_same_are_one():
    (found,) = find(GRU)
    assert found.layouts == ("torch.gru",)
    (found,) = find(GRU, [record("candle.gru"), record("paddle.gru"), record("torch.gru")])
    assert found.layouts == ("candle.gru",)


def test_a_vector_is_found_though_its_sizes_are_open():
    (found,) = find({"weight_space": (63,)}, [record("cudnn.gru"), record("cudnn.lstm")])
    assert found.layout == "cudnn.gru"


@pytest.mark.parametrize("shapes", [{}, HEAD, {"kernel": (3,)}, {"weight_ih_l0": (9, 2)}, {"": (3, 3)}])
def test_where_there_is_none_none_is_found(shapes: Shapes):
    assert find(shapes) == ()


# ---- what comes nearest ------------------------------------------------------------------------------------


DEEP = shapes_of("torch.gru", Sizes(2, 3, layers=2, directions=2), "rnn.")
KERAS = shapes_of("keras.gru", Sizes(2, 3), "gru/")


@pytest.mark.parametrize(
    ("shapes", "among", "message"),
    [
        ({}, None, "no array has a name of a layout; the arrays are none"),
        (
            HEAD,
            ["torch.gru"],
            "no array has a name of a layout; the arrays are head.weight (5, 3), head.bias (5,), steps ()",
        ),
        (
            {"0.weight": (12, 7), "0.bias": (12,)},  # as most layers have a bias, it is near none
            None,
            "no array has a name of a layout; the arrays are 0.weight (12, 7), 0.bias (12,)",
        ),
        (
            without(GRU, "weight_hh_l0"),
            ["torch.gru", "torch.lstm"],
            "torch.gru comes nearest, but weight_hh_l0 is missing",
        ),
        (
            without(DEEP, "rnn.weight_ih_l1_reverse"),
            None,
            "torch.gru comes nearest, but rnn.weight_ih_l1_reverse is missing",
        ),
        (
            DEEP | {"rnn.weight_ih_l1": (9, 3)},
            None,
            "torch.gru comes nearest, but rnn.weight_ih_l1 has shape (9, 3) where (9, 6) is expected of "
            "2 inputs, 3 hidden, 2 layers, both directions",
        ),
        (  # the first array is the wrong one: without it the others say the sizes
            DEEP | {"rnn.weight_ih_l0": (8, 2)},
            None,
            "torch.gru comes nearest, but rnn.weight_ih_l0 has shape (8, 2) where (9, 2) is expected of "
            "2 inputs, 3 hidden, 2 layers, both directions",
        ),
        (
            DEEP | {"rnn.weight_hh_l0": (12, 3)},
            None,
            "torch.gru comes nearest, but rnn.weight_hh_l0 has shape (12, 3) where (9, 3) is expected of ",
        ),
        (
            KERAS | {"gru/bias": (9,)},
            ["keras.gru"],
            "keras.gru comes nearest, but gru/bias has shape (9,) where (2, 9) is expected of 2 inputs, ",
        ),
        (
            KERAS | {"gru/bias": (2, 8)},
            None,
            "keras.gru comes nearest, but gru/bias has shape (2, 8) where (2, 9) is expected of 2 inputs, ",
        ),
        (
            without(GRU, "bias_hh_l0"),
            None,
            "torch.gru comes nearest, but bias_hh_l0 is missing, and bias_ih_l0 is there",
        ),
        (
            {"weight_space": (1,)},
            ["cudnn.gru"],
            "cudnn.gru comes nearest, but weight_space has 1 numbers, and no sizes of cudnn.gru that "
            "agree with the stated ones make that",
        ),
        (
            {"a.kernel": (3,)},
            ["keras.lstm"],
            "keras.lstm comes nearest, but kernel has shape (3,); the axes expected there are 2",
        ),
    ],
)
def test_what_comes_nearest_and_why_not(shapes: Shapes, among: list[str] | None, message: str):
    chosen = None if among is None else [record(name) for name in among]
    assert find(shapes, chosen) == ()
    error = str(nearest(shapes, chosen))
    assert error.startswith(f"no recurrent layer is here: {message}")


def test_few_of_many_names_are_shown():
    message = str(
        nearest({f"layer{number}.weights": (number,) for number in range(1000)}, [record("torch.gru")])
    )
    assert message.endswith("layer19.weights (19,), ...")
    assert message.count("(") == 20


# ---- many names, and hostile ones --------------------------------------------------------------------------

MANY: Shapes = {
    f"blocks.{block}.{name}": shape
    for block in range(2500)
    for name, shape in (
        ("attention.query.weight", (64, 64)),
        ("attention.query.scale", (64,)),
        ("norm.weight", (64,)),
        ("mlp.0.weight", (256, 64)),
    )
}


def seconds(shapes: Shapes, among: list[Record] | None = None) -> tuple[float, Any]:
    """The seconds that finding takes, with the nearest layouts named; and the layouts found."""
    begun = time.process_time()
    found = find(shapes, among)
    if not found:
        nearest(shapes, among)
    return time.process_time() - begun, found


def test_one_layer_is_found_among_ten_thousand_other_names():
    shapes = MANY | {f"rnn.{name}": shape for name, shape in GRU.items()}
    taken, found = seconds(shapes)
    assert said(found) == [("rnn.", ("torch.gru",))]
    assert taken < 4
    assert seconds(MANY)[0] < 4


def test_names_of_no_layer_cost_no_more_than_they_are():
    """Each of them is an array that thirty records have, and no record is whole anywhere."""
    times: list[float] = []
    for count in (4_000, 32_000):
        shapes: Shapes = {f"block{number}.bias": (number + 1,) for number in range(count)}
        taken, found = seconds(shapes)
        assert found == ()
        times.append(taken)
    assert times[1] < 24 * times[0]


PREFIXES = ("", "a.", "rnn/", "lstm_cell/", "x_", "recurrent_", "0/", "forward/", "é-", "fc/", "A1.")


@pytest.mark.long(examples=15)
@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_record_is_where_all_that_it_needs_is(random: Random):
    """As the definition has it, record by record and name by name: behind the shortest prefix of each."""
    names: dict[str, None] = {}
    for _ in range(random.randint(1, 4)):
        each = random.choice(list(records().values()))
        sizes = Sizes(1, 1, 1 if each.projection else None, random.randint(1, 2), random.randint(1, 2))
        front = random.choice(PREFIXES) + random.choice(PREFIXES) + random.choice(("", "cell/"))
        names |= {front + entry.name: None for entry in each.entries(sizes) if random.random() < 0.95}
    whole: set[tuple[str, str, frozenset[str]]] = set()
    for each in records().values():
        behind: dict[str, set[str]] = {}
        for name in names:
            matches = [re.fullmatch(text, name) for text in each.prefixed_patterns.values()]
            prefixes = [match[1] for match in matches if match]
            if prefixes and each.mark in innermost_name(min(prefixes, key=len)):
                behind.setdefault(min(prefixes, key=len), set()).add(name)
        for prefix, held in behind.items():
            there = [place[0] for name in held if (place := each.parsed_name(name[len(prefix) :]))]
            if {one for one in each.arrays if not one.endswith("?")} <= set(there):
                whole.add((each.name, prefix, frozenset(held)))
    found = [
        (one.record.name, one.prefix, frozenset(one.names.values()))
        for one in match_names(names, None).complete_groups()
    ]
    assert whole <= set(found)
    assert len(set(found)) == len(found)


def test_thousands_of_layers_are_found_in_time_that_grows_as_they_do():
    torch = [record("torch.gru"), record("torch.lstm")]
    times: list[float] = []
    for count in (500, 4000):
        shapes = {f"{number}.{name}": shape for number in range(count) for name, shape in GRU.items()}
        tries = [seconds(shapes, torch) for _ in range(3)]
        assert [one.prefix for one in tries[0][1]] == [f"{number}." for number in range(count)]
        times.append(min(taken for taken, _ in tries))
    assert times[1] < 32 * times[0]  # were it quadratic, 64 times


def test_a_deep_stack_that_does_not_fit_is_soon_refused():
    deep = shapes_of("torch.gru", Sizes(2, 3, layers=200))
    shapes = {name: (9, 4) if "weight_hh" in name else shape for name, shape in deep.items()}
    begun = time.process_time()
    message = str(nearest(shapes, [record("torch.gru")]))
    assert "torch.gru comes nearest, but weight_hh_l0 has shape (9, 4) where " in message
    assert time.process_time() - begun < 5


HOSTILE = {
    "slashes": "/" * 2_000,
    "dots and a name": "." * 2_000 + "weight_ih_l0",
    "a name and dots": "weight_ih_l0" + "." * 2_000,
    "names in a row": "weight_ih_l0" * 500,
    "names behind one another": "kernel/" * 700 + "kernel",
    "digits": "1" * 2_000,
    "digits of a layer": "weight_ih_l" + "1" * 2_000,
    "layers": "1/" * 1_000 + "kernel",
    "directions": "forward/" * 700 + "kernel",
    "a pattern": "(a+)+" * 300,
    "a group": "(?P<L>.*)" * 500,
    "braces": "{L}{D}{L/}{D/}" * 300,
    "backslashes": "\\" * 2_000,
    "lines": "\n" * 2_000 + "kernel",
    "letters of other scripts": "вес・重み🙂́" * 500,
    "digits of other scripts": "weight_ih_l" + "٣" * 4,
    "nothing printable": "\x00\x1b[31m\ud800" * 500,
    "almost": "/".join(["forward"] * 500) + "/kerne",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_take_no_time(kind: str):
    name = HOSTILE[kind]
    shapes = {name: (9, 2), f"{name}.bias": (9,)} | {f"rnn.{own}": shape for own, shape in GRU.items()}
    taken, found = seconds(shapes)
    assert ("rnn.", ("torch.gru",)) in said(found)
    assert taken < 5


NAMES = st.text(max_size=8) | st.lists(
    st.sampled_from(["weight_ih_l0", "_reverse", "kernel", "/", ".", "1", "\n", "W", "b"])
).map("".join)
ANY_SHAPE = st.lists(st.integers(0, 12), max_size=3).map(tuple)


@st.composite
def any_shapes(draw: st.DrawFn) -> Shapes:
    """Any names and shapes, and perhaps a GRU beside them, of which an array may have another shape."""
    shapes = draw(st.dictionaries(NAMES, ANY_SHAPE, max_size=5))
    if draw(st.booleans()):
        prefix = draw(NAMES.filter(lambda name: not name[-1:].isalnum()))
        shapes |= {f"{prefix}{own}": shape for own, shape in GRU.items()}
        if draw(st.booleans()):
            shapes[draw(st.sampled_from(sorted(shapes)))] = draw(ANY_SHAPE)
    return shapes


@pytest.mark.long
def test_any_names_and_shapes_are_found_or_refused(pytestconfig: pytest.Config):
    ways = set[int]()

    @settings(max_examples=200 if pytestconfig.option.long else 50)
    @given(any_shapes())
    def check(shapes: Shapes):
        found = find(shapes)
        held = [name for one in found for name in one.names.values()]
        assert len(set(held)) == len(held)
        assert shapes.keys() >= set(held)
        for one in found:
            assert all(one.prefix + own == name for own, name in one.names.items())
        assert str(nearest(shapes)).startswith("no recurrent layer is here: ")
        ways.add(len(found))

    check()
    assert ways >= {0, 1}


def test_names_of_two_layers_behind_one_prefix_are_no_layer():
    """The first layer is a GRU's, the second an LSTM's of another size: no layout has all of them."""
    mixed = GRU | {name.replace("_l0", "_l1"): shape for name, shape in LSTM.items()}
    assert find(mixed) == ()
    said = "torch.gru comes nearest, but weight_ih_l1 has shape (16, 5) where (9, 3) is expected of 2 inputs"
    assert said in str(nearest(mixed))


def test_a_number_in_a_name_is_no_layer():
    """Flax and Haiku number the modules of a kind: GRUCell_0 and lstm_1 are names."""
    names = {"GRUCell_1/": ("flax.gru", Sizes(2, 3)), "GRUCell_2/": ("flax.gru", Sizes(7, 5))}
    names |= {"lstm/": ("haiku.lstm", Sizes(2, 3)), "lstm_1/": ("haiku.lstm", Sizes(3, 4))}
    shapes: Shapes = {}
    for prefix, (name, sizes) in names.items():
        shapes |= shapes_of(name, sizes, prefix)
    among = [record("flax.gru"), record("haiku.lstm")]
    assert said(find(shapes, among)) == [(prefix, (name,)) for prefix, (name, _) in names.items()]


def test_what_is_nearly_right_is_nearer_than_what_is_not_at_all():
    """Of keras.gru three arrays are right and three are not, of tf1.rnn none of four is."""
    shapes = shapes_of("keras.gru", Sizes(2, 3), "rnn/0/") | shapes_of("keras.gru", Sizes(3, 5), "rnn/1/")
    message = (
        "keras.gru comes nearest, but rnn/1/kernel has shape (3, 15) where (3, 9) is expected of 2 inputs"
    )
    assert message in str(nearest(shapes))


# ---- shapes that cannot be


@pytest.mark.parametrize("name", records())
def test_only_shapes_that_are_none_of_a_record_are_not_solved(name: str):
    one, random = record(name), Random(name)
    projected = 2 if one.projection else None
    for layers, directions in ((1, 1), (2, 2)):
        sizes = Sizes(5, 3, projected, layers, directions)
        shapes = shapes_of(name, sizes)
        known = conditions(one, shapes)
        if why_not(one, shapes) is None:
            assert possible(known, shapes)
        for _ in range(4):
            other = dict(shapes)
            at = random.choice(list(other))
            other[at] = tuple(max(1, size + random.choice((-3, -1, 0, 1, 4))) for size in other[at])
            assert possible(known, other) or why_not(one, other) is not None
        at = random.choice(list(shapes))
        assert not possible(known, {**shapes, at: (*shapes[at], 1)})


def test_whole_layers_that_do_not_fit_are_refused_in_time_that_grows_as_they_do():
    times: list[float] = []
    for count in (10, 80):
        shapes: dict[str, tuple[int, ...]] = {}
        for number in range(count):
            shapes |= {f"{number}/kernel": (3 + number, 12), f"{number}/recurrent_kernel": (7, 12)}
        tries = [seconds(shapes, None) for _ in range(3)]
        assert tries[0][1] == ()
        times.append(min(taken for taken, _ in tries))
    assert times[1] < 32 * times[0]  # were it quadratic, 64 times


def test_no_equations_are_solved_for_shapes_that_cannot_be(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    module = sys.modules["stepnet.layout.find"]  # the package has a function of this name
    monkeypatch.setattr(module, "why_not", lambda one, shapes: asked.append(one.name) or "it does not fit")
    shapes = {"a.weight_ih_l0": (12, 3), "a.weight_hh_l0": (12, 7), "b.weight_ih_l0": (12, 3)}
    assert find(shapes) == ()
    assert asked == []
    find({**shapes, "b.weight_hh_l0": (12, 4)})
    assert "torch.gru" in asked
