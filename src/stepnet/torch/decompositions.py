"""The operator of recurrences in exported programs, replaced by operators that run without stepnet.

                         GRU, LSTM, RNN and cells       Recurrence, layers of any length, ONNX's projections
    `decompositions()`   aten.gru, lstm, rnn_tanh ...   scan of torch.ops.higher_order
    torch.onnx.export    GRU, LSTM, RNN of ONNX         the same, which becomes Scan of ONNX

torch.onnx.export(dynamo=True) gets the latter while it traces a module. The former is done by
`ExportedProgram.run_decompositions`, which takes the table.
"""

from collections.abc import Callable, Sequence
from typing import Any

from stepnet.errors import InputError
from stepnet.importers.aten.cells import CellSizes
from stepnet.torch.keys import engines_on, is_scan, may_change, module_of, runnable_of, sizes_of_key
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import in_onnx_export
from stepnet.torch.sequences import PADDED

torch: Any = pytorch("torch")
functional: Any = torch.nn.functional
Step = Callable[..., tuple[list[Any], list[Any]]]
"""A step (x, memories, constants, index) -> (outputs, memories) on lists of tensors."""

GATES = {"GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2), "RNN_TANH": (0,), "RNN_RELU": (0,)}
"""For each mode of torch.nn, where ONNX's gates lie in PyTorch's: z r n in r z n, i o f c in i f g o."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns the table by which an exported program gets PyTorch's own operators for recurrences, so that it
    runs, and is compiled, without stepnet.

    GRU, LSTM, RNN and their cells become those of torch.nn, and a `Recurrence` becomes the operator `scan` of
    PyTorch. Sequences are tensors; programs with a `PackedSequence` or a nested tensor are refused.

    >>> import torch, stepnet.torch
    >>> model = torch.nn.Sequential(stepnet.torch.GRU(3, 4))
    >>> program = torch.export.export(model, (torch.ones(5, 2, 3),))
    >>> "stepnet" in str(program.graph)
    True
    >>> plain = program.run_decompositions(stepnet.torch.decompositions())
    >>> "stepnet" in str(plain.graph)
    False
    """
    return {torch.ops.stepnet.recurrence.default: in_operators}


def in_operators(
    key: str, form: str, place: Sequence[Any], wanted: Sequence[int], inputs: Sequence[Any]
) -> Any:
    """Computes the results of the operator `recurrence`, for gradients too, by other operators.

    It takes the arguments of the operator, and does not read `place`. Values that it saves for gradients are
    empty, as operators of PyTorch save their own. Raises `InputError` for sequences that are no tensor with
    an axis of time, and for a `Scan`.
    """
    if is_scan(key):
        raise InputError(
            "a Scan cannot be exported without the operator of stepnet, nor to ONNX: write the step with "
            "PyTorch, as a stepnet.torch.Recurrence"
        )
    if form not in PADDED:
        raise InputError(
            "a PackedSequence or a nested tensor cannot be exported without the operator of stepnet, nor to "
            "ONNX, whose operators take one tensor of sequences: export the model for padded sequences"
        )
    data = inputs[0] if form == "time" else inputs[0].transpose(0, 1)
    if may_change(key):
        module, training = module_of(key)
        outputs, last = module.scanned(training, data, inputs[1:])
    else:
        outputs, last = layers(sizes_of_key(key), data, inputs[1:])
    if form != "time":
        outputs = [tensor.transpose(0, 1) for tensor in outputs]
    made = [*(tensor.flatten(0, 1) for tensor in outputs), *last]
    if not wanted:
        return made
    # What stepnet's own backward pass would read is not read now, but the graph counts it among the results.
    passes = runnable_of(key).net.halves(tuple(wanted), engines_on(data.device, key))
    saved = len(passes.types) + may_change(key) - len(made)
    return made + [data.new_empty(0)] * saved


# ---- layers of torch.nn ------------------------------------------------------------------------------------


def layers(sizes: CellSizes, data: Any, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Computes layers of torch.nn by PyTorch's operators, or by ONNX's while torch.onnx exports.

    Returns the outputs, in a list of one, and the last h (and c) of each recurrence.

    data: [time, batch, features]. inputs: h (and c) of each recurrence, which are float32 in half precision
        too, then the parameters.
    """
    kinds = 2 if sizes.mode == "LSTM" else 1
    count = sizes.layers * sizes.directions * kinds
    memories, weights = [tensor.to(data.dtype) for tensor in inputs[:count]], list(inputs[count:])
    if in_onnx_export():
        run = scanned_layer if sizes.projected else onnx_layer
        outputs, last = each_layer(run, sizes, data, memories, weights)
    elif isinstance(data.shape[0], torch.SymInt):  # PyTorch traces its own operators for one length alone
        outputs, last = each_layer(scanned_layer, sizes, data, memories, weights)
    else:
        outputs, last = aten_layers(sizes, data, memories, weights)
    return [outputs], [made.to(given.dtype) for made, given in zip(last, inputs, strict=False)]


def aten_layers(
    sizes: CellSizes, data: Any, memories: list[Any], weights: list[Any]
) -> tuple[Any, list[Any]]:
    """Computes layers by PyTorch's operator for them, with the arguments of `layers`."""
    settings = sizes.bias, sizes.layers, 0.0, False, sizes.bidirectional, False
    if sizes.mode == "LSTM":
        states = [torch.stack(memories[kind::2]) for kind in range(2)]
        outputs, *last = torch.lstm(data, states, weights, *settings)
    else:
        run = getattr(torch, sizes.mode.lower())
        outputs, *last = run(data, torch.stack(memories), weights, *settings)
    return outputs, [state for both in zip(*(kind.unbind(0) for kind in last), strict=True) for state in both]


def each_layer(
    run: Callable[..., tuple[Any, list[Any]]],
    sizes: CellSizes,
    data: Any,
    memories: list[Any],
    weights: list[Any],
) -> tuple[Any, list[Any]]:
    """Computes layers one by one. run: computes one layer. The other arguments are as for `layers`."""
    last = list[Any]()
    counts = len(weights) // sizes.layers, len(memories) // sizes.layers
    for layer in range(sizes.layers):
        own, states = (
            values[layer * count : (layer + 1) * count]
            for values, count in zip((weights, memories), counts, strict=True)
        )
        data, made = run(sizes.single_layer(layer), data, states, own)
        last += made
    return data, last


def onnx_layer(sizes: CellSizes, data: Any, memories: list[Any], weights: list[Any]) -> tuple[Any, list[Any]]:
    """Computes a layer by the operator GRU, LSTM or RNN of ONNX, with the arguments of `layers`."""
    kind, directions, hidden = sizes.mode.partition("_")[0], sizes.directions, sizes.hidden
    kinds, names = len(memories) // directions, len(weights) // directions
    by_name = [[in_onnx_order(sizes.mode, tensor) for tensor in weights[at::names]] for at in range(names)]
    matrices = [torch.stack(tensors) for tensors in by_name[:2]]
    biases = [torch.cat([torch.stack(tensors) for tensors in by_name[2:]], 1)] if sizes.bias else [None]
    states = [torch.stack(memories[at::kinds]) for at in range(kinds)]
    attributes: dict[str, Any] = {
        "direction": "bidirectional" if sizes.bidirectional else "forward",
        "hidden_size": hidden,
    }
    if kind == "GRU":
        attributes["linear_before_reset"] = 1
    if kind == "RNN":
        attributes["activations"] = [sizes.mode.partition("_")[2].capitalize()] * directions
    steps, rows = data.shape[:2]
    outputs, *last = torch.onnx.ops.symbolic_multi_out(
        kind,
        [data, *matrices, *biases, None, *states],
        attributes,
        dtypes=[data.dtype] * (1 + kinds),
        shapes=[[steps, directions, rows, hidden], *[[directions, rows, hidden]] * kinds],
    )
    each = zip(*(state.unbind(0) for state in last), strict=True)
    return outputs.transpose(1, 2).flatten(2), [state for both in each for state in both]


def in_onnx_order(mode: str, tensor: Any) -> Any:
    """Reorders the gates of a parameter of torch.nn for ONNX. mode: a key of `GATES`."""
    gates = GATES[mode]
    chunks = tensor.chunk(len(gates))
    return torch.cat([chunks[gate] for gate in gates])


def scanned_layer(
    sizes: CellSizes, data: Any, memories: list[Any], weights: list[Any]
) -> tuple[Any, list[Any]]:
    """Computes a layer by a scan for each direction, with the arguments of `layers`."""
    kinds, names = len(memories) // sizes.directions, len(weights) // sizes.directions
    outputs, last = list[Any](), list[Any]()
    for direction in range(sizes.directions):
        from_x, from_h, *others = weights[direction * names :][:names]
        states = memories[direction * kinds :][:kinds]
        products = functional.linear(data, from_x, others.pop(0) if sizes.bias else None)
        made, final = scan(STEPS[sizes.mode], products, states, [from_h, *others], direction == 1)
        outputs, last = outputs + made, last + final
    return torch.cat(outputs, -1), last


def gru_step(x: Any, memories: Sequence[Any], weights: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Computes a step of a GRU: its output and the next state. x: the product of the input, with its bias.
    memories: the state. weights: the matrix of the state, and perhaps its bias.
    """
    (h,) = memories
    x_r, x_z, x_n = x.chunk(3, -1)
    h_r, h_z, h_n = functional.linear(h, *weights).chunk(3, -1)
    n = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
    h = n + torch.sigmoid(x_z + h_z) * (h - n)
    return [h], [h]


def lstm_step(x: Any, memories: Sequence[Any], weights: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Computes a step of an LSTM: its output, and the next h and c. x: the product of the input, with its
    bias. memories: h and c. weights: the matrix of h, perhaps its bias, and perhaps the projection.
    """
    (h, c), (from_h, *others) = memories, weights
    biases = [tensor for tensor in others if tensor.dim() == 1]
    i, f, g, o = (x + functional.linear(h, from_h, *biases)).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    for projection in others[len(biases) :]:
        h = functional.linear(h, projection)
    return [h], [h, c]


def simple_step(activation: Callable[[Any], Any]) -> Step:
    """Returns the step of an RNN with an activation; the step takes and gives what `gru_step` does."""

    def step(x: Any, memories: Sequence[Any], weights: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Computes a step of the RNN: its output and the next state."""
        h = activation(x + functional.linear(memories[0], *weights))
        return [h], [h]

    return step


STEPS: dict[str, Step] = {
    "GRU": gru_step,
    "LSTM": lstm_step,
    "RNN_TANH": simple_step(torch.tanh),
    "RNN_RELU": simple_step(torch.relu),
}
"""The step of each mode of torch.nn, on products of the inputs."""


# ---- any step ----------------------------------------------------------------------------------------------


def scan(
    step: Step,
    data: Any,
    memories: Sequence[Any],
    constants: Sequence[Any],
    reverse: bool = False,
    *,
    counted: bool = False,
) -> tuple[list[Any], list[Any]]:
    """Runs a step over sequences by PyTorch's operator `scan`; returns the outputs [time, batch, ...] and the
    last memories.

    step: gives (outputs, memories) of (x, memories, constants), and of the index of the step if `counted`.
    data: the inputs [time, batch, ...]. memories: the initial ones. constants: the other values that the step
        reads.
    reverse: whether the sequences run from their last step.
    """
    count = len(memories)
    inputs = [data.flip(0) if reverse else data]
    if counted:
        inputs.append(torch.arange(data.shape[0], device=data.device))
    kinds = [tensor.dtype for tensor in memories]
    # PyTorch's compiler computes the sizes of results from symbols that the operator has as inputs.
    sizes = [] if in_onnx_export() else [size for size in data.shape[1:] if isinstance(size, torch.SymInt)]

    def body(*values: Any) -> list[Any]:
        """Computes the next memories, then the outputs, as new tensors, as the operator demands."""
        x, *index = values[count : count + len(inputs)]
        own = map(from_floats, values[:count], kinds)
        read = values[count + len(inputs) : len(values) - len(sizes)]
        outputs, following = step(x, list(own), read, *index)
        kinds[count:] = [tensor.dtype for tensor in outputs]
        return [as_floats(tensor).clone() for tensor in (*following, *outputs)]

    given = [as_floats(tensor) for tensor in memories], inputs, (*constants, *sizes)
    if in_onnx_export():  # which runs the operator for gradients of what requires them
        given = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, given)
    results = list(map(from_floats, torch.ops.higher_order.scan(body, *given), kinds))
    outputs = [tensor.flip(0) if reverse else tensor for tensor in results[count:]]
    return outputs, results[:count]


def as_floats(tensor: Any) -> Any:
    """Returns integers and booleans as float64, and other tensors unchanged; `from_floats` restores them.

    PyTorch's `scan` has gradients only if all its results are floats. ONNX has no gradients.
    """
    if tensor.is_floating_point() or in_onnx_export():
        return tensor
    return tensor.view(torch.float64) if tensor.dtype == torch.int64 else tensor.to(torch.float64)


def from_floats(tensor: Any, dtype: Any) -> Any:
    """Returns the tensor of this dtype of which `as_floats` made `tensor`."""
    if tensor.dtype == dtype:
        return tensor
    return tensor.view(dtype) if dtype == torch.int64 else tensor.to(dtype)
