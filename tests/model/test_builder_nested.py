"""Blocks within blocks: nested recurrences written with the builder, against plain loops over NumPy arrays in
float64.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tolerance import assert_close
from zoo import uniform

import stepnet as sn
from stepnet.errors import InputError
from stepnet.model.builder import Memory, RNNOp, matmul

Array = np.ndarray
ENGINES = pytest.mark.parametrize("engine", ["interpret", "llvm"])
numbers = partial(uniform, dtype="float64")


def levels_of(lengths: Any) -> list[list[int]]:
    """The lengths of each level, outermost first: of [[2, 0], [3]] those are [2, 1] and [2, 0, 3]."""
    found = [[len(one) for one in lengths]]
    while lengths and not all(isinstance(one, int) for part in lengths for one in part):
        lengths = [one for part in lengths for one in part]
        found.append([len(one) for one in lengths])
    return [*found, [int(one) for part in lengths for one in part]]


def ragged(
    lengths: Any, seed: int = 0, features: int = 3, dtype: Any = np.float64, deep: int = 2
) -> sn.Ragged:
    """Sequences in sequences of such lengths, of random numbers."""
    levels = levels_of(lengths)
    levels += [[]] * (deep - len(levels))
    offsets = tuple(np.cumsum([0, *level], dtype=np.int64) for level in levels)
    return sn.Ragged(numbers(int(offsets[-1][-1]), features, seed=seed, dtype=dtype), offsets)


# ---- the nested program of the RNN operator's design ------------------------------------------------
#
# As printed there:                                    Mended here:
#
#   W = pd.Variable(shape=[20, 30])                    W takes a word of 128 numbers to 20 and is [20, 128]:
#   U = pd.Variable(shape=[20, 30])                    words 128 wide cannot meet weights 30 wide. U takes a
#                                                      memory of 20 to 20 and is [20, 20]: as printed, W x
#                                                      and U h cannot meet.
#   W0 = pd.Variable(shape=[20, 30])                   W0 and U0 take a paragraph and the memory, 20 numbers
#   U0 = pd.Variable(shape=[20, 30])                   each, to 20: both are [20, 20].
#
#   h = rnn.add_memory(shape=[20, 30])                 The memory is what it is updated with, 20 numbers:
#                                                      shape=[20].
#
#   paragraph_data = rnn.add_input(chapter_data, ...)  Where the outer block uses it there is no `rnn` yet: it
#   h = rnn.add_memory(init=a)                         is a name in the function above. `top_level_rnn`, both.
#
#   # get the last state as sentence's info            That is what the comment says and what the text says of
#   paragraph_out = low_rnn()                          it, but low_rnn() gives all states:
#                                                      low_rnn(output_all_steps=False).
#   pd.matmul(W0, paragraph_data)                      `paragraph_out` is never used, and `paragraph_data` is
#                                                      a sequence of words, where one value per paragraph is
#                                                      needed: pd.matmul(W0, paragraph_out).
#
# `a` has a row of 20 for each chapter; a word is what it calls a sentence, a vector of 128; `chapter_data` is
# a Ragged of two levels, and parameters are NumPy arrays; `pd` is `stepnet.model.builder`.

CHAPTERS = [[3, 1, 0], [], [2], [0, 4]]


@pytest.mark.long(each=True)
@ENGINES
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_nested_program_of_the_design(engine: str, dtype: Any) -> None:
    pd: Any = sn.builder
    W, U = numbers(20, 128, seed=0, dtype=dtype, scale=0.1), numbers(20, 20, seed=1, dtype=dtype, scale=0.2)
    W0, U0 = numbers(20, 20, seed=2, dtype=dtype, scale=0.2), numbers(20, 20, seed=3, dtype=dtype, scale=0.2)
    a = numbers(4, 20, seed=4, dtype=dtype)
    chapter_data = ragged(CHAPTERS, 5, 128, dtype)

    def lower_level_rnn(paragraph: Any) -> Any:
        rnn = pd.create_rnn_op(output_num=1)
        with rnn.stepnet():
            sentence = rnn.add_input(paragraph, level=0)
            h = rnn.add_memory(shape=[20])
            h.update(pd.matmul(W, sentence) + pd.matmul(U, h.pre_state()))
            rnn.add_outputs(h)
        return rnn

    top_level_rnn = pd.create_rnn_op(output_num=1)
    with top_level_rnn.stepnet():
        paragraph_data = top_level_rnn.add_input(chapter_data, level=1)
        low_rnn = lower_level_rnn(paragraph_data)
        paragraph_out = low_rnn(output_all_steps=False)

        h = top_level_rnn.add_memory(init=a)
        h.update(pd.matmul(W0, paragraph_out) + pd.matmul(U0, h.pre_state()))
        top_level_rnn.add_outputs(h)

    chapter_out = top_level_rnn(output_all_steps=False, engine=engine)
    all_out = top_level_rnn(engine=engine)

    assert chapter_out.dtype == all_out.dtype == dtype
    assert all_out.lengths.tolist() == list(map(len, CHAPTERS))
    w, u, w0, u0 = (one.astype(np.float64) for one in (W, U, W0, U0))
    for place, chapter in enumerate(chapter_data.to_list()):
        outer = a[place].astype(np.float64)
        for at, paragraph in enumerate(chapter):
            inner = np.zeros(20)
            for sentence in paragraph:
                inner = w @ sentence + u @ inner
            outer = w0 @ inner + u0 @ outer
            assert_close(all_out[place][at], outer, length=6, width=128)
        right = outer if len(chapter) else np.zeros(20)
        assert_close(chapter_out[place], right, length=6, width=128, dtype=dtype)


# ---- blocks in a block, and the loops that they are -------------------------------------------------
#
# Each program is what stands in the outer block between its memory and the memory's update: it gives the
# outputs, of which the first is the update. Its loop is the same for one sentence, in NumPy.

W, U = numbers(4, 3, seed=10), numbers(4, 4, seed=11, scale=0.5)
W0, U0 = numbers(4, 4, seed=12), numbers(4, 4, seed=13, scale=0.5)
NOTHING = np.zeros(4)


def word_block(sentence: Any, init: Any = None, add: Any = 0.0) -> RNNOp:
    """An inner recurrence over the words of a sentence."""
    inner = sn.create_rnn_op()
    with inner.stepnet():
        word = inner.add_input(sentence, level=0)
        s = inner.add_memory(shape=[4]) if init is None else inner.add_memory(init=init)
        s.update(np.tanh(matmul(W, word) + matmul(U, s.pre_state()) + add))
        inner.add_outputs(s)
    return inner


def word_loop(sentence: Array, first: Array = NOTHING, add: Any = 0.0) -> list[Array]:
    """The memory after each word."""
    found: list[Array] = []
    for word in sentence:
        first = np.tanh(W @ word + U @ first + add)
        found.append(first)
    return found


def last_of(values: Sequence[Array]) -> Array:
    return values[-1] if len(values) else NOTHING


def reset(outer: RNNOp, sentence: Any, h: Memory, bias: Any, still: Any) -> Any:
    """The inner memory begins with zeros in each inner sequence."""
    last = word_block(sentence)(output_all_steps=False)
    return np.tanh(matmul(W0, last) + matmul(U0, h.pre_state()))


def reset_loop(sentence: Array, h: Array, t: int, bias: Array, still: Array) -> Any:
    return np.tanh(W0 @ last_of(word_loop(sentence)) + U0 @ h)


def continued(outer: RNNOp, sentence: Any, h: Memory, bias: Any, still: Any) -> Any:
    """The inner memory continues from the outer one, and hands it on."""
    return word_block(sentence, init=h.pre_state())(output_all_steps=False) + matmul(U0, h.pre_state())


def continued_loop(sentence: Array, h: Array, t: int, bias: Array, still: Array) -> Any:
    return last_of(word_loop(sentence, h)) + U0 @ h


def reduced(outer: RNNOp, sentence: Any, h: Memory, bias: Any, still: Any) -> Any:
    """Outputs of the inner one at every step, each way of making one value of them."""
    steps = word_block(sentence)()
    mean, most = sn.reduce(steps, "mean"), sn.reduce(steps * 2, "max")
    new = np.tanh(mean + matmul(W0, most) + matmul(U0, h.pre_state()))
    return new, sn.reduce(steps, "sum"), sn.reduce(steps, "first"), sn.reduce(steps, "last")


def reduced_loop(sentence: Array, h: Array, t: int, bias: Array, still: Array) -> Any:
    steps = np.array(word_loop(sentence) or [NOTHING])
    new = np.tanh(steps.mean(axis=0) + W0 @ (steps * 2).max(axis=0) + U0 @ h)
    return new, steps.sum(axis=0), steps[0], steps[-1]


def captured(outer: RNNOp, sentence: Any, h: Memory, bias: Any, still: Any) -> Any:
    """Values of the block around in the step inside: its memory, an input, and what is made of them."""
    mixed = matmul(W0, h.pre_state()) + bias
    inner = sn.create_rnn_op(output_num=3)
    with inner.stepnet():
        word = inner.add_input(sentence)
        s = inner.add_memory(shape=[4])
        s.update(np.tanh(matmul(W, word) + mixed * s.pre_state() + h.pre_state()))
        inner.add_outputs(s, h.pre_state(), np.where(s.pre_state() > 0, mixed, 1.0))
    last, same, where = inner(output_all_steps=False)
    return np.tanh(last - mixed), same, where


def captured_loop(sentence: Array, h: Array, t: int, bias: Array, still: Array) -> Any:
    mixed, s, same, where = W0 @ h + bias, NOTHING, NOTHING, NOTHING
    for word in sentence:
        same, where = h, np.where(s > 0, mixed, 1.0)
        s = np.tanh(W @ word + mixed * s + h)
    return np.tanh(s - mixed), same, where


def lifted(outer: RNNOp, sentence: Any, h: Memory, bias: Any, still: Any) -> Any:
    """An input and a static of the block around, which do not keep the inner one in the loop."""
    inner = word_block(sentence, init=bias * 2, add=bias + still)
    return np.tanh(inner(output_all_steps=False) + matmul(U0, h.pre_state()))


def lifted_loop(sentence: Array, h: Array, t: int, bias: Array, still: Array) -> Any:
    return np.tanh(last_of(word_loop(sentence, bias * 2, bias + still)) + U0 @ h)


def statics(outer: RNNOp, sentence: Any, h: Memory, bias: Any, still: Any) -> Any:
    """Statics of the inner block, said and unsaid, of what changes from step to step and of what does not."""
    inner = sn.create_rnn_op(output_num=2)
    with inner.stepnet():
        word = inner.add_input(sentence)
        before, fixed = inner.add_static(h.pre_state()), inner.add_static(still)
        s = inner.add_memory(init=still)
        s.update(np.tanh(matmul(W, word) * fixed + s.pre_state() * before + h.pre_state()))
        inner.add_outputs(s)
        inner.add_outputs(fixed + before)
    steps, both = inner()
    return sn.reduce(steps, "mean") + 0.5 * h.pre_state(), sn.reduce(both, "sum")


def statics_loop(sentence: Array, h: Array, t: int, bias: Array, still: Array) -> Any:
    s, found = still, []
    for word in sentence:
        s = np.tanh(W @ word * still + s * h + h)
        found.append(s)
    mean = np.mean(found, axis=0) if found else NOTHING
    return mean + 0.5 * h, len(sentence) * (still + h)


def counted(outer: RNNOp, sentence: Any, h: Memory, bias: Any, still: Any) -> Any:
    """The number of steps before, of both levels."""
    t = outer.index()
    inner = sn.create_rnn_op(output_num=2)
    with inner.stepnet():
        word = inner.add_input(sentence)
        n = inner.index()
        s, total = inner.add_memory(shape=[4]), inner.add_memory(shape=(), dtype=np.int64)
        s.update(np.where((n == t)[:, None], matmul(W, word), 0.5 * s.pre_state()))
        total.update(total.pre_state() + 10 * t + n)
        inner.add_outputs(s, total)
    last, total = inner(output_all_steps=False)
    return last + 0.5 * h.pre_state(), total


def counted_loop(sentence: Array, h: Array, t: int, bias: Array, still: Array) -> Any:
    s, total = NOTHING, 0
    for n, word in enumerate(sentence):
        s = W @ word if n == t else 0.5 * s
        total += 10 * t + n
    return s + 0.5 * h, total


def two_layers(outer: RNNOp, sentence: Any, h: Memory, bias: Any, still: Any) -> Any:
    """A second inner recurrence runs over the outputs of the first at every step, beside the words."""
    lower = word_block(sentence)
    upper = sn.create_rnn_op(output_num=2)
    with upper.stepnet():
        x, word = upper.add_input(lower() * 2), upper.add_input(sentence)
        s = upper.add_memory(init=h.pre_state())
        s.update(np.tanh(matmul(W0, x) + matmul(W, word) + matmul(U, s.pre_state())))
        upper.add_outputs(s, word)
    s, word = upper(output_all_steps=False)
    return s + lower(output_all_steps=False), word


def two_layers_loop(sentence: Array, h: Array, t: int, bias: Array, still: Array) -> Any:
    lower, s, last = word_loop(sentence), h, np.zeros(3)
    for x, word in zip(lower, sentence, strict=True):
        s, last = np.tanh(W0 @ (x * 2) + W @ word + U @ s), word
    return (s if len(sentence) else NOTHING) + last_of(lower), last


Program = Callable[[RNNOp, Any, Memory, Any, Any], Any]
PROGRAMS: dict[str, tuple[Program, Callable[..., Any], int, bool]] = {
    "reset": (reset, reset_loop, 1, True),
    "continued": (continued, continued_loop, 1, False),
    "reduced": (reduced, reduced_loop, 4, True),
    "captured": (captured, captured_loop, 3, False),
    "lifted": (lifted, lifted_loop, 1, True),
    "statics": (statics, statics_loop, 2, False),
    "counted": (counted, counted_loop, 2, False),
    "two layers": (two_layers, two_layers_loop, 2, False),
}


def written(program: Program, count: int, texts: sn.Ragged, first: Array, bias: Any, still: Array) -> RNNOp:
    """The outer block with a program in it."""
    outer = sn.create_rnn_op(output_num=count)
    with outer.stepnet():
        sentence = outer.add_input(texts, level=1)
        h = outer.add_memory(init=first)
        found = program(outer, sentence, h, outer.add_input(bias), outer.add_static(still))
        outputs = found if isinstance(found, tuple) else (found,)
        h.update(outputs[0])
        outer.add_outputs(h, *outputs[1:])
    return outer


LENGTHS = st.sampled_from([0, 0, 1, 1, 2, 4])
DOCUMENTS = st.lists(st.lists(LENGTHS, max_size=4), max_size=4)


@pytest.mark.long(each=True)
@ENGINES
@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=8)
@given(lengths=DOCUMENTS, seed=st.integers(0, 99))
def test_blocks_in_a_block_are_loops_in_a_loop(
    name: str, engine: str, lengths: list[list[int]], seed: int
) -> None:
    program, loop, count, _ = PROGRAMS[name]
    texts, rows = ragged(lengths, seed), len(lengths)
    bias = sn.Ragged(numbers(sum(map(len, lengths)), 4, seed=seed + 1), texts.offsets[:1])
    first, still = numbers(rows, 4, seed=seed + 2), numbers(rows, 4, seed=seed + 3)
    outer = written(program, count, texts, first, bias, still)
    found, last = outer(engine=engine), outer(output_all_steps=False, engine=engine)
    found, last = (one if count > 1 else (one,) for one in (found, last))
    assert [one.lengths.tolist() for one in found] == [[len(text) for text in lengths]] * count
    for place, text in enumerate(texts.to_list()):
        h = first[place]
        right: Any = [np.zeros(one.shape[1:]) for one in last]
        for t, sentence in enumerate(text):
            made = loop(sentence, h, t, bias[place][t], still[place])
            right = made if isinstance(made, tuple) else (made,)
            h = right[0]
            for output, one in zip(found, right, strict=True):
                assert_close(output[place][t], one, length=20, width=8)
        for output, one in zip(last, right, strict=True):
            assert_close(output[place], one, length=20, width=8)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_needs_no_memory_of_the_block_around_leaves_its_loop(name: str) -> None:
    program, _, count, leaves = PROGRAMS[name]
    texts = ragged([[2, 0], [1]])
    bias = sn.Ragged(numbers(3, 4, seed=1), texts.offsets[:1])
    outer = written(program, count, texts, numbers(2, 4, seed=2), bias, numbers(2, 4, seed=3))
    parts = outer.recurrence.schedule.parts
    kinds = [part.kind for part in parts if part.kind != "recurrence" or part.node is not None]
    assert kinds.count("recurrence") == (2 if leaves else kinds.count("recurrence"))
    assert "loop" not in kinds
    bodies = [part.node.recur.body for part in parts if part.kind == "recurrence" and part.node is not None]
    within = [node.operation for body in bodies for node in body.nodes]
    assert within.count("recur") == (0 if leaves else 1)


def test_the_net_is_the_one_of_a_step_that_calls_a_recurrence() -> None:
    texts = ragged([[2, 0], [1]])
    outer = sn.create_rnn_op()
    with outer.stepnet():
        sentence = outer.add_input(texts, level=1)
        h = outer.add_memory(shape=[4])
        last = word_block(sentence)(output_all_steps=False)
        h.update(np.tanh(matmul(W0, last) + matmul(U0, h.pre_state())))
        outer.add_outputs(h)

    def words(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
        memory = np.tanh(x @ W.T + memory @ U.T + 0.0)
        return memory, memory

    inner = sn.RNN(words, memory=4)

    def step(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
        said, _ = inner(x, initial="zeros", last_only=True)
        memory = np.tanh(said @ W0.T + memory @ U0.T)
        return memory, memory

    rnn = sn.RNN(step, memory=4)
    right, _ = rnn(texts)
    assert str(outer.recurrence.net) == str(rnn.net)
    assert outer.recurrence.net == rnn.net
    assert outer().values.tobytes() == right.values.tobytes()
    assert outer.recurrence.explain() == rnn.explain()


def test_sequences_as_outputs_and_one_recurrence_for_all_calls(engine: str) -> None:
    """All steps of the inner one as an output is a Ragged of two levels; calling it twice runs it once."""
    texts = ragged([[2, 0], [], [1, 3]])
    outer = sn.create_rnn_op(output_num=2)
    with outer.stepnet():
        sentence = outer.add_input(texts, level=1)
        inner = word_block(sentence)
        h = outer.add_memory(shape=[4])
        h.update(inner(output_all_steps=False) + sn.reduce(inner(), "last") + h.pre_state())
        outer.add_outputs(inner() * 2, h)
    body = outer.recurrence.program.traced.body
    assert [node.operation for node in body.nodes].count("recur") == 1
    words, found = outer(engine=engine)
    assert (words.levels, found.levels) == (2, 1)
    for place, text in enumerate(texts.to_list()):
        h_now = NOTHING
        for at, sentence in enumerate(text):
            steps = word_loop(sentence)
            h_now = 2 * last_of(steps) + h_now
            assert_close(words[place][at], np.array(steps).reshape(-1, 4) * 2, length=4, width=8)
            assert_close(found[place][at], h_now, length=8, width=8)
    with pytest.raises(InputError, match="last_only is for outputs that there is one of per step; this one"):
        outer(output_all_steps=False, engine=engine)


def test_it_may_run_over_other_sequences(engine: str) -> None:
    texts, others = ragged([[2, 0], [1]]), ragged([[1], [], [0, 3, 2]], 7)
    outer = sn.create_rnn_op()
    with outer.stepnet():
        sentence = outer.add_input(texts, level=1)
        h = outer.add_memory(shape=[4])
        h.update(word_block(sentence, init=h.pre_state())(output_all_steps=False))
        outer.add_outputs(h)
    found, final = outer.recurrence({"x": others}, engine=engine)
    for place, text in enumerate(others.to_list()):
        h_now = NOTHING
        for at, sentence in enumerate(text):
            h_now = last_of(word_loop(sentence, h_now))
            assert_close(found[place][at], h_now, length=8, width=8)
        assert_close(final["memory"][place], h_now, length=8, width=8)


# ---- three levels -----------------------------------------------------------------------------------


@pytest.mark.long(examples=5)
@ENGINES
@settings(max_examples=15)
@given(
    lengths=st.lists(st.lists(st.lists(LENGTHS, max_size=3), max_size=3), max_size=3), seed=st.integers(0, 99)
)
def test_three_levels(engine: str, lengths: list[list[list[int]]], seed: int) -> None:
    """The innermost block reads values of both blocks around it, and begins where the outermost is."""
    books, rows = ragged(lengths, seed, deep=3), len(lengths)
    first, still = numbers(rows, 4, seed=seed + 1), numbers(rows, 4, seed=seed + 2)
    outer = sn.create_rnn_op(output_num=2)
    with outer.stepnet():
        book = outer.add_input(books, level=2)
        g, fixed = outer.add_memory(init=first), outer.add_static(still)
        middle = sn.create_rnn_op(output_num=2)
        with middle.stepnet():
            text = middle.add_input(book, level=1)
            h, at = middle.add_memory(shape=[4]), middle.index()
            both = h.pre_state() * g.pre_state() + at[:, None].astype(np.float64)
            inner = sn.create_rnn_op()
            with inner.stepnet():
                word = inner.add_input(text, level=0)
                s = inner.add_memory(init=g.pre_state())
                shown = inner.index()[:, None].astype(np.float64)
                s.update(np.tanh(matmul(W, word) + s.pre_state() * both + g.pre_state() * shown + fixed))
                inner.add_outputs(s)
            h.update(np.tanh(inner(output_all_steps=False) + matmul(U, h.pre_state())))
            middle.add_outputs(h, sn.reduce(inner(), "mean"))
        steps, means = middle()
        g.update(np.tanh(matmul(W0, sn.reduce(steps, "last")) + matmul(U0, g.pre_state())))
        outer.add_outputs(g, sn.reduce(means, "sum"))
    found, sums = outer(engine=engine)

    for place, texts in enumerate(books.to_list()):
        g_now = first[place]
        for count, sentences in enumerate(texts):
            h_now, total = NOTHING, NOTHING
            for at_now, sentence in enumerate(sentences):
                both_now, s_now, seen = h_now * g_now + at_now, g_now, []
                for n, one in enumerate(sentence):
                    s_now = np.tanh(W @ one + s_now * both_now + g_now * n + still[place])
                    seen.append(s_now)
                h_now = np.tanh(last_of(seen) + U @ h_now)
                total = total + (np.mean(seen, axis=0) if seen else NOTHING)
            g_now = np.tanh(W0 @ h_now + U0 @ g_now)
            assert_close(found[place][count], g_now, length=40, width=8)
            assert_close(sums[place][count], total, length=40, width=8)
    assert found.lengths.tolist() == sums.lengths.tolist() == list(map(len, lengths))


# ---- blocks and steps -------------------------------------------------------------------------------


def test_a_block_in_a_step(engine: str) -> None:
    """A step written as a function holds a block, of which parameters are the first memory and a static."""
    texts = ragged([[2, 0], [1, 3]])
    params = {"begin": numbers(4, seed=1), "W": numbers(4, 4, seed=2), "scale": numbers(4, seed=3)}

    def step(sentence: Any, h: Any, p: Any) -> tuple[Any, Any]:
        inner = sn.create_rnn_op()
        with inner.stepnet():
            word, scale = inner.add_input(sentence), inner.add_static(p["scale"])
            s = inner.add_memory(init=p["begin"])
            s.update(np.tanh(matmul(W, word) + s.pre_state() * scale + h))
            inner.add_outputs(s)
        h = np.tanh(inner(output_all_steps=False) @ p["W"] + h)
        return h, h

    found, _ = sn.RNN(step, params, memory=4)(texts, engine=engine)
    for place, text in enumerate(texts.to_list()):
        h = NOTHING
        for at, sentence in enumerate(text):
            s = params["begin"]
            for word in sentence:
                s = np.tanh(W @ word + s * params["scale"] + h)
            h = np.tanh((s if len(sentence) else NOTHING) @ params["W"] + h)
            assert_close(found[place][at], h, length=8, width=8)


def test_a_recurrence_in_a_block(engine: str) -> None:
    """A block calls an `RNN` over an inner sequence, and one of arrays runs beside it by itself."""
    texts = ragged([[2, 0], [1, 3]])

    def words(word: Any, s: Any, p: Any) -> tuple[Any, Any]:
        s = np.tanh(word @ W.T + s @ U.T)
        return s, s

    outer = sn.create_rnn_op()
    with outer.stepnet():
        sentence = outer.add_input(texts, level=1)
        h = outer.add_memory(shape=[4])
        alone = word_block(numbers(1, 2, 3, seed=5))(output_all_steps=False)
        _, last = sn.RNN(words, memory=4)(sentence, initial=h.pre_state())
        h.update(last + alone)
        outer.add_outputs(h)
    found = outer(engine=engine)
    assert_close(alone[0], word_loop(numbers(2, 3, seed=5))[-1], length=2, width=8)
    for place, text in enumerate(texts.to_list()):
        h_now = NOTHING
        for at, sentence in enumerate(text):
            h_now = [h_now, *word_loop(sentence, h_now)][-1] + alone[0]
            assert_close(found[place][at], h_now, length=8, width=8)
