"""The llvm engine against the interpreter in float64, on every processor that this processor runs."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from callers import threads
from constants import Constants
from hypothesis import Phase, given, settings
from interpreted import interpreted
from random_steps import RandomStep, Sequences, random_steps, sequences_for, wide
from same_bits import assert_same_bits
from tolerance import assert_close
from turns import in_turns

import stepnet as sn
from stepnet import cells
from stepnet.compiler.net import widened
from stepnet.compiler.targets import Call, Results
from stepnet.compiler.targets.cpu import (
    LARGE_BYTES,
    LlvmEngine,
    Processor,
    available_processors,
    host_processor,
)
from stepnet.compiler.targets.cpu.running import sequence_layout
from stepnet.compiler.values import leaves, transform
from stepnet.errors import InputError
from stepnet.ragged import Positions

pytestmark = pytest.mark.usefixtures("small_calls_are_shared")

Array = np.ndarray
HOST = host_processor()
PROCESSORS = pytest.mark.parametrize(
    "processor", available_processors(), ids=lambda processor: processor.name
)
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
LENGTHS = (3, 0, 1, 7, 2, 1, 0, 5, 4, 12, 1)


def compiled(rnn: sn.RNN, processor: Processor = HOST) -> Callable[[Call], Results]:
    """Compiles a recurrence for one processor, as a callable; once for all tests, as LLVM takes its time."""
    return compiled_once(rnn, processor)


@cache
def compiled_once(rnn: sn.RNN, processor: Processor) -> Callable[[Call], Results]:
    engine = LlvmEngine(processor)
    assert engine.refuse(rnn.schedule) is None
    return engine.compile(rnn.schedule).bind(leaves(rnn.params))


def right(rnn: sn.RNN, call: Call) -> Results:
    """The right results: of the traced net, in float64 throughout."""

    def wider(arrays: Sequence[Any]) -> list[Any]:
        return [None if array is None else wide(array) for array in arrays]

    call = replace(
        call, sequences=wider(call.sequences), initial=wider(call.initial), statics=wider(call.statics)
    )
    return interpreted(widened(rnn.net), wider(leaves(rnn.params)), call)


def assert_right(rnn: sn.RNN, call: Call, found: Results, width: int, dtype: str) -> None:
    types = [rnn.net.type_of(number) for number in rnn.net.results]
    for actual, expected, type_ in zip(
        found.outputs + found.final, (one := right(rnn, call)).outputs + one.final, types, strict=True
    ):
        assert actual.dtype == type_.dtype
        kind = dtype if actual.dtype.kind == "f" else None
        assert_close(actual, expected, int(call.positions.lengths.max(initial=1)), width, kind)


def call_of(rnn: sn.RNN, lengths: Sequence[int], seed: int = 0, **options: Any) -> Call:
    """A call with random numbers for all that a recurrence wants."""
    random = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    traced = rnn.program.traced

    def numbers(count: int, structure: Any) -> list[Array]:
        return [
            random.uniform(-1, 1, (count, *spec.shape)).astype(spec.dtype)
            if np.dtype(spec.dtype).kind == "f"
            else random.integers(0, 4, (count, *spec.shape)).astype(spec.dtype)
            for spec in leaves(structure)
        ]

    return Call(
        Positions.end_to_end(offsets),
        numbers(int(offsets[-1]), traced.inputs),
        numbers(len(lengths), traced.memory),
        numbers(len(lengths), traced.statics),
        **options,
    )


def part(call: Call, chosen: Sequence[int]) -> Call:
    """The call with some of its sequences, in an order of one's own; the arrays stay."""
    places = np.array(chosen, np.int64)
    positions = call.positions
    return replace(
        call,
        positions=replace(positions, starts=positions.starts[places], lengths=positions.lengths[places]),
        initial=[None if array is None else array[places] for array in call.initial],
        statics=[array[places] for array in call.statics],
    )


# ---- random steps ------------------------------------------------------------------


@pytest.mark.long(each=True)
@PROCESSORS
@DTYPES
@settings(max_examples=3, phases=[Phase.generate])  # each attempt to shrink would be compiled, for minutes
@given(data=st.data(), step=random_steps(), reverse=st.booleans())
def test_random_steps(
    processor: Processor, dtype: str, data: st.DataObject, step: RandomStep, reverse: bool
) -> None:
    rnn = step.rnn(dtype, reverse)
    call = call_of_sequences(data.draw(sequences_for(step, dtype)), step)
    run_ = compiled(rnn, processor)
    found = run_(call)
    assert_right(rnn, call, found, 32, dtype)
    last = run_(replace(call, last_only=True))
    assert_same_bits(last.final, found.final)
    assert_same_bits(last.outputs, [last_of(output, call, reverse) for output in found.outputs])


def call_of_sequences(given_: Sequences, step: RandomStep) -> Call:
    offsets = next(iter(given_.inputs.values())).offsets[0]
    return Call(
        Positions.end_to_end(offsets),
        [ragged.values for ragged in given_.inputs.values()],
        [None] * len(step.memory) if given_.initial is None else list(given_.initial.values()),
        leaves(given_.statics),
    )


def last_of(output: Array, call: Call, reverse: bool) -> Array:
    """Each sequence's own last output; zeros for an empty one."""
    found = np.zeros((len(call.positions.lengths), *output.shape[1:]), output.dtype)
    for row, (start, length) in enumerate(zip(call.positions.starts, call.positions.lengths, strict=True)):
        if length:
            found[row] = output[start if reverse else start + length - 1]
    return found


# ---- steps as people write them ------------------------------------------------------------------


def gru(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    xr, xz, xn = np.split(x @ p["W"] + p["b"], 3, axis=-1)
    hr, hz, hn = np.split(h @ p["R"] + p["d"], 3, axis=-1)
    z = sn.sigmoid(xz + hz)
    n = np.tanh(xn + sn.sigmoid(xr + hr) * hn)
    h = n + z * (h - n)
    return h, h


def gru_reset_before(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    size = h.shape[-1]
    r, z, n = np.split(x @ p["W"] + p["b"], 3, axis=-1)
    r, z = sn.sigmoid(r + h @ p["R"][:, :size]), sn.sigmoid(z + h @ p["R"][:, size : 2 * size])
    h = z * h + (1 - z) * np.tanh(n + (r * h) @ p["R"][:, 2 * size :])
    return h, h


def lstm(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
    h, c = memory
    i, f, g = np.split(x @ p["W"] + h @ p["R"] + p["b"], 3, axis=-1)
    c = sn.sigmoid(f) * c + sn.sigmoid(i + c * p["d"][: c.shape[-1]]) * np.tanh(g)
    h = np.tanh(c)
    return h, (h, c)


def normalised(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    size = h.shape[-1]
    h = np.tanh(sn.layer_norm(x @ p["W"][:, :size] + h @ p["R"][:, :size], p["b"][:size], epsilon=0.1))
    return {"softmax": sn.softmax(h @ p["R"]), "most": np.argmax(x, axis=-1)}, h


def projected(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    h = np.tanh(x @ p["W"] + (h @ p["R"]))[:, : h.shape[-1]]
    return np.tanh(h @ p["R"]) @ p["W"].T, h


def attending(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
    """A memory of two vectors, read by attention and written by turns."""
    size = memory.shape[-1]
    query = (x @ p["W"])[:, :size]
    weights = sn.softmax(np.sum(query[:, None] * memory, axis=-1))
    read = np.sum(weights[:, :, None] * memory, axis=1)
    new = np.tanh(read + query)[:, None]
    return read, np.concatenate([memory[:, 1:], new], axis=1)


def with_statics(x: Any, memory: Any, p: Any, statics: Any, index: Any) -> tuple[Any, Any]:
    h, seen = memory["h"], memory["seen"]
    size = h.shape[-1]
    new = np.tanh(x @ p["W"][:, :size] + h @ p["R"][:, :size] + statics @ p["R"][:, size : 2 * size])
    h = np.where((index % 3 == 0)[:, None], new, 0.5 * (h + statics))
    return (h, seen), {"h": h, "seen": seen + (x[:, 0] > 0).astype(np.int64)}


STEPS: dict[str, tuple[Callable[..., Any], Callable[[int], Any], Callable[[int], Any]]] = {
    step.__name__: (step, memory, statics)
    for step, memory, statics in (
        (gru, lambda n: n, lambda n: None),
        (gru_reset_before, lambda n: n, lambda n: None),
        (lstm, lambda n: (sn.Spec(n), sn.Spec(n)), lambda n: None),
        (normalised, lambda n: n, lambda n: None),
        (projected, lambda n: n, lambda n: None),
        (attending, lambda n: (2, n), lambda n: None),
        (with_statics, lambda n: {"h": sn.Spec(n), "seen": sn.Spec((), "int64")}, lambda n: n),
    )
}


def recurrence(
    name: str, size: int = 19, dtype: str = "float32", inputs: int = 3, reverse: bool = False
) -> sn.RNN:
    """One of the steps above as a recurrence; the same one each time, so that it is compiled once."""
    return recurrence_once(name, size, dtype, inputs, reverse)


@cache
def recurrence_once(name: str, size: int, dtype: str, inputs: int, reverse: bool) -> sn.RNN:
    step, memory, statics = STEPS[name]
    random = np.random.default_rng(size)
    shapes = {"W": (inputs, 3 * size), "R": (size, 3 * size), "b": (3 * size,), "d": (3 * size,)}
    params = {
        key: (random.uniform(-1, 1, shape) / np.sqrt(shape[0] if len(shape) == 2 else 4)).astype(dtype)
        for key, shape in shapes.items()
    }
    given_ = statics(size)
    return sn.RNN(
        step,
        params,
        memory=memory(size),
        inputs=sn.Spec(inputs, dtype),
        statics=None if given_ is None else sn.Spec(given_, dtype),
        reverse=reverse,
    )


def on_processors(names: Iterable[str]) -> list[Any]:
    """Each step on each processor, in turns."""
    pairs: list[Any] = in_turns(names, available_processors())
    return [pytest.param(name, processor, id=f"{name}-{processor.name}") for name, processor in pairs]


EACH = len(available_processors())
ON_PROCESSORS = on_processors(STEPS)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", STEPS)
def test_steps_of_one_feature(name: str) -> None:
    rnn = recurrence(name, 1)
    call = call_of(rnn, LENGTHS)
    assert_right(rnn, call, compiled(rnn)(call), 1, "float32")


@pytest.mark.long(every=EACH)
@pytest.mark.parametrize(("name", "processor"), ON_PROCESSORS)
def test_steps_of_all_kinds(name: str, processor: Processor) -> None:
    rnn = recurrence(name)
    call = call_of(rnn, LENGTHS)
    assert_right(rnn, call, compiled(rnn, processor)(call), 19, "float32")


@pytest.mark.long(every=EACH)
@pytest.mark.parametrize(
    ("name", "processor"), on_processors(["gru_reset_before", "normalised", "with_statics"])
)
def test_steps_in_float64_and_reverse(name: str, processor: Processor) -> None:
    rnn = recurrence(name, 5, "float64", reverse=True)
    call = call_of(rnn, LENGTHS)
    assert_right(rnn, call, compiled(rnn, processor)(call), 5, "float64")


SIZES = [(2, 1), (3, 16), (8, 33), (13, 1), (16, 16), (31, 3), (64, 64)]


@pytest.mark.long(every=2)
@pytest.mark.parametrize(("sizes", "dtype"), in_turns(SIZES, ["float32", "float64"]), ids=str)
def test_gru_of_all_sizes(sizes: tuple[int, int], dtype: str) -> None:
    size, inputs = sizes
    rnn = recurrence("gru", size, dtype, inputs)
    call = call_of(rnn, LENGTHS)
    assert_right(rnn, call, compiled(rnn)(call), size + inputs, dtype)


# ---- the same bits ------------------------------------------------------------------


@pytest.mark.long(every=EACH)
@pytest.mark.parametrize(("name", "processor"), ON_PROCESSORS)
def test_a_sequence_has_the_same_bits_alone_and_in_any_company(name: str, processor: Processor) -> None:
    rnn = recurrence(name)
    run_ = compiled(rnn, processor)
    call = call_of(rnn, [*LENGTHS, 3, 6, 9, 1, 4, 11, 2, 5])
    whole = run_(call)
    count = len(call.positions.lengths)
    for chosen in ([0], [9], [1], [3, 5], list(range(count))[::-1], list(range(0, count, 2)) * 3):
        found = run_(part(call, chosen))
        assert_same_bits(found.final, [final[chosen] for final in whole.final])
        for output, expected in zip(found.outputs, whole.outputs, strict=True):
            for row in chosen:
                start = call.positions.starts[row]
                steps = slice(start, start + call.positions.lengths[row])
                assert output[steps].tobytes() == expected[steps].tobytes()


@PROCESSORS
def test_tiles_that_take_turns_give_the_bits_of_a_row_alone(processor: Processor) -> None:
    """With four gates and large parameters, of which steps read the last ones first by turns."""
    params = cells.CELLS["lstm"].parameters(5, 160, seed=1)
    rnn = sn.RNN(cells.lstm, params, memory={"h": 160, "c": 160}, inputs=sn.Spec(5))
    assert sum(array.nbytes for array in leaves(rnn.params)) >= LARGE_BYTES
    call = call_of(rnn, LENGTHS * 2)
    whole = compiled(rnn, processor)(call)
    assert_right(rnn, call, whole, 165, "float32")
    for row in (0, 7, 20):
        found = compiled(rnn, processor)(part(call, [row]))
        assert_same_bits(found.final, [final[[row]] for final in whole.final])


@pytest.mark.parametrize("name", STEPS)
def test_the_number_of_lanes_changes_no_bit(name: str, constants: Constants) -> None:
    """Long calls have as few as it takes to end with the longest sequence: here 8 for 99 sequences."""
    rnn = recurrence(name)
    call = call_of(rnn, [200, *LENGTHS * 9])
    constants(sequence_layout, EVEN_SECONDS=0.0)
    few = compiled(rnn)(call)
    constants(sequence_layout, EVEN_SECONDS=np.inf)
    many = compiled(rnn)(replace(call))
    assert_same_bits(few.outputs + few.final, many.outputs + many.final)


@pytest.mark.parametrize("name", STEPS)
def test_the_number_of_threads_changes_no_bit(name: str) -> None:
    rnn = recurrence(name)
    run_ = compiled(rnn)
    call = call_of(rnn, LENGTHS * 9)
    assert_no_bit_changes_with_threads(run_, call)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("lengths", [[4, 0, 6], [50]], ids=str)
@pytest.mark.parametrize(("name", "size"), [("gru", 208), ("gru_reset_before", 208), ("normalised", 420)])
def test_threads_that_share_each_step_change_no_bit(name: str, size: int, lengths: list[int]) -> None:
    """Few sequences and large parameters: each thread computes some of the units, step by step."""
    rnn = recurrence(name, size)
    call = call_of(rnn, lengths)
    found = assert_no_bit_changes_with_threads(compiled(rnn), call)
    assert_right(rnn, call, found, size, "float32")


@pytest.mark.parametrize("gates", [1, 2, 3, 4, 5, 8])
def test_any_number_of_gates_is_shared_between_threads(gates: int) -> None:
    """A thread's units may fill no whole number of tiles where all would: 16 blocks of 4 gates, 9 and 7."""
    size = 336 if gates == 1 else 256

    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        product = x @ p["W"] + h @ p["R"]
        h = sum(np.tanh(gate) for gate in np.split(product, gates, axis=-1)) / gates
        return h, h

    random = np.random.default_rng(gates)
    params = {
        "W": random.uniform(-1, 1, (3, gates * size)).astype("float32"),
        "R": (random.uniform(-1, 1, (size, gates * size)) / np.sqrt(size)).astype("float32"),
    }
    rnn = sn.RNN(step, params, memory=size, inputs=3)
    call = call_of(rnn, [50])
    found = assert_no_bit_changes_with_threads(compiled(rnn), call)
    assert_right(rnn, call, found, size, "float32")


def assert_no_bit_changes_with_threads(run_: Callable[[Call], Results], call: Call) -> Results:
    found: list[Results] = []
    for count in (1, 2, 3, None):
        with threads(count):
            found.append(run_(call))
    for other in found[1:]:
        assert_same_bits(other.outputs + other.final, found[0].outputs + found[0].final)
    return found[0]


@pytest.mark.parametrize("name", ["gru", "with_statics"])
def test_calls_from_several_threads_do_not_meet(name: str) -> None:
    rnn = recurrence(name)
    run_ = compiled(rnn)
    calls = [call_of(rnn, LENGTHS, seed) for seed in range(8)]
    alone = [run_(call) for call in calls]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for one, other in zip(pool.map(run_, calls), alone, strict=True):
                assert_same_bits(one.outputs + one.final, other.outputs + other.final)


@DTYPES
def test_long_sequences(dtype: str) -> None:
    """More steps than a block before the loop holds."""
    rnn = recurrence("projected", 3, dtype)
    call = call_of(rnn, [1500, 2, 0, 700])
    found = compiled(rnn)(call)
    assert_right(rnn, call, found, 3, dtype)
    assert_same_bits(compiled(rnn)(part(call, [3])).final, [found.final[0][[3]]])


# ---- how calls come ------------------------------------------------------------------


def test_padded_sequences_leave_what_is_beyond_them_zero() -> None:
    rnn = recurrence("gru")
    call = call_of(rnn, [4, 4, 4])
    call = replace(call, positions=replace(call.positions, lengths=np.array([2, 0, 4])))
    found = compiled(rnn)(call)
    assert_right(rnn, call, found, 5, "float32")
    assert not found.outputs[0][2:8].any()


def test_memories_begin_at_zero_and_are_left_as_they_were() -> None:
    rnn = recurrence("lstm")
    call = call_of(rnn, LENGTHS)
    before = [array.copy() for array in (*call.sequences, *call.initial) if array is not None]
    compiled(rnn)(call)
    assert_same_bits(before, [array for array in (*call.sequences, *call.initial) if array is not None])
    nothing = replace(call, initial=[None, None])
    zeros = replace(call, initial=[np.zeros_like(array) for array in call.initial if array is not None])
    one, other = compiled(rnn)(nothing), compiled(rnn)(zeros)
    assert_same_bits(one.outputs + one.final, other.outputs + other.final)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0], [1]], ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_nothing_and_almost_nothing(name: str, lengths: list[int]) -> None:
    rnn = recurrence(name)
    call = call_of(rnn, lengths)
    found = compiled(rnn)(call)
    assert_right(rnn, call, found, 4, "float32")
    last = compiled(rnn)(replace(call, last_only=True))
    assert_same_bits(last.outputs, [last_of(output, call, False) for output in found.outputs])


def test_results_are_arrays_of_their_own() -> None:
    rnn = recurrence("gru")
    run_, call = compiled(rnn), call_of(rnn, LENGTHS)
    first = run_(call)
    kept = [array.copy() for array in first.outputs + first.final]
    run_(call_of(rnn, LENGTHS, seed=5))
    assert_same_bits(first.outputs + first.final, kept)


def test_nan_stays_in_its_own_sequence() -> None:
    rnn = recurrence("normalised")
    run_, call = compiled(rnn), call_of(rnn, LENGTHS)
    clean = run_(call)
    call.sequences[0][call.positions.starts[3] + 1] = np.nan
    found = run_(call)
    assert np.isnan(found.final[0][3]).all()
    others = [row for row in range(len(LENGTHS)) if row != 3]
    assert_same_bits([found.final[0][others]], [clean.final[0][others]])
    assert_right(rnn, call, found, 9, "float32")


@pytest.mark.long(each=True)
@pytest.mark.parametrize("value", [np.inf, -np.inf, 3e38, -3e38, 1e-40])
@DTYPES
def test_extreme_numbers(value: float, dtype: str) -> None:
    rnn = sn.RNN(
        lambda x, h, p: ((np.tanh(x), sn.sigmoid(x), np.exp(-abs(x)), np.sqrt(abs(x)), x > h, -x), x * 0.5),
        memory=3,
        inputs=sn.Spec(3, dtype),
    )
    call = replace(call_of(rnn, [2, 1]), initial=[None])
    call.sequences[0][1] = value
    assert_right(rnn, call, compiled(rnn)(call), 1, dtype)


# ---- integers, booleans and tables ------------------------------------------------------------------


def whole(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
    total, last = memory
    output = {
        "divided": x // 3,
        "left": x % 3,
        "least": np.minimum(x, total),
        "sign": np.sign(x),
        "sum": x.sum(axis=-1),
        "both": (x > 0) & (last < 2),
        "most": np.argmax(x, axis=-1),
        "narrow": x.astype(np.int32) * 2,
        "floats": x.astype(np.float64) / 3,
        "table": p[x[:, 0] % 4],
        "hot": sn.one_hot(x[:, 1] % 3, 3),
        "other": np.where(last > x, 1, -x),
        "negative": p[-1 - x[:, 0] % 4],
    }
    return output, (total + x, x)


@PROCESSORS
def test_integers_and_tables(processor: Processor) -> None:
    table = np.random.default_rng(0).uniform(-1, 1, (4, 5)).astype(np.float32)
    spec = sn.Spec(3, np.int64)
    rnn = sn.RNN(whole, table, memory=(spec, spec), inputs=spec)
    call = call_of(rnn, LENGTHS)
    call.sequences[0][:] -= 2
    assert_right(rnn, call, compiled(rnn, processor)(call), 3, "float32")


@pytest.mark.parametrize("engine", ["llvm", "interpret"])
@pytest.mark.parametrize("token", [5, -6, 2**62, -(2**62)])
def test_an_index_beyond_a_table_is_an_error(engine: str, token: int) -> None:
    table = np.ones((5, 2), np.float32)
    rnn = sn.RNN(lambda x, h, p: (None, h + p[x]), table, memory=2)
    tokens = np.zeros((3, 4), np.int64)
    rnn(tokens, engine=engine)
    tokens[1, 2] = token
    with pytest.raises(InputError, match=r"out of bounds|outside|beyond"):
        rnn(tokens, engine=engine)


# ---- as a person meets it ------------------------------------------------------------------


@pytest.mark.parametrize("name", STEPS)
def test_rnn_on_llvm_is_rnn_on_the_interpreter(name: str) -> None:
    rnn = recurrence(name, 6, "float64")
    call = call_of(rnn, LENGTHS)
    offsets = (np.concatenate([call.positions.starts, [call.positions.total]]),)
    statics = call.statics[0] if call.statics else None
    for last_only in (False, True):
        found, expected = (
            rnn(sn.Ragged(call.sequences[0], offsets), statics=statics, engine=engine, last_only=last_only)
            for engine in ("llvm", "interpret")
        )
        for actual, wanted in zip(leaves(found), leaves(expected), strict=True):
            a, w = (one.values if isinstance(one, sn.Ragged) else one for one in (actual, wanted))
            assert_close(a, w, max(LENGTHS), 6)


def test_auto_is_llvm() -> None:
    rnn = recurrence("gru")
    x = np.ones((2, 3, 3), np.float32)
    automatic, asked = rnn(x), rnn(x, engine="llvm")
    assert_same_bits(leaves(transform(np.asarray, automatic)), leaves(transform(np.asarray, asked)))
