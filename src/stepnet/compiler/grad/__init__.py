"""Gradients and tangents: from a net to a net."""

from stepnet.compiler.grad.gradient import vjp
from stepnet.compiler.grad.halves import Halves, halves
from stepnet.compiler.grad.matrix_core import matrix_core
from stepnet.compiler.grad.per_sequence import per_sequence
from stepnet.compiler.grad.tangent_net import jvp

__all__ = ["Halves", "halves", "jvp", "matrix_core", "per_sequence", "vjp"]
