"""Results of the writers of kernels, kept on disk: a later process that needs the same imports no writer.

    written("arrays.moves.plus", ...)    read from disk, or made by `plus` of `arrays/moves.py` and stored

The modules that write kernels import LLVM's library, which takes longer than all else that a process does
before its first result. So those that run kernels name the functions, and never import them.
"""

from functools import lru_cache
from typing import Any

from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.targets.cpu.machine.lazy import lazy_import
from stepnet.compiler.targets.cpu.machine.stored_code import keep, read
from stepnet.compiler.targets.cuda.device import DeviceCode

CODE = Serializer(DeviceCode)


def written(function: str, form: Serializer, key: tuple[Any, ...], *arguments: Any) -> Any:
    """Returns the result of a function of this folder, read from disk, or computed now and stored there.

    function: its module and name, such as "choice.new_loop". Its result is not None.
    form: converts the result from bytes. key: all that the result depends on, besides the sources of the
        compiler and the version of LLVM, which are in each key.
    """
    stored = read("gpu", form, (function, *key))
    if stored is None:
        stored = made(function, *arguments)
        keep("gpu", form, (function, *key), stored)
    return stored


def made(function: str, *arguments: Any) -> Any:
    """Imports the module of a function of this folder and calls the function. function: see `written`."""
    module, _, name = function.rpartition(".")
    return getattr(lazy_import(module, "cuda"), name)(*arguments)


@lru_cache(maxsize=512)
def kernel_code(function: str, *options: Any) -> DeviceCode:
    """Returns a kernel of no plan: as kept in this process, as on disk, or written now.

    function: of this folder, which writes it, such as "moves.moved". options: its arguments, which are
        numbers, texts and records of these.
    """
    code: DeviceCode = written(function, CODE, options, *options)
    return code
