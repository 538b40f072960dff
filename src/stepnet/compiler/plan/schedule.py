"""A net of nested recurrences as parts that run one after the other: a schedule.

    recurrence    a recurrence over sequences of some depth: run by an engine, all sequences at once
    plain         other nodes: run by an engine as a recurrence without memory
    across        a value expanded to, or reduced from, a deeper extent, or windows or pairs of steps
    total         a value over all rows, and values computed from it
    loop          a recurrence whose steps run part by part, each step a schedule of its own

A schedule is cut in the same way for all engines. Recurrences and plain parts have a plan each, made by the
passes and costs of the engine. The others are functions of the target's memory, or machine code of its own.
"""

from collections.abc import Iterator
from dataclasses import replace

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Extent
from stepnet.compiler.plan.inner import has_inner
from stepnet.compiler.plan.plan import Plan, Planning
from stepnet.compiler.values.fork_guard import imported_late
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass


def is_nested(net: Net) -> bool:
    """Tells whether a net has inner sequences, in its values or in the steps of its recurrences. An inner
    sequence belongs to one step of a sequence.

    >>> from stepnet.compiler.net import Builder, Type
    >>> builder = Builder()
    >>> is_nested(builder.net([builder.input(Type(STEPS, (2,), "float32"), "x")]))
    False
    """
    bodies = [node.attributes["body"] for node in net.nodes if node.operation == "recur"]
    return any(type_.extent not in (CONST, ROWS, STEPS) for type_ in net.types) or any(map(has_inner, bodies))


@dataclass(frozen=True)
class Part:
    """Part of a schedule: nodes that run together. Values are numbers of nodes of the net.

    kind: "recurrence", "plain", "across", "total" or "loop".
    reads: the values that it reads: sequences, initial memories, statics; -1 stands for zeros.
    results: the values that it computes; -1 stands for a result that is not read.
    extent: the extent of its values per step.
    plan: the plan that an engine runs; None for a part that NumPy runs.
    memories, statics: the numbers of initial memories and of statics among `reads`.
    parameters: the constants that it reads.
    node: the recurrence, if the part has one.
    inner: for a loop, the schedule of one step.
    body: for several operations at pairs of steps, the net of them, whose inputs are what it reads.
    last_only: whether the outputs of a recurrence are those of the last step only.
    is_bound_per_call: whether some parameters are totals that other parts compute, so that it is bound in
        each call.
    """

    kind: str
    reads: tuple[int, ...]
    results: tuple[int, ...]
    extent: Extent = CONST
    plan: Plan | None = None
    memories: int = 0
    statics: int = 0
    parameters: tuple[int, ...] = ()
    node: Node | None = None
    inner: "Schedule | None" = None
    body: Net | None = None
    last_only: bool = False
    is_bound_per_call: bool = False

    @property
    def windows(self) -> tuple[int, ...]:
        """The windows of steps that products of this part read in place, as nodes of the net."""
        return () if self.plan is None else tuple(self.reads[place] for place in self.plan.windows)


@dataclass(frozen=True)
class Schedule:
    """Schedule of a net: its parts in the order they run. They are computed at first use.

    traced: the net as traced.
    planning: the passes and costs of the engine for which the parts are planned.
    moved: the net after `lift`, if that pass has run already.
    """

    traced: Net
    planning: Planning
    moved: Net | None = None

    def planned(self, planning: Planning) -> "Schedule":
        """Returns the schedule of the same net by the passes and costs of another engine; made once."""
        if planning == self.planning:
            return self
        return self.others.setdefault(planning, replace(self, planning=planning))

    @computed_once
    def others(self) -> "dict[Planning, Schedule]":
        """The schedules of the net that were made for other engines so far."""
        return {}

    @computed_once
    def cut(self) -> "Cut":
        """The net that is cut into parts, which run one after the other, and these parts."""
        return new_cut(self.traced, self.moved, self.planning)

    @property
    def net(self) -> Net:
        """The net whose nodes the schedule's parts compute: the traced net, possibly after some passes. Its
        inputs and results are in the same order as those of the traced net.
        """
        return self.cut[0]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the schedule, in the order they run; an engine or NumPy runs each."""
        return self.cut[1]

    @property
    def single_plan(self) -> Plan | None:
        """The plan that runs the whole traced net at once; None if the net needs several parts."""
        plan_ = self.parts[0].plan if len(self.parts) == 1 else None
        return plan_ if plan_ is not None and plan_.traced is self.traced else None

    @property
    def plans(self) -> Iterator[Plan]:
        """Yields the plans of all parts of the schedule that engines run, also of parts inside loops."""
        for part in self.parts:
            if part.plan is not None:
                yield part.plan
            if part.inner is not None:
                yield from part.inner.plans


Cut = tuple[Net, tuple[Part, ...]]


def new_cut(traced: Net, moved: Net | None, planning: Planning) -> Cut:
    """Cuts a net into planned parts, with modules imported only now. It takes the arguments of `Schedule`."""
    cut: Cut = imported_late("stepnet.compiler.plan", "cut_of", "cutting")(traced, moved, planning)
    return cut
