"""Modules on the device "meta", where tensors have shapes and no numbers: made, called and filled there."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import stepnet as sn
import stepnet.torch
from stepnet.torch import ready
from tests.torch.layer_cases import tensors

X = torch.linspace(-1, 1, 5 * 2 * 3).reshape(5, 2, 3)
ROW = X[0]


def recurrence_of_a_function() -> Any:
    example = torch.zeros(1, 3), torch.zeros(1, 4), {"W": torch.ones(3, 4) / 4}
    return stepnet.torch.Recurrence(lambda x, h, p: (torch.tanh(x @ p["W"] + h),) * 2, example)


def scan() -> Any:
    rnn = sn.RNN(lambda x, h, p: (np.tanh(x @ p["W"] + h),) * 2, {"W": np.ones((3, 4), "f4") / 4}, memory=4)
    return stepnet.torch.Scan(rnn, batch_first=False)


def cell_recurrence() -> Any:
    return stepnet.torch.Recurrence(torch.nn.GRUCell(3, 4), (torch.zeros(1, 3), torch.zeros(1, 4)))


MODULES: dict[str, Callable[[], Any]] = {
    "GRU": lambda: stepnet.torch.GRU(3, 4, 2, bidirectional=True),
    "LSTM": lambda: stepnet.torch.LSTM(3, 4, proj_size=2, batch_first=True),
    "RNN": lambda: stepnet.torch.RNN(3, 4, bias=False),
    "GRUCell": lambda: stepnet.torch.GRUCell(3, 4),
    "LSTMCell": lambda: stepnet.torch.LSTMCell(3, 4),
    "a Recurrence of a cell": cell_recurrence,
    "a Recurrence of a function": recurrence_of_a_function,
    "MinimalGatedUnit": lambda: ready.MinimalGatedUnit(3, 4),
    "ZoneoutGRU": lambda: ready.ZoneoutGRU(3, 4),
    "VariationalLSTM": lambda: ready.VariationalLSTM(3, 4),
    "a Scan": scan,
}


def made(name: str, device: str) -> Any:
    torch.manual_seed(0)
    with torch.device(device):
        return MODULES[name]().eval()


def given(name: str, device: str) -> torch.Tensor:
    return (ROW if name.endswith("Cell") else X).to(device)


def kinds(results: Any) -> list[Any]:
    return [(one.shape, one.dtype) for one in tensors(results)]


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_made_on_meta_called_there_and_filled(name: str):
    right, module = made(name, "cpu"), made(name, "meta")
    module.to("meta")  # of a Scan, whose parameters are copies of arrays
    expected, found = right(given(name, "cpu")), module(given(name, "meta"))
    assert kinds(found) == kinds(expected)
    assert {one.device.type for one in (*tensors(found), *module.parameters())} == {"meta"}
    tensors(found)[0].sum().backward()
    assert {one.grad.device.type for one in module.parameters() if one.grad is not None} == {"meta"}
    module.to_empty(device="cpu").load_state_dict(right.state_dict(), assign=True)
    for one, other in zip(tensors(module(given(name, "cpu"))), tensors(expected), strict=True):
        assert torch.equal(one, other)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", ["GRU", "LSTMCell", "a Recurrence of a cell", "a Scan"])
def test_a_state_dict_is_assigned_without_memory_of_its_own(name: str):
    right, module = made(name, "cpu"), made(name, "meta")
    state = right.state_dict()
    module.load_state_dict(state, assign=True)
    assert all(module.state_dict()[key].data_ptr() == one.data_ptr() for key, one in state.items())
    assert torch.equal(tensors(module(given(name, "cpu")))[0], tensors(right(given(name, "cpu")))[0])


def test_assigned_weights_are_used_after_a_call():
    module, other = stepnet.torch.GRU(3, 4), stepnet.torch.GRU(3, 4)
    with torch.no_grad():
        module(X)
        module.load_state_dict(other.state_dict(), assign=True)
        assert torch.equal(module(X)[0], other(X)[0])


def test_inputs_on_meta_of_a_module_with_numbers_are_refused():
    with pytest.raises(sn.StepnetError, match=r"params W of a Scan is torch\.float32 on cpu"):
        made("a Scan", "cpu")(X.to("meta"))
