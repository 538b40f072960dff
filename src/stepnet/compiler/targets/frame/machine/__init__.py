"""Machine code of frame programs: for each platform an object by LLVM, and what its users link.

FrameProgram --code--> LLVM module --LLVM--> object --archive--> static library
                                                    --wasm_modules--> WebAssembly module
"""

from typing import TYPE_CHECKING

from stepnet.compiler.targets.frame.machine.platforms import DEVICES, DevicePlatform
from stepnet.compiler.values.fork_guard import late_names

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

__getattr__ = late_names(
    __name__,
    ("code", "compiled_text module_of"),
    ("code_sizes", "sizes_of_code taken_by"),
    ("interface", "MachineProgram"),
    ("wasm_modules", "wasm_module"),
)
