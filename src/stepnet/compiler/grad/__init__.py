"""Gradients: from a net to a net."""
