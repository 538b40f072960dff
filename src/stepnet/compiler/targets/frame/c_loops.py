"""The loops of frame programs as statements of C99."""

from collections.abc import Sequence

from stepnet.compiler.targets.frame.c_expressions import (
    C_TYPES,
    FLOATS,
    SUFFIX,
    indented,
    indexed,
    literal,
    loaded,
    statements,
    stored,
)
from stepnet.compiler.targets.frame.c_integer_products import product_name
from stepnet.compiler.targets.frame.c_sparse import sparse_name
from stepnet.compiler.targets.frame.halves import HALVES, widened
from stepnet.compiler.targets.frame.product_loops import SparseProductLoop
from stepnet.compiler.targets.frame.program import (
    BLOCK,
    FrameLoop,
    FrameProgram,
    GatherLoop,
    PointwiseLoop,
    ProductLoop,
    ReductionLoop,
    StridedView,
)


def loop_lines(program: FrameProgram, loop: FrameLoop, prefix: str) -> list[str]:
    """Returns the statements of a loop. prefix: the prefix of the names of status codes."""
    match loop:
        case PointwiseLoop():
            lines = pointwise_lines(program, loop)
        case ProductLoop():
            lines = product_lines(program, loop, None)
        case SparseProductLoop():
            lines = product_lines(program, loop.product, loop)
        case ReductionLoop():
            lines = reduction_lines(program, loop)
        case GatherLoop():
            lines = gather_lines(program, loop, prefix)
    return [f"/* {loop.about or 'copies'} */", *lines]


def nested(shape: Sequence[int], lines: Sequence[str], first: int = 0) -> list[str]:
    """Puts statements into loops over a shape, or a block. first: the number of the first index."""
    if not shape:
        return ["{", *indented(lines), "}"]
    index, rest = f"i{first}", list(shape[1:])
    inner = nested(rest, lines, first + 1) if rest else list(lines)
    return [f"for (size_t {index} = 0U; {index} < {shape[0]}U; {index}++) {{", *indented(inner), "}"]


def indices_of(shape: Sequence[int], first: int = 0) -> list[str]:
    """Lists the names of the indices of loops over a shape."""
    return [f"i{number}" for number in range(first, first + len(shape))]


def pointwise_lines(program: FrameProgram, loop: PointwiseLoop) -> list[str]:
    """Returns the statements of an elementwise loop."""
    indices, lines, given = indices_of(loop.shape), list[str](), list[tuple[str, str]]()
    for number, view in enumerate(loop.reads):
        dtype = program.by_name[view.buffer].dtype
        lines.append(f"const {C_TYPES[dtype]} r{number} = {loaded(view, indices, dtype)};")
        given.append((f"r{number}", dtype))
    computed, texts = statements(loop.body, given)
    lines += computed
    for view, register in loop.writes:
        lines.append(stored(view, indices, program.by_name[view.buffer].dtype, texts[register]))
    return nested(loop.shape, lines)


def product_lines(program: FrameProgram, loop: ProductLoop, sparse: SparseProductLoop | None) -> list[str]:
    """Returns the calls of the function of products, one for each vector. sparse: the product with blocks."""
    dtype, indices = program.by_name[loop.left.buffer].dtype, ["i0", "0U"]

    def address(view: StridedView) -> str:
        """Returns the address of the first element of a row of a view."""
        row = StridedView(view.buffer, view.offset, view.strides[:1] if loop.rows > 1 else ())
        return f"&{indexed(row, indices[: len(row.strides)])}"

    start = "NULL" if loop.start is None else address(loop.start)
    given, sizes = [address(loop.left), loop.weights], [f"{loop.inputs}U", f"{loop.outputs}U"]
    if sparse is not None:
        given, sizes, name = [*given, sparse.places], sizes[1:], sparse_name(program, sparse)
    else:
        stored = program.by_name[loop.weights].dtype
        name = f"product_{SUFFIX[stored]}" if dtype in FLOATS else product_name(program, loop)
    call = f"{name}({', '.join([*given, start, address(loop.result), *sizes])});"
    return nested((loop.rows,), [call]) if loop.rows > 1 else [call]


PRODUCT = """\
/* result[n] = start[n] + left[0] W[0][n] + left[1] W[1][n] + ..., added in this order; start may be
 * result, or NULL for zeros. The weights lie in blocks of {block} columns, which fit vectors. */
static void product_{suffix}(
    const {type} *restrict left, const {held} *restrict weights, const {type} *start, {type} *result,
    size_t inputs, size_t outputs)
{{
    const size_t width = outputs % {block}U;
    const size_t whole = outputs - width;
    const size_t fours = inputs - (inputs % 4U);
    for (size_t n = 0U; n < outputs; n++) {{
        result[n] = (start != NULL) ? start[n] : {zero};
    }}
    for (size_t k = 0U; k < fours; k += 4U) {{
        const {type} x0 = left[k];
        const {type} x1 = left[k + 1U];
        const {type} x2 = left[k + 2U];
        const {type} x3 = left[k + 3U];
        for (size_t first = 0U; first < whole; first += {block}U) {{
            const {held} *restrict w = &weights[(first * inputs) + (k * {block}U)];
            {type} *restrict y = &result[first];
            for (size_t n = 0U; n < {block}U; n++) {{
                {type} s = y[n];
                s += x0 * {w0};
                s += x1 * {w1};
                s += x2 * {w2};
                s += x3 * {w3};
                y[n] = s;
            }}
        }}
    }}
    for (size_t k = fours; k < inputs; k++) {{
        for (size_t first = 0U; first < whole; first += {block}U) {{
            for (size_t n = 0U; n < {block}U; n++) {{
                result[first + n] += left[k] * {one};
            }}
        }}
    }}
    for (size_t n = 0U; n < width; n++) {{
        {type} s = result[whole + n];
        for (size_t k = 0U; k < inputs; k++) {{
            s += left[k] * {last};
        }}
        result[whole + n] = s;
    }}
}}"""
"""The function of products with weights of a dtype. It takes four elements of the vector at a time through
all blocks of columns: GCC then computes a block in vectors at -O2 and -O3, where it would reorder a sum in
registers.
"""


ELEMENTS = {
    **{f"w{row}": f"w[{f'{row * BLOCK}U + ' if row else ''}n]" for row in range(4)},
    "one": f"weights[(first * inputs) + (k * {BLOCK}U) + n]",
    "last": "weights[(whole * inputs) + (k * width) + n]",
}
"""The elements of weights that it reads."""


def product_function(stored: str) -> list[str]:
    """Returns the function of products with weights of a dtype."""
    dtype = "float32" if stored in HALVES else stored
    elements = {name: widened(text, stored) for name, text in ELEMENTS.items()}
    types = {"type": C_TYPES[dtype], "held": C_TYPES[stored], "zero": literal(0, dtype)}
    return PRODUCT.format(suffix=SUFFIX[stored], block=BLOCK, **types, **elements).split("\n")


BEGIN = {"sum": 0.0, "cumsum": -0.0, "cumprod": 1.0}
"""The numbers that sums and products begin with: a prefix sum of -0 is -0."""


def reduction_lines(program: FrameProgram, loop: ReductionLoop) -> list[str]:
    """Returns the statements of a reduction."""
    outer, inner = indices_of(loop.shape), indices_of(loop.inner, len(loop.shape))
    source, target = (program.by_name[view.buffer].dtype for view in (loop.read, loop.write))
    element = loaded(loop.read, [*outer, *inner], source)
    first = loaded(loop.read, [*outer, *("0U" for _ in inner)], source)
    other_nan = " || (v != v)" if source in FLOATS else ""
    type_ = C_TYPES[source]
    if loop.how in BEGIN:
        begin = literal(BEGIN[loop.how] if target in FLOATS else int(BEGIN[loop.how]), target)
        sign = "*" if loop.how == "cumprod" else "+"
        step = [f"total {sign}= {element};"]
        if loop.is_prefix:
            step.append(stored(loop.write, [*outer, *inner], target, "total"))
        lines = [f"{C_TYPES[target]} total = {begin};", *nested(loop.inner, step, len(outer))]
        if not loop.is_prefix:
            lines.append(stored(loop.write, outer, target, "total"))
        return nested(loop.shape, lines)
    sign = "<" if loop.how == "min" else ">"
    if loop.how == "argmax":
        nan = " || ((v != v) && (best == best))" if source in FLOATS else ""
        step = [f"const {type_} v = {element};", f"if ((v > best){nan}) {{"]
        step += ["    best = v;", f"    place = ({C_TYPES[target]}){inner[0]};", "}"]
        lines = [f"{type_} best = {first};", f"{C_TYPES[target]} place = 0;"]
        lines += [*nested(loop.inner, step, len(outer)), stored(loop.write, outer, target, "place")]
        return nested(loop.shape, lines)
    step = [f"const {type_} v = {element};", f"if ((v {sign} best){other_nan}) {{", "    best = v;", "}"]
    lines = [f"{type_} best = {first};", *nested(loop.inner, step, len(outer))]
    return nested(loop.shape, [*lines, stored(loop.write, outer, target, "best")])


def gather_lines(program: FrameProgram, loop: GatherLoop, prefix: str) -> list[str]:
    """Returns the statements that copy rows of a table, or end the frame for an index outside of it."""
    indices = indices_of(loop.shape)
    column = f"i{len(indices)}"
    source = program.by_name[loop.table].dtype
    index = indexed(loop.index, indices)
    element = widened(f"{loop.table}[((size_t)row * {loop.width}U) + {column}]", source)
    copied = f"{indexed(loop.write, [*indices, column])} = {element};"
    lines = [
        f"int64_t row = {index};"
        if program.by_name[loop.index.buffer].dtype == "int64"
        else f"int64_t row = (int64_t){index};",
        f"row += (row < 0) ? INT64_C({loop.rows}) : INT64_C(0);",
        f"if ((row < 0) || (row >= INT64_C({loop.rows}))) {{",
        f"    return {prefix}_INDEX;",
        "}",
        *nested((loop.width,), [copied], len(indices)),
    ]
    return nested(loop.shape, lines)
