"""Machine code of frame programs: for each platform an object by LLVM, and what its users link.

FrameProgram --code--> LLVM module --LLVM--> object --archive--> static library
                                                    --wasm_modules--> WebAssembly module
"""

from typing import TYPE_CHECKING, Any

from stepnet.compiler.targets.frame.machine.platforms import DEVICES, DevicePlatform
from stepnet.compiler.values.fork_guard import imported_late

if TYPE_CHECKING:
    from stepnet.compiler.targets.frame.machine.code import compiled_text, module_of
    from stepnet.compiler.targets.frame.machine.code_sizes import sizes_of_code, taken_by
    from stepnet.compiler.targets.frame.machine.interface import MachineProgram
    from stepnet.compiler.targets.frame.machine.wasm_modules import wasm_module

__all__ = [
    "DEVICES",
    "DevicePlatform",
    "MachineProgram",
    "compiled_text",
    "module_of",
    "sizes_of_code",
    "taken_by",
    "wasm_module",
]

HOMES = {
    "MachineProgram": "interface",
    "compiled_text": "code",
    "module_of": "code",
    "sizes_of_code": "code_sizes",
    "taken_by": "code_sizes",
    "wasm_module": "wasm_modules",
}
"""The modules of names that are imported at their first use, as they need llvmlite."""


def __getattr__(name: str) -> Any:
    """Imports a name in `HOMES` at its first use; raises `AttributeError` for other names."""
    return imported_late(__name__, name, HOMES.get(name))
