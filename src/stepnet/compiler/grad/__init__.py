"""Gradients and tangents: from a net to a net."""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import late_names

if TYPE_CHECKING:
    from stepnet.compiler.grad.by_sequence import per_sequence as per_sequence
    from stepnet.compiler.grad.gradient import vjp as vjp
    from stepnet.compiler.grad.halving import Halves as Halves
    from stepnet.compiler.grad.halving import halves as halves
    from stepnet.compiler.grad.matrix_cores import matrix_core as matrix_core
    from stepnet.compiler.grad.tangent_net import jvp as jvp

__getattr__ = late_names(
    __name__,
    ("by_sequence", "per_sequence"),
    ("gradient", "vjp"),
    ("halving", "Halves halves"),
    ("matrix_cores", "matrix_core"),
    ("tangent_net", "jvp"),
)
