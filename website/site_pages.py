"""The pages of the site that are not files in `docs`: README, CHANGELOG, CONTRIBUTING and the command line.

MkDocs loads this as a hook (mkdocs.yml). What makes the pages needs no MkDocs, so that tests call it.
"""

import re
import subprocess
import sys
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
INTRODUCTION = """\
# The command line

Every command, as `stepnet COMMAND --help` prints it. Exit codes: 0 done; 1 wrong input or a conversion that
was refused, with one line on stderr; 2 wrong usage. With `--json` a command writes one JSON object to stdout
and nothing else.
"""


def home() -> str:
    """The home page, which is README."""
    return as_page("README.md")


def as_page(name: str) -> str:
    """The text of a file at the root of the repository; links to files in `docs` are links to pages."""
    return at_root(name).replace("](docs/", "](")


def at_root(name: str) -> str:
    """The text of a file at the root of the repository."""
    return (ROOT / name).read_text("utf-8")


def commands() -> str:
    """The page of the command line: what typer writes of each command, one heading for each."""
    options, _, sections = typer_page("stepnet", "stepnet.cli.commands").partition("\n## ")
    options, sections = options.partition("\n")[2].partition("**Commands**")[0], f"## {sections}"
    return "\n\n".join([INTRODUCTION, overview(sections), options, sections])


def overview(sections: str) -> str:
    """A list of links to sections, each with its first sentence."""
    found = re.findall(r"^## `([^`]+)`\n\n(.+?[.])(?:\s|$)", sections, flags=re.MULTILINE | re.DOTALL)
    lines = [f"- [`{name}`](#{name.replace(' ', '-')}): {' '.join(said.split())}" for name, said in found]
    return "\n".join(lines)


def typer_page(name: str, module: str) -> str:
    """A program's commands and options in Markdown, by typer's own command."""
    asked = [sys.executable, "-m", "typer", module, "utils", "docs", "--name", name]
    return subprocess.run(asked, check=True, capture_output=True, text=True, encoding="utf-8").stdout


PAGES = {
    "index.md": home,
    "contributing.md": partial(as_page, "CONTRIBUTING.md"),
    "changelog.md": partial(at_root, "CHANGELOG.md"),
    "reference/commands.md": commands,
}


def on_files(files: Any, config: Any) -> Any:
    """MkDocs' files, and the pages made here."""
    from mkdocs.structure.files import File

    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page with links to pages in place of links to files at the root of the repository, and with the names
    of the package as links to the reference.

    A page that is no part of a section has nothing to show in the navigation at its side.
    """
    if page.parent is None:
        page.meta["hide"] = ["navigation"]
    markdown = re.sub(
        r"\]\(\.\./((?:\.\./)*)([A-Z]+)\.md", lambda match: f"]({match[1]}{match[2].lower()}.md", markdown
    )
    markdown = markdown.replace("\n<BLANKLINE>\n", "\n\n")  # as doctest writes an empty line of output
    return with_links(markdown, reference())


@cache
def reference() -> dict[str, str]:
    """The names that the pages of the reference show: as a reader knows them, and as the site has them."""
    names: dict[str, str] = {}
    pages = "\n".join(page.read_text("utf-8") for page in sorted((ROOT / "docs" / "reference").glob("*.md")))
    for path, text in re.findall(r"^::: (\S+)\n((?:    .*\n)*)", pages, flags=re.MULTILINE):
        options = dict(re.findall(r"(\w+): (.+)", text))
        if options.get("show_root_heading") == "false":  # a module, of which its members are shown
            members = options.get("members", "[]").strip("[]").split(", ")
            names.update({f"{path}.{member}": f"{path}.{member}" for member in members})
        else:
            names[options.get("heading", path)] = path
    return names | {name.replace(".functions.", "."): path for name, path in names.items()}


def with_links(markdown: str, names: dict[str, str]) -> str:
    """Text in which code such as `sn.convert` is a link, but in examples, headings and other links."""

    def link(match: re.Match[str]) -> str:
        name = f"stepnet.{match[1]}"
        while name and name not in names:
            name = name.rpartition(".")[0]
        return f"[{match[0]}][{names[name]}]" if name else match[0]

    parts = re.split(r"(^```.*?^```$|^#[^\n]*$)", markdown, flags=re.MULTILINE | re.DOTALL)
    texts = (re.sub(r"(?<!\[)`sn\.([\w.]+)(?:\([^`]*)?`", link, text) for text in parts[::2])
    return "".join(part for pair in zip_longest(texts, parts[1::2], fillvalue="") for part in pair)
