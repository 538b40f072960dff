"""A step while it is lowered to loops: the values of its nodes so far, and what ends a frame."""

from dataclasses import field
from math import prod

import numpy as np

from stepnet.compiler.net.ir import Node, ancestors
from stepnet.compiler.targets.frame.drafts import (
    Drafts,
    FrameValue,
    GatherDraft,
    PointwiseDraft,
    Root,
    values_of,
)
from stepnet.compiler.targets.frame.halves import HALVES, stored_in
from stepnet.compiler.targets.frame.program import Routine
from stepnet.compiler.targets.frame.recorder import (
    FrameRegister,
    Recorder,
)
from stepnet.compiler.targets.frame.step import ModelStep, StepMemory
from stepnet.compiler.values.records import dataclass
from stepnet.errors import RefusedError

Array = np.ndarray


@dataclass
class StepLowering:
    """A step while it is lowered.

    known: the constants so far, by number. values: the values so far. several: the values of nodes with
    several results. users: for each node, those that read it. needed: the nodes that a result needs.
    ends: the arrays of inputs, memories and outputs, in order.
    """

    step: ModelStep
    drafts: Drafts = field(default_factory=Drafts)
    known: dict[int, Array] = field(default_factory=dict[int, Array])
    values: dict[int, FrameValue] = field(default_factory=dict[int, FrameValue])
    several: dict[int, list[FrameValue]] = field(default_factory=dict[int, list[FrameValue]])
    routines: dict[str, Routine] = field(default_factory=dict[str, Routine])
    users: list[list[int]] = field(default_factory=list[list[int]])
    needed: set[int] = field(default_factory=set[int])
    ends: list[Root] = field(default_factory=list[Root])

    def __post_init__(self) -> None:
        """Makes the arrays of inputs and memories."""
        net, step = self.step.net, self.step
        self.users, self.known = net.users(), {n: np.asarray(v) for n, v in step.constants.items()}
        roots = [each.number for each in step.outputs] + [each.after for each in step.memories]
        self.needed = ancestors(net.nodes, roots)
        given = [("input", each.number, each) for each in step.inputs]
        for kind, number, each in [*given, *(("memory", each.before, each) for each in step.memories)]:
            check_type(net.nodes[number])
            root = self.end(kind, number, each.name, each.title)
            self.ends.append(root)
            self.values[number] = FrameValue.of(root, net.type_of(number).shape)

    def end(self, kind: str, number: int, name: str, title: str) -> Root:
        """Returns the array of an input or a memory. number: of its value. name, title: its names."""
        type_ = self.step.net.type_of(number)
        return Root(kind, type_.dtype, type_.size, name, title)

    def after(self, memory: StepMemory) -> FrameValue:
        """Returns the value that a memory has after the step."""
        return self.value(memory.after)

    def begin(self, memory: StepMemory) -> Array | None:
        """Returns the numbers that a memory has before the first frame; None for zeros."""
        return memory.begin

    def value(self, number: int) -> FrameValue:
        """Returns the value of a node, which may be a constant."""
        if number not in self.values:
            array = self.known[number]
            name = self.name(number)
            root = Root("constant", array.dtype.name, array.size, name, name, np.ascontiguousarray(array))
            self.values[number] = FrameValue.of(root, array.shape)
        return self.values[number]

    def name(self, number: int) -> str:
        """Returns the name of a value; for a cast of a parameter in 16 bits, the parameter's name."""
        node = self.step.net.nodes[number]
        return self.name(node.inputs[0]) if node.operation == "cast" and not node.name else node.name

    def table(self, array: Array, name: str) -> Root:
        """Returns the array of a matrix or table, in 16 bits if the step asks for it and nothing is lost."""
        held = np.ascontiguousarray(stored_in(array, self.step.storage))
        return Root("constant", held.dtype.name, held.size, name, name, held)

    def operands(self, node: Node) -> list[FrameValue]:
        """Lists the values of a node's operands."""
        return [self.value(operand) for operand in node.inputs]

    def called(self, routine: Routine) -> str:
        """Notes that a routine is called; returns its name."""
        self.routines[routine.name] = routine
        return routine.name

    def as_dtype(self, value: FrameValue, dtype: str) -> FrameValue:
        """Returns a value of another dtype, a copy unless it has that dtype already."""
        if value.dtype == dtype:
            return value

        def converted(code: Recorder, operands: list[FrameRegister]) -> FrameRegister:
            """Records the conversion."""
            return code.record("convert", dtype, *operands)

        return self.drafts.pointwise(value.shape, dtype, [value], converted)

    def commit(self) -> None:
        """Adds the writes of outputs and memories after the step.

        A memory is written where its value is computed, if nothing later reads the memory before the step, or
        may fail; else by a copy after all other loops.
        """
        drafts, step = self.drafts, self.step
        for end in step.outputs:
            value = self.value(end.number)
            scale = value.root.scale
            root = Root("output", value.dtype, prod(value.shape), end.name, end.title, scale=scale)
            self.ends.append(root)
            drafts.copy(value, FrameValue.of(root, value.shape))
        pairs = list[tuple[FrameValue, FrameValue]]()
        for memory in step.memories:
            target, value = self.values[memory.before], self.after(memory)
            if value.root.kind == "memory" and value != target:
                root = Root("scratch", value.dtype, prod(value.shape), scale=value.root.scale)
                drafts.copy(value, FrameValue.of(root, value.shape))
                value = FrameValue.of(root, value.shape)
            if value != target:
                pairs.append((target, value))
        last = len(drafts.loops)
        for target, value in pairs:
            register = value.root.register
            if register is not None and self.may_write(target.root, value):
                loop = drafts.loops[value.root.ready]
                assert isinstance(loop, PointwiseDraft)
                loop.writes.append((FrameValue.of(target.root, loop.shape), register))
            else:
                drafts.copy(value, target, last)

    def may_write(self, memory: Root, value: FrameValue) -> bool:
        """Tells whether the loop that computes a value can write it to a memory."""
        root, loops = value.root, self.drafts.loops
        if not value.is_whole:
            return False
        for index, loop in enumerate(loops[root.ready :], root.ready):
            if isinstance(loop, GatherDraft):
                return False
            for read in (value for value, wrote in values_of(loop) if not wrote):
                in_place = index == root.ready and read.is_whole
                if read.root is memory and not in_place:
                    return False
        return True


def refusal(node: Node, advice: str) -> str:
    """Returns the message that refuses a node: its operation, the user's line, and what to do."""
    at = f" (at {node.source})" if node.source else ""
    return f"the operation {node.operation} has no form for one frame{at}: {advice}"


def check_type(node: Node) -> None:
    """Raises `RefusedError` for a node with a dtype that is only stored, or without elements."""
    for type_ in node.types:
        if type_.dtype in HALVES:
            raise RefusedError(refusal(node, f"it has {type_.dtype}; cast the model to float32"))
        if type_.size == 0:
            raise RefusedError(refusal(node, "its result has no elements; leave it out"))
