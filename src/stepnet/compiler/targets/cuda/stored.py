"""The numbers of 16 bits in which values of float32 are known to be: parameters and inputs stored so; and
memories that a loop reads and writes so.

%11 = cast W dtype=float32     W bfloat16: products may multiply %11 as bfloat16, and lose nothing
%12 = slice %11

%5 = cast h0 dtype=float32                 recur x, h0        the loop reads h0 as it is
%6 = recur x, %5                    -->    ...
%9 = cast %8 dtype=bfloat16                %9 = result        and writes %9
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from stepnet.compiler.net.ir import Net, unchecked_net
from stepnet.compiler.net.types import ROWS
from stepnet.compiler.plan.plan import Plan

HALF_DTYPES = ("bfloat16", "float16")
"""The floats of 16 bits, in which values are stored, but not computed."""
MULTIPLIED = (None, "stored", "bfloat16")
"""The encodings of weights that tensor cores multiply: none, and those of bfloat16."""


def half_of(net: Net, number: int) -> str | None:
    """Returns the 16-bit dtype that has all values of a node: a cast from it, a view of one, or a
    concatenation of such casts. None for any other node.
    """
    node = net.nodes[number]
    while node.is_view:
        number = node.inputs[0]
        node = net.nodes[number]
    if node.operation == "concatenate":
        return common_half(half_of(net, each) for each in node.inputs)
    stored = {net.type_of(n).dtype for n in (number, *node.inputs[: node.operation == "cast"])}
    return next((dtype for dtype in HALF_DTYPES if dtype in stored), None)


def common_half(dtypes: Iterable[str | None]) -> str | None:
    """Returns the dtype that all of some have in common; None if they differ, or if there are none."""
    found = set(dtypes)
    return found.pop() if len(found) == 1 else None


class MemoryDtypes(NamedTuple):
    """The dtypes of the arrays of a loop's initial memories and of its final memories."""

    initial: tuple[str, ...]
    final: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan) -> "MemoryDtypes":
        """Returns the dtypes of a plan's loop. Within a step, memories may have other dtypes."""
        recurrence, recur = plan.recurrence, plan.recurrence.recur
        given = recur.operands_by_kind(recurrence.inputs).memories
        made = recur.results_by_kind(recurrence.types).memories
        return cls(
            tuple(plan.net.type_of(number).dtype for number in given), tuple(type_.dtype for type_ in made)
        )


def with_stored_memories(plan: Plan) -> Plan:
    """Returns a plan whose loop reads and writes memories of 16 bits as they are, where its net casts them
    ahead of the loop and behind it. The plan itself if it casts none.
    """
    net, recurrence, recur = plan.net, plan.recurrence, plan.recurrence.recur
    nodes, users = [*net.nodes], net.users()
    if recur.following == recur.memories and not recur.outputs:
        return plan
    inputs, types = [*recurrence.inputs], [*recurrence.types]
    stored = [uncast(net, number) for number in recurrence.inputs]
    begins: Sequence[int] = recur.operands_by_kind(range(len(inputs))).memories
    ends: Sequence[int] = recur.results_by_kind(range(len(types))).memories
    for place in begins:
        inputs[place] = stored[place]
    made = {net.nodes[user].attributes["of"]: user for user in users[plan.recur]}
    for place in ends:
        read = made.get(place)
        if read is None or read in net.results or len(users[read]) != 1:
            continue
        (rounded,) = users[read]
        if net.nodes[rounded].operation == "cast" and is_half_of_rows(net, rounded):
            types[place] = net.type_of(rounded)
            nodes[rounded] = replace(net.nodes[read], types=(types[place],))
    if inputs == [*recurrence.inputs] and types == [*recurrence.types]:
        return plan
    nodes[plan.recur] = replace(recurrence, inputs=tuple(inputs), types=tuple(types))
    return replace(plan, net=unchecked_net(tuple(nodes), net.inputs, net.results))


def uncast(net: Net, number: int) -> int:
    """Returns the value of 16 bits that a value per row is a cast of; the value itself if it is none."""
    node = net.nodes[number]
    is_cast = node.operation == "cast" and is_half_of_rows(net, node.inputs[0])
    return node.inputs[0] if is_cast else number


def is_half_of_rows(net: Net, number: int) -> bool:
    """Tells whether a value has an entry for each row, of 16 bits."""
    return net.type_of(number).extent == ROWS and net.type_of(number).dtype in HALF_DTYPES
