"""Every number of every array is in one block, and in one place of it; and which, written out by hand."""

import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from index_maps import index_map

from stepnet.errors import LayoutError
from stepnet.layout import Record, Sizes, record, records
from stepnet.layout.places import Array, ParameterBlock, Region, regions
from tests.layout.layout_cases import fitting

NAMES = list(records())
GRID = [  # inputs, hidden, projected
    (2, 3, 2),
    (5, 1, 3),
    (1, 2, 1),
]


def sizes_of(each: Record) -> Iterator[Sizes]:
    """Sizes that a record has a place for: of those that put all layers in one array, square ones."""
    for (inputs, hidden, projected), layers in product(GRID, (1, 2, 3)):
        for directions in (each.ways,) if each.ways else (1, 2):
            yield fitting(each, Sizes(inputs, hidden, projected, layers, directions))


def arrays_of(each: Record, sizes: Sizes, dtype: Any = np.float64) -> dict[str, Array]:
    """Its arrays, every number another one."""
    found: dict[str, Array] = {}
    count = 0
    for name, shape in each.shapes(sizes).items():
        numbers = np.arange(count, count + int(np.prod(shape)), dtype=dtype).reshape(shape)
        found[name] = numbers
        count += numbers.size
    return found


def blocks_of(each: Record, sizes: Sizes) -> set[ParameterBlock]:
    """The blocks of a record, by its terms: each parameter of each gate, of each layer and direction."""
    return {
        ParameterBlock(term.parameter, gate, layer, direction)
        for term in each.terms()
        for gate in each.gates_of(term)
        for layer in range(sizes.layers)
        for direction in range(sizes.directions)
    }


# ---- every record ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_in_one_place_of_one_block(name: str):
    each = record(name)
    for sizes in sizes_of(each):
        arrays = arrays_of(each, sizes)
        places = index_map(each, sizes)
        assert places.keys() == blocks_of(each, sizes)
        assert len(places) == len(list(regions(each, sizes)))
        for block, (array, found) in places.items():
            assert array in arrays
            assert found.shape == block.shape(sizes)
        for array, numbers in arrays.items():
            held = [found.reshape(-1) for at, found in places.values() if at == array]
            assert sorted(np.concatenate(held)) == list(range(numbers.size)), (sizes, array)


@pytest.mark.parametrize("name", NAMES)
def test_views_are_where_the_map_says_however_the_array_is_in_memory(name: str):
    each = record(name)
    sizes = fitting(each, Sizes(2, 3, 2, layers=2, directions=2))
    arrays = arrays_of(each, sizes)
    places = index_map(each, sizes)
    for order in ("C", "F", "sliced"):
        laid = {key: laid_out(array, order) for key, array in arrays.items()}
        for region in regions(each, sizes):
            array, found = places[region.block]
            view = region.view(laid[region.array]).reshape(region.block.shape(sizes))
            np.testing.assert_array_equal(view, arrays[array].reshape(-1)[found])


def laid_out(array: Array, order: str) -> Array:
    """The same numbers, otherwise in memory."""
    if order != "sliced":
        return np.array(array, order="C" if order == "C" else "F")
    wide = np.full([2 * length + 1 for length in array.shape], np.nan)
    wide[(slice(1, None, 2),) * array.ndim] = array
    return wide[(slice(1, None, 2),) * array.ndim]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_into_a_view_is_in_the_array(name: str):
    each = record(name)
    sizes = fitting(each, Sizes(2, 3, 2, layers=2, directions=2))
    arrays = {key: np.zeros_like(array) for key, array in arrays_of(each, sizes).items()}
    random = np.random.default_rng(2)
    written: dict[ParameterBlock, Array] = {}
    for region in regions(each, sizes):
        written[region.block] = random.normal(size=region.shape)
        region.view(arrays[region.array])[...] = written[region.block]
    for block, (array, found) in index_map(each, sizes).items():
        numbers = arrays[array].reshape(-1)[found].reshape(-1)
        np.testing.assert_array_equal(numbers, written[block].reshape(-1))


@pytest.mark.parametrize("name", NAMES)
def test_a_block_that_lies_outside_raises(name: str):
    """The arrays are those of one unit less: some block of each of them has no room there."""
    each = record(name)
    sizes, less = (fitting(each, Sizes(size, size, size, directions=2)) for size in (3, 2))
    small = arrays_of(each, less)
    outside: set[str] = set()
    for region in regions(each, sizes):
        said = error_of(region, small[region.array])
        if said is not None:
            assert said.startswith(f"{region.block} does not lie in {region.array} of shape (")
            outside.add(region.array)
    assert outside == small.keys()


def error_of(region: Region, array: Array) -> str | None:
    """The message about a region that does not lie in an array; None where it does."""
    try:
        region.view(array)
    except LayoutError as error:
        return str(error)
    return None


def test_how_far_a_region_reaches():
    region = Region(ParameterBlock("W", "n"), "w", (2, 3), (4, 0), ((0, 2), (1, 1)))
    array = np.arange(21.0).reshape(7, 3)
    assert region.view(array).tolist() == [[12, 13, 14], [18, 19, 20]]
    for shape in ((6, 3), (7, 2), (1, 1), (0, 3)):
        message = f"W_n does not lie in w of shape {shape}"
        with pytest.raises(LayoutError, match=re.escape(message)):
            region.view(np.zeros(shape))
    flat = Region(ParameterBlock("b", "n", 1, 1), "v", (3,), (2,), ((0, 4),), flat=True)
    assert flat.view(np.arange(12.0).reshape(3, 4)).tolist() == [2, 6, 10]
    with pytest.raises(
        LayoutError, match=re.escape("b_n of layer 1, backward does not lie in v of shape (10")
    ):
        flat.view(np.zeros((2, 5)))


def test_a_broken_record_is_no_bijection_or_is_refused():
    """A record that names no number twice may still leave numbers without a place: the proof finds that."""
    sizes = Sizes(2, 3)
    right = Record("mine.rnn", "rnn", {"w": "W[x h]", "u": "R[k h] : k (2 h)"})
    array, found = index_map(right, sizes)[ParameterBlock("R", "n")]
    shape = right.shapes(sizes)["u"]
    assert (array, shape, sorted(found.reshape(-1))) == ("u", (3, 6), list(range(9)))  # of 18
    short = Record("mine.rnn", "rnn", {"w": "W[x h]", "u": "R[k h] : h"})
    with pytest.raises(LayoutError, match=re.escape("R_n does not lie in u of shape (3,)")):
        index_map(short, sizes)
    with pytest.raises(LayoutError, match="R of gate n is in two places"):
        Record("mine.rnn", "rnn", {"w": "W[x h]", "u": "R[k h]; R[k h]"})
    with pytest.raises(LayoutError, match="W of gate n is nowhere"):
        Record("mine.rnn", "rnn", {"u": "R[k h]; b[h]"})


def test_blocks_are_named_and_sorted():
    blocks = [
        ParameterBlock("b", "z"),
        ParameterBlock("W", "n", 1),
        ParameterBlock("W", "n", 0, 1),
        ParameterBlock("W", "n"),
        ParameterBlock("W", "r"),
        ParameterBlock("P"),
    ]
    ordered = [str(block) for block in sorted(blocks, key=ParameterBlock.order)]
    assert ordered == ["W_r", "W_n", "W_n, backward", "W_n of layer 1", "b_z", "P"]


# ---- by hand -----------------------------------------------------------------------------------------------

X, H, Y = 2, 3, 2
Arrays = dict[str, Array]
Blocks = dict[str, Array]


def rows(parameter: str, gates: str, array: Array) -> Blocks:
    """Blocks above one another: a gate is H rows."""
    assert len(array) == len(gates) * H
    return {f"{parameter}_{gate}": array[at * H : at * H + H] for at, gate in enumerate(gates)}


def columns(parameter: str, gates: str, array: Array) -> Blocks:
    """Blocks beside one another, each transposed: a gate is H columns."""
    return rows(parameter, gates, array.T)


def torch(gates: str) -> Callable[[Arrays], Blocks]:
    return lambda a: {
        **rows("W", gates, a["weight_ih_l0"]),
        **rows("R", gates, a["weight_hh_l0"]),
        **rows("b", gates, a["bias_ih_l0"]),
        **rows("d", gates, a["bias_hh_l0"]),
    }


def torch_gru(a: Arrays) -> Blocks:
    """W_ir, W_iz, W_in of torch's documentation, and so on."""
    return {
        "W_r": a["weight_ih_l0"][0:3],
        "W_z": a["weight_ih_l0"][3:6],
        "W_n": a["weight_ih_l0"][6:9],
        "R_r": a["weight_hh_l0"][0:3],
        "R_z": a["weight_hh_l0"][3:6],
        "R_n": a["weight_hh_l0"][6:9],
        "b_r": a["bias_ih_l0"][0:3],
        "b_z": a["bias_ih_l0"][3:6],
        "b_n": a["bias_ih_l0"][6:9],
        "d_r": a["bias_hh_l0"][0:3],
        "d_z": a["bias_hh_l0"][3:6],
        "d_n": a["bias_hh_l0"][6:9],
    }


def keras_gru(a: Arrays) -> Blocks:
    """Keras' own order is z r h, and its bias has the inputs' row and the recurrent one."""
    kernel, recurrent, bias = a["kernel"], a["recurrent_kernel"], a["bias"]
    return {
        "W_z": kernel[:, :H].T,
        "W_r": kernel[:, H : 2 * H].T,
        "W_n": kernel[:, 2 * H :].T,
        "R_z": recurrent[:, :H].T,
        "R_r": recurrent[:, H : 2 * H].T,
        "R_n": recurrent[:, 2 * H :].T,
        "b_z": bias[0, :H],
        "b_r": bias[0, H : 2 * H],
        "b_n": bias[0, 2 * H :],
        "d_z": bias[1, :H],
        "d_r": bias[1, H : 2 * H],
        "d_n": bias[1, 2 * H :],
    }


def keras_cudnn_gru(a: Arrays) -> Blocks:
    """As hdf5_format.py: the buffer of each gate's slice is that of cuDNN's matrix."""
    found: Blocks = {}
    for at, gate in enumerate("zrn"):
        part = slice(at * H, at * H + H)
        found[f"W_{gate}"] = np.ascontiguousarray(a["kernel"][:, part]).reshape(H, X)
        found[f"R_{gate}"] = np.ascontiguousarray(a["recurrent_kernel"][:, part]).reshape(H, H)
        found[f"b_{gate}"] = a["bias"][part]
        found[f"d_{gate}"] = a["bias"][3 * H :][part]
    return found


def pieces(vector: Array, *shapes: tuple[int, ...]) -> list[Array]:
    """A vector cut into arrays, all of it."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    assert ends[-1] == vector.size
    parts = np.split(vector.reshape(-1), ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def cudnn(gates: str) -> Callable[[Arrays], Blocks]:
    """W then R, and behind all matrices b then d, each in the order of linLayerID."""
    count = len(gates)

    def blocks(a: Arrays) -> Blocks:
        shapes = [*[(H, X)] * count, *[(H, H)] * count, *[(H,)] * (2 * count)]
        names = [f"{parameter}_{gate}" for parameter in "WRbd" for gate in gates]
        return dict(zip(names, pieces(a["weight_space"], *shapes), strict=True))

    return blocks


def cudnn_projection(a: Arrays) -> Blocks:
    shapes = [*[(H, X)] * 4, *[(H, Y)] * 4, (Y, H), *[(H,)] * 8]
    names = [f"{p}_{g}" for p in "WR" for g in "ifgo"] + ["P"] + [f"{p}_{g}" for p in "bd" for g in "ifgo"]
    return dict(zip(names, pieces(a["weight_space"], *shapes), strict=True))


def onnx_lstm(a: Arrays) -> Blocks:
    """iofc; B has Wb[iofc] and Rb[iofc] behind one another, P[iof]."""
    b, d = np.split(a["B"][0], 2)
    found = {**rows("W", "iofg", a["W"][0]), **rows("R", "iofg", a["R"][0])}
    return found | rows("b", "iofg", b) | rows("d", "iofg", d) | rows("p", "iof", a["P"][0])


def tf1_lstm(a: Arrays) -> Blocks:
    """i, j, f, o beside one another, the inputs' rows over the recurrent ones."""
    i, j, f, o = np.split(a["kernel"], 4, axis=1)
    found: Blocks = {}
    for gate, part, bias in zip("igfo", (i, j, f, o), np.split(a["bias"], 4), strict=True):
        found |= {f"W_{gate}": part[:X].T, f"R_{gate}": part[X:].T, f"b_{gate}": bias}
    return found | {f"p_{gate}": a[f"w_{gate}_diag"] for gate in "ifo"}


def tf1_gru(a: Arrays) -> Blocks:
    gates, candidate = a["gates/kernel"], a["candidate/kernel"]
    return {
        "W_r": gates[:X, :H].T,
        "W_z": gates[:X, H:].T,
        "W_n": candidate[:X].T,
        "R_r": gates[X:, :H].T,
        "R_z": gates[X:, H:].T,
        "R_n": candidate[X:].T,
        "b_r": a["gates/bias"][:H],
        "b_z": a["gates/bias"][H:],
        "b_n": a["candidate/bias"],
    }


def lbr_gru(a: Arrays) -> Blocks:
    """ldigo, u r o; the fourth bias is the candidate's recurrent one."""
    found: Blocks = {}
    for at, gate in enumerate("zrn"):
        found[f"W_{gate}"] = a["weights_layer"][0, 0, :, at].T
        found[f"R_{gate}"] = a["weights_iter"][0, 0, :, at].T
        found[f"b_{gate}"] = a["bias"][0, 0, at]
    return found | {"d_n": a["bias"][0, 0, 3]}


def openvino_gru(a: Arrays) -> Blocks:
    found = {**rows("W", "zrn", a["W"][0]), **rows("R", "zrn", a["R"][0])}
    return found | rows("b", "zrn", a["B"][0, : 3 * H]) | {"d_n": a["B"][0, 3 * H :]}


def fusion_gru(a: Arrays) -> Blocks:
    """The buffer of [H, 2 H], u and r, and behind it that of [H, H], whatever shape is declared."""
    assert a["WeightH"].shape == (H, 3 * H)
    gates, candidate = pieces(a["WeightH"], (H, 2 * H), (H, H))
    found = {**columns("W", "zrn", a["WeightX"]), **columns("R", "zr", gates), "R_n": candidate.T}
    return found | rows("b", "zrn", a["Bias"][0])


def chainer_lstm(a: Arrays) -> Blocks:
    """The four gates of one unit beside one another: a i f o of each."""
    found: Blocks = {}
    for at, gate in enumerate("gifo"):
        found[f"W_{gate}"] = a["upward/W"][at::4]
        found[f"R_{gate}"] = a["lateral/W"][at::4]
        found[f"b_{gate}"] = a["upward/b"][at::4]
    return found


def flashrnn_gru(a: Arrays) -> Blocks:
    """One order for each array: r z n, n r z, and for the biases d_n r z b_n."""
    found: Blocks = {f"W_{gate}": a["W"][at, 0] for at, gate in enumerate("rzn")}
    found |= {f"R_{gate}": a["R"][at, 0] for at, gate in enumerate("nrz")}
    return found | {name: a["b"][at, 0] for at, name in enumerate(["d_n", "b_r", "b_z", "b_n"])}


def ncnn_gru(a: Arrays) -> Blocks:
    """R, U, WN, BN."""
    found = {**rows("W", "rzn", a["weight_xc_data"][0]), **rows("R", "rzn", a["weight_hc_data"][0])}
    return found | {name: a["bias_c_data"][0, at] for at, name in enumerate(["b_r", "b_z", "b_n", "d_n"])}


def darknet_gru(a: Arrays) -> Blocks:
    """Fully connected layers, each its biases and then its weights: input z r h, then state z r h."""
    names = [
        name for one, two in ("bW", "dR") for gate in "zrn" for name in (f"{one}_{gate}", f"{two}_{gate}")
    ]
    shapes = [shape for width in (X, H) for _ in range(3) for shape in ((H,), (H, width))]
    return dict(zip(names, pieces(a["weights"], *shapes), strict=True))


def graves_lstm(a: Arrays) -> Blocks:
    """As LSTMHelpers.java: the columns behind the recurrent weights are wFF, wOO and wGG."""
    recurrent, peepholes = a["RW"][:, : 4 * H], a["RW"][:, 4 * H :]
    found = {
        **columns("W", "gfoi", a["W"]),
        **columns("R", "gfoi", recurrent),
        **rows("b", "gfoi", a["b"][0]),
    }
    return found | {f"p_{gate}": peepholes[:, at] for at, gate in enumerate("foi")}


def torch_projection(a: Arrays) -> Blocks:
    return torch("ifgo")(a) | {"P": a["weight_hr_l0"]}


def paddle_projection(a: Arrays) -> Blocks:
    of_cell = {f"{name.removeprefix('0.cell.')}_l0": array for name, array in a.items()}
    return torch("ifgo")(of_cell) | {"P": a["0.cell.weight_ho"].T}


BY_HAND: dict[str, Callable[[Arrays], Blocks]] = {
    "torch.gru": torch_gru,
    "torch.lstm": torch("ifgo"),
    "torch.lstm_projection": torch_projection,
    "paddle.gru": torch("rzn"),
    "paddle.lstm_projection": paddle_projection,
    "keras.gru": keras_gru,
    "keras.cudnn_gru": keras_cudnn_gru,
    "cudnn.rnn": cudnn("n"),
    "cudnn.gru": cudnn("rzn"),
    "cudnn.lstm": cudnn("ifgo"),
    "cudnn.lstm_projection": cudnn_projection,
    "onnx.lstm": onnx_lstm,
    "tf1.lstm": tf1_lstm,
    "tf1.gru": tf1_gru,
    "onednn.lbr_gru": lbr_gru,
    "openvino.gru": openvino_gru,
    "paddle.fusion_gru": fusion_gru,
    "chainer.lstm": chainer_lstm,
    "flashrnn.gru": flashrnn_gru,
    "ncnn.gru": ncnn_gru,
    "darknet.gru": darknet_gru,
    "dl4j.graves_lstm": graves_lstm,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_blocks_are_those_found_by_hand(name: str):
    each = record(name)
    sizes = Sizes(X, H, Y if each.projection else None)
    arrays = arrays_of(each, sizes)
    expected = BY_HAND[name](arrays)
    assert expected.keys() == {str(block) for block in blocks_of(each, sizes)}
    for region in regions(each, sizes):
        view = region.view(arrays[region.array]).reshape(region.block.shape(sizes))
        np.testing.assert_array_equal(view, expected[str(region.block)], str(region.block))


def test_several_layers_and_directions_of_a_weight_space():
    """All matrices of (0, forward), (0, backward), (1, forward), (1, backward), then all biases."""
    sizes = Sizes(X, H, layers=2, directions=2)
    arrays = arrays_of(record("cudnn.gru"), sizes)
    shapes = [shape for width in (X, X, 2 * H, 2 * H) for shape in ((3, H, width), (3, H, H))]
    found = pieces(arrays["weight_space"], *shapes, *[(3, H)] * 8)
    for region in regions(record("cudnn.gru"), sizes):
        block = region.block
        place = 2 * (2 * block.layer + block.direction) + "WRbd".index(block.parameter) % 2
        array = found[place + (8 if block.parameter in "bd" else 0)]
        view = region.view(arrays["weight_space"])
        np.testing.assert_array_equal(view, array["rzn".index(block.gate)], str(block))


@pytest.mark.parametrize("name", ["onednn.lstm", "onednn.lstm_ldgoi"])
def test_several_layers_and_directions_of_one_array(name: str):
    sizes = Sizes(2 * H, H, layers=2, directions=2)
    arrays = arrays_of(record(name), sizes)
    for region in regions(record(name), sizes):
        block = region.block
        array = arrays[{"W": "weights_layer", "R": "weights_iter", "b": "bias"}[block.parameter]]
        part, gate = array[block.layer, block.direction], "ifgo".index(block.gate)
        whole = block.parameter == "b" or name.endswith("ldgoi")
        expected = part[gate] if whole else part[:, gate].T
        np.testing.assert_array_equal(region.view(array), expected, str(block))


def test_several_layers_and_directions_of_names():
    sizes = Sizes(X, H, layers=2, directions=2)
    arrays = arrays_of(record("torch.gru"), sizes)
    assert arrays["weight_ih_l1_reverse"].shape == (3 * H, 2 * H)
    for region in regions(record("torch.gru"), sizes):
        block = region.block
        kind = {"W": "weight_ih", "R": "weight_hh", "b": "bias_ih", "d": "bias_hh"}[block.parameter]
        name = f"{kind}_l{block.layer}{'_reverse' if block.direction else ''}"
        assert region.array == name
        at = "rzn".index(block.gate) * H
        np.testing.assert_array_equal(region.view(arrays[name]), arrays[name][at : at + H])
