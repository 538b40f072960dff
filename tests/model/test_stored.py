"""float16 and bfloat16: stored in two bytes, computed in float32, and given back as they came.

What is right is the same in float32 on the widened numbers, rounded once at the end, bit for bit.
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo import normal, sequences
from zoo import simple as step

import stepnet as sn
from stepnet import cells
from stepnet.compiler.values import DTYPES, leaves, transform
from stepnet.errors import InputError, StepError
from stepnet.model.control import Control

Array = np.ndarray
STORED = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
LENGTHS = (4, 0, 1, 7)


def wide(structure: Any) -> Any:
    """Arrays and Raggeds in float32."""

    def widened(leaf: Any) -> Any:
        if isinstance(leaf, sn.Ragged):
            return leaf.with_values(widened(leaf.values))
        return leaf.astype("float32") if DTYPES[leaf.dtype.name].is_stored else leaf

    return transform(widened, structure)


def assert_rounded(found: Any, right: Any, dtype: str) -> None:
    """The right arrays or Raggeds, rounded once."""
    assert len(leaves(found)) == len(leaves(right)) > 0
    for one, other in zip(leaves(found), leaves(right), strict=True):
        if isinstance(one, sn.Ragged):
            assert all(np.array_equal(a, b) for a, b in zip(one.offsets, other.offsets, strict=True))
            one, other = one.values, other.values
        assert (one.dtype, other.dtype) == (dtype, "float32")
        assert other.size == 0 or np.any(other != other.astype(dtype))
        assert one.tobytes() == other.astype(dtype).tobytes()


def parameters(dtype: Any, inputs: int = 5, hidden: int = 4) -> dict[str, Array]:
    return {
        "W": normal(inputs, hidden, seed=1, dtype=dtype),
        "R": normal(hidden, hidden, seed=2, dtype=dtype),
    }


# ---- the cells


@pytest.mark.long(each=True)
@STORED
@pytest.mark.parametrize("name", cells.CELLS)
@pytest.mark.parametrize(("reverse", "last_only"), [(False, False), (True, True)])
def test_the_cells(name: str, dtype: str, last_only: bool, reverse: bool, engine: str) -> None:
    params = transform(lambda array: array.astype(dtype), cells.CELLS[name].parameters(5, 6))
    rnn, right = cells.rnn(name, params, reverse=reverse), cells.rnn(name, wide(params), reverse=reverse)
    x = sequences(LENGTHS, 5, dtype=dtype)
    outputs, final = rnn(x, last_only=last_only, engine=engine)
    expected, last = right(wide(x), last_only=last_only, engine=engine)
    assert_rounded(outputs, expected, dtype)
    assert_rounded(final, last, dtype)


@STORED
def test_calls_of_a_shape_that_is_frozen(dtype: str) -> None:
    rnn, right = sn.RNN(step, parameters(dtype), memory=4), sn.RNN(step, wide(parameters(dtype)), memory=4)
    for seed in range(4):
        x = normal(3, 6, 5, seed=seed, dtype=dtype)
        assert_rounded(rnn(x), right(wide(x)), dtype)
    assert any(rnn.programs.calls.idle.values())


# ---- what is what


@STORED
def test_a_step_sees_what_it_is_computed_in(dtype: str, engine: str) -> None:
    seen: list[Any] = []

    def watched(x: Any, h: Any, params: Any, statics: Any) -> Any:
        seen.extend([x.dtype, h.dtype, params.dtype, statics.dtype])
        h = h + x * params * statics * np.ones(3, dtype)
        return h, h

    rnn = sn.RNN(watched, normal(3, seed=0, dtype=dtype), memory=3)
    x, statics = normal(2, 5, 3, seed=0, dtype=dtype), normal(2, 3, seed=3, dtype=dtype)
    outputs, _ = rnn(x, statics=statics, engine=engine)
    assert set(seen) == {np.dtype("float32")}
    right = sn.RNN(watched, wide(normal(3, seed=0, dtype=dtype)), memory=3)
    assert_rounded(outputs, right(wide(x), statics=wide(statics), engine=engine)[0], dtype)


@pytest.mark.long(each=True)
@pytest.mark.parametrize(
    ("inputs", "params", "outputs"),
    [
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float16", "float16", "float16"),
        ("float16", "bfloat16", "float32"),
        ("bfloat16", "float32", "float32"),
        ("float32", "float16", "float32"),
        ("float16", "float64", "float64"),
        ("int64", "bfloat16", "bfloat16"),
    ],
)
def test_outputs_have_what_inputs_and_parameters_promote_to(
    inputs: str, params: str, outputs: str, engine: str
) -> None:
    def counted(x: Any, memory: Any, params: Any) -> Any:
        h = np.tanh(np.where(x > 0, params, -params) + memory["h"])
        h = h * x if inputs != "int64" else h
        return {"h": h, "count": memory["count"], "above": h > 0}, {"h": h, "count": memory["count"] + 1}

    rnn = sn.RNN(counted, np.full(3, 0.3, params), memory={"h": 3, "count": sn.Spec((), "int32")})
    found, final = rnn(np.ones((2, 4, 3), inputs), engine=engine)
    assert {name: array.dtype.name for name, array in found.items()} == {
        "h": outputs,
        "count": "int32",
        "above": "bool",
    }
    assert final["count"].tolist() == [4, 4]


@STORED
def test_initial_memories(dtype: str, engine: str) -> None:
    rnn, right = sn.RNN(step, parameters(dtype), memory=4), sn.RNN(step, wide(parameters(dtype)), memory=4)
    x, first = normal(3, 6, 5, seed=0, dtype=dtype), normal(3, 4, seed=5, dtype=dtype)
    expected = right(wide(x), wide(first), engine=engine)[0]
    assert_rounded(rnn(x, first, engine=engine)[0], expected, dtype)
    assert_rounded(rnn(x, wide(first), engine=engine)[0], expected, dtype)


@pytest.mark.long(each=True)
@STORED
@pytest.mark.parametrize("masked", ["repeat", "zero"])
def test_masks(dtype: str, masked: str, engine: str) -> None:
    rnn, right = sn.RNN(step, parameters(dtype), memory=4), sn.RNN(step, wide(parameters(dtype)), memory=4)
    x, mask = normal(3, 6, 5, seed=0, dtype=dtype), np.random.default_rng(0).random((3, 6)) < 0.5
    outputs, _ = rnn(x, mask=mask, masked=masked, engine=engine)
    assert_rounded(outputs, right(wide(x), mask=mask, masked=masked, engine=engine)[0], dtype)


@pytest.mark.long(each=True)
@STORED
def test_early_ends(dtype: str, engine: str) -> None:
    def until(output: Any, memory: Any) -> Any:
        return output[:, 0] > 0.8

    rnn = sn.RNN(step, parameters(dtype), memory=4, until=until)
    right = sn.RNN(step, wide(parameters(dtype)), memory=4, until=until)
    x = normal(3, 40, 5, seed=0, dtype=dtype)
    outputs, expected = rnn(x, engine=engine)[0], right(wide(x), engine=engine)[0]
    assert outputs.total < 120
    assert_rounded(outputs, expected, dtype)


@STORED
def test_special_numbers_stay(dtype: str, engine: str) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-7, -3e-6], np.float32).astype(dtype)
    outputs, _ = sn.RNN(lambda x, h, params: (x, h), memory=1)(x[None, :, None], engine=engine)
    assert outputs.dtype == dtype
    found = outputs.ravel()
    assert np.array_equal(found, x, equal_nan=True)
    assert np.array_equal(np.signbit(found[:-4]), np.signbit(x[:-4]))


# ---- streams


@pytest.mark.long(examples=6)
@STORED
@settings(max_examples=20)
@given(st.lists(st.integers(1, 5), max_size=4))
def test_a_stream_gives_the_bits_of_a_call(dtype: str, cuts: list[int]) -> None:
    """However it is cut: its state has all bits of the memory, which a stream goes on from."""
    rnn = RNNS[dtype]
    x = normal(2, 12, 5, seed=0, dtype=dtype)
    expected, _ = rnn(x)
    stream, done = rnn.stream(2), 0
    for steps in [*cuts, 12]:
        for _ in range(min(steps, 12 - done)):
            assert stream.step(x[:, done]).tobytes() == np.ascontiguousarray(expected[:, done]).tobytes()
            done += 1
        if 0 < done < 12:
            assert stream.state.dtype == "float32"
            stream = rnn.stream(2, initial=stream.state)


RNNS = {dtype: sn.RNN(step, parameters(dtype), memory=4) for dtype in ("float16", "bfloat16")}


# ---- nested


@pytest.mark.long(each=True)
@STORED
def test_nested_recurrences(dtype: str, engine: str) -> None:
    """The results of an inner recurrence are not rounded on their way to the outer one."""

    def nest(params: dict[str, Array]) -> sn.RNN:
        inner = sn.RNN(step, params, memory=4)

        def outer(x: Any, h: Any, own: Any) -> Any:
            outputs, last = inner(x, initial=h)
            h = np.tanh(last + sn.reduce(outputs, "mean") @ own["R"] + h)
            return {"h": h, "inner": outputs}, h

        return sn.RNN(outer, params, memory=4)

    x = sn.Ragged(normal(11, 5, seed=0, dtype=dtype), (np.array([0, 2, 2, 4]), np.array([0, 4, 5, 5, 11])))
    found = nest(parameters(dtype))(x, engine=engine)
    assert_rounded(found, nest(wide(parameters(dtype)))(wide(x), engine=engine), dtype)


@pytest.mark.long(each=True)
@STORED
def test_an_inner_recurrence_over_symbols(dtype: str, engine: str) -> None:
    """Its parameters alone say that it is stored: all is one computation still."""

    def nest(params: dict[str, Array]) -> sn.RNN:
        def word(ids: Any, h: Any, params: Any) -> Any:
            h = np.tanh(params["E"][ids] @ params["W"] + h @ params["R"])
            return h, h

        inner = sn.RNN(
            word, {**params, "E": wide(normal(9, 5, seed=4, dtype=dtype)).astype(params["W"].dtype)}, memory=4
        )

        def outer(x: Any, h: Any, own: Any) -> Any:
            outputs, last = inner(x, initial="zeros")
            h = np.tanh(last + sn.reduce(outputs, "max") @ own["R"] + h)
            return h, h

        return sn.RNN(outer, params, memory=4)

    ids = np.random.default_rng(0).integers(0, 9, 11)
    x = sn.Ragged(ids, (np.array([0, 2, 2, 4]), np.array([0, 4, 5, 5, 11])))
    outputs, _ = nest(parameters(dtype))(x, engine=engine)
    assert_rounded(outputs, nest(wide(parameters(dtype)))(x, engine=engine)[0], dtype)


@pytest.mark.long(each=True)
@STORED
def test_statics_that_are_sequences(dtype: str, engine: str) -> None:
    def attend(x: Any, h: Any, params: Any, statics: Any) -> Any:
        scores = np.sum(statics * sn.expand(h @ params["R"], statics), axis=-1)
        context = sn.reduce(statics * sn.softmax_over_steps(scores)[:, None], "sum")
        h = np.tanh(x @ params["W"] + context)
        return h, h

    keys = sequences((3, 2, 5), 4, dtype=dtype)
    x = normal(3, 6, 5, seed=0, dtype=dtype)
    rnn = sn.RNN(attend, parameters(dtype), memory=4)
    right = sn.RNN(attend, wide(parameters(dtype)), memory=4)
    outputs, _ = rnn(x, statics=keys, engine=engine)
    assert_rounded(outputs, right(wide(x), statics=wide(keys), engine=engine)[0], dtype)


# ---- what is around


@STORED
def test_a_block(dtype: str) -> None:
    def block(x: Array, params: dict[str, Array]) -> Any:
        rnn = sn.create_rnn_op(output_num=1)
        with rnn.stepnet():
            inputs = rnn.add_input(x)
            h = rnn.add_memory(shape=[4])
            h.update(np.tanh(inputs @ params["W"] + h.pre_state() @ params["R"]))
            rnn.add_outputs(h)
        return rnn()

    x = normal(3, 6, 5, seed=0, dtype=dtype)
    assert_rounded(block(x, parameters(dtype)), block(wide(x), wide(parameters(dtype))), dtype)


@STORED
def test_every_step_can_be_looked_at(dtype: str) -> None:
    scopes = RNNS[dtype].trace_steps(normal(2, 3, 5, seed=0, dtype=dtype))
    assert {value.dtype.name for value in scopes.values.values()} == {"float32"}
    assert "f32[4]" in str(scopes)


@STORED
def test_tensors(dtype: str) -> None:
    def tensor(array: Array) -> torch.Tensor:
        return torch.from_numpy(array.astype("float32")).to(getattr(torch, dtype))

    params, x = parameters(dtype), normal(3, 6, 5, seed=0, dtype=dtype)
    rnn = sn.RNN(step, transform(tensor, params), memory=4)
    outputs, _ = rnn(tensor(x))
    assert_rounded(outputs, sn.RNN(step, wide(params), memory=4)(wide(x))[0], dtype)
    turned = tensor(np.ascontiguousarray(x.swapaxes(0, 1))).transpose(0, 1)
    assert rnn(turned)[0].tobytes() == outputs.tobytes()


@STORED
def test_the_functions_of_steps_on_arrays(dtype: str) -> None:
    x = normal(7, seed=0, dtype=dtype)
    for function in (sn.sigmoid, sn.relu, sn.softplus, sn.erf, sn.gelu):
        found = np.asarray(function(x), np.float32)
        assert np.abs(found - function(wide(x))).max() < 0.02


def test_a_control_around_a_step_knows_what_it_stores() -> None:
    rnn = RNNS["float16"]
    rnn(normal(1, 2, 5, seed=0, dtype="float16"))
    traced = Control("repeat").around(step, rnn.program.traced)
    assert [spec.dtype for spec in leaves(traced.memory)] == ["float32", "float32"]
    assert traced.body.type_of(traced.body.results[0]).dtype == "float16"


@STORED
def test_a_memory_that_is_declared_in_float32_comes_back_as_that(dtype: str, engine: str) -> None:
    rnn = sn.RNN(step, parameters(dtype), memory=sn.Spec(4, "float32"))
    x = normal(3, 6, 5, seed=0, dtype=dtype)
    outputs, final = rnn(x, engine=engine)
    assert (outputs.dtype, final.dtype) == (dtype, "float32")
    right = sn.RNN(step, wide(parameters(dtype)), memory=4)
    assert final.tobytes() == right(wide(x), engine=engine)[1].tobytes()


@STORED
def test_scan(dtype: str, engine: str) -> None:
    x, first = normal(3, 6, 5, seed=0, dtype=dtype), normal(3, 4, seed=5, dtype=dtype)
    found = sn.scan(step, first, x, parameters(dtype), engine=engine)
    right = sn.scan(step, wide(first), wide(x), wide(parameters(dtype)), engine=engine)
    assert_rounded(found, right, dtype)


# ---- what is refused


@pytest.mark.parametrize("dtype", [np.complex64, np.uint8, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_other_dtypes_are_unknown(dtype: Any) -> None:
    with pytest.raises(
        InputError,
        match=f"input x has dtype {np.dtype(dtype).name}; "
        "use one of float32, float64, int32, int64, bool, float16, bfloat16",
    ):
        RNNS["float16"](np.ones((1, 2, 5), dtype))


@STORED
def test_a_step_computes_in_none_of_them(dtype: str) -> None:
    with pytest.raises(StepError, match=f"dtype {dtype} is none of float32, float64, int32, int64, bool\n"):
        sn.RNN(lambda x, h, p: (x.astype(dtype), h), memory=1)(np.ones((1, 2, 3), dtype))
