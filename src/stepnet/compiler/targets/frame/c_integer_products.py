"""Products of integers as functions of C99, for each layout of weights (`weight_layouts.py`).

A source has the weights in all layouts, and the compiler takes those of the processor that it compiles for:
its instructions are called by the names that Arm's C extensions (ACLE) give them.
"""

from collections.abc import Mapping, Sequence

from stepnet.compiler.targets.frame.c_expressions import C_TYPES, SUFFIX
from stepnet.compiler.targets.frame.c_functions import table_lines
from stepnet.compiler.targets.frame.program import BLOCK, FrameBuffer, FrameProgram, ProductLoop, products_of
from stepnet.compiler.targets.frame.weight_layouts import COLUMNS, LAYOUTS, is_joined, weights_in

CHOICE = """\
#if defined(__ARM_FEATURE_MVE) && ((__ARM_FEATURE_MVE & 1) != 0)
#include <arm_mve.h>
#define WEIGHTS_HELIUM 1
#elif defined(__ARM_FEATURE_DSP) && defined(__ARM_FEATURE_SIMD32) && (__ARM_ARCH_PROFILE == 'M')
#include <arm_acle.h>
#define WEIGHTS_DSP 1
#elif defined(__ARM_ARCH_6M__)
#define WEIGHTS_COLUMNS 1
#endif"""
"""The choice of a layout by the processor: by none the weights lie as in the program."""
MACROS: Mapping[str, str] = {name: f"WEIGHTS_{name.upper()}" for name in LAYOUTS}


def chosen(texts: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the lines of one of several layouts, "" among them, of which the compiler takes its own."""
    lines = list[str]()
    for place, (name, macro) in enumerate(MACROS.items()):
        lines += [f"#{'elif' if place else 'if'} defined({macro})", *texts[name]]
    return [*lines, "#else", *texts[""], "#endif"]


def weight_lines(program: FrameProgram, buffer: FrameBuffer) -> list[str]:
    """Returns the definition of an array of constants: of weights of integer products in all layouts."""
    own = program.constants[buffer.name]
    layouts = {name: weights_in(program, name) for name in LAYOUTS}
    if not any(buffer.name in weights for weights in layouts.values()):
        return table_lines(buffer, own)
    return chosen(
        {"": table_lines(buffer, own)}
        | {name: table_lines(buffer, weights.get(buffer.name, own)) for name, weights in layouts.items()}
    )


def product_name(program: FrameProgram, loop: ProductLoop) -> str:
    """Returns the name of the function of an integer product."""
    dtype = program.by_name[loop.left.buffer].dtype
    apart = dtype == "int8" and not is_joined(program, loop)
    return f"product_{SUFFIX[dtype]}{'_apart' if apart else ''}"


HEAD = """\
static void {name}(
    const {type} *restrict left, const int8_t *restrict weights, const int32_t *start,
    int32_t *restrict result, size_t inputs, size_t outputs)
{{
{body}
}}"""
BLOCKS = """\
    for (size_t first = 0U; first < outputs; first += {block}U) {{
        const size_t rest = outputs - first;
        const size_t width = (rest < {block}U) ? rest : {block}U;
        const int8_t *const w = &weights[first * inputs];
        if (width == {block}U) {{
            int32_t sums[{block}];
            for (size_t n = 0U; n < {block}U; n++) {{
                sums[n] = (start != NULL) ? start[first + n] : 0;
            }}
            for (size_t k = 0U; k < inputs; k++) {{
                for (size_t n = 0U; n < {block}U; n++) {{
                    sums[n] += (int32_t)left[k] * (int32_t)w[(k * {block}U) + n];
                }}
            }}
            for (size_t n = 0U; n < {block}U; n++) {{
                result[first + n] = sums[n];
            }}
        }} else {{
            for (size_t n = 0U; n < width; n++) {{
                int32_t sum = (start != NULL) ? start[first + n] : 0;
                for (size_t k = 0U; k < inputs; k++) {{
                    sum += (int32_t)left[k] * (int32_t)w[(k * width) + n];
                }}
                result[first + n] = sum;
            }}
        }}
    }}"""
"""Products whose weights lie as in the program, in blocks of columns, for compilers that use vectors."""
WORD = """\
static inline int32_t word_at(const void *from)
{
    int32_t word;
    (void)memcpy(&word, from, sizeof word);
    return word;
}

static inline int32_t turned(int32_t word)
{
    const uint32_t bits = ((uint32_t)word >> 8U) | ((uint32_t)word << 24U);
    return (int32_t)bits;
}

static inline int32_t pair_of(int32_t low, int32_t high)
{
    const uint32_t bits = ((uint32_t)low & UINT32_C(0xFFFF)) | ((uint32_t)high << 16U);
    return (int32_t)bits;
}"""
"""Functions of 32-bit words, for products of pairs."""


def choice_lines(program: FrameProgram) -> list[str]:
    """Returns the choice of a layout and what its functions need; none without products of int8."""
    if not any(program.by_name[loop.weights].dtype == "int8" for loop in products_of(program)):
        return []
    return [*CHOICE.split("\n"), "", "#if defined(WEIGHTS_DSP)", *WORD.split("\n"), "#endif"]


def integer_product_lines(program: FrameProgram) -> list[str]:
    """Returns the functions of the integer products of a program, for all layouts; none without products."""
    loops = [loop for loop in program.loops if isinstance(loop, ProductLoop)]
    names = {
        product_name(program, loop): program.by_name[loop.left.buffer].dtype
        for loop in loops
        if program.by_name[loop.weights].dtype == "int8"
    }
    if not names:
        return []
    texts = {layout: list[str]() for layout in ("", *LAYOUTS)}
    for name, dtype in sorted(names.items()):
        joined = name == "product_i8"
        bodies = {"": BLOCKS.format(block=BLOCK).split("\n")}
        bodies |= {layout: grouped(layout, dtype, joined) for layout in LAYOUTS}
        for layout, body in bodies.items():
            text = HEAD.format(name=name, type=C_TYPES[dtype], body="\n".join(body))
            texts[layout] += text.split("\n")
    about = [
        "/* result[n] = start[n] + left[0] W[0][n] + left[1] W[1][n] + ..., exactly; start may be NULL for",
        " * zeros. The weights lie as the instructions of the processor take them. */",
    ]
    return [*about, *chosen(texts)]


def grouped(layout: str, dtype: str, joined: bool) -> list[str]:
    """Returns the body of the function of products for a layout: columns in groups, the larger ones first.

    dtype: the dtype of the vectors. joined: whether two columns are one number (`weight_layouts.is_joined`).
    """
    lines = ["    const int8_t *from = weights;", "    size_t n = 0U;"]
    for width in COLUMNS[layout]:
        odd = layout == "dsp" and width == 2
        lines.append(f"    for (; {'n' if odd else f'(n + {width - 1}U)'} < outputs; n += {width}U) {{")
        lines += [f"        int32_t s{at} = (start != NULL) ? start[n + {at}U] : 0;" for at in range(width)]
        if odd:
            lines[-1] = "        const bool has_two = (n + 1U) < outputs;"
            lines.append("        const int32_t begin = ((start != NULL) && has_two) ? start[n + 1U] : 0;")
            lines.append(f"        int32_t s1 = {'s0' if joined else 'begin'};")
        elif layout == "dsp" and joined:
            for at in range(1, width, 2):
                lines[at - width] = f"        int32_t s{at} = s{at - 1};"
        lines += [f"        {line}" for line in SUMS[layout](dtype, width, joined)]
        lines += group_results(layout, width, joined, odd)
        lines.append("    }")
    return lines


def group_results(layout: str, width: int, joined: bool, odd: bool) -> list[str]:
    """Returns the statements that write the sums of a group. odd: whether the last column may be missing."""
    lines = list[str]()
    for at in range(width):
        text = f"s{at}"
        if layout == "dsp" and joined and at % 2:
            begin = "begin" if odd else f"((start != NULL) ? start[n + {at}U] : 0)"
            lines.append(f"        const uint32_t u{at} = (uint32_t)s{at} - (uint32_t)s{at - 1};")
            text = f"{begin} + ((int32_t)u{at} / 256)"
        line = f"result[n + {at}U] = {text};"
        lines += (
            ["        if (has_two) {", f"            {line}", "        }"]
            if odd and at
            else [f"        {line}"]
        )
    return lines


def sums_of_columns(dtype: str, width: int, joined: bool) -> list[str]:
    """Returns the statements that add the products of columns that lie one after the other, or in turn."""
    is_wide = dtype == "int16"
    lines = ["for (size_t k = 0U; k < inputs; k++) {", "    const int32_t x = left[k];"]
    for at in range(width):
        place = f"({width}U * k) + {at}U" if is_wide else f"({at}U * inputs) + k"
        lines.append(f"    s{at} += x * (int32_t)from[{place}];")
    return [*lines, "}", f"from = &from[{width}U * inputs];"]


def sums_of_words(dtype: str, width: int, joined: bool) -> list[str]:
    """Returns the statements that add the products of two columns and two inputs at a time."""

    def words(x: str) -> list[str]:
        """Returns the statements for a pair of elements."""
        return [f"    {line}" for line in word_products(x, width, joined)]

    together = 4 if dtype == "int8" else 2
    lines = ["int32_t w;", "size_t k = 0U;", f"for (; (k + {together - 1}U) < inputs; k += {together}U) {{"]
    lines.append("    const int32_t x = word_at(&left[k]);")
    if dtype == "int8":
        lines += ["    const int32_t low = __sxtb16(x);", "    const int32_t high = __sxtb16(turned(x));"]
        lines += [*words("low"), *words("high")]
    else:
        lines += words("x")
    lines += ["}", "for (; k < inputs; k += 2U) {"]
    lines.append("    const int32_t x = pair_of(left[k], ((k + 1U) < inputs) ? left[k + 1U] : 0);")
    return [*lines, *words("x"), "}"]


def word_products(x: str, width: int, joined: bool) -> list[str]:
    """Returns the statements that add the products of a pair of elements with the words of columns."""
    lines, high = list[str](), "w" if joined else "__sxtb16(turned(w))"
    for at in range(0, width, 2):
        lines += ["w = word_at(from);", "from = &from[4];"]
        lines.append(f"s{at} = __smlad({x}, __sxtb16(w), s{at});")
        lines.append(f"s{at + 1} = __smlad({x}, {high}, s{at + 1});")
    return lines


def sums_of_vectors(dtype: str, width: int, joined: bool) -> list[str]:
    """Returns the statements that add the products of vectors of Helium."""
    letter, bits, lanes = ("b", 8, 16) if dtype == "int8" else ("h", 16, 8)
    type_, lines = f"int{bits}x{lanes}_t", ["size_t k = 0U;"]
    turns = (
        (f"for (; (k + {lanes - 1}U) < inputs; k += {lanes}U) {{", "", "", f"{lanes}U"),
        ("if (k < inputs) {", "_z", ", rest", "(inputs - k)"),
    )
    for head, kind, mask, count in turns:
        lines.append(head)
        if mask:
            lines.append(f"    const mve_pred16_t rest = vctp{bits}q((uint32_t)(inputs - k));")
        lines.append(f"    const {type_} x = vldr{letter}q{kind}_s{bits}(&left[k]{mask});")
        for at in range(width):
            w = f"vldrbq{kind}_s{bits}(&from[{at}U * {count}]{mask})"
            lines.append(f"    s{at} = vmladavaq_s{bits}(s{at}, x, {w});")
        lines += [f"    from = &from[{width}U * {count}];", "}"]
    return lines


SUMS = {"columns": sums_of_columns, "dsp": sums_of_words, "helium": sums_of_vectors}
"""The functions that write the sums of a group of columns, for each layout."""
