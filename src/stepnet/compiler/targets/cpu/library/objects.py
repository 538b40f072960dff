"""Compilation of LLVM text to position-independent object code, also for other processors."""

from functools import cache

import llvmlite.binding as llvm

from stepnet.compiler.targets.cpu.library.platforms import Platform
from stepnet.compiler.targets.cpu.machine.lazy import lazy_import
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.values.fork_guard import run_in_thread

OWN = "_stepnet_"
"""A part of the names of functions and data that the objects of one library share."""


def object_of(text: str, platform: Platform, code: Processor, public: frozenset[str]) -> bytes:
    """Compiles LLVM text to a position-independent object file.

    platform: its family decides the file's format. code: the processor whose instructions the text may use.
    public: the functions that users call; others are hidden from programs that link the library.
    """

    def hide_others(module: llvm.ModuleRef) -> None:
        """Hides the names that are not in `public` from other libraries and programs: those defined here, and
        those of other objects of the library, which contain `OWN`. Names of the C library stay as they are.
        """
        for value in (*module.functions, *module.global_variables):
            hidden = value.name not in public and (not value.is_declaration or OWN in value.name)
            if value.linkage == llvm.Linkage.external and hidden:
                value.visibility = "hidden"

    def emit() -> bytes:
        """Generates the object code of the module, in another thread, which no signal interrupts."""
        generator = lazy_import("machine.object_code")
        with generator.shorter_pipeline():
            data: bytes = generator.emit(
                text, target_machine(platform.triple, code.cpu, code.features), hide_others
            )
        return data

    return run_in_thread(emit)


@cache
def target_machine(triple: str, cpu: str, features: str) -> llvm.TargetMachine:
    """Returns LLVM's code generator for a processor; it is cached, as all modules share it."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    family = llvm.Target.from_triple(triple)
    return family.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic", codemodel="small")
