"""Words for the letters of gates, parameters and axes, and explanations of texts in the notation.

{L D: W[(g:rzn h) x]}      {L D: ...}    for every layer, and in it for every direction
                           W             weights of the input
                           (g:rzn h)     along one axis: gates r, z, n, and in each of them hidden units
                           x             inputs
"""

from collections.abc import Iterator

from stepnet.layout.notation import Axis, Concatenation, Flat, Loop, Pattern, Term, axes_text

GATES = {
    "rnn": {"n": "new memory"},
    "gru": {"r": "reset gate", "z": "update gate", "n": "candidate"},
    "mgu": {"f": "gate", "n": "candidate"},
    "lstm": {"i": "input gate", "f": "forget gate", "g": "candidate", "o": "output gate"},
}
PARAMETERS = {
    "W": "weights of the input",
    "R": "recurrent weights",
    "b": "input bias",
    "d": "recurrent bias",
    "p": "peepholes",
    "P": "projection",
    "q": "its bias",
}
AXES = {
    "x": "inputs",
    "h": "hidden units",
    "k": "outputs of the step before",
    "y": "projected outputs",
    "L": "layers",
    "D": "directions",
}
LOOPS = {
    "L": "for every layer",
    "D": "for every direction",
    "LD": "for every layer, and in it for every direction",
    "DL": "for every direction, and in it for every layer",
}
STACKED = {0: ("/", "on top of one another"), -1: ("|", "beside one another")}


def explain_notation(pattern: Pattern) -> dict[str, str]:
    """Returns the explanation of each sign in the notation of an array of weights (which number lies where),
    in order.

    >>> from stepnet.layout.notation import parse
    >>> for sign, words in explain_notation(parse("{L: W[(g:rzn h) x]; R[(g:rzn h) k]}")).items():
    ...     print(f"{sign:<12}{words}")
    {L: ...}    for every layer
    ;           one buffer behind the other
    W           weights of the input
    (g:rzn h)   along one axis: gates r, z, n, and in each of them hidden units
    x           inputs
    R           recurrent weights
    k           outputs of the step before
    """
    return dict(signs(pattern))


def signs(pattern: Pattern | Loop) -> Iterator[tuple[str, str]]:
    """Yields (sign, explanation) for each sign in the notation of an array of weights, such as ("x",
    "inputs"); signs may repeat.
    """
    if isinstance(pattern, Concatenation):
        if len(pattern.terms) > 1:
            along = f"/{pattern.axis}", f"one behind the other along axis {pattern.axis}"
            yield STACKED.get(pattern.axis, along)
        for term in pattern.terms:
            yield from term_signs(term)
        return
    if isinstance(pattern, Loop):
        yield f"{{{' '.join(pattern.over)}: ...}}", LOOPS[pattern.over]
    if len(pattern.segments) > 1:
        yield ";", "one buffer behind the other"
    for part in pattern.segments:
        yield from signs(part)
    if isinstance(pattern, Flat) and pattern.shape:
        yield f": {axes_text(pattern.shape)}", "the shape that the array is declared with"


def term_signs(term: Term) -> Iterator[tuple[str, str]]:
    """Yields (sign, explanation) for each sign in a term of the notation of layouts, such as `W[(g:rzn h)
    x]`: the parameter, each axis, and the buffer order after "~".
    """
    name = f"{term.parameter}_{term.gate}" if term.gate else term.parameter
    yield name, PARAMETERS[term.parameter] + (f" of gate {term.gate}" if term.gate else "")
    for axis in term.axes:
        words = axis_words(axis)
        yield axes_text((axis,)), f"along one axis: {words}" if len(axis) > 1 else words
    if term.raw:
        raw = " ".join(term.raw)
        yield f"~ {raw}", f"in the place of each gate lies the buffer of an array [{raw}]"


def axis_words(axis: Axis) -> str:
    """Describes an axis of the notation of layouts (which number of an array lies where) in words, its
    outermost part first.

    >>> from stepnet.layout.notation import parse
    >>> axis_words(parse("W[(h g:ifgo) x]").terms[0].axes[0])
    'hidden units, and in each of them gates i, f, g, o'
    """
    parts = [
        f"gates {', '.join(atom.labels)}" if atom.labels else AXES.get(atom.name, f"length {atom.name}")
        for atom in axis
    ]
    return ", and in each of them ".join(parts)
