"""Imports at first use, which a fork of the process waits for: else its child could find a module locked for
ever.

Modules that generate code import the LLVM library, which takes longer than loading all stored code of a
model. So they are imported when code is generated. Modules for calls that few processes make come with these.
"""

from importlib import import_module
from typing import Any

from stepnet.compiler.values.fork_guard import run_without_fork


def lazy_import(module: str, target: str = "cpu") -> Any:
    """Imports and returns a module that generates code, which takes long, only now that it is needed.

    module: its folder and name, such as "products.arithmetic". target: the folder of its target.
    """

    def load() -> Any:
        """Loads the LLVM library, which the module needs, and imports the module."""
        import_module("stepnet.compiler.targets.cpu.machine.room").load_llvm()
        return import_module(f"stepnet.compiler.targets.{target}.{module}")

    return run_without_fork(load)


def late_import(module: str, target: str = "cpu") -> Any:
    """Imports and returns a module that generates no code at its first use. target: its target's folder."""
    return run_without_fork(lambda: import_module(f"stepnet.compiler.targets.{target}.{module}"))
