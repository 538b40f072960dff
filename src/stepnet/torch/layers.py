"""`GRU`, `LSTM` and `RNN` that replace the layers of torch.nn. They are subclasses of these: constructors,
parameters, state_dicts and messages are PyTorch's; only `forward` is stepnet's. It runs in machine code on
the CPU, with gradients of any order.
"""

import operator
from collections.abc import Callable
from typing import Any, cast

from stepnet.compiler.targets import checked_engine
from stepnet.importers.aten.cells import CellSizes
from stepnet.model.gradients.pieces import Checkpoint, checked_checkpoint, checked_saved
from stepnet.model.program import Asked
from stepnet.torch.bound import BOUND
from stepnet.torch.cudnn import reason_for_cudnn
from stepnet.torch.keys import runnable_of_sizes
from stepnet.torch.known_calls import KNOWN, Found, noted, run_known
from stepnet.torch.operator import in_graph, reason_in_graph
from stepnet.torch.pytorch import pytorch
from stepnet.torch.quantizing import Qconfig
from stepnet.torch.recording import called, makes_graph, needs_torch_nn, refuse_script, untraced
from stepnet.torch.sequences import (
    DTYPES,
    HOST,
    PLACES,
    REFUSED,
    ModuleSequences,
    PackedSequence,
    SequencePlaces,
    as_cast,
    check_tensors,
    data_of,
    dtype_of_run,
    has_own_functions,
    run_or,
    runs_on,
    tensors_named,
    text_of_engine,
    text_of_refusal,
)

torch: Any = pytorch("torch")
SETTINGS = operator.attrgetter(
    *("mode", "input_size", "hidden_size", "num_layers", "bias", "bidirectional", "proj_size")
)


class LayerForward:
    """Base class that replaces the forward of a recurrent module of torch.nn by stepnet's; the module's class
    is the next base.

    checkpoint: the number of steps between the states that are saved for gradients; None saves all values.
    engine: the engine that runs the module, or several in order of preference.
    saved: the dtype in which values for gradients alone are stored; None for their own.
    qconfig: PyTorch's setting for quantization, which raises an error if it is to quantize the module.
    """

    checkpoint: Checkpoint = None
    engine: Asked = "auto"
    saved: str | None = None
    qconfig = Qconfig()
    __prepare_scriptable__ = refuse_script
    _call_impl = called

    def __init__(
        self,
        *args: Any,
        checkpoint: Checkpoint = None,
        engine: Asked = "auto",
        saved: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Creates the module as torch.nn does. checkpoint: the number of steps between states saved for
        gradients; None saves all. engine: an engine, or several in order of preference. saved: the dtype in
        which values for gradients alone are stored; None for their own.
        """
        super().__init__(*args, **kwargs)
        if checked_checkpoint(checkpoint) is not None:
            self.checkpoint = checkpoint
        if (order := checked_engine(engine)) != "auto":
            self.engine = order
        if checked_saved(saved) is not None:
            self.saved = saved

    def forward(self: Any, input: Any, hx: Any = None) -> Any:  # noqa: A002 - PyTorch's names
        """Runs the module on sequences `input` from states `hx`; returns the outputs and the last states.

        Sequences on devices that the engine does not take, and tools that record torch.nn's layers, run
        torch.nn's own forward.
        """
        found = None
        if hx is None and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            results, found = untraced(run_known)(self, input)
            if results is not None:
                return results[0], in_form(self, results[1:])
        # Asked once, as torch.compile may answer otherwise the next time. It may trace `makes_graph` and not
        # this function, which then is in no graph.
        graph = torch.compiler.is_compiling() or untraced(makes_graph)()
        theirs = cast("Callable[..., Any]", super().forward)  # type: ignore[misc]
        if not runs_on(data_of(input).device, self.engine) or needs_torch_nn():
            return theirs(input, hx)
        run = run_module if graph else untraced(run_module)
        device: Any = data_of(input).device
        if device.type == HOST:
            return run(self, theirs, input, hx, graph, found)
        dtype = dtype_of_run(self.mode, device, self.weight_hh_l0.dtype, data_of(input).dtype)
        reason = reason_for_cudnn(self, dtype, isinstance(input, PackedSequence) or input.is_nested)
        if graph and not reason and dtype in DTYPES:
            reason = reason_in_graph(self, sizes_of(self, dtype).key, device)
        return run_or(
            self,
            device,
            reason,
            lambda: run(self, theirs, input, hx, graph),
            lambda: theirs(input, hx),
        )

    def tensors_and_settings(self: Any) -> tuple[list[Any], tuple[Any, ...]] | None:
        """Returns the parameters, and the settings of which calls depend; None with dropout between layers,
        and for parameters that are not those of PyTorch's own list.
        """
        weights = tensors_named(self, self._flat_weights_names)
        if (self.training and self.dropout) or not all(map(operator.is_, weights, self._flat_weights)):
            return None
        return weights, SETTINGS(self)

    def extra_repr(self) -> str:
        """Describes the module for `repr` as torch.nn does, and its engine if that was chosen."""
        return super().extra_repr() + text_of_engine(self.engine) + text_of_refusal(self)  # type: ignore[misc]

    def __getstate__(self) -> dict[str, Any]:
        """Returns this module's state to copy or pickle, without the program, which a copy compiles again."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[misc]
        for name in (BOUND, KNOWN, REFUSED):
            state.pop(name, None)
        return state


def run_module(
    module: Any, theirs: Callable[..., Any], value: Any, hx: Any, graph: bool, found: Found | None = None
) -> Any:
    """Runs a recurrent module in machine code; takes and returns what its forward in torch.nn does.

    theirs: the forward of torch.nn, which raises its own errors for a wrong number of axes or of states, and
        for a tensor of no steps.
    value: the sequences: a tensor, a `PackedSequence` or a jagged nested tensor. hx: the initial states, or
        None.
    graph: whether PyTorch makes a graph.
    found: the weights and the kind of a call that later ones like it need not check; None for others.
    """
    weights = weights_of(module, graph)
    if module.mode == "LSTM" and hx is not None and not is_pair(hx):
        return theirs(value, hx)
    states = [] if hx is None else list(hx) if module.mode == "LSTM" else [hx]
    plain = not isinstance(value, PackedSequence) and not value.is_nested
    if not graph and has_own_functions([*weights, *states, *[value] * plain]):
        return theirs(value, hx)
    if plain and (value.dim() not in (2, 3) or any(state.dim() != value.dim() for state in states)):
        return theirs(value, hx)
    axis = 0 if module.batch_first else 1
    if plain and not graph and not value.size(1 - axis if value.dim() == 3 else 0):
        return theirs(value, hx)
    alone = plain and value.dim() == 2  # one sequence [time, features], without an axis of sequences
    if alone:
        value, states = value.unsqueeze(axis), [state.unsqueeze(1) for state in states]
    sequences = ModuleSequences.of(value, module.batch_first)
    check(module, sequences, states, graph)
    of_states = [sequences.data, *states][-1].dtype
    dtype = dtype_of_run(module.mode, sequences.data.device, weights[0].dtype, of_states)
    data, *states = as_cast(dtype, sequences.data, *states)
    weights = list(as_cast(dtype, *weights))
    check_tensors(type(module).__name__, module._flat_weights_names, weights, data, states)
    if found is not None and data is value and not alone:
        layers = runnable_of_sizes(sizes_of(module, weights[0].dtype))
        if (made := noted(module, layers, value, found, 2 if module.mode == "LSTM" else 1)) is not None:
            return made[0], in_form(module, made[1:])
    if sequences.order is not None:
        states = [state.index_select(1, sequences.order) for state in states]
    if not states and graph:
        states = zeros(module, sequences, data)
    outputs, last = run_layers(module, weights, data, sequences.place, states, graph)
    if sequences.back is not None:
        last = [state.index_select(1, sequences.back) for state in last]
    if alone:
        return outputs.squeeze(axis), in_form(module, [state.squeeze(1) for state in last])
    return sequences.form(outputs), in_form(module, last)


def weights_of(module: Any, graph: bool) -> list[Any]:
    """Lists the parameters of a recurrent module as it now has them. PyTorch's own list, of which its checks
    read the dtype, is made anew if one was replaced, as torch.func.functional_call does.

    graph: whether PyTorch makes a graph; torch.export warns of attributes that are assigned.
    """
    weights = tensors_named(module, module._flat_weights_names)
    if not (graph or all(map(operator.is_, weights, module._flat_weights))):
        module._init_flat_weights()
    return weights


# ---- what is checked ---------------------------------------------------------------------------------------


def check(module: Any, sequences: ModuleSequences, states: list[Any], graph: bool) -> None:
    """Raises PyTorch's own errors for sequences and initial states that do not fit the module.

    graph: whether PyTorch makes a graph, in which the number of packed sequences is not known; states are not
    checked then.
    """
    sizes = None if sequences.data.dim() == 3 else [sequences.rows]
    is_unknown = graph and sequences.place.form == "packed"  # the operator checks states when the graph runs
    if states and not is_unknown:
        module.check_forward_args(sequences.data, in_form(module, states), sizes)
    else:
        module.check_input(sequences.data, sizes)


def is_pair(hx: Any) -> bool:
    """Tells whether initial states are two, as an LSTM has h and c."""
    return isinstance(hx, tuple | list) and len(cast("list[Any]", hx)) == 2


def in_form(module: Any, states: list[Any]) -> Any:
    """Arranges a list of states as PyTorch returns them: (h, c) for an LSTM, h for other modules."""
    return tuple(states) if module.mode == "LSTM" else states[0]


# ---- running it --------------------------------------------------------------------------------------------


def zeros(module: Any, sequences: ModuleSequences, data: Any) -> list[Any]:
    """Makes the initial states of a call without any: zeros [layers x directions, batch, features] in the
    dtype of `data`, h, and c of an LSTM.
    """
    count = module.num_layers * (2 if module.bidirectional else 1)
    features = [module.proj_size or module.hidden_size, module.hidden_size]
    kinds = features if module.mode == "LSTM" else features[:1]
    return [data.new_zeros(count, sequences.rows, size) for size in kinds]


def run_layers(
    module: Any, tensors: list[Any], data: Any, positions: SequencePlaces, states: list[Any], graph: bool
) -> tuple[Any, list[Any]]:
    """Runs the layers of a module; returns the outputs, laid out as `data`, and the last states.

    All layers are one net. With dropout between layers, they run one by one: PyTorch draws the dropout masks.

    tensors: the parameters. positions: of the sequences in `data`. states: h, and c of an LSTM.
    graph: whether PyTorch makes a graph.
    """
    sizes = sizes_of(module, tensors[0].dtype)
    if not (module.training and module.dropout and sizes.layers > 1):
        return run_one(module, sizes, data, positions, states, tensors, graph)
    swapped = positions.form == "batch"
    if swapped:  # PyTorch draws the numbers step by step
        data, positions = data.transpose(0, 1), PLACES["time"]
    each = sizes.directions
    final: list[list[Any]] = []
    weights = len(tensors) // sizes.layers
    for layer in range(sizes.layers):
        own = [state[layer * each : (layer + 1) * each] for state in states]
        if layer:
            data = torch.nn.functional.dropout(data, module.dropout, True)
        of_layer = tensors[layer * weights : (layer + 1) * weights]
        data, last = run_one(module, sizes.single_layer(layer), data, positions, own, of_layer, graph)
        final.append(last)
    last = [torch.cat(kind) for kind in zip(*final, strict=True)]
    return data.transpose(0, 1) if swapped else data, last


def sizes_of(module: Any, dtype: Any) -> CellSizes:
    """Reads the sizes and settings of a recurrent module of torch.nn, which determine its net. dtype: the
    dtype of its parameters.
    """
    return CellSizes(
        module.mode,
        module.input_size,
        module.hidden_size,
        module.num_layers,
        module.bias,
        module.bidirectional,
        module.proj_size,
        DTYPES[dtype],
    )


def run_one(
    module: Any,
    sizes: CellSizes,
    data: Any,
    positions: SequencePlaces,
    states: list[Any],
    tensors: list[Any],
    graph: bool,
) -> tuple[Any, list[Any]]:
    """Runs layers that have no dropout between them as one net; returns the outputs and the last states.

    module: the module of torch.nn. sizes: the sizes of the layers.
    positions: of the sequences in `data`. states: h, and c of an LSTM, as PyTorch has them: [layers x
        directions, batch, features]. tensors: the parameters. The net has h (and c) of each layer in turn.
    graph: whether PyTorch makes a graph, which gets an operator.
    """
    kinds = 2 if sizes.mode == "LSTM" else 1
    memories = [
        tensor for layer in zip(*(state.unbind(0) for state in states), strict=True) for tensor in layer
    ]
    how = module.checkpoint, module.engine, module.saved
    if graph:
        results = in_graph(sizes.key, positions, data, memories, [], tensors, 1, *how)
    else:
        results = runnable_of_sizes(sizes)(module, positions, data, memories, tensors, [], *how)
    outputs, *last = results
    return outputs, [torch.stack(last[kind::kinds]) for kind in range(kinds)]


class GRU(LayerForward, torch.nn.GRU):
    """`torch.nn.GRU`, run by stepnet: the same arguments, parameters, state_dict and results.

    Sequences are a tensor `[time, batch, features]`, with batch_first `[batch, time, features]`, or without a
    batch `[time, features]`; a `PackedSequence`; or a nested tensor of layout torch.jagged, which comes back
    as one. They are read where they lie. Tensors are float32 or float64, or float16 or bfloat16, which are
    computed in float32; the outputs of each layer are rounded.

    Gradients are of any order, in reverse and in forward mode, and the transforms of torch.func apply.
    Dropout between layers is PyTorch's own, and draws the same numbers. On a GPU the engine "cuda" runs, and
    torch.nn's own forward where cuDNN is known to be as fast or the engine refuses the layer, which `repr`
    then says; on other devices torch.nn's runs. Under autocast results have the dtypes of torch.nn's: that
    of autocast, and on the CPU, where a GRU keeps the dtype of its states, that of these. In graphs of
    torch.compile (with `torch._dynamo.config.allow_rnn`) and torch.export it is one operator, with first
    derivatives.

    Three arguments are added, and are attributes that may be set. `checkpoint=k` keeps for gradients the
    states ahead of every k steps alone, and runs those k steps again when their gradients are made; "sqrt" is
    the root of the most steps. Gradients of gradients keep everything. `engine=` is an engine, or several in
    order of preference, as for a call of `stepnet.RNN`. `saved="bfloat16"` stores what gradients alone read
    in half the memory, as `stepnet.vjp` does.

    Raises:
        InputError: For other dtypes, and for an engine that is not known. Errors of shapes are PyTorch's own.
        RefusedError: If no engine of `engine` runs the layer.

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
    >>> ours.checkpoint = "sqrt"
    >>> ours(torch.ones(2, 1000, 3))[0].sum().backward()
    >>> stepnet.torch.GRU(3, 4, engine="interpret")
    GRU(3, 4, engine='interpret')
    """


class LSTM(LayerForward, torch.nn.LSTM):
    """`torch.nn.LSTM`, run by stepnet, with projections (proj_size) too. See `GRU`.

    >>> import torch, stepnet.torch
    >>> outputs, (h, c) = stepnet.torch.LSTM(3, 4, num_layers=2, proj_size=2)(torch.ones(5, 1, 3))
    >>> outputs.shape, h.shape, c.shape
    (torch.Size([5, 1, 2]), torch.Size([2, 1, 2]), torch.Size([2, 1, 4]))
    """


class RNN(LayerForward, torch.nn.RNN):
    """`torch.nn.RNN`, run by stepnet: tanh or, with nonlinearity="relu", relu. See `GRU`.

    >>> import torch, stepnet.torch
    >>> packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 3), torch.ones(1, 3)])
    >>> outputs, h = stepnet.torch.RNN(3, 4, bidirectional=True)(packed)
    >>> outputs.data.shape, h.shape
    (torch.Size([3, 8]), torch.Size([2, 2, 4]))
    """
