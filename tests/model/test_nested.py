"""Recurrences inside recurrences, against loops over arrays in float64."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tolerance import assert_close
from zoo import simple

import stepnet as sn
from stepnet.compiler.net.meanings import REDUCTIONS
from stepnet.errors import InputError, StepError

Array = np.ndarray
RANDOM = np.random.default_rng(11)


def weights(inputs: int, hidden: int) -> dict[str, Array]:
    """Parameters of a simple recurrence."""
    return {
        "W": RANDOM.uniform(-1, 1, (inputs, hidden)).astype("float32"),
        "R": RANDOM.uniform(-0.5, 0.5, (hidden, hidden)).astype("float32"),
    }


WORDS, SENTENCES = weights(3, 4), weights(4, 4)


words = sn.RNN(simple, WORDS, memory=4)
words_backward = sn.RNN(simple, WORDS, memory=4, reverse=True)


def run_words(sentence: Array, c: Array, reverse: bool = False) -> tuple[Array, Array]:
    """The inner recurrence over a sentence [words, 3]: its outputs, and its last memory [1, 4]."""
    found = np.zeros((len(sentence), 4))
    for at in reversed(range(len(sentence))) if reverse else range(len(sentence)):
        found[at : at + 1], c = simple(sentence[at : at + 1], c, WORDS)
    return found, c


# ---- steps, and what they mean -----------------------------------------------------------------------------


def last_word(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    _, said = words(x, initial="zeros")
    return simple(said, h, p)


def last_word_by_hand(sentence: Array, h: Array) -> tuple[Array, Array]:
    return simple(run_words(sentence, np.zeros((1, 4)))[1], h, SENTENCES)


def backward(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    outputs, _ = words_backward(x, initial="zeros", last_only=True)
    return simple(outputs, h, p)


def backward_by_hand(sentence: Array, h: Array) -> tuple[Array, Array]:
    found = run_words(sentence, np.zeros((1, 4)), reverse=True)[0]
    return simple(found[:1] if len(found) else np.zeros((1, 4)), h, SENTENCES)


def mean_and_max(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    outputs, _ = words(np.tanh(x * 2), initial="zeros")
    h = np.tanh(sn.reduce(outputs, "mean") @ p["W"] + sn.reduce(x * 3, "max")[:, :1] + h @ p["R"])
    return h * 2, h


def mean_and_max_by_hand(sentence: Array, h: Array) -> tuple[Array, Array]:
    found = run_words(np.tanh(sentence * 2), np.zeros((1, 4)))[0]
    mean = found.mean(0, keepdims=True) if len(found) else np.zeros((1, 4))
    most = (sentence * 3).max(0, keepdims=True)[:, :1] if len(found) else np.zeros((1, 1))
    h = np.tanh(mean @ SENTENCES["W"] + most + h @ SENTENCES["R"])
    return h * 2, h


def continued(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    _, h = words(x, initial=h)
    return h + 1, np.tanh(h @ p["R"])


def continued_by_hand(sentence: Array, h: Array) -> tuple[Array, Array]:
    _, h = run_words(sentence, h)
    return h + 1, np.tanh(h @ SENTENCES["R"])


def gated(x: Any, h: Any, p: Any, index: Any) -> tuple[Any, Any]:
    shifted = x + sn.expand(h[:, :3] + index[:, None].astype(h.dtype) * 0.1, x)
    _, said = words(shifted, initial="zeros")
    return simple(said, h, p)


def gated_by_hand(sentence: Array, h: Array, index: int) -> tuple[Array, Array]:
    return simple(run_words(sentence + h[:, :3] + index * 0.1, np.zeros((1, 4)))[1], h, SENTENCES)


def two_layers(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    lower, _ = words(x, initial="zeros")
    _, said = upper(lower * 2, initial="zeros")
    return simple(said, h, p)


upper = sn.RNN(simple, SENTENCES, memory=4)


def two_layers_by_hand(sentence: Array, h: Array) -> tuple[Array, Array]:
    lower, c = run_words(sentence, np.zeros((1, 4)))[0], np.zeros((1, 4))
    for at in range(len(lower)):
        _, c = simple(lower[at : at + 1] * 2, c, SENTENCES)
    return simple(c, h, SENTENCES)


STEPS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[str]]] = {
    "last word": (last_word, last_word_by_hand, ["across", "recurrence", "recurrence"]),
    "backward": (backward, backward_by_hand, ["across", "recurrence", "recurrence"]),
    "mean and max": (
        mean_and_max,
        mean_and_max_by_hand,
        ["across", "plain", "recurrence", "across", "across", "recurrence"],
    ),
    "continued": (continued, continued_by_hand, ["recurrence"]),
    "gated by the memory and the count": (gated, gated_by_hand, ["recurrence"]),
    "two layers": (two_layers, two_layers_by_hand, []),
}


@st.composite
def documents(draw: st.DrawFn) -> list[list[Array]]:
    """Documents of sentences of words, some without any."""
    counts = draw(st.lists(st.lists(st.integers(0, 4), max_size=4), max_size=4))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    return [
        [random.uniform(-1, 1, (count, 3)).astype("float32") for count in document] for document in counts
    ]


def ragged(documents: list[list[Array]]) -> sn.Ragged:
    """Documents as a Ragged of two levels."""
    sentences = [sentence for document in documents for sentence in document]
    outer = np.cumsum([0, *map(len, documents)])
    inner = np.cumsum([0, *map(len, sentences)])
    values = np.concatenate([np.zeros((0, 3), "float32"), *sentences])
    return sn.Ragged(values, (outer.astype(np.int64), inner.astype(np.int64)))


@pytest.mark.long(examples=5)
@pytest.mark.parametrize("name", STEPS)
@settings(max_examples=15)
@given(documents(), st.sampled_from(["interpret", "llvm"]), st.booleans())
def test_steps_that_call_recurrences(name: str, given: list[list[Array]], engine: str, reverse: bool):
    step, by_hand, _ = STEPS[name]
    outputs, final = sn.RNN(step, SENTENCES, memory=4, reverse=reverse)(ragged(given), engine=engine)
    assert outputs.lengths.tolist() == [len(document) for document in given]
    for place, document in enumerate(given):
        h = np.zeros((1, 4))
        for count, at in enumerate(reversed(range(len(document))) if reverse else range(len(document))):
            extra = (count,) if by_hand is gated_by_hand else ()
            output, h = by_hand(document[at], h, *extra)
            assert_close(outputs[place][at : at + 1], output, 20, 8)
        assert_close(final[place : place + 1], h, 20, 8)


@pytest.mark.parametrize("name", [name for name, (_, _, kinds) in STEPS.items() if kinds])
def test_what_needs_no_memory_is_lifted(name: str):
    step, _, kinds = STEPS[name]
    rnn = sn.RNN(step, SENTENCES, memory=4, inputs=sn.Spec(3, "float32", levels=1))
    assert [part.kind for part in rnn.schedule.parts] == kinds


def explained_parts(step: Any) -> list[str]:
    rnn = sn.RNN(step, SENTENCES, memory=4, inputs=sn.Spec(3, "float32", levels=1))
    parts, chosen, *plans = re.split(r"\n\n(?=part |engine)", rnn.explain())
    lines = [line.split(maxsplit=1) for line in parts.splitlines()[1:]]
    planned = [number for number, what in lines if what.startswith(("operations", "a recurrence"))]
    loops = [number for number, what in lines if "step by step" in what]
    expected = [f"part {one}" for one in planned if one not in loops]
    assert [plan.partition(":")[0] for plan in plans] == expected
    assert chosen.startswith("engine: llvm\n")
    return [f"{number} {what}" for number, what in lines]


def test_a_nesting_is_explained_part_by_part():
    assert explained_parts(last_word) == [
        "0 a value at const repeated at rows/steps",
        "1 a recurrence over rows/steps/words, all sequences at once",
        "2 a recurrence over rows/steps, all sequences at once",
    ]
    assert explained_parts(continued) == [
        "0 a recurrence over rows/steps, all sequences at once, with the inner recurrence of each step",
    ]


def test_three_levels(engine: str):
    def document(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        _, said = sentences(x, initial="zeros")
        return simple(said, h, p)

    sentences = sn.RNN(last_word, SENTENCES, memory=4)
    shelf = [[[2, 0], [3]], [], [[], [1, 4, 2]]]
    texts = [[[RANDOM.uniform(-1, 1, (n, 3)).astype("float32") for n in s] for s in d] for d in shelf]
    flat = [sentence for book in texts for text in book for sentence in text]
    levels = (
        np.cumsum([0, *map(len, texts)]),
        np.cumsum([0, *(len(text) for book in texts for text in book)]),
        np.cumsum([0, *map(len, flat)]),
    )
    given = sn.Ragged(np.concatenate(flat), tuple(level.astype(np.int64) for level in levels))
    outputs, final = sn.RNN(document, SENTENCES, memory=4)(given, engine=engine)
    for place, book in enumerate(texts):
        h = np.zeros((1, 4))
        for at, text in enumerate(book):
            inner = np.zeros((1, 4))
            for sentence in text:
                _, inner = last_word_by_hand(sentence, inner)
            output, h = simple(inner, h, SENTENCES)
            assert_close(outputs[place][at : at + 1], output, 20, 8)
        assert_close(final[place : place + 1], h, 20, 8)


def test_inner_sequences_as_outputs(engine: str):
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        outputs, said = words(x, initial=h)
        return {"words": outputs * 2, "sentence": said}, said

    given = ragged([[np.ones((2, 3), "float32")], [np.ones((1, 3), "float32"), np.zeros((3, 3), "float32")]])
    outputs, final = sn.RNN(step, None, memory=4)(given, engine=engine)
    assert (outputs["words"].levels, outputs["sentence"].levels) == (2, 1)
    h = np.zeros((1, 4))
    for at, sentence in enumerate(given.to_list()[1]):
        found, h = run_words(sentence, h)
        assert_close(outputs["words"][1][at], found * 2, 6, 4)
    assert_close(final[1:], h, 6, 4)


def test_statics_initial_memories_and_flat_inputs_beside_nested_ones(engine: str):
    def step(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        _, said = words(x["words"] + sn.expand(statics, x["words"]), initial="zeros")
        return simple(said, h + x["bias"], p)

    documents = [[np.ones((2, 3), "float32"), np.zeros((1, 3), "float32")], [np.ones((3, 3), "float32")]]
    given = ragged(documents)
    bias = sn.Ragged(RANDOM.uniform(-1, 1, (3, 4)).astype("float32"), given.offsets[:1])
    still = RANDOM.uniform(-1, 1, (2, 3)).astype("float32")
    first = RANDOM.uniform(-1, 1, (2, 4)).astype("float32")
    rnn = sn.RNN(step, SENTENCES, memory=4)
    inputs = {"words": given, "bias": bias}
    outputs, final = rnn(inputs, initial=first, statics=still, engine=engine)
    for place, document in enumerate(documents):
        h = first[place : place + 1]
        for at, sentence in enumerate(document):
            _, said = run_words(sentence + still[place], np.zeros((1, 4)))
            output, h = simple(said, h + bias[place][at], SENTENCES)
            assert_close(outputs[place][at : at + 1], output, 10, 8)
        assert_close(final[place : place + 1], h, 10, 8)
    last, _ = rnn(inputs, initial=first, statics=still, last_only=True, engine=engine)
    np.testing.assert_array_equal(last, [outputs[0][-1], outputs[1][-1]])


def test_a_document_is_the_same_whatever_is_beside_it():
    many = [
        [RANDOM.uniform(-1, 1, (n, 3)).astype("float32") for n in counts]
        for counts in ([3, 1], [20, 7, 1], [], [2])
    ]
    for step in (last_word, continued, mean_and_max):
        rnn = sn.RNN(step, SENTENCES, memory=4)
        together, _ = rnn(ragged(many))
        for place, document in enumerate(many):
            alone, _ = rnn(ragged([document]))
            np.testing.assert_array_equal(alone[0], together[place])


# ---- what is wrong -----------------------------------------------------------------------------------------


def called(step: Callable[..., Any], given: Any = None) -> None:
    """Runs a step over one document."""
    sn.RNN(step, SENTENCES, memory=4)(ragged([[np.ones((2, 3), "float32")]]) if given is None else given)


def test_how_the_memory_begins_is_said():
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        return words(x)[1], h

    with pytest.raises(
        StepError, match=r"says how its memory begins: initial='zeros' anew.*\n.*test_nested.py"
    ):
        called(step)


@pytest.mark.parametrize(
    ("initial", "expected"),
    [
        ("ones", "initial is 'zeros' or values of the step, not 'ones'"),
        ({"a": 0}, r"initial is \{a: array\}, the memory `\w+` is array"),
        (np.zeros((1, 4)), r"the initial memory `\w+` of a recurrence inside a step is a value of the step"),
    ],
)
def test_memories_that_are_none(initial: Any, expected: str):
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        return words(x, initial=initial)[1], h

    with pytest.raises(StepError, match=expected):
        called(step)


def test_an_outer_memory_of_another_shape():
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        return words(x, initial=h[:, :2])[1], h

    with pytest.raises(StepError, match=r"the initial memory `\w+` is f32\[2\]; it should be f32\[4\]"):
        called(step)


def test_a_memory_that_becomes_a_sequence():
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        return h, words(x, initial="zeros")[0]

    with pytest.raises(StepError, match=r"the memory `\w+` leaves the step as an inner sequence: reduce it"):
        called(step)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("step", [last_word, continued])
@pytest.mark.parametrize("masked", ["repeat", "zero"])
def test_a_mask_leaves_out_whole_inner_sequences(step: Any, masked: str, engine: str):
    sentences = [RANDOM.normal(size=(n, 3)).astype("float32") for n in (2, 0, 1, 3, 2)]
    given = ragged([sentences[:3], [], sentences[3:]])
    mask = sn.Ragged.from_list([np.array([True, False, True]), np.zeros(0, bool), np.array([False, True])])
    rnn = sn.RNN(step, SENTENCES, memory=4)
    outputs, final = rnn(given, mask=mask, masked=masked, engine=engine)
    right, last = rnn(ragged([[sentences[0], sentences[2]], [], sentences[4:]]), engine=engine)
    # NumPy's products depend on how many rows there are, so the interpreter's bits do
    same = np.testing.assert_array_equal if engine == "llvm" else partial(assert_close, length=6, width=8)
    same(final, last)
    same(outputs.values[[0, 2, 4]], right.values)
    np.testing.assert_array_equal(outputs.values[1], outputs.values[0] if masked == "repeat" else 0)
    np.testing.assert_array_equal(outputs.values[3], 0)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("reverse", [False, True])
def test_groups_that_end_early(engine: str, reverse: bool):
    def step(x: Any, h: Any, p: Any, index: Any) -> tuple[Any, Any]:
        _, said = words(x, initial=h)
        return said + index[:, None].astype(said.dtype), said

    given = ragged(
        [
            [RANDOM.normal(size=(n % 4, 3)).astype("float32") for n in range(count)]
            for count in (2, 0, 21, 1, 15)
        ]
    )
    options: dict[str, Any] = {"memory": 4, "reverse": reverse}
    whole, _ = sn.RNN(step, None, **options)(given, begun=[0, 0, 2, 0, 0], engine=engine)
    rnn = sn.RNN(step, None, **options, until=lambda output, h: (output[:, 0] > 10.0) | (h[:, 1] > 0.7))
    outputs, _ = rnn(given, begun=[0, 0, 2, 0, 0], engine=engine)
    for row, all_steps in enumerate(whole.to_list()):
        order = all_steps[::-1] if reverse else all_steps
        said = order[:, 1] - np.arange(len(order)) - (2 if row == 2 else 0)
        places = np.flatnonzero((order[:, 0] > 10.0) | (said > 0.7))
        kept = order[: places[0] + 1] if len(places) else order
        assert_close(outputs[row], kept[::-1] if reverse else kept, 9, 8)
    assert 0 < outputs.total < whole.total


def test_a_step_that_ends_early_and_gives_sequences():
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        outputs, said = words(x, initial=h)
        return outputs, said

    rnn = sn.RNN(step, None, memory=4, until=lambda output, h: h[:, 0] > 0)
    with pytest.raises(InputError, match="a step with until= gives one value per row"):
        rnn(ragged([[np.ones((2, 3), "float32")]]))


def test_a_masked_step_that_gives_sequences():
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        outputs, said = words(x, initial=h)
        return outputs, said

    given = ragged([[np.ones((2, 3), "float32")]])
    mask = sn.Ragged.from_list([np.array([True])])
    with pytest.raises(InputError, match="a step under a mask gives one value per row"):
        sn.RNN(step, None, memory=4)(given, mask=mask)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"mask": np.ones((1, 1), bool)}, "the mask of a recurrence inside a step is a value of the step"),
        ({"begun": 1}, r"begun=, until= and time_major= are not for a recurrence inside a step\n"),
    ],
)
def test_control_of_a_recurrence_inside_a_step(told: dict[str, Any], message: str):
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        return words(x, initial=h, **told)[1], h

    with pytest.raises(StepError, match=message):
        called(step, ragged([[np.ones((2, 3), "float32")]]))


@pytest.mark.long(each=True)
@pytest.mark.parametrize("masked", ["repeat", "zero"])
@pytest.mark.parametrize("inner", [words, words_backward, sn.Bidirectional(words, words_backward)])
def test_a_mask_inside_a_step_is_that_of_a_call(inner: Any, masked: str):
    texts = [[RANDOM.normal(size=(n, 3)).astype("float32") for n in lengths] for lengths in ((5, 3), (4,))]
    counts = [[RANDOM.random(len(text)) < 0.6 for text in row] for row in texts]
    said = ragged(texts)
    kept = said.with_values(np.concatenate([mask for row in counts for mask in row]))

    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        given, mask = x
        outputs, _ = inner(given, initial="zeros", mask=mask, masked=masked)
        last, _ = inner(given, initial="zeros", mask=mask, masked=masked, last_only=True)
        return (outputs, last), h

    (outputs, last), _ = sn.RNN(step, None, memory=4)((said, kept))
    for row, (own, masks) in enumerate(zip(texts, counts, strict=True)):
        for place, (text, mask) in enumerate(zip(own, masks, strict=True)):
            right, _ = inner(text[None], mask=mask[None], masked=masked)
            end, _ = inner(text[None], mask=mask[None], masked=masked, last_only=True)
            assert_close(outputs[row][place], right[0], len(text), 7)
            assert_close(last[row][place], end[0], len(text), 7)


def test_a_stream_of_inner_sequences(engine: str):
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        outputs, said = words(x["words"], initial=h)
        said = said * (1 + x["weight"][:, None])
        return {"words": outputs, "said": said}, said

    rnn = sn.RNN(step, None, memory=4)
    texts = [
        [RANDOM.normal(size=(n, 3)).astype("float32") for n in lengths] for lengths in ((2, 0, 3), (1, 4, 1))
    ]
    weight = RANDOM.normal(size=(2, 3)).astype("float32")
    given = {"words": ragged(texts), "weight": sn.Ragged.from_padded(weight)}
    whole, last = rnn(given, engine=engine)
    stream = rnn.stream(2, engine=engine)
    for at in range(3):
        sentence = sn.Ragged.from_list([text[at] for text in texts])
        found = stream.step({"words": sentence, "weight": weight[:, at]})
        np.testing.assert_array_equal(found["said"], [whole["said"][row][at] for row in range(2)])
        for row in range(2):
            np.testing.assert_array_equal(found["words"][row], whole["words"][row][at])
    np.testing.assert_array_equal(stream.state, last)
    with pytest.raises(InputError, match="input words has 1 sequences; the stream has 2 rows"):
        stream.step({"words": sn.Ragged.from_list(texts[0][:1]), "weight": weight[:, 0]})
    with pytest.raises(InputError, match=r"input weight is \[1\]; the stream has 2 rows"):
        stream.step({"words": sn.Ragged.from_list(texts[0][:2]), "weight": weight[:1, 0]})


def test_an_input_that_is_no_inner_sequence():
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        return words(x, initial="zeros")[1], h

    flat = sn.Ragged.from_list([np.ones((2, 3), "float32")])
    with pytest.raises(StepError, match="input `x` of a recurrence inside a step is no sequence there"):
        called(step, flat)


def test_levels_that_do_not_match():
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        return words(x["a"], initial="zeros")[1] + x["b"], h

    given = ragged([[np.ones((2, 3), "float32")], [np.ones((1, 3), "float32")] * 2])
    other = sn.Ragged.from_list([np.ones((1, 4), "float32"), np.ones((3, 4), "float32")])
    with pytest.raises(InputError, match=r"sequence 1 has length 2 in `a` and 3 in `b`"):
        called(step, {"a": given, "b": other})
    with pytest.raises(InputError, match="`a` has 2 of them, and `b` has 1"):
        called(step, {"a": given, "b": other[:1]})
    with pytest.raises(
        InputError, match="input a is a Ragged among arrays, unlike input b; give all inputs as Raggeds"
    ):
        called(step, {"a": given, "b": np.ones((2, 3, 4), "float32")})


def test_values_of_different_levels_meet():
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        return words(x + h[:, :3], initial="zeros")[1], h

    with pytest.raises(StepError, match=r"values along different axes meet.*\n.*test_nested.py"):
        called(step)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x, h: sn.reduce(h, "mean"), "reduce takes inner sequences"),
        (lambda x, h: sn.reduce(x, "median"), "how is one of sum, mean, max, first, last, not 'median'"),
        (lambda x, h: sn.expand(1.0, x), "expand takes a value of a step"),
        (lambda x, h: sn.expand(h, None), "expand takes .* given in the call, as statics=keys"),
        (lambda x, h: words(x, initial=np.zeros((1, 3))), "zeros are initial='zeros', or np.zeros_like"),
        (
            lambda x, h: h.mean(-1) @ np.ones((4, 4)),
            r"an inner sequence write sn.reduce\(x, 'mean'\), .* sn.reduce\(x, 'last'\)",
        ),
    ],
)
def test_reduce_and_expand_of_what_they_do_not_take(make: Any, expected: str):
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        return make(x, h), h

    with pytest.raises(StepError) as caught:
        called(step)
    assert re.search(expected, str(caught.value).splitlines()[0])  # the last quotes the line


def test_an_inner_sequence_has_no_last_step_as_an_output():
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        return words(x, initial="zeros")[0], h

    with pytest.raises(InputError, match="last_only is for outputs that there is one of per step"):
        sn.RNN(step, None, memory=4)(ragged([[np.ones((2, 3), "float32")]]), last_only=True)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("dtype", ["bool", "int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("how", ["sum", "mean", "max", "first", "last"])
def test_a_reduction_has_the_dtype_that_numpy_gives(how: str, dtype: str, engine: str):
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        one = sn.reduce(x, how)
        return {"one": one, "chosen": np.where(one == one, one, one)}, h

    texts = [[np.array([[1, 5], [2, 3]]), np.zeros((0, 2))], [np.array([[7, 0]])]]
    given = sn.Ragged.from_list([[sentence.astype(dtype) for sentence in text] for text in texts])
    outputs, _ = sn.RNN(step, memory=sn.Spec((), "float32"))(given, engine=engine)
    meaning = REDUCTIONS[how]
    empty = np.zeros_like(meaning(np.ones((1, 2), dtype)))
    right = [meaning(one) if len(one) else empty for text in given.to_list() for one in text]
    for found in outputs.values():
        assert found.dtype == right[0].dtype
        np.testing.assert_array_equal(found.values, right)
