"""Finds the user's line of code in steps that call PyTorch, for error messages: code of PyTorch is skipped as
well as that which `stepnet.compiler.trace.lines` skips.
"""

import inspect
import os
import traceback
from types import CodeType
from typing import Any

from stepnet.compiler.trace import lines
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
LIBRARIES = [os.path.dirname(os.path.abspath(torch.__file__)) + os.sep]
"""Folders of code that is not the user's: PyTorch's, and those of packages that call it for the user."""
MADE = ("<string>", "<eval_with_key>")
"""The file names of code that Python and PyTorch generate."""


def is_users(code: CodeType) -> bool:
    """Tells whether a code object is the user's: not part of PyTorch, of stepnet or of generated code."""
    file = code.co_filename
    return (
        lines.is_users(code) and file not in MADE and not os.path.abspath(file).startswith(tuple(LIBRARIES))
    )


def line_of_call() -> str:
    """Returns the innermost line of the user's code in the current calls, for messages; "" without one."""
    frame = inspect.currentframe()
    while frame is not None and not is_users(frame.f_code):
        frame = frame.f_back
    return "" if frame is None else lines.line_of(frame.f_code, frame.f_lineno)


def calls_of(code: CodeType) -> int:
    """Counts the calls of a code object on the current stack, to find out whether code runs inside it."""
    frame, count = inspect.currentframe(), 0
    while frame is not None:
        count += frame.f_code is code
        frame = frame.f_back
    return count


def is_of_user(error: BaseException) -> bool:
    """Tells whether the user's code raised an error, and not PyTorch or stepnet, which it called."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return is_users(codes[-1])


def line_of_error(error: BaseException) -> str:
    """Returns the user's innermost line that an error passed through, or else that of the current calls."""
    passed = [(frame.f_code, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    users = [(code, number) for code, number in passed if is_users(code)]
    return lines.line_of(*users[-1]) if users else line_of_call()
