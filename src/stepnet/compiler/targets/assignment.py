"""Several engines for one schedule: each part runs on the first that does not refuse it.

    engine=("onednn", "llvm")      part 0   gather words          llvm      onednn: no recurrence
                                   part 1   gru                   onednn
                                   part 2   my own cell           llvm      onednn: no such cell
                                   part 3   softmax of matmul     llvm      onednn: no recurrence

The work that a recurrence has absorbed decides which engine can run it: oneDNN has a GRU, but none followed
by a softmax. So `assign_engines` lets a recurrence absorb work only if no later engine has to run it then. It
begins with bare recurrences and continues until nothing more can move, so the result does not depend on an
order of passes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepnet.compiler.net.digest import digest
from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.memory import HOST, AnyMemory
from stepnet.compiler.plan.inner import flat_recurrences
from stepnet.compiler.plan.load import CostModel
from stepnet.compiler.plan.passes import Pipeline
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.plan.stored_schedule import StoredSchedule, keep_known, known_schedule
from stepnet.compiler.targets.base import Engine, Kernel, first_refusal, planning_of
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.records import dataclass

if TYPE_CHECKING:
    from stepnet.compiler.plan.passes.absorb import Absorbed

Array = np.ndarray
Refusals = dict[str, str]


class EngineChoice(NamedTuple):
    """Engine of a part, None if all refuse, and the refusals of the engines before it by name."""

    engine: Engine | None
    refusals: Refusals


def choice(plan: Plan, engines: Sequence[Engine]) -> EngineChoice:
    """Chooses the first engine that does not refuse a plan (the operations of a part in their order), None if
    all do; returns it and, by the names of the engines before it, their reasons to refuse.
    """
    refusals: Refusals = {}
    for engine in engines:
        reason = engine.refuse_plan(plan.planned(planning_of(engine)))
        if reason is None:
            return EngineChoice(engine, refusals)
        refusals[engine.name] = reason
    return EngineChoice(None, refusals)


@dataclass(frozen=True)
class AssignedEngines:
    """Engine made of several engines: each part of a schedule runs on the first that does not refuse it."""

    engines: tuple[Engine, ...]

    @property
    def name(self) -> str:
        """The names of the engines that this one joins, separated by commas, for messages."""
        return ", ".join(engine.name for engine in self.engines)

    @property
    def pipeline(self) -> Pipeline:
        """The passes of the first engine. Each part is planned by those of its own engine."""
        return self.engines[0].pipeline

    @property
    def costs(self) -> CostModel:
        """The estimated costs by which nets are planned: those of the first engine, without the search for
        groups of operations at pairs of steps, which run one by one here. Each part is planned by the costs
        of its own engine.
        """
        return replace(self.engines[0].costs, find_pairs=None)

    @property
    def memory(self) -> AnyMemory:
        """The memory of the host: engines with memory of their own are not joined."""
        return HOST

    @property
    def runs_gradients(self) -> bool:
        """Tells whether all engines run the nets of gradients."""
        return all(engine.runs_gradients for engine in self.engines)

    @property
    def has_same_bits(self) -> bool:
        """Returns False: a part may run on another engine in another net."""
        return False

    def refuse(self, schedule: Schedule) -> str | None:
        """Returns the reasons why all engines refuse some part of a schedule; None if none is refused."""
        return first_refusal(self, schedule)

    def refuse_plan(self, plan: Plan) -> str | None:
        """Returns the reasons why all engines refuse a plan, as text; None if at least one runs it."""
        engine, refusals = choice(plan, self.engines)
        return None if engine else "; ".join(f"{name}: {reason}" for name, reason in refusals.items())

    def compile(self, schedule: Schedule) -> Kernel:
        """Compiles each part of a schedule by its first engine that accepts it; returns the kernel of all."""
        with IMPORTS:
            from stepnet.compiler.targets.schedule_kernel import Means, in_parts
        return in_parts(schedule, Means(self.compile_plan, self.total))

    def compile_plan(self, plan: Plan) -> Kernel:
        """Compiles the plan of one part by the first engine that does not refuse it; returns the kernel."""
        engine = choice(plan, self.engines).engine
        assert engine is not None
        return engine.compile_plan(plan.planned(planning_of(engine)))

    def total(self, node: Node, operands: Sequence[Array]) -> Array:
        """Computes the value of a node that combines all rows, from the values of its inputs, with NumPy."""
        with IMPORTS:
            from stepnet.compiler.net.totals import total_of
        return total_of(node, list(operands))


def common_engine(schedule: Schedule, engines: Sequence[Engine]) -> Engine | None:
    """Returns an engine, or several as one, that runs all parts of a schedule; None if all refuse a part, or
    if some of several have memory of their own, where the others cannot read values.
    """
    used = {choice(plan, engines).engine for plan in schedule.plans}
    if len(used) == 1:
        return next(iter(used))
    if any(engine is None or engine.memory != HOST for engine in used):
        return None
    return AssignedEngines(tuple(engines))


def assign_engines(net: Net, engines: Sequence[Engine], name: str | None = None) -> Schedule:
    """Makes the schedule of a net (its parts in the order they run) for several engines. Per-step work is
    absorbed into recurrences unless a recurrence then needs a later engine. If the first engine runs the net
    with all such work absorbed, nothing else is tried. engines: the engines in order of preference. name: the
    text that stands for the net on disk, such as the digest of its file; None for none.
    """
    planning = planning_of(engines[0])

    def is_run(schedule: Schedule) -> bool:
        """Tells whether the first engine runs all parts of a schedule."""
        return all(engines[0].refuse_plan(plan) is None for plan in schedule.plans)

    known = None if name is None else known_schedule(name, planning)
    if known is not None and is_run(known):
        return known
    with IMPORTS:  # late: a schedule that is stored needs none of it
        from stepnet.compiler.plan.passes.absorb import absorb
    absorbed_schedule = StoredSchedule(absorb(net), planning)
    if is_run(absorbed_schedule):
        if name is not None:
            keep_known(name, absorbed_schedule)
        return absorbed_schedule
    with IMPORTS:
        from stepnet.compiler.plan.cutting import recurrence
        from stepnet.compiler.plan.groups import Groups, results_of
        from stepnet.compiler.plan.passes.lift import lift
        from stepnet.compiler.plan.passes.unloop import unloop

    ranks = dict[str, int]()

    def rank(net: Net, number: int) -> int:
        """Returns the position, in `engines`, of the first engine that runs a recurrence, a node of `net`,
        with its results that are read; `len(engines)` if none does. Equal recurrences are compiled to a plan
        (operations in their order) once.
        """
        groups, node = Groups.of(net), net.nodes[number]
        read = tuple(result >= 0 for result in results_of(net, number))
        types = tuple(net.type_of(operand) for operand in node.inputs)
        key = digest(node.pairs, types, read, number in groups.ends)
        if key not in ranks:
            plan = recurrence(net, number, groups, planning).plan
            assert plan is not None
            engine = choice(plan, engines).engine
            ranks[key] = len(engines) if engine is None else [*engines].index(engine)
        return ranks[key]

    def accepts(absorbed: "Absorbed", after: Net) -> bool:
        """Tells whether a recurrence that absorbs more work (`absorbed`, which makes the net `after`) still
        runs on as early an engine of the order of preference as before.
        """
        before, number = absorbed.net, absorbed.recurrence
        recurrences = [
            recurrence_number
            for recurrence_number in flat_recurrences(after)
            if after.nodes[recurrence_number].recur.body == absorbed.body
        ]
        return max(rank(after, recurrence_number) for recurrence_number in recurrences) <= rank(
            before, number
        )

    return Schedule(net, planning, absorb(unloop(lift(net)), accepts))
