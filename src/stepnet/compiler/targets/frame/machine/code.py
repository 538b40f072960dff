"""A frame program as an LLVM module, and as an object of a platform.

NAME_frame      runs a frame: the loops, one after the other
NAME_step ...   what users call (`interface.py`)
NAME_weights    all constants, one after the other
tanh_f32.4      a routine on vectors of four elements
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, TypeGuard

import llvmlite.binding as llvm
from llvmlite import ir

from stepnet.compiler.targets.cpu.library.archive import BSD, COFF_ARCHIVE, GNU, archive
from stepnet.compiler.targets.cpu.machine.lazy import lazy_import
from stepnet.compiler.targets.cpu.writing.code import I8, I32, POINTER
from stepnet.compiler.targets.frame.c99 import FUNCTIONS
from stepnet.compiler.targets.frame.machine.instructions import (
    FrameCode,
    write_routine,
)
from stepnet.compiler.targets.frame.machine.integer_products import (
    integer_product,
    product_call,
    product_function,
    product_key,
)
from stepnet.compiler.targets.frame.machine.interface import (
    MARK_BYTES,
    NUMBERS,
    InterfaceCode,
    MachineProgram,
)
from stepnet.compiler.targets.frame.machine.loops import FrameLoopCode
from stepnet.compiler.targets.frame.machine.platforms import COFF, ELF, MACH_O, DevicePlatform
from stepnet.compiler.targets.frame.machine.sparse import sparse_product
from stepnet.compiler.targets.frame.product_loops import SparseProductLoop
from stepnet.compiler.targets.frame.program import (
    FrameLoop,
    FrameProgram,
    GatherLoop,
    PointwiseLoop,
    ProductLoop,
    ReductionLoop,
)
from stepnet.compiler.targets.frame.weight_layouts import ALIGNMENT, has_int8_weights, packed_constants
from stepnet.compiler.values.fork_guard import run_in_thread

ARCHIVES = {ELF: (GNU, ""), MACH_O: (BSD, "_"), COFF: (COFF_ARCHIVE, "")}
"""For each format of objects the form of archives, and what symbols have ahead of the names in C."""
WRITERS: dict[type, Callable[[FrameLoopCode, Any], None]] = {
    PointwiseLoop: FrameLoopCode.pointwise,
    ProductLoop: FrameLoopCode.product,
    SparseProductLoop: sparse_product,
    ReductionLoop: FrameLoopCode.reduction,
    GatherLoop: FrameLoopCode.gather,
}


IN_PLACE = ("columns", "int8")
"""The layout of weights and the dtype of vectors whose products are written in place: addresses there are
constants, for which a function has too few registers.
"""


def module_of(declared: MachineProgram, beside: bool = False) -> ir.Module:
    """Writes a program's LLVM module. beside: the constants are zeros until the caller writes them."""
    module = ir.Module("frame")
    platform = declared.platform
    module.triple = platform.triple
    program, name = declared.program, declared.name
    places, data = packed_constants(program, platform.layout)
    type_ = ir.ArrayType(I8, max(1, len(data)))
    weights = ir.GlobalVariable(module, type_, f"{name}_weights")
    weights.align = ALIGNMENT
    weights.global_constant = not beside
    weights.linkage = "" if beside else "internal"
    weights.initializer = ir.Constant(type_, None if beside or not data else bytearray(data))
    write_frame(module, declared, places)
    index = ir.IntType(8 * platform.pointer_bytes)
    InterfaceCode(module, declared, partial(builder, platform=platform), places, index).write()
    write_routines(module, program, platform, (weights, places))
    return module


def write_routines(
    module: ir.Module,
    program: FrameProgram,
    platform: DevicePlatform,
    tables: tuple[ir.Value, dict[str, int]],
) -> None:
    """Writes the routines that a module calls, for each width of vectors that it calls them with. tables: the
    constants, and their places in them.
    """
    for function in list(module.functions):
        name, dot, width = function.name.rpartition(".")
        if dot and name in program.routine:
            function.linkage = "internal"
            code = builder(function, platform, tables)
            write_routine(code, program.routine[name], function.args, int(width))


def builder(
    function: ir.Function, platform: DevicePlatform, tables: tuple[ir.Value, dict[str, int]] | None = None
) -> FrameCode:
    """Begins the body of a function. Loops that copy or clear are not made calls of the C library, which a
    machine may lack. tables: the constants of which it reads elements, and their places there.
    """
    function.attributes.add("nounwind")
    set[str].add(function.attributes, '"no-builtins"')
    return FrameCode(function.append_basic_block("begin"), platform, tables)


def write_frame(module: ir.Module, declared: MachineProgram, places: dict[str, int]) -> None:
    """Writes the function that runs a frame, without checks. places: the places of the constants."""
    program, platform = declared.program, declared.platform
    type_ = ir.FunctionType(I32, [POINTER] * (1 + len(declared.ends)))
    function = ir.Function(module, type_, f"{declared.name}_frame")
    function.linkage = "internal"
    weights, arena = module.globals[f"{declared.name}_weights"], declared.arena_offset
    code = builder(function, platform, (weights, places))
    context, *arrays = function.args
    bases = {buffer.name: array for buffer, array in zip(declared.ends, arrays, strict=True)}
    bases |= {buffer.name: code.at(context, MARK_BYTES + buffer.offset) for buffer in program.of("memory")}
    bases |= {buffer.name: code.at(context, arena + buffer.offset) for buffer in program.of("scratch")}
    bases |= {constant: code.at(weights, place) for constant, place in places.items()}
    loops = FrameLoopCode(code, program, platform, bases, NUMBERS["INDEX"])
    own = [each for each in program.loops if is_own_product(each, program, platform)]
    products = ProductFunctions(loops, own, f"{declared.name}_product", (weights, places))
    for loop in program.loops:
        if is_own_product(loop, program, platform):
            products.write(loop)
        else:
            WRITERS[type(loop)](loops, loop)
    code.ret(NUMBERS["OK"])


class ProductFunctions:
    """Products of integers of a frame: those of one size share a function, others are written in place."""

    def __init__(
        self,
        loops: FrameLoopCode,
        products: Sequence[ProductLoop],
        name: str,
        tables: tuple[ir.Value, dict[str, int]],
    ) -> None:
        """Counts the products of each size. name: the prefix of functions' names. tables: as of `builder`."""
        self.loops, self.name, self.tables = loops, name, tables
        self.counts = Counter(product_key(loops, each) for each in products)
        self.functions = dict[tuple[object, ...], ir.Function]()

    def write(self, loop: ProductLoop) -> None:
        """Writes a product, or a call of its function, which is written where it is called first."""
        key, layout = product_key(self.loops, loop), self.loops.platform.layout
        dtype = self.loops.program.by_name[loop.left.buffer].dtype
        if self.counts[key] == 1 or (layout, dtype) == IN_PLACE:
            integer_product(self.loops, loop, layout)
            return
        if key not in self.functions:
            begun = partial(builder, platform=self.loops.platform, tables=self.tables)
            title = f"{self.name}_{len(self.functions)}"
            self.functions[key] = product_function(self.loops, loop, layout, title, begun)
        product_call(self.loops, loop, self.functions[key])


def is_own_product(
    loop: FrameLoop, program: FrameProgram, platform: DevicePlatform
) -> TypeGuard[ProductLoop]:
    """Tells whether a loop is a product of integers, for which a platform has instructions."""
    return isinstance(loop, ProductLoop) and bool(platform.layout) and has_int8_weights(program, loop)


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


def object_of(declared: MachineProgram) -> bytes:
    """Compiles a program to an object of its platform."""
    return compiled_text(str(module_of(declared)), declared.platform)


def static_library(declared: MachineProgram, data: bytes) -> bytes:
    """Returns the static library of a program for its platform. data: its object."""
    platform, file = declared.platform, f"{declared.name}.o"
    form, ahead = ARCHIVES[platform.format]
    symbols = [f"{ahead}{declared.name}_{what}" for what in FUNCTIONS]
    return archive({file: data}, {file: symbols}, form)
