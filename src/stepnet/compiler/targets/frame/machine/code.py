"""A frame program as an LLVM module, and as an object of a platform.

NAME_frame      runs a frame: the loops, one after the other
NAME_step ...   what users call (`interface.py`)
NAME_weights    all constants, one after the other
tanh_f32.4      a routine on vectors of four elements
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.library.archive import BSD, COFF_ARCHIVE, GNU, archive
from stepnet.compiler.targets.cpu.machine.lazy import lazy_import
from stepnet.compiler.targets.cpu.writing.code import I8, I32, POINTER
from stepnet.compiler.targets.frame.machine.instructions import (
    FrameCode,
    write_routine,
)
from stepnet.compiler.targets.frame.machine.interface import (
    FUNCTIONS,
    MARK_BYTES,
    NUMBERS,
    InterfaceCode,
    MachineProgram,
)
from stepnet.compiler.targets.frame.machine.loops import FrameLoopCode
from stepnet.compiler.targets.frame.machine.platforms import COFF, ELF, MACH_O, DevicePlatform
from stepnet.compiler.targets.frame.program import (
    FrameProgram,
    GatherLoop,
    IntegerProductLoop,
    PointwiseLoop,
    ProductLoop,
    ReductionLoop,
)
from stepnet.compiler.values.fork_guard import run_in_thread

ALIGNMENT = 16
"""The bytes to which each constant is aligned."""
ARCHIVES = {ELF: (GNU, ""), MACH_O: (BSD, "_"), COFF: (COFF_ARCHIVE, "")}
"""For each format of objects the form of archives, and what symbols have ahead of the names in C."""
WRITERS: dict[type, Callable[[FrameLoopCode, Any], None]] = {
    PointwiseLoop: FrameLoopCode.pointwise,
    ProductLoop: FrameLoopCode.product,
    IntegerProductLoop: FrameLoopCode.product,
    ReductionLoop: FrameLoopCode.reduction,
    GatherLoop: FrameLoopCode.gather,
}


def packed_constants(program: FrameProgram) -> tuple[dict[str, int], bytes]:
    """Returns the place of each constant among all bytes of constants, and these."""
    places, data = dict[str, int](), bytearray()
    for buffer in program.of("constant"):
        data += bytes(-len(data) % ALIGNMENT)
        places[buffer.name] = len(data)
        stored = "uint8" if buffer.dtype == "bool" else buffer.dtype
        data += np.ascontiguousarray(program.constants[buffer.name], stored).tobytes()
    return places, bytes(data)


def module_of(declared: MachineProgram, beside: bool = False) -> ir.Module:
    """Writes the LLVM module of a program with a name. beside: the constants are zeros until the caller
    writes them.
    """
    module = ir.Module("frame")
    platform = declared.platform
    module.triple = platform.triple
    program, name = declared.program, declared.name
    places, data = packed_constants(program)
    type_ = ir.ArrayType(I8, max(1, len(data)))
    weights = ir.GlobalVariable(module, type_, f"{name}_weights")
    weights.align = ALIGNMENT
    weights.global_constant = not beside
    weights.linkage = "" if beside else "internal"
    weights.initializer = ir.Constant(type_, None if beside or not data else bytearray(data))
    write_frame(module, declared, places)
    index = ir.IntType(8 * platform.pointer_bytes)
    InterfaceCode(module, declared, partial(builder, platform=platform), places, index).write()
    write_routines(module, program, platform)
    return module


def write_routines(module: ir.Module, program: FrameProgram, platform: DevicePlatform) -> None:
    """Writes the routines that a module calls, for each width of vectors that it calls them on."""
    for function in list(module.functions):
        name, dot, width = function.name.rpartition(".")
        if dot and name in program.routine:
            function.linkage = "internal"
            write_routine(builder(function, platform), program.routine[name], function.args, int(width))


def builder(function: ir.Function, platform: DevicePlatform) -> FrameCode:
    """Begins the body of a function. Loops that copy or clear are not made calls of the C library, which a
    machine may lack.
    """
    function.attributes.add("nounwind")
    set[str].add(function.attributes, '"no-builtins"')
    index = ir.IntType(8 * platform.pointer_bytes)
    return FrameCode(function.append_basic_block("begin"), platform.processor, index)


def write_frame(module: ir.Module, declared: MachineProgram, places: dict[str, int]) -> None:
    """Writes the function that runs a frame, without checks. places: those of the constants."""
    program, platform = declared.program, declared.platform
    type_ = ir.FunctionType(I32, [POINTER] * (1 + len(declared.ends)))
    function = ir.Function(module, type_, f"{declared.name}_frame")
    function.linkage = "internal"
    code = builder(function, platform)
    context, *arrays = function.args
    weights, arena = module.globals[f"{declared.name}_weights"], declared.arena_offset
    bases = {buffer.name: array for buffer, array in zip(declared.ends, arrays, strict=True)}
    bases |= {buffer.name: code.at(context, MARK_BYTES + buffer.offset) for buffer in program.of("memory")}
    bases |= {buffer.name: code.at(context, arena + buffer.offset) for buffer in program.of("scratch")}
    bases |= {constant: code.at(weights, place) for constant, place in places.items()}
    loops = FrameLoopCode(code, program, platform, bases, NUMBERS["INDEX"])
    for loop in program.loops:
        WRITERS[type(loop)](loops, loop)
    code.ret(NUMBERS["OK"])


@cache
def device_machine(platform: DevicePlatform) -> llvm.TargetMachine:
    """Returns LLVM's code generator for a platform, made once."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(platform.triple).create_target_machine(
        cpu=platform.cpu,
        features=platform.features,
        opt=3,
        reloc=platform.relocation,
        codemodel=platform.code_model,
    )


def compiled_text(text: str, platform: DevicePlatform, assembly: bool = False) -> Any:
    """Compiles LLVM text to the bytes of an object of a platform, or to its assembly text."""

    def emit() -> Any:
        """Generates the code, in a thread that no signal interrupts."""
        machine = device_machine(platform)
        with llvm.parse_assembly(text, llvm.create_context()) as parsed:
            parsed.verify()
            return machine.emit_assembly(parsed) if assembly else machine.emit_object(parsed)

    lazy_import("machine.object_code")
    return run_in_thread(emit)


def static_library(declared: MachineProgram) -> bytes:
    """Compiles a program to a static library of its platform, with one object."""
    platform, file = declared.platform, f"{declared.name}.o"
    form, ahead = ARCHIVES[platform.format]
    symbols = [f"{ahead}{declared.name}_{what}" for what in FUNCTIONS]
    return archive({file: compiled_text(str(module_of(declared)), platform)}, {file: symbols}, form)
