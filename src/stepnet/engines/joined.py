"""Which recurrences of a schedule run in one call: those for which their engine supports it.

    layers of a net            engine of each recurrence      supports one call            runs
    0 and 1, 2 and 3, a stack  onednn                         no: both directions          0 and 1; 2 and 3
    4; 5                       onednn, llvm                   not asked                    4; 5

As many layers of a stack as possible run in one call, from the first on. The others run part by part.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stepnet.engines.base import Engine
from stepnet.engines.placed import choice
from stepnet.net.ir import Net
from stepnet.plan.groups import Groups, flat_recurrences
from stepnet.plan.joined import chains, described, hindrance, joined_part
from stepnet.plan.passes.stack import members
from stepnet.plan.plan import Plans
from stepnet.plan.schedule import Part, recurrence


@dataclass(frozen=True)
class Joining:
    """Layers that might run in one call, and whether they do.

    layers: a description of the layers.
    engine: the engine of each of them.
    part: the joined part; None if the engine refuses it.
    reason: the reason for the refusal.
    """

    layers: str
    engine: str
    part: Part | None
    reason: str

    def __str__(self) -> str:
        how = "in one piece" if self.part else f"part by part: {self.reason}"
        return f"{self.layers}\n    {self.engine} runs them {how}"


def joinings(net: Net, engines: Sequence[Engine]) -> Iterator[Joining]:
    """For the layers of a net that might run in one call, whether they do."""
    if len(flat_recurrences(net)) < 2:
        return
    groups, plans, done = Groups.of(net), Plans(), list[Part]()
    for chain in chains(net):
        numbers = [number for layer in chain for number in members(layer)]
        parts = {number: recurrence(net, number, groups, plans) for number in numbers}
        begin = 0
        while begin < len(chain):
            length = 1
            for end in range(len(chain), begin, -1):
                layers = chain[begin:end]
                part = joined_part(layers, parts, net)
                engine = engine_of(part, engines)
                if engine is None or engine.joins is None or not is_several(part):
                    continue
                reason = hindrance(part, net, groups, done) or engine.joins.refuse(part)
                yield Joining(described(net, layers), engine.name, None if reason else part, reason or "")
                if reason is None:
                    done.append(part)
                    length = len(layers)
                    break
            begin += length


def is_several(part: Part) -> bool:
    """Whether a part joins more than one recurrence."""
    return sum(map(len, part.members)) > 1


def engine_of(part: Part, engines: Sequence[Engine]) -> Engine | None:
    """The engine that runs all members of a joined part; None where several do, or none."""
    plans = [member.plan for layer in part.members for member in layer if member.plan is not None]
    used = [choice(plan, engines).engine for plan in plans]
    return used[0] if all(engine is used[0] for engine in used) else None
