"""Calls of a device that are recorded: later ones are those that ran part by part, bit for bit."""

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from constants import Constants
from device_models import gru, ragged
from tolerance import assert_close
from watched_device import WatchedDevice, bits

import stepnet as sn
from stepnet.compiler import targets
from stepnet.compiler.targets.cuda import (
    LANE_WORDS,
    RECORDED,
    CudaEngine,
    DeviceArray,
    DeviceCode,
    DeviceWork,
    arranged,
    put,
    spans_of,
)
from stepnet.errors import DeviceError, IndexOutsideError
from tests.compiler.targets.cuda.matrix_steps import mamba

Array = np.ndarray
CACHE = "stepnet.compiler.targets.cuda.recording.recorded"


class LoopDevice(WatchedDevice):
    """The device, which keeps the words that its last loop was given."""

    words: Sequence[int] = ()

    def launch(self, code: DeviceCode, blocks: int, words: Sequence[int]) -> None:
        if code.name.startswith("loop"):
            self.words = [*map(int, words)]
        super().launch(code, blocks, words)


DEVICE = LoopDevice()
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(3, 5, 4)).astype("f4")
Y = RANDOM.normal(size=(3, 5, 4)).astype("f4")
H = RANDOM.normal(size=(3, 4)).astype("f4")


@pytest.fixture(autouse=True)
def placed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The engine "placed", whose device is emulated, and which knows no call."""
    RECORDED.clear()
    made = CudaEngine(DEVICE, name="placed", devices=("cpu",))
    monkeypatch.setitem(targets.ENGINES, "placed", lambda: made)  # type: ignore[arg-type]
    yield
    targets.engine.cache_clear()
    DEVICE.is_capturing = False


def decay(width: int = 4, reverse: bool = False) -> sn.RNN:
    """A step of a few elementwise operations, with a value that follows from the parameter alone."""

    def step(x: Any, h: Any, a: Any) -> Any:
        following = h / (1 + np.exp(-a)) + x
        return np.tanh(following), following

    params = RANDOM.normal(size=width).astype("f4")
    return sn.RNN(step, params, memory=width, inputs=width, reverse=reverse)


def biased() -> sn.RNN:
    """A step with a static."""

    def step(x: Any, h: Any, a: Any, statics: Any) -> Any:
        return h * a + statics, h * a + x + statics

    return sn.RNN(step, H[0], memory=4)


def there(array: Array) -> DeviceArray:
    return put(DEVICE, array)


def layers() -> sn.Stack:
    return sn.Stack([sn.Bidirectional(gru(4), gru(4, reverse=True)), gru(8)])


RAGGED, ON_DEVICE = ragged(3, 0, 5, features=4), there(X)
CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "dense": (decay, lambda rnn: rnn(X, engine="placed")),
    "ragged": (lambda: gru(4), lambda rnn: rnn(RAGGED, engine="placed")),
    "padded": (decay, lambda rnn: rnn(X, lengths=[5, 0, 2], engine="placed")),
    "reverse": (lambda: gru(4, reverse=True), lambda rnn: rnn(X, lengths=[5, 1, 2], engine="placed")),
    "time major": (decay, lambda rnn: rnn(X, time_major=True, engine="placed")),
    "initial": (decay, lambda rnn: rnn(X, H, engine="placed")),
    "statics": (biased, lambda rnn: rnn(X, statics=H, engine="placed")),
    "last only": (decay, lambda rnn: rnn(X, lengths=[5, 3, 2], last_only=True, engine="placed")),
    "on the device": (lambda: gru(4), lambda rnn: rnn(ON_DEVICE, lengths=[4, 0, 5], engine="placed")),
    "layers": (layers, lambda model: model(X, lengths=[5, 3, 2], engine="placed")),
}


@pytest.mark.parametrize("name", CASES)
def test_later_calls_have_the_bits_of_the_first(name: str) -> None:
    make, run = CASES[name]
    model = make()
    first = DEVICE.repeats(lambda: run(model))
    assert first[1] == 0
    assert [bits(run(model)) for _ in range(2)] == [first[0]] * 2  # prepared, with memories of zeros
    for _ in range(4):
        assert DEVICE.repeats(lambda: run(model)) == (first[0], 1)


def test_other_arrays_are_read() -> None:
    rnn = decay()
    expected = [bits(rnn(x, h, engine="placed")) for x, h in ((Y, H), (X, -H))]
    RECORDED.clear()
    for _ in range(3):
        rnn(there(X), there(H), engine="placed")
        rnn(X, H, engine="placed")
    for x, h, right in zip((Y, X), (H, -H), expected, strict=True):
        arrays = there(x), there(h)
        assert DEVICE.repeats(lambda arrays=arrays: rnn(*arrays, engine="placed")) == (right, 1)
        assert DEVICE.repeats(lambda x=x, h=h: rnn(x, h, engine="placed")) == (right, 1)


def test_steps_may_be_counted_from_earlier_calls_on() -> None:
    rnn, before = counted(), DEVICE.again
    for begun in ([2, 0, 9], [2, 0, 9], [4, 1, 0], [0, 3, 3]):
        made, right = (
            rnn(X[..., 0], lengths=[5, 0, 3], begun=begun, engine=name) for name in ("placed", "interpret")
        )
        for one, other in zip(made, right, strict=True):
            assert_close(one, other, 5, 1)
    assert (len(RECORDED), DEVICE.again - before) == (1, 3)


def test_steps_of_streams_are_recorded() -> None:
    rnn = counted()
    ours, right = (rnn.stream(2, begun=[0, 5], engine=name) for name in ("placed", "interpret"))
    before = DEVICE.again
    for step in range(4):
        x = X[:2, step, 0]
        assert_close(ours.step(x), right.step(x), step + 1, 1)
    assert DEVICE.again - before == 3


def test_other_forms_are_other_calls() -> None:
    rnn = decay()

    def outputs(*lengths: int, h: Array | None = None) -> list[bytes]:
        return bits(rnn(X, h, lengths=lengths, engine="placed"))

    expected = [outputs(5, 5, 5), outputs(5, 2, 0), outputs(5, 2, 0, h=H)]
    assert len({*map(tuple, expected)}) == len(RECORDED) == 3
    assert [outputs(5, 5, 5), outputs(5, 2, 0), outputs(5, 2, 0, h=H)] == expected


def test_less_aligned_arrays_are_another_form() -> None:
    rnn = sn.Bidirectional(decay(3), decay(3, reverse=True))  # rows of 12 bytes, moved in words of up to 16
    x = np.ascontiguousarray(X[..., :3])
    room = there(np.concatenate([np.zeros(1, "f4"), x.ravel()]))
    shifted = DeviceArray(DEVICE, room.address + 4, x.shape, "float32", room)
    lengths = [5, 2, 4]
    first = bits(rnn(there(x), lengths=lengths, last_only=True, engine="placed"))
    count = len(RECORDED)
    assert bits(rnn(shifted, lengths=lengths, last_only=True, engine="placed")) == first
    assert len(RECORDED) == 2 * count


def test_less_aligned_inputs_of_a_loop_that_reads_several_numbers_at_once_are_copied() -> None:
    step = mamba(8, 4)
    x = {name: array[None] for name, array in step.values(5).items()}
    right = bits(step.rnn()({name: there(array) for name, array in x.items()}, engine="placed"))
    shifted = dict[str, DeviceArray]()
    for name, array in x.items():
        room = there(np.concatenate([np.zeros(1, "f4"), array.ravel()]))
        shifted[name] = DeviceArray(DEVICE, room.address + 4, array.shape, "float32", room)
    rnn = step.rnn()
    for _ in range(2):
        assert bits(rnn(shifted, engine="placed")) == right
    assert all(word % 16 == 0 for word in DEVICE.words[7:11])  # the inputs, behind the words of every loop


def test_parameters_of_the_host_may_change() -> None:
    rnn = decay()
    gradient = sn.vjp(rnn)

    def run(scale: float) -> list[bytes]:
        given = np.asarray(rnn.params * scale, "f4")
        (outputs, _), backward = gradient(X, params=given, engine="placed")
        return bits([outputs, backward(np.ones_like(outputs)).params])

    expected = [run(1.0), run(0.5)]
    assert expected[0] != expected[1]
    for _ in range(3):
        assert [run(1.0), run(0.5)] == expected


def test_a_vjp_that_is_made_anew_for_each_call_is_recorded() -> None:
    """Compiled gradients are kept with the model, each by its options."""
    rnn = gru(4)

    def run(**options: Any) -> list[Array]:
        (outputs, _), backward = sn.vjp(rnn, **options)(X, engine="placed")
        gradients = backward(np.ones_like(outputs))
        return [outputs, gradients.inputs, *gradients.params.values()]

    cases: tuple[dict[str, Any], ...] = {}, {"saved": "bfloat16"}, {"per_sequence": True}
    first = [DEVICE.repeats(lambda options=options: run(**options)) for options in cases]
    assert [again for _, again in first] == [0] * len(cases)
    assert first[0][0] != first[1][0], "values that are saved in bfloat16 are others"
    shapes = [[array.shape for array in run(**options)] for options in cases]
    assert shapes[0] == shapes[1] != shapes[2]
    for (expected, _), options in zip(first, cases, strict=True):
        assert DEVICE.repeats(lambda options=options: run(**options)) == (expected, 2)


def test_results_have_memory_of_their_own() -> None:
    rnn, x = gru(4), there(X)
    results = [rnn(x, engine="placed") for _ in range(3)]
    expected = bits(results[0])
    rnn(there(Y), engine="placed")
    assert [bits(each) for each in results] == [expected] * 3
    owners = {id(array.owner) for each in results for array in each}
    assert len(owners) == 6


def test_values_share_memory_and_take_no_more_than_before() -> None:
    rnn, x = sn.Stack([gru(4), gru(4), gru(4)]), there(X)
    rnn(x, engine="placed")  # compiled, positions kept
    RECORDED.clear()

    def most() -> int:
        """The most bytes in use during a call, less those in use before."""
        DEVICE.most = before = DEVICE.used()
        rnn(x, engine="placed")
        return DEVICE.most - before

    first, second = most(), most()
    assert second < first


def random_work(count: int) -> tuple[list[DeviceWork], Array]:
    """Work of three streams on some values, with marks; and for all pairs of pieces whether one must be ahead
    of another.
    """
    work, ahead = list[DeviceWork](), np.zeros((60, 60), bool)
    latest, marks = dict[int, int](), list[int]()  # the last piece of each stream, and that of each mark
    for place in range(60):
        stream = int(RANDOM.integers(3))
        before = {latest[stream]} if stream in latest else set[int]()
        kind: Any = ["launch", "launch", "mark", "follow" if marks else "mark"][int(RANDOM.integers(4))]
        number, values = len(marks), tuple(RANDOM.integers(0, count, 2).tolist())
        if kind == "mark":
            marks.append(place)
        elif kind == "follow":
            number = int(RANDOM.integers(len(marks)))
            before.add(marks[number])
        for other in before:
            ahead[:, place] |= ahead[:, other]
            ahead[other, place] = True
        latest[stream] = place
        bases = values if kind == "launch" else ()
        work.append(DeviceWork(kind, bases, (0,) * len(bases), number, stream=stream))
    return work, ahead


def test_values_that_may_be_needed_together_lie_apart() -> None:
    shared = 0
    for _ in range(30):
        count = int(RANDOM.integers(1, 40))
        counts = {number: int(RANDOM.integers(0, 2000)) for number in range(count)}
        work, ahead = random_work(count)
        spans = spans_of(work, ())
        uses = {n: [place for place, piece in enumerate(work) if n in piece.bases] for n in spans}
        offsets, end = arranged({n: counts[n] for n in spans}, spans)
        for one, other in itertools.combinations(spans, 2):
            first, second = (
                max(offsets[one], offsets[other]),
                min(offsets[n] + counts[n] for n in (one, other)),
            )
            ordered = (
                ahead[np.ix_(uses[one], uses[other])].all() or ahead[np.ix_(uses[other], uses[one])].all()
            )
            assert first >= second or ordered
            shared += first < second
        assert all(offset % 256 == 0 and offset + counts[n] <= end for n, offset in offsets.items())
    assert shared > 20


def test_two_threads_run_one_recording() -> None:
    rnn = gru(4)
    inputs = [RANDOM.normal(size=X.shape).astype("f4") for _ in range(2)]
    expected = [bits(rnn(x, engine="placed")) for x in inputs]
    wrong = list[int]()

    def run(place: int) -> None:
        wrong.extend(place for _ in range(10) if bits(rnn(inputs[place], engine="placed")) != expected[place])

    threads = [threading.Thread(target=run, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_process_runs_known_calls() -> None:
    rnn, x = decay(), there(X)
    first, _ = (bits(rnn(x, engine="placed")) for _ in range(2))
    child = os.fork()
    if not child:
        os._exit(int(bits(rnn(x, engine="placed")) != first))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bits(rnn(x, engine="placed")) == first


def test_recorded_calls_are_bounded(constants: Constants) -> None:
    models = [gru(4, 16)]  # whose parameters do not count

    def run(length: int) -> None:
        models[0](X, lengths=[length, 2, 1], engine="placed")

    constants(CACHE, MOST_CALLS=2)
    for length in (1, 2, 1, 3):
        run(length)
    assert len(RECORDED) == 2
    known = [call for call in RECORDED.values() if not isinstance(call, str)]
    sizes = [call.notes.bytes for call in known]  # beside the host's, of their work
    assert min(sizes) >= 3 * len(LANE_WORDS) * 8  # the lanes of three sequences
    assert max(sizes) < 20 * 48 * 4  # the weights
    constants(CACHE, MOST_BYTES=max(call.bytes for call in known))
    run(4)
    assert len(RECORDED) == 1
    models.clear()
    assert not RECORDED


def table() -> sn.RNN:
    """A step that reads a table."""
    step = lambda x, place, p: (p["table"][place], place + x)  # noqa: E731
    memory, inputs = sn.Spec((), np.int64), sn.Spec((), np.int64)
    return sn.RNN(step, {"table": X[0]}, memory=memory, inputs=inputs)


def counted() -> sn.RNN:
    """A step that reads its number, in the loop and ahead of it."""

    def step(x: Any, h: Any, a: Any, index: Any) -> Any:
        number = index.astype("float32")
        return h * a + number, h * np.float32(0.5) + x * np.sin(number)

    return sn.RNN(step, H[0, :1].sum(), memory=(), inputs=())


def ended() -> sn.RNN:
    """A step that ends its sequences."""
    step = lambda x, h, a: (h * a, h + x)  # noqa: E731
    return sn.RNN(step, H[0], memory=4, inputs=4, until=lambda y, h: h[:, 0] > 1)


def one_by_one() -> sn.RNN:
    """A step with a recurrence of its own, which reads its number."""
    words = gru(4)

    def step(x: Any, h: Any, p: Any, index: Any) -> Any:
        _, h = words(x, initial=h * index.astype("float32")[:, None])
        return h, h

    return sn.RNN(step, memory=4)


DOCUMENTS = sn.Ragged.from_list([[X[0, :2], X[0, 2:5]], [X[1, :1]]])
READS_BACK = "the host reads what the GPU computed, as for tables that are read at an index"
LARGE = "the positions of its sequences take more than 64 KiB"
OTHERS = [
    (table, lambda rnn: rnn(np.array([[0, 3, 1]]), engine="placed"), READS_BACK),
    (
        one_by_one,
        lambda rnn: rnn(DOCUMENTS, begun=2, engine="placed"),
        "steps that run one by one are counted from earlier calls on",
    ),
    (ended, lambda rnn: rnn(X, engine="placed"), "its sequences end early"),
    (decay, lambda rnn: rnn(there(X), engine="placed"), LARGE),
]


@pytest.mark.parametrize(("make", "run", "reason"), OTHERS, ids=lambda each: getattr(each, "__name__", ""))
def test_calls_that_are_not_recorded(
    make: Callable[[], Any], run: Callable[[Any], Any], reason: str, constants: Constants
) -> None:
    if reason == LARGE:
        constants("stepnet.ragged.positions", LARGEST_KEY=47)
    rnn = make()
    expected = bits(run(rnn))
    assert [bits(run(rnn)) for _ in range(2)] == [expected] * 2
    assert {*RECORDED.values()} <= {READS_BACK}
    DEVICE.is_capturing = True
    with pytest.raises(DeviceError, match=f"cannot be captured in a CUDA graph: {reason}"):
        run(rnn)


@pytest.mark.parametrize(
    ("make", "rows", "said"),
    [
        (decay, 16, "calls recorded, and then given again; but not those that until= ends"),
        (decay, 5000, "calls part by part each time: the positions of its sequences take more than 64 KiB"),
        (table, 16, "calls part by part each time: the host reads what the GPU computed, as for tables"),
        (
            one_by_one,
            16,
            "its steps run one by one: calls are recorded up to 8192 pieces of work and 1024 values",
        ),
    ],
)
def test_explanations_say_which_calls_are_recorded(make: Callable[[], Any], rows: int, said: str) -> None:
    model = make()
    if make is one_by_one:
        model(DOCUMENTS, engine="interpret")  # so that its inputs are known
    assert said in " ".join(model.explain("placed", rows=rows, steps=100).split())


def test_a_call_without_arrays_is_not_recorded() -> None:
    rnn = gru(4)
    model = sn.Graph(lambda x, _: rnn(x)[0], inputs=4)  # a stream of chunks computes its first memories
    expected = model(X[:, :2], engine="llvm")
    assert_close(model.stream_chunks(rows=3, engine="placed").chunk(X[:, :2]), expected, 2, 8)
    DEVICE.is_capturing = True
    with pytest.raises(DeviceError, match="cannot be captured in a CUDA graph: it is given no arrays"):
        model.stream_chunks(rows=3, engine="placed").chunk(X[:, :2])


def test_an_index_outside_of_a_table_is_named_at_every_call() -> None:
    rnn = table()
    for symbols in ([[0, 3, 1]], [[0, 9, 1]], [[0, 9, 1]]):
        if symbols[0][1] < 5:
            rnn(np.array(symbols), engine="placed")
        else:
            with pytest.raises(IndexOutsideError, match="outside the rows"):
                rnn(np.array(symbols), engine="placed")


# ---- captures by another library


def test_a_known_call_is_captured() -> None:
    rnn, x = decay(), there(X)
    first = bits(rnn(x, engine="placed"))
    DEVICE.is_capturing = True
    results = rnn(x, engine="placed")
    DEVICE.is_capturing = False
    assert bits(results) == first


def test_a_capture_of_an_unknown_call_is_refused() -> None:
    rnn, x = decay(), there(X)
    DEVICE.is_capturing = True
    with pytest.raises(DeviceError, match="run this call once before it, with the same lengths"):
        rnn(x, engine="placed")
