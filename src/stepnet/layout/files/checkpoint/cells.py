"""Recognises the recurrent cells of a TensorFlow graph by the computation of its loops, if names are not
enough.

    h' = Mul(Sigmoid(Split:3(S)), Tanh(c'))        S = AddV2(MatMul(item, A), MatMul(h, B)), BiasAdd(.., C)
        -> an LSTM of Keras: A is its kernel, B its recurrent_kernel, C its bias

When TensorFlow 2 turns a variable into a constant, it names it after the operator that reads it, such as
`Read_1` or `Cast`. The expressions of loops (expressions.py) are compared with those of Keras' cells. If only
the matrices are recognised and not the expression, the user is asked for the layout.

`compiler/plan/recognise` would find these cells in any spelling, but it reads nets with known shapes, and
gives arrays of stepnet's own cells, computed from the constants. Here shapes are unknown except those of the
kernels, and the result names the file's own arrays in Keras' layout.

Source: layers/rnn of Keras 3.15 and tf_keras 2.21.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product

from stepnet.compiler.values.records import dataclass
from stepnet.layout.files.checkpoint.expressions import ExpressionGraph, MatrixProduct, operators
from stepnet.layout.files.checkpoint.protobuf import Message
from stepnet.layout.files.model import Array

ACTIVATIONS = {"Sigmoid": "sigmoid", "Tanh": "tanh", "Relu": "relu", "Softsign": "softsign", "Elu": "elu"}


@dataclass(frozen=True)
class GraphCell:
    """A recurrent cell of Keras that was found in a TensorFlow graph.

    arrays: the names of its constants, by Keras' names of weights.
    kind: its kind, such as "lstm"; "" if it is unknown.
    activations: the activations of its gates and of its candidate.
    reverse: whether its loop begins at the last step.
    """

    arrays: Mapping[str, str]
    kind: str = ""
    activations: tuple[str, str] = ("", "")
    reverse: bool = False

    @property
    def name(self) -> str:
        """The common prefix of the names of a recurrent cell's constants, which is the name of its module
        (recurrent layer) too; the kernel's name if they have no common prefix.
        """
        steps: list[str] = []
        for same in zip(*(name.split("/")[:-1] for name in self.arrays.values()), strict=False):
            if len({*same}) > 1:
                break
            steps.append(same[0])
        return "/".join(steps) or self.arrays["kernel"].removesuffix("/ReadVariableOp/resource")


def cells(graph: Message, arrays: Mapping[str, Array]) -> list[GraphCell]:
    """Recognises the recurrent cells that a TensorFlow graph computes. arrays: the constants of the graph, by
    name.

    Cells of unknown kind come last, and only if no recognised cell has any of their constants.
    """
    expressions = ExpressionGraph(operators(graph), arrays)
    for scope, name in expressions.operators:
        expressions.of((scope, name, 0))
    candidates = list(cells_in(expressions))
    recognised = [cell for cell in candidates if cell.kind]
    used = {array for cell in recognised for array in cell.arrays.values()}
    others = {tuple(cell.arrays.values()): cell for cell in candidates if not used & {*cell.arrays.values()}}
    return [*recognised, *others.values()]


def cells_in(graph: ExpressionGraph) -> Iterator[GraphCell]:
    """Yields the recurrent cells of a TensorFlow graph whose values are numbered expressions: the cells that
    compute exactly the same as a cell of Keras, and cells of unknown kind with at most one candidate for the
    bias.

    For each loop, the next memory of each of Keras' cells is added to the graph with the loop's matrices, and
    compared with the next memory of the loop: equal expressions have the same number. Expressions from number
    `count` on are not in the file.
    """
    count = len(graph.expressions)
    for loop in list(graph.loops()):
        arrays = {"kernel": loop.item.name, "recurrent_kernel": loop.recurrent.name}
        hidden, gates = graph.arrays[loop.recurrent.name].shape
        is_reversed = bool(graph.expressions[loop.item.left][1])
        kinds = KINDS[gates // hidden]
        for kind, bias, inner, outer in product(kinds, ["", *loop.biases], ACTIVATIONS, ACTIVATIONS):
            terms = (graph.number("constant", "", bias, 0),) if bias else ()
            does = (partial(graph.number, activation, 0) for activation in (inner, outer))
            results = kinds[kind](CellOperands(graph, loop.item, loop.recurrent, terms, *does))
            if loop.becomes < count and loop.recurrent.left in graph.memories and loop.becomes in results:
                named = {**arrays, **({"bias": bias} if bias else {})}
                yield GraphCell(named, kind, (ACTIVATIONS[inner], ACTIVATIONS[outer]), is_reversed)
                break
        else:
            if len(loop.biases) < 2:
                yield GraphCell(
                    {**arrays, **dict(zip(["bias"], loop.biases, strict=False))}, reverse=is_reversed
                )


@dataclass(frozen=True)
class CellOperands:
    """The expressions in a graph by which a Keras cell and its weights are recognised.

    item, recurrent: the products with the kernel and the recurrent kernel. bias: the expression of the bias,
    or (). inner, outer: the activations of the gates and of the candidate.
    """

    graph: ExpressionGraph
    item: MatrixProduct
    recurrent: MatrixProduct
    bias: tuple[int, ...]
    inner: Callable[[int], int]
    outer: Callable[[int], int]

    @property
    def hidden(self) -> int:
        """The number of units of this recurrent cell, by the rows of its recurrent kernel."""
        return self.graph.arrays[self.recurrent.name].shape[0]

    def gate_block(self, index: int, product_number: int) -> int:
        """Returns the number of the expression for block `index` of the columns of a matrix product, which a
        Split divides into equal blocks, one for each gate. product_number: the number of the product's
        expression.
        """
        return self.graph.number("Split", index, "columns", product_number)

    def columns(self, first: int, last: int, of: int) -> int:
        """Returns the number of the expression that cuts column blocks out of the expression `of`, a number:
        from block `first` up to block `last`, which is excluded; -1 stands for the end. A block has as many
        columns as the memory has units.
        """
        ends = (block * self.hidden if block > 0 else block for block in (first, last))
        return self.graph.number("columns", *ends, of)

    def interpolated(self, z: int, n: int) -> int:
        """Returns the number of the expression z h + (1 - z) n, which is a GRU's next memory. z, n: the
        numbers of the expressions of its update gate and its candidate. h is the previous memory.
        """
        graph, h = self.graph, self.recurrent.left
        rest = graph.number("Sub", 0, graph.number("one"), z)
        return graph.sum(graph.times(z, h), graph.times(rest, n))


def rnn(operands: CellOperands) -> Iterator[int]:
    """Yields the number (in the graph of expressions) of the expression that computes the next memory of a
    Keras SimpleRNN from `operands`, its products and activations. A loop whose next memory has the same
    number is such a cell.
    """
    yield operands.outer(operands.graph.sum(operands.item.number, operands.recurrent.number, *operands.bias))


def lstm(operands: CellOperands) -> Iterator[int]:
    """Yields the numbers (in the graph of expressions) of the expressions that may compute the next h of a
    Keras LSTM from `operands`, its products and activations. A loop whose next memory has one of these
    numbers is such a cell. There is one for each memory of the graph that may be the LSTM's c: whose next
    value is f c + i g.
    """
    graph = operands.graph
    gates = graph.sum(operands.item.number, operands.recurrent.number, *operands.bias)
    i, f, g, o = (operands.gate_block(index, gates) for index in range(4))
    for cell in graph.memories:
        kept_cell, new = (
            graph.times(operands.inner(f), cell),
            graph.times(operands.inner(i), operands.outer(g)),
        )
        new_cell = graph.sum(kept_cell, new)
        if graph.of(graph.memories[cell]) == new_cell:
            yield graph.times(operands.inner(o), operands.outer(new_cell))


def gru(operands: CellOperands) -> Iterator[int]:
    """Yields the numbers (in the graph of expressions) of the expressions that may compute the next memory of
    a Keras GRU with reset after the product, from `operands`, its products and activations. A loop whose next
    memory has one of these numbers is such a cell. Keras cuts out the gates by a split or by slices, and the
    two biases by an unpack or by a split.
    """
    graph = operands.graph
    for x, y in both_biases(graph, operands.item.number, operands.recurrent.number, operands.bias):
        blocks = [operands.columns(index, index + 1 if index < 2 else -1, y) for index in range(3)]
        for own in ([operands.gate_block(index, y) for index in range(3)], blocks):
            z, r = (
                operands.inner(graph.sum(operands.gate_block(index, x), own[index])) for index in range(2)
            )
            yield operands.interpolated(
                z, operands.outer(graph.sum(operands.gate_block(2, x), graph.times(r, own[2])))
            )


def gru_reset_before(operands: CellOperands) -> Iterator[int]:
    """Yields the number (in the graph of expressions) of the expression that computes the next memory of a
    Keras GRU with reset before the product, from `operands`, its products and activations. A loop whose next
    memory has the same number is such a cell. Its recurrent kernel is used in two pieces: the columns of both
    gates, and the columns of the candidate.
    """
    graph, h = operands.graph, operands.recurrent.left
    kernel = graph.number("constant", "", operands.recurrent.name, 0)
    gates, candidate = operands.columns(0, 2, kernel), operands.columns(2, -1, kernel)
    x, y = graph.sum(operands.item.number, *operands.bias), graph.number("MatMul", 0, h, gates)
    blocks = [operands.columns(index, index + 1, y) for index in range(2)]
    z, r = (operands.inner(graph.sum(operands.gate_block(index, x), blocks[index])) for index in range(2))
    reset = graph.number("MatMul", 0, graph.times(r, h), candidate)
    yield operands.interpolated(z, operands.outer(graph.sum(operands.gate_block(2, x), reset)))


# The next memory of each of Keras' cells, by the number of gates in its kernel.
KINDS: dict[int, dict[str, Callable[[CellOperands], Iterator[int]]]] = {
    1: {"rnn": rnn},
    3: {"gru": gru, "gru_reset_before": gru_reset_before},
    4: {"lstm": lstm},
}


def both_biases(
    graph: ExpressionGraph, item: int, recurrent: int, bias: tuple[int, ...]
) -> Iterator[tuple[int, int]]:
    """Yields the two products of a GRU with its two biases added, as numbers of expressions: one pair for
    each form in which Keras separates the biases, by an Unpack of the rows of their array, or by a Split and
    a Squeeze. Without biases, yields the products alone.

    item, recurrent: the numbers of the products with the input and with the memory. bias: the number of the
    array of both biases; () for none.
    """
    if not bias:
        yield item, recurrent
        return
    rows = [graph.number("Unpack", index, *bias) for index in range(2)]
    split = [graph.number("Squeeze", 0, graph.number("Split", index, "rows", *bias)) for index in range(2)]
    for first, second in (rows, split):
        yield graph.sum(item, first), graph.sum(recurrent, second)
