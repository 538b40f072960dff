"""Machine code for the CPU, by LLVM."""

from stepnet.compiler.targets.cpu.engine import LlvmEngine
from stepnet.compiler.targets.cpu.machine.processor import Processor, available_processors, host_processor

__all__ = ["LlvmEngine", "Processor", "available_processors", "host_processor"]
