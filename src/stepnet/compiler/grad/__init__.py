"""Gradients and tangents: from a net to a net."""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import imported_late

if TYPE_CHECKING:
    from stepnet.compiler.grad.by_sequence import per_sequence
    from stepnet.compiler.grad.gradient import vjp
    from stepnet.compiler.grad.halving import Halves, halves
    from stepnet.compiler.grad.matrix_cores import matrix_core
    from stepnet.compiler.grad.tangent_net import jvp

__all__ = [
    "Halves",
    "halves",
    "jvp",
    "matrix_core",
    "per_sequence",
    "vjp",
]
HOMES = {
    "Halves": "halving",
    "halves": "halving",
    "jvp": "tangent_net",
    "matrix_core": "matrix_cores",
    "per_sequence": "by_sequence",
    "vjp": "gradient",
}
"""The modules of names, which are imported at their first use: a package whose import imports its modules can
wait for a thread that imports one of them, and the thread for the package.
"""


def __getattr__(name: str) -> object:
    """Imports a name at its first use."""
    return imported_late(__name__, name, HOMES.get(name))
