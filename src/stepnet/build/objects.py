"""LLVM text to position-independent object code for a processor, which need not be the one at hand."""

from functools import cache

import llvmlite.binding as llvm

from stepnet.build.targets import BuildTarget
from stepnet.engines.apart import apart, undivided
from stepnet.engines.llvm.machine.target import Target

OWN = "_stepnet_"
"""What stands in the names of functions and data that the objects of one library share."""


def object_of(text: str, target: BuildTarget, code: Target, public: frozenset[str]) -> bytes:
    """The object file of a module's text. public: the functions that users of the library call; other
    libraries and programs do not see the names of all others.
    """
    return apart(lambda: emitted(text, target, code, public))


def emitted(text: str, target: BuildTarget, code: Target, public: frozenset[str]) -> bytes:
    """The same, where LLVM may be called."""
    parsed = llvm.parse_assembly(text, llvm.create_context())
    for value in (*parsed.functions, *parsed.global_variables):
        hidden = value.name not in public and (not value.is_declaration or OWN in value.name)
        if value.linkage == llvm.Linkage.external and hidden:
            value.visibility = "hidden"
    parsed.verify()
    data: bytes = emitter(target.triple, code.cpu, code.features).emit_object(parsed)
    parsed.close()
    return data


@cache
def emitter(triple: str, cpu: str, features: str) -> llvm.TargetMachine:
    """What writes code for a processor: one for all modules."""
    undivided(initialised)
    found = llvm.Target.from_triple(triple)
    return found.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic", codemodel="small")


@cache
def initialised() -> None:
    """Makes LLVM ready for all families of processors."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
