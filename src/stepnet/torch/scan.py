"""`Scan`: a step written with NumPy's functions as a module that runs over tensors, and is trained.

    RNN(step, params, memory=...)   --Scan-->   outputs, last = scan(x, initial)
        params: arrays                              scan.parameters(): the same, trained

`Recurrence` is the module of a step that is written with PyTorch.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from functools import reduce
from typing import Any, cast

import numpy as np

from stepnet.compiler.targets import Order, checked_engine, devices_of
from stepnet.compiler.values.arguments import flag, unknown_argument
from stepnet.compiler.values.once import entry_of
from stepnet.compiler.values.structure import arranged, leaves, named_leaves, rebuild, transform
from stepnet.errors import InputError
from stepnet.model.gradients.differentiable import ModelNets
from stepnet.model.gradients.pieces import Checkpoint, checked_checkpoint, checked_saved
from stepnet.model.program import Asked
from stepnet.model.recurrence import RNN
from stepnet.torch.arrays import HALVES, array_of, in_dtypes
from stepnet.torch.function import run_tensors
from stepnet.torch.keys import registered
from stepnet.torch.meta import META, is_meta, without_numbers
from stepnet.torch.pytorch import pytorch
from stepnet.torch.quantizing import Qconfig
from stepnet.torch.recording import (
    TRACES,
    called,
    check_forward_mode,
    check_no_proxy,
    constant_in_graphs,
    makes_graph,
    refuse_script,
    run_pre_hooks,
    stepnet_traces,
    untraced,
)
from stepnet.torch.scan_graph import IN_GRAPHS, has_plain_tensors, run_in_graph
from stepnet.torch.sequences import DTYPES as FLOATS
from stepnet.torch.sequences import (
    LENGTHS,
    MASKS,
    STATES,
    PackedSequence,
    check_axes,
    has_own_functions,
    is_autocast,
    named_tensors,
    runs_on,
    text_of_engine,
    untracked,
)

torch: Any = pytorch("torch")
DTYPES = FLOATS | {torch.int32: "int32", torch.int64: "int64", torch.bool: "bool"}
"""The dtypes of tensors that a Scan takes."""
MEANT = {
    **dict.fromkeys(STATES, "the memory before the first step is initial="),
    **dict.fromkeys(LENGTHS, "the lengths of sequences are lengths="),
    **dict.fromkeys(
        MASKS,
        "padding is left out by lengths=; a mask of other steps is an input of the step, as in "
        "np.where(mask[:, None], new, old)",
    ),
}
"""Advice for arguments that calls of other modules have, by their names."""
KEPT = "_kept"
"""Attribute in which a `Scan` keeps its compiled nets."""


class Scan(torch.nn.Module):
    """Module that runs a recurrence of a NumPy step over tensors [batch, time, ...], with gradients of any
    order. With `batch_first=False` they are [time, batch, ...], as `Recurrence` and the layers have them by
    default: sequences alone do not tell which they are.

    Its parameters begin as copies of those of the recurrence, under `params` and their names there. It runs
    in machine code on the CPU and on GPUs. Under autocast, tensors in half precision are computed in float32.
    In graphs of torch.compile and torch.export it is one operator, with first derivatives.

    Args:
        rnn: The recurrence, such as one of the cells of `sn.cells`. One with `until=` is refused.
        batch_first: Whether tensors of sequences are [batch, time, ...] and not [time, batch, ...]. States,
            statics or lengths that only fit with the axes exchanged are refused.
        checkpoint: What is kept for gradients, as of `GRU`; an attribute that may be set.
        engine: An engine, or several in order of preference, as of `GRU`; an attribute that may be set.
        saved: The dtype of values for gradients alone, as of `GRU`; an attribute that may be set.

    Raises:
        InputError: For what is no `RNN`, for one with `until=`, for an engine that is not known, and for
            names that parameters of PyTorch cannot have.

    >>> import torch, stepnet as sn, stepnet.torch
    >>> scan = stepnet.torch.Scan(sn.RNN(sn.cells.delta_rule, memory=(2, 4, 4)))
    >>> x = {name: torch.randn(3, 7, 2, 4, requires_grad=True) for name in ("q", "k", "v")}
    >>> outputs, last = scan(x | {"beta": torch.rand(3, 7, 2)}, lengths=torch.tensor([7, 0, 5]))
    >>> outputs.sum().backward()
    >>> outputs.shape, last.shape, x["q"].grad.shape
    (torch.Size([3, 7, 2, 4]), torch.Size([3, 2, 4, 4]), torch.Size([3, 7, 2, 4]))
    """

    __prepare_scriptable__ = refuse_script
    _call_impl = called
    qconfig = Qconfig()

    def __init__(
        self,
        rnn: RNN,
        *,
        batch_first: bool = True,
        checkpoint: Checkpoint = None,
        engine: Asked = "auto",
        saved: str | None = None,
    ) -> None:
        """Checks the arguments of a module that runs the recurrence `rnn`, and copies the recurrence's
        parameters to parameters of the module.
        """
        super().__init__()  # type: ignore[misc]
        if not isinstance(cast("Any", rnn), RNN):
            raise InputError(
                f"Scan takes an sn.RNN, not a {type(rnn).__name__}; a step that is written with PyTorch is a "
                "stepnet.torch.Recurrence"
            )
        if rnn.until is not None:
            raise InputError(
                "a Scan cannot run a recurrence with until=, whose number of steps depends on values"
            )
        self._rnn, self.checkpoint, self.engine = rnn, checked_checkpoint(checkpoint), checked_engine(engine)
        self.batch_first, self.saved = flag(batch_first, "batch_first"), checked_saved(saved)
        self._name = registered(self)
        self.params = parameters_of(rnn.params)

    def forward(
        self, x: Any, initial: Any = None, statics: Any = None, lengths: Any = None, **unknown: Any
    ) -> Any:
        """Runs the recurrence; returns the outputs and the last memories in the structures of the step.

        Args:
            x: The inputs [batch, time, ...], in the structure of the step; [time, batch, ...] without
                `batch_first`. The outputs are as they are.
            initial: The initial memory, [batch, ...] in the structure of the memory; None for zeros.
            statics: The values that each sequence has once, [batch, ...].
            lengths: The number of steps of each sequence, whole numbers [batch]; None if all have the same.
                Outputs behind the last step are zeros.
            **unknown: None: other names are errors, which say the argument that is meant.

        Raises:
            ArgumentError: For an argument by another name.
            InputError: For tensors that do not fit the recurrence or one another, that are on a device which
                the engine does not take, or are of other dtypes than float32, float64, int32, int64 and bool.
            RefusedError: If no engine of `engine` runs the recurrence.
        """
        check_no_proxy(unknown)
        if unknown:
            refuse_unknown(*unknown)
        whole = self.checkpoint is None and self.saved is None
        is_in_graph = makes_graph() and not stepnet_traces() and whole
        if is_in_graph and has_plain_tensors(x, initial, statics, self.engine):
            return run_in_graph(self, self._name, x, initial, statics, lengths)
        return untraced(Scan.run_call)(self, x, initial, statics, lengths)

    def run_call(self, x: Any, initial: Any, statics: Any, lengths: Any) -> tuple[Any, Any]:
        """Implements `forward`: checks its arguments and runs the recurrence over the inputs x. Returns the
        outputs and the last memories in the structures of the step.

        initial: the first memories; None for zeros. statics: values for all steps. lengths: the lengths of
            the sequences; None for no padding.
        """
        check_recorded()
        tensors, order = self.tensors, checked_engine(self.engine)
        devices = (META,) if is_meta(x) else devices_taken(x, order)
        x, initial, statics = (
            checked_tensors(x, "x", devices),
            checked_tensors(initial, "initial", devices),
            checked_tensors(statics, "statics", devices),
        )
        params = checked_tensors(self.params_in_structure(tensors), "params", devices)
        check_one_device({"x": x, "initial": initial, "statics": statics, "params": params})
        given = (
            named_tensors("initial", initial)
            | named_tensors("statics", statics)
            | named_tensors("lengths", lengths)
        )
        for tensor in leaves(x):
            check_axes("Scan", self.batch_first, tensor, given)
        nets, x = self.nets_for(tensors), self._rnn.as_declared(x)
        # The net and the positions of the sequences are found by arrays without numbers.
        blank_x, blank_initial, blank_statics = (
            transform(blank_of, value) for value in (x, initial, statics)
        )
        counts = untracked(lengths, "lengths").tolist() if isinstance(lengths, torch.Tensor) else lengths
        net, positions, lead = nets.read(
            blank_x, blank_initial, blank_statics, counts, time_major=not self.batch_first
        )
        program = net.program
        memories: list[Any] = [None] * net.memories
        if initial is not None:
            dtypes = [spec.dtype for spec in leaves(program.memory)]
            memories = in_dtypes(leaves(arranged(initial, program.memory)), dtypes)
        inputs = [tensor.flatten(0, 1) for tensor in leaves(x)] + memories + leaves(statics) + tensors
        if devices == (META,):
            results = without_numbers(net, positions, inputs)
        else:
            kept = net.saving(checked_saved(self.saved))
            results = run_tensors(kept, positions, inputs, order, checked_checkpoint(self.checkpoint))
        outputs = [
            tensor.reshape(*lead, *tensor.shape[1:]) if levels else tensor
            for tensor, levels in zip(results[: net.outputs], program.levels, strict=True)
        ]
        last = list(results[net.outputs :])
        if program.rounded is not None:
            last = in_dtypes(last, program.rounded)
        return rebuild(program.output, outputs), rebuild(program.memory, last)

    @property
    def rnn(self) -> RNN:
        """This module's recurrence as an `sn.RNN`, with copies of the parameters, for streams and files."""
        tensors = self.tensors
        params = self.params_in_structure([array_of(tensor.cpu()) for tensor in tensors])
        return self.nets_for(tensors).model.with_params(params)

    @property
    def tensors(self) -> list[Any]:
        """The module's parameters as a flat list, in the order of its recurrence's, which may be nested."""
        run_pre_hooks(self.params)
        paths = (name.split(".") if name else [] for name, _ in named_leaves(self._rnn.params))
        return [reduce(lambda part, key: part[key], path, self.params) for path in paths]

    def as_declared(self, x: Any) -> Any:
        """Returns inputs `x` with their dicts in the order of the recurrence's declared inputs."""
        return self._rnn.as_declared(x)

    def params_in_structure(self, values: Sequence[Any]) -> Any:
        """Arranges values, one per parameter, in the structure of the recurrence's parameters."""
        return rebuild(self._rnn.params, values)

    def nets_for(self, tensors: list[Any]) -> ModelNets[RNN]:
        """Returns the compiled nets of the recurrence for parameters with the shapes and dtypes of `tensors`;
        those for the latest few are cached.
        """
        key = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        nets = self.__dict__.setdefault(KEPT, OrderedDict[Any, ModelNets[RNN]]())

        def make() -> ModelNets[RNN]:
            """Makes the nets for parameters of these kinds."""
            like = self.params_in_structure([blank_of(tensor) for tensor in tensors])
            return ModelNets(self._rnn.with_kinds_of(like))

        return entry_of(nets, key, make)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state to copy or pickle, without the compiled programs, which a copy compiles again."""
        return {
            name: value for name, value in self.__dict__.items() if name not in (KEPT, IN_GRAPHS, "_name")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a copy or a pickled module; it gets a new name in graphs."""
        super().__setstate__(state)  # type: ignore[misc]
        self._name = registered(self)

    def extra_repr(self) -> str:
        """Describes the recurrence and the order of axes for `repr`, and the engine if that was chosen."""
        return f"{self._rnn!r}, batch_first={self.batch_first}{text_of_engine(self.engine)}"


def check_recorded() -> None:
    """Raises `InputError` while a graph is recorded, which would contain a Scan's results as constants."""
    if TRACES.get():
        raise InputError("a Scan cannot be used in a step or a model: call its recurrence, the sn.RNN")
    if makes_graph() or torch.jit.is_tracing():
        check_forward_mode()
        raise InputError(
            "a Scan cannot be recorded in a graph of torch.jit.trace, nor one with checkpoint= in any graph: "
            "use torch.export, record the parts around it, or write the step with PyTorch, as a "
            "stepnet.torch.Recurrence"
        )


def parameters_of(params: Any) -> Any:
    """Converts the parameters of a recurrence to PyTorch's: an array to a `Parameter`, a dict or tuple of
    arrays to nested `ParameterDict`s, None to None.

    Raises `InputError` for names that parameters of PyTorch cannot have.
    """
    if params is None:
        return None
    if isinstance(params, np.ndarray):
        tensor = torch.from_numpy(np.array(cast("Any", params)))
        return torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point())
    parts = cast("dict[Any, Any]", params)
    if not isinstance(params, dict):
        parts = dict(enumerate(cast("tuple[Any, ...]", params)))
    held: Any = torch.nn.ParameterDict()
    for key, part in parts.items():
        try:
            held[str(key)] = parameters_of(part)
        except KeyError as error:
            advice = "; a module is trained as stepnet.torch.Recurrence(module, example)" * ("." in str(key))
            raise InputError(
                f"a parameter is called {key!r}, and in PyTorch: {error.args[0]}{advice}"
            ) from error
    return held


def checked_tensors(value: Any, what: str, devices: Collection[str]) -> Any:
    """Checks the tensors of an argument of a Scan, and returns them in their structure.

    Under autocast, half precision becomes float32. Raises `InputError` for tensors that a Scan cannot run on.
    what: the argument's name, for messages. devices: the types of devices that they may be on.
    """
    if what == "x" and isinstance(value, list):
        check_no_list(cast("list[Any]", value))
    transform(lambda part: check_padded(part, what), value, is_leaf=is_packed)
    names = iter([f"{what} {name}".strip() for name, _ in named_leaves(value)])

    def tensor_of(tensor: Any) -> Any:
        """Checks one tensor: type, dtype, device and layout; raises `InputError` for others. Returns it, in
        float32 if it is in half precision under autocast.
        """
        name = next(names)
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"{name} of a Scan is a {type(tensor).__name__}; it should be a tensor")
        if tensor.dtype in HALVES and is_autocast(tensor.device):
            tensor = tensor.float()
        fits = tensor.dtype in DTYPES and tensor.layout == torch.strided
        if not fits or tensor.device.type not in devices:
            raise InputError(
                f"{name} of a Scan is {tensor.dtype} on {tensor.device}, {tensor.layout}; it should be "
                f"{', '.join(DTYPES.values())}, on {' or '.join(sorted(devices))}, torch.strided"
            )
        return tensor

    return transform(tensor_of, value)


def devices_taken(x: Any, engine: Order) -> frozenset[str]:
    """Returns the types of devices on which the engines take the tensors of the inputs `x`, and the CPU."""
    given = {tensor.device for tensor in leaves(x) if isinstance(tensor, torch.Tensor)}
    return devices_of(engine) | {device.type for device in given if runs_on(device, engine)}


def check_one_device(arguments: dict[str, Any]) -> None:
    """Raises `InputError` unless all tensors of the arguments of a Scan, by name, are on one device."""
    named = [pair for what, value in arguments.items() for pair in named_tensors(what, value).items()]
    if not named:
        return
    first, like = named[0]
    for name, tensor in named:
        if tensor.device != like.device:
            raise InputError(
                f"{name} of a Scan is on {tensor.device}, and {first} is on {like.device}: bring all tensors "
                "of a call to one device, as module.to(device) does for parameters"
            )


def is_packed(value: Any) -> bool:
    """Tells whether a value is a `PackedSequence`, which is a tuple."""
    return isinstance(value, PackedSequence)


def check_no_list(parts: list[Any]) -> None:
    """Raises `InputError` for a list of sequences of different lengths, which a list of inputs has not."""
    if len({part.shape[:2] for part in parts if isinstance(part, torch.Tensor)}) > 1:
        raise InputError(
            "a Scan takes padded sequences, not a list of them: call it with x = "
            "torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True) and lengths = [len(one) for one in "
            "sequences], as scan(x, lengths=lengths)"
        )


def check_padded(value: Any, what: str) -> None:
    """Raises `InputError` for a `PackedSequence`, a nested tensor and a tensor of a class that replaces
    PyTorch's functions, which a `Scan` (a module that runs a user's cell over padded sequences) does not
    take. what: the argument's name.
    """
    kind = cast("Any", type(value))
    if isinstance(value, torch.Tensor) and has_own_functions([value]) and not hasattr(kind, "offsets"):
        raise InputError(
            f"{what} of a Scan has a tensor of {kind.__name__}, a class with functions in place of "
            "PyTorch's; a Scan runs plain tensors: give .as_subclass(torch.Tensor), or use a Recurrence"
        )
    if what == "statics" and (is_packed(value) or getattr(value, "is_nested", False)):
        raise InputError(
            "statics of a Scan are padded tensors, which have no lengths: give as another static a mask of "
            "their steps, and write np.where(mask, scores, -1e9) in the step"
        )
    if is_packed(value):
        raise InputError(
            "a Scan takes padded sequences, not a PackedSequence: call it with x, lengths = "
            "torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True), as scan(x, lengths=lengths)"
        )
    if isinstance(value, torch.Tensor) and value.is_nested:
        raise InputError(
            "a Scan takes padded sequences, not a nested tensor: call it with x = "
            "nested.to_padded_tensor(0.0) and lengths = nested.offsets().diff(), as scan(x, lengths=lengths)"
        )


def blank_of(tensor: Any) -> Any:
    """Makes an array of a tensor's shape and dtype, to find programs: torch.func's have no numbers."""
    return np.empty(tensor.shape, DTYPES[tensor.dtype])


@constant_in_graphs
def refuse_unknown(*names: str) -> None:
    """Raises `ArgumentError` for arguments that a call lacks, in traces of torch.compile too."""
    raise unknown_argument("a call of a Scan", Scan.forward, names, MEANT)
