"""Convolutions over the steps of sequences: against a loop over each sequence alone, and PyTorch's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from same_bits import assert_same_bits
from tolerance import assert_close
from zoo import normal, rnn_of, sequences, simple

import stepnet as sn
from stepnet.compiler.grad import halves, vjp
from stepnet.compiler.values import leaves
from stepnet.errors import InputError, StepError
from tests.model.graph.model_gradients import assert_model

Array = np.ndarray
LENGTHS = ([5, 0, 3, 1], [2, 2], [0], [1], [40, 2, 17])
CASES: dict[str, dict[str, Any]] = {
    "causal": {"size": 3},
    "same": {"size": 3, "padding": "same"},
    "same and even": {"size": 4, "padding": "same"},
    "dilated": {"size": 3, "dilation": 2},
    "dilated in the middle": {"size": 4, "dilation": 3, "padding": "same"},
    "longer than all sequences": {"size": 50},
    "of one step": {"size": 1},
    "in groups": {"size": 3, "groups": 2},
    "in groups of one": {"size": 3, "groups": 6, "padding": "same"},
}
INPUTS, OUTPUTS = 6, 12


def params_of(size: int, groups: int = 1, dtype: str = "float32", **_: Any) -> dict[str, Array]:
    return {
        "weight": normal(OUTPUTS, INPUTS // groups, size, dtype=dtype),
        "bias": normal(OUTPUTS, dtype=dtype),
    }


def model_of(case: dict[str, Any]) -> Callable[[Any, Any], Any]:
    options = {name: value for name, value in case.items() if name != "size"}
    return lambda x, p: sn.conv1d(x, p["weight"], p["bias"], **options)


def padded(length: int, size: int, dilation: int = 1, padding: str = "causal", **_: Any) -> tuple[int, int]:
    """The zeros before and after a sequence."""
    reach = (size - 1) * dilation
    before = reach if padding == "causal" else reach // 2
    return before, reach - before


def by_loops(x: Array, params: dict[str, Array], case: dict[str, Any]) -> Array:
    """The convolution of one sequence, number by number, in float64."""
    weight, bias = (params[name].astype(np.float64) for name in ("weight", "bias"))
    before, _ = padded(len(x), **case)
    groups = case.get("groups", 1)
    outputs, inputs = OUTPUTS // groups, INPUTS // groups
    made = np.repeat(bias[None], len(x), axis=0)
    for step in range(len(x)):
        for entry in range(weight.shape[2]):
            read = step - before + entry * case.get("dilation", 1)
            if not 0 <= read < len(x):
                continue
            for output in range(OUTPUTS):
                group = output // outputs * inputs
                made[step, output] += weight[output, :, entry] @ x[read, group : group + inputs]
    return made


def by_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, case: dict[str, Any]) -> torch.Tensor:
    """PyTorch's convolution of one sequence."""
    wide = torch.nn.functional.pad(x.T[None], padded(len(x), **case))
    options = {name: case[name] for name in ("dilation", "groups") if name in case}
    return torch.nn.functional.conv1d(wide, weight, bias, **options)[0].T


@pytest.mark.long(each=True)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_each_sequence_is_convolved_as_if_alone(name: str, dtype: str):
    case = CASES[name]
    params = params_of(**case, dtype=dtype)
    graph = sn.Graph(model_of(case), params, inputs=sn.Spec(INPUTS, dtype))
    for lengths in LENGTHS:
        x = sequences(lengths, INPUTS, dtype=dtype)
        for engine in ("llvm", "interpret"):
            for found, one in zip(graph(x, engine=engine).to_list(), x.to_list(), strict=True):
                right = by_loops(one.astype(np.float64), params, case)
                assert_close(found, right, 1, INPUTS * case["size"])
                if len(one):
                    given, weight, bias = (torch.tensor(array).double() for array in (one, *params.values()))
                    theirs = by_torch(given, weight, bias, case).numpy()
                    assert_close(right, theirs, 1, INPUTS * case["size"])


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_pytorch(name: str):
    case = CASES[name]
    params = params_of(**case, dtype="float64")
    x = sequences([5, 0, 3, 1], INPUTS, dtype="float64")
    run = sn.vjp(sn.Graph(model_of(case), params))
    outputs, backward = run(x)
    cotangents = normal(*outputs.values.shape, dtype="float64")
    found = backward(outputs.with_values(cotangents))
    tensors = [torch.tensor(array, requires_grad=True) for array in (x.values, *params.values())]
    parts = [
        (one, values)
        for one, values in zip(tensors[0].split([5, 0, 3, 1]), range(4), strict=True)
        if len(one)
    ]
    made = torch.cat([by_torch(one, tensors[1], tensors[2], case) for one, _ in parts])
    right = torch.autograd.grad(made, tensors, torch.tensor(cotangents))
    assert_close(found.inputs.values, right[0].numpy(), 9, INPUTS * OUTPUTS * case["size"])
    for name, one in zip(params, right[1:], strict=True):
        assert_close(found.params[name], one.numpy(), 9, INPUTS * OUTPUTS * case["size"])


def test_gradients_save_the_values_of_windows():
    """Two convolutions: of the inputs, which are not saved, and of values that windows are made of again."""
    case = CASES["dilated"]
    graph = sn.Graph(lambda x, p: model_of(case)(np.tanh(model_of(case)(x, p)), p), square(), inputs=INPUTS)
    net = graph.schedule.traced
    made = halves(vjp(net), len(net.inputs), len(net.results))
    saved = [made.backward.type_of(number) for number in made.backward.inputs[-made.saved :]]
    assert {type_.shape for type_ in saved} == {(INPUTS,)}
    counts = [
        sum(node.operation == "windows" for node in half.nodes) for half in (made.forward, made.backward)
    ]
    assert counts == [2, 2]


def square() -> dict[str, Array]:
    """The weights of a convolution with as many outputs as inputs."""
    return {"weight": normal(INPUTS, INPUTS, 3), "bias": normal(INPUTS)}


GRU = rnn_of("gru", OUTPUTS, 4)


def two_and_a_recurrence(x: Any, p: Any) -> Any:
    """Convolutions on both sides of a recurrence."""
    y = np.tanh(sn.conv1d(x, p["weight"], p["bias"], dilation=2))
    return sn.conv1d(GRU(y)[0], p["above"])


ABOVE = params_of(3) | {"above": normal(2, 4, 2)}


def test_differences_agree_with_the_gradient_of_a_model():
    def model(x: Any, p: Any) -> Any:
        y = np.tanh(sn.conv1d(x, p["weight"], p["bias"], padding="same"))
        weights = {"W": p["above"][0, :, 0, None] * np.ones((1, 2)), "R": 0.1 * np.ones((2, 2))}
        return sn.conv1d(sn.RNN(simple, weights, memory=2)(y @ p["mix"])[0], p["last"])

    params = {
        "weight": normal(4, 3, 3, dtype="float64"),
        "bias": normal(4, dtype="float64"),
        "above": normal(1, 2, 1, dtype="float64"),
        "mix": normal(4, 2, dtype="float64"),
        "last": normal(2, 2, 2, dtype="float64"),
    }
    assert_model(model, params, sequences([3, 0, 1, 5], 3, dtype="float64"))


@pytest.mark.usefixtures("same_threads", "small_calls_are_shared")
@pytest.mark.parametrize("threads", [1, 2])
def test_bits_do_not_depend_on_the_batch_nor_on_the_call(threads: int):
    sn.set_threads(threads)
    graph, x = sn.Graph(two_and_a_recurrence, ABOVE), sequences([5, 1, 0, 33, 2], INPUTS)
    alone = [graph(sn.Ragged.from_list([one])).values for one in x.to_list() if len(one)]
    for _ in range(4):
        assert_same_bits(graph(x).values, np.concatenate(alone))


@pytest.mark.parametrize(("features", "dtype"), [(3, "float32"), (16, "float64"), (37, "float32")])
def test_windows_in_place_have_the_bits_of_copied_ones(features: int, dtype: str):
    """A mean over the same windows makes the second model copy them."""
    params = {"weight": normal(33, features, 3, dtype=dtype), "bias": normal(33, dtype=dtype)}

    def both(x: Any, p: Any) -> Any:
        return {"y": in_place(x, p), "mean": sn.avg_pool1d(x, 3, stride=1, padding=(2, 0))}

    def in_place(x: Any, p: Any) -> Any:
        return np.tanh(sn.conv1d(x, p["weight"], p["bias"]))

    placed, copied = (sn.Graph(model, params, inputs=sn.Spec(features, dtype)) for model in (in_place, both))
    assert [any(part.windows for part in graph.schedule.parts) for graph in (placed, copied)] == [True, False]
    for lengths in LENGTHS:
        x = sequences(lengths, features, dtype=dtype)
        for _ in range(3):
            assert_same_bits(placed(x, engine="llvm").values, copied(x, engine="llvm")["y"].values)


@pytest.mark.usefixtures("same_threads", "small_calls_are_shared")
def test_threads_divide_the_steps_of_one_sequence():
    """Also of lengths never seen, and of more steps than a block has."""
    given = [sequences([length], INPUTS) for length in (40, 37, 64, 41, 9, 1, 600)]
    graph = sn.Graph(two_and_a_recurrence, ABOVE)
    sn.set_threads(1)
    alone = [graph(x).values for x in given]
    sn.set_threads(3)
    divided = sn.Graph(two_and_a_recurrence, ABOVE)
    for x, one in 2 * list(zip(given, alone, strict=True)):
        assert_same_bits(divided(x).values, one)


def test_padding_is_not_read():
    graph, x = sn.Graph(model_of({"padding": "same"}), params_of(3)), normal(3, 7, INPUTS)
    lengths = np.array([7, 3, 0])
    found = graph(x, lengths=lengths)
    for row, length in enumerate(lengths):
        alone = graph(sn.Ragged.from_list([x[row, :length]])).values
        assert_same_bits(found[row, :length], alone)
        assert not found[row, length:].any()


def test_inner_sequences_are_convolved_each_alone():
    def model(words: Any, p: Any) -> Any:
        y = sn.conv1d(words, p["weight"], p["bias"], padding="same")
        return {"words": y, "sums": sn.conv1d(sn.reduce(y, "sum"), p["above"])}

    params = params_of(3, dtype="float64") | {"above": normal(2, OUTPUTS, 2, dtype="float64")}
    documents = [
        [normal(n, INPUTS, seed=n, dtype="float64") for n in lengths] for lengths in ([3, 0, 1], [], [2])
    ]
    graph, x = sn.Graph(model, params), sn.Ragged.from_list(documents)
    for _ in range(3):
        found = graph(x, engine="llvm")
        for sentences, own, sums in zip(
            documents, found["words"].to_list(), found["sums"].to_list(), strict=True
        ):
            right = [by_loops(words, params, CASES["same"]) for words in sentences]
            for one, wanted in zip(own, right, strict=True):
                assert_close(one, wanted, 1, 3 * INPUTS)
            for place, one in enumerate(sums):
                totals = [right[n].sum(axis=0) for n in (place - 1, place) if n >= 0]
                weights = params["above"].transpose(2, 0, 1)[-len(totals) :]
                assert_close(one, sum(w @ total for w, total in zip(weights, totals, strict=True)), 3, 99)
    assert_model(model, params, x, narrow=())


def test_losses_of_a_model_with_convolutions():
    """A loss is a mean over all steps. The second call is prepared, as are those of other lengths."""
    x = [
        sequences(lengths, INPUTS, seed=seed) for seed, lengths in enumerate(([5, 3], [5, 3], [5, 3], [2, 9]))
    ]
    graph = sn.Graph(two_and_a_recurrence, ABOVE)
    run = sn.value_and_grad(lambda outputs, target: np.sum((outputs - target) ** 2, axis=-1), graph)
    for one in x:
        targets = one.with_values(one.values[:, :2])
        value, gradients = run(one, targets)
        outputs, backward = sn.vjp(sn.Graph(two_and_a_recurrence, ABOVE))(one)
        away = outputs.values - targets.values
        assert_close(value, np.sum(away.astype(np.float64) ** 2) / len(away), 99, 99, "float32")
        other = backward(outputs.with_values(2 * away / len(away)))
        for name in ABOVE:
            assert_close(gradients.params[name], other.params[name], 99, 99)


# ---- streams -----------------------------------------------------------------------------------------------


def test_a_stream_of_causal_convolutions_has_the_bits_of_a_call():
    graph, x = sn.Graph(two_and_a_recurrence, ABOVE), normal(3, 9, INPUTS)
    expected, stream = graph(x, engine="llvm"), graph.stream(3)
    for step in range(9):
        assert_same_bits(stream.step(x[:, step]), expected[:, step])
    assert [leaf.shape for leaf in leaves(stream.state)] == [(3, 4, INPUTS), (3, 4), (3, 1, 4)]


def test_a_stream_of_a_convolution_of_one_step():
    graph, x = sn.Graph(two_and_a_recurrence, ABOVE | {"weight": normal(OUTPUTS, INPUTS, 1)}), normal(2, 4, 6)
    expected, stream = graph(x, engine="llvm"), graph.stream(2)
    for step in range(4):
        assert_same_bits(stream.step(x[:, step]), expected[:, step])


# ---- errors ------------------------------------------------------------------------------------------------

WEIGHT = normal(4, 6, 3)
MISTAKES: dict[str, Callable[[Any, Any], Any]] = {
    r"conv1d takes sequences of a model, which sn\.Graph runs": lambda x, p: sn.conv1d(p, WEIGHT),
    "conv1d takes sequences with one axis of features, not rows/steps f32": lambda x, p: sn.conv1d(
        x[:, None], WEIGHT
    ),
    r"weight is a parameter \[out, in / groups, kernel\], not const f32\[6\]": lambda x, p: sn.conv1d(x, p),
    r"weight is a parameter \[out, in / groups, kernel\], not rows/steps f32\[6\]": lambda x, p: sn.conv1d(
        x, x
    ),
    r"weight is f32\[4, 6, 3\], .*, which 2 groups and sequences with 6 features": lambda x, p: sn.conv1d(
        x, WEIGHT, groups=2
    ),
    "dilation is a whole number from 1 to 2147483647, not 0": lambda x, p: sn.conv1d(x, WEIGHT, dilation=0),
    "groups is a whole number from 1 to 2147483647, not 0": lambda x, p: sn.conv1d(x, WEIGHT, groups=0),
    "a window reaches over at most 2147483647 steps, not": lambda x, p: sn.conv1d(x, WEIGHT, dilation=2**30),
    "padding is causal, same, valid, a number or .before, after., not .sane.": lambda x, p: sn.conv1d(
        x, WEIGHT, padding="sane"
    ),
    r"bias is a parameter \[4\], one number per output, not const f32\[6\]": lambda x, p: sn.conv1d(
        x, WEIGHT, p
    ),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_name_the_line(message: str):
    with pytest.raises(StepError, match=rf"(?s){message}.*test_convolution\.py"):
        sn.Graph(MISTAKES[message], normal(6), inputs=6)


def test_arrays_are_no_sequences_of_a_model():
    with pytest.raises(StepError, match="conv1d takes sequences of a model"):
        sn.conv1d(normal(2, 5, 6), WEIGHT)


def test_a_step_of_a_recurrence_is_refused():
    def step(words: Any, h: Any, p: Any) -> Any:
        h = h + sn.reduce(sn.conv1d(words, p), "sum")
        return h, h

    documents = sn.Ragged.from_list([[normal(3, 6), normal(2, 6)]])
    with pytest.raises(StepError, match=r"(?s)conv1d is for models, .*test_convolution\.py"):
        sn.RNN(step, WEIGHT, memory=4)(documents)


def test_streams_of_later_steps_are_refused():
    graph = sn.Graph(lambda x, p: sn.conv1d(x, p, padding="same"), WEIGHT, inputs=6)
    with pytest.raises(
        InputError, match=r"has no stream: a convolution of it reads 1 later step \(at .*test_convolution\.py"
    ):
        graph.stream(2)


def test_checkpoints_are_refused():
    run = sn.vjp(sn.Graph(two_and_a_recurrence, ABOVE))
    with pytest.raises(InputError, match="a convolution reads steps of other pieces: leave checkpoint= out"):
        run(sequences([5, 3], INPUTS), checkpoint=2)
