"""Every error that stepnet raises on purpose.

All derive from `StepnetError`, so `except sn.StepnetError` catches what the caller can correct and nothing
else. The message says what was given, what was expected and what to do.
"""

from collections.abc import Generator
from contextlib import contextmanager


class StepnetError(ValueError, RuntimeError):
    r"""The base of every error that stepnet raises on purpose; a `ValueError`, as Python's own errors for
    arguments that do not fit are, and a `RuntimeError`, as PyTorch's are.

    Control characters in the message, such as those in names from a file, are escaped.

    >>> print(StepnetError("there is no \x1b[31mlayer"))
    there is no \x1b[31mlayer

    Arguments after the message are lines below it, such as the line of the user's code.

    >>> print(FileError("a\nb: there is no such file", "  at model.py:3"))
    a\nb: there is no such file
      at model.py:3
    """

    kept = "\n"
    """The control characters that are not escaped in the message."""
    _keras_call_info_injected = True
    """Keras raises errors with this attribute as they are, and others again with escape codes for bold text
    around the message.
    """

    def __str__(self) -> str:
        """The message and the lines below it, with control characters escaped."""
        message, *below = map(str, self.args or ("",))
        return "\n".join([printable(message, self.kept), *map(printable, below)])


def printable(text: str, kept: str = "") -> str:
    r"""Returns text with every character escaped that cannot be printed, other than those in `kept`, so that
    a name from a file cannot control the terminal.

    >>> printable("lstm\x1b[2J"), printable("a\u202eb")
    ('lstm\\x1b[2J', 'a\\u202eb')
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


class StepError(StepnetError):
    """A step does what no step can: it mixes rows, changes a value in place, or uses an unknown operation."""


class ModelError(StepnetError):
    """A model has an operation, or uses one in a way, that stepnet does not run."""


class InputError(StepnetError):
    """An argument is not what it should be: arrays, lengths or sequences that do not fit."""


class IndexOutsideError(InputError):
    """An integer of a call is outside the rows of the parameter that it indexes."""


class ArgumentError(InputError, TypeError):
    """A call gives an argument by a name that the function lacks; a `TypeError` too, as Python raises."""


class NetError(StepnetError):
    """A net is not valid. A pass or a front end made it so: this is an error in stepnet."""


class RefusedError(StepnetError):
    """No engine of those asked for runs the plan; the message has the reason of each."""


class LibraryError(StepnetError):
    """A library that an engine calls is missing, is of another version, or reports a failure."""


class DeviceError(StepnetError):
    """A GPU cannot be used: there is no driver or no such device, or a kernel or the driver failed."""


class FileError(StepnetError):
    """A file cannot be read or written: truncated, of another kind, or unsafe. The message is one line."""

    kept = ""


class LayoutError(InputError):
    """Weights do not fit a layout, the layout or its sizes are not determined, or a layout is not written
    correctly. The message is one line.
    """

    kept = ""


class ConversionError(LayoutError):
    """Weights cannot be converted to a layout without changing the function that they parametrise."""


@contextmanager
def named(*parts: str) -> Generator[None]:
    """Prefixes errors raised in its `with` block with names of the part that fails, outermost first. Control
    characters in them, line ends too, are escaped.

    >>> with named("layer 0", "the forward direction"):
    ...     raise InputError("there are no input sequences")
    Traceback (most recent call last):
    stepnet.errors.InputError: layer 0: the forward direction: there are no input sequences
    """
    try:
        yield
    except StepnetError as error:
        message, *below = error.args
        raise type(error)(": ".join([*map(printable, parts), str(message)]), *below) from None


def pip_command(*requirements: str) -> str:
    """Returns the command that installs packages, in quotes that all shells take, those of Windows too.

    requirements: names of packages, with extras and lowest versions.

    >>> print(pip_command("stepnet[torch]", "rich>=13.7"))
    pip install "stepnet[torch]" "rich>=13.7"
    """
    return "pip install " + " ".join(f'"{requirement}"' for requirement in requirements)
