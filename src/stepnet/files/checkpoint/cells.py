"""The recurrent cells of a TensorFlow graph by what its loops compute, where names tell nothing.

    h' = Mul(Sigmoid(Split:3(S)), Tanh(c'))        S = AddV2(MatMul(item, A), MatMul(h, B)), BiasAdd(.., C)
        -> an LSTM of Keras': A is its kernel, B its recurrent_kernel, C its bias

TensorFlow 2 calls a variable that it makes a constant after the operator that reads it, `Read_1` or `Cast`.
Its graph is not run: what each node computes is written as an expression of constants, of the item that a
loop takes and of the memories that it carries, and compared with those of Keras' cells. Where the matrices
are clear and the expression is none of these, the layout is asked for.

Source: while_v2.py of TensorFlow 2.21, and layers/rnn of Keras 3.15 and tf_keras 2.21.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations, product

from stepnet.files.checkpoint.protobuf import Message
from stepnet.files.checkpoint.tensors import tensor
from stepnet.files.model import Array

NAME, OP, INPUTS, ATTRIBUTES = 1, 2, 3, 5  # of a node
FUNCTIONS, SIGNATURE, ARGUMENTS, NODES, RETURNS = 1, 1, 2, 3, 4  # of a library, and of a function
RESULTS = 3  # of a signature
KEY, VALUE, FUNCTION = 1, 2, 10  # of an attribute
INTEGER, FLAG, TENSOR = 3, 5, 8  # of an attribute
MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
TURNS = ("transpose_a", "transpose_b", "adj_x", "adj_y")
SAME = {"Identity", "ReadVariableOp", "Enter", "Switch", "NextIteration", "Exit", "Cast"}
CALLS = {"While": "body", "StatelessWhile": "body", "PartitionedCall": "f", "StatefulPartitionedCall": "f"}
ITEMS = {"TensorListGetItem", "TensorArrayReadV3"}
ACTIVATIONS = {"Sigmoid": "sigmoid", "Tanh": "tanh", "Relu": "relu", "Softsign": "softsign", "Elu": "elu"}
DEEPEST = 200  # operators behind one another that an expression is made of
MOST_TERMS = 8
MOST_EXPRESSIONS = 500  # of which a cell is made
AXES: Mapping[tuple[int, ...], str] = {
    (0,): "rows",
    (1,): "columns",
    (-1,): "columns",
}  # that a matrix is split along
KINDS = {1: "rnn", 3: "gru", 4: "lstm"}  # by the number of gates
# From where on what stands in an expression are numbers of others.
PLAIN = {
    "sum": 0,
    "Mul": 0,
    "columns": 2,
    "Split": 2,
    "constant": 3,
    "other": 3,
    "memory": 2,
    "item": 1,
    "one": 0,
}

Value = tuple[str, str, int]  # the function, "" for the graph itself; the node in it; which of its outputs


@dataclass(frozen=True)
class Operator:
    """A node: what it does, what it takes, and what it says: of a constant the few whole numbers that it is,
    of a slice its masks.
    """

    op: str
    inputs: tuple[Value, ...] = ()
    numbers: tuple[int, ...] = ()
    masks: Mapping[str, int] = field(default_factory=dict[str, int])


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
    found = list(whole.cells())
    known = [cell for cell in found if cell.kind]
    taken = {name for cell in known for name in cell.arrays.values()}
    others = {tuple(one.arrays.values()): one for one in found if not taken & {*one.arrays.values()}}
    return [*known, *others.values()]


def operators(graph: Message) -> dict[tuple[str, str], Operator]:
    """The nodes of a graph and of its functions, by function and name.

    An argument of a function is what its caller gives; one that a loop gives itself anew is its memory.
    """
    found = dict(nodes_in("", graph.messages(1)))
    functions = {one.one(SIGNATURE).text(1): one for library in graph.messages(2)
                 for one in library.messages(FUNCTIONS)}  # fmt: skip
    for name, one in functions.items():
        found.update(nodes_in(name, one.messages(NODES)))
    callers: dict[str, list[Operator]] = {}
    for scope, nodes in (
        ("", graph.messages(1)),
        *((name, one.messages(NODES)) for name, one in functions.items()),
    ):
        for node in nodes:
            for attribute in node.messages(ATTRIBUTES) if node.text(OP) in CALLS else ():
                if attribute.text(KEY) == CALLS[node.text(OP)]:
                    called = attribute.one(VALUE).one(FUNCTION).text(1)
                    callers.setdefault(called, []).append(found[scope, node.text(NAME)])
    for name, own in callers.items():
        if name in functions and len(own) == 1:  # what several callers give is not one thing
            found.update(arguments(name, functions[name], own[0]))
    return found


def arguments(name: str, function: Message, caller: Operator) -> Iterator[tuple[tuple[str, str], Operator]]:
    """The arguments of a function as what its caller gives, and what a loop then gives itself."""
    returned = {entry.text(1): entry.text(2) for entry in function.messages(RETURNS)}
    results = [returned.get(said.text(1), "") for said in function.one(SIGNATURE).messages(RESULTS)]
    names = [said.text(1) for said in function.one(SIGNATURE).messages(ARGUMENTS)]
    again = results if caller.op.endswith("While") else [""] * len(names)
    for argument, given, text in zip(names, caller.inputs, again, strict=False):
        inputs = (given, value_of(name, text)) if text else (given,)
        yield (name, argument), Operator("Merge" if text else "Identity", inputs)


def nodes_in(scope: str, nodes: Sequence[Message]) -> Iterator[tuple[tuple[str, str], Operator]]:
    """The nodes of a graph or function by its name and theirs."""
    for node in nodes:
        texts = [bytes(piece).decode(errors="replace") for piece in node.pieces(INPUTS)]
        inputs = tuple(value_of(scope, text) for text in texts if not text.startswith("^"))
        op, said = node.text(OP), {one.text(KEY): one.one(VALUE) for one in node.messages(ATTRIBUTES)}
        masks = {name: said[name].number(INTEGER) for name in MASKS if op == "StridedSlice" and name in said}
        if any(said[name].number(FLAG) for name in TURNS if name in said):
            op = f"{op} of what is transposed"
        numbers: tuple[int, ...] = ()
        if op == "Const" and "value" in said:
            constant = said["value"].one(TENSOR)
            whole, real = (tensor(node.text(NAME), constant, whole=whole) for whole in (True, False))
            numbers = tuple(map(int, whole.reshape(-1))) if whole is not None else ()
            op = "one" if real is not None and real.shape == () and real == 1 else op
        yield (scope, node.text(NAME)), Operator(op, inputs, numbers, masks)


def value_of(scope: str, text: str) -> Value:
    """An output of a node: `split:1` in a graph, and `split:output:1` in a function.

    >>> value_of("", "cell/split:1"), value_of("body", "cell/split:output:1"), value_of("body", "x")
    (('', 'cell/split', 1), ('body', 'cell/split', 1), ('body', 'x', 0))
    """
    name, *places = text.split(":")
    last = places[-1] if places else ""
    return scope, name, int(last) if last.isdecimal() and len(last) < 4 else 0


@dataclass(frozen=True)
class Product:
    """A product with a constant matrix: its number, that of what is multiplied, the name of the constant, and
    whether what is multiplied is an item.
    """

    number: int
    left: int
    name: str
    of_item: bool


Expression = tuple[str | int, ...]  # what is done, and the numbers of the expressions to which


@dataclass
class Graph:
    """The expressions of a graph by their numbers, equal ones under one."""

    operators: Mapping[tuple[str, str], Operator]
    arrays: Mapping[str, Array]
    expressions: list[Expression] = field(default_factory=list[Expression])
    numbers: dict[Expression, int] = field(default_factory=dict[Expression, int])
    values: dict[Value, int] = field(default_factory=dict[Value, int])
    memories: dict[int, Value] = field(default_factory=dict[int, Value])  # with what each becomes

    def number(self, *expression: str | int) -> int:
        """The number of an expression."""
        found = self.numbers.setdefault(expression, len(self.expressions))
        if found == len(self.expressions):
            self.expressions.append(expression)
        return found

    def sum(self, *terms: int) -> int:
        """The number of a sum or, by the sums in it, of all their terms, in whatever order."""
        return self.number("sum", *sorted(part for term in terms for part in self.terms(term)))

    def terms(self, number: int) -> list[int]:
        """The terms of a sum, if it is one of not too many."""
        what, *parts = self.expressions[number]
        return [int(part) for part in parts] if what == "sum" and len(parts) < MOST_TERMS else [number]

    def times(self, one: int, other: int) -> int:
        """The number of a product."""
        return self.number("Mul", *sorted((one, other)))

    def of(self, value: Value, depth: int = 0) -> int:
        """The number of what a value is."""
        if value not in self.values:
            self.values[value] = self.made(value, depth)
        return self.values[value]

    def made(self, value: Value, depth: int) -> int:
        """As `of`, of a value that was not asked for yet."""
        scope, name, place = value
        node = self.operators.get((scope, name))
        if node is None or depth > DEEPEST or not node.inputs:
            if node is not None and node.op == "one":
                return self.number("one")
            constant = not scope and name in self.arrays and node is not None and node.op == "Const"
            return self.number("constant" if constant else "other", scope, name, place)
        if node.op == "Merge":
            first, *again = node.inputs
            same = all(self.origin(one) in (value, self.origin(first)) for one in again)
            if same:
                return self.of(first, depth + 1)
            memory = self.number("memory", scope, name)
            self.memories[memory] = again[0]
            return memory
        if node.op in SAME:
            return self.of(node.inputs[0], depth + 1)
        if node.op in ITEMS:
            return self.number("item", self.is_turned(node.inputs[0]))
        inputs = [self.of(one, depth + 1) for one in node.inputs]
        if node.op in ("AddV2", "Add", "BiasAdd"):
            return self.sum(*inputs)
        if node.op == "Mul" and len(inputs) == 2:
            return self.times(*inputs)
        if node.op == "Split" and len(inputs) == 2:
            axis = self.operators[node.inputs[0][:2]].numbers if node.inputs[0][:2] in self.operators else ()
            return self.number("Split", place, str(AXES.get(axis, "?")), inputs[1])
        if node.op == "StridedSlice" and (ends := self.columns(node)) is not None:
            return self.number("columns", *ends, inputs[0])
        return self.number(node.op, place, *inputs)

    def columns(self, node: Operator) -> tuple[int, int] | None:
        """Where a slice of columns of a matrix begins and ends, -1 for the last; None for any other slice."""
        ends = [self.operators.get(one[:2]) for one in node.inputs[1:]]
        if len(ends) != 3 or not all(one is not None and len(one.numbers) == 2 for one in ends):
            return None
        begin, end, step = (one.numbers for one in ends if one is not None)
        first, last, dots, *others = (node.masks.get(name, 0) for name in MASKS)
        if step != (1, 1) or any(others) or not (dots == 1 or (not dots and first & last & 1)):
            return None
        return 0 if first & 2 else begin[1], -1 if last & 2 else end[1]

    def origin(self, value: Value) -> Value:
        """The value that another one is, whatever it passes through."""
        for _ in range(DEEPEST):
            node = self.operators.get(value[:2])
            if node is None or node.op not in SAME or not node.inputs:
                break
            value = node.inputs[0]
        return (*value[:2], 0)

    def is_turned(self, items: Value) -> int:
        """1 if a list is of the steps from the last on, 0 if it is of steps as they are."""
        for _ in range(DEEPEST):
            node = self.operators.get(self.origin(items)[:2])
            if node is None or node.op in ("ReverseV2", "Reverse", "ReverseSequence"):
                return int(node is not None)
            if not node.inputs or node.op not in (
                "Merge",
                "TensorListFromTensor",
                "Transpose",
                "TensorArrayScatterV3",
            ):
                return 0
            items = node.inputs[2 if node.op == "TensorArrayScatterV3" else 0]
        return 0

    # ---- cells

    def constant(self, number: int) -> str:
        """The name of a constant, "" for what is none; a slice or a part of one is of it."""
        for _ in range(4):
            what, *parts = self.expressions[number]
            if what == "constant":
                return str(parts[1])
            if what not in ("columns", "Unpack", "Split"):
                return ""
            number = int(parts[-1])
        return ""

    def inside(self, number: int) -> list[int]:
        """All expressions that one is made of, itself among them; none where they are too many for a cell."""
        found, pending = {number}, [number]
        while pending and len(found) < MOST_EXPRESSIONS:
            what, *parts = self.expressions[pending.pop()]
            new = {int(part) for part in parts[PLAIN.get(str(what), 1) :]} - found
            found |= new
            pending += new
        return [] if pending else sorted(found)

    def loops(self) -> Iterator[tuple[int, Product, Product, list[str]]]:
        """What a memory becomes, by what its loop has: a product of an item and one of something else whose
        matrices fit one another, and the constants that may be their bias.
        """
        for again in list(self.memories.values()):
            becomes = self.of(again)
            parts = self.inside(becomes)
            products = [one for part in parts if (one := self.product(part)) is not None]
            names = dict.fromkeys(name for part in parts if (name := self.constant(part)))
            for one, other in permutations(products, 2):
                wide, (hidden, gates) = self.arrays[one.name].shape[1], self.arrays[other.name].shape
                fits = wide == gates and gates in (hidden, 3 * hidden, 4 * hidden)
                if one.of_item and not other.of_item and fits:
                    shapes = (gates,), (2, gates)
                    yield becomes, one, other, [name for name in names if self.arrays[name].shape in shapes]

    def product(self, number: int) -> Product | None:
        """A product with a constant matrix; None for any other expression."""
        what, *parts = self.expressions[number]
        if what != "MatMul" or len(parts) != 3:
            return None
        left, name = int(parts[1]), self.constant(int(parts[2]))
        of_item = self.expressions[left][0] == "item"
        return Product(number, left, name, of_item) if name and self.arrays[name].ndim == 2 else None

    def cells(self) -> Iterator[Cell]:
        """The cells: those that compute exactly what one of Keras' does, and those of which the one bias that
        there may be is clear.
        """
        made = len(self.expressions)
        for becomes, one, other, biases in list(self.loops()):
            arrays = {"kernel": one.name, "recurrent_kernel": other.name}
            hidden, gates = self.arrays[other.name].shape
            kind = KINDS[gates // hidden]
            turned = bool(self.expressions[one.left][1])
            for bias, inner, outer in product(["", *biases], ACTIVATIONS, ACTIVATIONS):
                whole = expected(self, kind, one, other, bias, (inner, outer))
                if becomes < made and other.left in self.memories and becomes in whole:
                    named = {**arrays, **({"bias": bias} if bias else {})}
                    yield Cell(named, kind, (ACTIVATIONS[inner], ACTIVATIONS[outer]), turned)
                    break
            else:
                if len(biases) < 2:
                    yield Cell({**arrays, **dict(zip(["bias"], biases, strict=False))}, reverse=turned)


def expected(
    graph: Graph, kind: str, one: Product, other: Product, bias: str, activations: tuple[str, str]
) -> Iterator[int]:
    """What the memory of a cell of Keras' becomes, in each way that it may be written; the arguments are the
    products of its items and of its memory, its bias, and the operators of its gates and its candidate.
    """
    b = [graph.number("constant", "", bias, 0)] if bias else []
    inner, outer = (partial(graph.number, activation, 0) for activation in activations)
    h, whole = other.left, graph.sum(one.number, other.number, *b)

    def part(place: int, of: int) -> int:
        return graph.number("Split", place, "columns", of)

    if kind == "rnn":
        yield outer(whole)
    elif kind == "lstm":
        i, f, g, o = (part(place, whole) for place in range(4))
        for c in graph.memories:
            moved = graph.sum(graph.times(inner(f), c), graph.times(inner(i), outer(g)))
            if graph.of(graph.memories[c]) == moved:
                yield graph.times(inner(o), outer(moved))
    elif kind == "gru":
        hidden = graph.arrays[other.name].shape[0]
        for x, y in both_biases(graph, one.number, other.number, b):
            cut = [
                graph.number("columns", place * hidden, (place + 1) * hidden if place < 2 else -1, y)
                for place in range(3)
            ]
            for own in ([part(place, y) for place in range(3)], cut):
                z, r = (inner(graph.sum(part(place, x), own[place])) for place in range(2))
                n = outer(graph.sum(part(2, x), graph.times(r, own[2])))
                yield graph.sum(
                    graph.times(z, h), graph.times(graph.number("Sub", 0, graph.number("one"), z), n)
                )


def both_biases(graph: Graph, one: int, other: int, bias: list[int]) -> Iterator[tuple[int, int]]:
    """Two products with the two biases in one constant, in the ways that these may be taken apart."""
    if not bias:
        yield one, other
        return
    rows = [graph.number("Unpack", place, *bias) for place in range(2)]
    split = [graph.number("Squeeze", 0, graph.number("Split", place, "rows", *bias)) for place in range(2)]
    for first, second in (rows, split):
        yield graph.sum(one, first), graph.sum(other, second)
