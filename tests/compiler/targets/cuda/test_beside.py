"""Directions on two streams and layers as wavefronts: the bits of one after the other, and missing marks."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from device_models import RANDOM, gru, ragged
from random_ways import assert_same_bits
from watched_device import bits
from zoo import rnn_of

import stepnet as sn
from stepnet.compiler import targets
from stepnet.compiler.targets.cuda import (
    RECORDED,
    CudaEngine,
    DeviceCode,
    DeviceWork,
    EmulatedDevice,
    LoopLoad,
    PartPlace,
    StreamCosts,
    as_wavefronts,
    at_once,
    weighed_by,
)
from stepnet.compiler.values import leaves
from stepnet.errors import DeviceError

ENGINE = "watched"
X = RANDOM.normal(size=(3, 11, 3)).astype("f4")
LENGTHS = [11, 2, 7]
COSTS = StreamCosts()
FREE = StreamCosts(events=0.0, chunk=0.0, given=0.0, chunks=(3,), fewest=1)
"""Costs with which everything pays that fits."""


class WatchedDevice(EmulatedDevice):
    """An emulated device that counts the loops on each side stream.

    is_deaf: whether side streams do not wait for each other. interrupted: the loop that is interrupted.
    again: how often work with several streams was given again.
    """

    def __init__(self) -> None:
        super().__init__(5)
        self.loops, self.is_deaf, self.interrupted, self.again = Counter[int](), False, -1, 0

    def launch(self, code: DeviceCode, blocks: int, words: Sequence[int]) -> None:
        if self.fork is not None and "loop" in code.name:
            self.loops[self.fork.stream() or 0] += 1
            if self.loops.total() == self.interrupted:
                raise KeyboardInterrupt
        super().launch(code, blocks, words)

    def follow(self, stream: int, mark: Mapping[int, int]) -> None:
        if not self.is_deaf or not stream or not any(mark):
            super().follow(stream, dict(mark))

    def repeated(self, calls: Sequence[DeviceWork], kept: object) -> Callable[[Sequence[int]], None]:
        run = super().repeated([each for each in calls if not (self.is_deaf and is_among_sides(each))], kept)

        def counted(memory: Sequence[int]) -> None:
            self.again += any(each.stream for each in calls)
            run(memory)

        return counted


def is_among_sides(work: DeviceWork) -> bool:
    """Tells whether work is a side stream's wait for a mark that is not the first one, of the fork."""
    return work.kind == "follow" and bool(work.stream and work.count)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedDevice]:
    """The device of the engine "watched"."""
    made = WatchedDevice()
    engine = CudaEngine(made, name=ENGINE, devices=())
    monkeypatch.setitem(targets.ENGINES, ENGINE, lambda: engine)  # type: ignore[arg-type]
    with weighed_by(FREE):
        yield made
    targets.engine.cache_clear()


def stack(*layers: Any, **options: Any) -> Callable[[], Any]:
    model = sn.Stack(layers)
    return lambda: model(X, lengths=LENGTHS, engine=ENGINE, **options)


def directions() -> Callable[[], Any]:
    model = sn.Bidirectional(gru(3), gru(3, reverse=True))
    return lambda: model(X, lengths=LENGTHS, engine=ENGINE)


def layers_of_directions() -> Callable[[], Any]:
    layers = [sn.Bidirectional(gru(n), gru(n, reverse=True)) for n in (3, 8)]
    return stack(*layers)


def pairs_that_cross() -> Callable[[], Any]:
    layers = [gru(n, reverse=reverse) for n in (3, 4) for reverse in (False, True)]

    def model(x: Any, params: Any) -> Any:
        first, second = (layer(x)[0] for layer in layers[:2])
        return layers[2](second)[0], layers[3](first)[0]

    graph, x = sn.Graph(model), ragged(9, 3, 6)
    return lambda: graph(x, engine=ENGINE)


def layers() -> Callable[[], Any]:
    return stack(gru(3), gru(4), gru(4))


def reverse_layers() -> Callable[[], Any]:
    return stack(gru(3, reverse=True), gru(4, reverse=True))


def two_memories() -> Callable[[], Any]:
    model, x = sn.Stack([rnn_of("lstm", 3, 16), rnn_of("lstm", 16, 16)]), ragged(9, 3, 6)
    initial = [dict(zip("hc", RANDOM.normal(size=(2, 3, 16)).astype("f4"), strict=True)) for _ in range(2)]
    return lambda: model(x, initial=initial, last_only=True, engine=ENGINE)


def memory_that_nothing_reads() -> Callable[[], Any]:
    first, second = gru(3), gru(4)
    model, x = sn.Graph(lambda x, params: second(first(x)[0])[0]), ragged(9, 3, 6)
    return lambda: model(x, engine=ENGINE)


def numbers_of_steps(**options: Any) -> Callable[[], Any]:
    def step(x: Any, h: Any, p: Any, index: Any) -> Any:
        h = np.float32(0.5) * h + x * index[:, None].astype("float32")
        return h, h

    return stack(*(sn.RNN(step, None, memory=3, inputs=3) for _ in range(2)), **options)


def numbers_of_steps_that_go_on() -> Callable[[], Any]:
    return numbers_of_steps(begun=[4, 0, 9])


def gradients(model: Any) -> Callable[[], Any]:
    gradient = sn.vjp(model)

    def run() -> Any:
        results, backward = gradient(X, lengths=LENGTHS, engine=ENGINE)
        made = backward(*results)
        return results, made.params, made.inputs

    return run


def gradients_of_layers() -> Callable[[], Any]:
    return gradients(sn.Stack([gru(3), gru(4)]))


def gradients_of_projections() -> Callable[[], Any]:
    """The gradient of such a matrix is a sum over what the layer behind has made."""

    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(h @ p["R"] + x @ p["W"])
        return h @ p["V"], h

    params = {name: RANDOM.normal(size=(3, 3)).astype("f4") for name in "RWV"}
    return gradients(sn.Stack([sn.RNN(step, params, memory=3, inputs=3) for _ in range(3)]))


def gradients_of_directions() -> Callable[[], Any]:
    return gradients(sn.Bidirectional(gru(3), gru(3, reverse=True)))


LOOPS = {
    directions: (1, 1),
    layers_of_directions: (2, 2),
    pairs_that_cross: (2, 2),
    layers: (3, 3, 3),
    reverse_layers: (3, 3),
    two_memories: (3, 3),
    memory_that_nothing_reads: (3, 3),
    numbers_of_steps: (3, 3),
    numbers_of_steps_that_go_on: (3, 3),
    gradients_of_layers: (6, 6),
    gradients_of_projections: (6, 6, 3),  # the last layer's are ahead of a sum over all rows
    gradients_of_directions: (2, 2),
}
"""The number of loops, of all steps or of chunks of them, that run on each side stream."""


@pytest.mark.long(every=2)
@pytest.mark.parametrize("make", LOOPS, ids=lambda make: make.__name__)
def test_the_bits_are_those_of_one_after_the_other(make: Any, device: WatchedDevice) -> None:
    run = make()
    with weighed_by(None):
        right = leaves(run())
    RECORDED.clear()  # the decision is part of no form
    assert not device.loops
    for _ in range(4):  # part by part, then recorded, in another order of the streams each time
        for one, other in zip(leaves(run()), right, strict=True):
            assert_same_bits(*(getattr(each, "values", each) for each in (one, other)))
    counts = [device.loops[side] for side in range(1, 1 + len(LOOPS[make]))]
    assert counts in ([*LOOPS[make]], [2 * count for count in LOOPS[make]])  # gradients keep the second call
    assert device.again >= 2
    assert not any(isinstance(call, str) for call in RECORDED.values())


@pytest.mark.parametrize("make", [layers, pairs_that_cross], ids=lambda make: make.__name__)
def test_a_mark_that_is_not_waited_for_is_found(make: Any, device: WatchedDevice) -> None:
    run = make()
    device.is_deaf = True
    with pytest.raises(DeviceError, match="and no mark puts one behind the other"):
        run()


@pytest.mark.parametrize("make", [layers, pairs_that_cross], ids=lambda make: make.__name__)
def test_a_recorded_mark_that_is_not_waited_for_is_found(make: Any, device: WatchedDevice) -> None:
    RECORDED.clear()
    run = make()
    right = [bits(run())]
    device.is_deaf = True  # of what is planned now, at the second call
    assert [bits(run()) for _ in range(6)] != right * 6


def test_an_interrupt_ends_the_side_streams(device: WatchedDevice) -> None:
    run = layers()
    with weighed_by(None):
        right = leaves(run())
    RECORDED.clear()  # the decision is part of no form
    device.interrupted = 5
    with pytest.raises(KeyboardInterrupt) as kept:
        run()
    assert device.fork is None
    del kept
    for one, other in zip(leaves(run()), right, strict=True):
        assert_same_bits(one, other)


def test_memory_of_another_library_is_kept_until_the_join(device: WatchedDevice) -> None:
    run, freed, engine = layers_of_directions(), list[bool](), targets.engine_named(ENGINE)
    assert isinstance(engine, CudaEngine)

    class Room:
        """Memory of another library, which may use it again as soon as nothing refers to it."""

        def __init__(self, count: int) -> None:
            self.address = device.allocate(count)

        def __del__(self) -> None:
            freed.append(device.fork is None)
            device.free(self.address)

    with engine.on_stream(0, Room):
        run()
    assert len(freed) > 20
    assert all(freed)


# ---- the decision


def smaller_kernels(share: int) -> list[LoopLoad]:
    """Two loops that take all of the GPU, or half of it and longer."""
    return [LoopLoad(1 / share, 1.0 + 0.2 * share) for _ in range(2)]


def test_loops_may_have_kernels_of_fewer_blocks() -> None:
    assert at_once(smaller_kernels, 100, COSTS).places == [PartPlace(stream, 1, 2) for stream in (0, 1)]
    assert at_once(smaller_kernels, 100, COSTS).microseconds == pytest.approx(140 + COSTS.events)
    assert as_wavefronts(smaller_kernels, 8192, COSTS).places == [PartPlace(layer, 16, 2) for layer in (0, 1)]
    assert as_wavefronts(smaller_kernels, 100, COSTS).places == []


def loads(*pairs: tuple[float, float]) -> Callable[[int], list[LoopLoad]]:
    return lambda share: [LoopLoad(part, step) for part, step in pairs]


@pytest.mark.parametrize(
    ("pairs", "steps", "streams", "microseconds"),
    [
        ([(0.3, 2.0), (0.3, 2.0)], 100, (0, 1), 220),
        ([(0.7, 2.0), (0.3, 1.0)], 100, (0, 1), 220),
        ([(0.7, 2.0), (0.4, 2.0)], 100, (0, 0), 400),  # they do not fit
        ([(0.3, 2.0), (0.3, 2.0)], 10, (0, 0), 40),  # they are too short
        ([(0.4, 1.0)] * 4, 100, (0, 1, 0, 1), 220),
        ([(0.2, 1.0)] * 6, 100, (0, 1, 2, 0, 1, 2), 220),
    ],
)
def test_independent_loops(
    pairs: list[tuple[float, float]], steps: int, streams: tuple[int, ...], microseconds: float
) -> None:
    made = at_once(loads(*pairs), steps, COSTS)
    assert (made.streams, made.microseconds, made.in_turn) == (
        streams,
        microseconds,
        steps * sum(step for _, step in pairs),
    )


@pytest.mark.parametrize(
    ("pairs", "steps", "groups"),
    [
        ([(0.3, 2.0)] * 2, 8192, ((2, 16),)),
        ([(0.3, 2.0)] * 4, 8192, ((3, 16), (1, 1))),  # three fit
        ([(0.6, 2.0)] * 2, 8192, ((2, 1),)),
        ([(0.3, 2.0)] * 2, 64, ((2, 1),)),
        ([(0.1, 2.0)] * 6, 8192, ((3, 16), (3, 16))),
    ],
)
def test_layers(pairs: list[tuple[float, float]], steps: int, groups: tuple[tuple[int, int], ...]) -> None:
    assert as_wavefronts(loads(*pairs), steps, COSTS).groups == groups


def test_a_wave_takes_its_first_chunks_and_those_of_the_slowest_layer() -> None:
    made = as_wavefronts(loads((0.3, 2.0), (0.3, 1.0)), 10_000, COSTS)
    ((_, count),) = made.groups
    chunks = [10_000 * step / count + COSTS.chunk for step in (2, 1)]
    assert made.microseconds == pytest.approx(COSTS.events + sum(chunks) + (count - 1) * chunks[0])
    assert made.in_turn == 30_000


def test_layers_that_cannot_be_divided_are_alone() -> None:
    layers = [LoopLoad(0.1, 2.0, is_divisible=place != 1) for place in range(4)]
    assert [count for count, _ in as_wavefronts(lambda share: layers, 8192, COSTS).groups] == [1, 1, 2]


def explained(model: Any) -> str:
    """The explanation of parts 0 and 1, in one line."""
    lines = model.explain(ENGINE, rows=16, steps=1024).splitlines()
    first = next(place for place, line in enumerate(lines) if line.strip().startswith("parts 0, 1"))
    return " ".join(" ".join(lines[first : lines.index("", first)]).split())


def test_explanations_say_what_runs_at_the_same_time() -> None:
    start = "parts 0, 1, for 16 sequences of 1024 steps GPU"
    assert explained(sn.Bidirectional(gru(4, 256), gru(4, 256, reverse=True))) == (
        f"{start} at once, on 2 streams: 1,868 us predicted; one after the other 3,696 us"
    )
    assert explained(sn.Stack([gru(4, 256), gru(256, 256)])) == (
        f"{start} 2 layers as a wavefront of 4 chunks: 2,820 us predicted; one layer after the other 3,696 us"
    )
