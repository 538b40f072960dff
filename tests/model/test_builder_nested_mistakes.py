"""Mistakes in blocks within blocks: each is refused in the user's words, and on the user's line."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stepnet as sn
from stepnet.errors import StepError, StepnetError
from stepnet.model.builder import Memory, RNNOp
from tests.model.test_builder_nested import NOTHING, numbers, ragged, word_block

TEXTS = ragged([[2, 0], [1]])
FLAT = sn.Ragged.from_list([numbers(2, 3, seed=0), numbers(1, 3, seed=1)])
Inside = Callable[[RNNOp, Any, Memory, Any, Memory], Any]
Around = Callable[[RNNOp, Any, Memory, RNNOp, Any, Memory], Any]


def blocks(inside: Inside = lambda *_: None, around: Around = lambda *_: None) -> tuple[Any, ...]:
    """Two blocks that are right, but for what `inside` does in the inner one, `around` in the outer one."""
    outer = sn.create_rnn_op()
    with outer.stepnet():
        sentence = outer.add_input(TEXTS, level=1)
        h = outer.add_memory(shape=[3], dtype=np.float64)
        inner = sn.create_rnn_op()
        with inner.stepnet():
            word = inner.add_input(sentence, level=0)
            s = inner.add_memory(shape=[3])
            inside(inner, word, s, sentence, h)
            s.update(word + s.pre_state())
            inner.add_outputs(s)
        around(outer, sentence, h, inner, word, s)
        h.update(inner(output_all_steps=False) + h.pre_state())
        outer.add_outputs(h)
    return outer, inner, sentence, h, word, s


def refused(message: str, run: Callable[[], Any]) -> None:
    """Asserts that it is refused with these words, on the line of the test's own lambda."""
    with pytest.raises(StepnetError, match=f"^{message}") as caught:
        run()
    line = str(caught.value).splitlines()[-1]
    assert line.startswith(f"  at {__file__}:")
    assert "lambda " in line


INSIDE: dict[str, tuple[str, Inside]] = {
    "updated twice": (
        r"`memory` is updated twice, first\n  at .*\nand again\n  at .*: s.update\(word \+",
        lambda inner, word, s, sentence, h: s.update(word),
    ),
    "never updated": (
        r"`memory2` is never updated: h.update\(new\); it is added\n  at .*: lambda.*\nin\n.*with inner.step",
        lambda inner, word, s, sentence, h: inner.add_memory(init=h.pre_state()),
    ),
}


@pytest.mark.parametrize(("message", "inside"), INSIDE.values(), ids=INSIDE.keys())
def test_a_memory_of_an_inner_block(message: str, inside: Inside) -> None:
    with pytest.raises(StepError, match=f"^{message}"):
        blocks(inside)


GIVEN = "a value of a block, and the block was given an array before: its inputs, first values and statics"
AN_ARRAY = "an array, and the block was given a value of a block before: its inputs, first values and statics"

IN_INNER: dict[str, tuple[str, Inside]] = {
    "an array for first values": (
        f"init of `memory2` is {AN_ARRAY} are all arrays, or all values of the block around it",
        lambda inner, word, s, sentence, h: inner.add_memory(init=np.ones((2, 3))),
    ),
    "an array for a static": (
        f"`static` is {AN_ARRAY}",
        lambda inner, word, s, sentence, h: inner.add_static(np.ones((2, 3))),
    ),
    "a Ragged for an input": (
        f"an input is {AN_ARRAY}",
        lambda inner, word, s, sentence, h: inner.add_input(TEXTS, level=1),
    ),
    "a level too many": (
        "add_input got level=1 of sequences of one level; a block runs over the outermost, level=0: levels "
        "are counted from the innermost, 0, which rnns inside the block reach",
        lambda inner, word, s, sentence, h: inner.add_input(sentence, level=1),
    ),
    "a value for an input": (
        "add_input got a value of the block around that is no sequence there; use it as it is, or continue "
        r"from it with rnn.add_memory\(init=value\)",
        lambda inner, word, s, sentence, h: inner.add_input(h.pre_state()),
    ),
    "a memory for an input": (
        r"`memory` is a memory, not a value; `pre_state\(\)` is its value before the step",
        lambda inner, word, s, sentence, h: inner.add_input(h),
    ),
    "a memory for first values": (
        "`memory` is a memory, not a value",
        lambda inner, word, s, sentence, h: inner.add_memory(init=h),
    ),
    "a memory for a static": (
        "`memory` is a memory, not a value",
        lambda inner, word, s, sentence, h: inner.add_static(h),
    ),
    "its own value for an input": (
        "an input is a value of this very block; it takes arrays, or values of a block around",
        lambda inner, word, s, sentence, h: inner.add_input(word),
    ),
    "its own value for first values": (
        "init of `memory2` is a value of this very block",
        lambda inner, word, s, sentence, h: inner.add_memory(init=word),
    ),
    "its own value for a static": (
        "`static` is a value of this very block",
        lambda inner, word, s, sentence, h: inner.add_static(s.pre_state()),
    ),
    "a sequence for first values": (
        "init of `memory2` is a sequence at each step of the block around; sn.reduce makes one value of it",
        lambda inner, word, s, sentence, h: inner.add_memory(init=sentence),
    ),
    "a sequence for a static": (
        "`static` is a sequence at each step of the block around; sn.reduce makes one value of it",
        lambda inner, word, s, sentence, h: inner.add_static(sentence),
    ),
    "a sequence beside a value": (
        "a value that is a sequence at each step of the block around enters a block inside by "
        r"rnn.add_input\(sequence\); sn.reduce makes one value of it",
        lambda inner, word, s, sentence, h: word + sentence,
    ),
    "a sequence for an update": (
        "a value that is a sequence at each step of the block around enters a block inside by",
        lambda inner, word, s, sentence, h: s.update(sentence),
    ),
    "a sequence for an output": (
        "a value that is a sequence at each step of the block around enters a block inside by",
        lambda inner, word, s, sentence, h: inner.add_outputs(sentence),
    ),
    "a sequence to expand along": (
        "a value that is a sequence at each step of the block around enters a block inside by",
        lambda inner, word, s, sentence, h: sn.expand(word, sentence),
    ),
    "another shape": (
        r"`memory` is f64\[3\] and is updated with f64\[2\]; update it with the shape and dtype it was",
        lambda inner, word, s, sentence, h: s.update(h.pre_state()[:, :2]),
    ),
    "an update of the memory around": (
        "the update of `memory` is a value of a block inside this one; make it an output of that rnn and cal",
        lambda inner, word, s, sentence, h: h.update(word + h.pre_state()),
    ),
    "an output that is a memory around": (
        r"output 0 is a memory of another rnn; `pre_state\(\)` is its value before the step",
        lambda inner, word, s, sentence, h: inner.add_outputs(h),
    ),
    "too many outputs": (
        "this makes 2 outputs; the rnn was made with output_num=1",
        lambda inner, word, s, sentence, h: inner.add_outputs(s, h.pre_state()),
    ),
    "called in its own block": (
        "the rnn is called in its own block; call it after the block has ended",
        lambda inner, word, s, sentence, h: inner(),
    ),
    "values of another rnn's block": (
        "values of two different steps meet; hand the value in as an input, static or parameter",
        lambda inner, word, s, sentence, h: word + blocks()[2],
    ),
    "an input of another rnn's block": (
        "a value of a block is used after the block has ended; make it an output of the rnn",
        lambda inner, word, s, sentence, h: inner.add_input(blocks()[2]),
    ),
}


@pytest.mark.parametrize(("message", "inside"), IN_INNER.values(), ids=IN_INNER.keys())
def test_a_mistake_in_an_inner_block(message: str, inside: Inside) -> None:
    refused(message, lambda: blocks(inside))


IN_OUTER: dict[str, tuple[str, Around]] = {
    "level 0 of two": (
        "add_input got level=0 of sequences of 2 levels; a block runs over the outermost, level=1: levels",
        lambda outer, sentence, h, inner, word, s: outer.add_input(TEXTS),
    ),
    "level 2 of two": (
        "add_input got level=2 of sequences of 2 levels; a block runs over the outermost, level=1",
        lambda outer, sentence, h, inner, word, s: outer.add_input(TEXTS, level=2),
    ),
    "a level that is none": (
        "add_input got level='1' of sequences of 2 levels; a block runs over the outermost, level=1",
        lambda outer, sentence, h, inner, word, s: outer.add_input(TEXTS, level="1"),  # pyright: ignore[reportArgumentType]
    ),
    "other lengths": (
        "inputs `x` and `x2` .*: sequence 1 of sequence 0 has length 0 in `x` and 1 in `x2`",
        lambda outer, sentence, h, inner, word, s: outer.add_input(ragged([[2, 1], [1]]), level=1),
    ),
    "other lengths of fewer levels": (
        "inputs `x` and `x2` .*: sequence 1 has length 1 in `x` and 2 in `x2`",
        lambda outer, sentence, h, inner, word, s: outer.add_input(FLAT[:1].take([0, 0])),
    ),
    "an array beside a Ragged": (
        "input x is a Ragged among arrays, unlike input x2",
        lambda outer, sentence, h, inner, word, s: outer.add_input(np.ones((2, 2, 3))),
    ),
    "first values of other rows": (
        r"init of `memory2` is \[3, 4\]; its first axis should be the 2 sequences of the inputs",
        lambda outer, sentence, h, inner, word, s: outer.add_memory(init=np.ones((3, 4))),
    ),
    "a static of other rows": (
        r"`static` is \[3, 4\]; its first axis should be the 2 sequences of the inputs",
        lambda outer, sentence, h, inner, word, s: outer.add_static(np.ones((3, 4))),
    ),
    "its own value for a static": (
        f"`static` is {GIVEN}",
        lambda outer, sentence, h, inner, word, s: outer.add_static(h.pre_state()),
    ),
    "an inner value for an update": (
        "the update of `memory` is a value of a block inside this one; make it an output of that rnn and cal",
        lambda outer, sentence, h, inner, word, s: h.update(word),
    ),
    "an inner value beside a value": (
        "a value of a block is used after the block has ended; make it an output of the rnn",
        lambda outer, sentence, h, inner, word, s: h.pre_state() + word,
    ),
    "an inner value for an output": (
        "output 0 is a value of a block inside this one; make it an output of that rnn and call that",
        lambda outer, sentence, h, inner, word, s: outer.add_outputs(word),
    ),
    "an inner memory for an output": (
        r"output 0 is a memory of another rnn; `pre_state\(\)` is its value before the step",
        lambda outer, sentence, h, inner, word, s: outer.add_outputs(s),
    ),
    "an inner memory": (
        r"pre_state\(\) of `memory` after the block has ended; write it in `with rnn.stepnet\(\):`",
        lambda outer, sentence, h, inner, word, s: s.pre_state(),
    ),
    "an update of an inner memory": (
        r"update\(\) of `memory` after the block has ended; write it in `with rnn.stepnet\(\):`",
        lambda outer, sentence, h, inner, word, s: s.update(h.pre_state()),
    ),
    "an input of the inner block": (
        r"add_input after the block has ended; write it in `with rnn.stepnet\(\):`",
        lambda outer, sentence, h, inner, word, s: inner.add_input(sentence),
    ),
    "a sequence for an update": (
        "`memory` is updated with what is a sequence at each step; sn.reduce makes one value of it",
        lambda outer, sentence, h, inner, word, s: h.update(sentence),
    ),
    "all steps for an update": (
        "`memory` is updated with what is a sequence at each step; sn.reduce makes one value of it",
        lambda outer, sentence, h, inner, word, s: h.update(inner()),
    ),
    "a sequence beside a value": (
        "values along different axes meet: rows and rows/steps; sn.reduce makes one value of a sequence, "
        r"sn.expand\(value, sequence\) repeats one along it \(here `memory` and a value\)",
        lambda outer, sentence, h, inner, word, s: h.pre_state() + inner(),
    ),
    "an engine of an inner rnn": (
        "an rnn inside a block runs where the outer one does; give engine= to that one",
        lambda outer, sentence, h, inner, word, s: inner(engine="llvm"),
    ),
    "an rnn that is not called": (
        r"an rnn is no value; call it for its outputs: rnn\(\)",
        lambda outer, sentence, h, inner, word, s: h.update(inner),
    ),
    "an rnn that is not called beside a value": (
        "an rnn is no value; call it for its outputs",
        lambda outer, sentence, h, inner, word, s: h.pre_state() + inner,
    ),
    "an rnn that is not called for an input": (
        "an rnn is no value; call it for its outputs",
        lambda outer, sentence, h, inner, word, s: outer.add_input(inner),
    ),
    "a Ragged beside a value": (
        r"a Ragged is not a single array; use .values \[total, \*features\], or to_padded\(\)",
        lambda outer, sentence, h, inner, word, s: h.pre_state() + TEXTS,
    ),
}


@pytest.mark.parametrize(("message", "around"), IN_OUTER.values(), ids=IN_OUTER.keys())
def test_a_mistake_in_an_outer_block(message: str, around: Around) -> None:
    refused(message, lambda: blocks(around=around))


def another(give: Callable[[RNNOp], Any]) -> None:
    """Another block."""
    rnn = sn.create_rnn_op()
    with rnn.stepnet():
        give(rnn)


AFTER: dict[str, tuple[str, Callable[[RNNOp, Any, Memory], Any]]] = {
    "the inner rnn": (
        "this rnn takes values of a block that has ended; call it in that block",
        lambda inner, sentence, h: inner(),
    ),
    "a sequence": (
        "a value of a block is used after the block has ended; make it an output of the rnn",
        lambda inner, sentence, h: sn.reduce(sentence, "sum"),
    ),
    "a sequence in arithmetic": (
        "a value of a block is used after the block has ended",
        lambda inner, sentence, h: sentence * 2,
    ),
    "a sequence for a block's input": (
        "a value of a block is used after the block has ended",
        lambda inner, sentence, h: another(lambda rnn: rnn.add_input(sentence)),
    ),
    "a sequence beside arrays": (
        f"an input is {GIVEN}",
        lambda inner, sentence, h: another(lambda rnn: (rnn.add_input(FLAT), rnn.add_input(sentence))),
    ),
    "the memory": (
        r"pre_state\(\) of `memory` after the block has ended",
        lambda inner, sentence, h: h.pre_state(),
    ),
    "the memory in another block": (
        r"pre_state\(\) of `memory` after the block has ended",
        lambda inner, sentence, h: another(lambda rnn: rnn.add_memory(init=h.pre_state())),
    ),
}


@pytest.mark.parametrize(("message", "use"), AFTER.values(), ids=AFTER.keys())
def test_after_the_outer_block(message: str, use: Callable[[RNNOp, Any, Memory], Any]) -> None:
    _, inner, sentence, h, _, _ = blocks()
    refused(message, lambda: use(inner, sentence, h))


def test_what_is_given_is_of_one_block_and_those_around_it() -> None:
    """A block reads a value of the one it stands in by saying so; the sequence of both is then of neither."""

    def side_by_side(give: Callable[[RNNOp, Any, Memory], Any]) -> None:
        outer = sn.create_rnn_op()
        with outer.stepnet():
            sentence = outer.add_input(TEXTS, level=1)
            first, second = sn.create_rnn_op(), sn.create_rnn_op()
            with first.stepnet():
                first.add_input(sentence)
                s = first.add_memory(shape=[3])
                with second.stepnet():
                    word = second.add_input(sentence)
                    m = second.add_memory(shape=[3])
                    m.update(word * give(second, word, s))
                    second.add_outputs(m)
                second()

    refused(
        "values of two different steps meet; hand the value in as an input, static or parameter",
        lambda: side_by_side(lambda second, word, s: word + s.pre_state()),
    )
    with pytest.raises(StepError, match=r"^a value that is a sequence at each .*\n.*: second\(\)$"):
        side_by_side(lambda second, word, s: second.add_static(s.pre_state()))


def test_what_is_given_is_not_of_two_blocks_side_by_side() -> None:
    def three(give: Callable[[RNNOp, Any], Any]) -> None:
        outer = sn.create_rnn_op()
        with outer.stepnet():
            sentence = outer.add_input(TEXTS, level=1)
            first, second, third = sn.create_rnn_op(), sn.create_rnn_op(), sn.create_rnn_op()
            with first.stepnet(), second.stepnet(), third.stepnet():
                words = first.add_input(sentence), second.add_input(sentence)
                third.add_static(words[0])
                give(third, words[1])

    refused(
        "`static2` is a value of another block than what this one was given before",
        lambda: three(lambda third, word: third.add_static(word)),
    )
    refused(
        "init of `memory` is a value of another block than what this one was given before",
        lambda: three(lambda third, word: third.add_memory(init=word)),
    )


def test_the_last_of_an_inner_one_whose_output_is_a_sequence() -> None:
    def call(outer: RNNOp) -> None:
        book = outer.add_input(ragged([[[2], [1, 0]]], deep=3), level=2)
        middle = sn.create_rnn_op()
        with middle.stepnet():
            text = middle.add_input(book, level=1)
            h = middle.add_memory(shape=[3])
            h.update(h.pre_state() + sn.reduce(text, "sum"))
            middle.add_outputs(text * 2)
        middle(output_all_steps=False)

    with pytest.raises(
        StepError, match=r"^last_only is for outputs that there is one of per .*\n.*: middle\("
    ):
        another(call)


def test_a_parameter_of_a_step_in_a_block() -> None:
    def step(sentence: Any, h: Any, p: Any) -> tuple[Any, Any]:
        return word_block(sentence, add=p)(output_all_steps=False), h

    with pytest.raises(
        StepError,
        match=r"^a parameter of the step around .*; use its array, or rnn.add_static\n.*: s.update\(",
    ):
        sn.RNN(step, NOTHING, memory=4)(TEXTS)


def test_an_inner_block_that_failed() -> None:
    """An error of the user's own passes as it is; neither rnn runs after it."""
    kept: list[RNNOp] = []
    with pytest.raises(ZeroDivisionError):
        blocks(lambda inner, word, s, sentence, h: (kept.append(inner), 1 / 0))
    with pytest.raises(StepError, match="the block of this rnn ended with an error; mend it, on another"):
        kept[0]()
