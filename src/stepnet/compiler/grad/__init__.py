"""Gradients and tangents: from a net to a net."""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import late_names

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

__getattr__ = late_names(
    __name__,
    ("by_sequence", "per_sequence"),
    ("gradient", "vjp"),
    ("halving", "Halves halves"),
    ("matrix_cores", "matrix_core"),
    ("tangent_net", "jvp"),
)
