"""Every operation of the table in a whole module: of values of each sequence, and of each step."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close
from torch import nn

import stepnet as sn
import stepnet.torch
from stepnet.compiler.values import leaves
from tests.torch.torch_cases import GROUPS, PARAMETERS, SHAPES
from tests.torch.torch_loop import numbers

DTYPES = {"k": torch.int64, "t": torch.bool}
LENGTHS = [2, 3]


class Cases(nn.Module):
    """The results of every case of a group for rows, which are the sequences, or the steps of all of them."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group
        self.params = nn.ParameterDict({name: numbers(shape, 3) for name, shape in PARAMETERS.items()})

    def forward(self, x: Any, still: Any) -> Any:
        flat = still or {name: tensor.flatten(0, 1) for name, tensor in x.items()}
        o = SimpleNamespace(**flat, **self.params)
        return {name: case(o) for name, case in GROUPS[self.group].items()}


def values(lead: tuple[int, ...]) -> dict[str, Any]:
    return {
        name: numbers((*lead, *shape), place, DTYPES.get(name, torch.float64))
        for place, (name, shape) in enumerate(SHAPES.items())
    }


@pytest.mark.long(every=3)
@pytest.mark.parametrize("group", GROUPS)
def test_operations_on_what_each_sequence_has(group: str) -> None:
    module, still = Cases(group), values((5,))
    frames = torch.zeros(5, 2, 1, dtype=torch.float64)
    graph = stepnet.torch.graph(module, (frames, still), axes={"still": "N"})
    arrays = {name: tensor.numpy() for name, tensor in still.items()}
    outputs = graph(frames.numpy(), statics=arrays, engine="interpret")
    with torch.no_grad():
        right = module(None, still)
    for name, wanted in right.items():
        for output, tensor in zip(leaves(outputs[name]), leaves(wanted), strict=True):
            assert_close(output, tensor.numpy(), 5, 200)


@pytest.mark.long(every=3)
@pytest.mark.parametrize("group", [*GROUPS][1:] + [*GROUPS][:1])  # of those that the test above leaves
def test_operations_on_steps_that_are_flattened(group: str) -> None:
    module, x = Cases(group), values((2, 4))
    graph = stepnet.torch.graph(module, {"x": x, "still": None}, axes="NT")
    offsets = np.cumsum([0, *LENGTHS])
    flat = values((offsets[-1],))
    outputs = graph(
        {name: sn.Ragged(tensor.numpy(), (offsets,)) for name, tensor in flat.items()}, engine="interpret"
    )
    with torch.no_grad():
        right = module(None, flat)
    for name, wanted in right.items():
        for output, tensor in zip(leaves(outputs[name]), leaves(wanted), strict=True):
            assert_close(output.values, tensor.numpy(), 5, 200)
