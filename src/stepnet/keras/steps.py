"""A cell of Keras on its torch backend as what runs it: its own step, traced.

    cell(x, states)   -->   step(x, memory, params, masks)   --trace-->   net   -->   Runnable

The variables that the step reads are its parameters, and the dropout masks that Keras has drawn for a call
are its statics.
"""

from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from stepnet.errors import StepError, StepnetError
from stepnet.keras.installed import installed
from stepnet.keras.settings import MASKS, OWN, settings_of_cell
from stepnet.keras.whole import apart, together
from stepnet.rnn.declared import keep
from stepnet.rnn.layers import LayerPrograms
from stepnet.torch.bound import Runnable
from stepnet.torch.lines import line_of_error
from stepnet.torch.trace import trace
from stepnet.trace.step import Spec

keras: Any = installed()
tree: Any = keras.tree
torch: Any = installed("torch")
AutocastScope: Any = installed("keras.src.backend.common.variables").AutocastScope

FULL = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""In which dtype a step computes whose values have one that is only stored."""

UNROLLED = 4
"""How many steps stand one behind the other in the loop of a layer with unroll=True."""

ANSWERS = (ArithmeticError, AttributeError, LookupError, RuntimeError, StepnetError, TypeError, ValueError)
"""What a step may raise while it is traced, where PyTorch or Keras finds no numbers in its tensors."""


class Values(keras.StatelessScope):
    """A context in which variables have other values, and those that were read are known.

    A step that changes a variable, or adds a loss, does so at every step, which a traced one does not.
    """

    def __init__(self, variables: Sequence[Any], tensors: Sequence[Any]) -> None:
        super().__init__(collect_losses=True, initialize_variables=False)
        self.given = {id(variable): tensor for variable, tensor in zip(variables, tensors, strict=True)}
        self.read = dict[int, Any]()

    def get_current_value(self, variable: Any) -> Any:
        """The value of a variable."""
        self.read[id(variable)] = variable
        return self.given.get(id(variable))

    def add_update(self, update: Any) -> None:
        """Refused."""
        raise StepError(f"the step assigns to the variable {update[0].path}, which is none of its states")

    def add_loss(self, loss: Any) -> None:
        """Refused."""
        raise StepError("the step adds a loss at every step")


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

    def __call__(self, x: Any, memory: Any, params: Any, statics: Any = None) -> tuple[Any, Any]:
        """The output and the next states."""
        states = tree.pack_sequence_as(self.states, list(memory))
        tensors = [params[str(place)] for place in range(len(self.variables))]
        values = Values(self.variables, tensors)
        with values, AutocastScope(None), masked(self.cell, statics or {}):
            output, following = called(self.cell, apart(x, self.like), states, self.training)
        self.read = list(values.read.values())
        return output, tuple(tree.flatten(following))


def called(cell: Any, x: Any, states: Any, training: bool) -> Any:
    """What a cell gives for one step."""
    kwargs = {"training": training} if getattr(cell, "_call_has_training_arg", False) else {}
    return cell(x, states, **kwargs)


# ---- dropout masks -----------------------------------------------------------------------------------------


def cells_in(cell: Any) -> list[Any]:
    """A cell, or the cells that it stacks."""
    if isinstance(cell, keras.layers.StackedRNNCells):
        return [inner for part in cell.cells for inner in cells_in(part)]
    return [cell]


def masks_of(cell: Any) -> dict[str, tuple[Any, ...]]:
    """The dropout masks that Keras has drawn for a call, by where the cells keep them."""
    known = dict[str, tuple[Any, ...]]()
    for place, part in enumerate(cells_in(cell)):
        for name in MASKS:
            mask = getattr(part, name, None)
            if mask is not None:
                known[f"{place}{name}"] = tuple(mask) if isinstance(mask, Sequence) else (mask,)
    return known


@contextmanager
def masked(cell: Any, masks: dict[str, tuple[Any, ...]]) -> Generator[None]:
    """A context in which the cells have these masks."""
    with ExitStack() as left:
        for place, part in enumerate(cells_in(cell)):
            for name in MASKS:
                mask = masks.get(f"{place}{name}")
                if mask is not None:
                    before = vars(part)[name]
                    left.callback(vars(part).__setitem__, name, before)
                    vars(part)[name] = list(mask) if isinstance(before, Sequence) else mask[0]
        yield


# ---- what runs a cell --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """How a layer goes over the steps of its sequences. last_only: whether it gives the last output alone."""

    training: bool
    reverse: bool
    last_only: bool
    unroll: bool


class Holder:
    """Where machine code with a cell's parameters is kept between calls without gradients."""


@dataclass(frozen=True)
class Traced:
    """What runs a cell, and the variables that it reads."""

    runnable: Runnable
    variables: tuple[Any, ...]
    holder: Holder = field(default_factory=Holder)


TRACES = WeakKeyDictionary[Any, OrderedDict[Any, Traced | StepError]]()
"""The traces of each cell so far."""

SHARED = OrderedDict[Any, Runnable]()
"""The traces of Keras' own cells, of which their settings say everything."""


def form_of(tensors: Sequence[Any]) -> tuple[Any, ...]:
    """By what the trace for tensors [rows, ...] is known."""
    return tuple((tensor.shape[1:], tensor.dtype) for tensor in tensors)


def traced(cell: Any, way: Way, x: Any, states: Any, masks: dict[str, tuple[Any, ...]]) -> Traced:
    """What runs a cell over sequences of x [rows, features...], and the variables that it reads.

    Raises `StepError` for a cell that cannot be traced, with the operation and the line.
    """
    settings, traces = settings_of_cell(cell), TRACES.setdefault(cell, OrderedDict())
    flat = tree.flatten(states)
    variables = list(getattr(cell, "weights", ()))
    weights = tuple((variable.shape, variable.dtype) for variable in variables)
    key = settings, way, form_of([*tree.flatten(x), *flat]), tuple(masks), form_of(tree.flatten(masks)), weights
    if key not in traces:
        run = SHARED.get(key) if is_own(cell) else None
        keep(traces, key, Traced(run, tuple(variables)) if run else attempt(cell, way, x, states, masks))
    known = traces[key]
    if isinstance(known, StepError):
        raise known
    if is_own(cell) and key not in SHARED:
        keep(SHARED, key, known.runnable)
    return known


def attempt(cell: Any, way: Way, x: Any, states: Any, masks: dict[str, tuple[Any, ...]]) -> Traced | StepError:
    """What runs a cell, or the error that says why nothing does."""
    before = settings_of_cell(cell)
    try:
        known = trace_cell(cell, way, x, states, masks, list(getattr(cell, "weights", ())))
    except StepError as error:
        return error
    if settings_of_cell(cell) != before:
        return StepError(f"the step of {type(cell).__name__} changes attributes of the cell as it runs")
    return known


def is_own(cell: Any) -> bool:
    """Whether a cell, and each one that it stacks, is one of Keras' own."""
    return type(cell) in OWN and all(type(part) in OWN for part in cells_in(cell))


def trace_cell(
    cell: Any, way: Way, x: Any, states: Any, masks: dict[str, tuple[Any, ...]], variables: list[Any]
) -> Traced:
    """What runs a cell. variables: those that it is known to have; others are found by tracing it."""
    memory = tuple(example(tensor) for tensor in tree.flatten(states))
    statics = {name: tuple(map(example, parts)) for name, parts in masks.items()} or None
    step = CellStep(cell, x, states, variables, way.training)
    params = {str(place): value_of(variable).detach() for place, variable in enumerate(variables)}
    try:
        with computing_in(cell, torch.empty(0, dtype=memory[0].dtype)):
            rnn = trace(
                step,
                (example(together(x, 1)), memory, params),
                statics=statics,
                reverse=way.reverse,
                unroll=UNROLLED if way.unroll else 1,
            )
    except ANSWERS as error:
        text = str(error)
        raise StepError(text if "\n  at " in text else f"{text}\n  at {line_of_error(error)}") from error
    if {id(variable) for variable in step.read} != {id(variable) for variable in variables}:
        return trace_cell(cell, way, x, states, masks, step.read)
    spec = cast("Spec", rnn.inputs)
    nothing = np.zeros((0, 0, *spec.shape), spec.dtype)
    empty = tree.map_structure(lambda tensor: tensor[:0].numpy(), statics) if statics else None
    program = LayerPrograms(rnn).read(nothing, None, empty, None, way.last_only).program
    return Traced(Runnable(program), tuple(variables))


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
def computing_in(cell: Any, like: Any) -> Generator[None]:
    """A context in which a cell and its layers compute in a tensor's dtype, and not in one that is only
    stored.
    """
    dtype = str(like.dtype).removeprefix("torch.")
    layers: list[Any] = cell._flatten_layers() if isinstance(cell, keras.layers.Layer) else []
    with ExitStack() as left:
        for layer in layers:
            if layer.compute_dtype in ("float16", "bfloat16"):
                left.callback(setattr, layer, "dtype_policy", layer.dtype_policy)
                layer.dtype_policy = dtype
        yield
