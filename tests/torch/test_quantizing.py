"""PyTorch's own quantization refuses stepnet's layers by name, where it would quantize those of torch.nn."""

import copy
import pickle
from importlib import import_module
from typing import Any

import pytest
import torch

import stepnet.torch
from stepnet.errors import InputError

KINDS = ("LSTM", "GRU", "LSTMCell", "GRUCell", "RNNCell")
QUANTIZED: Any = import_module("torch.ao.nn.quantized.dynamic")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def quantized(model: Any, *arguments: Any) -> Any:
    return torch.ao.quantization.quantize_dynamic(model, *arguments)


def model_of(kind: str) -> Any:
    return torch.nn.ModuleDict({"rnn": getattr(stepnet.torch, kind)(2, 3), "head": torch.nn.Linear(3, 3)})


@pytest.mark.parametrize("kind", KINDS)
def test_layers_that_torch_nn_would_have_quantized_are_refused_by_name(kind: str):
    said = rf"stepnet.torch.{kind}, and would leave `rnn` in float: quantize the model with torch.nn.{kind}"
    with pytest.raises(InputError, match=said):
        quantized(model_of(kind))
    with pytest.raises(InputError, match=said):
        quantized(model_of(kind), {getattr(torch.nn, kind)})


def test_layers_that_inherit_a_configuration_are_refused():
    model = model_of("LSTM").eval()
    model.qconfig = torch.ao.quantization.get_default_qconfig()
    with pytest.raises(InputError, match="would leave `rnn` in float"):
        torch.ao.quantization.prepare(model)


def test_other_layers_are_quantized():
    for arguments in ({torch.nn.Linear}, {torch.nn.LSTM, torch.nn.Linear}):
        done = quantized(model_of("GRU"), arguments)
        assert type(done["rnn"]) is stepnet.torch.GRU
        assert type(done["head"]) is QUANTIZED.Linear
    assert type(quantized(model_of("RNN"))["rnn"]) is stepnet.torch.RNN  # as torch.nn.RNN is left


def test_a_layer_may_be_left_in_float():
    model = model_of("LSTM")
    model["rnn"].qconfig = None
    for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        done = quantized(one)
        assert type(done["rnn"]) is stepnet.torch.LSTM
        assert type(done["head"]) is QUANTIZED.Linear
    del model["rnn"].qconfig
    with pytest.raises(InputError, match="would leave `rnn` in float"):
        quantized(model)
    assert not hasattr(model["rnn"], "qconfig")
    with pytest.raises(AttributeError, match="qconfig"):
        del model["rnn"].qconfig


def test_an_accelerated_model_is_quantized_after_undo():
    model = torch.nn.ModuleDict({"rnn": torch.nn.LSTM(2, 3)})
    done = stepnet.torch.accelerate(model)
    with pytest.raises(InputError, match=r"undo\(\) of the result of accelerate brings that back"):
        quantized(model)
    done.undo()
    again = quantized(model)
    assert type(again["rnn"]) is QUANTIZED.LSTM
    assert "left, torch.ao.nn.quantized.dynamic" in str(stepnet.torch.accelerate(again))
