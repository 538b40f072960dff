"""Our layers give what those of Keras give: outputs, states, gradients, with every argument and mask."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pairs import pairwise

import stepnet as sn
import stepnet.keras
from tests.keras.keras_cases import (
    BATCH,
    INPUTS,
    MASKS,
    STATES,
    STEPS,
    UNITS,
    Call,
    Counted,
    assert_same,
    keras,
    numbers,
    pair,
)

OPTIONS: dict[str, tuple[Any, ...]] = {
    "kind": ("SimpleRNN", "GRU", "LSTM"),
    "mask": tuple(MASKS),
    "return_sequences": (True, False),
    "go_backwards": (True, False),
    "zero_output_for_mask": (False, True),
    "dropout": (0.0, 0.4),
    "recurrent_dropout": (0.0, 0.3),
    "training": (True, False),
    "begin": (True, False),
    "use_bias": (True, False),
    "activation": ("tanh", "relu"),
    "unroll": (False, True),
    "implementation": (2, 1),
    "reset_after": (True, False),
}


def has_defect(options: dict[str, Any]) -> bool:
    """True if Keras 3.15 raises an error for these options; `test_keras_defects` has them."""
    flipped = options["unroll"] and options["go_backwards"] and options["mask"] != "none"
    gated = options["implementation"] == 1 and options["dropout"] and not options["recurrent_dropout"]
    return flipped or bool(gated and options["training"] and options["kind"] != "SimpleRNN")


CASES = [options for options in pairwise(OPTIONS) if not has_defect(options)]


def named(options: dict[str, Any]) -> str:
    """The name of a case."""
    return " ".join(str(value) for value in options.values())


@pytest.mark.long(every=8)
@pytest.mark.parametrize("options", CASES, ids=named)
def test_every_two_arguments_together(options: dict[str, Any]):
    options = dict(options)
    kind = options.pop("kind")
    call = Call(options.pop("mask"), options.pop("training"), options.pop("begin"))
    if kind == "SimpleRNN":
        del options["implementation"]
    if kind != "GRU":
        del options["reset_after"]
    theirs, ours = pair(kind, return_state=True, seed=3, **options)
    with Counted() as counted:
        answers = call.answers(ours)
    assert (counted.fast, counted.slow) == (1, 0)
    assert_same(answers, call.answers(theirs))


@pytest.mark.long(each=True)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("return_sequences", [True, False])
def test_predictions_are_those_of_keras(mask: str, return_sequences: bool):
    theirs, ours = pair("LSTM", return_sequences=return_sequences, return_state=True, go_backwards=True)
    x, steps = numbers(BATCH, STEPS, INPUTS), MASKS[mask]
    with torch.no_grad():
        for _ in range(3):  # the third call of a form is prepared
            for one, other in zip(ours(x, mask=steps), theirs(x, mask=steps), strict=True):
                assert_same({"y": one.numpy()}, {"y": other.numpy()})


def test_changed_weights_are_used():
    theirs, ours = pair("GRU")
    x = numbers(BATCH, STEPS, INPUTS)
    for number in range(3):
        for layer in (theirs, ours):
            layer.cell.kernel.assign(numbers(INPUTS, 3 * UNITS, seed=number))
            layer.cell.recurrent_kernel.value.data.mul_(0.5)
        with torch.no_grad():
            assert_same({"y": ours(x).numpy()}, {"y": theirs(x).numpy()})


@pytest.mark.parametrize("kind", STATES)
def test_states_are_kept_while_it_is_trained(kind: str):
    theirs, _ = pair(kind, return_sequences=True, return_state=True)
    _, ours = pair(kind, return_sequences=True, stateful=True)
    states = None
    for number in range(3):
        x, answers = numbers(BATCH, STEPS, INPUTS, seed=number), []
        # Keras' own stateful layers cannot be trained on torch: the states of theirs are handed on here.
        outputs, *states = theirs(x, initial_state=states and [state.detach() for state in states])
        for layer, given in ((ours, ours(x, training=True)), (theirs, outputs)):
            given.square().sum().backward()
            gradients = {weight.name: weight.value.grad.numpy() for weight in layer.trainable_weights}
            answers.append({"y": given.detach().numpy(), **gradients})
        assert_same(answers[0], answers[1], 3 * STEPS)
        kept = zip(ours.states, states, strict=True)
        for state, last in kept:
            np.testing.assert_allclose(state.numpy(), last.detach().numpy(), atol=1e-5)
    ours.reset_state()
    assert not any(state.numpy().any() for state in ours.states)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("shape", [(3, 0, INPUTS), (3, 1, INPUTS), (0, 5, INPUTS), (1, 1, INPUTS)])
@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_sequences_of_any_size(kind: str, shape: tuple[int, ...]):
    theirs, ours = pair(kind, return_sequences=True, return_state=True, dtype="float64")
    call = Call(shape=shape, begin=True, dtype="float64")
    answers = call.answers(ours)
    if shape[1] and shape[0]:
        assert_same(answers, call.answers(theirs))
        return
    assert answers["result 0"].shape == (*shape[:2], UNITS)
    for place in range(STATES[kind]):  # as nothing ran, they are those it began with
        begun = numbers(shape[0], UNITS, seed=7 + place, dtype="float64")
        np.testing.assert_array_equal(answers[f"result {place + 1}"], begun)
    assert not answers["d kernel"].any()


def test_the_seed_of_dropout_draws_what_keras_draws():
    theirs, ours = pair("GRU", dropout=0.3, recurrent_dropout=0.3, seed=11)
    seen = list[Any]()
    for _ in range(3):
        drawn = Call(training=True).answers(ours)
        assert_same(drawn, Call(training=True).answers(theirs))
        seen.append(drawn["result 0"])
    assert abs(seen[0] - seen[1]).max() > 1e-3


def test_low_precision_is_computed_in_float32():
    theirs, ours = pair("LSTM", dtype="mixed_bfloat16", return_sequences=True, dropout=0.3, seed=1)
    x = torch.tensor(numbers(BATCH, STEPS, INPUTS))
    exact = keras.layers.LSTM(UNITS, return_sequences=True, dropout=0.3, seed=1)
    exact.build(x.shape)
    exact.set_weights(theirs.get_weights())
    with Counted() as counted:
        outputs = ours(x, training=True)
    assert counted.fast == 1
    outputs.float().square().sum().backward()
    assert (outputs.dtype, ours.cell.kernel.value.grad.dtype) == (torch.bfloat16, torch.float32)
    away = [abs(one.float() - exact(x, training=True)).max() for one in (outputs, theirs(x, training=True))]
    assert away[0] < 0.03, away


def test_a_fit_ends_where_that_of_keras_ends():
    x, y = numbers(32, STEPS, INPUTS), numbers(32, 1, seed=1)
    losses, weights = [], []
    for where in (keras.layers, stepnet.keras):
        keras.utils.set_random_seed(5)
        layers = [
            keras.layers.Masking(),
            keras.layers.Dropout(0.2),
            where.Bidirectional(where.GRU(UNITS, return_sequences=True, dropout=0.2, recurrent_dropout=0.2)),
            where.LSTM(UNITS, kernel_regularizer="l2", recurrent_constraint="unit_norm"),
            keras.layers.Dense(1),
        ]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        with Counted() as counted:
            losses.append(model.fit(x, y, epochs=3, batch_size=8, verbose=0).history["loss"])
        assert counted.slow == 0
        assert (counted.fast > 0) == (where is stepnet.keras)
        weights.append(model.get_weights())
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    for ours, theirs in zip(weights[1], weights[0], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # PyTorch's, of its own compiler
def test_a_step_of_training_that_torch_compiles():
    _, plain = pair("GRU")
    _, compiled = pair("GRU")
    x = torch.tensor(numbers(BATCH, STEPS, INPUTS))

    def step(layer: Any, x: torch.Tensor) -> torch.Tensor:
        loss = layer(x).square().mean()
        loss.backward()
        return loss

    right = step(plain, x)
    with Counted() as counted:
        loss = torch.compile(step, backend="eager")(compiled, x)
    torch.compiler.reset()
    assert counted.fast == 1
    torch.testing.assert_close(loss, right)
    torch.testing.assert_close(compiled.cell.kernel.value.grad, plain.cell.kernel.value.grad)


def test_an_exported_graph_holds_keras_operations():
    layer = stepnet.keras.GRU(UNITS)
    model = keras.Sequential([keras.Input((STEPS, INPUTS)), layer])
    x = torch.tensor(numbers(BATCH, STEPS, INPUTS))
    right = model(x)
    with Counted() as counted:
        program = torch.export.export(model, (x,))
    assert (counted.fast, counted.slow) == (0, 1)
    torch.testing.assert_close(program.module()(x), right)


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_inputs_of_another_dtype(dtype: str):
    theirs, ours = pair("LSTM", autocast=False)
    x = (3 * numbers(BATCH, STEPS, INPUTS)).astype(dtype)
    with Counted() as counted:
        outputs = ours(x)
    assert counted.fast == 1
    assert_same({"y": outputs.detach().numpy()}, {"y": theirs(x).detach().numpy()})


@pytest.mark.filterwarnings("ignore")  # .h5 is called legacy
def test_a_file_of_our_layers_is_read_without_keras(tmp_path: Path):
    """.h5 has the class as `stepnet>GRU`, without the module that .keras has."""
    ours = [stepnet.keras.Bidirectional(stepnet.keras.GRU(3, return_sequences=True)), stepnet.keras.LSTM(4)]
    model = keras.Sequential([keras.Input((None, 2)), *ours, keras.layers.Dense(2)])
    x = np.random.default_rng(0).normal(size=(2, 5, 2)).astype("float32")
    for name in ("m.h5", "m.keras"):
        model.save(tmp_path / name)
        assert_same({name: np.asarray(sn.load(tmp_path / name)(x))}, {name: model.predict(x, verbose=0)})
