"""The adjoint of `extend`, which puts copies of steps at the ends of sequences.

y         c b  a b c d  c         x by reflection, two steps ahead and one behind
dx             a b c d            the cotangents of the steps themselves,
b c              those of the copies ahead, last first,
c              and those of the copies behind
"""

from stepnet.compiler.grad.extents import Cotangents
from stepnet.compiler.grad.features import put_back
from stepnet.compiler.grad.value import Value
from stepnet.compiler.net.extensions import Extension
from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.windows import Window


def extend(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """Returns the cotangent of the operand x of `extend`: each entry of d, the cotangent of the result y, is
    added to the step that it is a copy of.
    """
    extension = Extension.of(node.attributes)
    total = own_steps(d, extension, x)
    for behind, count in ((False, extension.before), (True, extension.after)):
        if count:
            total = total + of_copies(d, x, count, behind, extension.how)
    return (total,)


def own_steps(d: Value, extension: Extension, x: Value) -> Value:
    """Returns the entries of d, the cotangent of an extended value, at the steps of x itself."""
    for entry, count in ((1, extension.before), (0, extension.after)):
        if count:
            window = Window(2, count, 0, lost=count).attributes
            pairs = d.apply("windows", **window)
            d = pairs.slice(0, entry, entry + 1).reshape(*x.type.shape)
    return d


def of_copies(d: Value, x: Value, count: int, behind: bool, how: str) -> Value:
    """Returns the entries of d, the cotangent of an extended value, at copies of steps, added at the steps of
    x that they are copies of.

    count: the number of copies of each sequence. behind: whether they are behind it. how: the way in which
    it is extended.
    """
    end = "last" if behind else "first"
    window = Window(count, 1, count - 1 if behind else 0).attributes
    copies = d.apply("windows", **window).apply("reduce", how=end)
    if how == "replicate":
        return copies.sum(-copies.rank).apply("expand", extent=x.type.extent, how=end)
    places = [count - 1 - copy if behind else count - copy for copy in range(count)]
    values = put_back(copies, -copies.rank, places, count + 1)
    window = Window(count + 1, 1, count if behind else 0).attributes
    return values.apply("expand", extent=x.type.extent, how=end).apply("overlap", **window)
