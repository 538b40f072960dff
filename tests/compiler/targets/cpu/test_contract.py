"""The contract kernel: the sum of outer products, against float64, for every processor, layout and thread."""

from itertools import pairwise
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
import pytest
from constants import Constants
from hypothesis import given, settings
from same_bits import assert_same_bits
from tolerance import assert_close
from zoo import rnn_of, uniform

import stepnet as sn
from stepnet.compiler.net import STEPS, Builder, Type, totals
from stepnet.compiler.net.encodings import rounded
from stepnet.compiler.targets.cpu import Processor, available_processors
from stepnet.compiler.targets.cpu.products import contract as module
from stepnet.compiler.targets.cpu.running import finish

pytestmark = pytest.mark.usefixtures("same_threads")
Array = np.ndarray
PROCESSORS = available_processors()
SHAPES = [
    (1, 1, 1),
    (5, 3, 7),
    (totals.BLOCK, 8, 48),
    (totals.BLOCK + 1, 9, 50),
    (2 * totals.BLOCK + 3, 17, 33),
    (700, 64, 1),
    (3, 1, 130),
    (2 * totals.BLOCK, 20, 256),
]


def vectors(rows: int, *columns: int, dtype: str = "float32", seed: int = 0) -> list[Array]:
    random = np.random.default_rng(seed)
    return [random.uniform(-1, 1, (rows, size)).astype(dtype) for size in columns]


def of_places(
    left: Array, other: Array, places: Array, processor: Processor, weights: str | None = None
) -> Array:
    """The sum over the rows at some places, in this order."""
    work = module.Contract(
        [(0, 1)], [left.shape[1], other.shape[1]], left.dtype.name, places, processor, weights
    )
    result = np.full((left.shape[1], other.shape[1]), np.nan, left.dtype)
    work.point(*(array.ctypes.data for array in (left, other, result)))
    work()
    work.release()
    return result


def right(left: Array, other: Array) -> Array:
    return left.astype("float64").T @ other.astype("float64")


@pytest.mark.long(each=True)
@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: processor.name)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "m", "n"), SHAPES)
def test_it_is_the_sum_of_outer_products(processor: Processor, dtype: str, rows: int, m: int, n: int) -> None:
    a, b = vectors(rows, m, n, dtype=dtype)
    result = module.contract(a, b, processor)
    assert (result.dtype, result.shape) == (a.dtype, (m, n))
    assert_close(result, right(a, b), 1, rows)


@pytest.mark.long(each=True)
@pytest.mark.parametrize(
    "processor", [*PROCESSORS, Processor("generic", "", "", 16, 16)], ids=lambda t: t.name
)
@pytest.mark.parametrize(("rows", "m", "n"), SHAPES)
def test_sides_in_bfloat16_are_rounded(processor: Processor, rows: int, m: int, n: int) -> None:
    a, b = vectors(rows, m, n)
    result = module.contract(a, b, processor, weights="bfloat16")
    assert (result.dtype, result.shape) == (a.dtype, (m, n))
    assert_close(result, right(rounded(a), rounded(b)), 1, rows)
    assert_close(totals.contract(a, b, weights="bfloat16"), right(rounded(a), rounded(b)), 1, rows)


def test_rows_in_bfloat16_are_read_by_their_places() -> None:
    """An odd number of them too, of which the last one has none beside it."""
    a, b = vectors(2 * totals.BLOCK + 7, 19, 37)
    for count in (1, 2, totals.BLOCK + 1, len(a)):
        places = np.random.default_rng(count).permutation(len(a))[:count]
        made = of_places(a, b, places, PROCESSORS[0], "bfloat16")
        there = module.contract(a[places], b[places], PROCESSORS[0], weights="bfloat16")
        np.testing.assert_array_equal(made, there, strict=True)


@pytest.mark.long(examples=12)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(0, 600),
    m=st.integers(0, 40),
    n=st.integers(0, 70),
    seed=st.integers(0, 9),
    threads=st.integers(1, 4),
)
def test_rows_are_read_by_their_places(rows: int, m: int, n: int, seed: int, threads: int) -> None:
    """Where rows lie, what lies between them and how many threads there are changes no bit."""
    a, b = vectors(rows, m, n, seed=seed)
    processor = PROCESSORS[0]
    expected = module.contract(a, b, processor)
    assert_close(expected, right(a, b), 1, max(1, rows))
    places = np.random.default_rng(seed).permutation(2 * rows + 1)[:rows]
    elsewhere = [np.full((2 * rows + 1, size), np.nan, "float32") for size in (m, n)]
    for there, array in zip(elsewhere, (a, b), strict=True):
        there[places] = array
    sn.set_threads(threads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SHARED", 0)
        left, other = elsewhere
        found = of_places(left, other, places, processor) if m and n else module.contract(a, b, processor)
        np.testing.assert_array_equal(found, expected, strict=True)


def test_vectors_of_several_axes_are_contracted_one_by_one() -> None:
    a, b = vectors(60, 5, 6)
    expected = module.contract(a, b, PROCESSORS[0])
    a, b = a.reshape(20, 3, 5), b.reshape(20, 3, 6)
    np.testing.assert_array_equal(module.contract(a, b, PROCESSORS[0]), expected, strict=True)


def test_what_is_no_number_stays_in_its_row_and_column() -> None:
    a, b = vectors(300, 9, 20)
    a[7, 2], b[9, 3] = np.nan, np.inf
    result, expected = module.contract(a, b, PROCESSORS[0]), right(a, b)
    assert np.array_equal(np.isnan(result), np.isnan(expected))
    assert np.isnan(result[2]).all()
    assert not np.isnan(np.delete(result, 2, axis=0)).any()
    assert np.isinf(np.delete(result[:, 3], 2)).all()


@pytest.mark.parametrize("dtypes", [("int32", "int32"), ("float32", "float64"), ("float16", "float16")])
def test_other_dtypes_are_left_to_numpy(dtypes: tuple[str, str]) -> None:
    a, b = (np.arange(12).reshape(4, 3).astype(dtype) for dtype in dtypes)
    result = module.contract(a, b, PROCESSORS[0])
    assert result.dtype == np.result_type(*dtypes)
    assert result.tolist() == (a.T @ b).tolist()


def test_more_rows_than_are_done_at_once(constants: Constants) -> None:
    a, b = vectors(5 * totals.BLOCK + 7, 4, 20)
    expected = module.contract(a, b, PROCESSORS[0])
    constants(module, AT_ONCE=2 * totals.BLOCK * 4 * 20)
    np.testing.assert_array_equal(module.contract(a, b, PROCESSORS[0]), expected, strict=True)


@pytest.mark.parametrize("at_once", [module.AT_ONCE, 2 * totals.BLOCK * 9 * 20])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_sum_of_each_sequence_is_that_of_its_rows_alone(
    threads: int, at_once: int, constants: Constants
) -> None:
    """Also of a sequence without rows, of one with more than are done at once, and of none at all."""
    lengths = [3, 0, 2 * totals.BLOCK + 5, 1, 7]
    offsets, processor = np.cumsum([0, *lengths]), PROCESSORS[0]
    a, b = vectors(offsets[-1] + 4, 9, 20)
    places = np.random.default_rng(3).permutation(len(a))[: offsets[-1]]
    pieces = [places[first:last] for first, last in pairwise(offsets)]
    expected = np.array([module.contract(a[piece], b[piece], processor) for piece in pieces])
    sn.set_threads(threads)
    constants(module, AT_ONCE=at_once, SHARED=0)
    for own, right_ones in ((offsets, expected), (offsets[:1], expected[:0])):
        work = module.Contract([(0, 1)], [9, 20], "float32", places[: own[-1]], processor, offsets=own)
        result = np.full(right_ones.shape, np.nan, "float32")
        work.point(*(array.ctypes.data for array in (a, b, result)))
        work()
        work.release()
        np.testing.assert_array_equal(result, right_ones, strict=True)


@pytest.mark.parametrize("weights", [None, "bfloat16"])
@pytest.mark.parametrize(("threads", "is_split"), [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize("columns", [(9, 20, 33, 64), (70, 5, 64, 16)], ids=["wide right", "wide left"])
def test_products_that_share_operands_have_the_bits_of_each_alone(
    columns: tuple[int, ...], threads: int, is_split: bool, weights: str | None, constants: Constants
) -> None:
    """Each operand is packed once, for all products that read it on the same side."""
    offsets = np.array([0, 3, totals.BLOCK + 9, totals.BLOCK + 9, 2 * totals.BLOCK + 1])
    arrays, processor = vectors(offsets[-1], *columns), PROCESSORS[0]
    places = np.random.default_rng(4).permutation(offsets[-1])
    products = [(0, 1), (0, 2), (3, 1), (2, 2), (3, 2)]
    pieces = [places[a:b] for a, b in pairwise(offsets)] if is_split else [places]
    expected = [
        np.array([module.contract(arrays[m][p], arrays[n][p], processor, weights=weights) for p in pieces])
        for m, n in products
    ]
    sn.set_threads(threads)
    constants(module, SHARED=0)
    own = offsets if is_split else None
    work = module.Contract(products, columns, "float32", places, processor, weights, own)
    results = [np.full_like(array, np.nan) for array in expected]
    sets = zip(products, results, strict=True)
    work.point(*(array.ctypes.data for (m, n), result in sets for array in (arrays[m], arrays[n], result)))
    work()
    assert len(work.packed_memory) == len(work.tasks) * (3 + 2)
    work.release()
    for result, right_ones in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, right_ones, strict=True)


@pytest.mark.parametrize("weights", [None, "bfloat16"])
@pytest.mark.parametrize("columns", [(9, 70, 20), (70, 9, 20)], ids=["wide right", "wide left"])
def test_sums_of_rows_have_the_same_bits_on_any_number_of_threads(
    columns: tuple[int, ...], weights: str | None, constants: Constants
) -> None:
    """Of the left operand of one product and the right operand of another: eight packed words are added up,
    and then added to the sum; words that are left over one by one. bfloat16 rounds none of them.
    """
    rows, processor, products = 2 * totals.BLOCK + 13, PROCESSORS[0], [(0, 1), (2, 1), (2, 0)]
    arrays = vectors(rows + 4, *columns, seed=5)
    places, found = np.random.default_rng(6).permutation(rows + 4)[:rows], list[list[Array]]()
    constants(module, SHARED=0)
    for threads in (1, 3):
        sn.set_threads(threads)
        summed = [(0, "left"), (2, "right")] if columns[0] < columns[1] else [(0, "right"), (1, "left")]
        work = module.Contract(products, columns, "float32", places, processor, weights, summed=summed)
        results = [np.full((columns[m], columns[n]), np.nan, "float32") for m, n in products]
        read = {place: products[place][side == "right"] for place, side in summed}
        sums = [
            np.full(columns[read[place]] if place in read else 1, np.nan, "float32") for place in range(3)
        ]
        for place, side in summed:
            block = ("group", work.sizes.group) if side == "left" else ("unit", work.sizes.width)
            first, last, adds = (
                work.arguments[place::3, module.ARGUMENT_INDEX[name]]
                for name in (f"first_{block[0]}", f"last_{block[0]}", f"sums_{side}")
            )
            assert (adds * (last - first)).sum() == -(-columns[read[place]] // block[1]), (
                "one thread for each"
            )
        given = zip(products, results, sums, strict=True)
        work.point(*(a.ctypes.data for (m, n), *made in given for a in (arrays[m], arrays[n], *made)))
        work()
        work.release()
        found.append(sums)
        for place, total in enumerate(sums):
            if place not in read:
                assert np.isnan(total).all()
                continue
            expected = np.zeros(len(total))
            for row in places:
                expected += arrays[read[place]][row]
            assert_close(total, expected, 1, rows)
    for one, several in zip(*found, strict=True):
        np.testing.assert_array_equal(one, several)


def test_a_contract_sums_what_it_packs() -> None:
    """The sum of all rows of one of its operands, unless the sums of each sequence are needed themselves, no
    contract has this operand, or it has one column.
    """
    builder = Builder()
    x, d, other, one = (
        builder.input(Type(STEPS, (n,), "float32"), name)
        for n, name in ((3, "x"), (3, "d"), (3, "o"), (1, "i"))
    )
    sums = [builder.add("reduce", value, how="sum") for value in (x, d, other, one)]
    both = [builder.add("reduce", value, how="sum") for value in sums]
    contracts = [builder.add("contract", *pair) for pair in ((d, x), (one, x), (d, d))]
    net, tasks = builder.net([*both, *contracts]), [*sums, *both, *contracts]
    found = {place: (each.number, each.side) for place, each in finish.contract_sums(net, tasks).items()}
    assert found == {contracts[0]: (both[0], "right"), contracts[2]: (both[1], "right")}
    ((place, each),) = finish.contract_sums(builder.net([*both, *contracts, sums[0]]), tasks).items()
    assert (place, each.number, each.between, each.side) == (contracts[0], both[1], sums[1], "left")


@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_contracts_that_share_an_operand_are_one_task(order: tuple[int, int]) -> None:
    """As of the matrices of an LSTM, but not of a GRU, whose cotangents differ in one gate."""
    builder = Builder()
    x, h, d, other = (builder.input(Type(STEPS, (3,), "float32"), name) for name in ("x", "h", "d", "other"))
    pairs = [(x, d), (h, d), (h, other)]
    first, second, third = (builder.add("contract", *(pair[place] for place in order)) for pair in pairs)
    net = builder.net([first, second, third])
    assert finish.joined(net, [first, second]) == [(first, second)]
    assert finish.joined(net, [first, third]) == [(first,), (third,)]


@pytest.mark.parametrize(("cell", "sums"), [("gru", 2), ("lstm", 1)])
def test_contracts_sum_the_gradients_of_biases(cell: str, sums: int) -> None:
    """Of more rows than a block has, beside the interpreter in float64."""
    found, own, x = list[int](), finish.contract_sums, uniform(9, 60, 4)

    def counted(net: Any, tasks: Any) -> Any:
        """Counts the sums that contracts compute."""
        made = own(net, tasks)
        found.append(len(made))
        return made

    with patch.object(finish, "contract_sums", counted):
        made = gradients(sn.vjp(rnn_of(cell, 4, 40)), x)
    assert found == [sums]
    right = gradients(sn.vjp(rnn_of(cell, 4, 40, dtype="float64")), x.astype("f8"), engine="interpret")
    for name, exact in right[1]["params"].items():
        assert_close(made[1]["params"][name], exact, 60, 9 * 60)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("how", ["threads", "pieces"])
def test_a_prepared_gradient_whose_contracts_take_several_calls_has_the_same_bits(
    how: str, cell: str, constants: Constants
):
    sn.set_threads(1)
    values = [uniform(9, 60, 4, seed=seed) for seed in range(3)]
    expected = [gradients(sn.vjp(rnn_of(cell, 4, 40)), x) for x in values]
    if how == "threads":
        sn.set_threads(3)
        constants(module, SHARED=0)
    else:
        constants(module, AT_ONCE=1)
    run = sn.vjp(rnn_of(cell, 4, 40))
    for _ in range(2):
        assert_same_bits([gradients(run, x) for x in values], expected)


def gradients(run: Any, x: Array, **options: Any) -> Any:
    (outputs, final), backward = run(x, **options)
    return outputs, vars(backward(outputs, final))
