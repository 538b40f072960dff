"""Operations across extents, and windows of steps, in machine code: the bits of NumPy's functions, for every
processor, dtype and length; and graphs with such operations between their kernels, which run as one block.
"""

from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from constants import Constants
from same_bits import assert_same_bits
from tolerance import assert_close
from zoo import rnn_of, uniform

import stepnet as sn
from stepnet.compiler.net import (
    CONST,
    HOST,
    ROWS,
    STEPS,
    Builder,
    Extension,
    Extent,
    LevelSizes,
    Type,
    Window,
    interpret,
)
from stepnet.compiler.plan import Across, order_of
from stepnet.compiler.targets.cpu import Processor, available_processors
from stepnet.compiler.targets.cpu.running.across import SUMMED, AcrossTask, refusal_of
from stepnet.errors import InputError
from stepnet.ragged import Positions, offsets_of

Array = np.ndarray
PROCESSORS = available_processors()
LENGTHS = ([3, 0, 1, 5], [0, 0], [], [1], [*range(20)], [126, 129, 137, 255, 256, 257, 265, 1000])
"""NumPy's sums are of 8 numbers side by side, and of more than 128 in halves."""
LAST_ZERO = bool(np.signbit(np.maximum.reduceat([0.0, -0.0], [0])[0]))
"""True if NumPy's maximum of zeros of both signs is the last one, as in machine code; it depends on the
processor."""
SHAPES = ((), (1,), (3,), (16,), (37,), (5, 7), (0,))


def numbers(dtype: str, *shape: int) -> Array:
    """Random numbers, and of floats zeros of both signs, infinities, and some that are no numbers."""
    random = np.random.default_rng(sum(shape))
    if dtype == "bool":
        return np.asarray(random.random(shape) < 0.5)
    values = np.asarray(random.standard_normal(shape) * 100, dtype)
    if dtype.startswith("float"):
        kind = random.random(shape)
        for least, value in ((0.8, 0.0), (0.9, -0.0), (0.99, np.inf), (0.995, np.nan)):
            values[kind > least] = value
    return values


def by_numpy(how: str, steps: Array) -> Array:
    """A reduction of the steps of one sequence as NumPy computes those of many."""
    if how == "mean" and steps.dtype.kind == "i":
        steps = steps.astype("float64")
    if not len(steps):
        return np.zeros(steps.shape[1:], steps.dtype)
    if how in ("first", "last"):
        return steps[0 if how == "first" else -1]
    made = (np.maximum if how == "max" else np.add).reduceat(steps, [0], axis=0)[0]
    return made / steps.dtype.type(len(steps)) if how == "mean" else made


def result_of(
    across: Across, source: Array, positions: Positions, processor: Processor, made: Positions | None = None
) -> Array:
    """The result in an array that held other bits before. made: where its steps lie, if they are others."""
    task = AcrossTask(across, positions, made or positions, processor)
    found = task.result_of(source)
    found.view(np.uint8)[...] = 99
    task()
    return found


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: processor.name)
@pytest.mark.parametrize("how", ["sum", "mean", "max", "first", "last"])
@pytest.mark.parametrize("dtype", [*SUMMED, "float16", "bool"])
def test_reductions_have_the_bits_of_numpy(processor: Processor, how: str, dtype: str):
    for lengths in map(np.array, LENGTHS):
        offsets = offsets_of(lengths.astype(np.int64))
        for shape in SHAPES:
            made = "float64" if how == "mean" and dtype.startswith("int") else dtype
            across = Across("reduce", how, Type(STEPS, shape, dtype), Type(ROWS, shape, made))
            if refusal_of(across) is not None:
                continue
            values = numbers(dtype, int(offsets[-1]), *shape)
            found = result_of(across, values, Positions.end_to_end(offsets), processor)
            with np.errstate(all="ignore"):
                rows = [by_numpy(how, values[a:b]) for a, b in pairwise(offsets)]
            expected = np.array(rows, made).reshape(found.shape)
            if how == "max" and not LAST_ZERO:
                found, expected = np.where(found == 0, 0, found), np.where(expected == 0, 0, expected)
            assert_same_bits(found, expected)


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: processor.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bool", "int64"])
@pytest.mark.parametrize("how", ["repeat", "first", "last"])
@pytest.mark.parametrize("extents", [(CONST, ROWS), (CONST, STEPS), (ROWS, STEPS)])
def test_values_that_are_repeated(
    processor: Processor, extents: tuple[Extent, Extent], how: str, dtype: str
) -> None:
    for lengths in map(np.array, LENGTHS):
        offsets = offsets_of(lengths.astype(np.int64))
        segments = LevelSizes(len(lengths), (offsets,))
        for shape in SHAPES:
            source, result = (Type(extent, shape, dtype) for extent in extents)
            across = Across("expand", how, source, result)
            if refusal_of(across) is not None:
                continue
            value = numbers(dtype, *([] if extents[0] == CONST else [len(lengths)]), *shape)
            builder = Builder()
            options = {} if how == "repeat" else {"how": how}
            node = builder.add("expand", builder.input(across.source, "x"), extent=extents[1], **options)
            net = builder.net([node])
            (expected,) = interpret(net, [value], segments)
            found = result_of(across, value, Positions.end_to_end(offsets), processor)
            assert_same_bits(found, np.asarray(expected, order="C"))


WINDOWS = (
    Window(1, 1, 0),
    Window(3, 1, 2),
    Window(4, 1, 1),
    Window(3, 2, 4),
    Window(4, 3, 5),
    Window(2, 7, 0),
)
OTHER_WINDOWS = (
    Window(3, 1, 0, lost=2),
    Window(3, 1, 4, lost=-6),
    Window(3, 1, 1, 2),
    Window(4, 2, 0, 2, lost=6),
    Window(5, 3, 2, 2, lost=8),
    Window(4, 2, 3, 3, lost=-1),
    Window(2, 1, 0, 5, lost=1),
    Window(5, 1, 0, 2, same="upper"),
    Window(4, 3, 0, 3, same="lower"),
)
"""Windows of which there are another number than steps."""
DERIVED = ("rows", "steps[+0/2]")
"""The extent of such windows, whatever their number."""


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: processor.name)
@pytest.mark.parametrize("dtype", [*SUMMED, "bool"])
@pytest.mark.parametrize("operation", ["windows", "overlap"])
def test_windows_have_the_bits_of_numpy(processor: Processor, operation: str, dtype: str):
    for lengths in map(np.array, LENGTHS[:-1]):
        positions = Positions.end_to_end(offsets_of(lengths.astype(np.int64)))
        for window, shape in product(WINDOWS, SHAPES):
            types = [Type(STEPS, one, dtype) for one in (shape, (window.size, *shape))]
            source, result = types[:: 1 if operation == "windows" else -1]
            across = Across(operation, operation, source, result, window)
            if refusal_of(across) is not None:
                continue
            values = numbers(dtype, positions.total, *across.source.shape)
            with np.errstate(all="ignore"):
                expected = HOST.windowed(operation, values, positions.offsets, positions.offsets, window)
            assert_same_bits(result_of(across, values, positions, processor), expected)


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: processor.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool"])
@pytest.mark.parametrize("operation", ["windows", "overlap"])
@pytest.mark.parametrize("transposed", [False, True])
def test_other_numbers_of_windows_than_steps(
    processor: Processor, operation: str, dtype: str, transposed: bool
) -> None:
    """transposed: whether the number of steps follows from that of the windows, as in a transposed
    convolution.
    """
    for lengths in map(np.array, LENGTHS[:-1]):
        for window, shape in product(OTHER_WINDOWS, ((), (3,), (37,))):
            counts, others = lengths.astype(np.int64), window.lengths.of(lengths.astype(np.int64))
            if transposed:
                more = window.reach + 1 - window.stride - window.before
                counts, others = np.where(counts > 0, counts * window.stride + more, 0).clip(0), counts
            steps, windows = (Positions.end_to_end(offsets_of(each)) for each in (counts, others))
            order = 1 if operation == "windows" else -1
            types = [Type(STEPS, shape, dtype), Type(DERIVED, (window.size, *shape), dtype)]
            source, result = types[::order]
            read, made = (steps, windows)[::order]
            across = Across(operation, operation, source, result, window)
            if refusal_of(across) is not None:
                continue
            values = numbers(dtype, read.total, *across.source.shape)
            with np.errstate(all="ignore"):
                expected = HOST.windowed(operation, values, made.offsets, read.offsets, window)
            assert_same_bits(result_of(across, values, read, processor, made), expected)


@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: processor.name)
def test_addresses_of_the_steps_of_windows(processor: Processor):
    """They are those of the steps that a copy has, and of zeros where it has zeros."""
    for lengths, window in product(map(np.array, LENGTHS[:-1]), (*WINDOWS, *OTHER_WINDOWS)):
        counts = lengths.astype(np.int64)
        steps, made = (Positions.end_to_end(offsets_of(n)) for n in (counts, window.lengths.of(counts)))
        types = [Type(STEPS, (3,), "float64"), Type(DERIVED, (window.size, 3), "float64")]
        task = AcrossTask(
            Across("windows", "windows", types[0], types[1], window, in_place=True), steps, made, processor
        )
        values = numbers("float64", steps.total, 3)
        addresses = task.result_of(values)
        addresses[...] = 99
        task()
        assert task.zeros is not None
        assert not task.zeros.any()
        is_zeros = addresses == task.zeros.ctypes.data
        read = np.where(is_zeros, steps.total, (addresses - values.ctypes.data) // (3 * 8))
        expected = HOST.windowed("windows", values, made.offsets, steps.offsets, window)
        assert_same_bits(np.concatenate([values, task.zeros[None]])[read], expected)


@pytest.mark.usefixtures("same_threads")
@pytest.mark.parametrize("operation", ["windows", "overlap"])
def test_windows_that_threads_share(operation: str, constants: Constants):
    constants("stepnet.compiler.targets.cpu.running.across", SHARED_BYTES=0)
    sn.set_threads(3)
    window = Window(4, 2, 3, 3, lost=-1)
    for lengths in ([], [0], [9], [0, 0, 40, 0], [3, 1, 50, 2, 2], [7] * 20):
        counts = np.array(lengths, np.int64)
        steps, windows = (
            Positions.end_to_end(offsets_of(own)) for own in (counts, window.lengths.of(counts))
        )
        order = 1 if operation == "windows" else -1
        types = [Type(STEPS, (5,), "float32"), Type(DERIVED, (4, 5), "float32")]
        (read, made), (source, result) = (steps, windows)[::order], types[::order]
        across = Across(operation, operation, source, result, window)
        values = numbers("float32", read.total, *source.shape)
        with np.errstate(all="ignore"):
            expected = HOST.windowed(operation, values, made.offsets, read.offsets, window)
        assert_same_bits(result_of(across, values, read, PROCESSORS[0], made), expected)


EXTENSIONS = [
    Extension(*ends, how) for ends, how in product(((0, 1), (3, 0), (2, 5)), ("reflect", "replicate"))
]


def extended(extension: Extension, lengths: Array, dtype: str, *shape: int) -> tuple[Array, Array]:
    """Copies of steps at the ends of sequences by machine code, and those that NumPy takes by index."""
    counts = np.where(lengths > 0, np.maximum(lengths, extension.least), 0)
    read = Positions.end_to_end(offsets_of(counts))
    made = Positions.end_to_end(offsets_of(extension.lengths.of(counts)))
    source, result = Type(STEPS, shape, dtype), Type(("rows", extension.axis("steps")), shape, dtype)
    across = Across("extend", extension.how, source, result, extension=extension)
    values = numbers(dtype, read.total, *shape)
    found = result_of(across, values, read, PROCESSORS[0], made)
    return found, values[extension.indices(made.offsets, read.offsets)]


@pytest.mark.parametrize("extension", EXTENSIONS, ids=lambda own: f"{own.how} {own.before} {own.after}")
def test_copies_at_the_ends_have_the_bits_of_numpy(extension: Extension):
    for lengths, shape in product(map(np.array, LENGTHS[:-1]), SHAPES):
        for dtype in ("float32", "bool", "float16"):
            assert_same_bits(*extended(extension, lengths.astype(np.int64), dtype, *shape))


@pytest.mark.usefixtures("same_threads")
def test_copies_at_the_ends_that_threads_share(constants: Constants):
    constants("stepnet.compiler.targets.cpu.running.across", SHARED_BYTES=0)
    sn.set_threads(3)
    for lengths in ([], [0], [9], [0, 0, 40, 0], [3, 1, 50, 2, 2], [7] * 20):
        assert_same_bits(*extended(EXTENSIONS[-2], np.array(lengths, np.int64), "float32", 5))


def test_reflection_of_fewer_steps_than_it_reads_is_refused():
    extension, positions = Extension(2, 0, "reflect"), Positions.end_to_end(np.array([0, 0, 3, 5]))
    types = Type(STEPS, (3,), "float32"), Type(("rows", "steps[+2/1]"), (3,), "float32")
    across = Across("extend", "reflect", *types, extension=extension)
    with pytest.raises(InputError, match="has at least 3 steps, and sequence 2 has 2"):
        AcrossTask(across, positions, positions, PROCESSORS[0])


@pytest.mark.parametrize("first", [False, True])
def test_the_ends_of_padded_sequences_in_either_order_of_axes(first: bool):
    lengths, values = np.array([3, 0, 5]), uniform(15, 4)
    source, result = (Type(extent, (4,), "float32") for extent in (STEPS, ROWS))
    across = Across("reduce", "first" if first else "last", source, result)
    batch_first = Positions(5 * np.arange(3), lengths, 15)
    time_first = Positions(np.arange(3), lengths, 15, steps=3 * np.arange(5))
    for positions in (batch_first, time_first):
        found = result_of(across, values, positions, PROCESSORS[0])
        assert_same_bits(found, positions.ends(values, first))


def test_what_numpy_computes():
    def refusal(how: str, dtype: str, *extents: Extent, operation: str = "reduce") -> str | None:
        source, result = (Type(extent, (4,), dtype) for extent in extents)
        return refusal_of(Across(operation, how, source, result))

    assert refusal("mean", "int32", STEPS, ROWS) is None
    assert refusal("mean", "float16", STEPS, ROWS) == "NumPy computes the mean over steps of float16"
    assert refusal("sum", "bfloat16", STEPS, ROWS) == "NumPy computes the sum over steps of bfloat16"
    assert refusal("sum", "float32", ("rows", "steps", "words"), STEPS) == (
        "it runs over values at rows/steps/words, which NumPy lays out"
    )
    pairs = ("rows", "steps", "steps*")
    assert refusal("sum", "float32", pairs, STEPS) is None
    assert refusal("repeat", "float32", ROWS, pairs, operation="expand") == (
        "NumPy repeats values at rows at rows/steps/steps*"
    )
    assert refusal("last", "float32", CONST, STEPS, operation="expand") == (
        "NumPy puts a value at one step of every sequence"
    )
    assert refusal("last", "float32", CONST, ROWS, operation="expand") is None
    assert refusal("overlap", "float16", STEPS, STEPS, operation="overlap") == "NumPy adds windows of float16"
    assert refusal("windows", "float16", STEPS, STEPS, operation="windows") is None
    assert refusal("reflect", "float16", STEPS, STEPS, operation="extend") is None
    assert refusal("arrange", "float32", STEPS, STEPS, operation="arrange") == (
        "NumPy arranges the steps of sequences"
    )


# ---- graphs ------------------------------------------------------------------------------------------------


def layer(seed: int, inputs: int = 4, cell: str = "gru") -> sn.RNN:
    return rnn_of(cell, inputs, 4, seed=seed)


def scores(x: Any, p: Any) -> Any:
    """Attention over the steps, as a softmax over each sequence."""
    y = layer(0)(x)[0]
    weights = np.exp(y @ p - sn.expand(sn.reduce(y @ p, "max"), y))
    total = sn.reduce(weights, "sum")
    return layer(1)(y * weights / sn.expand(total, y))[0]


def ends(x: Any, p: Any) -> Any:
    below = layer(0)(x)[0]
    above = layer(1)(x * sn.expand(sn.reduce(x @ p, "last"), x))[0]
    return {"first": sn.reduce(below, "first") @ p, "above": above, "mean": sn.reduce(above, "mean")}


def two_at_once(x: Any, p: Any) -> Any:
    """Both directions, each of which reads the mean of the other layer."""
    ahead, back = layer(0)(x)[0], rnn_of("gru", 4, 4, seed=1, reverse=True)(x)[0]
    means = [sn.expand(sn.reduce(y, "mean"), y) for y in (ahead, back)]
    return layer(2)(ahead - means[1])[0] @ p + layer(3)(back - means[0])[0]


KERNEL = uniform(4, 4, 3, seed=7)


def strides(x: Any, p: Any) -> Any:
    """A recurrence over every second step, between others."""
    fewer = sn.relu(sn.conv1d(layer(0)(x)[0], KERNEL, stride=2, padding=1))
    h = layer(1)(fewer)[0] + fewer @ p + sn.expand(sn.reduce(fewer, "mean"), fewer)
    again = sn.conv1d(h, KERNEL, stride=2, padding="same")
    more = sn.conv_transpose1d(h, KERNEL, stride=2)
    return {"h": h, "again": again, "more": more, "last": sn.reduce(again, "last"), "x": x @ p}


def replicated(x: Any, p: Any) -> Any:
    """Copies at the ends of steps, below and above a recurrence over fewer steps."""
    fewer = sn.conv1d(sn.pad_steps(x, (2, 1), mode="replicate"), KERNEL, stride=2, padding="valid")
    h = layer(0)(fewer)[0]
    return {"h": h, "ends": sn.pad_steps(h @ p, (0, 3), mode="replicate")}


MODELS: dict[str, Callable[[Any, Any], Any]] = {
    "copies at the ends": replicated,
    "mean": lambda x, p: layer(1)(layer(0)(x)[0] - sn.expand(sn.reduce(layer(0)(x)[0], "mean"), x))[0] @ p,
    "sum of inputs": lambda x, p: layer(0)(x * sn.expand(sn.reduce(x, "sum"), x))[0] @ p,
    "scores": scores,
    "ends": ends,
    "two at once": two_at_once,
    "no kernels": lambda x, p: {"mean": sn.reduce(x, "mean"), "last": sn.expand(sn.reduce(x, "last"), x)},
    "a constant": lambda x, p: {"p": sn.expand(p.T, x), "y": layer(1)(layer(0)(x)[0] @ p)[0] @ p},
    "convolutions": lambda x, p: sn.conv1d(layer(1)(sn.conv1d(x, KERNEL))[0], KERNEL, padding="same") @ p,
    "a convolution alone": lambda x, p: sn.conv1d(x, KERNEL, dilation=2),
    "strides": strides,
    "more steps": lambda x, p: sn.conv_transpose1d(layer(0)(x)[0], KERNEL, stride=2) + 1,
    "pooling": lambda x, p: {
        "max": sn.max_pool1d(x @ p, 2, padding=(0, 1)),
        "mean": sn.reduce(sn.avg_pool1d(layer(0)(x)[0], 3, stride=2, padding="same"), "mean"),
    },
    "middle of a stack": lambda x, p: (
        layer(2)(layer(1)(layer(0)(x)[0])[0])[0] @ p + sn.expand(sn.reduce(layer(0)(x)[0], "max"), x)
    ),
}


def graph(name: str) -> sn.Graph:
    return sn.Graph(MODELS[name], uniform(4, 4, seed=9))


def by_parts(name: str, x: Any) -> Any:
    """The results of a graph whose parts run one by one, with NumPy between them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stepnet.compiler.targets.part_execution.PartRun.fits", lambda *_: False)
        return graph(name)(x, engine="llvm")


def of_lengths(*lengths: int) -> sn.Ragged:
    values = uniform(sum(lengths), 4, seed=sum(lengths))
    return sn.Ragged(values, (np.cumsum([0, *lengths]).astype(np.int64),))


@pytest.mark.long(each=True)
@pytest.mark.usefixtures("same_threads", "small_calls_are_shared")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_graphs_have_the_bits_of_their_parts_alone(name: str, threads: int):
    sn.set_threads(threads)
    for x in (
        uniform(2, 9, 4),
        of_lengths(5, 3, 30),
        of_lengths(3, 0, 7),
        of_lengths(0),
        uniform(40, 200, 4),
    ):
        model, expected = graph(name), by_parts(name, x)
        for _ in range(4):
            assert_same_bits(model(x, engine="llvm"), expected)


@pytest.mark.long(every=2)
@pytest.mark.usefixtures("same_threads")
@pytest.mark.parametrize("name", MODELS)
def test_lengths_never_seen(name: str, monkeypatch: pytest.MonkeyPatch):
    sn.set_threads(1)
    model = graph(name)
    for lengths in ([2, 3], [4, 2], [3, 3]):
        model(of_lengths(*lengths))
    given = [of_lengths(*lengths) for lengths in ([5, 1], [1, 9], [20, 4], [30, 30])]
    expected = [by_parts(name, x) for x in given]
    monkeypatch.setattr("stepnet.compiler.targets.cpu.running.chain.Started.run", None)  # all is prepared
    assert_same_bits([model(x) for x in given], expected)


def reflected(x: Any, p: Any) -> Any:
    """Copies by reflection around a recurrence over fewer steps."""
    fewer = sn.conv1d(sn.pad_steps(x, (2, 1)), KERNEL, stride=2, padding="valid")
    return sn.conv1d(sn.pad_steps(layer(0)(fewer)[0], (0, 2)) @ p, KERNEL, padding="valid")


@pytest.mark.usefixtures("same_threads")
def test_reflection_of_lengths_never_seen(monkeypatch: pytest.MonkeyPatch):
    """Prepared calls take those that are long enough, and refuse others as any call does."""
    sn.set_threads(1)
    model = sn.Graph(reflected, uniform(4, 4, seed=9))
    for lengths in ([6, 7], [9, 5], [8, 8]):
        model(of_lengths(*lengths))
    given = [of_lengths(*lengths) for lengths in ([5, 30], [20, 6], [30, 31])]
    expected = [model(x, engine="interpret") for x in given]
    with monkeypatch.context() as patch:
        patch.setattr("stepnet.compiler.targets.cpu.running.chain.Started.run", None)  # all is prepared
        found = [model(x) for x in given]
    for own, right in zip(found, expected, strict=True):
        assert_close(own.values, right.values, 16, sum(right.lengths), "float32")
    for lengths, number in (([9, 3], 1), ([2, 9], 0)):
        with pytest.raises(InputError, match=f"has at least 3 steps, and sequence {number} has 2"):
            model(of_lengths(*lengths))


@pytest.mark.usefixtures("same_threads")
def test_other_parameters_are_read_where_they_are_repeated():
    """Also a transpose, which does not lie in order."""
    sn.set_threads(1)
    model, x = graph("a constant"), uniform(2, 9, 4)
    for seed in range(4):
        params = uniform(4, 4, seed=seed)
        other = model.with_params(params)
        for _ in range(3):
            assert_same_bits(other(x)["p"], np.broadcast_to(params.T, (2, 9, 4, 4)).copy())


def test_the_order_of_kernels_and_operations_between_them():
    """A kernel that reads a mean waits for the kernel of which it is, and cannot follow it step by step."""
    net = sn.Graph(MODELS["mean"], uniform(4, 4), inputs=4)
    order = order_of([part for part in net.schedule.parts if part.kind != "plain"])
    assert order == (((0,), (1,)), (), (frozenset({0}),))
    stack = sn.Graph(MODELS["middle of a stack"], uniform(4, 4), inputs=4)
    order = order_of(stack.schedule.parts)
    assert order.lines == ((0, 1),)  # the third one reads the maximum
    assert order.needs == (frozenset({0}),)
