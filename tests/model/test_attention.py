"""Attention between the steps of sequences: against PyTorch's, for each sequence alone, and differences."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from same_bits import assert_same_bits
from tolerance import assert_close
from zoo import normal, rnn_of, sequences

import stepnet as sn
import stepnet.build
import stepnet.onnx
from stepnet.errors import InputError, ModelError, RefusedError, StepError
from tests.model.graph.model_gradients import assert_model

Array = np.ndarray
LENGTHS = ([5, 0, 3, 1], [2, 2], [1], [40, 2, 17])
CASES: dict[str, dict[str, Any]] = {
    "one head": {},
    "heads": {"heads": 2},
    "causal": {"heads": 2, "causal": True},
    "scaled": {"heads": 4, "scale": 0.3},
}
WIDTH = 12


def projected(x: Any, p: Any) -> Any:
    return x @ p["q"], x @ p["k"], x @ p["v"]


def params_of(inputs: int = 6, dtype: str = "float32") -> dict[str, Array]:
    return {name: normal(inputs, WIDTH, seed=place, dtype=dtype) for place, name in enumerate("qkv")}


def by_torch(q: Any, k: Any, v: Any, heads: int = 1, causal: bool = False, scale: float | None = None) -> Any:
    """PyTorch's attention of one sequence, [steps, features]."""
    parts = (x.unflatten(-1, (heads, -1)).transpose(0, 1) for x in (q, k, v))
    made = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=causal, scale=scale)
    return made.transpose(0, 1).flatten(1)


@pytest.mark.parametrize("name", CASES)
def test_each_sequence_attends_as_if_alone(name: str):
    params, case = params_of(), CASES[name]
    graph = sn.Graph(lambda x, p: sn.attention(*projected(x, p), **case), params, inputs=6)
    for lengths in LENGTHS:
        x = sequences(lengths, 6)
        for engine in ("llvm", "llvm", "interpret"):  # the second call is prepared
            for found, one in zip(graph(x, engine=engine).to_list(), x.to_list(), strict=True):
                q, k, v = (torch.tensor(one @ params[part]).double() for part in "qkv")
                right = by_torch(q, k, v, **case) if len(one) else np.zeros((0, WIDTH))
                assert_close(found, np.asarray(right), len(one), 6 * WIDTH)


def test_keys_of_a_static_sequence():
    params, case = params_of(), CASES["heads"]

    def model(x: Any, p: Any, statics: Any) -> Any:
        return sn.attention(x @ p["q"], statics @ p["k"], statics @ p["v"], **case)

    graph, x, keys = sn.Graph(model, params), sequences([4, 0, 2, 3], 6), sequences([2, 3, 0, 7], 6, seed=1)
    for found, one, other in zip(graph(x, statics=keys).to_list(), x.to_list(), keys.to_list(), strict=True):
        q, k, v = (torch.tensor(own @ params[part]) for own, part in ((one, "q"), (other, "k"), (other, "v")))
        right = by_torch(q, k, v, **case).numpy() if len(other) and len(one) else np.zeros((len(one), WIDTH))
        assert_close(found, right, 7, 6 * WIDTH)


def test_fewer_heads_of_keys_and_values_of_another_size():
    def model(x: Any, p: Any) -> Any:
        q, k, v = (x @ p[name] for name in "qkv")
        return sn.attention(q.reshape(-1, 4, 3), k.reshape(-1, 2, 3), v.reshape(-1, 2, 5))

    params = {"q": normal(6, 12), "k": normal(6, 6), "v": normal(6, 10)}
    x = sequences([5, 3], 6)
    for found, one in zip(sn.Graph(model, params)(x).to_list(), x.to_list(), strict=True):
        shapes = {"q": (4, 3), "k": (2, 3), "v": (2, 5)}
        q, k, v = (
            torch.tensor(one @ params[name]).unflatten(-1, shape).transpose(0, 1)
            for name, shape in shapes.items()
        )
        right = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        assert_close(found, right.transpose(0, 1).numpy(), 5, 6 * WIDTH)


def test_masked_keys_are_left_out():
    """Where a mask leaves no key, the result is zeros."""
    x, kept = sequences([5, 3, 2], 6), np.array([1, 0, 1, 1, 0, 0, 1, 0, 0, 0], bool)
    model = sn.Graph(lambda s, p: sn.attention(s[0], s[0], s[0], mask=s[1]), inputs=None)
    found = model((x, x.with_values(kept))).to_list()
    for place, (one, own) in enumerate(zip(x.to_list(), x.with_values(kept).to_list(), strict=True)):
        rest = torch.tensor(one[own])
        right = by_torch(torch.tensor(one), rest, rest).numpy() if own.any() else np.zeros_like(one)
        assert_close(found[place], right, 5, 6)


def test_large_products_do_not_overflow():
    x = sequences([4, 2], 3)
    found = sn.Graph(lambda x, p: sn.attention(x, x, x, scale=1e3), inputs=3)(x).to_list()
    for one, own in zip(x.to_list(), found, strict=True):
        given = torch.tensor(one).double()
        assert_close(own, by_torch(given, given, given, scale=1e3).numpy(), 4, 3000)


@pytest.mark.parametrize("causal", [False, True])
def test_differences_agree_with_the_gradients(causal: bool):
    def model(x: Any, p: Any) -> Any:
        h = np.tanh(sn.attention(*projected(x, p), heads=2, causal=causal))
        return rnn_of("gru", WIDTH, 3, dtype="float64")(h)[0]

    assert_model(model, params_of(3, "float64"), sequences([3, 0, 1, 5], 3, dtype="float64"))


def test_gradients_are_those_of_pytorch_also_with_a_mask_and_with_one_key():
    x, kept = sequences([4, 1], 6, dtype="float64"), np.array([1, 0, 1, 1, 1], bool)
    masks = x.with_values(kept)
    run = sn.vjp(sn.Graph(lambda s, p: sn.attention(s["x"], s["x"], s["x"], mask=s["m"]), inputs=None))
    outputs, backward = run({"x": x, "m": masks})
    cotangents = normal(*outputs.values.shape, dtype="float64")
    found = backward(outputs.with_values(cotangents)).inputs["x"].values
    for one, own, back, slope in zip(
        x.to_list(),
        masks.to_list(),
        x.with_values(cotangents).to_list(),
        x.with_values(found).to_list(),
        strict=True,
    ):
        given = torch.tensor(one, requires_grad=True)
        made = by_torch(given, given[torch.tensor(own)], given[torch.tensor(own)])
        (right,) = torch.autograd.grad(made, given, torch.tensor(back))
        assert_close(slope, right.numpy(), 5, 36)


def block(x: Any, p: Any) -> Any:
    """A layer of a transformer behind a recurrence."""
    h, _ = rnn_of("gru", 6, WIDTH)(x)
    h = sn.layer_norm(h + sn.attention(*projected(h, p), heads=3, causal=True))
    return sn.layer_norm(h + sn.relu(h @ p["up"]) @ p["down"])


BLOCK = params_of(WIDTH) | {"up": normal(WIDTH, 20), "down": normal(20, WIDTH)}


@pytest.mark.usefixtures("same_threads", "small_calls_are_shared")
@pytest.mark.parametrize("threads", [1, 2])
def test_bits_do_not_depend_on_the_batch_nor_on_the_call(threads: int):
    sn.set_threads(threads)
    graph, x = sn.Graph(block, BLOCK), sequences([5, 1, 33, 2], 6)
    alone = [graph(sn.Ragged.from_list([one])).values for one in x.to_list()]
    for _ in range(4):
        assert_same_bits(graph(x).values, np.concatenate(alone))
    other = sequences([2, 9], 6, seed=5)
    for one, found in zip(other.to_list(), graph(other).to_list(), strict=True):
        assert_same_bits(graph(sn.Ragged.from_list([one])).values, found)


def test_padding_is_not_read():
    graph, x = sn.Graph(block, BLOCK), normal(3, 7, 6)
    lengths = np.array([7, 3, 0])
    found = graph(x, lengths=lengths)
    for row, length in enumerate(lengths):
        assert_same_bits(found[row, :length], graph(sn.Ragged.from_list([x[row, :length]])).values)
        assert not found[row, length:].any()


@pytest.mark.parametrize("engine", ["auto", "interpret"])
@pytest.mark.parametrize("time_major", [False, True])
def test_gradients_of_a_padded_array_are_those_of_its_sequences(time_major: bool, engine: Any):
    graph = sn.Graph(lambda x, p: sn.attention(x @ p, x, x, causal=True), normal(6, 6))
    x, c = sequences([3, 0, 1], 6, seed=1), sequences([3, 0, 1], 6, seed=2)
    (padded, lengths), (cotangents, _) = x.to_padded(), c.to_padded()
    order = (1, 0, 2) if time_major else (0, 1, 2)
    given = padded.transpose(order), lengths
    outputs, backward = sn.vjp(graph)(given[0], lengths=given[1], time_major=time_major, engine=engine)
    alone, backward_alone = sn.vjp(graph)(x, engine=engine)
    gradients, wanted = backward(cotangents.transpose(order)), backward_alone(c)
    assert_same_bits(outputs.transpose(order), alone.to_padded()[0])
    assert_same_bits(gradients.inputs.transpose(order), wanted.inputs.to_padded()[0])
    assert_same_bits(gradients.params, wanted.params)


def test_a_model_is_saved_and_loaded(tmp_path: Path):
    graph, x = sn.Graph(block, BLOCK, inputs=6), sequences([5, 2], 6)
    graph.save(tmp_path / "m.stepnet")
    assert_same_bits(sn.load(tmp_path / "m.stepnet")(x).values, graph(x).values)


# ---- refusals ----------------------------------------------------------------------------------------------

X = "attention takes sequences of a model, which sn.Graph runs"
MISTAKES: dict[str, Callable[[Any, Any], Any]] = {
    X: lambda x, p: sn.attention(p, x, x),
    f"{X}; k is a parameter, and not a value at each step": lambda x, p: sn.attention(x, p["q"], x),
    f"{X}; v is an array float64[6], and not": lambda x, p: sn.attention(x, x, np.ones(6)),
    r"q has features [heads * size] or [heads, size], not f32[6] for 4 heads": (
        lambda x, p: sn.attention(x, x, x, heads=4)
    ),
    "k has 2 heads, which 3 heads of q are no multiple of": lambda x, p: sn.attention(
        x.reshape(-1, 3, 2), x.reshape(-1, 2, 3), x.reshape(-1, 2, 3)
    ),
    "queries and keys have the same features, of floats, unlike": lambda x, p: sn.attention(x, x @ p["q"], x),
    "heads is a whole number from 1 to 2147483647, not 0": lambda x, p: sn.attention(x, x, x, heads=0),
    "causal is True or False, not 'yes'": lambda x, p: sn.attention(x, x, x, causal="yes"),  # type: ignore[arg-type]
    "scale is a number, or None for 1 / sqrt(size), not '2'": lambda x, p: sn.attention(
        x,
        x,
        x,
        scale="2",  # type: ignore[arg-type]
    ),
    "the mask of an attention is a bool at each step of k": lambda x, p: sn.attention(x, x, x, mask=x),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_name_the_line(message: str):
    with pytest.raises(StepError) as raised:
        sn.Graph(MISTAKES[message], params_of(), inputs=6)
    assert message in str(raised.value)
    assert "test_attention.py" in str(raised.value)


def test_a_step_of_a_recurrence_is_refused():
    def step(words: Any, h: Any, p: Any) -> Any:
        h = h + sn.reduce(sn.attention(words, words, words), "sum")
        return h, h

    documents = sn.Ragged.from_list([[normal(3, 6), normal(2, 6)]])
    with pytest.raises(StepError, match=r"(?s)attention is for models, .*test_attention\.py"):
        sn.RNN(step, memory=6)(documents)


def test_what_reads_single_steps_or_pieces_is_refused(tmp_path: Path):
    graph = sn.Graph(block, BLOCK, inputs=6)
    with pytest.raises(InputError, match=r"has no stream: its attention reads all steps of a sequence \(at"):
        graph.stream(2)
    with pytest.raises(InputError, match="attention reads steps of other pieces: leave checkpoint= out"):
        sn.vjp(graph)(sequences([5, 3], 6), checkpoint=2)
    with pytest.raises(ModelError, match="attention between steps is not written"):
        stepnet.onnx.save(graph, tmp_path / "m.onnx")
    with pytest.raises(
        RefusedError, match=r"no attention between the steps of a sequence, as at .*test_attention\.py"
    ):
        stepnet.build.build(graph, tmp_path / "library", target="aarch64")
