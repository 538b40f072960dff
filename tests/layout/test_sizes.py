"""The sizes that shapes tell, what is wrong with those that do not fit, and what is asked for."""

import re
from typing import Any

import pytest

from stepnet.errors import LayoutError
from stepnet.layout import Sizes, record
from stepnet.layout.solve import OpenSizesError, check, sizes_of, solved


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"inputs": 0, "hidden": 3}, "inputs is a whole number from 1 on, not 0"),
        ({"inputs": 2, "hidden": -1}, "hidden is a whole number from 1 on, not -1"),
        ({"inputs": 2, "hidden": 3.0}, "hidden is a whole number from 1 on, not 3.0"),
        ({"inputs": 2, "hidden": True}, "hidden is a whole number from 1 on, not True"),
        ({"inputs": 2, "hidden": None}, "hidden is a whole number from 1 on, not None"),
        ({"inputs": 2, "hidden": 3, "projected": 0}, "projected is a whole number from 1 on, not 0"),
        ({"inputs": 2, "hidden": 3, "layers": "2"}, "layers is a whole number from 1 on, not '2'"),
        ({"inputs": 2, "hidden": 3, "directions": 3}, "directions is 1 or 2, not 3"),
    ],
)
def test_sizes_that_are_none(sizes: dict[str, Any], message: str):
    with pytest.raises(LayoutError) as error:
        Sizes(**sizes)
    assert str(error.value) == message
    vector = {"weight_space": (63,)}
    if sizes["hidden"] is not None:
        with pytest.raises(LayoutError, match=re.escape(message)):
            sizes_of(record("cudnn.gru"), vector, sizes)


def test_sizes_in_words():
    assert str(Sizes(2, 3)) == "2 inputs, 3 hidden"
    assert str(Sizes(2, 3, 1, 2, 2)) == "2 inputs, 3 hidden, 1 projected, 2 layers, both directions"


TORCH = {"weight_ih_l0": (9, 2), "weight_hh_l0": (9, 3), "bias_ih_l0": (9,), "bias_hh_l0": (9,)}
LOOSE = {"weight_ih_l0": (9, 2), "weight_hh_l0": (9, 3)}
UPPER = {"weight_ih_l1": (9, 3), "weight_hh_l1": (9, 3)}
KERAS = {"kernel": (2, 9), "recurrent_kernel": (3, 9), "bias": (2, 9)}


@pytest.mark.parametrize(
    ("layout", "shapes", "sizes", "message"),
    [
        (
            "torch.gru",
            TORCH | {"head": (3,)},
            {},
            "torch.gru has no array 'head'; it has weight_ih_l0, weight_hh_l0, bias_ih_l0?, bias_hh_l0?",
        ),
        (
            "torch.gru",
            LOOSE | UPPER,
            {"layers": 3},
            "torch.gru: the names of the arrays have 2 layers, and layers=3 is stated",
        ),
        (
            "torch.gru",
            {f"{name}_reverse": shape for name, shape in LOOSE.items()} | LOOSE,
            {"directions": 1},
            "torch.gru: the names of the arrays have 2 directions, and directions=1 is stated",
        ),
        (
            "torch.gru",
            {"weight_ih_l0": (9, 2, 1), "weight_hh_l0": (9, 3)},
            {},
            "weight_ih_l0 has shape (9, 2, 1); the axes expected there are 2",
        ),
        (
            "cudnn.gru",
            {"weight_space": (7, 9)},
            {},
            "weight_space has shape (7, 9); the axes expected there are 1",
        ),
        (
            "torch.gru",
            {"weight_ih_l0": (10, 2), "weight_hh_l0": (9, 3)},
            {},
            "weight_ih_l0 has an axis of 10, which is not 3 hidden",
        ),
        (
            "tf1.rnn",
            {"kernel": (3, 3), "bias": (3,)},
            {},
            "kernel has an axis of 3, which is not inputs + output",
        ),
        ("torch.gru", {}, {}, "torch.gru needs weight_ih_l0, weight_hh_l0; the arrays are none"),
        (
            "keras.gru",
            {"kernel": (2, 9)},
            {"directions": 1, "layers": 1},
            "recurrent_kernel is missing: keras.gru of 2 inputs, 3 hidden has kernel, recurrent_kernel, bias",
        ),
        (
            "keras.gru",
            {"recurrent_kernel": (3, 9)},
            {},
            "keras.gru needs kernel; the arrays are recurrent_kernel",
        ),
        (
            "keras.gru",
            KERAS | {"recurrent_kernel": (4, 9)},
            {},
            "recurrent_kernel has shape (4, 9); keras.gru of 2 inputs, 3 hidden has (3, 9) there",
        ),
        (
            "keras.gru",
            KERAS,
            {"hidden": 4},
            "kernel has shape (2, 9); keras.gru of 2 inputs, 4 hidden has (2, 12) there",
        ),
        (
            "torch.gru",
            {name: shape for name, shape in TORCH.items() if name != "bias_hh_l0"},
            {},
            "bias_hh_l0 is missing, and bias_ih_l0 is there",
        ),
        (
            "torch.gru",
            TORCH | UPPER,
            {},
            "bias_ih_l1 is missing, and bias_ih_l0 is there",
        ),
        (
            "keras.gru",
            KERAS | {"1/kernel": (3, 9)},
            {},
            "0/kernel is missing: keras.gru of 2 inputs, 3 hidden, 2 layers has 0/kernel",
        ),
        (
            "onednn.gru",
            {"weights_layer": (2, 1, 5, 3, 4), "weights_iter": (2, 1, 4, 3, 4), "bias": (2, 1, 3, 4)},
            {},
            "all layers of onednn.gru have the same number of inputs, "
            "and here the first has 5 and the others 4: "
            "there the first layer is separate",
        ),
        (
            "torch.gru",
            TORCH,
            {"outputs": 3},
            "no size is called 'outputs'; there are inputs, hidden, projected, layers, directions",
        ),
        ("torch.gru", TORCH, {"projected": 2}, "projected is stated, and the layout has no projection"),
        (
            "cudnn.gru",
            {"weight_space": (63,)},
            {"hidden": 2},
            "weight_space has 63 numbers, and no sizes of cudnn.gru that agree with the stated ones "
            "make that",
        ),
        (
            "cudnn.gru",
            {"weight_space": (0,)},
            {},
            "weight_space has 0 numbers, and no sizes of cudnn.gru that agree with the stated ones make that",
        ),
    ],
)
def test_shapes_that_do_not_fit(
    layout: str, shapes: dict[str, tuple[int, ...]], sizes: dict[str, int], message: str
):
    with pytest.raises(LayoutError) as error:
        sizes_of(record(layout), shapes, sizes)
    assert str(error.value).startswith(message)
    assert not isinstance(error.value, OpenSizesError)


def test_arrays_of_other_sizes_are_strangers():
    with pytest.raises(LayoutError) as error:
        check(record("torch.gru"), LOOSE | UPPER, Sizes(2, 3))
    said = "torch.gru of 2 inputs, 3 hidden has no array 'weight_ih_l1'; it has weight_ih_l0, weight_hh_l0,"
    assert str(error.value).startswith(said)


def test_solved_takes_arrays_that_do_not_all_fit():
    assert solved(record("torch.gru"), LOOSE | {"weight_hh_l0": (9, 8)}, {}) == Sizes(2, 3)
    assert solved(record("torch.gru"), {"weight_ih_l0": (9, 2)}) == Sizes(2, 3)


HINT = "say --size inputs=N --size hidden=N (Python: sizes={'inputs': N, 'hidden': N}), "
HINT += "and layers and directions if there are several"


@pytest.mark.parametrize(
    ("layout", "length", "sizes", "some"),
    [
        (
            "cudnn.gru",
            63,
            {},
            " (18 inputs, 1 hidden; 2 inputs, 3 hidden; 14 inputs, 1 hidden, 2 layers; "
            "10 inputs, 1 hidden, 3 layers; ...)",
        ),
        ("cudnn.gru", 63, {"layers": 1, "directions": 1}, " (18 inputs, 1 hidden; 2 inputs, 3 hidden)"),
        ("cudnn.gru", 63, {"inputs": 2}, " (2 inputs, 3 hidden; 2 inputs, 1 hidden, 5 layers)"),
        ("cudnn.lstm_projection", 102, {}, ""),
        (
            "cudnn.lstm_projection",
            102,
            {"projected": 2},
            " (21 inputs, 1 hidden, 2 projected; 4 inputs, 3 hidden, 2 projected; "
            "8 inputs, 1 hidden, 2 projected, 3 layers)",
        ),
    ],
)
def test_what_the_length_of_a_vector_leaves_open_is_asked_for(
    layout: str, length: int, sizes: dict[str, int], some: str
):
    with pytest.raises(OpenSizesError) as error:
        sizes_of(record(layout), {"weight_space": (length,)}, sizes)
    fits = f"weight_space has {length} numbers, which fit several sizes of {layout}{some}: {HINT}"
    assert str(error.value) == fits


@pytest.mark.parametrize(
    ("given_sizes", "found"),
    [
        ({"hidden": 3}, Sizes(2, 3)),
        ({"hidden": 3, "inputs": 2, "layers": None}, Sizes(2, 3)),
        ({"hidden": 1, "inputs": 18}, Sizes(18, 1)),
        ({"hidden": 1, "layers": 2, "directions": 1}, Sizes(14, 1, layers=2)),
        ({"inputs": 2, "layers": 5}, Sizes(2, 1, layers=5)),
    ],
)
def test_what_is_given_closes_it(given_sizes: dict[str, int | None], found: Sizes):
    assert sizes_of(record("cudnn.gru"), {"weight_space": (63,)}, given_sizes) == found


def test_all_sizes_that_fit_a_vector_are_known_by_counting():
    """A GRU has 3 h (x + h + 2) numbers: tried one by one."""
    for length in range(1, 200):
        fits = [
            Sizes(inputs, hidden)
            for hidden in range(1, length)
            for inputs in range(1, length)
            if 3 * hidden * (inputs + hidden + 2) == length
        ]
        one = {"layers": 1, "directions": 1}
        if len(fits) == 1:
            assert sizes_of(record("cudnn.gru"), {"weight_space": (length,)}, one) == fits[0]
        else:
            with pytest.raises(LayoutError) as error:
                sizes_of(record("cudnn.gru"), {"weight_space": (length,)}, one)
            assert isinstance(error.value, OpenSizesError) == (len(fits) > 1)
            assert all(str(fit) in str(error.value) for fit in fits[:4])
