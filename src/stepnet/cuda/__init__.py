"""Kernels for NVIDIA's GPUs: their code as PTX, and an emulation that runs them on the CPU.

A model runs on a GPU by `engine="cuda"`, and by the names with options that `engine` returns. `ptx` returns
the code of its kernels, and `emulate` runs them without a GPU. The target is experimental.
"""

from stepnet.cuda.engines import engine
from stepnet.cuda.kernels import emulate, ptx

__all__ = ["emulate", "engine", "ptx"]
