"""Gradients of matrices in chunks of steps: in emulation, beside the interpreter in float64."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.grad import halves, matrix_core, vjp
from stepnet.compiler.net import (
    HOST,
    ROWS,
    STEPS,
    Builder,
    LevelSizes,
    Recur,
    Type,
    decay_operands,
    gradient_sizes,
    interpret,
)
from stepnet.compiler.plan import MatrixSizes, Planning, Schedule
from stepnet.compiler.targets.cuda import (
    COSTS,
    CudaEngine,
    CudaMemory,
    DecayForm,
    DecayWriter,
    EmulatedDevice,
    KeyDecayWriter,
    TrainedChunks,
    assembled,
    chunk_choices,
    chunk_code,
    decay_code,
    decay_form,
    decay_time,
    empty,
    get,
    ptxas,
    put,
)
from stepnet.errors import NetError
from tests.compiler.targets.cuda.matrix_steps import (
    MatrixStep,
    bounded,
    delta_product,
    gated_delta,
    gla,
    kda,
    linear,
    mamba2,
    rwkv7,
)
from tests.compiler.targets.cuda.tensor_loops import DEVICE
from tests.compiler.targets.cuda.test_chunks import recur_of
from tests.compiler.targets.cuda.test_tensor_registers import MADE_BY, compilers

Array = np.ndarray
TABLE = Path(__file__).with_name("chunk_gradient_registers.json")
LENGTHS = 40, 0, 1, 17
ENDS = "initial", "last"
SAID = "chunks of steps, by products of matrices"


def gradients(
    step: MatrixStep, engine: str, dtype: str, reverse: bool = False, **given: Any
) -> dict[str, Array]:
    """The gradients of all that a model of ragged sequences is given, for random cotangents."""
    x = {name: each.with_values(each.values.astype(dtype)) for name, each in step.sequences(LENGTHS).items()}
    given = {name: array.astype(dtype) for name, array in given.items()}
    (outputs, final), backward = sn.vjp(step.rnn(reverse=reverse))(x, **given, engine=engine)
    chance = np.random.default_rng(3)
    seeds = [chance.normal(size=array.shape).astype(dtype) for array in (outputs.values, final)]
    found = backward(outputs.with_values(seeds[0]), seeds[1])
    made = {name: each.values for name, each in found.inputs.items()}
    made |= {name: getattr(found, name) for name in given}
    return made | ({} if step.params is None else found.params)


@pytest.mark.parametrize(
    ("make", "reverse", "has_initial"),
    [
        (gated_delta, False, True),
        (mamba2, True, False),
        (kda, False, True),
        pytest.param(gla, True, False, marks=pytest.mark.long),
        pytest.param(rwkv7, False, True, marks=pytest.mark.long),
        pytest.param(bounded, True, True, marks=pytest.mark.long),
        pytest.param(linear, False, False, marks=pytest.mark.long),
        pytest.param(delta_product, False, True, marks=pytest.mark.long),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_gradients_of_matrices_in_chunks(
    make: Callable[[], MatrixStep], reverse: bool, has_initial: bool
) -> None:
    step = make()
    given = {"initial": step.initial(len(LENGTHS))} if has_initial else {}
    right = gradients(step, "interpret", "f8", reverse, **given)
    for name, found in gradients(step, "cuda-emulated", "f4", reverse, **given).items():
        size = step.memory[-1] * step.memory[-2]
        assert_close(found, right[name], max(LENGTHS), size)


@pytest.mark.parametrize(("precision", "most"), [("tf32", 4e-3), ("bfloat16", 3e-2)])
def test_products_of_gradients_are_rounded_if_that_is_asked_for(precision: str, most: float) -> None:
    step = mamba2()
    right = gradients(step, "interpret", "f8")
    found = gradients(step, f"cuda-emulated:{precision}", "f4")
    away = {name: np.abs(found[name] - each).max() / np.abs(each).max() for name, each in right.items()}
    assert max(away.values()) < most
    assert away["dt"] > 1e-6


@pytest.mark.parametrize("make", [gated_delta, kda])
def test_nan_does_not_reach_the_gradients_of_earlier_steps(make: Callable[[], MatrixStep]) -> None:
    step = make()
    x = {name: array[None] for name, array in step.values(20).items()}
    found = list[dict[str, Array]]()
    for wrong in (0, np.nan):
        x["v"] = x["v"].copy()
        x["v"][0, 9, 0, 3] += wrong
        (outputs, _), backward = sn.vjp(step.rnn())(x, engine="cuda-emulated")
        found.append(backward(np.ones_like(outputs), None).inputs)
    assert np.isnan(found[1]["g"][0, 10:, 0]).all()
    for name, right in found[0].items():
        assert_close(found[1][name][:, :9], right[:, :9], 20, 16 * 32)
        assert_close(found[1][name][:, :, 1], right[:, :, 1], 20, 16 * 32)


def explained(step: MatrixStep, **options: Any) -> str:
    """The text about the gradient of a model."""
    rnn = step.rnn(**options)
    rnn({name: x[None] for name, x in step.values(2).items()})
    return " ".join(sn.vjp(rnn).explain(engine="cuda-emulated", rows=16, steps=64).split())


def test_explain_says_whether_a_gradient_runs_in_chunks() -> None:
    said = explained(gated_delta())
    assert SAID in said
    assert "gradients of a matrix that decays at rows/steps" in said
    refused = explained(gated_delta(2, 41, 32))
    assert "not in chunks: 41 keys and 32 values of a head: chunks take multiples of 16" in refused
    assert "forward, 2 steps at a time, which here are one step" in refused
    assert refused.count("us predicted for 32 steps") == 2  # of 64


def test_sizes_that_do_not_fit_are_refused() -> None:
    costs = CudaEngine(EmulatedDevice()).costs
    assert costs.blocks.chunks == TrainedChunks(DEVICE.shared)
    small = TrainedChunks(99 * 1024)
    assert small(MatrixSizes(128, 128, 2, 1, has_decay=False)) == ""
    assert "128 keys and 128 values: gradients of decays" in small(
        MatrixSizes(128, 128, 2, 1, has_decay=True)
    )
    of_a100 = TrainedChunks(163 * 1024)
    assert of_a100(MatrixSizes(128, 128, 2, 1, has_decay=True, by_key=True)) == ""
    assert "16 keys and 272 values of a head: gradients in chunks take up to 256" in small(
        MatrixSizes(16, 272, 1, 1, has_decay=False)
    )


def small_step(step: Callable[..., Any]) -> MatrixStep:
    """A step of a memory of 16 keys and 16 values."""
    return MatrixStep(step, (16, 16), {"k": (16,), "v": (16,)})


def counted(x: Any, S: Any, p: Any, *, index: Any) -> Any:
    """Reads the number of the step."""
    y = (S * x["k"][:, :, None]).sum(1) * index.astype("float32")[:, None]
    return y, S + x["k"][:, :, None] * x["v"][:, None, :]


def by_value(x: Any, S: Any, p: Any) -> Any:
    """Decays each value by itself."""
    y = (S * x["k"][:, :, None]).sum(1)
    return y, S * x["v"][:, None, :] + x["k"][:, :, None] * x["v"][:, None, :]


REFUSED: dict[str, Recur] = {
    "it writes the same to all keys": recur_of(
        small_step(lambda x, S, p: ((S * x["k"][:, :, None]).sum(1), S + x["v"][:, None, :]))
    ),
    "it writes the same to all values": recur_of(
        small_step(lambda x, S, p: ((S * x["k"][:, :, None]).sum(1), S + x["k"][:, :, None]))
    ),
    "values for its gradient are stored in bfloat16": replace(recur_of(linear()), saved="bfloat16"),
    "a step reads its index": recur_of(small_step(counted)),
    "it decays each value by itself": recur_of(small_step(by_value)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_steps_without_a_core_are_refused(reason: str) -> None:
    assert matrix_core(REFUSED[reason]) == reason


def test_operands_of_other_sizes_are_refused() -> None:
    builder = Builder()
    shapes = [(STEPS, (2, 4)), (STEPS, (2, 3)), (STEPS, (2, 4)), (STEPS, (2, 5)), (STEPS, (2,))]
    shapes += [(ROWS, (2, 4, 3)), (ROWS, (2, 4, 3))]
    numbers = [builder.input(Type(extent, shape, "float32"), "x") for extent, shape in shapes]
    with pytest.raises(NetError, match="vectors of 2 heads of 4 keys and 3 values in float32"):
        builder.add("matrix_gradients", *numbers, reads=1, ends=ENDS, reverse=False)


def test_gradients_of_the_last_matrix_alone() -> None:
    """Nothing that is read has a cotangent; beside the adjoint of any step, in the interpreter."""
    rnn, chance = mamba2().rnn(), np.random.default_rng(0)
    rnn({name: x[None] for name, x in mamba2().values(2).items()})
    net = replace(rnn.net, results=rnn.net.results[1:])
    segments = LevelSizes(2, (np.array([0, 5, 7]),))
    shapes = [net.type_of(number) for number in (*net.inputs, *net.results)]
    given = [chance.normal(size=(segments.count(t.extent), *t.shape)).astype("f4") for t in shapes]
    given = [each[0] if t.extent == () else each for each, t in zip(given, shapes, strict=True)]
    found, right = (interpret(made, given, segments) for made in (vjp(net, chunks=lambda _: ""), vjp(net)))
    for one, other in zip(found, right, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


# ---- the gradients of a matrix alone


def random_operands(
    reads: int, writes: int, lengths: tuple[int, ...], keys: int, values: int, by_key: bool = False
) -> list[Array]:
    """Random operands; some decays are 0 or below."""
    chance, total = np.random.default_rng(0), sum(lengths)
    sizes = [keys] * reads + [values] * reads + [keys] * writes + [values] * writes
    made = [(chance.normal(size=(total, 2, size)) / np.sqrt(size)).astype("f4") for size in sizes]
    decay = chance.uniform(-0.2, 1, size=(total, 2, keys) if by_key else (total, 2)).astype("f4")
    decay[3] = 0
    return [
        *made,
        decay,
        *(chance.normal(size=(len(lengths), 2, keys, values)).astype("f4") for _ in range(2)),
    ]


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize(
    ("reads", "writes", "lengths", "reverse"),
    [(1, 1, (70, 0, 1, 64), False), (2, 1, (5, 40), True), (1, 2, (33,), False)],
)
def test_gradients_of_decays(
    reads: int, writes: int, lengths: tuple[int, ...], reverse: bool, by_key: bool
) -> None:
    operands = random_operands(reads, writes, lengths, 32, 16, by_key)
    offsets = np.cumsum([0, *lengths])
    exact = decay_operands([each.astype("f8") for each in operands], reads, ENDS)
    right = HOST.matrix_gradients(exact, offsets, reverse)
    made = list[Array]()
    for seed in (1, 2):
        memory = CudaMemory(EmulatedDevice(seed))
        given = decay_operands([memory.put(each) for each in operands], reads, ENDS)
        made.append(memory.get(memory.matrix_gradients(given, offsets, reverse)))
    assert_close(made[0], right, max(lengths), 32 * 16)
    assert made[0].tobytes() == made[1].tobytes()


class DecaysWithoutBarrier(DecayWriter):
    """Writer that leaves out one of the meetings, by its number in the code; -1 for none."""

    def __init__(self, form: DecayForm, left_out: int) -> None:
        """Begins the kernel."""
        super().__init__(form)
        self.left_out, self.counted = left_out, count()

    def meet(self) -> None:
        """Writes a meeting, unless it is left out."""
        if next(self.counted) != self.left_out:
            super().meet()


class DecaysOfKeysWithoutBarrier(KeyDecayWriter):
    """The same, where each key decays by itself."""

    def __init__(self, form: DecayForm, left_out: int) -> None:
        """Begins the kernel."""
        super().__init__(form)
        self.left_out, self.counted = left_out, count()

    def meet(self) -> None:
        """Writes a meeting, unless it is left out."""
        if next(self.counted) != self.left_out:
            super().meet()


@pytest.mark.parametrize(
    ("kind", "left_out"),
    [
        pytest.param(kind, n, marks=[] if n == 5 else pytest.mark.long)
        for kind, meetings in ((DecaysWithoutBarrier, 10), (DecaysOfKeysWithoutBarrier, 8))
        for n in range(meetings)
    ],
)
def test_a_missing_barrier_of_the_decays_is_found(kind: Any, left_out: int) -> None:
    lengths = 40, 70  # two warps have tiles of the matrix, and the third one goes on at once
    by_key = kind is DecaysOfKeysWithoutBarrier
    operands = random_operands(1, 1, lengths, 16, 16, by_key)
    form = DecayForm(1, 1, 16, 16, 16 if by_key else 64, "float32", by_key)
    racy, whole = (kind(form, each) for each in (left_out, -1))
    codes = [whole.written(), racy.written()]
    assert next(whole.counted) == (8 if by_key else 10)

    def run(place: int, seed: int) -> bytes:
        """The gradients by one of the codes."""
        device = EmulatedDevice(seed)
        given = decay_operands([put(device, each) for each in operands], 1, ENDS)
        assert given.initial is not None
        assert given.last is not None
        made = empty(device, (sum(lengths), 2 * form.gradients), "float32")
        arrays = [made, put(device, np.cumsum([0, *lengths])), empty(device, (9, 2, 16, 16), "float32")]
        vectors = [*given.reads, *given.d_reads, *given.keys, *given.written]
        words = [*(each.address for each in arrays), 2, 0]
        words += [each.address for each in (given.decay, given.initial, given.last, *vectors)]
        device.launch(codes[place], 4, words)
        return get(made).tobytes()

    right = run(0, 0)
    assert any(run(1, seed) != right for seed in range(1, 25))


@pytest.mark.parametrize("by_key", [False, True])
def test_gradients_are_those_of_what_is_read(by_key: bool) -> None:
    """By finite differences of the sum of what is read, with given cotangents."""
    operands = [each.astype("f8") for each in random_operands(1, 1, (6,), 4, 3, by_key)]
    given = decay_operands(operands, 1, ENDS)
    assert given.initial is not None
    assert given.last is not None
    initial, last = given.initial[0], given.last[0]

    def read() -> float:
        """The sum of all that is read, times cotangents, and of the last matrix."""
        matrix, total = initial, 0.0
        for step in range(6):
            total += np.einsum("hk,hkv,hv->", given.reads[0][step], matrix, given.d_reads[0][step])
            matrix = given.decay[step].reshape(2, -1, 1) * matrix
            matrix = matrix + given.keys[0][step][:, :, None] * given.written[0][step][:, None]
        return total + float((matrix * last).sum())

    found = HOST.matrix_gradients(given, np.array([0, 6]), False)
    pieces = np.split(found, np.cumsum(gradient_sizes(given))[:-1], axis=1)
    for array, made in zip((given.reads[0], given.keys[0], given.decay), pieces, strict=True):
        for place in np.ndindex(array.shape):
            before = array[place]
            array[place] = before + 1e-3
            more = read()
            array[place] = before - 1e-3
            slope = (more - read()) / 2e-3
            array[place] = before
            np.testing.assert_allclose(made.reshape(array.shape)[place], slope, rtol=1e-7, atol=1e-9)


def test_the_estimate_grows_with_the_sequences() -> None:
    form = decay_form(2, 1, 64, 64, "float32", DEVICE.shared)
    assert form is not None
    few, many = (decay_time(form, rows, 8, DEVICE) for rows in (16, 64))
    assert 0.1 < few < many / 2
    assert decay_form(2, 1, 256, 256, "float32", DEVICE.shared) is None


def test_sums_over_steps_are_no_loops() -> None:
    """The gradients of A and D of Mamba-2 are sums over the steps of each sequence."""
    rnn = mamba2().rnn()
    rnn({name: x[None] for name, x in mamba2().values(2).items()})
    net = halves(vjp(rnn.net, chunks=lambda _: ""), len(rnn.net.inputs), len(rnn.net.results)).backward
    kinds = [part.kind for part in Schedule(net, Planning(CudaEngine.pipeline, COSTS)).parts]
    assert kinds.count("recurrence") == 1


# ---- registers


def loops(step: MatrixStep) -> list[Any]:
    """The plans of the backward loops of a step."""
    rnn = step.rnn()
    rnn({name: x[None] for name, x in step.values(2).items()})
    net = vjp(rnn.net, chunks=lambda _: "")
    backward = halves(net, len(rnn.net.inputs), len(rnn.net.results)).backward
    parts = Schedule(backward, Planning(CudaEngine.pipeline, COSTS)).parts
    plans = [part.plan for part in parts if part.plan is not None]
    return [plan for plan in plans if len(plan.body.type_of(plan.recurrence.recur.memories[0]).shape) == 3]


def rows(precision: str) -> dict[str, Any]:
    """The reports of ptxas on the kernels of the gradients of a linear attention, which does not decay, of a
    gated delta rule, and of one whose keys decay by themselves.
    """
    codes = dict[str, Any]()
    kinds = ("", gated_delta(8, 64, 64)), ("of keys: ", kda(64, 64, 8)), ("no decay: ", linear(8, 64, 64))
    for of, step in kinds:
        for name, plan in zip(("written", "keys", "reads"), loops(step), strict=False):
            choices = chunk_choices(plan, 16, DEVICE, precision)
            assert not isinstance(choices, str)
            codes[of + name] = chunk_code(plan, choices[0].form).code
    for size, by_key in ((64, False), (128, False), (64, True), (128, True)):
        form = decay_form(2, 1, size, size, precision, DEVICE.shared, by_key)
        assert isinstance(form, DecayForm)
        codes[f"{'of keys: ' if by_key else ''}all, {size}"] = decay_code(form)
    made = {name: assembled(code) for name, code in codes.items()}
    return {
        f"{name}, {precision}": {
            "registers": made[name].registers,
            "spilled": made[name].spilled,
            "shared": codes[name].shared,
        }
        for name in codes
    }


@pytest.mark.skipif(ptxas() is None, reason="ptxas is not installed")
@pytest.mark.long
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_registers_of_gradients_are_those_of_the_table(precision: str) -> None:
    table, found = json.loads(TABLE.read_text()), rows(precision)
    assert all(each["spilled"] <= 104 for each in found.values())  # places, which a chunk needs once
    if table[MADE_BY] == compilers():
        assert found == {name: table[name] for name in found}


if __name__ == "__main__":
    made = {MADE_BY: compilers(), **rows("float32"), **rows("bfloat16")}
    TABLE.write_text(json.dumps(made, indent=1) + "\n")
