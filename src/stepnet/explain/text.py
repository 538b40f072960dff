"""Formats explanations as text: items are indented below their section's title, with gaps in between."""

from collections.abc import Iterable, Iterator
from textwrap import wrap

from stepnet.explain.document import DocumentTable, Item, OperationLine, TitledSection

WIDTH = 100
"""The column at which the types of operations end."""
WRAPPED = 86
"""The longest line of wrapped text."""


def text(sections: Iterable[TitledSection]) -> str:
    """Formats the sections of an explanation as text, with an empty line between them.

    >>> engines = DocumentTable((("llvm", "chosen"), ("onednn", "runs it if asked for")))
    >>> print(text([TitledSection("engines", (engines,))]))
    engines
      llvm    chosen
      onednn  runs it if asked for
    """
    return "\n\n".join("\n".join(lines(section)) for section in sections)


def lines(item: Item, indent: str = "") -> Iterator[str]:
    """Yields the lines of text of an item of an explanation, each after `indent`; lines of a section are
    indented below its title.
    """
    match item:
        case str():
            yield from (f"{indent}{line}".rstrip() for line in item.splitlines() or [""])
        case OperationLine():
            yield from line_of_types(item, indent)
        case DocumentTable():
            yield from table_lines(item, indent)
        case TitledSection():
            yield from lines(item.title, indent) if item.title else ()
            for inner_item in item.items:
                yield from lines(inner_item, f"{indent}  " if item.title else indent)


def line_of_types(line: OperationLine, indent: str) -> Iterator[str]:
    """Yields an operation's lines, "values = expression", each after `indent`, with types at the end."""
    *all_but_last, last = wrapped(f"{indent}{', '.join(line.gives)} = ", line.text)
    yield from all_but_last
    yield f"{last}{' ' * max(2, WIDTH - len(last) - len(line.type))}{line.type}"


def table_lines(table: DocumentTable, indent: str) -> Iterator[str]:
    """Yields the lines of text of a table, each after `indent`, with aligned columns."""
    if not table.rows:
        return
    columns = table.columns or ("<",) * (len(table.rows[0]) - 1)
    widest = [max(map(len, cells)) for cells in zip(*table.rows, strict=True)]
    for *ahead, last in table.rows:
        head = indent + "".join(map(padded, ahead, columns, widest))
        yield from wrapped(head, last) if table.wraps else [f"{head}{last}".rstrip()]


def padded(cell: str, column: str, widest: int) -> str:
    """Pads a table's cell to the format of its column, such as "<11"; "<" and ">" are as wide as `widest`."""
    return f"{cell:{column}{widest}}  " if column in ("<", ">") else f"{cell:{column}} "


def wrapped(head: str, text: str) -> list[str]:
    """Wraps a text into lines, the first after `head` and the others indented; no text gives `head`."""
    return wrap(text, WRAPPED, initial_indent=head, subsequent_indent=" " * len(head)) or [head]


# ---- numbers -----------------------------------------------------------------------------------------------


def amount(count: int, unit: str) -> str:
    """Formats a number of flops or bytes with three digits and a prefix of its unit.

    >>> amount(640, "flop"), amount(24_576, "B")
    ('640 flop', '24.6 kB')
    """
    value, prefix = float(count), ""
    for larger in ("k", "M", "G", "T"):
        if value < 999.95:
            break
        value, prefix = value / 1000, larger
    return f"{value:.1f} {prefix}{unit}" if prefix else f"{count} {unit}"
