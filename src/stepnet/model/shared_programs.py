"""Programs of nets that are derived from the net of a model, such as the net of its tangents.

They are cached with the program of the model. Models with equal nets share them, as parameters are arguments
of these nets.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakValueDictionary

from stepnet.compiler.net.digest import digest
from stepnet.compiler.net.ir import Net, all_nodes
from stepnet.compiler.values.once import entry_of
from stepnet.model.program import NetProgram

SHARED = WeakValueDictionary[Hashable, NetProgram]()
"""The programs that exist, by their derivation and a digest of the net that they are derived from."""


def program_from(
    net: Net, how: tuple[Hashable, ...], kept: OrderedDict[Any, Any], derive: Callable[[], Net]
) -> NetProgram:
    """Returns the program of a net derived from another one: the cached program of this or of an equal net,
    or a new one.

    net: the net to derive from. Equal nets have equal names and lines of the user's code too, as messages
        show these.
    how: the key of the derivation: its name, such as "tangents", and everything that it depends on besides
        the net.
    kept: the programs that are cached with a model. derive: makes the net.
    """
    key = *how, digest(net, tuple((node.name, node.source) for node in all_nodes(net)))

    def shared() -> NetProgram:
        """Returns the program of an equal net, or makes it."""
        found = SHARED.get(key)
        if found is None:
            found = SHARED[key] = NetProgram(derive())
        return found

    program: NetProgram = entry_of(kept, key, shared)
    return program
