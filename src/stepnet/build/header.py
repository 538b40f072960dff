"""The C header of a library: its functions, their arguments, and an example."""

from collections.abc import Sequence
from textwrap import wrap

from stepnet.compiler.targets.library import ERRORS, ArrayText, Description

C_TYPES = {
    "float32": "float",
    "float64": "double",
    "int32": "int32_t",
    "int64": "int64_t",
    "bool": "uint8_t",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
}
"""The C type for each dtype. float16 and bfloat16 are stored as their bits."""
KINDS = {
    "sequence": "of each step",
    "initial": "the memory before the first step; NULL for zeros",
    "static": "of each sequence",
    "output": "of each step",
    "final": "the memory after the last step",
}
WIDTH = 100


def declaration(argument: ArrayText) -> str:
    """Formats an array argument of the C function `run` as a declaration, such as "const float *x"."""
    const = "" if argument.is_result else "const "
    return f"{const}{C_TYPES[argument.dtype]} *{argument.name}"


def shape_text(argument: ArrayText) -> str:
    """Formats the axes of an array argument for the header's comments, such as "[steps, 8]"."""
    axes = ["sequences" if argument.by_row else "steps", *map(str, argument.shape)]
    return f"[{', '.join(axes)}]"


def meaning(argument: ArrayText) -> str:
    """Describes an array argument for a comment of the header: axes, meaning, and if NULL is allowed."""
    kind = KINDS[argument.kind]
    if argument.by_row and argument.kind == "output":
        kind = "of each sequence"
    if argument.kind == "initial" and not argument.optional:
        kind = "of each sequence"
    bits = f", the bits of {argument.dtype}" if argument.dtype in ("float16", "bfloat16") else ""
    written = "out: " if argument.is_result else ""
    unread = "; NULL if it is not wanted" if argument.is_result else ""
    return f"{written}{shape_text(argument)}{bits}, {kind}{unread}"


def header(about: Description, model: str) -> str:
    """Formats the C header of a library.

    about: its description, which says whether its weights are in a file, from which contexts are then made.
    model: the text of the model that it runs.
    """
    name, beside = about.name, about.weights is not None
    guard, upper = f"{name.upper()}_H", name.upper()
    lines = [
        f"/* {name}: {comment_text(model)}",
        "",
        f"   Built by stepnet {about.stepnet} for {about.target}.",
    ]
    lines += ["", *wrap_comment(CALLS), "", *wrap_comment(THREADS), "", *example(about), "*/"]
    lines += [f"#ifndef {guard}", f"#define {guard}", "", "#include <stddef.h>", "#include <stdint.h>", ""]
    lines += [
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        "/* The codes that the functions return. */",
        "enum {",
    ]
    for number, (code, text) in enumerate(ERRORS.items()):
        comma = "," if number < len(ERRORS) - 1 else ""  # C++98 and C89 allow no comma at the end
        lines.append(f"    {upper}_{code} = {number}{comma} /* {text} */")
    lines += [
        "};",
        "",
        "/* The memory that calls work in. */",
        f"typedef struct {name}_context {name}_context;",
        "",
    ]
    lines += opening(name, beside)
    lines += ["/* Frees a context, which may be NULL. */", f"void {name}_free({name}_context *context);", ""]
    lines += [
        "/* The numbers of one step or one sequence, and their type. */",
        *sizes(about.arrays, upper),
        "",
    ]
    lines += ["/* Runs the model over sequences, and returns a code.", ""]
    arguments = [
        (f"{name}_context *context", "the context; no other thread may use it during the call"),
        ("int64_t sequences", "the number of sequences; for 0 nothing is read or written"),
        (
            "const int64_t *offsets",
            "[sequences + 1]: sequence i has the steps offsets[i] to offsets[i + 1] - 1",
        ),
    ]
    arguments += [(declaration(argument), meaning(argument)) for argument in about.arrays]
    for text, what in arguments:
        lines += wrap(
            f"{text.rpartition(' ')[2].lstrip('*')}: {what}",
            WIDTH,
            initial_indent="   ",
            subsequent_indent="       ",
        )
    lines += ["*/", f"int {name}_run("]
    lines += [
        f"    {text}{',' if index < len(arguments) - 1 else ');'}"
        for index, (text, _) in enumerate(arguments)
    ]
    lines += [
        "",
        "/* Returns the text of a code, in English; never NULL. */",
        f"const char *{name}_error(int code);",
        "",
    ]
    lines += [
        "/* Returns the description of the library and its arrays, as JSON. */",
        f"const char *{name}_describe(void);",
    ]
    lines += ["", "#ifdef __cplusplus", "}", "#endif", f"#endif /* {guard} */", ""]
    return "\n".join(lines)


CALLS = (
    "Sequences lie end to end: an array of all their steps, one after the other, and the offsets at which "
    "each begins, as in stepnet.Ragged. Arrays are in C's order and aligned as their type, and results "
    "overlap no other array. A sequence may have no steps: its last memory is then its initial one. Where a "
    "call returns an error, what is in the results is undefined."
)
THREADS = (
    "A call runs in the thread that makes it. Different threads use different contexts; there is nothing "
    "that contexts share but constants. A context grows to the largest call that it has run."
)


def wrap_comment(text: str) -> list[str]:
    """Wraps a paragraph of the header's comments into indented lines."""
    return wrap(text, WIDTH, initial_indent="   ", subsequent_indent="   ")


def comment_text(text: str) -> str:
    """Puts a text on one line of at most 200 ASCII characters, escaped so that it cannot end a C comment. A
    longer text ends with "...".
    """
    plain = " ".join(text.split()).replace("*/", "* /").replace("/*", "/ *")
    shown = plain.encode("ascii", "backslashreplace").decode().replace("\\", "/")
    return shown if len(shown) <= 200 else f"{shown[:197]}..."


def opening(name: str, beside: bool) -> list[str]:
    """Lists the header's lines that declare `name_new`, which creates a context, and `name_open` as well if
    `beside`: the weights are in a file of their own. name: the prefix of the library's functions.
    """
    if not beside:
        return [
            "/* Makes a context, at *context; returns a code. */",
            f"int {name}_new({name}_context **context);",
            "",
        ]
    return [
        "/* Makes a context, at *context, with the bytes of a file of weights, which are copied. */",
        f"int {name}_new(const void *weights, size_t bytes, {name}_context **context);",
        "",
        f"/* Makes a context, at *context, with the file of weights at a path: {name}.weights. */",
        f"int {name}_open(const char *path, {name}_context **context);",
        "",
    ]


def sizes(arrays: Sequence[ArrayText], upper: str) -> list[str]:
    """Lists #define lines with the numbers of one step or sequence of each array, such as "GRU_X_SIZE 8", by
    which C programs allocate. upper: the prefix of the constants' names.
    """
    return [
        f"#define {upper}_{array.name.upper()}_SIZE {array.size} /* {C_TYPES[array.dtype]} */"
        for array in arrays
    ]


def example(about: Description) -> list[str]:
    """Lists the comment lines with an example call in C, with two sequences, of three steps and of one. Its
    arrays have at least one element, as C demands, and NULL stands for initial memories.

    about: the description of the library. Where its weights are in a file, the example opens that.
    """
    name = about.name
    create_call = f"{name}_new(&context)"
    if about.weights is not None:
        create_call = f'{name}_open("{about.weights}", &context)'
    arrays, names = list[str](), list[str]()
    for argument in about.arrays:
        if argument.kind == "initial" and argument.optional:
            names.append("NULL")
            continue
        names.append(argument.name)
        count = (2 if argument.by_row else 4) * argument.size
        arrays.append(f"{C_TYPES[argument.dtype]} {argument.name}[{max(count, 1)}];")
    call: Sequence[str] = wrap(f"code = {name}_run(context, 2, offsets, {', '.join(names)});", WIDTH - 12)
    return [
        "   Two sequences, of three steps and of one:",
        "",
        f"       {name}_context *context;",
        "       int64_t offsets[] = {0, 3, 4};",
        *(f"       {line}" for line in arrays),
        "",
        f"       int code = {create_call};",
        "       if (code == 0)",
        *(f"           {line}" for line in call),
        f'       if (code != 0) fprintf(stderr, "%s\\n", {name}_error(code));',
        f"       {name}_free(context);",
    ]
