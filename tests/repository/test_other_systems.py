"""Tests are collected on systems that lack parts of Linux: files use these in functions alone, where a test
says what it lacks.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from doctest import DocTestParser
from pathlib import Path
from typing import Any, cast

import pytest
from linux_alone import PLACES, skip_libraries
from not_on_windows import MODULES, OS_NAMES

ROOT = Path(__file__).resolve().parents[2]
NAMES = {*(f"os.{name}" for name in OS_NAMES), *MODULES, "pty"}
MENTIONED = re.compile(rf"\b({'|'.join(sorted(name.rpartition('.')[2] for name in NAMES))})\b")
"""One of these names, without its module: a file that has none, as most have, need not be parsed."""
SCRIPTS = ("tests/processes", "tests/peers")
"""Files that tests run, and that pytest does not collect."""


@dataclass
class Item:
    """Stands for a test. path: its file. marks: the marks that were added to it."""

    path: Path
    marks: list[Any] = field(default_factory=list[Any])

    def add_marker(self, mark: Any) -> None:
        """Adds a mark."""
        self.marks.append(mark)


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yields what runs when a file is imported: all but the bodies of functions, and what asks before."""
    if isinstance(node, ast.IfExp | ast.BoolOp | ast.If | ast.Try):
        text = ast.unparse(node)
        if "hasattr(" in text or "except ImportError" in text or "'__main__'" in text:
            return
    yield node
    for name, value in ast.iter_fields(node):
        if isinstance(node, ast.FunctionDef | ast.Lambda) and name == "body":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from at_import(child)


def needed(code: str) -> set[str]:
    """The names that not all systems have and that a file uses when it is imported."""
    used = set[str]()
    for node in at_import(ast.parse(code)) if MENTIONED.search(code) else ():
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            used |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Attribute):
            used.add(ast.unparse(node))
    return used & NAMES


def test_what_a_file_needs_when_it_is_imported():
    assert needed("import resource\nfrom os import fork") == {"resource", "os.fork"}
    assert needed("@mark(os.geteuid() == 0)\ndef test():\n    import pty") == {"os.geteuid"}
    assert not needed("def f():\n    import fcntl\ntry:\n    import pwd\nexcept ImportError:\n    pwd = None")
    assert not needed("count = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 1")


BUILDING = re.compile(
    r"(^|[ .>])build\((?!.*target=)|\blibrary_of\(|example\(\"model_in_c\"\)\.main", re.MULTILINE
)
"""Code that builds a library for the processor at hand, or runs one."""


@pytest.mark.parametrize("system", ["win32", "darwin", "linux"])
def test_what_runs_libraries_for_c_is_skipped_elsewhere_than_on_linux(system: str):
    others = "docs/arrow.md", "tests/model/test_cells.py"
    items = [
        Item(ROOT / f"{place}test.py" if place.endswith("/") else ROOT / place)
        for place in (*PLACES, *others)
    ]
    skip_libraries(cast("Any", items), system)
    assert [len(item.marks) for item in items] == [int(system != "linux")] * len(PLACES) + [0, 0]


def test_each_test_that_runs_a_library_for_c_is_skipped_where_none_runs():
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    for file in files:
        text = file.read_text("utf-8")
        if file.suffix == ".md":
            text = "\n".join(each.source for each in DocTestParser().get_examples(text))
        is_named = file.relative_to(ROOT).as_posix().startswith(PLACES)
        if "stepnet.build" in text and BUILDING.search(text):
            assert is_named or "skip_elsewhere()" in text, file


def test_make_asks_for_programs_where_each_system_has_them():
    paths = re.findall(r"\S*bin/\w+", (ROOT / "Makefile").read_text("utf-8"))
    assert not paths


def test_commands_for_pip_have_quotes_that_each_shell_takes():
    """Single quotes are letters to Windows, and zsh reads brackets without quotes as names of files."""
    texts = {
        path: path.read_text("utf-8")
        for folder in ("src", "docs")
        for path in (ROOT / folder).rglob("*.[pm][yd]")
    }
    wrong = re.compile(r"pip install (?:-\S+ )*(?:'|\w+[\[<>])")
    assert not {path: found for path, text in texts.items() if (found := wrong.findall(text))}


def test_files_are_imported_on_all_systems():
    paths = [
        path.relative_to(ROOT) for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py")
    ]
    paths = [path for path in paths if not any(path.is_relative_to(script) for script in SCRIPTS)]
    assert len(paths) > 500
    lacking = {path.as_posix(): needed((ROOT / path).read_text("utf-8")) for path in paths}
    assert not {path: names for path, names in lacking.items() if names}
