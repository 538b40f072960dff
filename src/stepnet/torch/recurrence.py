"""`Recurrence`: any step written with PyTorch as a module that runs over sequences, and is trained."""

import inspect
from typing import Any, cast

import numpy as np

from stepnet.errors import InputError
from stepnet.rnn.layers import LayerPrograms
from stepnet.torch.bound import BOUND, Runnable
from stepnet.torch.pytorch import pytorch
from stepnet.torch.sequences import Sequences
from stepnet.torch.trace import described, tensors_of, trace
from stepnet.trace.step import Spec
from stepnet.values.structure import leaves, leaves_as, rebuild, skeleton, transform

torch: Any = pytorch("torch")
RUNNABLE = "_runnable"
"""Where a module keeps the net of its step, and what that was traced for."""


class Recurrence(torch.nn.Module):
    """A cell, or a function on tensors, run over whole sequences, with gradients of any order.

    Its parameters are those of the cell, under `cell.`; of a function, those of the example, under `params.`.
    A call takes sequences as `GRU` does, the state that they begin with (zeros without one) and `statics`,
    and gives (outputs, last state), the state in the structure of the example's.

    Args:
        step: A cell module or a function, as for `trace`.
        example: The arguments of one call, as for `trace`. A function's parameters are a dict of tensors.
        statics: An example of the statics.
        batch_first: Whether tensors of sequences are [batch, time, ...] and not [time, batch, ...].
        reverse: Whether each sequence runs from its last step.

    Raises:
        InputError: For what is no step, and for a tensor that the step uses besides its parameters and that
            requires a gradient, which it would not get.
        StepError: For an operation that no step has.

    >>> import torch, stepnet.torch
    >>> cell = torch.nn.GRUCell(3, 4)
    >>> rnn = stepnet.torch.Recurrence(cell, (torch.zeros(1, 3), torch.zeros(1, 4)))
    >>> outputs, h = rnn(torch.ones(5, 2, 3))
    >>> outputs.sum().backward()
    >>> outputs.shape, h.shape, cell.weight_hh.grad.shape
    (torch.Size([5, 2, 4]), torch.Size([2, 4]), torch.Size([12, 4]))
    """

    def __init__(
        self,
        step: Any,
        example: Any,
        *,
        statics: Any = None,
        batch_first: bool = False,
        reverse: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[misc]
        self.batch_first, self.reverse = batch_first, reverse
        trace(step, example, statics=statics, reverse=reverse)  # which says what is wrong
        check_example(step, example)
        check_others(step)
        if isinstance(step, torch.nn.Module):
            self.cell, self.step = step, None
        else:
            self.cell, self.step = None, step
        self.params = torch.nn.ParameterDict(example[2] if len(example) == 3 and example[2] else {})
        self._example = transform(lambda one: one.detach().clone(), (*example[:2], statics))

    def forward(self, input: Any, state: Any = None, statics: Any = None) -> Any:  # noqa: A002 - PyTorch's
        """The outputs in the form of the sequences, and the last state."""
        params = self.tensors
        tensors = leaves(params)
        runnable = self.runnable(tensors)
        given = Sequences.of(input, self.batch_first)
        _, memory, still = self._example
        states = [] if state is None else parts(state, memory, "state")
        fixed = parts(statics, still, "statics")
        if given.order is not None:
            states, fixed = ([one.index_select(0, given.order) for one in all_] for all_ in (states, fixed))
        results = runnable(self, given.batch, given.data, states, tensors, fixed)
        outputs, last = results[: len(runnable.program.levels)], results[len(runnable.program.levels) :]
        if given.back is not None:
            last = [one.index_select(0, given.back) for one in last]
        whole = rebuild(runnable.program.output, [given.form(one) for one in outputs])
        return whole, rebuild(memory, last)

    @property
    def tensors(self) -> dict[str, Any]:
        """The parameters and buffers by name."""
        return dict(self.params if self.cell is None else tensors_of(self.cell))

    def runnable(self, tensors: list[Any]) -> Runnable:
        """What runs the step in the dtypes of its parameters: traced again where these are others."""
        key = self.training, *((one.shape, one.dtype) for one in tensors)
        kept = self.__dict__.get(RUNNABLE)
        if kept is None or kept[0] != key:
            kept = self.__dict__[RUNNABLE] = key, self.traced(tensors)
        return kept[1]

    def traced(self, tensors: list[Any]) -> Runnable:
        """The net of the step."""
        floats = [one.dtype for one in tensors if one.is_floating_point()]

        def in_dtype(one: Any) -> Any:
            return one.to(floats[0]) if floats and one.is_floating_point() else one

        x, memory, statics = transform(in_dtype, self._example)
        example = (x, memory) if self.step is None else (x, memory, dict(self.params) or None)
        step = self.cell if self.step is None else self.step
        rnn = trace(step, example, statics=statics, reverse=self.reverse)
        spec = cast("Spec", rnn.inputs)
        nothing = np.zeros((0, 0, *spec.shape), spec.dtype)
        empty = transform(lambda one: np.zeros((0, *one.shape), one.dtype), rnn.statics)
        return Runnable(LayerPrograms(rnn).read(nothing, None, empty, None, False).program)

    def __getstate__(self) -> dict[str, Any]:
        """All but what runs it, which a copy makes anew."""
        return {name: one for name, one in self.__dict__.items() if name not in (BOUND, RUNNABLE)}


def parts(value: Any, example: Any, what: str) -> list[Any]:
    """The tensors of a state or of statics; raises `InputError` for another structure than the example's."""
    found = leaves_as(value, example)
    if found is None or not all(isinstance(one, torch.Tensor) for one in found):
        raise InputError(f"{what}= is {skeleton(value)}; in the example it is {skeleton(example)}")
    return found


def check_example(step: Any, example: Any) -> None:
    """Raises `InputError` for an input that is no single tensor, and parameters that are no dict of them."""
    if not isinstance(example[0], torch.Tensor):
        raise InputError(f"the input of a Recurrence is one tensor, not {described(example[0])}")
    params: Any = example[2] if len(example) == 3 else None
    if params is not None and not (
        isinstance(params, dict)
        and all(isinstance(one, torch.Tensor) for one in cast("dict[str, Any]", params).values())
    ):
        raise InputError(f"the parameters of a Recurrence are a dict of tensors, not {described(params)}")


def check_others(step: Any) -> None:
    """Raises `InputError` for what a step uses from outside that requires a gradient."""
    called = step.forward if isinstance(step, torch.nn.Module) else step
    if not (inspect.isfunction(called) or inspect.ismethod(called)):
        return
    found = inspect.getclosurevars(called)
    for name, value in {**found.globals, **found.nonlocals}.items():
        owned: list[Any] = list(value.parameters()) if isinstance(value, torch.nn.Module) else [value]
        if any(isinstance(one, torch.Tensor) and one.requires_grad for one in owned):
            raise InputError(
                f"the step uses {name}, which requires a gradient and is none of its parameters: give it "
                "with the parameters, or make it an attribute of the cell; a constant is .detach()ed"
            )
