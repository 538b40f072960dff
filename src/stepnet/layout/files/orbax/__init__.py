"""Checkpoint folders of Orbax, as JAX programs save them."""
