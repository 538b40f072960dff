"""The documentation agrees with the code: lists written by hand, and pages made from other files.

The examples of all pages are tests of their own, which pytest collects from README.md and docs.
"""

import re
from pathlib import Path
from types import ModuleType

import pytest
import site_pages

import stepnet as sn
from stepnet.cli.commands import app
from stepnet.compiler.plan import PIPELINE
from stepnet.compiler.trace import functions

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = (ROOT / "mkdocs.yml").read_text("utf-8")
IMPORTED = [name for name in sn.__all__ if not name.startswith("_")]


def section(page: str, heading: str) -> str:
    """The text of a page under a heading, up to the next one of its depth."""
    text = (DOCS / page).read_text("utf-8")
    return re.split(r"^## ", text.partition(f"\n## {heading}\n")[2], flags=re.MULTILINE)[0]


def test_the_passes_are_listed_in_the_order_they_run():
    listed = re.findall(r"^\d+\. `(\w+)`:", section("design/passes.md", "The passes"), flags=re.MULTILINE)
    assert listed == [one.__name__ for one in PIPELINE]


def test_every_file_of_passes_is_on_their_page():
    page = section("design/passes.md", "The passes")
    names = {path.stem for path in (ROOT / "src/stepnet/compiler/plan/passes").glob("*.py")} - {"__init__"}
    assert [name for name in sorted(names) if f"`{name}`" not in page and f"`{name}.py`" not in page] == []


def test_the_page_of_caches_has_every_module_with_one():
    """Caches of a limited number of entries are dictionaries that two functions of `once.py` add to."""
    page, folder = (DOCS / "design" / "caches.md").read_text("utf-8"), ROOT / "src" / "stepnet"
    names = {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*.py")}
    owners = {name for name, text in names.items() if re.search(r"\b(put_latest|entry_of)\(", text)}
    missing = {name for name in owners if f"`{name}`" not in page}
    assert missing == {"compiler/values/once.py"}


@pytest.mark.parametrize(
    "page", [ROOT / "CONTRIBUTING.md", DOCS / "design.md", *sorted((DOCS / "design").glob("*.md"))]
)
def test_files_and_folders_that_a_page_names_are_there(page: Path):
    """A name may leave out the folders above it, as in `cpu/engine.py`."""
    folders = [
        ROOT / name for name in ("src/stepnet", "docs", "tests", "bench", "release", "website", "typings")
    ]
    there = {ROOT / "src", *folders, *(path for folder in folders for path in folder.rglob("*"))}
    known = {f"/{path.relative_to(ROOT)}" for path in there}
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    named = re.findall(r"`((?:[\w.]+/)+|(?:[\w.]+/)*\w+\.py)(?::[^`]*)?`", text)
    missing = [name for name in named if not any(path.endswith(f"/{name.strip('/')}") for path in known)]
    assert missing == []


def test_every_public_name_is_in_the_reference():
    pages = "\n".join(page.read_text("utf-8") for page in sorted((DOCS / "reference").glob("*.md")))
    shown = re.findall(r"^::: ([\w.]+)$", pages, flags=re.MULTILINE)
    for name in IMPORTED:
        thing = getattr(sn, name)
        home = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
        names = {f"stepnet.{name}", home, f"{home}.{name}"}
        inside = (f"stepnet.{name}.", *([f"{home}."] if isinstance(thing, ModuleType) else []))
        assert any(one in names or one.startswith(inside) for one in shown), name


def test_what_the_reference_shows_is_no_module_of_the_same_name():
    """The site reads files: `stepnet.model.generation.generate` is the module, and the function is in it."""
    pages = "\n".join(page.read_text("utf-8") for page in sorted((DOCS / "reference").glob("*.md")))
    shown = re.findall(r"^::: ([\w.]+)$", pages, flags=re.MULTILINE)
    paths = {one: ROOT / "src" / one.replace(".", "/") for one in shown}
    modules = [one for one, path in paths.items() if path.with_suffix(".py").exists() or path.is_dir()]
    assert {one for one in modules if not one.startswith("stepnet.cells.")} == {
        "stepnet.errors",
        "stepnet.model.masks",
        "stepnet.compiler.trace.functions",
    }


def test_every_family_of_cells_is_in_the_reference():
    page = (DOCS / "reference" / "cells.md").read_text("utf-8")
    shown = set(re.findall(r"^::: stepnet\.cells\.(\w+)$", page, flags=re.MULTILINE))
    assert shown == {"gated", "forms", *(form.family for form in sn.cells.FORMS.values())}


def test_every_cell_is_in_the_table_of_the_guide():
    rows = re.findall(r"^\| `(\w+)` \|", section("cells.md", "All cells"), flags=re.MULTILINE)
    assert sorted(rows) == sorted(sn.cells.FORMS)


def test_every_function_for_steps_is_in_the_reference():
    page = (DOCS / "reference" / "functions.md").read_text("utf-8")
    (listed,) = re.findall(
        r"^::: stepnet\.compiler\.trace\.functions$.*?members: \[(.*?)\]", page, flags=re.M | re.S
    )
    there = {name for name in IMPORTED if hasattr(functions, name)}
    assert set(listed.split(", ")) == there


@pytest.mark.parametrize("page", sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")))
def test_every_page_is_in_the_navigation(page: str):
    assert f": {page}\n" in SITE or f"- {page}\n" in SITE


def test_every_page_of_the_navigation_is_there():
    for page in re.findall(r"(?:: |- )([\w/]+\.md)$", SITE, flags=re.MULTILINE):
        assert (DOCS / page).exists() or page in site_pages.PAGES, page


def test_the_home_page_is_the_readme_with_links_beside_it():
    text = site_pages.home()
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert "getting_started.md" in links
    for link in links:
        assert (DOCS / link.partition("#")[0]).exists(), link


def test_the_page_of_commands_has_every_command_once():
    text = site_pages.commands()
    headings = re.findall(r"^## `stepnet ([a-z]+)`$", text, flags=re.MULTILINE)
    assert headings == [one.name or one.callback.__name__ for one in app.registered_commands if one.callback]
    assert all(f"- [`stepnet {name}`](#stepnet-{name}): " in text for name in headings)
    assert "`--verify`" in text


@pytest.mark.parametrize(
    ("text", "linked"),
    [
        ("`sn.reduce(x, how)` and", "[`sn.reduce(x, how)`][stepnet.model.nested.reduce] and"),
        ("`sn.RNN.stream`", "[`sn.RNN.stream`][stepnet.RNN]"),
        ("`sn.other`", "`sn.other`"),
        ("[`sn.RNN`](x.md)", "[`sn.RNN`](x.md)"),
        ("## `sn.RNN`\n`sn.RNN`", "## `sn.RNN`\n[`sn.RNN`][stepnet.RNN]"),
        ("```\n`sn.RNN`\n```\n`sn.RNN`", "```\n`sn.RNN`\n```\n[`sn.RNN`][stepnet.RNN]"),
    ],
)
def test_names_of_the_package_are_links_but_not_in_examples_headings_and_links(text: str, linked: str):
    names = {"stepnet.reduce": "stepnet.model.nested.reduce", "stepnet.RNN": "stepnet.RNN"}
    assert site_pages.with_links(text, names) == linked
