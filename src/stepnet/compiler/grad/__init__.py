"""Gradients: from a net to a net."""

from stepnet.compiler.grad.gradient import vjp
from stepnet.compiler.grad.halves import Halves, halves

__all__ = ["Halves", "halves", "vjp"]
