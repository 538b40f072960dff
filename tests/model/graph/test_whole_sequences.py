"""Recurrences of a model whose steps read a whole sequence that the model computes, as decoders do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from same_bits import assert_same_bits
from tolerance import assert_close
from zoo import normal, rnn_of, sequences

import stepnet as sn
import stepnet.build
import stepnet.onnx
from stepnet.errors import InputError, ModelError, RefusedError, StepError
from tests.model.graph.model_gradients import assert_model, frames, numbers, own

Array = np.ndarray
PARAMS = {"W": normal(2, 4), "R": normal(4, 4)}
LENGTHS = ([5, 2, 3, 1], [2, 4, 0, 1])


def attend(x: Any, h: Any, p: Any, statics: Any) -> Any:
    weights = sn.softmax_over_steps(np.sum(statics * sn.expand(h, statics), axis=-1))
    h = np.tanh(x @ p["W"] + sn.reduce(statics * weights[:, None], "sum") + h @ p["R"])
    return h, h


def decoder(x: Any, p: Any) -> Any:
    """A recurrence over one input, each step of which attends to all outputs of one over another input."""
    told, last = rnn_of("gru", 3, 4)(x["source"])
    return sn.RNN(attend, p, memory=4)(x["target"], initial=last, statics=told)[0]


def of_one(x: Any, p: Any) -> Any:
    """The same over one input, whose steps are those that are read whole."""
    told, _ = rnn_of("gru", 2, 4)(x)
    return sn.RNN(attend, p, memory=4)(x, statics=told)[0]


def by_loop(told: Array, target: Array, h: Array) -> Array:
    made = list[Array]()
    for frame in target:
        weights = np.exp(told @ h) / np.exp(told @ h).sum()
        h = np.tanh(frame @ PARAMS["W"] + weights @ told + h @ PARAMS["R"])
        made.append(h)
    return np.array(made).reshape(-1, 4)


def given() -> dict[str, sn.Ragged]:
    return {"source": sequences(LENGTHS[0], 3), "target": sequences(LENGTHS[1], 2, seed=1)}


def test_each_step_reads_all_outputs_of_another_recurrence():
    graph, x = sn.Graph(decoder, PARAMS), given()
    told, last = rnn_of("gru", 3, 4)(x["source"])
    rows = zip(told.to_list(), x["target"].to_list(), last, strict=True)
    right = [by_loop(*row) for row in rows]
    for engine in ("llvm", "llvm", "interpret"):
        for found, one in zip(graph(x, engine=engine).to_list(), right, strict=True):
            assert_close(found, one, 9, 16)


def test_the_steps_of_the_recurrence_itself_are_read_whole():
    graph, x = sn.Graph(of_one, PARAMS, inputs=2), sequences([3, 0, 4], 2)
    told, _ = rnn_of("gru", 2, 4)(x)
    right = [by_loop(*row, np.zeros(4)) for row in zip(told.to_list(), x.to_list(), strict=True)]
    for engine in ("llvm", "llvm", "interpret"):
        for found, one in zip(graph(x, engine=engine).to_list(), right, strict=True):
            assert_close(found, one, 9, 16)
    padded, _ = x.to_padded()
    assert_same_bits(graph(padded, lengths=[3, 0, 4])[2], graph(x).to_list()[2])


@pytest.mark.usefixtures("same_threads", "small_calls_are_shared")
@pytest.mark.parametrize("threads", [1, 2])
def test_bits_do_not_depend_on_the_batch(threads: int):
    sn.set_threads(threads)
    graph, x = sn.Graph(decoder, PARAMS), given()
    for _ in range(2):
        for place, found in enumerate(graph(x).to_list()):
            single = {name: sn.Ragged.from_list([each.to_list()[place]]) for name, each in x.items()}
            assert_same_bits(graph(single).values, found)


def test_a_sequence_that_no_step_reads_is_left_out():
    """So that the recurrence runs in one plan, as one without it does."""

    def model(x: Any, p: Any) -> Any:
        return sn.RNN(lambda x, h, p, statics: (h + x, h + x), memory=2)(x, statics=x)[0]

    graph = sn.Graph(model, inputs=2)
    assert "arrange" not in str(graph.net)


@pytest.mark.parametrize("of", [decoder, of_one], ids=["another", "its own"])
def test_differences_agree_with_the_gradients(of: Any):
    def step(x: Any, h: Any, p: Any, statics: Any) -> Any:
        weights = sn.softmax_over_steps(np.sum(statics * sn.expand(h, statics), axis=-1))
        h = np.tanh(x @ p["W"] + sn.reduce(statics * weights[:, None], "sum") + h @ p["R"])
        return h, h

    def model(x: Any, p: Any) -> Any:
        source, target = (x["source"], x["target"]) if of is decoder else (x, x)
        told, last = own(p)(source)
        return sn.RNN(step, p, memory=3)(target, initial=last, statics=told)[0]

    both = {"source": frames(3), "target": frames(3, lengths=(2, 4, 0, 1))}
    assert_model(
        model, {"W": numbers(3, 3), "R": numbers(3, 3, seed=1)}, both if of is decoder else frames(3)
    )


def test_a_model_is_saved_and_loaded(tmp_path: Path):
    graph, x = sn.Graph(of_one, PARAMS, inputs=2), sequences([3, 2], 2)
    graph.save(tmp_path / "m.stepnet")
    assert_same_bits(sn.load(tmp_path / "m.stepnet")(x).values, graph(x).values)


def test_every_step_is_named():
    graph, x = sn.Graph(of_one, PARAMS, inputs=2), sequences([3, 2], 2)
    assert_close(graph.trace_steps(x)["attend.h"].values, graph(x).values, 3, 16)


def test_what_reads_single_steps_is_refused(tmp_path: Path):
    graph = sn.Graph(of_one, PARAMS, inputs=2)
    with pytest.raises(InputError, match="its recurrence reads all steps of a sequence at each step"):
        graph.stream(2)
    with pytest.raises(ModelError, match="arrange cannot be written as ONNX: steps in reverse order"):
        stepnet.onnx.save(graph, tmp_path / "m.onnx")
    with pytest.raises(RefusedError, match="statics that are sequences, are laid out by NumPy"):
        stepnet.build.build(graph, tmp_path / "library", target="aarch64")
    with pytest.raises(InputError, match="reads steps of other pieces"):
        sn.vjp(graph)(sequences([5, 3], 2), checkpoint=2)


def test_statics_are_values_of_the_model():
    def refused(model: Any) -> None:
        with pytest.raises(StepError, match="in a model it may also be a sequence"):
            sn.Graph(model, PARAMS, inputs=2)

    refused(lambda x, p: sn.RNN(attend, p, memory=4)(x, statics=p["W"])[0])
    refused(lambda x, p: sn.RNN(attend, p, memory=4)(x, statics=normal(3, 4))[0])
