"""A function on tensors as a step: `TorchStep`."""

from collections.abc import Callable, Sequence
from typing import Any

from stepnet.compiler.net.types import ROWS
from stepnet.compiler.trace.lines import defined_at, written_at
from stepnet.compiler.trace.reads import Reads
from stepnet.compiler.trace.traced import Traced, refuse
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, named_leaves, rebuild
from stepnet.errors import StepError
from stepnet.importers.aten.graph import AtenGraph
from stepnet.importers.aten.replay import GraphReplay
from stepnet.importers.aten.table import ATEN
from stepnet.importers.axes import BATCH, symbols_in
from stepnet.importers.placed import Placed
from stepnet.torch.aten_graph import TensorArgument, graph_of
from stepnet.torch.pytorch import pytorch
from stepnet.torch.reads import reads_of

torch: Any = pytorch("torch")

Function = Callable[..., Any]


@dataclass(frozen=True)
class TorchStep:
    """Step written with PyTorch as a step of the compiler: traces the user's function to a graph of ATen
    operations, and evaluates that on values of a net.

    __wrapped__: the user's function, for its signature and its place in the code.
    """

    function: Function
    __wrapped__: Function
    __name__: str

    @property
    def reads(self) -> Reads:
        """The values that the wrapped function of the user reads besides its arguments, on which its traces
        depend. The function may list them itself, in an attribute `reads`.
        """
        known: Any = getattr(self.__wrapped__, "reads", None)
        return known if isinstance(known, Reads) else reads_of(self.__wrapped__)

    def __call__(self, x: Any, memory: Any, params: Any, **further: Any) -> tuple[Any, Any]:
        """Traces the user's step, which is written with PyTorch, and adds its operations to a net; returns
        its output and next memory as values of the net.

        further: the statics (values that each sequence has once) and the index, for a step that takes them.
        """
        arguments = {"x": x, "memory": memory, "params": params, **further}
        values: list[Traced] = leaves(arguments)
        names = [name.removeprefix("params.") for name, _ in named_leaves(arguments)]
        structure: list[Any] = []

        def flat(*tensors: Any) -> list[Any]:
            """Calls the user's function on a list of tensors; stores its results' form in `structure`."""
            structure[:] = [self.function(**rebuild(arguments, tensors))]
            return [tensor_of(leaf) for leaf in leaves(structure)]

        graph = graph_of(
            flat, [TensorArgument.of(name, value.type) for name, value in zip(names, values, strict=True)]
        )
        return rebuild(structure[0], replayed(graph, values, defined_at(self)))


def tensor_of(leaf: Any) -> Any:
    """Converts a result of the user's step to a tensor; raises `StepError` unless it is one, or a number."""
    try:
        return torch.as_tensor(leaf)
    except TypeError:
        raise StepError(f"the step returns a {type(leaf).__name__}, not a tensor") from None


def replayed(graph: AtenGraph, arguments: Sequence[Traced], place: str) -> list[Traced]:
    """Adds the operations of a step's graph to a net, on values of the net; returns its results as such
    values.

    arguments: the values, one for each argument of the graph. place: the line of the step, for messages.
    """
    placed = [
        Placed(value, (*((BATCH,) * (value.type.extent == ROWS)), *((size,) for size in value.type.shape)))
        for value in arguments
    ]
    results = GraphReplay.of("step", graph, placed, ATEN).results(place)
    with written_at(place):
        return [checked_result(part) for part in results]


def checked_result(output: Any) -> Traced:
    """Returns the value of the net that a result of a step stands for, without its named axes; raises
    `StepError` unless these are [rows, features...].
    """
    if not isinstance(output, Placed) or any(symbols_in((axis,)) for axis in output.axes if axis != BATCH):
        raise refuse("a result of the step mixes rows: it is [rows, features...]")
    if BATCH in output.axes[1:]:
        raise refuse("a result of the step mixes rows: it is [rows, features...]")
    return output.value
