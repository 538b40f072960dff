"""The inputs and results of a net by kind.

    inputs    sequences, initial memories, statics, parameters
    results   per step, per row, totals

A net has its inputs and results in the order in which it was built. The kind of each follows from its extent.
A static sequence counts as one value per row. An input with one value per row is an initial memory if a
recurrence begins with it, and a static otherwise. A call may leave an initial memory out; it is then zeros.
"""

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, ROWS, is_static_extent
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class Ends:
    """The positions of a net's inputs and results, by kind.

    sequences, memories, statics, parameters: positions among the inputs.
    steps, rows, totals: positions among the results that have one value per step, per row, and in all.

    >>> from stepnet.compiler.net.ir import Builder
    >>> from stepnet.compiler.net.types import STEPS, Type
    >>> builder = Builder()
    >>> W = builder.input(Type(CONST, (2, 2), "float32"), "W")
    >>> x = builder.input(Type(STEPS, (2,), "float32"), "x")
    >>> y = builder.add("matmul", x, W)
    >>> ends = Ends.of(builder.net([builder.add("contract", x, y), y, builder.add("reduce", y, how="sum")]))
    >>> ends.sequences, ends.parameters, ends.steps, ends.rows, ends.totals
    ((1,), (0,), (1,), (2,), (0,))
    """

    sequences: tuple[int, ...]
    memories: tuple[int, ...]
    statics: tuple[int, ...]
    parameters: tuple[int, ...]
    steps: tuple[int, ...]
    rows: tuple[int, ...]
    totals: tuple[int, ...]

    @classmethod
    def of(cls, net: Net) -> "Ends":
        """Sorts the positions of a net's inputs and results by kind, which follows from their extents (one
        value per step, per row or for all).

        An input with one value per row is an initial memory if a recurrence begins with it, else a static,
        which all steps share. A static sequence, which each step reads whole, counts as one value per row.
        """
        begins = {
            number
            for node in net.nodes
            if node.operation == "recur"
            for number in node.recur.operands_by_kind(node.inputs).memories
        }
        inputs: dict[str, list[int]] = {"sequences": [], "memories": [], "statics": [], "parameters": []}
        for index, number in enumerate(net.inputs):
            extent = net.type_of(number).extent
            kinds = {CONST: "parameters", ROWS: "memories" if number in begins else "statics"}
            inputs["statics" if is_static_extent(extent) else kinds.get(extent, "sequences")].append(index)
        results: dict[str, list[int]] = {"steps": [], "rows": [], "totals": []}
        for index, number in enumerate(net.results):
            extent = net.type_of(number).extent
            kinds = {CONST: "totals", ROWS: "rows"}
            results["rows" if is_static_extent(extent) else kinds.get(extent, "steps")].append(index)
        return cls(**{name: tuple(indices) for name, indices in (inputs | results).items()})
