"""Contracts, reductions over all there is, and what is made of the last memories: nets that no step makes,
on the llvm engine against the interpreter in float64, in one plan and in a schedule.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from callers import threads
from hypothesis import assume, given, settings
from interpreted import interpreted
from planned import CPU, plan, schedule
from random_steps import wide
from tolerance import assert_close
from zoo import uniform

from stepnet.compiler.net import CONST, ROWS, STEPS, Builder, Extent, Net, Recur, Type, widened
from stepnet.compiler.net.ir import ancestors
from stepnet.compiler.plan import Schedule
from stepnet.compiler.plan.passes.lift import lift
from stepnet.compiler.targets import Call, Results, engine_named
from stepnet.compiler.targets.cpu import LlvmEngine
from stepnet.errors import NetError
from stepnet.ragged import Positions, offsets_of

pytestmark = pytest.mark.usefixtures("small_calls_are_shared")

Array = np.ndarray
H, X = 5, 3
LENGTHS = (3, 0, 1, 7, 2, 1, 0, 5, 4, 12, 1)


@dataclass(frozen=True)
class Parts:
    """A net on its way: a recurrence h' = tanh(x @ W + h @ R), and what there is to make more of."""

    builder: Builder
    x: int
    h0: int
    s: int
    W: int
    R: int
    V: int
    outputs: list[int]
    last: int

    def add(self, operation: str, *inputs: int, **attributes: Any) -> int:
        return self.builder.add(operation, *inputs, **attributes)


def body(twice: bool = False) -> Recur:
    """The step; its outputs are the memory ahead of it and behind it."""
    inside = Builder()
    shapes: dict[str, tuple[Extent, tuple[int, ...]]] = {
        "x": (ROWS, (X,)),
        "h": (ROWS, (H,)),
        "W": (CONST, (X, H)),
        "R": (CONST, (H, H)),
    }
    x, h, W, R = (inside.input(Type(*shape, "float32"), name) for name, shape in shapes.items())
    products = inside.add("add", inside.add("matmul", x, W), inside.add("matmul", h, R))
    after = inside.add("tanh", products)
    return Recur(inside.net([h, after, after]), 1, 1, reverse=twice)


def parts(begin: Callable[[Builder, int, int], int] | None = None, reverse: bool = False) -> Parts:
    """The recurrence, with an initial memory that is given, or made of h0 and R."""
    builder = Builder()
    shapes: dict[str, tuple[Extent, tuple[int, ...]]] = {
        "x": (STEPS, (X,)),
        "h0": (ROWS, (H,)),
        "s": (ROWS, (H,)),
        "W": (CONST, (X, H)),
        "R": (CONST, (H, H)),
        "V": (CONST, (H, 2)),
    }
    x, h0, s, W, R, V = (builder.input(Type(*shape, "float32"), name) for name, shape in shapes.items())
    memory = h0 if begin is None else begin(builder, h0, R)
    outputs, final = body(reverse).add_results(builder, [x, memory, W, R])
    return Parts(builder, x, h0, s, W, R, V, outputs, final[0])


def expanded(builder: Builder, value: Any, extent: Extent = ROWS) -> int:
    return builder.add("expand", builder.constant(np.asarray(value, np.float32)), extent=extent)


# ---- the nets ----------------------------------------------------------------------------------------------


def gradients(p: Parts) -> list[int]:
    """The results of the gradient of a weight, with the outputs as cotangents."""
    before, after = p.outputs
    bias = p.add("reduce", p.add("reduce", after, how="sum"), how="sum")
    return [after, p.add("contract", p.x, after), p.add("contract", before, after), bias, p.last]


def totals_alone(p: Parts) -> list[int]:
    contract = p.add("contract", p.outputs[1], p.x)
    return [p.add("multiply", contract, p.builder.constant(np.float32(0.25)))]


def of_inputs(p: Parts) -> list[int]:
    """Totals of what is known before the loop, and of what each row has."""
    products = p.add("matmul", p.x, p.W)
    return [p.add("contract", p.x, products), p.add("contract", p.s, p.h0), p.last, products]


def of_the_last_memory(p: Parts) -> list[int]:
    scores = p.add("add", p.add("matmul", p.last, p.V), p.add("matmul", p.s, p.V))
    return [p.add("exp", scores), p.add("contract", scores, p.last), p.outputs[1]]


def of_each_sequence(p: Parts) -> list[int]:
    """Sums of outer products over the steps of each sequence, and values that are computed from them."""
    before, after = p.outputs
    own = p.add("contract", before, after, extent=ROWS)
    pairs = [p.add("reshape", one, rank=1, shape=(H, 1)) for one in p.outputs]
    lead = p.add("contract", *pairs, extent=ROWS)
    made = [p.add("tanh", own), p.add("transpose", own, order=(1, 0)), p.add("reduce", after, how="sum")]
    return [own, p.last, own, lead, *made, p.add("contract", p.x, after, extent=ROWS)]


def twice_and_views(p: Parts) -> list[int]:
    flipped = p.add("reshape", p.last, rank=1, shape=(H, 1))
    return [p.last, p.last, flipped, p.h0, p.s, p.W, p.add("tanh", p.s)]


def reduced(p: Parts) -> list[int]:
    after = p.outputs[1]
    made = [p.add("reduce", after, how=how) for how in ("sum", "mean", "max", "first", "last")]
    squares = p.add("multiply", p.add("tanh", after), after)
    own = p.add("matmul", p.add("reduce", squares, how="sum"), p.V)
    total = [p.add("reduce", own, how=how) for how in ("mean", "max", "first", "last")]
    return [*made, own, *total, p.add("reduce", p.x, how="max")]


def of_constants(p: Parts) -> list[int]:
    """The values that each row and each step take from a constant, and totals of these."""
    rows = expanded(p.builder, np.arange(3.0))
    steps = expanded(p.builder, np.ones(2), STEPS)
    return [rows, steps, p.add("contract", steps, p.outputs[1]), p.add("contract", rows, p.last)]


def known_once(p: Parts) -> list[int]:
    return [p.add("tanh", p.V), p.last, p.add("contract", p.outputs[0], p.x)]


NETS = (
    gradients,
    totals_alone,
    of_inputs,
    of_the_last_memory,
    of_each_sequence,
    twice_and_views,
    reduced,
    of_constants,
    known_once,
)


def zeros(builder: Builder, h0: int, R: int) -> int:
    return expanded(builder, np.zeros(H))


def a_constant(builder: Builder, h0: int, R: int) -> int:
    return expanded(builder, [0.5, -0.5, 0.25, 0, 1])


def negative_zeros(builder: Builder, h0: int, R: int) -> int:
    return expanded(builder, [-0.0] * H)


def a_product(builder: Builder, h0: int, R: int) -> int:
    return builder.add("tanh", builder.add("matmul", h0, R))


def a_view(builder: Builder, h0: int, R: int) -> int:
    return builder.add("slice", h0, slices=((H - 1, -1, -1),))


def a_parameter(builder: Builder, h0: int, R: int) -> int:
    row = builder.add("slice", R, slices=((0, 1, 1), (0, H, 1)))
    return builder.add("expand", builder.add("reshape", row, rank=2, shape=(H,)), extent=ROWS)


BEGINNINGS = (None, zeros, a_constant, negative_zeros, a_product, a_view, a_parameter)


# ---- running them ------------------------------------------------------------------------------------------


PARAMETERS = [uniform(*shape, seed=place) for place, shape in enumerate([(X, H), (H, H), (H, 2)])]


def call_of(net: Net, lengths: Sequence[int], gap: int = 0, **options: Any) -> Call:
    """A call of sequences that lie `gap` steps apart; the first memories are zeros that are not given."""
    lengths_ = np.array(lengths, np.int64)
    starts = offsets_of(lengths_ + gap)[:-1]
    total = int(np.sum(lengths_ + gap))
    h0, s = uniform(len(lengths), H, seed=7), uniform(len(lengths), H, seed=8)
    xs = np.full((total, X), np.nan, np.float32)
    for place, (start, length) in enumerate(zip(starts, lengths_, strict=True)):
        xs[start : start + length] = uniform(length, X, seed=100 + place)
    begins = {number for node in net.nodes if node.operation == "recur" for number in node.inputs[1:2]}
    ends: dict[str, Any] = {"initial": [h0], "statics": [s]}
    if net.inputs[1] not in begins:
        ends = {"initial": [], "statics": [h0, s]}
    return Call(Positions(starts, np.asarray(lengths_), total), [xs], **ends, **options)


def right(net: Net, call: Call) -> Results:
    """The right results: in float64 throughout."""
    changed = {
        name: [None if array is None else wide(array) for array in getattr(call, name)]
        for name in ("sequences", "initial", "statics")
    }
    parameters = tuple(wide(array) for array in PARAMETERS)
    return interpreted(widened(net), parameters, replace(call, **changed))


def assert_right(found: Results, expected: Results, call: Call) -> None:
    long, most = int(call.positions.lengths.sum()), int(call.positions.lengths.max(initial=1))
    for kind, length in (("outputs", most), ("final", most), ("totals", long)):
        pairs = zip(getattr(found, kind), getattr(expected, kind), strict=True)
        for actual, one in pairs:
            assert actual.dtype == np.float32
            assert_close(actual, one, length, H)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("begin", BEGINNINGS, ids=lambda begin: getattr(begin, "__name__", "given"))
@pytest.mark.parametrize("make", NETS, ids=lambda make: make.__name__)
def test_a_plan_gives_what_is_right(make: Callable[[Parts], list[int]], begin: Any) -> None:
    p = parts(begin, reverse=begin is a_product)
    net = p.builder.net(make(p))
    bound = LlvmEngine().compile_plan(plan(net)).bind(PARAMETERS)
    for gap, last_only in ((0, False), (2, False), (0, True)):
        call = call_of(net, LENGTHS, gap, last_only=last_only)
        assert_right(bound(call), right(net, call), call)
    nothing = call_of(net, [])
    assert_right(bound(nothing), right(net, nothing), nothing)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("make", NETS, ids=lambda make: make.__name__)
def test_the_bits_are_those_of_any_batch_and_any_number_of_threads(
    make: Callable[[Parts], list[int]],
) -> None:
    p = parts(a_product)
    net = p.builder.net(make(p))
    bound = LlvmEngine().compile_plan(plan(net)).bind(PARAMETERS)
    call = call_of(net, LENGTHS * 6)
    found = bound(call)
    with threads(2):
        other = bound(call)
    for one, two in zip(found.arrays, other.arrays, strict=True):
        np.testing.assert_array_equal(one, two, strict=True)
    for place, (start, length) in enumerate(zip(call.positions.starts, call.positions.lengths, strict=True)):
        alone = replace(
            call,
            sequences=[call.sequences[0][start : start + length]],
            positions=Positions.end_to_end(np.array([0, length])),
            statics=[array[place : place + 1] for array in call.statics],
        )
        single = bound(alone)
        for whole, own in zip(found.outputs, single.outputs, strict=True):
            np.testing.assert_array_equal(whole[start : start + length], own)
        for whole, own in zip(found.final, single.final, strict=True):
            np.testing.assert_array_equal(whole[place : place + 1], own)


def time_major(call: Call) -> Call:
    """The same call, its steps those of an array [time, batch, features] with NaN in the gaps."""
    count, lengths = call.positions.rows, call.positions.lengths
    time = int(lengths.max())
    steps = np.arange(time, dtype=np.int64) * count
    there = Positions(np.arange(count, dtype=np.int64), lengths, count * time, steps)
    x = np.full((there.total, X), np.nan, np.float32)
    x[there.all_step_indices] = call.sequences[0]
    return replace(call, positions=there, sequences=[x])


@pytest.mark.long(every=2)
@pytest.mark.parametrize("make", NETS, ids=lambda make: make.__name__)
def test_the_bits_are_the_same_where_steps_lie_time_major(make: Callable[[Parts], list[int]]) -> None:
    p = parts(a_product)
    net = p.builder.net(make(p))
    bound = LlvmEngine().compile_plan(plan(net)).bind(PARAMETERS)
    call = call_of(net, LENGTHS)
    there = time_major(call)
    results, expected = bound(there), bound(call)
    outputs = [output[there.positions.all_step_indices] for output in results.outputs]
    pairs = zip([*outputs, *results.final, *results.totals], expected.arrays, strict=True)
    for actual, right_bits in pairs:
        np.testing.assert_array_equal(actual, right_bits, strict=True)


def test_initial_memories_that_are_not_given_are_zeros() -> None:
    p = parts()
    net = p.builder.net([p.last, p.add("contract", p.h0, p.last), p.add("matmul", p.h0, p.V)])
    bound = LlvmEngine().compile_plan(plan(net)).bind(PARAMETERS)
    call = replace(call_of(net, LENGTHS), initial=[None])
    assert_right(bound(call), right(net, call), call)


def test_a_call_that_is_run_again_reads_what_its_arrays_hold() -> None:
    p = parts(a_product)
    net = p.builder.net([*gradients(p), *of_the_last_memory(p)])
    bound = LlvmEngine().compile_plan(plan(net)).bind(PARAMETERS)
    call = call_of(net, LENGTHS)
    into = bound(call)
    for array in into.arrays:
        array[...] = np.nan
    again = bound.again(call, into)
    for seed in (3, 4):
        call.sequences[0][...] = uniform(*call.sequences[0].shape, seed=seed)
        call.statics[0][...] = uniform(*call.statics[0].shape, seed=seed)
        again()
        assert_right(into, right(net, call), call)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("engine", ["llvm", "interpret"])
@pytest.mark.parametrize("make", NETS, ids=lambda make: make.__name__)
def test_a_schedule_gives_what_is_right(make: Callable[[Parts], list[int]], engine: str) -> None:
    p = parts(a_product)
    net = p.builder.net(make(p))
    call = call_of(net, LENGTHS)
    for made in (schedule(net), Schedule(net, CPU, lift(net))):
        bound = engine_named(engine).compile(made).bind(PARAMETERS)
        assert_right(bound(call), right(net, call), call)


# ---- what is planned ---------------------------------------------------------------------------------------


def operations(net: Net) -> list[str]:
    return [node.operation for node in net.nodes if node.operation not in ("input", "constant", "result")]


def test_what_nobody_wants_is_not_computed() -> None:
    p = parts()
    last = plan(p.builder.net([p.last]))
    assert last.recurrence.recur.outputs == []
    assert (last.before, last.after) == (plan(p.builder.net([p.last, p.outputs[1]])).before, ())
    p = parts()
    of_outputs = plan(p.builder.net([p.add("reduce", p.last, how="sum")]))
    assert of_outputs.recurrence.recur.outputs == []
    assert [of_outputs.net.nodes[n].operation for n in of_outputs.total] == ["reduce"]


def test_a_memory_that_only_remembers_itself_goes() -> None:
    inside = Builder()
    x, h, c = (inside.input(Type(ROWS, (2,), "float32"), name) for name in "xhc")
    h2, c2 = inside.add("add", x, h), inside.add("add", inside.add("multiply", c, h), x)
    recur = Recur(inside.net([h2, c2]), 1, 2)
    builder = Builder()
    seq = builder.input(Type(STEPS, (2,), "float32"), "x")
    first = [builder.input(Type(ROWS, (2,), "float32"), name) for name in "hc"]
    _, (h_last, c_last) = recur.add_results(builder, [seq, *first])
    assert plan(builder.net([h_last])).recurrence.recur.memory_count == 1
    assert plan(builder.net([c_last])).recurrence.recur.memory_count == 2


def test_a_plan_goes_over_the_steps_once() -> None:
    p = parts()
    mean = p.add("expand", p.add("reduce", p.outputs[1], how="mean"), extent=STEPS)
    with pytest.raises(NetError, match="known only after all steps: a plan goes over the steps once"):
        plan(p.builder.net([p.add("subtract", p.outputs[1], mean)]))
    p = parts()
    product = p.add("matmul", p.x, p.add("contract", p.x, p.outputs[1]))
    with pytest.raises(NetError, match=r"matmul reads %\d+, const f32\[3, 5\], known only after"):
        plan(p.builder.net([product]))


def test_a_body_mixes_no_rows() -> None:
    inside = Builder()
    x, h = (inside.input(Type(ROWS, (2,), "float32"), name) for name in "xh")
    outer = Builder()
    operands = [outer.input(Type(STEPS, (2,), "float32"), "x"), outer.input(Type(ROWS, (2,), "float32"), "h")]
    mean = inside.add("reduce", x, how="mean")
    with pytest.raises(NetError, match="a reduce to const sums over all rows, which a body may not do"):
        Recur(inside.net([inside.add("add", h, mean)]), 1, 1).add(outer, operands)
    with pytest.raises(NetError, match=r"an output of a body is const f32\[2\], a constant for all rows"):
        Recur(inside.net([inside.constant(np.ones(2, np.float32)), h]), 1, 1).add(outer, operands)


# ---- random nets -------------------------------------------------------------------------------------------


@st.composite
def random_nets(draw: st.DrawFn) -> Net:
    """A recurrence, and what is made of all there is around it, some of which is asked for."""
    p = parts(draw(st.sampled_from(BEGINNINGS)))
    values = [p.x, p.h0, p.s, p.last, *p.outputs]
    behind = {p.last}
    for _ in range(draw(st.integers(1, 8))):
        one = draw(st.sampled_from(values))
        type_ = p.builder.type_of(one)
        same = [other for other in values if p.builder.type_of(other) == type_]
        kinds = ["tanh", "add"]
        kinds += ["matmul"] if type_.extent != CONST and type_.shape in ((X,), (H,)) else []
        kinds += ["contract", "contract", "reduce"] if type_.extent != CONST else []
        kinds += ["expand"] if type_.extent == ROWS and one not in behind else []
        match draw(st.sampled_from(kinds)):
            case "tanh":
                made = p.add("tanh", one)
            case "add":
                made = p.add("tanh", p.add("add", one, draw(st.sampled_from(same))))
            case "matmul":
                weight = p.W if type_.shape == (X,) else draw(st.sampled_from([p.R, p.V]))
                made = p.add("tanh", p.add("matmul", one, weight))
            case "contract":
                fits = [other for other in values if p.builder.type_of(other).extent == type_.extent]
                made = p.add("contract", one, draw(st.sampled_from(fits)))
            case "reduce":
                how = draw(st.sampled_from(["sum", "mean", "max", "first", "last"]))
                made = p.add("reduce", p.add("tanh", one) if how == "max" else one, how=how)
            case _:
                made = p.add("expand", one, extent=STEPS)
        values.append(made)
        read = p.builder.nodes[made].inputs
        late = p.builder.nodes[made].operation == "reduce" or any(made_of(p, n) & behind for n in read)
        behind |= {made} if late else set()
    return p.builder.net(draw(st.lists(st.sampled_from(values), min_size=1, max_size=4)))


def made_of(p: Parts, number: int) -> set[int]:
    return ancestors(p.builder.nodes, [number])


@pytest.mark.long(examples=5)
@settings(max_examples=15)
@given(random_nets())
def test_random_nets_give_what_is_right(net: Net) -> None:
    assume(any(node.operation == "recur" for node in net.nodes))
    call = call_of(net, LENGTHS)
    expected = right(net, call)
    bound = LlvmEngine().compile_plan(plan(net)).bind(PARAMETERS)
    found = bound(call)
    for kind in ("outputs", "final", "totals"):
        for actual, one in zip(getattr(found, kind), getattr(expected, kind), strict=True):
            assert_close(actual, one, 16 * int(call.positions.lengths.sum()), H)
    with threads(2):
        other = bound(call)
    for one, two in zip(found.arrays, other.arrays, strict=True):
        np.testing.assert_array_equal(one, two, strict=True)
