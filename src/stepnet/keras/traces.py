"""Compiles cells for the torch backend, with a cache by cell, settings and shapes.

one of Keras' cells   -->   its equations   ->
                                                RNN   -->   DifferentiableLayers
any other cell        -->   its step, traced ->
"""

from collections import OrderedDict
from dataclasses import field
from typing import Any
from weakref import WeakKeyDictionary

from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.once import entry_of
from stepnet.compiler.values.records import dataclass
from stepnet.errors import StepError
from stepnet.keras.cells import NAMED, cells_in, is_named
from stepnet.keras.installed import installed
from stepnet.keras.recurrences import LoopSettings, named_recurrence
from stepnet.keras.settings import settings_of_cell
from stepnet.keras.steps import FULL, StepArguments, trace_cell
from stepnet.model.recurrence import RNN
from stepnet.torch.bound import DifferentiableLayers

keras: Any = installed()
tree: Any = keras.tree


class Holder:
    """Empty object; calls without gradients cache in it machine code with a cell's parameters built in."""


@dataclass(frozen=True)
class CellTrace:
    """A compiled cell: its runnable layers, and the variables whose values are its parameters.

    holder: the object that caches machine code for calls without gradients.
    """

    runnable: DifferentiableLayers
    variables: tuple[Any, ...]
    holder: Holder = field(default_factory=Holder)


TRACES = WeakKeyDictionary[Any, OrderedDict[Any, Any]]()
"""The compiled forms of each cell, by key; a text is the reason why there is none."""

SHARED = OrderedDict[Any, Any]()
"""The compiled functions of Keras' own cells. Cells of equal settings share them."""


def find_trace(cell: Any, settings: LoopSettings, arguments: StepArguments) -> CellTrace:
    """Returns the compiled recurrence of a cell for settings and example arguments, cached or compiled now.

    Raises `StepError` for a cell that cannot be traced, with the operation and the line.
    """
    traces = TRACES.setdefault(cell, OrderedDict[Any, Any]())
    weights = tuple((variable.shape, variable.dtype) for variable in getattr(cell, "weights", ()))
    key = settings_of_cell(cell), settings, arguments.key, weights
    compiled: CellTrace | str = entry_of(traces, key, lambda: build_trace(cell, settings, arguments, key))
    if isinstance(compiled, str):
        raise StepError(compiled)
    return compiled


def build_trace(cell: Any, settings: LoopSettings, arguments: StepArguments, key: Any) -> CellTrace | str:
    """Compiles a cell for settings and example arguments. Returns its compiled recurrence, or, if it cannot
    be traced, the reason as text. key: the cache key of the settings and arguments.
    """
    if is_named(cell) and not tree.is_nested(arguments.x) and arguments.x.ndim != 2:
        return f"a step of {type(cell).__name__} takes [rows, features], not {list(arguments.x.shape)}"
    if is_named(cell) and fits_equations(cell, arguments):
        shared = entry_of(
            SHARED, key, lambda: DifferentiableLayers.of(recurrence_of(cell, settings, arguments))
        )
        return CellTrace(shared, tuple(cell.weights))
    try:
        rnn, variables = trace_cell(cell, arguments, settings.training, settings.options)
    except StepError as error:
        return str(error)  # the error itself would keep the cell alive
    return CellTrace(DifferentiableLayers.of(rnn), variables)


def fits_equations(cell: Any, arguments: StepArguments) -> bool:
    """Tells whether the arguments of a step fit the equations of one of Keras' own cells: the input is one
    tensor, there are as many states as the cell has, and all compute in one dtype.
    """
    if tree.is_nested(arguments.x):
        return False
    tensors = arguments.x, *tree.flatten(arguments.states), *(variable.value for variable in cell.weights)
    states = sum(NAMED[type(part)].states for part in cells_in(cell))
    return (
        len(tree.flatten(arguments.states)) == states
        and len({in_full_dtype(tensor) for tensor in tensors}) == 1
    )


def in_full_dtype(tensor: Any) -> Any:
    """Returns the dtype in which a step computes on a tensor: float32 for float16 and bfloat16."""
    return FULL.get(tensor.dtype, tensor.dtype)


def recurrence_of(cell: Any, settings: LoopSettings, arguments: StepArguments) -> RNN:
    """Makes the `RNN` of one of Keras' own cells, or of a stack of them, for arguments of these shapes and
    dtypes. settings: the settings of the loop, such as its direction.
    """
    x, memory, masks = (
        tree.map_structure(spec_of, tensors)
        for tensors in (arguments.x, tuple(tree.flatten(arguments.states)), arguments.masks)
    )
    return named_recurrence(cell, settings, x, memory, masks)


def spec_of(tensor: Any) -> Spec:
    """Returns the features of a tensor [rows, features...], and the dtype in which steps compute on it."""
    return Spec(tuple(tensor.shape[1:]), str(in_full_dtype(tensor)).removeprefix("torch."))
