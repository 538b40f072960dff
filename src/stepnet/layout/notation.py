"""The notation for the position of each number in a layout, and its parser.

An array is written as the parameter it holds, indexed by its axes in order, as in einops. An axis may be
composed of several, and the gate axis `g` has labels: the gates, in order.

    W[(g:rzn h) x]                  torch's weight_ih: the gates r z n stacked along the first axis
    W[x (g:zrn h)]                  Keras' kernel
    W[(h g:gifo) x]                 Chainer's: the gates of one unit are adjacent
    d_n[h]                          one gate's bias
    W[x (g:igfo h)] / R[k (g:igfo h)]   concatenated along axis 0; `|` along the last axis, `/2` along axis 2
    R[k (g:zr h)]; R_n[k h] : k (3 h)   buffers end to end; the declared shape after `:`
    {L D: W[(g:rzn h) x]; R[(g:rzn h) k]}   repeated for each direction of each layer
    W[x (g:zrn h) ~ h x]            each gate's block [x, h] holds the raw buffer of an array [h, x]

Parameters: W the inputs' weights, R the recurrent weights, b and d the input and the recurrent bias, p the
peepholes, P the projection and q its bias. If b and d are only used as their sum, a layout with a single bias
stores the sum.

Axes: x inputs (of upper layers: the outputs of all directions), h hidden, k the recurrent input (the output:
h, or y with a projection), y the projected output, g gates, L layers, D directions; a number stands for
itself.
"""

import re
from typing import NoReturn

from stepnet.compiler.values.records import dataclass
from stepnet.errors import LayoutError

PARAMETERS = {  # each with the axes of one of its blocks
    "W": "hx",
    "R": "hk",
    "b": "h",
    "d": "h",
    "p": "h",
    "P": "yh",
    "q": "y",
}
OF_ALL_GATES = ("P", "q")  # these have no gates
AXES = "xhkygLD"
TOKEN = re.compile(r"\s*([A-Za-z]_[a-z]|[A-Za-z]|\d+|[\[\](){};:|~/])")


@dataclass(frozen=True)
class ElementaryAxis:
    """One axis in the notation of a layout, not composed of others: the letter of a size, such as h for
    hidden, or a number; the gate axis g also has labels.
    """

    name: str
    labels: str = ""

    def __str__(self) -> str:
        """The axis in the notation, such as "h" or "g:rzn"."""
        return f"{self.name}:{self.labels}" if self.labels else self.name


Axis = tuple[ElementaryAxis, ...]  # outermost first


@dataclass(frozen=True)
class Term:
    """Part of the notation of a layout, such as W[(g:rzn h) x]: a parameter, of one gate or of several along
    an axis, with its axes.

    parameter: its letter, such as W. gate: the letter of its only gate; "" if the axes name the gates.
    raw: the letters of axes, such as "hx", if the numbers of each gate's block lie in memory as an array of
    these axes would, whatever the axes of the term; "" if they do not.
    """

    parameter: str
    gate: str
    axes: tuple[Axis, ...]
    raw: str = ""

    @property
    def gates(self) -> str:
        """The gates of a parameter in the notation, a letter each, in stored order; "" for one without."""
        labels = "".join(atom.labels for axis in self.axes for atom in axis)
        return labels or self.gate

    def __str__(self) -> str:
        """The term in the notation, such as "W[(g:rzn h) x]"."""
        name = f"{self.parameter}_{self.gate}" if self.gate else self.parameter
        raw = f" ~ {' '.join(self.raw)}" if self.raw else ""
        return f"{name}[{axes_text(self.axes)}{raw}]"


@dataclass(frozen=True)
class Concatenation:
    """Notation of an array: terms that are concatenated along an axis, 0, another, or -1 for the last."""

    terms: tuple[Term, ...]
    axis: int = 0

    def __str__(self) -> str:
        """The terms in the notation: joined by / for axis 0, | for the last, /2 for axis 2."""
        sign = {0: "/", -1: "|"}.get(self.axis, f"/{self.axis}")
        return f" {sign} ".join(map(str, self.terms))


@dataclass(frozen=True)
class Loop:
    """Notation of buffers repeated for layers (`over` is "L"), directions ("D") or both ("LD")."""

    over: str
    segments: tuple["Concatenation | Loop", ...]

    def __str__(self) -> str:
        """The loop in the notation, such as "{L D: W[h x]; R[h k]}"."""
        return f"{{{' '.join(self.over)}: {'; '.join(map(str, self.segments))}}}"


@dataclass(frozen=True)
class Flat:
    """Notation of an array that holds buffers of weights end to end, as a vector or in a declared shape."""

    segments: tuple[Concatenation | Loop, ...]
    shape: tuple[Axis, ...] = ()

    def __str__(self) -> str:
        """The buffers in the notation, separated by semicolons, with the declared shape."""
        return "; ".join(map(str, self.segments)) + (f" : {axes_text(self.shape)}" if self.shape else "")


Pattern = Concatenation | Flat


def axes_text(axes: tuple[Axis, ...]) -> str:
    """Writes axes in the notation, such as "(g:rzn h) x", for the texts of patterns and messages."""
    texts = [" ".join(map(str, axis)) for axis in axes]
    return " ".join(text if len(axis) == 1 else f"({text})" for text, axis in zip(texts, axes, strict=True))


def terms(pattern: Concatenation | Flat | Loop) -> tuple[Term, ...]:
    """Returns every term (a parameter with its axes) of a parsed notation, in the order of the text.

    >>> [term.parameter for term in terms(parse("{L: W[h x]; R[h k]}; {L: b[h]}"))]
    ['W', 'R', 'b']
    """
    if isinstance(pattern, Concatenation):
        return pattern.terms
    return tuple(term for segment in pattern.segments for term in terms(segment))


def parse(text: str) -> Pattern:
    """Parses the notation of an array, such as "W[(g:rzn h) x]"; `str` of the result is an equivalent text.

    Raises `LayoutError` with the place of the error.

    >>> parse("W[(g:rzn h) x]").terms[0].gates
    'rzn'
    >>> print(parse("W[x (g:igfo h)]/R[k (g:igfo h)]"))
    W[x (g:igfo h)] / R[k (g:igfo h)]
    >>> parse("W[(g:rzn h) u]")
    Traceback (most recent call last):
    stepnet.errors.LayoutError: W[(g:rzn h) u]: no axis is called u; there are x h k y g L D (at character 13)
    """
    return Parser(text).pattern()


class Parser:
    """A recursive-descent parser, with one token of lookahead, for the notation of one array.

    text: the notation. position: the index in `text` of the next character to read.
    """

    def __init__(self, text: str) -> None:
        """Starts to parse `text`, the notation of an array such as "W[x h]", at its first character."""
        self.text = text
        self.position = 0

    def pattern(self) -> Pattern:
        """Parses the whole text of an array's notation: parts that lie end to end, then perhaps a shape after
        ":". One part that is no loop, without a shape, is a `Concatenation`, anything else a `Flat`. Raises
        `LayoutError` if more text follows.
        """
        segments = self.parse_segments()
        shape = self.axes("") if self.accept(":") else ()
        if self.ahead():
            self.wrong("nothing more is expected")
        only_segment = segments[0]
        return (
            only_segment
            if len(segments) == 1 and isinstance(only_segment, Concatenation) and not shape
            else Flat(segments, shape)
        )

    def parse_segments(self) -> tuple[Concatenation | Loop, ...]:
        """Parses the parts of an array that lie end to end, which semicolons separate in the notation: loops
        over layers or directions, and terms (parameters with their axes).
        """
        segments = [self.parse_segment()]
        while self.accept(";"):
            segments.append(self.parse_segment())
        return tuple(segments)

    def parse_segment(self) -> Concatenation | Loop:
        """Parses a loop over layers L, directions D or both, such as "{L D: ...}", or concatenated terms."""
        if not self.accept("{"):
            return self.stack()
        over = ""
        while self.ahead() in ("L", "D"):
            over += self.token()
        if over not in ("L", "D", "LD"):
            self.wrong("a loop is over L, D or L D")
        self.expect(":")
        segments = self.parse_segments()
        self.expect("}")
        return Loop(over, segments)

    def stack(self) -> Concatenation:
        """Parses a term (a parameter with its axes), or terms concatenated along one axis: "/" along the
        first, "|" along the last (-1), "/2" along axis 2. Raises `LayoutError` for different axes, or terms
        that do not have the axis.
        """
        stacked = [self.term()]
        axes: set[int] = set()
        while self.ahead() in ("/", "|"):
            sign = self.token()
            axes.add(-1 if sign == "|" else int(self.token()) if self.ahead().isdigit() else 0)
            stacked.append(self.term())
        if len(axes) > 1:
            self.wrong("terms are concatenated along one axis")
        axis = axes.pop() if axes else 0
        if len({len(term.axes) for term in stacked}) > 1 or (
            len(stacked) > 1 and axis >= len(stacked[0].axes)
        ):
            self.wrong("concatenated terms have the same number of axes, and the axis of concatenation")
        return Concatenation(tuple(stacked), axis)

    def term(self) -> Term:
        """Parses a parameter with its axes, such as "W[(g:rzn h) x]" or "d_n[h]". A parameter of gates for
        which the text names none, such as "b[h]", is of n, the only gate of a simple recurrence.
        """
        parameter, _, gate = self.token().partition("_")
        if parameter not in PARAMETERS:
            self.wrong(f"a parameter is one of {' '.join(PARAMETERS)}")
        self.expect("[")
        axes = self.axes("]~")
        raw = self.axes("]") if self.accept("~") else ()
        self.expect("]")
        if any(len(axis) != 1 or axis[0].labels for axis in raw):
            self.wrong("the axes of a raw buffer are letters")
        labelled = any(atom.labels for axis in axes for atom in axis)
        if gate and labelled:
            self.wrong("the gate is named twice")
        if not gate and not labelled and parameter not in OF_ALL_GATES:
            gate = "n"  # the only gate of a simple recurrence
        return Term(parameter, gate, axes, "".join(atom.name for axis in raw for atom in axis))

    def axes(self, until: str) -> tuple[Axis, ...]:
        """Parses axes up to one of the characters in `until`, which it does not consume, or to the end.
        Several in parentheses are one composed axis.
        """
        axes: list[Axis] = []
        while self.ahead() and self.ahead() not in until:
            if self.accept("("):
                inner: list[ElementaryAxis] = []
                while not self.accept(")"):
                    inner.append(self.atom())
                axes.append(tuple(inner))
            else:
                axes.append((self.atom(),))
        return tuple(axes)

    def atom(self) -> ElementaryAxis:
        """Parses an elementary axis: a letter of `AXES` or a number; after the letter g (the gate axis) also
        its labels, as in "g:rzn", which are different letters.
        """
        name = self.token()
        if not name.isdigit() and (len(name) != 1 or name not in AXES):
            self.wrong(f"no axis is called {name}; there are {' '.join(AXES)}")
        if name != "g":
            return ElementaryAxis(name)
        self.expect(":")
        labels = re.compile(r"[a-z]+").match(self.text, self.position)
        if labels is None or len(set(labels[0])) != len(labels[0]):
            self.wrong("the gates are different letters")
        self.position = labels.end()
        return ElementaryAxis(name, labels[0])

    def ahead(self) -> str:
        """Returns the next token of the notation's text without consuming it; "" at the end. Raises
        `LayoutError` for a character that starts no token.
        """
        match = TOKEN.match(self.text, self.position)
        rest = self.text[self.position :].lstrip()
        if match is None and rest:
            self.position = len(self.text) - len(rest) + 1
            self.wrong("this character is not part of the notation")
        return match[1] if match else ""

    def token(self) -> str:
        """Consumes the next token of the notation's text and returns it; raises `LayoutError` at the end."""
        token = self.ahead()
        if not token:
            self.wrong("the text ends too early")
        match = TOKEN.match(self.text, self.position)
        assert match is not None
        self.position = match.end()
        return token

    def accept(self, sign: str) -> bool:
        """Consumes the next token of the text if it is `sign`; returns True if it was."""
        return self.ahead() == sign and bool(self.token())

    def expect(self, sign: str) -> None:
        """Consumes the token `sign`; raises `LayoutError` if the next token is another."""
        if not self.accept(sign):
            self.wrong(f"{sign} is expected")

    def wrong(self, what: str) -> NoReturn:
        """Raises `LayoutError` with the message `what`, the text and the position in it."""
        raise LayoutError(f"{self.text}: {what} (at character {self.position})")
