"""bench/lines.py: lines by kind and folder at revisions of a repository, which it only reads."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bench import lines

MODULE = '''"""A module
of two lines."""

import os  # a comment behind code


def two(x):
    """One line."""
    # a comment
    text = """code of
    two lines"""
    return os, text + x


A = 1
"""The text of A."""
'''
LATER = "x = 1\n" * 2


def git(folder: Path, *words: str) -> str:
    """The output of git in a folder."""
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of two commits, of which the first is tagged `before`."""
    git(tmp_path, "init", "--quiet")
    files = {"src/stepnet/top.py": "", "src/stepnet/net/ir.py": MODULE, "tests/net/test_ir.py": LATER}
    for name, text in {**files, "src/stepnet/net/notes.txt": "no module\n", "other.py": "x = 1\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    git(tmp_path, "tag", "before")
    git(tmp_path, "mv", "src/stepnet/net", "src/stepnet/compiler")
    (tmp_path / "src/stepnet/top.py").write_text(LATER)
    git(tmp_path, "commit", "--quiet", "--all", "--message", "two")
    return tmp_path


def printed(repository: Path, *arguments: str) -> str:
    """The output of the command, after which the repository is as it was."""
    app = typer.Typer()
    app.command()(lines.main)
    result = CliRunner().invoke(app, [*arguments, "--repository", str(repository)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert git(repository, "status", "--porcelain", "--ignored") == ""
    return result.stdout


def test_lines_are_counted_by_kind():
    found = lines.counted(MODULE)
    assert found == lines.Counts(total=16, code=6, docstring=4, comment=1, tokens=20)
    assert found.tokens_per_line == 20 / 6
    assert lines.counted("") == lines.Counts()
    assert lines.counted("").tokens_per_line == 0
    assert lines.counted("x = (1,  # one\n     # two\n     'three')\n") == lines.Counts(3, 2, 0, 1, 7)


def test_one_revision_by_folder_and_as_a_whole(repository: Path):
    own, two = lines.counted(MODULE), lines.counted(LATER)
    found = lines.by_folder("HEAD", repository)
    assert found == {
        "src/stepnet": two,
        "src/stepnet/compiler": own,
        "tests/net": two,
        "all source": own + two,
        "all tests": two,
    }
    assert [*found] == ["src/stepnet", "src/stepnet/compiler", "tests/net", "all source", "all tests"]


def test_json_has_both_revisions(repository: Path):
    found: dict[str, Any] = json.loads(printed(repository, "before", "HEAD", "--json"))
    assert found["before"]["all source"] == {
        "total": 16,
        "code": 6,
        "docstring": 4,
        "comment": 1,
        "tokens": 20,
        "tokens_per_line": 20 / 6,
    }
    assert [found[revision]["all source"]["total"] for revision in ("before", "HEAD")] == [16, 18]
    assert [*json.loads(printed(repository, "--json"))] == ["HEAD"]


def test_the_table_sets_one_revision_beside_the_other(repository: Path):
    shown = printed(repository, "before", "HEAD")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines() if "|" in line]
    assert rows[0] == ["folder", "lines", "code", "docstring", "comment", "tokens per line"]
    by_name = {row[0]: row[1:] for row in rows[2:]}
    assert by_name["src/stepnet/net"] == ["16 -> -", "6 -> -", "4 -> -", "1 -> -", "3.33 -> -"]
    assert by_name["all source"] == ["16 -> 18", "6 -> 8", "4 -> 4", "1 -> 1", "3.33 -> 3.25"]
    assert [*by_name][-2:] == ["all source", "all tests"]


@pytest.mark.parametrize(
    ("revisions", "words"),
    [(["nothing"], "not a valid object name"), (["HEAD"] * 3, "one revision or two, not 3")],
)
def test_what_is_no_revision_is_refused(repository: Path, revisions: list[str], words: str):
    app = typer.Typer()
    app.command()(lines.main)
    result = CliRunner().invoke(app, [*revisions, "--repository", str(repository)])
    assert result.exit_code == 2
    assert words in result.output
