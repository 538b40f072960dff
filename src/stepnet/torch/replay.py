"""A graph of ATen operations replayed on a step's values, each node by its row of the table."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from stepnet.errors import NetError, StepError
from stepnet.net.types import CONST, ROWS, Type
from stepnet.torch.aten import ADVICE, TABLE
from stepnet.torch.aten_graph import Argument, Graph, Layout, graph_of
from stepnet.torch.pytorch import pytorch
from stepnet.torch.reads import reads_of
from stepnet.torch.rules import Result
from stepnet.trace import draws
from stepnet.trace.feature_axes import listed
from stepnet.trace.lines import defined_at, written_at
from stepnet.trace.reads import Reads
from stepnet.trace.traced import Traced, builder_of, refuse
from stepnet.values.dtypes import COMPUTED
from stepnet.values.structure import leaves, named_leaves, rebuild

torch: Any = pytorch("torch")

READ: Any = torch.ops.aten._local_scalar_dense.default

Function = Callable[..., Any]


@dataclass(frozen=True)
class TorchStep:
    """A function on tensors as a step: its graph of ATen operations, replayed on a step's values.

    `__wrapped__` is the user's function, for its signature and its place in the code.
    """

    function: Function
    __wrapped__: Function
    __name__: str

    @property
    def reads(self) -> Reads:
        """The values that the user's function reads; a function may list them itself."""
        known: Any = getattr(self.__wrapped__, "reads", None)
        return known if isinstance(known, Reads) else reads_of(self.__wrapped__)

    def __call__(self, x: Any, memory: Any, params: Any, **further: Any) -> tuple[Any, Any]:
        """The output and the next memory."""
        arguments = {"x": x, "memory": memory, "params": params, **further}
        values: list[Traced] = leaves(arguments)
        names = [name.removeprefix("params.") for name, _ in named_leaves(arguments)]
        structure: list[Any] = []

        def flat(*tensors: Any) -> list[Any]:
            structure[:] = [self.function(**rebuild(arguments, tensors))]
            return [tensor_of(leaf) for leaf in leaves(structure)]

        graph = graph_of(
            flat, [Argument.of(name, value.type) for name, value in zip(names, values, strict=True)]
        )
        return rebuild(structure[0], replayed(graph, values, defined_at(self)))


def tensor_of(leaf: Any) -> Any:
    """The result of a step as a tensor; raises `StepError` unless it is a tensor or a number."""
    try:
        return torch.as_tensor(leaf)
    except TypeError:
        raise StepError(f"the step returns a {type(leaf).__name__}, not a tensor") from None


def replayed(graph: Graph, arguments: Sequence[Traced], place: str) -> list[Traced]:
    """The graph's results, from its nodes applied to a step's values; place: the line of the step."""
    values: dict[Any, Any] = {}
    remaining = iter(arguments)
    for node in graph.nodes:
        with written_at(node.stack_trace or place):
            if node.op == "placeholder":
                values[node] = next(remaining)
            elif node.op == "get_attr":
                values[node] = constant(graph.held(node), arguments)
            elif node.op == "output":
                return [result(graph, part, values) for part in node.args[0]]
            elif is_size(node.meta.get("val")) and node.target is not READ:
                values[node] = node.meta["val"]
            elif node.target is operator.getitem:
                values[node] = values[node.args[0]][node.args[1]]
            else:
                values[node] = applied(graph, node, values, arguments)
    raise StepError("the graph has no output")


def is_size(value: Any) -> bool:
    """Whether a value is computed from the number of rows."""
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def constant(tensor: Any, arguments: Sequence[Traced]) -> Traced:
    """A tensor that the step holds, as a constant of the net."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in COMPUTED:
        raise refuse(f"a constant of dtype {dtype} cannot enter a step; use one of {', '.join(COMPUTED)}")
    builder = builder_of(arguments)
    return Traced(builder, builder.constant(tensor.detach().cpu().numpy()))


def result(graph: Graph, node: Any, values: dict[Any, Any]) -> Traced:
    """A result of the step."""
    if not graph.layout(node.meta["val"]).plain:
        raise refuse("a result of the step mixes rows: it is [rows, features...]")
    return values[node]


def applied(graph: Graph, node: Any, values: dict[Any, Any], arguments: Sequence[Traced]) -> Any:
    """The results of a node: its row of the table applied to a step's values."""
    name = str(node.target).removeprefix("aten.")
    if name not in TABLE:
        raise refuse(f"{node.target} is not an operation of a step" + advice(node.target))
    try:
        layouts = [graph.layout(part) for part in listed(node.meta["val"])]
        check_rows(graph, node, layouts)
        outputs = TABLE[name].rule(
            result_of(node, layouts[0], arguments[0]),
            *(valued(argument, values) for argument in node.args),
            **{key: valued(argument, values) for key, argument in node.kwargs.items()},
        )
    except StepError as error:
        raise StepError(f"aten.{name}: {error}") from None
    for value, layout, tensor in zip(listed(outputs), layouts, listed(node.meta["val"]), strict=True):
        wanted = Type(ROWS if layout.per_row else CONST, layout.features, torch_name(tensor))
        if value.type != wanted:
            raise NetError(f"aten.{name} gives {wanted}, and its rule {value.type}")
    return outputs


def advice(operation: Any) -> str:
    """The advice for an operation, after a colon; empty if there is none."""
    if torch.Tag.nondeterministic_seeded in getattr(operation, "tags", ()):
        return f": {draws.ADVICE}"
    known = ADVICE.get(getattr(operation, "__name__", "").split(".")[0])
    return f": {known}" if known else ""


def check_rows(graph: Graph, node: Any, layouts: Sequence[Layout]) -> None:
    """Raises `StepError` if, by its shapes, an operation mixes rows."""
    operands = [graph.layout(operand.meta["val"]) for operand in node.all_input_nodes if is_tensor(operand)]
    if any(layout.per_row for layout in operands) and not all(layout.per_row for layout in layouts):
        raise refuse(
            "the result has no rows, which mixes them: every row is a sequence of its own; use a feature axis"
        )
    name = str(node.target).removeprefix("aten.")
    if not TABLE[name].folded and not all(layout.plain for layout in (*operands, *layouts)):
        raise refuse("the first axis holds more than the rows, which mixes them; keep it apart: [rows, ...]")
    numbers = [
        argument for argument in node.args if hasattr(argument, "meta") and is_size(argument.meta.get("val"))
    ]
    if numbers and not name.startswith("slice"):
        raise refuse("the number of rows enters a value, and a step does not know it")


def is_tensor(node: Any) -> bool:
    """Whether a node of the graph is a single tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def result_of(node: Any, layout: Layout, like: Traced) -> Result:
    """The result that PyTorch infers for a node."""
    dtype = torch_name(listed(node.meta["val"])[0])
    operands = [argument.meta["val"] if hasattr(argument, "meta") else argument for argument in node.args[:2]]
    operands = [1 if is_size(operand) else operand for operand in operands]
    fits = len(operands) == 2 and all(isinstance(operand, torch.Tensor | int | float) for operand in operands)
    common = str(torch.result_type(*operands)).removeprefix("torch.") if fits else dtype
    return Result(layout.features, dtype, common, layout.per_row, like)


def torch_name(tensor: Any) -> str:
    """The name of a tensor's dtype; raises `StepError` if stepnet does not know it."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in COMPUTED:
        raise refuse(f"a value of dtype {name} is not one of a step; use one of {', '.join(COMPUTED)}")
    return name


def valued(argument: Any, values: dict[Any, Any]) -> Any:
    """An argument of a node, with a step's values in place of nodes."""
    if isinstance(argument, list | tuple):
        return [valued(part, values) for part in cast("Sequence[Any]", argument)]
    return values[argument] if hasattr(argument, "meta") else argument
