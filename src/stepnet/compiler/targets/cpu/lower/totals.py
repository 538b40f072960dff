"""Functions of totals: operations on values that all rows have together, such as the concatenation of two
gradients.

    dW = contract x d              task       a task after the loop, in machine code
    db = reduce d                  task
    both = concatenate dW db       function   here: code of one row, whose inputs are the totals
    s = sum both                              NumPy's: its order of additions is another one

Functions are the operations whose bits are NumPy's. All of a plan are one function of machine code, which
also writes totals that are constants, or that a call returns twice.
"""

from collections.abc import Collection

from stepnet.compiler.net.ir import Builder, Net, Node
from stepnet.compiler.net.type_rules import TOTALS
from stepnet.compiler.net.types import CONST, ROWS
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.lower.needs import tasks_of
from stepnet.compiler.values.records import dataclass

EXACT = frozenset(
    {
        *("add", "subtract", "multiply", "divide", "negative", "absolute", "sqrt", "cast", "detach", "where"),
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        *("logical_and", "logical_or", "logical_xor", "logical_not"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"),
    }
)
"""The elementwise operations whose machine code gives NumPy's bits."""
MOST_BYTES = 2**20
"""The largest size of the values of a plan's functions: for larger ones, whose tables of indices would be as
large, the time of a call of NumPy does not count.
"""


@dataclass(frozen=True)
class TotalFunctions:
    """The functions of totals of a plan, as a net of one row.

    numbers: the functions, as nodes of the plan's net.
    net: the net. Totals that tasks compute are its inputs per row.
    read: the input of each total that is read, by node of the plan's net.
    constants: the constants, as nodes of the plan's net, by node of this one.
    made: the results, in order: the node of the plan's net, and its position among the totals that a call
        returns; -1 for a value that only NumPy's work reads.
    """

    numbers: frozenset[int]
    net: Net
    read: dict[int, int]
    constants: dict[int, int]
    made: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, plan: Plan) -> "TotalFunctions | None":
        """Finds the nodes of a plan (a net's operations in their order) that are computed from totals (sums
        over all rows) alone, such as a step of an optimiser: machine code computes them at the end of a call,
        when the sums are complete. None if there are none, or if their values are too large.
        """
        net, tasks, totals = plan.net, tasks_of(plan), plan.results(plan.ends.totals)
        once = {number for number, node in enumerate(net.nodes) if is_known(node)} - {*plan.total}
        functions = functions_of(plan, tasks, once)
        made = [
            (number, place)
            for place, number in enumerate(totals)
            if number in functions | once or (number in tasks and number in totals[:place])
        ]
        others = {n for number in plan.total if number not in functions for n in net.nodes[number].inputs}
        made += [(number, -1) for number in sorted(functions & others - {*totals})]
        inside = {number for number, _ in made}
        for number in sorted(functions, reverse=True):
            inside |= {*net.nodes[number].inputs} if number in inside else set()
        types = [net.type_of(number) for number in inside]
        if not made or sum(type_.size * type_.itemsize for type_ in types) > MOST_BYTES:
            return None
        return cls.from_nodes(net, sorted(inside), tasks, functions, made)

    @classmethod
    def from_nodes(
        cls,
        net: Net,
        numbers: list[int],
        tasks: Collection[int],
        functions: Collection[int],
        made: list[tuple[int, int]],
    ) -> "TotalFunctions":
        """Makes the net that computes the functions of totals (values over all rows) of a plan (a net's
        operations in their order), as if there were one row: totals become its inputs.

        net: the plan's net. numbers: its nodes to copy: totals, functions of them, and constants.
        tasks, functions: those that machine code computes as totals, and the functions.
        made: the nodes of the results, each with its position among the totals that a call returns, or -1.
        """
        builder, copy_of = Builder(), dict[int, int]()
        for number in numbers:
            node = net.nodes[number]
            if number in functions:
                operands = [copy_of[operand] for operand in node.inputs]
                copy_of[number] = builder.copy(node, [per_row(builder, operand) for operand in operands])
            elif number in tasks:
                copy_of[number] = builder.input(node.type.at(ROWS), f"value{number}")
            elif node.operation == "constant":
                copy_of[number] = builder.copy(node, ())
            else:
                copy_of[number] = builder.input(node.type, f"value{number}")
        # No node is left out, so that numbers stay what they are.
        whole = Net(tuple(builder.nodes), inputs_of(builder), tuple(copy_of[number] for number, _ in made))
        read = {number: copy for number, copy in copy_of.items() if number in tasks}
        others = numbers_not_in(copy_of, tasks, functions)
        own = frozenset(number for number in numbers if number in functions)
        return cls(own, whole, read, {copy_of[number]: number for number in others}, tuple(made))

    @property
    def computed(self) -> list[int]:
        """The nodes of this net that are computed: not inputs, constants, nor constants that are repeated."""
        repeated = {number for number, node in enumerate(self.net.nodes) if node.operation == "expand"}
        known = {*self.net.inputs, *self.constants} | repeated
        return [number for number in range(len(self.net.nodes)) if number not in known]


def per_row(builder: Builder, number: int) -> int:
    """Returns a value of a builder at extent rows: a constant is repeated for each."""
    type_ = builder.type_of(number)
    return number if type_.extent == ROWS else builder.add("expand", number, extent=ROWS)


def is_known(node: Node) -> bool:
    """Tells whether a node has one value for all rows, which may be a constant."""
    return len(node.types) == 1 and node.types[0].extent == CONST


def inputs_of(builder: Builder) -> tuple[int, ...]:
    """Returns the numbers of the inputs that a builder has made."""
    return tuple(number for number, node in enumerate(builder.nodes) if node.operation == "input")


def numbers_not_in(numbers: Collection[int], *others: Collection[int]) -> list[int]:
    """Returns the numbers that are in none of the other collections, in order."""
    return [number for number in numbers if not any(number in other for other in others)]


def functions_of(plan: Plan, tasks: Collection[int], once: Collection[int]) -> set[int]:
    """Finds the nodes of a plan's net that depend on totals (values over all rows) alone, and whose
    operations have the same bits in machine code as in NumPy; returns their numbers.

    tasks: the totals that machine code computes. once: the nodes with one value for all rows, such as
    constants.
    """
    net, functions = plan.net, set[int]()
    for number in plan.total:
        node = net.nodes[number]
        fits = node.operation in EXACT if node.kind == "pointwise" else node.kind == "view"
        known = all(n in tasks or n in functions or n in once for n in node.inputs)
        if fits and node.operation not in TOTALS and known and node.type.size:
            functions.add(number)
    return functions
