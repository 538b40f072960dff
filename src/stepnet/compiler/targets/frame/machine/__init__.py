"""Machine code of frame programs: for each platform an object by LLVM, and what its users link.

FrameProgram --code--> LLVM module --LLVM--> object --archive--> static library
                                                    --wasm_modules--> WebAssembly module
"""

from typing import TYPE_CHECKING

from stepnet.compiler.targets.frame.machine.platforms import DEVICES as DEVICES
from stepnet.compiler.targets.frame.machine.platforms import DevicePlatform as DevicePlatform
from stepnet.compiler.values.fork_guard import late_names

if TYPE_CHECKING:
    from stepnet.compiler.targets.frame.machine.code import compiled_text as compiled_text
    from stepnet.compiler.targets.frame.machine.code import module_of as module_of
    from stepnet.compiler.targets.frame.machine.code_sizes import sizes_of_code as sizes_of_code
    from stepnet.compiler.targets.frame.machine.code_sizes import taken_by as taken_by
    from stepnet.compiler.targets.frame.machine.interface import MachineProgram as MachineProgram
    from stepnet.compiler.targets.frame.machine.wasm_modules import wasm_module as wasm_module

__getattr__ = late_names(
    __name__,
    ("code", "compiled_text module_of"),
    ("code_sizes", "sizes_of_code taken_by"),
    ("interface", "MachineProgram"),
    ("wasm_modules", "wasm_module"),
)
