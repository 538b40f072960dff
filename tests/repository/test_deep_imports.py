"""Tests import what users import, or the face of a stage: fewer modules of the inside as time goes on.

A face is a package whose `__init__` names what tests and contributors need of it. Imports from deeper are
counted, each module once for each statement: all of them, and those in other rooms, of modules that the
folder of the test does not mirror. Both counts may only fall.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from statements import statements

ROOT = Path(__file__).parents[2]
DEEP, ELSEWHERE = 490, 153
"""The most imports of modules of the inside, and of those in other rooms: lower them with each that goes."""

# Besides `stepnet` and the modules in it, `stepnet.errors` and `stepnet.torch` for example.
FACES = """
    compiler.grad compiler.net compiler.plan compiler.plan.recognise compiler.targets
    compiler.targets.cpu compiler.targets.cuda compiler.targets.frame compiler.targets.onednn
    compiler.targets.frame.machine compiler.trace compiler.trace.functions compiler.values
    layout.files model.builder model.masks torch.ready
"""
SCRIPTS = ("data", "peers", "processes")
"""Folders of what runs by itself."""


def deep(text: str, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules of the inside that a text imports, once for each statement that does."""
    faces = {f"stepnet.{name}" for name in FACES.split()}
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            inside = (names & modules.keys()) - shown(node.module, modules) - faces
            found = inside | ({node.module} if names - inside - faces else set[str]())
        elif isinstance(node, ast.Import):
            found = {alias.name for alias in node.names}
        else:
            continue
        yield from sorted(name for name in found if re.match(r"stepnet\.\w+\.", name) and name not in faces)


def shown(package: str, modules: Mapping[str, Path]) -> set[str]:
    """The full names that a package shows, in its `__all__` or imported as themselves, of which some are
    those of its modules, too.
    """
    path, found = modules.get(package), set[str]()
    for node in statements(ast.parse(path.read_text("utf-8"))) if path is not None and path.exists() else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            found.update(ast.literal_eval(node.value))
        elif isinstance(node, ast.ImportFrom):
            found.update(alias.name for alias in node.names if alias.asname == alias.name)
    return {f"{package}.{name}" for name in found}


def modules() -> dict[str, Path]:
    """The paths of all modules of the package, by name."""
    paths = (ROOT / "src").rglob("*.py")
    names = {path: ".".join(path.relative_to(ROOT / "src").with_suffix("").parts) for path in paths}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def rooms(folder: tuple[str, ...]) -> tuple[str, ...]:
    """The beginnings of the names of modules that a folder of tests mirrors."""
    name = ".".join(folder)
    return f"stepnet.{name}.", *(["stepnet.compiler.targets.onednn."] if name == "onednn" else [])


def test_tests_import_fewer_modules_of_the_inside():
    known, counts, elsewhere = modules(), Counter[str](), Counter[str]()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        folder = path.relative_to(ROOT / "tests").parts[:-1]
        if not set(folder).intersection(SCRIPTS):
            found = [*deep(path.read_text(encoding="utf-8"), known)]
            counts.update(found)
            elsewhere.update(name for name in found if not f"{name}.".startswith(rooms(folder)))
    print(f"{counts.total()} imports of {len(counts)} modules of the inside: {counts.most_common(20)}")
    print(f"{elsewhere.total()} of them in other rooms: {elsewhere.most_common(20)}")
    assert counts.total() <= DEEP, counts.most_common()
    assert elsewhere.total() <= ELSEWHERE, elsewhere.most_common()


def test_what_is_deep():
    known = modules()
    text = """
import stepnet.torch
import stepnet.compiler.net.ir
from stepnet import RNN, arrow
from stepnet.errors import InputError
from stepnet.compiler.net import Net
from stepnet.arrow.folders import tables
from stepnet.compiler.net.ir import Net, Node
from stepnet.layout import record  # also the name of a module
from stepnet.layout.registry import record
from stepnet.model import masks
"""
    ir = "stepnet.compiler.net.ir"
    assert [*deep(text, known)] == [ir, "stepnet.arrow.folders.tables", ir, "stepnet.layout.registry"]


def test_every_face_says_what_it_shows():
    known = modules()
    packages = [name for name in FACES.split() if known[f"stepnet.{name}"].name == "__init__.py"]
    assert [name for name in packages if not shown(f"stepnet.{name}", known)] == []
