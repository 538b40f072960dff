"""Programs of nets that follow from the net of a model, such as that of its tangents.

They are kept with the program of the model, and models with equal nets share them: only parameters differ,
which are arguments of these nets.
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
"""The programs that exist, by what they compute of which net."""


def program_from(
    net: Net, how: tuple[Hashable, ...], kept: OrderedDict[Any, Any], derive: Callable[[], Net]
) -> NetProgram:
    """Returns the program of a net that follows from another one: as it is kept, that of an equal net, or
    made now.

    net: the net that it follows from. Its names and the user's lines, which messages have, are equal too.
    how: what follows, such as "tangents", with all that it depends on besides the net.
    kept: the programs that are kept with a model. derive: makes the net.
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
