"""Links a kernel with the functions that it calls, as LLVM modules, and optimises them together."""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm

from stepnet.compiler.targets.cpu.machine.room import BASE_BYTES, TEXT_FACTOR, reserve

DEFINED = re.compile(r'^define .*?@"?([\w.]+)"?\(', re.MULTILINE)

LAYOUT = 'target datalayout = "e-i64:64"'


def defined(text: str) -> frozenset[str]:
    """Returns the names of the functions that an LLVM module defines."""
    return frozenset(DEFINED.findall(text))


def bitcode_of(text: str) -> bytes:
    """Returns an LLVM module in LLVM's binary form, which is read in a third of the time of a text."""
    return llvm.parse_assembly(without_target(text)).as_bitcode()


def without_target(text: str) -> str:
    """Returns the text of an LLVM module without the lines that say what it is compiled for, but with the
    alignment that numbers have on all processors: by default LLVM aligns integers of 8 bytes to 4.
    """
    return "\n".join([LAYOUT, *(line for line in text.splitlines() if line[:6] != "target")])


@contextmanager
def linked(
    kernel: str, libraries: Sequence[bytes], machine: Any, triple: str, public: frozenset[str], level: int
) -> Generator[Any]:
    """Context with a kernel linked with other modules into one and optimised. It runs in a thread that may
    call LLVM.

    libraries: the other modules, in binary form. machine: LLVM's code generator. triple: its name.
    public: the functions that are called from outside; others that nobody calls are left out.
    level: of the optimisation, from 0 to 3.
    """
    context = llvm.create_context()
    size = BASE_BYTES + TEXT_FACTOR * (len(kernel) + sum(map(len, libraries)))
    with reserve(size), llvm.parse_assembly(without_target(kernel), context) as module:
        module.triple, module.data_layout = triple, str(machine.target_data)
        for library in libraries:
            other = llvm.parse_bitcode(library, context)
            other.triple, other.data_layout = triple, module.data_layout
            module.link_in(other)
        for function in module.functions:
            if function.name not in public and not function.is_declaration:
                function.linkage = "internal"  # pyright: ignore[reportAttributeAccessIssue]
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=level))
        builder.getModulePassManager().run(module, builder)
        yield module
