"""Weights of other frameworks as stepnet's own: one file of records per framework."""

from stepnet.layout.torch import from_torch as from_torch

__all__ = ["from_torch"]
