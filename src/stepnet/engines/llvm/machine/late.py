"""The modules that generate code, imported when code is generated.

They import the LLVM library, which takes longer than loading all the code of a model. A fork waits for an
import to end.
"""

from importlib import import_module
from typing import Any

from stepnet.engines.apart import run_without_fork


def late(module: str) -> Any:
    """A module that generates code, by its folder and name, as `products.arithmetic`."""

    def load() -> Any:
        import_module("stepnet.engines.llvm.machine.room").load_llvm()
        return import_module(f"stepnet.engines.llvm.{module}")

    return run_without_fork(load)
