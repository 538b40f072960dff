"""Every error that stepnet raises on purpose.

All derive from `StepnetError`, so `except sn.StepnetError` catches what is the caller's to mend and nothing
else. Inner code raises the short local fact; the public function adds the user's own names once.
"""

from collections.abc import Generator
from contextlib import contextmanager


class StepnetError(Exception):
    r"""The base of every error that stepnet raises on purpose.

    What it says may hold names out of a file: as text, what a terminal would obey is escaped.

    >>> print(StepnetError("there is no \x1b[31mlayer"))
    there is no \x1b[31mlayer
    """

    def __str__(self) -> str:
        return printable(super().__str__(), "\n")


def printable(text: str, kept: str = "") -> str:
    r"""The text with every character that cannot be printed escaped, but for those kept.

    >>> printable("lstm\x1b[2J"), printable("a\u202eb")
    ('lstm\\x1b[2J', 'a\\u202eb')
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


class StepError(StepnetError):
    """A step does what a step cannot: it mixes rows, changes a memory, or uses an unknown operation."""


class InputError(StepnetError):
    """Arrays, lengths or sequences do not fit what they are given to."""


class NetError(StepnetError):
    """A net breaks its own rules: what a pass or a front end made is illegal."""


class RefusedError(StepnetError):
    """Every engine asked refused, each with its reason."""


class FileError(StepnetError):
    """A file is not what it should be: truncated, foreign or hostile."""

    def __str__(self) -> str:
        return printable(super().__str__())


class LayoutError(InputError):
    """Weights do not fit a layout, a layout cannot be told, or a layout is not written as one."""

    def __str__(self) -> str:
        return printable(super().__str__())


class ConversionError(LayoutError):
    """Weights cannot become those of another layout without changing the function they parametrise."""


@contextmanager
def named(*parts: str) -> Generator[None]:
    """Puts the names of a part, outermost first, before the errors it raises.

    >>> with named("layer 0", "the forward direction"):
    ...     raise InputError("there are no input sequences")
    Traceback (most recent call last):
    stepnet.errors.InputError: layer 0: the forward direction: there are no input sequences
    """
    try:
        yield
    except StepnetError as error:
        raise type(error)(": ".join([*parts, str(error)])) from None
