"""Inputs of a model that have steps of their own: encoders, decoders, attention between their sequences."""

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
from stepnet.model.graph.array_model import ModelInput
from tests.model.graph.model_gradients import assert_model, frames, numbers, own

Array = np.ndarray
LENGTHS = ([5, 2, 3, 1], [2, 4, 7, 1])
SIZE = 4


def encoder_decoder(x: Any, p: Any) -> Any:
    """A decoder from the last state of an encoder, that attends to all outputs of the encoder."""
    told, last = rnn_of("gru", 3, SIZE)(x["source"])
    said, _ = rnn_of("gru", 2, SIZE, seed=1)(x["target"], initial=last)
    return {"told": told @ p["W"], "said": said + sn.attention(said @ p["W"], told, told, heads=2)}


PARAMS = {"W": normal(SIZE, SIZE)}


def given(source: list[int], target: list[int]) -> dict[str, sn.Ragged]:
    return {"source": sequences(source, 3), "target": sequences(target, 2, seed=1)}


def alone(source: Array, target: Array) -> dict[str, Array]:
    """The same model of one pair of sequences, from recurrences that run on their own."""
    told, last = rnn_of("gru", 3, SIZE)(source[None])
    said, _ = rnn_of("gru", 2, SIZE, seed=1)(target[None], initial=last)
    q, k = torch.tensor(said[0] @ PARAMS["W"]), torch.tensor(told[0])
    q, k = (x.unflatten(-1, (2, -1)).transpose(0, 1) for x in (q, k))
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, k).transpose(0, 1).flatten(1)
    return {"told": told[0] @ PARAMS["W"], "said": said[0] + mixed.numpy()}


def test_each_pair_of_sequences_runs_as_if_alone():
    graph, x = sn.Graph(encoder_decoder, PARAMS), given(*LENGTHS)
    for engine in ("llvm", "llvm", "llvm", "interpret"):  # the second call is prepared
        outputs = graph(x, engine=engine)
        rows = zip(*(x[name].to_list() for name in ("source", "target")), strict=True)
        for place, pair in enumerate(rows):
            for name, right in alone(*pair).items():
                assert_close(outputs[name].to_list()[place], right, 7, 4 * SIZE)
    ends = graph(x, last_only=True)
    for name, output in graph(x).items():
        assert_same_bits(ends[name], np.array([row[-1] for row in output.to_list()]))


@pytest.mark.usefixtures("same_threads", "small_calls_are_shared")
@pytest.mark.parametrize("threads", [1, 2])
def test_bits_do_not_depend_on_the_batch(threads: int):
    """A pair of equal lengths is one of the same steps when it is alone."""
    sn.set_threads(threads)
    graph, x = sn.Graph(encoder_decoder, PARAMS), given(*LENGTHS)
    outputs = graph(x)
    for place in range(len(LENGTHS[0])):
        single = {name: sn.Ragged.from_list([each.to_list()[place]]) for name, each in x.items()}
        for name, own_output in graph(single).items():
            assert_same_bits(own_output.values, outputs[name].to_list()[place])


def test_bits_do_not_depend_on_the_batch_where_an_axis_is_declared():
    """A product is merged into a recurrence at one axis and not between two; a declared one has one trace."""
    gru = rnn_of("gru", 4, 6)

    def model(x: Any, p: Any) -> Any:
        return {"u": gru(x["b"] @ p["W"])[0], "v": sn.reduce(x["a"], "last")}

    inputs = {"a": sn.Spec(4), "b": sn.Spec(3, axis="b")}
    graph = sn.Graph(model, {"W": normal(3, 4)}, inputs=inputs)
    x = {"a": sequences([20, 7, 5], 4), "b": sequences([20, 7, 9], 3)}
    outputs = graph(x)["u"].to_list()
    for place in (0, 1):
        single = {name: sn.Ragged.from_list([each.to_list()[place]]) for name, each in x.items()}
        assert_same_bits(graph(single)["u"].values, outputs[place])


def test_arrays_have_numbers_of_steps_of_their_own():
    graph = sn.Graph(encoder_decoder, PARAMS)
    source, target = normal(3, 5, 3), normal(3, 7, 2)
    right = graph({"source": sn.Ragged.from_padded(source), "target": sn.Ragged.from_padded(target)})
    found = graph({"source": source, "target": target})
    turned = graph({"source": source.swapaxes(0, 1), "target": target.swapaxes(0, 1)}, time_major=True)
    for name, output in found.items():
        assert_same_bits(output.reshape(-1, SIZE), right[name].values)
        assert_same_bits(np.ascontiguousarray(turned[name].swapaxes(0, 1)), output)


def test_some_inputs_share_their_steps():
    def model(x: Any, p: Any) -> Any:
        a, b, c, d = (x[name] for name in "abcd")
        return {"first": a + c, "second": b * d}

    x = {"a": sequences([2, 3], 2), "b": sequences([4, 1], 2), "c": sequences([2, 3], 2)}
    x["d"] = sequences([4, 1], 2, seed=3)
    found = sn.Graph(model)(x)
    assert_same_bits(found["first"].values, x["a"].values + x["c"].values)
    assert_same_bits(found["second"].values, x["b"].values * x["d"].values)


def test_a_stride_over_the_steps_of_an_input():
    def model(x: Any, p: Any) -> Any:
        half = sn.conv1d(x["b"], p["kernel"], stride=2)
        return {"a": x["a"], "half": half, "mean": sn.reduce(half, "mean")}

    x, params = {"a": sequences([1, 3], 2), "b": sequences([4, 5], 2)}, {"kernel": normal(3, 2, 2)}
    found = sn.Graph(model, params)(x)
    for place, one in enumerate(x["b"].to_list()):
        right = sn.Graph(lambda x, p: sn.conv1d(x, p["kernel"], stride=2), params)(one[None])[0]
        assert_close(found["half"].to_list()[place], right, 3, 6)
        assert_close(found["mean"][place], right.mean(0), 3, 6)


@pytest.mark.parametrize("reads", ["states", "attention"])
def test_differences_agree_with_the_gradients(reads: str):
    def model(x: Any, p: Any) -> Any:
        told, last = own(p)(x["source"])
        said, _ = own(p, reverse=True)(x["target"], initial=last)
        mixed = sn.attention(said, told, told) if reads == "attention" else said
        return {"said": np.tanh(mixed), "told": told}

    x = {"source": frames(3), "target": frames(3, lengths=(2, 4, 0, 1))}
    assert_model(model, {"W": numbers(3, 3), "R": numbers(3, 3, seed=1)}, x)


def test_an_axis_is_declared():
    """So the model is traced once, and runs over sequences of equal lengths too."""
    graph = sn.Graph(encoder_decoder, PARAMS, inputs={"source": 3, "target": sn.Spec(2, axis="target")})
    assert "rows/steps[target] f32[2]" in str(graph.net)
    program = graph.program
    for lengths in (LENGTHS, (LENGTHS[0], LENGTHS[0])):
        x = given(*lengths)
        assert_same_bits(graph(x)["said"].values, sn.Graph(encoder_decoder, PARAMS)(x)["said"].values)
    assert graph.program is program


def test_a_model_is_saved_and_loaded(tmp_path: Path):
    graph = sn.Graph(encoder_decoder, PARAMS, inputs={"source": 3, "target": sn.Spec(2, axis="target")})
    graph.save(tmp_path / "m.stepnet")
    x = given(*LENGTHS)
    for name, output in sn.load(tmp_path / "m.stepnet")(x).items():
        assert_same_bits(output.values, graph(x)[name].values)


def test_every_step_is_named():
    scopes = sn.Graph(encoder_decoder, PARAMS).trace_steps(given(*LENGTHS))
    assert scopes["told"].lengths.tolist() == LENGTHS[0]
    assert scopes["said"].lengths.tolist() == LENGTHS[1]


# ---- refusals ----------------------------------------------------------------------------------------------


def test_what_combines_steps_of_different_inputs_is_refused():
    model = sn.Graph(lambda x, p: x["a"] + x["b"])
    assert model({"a": sequences([2], 2), "b": sequences([2], 2)}).lengths.tolist() == [2]
    with pytest.raises(StepError, match=r"values along different axes meet: rows/steps and rows/steps\[b\]"):
        model({"a": sequences([2, 3], 2), "b": sequences([3, 3], 2)})


def test_a_recurrence_takes_inputs_of_the_same_lengths():
    step = sn.RNN(lambda x, h, p: (h, h + x["a"] + x["b"]), memory=2)
    with pytest.raises(InputError, match="have sequences of different lengths"):
        step({"a": sequences([2, 3], 2), "b": sequences([3, 3], 2)})


def test_inputs_have_the_same_number_of_sequences():
    model = sn.Graph(lambda x, p: {"a": x["a"], "b": x["b"]})
    with pytest.raises(InputError, match="`a` has 2 of them, and `b` has 1"):
        model({"a": sequences([2, 3], 2), "b": sequences([3], 2)})
    with pytest.raises(InputError, match="`a` and `b` have 2 and 1 sequences"):
        model({"a": normal(2, 3, 2), "b": normal(1, 4, 2)})


def test_lengths_are_of_arrays_with_one_number_of_steps():
    model = sn.Graph(lambda x, p: {"a": x["a"], "b": x["b"]})
    with pytest.raises(InputError, match="give inputs of different lengths as Raggeds"):
        model({"a": normal(2, 3, 2), "b": normal(2, 4, 2)}, lengths=[1, 2])


def test_declared_axes_are_checked():
    both = {name: sn.Spec(2, axis="b") for name in "bc"}
    model = sn.Graph(lambda x, p: x["b"] + x["c"], inputs={"a": 2, **both})
    x = {"a": sequences([1, 1], 2), "b": sequences([2, 3], 2), "c": sequences([3, 3], 2)}
    with pytest.raises(InputError, match=r"input `c` has other lengths than another one with axis='b'"):
        model(x)
    with pytest.raises(InputError, match="every input has an axis= of its own"):
        sn.Graph(lambda x, p: x["b"] + x["c"], inputs=both)


def test_the_name_of_a_static_axis_is_not_that_of_steps_that_are_read_whole():
    with pytest.raises(InputError, match="the name of a static's axis does not begin with 'all '"):
        sn.Graph(lambda x, p, statics: x, inputs=2, statics=sn.Spec(2, axis="all steps"))


def test_packed_steps_are_those_of_the_other_inputs():
    packed = ModelInput("x", "S_", (3,), "float32")
    with pytest.raises(
        ModelError, match="'x' has packed steps, so its sequences have the lengths of the other"
    ):
        packed.with_steps("steps[x]")


def test_what_has_one_axis_of_steps_is_refused(tmp_path: Path):
    graph = sn.Graph(encoder_decoder, PARAMS, inputs={"source": 3, "target": sn.Spec(2, axis="target")})
    with pytest.raises(InputError, match="an input has steps of its own"):
        graph.stream(2)
    with pytest.raises(ModelError, match=r"rows/steps\[target\].*an input has steps of its own"):
        stepnet.onnx.save(graph, tmp_path / "m.onnx")
    with pytest.raises(RefusedError, match="an input has steps of its own"):
        stepnet.build.build(graph, tmp_path / "library", target="aarch64")
