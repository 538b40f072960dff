"""Gradients of models: backward passes, checkpoints, losses, tangents, and their prepared calls."""
