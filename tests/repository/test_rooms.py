"""Names of classes and entries of folders: each says at once which of a kind is meant."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from statements import statements

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "stepnet"

# The classes that share a name, by their modules, and why.
SHARED = {
    "Accelerated": ("keras.accelerate torch.accelerate", "the same function of two frameworks gives it"),
    "Bidirectional": ("keras.layers model.compose", "keras.layers.Bidirectional has this name"),
    "GRU": ("keras.layers torch.layers", "keras.layers.GRU and torch.nn.GRU have this name"),
    "GatherLoop": (
        "compiler.targets.cpu.lower.loops compiler.targets.frame.program",
        "the same loop of two targets",
    ),
    "LSTM": ("keras.layers torch.layers", "keras.layers.LSTM and torch.nn.LSTM have this name"),
    "Progress": ("arrow.folders.running compiler.native.watching", "callbacks of users get both"),
    "RNN": ("keras.layers model.recurrence torch.layers", "keras.layers.RNN and torch.nn.RNN have this name"),
    "Report": ("keras.report layout.report", "users print both"),
}

CLASS = re.compile(r"^\s*class ([A-Za-z]\w*)", re.MULTILINE)
"""A line that seems to begin a class: it may stand in a docstring, too."""

MOST_ENTRIES = 19
"""The most entries of the package at its top, `__init__.py`, `__main__.py` and `py.typed` aside."""


def texts() -> dict[str, str]:
    """The texts of public modules, by the names of these."""
    found = dict[str, str]()
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if not any(part.startswith("_") and part != "__init__" for part in parts):
            found[".".join(parts)] = path.read_text(encoding="utf-8")
    return found


def repeated_classes() -> Iterator[tuple[str, str]]:
    """The name and the module of each public class in the modules with a name that seems to be there twice,
    wherever in its module the class is defined.
    """
    every = texts()
    names = {module: CLASS.findall(text) for module, text in every.items()}
    counts = Counter(name for found in names.values() for name in found)
    for module, found in names.items():
        tree = ast.parse(every[module] if any(counts[name] > 1 for name in found) else "")
        for node in statements(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, module


def test_no_two_public_classes_have_one_name():
    modules = defaultdict[str, list[str]](list)
    for name, module in repeated_classes():
        modules[name].append(module)
    shared = {name: " ".join(found) for name, found in modules.items() if len(found) > 1}
    assert shared == {name: where for name, (where, _) in SHARED.items()}


def test_the_package_has_few_entries():
    aside = {"__init__.py", "__main__.py", "py.typed", "__pycache__"}
    entries = {path.name for path in PACKAGE.iterdir()} - aside
    assert len(entries) <= MOST_ENTRIES, sorted(entries)
