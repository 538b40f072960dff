"""`GRU`, `LSTM` and `RNN` in the place of those of torch.nn.

They are subclasses of these: constructors, parameters, state_dicts and messages are PyTorch's, and only
`forward` is not. It runs in machine code on the CPU, with gradients of any order.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, cast

import numpy as np

from stepnet.errors import InputError
from stepnet.ragged.offsets import offsets_of
from stepnet.rnn.batch import Batch
from stepnet.torch.bound import Bound
from stepnet.torch.cells import MOST_KEPT, Sizes, program_of
from stepnet.torch.function import Differentiable, array_of, is_transformed, wanted_of
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
PackedSequence: Any = torch.nn.utils.rnn.PackedSequence
BOUND = "_bound"
"""Where a module keeps what runs it without gradients."""

DTYPES = {torch.float32: "float32", torch.float64: "float64"}


@dataclass(frozen=True)
class Given:
    """What a module is given. data: [total, features], or the two first axes of the batch. batch: where each
    sequence lies in it. states: h (and c), [layers x directions, sequences, features]; none for zeros.
    back: makes the module's answer of outputs and last states.
    """

    data: Any
    batch: Batch
    states: list[Any]
    back: Callable[[Any, list[Any]], Any]


class Layer:
    """The forward of a module of torch.nn, whose subclass comes behind this one."""

    def forward(self: Any, input: Any, hx: Any = None) -> Any:  # noqa: A002 - PyTorch's names
        """The outputs and the last states. See the class in torch.nn."""
        theirs = cast("Callable[..., Any]", super().forward)  # type: ignore[misc]
        device = (input.data if isinstance(input, PackedSequence) else input).device
        if device.type != "cpu" or torch.compiler.is_compiling():
            return theirs(input, hx)
        run = uncompiled() if "torch._dynamo" in sys.modules else answer
        return run(self, theirs, input, hx)

    def __getstate__(self) -> dict[str, Any]:
        """All but what runs it, which a copy makes anew."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[misc]
        state.pop(BOUND, None)
        return state


def answer(module: Any, theirs: Callable[..., Any], sequences: Any, hx: Any) -> Any:
    """What a module gives. theirs: the forward of torch.nn, which says what is wrong with axes."""
    module._update_flat_weights()
    states = [] if hx is None else list(hx) if module.mode == "LSTM" else [hx]
    if isinstance(sequences, PackedSequence):
        given = packed(module, sequences, states)
    elif sequences.is_nested:
        given = nested(module, sequences, states)
    elif sequences.dim() not in (2, 3) or any(state.dim() != sequences.dim() for state in states):
        return theirs(sequences, hx)
    else:
        given = dense(module, sequences, states)
    given = as_cast(module, given)
    check_tensors(module, given)
    return given.back(*run_layers(module, given))


@cache
def uncompiled() -> Callable[..., Any]:
    """`answer`, which torch.compile leaves as it is. Asking for that imports all of its machinery."""
    return torch.compiler.disable(answer)


def packed(module: Any, sequences: Any, states: list[Any]) -> Given:
    """What a module is given with a `PackedSequence`, which is read where it lies."""
    data, sizes, order, back = sequences
    check(module, data, states, sizes)
    if order is not None:
        states = [state.index_select(1, order) for state in states]

    def laid_out(outputs: Any, last: list[Any]) -> Any:
        if back is not None:
            last = [state.index_select(1, back) for state in last]
        return PackedSequence(outputs, sizes, order, back), in_form(module, last)

    return Given(data, packed_batch(array_of(sizes), len(data)), states, laid_out)


def packed_batch(sizes: Any, total: int) -> Batch:
    """Where the sequences of a `PackedSequence` lie, the longest first."""
    if (sizes < 1).any() or (sizes[1:] > sizes[:-1]).any() or sizes.sum() != total:
        raise InputError(
            "the PackedSequence is damaged: batch_sizes must be positive, never rise, and add up to its data"
        )
    count = int(sizes[0]) if len(sizes) else 0
    lengths = len(sizes) - np.searchsorted(sizes[::-1], np.arange(count), side="right")
    starts = np.arange(count, dtype=np.int64)
    return Batch(None, [], [1], starts, lengths, total, (total,), offsets_of(sizes)[:-1])


def nested(module: Any, sequences: Any, states: list[Any]) -> Given:
    """What a module is given with a jagged nested tensor, which is read where it lies."""
    if sequences.layout != torch.jagged or sequences.dim() != 3 or isinstance(sequences.shape[1], int):
        raise InputError(
            "a nested tensor of sequences is made with layout=torch.jagged, and is [batch, steps, features]"
        )
    data, offsets, lengths = sequences.values(), sequences.offsets(), sequences.lengths()
    check(module, data, states, torch.tensor([len(offsets) - 1]))
    starts = array_of(offsets).astype(np.int64)[:-1]
    counts = np.diff(array_of(offsets)) if lengths is None else array_of(lengths)
    batch = Batch(None, [], [1], starts, counts.astype(np.int64), len(data), (len(data),))
    ends = starts + batch.lengths
    if (starts < 0).any() or (batch.lengths < 0).any() or (ends > len(data)).any():
        raise InputError(
            f"the nested tensor is damaged: its lengths or offsets go beyond its {len(data)} values"
        )

    def laid_out(outputs: Any, last: list[Any]) -> Any:
        made = torch.nested.nested_tensor_from_jagged(outputs, offsets, lengths)
        return made, in_form(module, last)

    return Given(data, batch, states, laid_out)


def dense(module: Any, data: Any, states: list[Any]) -> Given:
    """What a module is given with sequences of one length, or with a single one."""
    single, axis = data.dim() == 2, 0 if module.batch_first else 1
    if single:
        data, states = data.unsqueeze(axis), [state.unsqueeze(1) for state in states]
    check(module, data, states, None)

    def laid_out(outputs: Any, last: list[Any]) -> Any:
        if single:
            outputs, last = outputs.squeeze(axis), [state.squeeze(1) for state in last]
        return outputs, in_form(module, last)

    return Given(data, dense_batch(*data.shape[:2], not module.batch_first), states, laid_out)


@lru_cache(MOST_KEPT)
def dense_batch(first: int, second: int, time_major: bool) -> Batch:
    """Where sequences of one length lie."""
    return Batch.of(np.empty((first, second, 0), np.float32), None, time_major)


# ---- what is checked ---------------------------------------------------------------------------------------


def check(module: Any, data: Any, states: list[Any], sizes: Any) -> None:
    """Raises PyTorch's own errors for data and states that do not fit the module."""
    if states:
        module.check_forward_args(data, in_form(module, states), sizes)
    else:
        module.check_input(data, sizes)


def in_form(module: Any, states: list[Any]) -> Any:
    """States as PyTorch has them: (h, c) of an LSTM, h of others."""
    return tuple(states) if module.mode == "LSTM" else states[0]


def check_tensors(module: Any, given: Given) -> None:
    """Raises `InputError` unless all tensors are of one dtype that there is machine code for, on the CPU."""
    title, dtype = type(module).__name__, module._flat_weights[0].dtype
    if dtype not in DTYPES:
        raise InputError(
            f"{title} runs in float32 and float64 on the CPU, and its parameters are {dtype}: make them "
            f"float32 with .float(), or use torch.nn.{title}"
        )
    names = (*module._flat_weights_names, "the input", "hx[0]" if len(given.states) > 1 else "hx", "hx[1]")
    tensors = (*module._flat_weights, given.data, *given.states)
    for name, tensor in zip(names, tensors, strict=False):
        if tensor.dtype != dtype or tensor.device.type != "cpu":
            raise InputError(
                f"{name} of {title} is {tensor.dtype} on {tensor.device}, and {names[0]} is {dtype} on cpu; "
                "all tensors must be of one dtype on one device"
            )


def as_cast(module: Any, given: Given) -> Given:
    """The same in the dtype of the parameters, under autocast."""
    if not torch.is_autocast_enabled("cpu"):
        return given
    dtype = module._flat_weights[0].dtype
    return replace(given, data=given.data.to(dtype), states=[state.to(dtype) for state in given.states])


# ---- running it --------------------------------------------------------------------------------------------


@lru_cache(MOST_KEPT)
def differentiable(sizes: Sizes) -> Differentiable:
    """The net of such layers, with gradients."""
    return Differentiable(program_of(sizes).net)


def run_layers(module: Any, given: Given) -> tuple[Any, list[Any]]:
    """The outputs, laid out as the data are, and the last states: of one net, or layer by layer where there
    is dropout in between, which is PyTorch's own.
    """
    sizes = sizes_of(module)
    if not (module.training and module.dropout and sizes.layers > 1):
        return run_net(module, sizes, given.batch, given.data, given.states, module._flat_weights)
    data, batch, swapped = given.data, given.batch, False
    if data.dim() == 3 and batch.steps is None:  # PyTorch draws the numbers step by step
        data, swapped = data.transpose(0, 1), True
        batch = dense_batch(*data.shape[:2], True)
    each, final = sizes.directions, list[list[Any]]()
    weights = len(module._flat_weights) // sizes.layers
    for layer in range(sizes.layers):
        states = [state[layer * each : (layer + 1) * each] for state in given.states]
        tensors = module._flat_weights[layer * weights : (layer + 1) * weights]
        if layer:
            data = torch.nn.functional.dropout(data, module.dropout, True)
        data, last = run_net(module, sizes.alone(layer), batch, data, states, tensors)
        final.append(last)
    last = [torch.cat(states) for states in zip(*final, strict=True)]
    return data.transpose(0, 1) if swapped else data, last


def sizes_of(module: Any) -> Sizes:
    """The sizes of a module."""
    return Sizes(
        module.mode,
        module.input_size,
        module.hidden_size,
        module.num_layers,
        module.bias,
        module.bidirectional,
        module.proj_size,
        DTYPES[module._flat_weights[0].dtype],
    )


def run_net(
    module: Any, sizes: Sizes, batch: Batch, data: Any, states: list[Any], tensors: list[Any]
) -> tuple[Any, list[Any]]:
    """The outputs and the last states of layers as one net."""
    kinds, count = len(sizes.cell.memories), sizes.layers * sizes.directions
    memories = [one for each in zip(*(state.unbind(0) for state in states), strict=True) for one in each]
    all_tensors = [data, *memories, *tensors]
    transformed = is_transformed()
    if transformed or (torch.is_grad_enabled() and wanted_of(all_tensors)):
        flat = data.reshape(batch.total, data.shape[-1])
        inputs = [flat, *(memories or [None] * (kinds * count)), *tensors]
        wanted = wanted_of(inputs)
        if transformed:  # what requires a gradient is known to each transform alone
            wanted = tuple(place for place, one in enumerate(inputs) if one is not None)
        outputs, *last = differentiable(sizes)(batch, wanted, inputs)
        outputs = outputs.reshape(*data.shape[:-1], outputs.shape[-1])
    else:
        bound = module.__dict__.setdefault(BOUND, Bound())
        outputs, *last = bound(sizes, batch, data, memories, tensors)
    return outputs, [torch.stack(last[kind::kinds]) for kind in range(kinds)]


class GRU(Layer, torch.nn.GRU):
    """`torch.nn.GRU`, run by stepnet: the same arguments, parameters, state_dict and results.

    Sequences are a tensor `[time, batch, features]`, with batch_first `[batch, time, features]`, or without a
    batch `[time, features]`; a `PackedSequence`; or a nested tensor of layout torch.jagged, which comes back
    as one. They are read where they lie. Tensors are float32 or float64.

    Gradients are of any order. Dropout between layers is PyTorch's own, and draws the same numbers. On other
    devices than the CPU, and where torch.compile or torch.export traces it, torch.nn's own forward runs:
    cuDNN on CUDA. Under autocast it runs in the dtype of the parameters.

    Raises:
        InputError: For other dtypes, under torch.vmap, and for forward-mode derivatives. Errors of shapes are
            PyTorch's own.

    >>> import torch, stepnet.torch
    >>> theirs, ours = torch.nn.GRU(3, 4, batch_first=True), stepnet.torch.GRU(3, 4, batch_first=True)
    >>> ours.load_state_dict(theirs.state_dict())
    <All keys matched successfully>
    >>> x = torch.ones(2, 5, 3)
    >>> outputs, h = ours(x)
    >>> torch.allclose(outputs, theirs(x)[0], atol=1e-6)
    True
    >>> outputs.sum().backward()
    >>> ours.weight_hh_l0.grad.shape
    torch.Size([12, 4])
    """


class LSTM(Layer, torch.nn.LSTM):
    """`torch.nn.LSTM`, run by stepnet, with projections (proj_size) too. See `GRU`.

    >>> import torch, stepnet.torch
    >>> outputs, (h, c) = stepnet.torch.LSTM(3, 4, num_layers=2, proj_size=2)(torch.ones(5, 1, 3))
    >>> outputs.shape, h.shape, c.shape
    (torch.Size([5, 1, 2]), torch.Size([2, 1, 2]), torch.Size([2, 1, 4]))
    """


class RNN(Layer, torch.nn.RNN):
    """`torch.nn.RNN`, run by stepnet: tanh or, with nonlinearity="relu", relu. See `GRU`.

    >>> import torch, stepnet.torch
    >>> packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 3), torch.ones(1, 3)])
    >>> outputs, h = stepnet.torch.RNN(3, 4, bidirectional=True)(packed)
    >>> outputs.data.shape, h.shape
    (torch.Size([3, 8]), torch.Size([2, 2, 4]))
    """
