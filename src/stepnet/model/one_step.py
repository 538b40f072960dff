"""The plan of a recurrence as a part of one step of another recurrence.

    before  x @ W          rows/steps            x @ W          rows
    loop    + h @ R        rows          ->      + h @ R        rows
    after   h @ V          rows/steps            h @ V          rows

The values have the same bits as in the plan's kernel for sequences of one step: the net is taken after all
passes, and barriers (`detach`, which no pass looks through) keep the passes of the new net from regrouping
its sums and products.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial, reduce

from stepnet.compiler.net.ir import Builder, Node, ancestors
from stepnet.compiler.net.ops import OPERATIONS
from stepnet.compiler.net.types import CONST, ROWS, STEPS
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.values.records import dataclass

GROUPED = "add", "subtract", "concatenate"
"""Operations that passes group by when their operands are known."""
NOT_OF_A_STEP = ("reduce", "contract", "scatter", "index")
"""Operations of the net around a recurrence that have no meaning for a single step."""


def refusal(plan: Plan) -> str | None:
    """Returns why a plan cannot be added to the step of another recurrence; None if it can."""
    wrong = next((node for node in plan.net.nodes if is_not_of_a_step(node)), None)
    return None if wrong is None else f"it has {wrong.operation} beside its loop"


def is_not_of_a_step(node: Node) -> bool:
    """Returns whether an operation outside a recurrence has no meaning in a single step.

    A plan (a recurrence's operations in order) with such an operation cannot run as a single step. An
    `expand` with `how` is the gradient of a first or last value: it writes to one step of a sequence.
    """
    if node.operation == "reduce" and node.attributes["how"] == "last":
        return False  # a step is the last one so far
    return node.operation in NOT_OF_A_STEP or (node.operation == "expand" and "how" in node.attributes)


def reads_index(plan: Plan) -> bool:
    """Returns whether the step of a plan reads its index, so that earlier steps must be counted."""
    return any(node.operation == "index" for node in plan.body.nodes)


def one_step(
    builder: Builder,
    plan: Plan,
    operands: Sequence[int],
    index: int,
    known: Mapping[int, int],
    copies: int = 0,
) -> list[int]:
    """Adds one step of a plan (a recurrence's operations in order) to a body, the net of another step.

    Returns the numbers of its outputs, then of its next memories.

    builder: the builder of the body.
    operands: for each input of the plan's net, the number of its value in the body, per row or constant.
    index: the number in the body of the count of earlier steps.
    known: for values of the plan's net that the body already has, their numbers in the body.
    copies: the number of steps computed beside each other (`StepsBeside`), such as one per beam of a beam
        search; 0 for one step.
    """
    if copies:
        return StepsBeside(builder, plan, index, known, copies=copies).results(operands)
    return OneStep(builder, plan, index, known).results(operands)


def of_inputs(plan: Plan) -> list[int]:
    """Lists the values per step of a plan that depend on its sequences, parameters and constants alone, so
    that they can be computed before the loop.

    They are given by their numbers in the net of the plan, a recurrence's operations in order.
    """
    found = {plan.net.inputs[place] for place in (*plan.ends.sequences, *plan.ends.parameters)}
    for number, node in enumerate(plan.net.nodes):
        if (
            node.operation != "recur" and node.inputs and found.issuperset(node.inputs)
        ) or node.operation == "constant":
            found.add(number)
    return [number for number in sorted(found) if plan.net.nodes[number].types[0].extent == STEPS]


def before_loop(
    builder: Builder, plan: Plan, operands: Mapping[int, int], wanted: Sequence[int]
) -> list[int]:
    """Adds the values of a plan that depend on no memory, for one step, to a body (the net of a step).

    Returns the numbers of the wanted values in the body.

    builder: the builder of the body.
    plan: a recurrence's operations in order.
    operands: for these inputs of the plan's net, the number of the value in the body.
    wanted: the numbers of the values in the net of the plan.
    """
    step = OneStep(builder, plan, -1, operands)
    needed = ancestors(plan.net.nodes, wanted)
    for number, node in enumerate(plan.net.nodes):
        if number in needed and node.operation != "input":
            step.place[number] = step.copied(node, [step.place[operand] for operand in node.inputs])
    return [step.place[number] for number in wanted]


@dataclass
class OneStep:
    """One step of a plan (a recurrence's operations in order) while it is added to a body, the net of a step.

    index: the number in the body of the count of earlier steps; -1 where the step does not read it.
    known: for values of the plan's net that the body already has, their numbers in the body.
    carried: the memories before the step; None for those with which the plan's recurrence begins.
    kept_apart: whether sums and concatenations get barriers too. A value per row that a call repeats at every
        step is known earlier in a step, and passes group sums and products by when their terms are known.
    has_barriers: whether there are any barriers, which stop gradients.
    place: for each value of the plan's net so far, its number in the body.
    begins: the memories with which the recurrence begins in a call of whole sequences.
    following: the memories after the step.
    """

    builder: Builder
    plan: Plan
    index: int
    known: Mapping[int, int]
    carried: Sequence[int] | None = None
    kept_apart: bool = False
    has_barriers: bool = True
    place: dict[int, int] = field(init=False)
    begins: list[int] = field(init=False, default_factory=list[int])
    following: list[int] = field(init=False, default_factory=list[int])

    def __post_init__(self) -> None:
        """Starts the map from the plan's values to the step's with the values that the step already has."""
        self.place = dict(self.known)

    def results(self, operands: Sequence[int]) -> list[int]:
        """Adds one step of the plan (a recurrence's operations in order) to the body, the net of another
        step; returns the numbers of its results there, in the order of the results of the plan's net. Values
        that the body has already (`known`) are not added again.

        operands: for each input of the plan's net, the number of its value in the body.
        """
        net, recur_results = self.plan.net, dict[int, list[int]]()
        for number, operand in zip(net.inputs, operands, strict=True):
            of_steps = net.type_of(number).extent == STEPS
            self.place.setdefault(number, self.barrier(operand) if of_steps else operand)
        for number, node in enumerate(net.nodes):
            if node.operation == "recur":
                recur_results[number] = self.loop([self.place[operand] for operand in node.inputs])
            elif node.operation == "result" and node.inputs[0] in recur_results:
                self.place[number] = recur_results[node.inputs[0]][node.attributes["of"]]
            elif number not in self.place:
                self.place[number] = self.copied(node, [self.place[operand] for operand in node.inputs])
        return [self.place[result] for result in net.results]

    def loop(self, operands: Sequence[int]) -> list[int]:
        """Adds one step of the recurrence of the plan (its operations in order) to the net that is built;
        returns the results' numbers.

        Sets `begins` and `following`, the numbers of the memories before the first step and after this one.

        operands: the numbers of the recurrence's operands in that net.
        """
        recur = self.plan.recurrence.recur
        body, (sequences, self.begins, others) = recur.body, recur.operands_by_kind(operands)
        memories = self.begins if self.carried is None else self.carried
        inside = dict(zip(body.inputs, (*map(self.barrier, sequences), *memories, *others), strict=True))
        for number, node in enumerate(body.nodes):
            if node.operation == "index":
                inside[number] = self.index
            elif number not in inside:
                inside[number] = self.copied(node, [inside[operand] for operand in node.inputs])
        outputs, self.following = recur.results_by_kind([inside[result] for result in body.results])
        return [*map(self.barrier, outputs), *self.following]

    def copied(self, node: Node, operands: list[int]) -> int:
        """Adds a node of the plan (a recurrence's operations in order) to the body (the net of a step);
        returns the number of its value there.

        A product, and with `kept_apart` also a sum or concatenation, is followed by a barrier (a `detach`),
        so that passes do not regroup it. A node that repeats a value per row at every step, or takes the last
        step, is that value itself.

        operands: the numbers of its operands in the body.
        """
        if node.operation == "reduce" and self.builder.type_of(operands[0]).extent == ROWS:
            return operands[0]
        if node.operation == "expand":
            constant = self.builder.type_of(operands[0]).extent == CONST
            return self.builder.add("expand", operands[0], extent=ROWS) if constant else operands[0]
        number = self.builder.copy(node, operands)
        apart = node.operation == "matmul" or (self.kept_apart and node.operation in GROUPED)
        return self.barrier(number) if apart else number

    def barrier(self, number: int) -> int:
        """Adds a barrier after a floating-point value, so that no pass groups sums across it; returns its
        number.

        The barrier is a `detach`. A constant value, and one in a dtype that is only for storage, such as
        bfloat16, needs none: its own number is returned.
        """
        type_ = self.builder.type_of(number)
        is_kept = not type_.is_float or type_.extent == CONST or type_ != type_.computed
        if is_kept or not self.has_barriers:
            return number
        return self.builder.add("detach", number)


@dataclass
class StepsBeside(OneStep):
    """Several equal steps of a plan (a recurrence's operations in order), computed as one step with one more
    feature axis.

        h [rows, 64]           h @ R [rows, 192]              the step
        h [rows, 4, 64]        h @ R [rows, 4, 192]           4 of them

    Operations count feature axes from the end, so they are the same with another axis ahead of them.

    copies: the size of the added axis. Every value per row has it; statics, and the index, are repeated.
    sums: for each node with several sums of products, by the first sum: the numbers of all its sums in the
        body.
    """

    copies: int = 1
    sums: dict[int, list[int]] = field(init=False, default_factory=dict[int, list[int]])

    def results(self, operands: Sequence[int]) -> list[int]:
        """Adds the steps to the body, the net of another step; returns the numbers of their results there.

        operands: for each input of the plan's net, the number of its value in the body. Statics (values that
        each sequence has once) come without the axis of the copies.
        """
        statics = {*self.plan.ends.statics}
        self.index = self.repeated(self.index)
        return super().results(
            [self.repeated(number) if place in statics else number for place, number in enumerate(operands)]
        )

    def copied(self, node: Node, operands: list[int]) -> int:
        """Adds a node of the plan (a recurrence's operations in order) to the body (the net of a step), for
        all copies; returns the number of its value there.

        Elementwise operations align features at their end. An operand of fewer feature axes than the result
        therefore gets axes of size 1 behind the axis of the copies.

        operands: the numbers of its operands in the body.
        """
        if node.operation == "expand" and self.builder.type_of(operands[0]).extent == CONST:
            return self.repeated(super().copied(node, operands))
        if node.operation == "products":
            return self.sums_of_products(node, operands)
        if node.operation == "result" and operands[0] in self.sums:
            of: int = node.attributes["of"]
            return self.sums[operands[0]][of]
        if OPERATIONS[node.operation].kind == "pointwise":
            rank = len(node.type.shape) + 1
            operands = [self.aligned(number, rank) for number in operands]
        return super().copied(node, operands)

    def sums_of_products(self, node: Node, operands: list[int]) -> int:
        """Adds sums of products of vectors with matrices as single products, which have an axis of copies,
        and their sums; returns the number of the first.

        operands: the vectors, then for each sum a matrix for each of them.
        """
        count: int = node.attributes["lefts"]
        lefts, rights = operands[:count], operands[count:]
        found = list[int]()
        for begin in range(0, len(rights), count):
            terms = [
                self.builder.add("matmul", left, right, source=node.source)
                for left, right in zip(lefts, rights[begin : begin + count], strict=True)
            ]
            found.append(self.barrier(reduce(partial(self.builder.add, "add"), terms)))
        self.sums[found[0]] = found
        return found[0]

    def repeated(self, number: int) -> int:
        """Adds the axis of the copies to a value, which is the same for all of them; returns its number."""
        shape = self.builder.type_of(number).shape
        return self.builder.add("broadcast", number, rank=len(shape), shape=(self.copies, *shape))

    def aligned(self, number: int, rank: int) -> int:
        """Gives a value `rank` feature axes, with axes of size 1 behind the axis of the copies; returns its
        number. Constants, which have no axis of copies, are aligned already.
        """
        type_ = self.builder.type_of(number)
        if type_.extent == CONST or len(type_.shape) == rank:
            return number
        shape = (self.copies, *[1] * (rank - len(type_.shape)), *type_.shape[1:])
        return self.builder.add("reshape", number, rank=len(type_.shape), shape=shape)
