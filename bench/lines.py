"""Counts the lines of the source and of the tests, by folder, at one git revision or at two.

    python bench/lines.py                                         the current commit
    python bench/lines.py 10eb1b99 HEAD                           before and after
    python bench/lines.py 10eb1b99 HEAD --json

A line is code, part of a docstring, a comment, or blank; a line with code and a comment is code. Tokens are
those of `tokenize` in code: names, numbers, strings and operators. The files of a revision are read with
`git archive`, and nothing is written.
"""

import io
import json
import subprocess
import tarfile
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"src/stepnet": "all source", "tests": "all tests"}
"""The folders that are counted, and the names of their totals."""
LAYOUT = {
    tokenize.ENCODING,
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
"""Tokens that are not counted: ends of lines, and indentation."""
WIDTH = 140
"""The least width of a printed table, so that it is the same in a file."""


@dataclass(frozen=True)
class Counts:
    """The numbers of lines of some files, by kind, and of the tokens in their code."""

    total: int = 0
    code: int = 0
    docstring: int = 0
    comment: int = 0
    tokens: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        """Adds the numbers of other files."""
        pairs = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return Counts(*(one + more for one, more in pairs))

    @property
    def tokens_per_line(self) -> float:
        """The number of tokens per line of code; 0 if there is no code."""
        return self.tokens / self.code if self.code else 0.0


def counted(text: str) -> Counts:
    """Counts the lines and tokens of a module. A docstring is a statement that is only a string."""
    code, docstring, comment, tokens = set[int](), set[int](), set[int](), 0
    for statement in statements(text):
        words = [token for token in statement if token.type != tokenize.COMMENT]
        comment.update(token.start[0] for token in statement if token.type == tokenize.COMMENT)
        is_text = bool(words) and all(token.type == tokenize.STRING for token in words)
        for token in words:
            (docstring if is_text else code).update(range(token.start[0], token.end[0] + 1))
        tokens += 0 if is_text else len(words)
    return Counts(
        len(text.splitlines()), len(code), len(docstring - code), len(comment - code - docstring), tokens
    )


def statements(text: str) -> Iterator[list[tokenize.TokenInfo]]:
    """Yields the tokens of each logical line, with the comments before it."""
    statement = list[tokenize.TokenInfo]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            statement.append(token)
        elif token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            yield statement
            statement = []


def modules(revision: str, repository: Path) -> Iterator[tuple[str, str]]:
    """Yields the path and the text of each module at a revision; a usage error if git does not have it."""
    command = ["git", "archive", "--format=tar", revision, "--", *FOLDERS]
    done = subprocess.run(command, cwd=repository, capture_output=True, check=False)
    if done.returncode:
        raise typer.BadParameter(done.stderr.decode().strip())
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.name.endswith(".py") else None
            if stream is not None:
                yield member.name, stream.read().decode("utf-8")


def folder_of(path: str) -> tuple[str, str]:
    """Returns the folder of `FOLDERS` that a module is in, and the folder in there, which may be the same."""
    (root,) = (name for name in FOLDERS if path.startswith(f"{name}/"))
    first, *below = PurePosixPath(path).relative_to(root).parts
    return root, f"{root}/{first}" if below else root


def in_order(names: Iterable[str]) -> list[str]:
    """Sorts the names of folders. Totals come last."""
    return sorted(set(names), key=lambda name: (name in FOLDERS.values(), name))


def by_folder(revision: str, repository: Path = ROOT) -> dict[str, Counts]:
    """Counts each folder at a revision, and the source and the tests as a whole, in order of their names."""
    counts = defaultdict[str, Counts](Counts)
    for path, text in modules(revision, repository):
        (root, folder), own = folder_of(path), counted(text)
        for name in (folder, FOLDERS[root]):
            counts[name] += own
    return {name: counts[name] for name in in_order(counts)}


def table(found: Mapping[str, Mapping[str, Counts]]) -> Table:
    """Returns the table of all folders, with the numbers of one revision after the other in each column."""
    shown = Table(box=box.MARKDOWN, title=" -> ".join(found))
    shown.add_column("folder")
    for name in ("lines", "code", "docstring", "comment", "tokens per line"):
        shown.add_column(name, justify="right")
    for name in in_order(name for counts in found.values() for name in counts):
        cells = [texts(counts.get(name)) for counts in found.values()]
        shown.add_row(name, *(" -> ".join(column) for column in zip(*cells, strict=True)))
    return shown


def texts(counts: Counts | None) -> list[str]:
    """Formats the numbers of a folder; a dash for each if the revision does not have the folder."""
    if counts is None:
        return ["-"] * 5
    lines = counts.total, counts.code, counts.docstring, counts.comment
    return [*(f"{number:,}" for number in lines), f"{counts.tokens_per_line:.2f}"]


def main(
    revisions: Annotated[list[str] | None, typer.Argument(help="One or two; HEAD if there is none.")] = None,
    repository: Annotated[Path, typer.Option(help="The folder of the repository.")] = ROOT,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Count lines by folder at one git revision or at two, and print a table or JSON."""
    asked = revisions or ["HEAD"]
    if len(asked) > 2:
        raise typer.BadParameter(f"one revision or two, not {len(asked)}")
    found = {revision: by_folder(revision, repository) for revision in asked}
    if as_json:
        rows = {
            revision: {
                name: {**asdict(one), "tokens_per_line": one.tokens_per_line} for name, one in counts.items()
            }
            for revision, counts in found.items()
        }
        typer.echo(json.dumps(rows, indent=1))
    else:
        Console(width=max(WIDTH, Console().width)).print(table(found))


if __name__ == "__main__":
    typer.run(main)
