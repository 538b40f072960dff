"""Sizes of machine code: bytes of flash besides the constants, and the most bytes of stack of a call.

The sections of an object have the former. For the latter the assembly is read: what the functions take at
their beginnings, along the calls that there are: a public function, the frame, and a routine or a product. A
platform whose code takes stack by another instruction, or by a number that is not known ahead, has no number.

A function of WebAssembly has locals instead, which engines keep in registers or on a stack of their own:
here it takes them all, and `FRAME` bytes besides. What it takes of the module's own memory comes on top.
"""

import re
from collections.abc import Mapping
from typing import Any, cast

import llvmlite.binding as llvm

from stepnet.compiler.targets.frame.c99 import FUNCTIONS
from stepnet.compiler.targets.frame.machine.code import compiled_text, module_of
from stepnet.compiler.targets.frame.machine.interface import MachineProgram
from stepnet.compiler.targets.frame.machine.platforms import MACH_O, WASM
from stepnet.compiler.targets.frame.sizes import CodeSizes
from stepnet.compiler.targets.frame.weight_layouts import packed_constants
from stepnet.compiler.values.fork_guard import run_in_thread

LOADED = (".rodata", ".rdata", "__const", "__literal", ".ARM.exidx")
"""The beginnings of the names of sections that a program loads besides its code."""
REGISTER_BYTES = {"r": 4, "l": 4, "s": 4, "d": 8, "q": 16}
"""The bytes of a register of Arm, by the first letter of its name."""
CALL_BYTES = 8
"""The bytes of a return address on x86-64, which a call pushes."""
RED_ZONE = 128
"""The bytes beyond the stack that a function of x86-64 may use which calls none."""
PUSHED = re.compile(r"v?push(?:\.w)?\s+\{(.*)\}")
TAKEN = re.compile(r"(?:subq\s+\$(\d+), %rsp|sub(?:\.w)?\s+(?:sp, )?sp, #(\d+)|addi\s+sp, sp, -(\d+))$")
UNKNOWN = re.compile(r"(?:subq?|addi?|and(?:q|i)?|bic|bfc|c\.addi16sp)\S*\s+(?:sp,.*|.*, %rsp|\{?sp\b.*)$")
GIVEN_BACK = re.compile(r"(?:addq\s+\$\d+, %rsp|add(?:\.w)?\s+(?:sp, )?sp, #\d+|addi\s+sp, sp, \d+)$")
LABEL = re.compile(r'"?([^\s"]+)"?:')
FRAME = 64
"""The bytes of a call in WebAssembly besides its locals: what an engine saves."""
VECTOR_TYPE = "v128"
LOCALS = re.compile(r"\.(?:functype\s+\S+|local)\s+(.*?)(?: ->|$)", re.MULTILINE)
TAKEN_OF_MEMORY = re.compile(r"global\.get\s+__stack_pointer\s+i32\.const\s+(\d+)\s+i32\.sub\b")


def sizes_of_code(declared: MachineProgram, data: bytes) -> CodeSizes:
    """Returns the bytes of code and stack of a program. data: its object."""
    _, constants = packed_constants(declared.program, declared.platform.layout)
    assembly = compiled_text(str(module_of(declared)), declared.platform, assembly=True)
    loaded = run_in_thread(lambda: loaded_bytes(data))
    return CodeSizes(loaded - len(constants), stack_bytes(declared, assembly))


def loaded_bytes(data: bytes) -> int:
    """Returns the bytes of an object that a program loads: code, and what is only read."""
    total, sections = 0, cast("Any", llvm.ObjectFileRef.from_data(data).sections())
    for section in sections:
        name = (section.name() or b"").decode("ascii", "replace")
        if section.is_text() or name.startswith(LOADED) or name == "DATA":
            total += section.size()
    return total


def stack_bytes(declared: MachineProgram, assembly: str) -> int | None:
    """Returns the most bytes of stack that a call takes; None if they are not known."""
    if declared.platform.format == WASM:
        taken = taken_by_wasm(assembly)
    else:
        taken = taken_by_functions(assembly, "_" if declared.platform.format == MACH_O else "")
    routines = {name for name in taken if name.rpartition(".")[0] in declared.program.routine}
    public = [f"{declared.name}_{what}" for what in FUNCTIONS]
    products = [name for name in taken if name.startswith(f"{declared.name}_product_")]
    chain = [public, [f"{declared.name}_frame"], [*routines, *products]]
    if any(taken.get(name, 0) is None for level in chain for name in level):
        return None
    calls = CALL_BYTES * len(chain) if declared.platform.triple.startswith("x86_64") else 0
    return calls + sum(max((taken.get(name) or 0 for name in level), default=0) for level in chain)


def taken_by_functions(assembly: str, ahead: str) -> Mapping[str, int | None]:
    """Returns the bytes of stack that each function of an assembly takes; None where they are not known.
    ahead: the prefix of the functions' names.
    """
    taken, name = dict[str, int | None](), ""
    for line in assembly.splitlines():
        if (label := LABEL.match(line)) is not None and is_function(label[1], ahead):
            name = label[1].removeprefix(ahead)
            taken[name] = 0
        elif name and line.startswith("\t"):
            before, count = taken[name], taken_by(line.strip())
            taken[name] = None if before is None or count is None else before + count
            if before is not None and count == 0 and re.search(r"-\d+\(%rsp\)", line):
                taken[name] = max(before, RED_ZONE)
    return taken


def taken_by_wasm(assembly: str) -> Mapping[str, int]:
    """Returns the bytes that each function of WebAssembly takes: its locals, and its stack in memory.

    >>> body = "m_step:\\n\\t.functype\\tm_step (i32, v128) -> (i32)\\n\\t.local  \\tf32\\n"
    >>> taken_by_wasm(body + "\\tglobal.get\\t__stack_pointer\\n\\ti32.const\\t32\\n\\ti32.sub \\n")
    {'m_step': 128}
    """
    taken, parts = dict[str, int](), re.split(r"^(\S+):$", assembly, flags=re.MULTILINE)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if not name.startswith("."):
            values = [each for types in LOCALS.findall(body) for each in re.findall(r"[if]\d+|v128", types)]
            own = sum(16 if each == VECTOR_TYPE else 8 for each in values)
            taken[name] = FRAME + own + sum(map(int, TAKEN_OF_MEMORY.findall(body)))
    return taken


def is_function(label: str, ahead: str) -> bool:
    """Tells whether a label is that of a function, not of a place inside one. ahead: of its name."""
    return label.startswith(ahead) if ahead else not label.startswith((".", "$"))


def taken_by(instruction: str) -> int | None:
    """Returns the bytes of stack that an instruction takes; None if they are not known.

    >>> taken_by("push.w {r4, r5, lr}"), taken_by("subq $40, %rsp"), taken_by("sub sp, sp, t0")
    (12, 40, None)
    """
    if instruction.startswith("pushq"):
        return 8
    if (pushed := PUSHED.match(instruction)) is not None:
        return sum(REGISTER_BYTES[each.strip()[0]] for each in pushed[1].split(","))
    if (taken := TAKEN.match(instruction)) is not None:
        return int(next(each for each in taken.groups() if each))
    if (stored := re.search(r"\[sp, #-(\d+)\]!", instruction)) is not None:
        return int(stored[1])
    if GIVEN_BACK.match(instruction) or not UNKNOWN.match(instruction):
        return 0
    return None if not instruction.startswith(("add", "addi")) or "-" in instruction else 0
