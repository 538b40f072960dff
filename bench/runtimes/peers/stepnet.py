"""stepnet itself: its named cells, and the custom one as equations, over a Ragged or a dense array.

Training runs its layers for PyTorch.
"""

from typing import Any

import numpy as np

import stepnet as sn
from stepnet import cells
from stepnet.engines.threads import set_threads
from stepnet.values.version import __version__

from .equations import EQUATIONS, custom
from .torch import library, trained
from .worker import Array, Prepared, Work, imported


class Functions:
    """The functions that the equations need, for arrays and traced values."""

    sigmoid = staticmethod(sn.sigmoid)
    tanh = staticmethod(np.tanh)


def custom_step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    """The custom cell as a step."""
    return custom(x @ p["W"] + p["b"], h, p, Functions)


STEPS = {"gru": cells.gru, "lstm": cells.lstm, "minimal": cells.minimal_gated_unit, "custom": custom_step}


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """The version; the threads are set."""
    set_threads(threads)
    return {"stepnet": __version__}


def prepare(work: Work) -> Prepared:
    """The recurrence, traced and compiled."""
    H = work.hidden
    memory = {"h": H, "c": H} if work.cell == "lstm" else H
    rnn = sn.RNN(STEPS[work.cell], work.weights, memory=memory)
    offsets = np.concatenate([[0], np.cumsum(work.arrays["lengths"])])
    ragged = sn.Ragged(work.arrays["values"], (offsets,))
    inputs = ragged if work.ragged else work.padded(time_major=False)
    engine = work.options.get("engine", "auto")

    def outputs(result: tuple[Any, Any]) -> Array:
        found = result[0]
        return found.values if work.ragged else work.end_to_end(found, time_major=False)

    return Prepared(lambda: rnn(inputs, engine=engine), outputs)


def prepare_training(work: Work) -> Prepared:
    """The layer for PyTorch, or the cell written in PyTorch; over a PackedSequence if the batch is ragged."""
    torch = imported("torch", "pip install stepnet[torch]")
    torch.set_num_threads(work.threads)
    layers = imported("stepnet.torch", "")
    if work.cell in ("gru", "lstm"):
        return trained(torch, work, *library(layers, torch, work), packed=work.ragged)
    cell = cell_module(torch, work)
    example = torch.zeros(1, work.inputs), torch.zeros(1, work.hidden)
    layer = layers.Recurrence(cell, tuple(one.to(getattr(torch, work.dtype)) for one in example))
    return trained(torch, work, lambda x: layer(x)[0], dict(cell.named_parameters()), packed=work.ragged)


def cell_module(torch: Any, work: Work) -> Any:
    """The equations of a cell with one memory as a module of PyTorch's, its parameters in its own names."""

    class Cell(torch.nn.Module):
        def forward(self, x: Any, h: Any) -> Any:
            p = dict(self.named_parameters())
            return EQUATIONS[work.cell](x @ p["W"] + p["b"], h, p, torch)

    cell = Cell()
    for name, array in work.weights.items():
        cell.register_parameter(name, torch.nn.Parameter(torch.from_numpy(array.copy())))
    return cell
