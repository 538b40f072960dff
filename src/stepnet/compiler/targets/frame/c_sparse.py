"""Products with matrices in blocks as C99, those of integers for each layout (`sparse_layouts.py`)."""

from collections.abc import Callable, Mapping, Sequence

from stepnet.compiler.targets.frame.c_expressions import C_TYPES, SUFFIX, literal
from stepnet.compiler.targets.frame.c_integer_products import chosen, word_products
from stepnet.compiler.targets.frame.halves import HALVES, widened
from stepnet.compiler.targets.frame.product_loops import SparseProductLoop
from stepnet.compiler.targets.frame.program import FrameProgram
from stepnet.compiler.targets.frame.sparse_layouts import SPARSE_LAYOUTS, layout_of
from stepnet.compiler.targets.frame.weight_layouts import LAYOUTS

ABOUT = """\
/* result[n] = start[n] + the products of left with the blocks that have column n, added in the order of
 * their rows; start may be result, or NULL for zeros. For each {width} columns, places has the number of
 * blocks and then their rows. */"""
HEAD = """\
static void {name}(
    const {left} *restrict left, const {stored} *restrict weights, const int16_t *restrict places,
    const {type} *start, {type} *result, size_t outputs)"""
SPARSE = """\
    size_t place = 0U;
    size_t at = 0U;
    for (size_t first = 0U; first < outputs; first += {width}U) {{
        const size_t end = place + (size_t)places[place] + 1U;
        for (size_t n = 0U; n < {width}U; n++) {{
            result[first + n] = (start != NULL) ? start[first + n] : {zero};
        }}
        place++;
        while (place < end) {{
            const {type} x = {element};
            const {stored} *restrict w = &weights[at];
            {type} *restrict y = &result[first];
            for (size_t n = 0U; n < {width}U; n++) {{
                y[n] += x * {weight};
            }}
            at += {width}U;
            place++;
        }}
    }}"""
"""The function of products of a dtype with blocks of a width, in the order of the program."""


def sparse_name(program: FrameProgram, loop: SparseProductLoop) -> str:
    """Returns the name of the function for a product."""
    stored = program.by_name[loop.product.weights].dtype
    dtype = stored if stored in HALVES else program.by_name[loop.product.left.buffer].dtype
    few = "" if any(layout_of(program, loop, each) for each in SPARSE_LAYOUTS) else "_few"
    return f"sparse_{SUFFIX[dtype]}_{loop.width}{few}"


def sparse_functions(program: FrameProgram) -> list[list[str]]:
    """Returns the functions of the products of a program, each once; of integers for all layouts."""
    functions = dict[str, list[str]]()
    for loop in program.loops:
        if isinstance(loop, SparseProductLoop):
            own = loop.product
            left, stored, result = (
                program.by_name[name].dtype for name in (own.left.buffer, own.weights, own.result.buffer)
            )
            cast, name = "" if left == result else f"({C_TYPES[result]})", sparse_name(program, loop)
            head = HEAD.format(name=name, left=C_TYPES[left], stored=C_TYPES[stored], type=C_TYPES[result])
            body = SPARSE.format(
                width=loop.width,
                stored=C_TYPES[stored],
                type=C_TYPES[result],
                zero=literal(0, result),
                element=f"{cast}left[(size_t)places[place]]",
                weight=f"{cast}{widened('w[n]', stored)}",
            ).split("\n")
            texts = {
                layout: grouped(layout, left, loop.width) if layout_of(program, loop, layout) else body
                for layout in ("", *LAYOUTS)
            }
            about = ABOUT.format(width=loop.width).split("\n")
            functions[name] = [
                *about,
                *head.split("\n"),
                "{",
                *(body if name.endswith("_few") else chosen(texts)),
                "}",
            ]
    return [*functions.values()]


def grouped(layout: str, dtype: str, width: int) -> list[str]:
    """Returns the body of a function for a layout. dtype: the dtype of the vectors. width: the block's
    columns.
    """
    most, together, _ = SPARSE_LAYOUTS[layout]
    columns = min(most, width)
    read = [f"left[rows[k{f' + {at}U' if at else ''}]]" for at in range(together)]
    return [
        "    const int8_t *from = weights;",
        "    const int16_t *rows = places;",
        f"    for (size_t first = 0U; first < outputs; first += {width}U) {{",
        "        const size_t count = (size_t)rows[0];",
        f"        for (size_t n = first; n < (first + {width}U); n += {columns}U) {{",
        *(f"            int32_t s{at} = (start != NULL) ? start[n + {at}U] : 0;" for at in range(columns)),
        f"            for (size_t k = 1U; k <= count; k += {together}U) {{",
        *(f"                {line}" for line in SUMS[layout](dtype, columns, read)),
        "            }",
        *(f"            result[n + {at}U] = s{at};" for at in range(columns)),
        "        }",
        "        rows = &rows[count + 1U];",
        "    }",
    ]


def sums_of_pairs(dtype: str, columns: int, read: Sequence[str]) -> list[str]:
    """Returns the statements that add the products of two blocks. read: the elements of the vector."""
    return [
        "int32_t w;",
        f"const int32_t x = pair_of({', '.join(read)});",
        *word_products("x", columns, False),
    ]


def sums_of_vectors(dtype: str, columns: int, read: Sequence[str]) -> list[str]:
    """Returns the statements that add the products of as many blocks as a vector has elements."""
    count, element = len(read), "b" if dtype == "int8" else "h"
    shifted = "" if dtype == "int8" else "_shifted"
    return [
        "const uint16x8_t places_of = vldrhq_u16((const uint16_t *)&rows[k]);",
        f"const int16x8_t x = vldr{element}q_gather{shifted}_offset_s16(left, places_of);",
        *(f"s{at} = vmladavaq_s16(s{at}, x, vldrbq_s16(&from[{at * count}]));" for at in range(columns)),
        f"from = &from[{columns * count}];",
    ]


SUMS: Mapping[str, Callable[[str, int, Sequence[str]], list[str]]] = {
    "dsp": sums_of_pairs,
    "helium": sums_of_vectors,
}
"""The functions that write the sums of a group of columns, for each layout."""
