"""A net divided into sections. The recurrences of a section run in one direction, and their initial memories
are inputs.

    y1, h1 = recur(x; f)                 section 0   y1, h1 of x, h0          from the first step
    y2, h2 = recur(y1; g, reverse)  ->   section 1   y2, h2 of y1, h0         from the last step
    y = concat(y1, y2)                               y of y1

So a section can run a few steps at a time: its memories are all that later steps need of earlier ones. Cheap
nodes between recurrences are copied into each section that reads them; only results of recurrences go from
one section to another.
"""

from collections.abc import Iterable
from dataclasses import field

from stepnet.compiler.net.ir import Builder, Net, Node, with_inputs
from stepnet.compiler.net.type_rules import BETWEEN_STEPS, TOTALS
from stepnet.compiler.net.types import CONST, ROWS, STEPS
from stepnet.compiler.net.windows import WINDOWED
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError


@dataclass(frozen=True)
class Carried:
    """Memory that is carried through a section, a part of a net whose recurrences run in one direction.

    begins: the value of the whole net with which it begins; None for zeros.
    ends: the value of the whole net that is its final value; None if it is not read.
    """

    begins: int | None
    ends: int | None


@dataclass(frozen=True)
class Section:
    """Section, a part of a net whose recurrences run in one direction, as a net of its own.

    Its net takes the values that it reads and then the initial memories, and returns its results and then the
    final memories.

    net: the net of the section.
    reads, results: its inputs and results, as values of the whole net. A result per row is that of the last
        step, in the direction of the section.
    memories: its memories; none for a section after all recurrences, which has no steps.
    reverse: whether its recurrences run in reverse.
    """

    net: Net
    reads: tuple[int, ...]
    results: tuple[int, ...]
    memories: tuple[Carried, ...]
    reverse: bool

    @property
    def operands(self) -> tuple[int, ...]:
        """The whole net's values that the section reads, by number, with recurrences' initial memories."""
        return (*self.reads, *(memory.begins for memory in self.memories if memory.begins is not None))

    @property
    def gives(self) -> tuple[int | None, ...]:
        """The value in the whole net of each of the section's results; None for an unread final memory."""
        return (*self.results, *(memory.ends for memory in self.memories))

    @property
    def values(self) -> tuple[int, ...]:
        """The values of the whole net, by number, that this section (a part of the net) computes."""
        return tuple(number for number in self.gives if number is not None)


def sections(net: Net) -> tuple[Section, ...]:
    """Cuts a net into sections: parts that run one after the other. All recurrences of a section run in one
    direction, so that the section can be run on a few steps at a time.

    >>> from stepnet.compiler.net.ir import Recur
    >>> from stepnet.compiler.net.types import Type
    >>> inside = Builder()
    >>> x, h = (inside.input(Type(ROWS, (2,), "float32"), name) for name in "xh")
    >>> body, builder = inside.net([inside.add("add", x, h)] * 2), Builder()
    >>> y = builder.input(Type(STEPS, (2,), "float32"), "x")
    >>> h0 = builder.input(Type(ROWS, (2,), "float32"), "h")
    >>> for reverse in (False, True):
    ...     y = Recur(body, 1, 1, reverse).add_results(builder, [y, h0]).outputs[0]
    >>> [(section.reads, section.results, section.reverse) for section in sections(builder.net([y]))]
    [((0,), (3,), False), ((3,), (5,), True)]
    """
    homes = Homes(net)
    required: list[dict[int, None]] = [{} for _ in range(homes.count + 1)]
    for number in net.results:
        required[homes.of[number]][number] = None
    sections: list[Section] = []
    for index in reversed(range(homes.count + 1)):
        if required[index]:
            section = SectionBuilder(net, homes, index, tuple(required[index])).section()
            for number in section.operands:
                if net.nodes[number].operation != "input":
                    required[homes.of[number]][number] = None
            sections.append(section)
    return tuple(reversed(sections))


class Homes:
    """The section, of the parts into which a net is cut, that computes each node: the earliest that can.

    reverse: the direction of each section.
    count: the number of sections with recurrences. One more section computes values of last steps and final
        memories.
    """

    def __init__(self, net: Net) -> None:
        """Assigns each node of the net to the section (a part of the net that runs in one direction) that
        computes it, by index in the order the sections run.

        Values that are known only after the last step, and functions of them, go to a last section, whose
        index is `count`.
        """
        self.net = net
        self.reverse: list[bool] = []
        self.of: list[int] = []
        self.ready: list[int] = []  # the first section in which a node can be read
        for number in range(len(net.nodes)):
            self.of.append(self.home(number))
            self.ready.append(self.of[number] + self.is_end(number))
            self.check(number)
        count = self.count = len(self.reverse)
        for number, node in enumerate(net.nodes):
            if self.ready[number] and node.operation != "recur" and not self.is_end(number):
                self.of[number] = count if node.type.extent in (CONST, ROWS) else self.of[number]

    def home(self, number: int) -> int:
        """Determines the section (part of the net), by index, that computes a node: the first one in which
        all operands are known, and for a recurrence the first such section whose recurrences run in its
        direction. If there is none, a section of that direction is added at the end of `reverse`, the
        directions of the sections in order.
        """
        node = self.net.nodes[number]
        if node.operation == "result":
            return self.of[node.inputs[0]]
        index = max((self.ready[operand] for operand in node.inputs), default=0)
        if node.operation != "recur":
            return index
        while index < len(self.reverse) and self.reverse[index] != node.recur.reverse:
            index += 1
        if index == len(self.reverse):
            self.reverse.append(node.recur.reverse)
        return index

    def is_end(self, number: int) -> bool:
        """Tells whether a value (such as a final memory) is known only after the last step of the section
        (part of the net) that computes it, so that only later sections can read it.
        """
        node = self.net.nodes[number]
        if node.operation == "reduce" and self.net.type_of(node.inputs[0]).extent == STEPS:
            reverse = self.reverse and self.reverse[min(self.of[node.inputs[0]], len(self.reverse) - 1)]
            return node.attributes["how"] == ("first" if reverse else "last")
        return node.operation == "result" and node.type.extent == ROWS

    def check(self, number: int) -> None:
        """Raises `InputError` for a node that needs several steps of a sequence at once, such as a sum over
        the steps, a convolution or attention: sections (parts of the net) run a few steps at a time. The
        final values of a section, such as the last step, may be read.
        """
        node = self.net.nodes[number]
        if node.operation in TOTALS and not self.is_end(number) and len(node.type.extent) < len(STEPS):
            what = node.attributes.get("how", node.operation)
            raise refused(node, f"the {what} over steps is known only after all steps")
        if node.operation in BETWEEN_STEPS:
            what = {"arrange": "an order of steps", "extend": "a padding"}.get(node.operation, "attention")
            what = "a convolution" if node.operation in WINDOWED else what
            raise refused(node, f"{what} reads steps of other pieces")

    def is_cut(self, number: int, index: int) -> bool:
        """Tells whether section `index` takes a value as an input: from outside or an earlier section."""
        node = self.net.nodes[number]
        if node.operation == "input":
            return True
        return self.of[number] < index and (node.operation == "result" or self.is_end(number))


@dataclass
class PartBuilder:
    """Construction of a part of a net as a net of its own: each node that its results need is copied, or
    becomes an input of the part.

    A kind of part says with `is_read` which values become inputs.

    copy_of: for each node, its copy.
    reads: the copies that are inputs.
    """

    net: Net
    builder: Builder = field(default_factory=Builder, kw_only=True)
    copy_of: dict[int, int] = field(default_factory=dict[int, int], kw_only=True)
    reads: dict[int, int] = field(default_factory=dict[int, int], kw_only=True)

    def is_read(self, number: int) -> bool:
        """Tells whether the part takes a value as an input: from outside the net or from an earlier part."""
        raise NotImplementedError

    def operands(self, number: int) -> list[int]:
        """Lists the operands of a node that the part computes or reads."""
        return list(self.net.nodes[number].inputs)

    def needed(self, required: Iterable[int]) -> set[int]:
        """Returns the nodes of the whole net that a part of it must compute, or read from outside, for its
        results `required`.
        """
        needed: set[int] = set()
        waiting = list(required)
        while waiting:
            number = waiting.pop()
            if number not in needed:
                needed.add(number)
                waiting += [] if self.is_read(number) else self.operands(number)
        return needed

    def fill(self, required: Iterable[int]) -> None:
        """Adds the nodes that the results `required` depend on to the part of the net: copies of those that
        it computes, inputs for those that it reads.
        """
        for number in sorted(self.needed(required)):
            if self.is_read(number):
                new_node = self.builder.input(self.net.type_of(number), self.net.nodes[number].name)
                self.reads[number] = self.copy_of[number] = new_node
            else:
                self.copy_of[number] = self.copy(number)

    def copy(self, number: int) -> int:
        """Copies a node of the whole net, whose operands are in the part; returns its number there."""
        node = self.net.nodes[number]
        return self.builder.copy(node, [self.copy_of[operand] for operand in node.inputs])


@dataclass
class SectionBuilder(PartBuilder):
    """Construction of one section, a part of a net whose recurrences run in one direction, as a net.

    required: the results of the section in the whole net.
    initial, lasts: for each of `memories`, the input with which a recurrence begins, and its final value.
    """

    homes: Homes
    number: int
    required: tuple[int, ...]
    initial: list[int] = field(default_factory=list[int])
    lasts: list[int] = field(default_factory=list[int])
    memories: list[Carried] = field(default_factory=list[Carried])

    def section(self) -> Section:
        """Makes the section. All values that its results need and it does not compute are inputs."""
        self.fill(self.required)
        ends = {memory.ends for memory in self.memories}
        results = [number for number in self.required if number not in ends]
        order = [*self.reads.values(), *self.initial]
        net = with_inputs(self.builder, order, [*(self.copy_of[number] for number in results), *self.lasts])
        reverse = bool(self.memories) and self.homes.reverse[self.number]
        return Section(net, tuple(self.reads), tuple(results), tuple(self.memories), reverse)

    def is_read(self, number: int) -> bool:
        """Tells whether the section (part of the net) takes a value as an input."""
        return self.homes.is_cut(number, self.number)

    def operands(self, number: int) -> list[int]:
        """Lists the operands of a node that the section (part of the net) has to compute or read: without the
        initial memories of a recurrence, which become inputs of their own.
        """
        node = self.net.nodes[number]
        if node.operation != "recur":
            return super().operands(number)
        by_kind = node.recur.operands_by_kind(node.inputs)
        return [*by_kind.sequences, *by_kind.others]

    def copy(self, number: int) -> int:
        """Copies a node of the whole net into the section, which is a part of it; returns its number there.
        If it is a recurrence, its initial memories become inputs of the section, and its final memories
        become results: these are noted in `initial`, `lasts` and `memories`.
        """
        node, builder = self.net.nodes[number], self.builder
        if node.operation != "recur":
            return super().copy(number)
        recur, body = node.recur, node.recur.body
        by_kind = recur.operands_by_kind(node.inputs)
        initial = [
            builder.input(self.net.type_of(operand), body.nodes[inner].name)
            for operand, inner in zip(by_kind.memories, recur.memories, strict=True)
        ]
        sequences, others = (
            [self.copy_of[operand] for operand in kind] for kind in (by_kind.sequences, by_kind.others)
        )
        new_node = builder.copy(node, [*sequences, *initial, *others])
        first = len(recur.outputs)
        for index, operand in enumerate(by_kind.memories, first):
            picked = [
                result
                for result in self.required
                if self.net.nodes[result].operation == "result"
                and self.net.nodes[result].inputs[0] == number
                and self.net.nodes[result].attributes["of"] == index
            ]
            self.memories.append(Carried(self.begins(operand), picked[0] if picked else None))
            self.lasts.append(builder.add("result", new_node, of=index))
        self.initial += initial
        return new_node

    def begins(self, number: int) -> int | None:
        """Returns the value that a memory begins with, if it is an input of this section (part of the net);
        None for zeros.

        number: the initial memory in the whole net. Raises `InputError` if it is computed inside the section.
        """
        if self.is_read(number):
            return number
        node = self.net.nodes[number]
        if not is_zeros(self.net, number):
            why = f"a recurrence begins with the result of {node.operation}, neither an input nor zeros"
            raise refused(node, why)
        return None


def is_zeros(net: Net, number: int) -> bool:
    """Tells whether a value, with which a memory begins, is zeros, possibly expanded to rows."""
    node = net.nodes[number]
    source = net.nodes[node.inputs[0]] if node.operation == "expand" else node
    return source.operation == "constant" and not source.attributes["value"].value.any()


def refused(node: Node, why: str) -> InputError:
    """Makes the `InputError` for a net that cannot be cut into sections; why: the reason, as a clause."""
    where = f"\n  at {node.source}" if node.source else ""
    return InputError(f"checkpoint= runs a few steps at a time, and {why}: leave checkpoint= out{where}")
