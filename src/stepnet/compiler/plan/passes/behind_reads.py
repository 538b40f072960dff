"""Work behind the reads of a matrix, such as a norm or a projection of the values read, moved after the loop.

    recur(x, S): r = sum(S * q); S' = ...   ->   recur(x, S): r = sum(S * q); S' = ...; output r
                 y = norm(r) @ V                 y = norm(r) @ V, of all steps

It pays because the step then has the form of `plan/matrix_rule.py`, whose outputs are elementwise in what is
read, so that the step and its gradient run in chunks of steps. A step that has not that form afterwards, by
itself or divided (`divide.py`), is left as it is. The pass runs before the net is cut into parts, and before
its gradient is made.
"""

from stepnet.compiler.net.ir import Net, Node, Recur, ancestors
from stepnet.compiler.net.types import CONST, ROWS
from stepnet.compiler.plan.inner import is_inner
from stepnet.compiler.plan.load import FitsChunks
from stepnet.compiler.plan.matrix_rule import FLOAT
from stepnet.compiler.plan.passes.divide import loops_of
from stepnet.compiler.plan.passes.read_before import with_early_reads
from stepnet.compiler.plan.passes.sink import sunk_by, without


def behind_reads(net: Net, fits: FitsChunks) -> Net:
    """Moves what is no elementwise work behind the reads of a matrix after the loop; returns the new net, or
    the net itself if there is none.

    fits: tells why a matrix of some sizes does not run in chunks of steps; "" if it does.
    """

    def leave(recur: Recur) -> set[int]:
        """Returns the nodes of a step that run after the loop, if the step without them has the form."""
        late = behind(recur)
        return late if late and has_form(without(recur, late)[0], fits) else set()

    recurs = [node.recur for node in net.nodes if node.operation == "recur"]
    return sunk_by(net, leave) if any(map(leave, recurs)) else net


def has_form(recur: Recur, fits: FitsChunks) -> bool:
    """Tells whether a step changes its only memory by outer products, or one of its memories if divided."""
    if len(recur.memories) > 1:
        return loops_of(recur, fits) is not None
    return not isinstance(with_early_reads(recur), str)


def behind(recur: Recur) -> set[int]:
    """Returns the nodes of a step that only outputs need, without the reads of the matrix."""
    body = recur.body
    types = [body.type_of(memory) for memory in recur.memories]
    if not types or any(type_.dtype != FLOAT or type_.extent != ROWS for type_ in types):
        return set()
    matrix = max(recur.memories, key=lambda memory: body.type_of(memory).size)
    size = body.type_of(matrix).size
    late, reads = {matrix}, set[int]()
    for number, node in enumerate(body.nodes):
        if not late.isdisjoint(node.inputs):
            late.add(number)
            if node.kind == "reduce" and body.type_of(node.inputs[0]).size == size:
                reads.add(number)
    needed, outputs = ancestors(body.nodes, [*recur.following, *reads]) | {*body.inputs}, recur.outputs
    leaving = set[int]()
    for output in outputs:
        only = {n for n in ancestors(body.nodes, [output]) - needed if is_varying(body.nodes[n])}
        nodes = [body.nodes[number] for number in only]
        is_movable = not any(is_inner(node) or node.operation == "index" for node in nodes)
        if is_movable and not all(is_elementwise(body.nodes[number]) for number in only & late):
            leaving |= only
    staying = ancestors(body.nodes, [output for output in outputs if output not in leaving])
    return leaving - staying if reads else set()


def is_varying(node: Node) -> bool:
    """Tells whether a node changes from step to step, or from sequence to sequence."""
    return any(type_.extent != CONST for type_ in node.types)


def is_elementwise(node: Node) -> bool:
    """Tells whether a node computes each element by itself, or shows elements in another order."""
    return node.kind == "pointwise" or node.is_view
