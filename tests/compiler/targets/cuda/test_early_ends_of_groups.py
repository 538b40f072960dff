"""Sequences that a flag ends in loops of groups of blocks and on tensor cores: blocks leave together."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from bench.gpu.cells import FEATURES, ending
from bench.gpu.forced import LoopMaker, by_block, by_groups, by_schedule, forced
from bench.gpu.place import EMULATED, Place
from stepnet.compiler.plan import Plan
from stepnet.compiler.targets import engine_named
from stepnet.compiler.targets.cuda import CudaKernel, assembled, ptxas

Array = np.ndarray
PLACE = Place(EMULATED)
WIDTH = 32
LENGTHS = 7, 0, 12, 1, 5, 12, 3, 9, 4, 10
FLAG = 2
"""The position of the flag among the memories."""
NEVER = 1e9
LEFT = {
    "at different steps": [1.0, 0.4, NEVER, 0.5, 0.0, 1.5, 0.7, NEVER, 0.2, 2.0],
    "at the first step": [0.0] * 10,
    "never": [NEVER] * 10,
}
"""The memory "left" at first: a sequence ends when it is used up."""
TENSOR = (
    *("block1", "plain2.ahead2", "block1.parts8", "grid2.ahead2", "tagged2.parts2", "cluster2.ahead2"),
    "grid2.parts2.rows16.places0",
)


def maker(name: str) -> LoopMaker:
    """Returns what makes a loop by its name, of which one group of sequences runs at a time."""
    make = {"groups": by_groups, "block": by_block}.get(name) or by_schedule(name)
    return lambda plan, facts, flag: replace(make(plan, facts, flag), groups=1)


def sequences() -> sn.Ragged:
    random = np.random.default_rng(1)
    return sn.Ragged.from_list([random.normal(size=(n, FEATURES)).astype("f4") for n in LENGTHS])


def begun(left: list[float], width: int = WIDTH) -> dict[str, Array]:
    """The memories before the first step."""
    h = np.random.default_rng(2).normal(size=(len(left), width))
    return {"h": h.astype("f4"), "left": np.array(left, "f4")}


def listed(made: Any) -> list[Array]:
    """The lengths, the outputs and the final memories that a call returns."""
    outputs, final = made
    return [outputs.lengths, outputs.values, *final.values()]


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", [*TENSOR, "groups", "block"])
def test_all_blocks_leave_when_all_sequences_have_ended(
    name: str, shuffle_threads: Callable[[int], None]
) -> None:
    rnn, make, x, ours = ending(WIDTH), maker(name), sequences(), list[Array]()
    for left in LEFT.values():
        ours = listed(forced(rnn, PLACE, make, x, begun(left), None))
        lengths, *exact = listed(rnn(x, begun(left), engine="interpret"))
        np.testing.assert_array_equal(ours[0], lengths)
        for a, b in zip(ours[1:], exact, strict=True):
            assert_close(a, b, max(LENGTHS), 2 * WIDTH)
    shuffle_threads(3)
    again = listed(forced(rnn, PLACE, make, x, begun(LEFT["never"]), None))
    for a, b in zip(again, ours, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [len(each) for each in listed(forced(rnn, PLACE, make, x[:0], begun([]), None))] == [0] * 4


@pytest.mark.parametrize("name", ["tagged2.parts2", "groups"])
def test_the_loop_is_left_early(name: str) -> None:
    rnn, x = ending(WIDTH), np.ones((1, 1000, FEATURES), "f4")

    def seconds(left: float) -> float:
        """The processor time of a call."""
        begun_at = time.process_time()
        forced(rnn, PLACE, maker(name), x, begun([left]), None)
        return time.process_time() - begun_at

    seconds(0.0)
    assert seconds(0.0) < 0.5 * seconds(NEVER)


@pytest.mark.parametrize("last_only", [False, True])
def test_work_after_the_loop_runs_on_the_steps_that_were_taken(last_only: bool, done: list[str]) -> None:
    padded, left = sequences().to_padded()[0], LEFT["at different steps"]
    for reverse in (False, True):
        rnn = ending(WIDTH, projected=True, reverse=reverse)
        arguments = padded, begun(left)
        done.clear()
        ours = forced(rnn, PLACE, maker("tagged2.parts2"), *arguments, LENGTHS, last_only)[0]
        theirs = rnn(*arguments, lengths=LENGTHS, last_only=last_only, engine="interpret")[0]
        stages = [int(each.split()[1]) for each in done if each.startswith("stage")]
        if not last_only:
            np.testing.assert_array_equal(ours.lengths, theirs.lengths)
            assert stages == [padded.shape[0] * padded.shape[1], len(ours.values)]
            ours, theirs = ours.values, theirs.values
        assert len(stages) == 2
        assert_close(ours, theirs, max(LENGTHS), 2 * WIDTH)


def running_plan(rnn: sn.RNN) -> Plan:
    """The plan of the step that a flag ends."""
    reading = rnn.read(np.ones((1, 3, FEATURES), "f4"), None, None, None)
    (plan,) = reading.running.schedule_for(EMULATED).plans
    return plan


@pytest.mark.parametrize("numbers", ["float32", "tf32", "bfloat16"])
def test_the_loop_is_chosen_by_the_engines_options(numbers: str) -> None:
    engine: Any = engine_named(EMULATED if numbers == "float32" else f"{EMULATED}:{numbers}")
    kernel = CudaKernel(running_plan(ending(256)), engine.memory, engine.options)
    chosen = kernel.loop(1, FLAG)
    assert numbers in chosen.reason
    assert "tensor cores" in chosen.loop.schedule
    assert chosen.loop.code != kernel.loop(1).loop.code


def test_a_sequence_has_the_same_bits_alone() -> None:
    rnn, given, engine = ending(64), begun(LEFT["at different steps"], 64), f"{EMULATED}:batch-invariant"
    outputs, _ = rnn(sequences(), given, engine=engine)
    for row in (0, 2, 6):
        first = {name: array[row : row + 1] for name, array in given.items()}
        alone, _ = rnn(sequences()[row : row + 1], first, engine=engine)
        np.testing.assert_array_equal(alone[0], outputs[row])


@pytest.mark.skipif(ptxas() is None, reason="ptxas, of NVIDIA's CUDA toolkit, is not installed")
@pytest.mark.parametrize("name", ["tagged2.parts2", "groups", "block"])
def test_the_assembler_takes_the_kernels(name: str) -> None:
    loop = maker(name)(running_plan(ending(WIDTH)), PLACE.device.facts, FLAG).loop
    report = assembled(loop.code, (9, 0))
    assert report.spilled == report.stack == 0


@pytest.mark.parametrize("reverse", [False, True])
def test_what_follows_the_loop_reads_inputs(reverse: bool, done: list[str]) -> None:
    random, units = np.random.default_rng(3), 8
    shapes = {"W": (FEATURES, units), "R": (units, units), "V": (units, 4)}
    weights = {name: 0.4 * random.normal(size=shape).astype("f4") for name, shape in shapes.items()}

    def step(x: Any, memory: Any, p: Any) -> Any:
        """A step whose output reads its input and the units."""
        h = np.tanh(x @ p["W"] + memory["h"] @ p["R"])
        y = h @ p["V"] + x[:, :4]
        return y, {"h": h, "left": memory["left"] - (h * h).sum(axis=-1) / units}

    memory = {"h": units, "left": ()}
    rnn = sn.RNN(step, weights, memory=memory, reverse=reverse, until=lambda y, memory: memory["left"] < 0)
    x, given = sequences().to_padded()[0].swapaxes(0, 1), begun(LEFT["at different steps"], units)
    ours, theirs = (
        listed(rnn(np.ascontiguousarray(x), given, lengths=LENGTHS, time_major=True, engine=engine))
        for engine in (EMULATED, "interpret")
    )
    assert done.index("loop") < max(place for place, each in enumerate(done) if each.startswith("stage"))
    np.testing.assert_array_equal(ours[0], theirs[0])
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        assert_close(a, b, max(LENGTHS), 2 * units)
