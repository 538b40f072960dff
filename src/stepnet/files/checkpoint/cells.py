"""The recurrent cells of a TensorFlow graph by what its loops compute, where names tell nothing.

    h' = Mul(Sigmoid(Split:3(S)), Tanh(c'))        S = AddV2(MatMul(item, A), MatMul(h, B)), BiasAdd(.., C)
        -> an LSTM of Keras': A is its kernel, B its recurrent_kernel, C its bias

TensorFlow 2 calls a variable that it makes a constant after the operator that reads it, `Read_1` or `Cast`.
What its loops compute (expressions.py) is compared with what Keras' cells do. Where the matrices are clear
and the expression is none of these, the layout is asked for.

Source: layers/rnn of Keras 3.15 and tf_keras 2.21.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product

from stepnet.files.checkpoint.expressions import Graph, Product, operators
from stepnet.files.checkpoint.protobuf import Message
from stepnet.files.model import Array

ACTIVATIONS = {"Sigmoid": "sigmoid", "Tanh": "tanh", "Relu": "relu", "Softsign": "softsign", "Elu": "elu"}


@dataclass(frozen=True)
class Cell:
    """A cell: the names of the constants that it has, by Keras' names; its kind, and the activations of its
    gates and its candidate, "" where these are not known; whether its loop begins at the last step.
    """

    arrays: Mapping[str, str]
    kind: str = ""
    activations: tuple[str, str] = ("", "")
    reverse: bool = False

    @property
    def name(self) -> str:
        """What all names of its constants begin with."""
        steps: list[str] = []
        for same in zip(*(name.split("/")[:-1] for name in self.arrays.values()), strict=False):
            if len({*same}) > 1:
                break
            steps.append(same[0])
        return "/".join(steps) or self.arrays["kernel"].removesuffix("/ReadVariableOp/resource")


def cells(graph: Message, arrays: Mapping[str, Array]) -> list[Cell]:
    """The cells among the constants of a graph."""
    whole = Graph(operators(graph), arrays)
    for scope, name in whole.operators:
        whole.of((scope, name, 0))
    found = list(cells_in(whole))
    known = [cell for cell in found if cell.kind]
    taken = {name for cell in known for name in cell.arrays.values()}
    others = {tuple(one.arrays.values()): one for one in found if not taken & {*one.arrays.values()}}
    return [*known, *others.values()]


def cells_in(graph: Graph) -> Iterator[Cell]:
    """The cells of a graph: those that compute exactly what one of Keras' does, and those of which the one
    bias that there may be is clear.
    """
    made = len(graph.expressions)
    for loop in list(graph.loops()):
        arrays = {"kernel": loop.item.name, "recurrent_kernel": loop.recurrent.name}
        hidden, gates = graph.arrays[loop.recurrent.name].shape
        turned = bool(graph.expressions[loop.item.left][1])
        kinds = KINDS[gates // hidden]
        for kind, bias, inner, outer in product(kinds, ["", *loop.biases], ACTIVATIONS, ACTIVATIONS):
            terms = (graph.number("constant", "", bias, 0),) if bias else ()
            does = (partial(graph.number, activation, 0) for activation in (inner, outer))
            whole = kinds[kind](Parts(graph, loop.item, loop.recurrent, terms, *does))
            if loop.becomes < made and loop.recurrent.left in graph.memories and loop.becomes in whole:
                named = {**arrays, **({"bias": bias} if bias else {})}
                yield Cell(named, kind, (ACTIVATIONS[inner], ACTIVATIONS[outer]), turned)
                break
        else:
            if len(loop.biases) < 2:
                yield Cell({**arrays, **dict(zip(["bias"], loop.biases, strict=False))}, reverse=turned)


@dataclass(frozen=True)
class Parts:
    """What a cell of Keras' is made of in a graph: the products of its items and of what its recurrent kernel
    multiplies, the expression of its bias, if it has one, and the operators of its gates and its candidate.
    """

    graph: Graph
    item: Product
    recurrent: Product
    bias: tuple[int, ...]
    inner: Callable[[int], int]
    outer: Callable[[int], int]

    @property
    def hidden(self) -> int:
        """How many numbers its memory has."""
        return self.graph.arrays[self.recurrent.name].shape[0]

    def part(self, place: int, of: int) -> int:
        """Columns of a product, as a split in equal parts gives them."""
        return self.graph.number("Split", place, "columns", of)

    def columns(self, first: int, last: int, of: int) -> int:
        """Columns of a product or a kernel, counted in blocks as wide as the memory; to the end for -1."""
        ends = (block * self.hidden if block > 0 else block for block in (first, last))
        return self.graph.number("columns", *ends, of)

    def mixed(self, z: int, n: int) -> int:
        """What a GRU's memory becomes: z h + (1 - z) n."""
        graph, h = self.graph, self.recurrent.left
        rest = graph.number("Sub", 0, graph.number("one"), z)
        return graph.sum(graph.times(z, h), graph.times(rest, n))


def rnn(parts: Parts) -> Iterator[int]:
    """What the memory of a SimpleRNN becomes."""
    yield parts.outer(parts.graph.sum(parts.item.number, parts.recurrent.number, *parts.bias))


def lstm(parts: Parts) -> Iterator[int]:
    """What the memory of an LSTM becomes, by each memory that may be its cell."""
    graph = parts.graph
    whole = graph.sum(parts.item.number, parts.recurrent.number, *parts.bias)
    i, f, g, o = (parts.part(place, whole) for place in range(4))
    for cell in graph.memories:
        kept, new = graph.times(parts.inner(f), cell), graph.times(parts.inner(i), parts.outer(g))
        moved = graph.sum(kept, new)
        if graph.of(graph.memories[cell]) == moved:
            yield graph.times(parts.inner(o), parts.outer(moved))


def gru(parts: Parts) -> Iterator[int]:
    """What the memory of a GRU becomes that resets after the product, in each way that it is written."""
    graph = parts.graph
    for x, y in both_biases(graph, parts.item.number, parts.recurrent.number, parts.bias):
        blocks = [parts.columns(place, place + 1 if place < 2 else -1, y) for place in range(3)]
        for own in ([parts.part(place, y) for place in range(3)], blocks):
            z, r = (parts.inner(graph.sum(parts.part(place, x), own[place])) for place in range(2))
            yield parts.mixed(z, parts.outer(graph.sum(parts.part(2, x), graph.times(r, own[2]))))


def gru_reset_before(parts: Parts) -> Iterator[int]:
    """What the memory of a GRU becomes that resets before the product: its kernel is used in two pieces."""
    graph, h = parts.graph, parts.recurrent.left
    kernel = graph.number("constant", "", parts.recurrent.name, 0)
    gates, candidate = parts.columns(0, 2, kernel), parts.columns(2, -1, kernel)
    x, y = graph.sum(parts.item.number, *parts.bias), graph.number("MatMul", 0, h, gates)
    blocks = [parts.columns(place, place + 1, y) for place in range(2)]
    z, r = (parts.inner(graph.sum(parts.part(place, x), blocks[place])) for place in range(2))
    reset = graph.number("MatMul", 0, graph.times(r, h), candidate)
    yield parts.mixed(z, parts.outer(graph.sum(parts.part(2, x), reset)))


# What the memory of each of Keras' cells becomes, by how many gates there are in its kernel.
KINDS: dict[int, dict[str, Callable[[Parts], Iterator[int]]]] = {
    1: {"rnn": rnn},
    3: {"gru": gru, "gru_reset_before": gru_reset_before},
    4: {"lstm": lstm},
}


def both_biases(graph: Graph, one: int, other: int, bias: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Two products with the two biases in one constant, in the ways that these may be taken apart."""
    if not bias:
        yield one, other
        return
    rows = [graph.number("Unpack", place, *bias) for place in range(2)]
    split = [graph.number("Squeeze", 0, graph.number("Split", place, "rows", *bias)) for place in range(2)]
    for first, second in (rows, split):
        yield graph.sum(one, first), graph.sum(other, second)
