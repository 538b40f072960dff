"""Sums over units moved after a loop that is elementwise without them: a thread then has each unit alone.

    recur(a, x, n): n' = a n + x; y = sum(n)   ->   recur(a, x, n): n' = a n + x; output n
                                                    y = sum(n), of all steps

In the loop each step would wait until all units are added up: that is most of the time of the adjoint of an
mLSTM's n. Afterwards the sums of all steps run beside each other. The memory is then stored at each step, so
it is done for small ones, beside inputs that are as large.
"""

from stepnet.compiler.net.ir import Net, Recur
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.passes.sink import leaving, sunk_by

LARGEST = 4096
"""The largest size of the memories of a loop that are stored at each step for sums over them."""
LONGEST_FIBER = 32
"""The longest sums that stay where no other is longer: a thread adds up so many numbers of its own."""


def sink_sums(net: Net) -> Net:
    """Moves work behind its loop as `sink` does, and all sums of loops that are elementwise without them."""
    return sunk_by(net, with_sums)


def with_sums(recur: Recur) -> set[int]:
    """Returns the nodes of a step that run after the loop: those of `leaving`, and sums."""
    body, few, all_late = recur.body, leaving(recur), leaving(recur, with_read_outs=True)
    varying = {number for number, node in enumerate(body.nodes) if node.types[0].extent != CONST}
    staying = {body.nodes[number].kind for number in varying if number not in all_late}
    sums = [n for n in all_late - few if body.nodes[n].kind == "reduce"]
    lengths = [body.type_of(body.nodes[n].inputs[0]).size // body.type_of(n).size for n in sums]
    size = sum(body.type_of(number).size for number in recur.following)
    given = sum(body.type_of(number).size for number in body.inputs if number in varying) - size
    is_small = size <= min(LARGEST, given)
    is_apart = max(lengths, default=0) > LONGEST_FIBER and staying <= {"source", "pointwise", "view"}
    return all_late if is_small and is_apart else few
