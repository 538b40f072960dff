"""A net divided into sections such that each of some chosen recurrences is a section of its own.

    y1 = gru(x * s)                      section 0   u of x, s          u = x * s
    y2 = mine(y1 + 1)        gru    ->   section 1   y1 of u            gru, alone
    y3 = gru(y2)            alone        section 2   y2 of y1           y2 = mine(y1 + 1)
                                         section 3   y3 of y2           gru, alone

The chosen recurrences can then run in blocks of steps, and the sections between them at once. Values that
depend only on parameters are computed in each section that reads them.
"""

from collections.abc import Collection, Iterator

from stepnet.compiler.grad.sections import Carried, PartBuilder, Section, is_zeros
from stepnet.compiler.net.ir import Net, with_inputs
from stepnet.compiler.net.types import CONST, STEPS
from stepnet.compiler.plan.groups import results_of
from stepnet.compiler.plan.passes.when import known_once
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class IsolatedRecurrence:
    """Section (part of a net that is cut in sections) that is one recurrence.

    number: the node of the recurrence in the whole net.
    """

    section: Section
    number: int


def sections_around(net: Net, chosen: Collection[int]) -> tuple[Section | IsolatedRecurrence, ...]:
    """Cuts a net into sections (parts that run one after the other, forward and then backward), with each
    recurrence of `chosen` (node numbers) as a section of its own, so that it can be trained by other code.
    The net's other nodes are computed in sections between them.

    >>> from stepnet.compiler.net.ir import Builder, Recur
    >>> from stepnet.compiler.net.types import ROWS, Type
    >>> inside = Builder()
    >>> x, h = (inside.input(Type(ROWS, (2,), "float32"), name) for name in "xh")
    >>> body, builder = inside.net([inside.add("add", x, h)] * 2), Builder()
    >>> y = builder.input(Type(STEPS, (2,), "float32"), "x")
    >>> h0 = builder.input(Type(ROWS, (2,), "float32"), "h")
    >>> y = Recur(body, 1, 1).add_results(builder, [builder.add("multiply", y, y), h0]).outputs[0]
    >>> net = builder.net([builder.add("add", y, y)])
    >>> first, recurrence, last = sections_around(net, [3])
    >>> first.reads, recurrence.section.reads, last.reads
    ((0,), (2,), (4,))
    """
    cutting = IsolatedCut.of(net, chosen)
    return tuple(reversed([*cutting.backward()]))


@dataclass(frozen=True)
class IsolatedCut:
    """State of cutting a net into sections.

    chosen: the recurrences that are sections of their own, in order.
    depth: for each node, the number of chosen recurrences that run before it.
    once: the constants that depend on parameters only.
    """

    net: Net
    chosen: tuple[int, ...]
    depth: tuple[int, ...]
    once: frozenset[int]

    @classmethod
    def of(cls, net: Net, chosen: Collection[int]) -> "IsolatedCut":
        """Prepares to cut a net into sections (parts) around the chosen recurrences, given by number. Finds
        for each node how many of them have to run before it, which says in which section between them it
        is computed.
        """
        order, depth = tuple(sorted(chosen)), list[int]()
        for number, node in enumerate(net.nodes):
            own = max((depth[operand] for operand in node.inputs), default=0)
            depth.append(order.index(number) + 1 if number in order else own)
        return cls(net, order, tuple(depth), frozenset(known_once(net)))

    def backward(self) -> Iterator[Section | IsolatedRecurrence]:
        """Yields the sections from the last to the first, each with the results that later sections read."""
        required: list[dict[int, None]] = [{} for _ in range(len(self.chosen) + 1)]

        def want(numbers: Collection[int]) -> None:
            """Notes values that a later section or the net's results read, for the section that has them."""
            for number in numbers:
                if self.net.nodes[number].operation != "input" and not self.is_of_chosen(number):
                    required[self.depth[number]][number] = None

        want(self.net.results)
        for index in reversed(range(len(self.chosen) + 1)):
            if required[index]:
                section = Between(self.net, self, index).section(tuple(required[index]))
                want(section.operands)
                yield section
            if index:
                isolated = self.isolated(self.chosen[index - 1])
                want(isolated.section.operands)
                yield isolated

    def is_of_chosen(self, number: int) -> bool:
        """Tells whether a node picks a result of a chosen recurrence, which is a section of its own."""
        node = self.net.nodes[number]
        return node.operation == "result" and node.inputs[0] in self.chosen

    def is_made_again(self, number: int) -> bool:
        """Tells whether a value is computed anew in each section (part of the net) that needs it, instead of
        read from an earlier section. That is so for constants, and for constants repeated for all rows.
        """
        node = self.net.nodes[number]
        repeats = node.operation == "expand" and node.inputs[0] in self.once
        return node.operation != "input" and (number in self.once or repeats)

    def isolated(self, number: int) -> IsolatedRecurrence:
        """Makes the section (part of the net) that is the chosen recurrence with this number. It takes the
        values that the recurrence reads, then the initial memories, and returns the results that are read,
        then the final memories. Constants are computed in it.
        """
        net, node = self.net, self.net.nodes[number]
        recur, own = node.recur, Between(net, self, 0)
        operands, begins = list[int](), list[int | None]()
        reads, memories = dict[int, int](), list[int]()
        for index, operand in enumerate(node.inputs):
            type_ = recur.body.type_of(recur.body.inputs[index])
            is_memory = 0 <= index - recur.sequence_count < recur.memory_count
            here = type_.at(STEPS if index < recur.sequence_count else type_.extent)
            if type_.extent == CONST and operand in self.once:
                operands.append(own.constant(operand, reads))
            elif is_memory:
                operands.append(own.builder.input(here, recur.body.nodes[recur.body.inputs[index]].name))
                memories.append(operands[-1])
                begins.append(None if is_zeros(net, operand) else operand)
            else:
                if operand not in reads:
                    reads[operand] = own.builder.input(here, net.nodes[operand].name or f"value{operand}")
                operands.append(reads[operand])
        outputs, last = recur.results_by_kind(results_of(net, number))
        isolated = recur.add_results(own.builder, operands)
        picked = [pair for pair in zip(outputs, isolated.outputs, strict=True) if pair[0] >= 0]
        results = [*(inner for _, inner in picked), *isolated.memories]
        ends = [None if end < 0 else end for end in last]
        carried = tuple(Carried(*pair) for pair in zip(begins, ends, strict=True))
        section_net = with_inputs(own.builder, [*reads.values(), *memories], results)
        section = Section(
            section_net, tuple(reads), tuple(result for result, _ in picked), carried, recur.reverse
        )
        return IsolatedRecurrence(section, number)


@dataclass
class Between(PartBuilder):
    """Construction of a section, a part of a net that is cut around its chosen recurrences."""

    cutting: IsolatedCut
    depth: int

    def section(self, required: tuple[int, ...]) -> Section:
        """Makes the section of the results `required`; the values that it does not compute are its inputs."""
        self.fill(required)
        net = with_inputs(self.builder, [*self.reads.values()], [self.copy_of[number] for number in required])
        return Section(net, tuple(self.reads), required, (), False)

    def is_read(self, number: int) -> bool:
        """Tells whether the section (part of the net) takes a value as an input: one from outside the net, or
        from an earlier section. Values that each section makes again for itself are not taken.
        """
        cutting = self.cutting
        if cutting.is_made_again(number):
            return False
        is_input = self.net.nodes[number].operation == "input"
        return is_input or cutting.is_of_chosen(number) or cutting.depth[number] < self.depth

    def constant(self, number: int, reads: dict[int, int]) -> int:
        """Copies a constant into the section (part of the net), with all nodes it is computed from; returns
        its number.

        reads: the inputs for the parameters that constants read; new ones are added.
        """
        node = self.net.nodes[number]
        if node.operation == "input":
            if number not in reads:
                reads[number] = self.builder.input(node.type, node.name)
            return reads[number]
        if number not in self.copy_of:
            self.copy_of[number] = self.builder.copy(node, [self.constant(n, reads) for n in node.inputs])
        return self.copy_of[number]
