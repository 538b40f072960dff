"""Views as index arrays: for each element of a view, the flat index of the element in the source that it
shows.
"""

import numpy as np

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.plan.passes.rewrite import view_chain


def reads_along(net: Net, operand: int, user: Node) -> bool:
    """Tells whether each element of the pointwise node `user` reads the element of the same flat index in
    `operand`, so that both can be computed element by element.
    """
    root, _ = view_chain(net, operand)
    indices = view_indices(net, operand)
    if net.type_of(root).size != user.type.size:
        return False
    spread = np.broadcast_to(indices, user.type.shape).ravel()
    return bool(np.array_equal(spread, np.arange(user.type.size)))


def view_indices(net: Net, number: int) -> np.ndarray:
    """Returns, for each element of a view, the flat index of the element of the source that it shows. The
    view's operations are applied to an array of indices.
    """
    root, chain = view_chain(net, number)
    shape = net.type_of(root).shape
    indices = np.arange(net.type_of(root).size, dtype=np.int64).reshape(shape)
    for node in chain:
        indices = node.row.meaning(indices[None], **node.attributes)[0]
    return indices


def without_reshape(net: Net, number: int) -> int:
    """Returns the node that a view shows if the view only reshapes it, so that elements keep their order;
    otherwise returns `number` itself.
    """
    root, chain = view_chain(net, number)
    if not chain or net.type_of(root).size != net.type_of(number).size:
        return number
    indices = view_indices(net, number).ravel()
    return root if np.array_equal(indices, np.arange(len(indices))) else number
