"""Any cell on the torch backend as a recurrence, by a trace of its step.

    cell(x, states)   -->   step(x, memory, params, masks)   --trace-->   RNN, variables

The variables that the step reads become parameters, the dropout masks that Keras drew become statics.
"""

import os
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from traceback import walk_tb
from typing import Any

from stepnet.compiler.trace import draws
from stepnet.compiler.trace.lines import line_of
from stepnet.compiler.trace.reads import Reads
from stepnet.compiler.values.records import dataclass
from stepnet.errors import StepError, StepnetError
from stepnet.keras.cells import cells_in
from stepnet.keras.dropout import use_dropout_masks
from stepnet.keras.installed import installed
from stepnet.keras.packed_inputs import pack_features, unpack_features
from stepnet.keras.settings import attributes, reads_of_cell
from stepnet.model.recurrence import RNN
from stepnet.torch.lines import LIBRARIES, is_users, line_of_error
from stepnet.torch.trace import trace

keras: Any = installed()
tree: Any = keras.tree
torch: Any = installed("torch")
overrides: Any = installed("torch.overrides")
tree_map_only: Any = installed("torch.utils._pytree").tree_map_only
AutocastScope: Any = installed("keras.src.backend.common.variables").AutocastScope

KERAS = os.path.dirname(os.path.abspath(keras.__file__)) + os.sep
LAYERS = os.path.join(KERAS, "src", "layers") + os.sep
LIBRARIES.append(KERAS)  # error messages do not show lines of Keras

FULL = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""The dtype in which a step computes, for dtypes that only store values."""

STEP_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    StepnetError,
    TypeError,
    ValueError,
)
"""Exceptions that a step may raise in a trace, where PyTorch or Keras finds no numbers in its tensors."""


@dataclass(frozen=True)
class StepArguments:
    """The arguments of one step, tensors [rows, ...]: the inputs x and the states, each a tensor or a
    structure, and dropout masks by position of the cell and name of the attribute.
    """

    x: Any
    states: Any
    masks: dict[str, tuple[Any, ...]]

    @property
    def key(self) -> tuple[Any, ...]:
        """Key of a step's cached traces: names of dropout masks, and shapes without rows and dtypes."""
        tensors = tree.flatten((self.x, self.states, self.masks))
        return tuple(self.masks), tuple((tensor.shape[1:], tensor.dtype) for tensor in tensors)


class VariableValues(keras.StatelessScope):
    """A Keras scope that gives variables other values in a trace, and records which variables were read.

    It refuses updates of variables and added losses: a traced step could not repeat them at every step.
    """

    def __init__(self, variables: Sequence[Any], tensors: Sequence[Any]) -> None:
        """Stores the tensors that replace variables in a trace; `self.read` collects those that are read."""
        super().__init__(collect_losses=True, initialize_variables=False)  # type: ignore[misc]
        self.given = {id(variable): tensor for variable, tensor in zip(variables, tensors, strict=True)}
        self.read = dict[int, Any]()

    def get_current_value(self, variable: Any) -> Any:
        """Returns the tensor that replaces a variable in a trace, or None; records that the step reads it."""
        self.read[id(variable)] = variable
        return self.given.get(id(variable))

    def add_update(self, update: Any) -> None:
        """Raises `StepError`: a traced step updates a variable of Keras. update: (variable, new value)."""
        if update[0].name == "seed_generator_state":
            raise StepError(f"the step draws random numbers: {draws.ADVICE}")
        raise StepError(f"the step assigns to the variable {update[0].path}, which is not one of its states")

    def add_loss(self, loss: Any) -> None:
        """Raises `StepError` when a traced step adds a loss to Keras' losses. loss: not read."""
        raise StepError("the step adds a loss at every step")


class VariableReads(overrides.TorchFunctionMode):
    """A PyTorch mode that replaces the values of variables that a torch.nn module in a cell reads."""

    def __init__(self, cell: Any, values: VariableValues) -> None:
        """Stores the scope `values`, which has the tensors to put in place of variables, and the variables of
        the cell by the identity of their values.
        """
        super().__init__()  # type: ignore[misc]
        self.values = values
        with AutocastScope(None):  # in another one a value is a copy, which the step never reads
            self.variables = {id(variable.value): variable for variable in getattr(cell, "weights", ())}

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: dict[str, Any] | None = None
    ) -> Any:
        """Calls a function of PyTorch, which passes it here during a trace: with replacements for those
        tensors among its arguments that are values of Keras' variables.
        """
        changed: Any = tree_map_only(torch.Tensor, self.value_of, (arguments, options or {}))
        return function(*changed[0], **changed[1])

    def value_of(self, tensor: Any) -> Any:
        """Returns the tensor that a traced step reads in place of `tensor`: its replacement if it is the
        value of a variable of the cell, else itself.

        Raises `StepError` for a tensor that requires a gradient and is not a variable.
        """
        variable = self.variables.get(id(tensor))
        if variable is not None:
            value = self.values.get_current_value(variable)
            return tensor if value is None else value
        read = self.values.read.values()  # a cell that is no layer does not list its variables
        if tensor.requires_grad and not any(tensor is variable_read.value for variable_read in read):
            raise StepError("the step reads a tensor that requires a gradient and is not a variable of Keras")
        return tensor


@dataclass
class CellStep:
    """Step function on tensors that calls a Keras cell, to be traced.

    like, states: tensors in the structures of its inputs and states. variables: those whose values are the
    parameters. training: whether the cell is called in training mode. read: the variables that the latest
    call read.
    """

    cell: Any
    like: Any
    states: Any
    variables: Sequence[Any]
    training: bool
    read: list[Any] = field(default_factory=list[Any])

    @property
    def __name__(self) -> str:
        """The class name of the cell, as the name of the step in messages."""
        return type(self.cell).__name__

    @property
    def reads(self) -> Reads:
        """The values that the cell's step reads besides arguments; its trace is valid until one changes."""
        return reads_of_cell(self.cell)

    def __call__(self, x: Any, memory: Any, params: Any, statics: Any = None) -> tuple[Any, Any]:
        """Calls the cell for one step; returns its output, and its next states as a tuple.

        x: the inputs [rows, features]. memory: the states. params: the variables' values, by position.
        statics: the dropout masks by name.
        """
        states = tree.pack_sequence_as(self.states, list(memory))
        tensors = [params[str(index)] for index in range(len(self.variables))]
        values = VariableValues(self.variables, tensors)
        reads, inputs = VariableReads(self.cell, values), unpack_features(x, self.like)
        with values, reads, AutocastScope(None), use_dropout_masks(self.cell, statics or {}):
            output, next_states = call_cell(self.cell, inputs, states, self.training)
        self.read = list(values.read.values())
        return output, tuple(tree.flatten(next_states))


def call_cell(cell: Any, x: Any, states: Any, training: bool) -> Any:
    """Calls a cell for one step on inputs x; returns (output, next states). training: as in Keras."""
    kwargs = {"training": training} if getattr(cell, "_call_has_training_arg", False) else {}
    return cell(x, states, **kwargs)


# ---- the trace ---------------------------------------------------------------------------------------------


def trace_cell(
    cell: Any, arguments: StepArguments, training: bool, options: dict[str, Any]
) -> tuple[RNN, tuple[Any, ...]]:
    """Traces a cell; returns its recurrence and the variables that it reads, in the order of its parameters.
    The trace is repeated until all variables that the step reads are known. Raises `StepError` for a cell
    that cannot be traced, with the operation and the line.

    arguments: an example of the arguments of a step. training: whether the cell is called in training mode.
    options: arguments of `RNN`.
    """
    with step_errors():
        build_layers_of(cell, arguments, training)
    variables = list[Any](getattr(cell, "weights", ()))
    while True:
        step = CellStep(cell, arguments.x, arguments.states, variables, training)
        params = {str(index): value_of(variable).detach() for index, variable in enumerate(variables)}
        call = (
            example(pack_features(arguments.x, 1)),
            tuple(map(example, tree.flatten(arguments.states))),
            params,
        )
        statics = {name: tuple(map(example, parts)) for name, parts in arguments.masks.items()} or None
        with unchanged_attributes(cell), step_errors(), compute_dtype(cell, call[0].dtype), plain_errors():
            rnn = trace(step, call, statics=statics, **options)
        if {id(variable) for variable in step.read} == {id(variable) for variable in variables}:
            return rnn, tuple(variables)
        variables = step.read  # a cell that is no layer does not list its variables


def build_layers_of(cell: Any, arguments: StepArguments, training: bool) -> None:
    """Calls a cell once, so that layers in it create their variables, which they cannot do in a trace. Does
    nothing if all are built. arguments: the arguments of a step. training: whether the cell is in training.
    """
    if isinstance(cell, keras.layers.Layer) and not all(layer.built for layer in flat_layers(cell)):
        with keras.StatelessScope():
            call_cell(cell, arguments.x, arguments.states, training)


def flat_layers(cell: Any) -> list[Any]:
    """Lists a layer and all layers inside it, to build them or to change their dtypes."""
    return cell._flatten_layers()


@contextmanager
def step_errors() -> Generator[None]:
    """Context that turns exceptions of a step into a `StepError` that quotes the user's line."""
    try:
        yield
    except STEP_ERRORS as error:
        raise StepError(message_with_line(error)) from error


@contextmanager
def unchanged_attributes(cell: Any) -> Generator[None]:
    """Context for a trace of a step, which must not change attributes of its cell. If it has changed one that
    it reads, restores the attributes of the cell and of all cells and layers in it, and raises `StepError`.
    """
    owners = [cell, *cells_in(cell), *(flat_layers(cell) if isinstance(cell, keras.layers.Layer) else ())]
    before, held = reads_of_cell(cell), [(attributes(owner), dict(attributes(owner))) for owner in owners]
    try:
        yield
    finally:
        changed = before.changes(reads_of_cell(cell))
        for now, own in held if changed else ():
            for name in now.keys() - own.keys():
                del now[name]
            now.update(own)
    if changed:
        raise StepError(f"the step of {type(cell).__name__} changes {changed} as it runs")


def message_with_line(error: BaseException) -> str:
    """Returns an error's message with the line of the user's code that raised it, or else the line of Keras'
    layer. The line is where the first error in the chain of causes was raised.
    """
    text, deepest = str(error), error
    while deepest.__context__ is not None:
        deepest = deepest.__context__
    frames = [(frame.f_code, number) for frame, number in walk_tb(deepest.__traceback__)]
    keras_frames = [index for index in frames if index[0].co_filename.startswith(LAYERS)]
    if keras_frames and not any(is_users(code) for code, _ in frames):
        return text.partition("\n  at ")[0] + f"\n  at {line_of(*keras_frames[-1])}"
    return text if "\n  at " in text else f"{text}\n  at {line_of_error(error)}"


def example(tensor: Any) -> Any:
    """Makes the example of a tensor for a trace: zeros of one row, in the dtype in which steps compute."""
    return torch.zeros(1, *tensor.shape[1:], dtype=FULL.get(tensor.dtype, tensor.dtype))


def value_of(variable: Any) -> Any:
    """Returns a variable's value in the dtype in which steps compute; gradients reach the variable."""
    return in_full(variable.value)


def in_full(tensor: Any) -> Any:
    """Casts a tensor to the dtype in which steps compute: float32 for float16 and bfloat16."""
    return tensor.to(FULL[tensor.dtype]) if tensor.dtype in FULL else tensor


@contextmanager
def plain_errors() -> Generator[None]:
    """Context in which Keras raises the original errors, without its layers' arguments in the message."""
    before = keras.config.is_traceback_filtering_enabled()
    keras.config.disable_traceback_filtering()
    try:
        yield
    finally:
        if before:
            keras.config.enable_traceback_filtering()


@contextmanager
def compute_dtype(cell: Any, dtype: Any) -> Generator[None]:
    """Context for a trace in which a cell and its layers compute in `dtype`, not in float16 or bfloat16."""
    layers: list[Any] = flat_layers(cell) if isinstance(cell, keras.layers.Layer) else []
    with ExitStack() as restore:
        for layer in layers:
            if layer.compute_dtype in ("float16", "bfloat16"):
                restore.callback(setattr, layer, "dtype_policy", layer.dtype_policy)
                layer.dtype_policy = str(dtype).removeprefix("torch.")
        yield
