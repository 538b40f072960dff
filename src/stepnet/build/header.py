"""The C header of a library: its functions, their arguments, and an example."""

from collections.abc import Sequence
from textwrap import wrap

import numpy as np

from stepnet.compiler.net.windows import derived_offsets
from stepnet.compiler.targets.library import ERRORS, ArrayText, Description, steps_function
from stepnet.compiler.values.c_names import C_TYPES
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray
KINDS = {
    "sequence": "of each step",
    "initial": "the memory that its recurrence begins with; NULL for zeros",
    "static": "of each sequence",
    "output": "of each step",
    "final": "the memory that its recurrence ends with",
}
WIDTH = 100


def declaration(argument: ArrayText) -> str:
    """Formats an array argument of the C function `run` as a declaration, such as "const float *x"."""
    const = "" if argument.is_result else "const "
    return f"{const}{C_TYPES[argument.dtype]} *{argument.name}"


def shape_text(argument: ArrayText) -> str:
    """Formats the axes of an array argument for the header's comments, such as "[steps, 8]"."""
    steps = f"steps of {argument.name}" if argument.is_counted else "steps"
    axes = ["sequences" if argument.by_row else steps, *map(str, argument.shape)]
    return f"[{', '.join(axes)}]"


def meaning(argument: ArrayText, name: str) -> str:
    """Describes an array argument for a comment of the header: axes, meaning, and if NULL is allowed. name:
    the prefix of the library's functions.
    """
    kind = KINDS[argument.kind]
    if argument.is_counted:
        kind = f"of each of its steps, of which {steps_function(name, argument.name)} gives the number"
    if argument.by_row and argument.kind == "output":
        kind = "of each sequence"
    if argument.kind == "initial" and not argument.optional:
        kind = "of each sequence"
    title = f"`{comment_text(argument.title)}` of the model: " if argument.title else ""
    bits = f", the bits of {argument.dtype}" if argument.dtype in ("float16", "bfloat16") else ""
    written = "out: " if argument.is_result else ""
    unread = "; NULL if it is not wanted" if argument.is_result else ""
    return f"{title}{written}{shape_text(argument)}{bits}, {kind}{unread}"


def header(
    about: Description,
    model: str,
    in_pieces: bool,
    left_out: Sequence[str] = (),
    only_steps: int | None = None,
    least_steps: int = 1,
) -> str:
    """Formats the C header of a library.

    about: its description, which says whether its weights are in a file, from which contexts are then made.
    model: the text of the model that it runs. in_pieces: whether the model reads the steps of a sequence from
    the first on, so that its memories let a sequence go on in another call. left_out: the names of other
    parts of the model's file. only_steps: the only number of steps for which the model has results; None for
    any.
    least_steps: the number of steps that a sequence has at least, unless it has none.
    """
    name, beside = about.name, about.weights is not None
    guard, upper = f"{name.upper()}_H", name.upper()
    lines = [
        f"/* {name}: {comment_text(model)}",
        "",
        f"   Built by stepnet {about.stepnet} for {about.target}: {processors(about)}.",
    ]
    rest = [f"{LEFT_OUT} {comment_text(', '.join(left_out))}"] if left_out else []
    rest += [] if only_steps is None else [ONLY_STEPS.format(only_steps)]
    rest += [] if least_steps == 1 else [LEAST_STEPS.format(least_steps)]
    for paragraph in (*rest, CALLS, pieces(about, in_pieces), THREADS):
        lines += ["", *wrap(paragraph, WIDTH, initial_indent="   ", subsequent_indent="   ")]
    lines += ["", *example(about, least_steps), "*/"]
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
    lines += [line for array in about.arrays if array.is_counted for line in steps_of(array, name)]
    lines += ["/* Runs the model over sequences, and returns a code.", ""]
    arguments = [
        (f"{name}_context *context", "the context; no other thread may use it during the call"),
        ("int64_t sequences", "the number of sequences; for 0 nothing is read or written"),
        (
            "const int64_t *offsets",
            "[sequences + 1]: sequence i has the steps offsets[i] to offsets[i + 1] - 1",
        ),
    ]
    arguments += [(declaration(argument), meaning(argument, name)) for argument in about.arrays]
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


def processors(about: Description) -> str:
    """Says which processors a library runs on, for the header's second line. about: its description."""
    if not about.needs:
        return f"every {about.machine} processor, under Linux"
    return f'{about.machine} with the instructions\n   that {about.name}_describe() lists as "needs"'


LEFT_OUT = "The library runs only the recurrent layers of a file. The program computes what is left out:"
LEAST_STEPS = (
    "A sequence has at least {} steps, or none: the model's padding by reflection copies steps to its ends."
)
ONLY_STEPS = (
    "The file of the model fixes the number of steps: a sequence has {} of them. The results of sequences of "
    "other lengths are NaN."
)
CALLS = (
    "Sequences lie end to end: an array of all their steps, one after the other, and the offsets at which "
    "each begins, as in stepnet.Ragged. Arrays are in C's order and aligned as their type, and results "
    "overlap no other array. A sequence may have no steps. Where a call returns an error, what is in the "
    "results is undefined."
)
ANEW = (
    "Nothing is kept from call to call: each call begins every sequence anew. A sequence that is run in "
    "pieces has other results than as a whole, unless the model takes and gives its memories, as one does "
    "that is built with --stream."
)
GOES_ON = (
    "To run a sequence in pieces, pass the final memories of a call as the initial ones of the next: the "
    "results have the bits of one call. Without steps a final memory is the initial one."
)
LAST_FIRST = (
    "A sequence cannot be run in pieces: a recurrence begins at its last step, or reads later steps. It "
    "begins with the initial memory there, and ends with the final memory at the first step."
)
THREADS = (
    "A call runs in the thread that makes it. Different threads use different contexts; there is nothing "
    "that contexts share but constants. A context grows to the largest call that it has run."
)


def pieces(about: Description, in_pieces: bool) -> str:
    """Returns the paragraph of the header that says how a sequence goes on in another call, or that it
    cannot: if the model returns no final memories, or does not read the steps from the first on (`in_pieces`
    is False). about: the description of the library.
    """
    if not any(array.kind == "final" for array in about.arrays):
        return ANEW
    return GOES_ON if in_pieces else LAST_FIRST


def comment_text(text: str) -> str:
    """Puts a text on one line of at most 200 ASCII characters that cannot end a C comment."""
    plain = " ".join(text.split()).replace("*/", "* /").replace("/*", "/ *")
    shown = plain.encode("ascii", "backslashreplace").decode().replace("\\", "/")
    return shown if len(shown) <= 200 else f"{shown[:197]}..."


def opening(name: str, beside: bool) -> list[str]:
    """Lists the header's lines that declare `name_new`, which creates a context, and `name_open` as well if
    `beside`: the weights are in a file of their own. name: the prefix of the library's functions.
    """
    if not beside:
        return [
            "/* Makes a context, at *context; returns a code. On an error *context is NULL. */",
            f"int {name}_new({name}_context **context);",
            "",
        ]
    return [
        "/* Makes a context, at *context, with the bytes of a file of weights, which are copied; returns a",
        "   code. On an error *context is NULL. */",
        f"int {name}_new(const void *weights, size_t bytes, {name}_context **context);",
        "",
        f"/* Makes a context, at *context, with the file of weights at a path: {name}.weights; returns",
        "   a code. On an error *context is NULL. */",
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


def steps_of(array: ArrayText, name: str) -> list[str]:
    """Lists the header's lines that declare a function for an output array that has another number of steps
    than the inputs: from the steps of a sequence of the inputs, it computes the steps of the output. array:
    the output. name: the prefix of the library's functions.
    """
    return [
        f"/* Returns the number of steps of {array.name} for a sequence of so many steps, by which callers",
        f"   allocate {array.name}. Returns -1 for a negative number of steps, and for too many. */",
        f"int64_t {steps_function(name, array.name)}(int64_t steps);",
        "",
    ]


def example(about: Description, least_steps: int) -> list[str]:
    """Lists the comment lines with an example call in C, with two sequences, such as of 3 steps and of 1. Its
    arrays have at least one element, as C demands, and NULL stands for initial memories.

    about: the description of the library. Where its weights are in a file, the example opens that.
    least_steps: the number of steps that a sequence has at least.
    """
    name, lengths = about.name, (least_steps + 2, least_steps)
    offsets = offsets_of(np.array(lengths))
    create_call = f"{name}_new(&context)"
    if about.weights is not None:
        create_call = f'{name}_open("{about.weights}", &context)'
    arrays, names = list[str](), list[str]()
    for argument in about.arrays:
        if argument.kind == "initial" and argument.optional:
            names.append("NULL")
            continue
        names.append(argument.name)
        count = (2 if argument.by_row else steps_along(argument.axis, offsets)) * argument.size
        arrays.append(f"{C_TYPES[argument.dtype]} {argument.name}[{max(count, 1)}];")
    call: Sequence[str] = wrap(f"code = {name}_run(context, 2, offsets, {', '.join(names)});", WIDTH - 12)
    counted = [
        f"   {argument.name} has "
        + " + ".join(f"{steps_function(name, argument.name)}({length})" for length in lengths)
        + f" = {steps_along(argument.axis, offsets)} steps."
        for argument in about.arrays
        if argument.is_counted
    ]
    return [
        f"   Two sequences, of {lengths[0]} steps and of {lengths[1]}:",
        *counted,
        "",
        f"       {name}_context *context;",
        f"       int64_t offsets[] = {{{', '.join(map(str, offsets))}}};",
        *(f"       {line}" for line in arrays),
        "",
        f"       int code = {create_call};",
        "       if (code == 0)",
        *(f"           {line}" for line in call),
        f'       if (code != 0) fprintf(stderr, "%s\\n", {name}_error(code));',
        f"       {name}_free(context);",
    ]


def steps_along(axis: str, offsets: Array) -> int:
    """Returns the number of steps along an axis of all sequences of the header's example. offsets: where the
    steps of each begin and end along the axis of the inputs.
    """
    return int(derived_offsets(axis, offsets)[-1])
