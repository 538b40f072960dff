"""The ways in which a random step is run: a check draws a step and all it is given, and knows what is right.

`test_random_steps.py` runs each check a few times, `make test-long` thousands of times with other numbers.
"""

from itertools import product
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from callers import threads
from controlled_loop import assert_right as assert_controlled
from controlled_loop import right as controlled_loop
from random_decays import decaying
from random_gradients import assert_gradients
from random_layers import WAYS as DIRECTIONS
from random_layers import numbers_of, per_way, stack_of
from random_nets import POOLED, Groups, Nesting, Writer
from random_steps import RandomStep, Sequences, random_steps, sequences_for, sequences_of, wide
from random_totals import HOWS, call_of, kinds, on_llvm, with_totals
from random_totals import in_float64 as totals_in_float64
from same_bits import assert_same_bits
from sharing import every_step_shared
from tolerance import assert_close

import stepnet as sn
from stepnet.build import build
from stepnet.compiler.net import Precision
from stepnet.compiler.targets.frame import FrameRun
from stepnet.compiler.values import leaves, transform
from stepnet.errors import RefusedError
from stepnet.model import control

Array = np.ndarray
LONGEST, WIDTH = 5, 32
DTYPES = st.sampled_from(["float32", "float64"])
ENGINES = st.sampled_from(["interpret", "llvm"])


def assert_right(found: Any, expected: Any, length: int = LONGEST) -> None:
    """Asserts that results are near those in float64, each by its own dtype."""
    assert len(leaves(found)) == len(leaves(expected)) > 0
    for one, right in zip(leaves(found), leaves(expected), strict=True):
        if isinstance(one, sn.Ragged):
            assert one.lengths.tolist() == right.lengths.tolist()
            one, right = one.values, right.values
        assert_close(one, right, length, WIDTH)


def alone(results: Any, place: int) -> Any:
    """The part of results that belongs to one sequence."""
    return transform(lambda leaf: leaf[place : place + 1], results)


# ---- flat sequences ------------------------------------------------------------------


def flat(data: st.DataObject) -> None:
    """Machine code against the interpreter in float64, and the same bits alone, padded and in any threads."""
    step, dtype, reverse = data.draw(random_steps()), data.draw(DTYPES), data.draw(st.booleans())
    batch = data.draw(sequences_for(step, dtype))
    rnn = step.rnn(dtype, reverse)
    found = rnn(batch.inputs, batch.initial, batch.statics, engine="llvm")
    assert_right(found, in_float64(step, batch, reverse))
    last = rnn(batch.inputs, batch.initial, batch.statics, engine="llvm", last_only=True)
    assert_same_bits(last[1], found[1])
    for place in range(len(batch.lengths)):
        one = batch[place : place + 1]
        outputs, final = rnn(one.inputs, one.initial, one.statics, engine="llvm")
        assert_same_bits(final, alone(found[1], place))
        for part, whole, ending in zip(leaves(outputs), leaves(found[0]), leaves(last[0]), strict=True):
            assert_same_bits(part[0], whole[place])
            kept = part[0][0 if reverse else -1] if len(part[0]) else np.zeros_like(ending[place])
            assert_same_bits(ending[place], kept)
    same_bits_padded(rnn, batch, found)
    with every_step_shared(data.draw(st.booleans())):
        same_bits_in_threads(rnn, batch, found)


def in_float64(step: RandomStep, batch: Sequences, reverse: bool = False) -> Any:
    """The results of the interpreter, all numbers in float64."""
    inputs = transform(lambda ragged: ragged.with_values(wide(ragged.values)), batch.inputs)
    initial, statics = (transform(wide, part) for part in (batch.initial, batch.statics))
    return step.rnn("float64", reverse)(inputs, initial, statics, engine="interpret")


def same_bits_padded(rnn: sn.RNN, batch: Sequences, found: Any) -> None:
    """Asserts that arrays with lengths, thrice, give what Raggeds gave."""
    if not len(batch.lengths):
        return
    padded = transform(lambda ragged: ragged.to_padded(fill=7)[0], batch.inputs)
    for _ in range(3):
        outputs, final = rnn(padded, batch.initial, batch.statics, lengths=batch.lengths, engine="llvm")
        assert_same_bits(final, found[1])
        for array, ragged in zip(leaves(outputs), leaves(found[0]), strict=True):
            for row, one in zip(array, ragged, strict=True):
                assert_same_bits(row[: len(one)], one)
                assert not row[len(one) :].any()


def same_bits_in_threads(rnn: sn.RNN, batch: Sequences, found: Any) -> None:
    """Asserts that any number of threads gives the same, of the sequences once and of many times those."""
    many = repeated(batch, 40 // max(1, len(batch.lengths)))
    with threads(1):
        right = rnn(many.inputs, many.initial, many.statics, engine="llvm")
    for count in (2, 3):
        with threads(count):
            assert_same_bits(rnn(batch.inputs, batch.initial, batch.statics, engine="llvm"), found)
            assert_same_bits(rnn(many.inputs, many.initial, many.statics, engine="llvm"), right)
    for place in range(len(batch.lengths)):
        assert_same_bits(alone(right[1], place + len(batch.lengths)), alone(found[1], place))


def repeated(batch: Sequences, times: int) -> Sequences:
    """The sequences so many times, one after the other."""

    def again(leaf: Any) -> Any:
        if not isinstance(leaf, sn.Ragged):
            return np.concatenate([leaf] * times)
        lengths = np.concatenate([[0], *[leaf.lengths] * times])
        return sn.Ragged(np.concatenate([leaf.values] * times), (np.cumsum(lengths, dtype=np.int64),))

    return Sequences(*(transform(again, part) for part in (batch.inputs, batch.initial, batch.statics)))


def unrolled(data: st.DataObject) -> None:
    """Loops of several steps at a time give the bits of loops of one."""
    step, unroll = data.draw(random_steps()), data.draw(st.sampled_from([2, 3, 7]))
    batch = data.draw(sequences_for(step, "float32"))
    plain = step.rnn("float32")
    others = sn.RNN(plain.step, plain.params, memory=plain.memory, unroll=unroll)
    for engine in ("llvm", "interpret"):
        right = plain(batch.inputs, batch.initial, batch.statics, engine=engine)
        assert_same_bits(others(batch.inputs, batch.initial, batch.statics, engine=engine), right)


# ---- streams ------------------------------------------------------------------


def streamed(data: st.DataObject) -> None:
    """Steps one at a time are bit for bit what the whole sequences give, and end in the same memories."""
    step, dtype, engine = data.draw(random_steps()), data.draw(DTYPES), data.draw(ENGINES)
    batch = data.draw(sequences_for(step, dtype))
    rows = len(batch.lengths)
    if not rows:
        return
    rnn = step.rnn(dtype)
    outputs, final = rnn(batch.inputs, batch.initial, batch.statics, engine=engine)
    with every_step_shared(data.draw(st.booleans())), threads(data.draw(st.sampled_from([1, 2]))):
        stream = rnn.stream(rows, batch.initial, batch.statics, engine)
        for at in range(int(batch.lengths.max())):
            given = stream.step(transform(lambda ragged, at=at: at_step(ragged, at), batch.inputs))
            for one, whole in zip(leaves(given), leaves(outputs), strict=True):
                for row in np.flatnonzero(batch.lengths > at):
                    assert_same_bits(one[row], whole[int(row)][at])
            for row in np.flatnonzero(batch.lengths == at + 1):
                assert_same_bits(alone(stream.state, int(row)), alone(final, int(row)))


def at_step(ragged: sn.Ragged, at: int) -> Array:
    """One step of every sequence, [rows, features...]; zeros for those that have ended."""
    found = np.zeros((len(ragged), *ragged.values.shape[1:]), ragged.dtype)
    for row, sequence in enumerate(ragged):
        if len(sequence) > at:
            found[row] = sequence[at]
    return found


def framed(data: st.DataObject) -> None:
    """A program of one frame, run by NumPy's operations, against the interpreter in float64."""
    step, dtype = data.draw(random_steps()), data.draw(DTYPES)
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    batch = sequences_of(step, [3], random, dtype, initial=False)
    with TemporaryDirectory() as folder:
        try:
            program = build(step.rnn(dtype), folder, target="c").program
        except RefusedError as error:
            if "has no form for one frame" not in str(error):  # as sin has none
                raise
            return
    assert program is not None
    run, statics = FrameRun(program), [array[0] for array in leaves(batch.statics)]
    for at in range(3):
        frame = [*(ragged[0][at] for ragged in leaves(batch.inputs)), *statics]
        expected = [ragged[0][at] for ragged in leaves(in_float64(step, batch)[0])]
        for one, right in zip(run.step(*frame), expected, strict=True):
            assert_close(one.reshape(right.shape), right, LONGEST, WIDTH)


# ---- fewer bits ------------------------------------------------------------------


def encoded(data: st.DataObject) -> None:
    """With weights in fewer bits a sequence has the same bits alone, in a batch and on two threads."""
    step, reverse = data.draw(random_steps(sizes=(1, 3, 7, 16, 17, 33))), data.draw(st.booleans())
    batch = data.draw(sequences_for(step, "float32"))
    rnn = step.rnn("float32", reverse).in_precision(
        Precision(data.draw(st.sampled_from(["bfloat16", "int8"])))
    )

    def run(part: Sequences) -> Any:
        return rnn(part.inputs, part.initial, part.statics, engine="llvm")

    outputs, final = run(batch)
    with every_step_shared(data.draw(st.booleans())), threads(data.draw(st.sampled_from([1, 2, 3]))):
        assert_same_bits(list(run(batch)), [outputs, final])
        for row in range(len(batch.lengths)):
            assert_same_bits(list(run(batch[row : row + 1])), [alone(outputs, row), alone(final, row)])


# ---- control ------------------------------------------------------------------


def controlled(data: st.DataObject) -> None:
    """Masks and early ends, in pieces of any size, are a loop with ifs."""
    step, engine, reverse = data.draw(random_steps()), data.draw(ENGINES), data.draw(st.booleans())
    batch = data.draw(sequences_for(step, "float64"))
    drawn = np.random.default_rng(data.draw(st.integers(0, 99)))
    like = leaves(batch.inputs)[0]
    mask = like.with_values(drawn.uniform(0, 1, like.total) < 0.6) if data.draw(st.booleans()) else None
    flags = like.with_values(drawn.uniform(0, 1, like.total) < 0.3)
    masked = data.draw(st.sampled_from(["repeat", "zero"]))
    until = data.draw(st.sampled_from([None, lambda output, memory: output[1]]))

    def flagged(x: Any, memory: Any, params: Any, statics: Any, index: Any) -> Any:
        output, after = step.function(x["x"], memory, params, statics=statics, index=index)
        return (output, x["flag"]), after

    inputs = {"x": batch.inputs, "flag": flags}
    rnn = sn.RNN(flagged, step.params, memory=step.memory, reverse=reverse, until=until)
    with pytest.MonkeyPatch.context() as patch:
        pieces = data.draw(st.sampled_from([(1, 4), (2, 2), (8, 128)]))
        patch.setattr(control, "PIECES", pieces)
        found = rnn(inputs, batch.initial, batch.statics, mask=mask, masked=masked, engine=engine)
    initial = batch.initial or zeros(step, len(like))
    wanted = controlled_loop(
        flagged, step.params, inputs, initial, batch.statics, mask, masked, until, reverse
    )
    assert_controlled(found, wanted, until is not None)


def zeros(step: RandomStep, count: int) -> dict[str, Array]:
    """The memories that sequences begin with when none are given."""
    return {name: np.zeros((count, *spec.shape), spec.dtype or "f8") for name, spec in step.memory.items()}


# ---- steps in steps, and symbols ------------------------------------------------------------------


def nested(data: st.DataObject) -> None:
    """A recurrence inside another is a loop inside a loop, in both engines and in any company."""
    nesting = Nesting(
        data.draw(random_steps(sizes=(1, 2, 3, 5), most=4)),
        data.draw(random_steps(sizes=(1, 2, 3, 5), most=4)),
        data.draw(DTYPES),
        data.draw(st.booleans()),
        data.draw(st.booleans()),
        data.draw(st.sampled_from([None, *POOLED])),
    )
    reverse, flat_ = (
        data.draw(st.booleans()),
        data.draw(sequences_for(nesting.outer, nesting.dtype, longest=3)),
    )
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    lengths = random.integers(0, 4, int(flat_.lengths.sum())).tolist()
    words = sequences_of(nesting.inner, lengths, random, nesting.dtype, initial=False)
    given = Groups(flat_, words.inputs, words.statics)
    rnn, (outputs, finals) = nesting.rnn(reverse), nesting.loop(given, reverse)
    for engine in ("interpret", "llvm"):
        found = rnn(given.inputs, flat_.initial, flat_.statics, engine=engine)
        assert_controlled(found, (outputs, finals), shortened=False)
        for place in range(len(given)):
            cut = transform(lambda leaf, place=place: leaf[place : place + 1], given.inputs)
            one = rnn(cut, *(alone(part, place) for part in (flat_.initial, flat_.statics)), engine=engine)
            assert_same_bits(one[1], alone(found[1], place))
            for part, whole in zip(leaves(one[0]), leaves(found[0]), strict=True):
                assert_same_bits(part[0], whole[place])


def generated(data: st.DataObject) -> None:
    """The symbols that follow are those of a loop, whatever each sequence begins with."""
    writer, engine = Writer(data.draw(random_steps()), data.draw(st.sampled_from([2, 5]))), data.draw(ENGINES)
    symbol = st.integers(0, writer.symbols - 1)
    starts = data.draw(st.lists(st.lists(symbol, min_size=1, max_size=3), min_size=1, max_size=4))
    most, stops = data.draw(st.integers(1, 6)), data.draw(st.sampled_from([(), (0,), (1, 0)]))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    beside = sequences_of(
        writer.inner, [0] * len(starts), random, "float64", initial=data.draw(st.booleans())
    )
    initial = beside.initial or zeros(writer.inner, len(starts))
    found = sn.generate(
        writer.rnn(),
        sn.Ragged.from_list([np.array(one) for one in starts]),
        feed=writer.feed,
        initial=beside.initial,
        statics=beside.statics,
        stop=stops,
        max_steps=most,
        engine=engine,
    )
    expected = [
        writer.loop(said, alone(initial, place), alone(beside.statics, place), most, stops)
        for place, said in enumerate(starts)
    ]
    assert [np.asarray(one).tolist() for one in found] == expected


# ---- layers, totals, and arrays of two bytes ------------------------------------------------------


def layered(data: st.DataObject) -> None:
    """Layers as one call, or as a stream, give the bits of layers called one after the other."""
    steps = data.draw(st.lists(random_steps(sizes=(1, 2, 3, 5), most=3), min_size=2, max_size=3))
    ways = [data.draw(st.sampled_from(DIRECTIONS)) for _ in steps]
    dtype, engine, width = data.draw(DTYPES), data.draw(ENGINES), data.draw(st.sampled_from([1, 3, 17]))
    stack = stack_of(steps, ways, width, dtype)
    some = st.lists(st.sampled_from([LONGEST, 2, 1, 0]), min_size=2, max_size=4)
    lengths = data.draw(st.one_of(some, some, some, st.just([])))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    statics, initial = (
        [
            per_way(way, numbers_of(specs(step), len(lengths), dtype, random))
            for step, way in zip(steps, ways, strict=True)
        ]
        for specs in (lambda step: step.statics, lambda step: step.memory)
    )
    initial = [one if data.draw(st.booleans()) else None for one in initial]
    offsets = (np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),)
    x = sn.Ragged(random.uniform(-1, 1, (sum(lengths), width)).astype(dtype), offsets)
    ahead, below, finals = x, x, []
    for place, layer in enumerate(stack.layers):
        ahead = below
        below, final = layer(below, initial[place], statics=statics[place], engine=engine)
        finals.append(final)
    last, _ = stack.layers[-1](ahead, initial[-1], statics=statics[-1], engine=engine, last_only=True)
    with threads(data.draw(st.sampled_from([1, 2]))):
        for last_only, outputs in ((False, below), (True, last)):
            found = stack(x, tuple(initial), statics=tuple(statics), engine=engine, last_only=last_only)
            assert_same_bits(found, (outputs, tuple(finals)))
    if set(ways) == {"forward"} and lengths:
        stream = stack.stream(len(lengths), tuple(initial), tuple(statics), engine)
        for at in range(max(lengths)):
            shown = stream.step(at_step(x, at))
            for row in np.flatnonzero(x.lengths > at):
                assert_same_bits(shown[row], below[int(row)][at])


def totalled(data: st.DataObject) -> None:
    """Reductions and contracts of all steps, in machine code and by the interpreter in float64."""
    step, dtype, reverse = data.draw(random_steps()), data.draw(DTYPES), data.draw(st.booleans())
    rnn = step.rnn(dtype, reverse)
    net = with_totals(rnn.net, data.draw(st.sampled_from(HOWS)), data.draw(st.sampled_from(HOWS)))
    assert "totals" in kinds(net)
    params = leaves(rnn.params)
    bound = on_llvm(net, params)
    for _ in range(2):
        call = call_of(step, data.draw(sequences_for(step, dtype)))
        found, right = bound(call), totals_in_float64(net, params, call)
        assert len(found.arrays) == len(right.arrays) == len(net.results)
        for one, other in zip(found.arrays, right.arrays, strict=True):
            assert_close(one, other, LONGEST * max(1, call.positions.rows), WIDTH, dtype_of(one, dtype))
        with threads(2):
            assert_same_bits(bound(call).arrays, found.arrays)


def dtype_of(array: Array, dtype: str) -> str | None:
    """By which dtype floats are compared; None for what is equal."""
    return dtype if array.dtype.kind == "f" else None


def stored(data: st.DataObject) -> None:
    """Numbers of two bytes are computed with in float32, and results rounded once: of both dtypes, on each
    engine.
    """
    step, reverse = data.draw(random_steps()), data.draw(st.booleans())
    batch = data.draw(sequences_for(step, "float32"))
    for dtype, engine in product(("float16", "bfloat16"), ("interpret", "llvm")):
        assert_rounded_once(step, batch, reverse, dtype, engine)


def assert_rounded_once(step: RandomStep, batch: Sequences, reverse: bool, dtype: str, engine: str) -> None:
    """Asserts that results are those of the widened numbers, rounded."""

    def of_two_bytes(leaf: Any) -> Any:
        values = leaf.values if isinstance(leaf, sn.Ragged) else leaf
        narrow = values.astype(dtype) if values.dtype.kind == "f" else values
        return leaf.with_values(narrow) if isinstance(leaf, sn.Ragged) else narrow

    def widened(leaf: Any) -> Any:
        values = leaf.values if isinstance(leaf, sn.Ragged) else leaf
        wider = values.astype("float32") if values.dtype == dtype else values
        return leaf.with_values(wider) if isinstance(leaf, sn.Ragged) else wider

    def called(change: Any) -> Any:
        narrow = transform(of_two_bytes, (step.params, batch.inputs, batch.initial, batch.statics))
        params, inputs, initial, statics = transform(change, narrow)
        rnn = sn.RNN(step.function, params, memory=step.memory, reverse=reverse)
        return rnn(inputs, initial, statics, engine=engine)

    found, right = called(lambda leaf: leaf), called(widened)
    floats = [
        one for one in leaves(right) if (one.values if isinstance(one, sn.Ragged) else one).dtype.kind == "f"
    ]
    assert floats
    assert_same_bits(found, transform(of_two_bytes, right))


# ---- gradients -----------------------------------------------------------------------


def differentiated(data: st.DataObject) -> None:
    """Gradients by central differences, and on every engine."""
    step, reverse = data.draw(random_steps()), data.draw(st.booleans())
    batch, seed = data.draw(sequences_for(step, "float64")), data.draw(st.integers(0, 99))
    dtype = data.draw(DTYPES)
    given = {"sequences": batch.inputs, "initial": batch.initial, "statics": batch.statics}
    given = {name: part for name, part in given.items() if part is not None}
    steps = int(batch.lengths.sum())
    assert_gradients(lambda dtype: step.rnn(dtype, reverse), given, seed, LONGEST + steps, WIDTH, dtype)


WAYS = {
    way.__name__: way
    for way in (
        flat,
        unrolled,
        streamed,
        framed,
        encoded,
        controlled,
        nested,
        generated,
        layered,
        totalled,
        stored,
        differentiated,
        decaying,
    )
}
