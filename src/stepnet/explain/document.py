"""An explanation as a value: titled sections of lines, tables and further sections.

    refusals = DocumentTable((("llvm", "refuses: no machine code for sort"), ("onednn", "chosen")))
    TitledSection("engine: onednn", (refusals,))

Other modules make such values from what they explain; `text.py` prints them.
"""

from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class OperationLine:
    """Line of an explanation for one operation.

    gives: the names of the values that it computes. text: its expression. type: the types of the values.
    """

    gives: tuple[str, ...]
    text: str
    type: str


@dataclass(frozen=True)
class DocumentTable:
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
class TitledSection:
    """Section of an explanation: a title and the items below it, which are indented if there is a title."""

    title: str
    items: tuple["str | OperationLine | DocumentTable | TitledSection", ...] = ()


Item = str | OperationLine | DocumentTable | TitledSection
"""A line of text (an empty one is a gap), an operation, a table or a section."""


def headed(title: str, sections: list[TitledSection]) -> list[TitledSection]:
    """Puts a title above the first of some sections, at least one, such as a layer's name."""
    first, *others = sections
    return [TitledSection("", (title, first)), *others]
