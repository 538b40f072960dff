"""The nodes of a TensorFlow graph as numbered expressions, where equal expressions have the same number.

    AddV2(MatMul(item, A), MatMul(h, B)), BiasAdd(.., C)  ->  sum of two products and the constant C

The graph is not run. Each node becomes an expression of constants, of the item that a loop reads at a step,
and of the memories that it carries. cells.py compares these with the expressions of Keras' cells. (The known
cells of `compiler.plan.recognise` are found in nets. A net of such a graph would take an operator for each of
TensorFlow's, and says no more of where the weights are.)

Source: while_v2.py of TensorFlow 2.21.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from itertools import permutations

from stepnet.compiler.values.records import dataclass
from stepnet.layout.files.checkpoint.protobuf import Message
from stepnet.layout.files.checkpoint.tensors import tensor
from stepnet.layout.files.model import Array

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
DEEPEST = 200  # the deepest nesting of operators in an expression
MOST_TERMS = 8
MOST_EXPRESSIONS = 500  # the most of a cell
# The axis along which a matrix is split.
AXES: Mapping[tuple[int, ...], str] = {(0,): "rows", (1,): "columns", (-1,): "columns"}
# By the first word of an expression: the index from which on its parts are numbers of other expressions.
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
    """A node of a TensorFlow graph.

    op: the name of its operator.
    inputs: the values that are its inputs.
    numbers: the integers of a constant, if they are few.
    masks: the mask attributes of a slice, by name.
    """

    op: str
    inputs: tuple[Value, ...] = ()
    numbers: tuple[int, ...] = ()
    masks: Mapping[str, int] = field(default_factory=dict[str, int])


def operators(graph: Message) -> dict[tuple[str, str], Operator]:
    """Returns the nodes of a TensorFlow graph and of its functions, by (function, name), as input of
    `ExpressionGraph`.

    Arguments of functions become nodes too: an Identity of the caller's value or, for a memory of a loop, a
    Merge of the initial and the next value.
    """
    by_name = dict(nodes_in("", graph.messages(1)))
    functions = {
        function.submessage(SIGNATURE).text(1): function
        for library in graph.messages(2)
        for function in library.messages(FUNCTIONS)
    }
    for name, function in functions.items():
        by_name.update(nodes_in(name, function.messages(NODES)))
    callers: dict[str, list[Operator]] = {}
    for scope, nodes in (
        ("", graph.messages(1)),
        *((name, function.messages(NODES)) for name, function in functions.items()),
    ):
        for node in nodes:
            for attribute in node.messages(ATTRIBUTES) if node.text(OP) in CALLS else ():
                if attribute.text(KEY) == CALLS[node.text(OP)]:
                    called = attribute.submessage(VALUE).submessage(FUNCTION).text(1)
                    callers.setdefault(called, []).append(by_name[scope, node.text(NAME)])
    for name, calls in callers.items():
        if name in functions and len(calls) == 1:  # with several callers, arguments have several values
            by_name.update(arguments(name, functions[name], calls[0]))
    return by_name


def arguments(name: str, function: Message, caller: Operator) -> Iterator[tuple[tuple[str, str], Operator]]:
    """Yields the arguments of the TensorFlow function `name` as nodes of the graph: ((function, argument),
    node). A node is an Identity of the value that the caller passes or, for a memory of a loop, a Merge of
    the initial and the next value.

    function: the FunctionDef of that name. caller: the only node that calls it.
    """
    returned = {entry.text(1): entry.text(2) for entry in function.messages(RETURNS)}
    results = [
        returned.get(result.text(1), "") for result in function.submessage(SIGNATURE).messages(RESULTS)
    ]
    names = [result.text(1) for result in function.submessage(SIGNATURE).messages(ARGUMENTS)]
    next_values = results if caller.op.endswith("While") else [""] * len(names)
    for argument, value, text in zip(names, caller.inputs, next_values, strict=False):
        inputs = (value, value_of(name, text)) if text else (value,)
        yield (name, argument), Operator("Merge" if text else "Identity", inputs)


def nodes_in(scope: str, nodes: Sequence[Message]) -> Iterator[tuple[tuple[str, str], Operator]]:
    """Yields ((scope, name), operator) for nodes of a TensorFlow graph; scope: the name of the function that
    they are in, or "" for the main graph. An operator has its kind, the values that it takes, the numbers of
    a small constant, and the masks of a slice.

    The operator of a constant 1 is called "one", and a product of transposed factors gets another name, so
    that it equals no plain one. Control inputs ("^name") are left out.
    """
    for node in nodes:
        texts = [bytes(piece).decode(errors="replace") for piece in node.pieces(INPUTS)]
        inputs = tuple(value_of(scope, text) for text in texts if not text.startswith("^"))
        op = node.text(OP)
        attributes = {entry.text(KEY): entry.submessage(VALUE) for entry in node.messages(ATTRIBUTES)}
        masks = {
            name: attributes[name].number(INTEGER)
            for name in MASKS
            if op == "StridedSlice" and name in attributes
        }
        if any(attributes[name].number(FLAG) for name in TURNS if name in attributes):
            op = f"{op} of what is transposed"
        numbers: tuple[int, ...] = ()
        if op == "Const" and "value" in attributes:
            constant = attributes["value"].submessage(TENSOR)
            integers = tensor(node.text(NAME), constant, integers=True)
            floats = tensor(node.text(NAME), constant)
            numbers = tuple(map(int, integers.reshape(-1))) if integers is not None else ()
            op = "one" if floats is not None and floats.shape == () and floats == 1 else op
        yield (scope, node.text(NAME)), Operator(op, inputs, numbers, masks)


def value_of(scope: str, text: str) -> Value:
    """Parses a reference to an output of a TensorFlow node: `split:1` in a graph, `split:output:1` in a
    function. Returns (scope, node, number of the output, by default 0); scope: the function, or "".

    >>> value_of("", "cell/split:1"), value_of("body", "cell/split:output:1"), value_of("body", "x")
    (('', 'cell/split', 1), ('body', 'cell/split', 1), ('body', 'x', 0))
    """
    name, *ports = text.split(":")
    last = ports[-1] if ports else ""
    return scope, name, int(last) if last.isdecimal() and len(last) < 4 else 0


@dataclass(frozen=True)
class MatrixProduct:
    """A product with a constant matrix in a graph, whose expressions are numbered.

    number: the number of the product.
    left: the number of its left factor.
    name: the name of the constant matrix.
    of_item: True if the left factor is the input of a step.
    """

    number: int
    left: int
    name: str
    of_item: bool


@dataclass(frozen=True)
class LoopMemory:
    """A memory of a loop in a graph that may be the memory of a recurrent cell.

    becomes: the number of the expression of its next value.
    item, recurrent: the two products in that, of the step's input and of another value.
    biases: the names of the constants that may be the bias.
    """

    becomes: int
    item: MatrixProduct
    recurrent: MatrixProduct
    biases: tuple[str, ...]


Expression = tuple[str | int, ...]  # an operator, and the numbers of its operands


@dataclass
class ExpressionGraph:
    """The expressions that a TensorFlow graph computes, by number: equal ones have the same number."""

    operators: Mapping[tuple[str, str], Operator]
    arrays: Mapping[str, Array]
    expressions: list[Expression] = field(default_factory=list[Expression])
    numbers: dict[Expression, int] = field(default_factory=dict[Expression, int])
    values: dict[Value, int] = field(default_factory=dict[Value, int])
    memories: dict[int, Value] = field(default_factory=dict[int, Value])  # the next value of each

    def number(self, *expression: str | int) -> int:
        """Returns the number of an expression in this graph. Equal expressions have the same number; a new
        expression is stored under the next number. expression: an operator, then its settings and the numbers
        of its operands.
        """
        number = self.numbers.setdefault(expression, len(self.expressions))
        if number == len(self.expressions):
            self.expressions.append(expression)
        return number

    def sum(self, *terms: int) -> int:
        """Returns the number of the sum of the expressions with the numbers `terms`. Terms that are sums are
        replaced by their own terms, and all are sorted, so that equal sums have the same number.
        """
        operands = sorted(argument for term in terms for argument in self.terms(term))
        return self.number("sum", *operands) if len(operands) > 1 else operands[0]

    def terms(self, number: int) -> list[int]:
        """Returns the numbers of the terms of a sum, given by the number of its expression, to merge it into
        another sum; only `number` itself if the expression is no sum or a long one.
        """
        operator, *operands = self.expressions[number]
        return (
            [int(argument) for argument in operands]
            if operator == "sum" and len(operands) < MOST_TERMS
            else [number]
        )

    def times(self, left: int, right: int) -> int:
        """Returns the number of the product of two expressions, by theirs; it is the same in either order."""
        return self.number("Mul", *sorted((left, right)))

    def of(self, value: Value, depth: int = 0) -> int:
        """Returns the number of the expression that an output of a TensorFlow node, `value` (function, node,
        output), computes: outputs that compute the same have the same number. depth: of the recursion.
        """
        if value not in self.values:
            self.values[value] = self.new_expression(value, depth)
        return self.values[value]

    def new_expression(self, value: Value, depth: int) -> int:
        """Makes the expression of a value of the TensorFlow graph that has none yet, and returns its number.
        Puts the memory of a loop, with its next value, into `memories`.

        value: (function, node, output). depth: of the recursion; beyond `DEEPEST`, the value becomes an
        "other".
        """
        scope, name, output = value
        node = self.operators.get((scope, name))
        if node is None or depth > DEEPEST or not node.inputs:
            if node is not None and node.op == "one":
                return self.number("one")
            constant = not scope and name in self.arrays and node is not None and node.op == "Const"
            return self.number("constant" if constant else "other", scope, name, output)
        if node.op == "Merge":
            first, *next_values = node.inputs
            same = all(self.origin(operand) in (value, self.origin(first)) for operand in next_values)
            if same:
                return self.of(first, depth + 1)
            memory = self.number("memory", scope, name)
            self.memories[memory] = next_values[0]
            return memory
        if node.op in SAME:
            return self.of(node.inputs[0], depth + 1)
        if node.op in ITEMS:
            return self.number("item", self.is_reversed(node.inputs[0]))
        inputs = [self.of(operand, depth + 1) for operand in node.inputs]
        if node.op in ("AddV2", "Add", "BiasAdd"):
            return self.sum(*inputs)
        if node.op == "Mul" and len(inputs) == 2:
            return self.times(*inputs)
        if node.op == "Split" and len(inputs) == 2:
            axis = self.operators[node.inputs[0][:2]].numbers if node.inputs[0][:2] in self.operators else ()
            return self.number("Split", output, str(AXES.get(axis, "?")), inputs[1])
        cuts = {"StridedSlice": self.columns, "SplitV": partial(self.piece, output)}
        if node.op in cuts and (ends := cuts[node.op](node)) is not None:
            return self.number("columns", *ends, inputs[0])
        return self.number(node.op, output, *inputs)

    def columns(self, node: Operator) -> tuple[int, int] | None:
        """Returns the columns of a matrix that a TensorFlow slice node takes: the first one, and the one
        after the last, -1 for the end; None for a slice that takes anything but consecutive columns.
        """
        ends = [self.operators.get(operand[:2]) for operand in node.inputs[1:]]
        if len(ends) != 3 or not all(bound is not None and len(bound.numbers) == 2 for bound in ends):
            return None
        begin, end, step = (bound.numbers for bound in ends if bound is not None)
        first, last, dots, *others = (node.masks.get(name, 0) for name in MASKS)
        if step != (1, 1) or any(others) or not (dots == 1 or (not dots and first & last & 1)):
            return None
        return 0 if first & 2 else begin[1], -1 if last & 2 else end[1]

    def piece(self, output: int, node: Operator) -> tuple[int, int] | None:
        """Returns the columns of a matrix in output number `output` of a TensorFlow node that splits it by
        columns: the first one, and the one after the last, -1 for the end; None for any other split.
        """
        widths, axis = (self.operators.get(operand[:2], Operator("")).numbers for operand in node.inputs[1:3])
        if AXES.get(axis) != "columns" or output >= len(widths) or -1 in widths[:-1]:
            return None
        begin = sum(widths[:output])
        return begin, -1 if output == len(widths) - 1 else begin + widths[output]

    def origin(self, value: Value) -> Value:
        """Returns the value, an output of a TensorFlow node, from which `value` is passed on unchanged by
        operators such as Identity; it is always named as output 0 of its node. Two values are equal if they
        have the same origin.
        """
        for _ in range(DEEPEST):
            node = self.operators.get(value[:2])
            if node is None or node.op not in SAME or not node.inputs:
                break
            value = node.inputs[0]
        return (*value[:2], 0)

    def is_reversed(self, items: Value) -> int:
        """Returns 1 if the list of steps that a loop reads (`items`) was reversed in time, else 0."""
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
        """Returns the name of the constant that the expression with this number is, or is cut out of by at
        most three slices or splits; "" for any other expression.
        """
        for _ in range(4):
            operator, *operands = self.expressions[number]
            if operator == "constant":
                return str(operands[1])
            if operator not in ("columns", "Unpack", "Split"):
                return ""
            number = int(operands[-1])
        return ""

    def subexpressions(self, number: int) -> list[int]:
        """Returns the numbers of an expression and of all expressions that it is computed from, sorted; [] if
        there are `MOST_EXPRESSIONS` or more, which are too many for a cell.
        """
        reached, pending = {number}, [number]
        while pending and len(reached) < MOST_EXPRESSIONS:
            operator, *operands = self.expressions[pending.pop()]
            new = {int(argument) for argument in operands[PLAIN.get(str(operator), 1) :]} - reached
            reached |= new
            pending += new
        return [] if pending else sorted(reached)

    def loops(self) -> Iterator[LoopMemory]:
        """Yields the memories of loops in a TensorFlow graph that may be the memory of a recurrent cell. The
        next value of such a memory is computed from two products, one with the step's input and one with
        another value, by constant matrices of equally many columns: 1, 3 or 4 times as many as the cell has
        units.
        """
        for next_value in list(self.memories.values()):
            becomes = self.of(next_value)
            operands = self.subexpressions(becomes)
            products = [product for argument in operands if (product := self.product(argument)) is not None]
            names = dict.fromkeys(name for argument in operands if (name := self.constant(argument)))
            for item, recurrent in permutations(products, 2):
                wide = self.arrays[item.name].shape[1]
                hidden, gates = self.arrays[recurrent.name].shape
                fits = wide == gates and gates in (hidden, 3 * hidden, 4 * hidden)
                if item.of_item and not recurrent.of_item and fits:
                    shapes = (gates,), (2, gates)
                    biases = tuple(name for name in names if self.arrays[name].shape in shapes)
                    yield LoopMemory(becomes, item, recurrent, biases)

    def product(self, number: int) -> MatrixProduct | None:
        """Returns the matrix product that the expression with this number is, if its right factor is a
        constant matrix, and whether its left factor is the input of a loop's step. Returns None for any other
        expression.
        """
        operator, *operands = self.expressions[number]
        if operator != "MatMul" or len(operands) != 3:
            return None
        left, name = int(operands[1]), self.constant(int(operands[2]))
        of_item = self.expressions[left][0] == "item"
        return MatrixProduct(number, left, name, of_item) if name and self.arrays[name].ndim == 2 else None
