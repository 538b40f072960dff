"""The explanations that `stepnet.torch.explain` gives of modules."""

from typing import Any

import pytest
import torch

import stepnet as sn
import stepnet.torch
from stepnet.errors import InputError

TARGET = 'always      the engine "cuda", stepnet\'s own kernels'


def of_cell() -> Any:
    return stepnet.torch.Recurrence(torch.nn.GRUCell(3, 4), (torch.zeros(1, 3), torch.zeros(1, 4)))


MODULES: dict[str, tuple[Any, str]] = {
    "small LSTM": (stepnet.torch.LSTM(3, 64), "one length  PyTorch: cuDNN is as fast for LSTM in float32 of"),
    "wide LSTM": (stepnet.torch.LSTM(3, 65), TARGET),
    "two directions": (stepnet.torch.GRU(3, 4, bidirectional=True), TARGET),
    "an engine": (stepnet.torch.GRU(3, 4, engine="interpret"), "the engine that was asked for, 'interpret'"),
    "a checkpoint": (stepnet.torch.GRU(3, 200, checkpoint=2), "PyTorch: checkpoint= is for the CPU"),
    "a cell": (stepnet.torch.GRUCell(3, 4), "PyTorch: PyTorch has kernels for a single step"),
    "a Recurrence": (of_cell(), TARGET),
    "a Scan": (stepnet.torch.Scan(sn.RNN(lambda x, h, p: (h + x, h + x), memory=3, inputs=3)), TARGET),
}


@pytest.mark.parametrize("name", MODULES)
def test_what_runs_a_module_on_a_gpu_comes_first(name: str) -> None:
    module, said = MODULES[name]
    first, *_ = stepnet.torch.explain(module).split("\n\n")
    assert first.startswith("on a GPU\n")
    assert said in first


def test_the_plan_follows_for_the_engine_and_the_call() -> None:
    explained = stepnet.torch.explain(stepnet.torch.GRU(3, 8), "cuda", rows=4, steps=20)
    assert "kernels, for 4 sequences of 20 steps" in explained
    assert "engine: interpret" in stepnet.torch.explain(stepnet.torch.GRU(3, 8, engine="interpret"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "explain takes a module of PyTorch, not a int"),
        (torch.nn.Linear(2, 2), "holds no layer, cell, Recurrence or Scan of stepnet.torch: call stepnet"),
        (stepnet.torch.GRU(2, 2).to(torch.float8_e4m3fn), "GRU cannot be explained: its parameters are"),
    ],
)
def test_what_cannot_be_explained_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        stepnet.torch.explain(given)
