"""Frame programs as portable C99: one source file and one header, for any C compiler.

    name_reset(context)                 memories as at the beginning
    name_step(context, x, y)            one frame
    name_block(context, frames, x, y)   frames one after the other
    name_save, name_restore             the memories as bytes, and back

Everything that changes lies in the context, which the caller declares. The code uses no heap, no recursion
and no arrays of variable length. It has the bits of `numpy_run` with any compiler that follows IEEE 754 and
does not contract a multiplication and an addition.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from stepnet.compiler.targets.frame.c_expressions import (
    FLOATS,
    MEMORY_TYPES,
    SUFFIX,
    indented,
)
from stepnet.compiler.targets.frame.c_functions import (
    BITS_OF,
    CHECKSUM,
    bits_function,
    routine_lines,
    scale_lines,
)
from stepnet.compiler.targets.frame.c_integer_products import (
    choice_lines,
    integer_product_lines,
    weight_lines,
)
from stepnet.compiler.targets.frame.c_loops import loop_lines, product_function
from stepnet.compiler.targets.frame.c_sparse import sparse_functions
from stepnet.compiler.targets.frame.c_stack import stack_bound
from stepnet.compiler.targets.frame.halves import HALVES, WIDENED, halves_in
from stepnet.compiler.targets.frame.program import (
    FrameBuffer,
    FrameProgram,
    ProductLoop,
)
from stepnet.compiler.targets.frame.sizes import CodeSizes, FrameSizes
from stepnet.compiler.targets.frame.weight_layouts import LAYOUTS, laid_out_bytes
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.version import __version__

STATUS = {
    "OK": "done",
    "NULL": "an argument is NULL",
    "NOT_RESET": "the context was not reset, or is that of another model",
    "INDEX": "an index is outside of its table; the memories are as before",
    "OTHER_MODEL": "the saved state is that of another model",
    "DAMAGED": "the saved state is damaged",
}
"""The names and texts of the codes that functions return, in their order."""
SAVED_AROUND = 8
"""The bytes of a saved state besides the memories: the model ahead of them, and a checksum behind."""
CONTEXT_BYTES = 8
"""The bytes of a context besides its arrays, at most: the mark of its model, and what aligns the arrays."""

FUNCTIONS = ("reset", "step", "block", "save", "restore")
"""The public functions, without the name that they begin with."""
OF_CODE = "in flash, besides constants", "of a call at most, without the library of a compiler"
"""The meanings of the sizes of machine code, in a header."""
CHECKS_OF_FLOATS = [
    "#if defined(__FAST_MATH__)",
    "#error compile without -ffast-math: it changes the results",
    "#endif",
    "#if defined(FLT_EVAL_METHOD) && (FLT_EVAL_METHOD != 0) && (FLT_EVAL_METHOD != 16) /* of half floats */",
    "#error compile so that float is computed as float, for example with -msse2 -mfpmath=sse",
    "#endif",
    "#if !defined(__GNUC__) || defined(__clang__)",
    "#pragma STDC FP_CONTRACT OFF",
    "#elif (__GNUC__ == 12) && (__GNUC_MINOR__ < 3)",
    '#pragma GCC optimize ("no-tree-slp-vectorize") /* this pass fuses, even with -ffp-contract=off */',
    "#endif",
    "",
]
"""Checks of the compiler, for programs with floats."""


@dataclass(frozen=True)
class CProgram:
    """A frame program with a name in C: the text of its source and its header.

    program: the program. name: the prefix of its functions. about: the model, for the header's comment.
    """

    program: FrameProgram
    name: str
    about: str

    @property
    def prefix(self) -> str:
        """The text that the names of constants begin with."""
        return self.name.upper()

    @cached_property
    def mark(self) -> int:
        """A number that tells models apart, from their loops and constants."""
        digest = hashlib.sha256(str(self.program).encode())
        for name, values in self.program.constants.items():
            digest.update(name.encode() + values.tobytes())
        return int.from_bytes(digest.digest()[:4], "little") | 1

    @property
    def ends(self) -> list[FrameBuffer]:
        """The buffers of inputs and of outputs, which are the arguments of the C functions in this order."""
        return [*self.program.of("input"), *self.program.of("output")]

    @property
    def memories(self) -> list[FrameBuffer]:
        """The memories in the order of the context: the largest elements first, so that there are no gaps."""
        return sorted(self.program.of("memory"), key=lambda buffer: -buffer.itemsize)

    @cached_property
    def arenas(self) -> dict[str, tuple[int, int]]:
        """The parts of the arena: by dtype, the first byte and the number of elements."""
        parts = dict[str, tuple[int, int]]()
        for dtype in sorted(MEMORY_TYPES, key=lambda dtype: -np.dtype(dtype).itemsize):
            own = [buffer for buffer in self.program.of("scratch") if buffer.dtype == dtype]
            if own:
                first = min(buffer.offset for buffer in own)
                end = max(buffer.offset + buffer.bytes for buffer in own)
                parts[dtype] = first, (end - first) // np.dtype(dtype).itemsize
        return parts

    @property
    def kind(self) -> str:
        """The kind of the files, for the header's comment: a sentence of at most two lines."""
        return (
            "C99; compile with optimisation, and with -std=c99 or\n"
            " * -ffp-contract=off, so that all machines give the same bits."
        )

    @property
    def ram_bytes(self) -> int:
        """The bytes of a context, at most."""
        arena = sum(count * np.dtype(dtype).itemsize for dtype, (_, count) in self.arenas.items())
        own = sum(buffer.bytes for buffer in self.memories) + arena
        return CONTEXT_BYTES + -(-own // 8) * 8

    @property
    def constant_bytes(self) -> int:
        """The bytes of the constants, at most: in the layout of weights that takes the most."""
        return max(laid_out_bytes(self.program, layout) for layout in ("", *LAYOUTS))

    @property
    def saved_bytes(self) -> int:
        """The bytes of a saved state."""
        return SAVED_AROUND + sum(buffer.bytes for buffer in self.memories)

    @cached_property
    def sizes(self) -> FrameSizes:
        """The bytes and multiply-adds that the program takes of a machine."""
        return FrameSizes.of(self.program, self.ram_bytes, self.constant_bytes, self.saved_bytes, self.code)

    @cached_property
    def code(self) -> CodeSizes:
        """The sizes of machine code: those of source code depend on the compiler; its stack has a bound."""
        text = "\n".join(line for lines in self.functions() for line in lines)
        return CodeSizes(stack_bytes=max(stack_bound(text, f"{self.name}_{what}") for what in FUNCTIONS))

    # ---- the header

    def header(self) -> str:
        """Returns the text of the header."""
        return "\n".join([*self.comment(), *self.declarations()]) + "\n"

    def comment(self) -> list[str]:
        """Returns the comment at the beginning: the model, its sizes, and what each part of a frame takes."""
        rows = [("part", "multiply-adds", "constant bytes")]
        rows += [(each.part, str(each.multiply_adds), str(each.constant_bytes)) for each in self.sizes.parts]
        width = max(len(row[0]) for row in rows)
        table = [f" *   {part:<{width}}  {count:>13}  {size:>14}" for part, count, size in rows]
        return [
            f"/* {self.name}: one frame of {self.about}.",
            " *",
            f" * Written by stepnet {__version__}. {self.kind}",
            " *",
            " * One context runs one sequence; contexts are independent, and each is used by one thread at a",
            " * time. Arrays of arguments do not overlap.",
            " *",
            *table,
            " */",
        ]

    def declarations(self) -> list[str]:
        """Returns the declarations of the header."""
        name, prefix = self.name, self.prefix
        ends = [(each, "taken by" if each.kind == "input" else "given by") for each in self.ends]
        return [
            f"#ifndef {prefix}_H",
            f"#define {prefix}_H",
            "",
            "#include <stddef.h>",
            "#include <stdint.h>",
            "",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "",
            f"#define {prefix}_RAM_BYTES {self.ram_bytes}U /* of a context, at most */",
            f"#define {prefix}_CONSTANT_BYTES {self.constant_bytes}U /* in flash, without code */",
            *(
                f"#define {prefix}_{what}_BYTES {size}U /* {text} */"
                for what, text, size in zip(("CODE", "STACK"), OF_CODE, self.code, strict=True)
                if size is not None
            ),
            *(["/* Bytes of code depend on the compiler. */"] if self.code.code_bytes is None else []),
            f"#define {prefix}_MULTIPLY_ADDS {self.program.multiplies}U /* of a frame */",
            f"#define {prefix}_SAVED_BYTES {self.saved_bytes}U /* of a saved state */",
            *(
                f"#define {prefix}_{each.name.upper()}_SIZE {each.size}U /* elements {how} a frame */"
                for each, how in ends
            ),
            *(line for each in self.ends if each.scale is not None for line in scale_lines(prefix, each)),
            "",
            *(
                f"#define {prefix}_{code} {number} /* {text} */"
                for number, (code, text) in enumerate(STATUS.items())
            ),
            "",
            "/* The memories of a sequence, and room for a frame. Its fields are not for callers. */",
            "typedef struct {",
            *(f"    {field};" for field in self.context_fields()),
            f"}} {name}_context;",
            "",
            "/* Begins a sequence. */",
            f"int {name}_reset({name}_context *context);",
            "",
            "/* Runs one frame. */",
            f"int {name}_step({self.arguments()});",
            "",
            "/* Runs frames one after the other; the arrays have those of all frames end to end. A",
            " * wrong index ends it: the frames before have run. */",
            f"int {name}_block({self.arguments(block=True)});",
            "",
            f"/* Writes the memories to {prefix}_SAVED_BYTES bytes, for machines of the same byte order. */",
            f"int {name}_save(const {name}_context *context, uint8_t *bytes);",
            "",
            "/* Reads the memories; the context stays as it is unless the bytes are those of this model. */",
            f"int {name}_restore({name}_context *context, const uint8_t *bytes);",
            "",
            "#ifdef __cplusplus",
            "}",
            "#endif",
            "",
            "#endif",
        ]

    def context_fields(self) -> list[str]:
        """Returns the fields of a context: those with the largest elements first."""
        fields = [
            (each.itemsize, f"{MEMORY_TYPES[each.dtype]} {each.name}[{each.size}]") for each in self.memories
        ]
        fields += [
            (np.dtype(dtype).itemsize, f"{MEMORY_TYPES[dtype]} arena_{SUFFIX[dtype]}[{count}]")
            for dtype, (_, count) in self.arenas.items()
        ]
        wide = [field for size, field in fields if size == 8]
        return [*wide, "uint32_t model", *(field for size, field in fields if size < 8)]

    def arguments(self, block: bool = False) -> str:
        """Returns the parameters of the function of a frame, or of a block of frames."""
        own = [f"{self.name}_context *context", *(["size_t frames"] if block else [])]
        own += [f"const {MEMORY_TYPES[each.dtype]} *{each.name}" for each in self.program.of("input")]
        own += [f"{MEMORY_TYPES[each.dtype]} *{each.name}" for each in self.program.of("output")]
        return ", ".join(own)

    # ---- the source

    def source(self) -> str:
        """Returns the text of the source file."""
        parts = [
            self.beginning(),
            *([choice] if (choice := choice_lines(self.program)) else []),
            *(weight_lines(self.program, each) for each in self.program.of("constant")),
            *self.functions(),
        ]
        return "\n\n".join("\n".join(lines) for lines in parts) + "\n"

    def functions(self) -> list[list[str]]:
        """Returns the functions of the source file, in their order."""
        loops = [loop for loop in self.program.loops if isinstance(loop, ProductLoop)]
        dtypes = sorted({self.program.by_name[loop.weights].dtype for loop in loops} & {*FLOATS, *HALVES})
        integer_products = integer_product_lines(self.program)
        return [
            *(bits_function(dtype) for dtype in self.bit_dtypes),
            *([WIDENED[dtype]] for dtype in halves_in(self.program.buffers)),
            *(routine_lines(each) for each in self.program.routines),
            *(product_function(dtype) for dtype in dtypes),
            *([integer_products] if integer_products else []),
            *sparse_functions(self.program),
            self.frame(),
            self.reset(),
            self.step(),
            self.block(),
            [CHECKSUM],
            self.save(),
            self.restore(),
        ]

    @property
    def bit_dtypes(self) -> list[str]:
        """The dtypes of which bits of another one are made."""
        used = {each.dtype for body in self.program.bodies for each in body if each.operation == "bits"}
        used |= {"float32" for _ in halves_in(self.program.buffers)}  # which are widened by their bits
        return [dtype for dtype in BITS_OF if dtype in used]

    def beginning(self) -> list[str]:
        """Returns includes, and checks of the compiler."""
        name, prefix, has_floats = self.name, self.prefix, self.program.has_floats
        return [
            f"/* {name}: one frame of a model, written by stepnet {__version__}; see {name}.h. */",
            f'#include "{name}.h"',
            "",
            *(["#include <float.h>", "#include <math.h>"] if has_floats else []),
            "#include <stdbool.h>",
            "#include <string.h>",
            "",
            *(CHECKS_OF_FLOATS if has_floats else []),
            f"#define MODEL UINT32_C({self.mark}) /* the mark of this model, in contexts and saved states */",
            "",
            f"typedef char {name}_context_fits[(sizeof({name}_context) <= {prefix}_RAM_BYTES) ? 1 : -1];",
        ]

    def frame(self) -> list[str]:
        """Returns the function that runs the loops of a frame, whose arrays do not overlap."""
        program = self.program
        parameters = [f"{self.name}_context *restrict context"]
        parameters += [
            f"const {MEMORY_TYPES[each.dtype]} *restrict {each.name}" for each in program.of("input")
        ]
        parameters += [f"{MEMORY_TYPES[each.dtype]} *restrict {each.name}" for each in program.of("output")]
        lines = [
            f"{MEMORY_TYPES[each.dtype]} *const {each.name} = context->{each.name};"
            for each in program.of("memory")
        ]
        for each in program.of("scratch"):
            place = (each.offset - self.arenas[each.dtype][0]) // each.itemsize
            type_, arena = MEMORY_TYPES[each.dtype], f"arena_{SUFFIX[each.dtype]}"
            lines.append(f"{type_} *const {each.name} = &context->{arena}[{place}];")
        for loop in program.loops:
            lines += ["", *loop_lines(program, loop, self.prefix)]
        lines.append("")
        used = {view.buffer for loop in program.loops for view, _, _ in loop.views}
        unused = [each.name for each in (*self.ends, *program.of("memory")) if each.name not in used]
        unused += [] if program.of("scratch") or program.of("memory") else ["context"]
        lines += [f"(void){name};" for name in unused]
        lines += [f"return {self.prefix}_OK;"]
        return [f"static int frame({', '.join(parameters)})", "{", *indented(lines), "}"]

    def reset(self) -> list[str]:
        """Returns the function that begins a sequence."""
        lines = list[str]()
        for each in self.memories:
            begin = self.program.begins.get(each.name)
            size = f"sizeof context->{each.name}"
            if begin is None:
                lines.append(f"(void)memset(context->{each.name}, 0, {size});")
            else:
                lines.append(f"(void)memcpy(context->{each.name}, {begin}, {size});")
        return self.function(
            f"{self.name}_reset({self.name}_context *context)",
            ["context"],
            [*lines, "context->model = MODEL;"],
            checked=False,
        )

    def step(self) -> list[str]:
        """Returns the function that runs one frame."""
        names = [each.name for each in self.ends]
        lines = [f"return frame(context, {', '.join(names)});"]
        return self.function(f"{self.name}_step({self.arguments()})", ["context", *names], lines)

    def block(self) -> list[str]:
        """Returns the function that runs frames one after the other."""
        names = [each.name for each in self.ends]
        places = [f"&{each}[at * {self.prefix}_{each.upper()}_SIZE]" for each in names]
        lines = [
            f"int status = {self.prefix}_OK;",
            f"for (size_t at = 0U; (at < frames) && (status == {self.prefix}_OK); at++) {{",
            f"    status = frame(context, {', '.join(places)});",
            "}",
            "return status;",
        ]
        return self.function(f"{self.name}_block({self.arguments(block=True)})", ["context", *names], lines)

    def save(self) -> list[str]:
        """Returns the function that writes the memories to bytes."""
        lines, at, end = ["write_word(bytes, MODEL);"], 4, self.saved_bytes - 4
        for each in self.memories:
            lines.append(f"(void)memcpy(&bytes[{at}], (const uint8_t *)context->{each.name}, {each.bytes}U);")
            at += each.bytes
        lines.append(f"write_word(&bytes[{end}], checksum(bytes, {end}U));")
        given = f"{self.name}_save(const {self.name}_context *context, uint8_t *bytes)"
        return self.function(given, ["context", "bytes"], lines)

    def restore(self) -> list[str]:
        """Returns the function that reads the memories from bytes."""
        end, at = self.saved_bytes - 4, 4
        lines = [
            "if (read_word(bytes) != MODEL) {",
            f"    return {self.prefix}_OTHER_MODEL;",
            "}",
            f"if (read_word(&bytes[{end}]) != checksum(bytes, {end}U)) {{",
            f"    return {self.prefix}_DAMAGED;",
            "}",
        ]
        for each in self.memories:
            lines.append(f"(void)memcpy((uint8_t *)context->{each.name}, &bytes[{at}], {each.bytes}U);")
            at += each.bytes
        given = f"{self.name}_restore({self.name}_context *context, const uint8_t *bytes)"
        return self.function(given, ["context", "bytes"], [*lines, "context->model = MODEL;"], checked=False)

    def function(
        self, head: str, pointers: Sequence[str], lines: Sequence[str], checked: bool = True
    ) -> list[str]:
        """Returns a public function, which first checks its arguments.

        head: its name and parameters. pointers: the parameters that are not NULL. lines: its statements.
        checked: whether the context has been reset before.
        """
        each = [f"{name} == NULL" for name in pointers]
        wrong = each[0] if len(each) == 1 else " || ".join(f"({one})" for one in each)
        own = [f"if ({wrong}) {{", f"    return {self.prefix}_NULL;", "}"]
        if checked:
            own += ["if (context->model != MODEL) {", f"    return {self.prefix}_NOT_RESET;", "}"]
        ending = [] if lines and lines[-1].startswith("return") else [f"return {self.prefix}_OK;"]
        return [f"int {head}", "{", *indented([*own, *lines, *ending]), "}"]
