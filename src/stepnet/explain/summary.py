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
from dataclasses import field
from typing import Any

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.types import CONST, STEPS, Type
from stepnet.compiler.net.windows import LARGEST
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import named_leaves
from stepnet.model.model import Model

LAYER = re.compile(r"(?s)(.+) \(([^()]+)\) of .+")
"""The line of a node that a layer of a file made."""
JOINED = ("add", "divide", "multiply", "subtract")
"""The operations that belong to the row before, as a bias does to the product."""
AXES = {"rows": "sequences"}
FIXED = re.compile(rf"steps(?:\[\w+\])?\[\+0/{LARGEST}\]\[\*(\d+)\+0\]")
"""The name of an axis with the same number of steps for all sequences, which is repeated from one step."""


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
        """Counts the numbers in the parameters that a node reads, directly or through other constants,
        without parameters that were counted before; adds their bytes to `self.bytes`.
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
    steps = getattr(model, "only_steps", None)  # which models of files alone have
    inputs = {
        node.name or "x": shape_text(node.type, steps)
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
    """Makes the row of a node in the table of a model's layers. A recurrence gets the name in front of the
    first dotted name of its parameters, as "encoder" of "encoder.W"; another operation gets no name. net: the
    net of the node.
    """
    if node.operation != "recur":
        return SummaryRow("", node.operation)
    names = [net.nodes[operand].name.rpartition(".")[0] for operand in node.inputs]
    return SummaryRow(next(filter(None, names), ""), "recurrence")


def shape_text(type_: Type, only: int | None = None) -> str:
    """Formats the axes of a type as text, such as "[sequences, steps, 64]". An axis of the same number of
    steps for all sequences is that number.

    only: the only number of steps that sequences may have; None for any.

    >>> shape_text(Type(("rows", "steps"), (4,), "float32"))
    '[sequences, steps, 4]'
    >>> shape_text(Type(("rows", "steps"), (4,), "float32"), only=7)
    '[sequences, 7 steps, 4]'
    >>> shape_text(Type(("rows", f"steps[+0/{LARGEST}][*7+0]"), (4,), "float32"))
    '[sequences, 7, 4]'
    """
    named = {**AXES, STEPS[-1]: f"{only} steps"} if only else AXES
    axes = [named.get(axis, FIXED.sub(r"\1", axis)) for axis in type_.extent]
    return f"[{', '.join([*axes, *map(str, type_.shape)])}]"


def size_text(count: int) -> str:
    """Formats a number of bytes as text, with one decimal and a unit such as MiB.

    >>> size_text(512), size_text(3 << 20)
    ('512 bytes', '3.0 MiB')
    """
    if count < 1024:
        return f"{count} bytes"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


MOST_ROWS, MOST_ENDS = 16, 4
"""The most layers, and the most inputs and outputs, in a text of one screen."""
WIDEST = 48
"""The most characters of the name of a layer there."""


def short_text(name: str, summary: ModelSummary) -> str:
    """Returns the summary of a model as plain text of at most one screen. Of many layers, those with
    parameters come before others.

    name: the name of the model.

    >>> rows = [SummaryRow("lstm", "LSTM", "[sequences, 4]", 128), SummaryRow("", "tanh", "[sequences, 4]")]
    >>> print(short_text("m.keras", ModelSummary({"x": "[sequences, steps, 3]"}, rows, {}, 128, 512)))
    m.keras: 128 parameters (512 bytes)
      x            [sequences, steps, 3]
      lstm (LSTM)  [sequences, 4]         128
      tanh         [sequences, 4]
    """
    of_most_use = sorted(range(len(summary.rows)), key=lambda place: not summary.rows[place].parameters)
    shown = [summary.rows[place] for place in sorted(of_most_use[:MOST_ROWS])]
    inputs, outputs = (
        [(title, shape, "") for title, shape in [*ends.items()][:MOST_ENDS]]
        for ends in (summary.inputs, summary.outputs)
    )
    layers = [(row.title, row.output, f"{row.parameters:,}" if row.parameters else "") for row in shown]
    titles = [shortened(title) for title, *_ in (*inputs, *layers, *outputs)]
    width = max(map(len, titles), default=0)
    shapes = [shape for _, shape, _ in (*inputs, *layers)]
    wide, digits = max(map(len, shapes), default=0), max((len(count) for *_, count in layers), default=0)
    lines = [
        f"  {shortened(title):{width}}  {shape:{wide}}  {count:>{digits}}".rstrip()
        for title, shape, count in (*inputs, *layers)
    ]
    if left := len(summary.rows) - len(shown):
        lines.append(f"  and {left} more layers, which `stepnet show` lists")
    ends = ", ".join(f"{title} {shape}" for title, shape, _ in outputs)
    more = f" and {len(summary.outputs) - len(outputs)} more" if len(summary.outputs) > len(outputs) else ""
    head = f"{name}: {summary.parameters:,} parameters ({size_text(summary.bytes)})"
    return "\n".join([head, *lines, *([f"  outputs: {ends}{more}"] if ends else [])])


def shortened(title: str) -> str:
    """Returns a name of at most `WIDEST` characters, with the end of a longer one, which tells it apart.

    >>> shortened("encoder/" * 9 + "dense (Dense)")
    '...er/encoder/encoder/encoder/encoder/dense (Dense)'
    """
    return title if len(title) <= WIDEST else f"...{title[-WIDEST:]}"


def as_table(summary: ModelSummary) -> Iterator[Any]:
    """Yields the parts of a model's summary that a console of rich prints: a table of its layers, and lines
    with inputs, outputs and totals.
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
