"""The line of the user's code that an operation, an error or a step comes from."""

import inspect
import linecache
import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from types import CodeType, FrameType, TracebackType
from typing import Any, cast

import numpy as np

from stepnet.errors import StepError, StepnetError

HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NUMPY = os.path.dirname(os.path.abspath(np.__file__))
PYTHON = os.path.dirname(os.path.abspath(os.__file__))
INSTALLED = ("site-packages", "dist-packages")
"""Folders inside Python's library folder that hold third-party packages."""

WRITTEN_AT: ContextVar[str | None] = ContextVar("WRITTEN_AT", default=None)


@contextmanager
def written_at(line: str) -> Generator[None]:
    """Context in which new operations are noted, for messages, as written at `line`, not at the line that
    runs; for operations that are added from a recorded graph or a file.
    """
    token = WRITTEN_AT.set(line)
    try:
        yield
    finally:
        WRITTEN_AT.reset(token)


def user_line() -> str:
    """Returns file, line number and text of the innermost call in the user's code; empty if there is none."""
    if (line := WRITTEN_AT.get()) is not None:
        return line
    frame = user_frame()
    return "" if frame is None else line_of(frame.f_code, frame.f_lineno)


def user_frame() -> FrameType | None:
    """Returns the frame of the innermost call in the user's code, for messages; None if there is none."""
    frame = inspect.currentframe()
    while frame is not None and not is_users(frame.f_code):
        frame = frame.f_back
    return frame


def refuse(message: str, line: str = "") -> StepError:
    """Makes a `StepError` with the message and a line of the user's code: `line`, or the one that runs."""
    return StepError(f"{message}\n  at {line or user_line()}")


def defined_at(function: Any) -> str:
    """Returns file, line and text where a function is defined, or of the user's line that runs now."""
    code = code_of(function)
    return user_line() if code is None else line_of(code, code.co_firstlineno)


def code_of(function: Any) -> CodeType | None:
    """Returns the user's code that a function, partial or callable object runs; None if there is none."""
    while (inner := inspect.unwrap(function)) is not function or isinstance(function, partial):
        function = cast("Any", inner).func if isinstance(inner, partial) else inner
    for candidate in (function, inspect.unwrap(type(function).__call__)):
        code = getattr(candidate, "__code__", None)
        if code is not None and is_users(code):
            return code
    return None


def line_of(code: CodeType, number: int) -> str:
    """Returns file, line number and text of one line of code, for messages. number: the line's number."""
    text = linecache.getline(code.co_filename, number).strip()
    return f"{code.co_filename}:{number}: {text}" if text else f"{code.co_filename}:{number}"


def is_users(code: CodeType) -> bool:
    """Tells whether code is the user's: not of stepnet (except its cells), NumPy or Python's own modules."""
    return not is_generated(code) and is_users_file(code.co_filename)


def is_generated(code: CodeType) -> bool:
    """Tells whether Python wrote code, which then has no file: a method of a dataclass, or the `__new__` of a
    named tuple. The code of `python -c` has no file either, and is the user's.
    """
    of_tuple = code.co_name == "<lambda>" and code.co_varnames[:1] == ("_cls",)
    return code.co_filename == "<string>" and (code.co_qualname.startswith("__create_fn__.") or of_tuple)


@cache
def is_users_file(name: str) -> bool:
    """Tells whether messages may name lines of a file as the user's. Files of stepnet (except its cells), of
    NumPy and of Python's library are not the user's. All others are, files of other packages too.
    """
    file = os.path.abspath(name)
    if name.startswith("<frozen") or file.startswith(NUMPY + os.sep):
        return False
    if file.startswith(HERE + os.sep):
        return "cells" in (
            os.path.basename(os.path.dirname(file)),
            os.path.basename(file).removesuffix(".py"),
        )
    return not file.startswith(PYTHON + os.sep) or any(folder in file.split(os.sep) for folder in INSTALLED)


class NamingLine:
    """Context in which errors name the user's line in a step: stepnet's in the message, others in a note.

    The line is the innermost line of the user in the traceback, or else the line where the step is defined.
    """

    def __init__(self, step: Any) -> None:
        """Makes a context for calls of this step, in which errors name a line of the user's code."""
        self.step = step

    def __enter__(self) -> None:
        """Begins the context; only an error that ends it matters."""

    def __exit__(self, _: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        """Adds the user's line to the error that ended the block, if it names none: to the message of
        stepnet's errors, as a note to others.
        """
        if not isinstance(error, Exception) or names_line(error):
            return
        passed = list[tuple[CodeType, int]]()
        while trace is not None:
            passed += [(trace.tb_frame.f_code, trace.tb_lineno)] * is_users(trace.tb_frame.f_code)
            trace = trace.tb_next
        line = line_of(*passed[-1]) if passed else defined_at(self.step)
        if isinstance(error, StepnetError):
            error.args = (*error.args, f"  at {line}")
        else:
            error.add_note(f"  at {line}")


def names_line(error: Exception) -> bool:
    """Tells whether an error, or a note on it, already names a line of the user's code."""
    notes: list[str] = getattr(error, "__notes__", [])
    return any("\n  at " in f"\n{text}" for text in (str(error), *notes))
