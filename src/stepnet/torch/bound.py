"""Runs the net of a module: with gradients as a function registered with PyTorch, without them by machine
code that is bound to a copy of the parameters.

Parameters change in ways that PyTorch does not count: `p.data.add_`, NumPy's writes, `p.data = other`. So the
bytes are compared at each call; that takes a small part of the time that packing them takes.
"""

import itertools
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from stepnet.compiler.net.types import ROWS, STEPS
from stepnet.compiler.targets import Order, checked_engine, gradient_order
from stepnet.compiler.trace.step import Spec
from stepnet.compiler.values.structure import leaves, rebuild
from stepnet.errors import InputError
from stepnet.model.batch import Batch, initial_arrays
from stepnet.model.gradient_runs import Halved
from stepnet.model.pieces import Checkpoint, checked_checkpoint
from stepnet.model.program import Asked, Program
from stepnet.model.programs import Programs, keep
from stepnet.model.reading import Reading, call_of
from stepnet.torch.function import (
    Array,
    Differentiable,
    array_of,
    floats_of,
    is_transformed,
    run_forward,
    tensor_of,
    wanted_of,
)
from stepnet.torch.pytorch import pytorch
from stepnet.torch.sequences import SequencePlaces

torch: Any = pytorch("torch")
NUMBERS = itertools.count()
WIDE = {torch.float32: torch.int32, torch.float64: torch.int64}
"""The integers as wide as the floats of each dtype."""
BOUND = "_bound"
"""The attribute in which a module keeps its bound program for calls without gradients."""


class DifferentiableLayers:
    """Compiled layers that run over PyTorch's tensors: with gradients, or, without them, by machine code that
    is bound to the current parameters.

    The net's inputs are the sequences, memories, statics and parameters; its results are the outputs and the
    last memories.
    """

    def __init__(self, program: Program) -> None:
        """Prepares to run a program. `inputs`: of each input of the net the name, the extent (one entry per
        step, per sequence, or one for all), the features and the dtype. `given`: the dtypes of the sequences
        alone, and with the initial memories.

        `bounds`: a cache, for `bound_to`, of what runs calls without gradients. `number`: one that no other
        object of this process has.
        """
        self.number = next(NUMBERS)
        self.program, self.differentiable = program, Differentiable(program.net)
        self.bounds = OrderedDict[Any, Any]()
        nodes = [program.net.nodes[number] for number in program.net.inputs]
        self.inputs = [
            (node.name, node.type.extent, node.type.shape, getattr(torch, node.type.dtype)) for node in nodes
        ]
        dtypes = [dtype for *_, dtype in self.inputs]
        self.given = dtypes[:1], dtypes[: 1 + program.memories]

    def __call__(
        self,
        module: Any,
        place: SequencePlaces,
        data: Any,
        memories: list[Any],
        parameters: list[Any],
        statics: list[Any] | None = None,
        checkpoint: Checkpoint = None,
        engine: Asked = "auto",
    ) -> list[Any]:
        """Runs the net on tensors and returns its outputs, laid out as `data`, followed by the last memories.

        module: the object that caches machine code for calls without gradients. place: the positions of the
            sequences in `data`, the inputs of all steps. memories: empty for zeros. parameters: the weights.
        statics: values that are the same at all steps.
        checkpoint: the number of steps between memories saved for gradients; None saves those of all steps.
        engine: an engine, or several in order of preference.
        """
        if checkpoint is not None:
            checkpoint = checked_checkpoint(checkpoint)
        static_tensors, transformed = statics or [], is_transformed()
        if not transformed and not (
            torch.is_grad_enabled() and wanted_of([data, *memories, *static_tensors, *parameters])
        ):
            if (bound := module.__dict__.get(BOUND)) is None:
                bound = module.__dict__.setdefault(BOUND, BoundModule())
            return bound(self, place, data, memories, parameters, static_tensors, engine)
        batch = self.batch(place, data, memories, static_tensors, parameters)
        inputs = [
            data.flatten(0, place.lead - 1),
            *(memories or [None] * self.program.memories),
            *static_tensors,
            *parameters,
        ]
        wanted = wanted_of(inputs)
        if transformed:  # only each transform knows what requires a gradient
            wanted = floats_of(inputs)
        results = list(self.differentiable(batch, wanted, inputs, checkpoint, engine))
        outputs, lead = len(self.program.levels), data.shape[: place.lead]
        whole = [tensor.reshape(*lead, *tensor.shape[1:]) for tensor in results[:outputs]]
        return [*whole, *results[outputs:]]

    def in_order(
        self, place: SequencePlaces, inputs: list[Any], halves: Halved | None, engine: Order
    ) -> list[Any]:
        """Runs the net on one flat list of tensors, as PyTorch's operator for recurrences passes them.

        Returns the net's results, those per step as [total, ...], followed by the values that the forward
        pass saves for gradients.

        place: the form of the data and the positions of the sequences in it.
        inputs: the data (the inputs of all steps), the initial memories, the statics and the parameters.
        halves: the forward and backward pass for gradients; None runs without gradients.
        engine: the engines in order of preference.
        """
        count, own = self.program.memories, len(inputs) - len(self.program.params)
        data, parts = inputs[0], (inputs[1 : 1 + count], inputs[1 + count : own], inputs[own:])
        if halves is not None:
            batch = self.batch(place, data, *parts)
            flat = [data.flatten(0, place.lead - 1), *inputs[1:]]
            return list(run_forward(halves, batch, flat, gradient_order(engine)))
        memories, statics, parameters = parts
        results = self.bound_to(parameters)(self, place, data, memories, parameters, statics, engine)
        outputs = len(self.program.levels)
        return [*(tensor.flatten(0, place.lead - 1) for tensor in results[:outputs]), *results[outputs:]]

    def bound_to(self, parameters: list[Any]) -> "BoundModule":
        """Returns the object that runs calls without gradients with these parameters, cached by their
        addresses.
        """
        key = tuple(tensor.data_ptr() for tensor in parameters)
        if key not in self.bounds:
            keep(self.bounds, key, BoundModule())
        return self.bounds[key]

    def batch(
        self,
        place: SequencePlaces,
        data: Any,
        memories: list[Any],
        statics: list[Any],
        parameters: list[Any],
    ) -> Batch:
        """Makes the batch of a call (positions of all steps). Raises `InputError` for tensors whose shapes or
        dtypes differ from those of the net, because machine code does not check them.

        place, data: the positions and the inputs of all steps, with one or two axes before the features.
        memories: the initial ones; empty for zeros. statics, parameters: those of the net.
        """
        batch = place.batch(data)
        leads = {STEPS: data.shape[: 1 if batch.structure is None else 2], ROWS: (batch.count,)}
        inputs = [data, *(memories or [None] * self.program.memories), *statics, *parameters]
        for (name, extent, features, dtype), tensor in zip(self.inputs, inputs, strict=True):
            shape = leads.get(extent, ()) + features
            if tensor is not None and (tensor.shape != shape or tensor.dtype != dtype):
                raise InputError(
                    f"{name} is {tensor.dtype}{list(tensor.shape)}; it should be {dtype}{list(shape)}"
                )
        return batch


@dataclass(frozen=True)
class BoundParameters:
    """Program that is bound to a copy of a module's parameters, with its prepared calls (`programs`).

    bits: the copied parameters as integers, to find changes of the module's parameters.
    """

    runnable: DifferentiableLayers
    bits: list[Any]
    program: Program
    programs: Programs[Program]

    @classmethod
    def of(cls, runnable: DifferentiableLayers, tensors: list[Any]) -> "BoundParameters":
        """Copies a module's parameters (`tensors`) and binds its compiled form (`runnable`) to the copies."""
        copies = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]
        program = runnable.program.with_params([array_of(tensor) for tensor in copies])
        return cls(runnable, [bits_of(tensor) for tensor in copies], program, Programs())

    def equal(self, runnable: DifferentiableLayers, tensors: list[Any]) -> bool:
        """Tells whether a module's compiled form is still `runnable`, and its parameters (`tensors`) equal
        the bound copies bit by bit.
        """
        return self.runnable is runnable and all(
            torch.equal(bits_of(tensor), known) for tensor, known in zip(tensors, self.bits, strict=True)
        )


def bits_of(tensor: Any) -> Any:
    """Views a tensor of floats as integers, so that comparisons find NaNs equal, and zeros of different sign
    not; other tensors are returned as they are.
    """
    return tensor.detach().view(WIDE.get(tensor.dtype, tensor.dtype))


class BoundModule:
    """Runs a module without gradients, by machine code that is bound to a copy of its latest parameters."""

    def __init__(self) -> None:
        """Starts without a bound program; the first call makes it."""
        self.latest: BoundParameters | None = None

    def parameters(self, runnable: DifferentiableLayers, tensors: list[Any]) -> BoundParameters:
        """Returns the compiled module (`runnable`) bound to its parameters (`tensors`): as in the last call,
        or bound anew if either has changed since.
        """
        latest = self.latest
        if latest is None or not latest.equal(runnable, tensors):
            latest = self.latest = BoundParameters.of(runnable, tensors)
        return latest

    def __call__(
        self,
        runnable: DifferentiableLayers,
        place: SequencePlaces,
        data: Any,
        states: list[Any],
        tensors: list[Any],
        statics: list[Any],
        engine: Asked,
    ) -> list[Any]:
        """Runs a compiled module without gradients; returns its outputs and final memories as tensors.

        A call of a form that was prepared has passed all checks, and is run at once.

        runnable: the compiled module.
        place: the positions of the sequences in `data`.
        data: the inputs of all steps.
        states: the initial memories; empty for zeros.
        tensors: the module's parameters. Machine code is bound to them again only if they have changed.
        statics: the inputs that are the same at all steps.
        engine: an engine, or several in order of preference.
        """
        bound, form, results = self.parameters(runnable, tensors), None, None
        program, programs = bound.program, bound.programs
        if not place.tensors and not statics and [each.dtype for each in (data, *states)] in runnable.given:
            array, time_major = array_of(data), place.form == "time"
            form, results = programs.prepared(
                array, memory_of(program, states), False, engine, "repeat", time_major
            )
        if results is None:
            batch, array = runnable.batch(place, data, states, statics, tensors), array_of(data)
            memories = initial_arrays(memory_of(program, states), program.memory, batch.count)
            flat = array.reshape(batch.positions.total, *array.shape[place.lead :])
            whole = replace(batch, arrays=[flat], structure=flat)
            call = call_of(whole, memories, [], False, None, None)
            call = replace(call, statics=[array_of(tensor) for tensor in statics])
            reading = Reading(whole, program, program, call, False)
            results = reading.run(checked_engine(engine), programs.calls, form)
        return [tensor_of(array) for value in results for array in arrays_in(value)]


def memory_of(program: Program, states: list[Any]) -> Any:
    """Converts initial memories (tensors `states`) to arrays in the structure in which a program takes them;
    an empty list, for zeros, to None.
    """
    arrays = [array_of(tensor) for tensor in states]
    if not arrays:
        return None
    return arrays[0] if isinstance(program.memory, Spec) else rebuild(program.memory, arrays)


def arrays_in(value: Any) -> list[Array]:
    """Lists the arrays of a result, an array or a structure of arrays, with a shortcut for a single array."""
    return [value] if isinstance(value, Array) else leaves(value)
