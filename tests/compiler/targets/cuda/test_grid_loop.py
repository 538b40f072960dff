"""Loops that the blocks of a group share, on the emulation of a GPU: right, with the bits of one block."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from constants import Constants
from tolerance import assert_close
from zoo import uniform

import stepnet as sn
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cuda import (
    ChosenLoop,
    DeviceFacts,
    EmulatedDevice,
    assembled,
    grid_code,
    grid_form,
    loop_code,
    ptxas,
)
from stepnet.compiler.targets.cuda import kernel as kernel_module
from stepnet.compiler.targets.cuda.loops.others import other_loop
from stepnet.compiler.values import leaves, transform
from stepnet.errors import DeviceError

Array = np.ndarray
LENGTHS = 3, 0, 5, 1, 2
UNITS = 10


def gru(x: Any, h: Any, p: Any) -> Any:
    """Three products of one memory, whose results only the units themselves read."""
    a = h @ p["R"]
    r, z = sn.sigmoid(x + a[:, :UNITS]), sn.sigmoid(x - a[:, UNITS : 2 * UNITS])
    h = z * h + (1 - z) * np.tanh(x + r * a[:, 2 * UNITS :])
    return h, h


def normed(x: Any, h: Any, p: Any) -> Any:
    """Means over units of all blocks, and an output that every block computes."""
    h = np.tanh(sn.layer_norm(x + h @ p["S"], epsilon=0.1) + h)
    return (sn.softmax(h), h.sum(axis=-1)), h


def matrix(x: Any, m: Any, p: Any) -> Any:
    """A matrix memory, a memory that is no multiple of the units, and one that stays."""
    h, S = m["h"], m["S"]
    read = (S * h[:, :, None]).sum(axis=1)
    S = 0.9 * S + x[:, :, None] * np.tanh(read)[:, None, :]
    h = np.tanh(x + h @ p["S"] + read) * (1 - m["stays"])
    return h, {"h": h, "S": S, "n": m["n"] * 0.5 + h[:, :3], "stays": m["stays"]}


def several(x: Any, m: Any, p: Any) -> Any:
    """Memories that move to each other, and a product of a value of the step."""
    h, c, n, top = m
    g = x + h @ p["S"]
    after = np.maximum(g + top, c)
    i = np.exp(g - after)
    c, n = i * np.tanh(np.concatenate([g, g * c], axis=-1) @ p["T"]), n + i
    return c / (1 + n), [c / (1 + abs(n)), n, h, after]


def folded(x: Any, m: Any, p: Any) -> Any:
    """A sum over units, which blocks divide, of what a product made in the same step."""
    g = np.tanh(x + m["g"] @ p["S"])
    read = (m["S"] * g[:, :, None]).sum(axis=1)
    S = 0.5 * m["S"] + x[:, :, None] * x[:, None, :] * 0.1
    return read, {"g": np.tanh(g + read), "S": S}


def spoken(x: Any, h: Any, p: Any) -> Any:
    """The highest of many scores, of no multiple of the units, and its first place, which a memory has."""
    h = np.tanh(x + h @ p["S"])
    scores = h @ p["V"]
    best = np.argmax(scores, axis=-1)
    h = h * (1 + (best % 7)[:, None].astype(np.float32) / 8)
    return (np.max(scores, axis=-1), best), h


STEPS: dict[str, tuple[Callable[..., Any], Any]] = {
    "gru": (gru, UNITS),
    "normed": (normed, UNITS),
    "matrix": (matrix, {"h": UNITS, "S": (UNITS, UNITS), "n": 3, "stays": UNITS}),
    "several": (several, [UNITS] * 4),
    "folded": (folded, {"g": UNITS, "S": (UNITS, UNITS)}),
    "spoken": (spoken, UNITS),
}
PARAMS = {
    "R": uniform(UNITS, 3 * UNITS, seed=2, scale=0.4),
    "S": uniform(UNITS, UNITS, seed=3, scale=0.4),
    "T": uniform(2 * UNITS, UNITS, seed=4, scale=0.4),
    "V": np.tile(uniform(UNITS, 1027, seed=5), 2),
}


def recurrence(name: str, dtype: str = "float32") -> sn.RNN:
    """A recurrence of some units."""
    step, memory = STEPS[name]
    return sn.RNN(step, transform(lambda a: a.astype(dtype), PARAMS), memory=memory)


def arguments(name: str, dtype: str = "float32", lengths: tuple[int, ...] = LENGTHS) -> list[Any]:
    """Sequences for a recurrence, and its memories at first."""
    x = uniform(sum(LENGTHS), UNITS, seed=1).astype(dtype)[: sum(lengths)]
    return [sn.Ragged(x, (np.cumsum([0, *lengths], dtype=np.int64),))]


def results(
    rnn: sn.RNN, name: str, dtype: str, engine: str, lengths: tuple[int, ...] = LENGTHS
) -> list[Array]:
    """The outputs and the last memories of a call."""
    made = rnn(*arguments(name, dtype, lengths), engine=engine)
    return [getattr(leaf, "values", leaf) for leaf in leaves(made)]


def loops_by(monkeypatch: pytest.MonkeyPatch, loop_of: Callable[..., ChosenLoop]) -> None:
    """Makes the emulation run the loops that a function gives."""
    monkeypatch.setattr(kernel_module, "loop_of", loop_of)


def shared_by(
    monkeypatch: pytest.MonkeyPatch,
    own: int,
    rows: int = 2,
    shared: int = 232448,
    numbers: Any = None,
    threads: int = 32,
) -> list[Any]:
    """Makes the emulation run loops by groups of blocks; returns the list of their forms."""
    forms = list[Any]()

    def loop_of(plan: Plan, count: int, facts: DeviceFacts, *_: Any) -> ChosenLoop:
        """The loop for a group of blocks."""
        form = grid_form(plan, rows, replace(facts, shared=shared), threads, own, numbers=numbers)
        assert form is not None
        forms.append(form)
        return ChosenLoop(grid_code(form), 1, "forced")

    loops_by(monkeypatch, loop_of)
    return forms


def by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the emulation run loops by single blocks."""
    loops_by(monkeypatch, lambda plan, *_: ChosenLoop(loop_code(plan, 4, 64), 0, "forced"))


@pytest.fixture(autouse=True)
def blocks_divide_small_reductions(constants: Constants) -> None:
    """Blocks divide reductions that no block would be long at."""
    constants("stepnet.compiler.targets.cuda.grid.share", MANY=50)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_right_and_has_the_bits_of_one_block(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    right = results(recurrence(name, "float64"), name, "float64", "interpret")
    by_blocks(monkeypatch)
    alone = results(recurrence(name), name, "float32", "cuda-emulated")
    for own, rows in ((4, 2), (5, 8)):
        forms = shared_by(monkeypatch, own, rows)
        ours = results(recurrence(name), name, "float32", "cuda-emulated")
        assert forms[0].share.blocks == -(-UNITS // own)
        for a, b, c in zip(ours, right, alone, strict=True):
            assert_close(a, b, max(LENGTHS), 70)
            np.testing.assert_array_equal(a, c)


@pytest.mark.parametrize("name", STEPS)
def test_products_on_tensor_cores_are_right_and_have_the_same_bits_in_any_group(
    monkeypatch: pytest.MonkeyPatch, shuffle_threads: Callable[[int], None], name: str
) -> None:
    right, found = results(recurrence(name, "float64"), name, "float64", "interpret"), list[Any]()
    for own, rows, threads in ((4, 2, 32), (5, 8, 64)):
        forms = shared_by(monkeypatch, own, rows, numbers="float32", threads=threads)
        found.append(results(recurrence(name), name, "float32", "cuda-emulated"))
        shuffle_threads(own)
    kept = forms[0].placed[1]
    sums = max(each.streamed.sums_bytes for each in kept.tiles.values())
    shared_by(monkeypatch, 5, 8, min(kept.weights.values()) + sums, "float32", 64)
    found.append(results(recurrence(name), name, "float32", "cuda-emulated"))
    for first, second, read_at_each_step, c in zip(*found, right, strict=True):
        assert_close(first, c, max(LENGTHS), 70)
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(first, read_at_each_step)


@pytest.mark.parametrize(("numbers", "off"), [("float32", 0.0), ("tf32", 2e-3), ("bfloat16", 2e-2)])
def test_long_sums_on_tensor_cores_are_added_up_in_parts(
    monkeypatch: pytest.MonkeyPatch, numbers: Any, off: float
) -> None:
    units, x = 72, uniform(3, 4, 72, seed=1)
    weights = uniform(units, units, seed=3, scale=0.2)

    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(x + h @ p)
        return h, h

    right, _ = sn.RNN(step, weights.astype("f8"), memory=units)(x.astype("f8"), engine="interpret")
    found = list[Array]()
    for own, rows in ((24, 4), (16, 1)):
        forms = shared_by(monkeypatch, own, rows, numbers=numbers, threads=64)
        found.append(sn.RNN(step, weights, memory=units)(x, engine="cuda-emulated")[0])
        (tiles,) = forms[0].placed[1].tiles.values()
        assert tiles.parts == 4
        assert not tiles.is_whole(units)
    np.testing.assert_array_equal(found[0], found[1])
    if off:
        assert off / 50 < np.abs(found[0] - right).max() < off
    else:
        assert_close(found[0], right, 4, units)


def test_reductions_by_warps_have_the_bits_of_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    units = 40
    rnn = sn.RNN(normed, {"S": uniform(units, units, seed=3, scale=0.2)}, memory=units)
    x = uniform(3, 4, units, seed=1)
    by_blocks(monkeypatch)
    alone = leaves(rnn(x, engine="cuda-emulated"))
    forms = shared_by(monkeypatch, 20, rows=4)
    ours = leaves(sn.RNN(normed, rnn.params, memory=units)(x, engine="cuda-emulated"))
    assert forms[0].statements.uses_warps
    assert forms[0].threads == 128
    for a, b in zip(ours, alone, strict=True):
        np.testing.assert_array_equal(a, b)


def test_steps_with_few_columns_are_not_divided() -> None:
    params = {"S": np.zeros((64, 64), "f4"), "T": np.zeros((64, 8), "f4"), "U": np.zeros((8, 64), "f4")}
    for narrow, divided in ((True, False), (False, True)):

        def step(x: Any, h: Any, p: Any, narrow: bool = narrow) -> Any:
            """A product of few columns, which warps add up, or none."""
            h = np.tanh(x + h @ p["S"] + (np.tanh(h @ p["T"]) @ p["U"] if narrow else 0))
            return h, h

        rnn = sn.RNN(step, params, memory=64, inputs=64)
        (plan,) = rnn.program.schedule_for("cuda-emulated").plans
        assert (grid_form(plan, 2, EmulatedDevice().facts) is not None) == divided


@pytest.mark.parametrize("seed", [1, 2])
def test_results_do_not_depend_on_the_order_of_threads(
    monkeypatch: pytest.MonkeyPatch, shuffle_threads: Callable[[int], None], seed: int
) -> None:
    shared_by(monkeypatch, 4)
    right = results(recurrence("normed"), "normed", "float32", "cuda-emulated")
    shuffle_threads(seed)
    ours = results(recurrence("normed"), "normed", "float32", "cuda-emulated")
    for a, b in zip(ours, right, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("views")
@pytest.mark.parametrize("name", STEPS)
def test_blocks_read_what_others_have_released(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    right = results(recurrence(name, "float64"), name, "float64", "interpret")
    for numbers in (None, "float32"):
        shared_by(monkeypatch, 4, numbers=numbers)
        ours = results(recurrence(name), name, "float32", "cuda-emulated")
        for a, b in zip(ours, right, strict=True):
            assert_close(a, b, max(LENGTHS), 70)


def test_a_sequence_alone_has_the_bits_it_has_in_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_by(monkeypatch, 4, rows=4)
    together = results(recurrence("gru"), "gru", "float32", "cuda-emulated")
    shared_by(monkeypatch, 4, rows=1)
    alone = results(recurrence("gru"), "gru", "float32", "cuda-emulated", LENGTHS[:1])
    np.testing.assert_array_equal(alone[0], together[0][: LENGTHS[0]])


def test_weights_that_do_not_fit_are_read_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    forms = shared_by(monkeypatch, 4)
    right = results(recurrence("gru"), "gru", "float32", "cuda-emulated")
    kept = forms[0].placed[1].weights
    assert kept
    forms = shared_by(monkeypatch, 4, shared=min(kept.values()))
    ours = results(recurrence("gru"), "gru", "float32", "cuda-emulated")
    assert not forms[0].placed[1].weights
    np.testing.assert_array_equal(ours[0], right[0])


def test_a_missing_block_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_by(monkeypatch, 4)
    launch = EmulatedDevice.launch
    monkeypatch.setattr(
        EmulatedDevice,
        "launch",
        lambda self, code, blocks, words: launch(self, code, blocks - (code.exchange == "grid"), words),
    )
    with pytest.raises(DeviceError, match="deadlock"):
        results(recurrence("gru"), "gru", "float32", "cuda-emulated")


def test_the_gradient_of_an_lstm_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def lstm(x: Any, m: Any, p: Any) -> Any:
        h, c = m
        i, f, z, o = ((x + h @ p[name]) for name in "ifzo")
        c = sn.sigmoid(f) * c + sn.sigmoid(i) * np.tanh(z)
        h = sn.sigmoid(o) * np.tanh(c)
        return h, [h, c]

    params = {name: uniform(8, 8, seed=place, scale=0.4) for place, name in enumerate("ifzo")}
    x = uniform(3, 4, 8, seed=5)
    found = list[list[Array]]()
    forms = shared_by(monkeypatch, 4, rows=4)
    for engine, dtype in (("cuda-emulated", "float32"), ("interpret", "float64")):
        rnn = sn.RNN(lstm, {k: v.astype(dtype) for k, v in params.items()}, memory=[8, 8])
        (y, _), backward = sn.vjp(rnn)(x.astype(dtype), engine=engine)
        gradients = backward(np.ones_like(y), None)
        found.append([*leaves(gradients.params), *leaves(gradients.inputs)])
    assert len(forms) == 2
    for a, b in zip(*found, strict=True):
        assert_close(a, b, 4, 64)


@pytest.mark.skipif(ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
@pytest.mark.parametrize("numbers", [None, "float32"])
def test_the_assembler_takes_the_kernel_without_spills(
    monkeypatch: pytest.MonkeyPatch, numbers: Any, capability: tuple[int, int]
) -> None:
    forms = shared_by(monkeypatch, 4, rows=8, numbers=numbers)
    results(recurrence("spoken"), "spoken", "float32", "cuda-emulated")
    made = assembled(grid_code(replace(forms[0], threads=256)).code, capability)
    assert made.spilled == made.stack == 0


def test_groups_of_blocks_run_steps_with_many_weights_for_few_sequences() -> None:
    facts = EmulatedDevice().facts

    def exchange(units: int, rows: int) -> str:
        """Returns the exchange of values between the blocks of the chosen kernel."""
        step = STEPS["several"][0]
        params = {"S": np.zeros((units, units), "f4"), "T": np.zeros((2 * units, units), "f4")}
        rnn = sn.RNN(step, params, memory=[units] * 4, inputs=units)
        (plan,) = rnn.program.schedule_for("cuda-emulated").plans
        chosen = other_loop(plan, rows, facts, "tested")
        assert chosen.loop.code.group * chosen.groups <= facts.multiprocessors
        return chosen.loop.code.exchange

    assert exchange(512, 1) == exchange(512, 16) == "grid"
    assert exchange(64, 100_000) == exchange(32, 16) == "none"
