"""The plan of a recurrence as one step of another one.

    before  x @ W          rows/steps            x @ W          rows
    loop    + h @ R        rows          ->      + h @ R        rows
    after   h @ V          rows/steps            h @ V          rows

The values are those that the plan's kernel computes for sequences of one step, with the same bits: the net is
the one behind all passes, and barriers keep the passes that run on the new net from grouping its sums and
products in another way. A barrier is `detach`, which no pass looks through.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stepnet.compiler.net.ir import Builder, Node, ancestors
from stepnet.compiler.net.types import CONST, ROWS, STEPS
from stepnet.compiler.plan.plan import Plan

NOT_OF_A_STEP = ("reduce", "contract", "scatter", "index")
"""Operations of the net around a recurrence that have no meaning for a single step."""


def refusal(plan: Plan) -> str | None:
    """The reason why a plan is no step of another recurrence; None if it is."""
    wrong = next((node for node in plan.net.nodes if is_not_of_a_step(node)), None)
    return None if wrong is None else f"it has {wrong.operation} beside its loop"


def is_not_of_a_step(node: Node) -> bool:
    """Whether an operation around a recurrence has no meaning for a single step."""
    if node.operation == "reduce" and node.attributes["how"] == "last":
        return False  # the last step so far is this one
    return node.operation in NOT_OF_A_STEP or (node.operation == "expand" and "how" in node.attributes)


def counts(plan: Plan) -> bool:
    """Whether a step reads how many came before it."""
    return any(node.operation == "index" for node in plan.body.nodes)


def one_step(
    builder: Builder, plan: Plan, operands: Sequence[int], index: int, known: Mapping[int, int]
) -> list[int]:
    """The numbers of the plan's results after one step: its outputs, then the next memories.

    operands: a value of the body that `builder` makes for each input of the plan's net, per row or constant.
    index: the number of steps that came before. known: values of the plan's net that the body has already.
    """
    return OneStep(builder, plan, index, known).results(operands)


def of_inputs(plan: Plan) -> list[int]:
    """The values per step of a plan's net that are made of its sequences and parameters alone."""
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
    """The numbers of values that are made of a plan's sequences and parameters, for one step.

    operands: a value of the body that `builder` makes for each of these inputs of the plan's net.
    """
    step = OneStep(builder, plan, -1, operands)
    needed = ancestors(plan.net.nodes, wanted)
    for number, node in enumerate(plan.net.nodes):
        if number in needed and node.operation != "input":
            step.place[number] = step.copied(node, [step.place[operand] for operand in node.inputs])
    return [step.place[number] for number in wanted]


@dataclass
class OneStep:
    """A step while it is made.

    carried: the memories before the step; those with which the plan's recurrence begins if None.
    place: the numbers of the plan's values in the new net.
    begins: the values with which the recurrence begins in a call of whole sequences.
    following: the memories after the step.
    """

    builder: Builder
    plan: Plan
    index: int
    known: Mapping[int, int]
    carried: Sequence[int] | None = None
    place: dict[int, int] = field(init=False)
    begins: list[int] = field(init=False, default_factory=list[int])
    following: list[int] = field(init=False, default_factory=list[int])

    def __post_init__(self) -> None:
        self.place = dict(self.known)

    def results(self, operands: Sequence[int]) -> list[int]:
        """The results for these operands."""
        net, several = self.plan.net, dict[int, list[int]]()
        for number, operand in zip(net.inputs, operands, strict=True):
            of_steps = net.type_of(number).extent == STEPS
            self.place.setdefault(number, self.barrier(operand) if of_steps else operand)
        for number, node in enumerate(net.nodes):
            if node.operation == "recur":
                several[number] = self.loop([self.place[operand] for operand in node.inputs])
            elif node.operation == "result" and node.inputs[0] in several:
                self.place[number] = several[node.inputs[0]][node.attributes["of"]]
            elif number not in self.place:
                self.place[number] = self.copied(node, [self.place[operand] for operand in node.inputs])
        return [self.place[result] for result in net.results]

    def loop(self, operands: Sequence[int]) -> list[int]:
        """The results of the recurrence's body."""
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
        """A node made again; one that repeats a value at every step, or takes the last one, is that value."""
        if node.operation == "reduce" and self.builder.type_of(operands[0]).extent == ROWS:
            return operands[0]
        if node.operation == "expand":
            constant = self.builder.type_of(operands[0]).extent == CONST
            return self.builder.add("expand", operands[0], extent=ROWS) if constant else operands[0]
        number = self.builder.copy(node, operands)
        return self.barrier(number) if node.operation == "matmul" else number

    def barrier(self, number: int) -> int:
        """The same value, through which no pass looks."""
        type_ = self.builder.type_of(number)
        if not type_.is_float or type_.extent == CONST or type_ != type_.computed:
            return number
        return self.builder.add("detach", number)
