"""Layers of a stack as a wavefront: each on a thread, some steps behind the layer that it reads."""

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
from callers import interrupt, on_threads
from constants import Constants
from same_bits import assert_same_bits
from tolerance import assert_close
from zoo import rnn_of, sequences

import stepnet as sn
from stepnet import cells
from stepnet.compiler.plan import CallPartition, Load, Wavefront
from stepnet.compiler.targets.cpu.running import arrangement, prepared_chain
from stepnet.compiler.targets.cpu.threads.workers import WORKER_POOL, Lateness
from stepnet.compiler.targets.part_execution import PartRun
from stepnet.errors import InputError

Array = np.ndarray
Front = Callable[..., Wavefront]
pytestmark = [
    pytest.mark.alone,  # threads that wait for one another, on all processors
    pytest.mark.usefixtures("small_calls_are_shared"),
]


@pytest.fixture(autouse=True)
def no_thread_is_late(same_threads: None) -> Generator[None]:
    """No thread is left out for what was measured in another test."""
    WORKER_POOL.lateness = Lateness()
    yield
    WORKER_POOL.lateness = Lateness()


def layer(inputs: int, hidden: int, seed: int, kind: str = "gru", reverse: bool = False) -> sn.RNN:
    return rnn_of(kind, inputs, hidden, seed=seed, reverse=reverse)


def wide(inputs: int, hidden: int, seed: int) -> sn.RNN:
    """A GRU in float64."""
    return rnn_of("gru", inputs, hidden, seed=seed, dtype="float64")


def skipping() -> sn.Graph:
    """The third layer reads the first one's outputs beside the second one's."""
    layers = [layer(8, 16, 0), layer(16, 24, 1), layer(40, 8, 2)]

    def model(x: Any, _: Any) -> Any:
        first = layers[0](x)[0]
        return layers[2](np.concatenate([layers[1](first)[0], first], axis=-1))[0]

    return sn.Graph(model, inputs=8)


STACKS: dict[str, Any] = {
    # The second layer takes a fraction of the time of the first: it would overtake it.
    "a short one behind a long one": lambda: sn.Stack([layer(8, 128, 0), layer(128, 4, 1)]),
    "four": lambda: sn.Stack([layer(8, 16, 0), layer(16, 24, 1, "lstm"), layer(24, 8, 2), layer(8, 8, 3)]),
    "in reverse": lambda: sn.Stack([layer(8, 16, 0, reverse=True), layer(16, 8, 1, "lstm", reverse=True)]),
    "float64": lambda: sn.Stack([wide(8, 16, 0), wide(16, 16, 1)]),
    "skipping": skipping,
}
LENGTHS = [[1], [7], [33], [200], [5, 1, 9], [40, 3], [17] * 40, [], [*range(1, 70)], [0], [3, 0, 8]]


def inputs() -> list[Any]:
    """Sequences of any lengths, and arrays, which come often enough for frozen calls."""
    ragged = [sequences(lengths, 8, seed=seed) for seed, lengths in enumerate(LENGTHS)]
    shapes = (1, 1, 1, 6, 6, 6)
    return ragged + [np.random.default_rng(n).normal(size=(n, 30, 8)).astype("f4") for n in shapes]


def one_by_one(run: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    """The results with layers one after the other, by one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartRun, "fits", lambda *_: False)
        sn.set_threads(1)
        return [run(value) for value in values]


Force = Callable[[int, int], None]


def forced(block: int, most: int) -> Front:
    """Always a wavefront: as many layers at once as may be."""

    def front(loads: list[Load], *_: Any) -> Wavefront:
        whole, rest = divmod(len(loads), most)
        groups = ((most, block),) * whole + ((rest, block if rest > 1 else 0),) * (rest > 0)
        return Wavefront(groups, (CallPartition("alone", 1, 0.0),) * len(loads), 0.0, 0.0)

    return front


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Force:
    """A function after which all calls run as wavefronts, of some steps a block and at most some layers."""
    return lambda block, most: monkeypatch.setattr(arrangement, "wavefront", forced(block, most))


# ---- results -----------------------------------------------------------------------------------------------


@pytest.mark.long(each=True)
@pytest.mark.parametrize(("count", "block"), [(2, 1), (2, 16), (3, 4)])
@pytest.mark.parametrize("name", STACKS)
def test_a_wavefront_gives_the_bits_of_layers_one_by_one(
    name: str, count: int, block: int, force: Force, tasks_of_waves: list[int]
):
    model, values = STACKS[name](), inputs()
    expected = one_by_one(model, values)
    force(block, count)
    sn.set_threads(count)
    for _ in range(2):
        for value, right in zip(values, expected, strict=True):
            assert_same_bits(model(value), right)
    assert max(tasks_of_waves) > 1


def test_a_wavefront_gives_what_the_interpreter_computes(force: Force):
    layers = [(8, 64, 0, "gru"), (64, 64, 1, "lstm")]
    compiled = sn.Stack([layer(*each) for each in layers])
    params = [cells.CELLS[kind].parameters(i, h, seed=seed) for i, h, seed, kind in layers]
    params = [{name: array.astype("f8") for name, array in each.items()} for each in params]
    right = sn.Stack([cells.rnn(kind, p) for (*_, kind), p in zip(layers, params, strict=True)])
    force(4, 2)
    sn.set_threads(2)
    x = np.random.default_rng(0).normal(size=(2, 50, 8))
    assert_close(compiled(x.astype("f4"))[0], right(x, engine="interpret")[0], 50, 64)


def test_a_wavefront_that_pauses_behind_every_block(force: Force, monkeypatch: pytest.MonkeyPatch):
    """The later layer pauses with the layer that it waits for, goes on with it, and returns how far it is."""
    force(4, 2)
    for name in ("four", "a short one behind a long one"):
        model, values = STACKS[name](), [sequences(lengths, 8) for lengths in ([900], [40, 300, 7])]
        expected = one_by_one(model, values)
        sn.set_threads(2)
        with monkeypatch.context() as patch:
            patch.setattr(prepared_chain, "SLICE", 1e-9)
            for value, right in zip(values, expected, strict=True):
                seen = list[sn.Progress]()
                with sn.progress(seen.append):
                    assert_same_bits(model(value), right)
                steps = [now.steps for now in seen]
                assert len({*steps}) > 10
                assert steps == sorted(steps)
                assert steps[-1] == seen[0].all_steps == len(model.layers) * len(value.values)


def test_a_wavefront_that_no_other_thread_helps_with(force: Force, monkeypatch: pytest.MonkeyPatch):
    """The caller does all layers, each behind the one that it reads."""
    model, values = STACKS["four"](), inputs()
    expected = one_by_one(model, values)
    force(4, 2)
    monkeypatch.setattr(Lateness, "thread_limit", lambda *_: 1)
    sn.set_threads(2)
    WORKER_POOL.lateness.limit_threads(1)
    for value, right in zip(values, expected, strict=True):
        assert_same_bits(model(value), right)


def test_what_ends_a_wavefront_leaves_nothing_behind(force: Force, constants: Constants):
    """The first calls, and those that are prepared for any lengths."""
    model, x = STACKS["four"](), sequences([700], 8)
    (expected,) = one_by_one(model, [x])
    force(4, 2)
    sn.set_threads(2)
    constants(prepared_chain, SLICE=1e-9)
    for ends_at in (1, 2, 5):
        interrupt(ends_at, model, x)
        assert_same_bits(model(x), expected)


def test_wavefronts_of_many_threads_of_python(force: Force):
    model = STACKS["four"]()
    values = [sequences([length], 8, seed=length) for length in range(3, 30)]
    expected = one_by_one(model, values)
    force(2, 2)
    sn.set_threads(2)

    def work(seed: int) -> None:
        for place in np.random.default_rng(seed).integers(0, len(values), 100):
            np.testing.assert_array_equal(model(values[place])[0].values, expected[place][0].values)

    on_threads(5, work)


@pytest.mark.parametrize("wrong", [0, 1])
def test_an_index_outside_a_table_of_a_layer(wrong: int, force: Force):
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = np.tanh(p["E"][x] + h @ p["R"])
        return x, h

    rows = [10, 10]
    rows[wrong] = 3
    params = [{"E": np.ones((count, 64), "f4"), "R": np.zeros((64, 64), "f4")} for count in rows]
    model = sn.Stack([sn.RNN(step, each, memory=64) for each in params])
    force(2, 2)
    sn.set_threads(2)
    for _ in range(5):
        with pytest.raises(InputError, match="an integer is outside the rows"):
            model(np.array([[1, 2, 3, 0, 1, 2, 2]]))
        np.testing.assert_array_equal(model(np.array([[1, 2, 0, 2]]))[0], [[1, 2, 0, 2]])


def test_stacks_of_small_layers_run_as_wavefronts(tasks_of_waves: list[int]):
    """Also where calls are frozen; by one thread one after the other."""
    model, x = sn.Stack([layer(64, 64, 0), layer(64, 64, 1)]), np.zeros((1, 100, 64), "f4")
    for count, tasks in ((2, [2]), (1, [1, 1])):
        sn.set_threads(count)
        for _ in range(4):
            tasks_of_waves.clear()
            model(x)
        assert tasks_of_waves == tasks
