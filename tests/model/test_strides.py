"""Convolutions with strides, transposed ones and pooling: against PyTorch's, sequence by sequence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from same_bits import assert_same_bits
from tolerance import assert_close
from zoo import normal, rnn_of, sequences

import stepnet as sn
import stepnet.build
import stepnet.onnx
from stepnet.compiler.net.windows import Lengths, derived_axis, derived_offsets, is_derived_name
from stepnet.errors import InputError, StepError, StepnetError
from stepnet.ragged import offsets_of
from tests.model.graph.model_gradients import assert_model

Array = np.ndarray
INPUTS, OUTPUTS = 6, 4
LENGTHS = (9, 0, 1, 7, 30)
Case = tuple[Callable[..., Any], Callable[..., torch.Tensor], dict[str, Any], tuple[int, ...] | None]

CONVOLUTION, TRANSPOSED = (OUTPUTS, INPUTS, 3), (INPUTS, OUTPUTS, 3)
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor]]] = {
    "conv1d": (sn.conv1d, functional.conv1d),
    "transposed": (sn.conv_transpose1d, functional.conv_transpose1d),
    "max": (sn.max_pool1d, functional.max_pool1d),
    "avg": (sn.avg_pool1d, functional.avg_pool1d),
}
CASES: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "a stride": ("conv1d", {"stride": 2, "padding": 0}, CONVOLUTION),
    "a stride and zeros": ("conv1d", {"stride": 2, "padding": 1}, CONVOLUTION),
    "no zeros": ("conv1d", {"padding": 0}, CONVOLUTION),
    "many zeros": ("conv1d", {"padding": 4}, CONVOLUTION),
    "a stride and a dilation": ("conv1d", {"stride": 3, "dilation": 2, "padding": 2}, CONVOLUTION),
    "a stride beyond the kernel": ("conv1d", {"stride": 5, "padding": 0}, CONVOLUTION),
    "groups": ("conv1d", {"stride": 2, "groups": 2, "padding": 1}, (OUTPUTS, INPUTS // 2, 3)),
    "transposed": ("transposed", {}, TRANSPOSED),
    "transposed with a stride": ("transposed", {"stride": 2}, TRANSPOSED),
    "transposed without ends": ("transposed", {"stride": 2, "padding": 1, "output_padding": 1}, TRANSPOSED),
    "transposed and dilated": ("transposed", {"stride": 2, "dilation": 3, "padding": 2}, TRANSPOSED),
    "transposed in groups": ("transposed", {"stride": 3, "groups": 2}, TRANSPOSED),
    "transposed to fewer": ("transposed", {"padding": 2}, TRANSPOSED),
    "maxima": ("max", {"size": 2}, ()),
    "overlapping maxima": ("max", {"size": 3, "stride": 2, "padding": 1}, ()),
    "dilated maxima": ("max", {"size": 3, "stride": 1, "dilation": 2}, ()),
    "means": ("avg", {"size": 2}, ()),
    "means with zeros": ("avg", {"size": 3, "stride": 2, "padding": 1}, ()),
    "means without zeros": (
        "avg",
        {"size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
        (),
    ),
}


def model_of(name: str) -> Callable[[Any, Any], Any]:
    """The operation of a case as a model."""
    kind, options, _ = CASES[name]
    return lambda x, params: OPERATIONS[kind][0](x, *params, **options)


def params_of(name: str, dtype: str) -> tuple[Array, ...]:
    """The weight and the bias of a case; none for pooling."""
    shape = CASES[name][2]
    outputs = OUTPUTS * CASES[name][1].get("groups", 1) if "transposed" in name else OUTPUTS
    return (normal(*shape, dtype=dtype), normal(outputs, dtype=dtype, seed=1)) if shape else ()


def by_torch(name: str, x: torch.Tensor, params: list[torch.Tensor]) -> torch.Tensor:
    """Runs PyTorch on one sequence [steps, features]; no steps where it refuses one as too short."""
    kind, options, _ = CASES[name]
    options = {{"size": "kernel_size"}.get(key, key): value for key, value in options.items()}
    features = params[1].shape[0] if params else INPUTS
    reach = (
        (3 - 1) * options.get("dilation", 1)
        if params
        else (options["kernel_size"] - 1) * options.get("dilation", 1)
    )
    if not len(x) or (kind != "transposed" and len(x) + 2 * options.get("padding", 0) <= reach):
        return torch.zeros(0, features, dtype=x.dtype)
    if kind == "transposed" and (len(x) - 1) * options.get("stride", 1) + reach + 1 <= 2 * options.get(
        "padding", 0
    ):
        return torch.zeros(0, features, dtype=x.dtype)
    return OPERATIONS[kind][1](x.T[None], *params, **options)[0].T


@pytest.mark.long(each=True)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_each_sequence_is_as_if_alone(name: str, dtype: str):
    params = params_of(name, dtype)
    graph, x = sn.Graph(model_of(name), params), sequences(LENGTHS, INPUTS, dtype=dtype)
    doubles = [torch.tensor(array).double() for array in params]
    wanted = [by_torch(name, torch.tensor(one).double(), doubles).numpy() for one in x.to_list()]
    for engine in ("llvm", "llvm", "interpret"):
        found = graph(x, engine=engine)
        for one, right in zip(found.to_list(), wanted, strict=True):
            assert_close(one, right, 1, INPUTS * 3, dtype)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_pytorch(name: str):
    params = params_of(name, "float64")
    graph, x = sn.Graph(model_of(name), params), sequences(LENGTHS, INPUTS, dtype="float64")
    tensors = [torch.tensor(array, requires_grad=True) for array in (x.values, *params)]
    made = torch.cat([by_torch(name, one, tensors[1:]) for one in tensors[0].split(LENGTHS)])
    cotangents = normal(*made.shape, dtype="float64", seed=3)
    right = torch.autograd.grad(made, tensors, torch.tensor(cotangents))
    for _ in range(3):
        outputs, backward = sn.vjp(graph)(x)
        found = backward(outputs.with_values(cotangents))
        assert_close(found.inputs.values, right[0].numpy(), 9, INPUTS * OUTPUTS * 3)
        for one, theirs in zip(found.params, right[1:], strict=True):
            assert_close(one, theirs.numpy(), 9, INPUTS * OUTPUTS * sum(LENGTHS))


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", CASES)
def test_padded_arrays_have_the_bits_of_raggeds(name: str):
    params, lengths = params_of(name, "float32"), np.array([5, 9, 0, 1])
    graph, array = sn.Graph(model_of(name), params), normal(4, 9, INPUTS)
    kind = [array[row, :length] for row, length in enumerate(lengths)]
    alone = graph(sn.Ragged.from_list(kind)).to_list()
    whole = graph(sn.Ragged.from_list([array[0]])).lengths[0]
    array[0, 5:], array[2], array[3, 1:] = np.nan, np.nan, np.nan
    by_time = graph(np.ascontiguousarray(array.swapaxes(0, 1)), lengths=lengths, time_major=True)
    for found in (graph(array, lengths=lengths), by_time.swapaxes(0, 1)):
        assert found.shape[:2] == (4, whole)
        for row, one in enumerate(alone):
            assert_same_bits(found[row, : len(one)], one)
            assert not found[row, len(one) :].any()
    full = graph(array[1:2].repeat(3, axis=0))
    assert full.shape[:2] == (3, whole)
    for row in full:
        assert_same_bits(row, alone[1])


def test_gradients_of_padded_arrays_are_those_of_raggeds():
    name, lengths = "a stride and zeros", np.array([5, 9, 0, 1])
    graph, array = sn.Graph(model_of(name), params_of(name, "float64")), normal(4, 9, INPUTS, dtype="float64")
    kind = sn.Ragged.from_list([array[row, :length] for row, length in enumerate(lengths)])
    outputs, backward = sn.vjp(graph)(kind)
    cotangents = normal(*outputs.values.shape, dtype="float64")
    right = backward(outputs.with_values(cotangents))
    padded, again = sn.vjp(graph)(array, lengths=lengths)
    spread = np.full(padded.shape, 7.0)  # what stands in the padding is not read
    for row, part in enumerate(outputs.with_values(cotangents).to_list()):
        spread[row, : len(part)] = part
    found = again(spread)
    for one, wanted in zip(found.params, right.params, strict=True):
        assert_same_bits(one, wanted)
    for row, wanted in enumerate(right.inputs.to_list()):
        assert_same_bits(found.inputs[row, : len(wanted)], wanted)
        assert not found.inputs[row, len(wanted) :].any()


def test_last_outputs_are_those_of_their_own_steps():
    graph, array, lengths = sn.Graph(speech, PARAMS), normal(4, 9, INPUTS), np.array([5, 9, 0, 1])
    kind = sn.Ragged.from_list([array[row, :length] for row, length in enumerate(lengths)])
    by_time = np.ascontiguousarray(array.swapaxes(0, 1))
    whole, calls = (
        graph(kind),
        (
            graph(kind, last_only=True),
            graph(array, lengths=lengths, last_only=True),
            graph(by_time, lengths=lengths, last_only=True, time_major=True),
        ),
    )
    for found in calls:
        for name in ("steps", "more"):
            for row, one in enumerate(whole[name].to_list()):
                assert_same_bits(found[name][row], one[-1] if len(one) else np.zeros(one.shape[1], one.dtype))
        assert_same_bits(found["mean"], whole["mean"])
    full = graph(array[:1], last_only=True)
    assert_same_bits(full["more"][0], graph(array[:1])["more"][0, -1])


# ---- models ------------------------------------------------------------------------------------------------

GRU = rnn_of("gru", OUTPUTS, OUTPUTS)
PARAMS = {"down": normal(OUTPUTS, INPUTS, 5), "up": normal(OUTPUTS, 2, 4), "more": normal(INPUTS, INPUTS, 1)}


def speech(x: Any, params: Any) -> Any:
    """A model of speech: fewer steps, a recurrence over them with what it reads added, and back to more."""
    fewer = sn.relu(sn.conv1d(x, params["down"], stride=2, padding=2))
    h = GRU(fewer)[0] + fewer
    pooled = sn.max_pool1d(x @ params["more"][:, :, 0], 2, padding=(0, 1))
    return {
        "steps": h,
        "pooled": np.concatenate([h, pooled], axis=-1),
        "mean": sn.reduce(h, "mean"),
        "more": sn.conv_transpose1d(h, params["up"], stride=2, padding=1),
    }


def speech_by_torch(x: Array) -> dict[str, Array]:
    """The same model of one sequence, in PyTorch and float64."""
    down, up, more = (torch.tensor(PARAMS[name]).double() for name in PARAMS)
    one = torch.tensor(x).double().T[None]
    fewer = torch.relu(functional.conv1d(one, down, stride=2, padding=2))
    read = fewer[0].T[None].numpy()
    h = torch.tensor(GRU(read.astype("float32"))[0][0] + read[0])
    pooled = functional.max_pool1d(
        functional.pad((one[0].T @ more[:, :, 0]).T[None], (0, 1), value=-np.inf), 2
    )
    return {
        "steps": h.numpy(),
        "pooled": torch.cat([h, pooled[0].T], dim=1).numpy(),
        "mean": h.mean(0).numpy(),
        "more": functional.conv_transpose1d(h.T[None], up, stride=2, padding=1)[0].T.numpy(),
    }


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("same_threads", "small_calls_are_shared")
def test_a_model_of_fewer_and_more_steps(threads: int):
    sn.set_threads(threads)
    graph, x = sn.Graph(speech, PARAMS), sequences((9, 1, 8, 30), INPUTS)
    for _ in range(3):
        found = graph(x)
        for row, one in enumerate(x.to_list()):
            alone = graph(sn.Ragged.from_list([one]))
            for name, right in speech_by_torch(one).items():
                value = found[name] if name == "mean" else found[name].to_list()
                assert_close(value[row], right, len(one), 99, "float32")
                assert_same_bits(value[row], alone[name][0] if name == "mean" else alone[name].values)


def test_differences_agree_with_the_gradient_of_a_model():
    def model(x: Any, params: Any) -> Any:
        fewer = np.tanh(sn.conv1d(x, params["down"], stride=2, padding=2))
        return sn.conv_transpose1d(sn.avg_pool1d(fewer, 2, stride=1), params["up"], stride=3)

    params = {name: normal(*PARAMS[name].shape, dtype="float64") for name in ("down", "up")}
    assert_model(model, params, sequences((9, 0, 3, 4), INPUTS, dtype="float64"))


def test_a_loss_of_each_sequence():
    graph, x = sn.Graph(lambda x, p: speech(x, p)["mean"], PARAMS), sequences((9, 3), INPUTS)
    targets = normal(2, OUTPUTS)
    run = sn.value_and_grad(lambda y, t: np.sum((y - t) ** 2, axis=-1), graph)
    array = np.stack([x.to_list()[0][:6], x.to_list()[0][3:]])
    by_time = np.ascontiguousarray(array.swapaxes(0, 1))
    cases: list[tuple[Any, dict[str, Any]]] = [(x, {}), (array, {}), (by_time, {"time_major": True})]
    for given, options in cases:
        outputs, backward = sn.vjp(graph)(given, **options)
        other = backward(outputs - targets)
        for _ in range(3):
            value, gradients = run(given, targets, **options)
            assert_close(value, np.sum((outputs - targets) ** 2) / 2, 99, 99)
            for name in PARAMS:
                assert_close(gradients.params[name], other.params[name], 99, 99)


def test_ends_in_prepared_gradients_are_those_of_their_own_steps():
    def model(x: Any, params: Any) -> Any:
        fewer = sn.conv1d(x, params, stride=2, padding=0)
        return sn.reduce(fewer, "last") + sn.reduce(fewer, "first")

    graph, x = sn.Graph(model, normal(OUTPUTS, INPUTS, 3)), sequences((9, 5), INPUTS)
    right = np.stack(
        [
            (one[0] + one[-1])
            for one in sn.Graph(lambda x, p: sn.conv1d(x, p, stride=2, padding=0), graph.params)(x).to_list()
        ]
    )
    for _ in range(4):
        outputs, backward = sn.vjp(graph)(x)
        assert_close(outputs, right, 1, 1)
        assert_close(graph(x), right, 1, 1)
        found = backward(np.ones_like(outputs)).inputs
        assert found.values.any()


def test_saved_models_have_the_bits_of_the_model(tmp_path: Path):
    graph, x = sn.Graph(speech, PARAMS), sequences((9, 3, 0), INPUTS)
    expected = graph(x)
    graph.save(tmp_path / "speech.stepnet")
    found = sn.load(tmp_path / "speech.stepnet")(x)
    for name, value in expected.items():
        values = [one if name == "mean" else one.values for one in (found[name], value)]
        assert_same_bits(*values)
        assert name == "mean" or (found[name].lengths == value.lengths).all()


def test_explanations_name_the_steps():
    graph = sn.Graph(speech, PARAMS, inputs=INPUTS)
    assert "a recurrence over rows/steps[+0/2]" in graph.explain()
    assert "rows/steps[+0/2]" in graph.explain(rows=2, steps=10)
    assert "overlap" in graph.draw()
    assert "params" in sn.vjp(graph).explain(rows=2, steps=10)


# ---- axes --------------------------------------------------------------------------------------------------


def test_equal_numbers_of_steps_are_one_axis():
    """Every three lengths one after the other are what the name of their axis says."""
    lengths = np.arange(30)
    offsets = offsets_of(lengths)
    some = [
        Lengths(more, factor, way) for more in (-3, -1, 0, 2) for factor in (1, 3) for way in (False, True)
    ]
    for first in some:
        for second in some:
            for third in some:
                axis = "steps"
                for own in (first, second, third):
                    axis = derived_axis(axis, own)
                right = third.of(second.of(first.of(lengths)))
                assert axis == "steps" or is_derived_name(axis)
                np.testing.assert_array_equal(np.diff(derived_offsets(axis, offsets)), right)


def test_a_convolution_goes_back_to_the_steps_of_a_transposed_one():
    def model(x: Any, params: Any) -> Any:
        more = sn.conv_transpose1d(x, params["up"], stride=2, padding=1)
        return x + sn.conv1d(more, params["down"], stride=2, padding=1)

    params = {"up": normal(INPUTS, 2, 4), "down": normal(INPUTS, 2, 4)}
    x = sequences(LENGTHS, INPUTS)
    assert (sn.Graph(model, params)(x).lengths == x.lengths).all()


@pytest.mark.parametrize(
    "name",
    ["steps", "words[+0/2]", "steps[+0/2", "steps[2/2]", "steps[-0/2]", "steps[+0/0]", "steps[+9/1]x", ""],
)
def test_other_texts_are_no_axes(name: str):
    assert not is_derived_name(name)


# ---- refusals ----------------------------------------------------------------------------------------------

WEIGHT = normal(OUTPUTS, INPUTS, 3)
MISTAKES: dict[str, Callable[[Any, Any], Any]] = {
    "stride is a whole number from 1 to 2147483647, not 0": lambda x, p: sn.conv1d(x, WEIGHT, stride=0),
    r"padding is causal, same, valid, a number or \(before, after\), not 'sane'": lambda x, p: sn.conv1d(
        x, WEIGHT, padding="sane"
    ),
    r"padding is same, a number or \(before, after\), not 'valid'": lambda x, p: sn.max_pool1d(
        x, 2, padding="valid"
    ),
    "padding is a whole number from 0 to 2147483647, not -1": lambda x, p: sn.conv1d(x, WEIGHT, padding=-1),
    "padding is at most 1, so that each window has a step, not 2": lambda x, p: sn.max_pool1d(
        x, 2, padding=2
    ),
    "size is a whole number from 1 to 2147483647, not 0": lambda x, p: sn.max_pool1d(x, 0),
    "max_pool1d takes sequences of a model": lambda x, p: sn.max_pool1d(p, 2),
    "avg_pool1d takes floating-point values, not rows/steps i64": lambda x, p: sn.avg_pool1d(
        x.astype("int64"), 2
    ),
    "output_padding is less than the stride or the dilation, not 2": lambda x, p: sn.conv_transpose1d(
        x, WEIGHT.transpose(1, 0, 2), stride=2, output_padding=2
    ),
    r"weight is f32\[4, 6, 3\], which 1 groups and rows/steps f32\[6\] do not fit": lambda x, p: (
        sn.conv_transpose1d(x, WEIGHT)
    ),
    r"values along different axes meet: rows/steps and rows/steps\[\+0/2\]": lambda x, p: (
        x + sn.max_pool1d(x, 2, padding=(0, 1))
    ),
    r"different axes meet: rows/steps and rows/steps\[\+0/2\]": lambda x, p: np.concatenate(
        [x, sn.max_pool1d(x, 2, padding=(0, 1))], -1
    ),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_name_the_line(message: str):
    with pytest.raises(StepError, match=rf"(?s){message}.*test_strides\.py"):
        sn.Graph(MISTAKES[message], normal(6), inputs=INPUTS)


def test_inner_sequences_keep_their_steps():
    documents = sn.Ragged.from_list([[normal(3, INPUTS), normal(2, INPUTS)]])
    with pytest.raises(StepError, match=r"for the steps of a model's sequences, not for rows/steps/words"):
        sn.Graph(lambda x, p: sn.max_pool1d(x, 2))(documents)


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "a stream": (
        lambda graph, x: graph.stream(2),
        r"has no stream: it has other numbers of steps than its inputs, .*test_strides\.py",
    ),
    "checkpoints": (
        lambda graph, x: sn.vjp(graph)(x, checkpoint=2),
        "checkpoint= is not for models with other",
    ),
    "a target of each step": (
        lambda graph, x: sn.value_and_grad(lambda y, t: y["mean"][..., 0], graph)(x, {"steps": x}),
        "targets with an entry per step are not for models with other .* make the targets an input",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_model_of_fewer_steps_has_not_is_refused(name: str):
    run, message = REFUSED[name]
    with pytest.raises(StepnetError, match=message):
        run(sn.Graph(speech, PARAMS, inputs=INPUTS), sequences((9, 3), INPUTS))


def test_sequences_that_grow_too_long_are_refused():
    graph = sn.Graph(
        lambda x, p: sn.conv_transpose1d(sn.conv_transpose1d(x, p, stride=2**20), p, stride=2**20),
        normal(1, 1, 1),
    )
    with pytest.raises(InputError, match=r"a sequence of .* steps is too long for the steps"):
        graph(sequences((3,), 1))
