"""Programs of torch.export and TorchScript as graphs: what they compute, and refusals in plain words."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close
from torch import nn

import stepnet as sn
import stepnet.torch
from stepnet.errors import InputError, ModelError

pytestmark = pytest.mark.filterwarnings(
    "ignore:The tensor attributes", "ignore:`torch.jit", "ignore::torch.jit.TracerWarning"
)  # of torch.export and of TorchScript
LENGTHS = (2, 7, 11)


class Tagger(nn.Module):
    """Layers around a GRU in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 5, bidirectional=True, batch_first=True)
        self.tag = nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.tag(self.rnn(x)[0]))


EXAMPLE = torch.randn(3, 7, 4)


def exported(model: Any) -> Any:
    """The program of a module, with any number of sequences."""
    return torch.export.export(model, (EXAMPLE,), dynamic_shapes={"x": {0: torch.export.Dim("rows")}})


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "ExportedProgram": exported,
    "its module": lambda model: exported(model).module(),
    "scripted": torch.jit.script,
    "traced": lambda model: torch.jit.trace(model, EXAMPLE),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_a_graph(name: str):
    model = Tagger().eval()
    graph = stepnet.torch.graph(PROGRAMS[name](model), EXAMPLE)
    xs = [np.random.default_rng(length).normal(size=(length, 4)).astype("float32") for length in LENGTHS]
    for x, found in zip(xs, graph(sn.Ragged.from_list(xs)).to_list(), strict=True):
        assert_close(found, model(torch.tensor(x)[None])[0].detach().numpy(), len(x), 20)


def test_a_program_has_the_parameters_of_its_module():
    model = Tagger().eval()
    assert {*stepnet.torch.graph(exported(model), EXAMPLE).params} == {*model.state_dict()}


def test_the_axes_of_a_program_may_be_stated():
    program = torch.export.export(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), (torch.zeros(5, 3, 4),))
    x = np.ones((5, 2, 4), "float32")
    graph = stepnet.torch.graph(program, torch.zeros(5, 3, 4), axes="TN")
    model: Any = graph.model
    assert model.inputs[0].axes == "TN_"
    assert graph(sn.Ragged.from_list(list(x))).to_list()[0].shape == (2, 3)


def test_wrong_arguments_for_a_program_are_refused():
    program = exported(Tagger().eval())
    with pytest.raises(InputError, match=r"lengths= is for modules: torch.export has no packed sequences"):
        stepnet.torch.graph(program, EXAMPLE, lengths="x")
    with pytest.raises(InputError, match=r"axes= names 'y', and the inputs are x"):
        stepnet.torch.graph(program, EXAMPLE, axes={"y": "NT"})
    wrong: Any = {"x": 1}
    with pytest.raises(InputError, match=r"axes= is a text for each input by name, .* not \{'x': 1\}"):
        stepnet.torch.graph(program, EXAMPLE, axes=wrong)


def test_what_pytorch_cannot_export_is_refused_in_plain_words():
    fixed = torch.export.export(Tagger().eval(), (EXAMPLE,)).module()
    with pytest.raises(InputError, match=r"torch.export cannot export this .* for the example .*: give"):
        stepnet.torch.graph(fixed, torch.randn(2, 9, 4))
    scripted = torch.jit.script(Tagger().eval())
    with pytest.raises(InputError, match=r"PyTorch cannot convert this \w+ to a program .*: give the module"):
        stepnet.torch.graph(scripted, (EXAMPLE, EXAMPLE, EXAMPLE))


def test_operators_without_a_row_are_refused_by_name():
    class Logit(Tagger):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.logit(super().forward(x))

    program = torch.export.export(Logit().eval(), (EXAMPLE,))
    with pytest.raises(ModelError, match=r"the program: logit \(aten.logit.default\) is an operation that"):
        stepnet.torch.graph(program, EXAMPLE)
