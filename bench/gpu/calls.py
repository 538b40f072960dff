"""The processor time of Python around calls on a GPU, with a driver in its place that does nothing.

    python -m bench.gpu calls        no GPU is needed: nothing is computed, results have no meaning

Each call comes again with the positions of the one before, as those of a training loop do. Arrays of the host
are not copied: what is measured is Python.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.gpu.cells import inputs_of, recurrence
from bench.gpu.idle import begin
from stepnet import vjp
from stepnet.compiler.targets import engine_named
from stepnet.compiler.targets.cuda import CudaDevice, empty
from stepnet.model.gradients.differentiable import ModelNet
from stepnet.ragged.positions import Positions

ROWS, STEPS, UNITS = 16, 1024, 256
ROUNDS, CALLS = 15, 20
"""The rounds of which the fastest counts, and the calls of each."""
ENGINE = "cuda"


def call_times() -> Iterator[tuple[str, float]]:
    """Yields the microseconds of Python in calls of a GRU: a name for each, and the time."""
    begin()
    CudaDevice.write = lambda device, address, array: None
    rnn: Any = recurrence("gru", UNITS)
    x = np.zeros((ROWS, STEPS, inputs_of("gru", UNITS)), "f4")
    cotangent = np.zeros((ROWS, STEPS, UNITS), "f4")
    there: Any = engine_named(ENGINE).memory.put(x)
    gradient: Any = vjp(rnn)

    def both() -> Any:
        """Runs the model and its backward pass on arrays of the host."""
        _, backward = gradient(x, engine=ENGINE)
        return backward(cotangent, None)

    yield "rnn(x), x on the host", microseconds(lambda: rnn(x, engine=ENGINE))
    yield "rnn(x), x on the GPU", microseconds(lambda: rnn(there, engine=ENGINE))
    yield "sn.vjp(rnn)(x), forward and backward", microseconds(both)
    forward, training = net_calls(rnn)
    yield "the net as modules of PyTorch run it, forward", microseconds(forward)
    yield "the net as modules of PyTorch run it, forward and backward", microseconds(training)


def net_calls(rnn: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Returns functions that run the net of a model on arrays of the GPU, parameters among them: forward, and
    forward and backward.
    """
    engine: Any = engine_named(ENGINE)
    net, device = ModelNet.of(rnn), engine.device
    counts = {0: (), 1: (ROWS,), 2: (ROWS * STEPS,)}
    arrays: list[Any] = [
        empty(device, (*counts[len(type_.extent)], *type_.shape), type_.dtype) for type_ in net.inputs
    ]
    passes = net.halves(tuple(range(len(arrays))), (ENGINE,))
    lengths = np.full(ROWS, STEPS, np.int64)

    def forward() -> Any:
        """Runs the net."""
        return net(arrays, Positions.padded(lengths, STEPS), (ENGINE,))

    def training() -> Any:
        """Runs the net, and its backward pass for the gradients of all inputs."""
        positions = Positions.padded(lengths, STEPS)
        made = passes.forward(arrays, positions)
        cotangents = [made[place] for place in net.floats]
        return passes.backward(arrays, cotangents, [made[place] for place in passes.saved], positions)

    return forward, training


def microseconds(run: Callable[[], Any]) -> float:
    """Returns the processor time of a run in microseconds: in the fastest of several rounds."""
    for _ in range(CALLS):
        run()
    times = list[float]()
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in range(CALLS):
            run()
        times.append((time.process_time() - begun) / CALLS)
    return 1e6 * min(times)
