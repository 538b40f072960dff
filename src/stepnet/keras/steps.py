"""Any cell on the torch backend as a recurrence: its own step, traced.

    cell(x, states)   -->   step(x, memory, params, masks)   --trace-->   RNN, variables

The variables that the step reads are its parameters, and the dropout masks that Keras has drawn for a call
are its statics.
"""

import os
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from traceback import walk_tb
from typing import Any

from stepnet.errors import StepError, StepnetError
from stepnet.keras.dropout import masked
from stepnet.keras.installed import installed
from stepnet.keras.settings import attributes, reads_of_cell
from stepnet.keras.whole import apart, together
from stepnet.rnn.recurrence import RNN
from stepnet.torch.lines import LIBRARIES, is_users, line_of_error
from stepnet.torch.trace import trace
from stepnet.trace import draws
from stepnet.trace.lines import line_of
from stepnet.trace.reads import Reads

keras: Any = installed()
tree: Any = keras.tree
torch: Any = installed("torch")
overrides: Any = installed("torch.overrides")
tree_map_only: Any = installed("torch.utils._pytree").tree_map_only
AutocastScope: Any = installed("keras.src.backend.common.variables").AutocastScope

KERAS = os.path.dirname(os.path.abspath(keras.__file__)) + os.sep
LAYERS = os.path.join(KERAS, "src", "layers") + os.sep
LIBRARIES.append(KERAS)  # whose lines are no user's

FULL = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""In which dtype a step computes whose values have one that is only stored."""

ANSWERS = (ArithmeticError, AttributeError, LookupError, RuntimeError, StepnetError, TypeError, ValueError)
"""What a step may raise while it is traced, where PyTorch or Keras finds no numbers in its tensors."""


@dataclass(frozen=True)
class Form:
    """The arguments of a step, tensors [rows, ...]: its inputs, states, and dropout masks."""

    x: Any
    states: Any
    masks: dict[str, tuple[Any, ...]]

    @property
    def key(self) -> tuple[Any, ...]:
        """The key of a trace for such tensors."""
        tensors = tree.flatten((self.x, self.states, self.masks))
        return tuple(self.masks), tuple((tensor.shape[1:], tensor.dtype) for tensor in tensors)


class Values(keras.StatelessScope):
    """A context in which variables have other values, and those that were read are known.

    A step that changes a variable, or adds a loss, does so at every step, which a traced one does not.
    """

    def __init__(self, variables: Sequence[Any], tensors: Sequence[Any]) -> None:
        super().__init__(collect_losses=True, initialize_variables=False)  # type: ignore[misc]
        self.given = {id(variable): tensor for variable, tensor in zip(variables, tensors, strict=True)}
        self.read = dict[int, Any]()

    def get_current_value(self, variable: Any) -> Any:
        """The value of a variable."""
        self.read[id(variable)] = variable
        return self.given.get(id(variable))

    def add_update(self, update: Any) -> None:
        """Refused."""
        if update[0].name == "seed_generator_state":
            raise StepError(f"the step draws random numbers: {draws.ADVICE}")
        raise StepError(f"the step assigns to the variable {update[0].path}, which is none of its states")

    def add_loss(self, loss: Any) -> None:
        """Refused."""
        raise StepError("the step adds a loss at every step")


class Directly(overrides.TorchFunctionMode):
    """A context in which variables have other values also where PyTorch reads them, as a module of torch.nn
    in a cell does.
    """

    def __init__(self, cell: Any, values: Values) -> None:
        super().__init__()  # type: ignore[misc]
        self.values = values
        self.variables = {id(variable.value): variable for variable in getattr(cell, "weights", ())}

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: dict[str, Any] | None = None
    ) -> Any:
        """The result of a call of `function`."""
        changed: Any = tree_map_only(torch.Tensor, self.value_of, (arguments, options or {}))
        return function(*changed[0], **changed[1])

    def value_of(self, tensor: Any) -> Any:
        """The value of a tensor; raises `StepError` for one that has a gradient and is no variable."""
        variable = self.variables.get(id(tensor))
        if variable is not None:
            value = self.values.get_current_value(variable)
            return tensor if value is None else value
        read = self.values.read.values()  # by a cell that is no layer: they are known once it has run
        if tensor.requires_grad and not any(tensor is known.value for known in read):
            raise StepError("the step reads a tensor that requires a gradient, and is no variable of Keras")
        return tensor


@dataclass
class CellStep:
    """A cell as a step on tensors.

    like, states: tensors in the structures of its inputs and states. read: the variables it has read.
    """

    cell: Any
    like: Any
    states: Any
    variables: Sequence[Any]
    training: bool
    read: list[Any] = field(default_factory=list[Any])

    @property
    def __name__(self) -> str:
        return type(self.cell).__name__

    @property
    def reads(self) -> Reads:
        """The values that the cell reads."""
        return reads_of_cell(self.cell)

    def __call__(self, x: Any, memory: Any, params: Any, statics: Any = None) -> tuple[Any, Any]:
        """The output and the next states."""
        states = tree.pack_sequence_as(self.states, list(memory))
        tensors = [params[str(place)] for place in range(len(self.variables))]
        values = Values(self.variables, tensors)
        directly, inputs = Directly(self.cell, values), apart(x, self.like)
        with values, directly, AutocastScope(None), masked(self.cell, statics or {}):
            output, following = called(self.cell, inputs, states, self.training)
        self.read = list(values.read.values())
        return output, tuple(tree.flatten(following))


def called(cell: Any, x: Any, states: Any, training: bool) -> Any:
    """The results of a cell for one step."""
    kwargs = {"training": training} if getattr(cell, "_call_has_training_arg", False) else {}
    return cell(x, states, **kwargs)


# ---- tracing it --------------------------------------------------------------------------------------------


def trace_cell(cell: Any, form: Form, training: bool, options: dict[str, Any]) -> tuple[RNN, tuple[Any, ...]]:
    """The recurrence of a cell, and the variables that it reads. options: those of the recurrence.

    Raises `StepError` for a cell that cannot be traced, with the operation and the line.
    """
    with refusing():
        build_layers_of(cell, form, training)
    variables = list[Any](getattr(cell, "weights", ()))
    while True:
        step = CellStep(cell, form.x, form.states, variables, training)
        params = {str(place): value_of(variable).detach() for place, variable in enumerate(variables)}
        call = example(together(form.x, 1)), tuple(map(example, tree.flatten(form.states))), params
        statics = {name: tuple(map(example, parts)) for name, parts in form.masks.items()} or None
        with unchanged(cell), refusing(), computing_in(cell, call[0].dtype), plain_errors():
            rnn = trace(step, call, statics=statics, **options)
        if {id(variable) for variable in step.read} == {id(variable) for variable in variables}:
            return rnn, tuple(variables)
        variables = step.read  # those of a cell that is no layer are found so


def build_layers_of(cell: Any, form: Form, training: bool) -> None:
    """Makes the variables of a cell's layers that are built when they are called: a trace has no numbers."""
    if isinstance(cell, keras.layers.Layer) and not all(layer.built for layer in flat_layers(cell)):
        with keras.StatelessScope():
            called(cell, form.x, form.states, training)


def flat_layers(cell: Any) -> list[Any]:
    """A layer and those in it."""
    return cell._flatten_layers()


@contextmanager
def refusing() -> Generator[None]:
    """A context that turns exceptions of a step into a `StepError` with the user's line."""
    try:
        yield
    except ANSWERS as error:
        raise StepError(located(error)) from error


@contextmanager
def unchanged(cell: Any) -> Generator[None]:
    """A context at whose end a cell has the attributes that it had; raises `StepError` if it had others."""
    before, held = reads_of_cell(cell), dict(attributes(cell))
    try:
        yield
    finally:
        changed, own = before.changes(reads_of_cell(cell)), attributes(cell)
        if changed:
            for name in own.keys() - held.keys():
                del own[name]
            own.update(held)
    if changed:
        raise StepError(f"the step of {type(cell).__name__} changes {changed} as it runs")


def located(error: BaseException) -> str:
    """The message of an error with a line: the user's, or that of a layer of Keras where there is none."""
    text, deepest = str(error), error
    while deepest.__context__ is not None:
        deepest = deepest.__context__
    passed = [(frame.f_code, number) for frame, number in walk_tb(deepest.__traceback__)]
    theirs = [place for place in passed if place[0].co_filename.startswith(LAYERS)]
    if theirs and not any(is_users(code) for code, _ in passed):
        return text.partition("\n  at ")[0] + f"\n  at {line_of(*theirs[-1])}"
    return text if "\n  at " in text else f"{text}\n  at {line_of_error(error)}"


def example(tensor: Any) -> Any:
    """A tensor like another one for a trace, of one row."""
    return torch.zeros(1, *tensor.shape[1:], dtype=FULL.get(tensor.dtype, tensor.dtype))


def value_of(variable: Any) -> Any:
    """The value of a variable in a dtype that steps compute in; its gradient is the variable's."""
    return in_full(variable.value)


def in_full(tensor: Any) -> Any:
    """A tensor in a dtype that steps compute in."""
    return tensor.to(FULL[tensor.dtype]) if tensor.dtype in FULL else tensor


@contextmanager
def plain_errors() -> Generator[None]:
    """A context in which Keras raises errors as they are, without the arguments of its layers."""
    before = keras.config.is_traceback_filtering_enabled()
    keras.config.disable_traceback_filtering()
    try:
        yield
    finally:
        if before:
            keras.config.enable_traceback_filtering()


@contextmanager
def computing_in(cell: Any, dtype: Any) -> Generator[None]:
    """A context in which a cell and its layers compute in this dtype, and not in one that is only stored."""
    layers: list[Any] = flat_layers(cell) if isinstance(cell, keras.layers.Layer) else []
    with ExitStack() as left:
        for layer in layers:
            if layer.compute_dtype in ("float16", "bfloat16"):
                left.callback(setattr, layer, "dtype_policy", layer.dtype_policy)
                layer.dtype_policy = str(dtype).removeprefix("torch.")
        yield
