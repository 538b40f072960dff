"""Content of an explanation, apart from its format: titled sections of lines, tables and further sections."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """Line for one operation: the names of its values, its expression, and the types of its values."""

    gives: tuple[str, ...]
    text: str
    type: str


@dataclass(frozen=True)
class Table:
    """Table of cells of text.

    columns: the format of each column but the last one, as `format` has it: "<11" or ">8". "<" and ">" alone
    are as wide as the widest cell. Without columns, all are "<".
    wraps: whether the last cell of a row goes on in further lines where it is too long for the page.
    """

    rows: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...] = ()
    wraps: bool = False


FACTS = ("<11",)
"""The columns of names and facts, as wide in all explanations."""


@dataclass(frozen=True)
class Section:
    """Section of an explanation: a title and the items below it. Without a title the items are listed as they
    are.
    """

    title: str
    items: tuple["str | Line | Table | Section", ...] = ()


Item = str | Line | Table | Section
"""Item of a section: a line of text (an empty one is a gap), an operation, a table or a further section."""


def headed(title: str, sections: list[Section]) -> list[Section]:
    """Puts a title above the first of some sections, as a layer's name above its plan."""
    first, *others = sections
    return [Section("", (title, first)), *others]
