"""Models of documents of sentences of words: values as NumPy has them of each document, and gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import REDUCTIONS
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.values import named_leaves
from stepnet.ragged import offsets_of
from tests.model.graph.model_gradients import LENGTH, OWN, WIDTH, assert_model, numbers, own

Array = np.ndarray
Document = list[Array]
COUNTS = ((3, 0, 1), (), (2,), (0, 4, 2))
"""The number of words of the sentences of each document."""


def documents(*features: int, counts: Any = COUNTS) -> sn.Ragged:
    sentences = [count for document in counts for count in document]
    offsets = offsets_of([len(document) for document in counts]), offsets_of(sentences)
    return sn.Ragged(numbers(sum(sentences), *features), offsets)


def looped(x: Array, params: Any, begin: Any = 0.0, reverse: bool = False) -> tuple[Array, Array]:
    """The results of `own` for one sequence [steps, 3]: outputs and the last memory."""
    h, outputs = np.zeros(3) + begin, np.zeros((len(x), 3))
    for at in reversed(range(len(x))) if reverse else range(len(x)):
        h = outputs[at] = np.tanh(x[at] @ params["W"] + h @ params["R"])
    return outputs, h


def each(how: str, document: Document) -> Array:
    """One value of each sentence, [sentences, 3]."""
    return np.array([REDUCTIONS[how](sentence) for sentence in document]).reshape(-1, 3)


def softmax(scores: Array) -> Array:
    grown = np.exp(scores - scores.max(axis=0, initial=-np.inf))
    return grown / grown.sum(axis=0)


# ---- each model, and the same for one document in NumPy ----------------------------------------------------


def means_then_a_recurrence(x: Any, p: Any) -> Any:
    h, last = own(p["own"])(sn.reduce(x, "mean"))
    return {"h": h, "last": last, "mean": sn.reduce(h, "mean")}


def means_then_a_loop(x: Document, p: Any) -> dict[str, Any]:
    h, last = looped(each("mean", x), p["own"])
    return {"h": h, "last": last, "mean": REDUCTIONS["mean"](h)}


def hierarchical_attention(x: Any, p: Any) -> Any:
    words = np.tanh(x @ p["W"])
    weights = sn.softmax_over_steps(words @ p["v"])
    h, _ = own(p["own"], reverse=True)(sn.reduce(weights * words, "sum"))
    above = sn.softmax_over_steps(np.sum(h, axis=-1))
    return {"document": sn.reduce(above[:, None] * h, "sum"), "weights": weights}


def attention_by_hand(x: Document, p: Any) -> dict[str, Any]:
    words = [np.tanh(sentence @ p["W"]) for sentence in x]
    weights = [softmax(sentence @ p["v"]) for sentence in words]
    sums = [(weight * sentence).sum(0) for weight, sentence in zip(weights, words, strict=True)]
    h, _ = looped(np.array(sums).reshape(-1, 3), p["own"], reverse=True)
    above = softmax(h.sum(-1))
    return {"document": (above[:, None] * h).sum(0), "weights": weights}


def back_to_the_words(x: Any, p: Any) -> Any:
    h, last = own(p["own"])(sn.reduce(x, "max"))
    mixed = x * sn.expand(h, x) + sn.expand(last, x)
    return {"words": mixed @ p["W"], "first": sn.reduce(mixed, "first")}


def back_by_hand(x: Document, p: Any) -> dict[str, Any]:
    h, last = looped(each("max", x), p["own"])
    mixed = [sentence * row + last for sentence, row in zip(x, h, strict=True)]
    return {"words": [sentence @ p["W"] for sentence in mixed], "first": each("first", mixed)}


def sentence_encoder(x: Any, p: Any) -> Any:
    def step(words: Any, h: Any, params: Any) -> Any:
        said, last = own(params["own"])(words, initial=h)
        h = np.tanh(last @ params["W"] + sn.reduce(said, "mean"))
        return {"h": h, "said": said}, h

    outputs, last = sn.RNN(step, {"own": p["own"], "W": p["W"]}, memory=3)(x)
    return outputs | {"last": last, "largest": sn.reduce(outputs["h"], "max")}


def encoder_by_hand(x: Document, p: Any) -> dict[str, Any]:
    h, rows, words = np.zeros(3), list[Array](), list[Array]()
    for sentence in x:
        said, last = looped(sentence, p["own"], h)
        h = np.tanh(last @ p["W"] + REDUCTIONS["mean"](said))
        rows.append(h)
        words.append(said)
    all_rows = np.array(rows).reshape(-1, 3)
    return {"h": all_rows, "said": words, "last": h, "largest": REDUCTIONS["max"](all_rows)}


def two_layers_above(x: Any, p: Any) -> Any:
    sums = np.concatenate([sn.reduce(x, "sum"), sn.reduce(x, "last")], axis=-1) @ p["P"]
    first, last = own(p["own"])(sums)
    again = sn.reduce(np.tanh(x + sn.expand(first, x)), "mean")
    second, _ = own(p["own"], reverse=True)(again, initial=last)
    return {"h": np.concatenate([first, second], axis=-1)}


def layers_by_hand(x: Document, p: Any) -> dict[str, Any]:
    sums = np.concatenate([each("sum", x), each("last", x)], axis=-1) @ p["P"]
    first, last = looped(sums, p["own"])
    again = each("mean", [np.tanh(sentence + row) for sentence, row in zip(x, first, strict=True)])
    second, _ = looped(again, p["own"], last, reverse=True)
    return {"h": np.concatenate([first, second], axis=-1)}


MODELS: dict[str, tuple[Callable[..., Any], Callable[..., dict[str, Any]], str]] = {
    "means, then a recurrence": (means_then_a_recurrence, means_then_a_loop, "own"),
    "hierarchical attention": (hierarchical_attention, attention_by_hand, "own W v"),
    "back to the words": (back_to_the_words, back_by_hand, "own W"),
    "a sentence encoder": (sentence_encoder, encoder_by_hand, "own W"),
    "two layers above": (two_layers_above, layers_by_hand, "own P"),
}
PARAMS = {"own": OWN, "W": numbers(3, 3, seed=5), "v": numbers(3, 1, seed=6), "P": numbers(6, 3)}


def params_of(names: str) -> dict[str, Any]:
    return {name: PARAMS[name] for name in names.split()}


def assert_values(name: str, outputs: dict[str, Any], x: sn.Ragged) -> None:
    """Asserts that outputs are what NumPy has of each document."""
    _, by_hand, names = MODELS[name]
    known = {
        key: output.to_list() if isinstance(output, sn.Ragged) else output for key, output in outputs.items()
    }
    for place, document in enumerate(x.to_list()):
        right = by_hand([np.asarray(words).reshape(-1, 3) for words in document], params_of(names))
        assert right.keys() == known.keys()
        for key, value in right.items():
            found = known[key][place]
            parts = zip(found, value, strict=True) if isinstance(value, list) else [(found, value)]
            for one, other in parts:
                assert_close(np.reshape(one, np.shape(other)), other, LENGTH, WIDTH)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("engine", ["interpret", "llvm", ("onednn", "llvm")])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_documents(name: str, engine: Any) -> None:
    model, _, names = MODELS[name]
    x = documents(3)
    assert_values(name, sn.Graph(model, params_of(names))(x, engine=engine), x)


@pytest.mark.long(examples=8)
@settings(max_examples=25)
@given(
    name=st.sampled_from([*MODELS]),
    counts=st.lists(st.lists(st.integers(0, 4), max_size=4), max_size=4),
)
def test_documents_of_any_sizes(name: str, counts: list[list[int]]) -> None:
    model, _, names = MODELS[name]
    x = documents(3, counts=counts)
    assert_values(name, sn.Graph(model, params_of(names))(x, engine="interpret"), x)


# ---- gradients ---------------------------------------------------------------------------------------------


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_of_a_model_of_documents(name: str) -> None:
    model, _, names = MODELS[name]
    assert_model(model, params_of(names), documents(3))


EMPTY = {"no documents": (), "no sentences": ((), ()), "no words": ((0, 0), (0,))}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("counts", EMPTY.values(), ids=EMPTY)
def test_the_gradient_where_there_is_nothing(name: str, counts: Any) -> None:
    model, _, names = MODELS[name]
    assert_model(model, params_of(names), documents(3, counts=counts), narrow=())


def of_words(x: Any, p: Any) -> Any:
    return sn.reduce(own(p["own"])(sn.reduce(p["table"][x], "sum"))[0], "max")


def of_words_and_sentences(x: Any, p: Any) -> Any:
    joined = np.concatenate([sn.reduce(x["words"], "sum"), x["sentences"]], axis=-1)
    return own(p["own"])(joined @ p["P"])[0]


def with_a_static(x: Any, p: Any, statics: Any) -> Any:
    means = sn.reduce(x * sn.expand(statics, x), "mean")
    return own(p["own"])(means, initial=statics)[0], x * sn.expand(np.tanh(statics), x)


def attending_to_keys(x: Any, p: Any, statics: Any) -> Any:
    _, last = own(p["own"])(sn.reduce(x, "last"))
    weights = sn.softmax_over_steps(np.sum(sn.expand(last, statics) * statics, axis=-1))
    return sn.reduce(weights[:, None] * statics, "sum")


def of_paragraphs(x: Any, p: Any) -> Any:
    sentences = sn.reduce(x, "sum")
    h, _ = own(p["own"])(sn.reduce(sentences, "mean"))
    return h, x * sn.expand(sentences, x), sn.reduce(sentences, "max")


SENTENCES = sn.Ragged(numbers(7, 3), (offsets_of([3, 0, 1, 3]),))
PARAGRAPHS = sn.Ragged(numbers(9, 3), tuple(map(offsets_of, ([2, 0, 2], [2, 1, 0, 3], [2, 0, 1, 3, 1, 2]))))
OTHERS: dict[str, tuple[Any, ...]] = {
    "words of a table": (
        of_words,
        {"own": OWN, "table": numbers(5, 3)},
        documents().with_values(np.arange(12) * 3 % 5),
    ),
    "inputs of two levels": (
        of_words_and_sentences,
        params_of("own P"),
        {"words": documents(3), "sentences": SENTENCES},
    ),
    "a static": (with_a_static, params_of("own"), documents(3), numbers(4, 3)),
    "a static that is a sequence": (
        attending_to_keys,
        params_of("own"),
        documents(3),
        sn.Ragged(numbers(6, 3), (offsets_of([2, 0, 3, 1]),)),
    ),
    "three levels": (of_paragraphs, params_of("own"), PARAGRAPHS),
}


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", OTHERS)
def test_the_gradient_of_other_models_of_documents(name: str) -> None:
    assert_model(*OTHERS[name])


def squares(outputs: Any, targets: Any) -> Any:
    return sn.reduce(np.sum((outputs["words"] - targets["words"]) ** 2, axis=-1), "sum") + np.sum(
        (outputs["first"] - targets["first"]) ** 2, axis=-1
    )


def test_a_loss_with_targets_of_words_and_of_sentences() -> None:
    graph, x = sn.Graph(back_to_the_words, params_of("own W")), documents(3)
    targets = {"words": documents(3, counts=COUNTS), "first": sn.Ragged(numbers(7, 3), x.offsets[:1])}
    value, gradients = sn.value_and_grad(squares, graph, reduce="sum")(x, targets)
    outputs, backward = sn.vjp(graph)(x)
    away = {name: outputs[name].values - targets[name].values for name in targets}
    assert_close(value, sum(float((one**2).sum()) for one in away.values()), LENGTH, WIDTH)
    right = backward({name: outputs[name].with_values(2 * one) for name, one in away.items()}).params
    wanted = dict(named_leaves(right))
    for name, one in named_leaves(gradients.params):
        assert_close(one, wanted[name], LENGTH, WIDTH)
