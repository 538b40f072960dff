"""Runs a step over tensors [batch, time, ...], with gradients: the core of every function of stepnet's.

    x [batch, time, ...], memory [batch, ...], parameters  --scan-->  outputs [batch, time, ...], last memory

The net of a step is made once for each kind of call: the step, the shapes of a row, and the dtype. Parameters
are inputs of the net, as they change from call to call in training, and are not copied.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from stepnet.compiler.targets import Order, checked_engine
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.once import put_latest
from stepnet.compiler.values.records import dataclass
from stepnet.model.gradients.differentiable import ModelNet
from stepnet.model.precisions import with_rounded_weights
from stepnet.model.program import Asked
from stepnet.model.recurrence import RNN
from stepnet.ragged.positions import Positions
from stepnet.torch.function import run_tensors
from stepnet.torch.patches.transformers.single import Single
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import is_transformed
from stepnet.torch.sequences import HOST, MOST_KEPT, dense_positions

torch: Any = pytorch("torch")
Step = Callable[[Any, Any, Any], Any]
Shape = tuple[int, ...]

LENGTHS = ContextVar[Any]("lengths", default=None)
"""Lengths of the sequences of the running call; None if there is no padding after them."""
ENGINE = ContextVar[Order]("engine", default="auto")
"""The engines of the running call, in order of preference."""


@contextmanager
def on_engine(engine: Asked) -> Generator[None]:
    """Context in which calls run on an engine, or on several in order of preference."""
    token = ENGINE.set(checked_engine(engine))
    try:
        yield
    finally:
        ENGINE.reset(token)


@dataclass(frozen=True)
class ScanKey:
    """Key of the cached net of a scan (a step that runs over tensors): the step, the shapes of one row, the
    dtypes.

    inputs: (name, shape, dtype) of each input, in order.
    memories: the shape of each memory.
    params: (name, shape, dtype) of each parameter, in order. 16-bit parameters are stored so, and computed in
        float32.
    dtype: the dtype of the memories.
    reverse: whether the recurrence runs from the last step to the first.
    weights: "bfloat16" or "int8", to which products round the parameters, as a `stepnet.torch.Linear` does;
        None for parameters as they are.
    exact: the names of parameters that products with `weights` read as they are.
    """

    step: Step
    inputs: tuple[tuple[str, Shape, str], ...]
    memories: tuple[Shape, ...]
    params: tuple[tuple[str, Shape, str], ...]
    dtype: str
    reverse: bool = False
    weights: str | None = None
    exact: tuple[str, ...] = ()

    def net(self) -> ModelNet:
        """Makes the net that runs the step of this key over sequences, whose inputs are the sequences, the
        memories and the parameters.
        """
        memory = [Spec(shape, self.dtype) for shape in self.memories]
        rnn = RNN(
            self.step,
            {name: np.zeros(shape, dtype) for name, shape, dtype in self.params},
            memory=memory[0] if len(memory) == 1 else tuple(memory),
            inputs={name: Spec(shape, dtype) for name, shape, dtype in self.inputs},
            reverse=self.reverse,
        )
        if self.weights is not None:
            rnn = with_rounded_weights(rnn, self.weights, self.exact)
        return ModelNet.of(rnn)


@lru_cache(MOST_KEPT)
def scan_of(key: ScanKey) -> ModelNet:
    """Returns the net for a key (step, shapes and dtypes), which is made once."""
    return key.net()


def scan(
    step: Step,
    x: Mapping[str, Any],
    memories: Sequence[Any],
    shapes: Sequence[Shape],
    params: Mapping[str, Any],
) -> list[Any]:
    """Runs a step over tensors [batch, time, ...]; returns its outputs [batch, time, ...], then its last
    memories.

    All is computed in float64 if the first input is that, else in float32. The context variable `LENGTHS` has
    the length of each sequence, or None if there is no padding: steps behind it are not run, and outputs
    there are zero.

    Args:
        step: The step, as of `stepnet.RNN`; a function or a frozen dataclass, by which its net is cached.
        x: The inputs by name.
        memories: What the sequences begin with, [batch, ...] each; None is zeros.
        shapes: The shape of one row of each memory.
        params: The parameters by name.
    """
    dtype = dtype_of(next(iter(x.values())))
    return scan_in(
        dtype, step, {name: tensor.to(dtype) for name, tensor in x.items()}, memories, shapes, params
    )


def scan_in(
    dtype: Any,
    step: Step,
    x: Mapping[str, Any],
    memories: Sequence[Any],
    shapes: Sequence[Shape],
    params: Mapping[str, Any],
    reverse: bool = False,
) -> list[Any]:
    """Runs a step over tensors [batch, time, ...]; returns its outputs, then its last memories.

    dtype: the dtype of memories and parameters; inputs keep their own. x: the inputs by name.
    memories: the initial memories [batch, ...]; None for zeros. shapes: the shape of one row of each.
    params: the parameters by name. reverse: whether it runs from the last step to the first.
    """
    rows, time = next(iter(x.values())).shape[:2]
    key = ScanKey(
        step,
        tuple((name, tuple(tensor.shape[2:]), name_of(tensor.dtype)) for name, tensor in x.items()),
        tuple(shapes),
        tuple((name, tuple(tensor.shape), name_of(dtype)) for name, tensor in params.items()),
        name_of(dtype),
        reverse,
    )
    is_here = next(iter(x.values())).device.type == HOST
    if time == 1 and is_here and not params and is_single():
        return single_results(key, rows, (*x.values(), *memories))
    inputs = [tensor.reshape(rows * time, *tensor.shape[2:]) for tensor in x.values()]
    inputs += [None if memory is None else cast_memory(memory, dtype) for memory in memories]
    inputs += [tensor.to(dtype) for tensor in params.values()]
    results = run_tensors(scan_of(key), positions_of(rows, time), inputs, ENGINE.get())
    count = len(results) - len(shapes)
    outputs = [tensor.reshape(rows, time, *tensor.shape[1:]) for tensor in results[:count]]
    return [*outputs, *results[count:]]


def name_of(dtype: Any) -> str:
    """Returns NumPy's name of a dtype of PyTorch."""
    return str(dtype).removeprefix("torch.")


SINGLES = OrderedDict[tuple[ScanKey, int], Single]()
"""The prepared single steps, by the key of the net and the number of rows."""


def is_single() -> bool:
    """Tells whether a call of one step can use a prepared step: no gradients, padding or stated engine."""
    if torch.is_grad_enabled() or is_transformed():
        return False
    return ENGINE.get() == "auto" and LENGTHS.get() is None


def single_results(key: ScanKey, rows: int, tensors: Sequence[Any]) -> list[Any]:
    """Runs a single step, which is prepared once for this number of rows (sequences) and cached; returns
    copies of its results.

    key: the key of its net, which has no parameters. tensors: its inputs, then its memories.
    """
    single = SINGLES.pop((key, rows), None)  # removed while in use: other threads may make this call
    if single is None:
        single = Single(scan_of(key), rows)
        single.bind("auto")
    single(tensors)
    results = [tensor.clone() for tensor in single.results]
    put_latest(SINGLES, (key, rows), single, MOST_KEPT)
    return results


def dtype_of(first: Any) -> Any:
    """Returns the dtype in which a scan computes: float64 if its first input is that, else float32."""
    return torch.float64 if first.dtype == torch.float64 else torch.float32


def cast_memory(memory: Any, dtype: Any) -> Any:
    """Returns an initial memory in a scan's dtype; a copy if gradients read it later, as caches change."""
    return memory.to(dtype, copy=torch.is_grad_enabled())


def positions_of(rows: int, time: int) -> Positions:
    """Returns the positions of `rows` sequences of `time` steps, or of the lengths in `LENGTHS`."""
    positions, lengths = dense_positions(rows, time, False), LENGTHS.get()
    if lengths is None or len(lengths) != rows:
        return positions
    return replace(positions, lengths=lengths)
