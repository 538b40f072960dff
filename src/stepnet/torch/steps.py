"""`GRUCell`, `LSTMCell` and `RNNCell` that replace the cells of torch.nn: a call runs one step.

h = GRUCell(3, 4)(x, h)    ->    the layer's net, over sequences of one step with the initial state h
"""

from collections.abc import Callable
from typing import Any, cast

from stepnet.compiler.targets import checked_engine
from stepnet.importers.aten.cells import MODES, CellSizes
from stepnet.model.program import Asked
from stepnet.torch.bound import BOUND
from stepnet.torch.cudnn import CELLS
from stepnet.torch.keys import runnable_of_sizes
from stepnet.torch.operator import in_graph
from stepnet.torch.pytorch import pytorch
from stepnet.torch.quantizing import Qconfig
from stepnet.torch.recording import called, makes_graph, needs_torch_nn, refuse_script, untraced
from stepnet.torch.sequences import (
    DTYPES,
    PLACES,
    REFUSED,
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
NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class CellForward:
    """Base class that replaces the forward of a cell of torch.nn by stepnet's; the cell's class is the next
    base.

    engine: the engine that runs the cell, or several in order of preference.
    """

    engine: Asked = "auto"
    qconfig = Qconfig()
    __prepare_scriptable__ = refuse_script
    _call_impl = called

    def __init__(self, *args: Any, engine: Asked = "auto", **kwargs: Any) -> None:
        """Creates the cell as torch.nn does. engine: an engine, or several in order of preference."""
        super().__init__(*args, **kwargs)
        if (order := checked_engine(engine)) != "auto":
            self.engine = order

    def forward(self: Any, input: Any, hx: Any = None) -> Any:  # noqa: A002 - PyTorch's names
        """Runs a step of a cell on `input` from the state `hx`; returns the next state, as torch.nn's cell
        does. Calls torch.nn's own forward where stepnet cannot run.
        """
        theirs = cast("Callable[..., Any]", super().forward)  # type: ignore[misc]
        mode = mode_of(self)
        states = states_of(self, mode, data_of(input), hx)
        fits = runs_on(input.device, self.engine) and has_step_shapes(self, mode, input, states)
        graph, weights = makes_graph(), tensors_named(self, NAMES if self.bias else NAMES[:2])
        own = not graph and has_own_functions([input, *states, *weights])
        if needs_torch_nn() or own or not fits:
            return theirs(input, hx)  # PyTorch raises its own errors; a trace needs torch.nn's operator
        run = next_states if graph else untraced(next_states)

        def ours() -> Any:
            """Runs the step by stepnet."""
            last = run(self, mode, weights, input, states, graph)
            return tuple(last) if mode == "LSTM" else last[0]

        return run_or(self, input.device, CELLS, ours, lambda: theirs(input, hx))

    def extra_repr(self) -> str:
        """Describes the cell for `repr` as torch.nn does, and its engine if that was chosen."""
        return super().extra_repr() + text_of_engine(self.engine) + text_of_refusal(self)  # type: ignore[misc]

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state of the module without its compiled code, which a copy compiles again."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[misc]
        state.pop(BOUND, None)
        state.pop(REFUSED, None)
        return state


def mode_of(module: Any) -> str:
    """Returns a cell's mode, which determines its net: "GRU", "LSTM", "RNN_TANH" or "RNN_RELU"."""
    if isinstance(module, torch.nn.RNNCell):
        return f"RNN_{module.nonlinearity.upper()}"
    return "LSTM" if isinstance(module, torch.nn.LSTMCell) else "GRU"


def states_of(module: Any, mode: str, value: Any, hx: Any) -> list[Any]:
    """Lists h (and c of an LSTM) of a cell's argument `hx`; None gives zeros like the input `value`."""
    if hx is None:
        zeros = value.new_zeros(*value.shape[:-1], module.hidden_size)
        return [zeros, zeros] if mode == "LSTM" else [zeros]
    return list(hx) if mode == "LSTM" else [hx]


def has_step_shapes(module: Any, mode: str, value: Any, states: list[Any]) -> bool:
    """Tells whether the input `value` and the states have the shapes of one step of a cell, and no size is
    zero, so that machine code can run it. mode: the mode of the cell; a mode without a net is False.
    """
    if not (module.input_size and module.hidden_size):
        return False
    if value.dim() not in (1, 2) or mode not in MODES or len(states) != (2 if mode == "LSTM" else 1):
        return False
    wanted = (*value.shape[:-1], module.hidden_size)
    return value.shape[-1] == module.input_size and all(state.shape == wanted for state in states)


def next_states(
    module: Any, mode: str, weights: list[Any], value: Any, states: list[Any], graph: bool
) -> list[Any]:
    """Runs one step of a cell of torch.nn, in machine code or, while PyTorch makes a graph, by an operator in
    it. Returns the next states as a list.

    mode: "GRU", "LSTM", "RNN_TANH" or "RNN_RELU". weights: the parameters of the cell, in the order of
    `NAMES`. value: the input. states: h, or h and c. graph: whether PyTorch makes a graph.
    """
    dtype = dtype_of_run(f"{mode} cell", value.device, weights[0].dtype, states[-1].dtype)
    value, *states = as_cast(dtype, value, *states)
    weights = list(as_cast(dtype, *weights))
    check_tensors(type(module).__name__, NAMES[: len(weights)], weights, value, states)
    features, hidden = module.input_size, module.hidden_size
    sizes = sizes_of_cell(module, dtype)
    data, memories = value.reshape(1, -1, features), [state.reshape(-1, hidden) for state in states]
    place = PLACES["time"]
    if graph:
        _, *last = in_graph(sizes.key, place, data, memories, [], weights, 1, engine=module.engine)
    else:
        runnable = runnable_of_sizes(sizes)
        _, *last = runnable(module, place, data, memories, weights, engine=module.engine)
    return [state.reshape(*value.shape[:-1], hidden) for state in last]


def sizes_of_cell(module: Any, dtype: Any = None) -> CellSizes:
    """Reads the sizes and settings of a cell, which determine its net. dtype: to run in; None for its own."""
    kind = DTYPES[module.weight_hh.dtype if dtype is None else dtype]
    return CellSizes(mode_of(module), module.input_size, module.hidden_size, bias=module.bias, dtype=kind)


class GRUCell(CellForward, torch.nn.GRUCell):
    """`torch.nn.GRUCell`, run by stepnet: the same arguments, parameters, state_dict and results.

    A call runs one step, of `[batch, features]` or `[features]`; `GRU` runs whole sequences faster. Dtypes,
    gradients, devices, autocast and the added argument `engine=` are as for `GRU`.

    Raises:
        InputError: For other dtypes, and for an engine that is not known. Errors of shapes are PyTorch's own.
        RefusedError: If no engine of `engine` runs the cell.

    >>> import torch, stepnet.torch
    >>> theirs, ours = torch.nn.GRUCell(3, 4), stepnet.torch.GRUCell(3, 4)
    >>> ours.load_state_dict(theirs.state_dict())
    <All keys matched successfully>
    >>> x, h = torch.ones(2, 3), torch.zeros(2, 4)
    >>> torch.allclose(ours(x, h), theirs(x, h), atol=1e-6)
    True
    """


class LSTMCell(CellForward, torch.nn.LSTMCell):
    """`torch.nn.LSTMCell`, run by stepnet. See `GRUCell`.

    >>> import torch, stepnet.torch
    >>> h, c = stepnet.torch.LSTMCell(3, 4)(torch.ones(3))
    >>> h.shape, c.shape
    (torch.Size([4]), torch.Size([4]))
    """


class RNNCell(CellForward, torch.nn.RNNCell):
    """`torch.nn.RNNCell`, run by stepnet: tanh or, with nonlinearity="relu", relu. See `GRUCell`.

    >>> import torch, stepnet.torch
    >>> stepnet.torch.RNNCell(3, 4)(torch.ones(5, 3)).shape
    torch.Size([5, 4])
    """
