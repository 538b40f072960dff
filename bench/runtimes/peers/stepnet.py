"""stepnet itself: its named cells, and others as equations, over a Ragged or a dense array.

Training runs its layers for PyTorch.
"""

from typing import Any

import numpy as np

import stepnet as sn
from stepnet import cells
from stepnet.compiler.targets import engine_named
from stepnet.compiler.targets.threads import set_threads
from stepnet.compiler.values.version import __version__

from .equations import CELLS, functions_like_numpy
from .torch import device_of, library, trained
from .torch import functions as functions_of_torch
from .worker import Array, Prepared, Refused, Work, imported, streamed

DEVICES = ("cpu", "cuda", "cuda-emulated")
FUNCTIONS = functions_like_numpy(np, sn.sigmoid)
NAMED = {
    "gru": cells.gru,
    "gru_before": cells.gru_reset_before,
    "lstm": cells.lstm,
    "minimal": cells.minimal_gated_unit,
}


def step_of(name: str) -> Any:
    """Returns the step function of a cell: stepnet's own if it has one, else the equations."""
    if name in NAMED:
        return NAMED[name]
    cell = CELLS[name]

    def step(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
        """Computes one step of a cell by its equations, as stepnet takes steps."""
        return cell.step(cell.ahead(x, p, FUNCTIONS), memory, p, FUNCTIONS)

    return step


STEPS = {name: step_of(name) for name in CELLS}


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """Sets the threads, and returns stepnet's version."""
    set_threads(threads)
    return {"stepnet": __version__}


def recurrence(work: Work, weights: dict[str, Array], reverse: bool = False) -> sn.RNN:
    """Makes the recurrence of one layer in one direction, with its weights."""
    shapes = {name: shape[0] if len(shape) == 1 else shape for name, shape in memory_of(work).items()}
    memory: Any = shapes["h"] if len(shapes) == 1 else shapes
    return sn.RNN(STEPS[work.cell], weights, memory=memory, reverse=reverse)


def memory_of(work: Work) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the cell's memories, by name."""
    return CELLS[work.cell].memory(work.hidden)


def net(work: Work) -> Any:
    """Makes the recurrence of the case, or a stack of its layers."""
    layers = [
        sn.Bidirectional(recurrence(work, both[0]), recurrence(work, both[1], reverse=True))
        if len(both) > 1
        else recurrence(work, both[0])
        for both in work.recurrences
    ]
    return layers[0] if len(layers) == 1 else sn.Stack(layers)


def prepare(work: Work) -> Prepared:
    """Makes the recurrence and inputs of the case: returns the timed call, and the conversion to outputs."""
    made = net(work)
    offsets = np.concatenate([[0], np.cumsum(work.lengths)])
    ragged = sn.Ragged(work.arrays["values"], (offsets,))
    inputs = ragged if work.ragged else work.padded(time_major=False)
    engine = engine_of(work)
    if work.device == "cuda":
        return on_gpu(work, made)

    def outputs(result: tuple[Any, Any]) -> Array:
        """Converts a result of the timed call to outputs, sequences end to end."""
        found = result[0]
        if work.ragged:
            return found.values.reshape(len(found.values), -1)
        return work.end_to_end(found, time_major=False)

    return Prepared(lambda: made(inputs, engine=engine), outputs)


def engine_of(work: Work) -> str:
    """Returns the engine of a case: the GPU's where it runs there; raises `Refused` if it cannot be used."""
    if work.device == "cpu":
        return work.options.get("engine", "auto")
    if missing := getattr(engine_named(work.device), "missing", ""):
        raise Refused(missing)
    return work.device


def on_gpu(work: Work, made: Any) -> Prepared:
    """Puts the inputs of a case on the GPU: returns the timed call, which leaves its results there."""
    engine: Any = engine_named(work.device)
    inputs = engine.memory.put(work.padded(time_major=False))

    def run() -> Any:
        """Runs the whole call, to be timed."""
        result = made(inputs, lengths=work.lengths, engine=work.device)
        engine.device.wait()
        return result

    return Prepared(run, lambda result: work.end_to_end(result[0].numpy(), time_major=False))


def prepare_stream(work: Work) -> Prepared:
    """Makes a stream of the recurrence: returns its timed run."""
    made, engine = net(work), engine_of(work)
    return streamed(work, lambda: made.stream(rows=work.batch, engine=engine).step, lambda x: x)


def prepare_training(work: Work) -> Prepared:
    """Makes the layer for PyTorch, or the cell written in PyTorch, with gradients: returns the timed call."""
    torch = imported("torch", "pip install stepnet[torch]")
    torch.set_num_threads(work.threads)
    layers = imported("stepnet.torch", "")
    options = {} if work.device == "cpu" else {"engine": engine_of(work)}
    if work.cell in ("gru", "lstm"):
        return trained(torch, work, *library(layers, torch, work, **options), packed=work.ragged)
    if not work.is_one:
        raise Refused("a cell in PyTorch is one layer in one direction")
    dtype, there = getattr(torch, work.dtype), device_of(torch, work)
    memory = CELLS[work.cell].begin(work.hidden, lambda shape: torch.zeros(1, *shape, dtype=dtype))
    cell = cell_module(torch, work)
    layer = layers.Recurrence(cell, (torch.zeros(1, work.inputs, dtype=dtype), memory), **options).to(there)
    return trained(torch, work, lambda x: layer(x)[0], dict(cell.named_parameters()), packed=work.ragged)


def cell_module(torch: Any, work: Work) -> Any:
    """Makes a PyTorch module of the equations of a cell, with parameters by its own names."""
    cell, functions = CELLS[work.cell], functions_of_torch(torch)

    class Module(torch.nn.Module):
        def forward(self, x: Any, memory: Any) -> Any:
            p = dict(self.named_parameters())
            return cell.step(cell.ahead(x, p, functions), memory, p, functions)

    module = Module()
    for name, array in work.weights.items():
        module.register_parameter(name, torch.nn.Parameter(torch.from_numpy(array.copy())))
    return module
