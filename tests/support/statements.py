"""The statements of a Python text, without the expressions in them, which are most of its nodes."""

import ast
from collections.abc import Iterator

BLOCKS = "body", "orelse", "finalbody", "handlers", "cases"


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields all statements below a module or statement, with handlers of exceptions and cases of `match`.

    >>> [type(each).__name__ for each in statements(ast.parse("if a:\\n    import b\\nelse:\\n    c = d"))]
    ['If', 'Import', 'Assign']
    """
    for name in BLOCKS:
        for each in getattr(tree, name, ()):
            yield each
            yield from statements(each)
