"""A disk cache of schedules: a later process that runs the same net does not plan it again.

    net --key--> file --data--> parts, each with its plan

Reading a schedule takes a twentieth of the time of planning. The names of nodes and the user's lines are part
of the key, because they are stored too.
"""

from dataclasses import replace
from typing import Any

from stepnet.compiler.disk import store
from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.disk.entry import NotDataError
from stepnet.compiler.disk.folder import NotUsableError
from stepnet.compiler.disk.sources import sources
from stepnet.compiler.net.digest import digest
from stepnet.compiler.net.encodings import Precision
from stepnet.compiler.net.ends import Ends
from stepnet.compiler.net.ir import Net, Node, all_nodes, unchecked_net
from stepnet.compiler.net.types import Literal, Type
from stepnet.compiler.plan.plan import Plan, Planning, literals_of
from stepnet.compiler.plan.schedule import Cut, Part, Schedule, new_cut
from stepnet.compiler.values.once import computed_once

FORM = Serializer(Part, Plan, Net, Node, Type, Literal, Ends, Precision, shortcuts={Net: unchecked_net})
PLANNING = ("compiler/disk", "compiler/values", "compiler/net", "compiler/plan")
"""The folders whose modules determine a schedule: their sources are part of the key."""
OWN = "stepnet.compiler.plan."
"""The beginning of the names of modules whose passes are among these sources."""
MOST_BYTES = 2**20
"""A net with more bytes of constant arrays than this is not stored: every plan contains a copy of the arrays.
"""


class StoredSchedule(Schedule):
    """Schedule whose parts are read from the disk cache at first use, or computed and stored there."""

    @computed_once
    def cut(self) -> Cut:
        """The schedule's net and the parts into which it is cut, from disk, or computed and stored there."""
        planning = self.planning
        key = key_of(self.traced, planning)
        if key is None:
            return new_cut(self.traced, None, planning)
        stored = store.value("schedule", key, FORM, (planning,))
        if stored is not None:
            return cut_from(stored, self.traced)
        cut = new_cut(self.traced, None, planning)
        try:
            store.put("schedule", key, FORM.packed(entry_of(cut, self.traced), (planning,)))
        except NotDataError:  # the net holds an object that cannot be stored
            store.COUNTS["failed"] += 1
        return cut


def key_of(traced: Net, planning: Planning) -> str | None:
    """Computes the key of a net's schedule in the disk cache, of the net, the engine's passes and the sources
    of the code that plans. Returns None if the schedule is not to be stored: if the cache is off or its
    sources cannot be read, if the net has large constants, or if a pass is of another package, whose sources
    are not part of the key.

    planning: the passes and costs of the engine.
    """
    if is_large(traced):
        return None
    named = tuple((node.name, node.source) for node in all_nodes(traced))
    return key_under((traced, named), planning)


def key_under(name: Any, planning: Planning) -> str | None:
    """Computes the key of a schedule from `name`, which stands for a net or for the facts that determine it.
    Returns None if a pass is of another package, whose sources are not part of the key, or if the sources
    cannot be read.

    planning: the passes and costs of the engine.
    """
    if not all(rewrite.__module__.startswith(OWN) for rewrite in planning.pipeline):
        return None
    passes = tuple((rewrite.__module__, rewrite.__qualname__) for rewrite in planning.pipeline)
    costs = planning.costs.fibers, planning.costs.find_pairs is None, planning.costs.chunks is None
    try:
        return digest(sources(*PLANNING), passes, *costs, *name)
    except NotUsableError:
        return None


def known_schedule(name: str, planning: Planning) -> StoredSchedule | None:
    """Reads the schedule of a net from disk by a name that stands for the net, such as the digest of its
    file: neither the net nor its digest is computed. None if it is not stored.
    """
    key = key_under(("named", name), planning) if store.is_used() else None
    entry = None if key is None else store.value("schedule", key, FORM, (planning,))
    if entry is None:
        return None
    schedule = StoredSchedule(entry["traced"], planning)
    vars(schedule)["cut"] = cut_from(entry, schedule.traced)
    return schedule


def keep_known(name: str, schedule: StoredSchedule) -> None:
    """Stores a schedule under a key of its net; see `known_schedule`."""
    traced, planning = schedule.traced, schedule.planning
    key = None if is_large(traced) else key_under(("named", name), planning)
    if key is not None:
        entry = {**entry_of(schedule.cut, traced), "traced": traced}
        try:
            store.put("schedule", key, FORM.packed(entry, (planning,)))
        except NotDataError:  # the net holds an object that cannot be stored
            store.COUNTS["failed"] += 1


def is_large(traced: Net) -> bool:
    """Tells whether a net's schedule is not to be stored: if the cache is off, or for large constants."""
    return not store.is_used() or sum(literal.value.nbytes for literal in literals_of(traced)) > MOST_BYTES


def entry_of(cut: Cut, traced: Net) -> dict[str, Any]:
    """Makes the disk cache entry for a cut net: a dict from which `cut_from` restores the same parts.

    It has the net, the parts, the keys of their plans (operations in their order), the inner schedules of
    loops (as entries too), and `whole`: whether one plan runs the traced net. traced: the net before it was
    cut, which is not stored.
    """
    net, parts = cut
    inner = [part.inner for part in parts]
    return {
        "net": None if net is traced else net,
        "parts": tuple(replace(part, inner=None) for part in parts),
        "keys": tuple(part.plan and part.plan.key for part in parts),
        "inner": tuple(
            inner_schedule
            and (
                inner_schedule.traced,
                inner_schedule.planning,
                inner_schedule.moved,
                entry_of(inner_schedule.cut, inner_schedule.traced),
            )
            for inner_schedule in inner
        ),
        "whole": len(parts) == 1 and parts[0].plan is not None and parts[0].plan.traced is traced,
    }


def cut_from(entry: dict[str, Any], traced: Net) -> Cut:
    """Restores a cut net and its parts from a disk cache entry that `entry_of` made for the net `traced`."""
    parts = list[Part]()
    for part, key, inner in zip(entry["parts"], entry["keys"], entry["inner"], strict=True):
        plan, own = part.plan, None
        if plan is not None:
            plan = replace(plan, traced=traced) if entry["whole"] else plan
            vars(plan)["key"] = key  # saves the plan from computing it at first use
        if inner is not None:
            own = Schedule(*inner[:3])
            vars(own)["cut"] = cut_from(inner[3], own.traced)
        parts.append(replace(part, plan=plan, inner=own))
    return entry["net"] or traced, tuple(parts)
