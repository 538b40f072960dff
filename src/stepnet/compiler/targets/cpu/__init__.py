"""Machine code for the CPU, by LLVM."""

from stepnet.compiler.targets.cpu.engine import LlvmEngine
from stepnet.compiler.targets.cpu.machine.target import Processor, available_targets, host_target

__all__ = ["LlvmEngine", "Processor", "available_targets", "host_target"]
