"""Docstrings start with the thing they describe, or with a verb for the work of a function."""

import ast
import re
from pathlib import Path

from statements import statements

ROOT = Path(__file__).parents[2]
FOLDERS = "src", "tests", "bench", "examples", "website"
WORDS = "What|Those|How|Which|Whether"
INDIRECT = re.compile(rf"\s*({WORDS})\b")
"""Beginnings that only point at the thing: "What a call gives" is "The results of a call"."""
SUSPECT = re.compile(rf"""["'](\s|\\\n)*({WORDS})\b""")
"""A quote and such a beginning: a text without it, as most are, need not be parsed."""


def indirect(text: str) -> list[int]:
    """The lines of the docstrings that begin so, those of attributes and constants included."""
    if not SUSPECT.search(text):
        return []
    found = list[int]()
    for each in statements(ast.parse(text)):
        match each:
            case ast.Expr(ast.Constant(str() as words)) if INDIRECT.match(words):
                found.append(each.lineno)
            case _:
                pass
    return sorted(found)


def test_docstrings_name_the_thing_first():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in indirect(path.read_text("utf-8"))
    ]
    assert found == []


def test_the_docstrings_that_are_found():
    text = '"""What it is."""\nA = 1\n"""Those of A."""\ndef f():\n    """Whatever comes."""\n    "How"\n'
    assert indirect(text) == [1, 3, 6]
