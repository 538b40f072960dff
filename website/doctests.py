"""Examples in docstrings as code: a paragraph that begins with `>>>` becomes a fenced block.

Markdown takes `>>>` for three quotations. In the source an example stands as doctest wants it, without a
fence; this extension of griffe, which reads docstrings for mkdocstrings, adds the fence.
"""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^([ ]*)>>> .*\n?(?:[ ]*\S.*\n?)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Fences the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes the docstring of an object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with its examples in fences."""
    return EXAMPLE.sub(lambda match: fence(match[0], match[1]), text)


def fence(example: str, indent: str) -> str:
    """One example in a fence."""
    return f"{indent}```pycon\n{example.rstrip()}\n{indent}```\n"
