"""The summary of a model: its layers with the shapes of their outputs and their parameters, and totals.

    layer          output                     parameters
    lstm (LSTM)    [sequences, steps, 4]             128
    dense (Dense)  [sequences, 2]                     10

A model that was read from a file of layers has these as rows. A saved model and one that was written as a
program have a row for each recurrence, and for each other operation that reads parameters.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.types import CONST, Type
from stepnet.compiler.values.structure import named_leaves
from stepnet.model.model import Model

LAYER = re.compile(r"(?s)(.+) \(([^()]+)\) of .+")
"""The line of a node that a layer of a file made."""
JOINED = ("add", "divide", "multiply", "subtract")
"""The operations that belong to the row before, as a bias does to the product."""
AXES = {"rows": "sequences"}


@dataclass
class SummaryRow:
    """A layer of a model, or an operation that reads parameters.

    name: its name; "" for an operation. kind: its class, or the operation. output: its last result, as text,
    with the operations behind it that alone read it. parameters: the numbers in the arrays that it reads
    first.
    """

    name: str
    kind: str
    output: str = ""
    parameters: int = 0

    @property
    def title(self) -> str:
        """The name and the kind."""
        return f"{self.name} ({self.kind})" if self.name else self.kind


@dataclass(frozen=True)
class ModelSummary:
    """Summary of a model.

    inputs, outputs: their shapes as text, by name. rows: the layers. parameters: the numbers in all arrays.
    bytes: the memory that they take.
    """

    inputs: dict[str, str]
    rows: list[SummaryRow]
    outputs: dict[str, str]
    parameters: int
    bytes: int


@dataclass
class Counting:
    """Walk over a net that counts the arrays which its nodes read, each once. seen: the arrays so far."""

    net: Net
    seen: set[int] = field(default_factory=set[int])
    bytes: int = 0

    def read_by(self, number: int) -> int:
        """Counts the numbers in the parameters that a node reads, without those that an earlier node has
        read.
        """
        count, pending = 0, [*self.net.nodes[number].inputs]
        while pending:
            operand = pending.pop()
            node = self.net.nodes[operand]
            if node.types[0].extent != CONST or operand in self.seen:
                continue
            self.seen.add(operand)
            if node.operation == "input" or (node.operation == "constant" and node.type.shape):
                count += node.type.size
                self.bytes += node.type.size * node.type.itemsize
            pending += node.inputs
        return count


def summary_of(model: Model) -> ModelSummary:
    """Makes the summary of a model whose inputs are known: a row for each layer or operation with the shape
    of its outputs and its parameters, and the totals.

    >>> import numpy as np
    >>> import stepnet as sn
    >>> rnn = sn.RNN(lambda x, h, p: (h + x @ p["W"],) * 2, {"W": np.ones((2, 1))}, memory=1, inputs=2)
    >>> summary = summary_of(rnn)
    >>> [(row.title, row.output, row.parameters) for row in summary.rows], summary.parameters
    ([('recurrence', '[sequences, steps, 1]', 2)], 2)
    """
    net, program = model.net, model.program
    counting, rows = Counting(net), list[SummaryRow]()
    row_of = dict[int, int]()
    readers = Counter([*(operand for node in net.nodes for operand in {*node.inputs}), *net.results])
    for number, node in enumerate(net.nodes):
        if node.operation in ("input", "constant", "index") or node.types[0].extent == CONST:
            continue
        if node.operation == "expand" and net.type_of(node.inputs[0]).extent == CONST:
            continue  # an initial memory, which is no parameter
        layer, parameters = layer_of(node), counting.read_by(number)
        # It goes on with the row of a value that nothing else reads.
        alone = (each for each in node.inputs if node.operation == "result" or readers[each] == 1)
        place = max((row_of[each] for each in alone if each in row_of), default=-1)
        if layer is not None:
            if not rows or (rows[-1].name, rows[-1].kind) != layer:
                rows.append(SummaryRow(*layer))
            place = len(rows) - 1
        elif node.operation == "recur" or (parameters and (node.operation not in JOINED or place < 0)):
            rows.append(operation_row(net, node))
            place = len(rows) - 1
        if parameters:
            rows[place].parameters += parameters
        if place < 0:
            continue
        row_of[number] = place
        if node.operation != "result" and (node.types[0].dtype != "bool" or not rows[place].output):
            rows[place].output = shape_text(node.types[0])
    inputs = {
        node.name or "x": shape_text(node.type)
        for node in (net.nodes[number] for number in net.inputs)
        if node.type.extent != CONST
    }
    names = [name or "output" for name, _ in named_leaves(program.output)]
    names += [f"final {name}".strip() for name, _ in named_leaves(program.memory)]
    outputs = dict(zip(names, (shape_text(net.type_of(number)) for number in net.results), strict=True))
    return ModelSummary(inputs, rows, outputs, sum(row.parameters for row in rows), counting.bytes)


def layer_of(node: Node) -> tuple[str, str] | None:
    """Returns the name and class of the layer of a file that made a node; None for other nodes."""
    made = LAYER.fullmatch(node.source or "")
    return (made[1], made[2]) if made else None


def operation_row(net: Net, node: Node) -> SummaryRow:
    """Returns the row of a node in the table of a model's layers: for a recurrence with the name that its
    parameters have in common, for another operation without a name. net: the net of the node.
    """
    if node.operation != "recur":
        return SummaryRow("", node.operation)
    names = [net.nodes[operand].name.rpartition(".")[0] for operand in node.inputs]
    return SummaryRow(next(filter(None, names), ""), "recurrence")


def shape_text(type_: Type) -> str:
    """Formats the axes of a type as text, such as "[sequences, steps, 64]".

    >>> shape_text(Type(("rows", "steps"), (4,), "float32"))
    '[sequences, steps, 4]'
    """
    return f"[{', '.join([*(AXES.get(axis, axis) for axis in type_.extent), *map(str, type_.shape)])}]"


def size_text(count: int) -> str:
    """Formats a number of bytes as text, with one decimal and a unit such as MiB.

    >>> size_text(512), size_text(3 << 20)
    ('512 bytes', '3.0 MiB')
    """
    if count < 1024:
        return f"{count} bytes"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def as_table(summary: ModelSummary) -> Iterator[Any]:
    """Yields what a console of rich prints for the summary of a model: a table of its layers, and lines with
    inputs, outputs and totals.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table("layer", "output", "parameters")
    table.columns[-1].justify = "right"
    for row in summary.rows:
        table.add_row(Text(row.title), Text(row.output), f"{row.parameters:,}")
    for what, shapes in (("inputs", summary.inputs), ("outputs", summary.outputs)):
        yield f"{what}: {', '.join(f'{name} {shape}' for name, shape in shapes.items())}"
        if what == "inputs":
            yield table
    yield f"parameters: {summary.parameters:,} ({size_text(summary.bytes)})"
