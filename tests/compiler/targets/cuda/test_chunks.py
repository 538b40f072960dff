"""Loops in chunks of steps, as products of matrices, and units with a few elements of their memories: in
emulation, beside the interpreter in float64.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from bench.gpu.cells import recurrence
from stepnet.compiler.net import Recur
from stepnet.compiler.plan import Plan, unit_fibers, with_early_reads
from stepnet.compiler.targets.cuda import (
    ChunkForm,
    ChunkWriter,
    CudaOptions,
    CudaPrecision,
    DevicePositions,
    EmulatedDevice,
    LoopCode,
    LoopForm,
    UnitForm,
    assembled,
    chunk_choices,
    chunk_code,
    empty,
    get,
    load_of,
    loop_code,
    loop_of,
    part_code,
    parts_of,
    ptxas,
    put,
    sorted_lanes,
    units_code,
)
from stepnet.errors import DeviceError
from stepnet.ragged import Positions
from tests.compiler.targets.cuda.matrix_steps import (
    RAGGED,
    MatrixStep,
    bounded,
    decaying_values,
    delta_product,
    gated_delta,
    gla,
    kda,
    linear,
    mamba,
    mamba2,
    rwkv7,
)
from tests.compiler.targets.cuda.tensor_loops import DEVICE, backward_of
from tests.compiler.targets.cuda.test_tensor_registers import MADE_BY, compilers

Array = np.ndarray
TABLE = Path(__file__).with_name("chunk_registers.json")
BY_CHUNKS, BY_UNITS = "steps at a time", "units are alone"


def as_float64(step: MatrixStep, reverse: bool) -> list[Array]:
    """The outputs and the last memories of ragged sequences by the interpreter, in float64."""
    x = {name: each.with_values(each.values.astype("f8")) for name, each in step.sequences().items()}
    outputs, final = step.rnn(reverse=reverse)(x, step.initial().astype("f8"), engine="interpret")
    return [outputs.values, final]


@pytest.mark.parametrize(
    ("make", "way", "reverse"),
    [
        (gated_delta, BY_CHUNKS, False),
        (mamba2, BY_CHUNKS, True),
        (bounded, BY_CHUNKS, False),
        (mamba, BY_UNITS, True),
        pytest.param(linear, BY_CHUNKS, False, marks=pytest.mark.long),
        pytest.param(delta_product, BY_CHUNKS, True, marks=pytest.mark.long),
        (kda, BY_CHUNKS, True),
        (decaying_values, BY_CHUNKS, False),
        (gla, BY_CHUNKS, False),
        pytest.param(rwkv7, BY_CHUNKS, False, marks=pytest.mark.long),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_matrices_run_on_a_gpu(make: Callable[[], MatrixStep], way: str, reverse: bool) -> None:
    step = make()
    assert way in loop_of(step.plan(), 16, DEVICE).reason
    rnn = step.rnn(reverse=reverse)
    outputs, final = rnn(step.sequences(), step.initial(), engine="cuda-emulated")
    pairs = zip([outputs.values, final], as_float64(step, reverse), strict=True)
    for found, right in pairs:
        assert_close(found, right, max(RAGGED), step.memory[-1] + step.memory[-2])
    alone = {name: each[3:4] for name, each in step.sequences().items()}
    outputs_alone, _ = rnn(alone, step.initial()[3:4], engine="cuda-emulated")
    begin = sum(RAGGED[:3])
    assert outputs_alone.values.tobytes() == outputs.values[begin : begin + RAGGED[3]].tobytes()


@pytest.mark.parametrize(("precision", "most"), [("tf32", 1e-2), ("bfloat16", 6e-2)])
def test_products_of_chunks_are_rounded_if_that_is_asked_for(precision: str, most: float) -> None:
    step = gated_delta()
    outputs, _ = step.rnn()(step.sequences(), step.initial(), engine=f"cuda-emulated:{precision}")
    right = as_float64(step, reverse=False)[0]
    assert 1e-5 < np.abs(outputs.values - right).max() < most


def test_sequences_in_bfloat16_are_read_as_they_are() -> None:
    step = gated_delta()
    x = {name: array.astype("bfloat16") for name, array in step.values(40).items()}
    x = {name: array[None] for name, array in x.items()}
    rnn = warmed(step.rnn(), x)
    (plan,) = rnn.program.schedule_for("cuda-emulated").plans
    assert BY_CHUNKS in loop_of(plan, 16, DEVICE).reason
    outputs, final = rnn(x, engine="cuda-emulated")
    expected, last = step.rnn()({name: a.astype("f8") for name, a in x.items()}, engine="interpret")
    assert_close(np.asarray(outputs, "f4"), expected, 40, 16, "bfloat16")
    assert_close(np.asarray(final, "f4"), last, 40, 16, "bfloat16")


@pytest.mark.parametrize("wrong", [np.nan, -np.inf, np.finfo("f4").max])
def test_what_is_wrong_at_a_step_does_not_reach_those_before_it(wrong: float) -> None:
    """Products of matrices take what later steps wrote times 0."""
    step = linear()
    x = {name: array[None] for name, array in step.values(20).items()}
    right, _ = step.rnn()({name: array.astype("f8") for name, array in x.items()}, engine="interpret")
    x["v"][0, 9, 0, 3] = wrong
    outputs, _ = step.rnn()(x, engine="cuda-emulated")
    assert_close(outputs[:, :9], right[:, :9], 9, 48)
    others = np.delete(np.arange(32), 3)
    assert_close(outputs[..., others], right[..., others], 20, 48)


def decaying(x: Any, S: Any, p: Any) -> Any:
    """Decays each key by a number that is given."""
    S = S * x["a"][:, :, None] + x["k"][:, :, None] * x["v"][:, None, :]
    return (S * x["q"][:, :, None]).sum(1), S


DECAYS = {
    "zero": (0.0, 0.5, 1.0),
    "tiny": (1e-30, 1e-12, 0.9),
    "negative": (-1.0, -0.3, 0.7),
    "growing": (1.2, 1.0, 0.1),
}


@pytest.mark.parametrize("kind", DECAYS)
def test_decays_of_keys_may_be_any_numbers(kind: str) -> None:
    """Beside a loop in NumPy. No product of decays is divided by, so none needs to be large enough."""
    chance, length = np.random.default_rng(0), 150
    q, k, v = (chance.normal(size=(length, 16)) / 4 for _ in range(3))
    a = chance.choice(DECAYS[kind], size=(length, 16))
    S, right = np.zeros((16, 16)), np.zeros((length, 16))
    for t in range(length):
        S = a[t][:, None] * S + k[t][:, None] * v[t]
        right[t] = q[t] @ S
    x = {"q": q, "k": k, "v": v, "a": a}
    x = {name: each[None].astype("f4") for name, each in x.items()}
    rnn = sn.RNN(decaying, memory=(16, 16))
    outputs, final = rnn(x, engine="cuda-emulated")
    assert BY_CHUNKS in str(rnn.explain("cuda", rows=16, steps=100))
    assert_close(outputs[0], right, length, 32)
    assert_close(final[0], S, length, 32)


def test_streams_of_decaying_keys_go_on_from_step_to_step() -> None:
    step = gla()
    x = {name: each.reshape(2, 4, *each.shape[1:]) for name, each in step.values(8).items()}
    rnn = step.rnn()
    right, last = rnn({name: each.astype("f8") for name, each in x.items()}, engine="interpret")
    stream = rnn.stream(rows=2, engine="cuda-emulated")
    for time in range(4):
        assert_close(stream.step({name: each[:, time] for name, each in x.items()}), right[:, time], 4, 48)
    assert_close(stream.state, last, 4, 48)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_wrong_decays_do_not_reach_the_steps_before_them(wrong: float) -> None:
    chance = np.random.default_rng(0)
    x = {name: chance.uniform(0.1, 0.9, size=(1, 70, 16)).astype("f4") for name in "qkva"}
    x["a"][0, 21, 3] = wrong
    rnn = sn.RNN(decaying, memory=(16, 16))
    found, _ = rnn(x, engine="cuda-emulated")
    with np.errstate(invalid="ignore"):
        right, _ = rnn({name: each.astype("f8") for name, each in x.items()}, engine="interpret")
    assert np.isfinite(right[0, :21]).all()
    assert_close(found[:, :21], right[:, :21], 21, 48)
    assert not np.isfinite(found[0, 21:]).any()
    assert not np.isfinite(right[0, 21:]).any()


def test_heads_of_an_mlstm_have_a_block_each() -> None:
    """For 40 keys there are no chunks, so its steps run one by one."""
    chance, shapes = (
        np.random.default_rng(0),
        {"q": (4, 40), "k": (4, 40), "v": (4, 32), "i": (4,), "f": (4,)},
    )
    x = {name: chance.normal(size=(2, 5, *shape)).astype("f4") for name, shape in shapes.items()}
    rnn = sn.RNN(sn.cells.mlstm, memory={"C": (4, 40, 32), "n": (4, 40), "m": (4,)})
    outputs, final = rnn(x, engine="cuda-emulated")
    double = {name: array.astype("f8") for name, array in x.items()}
    expected, last = rnn(double, engine="interpret")
    assert_close(outputs, expected, 5, 72)
    for name, right in last.items():
        assert_close(final[name], right, 5, 72)
    said = " ".join(rnn.explain("cuda", rows=16, steps=100).split())
    assert "4 blocks of 256 threads for 1 sequences" in said


@pytest.mark.long
def test_gradients_have_blocks_for_some_heads() -> None:
    step = gated_delta(4, 41, 32)  # of a number of keys for which there are no chunks
    x = {name: array[None] for name, array in step.values(11).items()}
    rnn = step.rnn()
    assert "for some heads each" in loop_of(backward_of(warmed(rnn, x)), 16, DEVICE).loop.schedule

    def gradients(inputs: dict[str, Array], engine: str) -> dict[str, Array]:
        """Gradients of all inputs, for the sum of the outputs; in blocks of two steps, and one by one."""
        (outputs, _), backward = sn.vjp(rnn)(inputs, engine=engine)
        return backward(np.ones_like(outputs), None).inputs

    right = gradients({name: array.astype("f8") for name, array in x.items()}, "interpret")
    for name, found in gradients(x, "cuda-emulated").items():
        assert_close(found, right[name], 11, 41 * 32)


def warmed(rnn: sn.RNN, x: dict[str, Array]) -> sn.RNN:
    """The model, whose inputs are known after a call."""
    rnn(x)
    return rnn


# ---- kernels, run by themselves


def run_chunks(loop: LoopCode, plan: Plan, step: MatrixStep, seed: int = 0) -> list[Array]:
    """The outputs and the final memories of two sequences, of 37 and of 5 steps."""
    device, chance = EmulatedDevice(seed), np.random.default_rng(0)
    recur, body = plan.recurrence.recur, plan.body
    size = body.type_of(recur.outputs[0]).size
    shapes = [body.type_of(number).shape for number in recur.sequences]
    operands = [put(device, chance.uniform(0, 0.5, (42, *shape)).astype("f4")) for shape in shapes]
    others = [put(device, chance.uniform(-1, 0, body.type_of(n).shape).astype("f4")) for n in recur.others]
    made = [empty(device, (42, size), "float32"), empty(device, (2, *step.memory), "float32")]
    positions = Positions(np.array([5, 0]), np.array([37, 5]), 42)
    table = sorted_lanes(positions.lengths, loop.group_rows)
    lanes = DevicePositions(positions, device).lanes("tested", False, lambda: table)
    errors = put(device, np.zeros(4, "i8"))
    scratch = empty(device, (max(1, lanes.groups * loop.scratch),), "int8")
    words = [*lanes.words, 0, 0, 0, scratch.address, errors.address]
    words += [*(each.address for each in operands), 0, *(each.address for each in others)]
    device.launch(loop.code, lanes.groups * loop.code.group, [*words, *(array.address for array in made)])
    return [get(array) for array in made]


def forms(plan: Plan, steps: int, ahead: bool = False) -> list[ChunkForm]:
    """The ways to run a plan in chunks of some steps, by the values of a block of 512 threads, most first."""
    choices = chunk_choices(plan, 16, DEVICE, "float32")
    assert not isinstance(choices, str)
    every = (choice.form for choice in choices)
    found = [form for form in every if (form.steps, form.threads, form.ahead) == (steps, 512, ahead)]
    return sorted(found, key=lambda form: -form.columns)


@pytest.mark.parametrize("make", [gated_delta, kda, decaying_values])
def test_blocks_that_share_a_head_have_the_same_bits(make: Callable[[], MatrixStep]) -> None:
    step = make()
    plan = step.plan()
    whole, half = (chunk_code(plan, form) for form in forms(plan, 16)[:2])
    assert whole.code.group < half.code.group
    for a, b in zip(run_chunks(whole, plan, step), run_chunks(half, plan, step, seed=7), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    "make", [gated_delta, partial(kda, 32), pytest.param(decaying_values, marks=pytest.mark.long)]
)
def test_blocks_of_fewer_threads_have_the_same_bits(make: Callable[[], MatrixStep]) -> None:
    step = make()
    plan = step.plan()
    (form, *_) = forms(plan, 64)
    many, few = (chunk_code(plan, each) for each in (form, replace(form, threads=256)))
    assert [(each.code.threads, each.code.resident) for each in (many, few)] == [(512, 1), (256, 2)]
    for a, b in zip(run_chunks(many, plan, step), run_chunks(few, plan, step, seed=7), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    "make",
    [
        gated_delta,
        kda,
        bounded,
        *(pytest.param(each, marks=pytest.mark.long) for each in (decaying_values, delta_product)),
    ],
)
def test_chunks_loaded_ahead_have_the_same_bits(make: Callable[[], MatrixStep]) -> None:
    step = make()
    plan = step.plan()
    (form, *_) = forms(plan, 16)
    in_turn, ahead = (chunk_code(plan, each) for each in (form, replace(form, ahead=True)))
    for a, b in zip(run_chunks(in_turn, plan, step), run_chunks(ahead, plan, step, seed=5), strict=True):
        assert a.tobytes() == b.tobytes()


def test_blocks_with_some_heads_have_the_bits_of_one_block() -> None:
    step = kda(40)
    plan = step.plan()
    form = LoopForm(plan, 1, 256, 96 * 1024)
    parts = parts_of(form, 2)
    assert parts is not None
    whole, each = loop_code(plan, 1), part_code(form, parts)
    assert (whole.code.group, each.code.group) == (1, 2)
    assert each.code.shared < 0.6 * whole.code.shared
    for a, b in zip(run_chunks(whole, plan, step), run_chunks(each, plan, step, seed=3), strict=True):
        assert a.tobytes() == b.tobytes()
    tiny = replace(form, shared=1024)  # the matrix lies in main memory, apart for each block
    scattered = part_code(tiny, parts)
    assert scattered.scratch >= 2 * 40 * 32 * 4
    for a, b in zip(run_chunks(whole, plan, step), run_chunks(scattered, plan, step), strict=True):
        assert a.tobytes() == b.tobytes()


class WithoutBarrier(ChunkWriter):
    """Writer that leaves out one of the meetings of a chunk."""

    left_out = 0

    def steps_of_chunk(self, steps: Any) -> None:
        """Writes a chunk; counts its meetings."""
        self.counted = count()
        super().steps_of_chunk(steps)
        del self.counted

    def meet(self) -> None:
        """Writes a meeting, unless it is left out."""
        if not hasattr(self, "counted") or next(self.counted) != self.left_out:
            super().meet()


@pytest.mark.parametrize(
    ("make", "ahead", "left_out"),
    [
        pytest.param(make, ahead, n, marks=[] if n == short else pytest.mark.long)
        for make, ahead, short, meetings in (
            (gated_delta, False, 3, 5),
            (gated_delta, True, 1, 3),
            (kda, False, 1, 6),
            (kda, True, 4, 5),
        )
        for n in range(meetings)
    ],
)
def test_a_missing_barrier_is_found(make: Callable[[], MatrixStep], ahead: bool, left_out: int) -> None:
    step = make()
    plan = step.plan()
    form = forms(plan, 32, ahead)[0]
    right = run_chunks(chunk_code(plan, form), plan, step)
    writer = WithoutBarrier(plan, form)
    writer.left_out = left_out
    racy = writer.written()

    def is_right(seed: int) -> bool:
        """Tells whether the bits are right, in an order of threads; not if some wait for ever."""
        try:
            found = run_chunks(racy, plan, step, seed)
        except DeviceError:
            return False
        return all(a.tobytes() == b.tobytes() for a, b in zip(found, right, strict=True))

    assert not all(map(is_right, range(1, 9)))


# ---- which steps have the form


def recur_of(step: MatrixStep) -> Recur:
    """The recurrence of a step as it is traced."""
    rnn = step.rnn()
    rnn({name: x[None] for name, x in step.values(2).items()})
    return next(node.recur for node in rnn.net.nodes if node.operation == "recur")


def matrix_step(step: Callable[..., Any], **shapes: tuple[int, ...]) -> MatrixStep:
    """A step of a memory of 16 keys and 16 values."""
    return MatrixStep(step, (16, 16), shapes)


REFUSED = {
    "each of its elements decays by itself": matrix_step(
        lambda x, S, p: ((S * x["q"][:, :, None]).sum(1), S * x["a"] + x["q"][:, :, None]),
        q=(16,),
        a=(16, 16),
    ),
    "each of its values is read, or written, by itself": matrix_step(
        lambda x, S, p: ((S * x["a"]).sum(1), S + x["q"][:, :, None]), q=(16,), a=(16, 16)
    ),
    "the next memory is not linear in the one before": matrix_step(
        lambda x, S, p: (S.sum(1), np.tanh(S) + x["k"][:, :, None]), k=(16,)
    ),
    "a sum over its memory is not one of products": matrix_step(
        lambda x, S, p: (
            (S * x["k"][:, :, None]).sum(1),
            S
            + x["k"][:, :, None] * ((S * x["k"][:, :, None]).sum(1).sum(-1, keepdims=True) * x["k"])[:, None],
        ),
        k=(16,),
    ),
    "a value has another size": matrix_step(
        lambda x, S, p: ((S * x["k"][:, :, None]).sum(1)[:, :8], S + x["k"][:, :, None] * x["k"][:, None]),
        k=(16,),
    ),
    "it is read along several axes": matrix_step(
        lambda x, S, p: (
            (S * x["k"][:, :, None]).sum(1) + (S * x["k"][:, None]).sum(2),
            S + x["k"][:, :, None] * x["k"][:, None],
        ),
        k=(16,),
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_steps_are_not_run_in_chunks(reason: str) -> None:
    assert with_early_reads(recur_of(REFUSED[reason])) == reason


def test_units_that_depend_on_each_other_have_no_threads_of_their_own() -> None:
    def mixed(x: Any, h: Any, p: Any) -> Any:
        """Each unit reads all others."""
        h = h * 0.5 + (h * x["x"][:, :, None]).sum(1, keepdims=True)
        return h.sum(-1), h

    found = unit_fibers(recur_of(mamba()), 32)
    assert found is not None
    assert (found.count, found.axes, found.are_long) == (96, (1,), True)
    assert unit_fibers(recur_of(MatrixStep(mixed, (16, 4), {"x": (16,)})), 32) is None
    assert unit_fibers(recur_of(kda(64)), 32) is None  # sums of 64 keys are too long for a thread


def test_lanes_that_share_a_unit_have_the_bits_of_one() -> None:
    step = mamba(32)
    plan = step.plan()
    fibers = unit_fibers(plan.recurrence.recur, 32)
    assert fibers is not None
    one, *shared = (units_code(plan, UnitForm(fibers, *each)) for each in ((1, 4), (2, 2), (4, 8), (4, 1)))
    assert one is not None
    right = run_chunks(one, plan, step)
    for seed, code in enumerate(shared):
        assert code is not None
        for a, b in zip(run_chunks(code, plan, step, seed), right, strict=True):
            assert a.tobytes() == b.tobytes()


def test_more_lanes_share_a_unit_where_there_are_few_sequences() -> None:
    plan = mamba(1024).plan()
    for rows, lanes in ((1, "4 lanes"), (16, "4 lanes"), (64, "a thread")):
        assert loop_of(plan, rows, DEVICE).loop.schedule.startswith(f"{lanes} for each of 1024 units")
    assert [loop_of(plan, rows, DEVICE).loop.code.resident for rows in (16, 64)] == [
        1,
        8,
    ]  # none waits for room
    uneven = mamba(33).plan()  # a warp would have lanes of several sequences
    assert loop_of(uneven, 16, DEVICE).loop.schedule.startswith("a thread for each of 33 units")


def test_exponentials_of_units_are_those_of_the_interpreter() -> None:
    def step(x: Any, h: Any, p: Any) -> Any:
        """Exponentials of two numbers of each unit."""
        h = np.exp(x.reshape(-1, 5, 2) + h.sum(-1, keepdims=True))
        return h.sum(-1), h

    numbers = [0, -0.0, 1e-30, 1, -1, 88.5, -87, -200, np.inf, -np.inf]
    x = np.array([[numbers]], "f4")
    names = "cuda-emulated", "cuda-emulated:tf32", "interpret"
    found, rounded, right = (sn.RNN(step, memory=(5, 2))(x, engine=name)[1] for name in names)
    np.testing.assert_allclose(found, right, rtol=5e-7, atol=1e-37)
    np.testing.assert_allclose(rounded, right, rtol=1e-5, atol=1e-37)  # the argument is near 128
    assert (rounded != found).any()


def test_where_products_may_be_rounded_units_of_mamba_have_the_powers_of_the_gpu() -> None:
    step = mamba()
    step = replace(step, params={**step.params, "A": step.params["A"] * np.arange(1, 17, dtype="f4")})
    made = [
        step.rnn()(step.sequences(), step.initial(), engine=f"cuda-emulated{way}") for way in ("", ":tf32")
    ]
    (exact, _), (outputs, final) = made
    for found, right in zip([outputs.values, final], as_float64(step, reverse=False), strict=True):
        assert_close(found, right, max(RAGGED), 48)
    assert (outputs.values != exact.values).any()
    times = [
        loop_of(mamba(1024).plan(), 64, DEVICE, CudaOptions(way)).microseconds for way in ("float32", "tf32")
    ]
    assert times[1] < 0.7 * times[0]


# ---- the choice, and what is said of it


def test_chunks_are_chosen_where_they_are_estimated_to_be_faster() -> None:
    plan = gated_delta(8, 64, 64).plan()
    found = {rows: loop_of(plan, rows, DEVICE) for rows in (1, 16, 256)}
    assert all(BY_CHUNKS in each.reason for each in found.values())
    assert found[1].loop.code.group > found[16].loop.code.group  # fewer sequences, more blocks for each
    words = {each.reason.split(" steps")[0] for each in found.values()}
    assert len(words) == 1  # and so the same bits
    assert 0.1 < found[16].microseconds < 0.4
    assert "as products" not in loop_of(recurrence("matrix_memory", 8).plan, 16, DEVICE).reason
    # Its bits depend on where the steps are divided, so layers of it are no wavefront.
    assert not load_of(found[16], 16, DEVICE, True, 0.0).is_divisible
    early = loop_of(plan, 16, DEVICE, flag=0).reason
    assert BY_CHUNKS not in early


def test_explain_shows_chunks() -> None:
    step = gated_delta(8, 64, 64)
    rnn = step.rnn()
    rnn({name: x[None] for name, x in step.values(2).items()})
    said = " ".join(rnn.explain("cuda", rows=16, steps=1024).split())
    words = "8 blocks of 512 threads", "steps at a time as products of matrices", "most of it products"
    assert (
        "about 128 of 128 of a thread, estimated; if the GPU's assembler needs more, it keeps some in memory"
        in said
    )
    for word in (*words, "us predicted for 1024 steps"):
        assert word in said


# ---- registers


CASES: dict[str, Callable[[], MatrixStep]] = {
    "gated delta rule 64": lambda: gated_delta(8, 64, 64),
    "gated delta rule 128": lambda: gated_delta(8, 128, 128),
    "linear attention 64": lambda: linear(8, 64, 64),
    "gated linear attention 64": lambda: gla(8, 64, 64),
    "Kimi delta attention 64": lambda: kda(64, 64, 8),
    "Kimi delta attention 128": lambda: kda(128, 128, 8),
    "mamba2 128": lambda: mamba2(8, 128, 128),
    "mamba 1024": lambda: mamba(1024),
    "mamba 1024, 64 sequences": lambda: mamba(1024),
}


def row(name: str, precision: CudaPrecision) -> dict[str, int | str]:
    """The report of ptxas on a kernel."""
    plan = CASES[name]().plan()
    found = chunk_choices(plan, 16, DEVICE, precision)
    rows = 64 if name.endswith("64 sequences") else 16
    alone = loop_of(plan, rows, DEVICE, CudaOptions(precision)).loop
    loop = alone if isinstance(found, str) else chunk_code(plan, found[0].form)
    made = assembled(loop.code)
    return {
        "schedule": loop.schedule,
        "registers": made.registers,
        "spilled": made.spilled,
        "shared": loop.code.shared,
    }


@pytest.mark.skipif(ptxas() is None, reason="ptxas is not installed")
@pytest.mark.long(every=10)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_registers_are_those_of_the_table(name: str, precision: CudaPrecision) -> None:
    table, found = json.loads(TABLE.read_text()), row(name, precision)
    assert found["spilled"] in range(49)  # places, of loops that have all 128 registers
    assert found["schedule"] == table[f"{name}, {precision}"]["schedule"]
    if table[MADE_BY] == compilers():
        assert found == table[f"{name}, {precision}"]


if __name__ == "__main__":
    ways: tuple[CudaPrecision, ...] = "float32", "bfloat16"
    rows = {f"{name}, {way}": row(name, way) for name in CASES for way in ways}
    TABLE.write_text(json.dumps({MADE_BY: compilers(), **rows}, indent=1) + "\n")
