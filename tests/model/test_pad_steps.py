"""Copies of steps at the ends of sequences: against PyTorch's padding, sequence by sequence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from same_bits import assert_same_bits
from tolerance import assert_close
from zoo import normal, sequences

import stepnet as sn
from stepnet.compiler.net import OPERATIONS, ROWS, STEPS, Type
from stepnet.errors import InputError, NetError, StepError

INPUTS, OUTPUTS = 3, 4
LENGTHS = (9, 0, 4, 7, 30)
CASES = [("reflect", 2, 3), ("reflect", 0, 3), ("reflect", 1, 0), ("replicate", 5, 1), ("replicate", 0, 6)]
PARAMS = (normal(OUTPUTS, INPUTS, 3), normal(OUTPUTS))


def graph(mode: str, before: int, after: int, dtype: str = "float32") -> sn.Graph:
    def model(x: Any, params: Any) -> Any:
        padded = sn.pad_steps(x, (before, after), mode=mode)
        return sn.conv1d(padded, *params, padding="valid", stride=2)

    return sn.Graph(model, tuple(own.astype(dtype) for own in PARAMS), inputs=sn.Spec(INPUTS, dtype))


def by_torch(case: tuple[str, int, int], x: torch.Tensor, params: Any) -> torch.Tensor:
    """PyTorch on one sequence [steps, features]."""
    mode, *pads = case
    if not len(x):
        return torch.zeros(0, OUTPUTS, dtype=x.dtype)
    return functional.conv1d(functional.pad(x.T[None], pads, mode), *params, stride=2)[0].T


@pytest.mark.parametrize("case", CASES)
def test_each_sequence_is_as_if_alone(case: tuple[str, int, int]):
    model, x = graph(*case), sequences(LENGTHS, INPUTS)
    doubles = [torch.tensor(array).double() for array in PARAMS]
    for engine in ("llvm", "llvm", "llvm", "interpret"):
        for made, one in zip(model(x, engine=engine).to_list(), x.to_list(), strict=True):
            assert_close(made, by_torch(case, torch.tensor(one).double(), doubles).numpy(), 1, 9, "float32")
    alone = model(sn.Ragged.from_list([x.to_list()[3]]))
    assert_same_bits(alone.values, model(x).to_list()[3])


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_pytorch(case: tuple[str, int, int]):
    model, x = graph(*case, "float64"), sequences(LENGTHS, INPUTS, dtype="float64")
    tensors = [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in (x.values, *PARAMS)]
    made = torch.cat([by_torch(case, one, tensors[1:]) for one in tensors[0].split(LENGTHS)])
    cotangents = normal(*made.shape, dtype="float64")
    right = torch.autograd.grad(made, tensors, torch.tensor(cotangents))
    for _ in range(3):
        outputs, backward = sn.vjp(model)(x)
        found = backward(outputs.with_values(cotangents))
        for one, theirs in zip((found.inputs.values, *found.params), right, strict=True):
            assert_close(one, theirs.numpy(), 9, INPUTS * OUTPUTS * sum(LENGTHS))


def test_padded_arrays_have_the_bits_of_raggeds():
    model, lengths, array = graph("reflect", 2, 1), np.array([5, 9, 0, 3]), normal(4, 9, INPUTS)
    alone = model(sn.Ragged.from_list([array[row, :length] for row, length in enumerate(lengths)])).to_list()
    array[0, 5:], array[2], array[3, 3:] = np.nan, np.nan, np.nan
    found = model(array, lengths=lengths)
    for row, one in enumerate(alone):
        assert_same_bits(found[row, : len(one)], one)
        assert not found[row, len(one) :].any()


def test_values_of_any_dtype_and_features_are_copied():
    for dtype in ("int64", "bool", "float64"):
        x = (normal(1, 4, 2, 3) * 9).astype(dtype)
        found = sn.Graph(lambda x, params: sn.pad_steps(x, 3))(x)
        assert_same_bits(found[0], np.pad(x[0], ((3, 3), (0, 0), (0, 0)), mode="reflect"))


def test_no_steps_leave_the_sequences_as_they_are():
    x = normal(1, 1, 2)
    assert_same_bits(sn.Graph(lambda x, params: sn.pad_steps(x, 0) + 0)(x), x)


def test_saved_models_are_explained_and_have_the_bits(tmp_path: Path):
    model, x = graph("reflect", 2, 1), sequences((5, 3), INPUTS)
    model.save(tmp_path / "padded.stepnet")
    found = sn.load(tmp_path / "padded.stepnet")
    assert_same_bits(found(x).values, model(x).values)
    assert "2 copies of steps ahead of rows/steps and 1 behind, by reflect" in model.explain()


# ---- refusals ----------------------------------------------------------------------------------------------


def test_a_sequence_that_is_too_short_is_named():
    message = (
        "padding by reflection reads 3 steps besides the first or the last one of a sequence, so a sequence "
        "has at least 4 steps, and sequence 2 has 3"
    )
    with pytest.raises(InputError, match=message):
        graph("reflect", 2, 3)(sequences((4, 0, 3), INPUTS))


def test_wrong_settings_are_refused():
    refused: dict[str, Any] = {
        "mode is 'reflect' or 'replicate', not 'circular'": lambda x: sn.pad_steps(x, 1, mode="circular"),
        r"padding is a number or \(before, after\), not 'same'": lambda x: sn.pad_steps(x, "same"),
        "padding is a whole number from 0": lambda x: sn.pad_steps(x, (1, -1)),
        "0 to 65536 steps are put at each end, not 70000 and 0": lambda x: sn.pad_steps(
            x, (70000, 0), mode="replicate"
        ),
        "pad_steps takes sequences of a model": lambda x: sn.pad_steps(sn.reduce(x, "last"), 1),
    }
    for message, model in refused.items():
        with pytest.raises(StepError, match=message):
            sn.Graph(lambda x, params, model=model: model(x))(normal(1, 3, 2))


def test_nets_with_other_settings_are_refused():
    types, steps = OPERATIONS["extend"].types, Type(STEPS, (2,), "float32")
    for attributes in (
        {"before": -1, "after": 0, "how": "reflect"},
        {"before": 1, "after": 0, "how": "wrap"},
        {"before": 2**40, "after": 0, "how": "replicate"},
    ):
        with pytest.raises(NetError, match="steps are put at"):
            types([steps], attributes)
    with pytest.raises(NetError, match="extend puts steps at the ends of a model's sequences"):
        types([steps.at(ROWS)], {"before": 1, "after": 0, "how": "reflect"})


def test_streams_of_single_steps_refuse_copies():
    model = graph("reflect", 2, 1)
    model(normal(1, 4, INPUTS))
    with pytest.raises(InputError, match="copies of steps are put at the ends of its sequences"):
        model.stream()
