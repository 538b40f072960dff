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
    places = view_places(net, operand)
    if net.type_of(root).size != user.type.size:
        return False
    spread = np.broadcast_to(places, user.type.shape).ravel()
    return bool(np.array_equal(spread, np.arange(user.type.size)))


def view_places(net: Net, number: int) -> np.ndarray:
    """Returns, for each element of a view, the flat index of the element of the source that it shows. The
    view's operations are applied to an array of indices.
    """
    root, chain = view_chain(net, number)
    shape = net.type_of(root).shape
    places = np.arange(net.type_of(root).size, dtype=np.int64).reshape(shape)
    for node in chain:
        places = node.row.meaning(places[None], **node.attributes)[0]
    return places


def reshaped(net: Net, number: int) -> int:
    """Returns the node that a view shows if the view only reshapes it, so that elements keep their order;
    otherwise returns `number` itself.
    """
    root, chain = view_chain(net, number)
    if not chain or net.type_of(root).size != net.type_of(number).size:
        return number
    places = view_places(net, number).ravel()
    return root if np.array_equal(places, np.arange(len(places))) else number
