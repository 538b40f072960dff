"""Weights in bfloat16 and int8 on llvm: the bits of the encoding, whatever the batch, the threads, the tile
and the processor; steps beside the interpreter; NaN and infinity.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tolerance import assert_close
from turns import in_turns
from zoo import normal as random_normal
from zoo import rnn_of

import stepnet as sn
from stepnet.compiler.net import Precision
from stepnet.compiler.net.encodings import rounded, whole_numbers
from stepnet.compiler.plan.passes import PIPELINE, narrowed
from stepnet.compiler.targets.cpu import LlvmEngine, Processor, available_processors

pytestmark = pytest.mark.usefixtures("small_calls_are_shared")

RANDOM = np.random.default_rng(0)
ENCODINGS = ("bfloat16", "int8")
DTYPES = pytest.mark.parametrize("dtype", ENCODINGS)
SIZES = ((1, 1), (3, 17), (17, 3), (130, 65))


PLAIN = {
    "avx512": Processor("avx512", "skylake-avx512", "-prefer-256-bit", 64, 32),
    "avx2": Processor("avx2", "haswell", "", 32, 16),
}


def other_processors() -> Iterator[Processor]:
    """This processor, the narrower ones that it runs, those with AVX-512 and AVX2 and nothing for few bits,
    and one of no family.
    """
    for processor in available_processors():
        yield processor
        plain = PLAIN.get(processor.name)
        if plain is not None and processor != plain:
            yield plain
    yield Processor("generic", "", "", 16, 16)


PROCESSORS = tuple(other_processors())
EACH = tuple(product(SIZES, PROCESSORS))


def name_of(case: Any) -> str:
    if isinstance(case, str):
        return case
    (inputs, units), processor = case
    return f"{inputs}-{units}-{processor.name}-{processor.cpu or 'any'}"


normal = partial(random_normal, seed=RANDOM)


def encoded_rnn(step: Any, params: Any, dtype: str, **options: Any) -> sn.RNN:
    return sn.RNN(step, params, **options).in_precision(Precision(dtype))


def both_products(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    """The products alone, of the input and of a memory that is the input before."""
    return {"x": x @ p["W"], "h": h @ p["R"]}, x


def products(inputs: int, units: int, dtype: str) -> sn.RNN:
    params = {"W": normal(inputs, units), "R": normal(inputs, units)}
    return encoded_rnn(both_products, params, dtype, memory=inputs, inputs=inputs)


def run_on(processor: Processor | None, rnn: sn.RNN, x: Any, **options: Any) -> Any:
    """The outputs on a processor: that of this processor where there is none."""
    reading = rnn.read(x, None, None, options.get("lengths"))
    program = reading.running
    kernel = LlvmEngine(processor).compile(program.schedule)
    return kernel.bind(program.params)(reading.call).outputs


# ---- the bits of products ----------------------------------------------------------------------------------


def pairs(left: np.ndarray, right: np.ndarray, begun: float | np.ndarray = 0) -> np.ndarray:
    """The product of sides rounded to bfloat16, by the definition of vdpbf16ps: of each pair the second
    product is added before the first, and each sum is rounded. begun: what the sums begin with.
    """
    left, right = rounded(left), rounded(right)
    if left.shape[1] % 2:
        left, right = np.pad(left, ((0, 0), (0, 1))), np.pad(right, ((0, 1), (0, 0)))
    sums = np.zeros((len(left), right.shape[1]), np.float32) + begun
    for first in range(0, left.shape[1], 2):
        for k in (first + 1, first):
            sums = sums + left[:, k, None] * right[k]
    return sums


def quads(left: np.ndarray, right: np.ndarray, begun: float | np.ndarray = 0) -> np.ndarray:
    """The product by whole numbers, summed as Python's integers are, added to `begun`."""
    (p, a), (q, b) = whole_numbers(left, 1), whole_numbers(right, 0)
    sums = p.astype(np.int64).astype(object) @ q.astype(np.int64).astype(object)
    return begun + sums.astype(np.float64).astype(np.float32) * a * b


EXACT = {"bfloat16": pairs, "int8": quads}


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize(("case", "dtype"), in_turns(EACH, ENCODINGS), ids=name_of)
def test_products_have_the_bits_of_the_encoding(case: Any, dtype: str) -> None:
    """`make test` runs each size on each processor in one encoding, and the test of steps in the other."""
    (inputs, units), processor = case
    rnn = products(inputs, units, dtype)
    for rows in (1, 2, 7, 13):
        x = normal(rows, 2, inputs)
        made, h = (output.reshape(rows, 2, units) for output in run_on(processor, rnn, x))
        np.testing.assert_array_equal(made[:, 1], EXACT[dtype](x[:, 1], rnn.params["W"]))
        np.testing.assert_array_equal(h[:, 1], EXACT[dtype](x[:, 0], rnn.params["R"]))


@DTYPES
def test_products_of_several_left_sides_are_added(dtype: str) -> None:
    """One sum goes on with that of the left side before it; in int8 each has a scale of its own."""

    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        return x["a"] @ p["A"] + x["b"] @ p["B"], h

    params, inputs = {"A": normal(19, 40), "B": normal(6, 40)}, {"a": 19, "b": 6}
    rnn = encoded_rnn(step, params, dtype, memory=sn.Spec((), "float32"), inputs=inputs)
    (products,) = [node for node in rnn.plan.net.nodes if node.operation == "products"]
    assert (products.attributes["lefts"], products.attributes["weights"]) == (2, dtype)
    x = {"a": normal(7, 1, 19), "b": 100 * normal(7, 1, 6)}
    right = EXACT[dtype](x["b"][:, 0], params["B"], EXACT[dtype](x["a"][:, 0], params["A"]))
    for processor in PROCESSORS:
        np.testing.assert_array_equal(run_on(processor, rnn, x)[0], right)


@pytest.mark.parametrize("dtype", ["stored", "stored_int8"])
@pytest.mark.parametrize("sizes", [(3, 17), (64, 65)])
def test_weights_alone_are_encoded(dtype: str, sizes: tuple[int, int]) -> None:
    """Left sides keep their dtype, whether they are read in place or copied to fill words. Sums of several
    left sides and of two products at once are float32.
    """
    inputs, units = sizes
    names = "WRVU"

    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        return {"a": x @ p["W"] + h @ p["R"], "b": x @ p["V"] + h @ p["U"]}, x + 0.5

    params = {name: normal(inputs, units) for name in names}
    rnn = encoded_rnn(step, params, dtype, memory=inputs, inputs=inputs)
    params["W"][:, 0] = 0
    rnn = rnn.with_params(params)
    if dtype == "stored":
        right = {name: params[name].astype(ml_dtypes.bfloat16).astype(np.float64) for name in names}
    else:
        scales = {name: np.maximum(np.abs(params[name]).max(0), np.float32(2**-100)) for name in names}
        codes = {name: np.rint(params[name] * (np.float32(127) / scales[name])) for name in names}
        right = {name: codes[name] * (scales[name].astype(np.float64) / 127) for name in names}
    whole = normal(13, 2, inputs)
    h = (whole[:, 0] + np.float32(0.5)).astype(np.float64)
    x = whole[:, 1].astype(np.float64)
    wanted = x @ right["W"] + h @ right["R"], x @ right["V"] + h @ right["U"]
    for processor in (PROCESSORS[0], PROCESSORS[-1]):
        made = [output.reshape(13, 2, units) for output in run_on(processor, rnn, whole)]
        for output, best in zip(made, wanted, strict=True):
            assert_close(output[:, 1], best, width=2 * inputs)
        few = [output.reshape(2, 2, units) for output in run_on(processor, rnn, whole[:2])]
        np.testing.assert_array_equal(few, [output[:2] for output in made])
    interpreted, _ = rnn(whole, engine="interpret")
    assert_close(interpreted["a"][:, 1], wanted[0], width=2 * inputs)


@pytest.mark.parametrize("dtype", ["stored", "stored_int8"])
def test_numbers_behind_a_left_side_are_not_read(dtype: str) -> None:
    """Its three numbers fill no whole words, and the next ones of the input are NaN."""

    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        return x[:, :3] @ p["W"], h

    rnn = encoded_rnn(step, {"W": normal(3, 5)}, dtype, memory=1, inputs=64)
    x = normal(2, 3, 64)
    right = rnn(x)[0]
    x[..., 3:] = np.nan
    np.testing.assert_array_equal(rnn(x)[0], right)


def test_a_vector_of_weights_that_is_not_finite_is_nan_in_int8_alone() -> None:
    params = {name: normal(8, 5) for name in "WR"}
    params["W"][3, 2] = np.inf
    rnn = encoded_rnn(both_products, params, "stored_int8", memory=8, inputs=8)
    made = rnn(normal(3, 2, 8))[0]
    assert np.isnan(made["x"]).all(axis=(0, 1)).tolist() == [False, False, True, False, False]
    assert np.isfinite(made["h"]).all()


def test_sums_of_a_wide_product_in_int8_are_exact() -> None:
    """Sums of 20,000 of the largest products have more digits than a float32."""
    rnn = products(20_000, 5, "int8")
    rnn = rnn.with_params({name: np.abs(array) + 1 for name, array in rnn.params.items()})
    x = 1 + np.abs(normal(3, 1, 20_000)) / 50
    right = quads(x[:, 0], rnn.params["W"])
    for processor in PROCESSORS:
        made = run_on(processor, rnn, x)[0]
        np.testing.assert_array_equal(made, right)


@DTYPES
def test_rows_of_zeros_small_numbers_and_nothing_finite(dtype: str) -> None:
    rnn = products(19, 21, dtype)
    x = np.stack([np.zeros(19), np.full(19, 1e-33), *normal(4, 19), np.full(19, 3e30)]).astype("f4")[:, None]
    x[2, 0, 18] = np.nan
    x[3, 0, 0] = np.inf
    for processor in PROCESSORS:
        with np.errstate(all="ignore"):
            made = run_on(processor, rnn, x)[0]
            right = EXACT[dtype](x[:, 0], rnn.params["W"])
        np.testing.assert_array_equal(made[0], 0)
        assert np.isnan(made[2]).all()
        assert not np.isfinite(made[3]).any()
        assert np.isfinite(made[4:6]).all()
        np.testing.assert_array_equal(made, right)


@DTYPES
def test_what_lies_behind_a_row_is_not_read(dtype: str) -> None:
    """A vector of 1 / x has infinity behind the last number of x, where zeros are."""
    rnn = encoded_rnn(lambda x, h, p: ((1 / x) @ p, h), normal(19, 21), dtype, memory=(), inputs=19)
    x = 1 + np.abs(normal(3, 1, 19))
    for processor in PROCESSORS:
        made = run_on(processor, rnn, x)[0]
        np.testing.assert_array_equal(made, EXACT[dtype](1 / x[:, 0], rnn.params))


@DTYPES
def test_weights_that_are_not_finite_reach_their_own_units_alone(dtype: str) -> None:
    rnn = products(9, 20, dtype)
    wrong = {name: array.copy() for name, array in rnn.params.items()}
    wrong["W"][4, 7], wrong["W"][0, 19], wrong["W"][:, 3] = np.nan, np.inf, 0
    x = normal(5, 1, 9)
    made, right = (each(x)[0]["x"][:, 0] for each in (rnn.with_params(wrong), rnn))
    assert np.isnan(made[:, 7]).all()
    assert not np.isfinite(made[:, 19]).any()
    np.testing.assert_array_equal(made[:, 3], 0)
    others = [unit for unit in range(20) if unit not in (3, 7, 19)]
    np.testing.assert_array_equal(made[:, others], right[:, others])


# ---- one sequence by itself --------------------------------------------------------------------------------


def cell(kind: str, inputs: int, units: int, dtype: str, reverse: bool = False) -> sn.RNN:
    return rnn_of(kind, inputs, units, seed=1, reverse=reverse).in_precision(Precision(dtype))


@pytest.mark.long(each=True)
@DTYPES
@pytest.mark.usefixtures("same_threads")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("kind", "units"), [("gru", 17), ("lstm", 96), ("gru", 300), ("lstm", 330)])
def test_a_sequence_has_its_bits_in_every_batch(dtype: str, kind: str, units: int, reverse: bool) -> None:
    rnn = cell(kind, 5, units, dtype, reverse)
    sequences = [normal(length, 5) for length in (7, 0, 1, 12, 3, 3, 9, 5, 8, 2, 4)]
    batch = sn.Ragged.from_list(sequences, features=5)
    alone = [rnn(sn.Ragged.from_list([each], features=5))[0].values for each in sequences]
    for count in (1, 2, 3):
        sn.set_threads(count)
        for made in (rnn(batch)[0], rnn(batch)[0]):
            for one, right in zip(made.to_list(), alone, strict=True):
                np.testing.assert_array_equal(one, right)


@DTYPES
@pytest.mark.usefixtures("same_threads")
def test_threads_that_share_a_step_give_its_bits(dtype: str) -> None:
    rnn = cell("gru", 40, 900, dtype)  # weights that two threads share, in int8 as well
    x = normal(2, 4, 40)
    made: list[np.ndarray] = []
    for count in (1, 2, 3):
        sn.set_threads(count)
        made.append(rnn(x)[0])
    np.testing.assert_array_equal(made[1], made[0])
    np.testing.assert_array_equal(made[2], made[0])


@DTYPES
def test_a_stream_gives_the_bits_of_a_call(dtype: str) -> None:
    rnn = cell("lstm", 6, 33, dtype)
    x = normal(3, 9, 6)
    right, stream = rnn(x)[0], rnn.stream(rows=3)
    for step in range(9):
        np.testing.assert_array_equal(stream.step(x[:, step]), right[:, step])


@DTYPES
def test_masked_and_last_steps(dtype: str) -> None:
    rnn = cell("gru", 4, 18, dtype)
    x, mask = normal(2, 6, 4), np.array([[1, 1, 1, 1, 0, 0], [1, 0, 1, 0, 1, 1]], bool)
    masked, _ = rnn(x, mask=mask)
    short, _ = rnn(x[:1, :4])
    np.testing.assert_array_equal(masked[0, :4], short[0])
    packed, _ = rnn(x[1:, mask[1]], last_only=True)
    np.testing.assert_array_equal(masked[1, 5], packed[0])


# ---- beside the interpreter --------------------------------------------------------------------------------


def from_each_memory(rnn: sn.RNN, x: np.ndarray, memories: list[Any], engine: str) -> Any:
    """The results of one step for each input and the memory before it, as rows of one step."""
    count, steps = x.shape[:2]
    rows = x.reshape(count * steps, 1, *x.shape[2:])
    before = [memory.reshape(count * steps, *memory.shape[2:]) for memory in memories]
    initial = before[0] if len(before) == 1 else dict(zip(("h", "c"), before, strict=True))
    return rnn(rows, initial=initial, engine=engine)[0]


def own_cell(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    """A cell of one's own: products with the memory, with both joined, and with a value of the step."""
    z = sn.sigmoid(np.concatenate([x, h], axis=-1) @ p["Z"])
    q = np.tanh(h @ p["Q"]) * z[:, :3]
    return (h := z * h + (1 - z) * np.sin(q @ p["V"] + x @ p["W"] + p["b"])), h


def own_parameters(inputs: int, units: int) -> dict[str, np.ndarray]:
    shapes = {"Z": (inputs + units, units), "Q": (units, 3), "V": (3, units), "W": (inputs, units)}
    return {name: normal(*shape) / 2 for name, shape in shapes.items()} | {"b": normal(units)}


def simple(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    h = np.tanh(x @ p["W"] + h @ p["R"] + p["b"])
    return h, h


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize(("case", "dtype"), in_turns(EACH, ENCODINGS[::-1]), ids=name_of)
def test_each_step_is_that_of_the_interpreter(case: Any, dtype: str) -> None:
    """From the same memory, so that no step begins with numbers that another rounding has moved."""
    (inputs, units), processor = case
    params = {"W": normal(inputs, units), "R": normal(units, units) / 2, "b": normal(units)}
    rnn = encoded_rnn(simple, params, dtype, memory=units, inputs=inputs)
    x = normal(5, 4, inputs)
    h = run_on(processor, rnn, x)[0].reshape(5, 4, units)
    before = np.concatenate([np.zeros((5, 1, units), "f4"), h[:, :-1]], axis=1)
    right = from_each_memory(rnn, x, [before], "interpret")
    assert_close(h.reshape(-1, units), right[:, 0], width=inputs + units)
    exact = from_each_memory(sn.RNN(simple, params, memory=units), x, [before], "interpret")
    if units > 1:  # a number alone is its own scale
        assert np.abs(right - exact).max() > 1e-5


@pytest.mark.long(each=True)
@DTYPES
@pytest.mark.parametrize(("inputs", "units"), [(3, 17), (40, 30), (1, 130)])
def test_a_cell_of_ones_own(dtype: str, inputs: int, units: int) -> None:
    """Its last product reads what the others gave: a rounding apart there may be a step of the encoding
    apart, which is 2^-7 of the largest number in either encoding, times the weights. Most are not.
    """
    params = own_parameters(inputs, units)
    rnn = encoded_rnn(own_cell, params, dtype, memory=units, inputs=inputs)
    x = normal(4, 5, inputs)
    h = rnn(x)[0]
    before = np.concatenate([np.zeros((4, 1, units), "f4"), h[:, :-1]], axis=1)
    right = from_each_memory(rnn, x, [before], "interpret")[:, 0].reshape(h.shape)
    away = np.abs(h - right)
    assert np.median(away) < 1e-6
    assert away.max() <= 2**-7 * np.abs(params["V"]).sum(axis=0).max()


@DTYPES
def test_every_product_with_parameters_is_encoded(dtype: str) -> None:
    rnn = encoded_rnn(own_cell, own_parameters(4, 6), dtype, memory=6, inputs=4)
    body = next(node.recur.body for node in narrowed(rnn.net, PIPELINE).nodes if node.operation == "recur")
    assert [n.attributes.get("weights") for n in body.nodes if n.kind == "matmul"] == [dtype] * 5
    nodes = [*rnn.plan.net.nodes, *rnn.plan.body.nodes]
    assert {node.attributes.get("weights") for node in nodes if node.kind == "matmul"} == {dtype}


def test_products_of_other_dtypes_and_of_two_values_stay_as_they_are() -> None:
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = h + np.einsum("ni,ni->n", x, h)[:, None] + (x.astype(np.float64) @ p).astype(np.float32)
        return h, h

    single = sn.Spec((4,), "float32")
    rnn = encoded_rnn(step, RANDOM.normal(size=(4, 4)), "int8", memory=single, inputs=single)
    x = normal(2, 3, 4)
    plain = sn.RNN(step, rnn.params, memory=single)
    np.testing.assert_array_equal(rnn(x)[0], plain(x)[0])


@DTYPES
def test_products_of_float64_beside_encoded_ones(dtype: str) -> None:
    """The vectors of a step with products of both are half as long."""

    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        d = (x.astype(np.float64) @ p["D"]).astype(np.float32)
        return {"d": d, "x": x @ p["W"]}, h

    params = {"D": RANDOM.normal(size=(9, 20)), "W": normal(9, 20)}
    memory = sn.Spec((), "float32")
    rnn = encoded_rnn(step, params, dtype, memory=memory, inputs=sn.Spec((9,), "float32"))
    x = normal(5, 2, 9)
    for processor in PROCESSORS:
        d, made = run_on(processor, rnn, x)
        np.testing.assert_array_equal(made, EXACT[dtype](x.reshape(-1, 9), params["W"]))
        assert_close(d, x.reshape(-1, 9).astype("f8") @ params["D"], width=9)


@DTYPES
def test_a_matrix_left_side_is_encoded_row_by_row(dtype: str) -> None:
    """x[m, k] @ W is m products, each with a scale of its own."""
    rnn = encoded_rnn(lambda x, h, p: (x @ p, h), normal(7, 18), dtype, memory=(), inputs=(3, 7))
    x = normal(4, 2, 3, 7) * np.array([1, 100, 0.01], "f4")[:, None]
    made = rnn(x)[0].reshape(-1, 18)
    np.testing.assert_array_equal(made, EXACT[dtype](x.reshape(-1, 7), rnn.params))


@DTYPES
def test_stored_parameters_are_encoded_from_their_values(dtype: str) -> None:
    W = normal(8, 20).astype("bfloat16")
    rnn = encoded_rnn(lambda x, h, p: (x @ p, h), W, dtype, memory=sn.Spec((), "float32"), inputs=8)
    x = normal(3, 1, 8)
    made = rnn(x.astype("bfloat16"))[0]
    right = EXACT[dtype](rounded(x)[:, 0], W.astype("f4"))
    np.testing.assert_array_equal(made[:, 0], right.astype("bfloat16"))
