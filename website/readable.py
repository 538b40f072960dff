"""Changes to griffe's reading of the package, which mkdocstrings makes pages of.

Examples become fenced blocks of code: Markdown takes `>>>` for three quotations, and in the source an example
stands as doctest wants it, without a fence. The annotation `Any` is left out: it says nothing to a reader.
"""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^([ ]*)>>> .*\n?(?:[ ]*\S.*\n?)*", re.MULTILINE)


class Readable(griffe.Extension):
    """Fences the examples of every docstring, and leaves `Any` out."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Changes the parameters of a function that was read."""
        for parameter in func.parameters:
            if str(parameter.annotation) == "Any":
                parameter.annotation = None

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes the docstring of whatever was read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with its examples in fences."""
    return EXAMPLE.sub(lambda match: fence(match[0], match[1]), text)


def fence(example: str, indent: str) -> str:
    """One example in a fence."""
    return f"{indent}```pycon\n{example.rstrip()}\n{indent}```\n"
