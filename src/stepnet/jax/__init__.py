"""JAX: a recurrence as a function of JAX, with gradients.

`scan` runs a step in machine code in the place of `jax.lax.scan`: under `jit`, `grad` and `vmap`. To import
this module imports JAX; to import stepnet alone does not.
"""

from stepnet.jax.recurrence import scan

__all__ = ["scan"]

__dir__ = __all__.copy
