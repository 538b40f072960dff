"""Products with matrices in blocks as C99."""

from stepnet.compiler.targets.frame.c_expressions import C_TYPES, SUFFIX, literal
from stepnet.compiler.targets.frame.program import FrameProgram
from stepnet.compiler.targets.frame.sparse import SparseProductLoop

SPARSE = """\
/* result[n] = start[n] + the products of left with the blocks that have column n, added in the order of
 * their rows; start may be result, or NULL for zeros. For each {width} columns, places has the number of
 * blocks and then their rows. */
static void {name}(
    const {left} *restrict left, const {stored} *restrict weights, const int16_t *restrict places,
    const {type} *start, {type} *result, size_t outputs)
{{
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
    }}
}}"""
"""The function of products of a dtype with blocks of a width."""


def sparse_name(program: FrameProgram, loop: SparseProductLoop) -> str:
    """Returns the name of the function for a product."""
    return f"sparse_{SUFFIX[program.by_name[loop.left.buffer].dtype]}_{loop.width}"


def sparse_functions(program: FrameProgram) -> list[list[str]]:
    """Returns the functions of the products of a program, each once."""
    functions = dict[str, list[str]]()
    for loop in program.loops:
        if isinstance(loop, SparseProductLoop):
            views = loop.left.buffer, loop.weights, loop.result.buffer
            left, stored, result = (program.by_name[name].dtype for name in views)
            type_, cast = C_TYPES[result], "" if left == result else f"({C_TYPES[result]})"
            name = sparse_name(program, loop)
            functions[name] = SPARSE.format(
                name=name,
                width=loop.width,
                left=C_TYPES[left],
                stored=C_TYPES[stored],
                type=type_,
                zero=literal(0, result),
                element=f"{cast}left[(size_t)places[place]]",
                weight=f"{cast}w[n]",
            ).split("\n")
    return [*functions.values()]
