"""Runs the net of a module: with gradients as a function registered with PyTorch, without them by machine
code that is bound to a copy of the parameters.

Parameters change in ways that PyTorch does not count: `p.data.add_`, NumPy's writes, `p.data = other`. So the
bytes are compared at each call; that takes a small part of the time that packing them takes.
Where that is no small part, marks tell the changes (`marks.py`).
"""

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from stepnet.compiler.net.types import ROWS, STEPS
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.once import computed_once, entry_of
from stepnet.compiler.values.structure import leaves, rebuild
from stepnet.errors import InputError
from stepnet.model.gradients.differentiable import FixedNet, ModelNet, Passes
from stepnet.model.gradients.pieces import Checkpoint, checked_checkpoint, checked_saved
from stepnet.model.model import Model
from stepnet.model.program import Asked
from stepnet.ragged.positions import Positions
from stepnet.torch.arrays import HALVES, Array, array_of, carried, check_memory, in_dtypes, tensor_of, view_of
from stepnet.torch.function import run_tensors
from stepnet.torch.places import ON_HOST, place_on
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import is_differentiated
from stepnet.torch.running import count_products, run_forward, run_net_on
from stepnet.torch.sequences import SequencePlaces

torch: Any = pytorch("torch")
NUMBERS = itertools.count()
WIDE = {torch.float32: torch.int32, torch.float64: torch.int64, **dict.fromkeys(HALVES, torch.int16)}
"""The integers as wide as the floats of each dtype."""
ADDRESS, OFFSET, IS_DENSE = torch.Tensor.data_ptr, torch.Tensor.storage_offset, torch.Tensor.is_contiguous
STORAGE, BYTES = torch.Tensor.untyped_storage, torch.UntypedStorage.nbytes
BOUND = "_bound"
"""The attribute in which a module keeps its bound program for calls without gradients."""


class DifferentiableLayers:
    """Compiled layers that run over PyTorch's tensors: with gradients, or, without them, by machine code that
    is bound to the current parameters.

    The net's inputs are the sequences, memories, statics and parameters; its results are the outputs and the
    last memories.
    """

    def __init__(self, net: ModelNet) -> None:
        """Prepares to run the net of a model, a function of sequences, memories, statics (values that each
        sequence has once) and parameters.

        Sets `inputs`, a tuple for each input of the net: its name, extent (one entry per step, per sequence,
        or one for all), features and dtype; `given`, the dtypes of the sequences alone, and of these with the
        initial memories; `bounds`, the cache of `bound_to`; and `number`, which no other object of this
        process has.
        """
        self.number, self.net = next(NUMBERS), net
        self.bounds = OrderedDict[Any, Any]()
        self.inputs = [
            (name, type_.extent, type_.shape, getattr(torch, type_.dtype))
            for name, type_ in zip(self.net.names, self.net.inputs, strict=True)
        ]
        dtypes = [dtype for *_, dtype in self.inputs]
        self.given = dtypes[:1], dtypes[: 1 + self.net.memories]
        self.sequences = [type_.extent for type_ in net.inputs].count(STEPS)

    @classmethod
    def of(cls, model: Model) -> "DifferentiableLayers":
        """Compiles the net of a model for its latest or declared inputs."""
        return cls(ModelNet.of(model))

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
        saved: str | None = None,
    ) -> list[Any]:
        """Runs the net on tensors and returns its outputs, laid out as `data`, followed by the last memories.

        module: the object that caches machine code for calls without gradients. place: the positions of the
            sequences in `data`, the inputs of all steps. memories: empty for zeros. parameters: the weights.
        statics: values that are the same at all steps.
        checkpoint: the number of steps between memories saved for gradients; None saves those of all steps.
        engine: an engine, or several in order of preference. saved: the dtype in which values for gradients
            alone are stored; None for their own.
        """
        if checkpoint is not None:
            checkpoint = checked_checkpoint(checkpoint)
        static_tensors, is_on_host = statics or [], place_on(data.device, engine) is ON_HOST
        if not is_on_host and (given := self.as_given) is not self:
            return given(module, place, data, memories, parameters, statics, checkpoint, engine)
        memories = self.carried(memories)
        every = [data, *memories, *static_tensors, *parameters]
        if is_on_host and not is_differentiated(every):
            if (bound := module.__dict__.get(BOUND)) is None:
                bound = module.__dict__.setdefault(BOUND, BoundModule())
            return bound(self, place, data, memories, parameters, static_tensors, engine)
        inputs = [data, *(memories or [None] * self.net.memories), *static_tensors, *parameters]
        positions, flat = self.positions(place, inputs), self.flat(place, inputs)
        results = run_tensors(self.net.saving(checked_saved(saved)), positions, flat, engine, checkpoint)
        return self.rounded(self.laid_out(results, place, data))

    @computed_once
    def as_given(self) -> "DifferentiableLayers":
        """The layers whose net takes and gives memories in the dtypes of a call, as loops on a GPU read and
        write them; itself if steps carry no other ones.
        """
        net = self.net.as_given
        return self if net is self.net else DifferentiableLayers(net)

    def carried(self, memories: list[Any]) -> list[Any]:
        """Returns initial memories in the dtypes in which the net takes them: float32 for a module in half
        precision. Raises `InputError` for a memory in another dtype than the module's.
        """
        rounded = self.net.program.rounded
        if rounded is None or not memories:
            return memories
        for (name, *_), memory, dtype in zip(self.inputs[1:], memories, rounded, strict=False):
            if str(memory.dtype) != f"torch.{dtype}":
                raise InputError(f"{name} is {memory.dtype}{list(memory.shape)}; it should be torch.{dtype}")
        return carried(memories)

    def rounded(self, results: list[Any]) -> list[Any]:
        """Returns the results of the net, its final memories in the dtypes of the module: a recurrence
        carries memories in float32 if the module is in half precision.
        """
        if self.net.program.rounded is None:
            return results
        outputs = self.net.outputs
        return [*results[:outputs], *in_dtypes(results[outputs:], self.net.program.rounded)]

    def laid_out(self, results: Sequence[Any], place: SequencePlaces, data: Any) -> list[Any]:
        """Returns the results of a net, with the steps of its outputs arranged as in the inputs `data`, such
        as [batch, time]; the last memories follow unchanged.

        place: the number of axes before the features of `data`.
        """
        outputs, lead = self.net.outputs, data.shape[: place.lead]
        whole = [tensor.reshape(*lead, *tensor.shape[1:]) for tensor in results[:outputs]]
        return [*whole, *results[outputs:]]

    def in_order(
        self, place: SequencePlaces, inputs: list[Any], passes: Passes | None, engine: Asked
    ) -> list[Any]:
        """Runs the net on one flat list of tensors, as PyTorch's operator for recurrences passes them.

        Returns the net's results, those per step as [total, ...], followed by the values that the forward
        pass saves for gradients.

        place: the positions of the sequences in the data. inputs: the data (the inputs of all steps), the
        initial memories, the statics (values that each sequence has once) and the parameters. passes: the
        forward and backward pass for gradients; None runs without gradients. engine: the engines of a run
        without gradients, in order of preference.
        """
        data, is_one = inputs[0], self.sequences == 1 and all(self.net.program.levels)
        if passes is not None or not is_one or place_on(data.device, engine) is not ON_HOST:
            positions, flat = self.positions(place, inputs), self.flat(place, inputs)
            if passes is None:
                return list(run_net_on(self.net, positions, flat, engine))
            return list(run_forward(passes, positions, flat))
        count, own = self.net.memories, len(inputs) - self.net.parameters
        memories, statics, parameters = inputs[1 : 1 + count], inputs[1 + count : own], inputs[own:]
        results = self.bound_to(parameters)(self, place, data, memories, parameters, statics, engine)
        outputs = self.net.outputs
        flat = (tensor.flatten(0, place.lead - 1) for tensor in results[:outputs])
        return [*flat, *carried(results[outputs:])]  # the operator's results have the dtypes of the net's

    def flat(self, place: SequencePlaces, inputs: Sequence[Any]) -> list[Any]:
        """Returns the inputs of the net with all steps of their sequences along one axis. place: the number
        of axes before the features of sequences, the first of the inputs.
        """
        count = self.sequences
        return [*(tensor.flatten(0, place.lead - 1) for tensor in inputs[:count]), *inputs[count:]]

    def bound_to(self, parameters: list[Any]) -> "BoundModule":
        """Returns the object that runs calls without gradients with these parameters; cached by addresses."""
        key = tuple(tensor.data_ptr() for tensor in parameters)
        return entry_of(self.bounds, key, BoundModule)

    def positions(self, place: SequencePlaces, inputs: Sequence[Any]) -> Positions:
        """Returns the positions of the steps of a call. Raises `InputError` for tensors whose shapes or
        dtypes the net does not have, because machine code does not check them.

        place: where the sequences lie in the data, the first of the inputs. inputs: the inputs of the net:
        the inputs of all steps, with one or two axes before the features; the initial memories, None for
        zeros; the statics; the weights.
        """
        data = inputs[0]
        positions = place.positions(data)
        leads = {STEPS: data.shape[: place.lead], ROWS: (positions.rows,)}
        for (name, extent, features, dtype), tensor in zip(self.inputs, inputs, strict=True):
            shape = leads.get(extent, ()) + features
            if tensor is not None and tensor.device != data.device:
                raise InputError(
                    f"{name} is on {tensor.device}, and {self.inputs[0][0] or 'the input'} is on "
                    f"{data.device}: bring all tensors of a call to one device, as module.to(device) does"
                )
            if tensor is not None and (tensor.shape != shape or tensor.dtype != dtype):
                raise InputError(
                    f"{name} is {tensor.dtype}{list(tensor.shape)}; it should be {dtype}{list(shape)}"
                )
        return positions


def bits_of(tensor: Any) -> Any:
    """Views a tensor of floats as integers, so that comparisons find NaNs equal, and zeros of different sign
    not; other tensors are returned as they are. Nothing is recorded for gradients: without a gradient to
    compute, no tensor requires one, or PyTorch computes none.
    """
    return tensor.view(WIDE.get(tensor.dtype, tensor.dtype))


def places_of(tensors: list[Any]) -> list[int]:
    """Returns where tensors lie, in half of the time of `check_memory`: their addresses, whether they have no
    gaps, the places in their storages, and the sizes of these. Tensors without gaps whose places and shapes
    are those of an earlier call have memory for all numbers, if they had it then.
    """
    dense, offsets = map(IS_DENSE, tensors), map(OFFSET, tensors)
    return [*map(ADDRESS, tensors), *dense, *offsets, *map(BYTES, map(STORAGE, tensors))]


class BoundModule:
    """Runs a module without gradients, by machine code that is bound to a copy of its latest parameters.

    latest: the compiled module, the copied parameters as integers, the net that is bound to them, with its
        prepared calls, and where the parameters were; None before the first call.
    """

    def __init__(self) -> None:
        """Starts without a bound program; the first call makes it."""
        self.latest: tuple[DifferentiableLayers, list[Any], FixedNet, list[int]] | None = None

    def bound(self, runnable: DifferentiableLayers, tensors: list[Any]) -> FixedNet:
        """Returns the net of a compiled module (`runnable`) with its parameters (`tensors`) packed for
        machine code: as in the last call, or packed anew from copies of them if either has changed since.
        Parameters are compared bit by bit. Raises `InputError` for one without memory.
        """
        latest, count = self.latest, len(tensors)
        if latest is not None and latest[0] is runnable:
            if (places := places_of(tensors)) != latest[3] or not all(places[count : 2 * count]):
                check_memory(*tensors)
            pairs = zip(tensors, latest[1], strict=True)
            if all(torch.equal(bits_of(tensor), known) for tensor, known in pairs):
                self.latest = *latest[:3], places
                return latest[2]
        check_memory(*tensors)
        copies = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]
        net = runnable.net.fixed([array_of(tensor) for tensor in copies])
        self.latest = runnable, [bits_of(tensor) for tensor in copies], net, places_of(tensors)
        return net

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

        A call with the shapes and dtypes of an earlier one, which has passed all checks, is run at once.

        runnable: the compiled module. place: the positions of the sequences in `data`. data: the inputs of
        all steps. states: the initial memories; empty for zeros. tensors: the module's parameters. Machine
        code is bound to them again only if they have changed. statics: the inputs that are the same at all
        steps. engine: an engine, or several in order of preference.
        """
        if torch._C._len_torch_dispatch_stack():
            count_products(runnable.net, place.positions(data))
        net, formed, results = self.bound(runnable, tensors), None, None
        if not statics and [each.dtype for each in (data, *states)] in runnable.given:
            array = view_of(data)
            if (formed := place.formed(array, engine)) is not None:
                sequences = None if place.tensors else array
                formed, results = net.prepared(formed, sequences, memory_of(net, states))
        if results is not None:
            return [tensor_of(array) for value in results for array in arrays_in(value)]
        every = [data, *(states or [None] * runnable.net.memories), *statics, *tensors]
        positions = runnable.positions(place, every)
        inputs = [
            view_of(data.flatten(0, place.lead - 1)),
            *(map(view_of, states) if states else [None] * runnable.net.memories),
            *map(view_of, statics),
        ]
        made = net(inputs, positions, engine, formed, data.shape[: place.lead])
        return runnable.laid_out([*map(tensor_of, made)], place, data)


def memory_of(net: FixedNet, states: list[Any]) -> Any:
    """Converts initial memories, tensors, to arrays in the net's structure; an empty list to None."""
    arrays = [view_of(tensor) for tensor in states]
    if not arrays:
        return None
    return arrays[0] if isinstance(net.memory, Spec) else rebuild(net.memory, arrays)


def arrays_in(value: Any) -> list[Array]:
    """Lists the arrays of a result, an array or a structure of arrays, with a shortcut for a single array."""
    return [value] if isinstance(value, Array) else leaves(value)
