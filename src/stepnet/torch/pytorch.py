"""Imports PyTorch's modules by name, as few of their types are known, or says how to install PyTorch."""

from typing import Any

from stepnet.compiler.values.entry_points import imported
from stepnet.errors import InputError, pip_command


def pytorch(name: str) -> Any:
    """Imports a module of PyTorch by name; raises `InputError` if PyTorch is not installed, or cannot be
    imported.

    >>> pytorch("torch").tensor(2.0) ** 3
    tensor(8.)
    """
    try:
        return imported(name)
    except ModuleNotFoundError as error:
        raise InputError(f"steps written with PyTorch need torch: {pip_command('stepnet[torch]')}") from error
    except (ImportError, OSError) as error:
        raise InputError(
            f"torch is installed, and {name} cannot be imported: {error}; reinstall it"
        ) from error
