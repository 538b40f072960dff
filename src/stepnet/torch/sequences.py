"""Reads the arguments that modules of PyTorch take: sequences as tensors, `PackedSequence`s and jagged nested
tensors, the dtype of all tensors, of which there is one, and the engines with the devices that they take.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.targets import devices_of, engine_at
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import named_leaves
from stepnet.errors import InputError, RefusedError
from stepnet.model.forms import FormedCall, call_at, formed_call
from stepnet.model.program import Asked
from stepnet.ragged.offsets import offsets_of
from stepnet.ragged.positions import Positions
from stepnet.ragged.torch import packed_lengths
from stepnet.torch.arrays import HALVES, PLAIN, array_of
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import check_no_proxy, constant_in_graphs, makes_graph

torch: Any = pytorch("torch")
PackedSequence: Any = torch.nn.utils.rnn.PackedSequence
COMPUTED = {torch.float32: "float32", torch.float64: "float64"}
"""The dtypes in which recurrences are computed."""
DTYPES = COMPUTED | HALVES
"""The dtypes of modules that stepnet runs."""

DEVICES = "cpu", "cuda"
"""The types of devices whose tensors stepnet's operators take, and on which modules look for autocast."""
KEEP_STATES = {"cpu": frozenset({"GRU", "GRU cell", "LSTM cell"})}
"""The layers and cells, by the type of the device, whose states keep their dtype under autocast: those of
torch.nn cast their factors, and sums with states are promoted. All others run in the dtype of autocast.
"""
REFUSED = "_refused"
"""The attribute in which a module keeps why PyTorch's own operations run it on a device."""
HOST = "cpu"
"""The type of the device whose tensors all engines take."""

MAPPED_LENGTHS = (
    "{} cannot be mapped by torch.vmap, in which every entry has the same numbers of steps: map padded "
    "sequences without lengths, and in the loss multiply the outputs behind each last step by 0"
)
CAPTURED = (
    "{} are on the GPU, and the host reads them, which cannot be while torch.cuda.graph captures: give a "
    "PackedSequence, whose batch sizes are on the CPU, or lengths there, in place of a jagged nested tensor"
)
PACKED_IN_GRAPH = (
    "a PackedSequence or a nested tensor cannot be exported where the model makes it, as PyTorch does not "
    "know its shapes: give the packed sequences as an argument, or export the model for padded sequences"
)
NESTED_TRANSFORM = (
    "a jagged nested tensor cannot be used under the transforms of torch.func, in which PyTorch has no "
    "nested tensors: give a PackedSequence, or padded sequences"
)
STATES = ("h0", "h_0", "hx", "h", "c0", "initial", "initial_state", "state", "states", "hidden", "memory")
LENGTHS = ("lengths", "sequence_length", "sequence_lengths", "seq_len", "seq_lens", "input_lengths")
MASKS = ("mask", "masks", "attention_mask", "key_padding_mask", "padding_mask")
"""Names that calls of several libraries have for states, lengths and masks."""
TO_TENSORS = {
    "list": "torch.stack(x), or pack_sequence(x, enforce_sorted=False) of torch.nn.utils.rnn",
    "Ragged": "x.to_packed()",
}
"""Expressions that make sequences for PyTorch, by the class of `x`."""
OF_PLAIN = {
    "__torch_function__": torch._C._disabled_torch_function_impl,
    "__torch_dispatch__": torch.Tensor.__torch_dispatch__,
}
"""The methods of classes of tensors that replace nothing, by name; see `has_own_functions`."""
FAKE_MODE: Any = torch._C._TorchDispatchModeKey.FAKE
"""PyTorch's number of the mode that makes all tensors fake ones."""
MOST_KEPT = 64
PADDED = "time", "batch"
"""The forms of sequences that lie in one tensor with an axis of time, and have no tensors of positions."""
Array = np.ndarray


@dataclass(frozen=True, init=True)  # written at once, as torch.compile traces calls of the class
class SequencePlaces:
    """Form of the data of sequences and the positions in it, as tensors, so that a graph of PyTorch can
    contain them.

    form: "time" for data [time, batch, features...], "batch" for [batch, time, features...], both followed by
        " lengths" where these differ; "packed" and "jagged" for [total, features...].
    tensors: the lengths if they differ; for "packed" the batch sizes of a `PackedSequence`, and the caller's
        number of each sequence if it is sorted; for "jagged" the offsets of a nested tensor, and its lengths
        if it has gaps.
    """

    form: str
    tensors: tuple[Any, ...] = ()

    @classmethod
    def of_operator(cls, form: str, place: Sequence[Any]) -> "SequencePlaces":
        """Returns the places that `for_operator` turned into arguments of PyTorch's operator."""
        return cls(form, () if form in PADDED else tuple(place))

    def for_operator(self, data: Any) -> tuple[str, list[Any]]:
        """Returns the form and the tensors as arguments of PyTorch's operator. data: of the sequences; it
        stands in for an empty list of tensors, which AOTInductor does not pass.
        """
        return self.form, list(self.tensors) or [data]

    @property
    def lead(self) -> int:
        """Number of axes before the features in the data of the sequences."""
        return leading_axes(self.form)

    def positions(self, data: Any) -> Positions:
        """Returns the positions of the steps of sequences in the tensor `data`: padded, packed or jagged, as
        `self.form` says; raises `InputError` if the batch sizes, offsets or lengths in `tensors` do not fit
        it.
        """
        if not self.tensors:
            return dense_positions(*data.shape[:2], self.form == "time")
        numbers = [untracked(each, "the lengths of sequences") for each in self.tensors]
        if self.lead == 2:
            first, second = data.shape[:2]
            return padded_positions(first, second, self.form == "time lengths", numbers[0])
        if self.form == "packed":
            return packed_positions(len(data), *numbers)
        return jagged_positions(len(data), *numbers)

    def formed(self, array: Array, engine: Any) -> FormedCall | None:
        """Returns a call on these sequences as the cache of prepared calls takes it; None if no code is
        prepared for it.

        array: the data of the sequences. engine: an engine, or several in order of preference.
        """
        if not self.tensors:
            return formed_call(array, None, False, engine, "repeat", self.form == "time")
        numbers, *others = self.tensors
        if self.form == "jagged" and others:  # there are gaps
            return None
        table = untracked(numbers, "the lengths of sequences")
        if self.lead == 2:
            return formed_call(array, table, False, engine, "repeat", self.form == "time lengths")
        return call_at("packed" if self.form == "packed" else "ends", array, table, engine)


def leading_axes(form: str) -> int:
    """Returns the number of axes before the features in the data of sequences of a form: two, batch and time,
    for padded sequences, and one for packed sequences, which are steps end to end.
    """
    return 1 if form in ("packed", "jagged") else 2


PLACES = {form: SequencePlaces(form) for form in PADDED}
"""The places of sequences that lie in one tensor with an axis of time, by form."""


class ModuleSequences(NamedTuple):
    """Sequences that a module was called with, in any form, and how to return outputs in that form.

    data: [total, features...], or with two leading axes for a plain tensor.
    place: the positions of the sequences in the data.
    rows: the number of sequences.
    form: converts outputs that are laid out as the data to the caller's form.
    order, back: the permutation from the caller's order of sequences to the data's, and its inverse; or None.
    """

    data: Any
    place: SequencePlaces
    rows: int
    form: Callable[[Any], Any]
    order: Any = None
    back: Any = None

    @classmethod
    def of(cls, value: Any, batch_first: bool) -> "ModuleSequences":
        """Reads the sequences `value`: a tensor, a `PackedSequence` or a jagged nested tensor.

        batch_first: whether a tensor is [batch, time, ...], not [time, batch, ...]. Raises `InputError` for
        other nested tensors, for values of other kinds, and for a tensor without these two axes.
        """
        if isinstance(value, PackedSequence):
            return packed(value)
        if data_of(value).is_nested:
            return nested(value)
        if value.dim() < 2:
            axes = "[batch, time, ...]" if batch_first else "[time, batch, ...]"
            raise InputError(f"the input is a tensor of sequences {axes}, not one of {value.dim()} axes")
        rows = value.shape[0 if batch_first else 1]
        return cls(value, PLACES["batch" if batch_first else "time"], rows, unchanged)


def untracked(tensor: Any, what: str) -> Array:
    """Returns the whole numbers in a tensor that say where sequences lie, also under a transform of
    torch.func, which cannot differentiate them.

    what: the name of the numbers, for the message. Raises `InputError` where torch.vmap maps them, and for
    those on a GPU while a graph is captured.
    """
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            raise InputError(MAPPED_LENGTHS.format(what))
        tensor = functorch.get_unwrapped(tensor)
    if tensor.device.type == "cuda":
        check_capture(what, torch.cuda.is_current_stream_capturing())
    with torch._C._DisableFuncTorch():
        return array_of(tensor.cpu())


def check_capture(what: str, is_captured: bool) -> None:
    """Raises `InputError` for a GPU's numbers, named `what`, that the host would read during a capture."""
    if is_captured:
        raise InputError(CAPTURED.format(what))


def check_axes(title: str, batch_first: bool, data: Any, others: Mapping[str, Any]) -> None:
    """Raises `InputError` if the arguments of a call fit only with the axes of time and batch exchanged.

    title: the module's name, for the message.
    data: [batch, time, ...], or [time, batch, ...] without `batch_first`.
    others: the other tensors [batch, ...] by name.
    """
    if data.dim() < 2:
        return
    rows, steps = data.shape[:2] if batch_first else reversed(data.shape[:2])
    for name, tensor in others.items():
        count = tensor.shape[0] if tensor.dim() else rows
        if count != rows and count == steps:
            order, other = ("[batch, time, ...]", "[time, batch, ...]")[:: 1 if batch_first else -1]
            raise InputError(
                f"{name} has {count} rows, and the sequences are {list(data.shape)}, which is {order} by "
                f"batch_first={batch_first} of this {title}: give them so, or make it with "
                f"batch_first={not batch_first} for {other}"
            )


def named_tensors(what: str, value: Any) -> dict[str, Any]:
    """Lists the tensors of an argument by names for messages; empty for None. what: the argument's name."""
    tensors = {f"{what} {name}".strip(): leaf for name, leaf in named_leaves(value)}
    return {name: leaf for name, leaf in tensors.items() if isinstance(leaf, torch.Tensor)}


def data_of(value: Any) -> Any:
    """Returns the tensor with the data of sequences: that of a `PackedSequence`, else `value` itself. Raises
    `InputError` for arrays of NumPy, lists and Raggeds, and for proxies of torch.fx.symbolic_trace.
    """
    if isinstance(value, PackedSequence):
        return value.data
    if not isinstance(value, torch.Tensor):
        check_no_proxy(value)
        kind = type(value).__name__
        remedy = TO_TENSORS.get(kind, "torch.from_numpy(x)")
        raise InputError(f"layers of stepnet.torch take tensors, not {kind}: give {remedy}")
    return value


def unchanged(outputs: Any) -> Any:
    """Returns outputs unchanged, as for a plain tensor, where they have the form of the result already."""
    return outputs


@lru_cache(MOST_KEPT)
def dense_positions(first: int, second: int, time_major: bool) -> Positions:
    """Returns the cached positions of sequences of equal length. time_major: for data [time, batch, ...]."""
    rows, time = (second, first) if time_major else (first, second)
    return Positions.padded(np.full(rows, time, np.int64), time, time_major)


def padded_positions(first: int, second: int, time_major: bool, lengths: Array) -> Positions:
    """Returns the positions of sequences of these lengths in data [first, second, ...]; raises `InputError`
    for lengths that do not fit it.

    time_major: whether the first axis is time and the second batch.
    """
    rows, time = (second, first) if time_major else (first, second)
    if lengths.shape != (rows,) or (lengths < 0).any() or (lengths > time).any():
        raise InputError(
            f"lengths are {lengths.tolist()} for {rows} sequences of up to {time} steps: give a whole number "
            f"from 0 to {time} for each"
        )
    return Positions.padded(lengths.astype(np.int64), time, time_major)


def packed(value: Any) -> ModuleSequences:
    """Reads a `PackedSequence`: returns its data, in which the longest sequence comes first, the positions of
    the sequences, and how to return outputs; raises `InputError` for batch sizes that are no list of whole
    numbers, and in a graph of PyTorch for sequences that it packs itself.
    """
    data, sizes, order, back = value
    if sizes.is_floating_point() and makes_graph():  # so PyTorch's tracer takes them, with a wrong shape
        raise InputError(PACKED_IN_GRAPH)
    if sizes.dim() != 1 or sizes.is_floating_point():
        raise InputError(
            f"the PackedSequence is damaged: batch_sizes is {sizes.dtype}{list(sizes.shape)}, and it should "
            "be whole numbers along one axis"
        )
    rows = int(sizes[0]) if order is None and len(sizes) else 0 if order is None else len(order)

    def form(outputs: Any) -> Any:
        """Makes a `PackedSequence` of outputs, in the caller's order."""
        return PackedSequence(outputs, sizes, order, back)

    # Numbers are for the messages of machine code, which runs on the CPU.
    numbers = () if order is None or order.device.type != "cpu" else (order,)
    return ModuleSequences(data, SequencePlaces("packed", (sizes, *numbers)), rows, form, order, back)


def packed_positions(total: int, counts: Array, numbers: Array | None = None) -> Positions:
    """Returns the positions of the steps of a `PackedSequence`, in which the first steps of all sequences
    come first, then the second steps, and so on. total: its number of steps. counts: how many sequences have
    an n-th step. numbers: the caller's number of each sequence; None if they are in the caller's order.
    """
    lengths = packed_lengths(counts, total)
    rows = np.arange(len(lengths), dtype=np.int64)
    return Positions(rows, lengths, total, offsets_of(counts)[:-1], numbers=numbers)


def nested(value: Any) -> ModuleSequences:
    """Reads a jagged nested tensor [batch, steps, features...]: returns its data, the positions of the
    sequences, and how to return outputs; raises `InputError` for other nested tensors, and under a transform
    of torch.func, under which PyTorch makes no nested tensors.
    """
    if not makes_graph() and torch._C._functorch.peek_interpreter_stack() is not None:
        raise InputError(NESTED_TRANSFORM)
    if value.layout != torch.jagged or value.dim() < 2 or value._ragged_idx != 1:
        raise InputError(
            "a nested tensor of sequences is made with layout=torch.jagged, and is [batch, steps, features]"
        )
    offsets, lengths = value.offsets(), value.lengths()
    place = SequencePlaces("jagged", (offsets,) if lengths is None else (offsets, lengths))

    def form(outputs: Any) -> Any:
        """Makes a jagged nested tensor of outputs."""
        return torch.nested.nested_tensor_from_jagged(outputs, offsets, lengths)

    return ModuleSequences(value.values(), place, len(offsets) - 1, form)


def jagged_positions(total: int, offsets: Array, lengths: Array | None = None) -> Positions:
    """Returns the positions of the steps of a jagged nested tensor; raises `InputError` for damaged offsets
    or lengths.

    total: the number of steps in its data. offsets: the index of the first step of each sequence, and the end
    of the last one. lengths: of the sequences, if there are gaps behind them; else None.
    """
    starts = offsets.astype(np.int64)[:-1]
    counts = (np.diff(offsets) if lengths is None else lengths).astype(np.int64)
    if (starts < 0).any() or (counts < 0).any() or (starts + counts > total).any():
        raise InputError(f"the nested tensor is damaged: its lengths or offsets go beyond its {total} values")
    return Positions(starts, counts, total)


# ---- the dtype of all tensors ------------------------------------------------------------------------------


def is_autocast(device: Any) -> bool:
    """Tells whether torch.autocast is on for tensors on a device."""
    return device.type in DEVICES and torch.is_autocast_enabled(device.type)


def dtype_of_run(name: str, device: Any, dtype: Any, states: Any) -> Any:
    """Returns the dtype in which a layer or a cell runs on a device: `dtype`, the dtype of its parameters.
    Under autocast it is the dtype of the results of torch.nn's layer, except for float64, which autocast
    leaves unchanged.

    name: a name in `KEEP_STATES`, such as "LSTM", or "LSTM cell". states: the dtype of its states, or,
    without any, of the input.
    """
    if dtype is torch.float64 or not is_autocast(device):
        return dtype
    lower = torch.get_autocast_dtype(device.type)
    keeps = name in KEEP_STATES.get(device.type, ())
    return torch.promote_types(lower, states) if keeps else lower


def as_cast(dtype: Any, *tensors: Any) -> Sequence[Any]:
    """Casts tensors to the dtype of a run if autocast is on; else returns them unchanged."""
    if not is_autocast(tensors[0].device):
        return tensors
    return [tensor.to(dtype) for tensor in tensors]


def dtypes_refused(parameters: Iterable[Any]) -> str | None:
    """Returns the reason why stepnet cannot run a module with these parameters: dtypes that are not in
    `DTYPES`. None if it can.
    """
    dtypes = {str(tensor.dtype) for tensor in parameters if tensor.dtype not in DTYPES}
    if not dtypes:
        return None
    *others, last = DTYPES.values()
    return (
        f"its parameters are {', '.join(sorted(dtypes))}: only {', '.join(others)} and {last} are supported"
    )


def check_tensors(
    title: str, names: Sequence[str], parameters: Sequence[Any], data: Any, states: Sequence[Any]
) -> None:
    """Raises `InputError` unless all tensors of a call are dense, are on the device of the data, and have the
    same dtype, one of `DTYPES`.

    title: the class name of the module. names: the names of the parameters. data: the input of the call.
    states: h, and c of an LSTM; may be empty.
    """
    dtype, device = parameters[0].dtype, data.device
    if dtype not in DTYPES:
        raise InputError(
            f"{title} runs in {', '.join(DTYPES.values())} on the CPU, and its parameters are {dtype}: make "
            f"them float32 with .float(), or use torch.nn.{title}, as undo() of what `accelerate` returned "
            "gives back"
        )
    of_states = ("hx[0]", "hx[1]") if len(states) > 1 else ("hx",)
    named = zip((*names, "the input", *of_states), (*parameters, data, *states), strict=False)
    strided = torch.strided
    for name, tensor in named:
        if tensor.layout is not strided:
            raise InputError(
                f"{name} of {title} is {tensor.layout}; layers of stepnet.torch take dense tensors: give "
                ".to_dense() of it"
            )
        if tensor.dtype is not dtype or tensor.device != device:
            raise InputError(
                f"{name} of {title} is {tensor.dtype} on {tensor.device}, and {names[0]} is {dtype} on "
                f"{device}; all tensors must be of one dtype on one device"
            )


def tensors_named(module: Any, names: Iterable[str]) -> list[Any]:
    """Lists the parameters of a module, or what was set in their place, by the names of its attributes.

    PyTorch takes 0.7 microseconds for an attribute that is a parameter, so these are read from its dict of
    parameters; others, as torch.nn.utils.parametrize computes them, are attributes.
    """
    if torch.compiler.is_compiling():
        return [getattr(module, name) for name in names]
    own, parameters = module.__dict__, module._parameters
    return [
        parameters[name] if name in parameters and name not in own else getattr(module, name)
        for name in names
    ]


def has_own_functions(tensors: Iterable[Any]) -> bool:
    """Tells whether a tensor's class may replace PyTorch's functions, as weights do while PyTorch computes
    per-sample gradients, or its operations, as fake tensors do, which a mode may make of all others.
    torch.nn's own functions must run on such tensors.
    """
    if torch._C._len_torch_dispatch_stack() and torch._C._get_dispatch_mode(FAKE_MODE) is not None:
        return True
    others: Any = set(map(type, tensors)) - PLAIN
    return any(getattr(kind, name, own) is not own for kind in others for name, own in OF_PLAIN.items())


# ---- the engines -------------------------------------------------------------------------------------------


def runs_on(device: Any, engine: Asked) -> bool:
    """Tells whether a module's engines take tensors on a device; elsewhere PyTorch's own operations run."""
    return device.type == HOST or is_taken(device.type, device.index or 0, engine)


@constant_in_graphs
def is_taken(kind: str, number: int, engine: Asked) -> bool:
    """Tells whether engines take tensors where they lie on a device.

    kind: PyTorch's name for the type of the device. number: the index of the device within the type.
    engine: an engine, or several in order of preference.
    """
    return kind in devices_of(engine) or engine_at(engine, kind, number) is not None


def run_or(module: Any, device: Any, reason: str, run: Callable[[], Any], theirs: Callable[[], Any]) -> Any:
    """Runs a module by stepnet. On another device than the CPU, PyTorch's own operations run it if its engine
    is "auto" and there is a reason, or the engine of the device refuses the module; its `repr` then says why.

    reason: why PyTorch runs it; "" for none. run, theirs: run the module by stepnet, and by PyTorch.
    In a graph of PyTorch the reason says all: nothing is refused before the graph runs.
    """
    if device.type == HOST or module.engine != "auto":
        return run()
    if makes_graph():
        return theirs() if reason else run()
    if not reason:
        try:
            module.__dict__.pop(REFUSED, None)
            return run()
        except RefusedError as error:
            reason = str(error)
    module.__dict__[REFUSED] = reason
    return theirs()


def text_of_refusal(module: Any) -> str:
    """Returns the end of a module's `repr` if PyTorch's own operations ran it on a device: the reason."""
    reason = module.__dict__.get(REFUSED, "")
    return f", run by PyTorch: {reason.splitlines()[-1].strip()}" if reason else ""


def text_of_engine(engine: Asked) -> str:
    """Returns the end of a module's `repr`: its engines, if they are not left to stepnet.

    >>> text_of_engine("auto"), text_of_engine("interpret")
    ('', ", engine='interpret'")
    """
    return "" if engine == "auto" else f", engine={engine!r}"
