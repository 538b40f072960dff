"""Steps that carry matrices: what is done with a matrix is one phase, fiber by fiber."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import wide_machine
from hypothesis import given, settings
from planned import plan
from same_bits import assert_same_bits
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.plan import Plan
from stepnet.compiler.targets.cpu import NAMED, Processor, engine, host_processor
from stepnet.compiler.targets.cpu.lower.fibers import FiberStorage, group_width
from stepnet.compiler.targets.cpu.lower.loops import FiberLoop
from stepnet.compiler.targets.cpu.lower.program import lowered
from stepnet.compiler.values import transform

pytestmark = pytest.mark.usefixtures("small_calls_are_shared", "same_threads")

Array = np.ndarray
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """A step, the shapes of its inputs and memories, and the phases of its loop.

    together: whether threads share the units without a barrier.
    """

    step: Callable[..., Any]
    inputs: Shapes
    memory: Shapes
    phases: int = 1
    together: bool = True

    def rnn(self, dtype: Any = np.float32) -> sn.RNN:
        inputs = {name: sn.Spec(shape, dtype) for name, shape in self.inputs.items()}
        return sn.RNN(self.step, memory=self.memory, inputs=inputs)

    def plan(self) -> Plan:
        return plan(self.rnn().net)

    def values(self, lengths: list[int], seed: int = 0) -> dict[str, sn.Ragged]:
        rng, offsets = np.random.default_rng(seed), np.cumsum([0, *lengths])
        return {
            name: sn.Ragged(0.5 * rng.standard_normal((offsets[-1], *shape)).astype("float32"), (offsets,))
            for name, shape in self.inputs.items()
        }

    def begin(self, rows: int, seed: int = 1) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        shapes = self.memory.items()
        return {name: rng.standard_normal((rows, *shape)).astype("float32") for name, shape in shapes}


def loop(case: Case, values: dict[str, sn.Ragged], initial: dict[str, Array]) -> tuple[Any, Any]:
    """The step in a plain loop over NumPy's float64."""
    first = next(iter(values.values()))
    outputs, finals = list[Any](), list[Any]()
    for row, (begin, end) in enumerate(zip(first.offsets[0], first.offsets[0][1:], strict=False)):
        memory = {name: array[row : row + 1].astype("f8") for name, array in initial.items()}
        for at in range(begin, end):
            x = {name: ragged.values[at : at + 1].astype("f8") for name, ragged in values.items()}
            output, memory = case.step(x, memory, ())
            outputs.append(output)
        finals.append(memory)
    joined = [np.concatenate([each[name] for each in finals]) for name in initial]
    return np.concatenate(outputs), dict(zip(initial, joined, strict=True))


def delta(x: Any, memory: Any, params: Any) -> Any:
    """The gated delta rule, without heads."""
    S = memory["S"] * np.exp(-np.abs(x["g"]))[:, None, None]
    d = (x["v"] - (S * x["k"][:, :, None]).sum(1)) * x["b"][:, None]
    S = S + x["k"][:, :, None] * d[:, None, :]
    return (S * x["q"][:, :, None]).sum(1), {"S": S}


def heads(x: Any, memory: Any, params: Any) -> Any:
    """The same with heads, by einsum."""
    S = memory["S"] * np.exp(-np.abs(x["g"]))[:, :, None, None]
    d = (x["v"] - np.einsum("bhk,bhkv->bhv", x["k"], S)) * x["b"][:, :, None]
    S = S + np.einsum("bhk,bhv->bhkv", x["k"], d)
    return np.einsum("bhk,bhkv->bhv", x["q"], S), {"S": S}


def scan(x: Any, memory: Any, params: Any) -> Any:
    """A selective scan: the matrix is summed over its last axis."""
    decay = np.exp(-np.abs(x["dt"])[:, :, None] * np.arange(1, 1 + x["B"].shape[1], dtype=x["B"].dtype))
    h = decay * memory["h"] + (x["dt"] * x["u"])[:, :, None] * x["B"][:, None, :]
    return (h * x["C"][:, None, :]).sum(-1), {"h": h}


def decayed(x: Any, memory: Any, params: Any) -> Any:
    """Linear attention with a decay: nothing at a depth of a fiber needs a sum over all of them."""
    S = memory["S"] * np.exp(-np.abs(x["g"]))[:, None, None] + x["k"][:, :, None] * x["v"][:, None, :]
    return (S * np.tanh(x["k"])[:, :, None]).sum(1) + S.max(1), {"S": S}


def both_axes(x: Any, memory: Any, params: Any) -> Any:
    """Sums over both axes: one of them is along fibers."""
    S = 0.5 * memory["S"] + x["k"][:, :, None] * x["v"][:, None, :]
    rows, columns = S.sum(2), S.sum(1)
    return rows.sum(1)[:, None] * columns, {"S": S}


def largest(x: Any, memory: Any, params: Any) -> Any:
    """The largest and the smallest of each fiber, and a value of many operations that two levels read."""
    S = 0.5 * memory["S"] + x["k"][:, :, None] * x["v"][:, None, :]
    E = np.exp(np.tanh(S))
    weights = E / E.sum(1)[:, None, :]
    return S.max(1) - S.min(1) + (weights * x["k"][:, :, None]).sum(1), {"S": S}


def two(x: Any, memory: Any, params: Any) -> Any:
    """Two matrices of as many units, of which one has fibers of another length."""
    S = 0.5 * memory["S"] + x["k"][:, :, None] * x["v"][:, None, :]
    P = 0.7 * memory["P"] + x["p"][:, :, None] * x["v"][:, None, :]
    read = (S * x["k"][:, :, None]).sum(1)
    return (P * (x["p"][:, :, None] + read[:, None, :])).sum(1), {"S": S, "P": P}


def shown(x: Any, memory: Any, params: Any) -> Any:
    """The whole matrix is the output, and so is another order of it read at the next step."""
    S = 0.5 * memory["S"] + x["k"][:, :, None] * x["v"][:, None, :]
    return S * (1 + np.tanh(S.sum(1)))[:, None, :], {"S": S}


def turned(x: Any, memory: Any, params: Any) -> Any:
    """The next matrix is the transposed one: it cannot be kept fiber by fiber."""
    S = 0.5 * memory["S"] + x["k"][:, :, None] * x["v"][:, None, :]
    return S.sum(1), {"S": S.swapaxes(1, 2)}


def old(x: Any, memory: Any, params: Any) -> Any:
    """The old value of the matrix is read when the next value is known: it is not overwritten in place."""
    S = 0.5 * memory["S"] + x["k"][:, :, None] * x["v"][:, None, :]
    written = np.tanh((S * x["k"][:, :, None]).sum(1))
    return (memory["S"] * written[:, None, :]).sum(1), {"S": S}


def crossing(x: Any, memory: Any, params: Any) -> Any:
    """A unit reads what another unit was at the step before: threads wait for each other."""
    S = 0.5 * memory["S"] + x["k"][:, :, None] * (x["v"] + memory["n"][:, ::-1])[:, None, :]
    n = np.tanh((S * x["k"][:, :, None]).sum(1))
    return n, {"S": S, "n": n}


def scaled(x: Any, memory: Any, params: Any) -> Any:
    """The first sum of a step reads a vector that the step before computed behind its last sum."""
    d = (x["v"] - (np.tanh(memory["S"] * memory["n"][:, None, :]) * x["k"][:, :, None]).sum(1)) * 0.5
    S = 0.9 * memory["S"] + x["k"][:, :, None] * d[:, None, :]
    n = np.tanh((S * x["k"][:, :, None]).sum(1))
    return n, {"S": S, "n": n}


def mixed(x: Any, memory: Any, params: Any) -> Any:
    """A vector beside the matrix, which each unit reads and writes, and a row of the matrix's own."""
    S = memory["S"] * np.tanh(memory["n"])[:, None, :] + x["k"][:, :, None] * x["v"][:, None, :]
    n = 0.5 * memory["n"] + (S * x["M"]).sum(1)
    return n * x["v"], {"S": S, "n": n}


def flat(x: Any, memory: Any, params: Any) -> Any:
    """The matrix is carried as a vector."""
    rows, size = x["k"].shape[1], x["v"].shape[1]
    S = 0.5 * memory["S"].reshape(-1, rows, size) + x["k"][:, :, None] * x["v"][:, None, :]
    return (S * x["k"][:, :, None]).sum(1), {"S": S.reshape(-1, rows * size)}


def vectors(k: int, v: int, **more: tuple[int, ...]) -> Shapes:
    return {"k": (k,), "v": (v,), **more}


CASES = {
    "delta": Case(delta, vectors(6, 32, q=(6,), g=(), b=()), {"S": (6, 32)}),
    "delta, odd": Case(delta, vectors(5, 21, q=(5,), g=(), b=()), {"S": (5, 21)}),
    "delta, wide": Case(delta, vectors(3, 80, q=(3,), g=(), b=()), {"S": (3, 80)}),
    "heads": Case(
        heads,
        {"q": (3, 4), "k": (3, 4), "v": (3, 16), "g": (3,), "b": (3,)},
        {"S": (3, 4, 16)},
    ),
    "heads, odd": Case(
        heads, {"q": (3, 4), "k": (3, 4), "v": (3, 5), "g": (3,), "b": (3,)}, {"S": (3, 4, 5)}
    ),
    "scan": Case(scan, {"dt": (40,), "u": (40,), "B": (4,), "C": (4,)}, {"h": (40, 4)}),
    "deep": Case(decayed, vectors(530, 9, g=()), {"S": (530, 9)}),
    "both axes": Case(both_axes, vectors(9, 9), {"S": (9, 9)}, 3, together=False),
    "largest": Case(largest, vectors(4, 20), {"S": (4, 20)}),
    "two": Case(two, vectors(4, 16, p=(7,)), {"S": (4, 16), "P": (7, 16)}),
    "shown": Case(shown, vectors(4, 12), {"S": (4, 12)}),
    "turned": Case(turned, vectors(8, 8), {"S": (8, 8)}, 2, together=False),
    "old": Case(old, vectors(4, 16), {"S": (4, 16)}),
    "crossing": Case(crossing, vectors(4, 48), {"S": (4, 48), "n": (48,)}, together=False),
    "scaled": Case(scaled, vectors(4, 48), {"S": (4, 48), "n": (48,)}),
    "mixed": Case(mixed, vectors(4, 48, M=(4, 48)), {"S": (4, 48), "n": (48,)}),
    "flat": Case(flat, vectors(4, 16), {"S": (64,)}),
}
LENGTHS = [3, 0, 1, 5, 2]
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@each_case
def test_values(case: Case) -> None:
    values, initial = case.values(LENGTHS), case.begin(len(LENGTHS))
    outputs, final = case.rnn()(values, initial=initial)
    right, last = loop(case, values, initial)
    width = max(np.prod(shape) for shape in case.memory.values())
    assert_close(outputs.values, right, max(LENGTHS), int(width))
    for name, array in last.items():
        assert_close(final[name], array, max(LENGTHS), int(width))


@each_case
@pytest.mark.long(every=2)
def test_float64(case: Case) -> None:
    values = transform(lambda x: sn.Ragged(x.values.astype("f8"), x.offsets), case.values(LENGTHS))
    initial = {name: array.astype("f8") for name, array in case.begin(len(LENGTHS)).items()}
    outputs, final = case.rnn(np.float64)(values, initial=initial)
    right, last = loop(case, values, initial)
    assert_close(outputs.values, right, max(LENGTHS), 64)
    for name, array in last.items():
        assert_close(final[name], array, max(LENGTHS), 64)


@each_case
@pytest.mark.long(every=2)
def test_bits_do_not_depend_on_the_batch_or_on_threads(case: Case) -> None:
    rnn, values, initial = case.rnn(), case.values(LENGTHS), case.begin(len(LENGTHS))
    sn.set_threads(1)
    outputs, final = rnn(values, initial=initial)
    for row in range(len(LENGTHS)):
        begin, end = outputs.offsets[0][row : row + 2]
        alone = {name: ragged.values[None, begin:end] for name, ragged in values.items()}
        own = {name: array[row : row + 1] for name, array in initial.items()}
        part, last = rnn(alone, initial=own)
        assert_same_bits(part[0], outputs.values[begin:end])
        assert_same_bits(last, {name: array[row : row + 1] for name, array in final.items()})
    for count in (2, 3):
        sn.set_threads(count)
        assert_same_bits(rnn(values, initial=initial), (outputs, final))


@each_case
def test_phases(case: Case) -> None:
    made = case.plan()
    assert (len(made.loop), made.units_are_alone) == (case.phases, case.together)


@pytest.mark.alone
@pytest.mark.parametrize("name", ["delta, wide", "scan", "scaled", "mixed", "two", "crossing"])
def test_threads_that_share_units(name: str) -> None:
    """Long sequences, of which lanes run several: rows come and go while threads share the units."""
    case = CASES[name]
    rnn, lengths = case.rnn(), [400, 37, 1, 250, 90, 3]
    values, initial = case.values(lengths), case.begin(len(lengths))
    sn.set_threads(1)
    right = rnn(values, initial=initial)
    one = {name: ragged.values[None, :400] for name, ragged in values.items()}
    alone = rnn(one)
    for count in (2, 3, 5):
        sn.set_threads(count)
        for _ in range(10):
            assert_same_bits(rnn(one), alone)
            assert_same_bits(rnn(values, initial=initial), right)


def test_sharing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        engine, "host_processor", lambda: wide_machine.PROCESSOR
    )  # wide vectors have fewer blocks
    sn.set_threads(2)
    case = Case(scan, {"dt": (512,), "u": (512,), "B": (16,), "C": (16,)}, {"h": (512, 16)})
    assert "2 threads share the units (up to 16 blocks each), no barrier per step" in str(
        case.rnn().explain(rows=1, steps=256)
    )


@each_case
def test_streams(case: Case) -> None:
    rnn, values = case.rnn(), case.values([4, 4])
    whole, last = rnn(values)
    stream = rnn.stream(2)
    steps = [
        stream.step({name: x.values.reshape(2, 4, *x.values.shape[1:])[:, t] for name, x in values.items()})
        for t in range(4)
    ]
    assert_same_bits(np.stack(steps, 1), whole.values.reshape(2, 4, *whole.values.shape[1:]))
    assert_same_bits(stream.state, last)


@pytest.mark.parametrize(
    ("name", "ahead"),
    [
        ("delta", True),
        ("heads", True),
        ("scan", False),
        ("deep", False),
        ("two", False),
        ("old", False),
        ("scaled", False),
    ],
)
def test_the_first_turn_of_a_step_runs_with_the_last_one_of_the_step_before(name: str, ahead: bool) -> None:
    (phase,) = lowered(CASES[name].plan(), host_processor()).program.loop
    assert isinstance(phase, list)
    (loop,) = phase
    assert isinstance(loop, FiberLoop)
    assert loop.begins_ahead is ahead


@pytest.mark.long(each=True)
@pytest.mark.parametrize("processor", [NAMED["x86-64-v4"], NAMED["x86-64-v3"]], ids=lambda each: each.name)
@pytest.mark.parametrize("more", [0, 1, 18])
def test_fibers_deeper_than_the_nearest_cache_are_cut_into_tiles(processor: Processor, more: int) -> None:
    most, tile = 32 * 1024 // processor.vector_bytes, 32 * 1024 // processor.vector_bytes if more else 0
    units = processor.vector_bytes // 4
    case = Case(decayed, vectors(most + more, units, g=()), {"S": (most + more, units)})
    (phase,) = lowered(case.plan(), processor).program.loop
    assert isinstance(phase, list)
    (loop,) = phase
    assert isinstance(loop, FiberLoop)
    assert (loop.tile, len(loop.partial)) == (tile, 2 if tile else 0)


def test_a_sum_decides_the_order_of_a_matrix() -> None:
    """Fibers are along the axis that is summed over, wherever it is."""
    (over_first,) = {places.shape for places in CASES["delta"].plan().fibers.indices.values()}
    (over_last,) = {places.shape for places in CASES["scan"].plan().fibers.indices.values()}
    assert (over_first, over_last) == ((6, 32), (4, 40))


def few(x: Any, memory: Any, params: Any) -> Any:
    S = 0.5 * memory["S"] + x["k"][:, :, None] * x["v"][:, None, :]
    return S.sum(1), {"S": S}


def carries_none(x: Any, memory: Any, params: Any) -> Any:
    S = np.tanh(memory["h"])[:, None, :] * x["k"][:, :, None]
    return S.sum(1), {"h": memory["h"] + x["v"]}


@pytest.mark.parametrize(
    "case",
    [
        Case(few, vectors(16, 7), {"S": (16, 7)}),
        Case(carries_none, vectors(4, 16), {"h": (16,)}),
        CASES["turned"],
    ],
)
def test_what_has_no_fibers(case: Case) -> None:
    assert not case.plan().fibers


def test_the_order_in_memory() -> None:
    places = np.arange(2 * 5).reshape(5, 2).T  # a matrix [5, 2] that is summed over its last axis
    storage = FiberStorage(places, 4)
    assert storage.order.tolist() == [0, 2, 4, 6, 1, 3, 5, 7, 8, 8, 8, 8, 9, 9, 9, 9]
    assert storage.index.tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12]


def test_a_group_has_units_that_read_the_same() -> None:
    """A group is up to four vectors wide, but not as wide as several heads."""
    none = CASES["delta"].plan().fibers
    assert [group_width(none, units, 8) for units in (8, 16, 20, 32, 33)] == [8, 16, 8, 32, 8]
    by_head = Case(heads, {"q": (4, 4), "k": (4, 4), "v": (4, 16), "g": (4,), "b": (4,)}, {"S": (4, 4, 16)})
    assert group_width(by_head.plan().fibers, 64, 8) == 16


UNARY = ("np.tanh({})", "-{}", "np.abs({})", "{}[:, ::-1]", "({} > 0) * {}")


@st.composite
def random_step(draw: st.DrawFn) -> Case:
    """Steps of some matrices, vectors of both axes and numbers, combined and summed at random."""
    depth, units = draw(st.integers(2, 6)), draw(st.sampled_from([8, 9, 16, 24, 64]))
    flipped = draw(st.booleans())
    shape = (units, depth) if flipped else (depth, units)
    axis = 2 if flipped else 1
    spread = {"matrix": "{}", "unit": "{}[:, :, None]" if flipped else "{}[:, None, :]"}
    spread |= {"depth": "{}[:, None, :]" if flipped else "{}[:, :, None]", "number": "{}[:, None, None]"}
    kinds = {
        "memory['S']": "matrix",
        "memory['n']": "unit",
        "x['v']": "unit",
        "x['k']": "depth",
        "x['g']": "number",
    }
    lines = list[str]()
    for place in range(draw(st.integers(2, 8))):
        name = f"a{place}"
        kind = draw(st.sampled_from(["matrix", "matrix", "unit", "sum"]))
        matrices = [each for each, own in kinds.items() if own == "matrix"]
        if kind == "sum":
            read, how = draw(st.sampled_from(matrices)), draw(st.sampled_from(["sum", "sum", "max"]))
            lines.append(f"{name} = 0.3 * {read}.{how}({axis})")
            kinds[name] = "unit"
            continue
        able = (
            list(kinds)
            if kind == "matrix"
            else [each for each, own in kinds.items() if own in ("unit", "number")]
        )
        terms = list[str]()
        for _ in range(2):
            read = draw(st.sampled_from(able))
            own = kinds[read]
            text = (
                spread[own].format(read)
                if kind == "matrix"
                else read
                if own == "unit"
                else f"{read}[:, None]"
            )
            if own == kind and draw(st.booleans()):
                text = draw(st.sampled_from(UNARY)).replace("{}", text)
            terms.append(text)
        operator = draw(st.sampled_from(["*", "+", "-"]))
        first = spread["matrix"].format("memory['S']") if kind == "matrix" else "memory['n']"
        lines.append(f"{name} = np.tanh({terms[0]} {operator} {terms[1]} + 0.1 * {first})")
        kinds[name] = kind
    S = draw(st.sampled_from([name for name, kind in kinds.items() if kind == "matrix"]))
    n = draw(st.sampled_from([name for name, kind in kinds.items() if kind == "unit"]))
    y = draw(st.sampled_from([name for name in kinds if name.startswith("a")]))
    body = "\n    ".join([*lines, f"return {y} * 1.0, {{'S': {S} * 0.5, 'n': {n} * 0.5}}"])
    scope: dict[str, Any] = {"np": np}
    source = f"def step(x, memory, params):\n    {body}\n"
    exec(source, scope)
    scope["step"].__doc__ = source
    return Case(scope["step"], {"v": (units,), "k": (depth,), "g": ()}, {"S": shape, "n": (units,)})


@pytest.mark.long(examples=4)
@settings(max_examples=12)
@given(random_step(), st.integers(0, 100))
def test_random_steps(case: Case, seed: int) -> None:
    lengths = [4, 1, 0, 6]
    values, initial = case.values(lengths, seed), case.begin(len(lengths), seed + 1)
    outputs, final = case.rnn()(values, initial=initial)
    right, last = loop(case, values, initial)
    assert_close(outputs.values, right, max(lengths), 64)
    for name, array in last.items():
        assert_close(final[name], array, max(lengths), 64)
    sn.set_threads(3)
    assert_same_bits(case.rnn()(values, initial=initial), (outputs, final))
