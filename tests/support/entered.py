"""The functions that a call enters, by which tests tell how it runs."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any


def entered(call: Callable[..., Any], *arguments: Any) -> tuple[Any, set[str]]:
    """Returns the result of a call and the functions of Python that it enters: each file, and each file with
    the name of the function in it.
    """
    names = set[str]()

    def enter(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            file = Path(frame.f_code.co_filename).name
            names.update((file, f"{file} {frame.f_code.co_name}"))

    sys.setprofile(enter)
    try:
        made = call(*arguments)
    finally:
        sys.setprofile(None)
    return made, names
