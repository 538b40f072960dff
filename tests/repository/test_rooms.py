"""Names of classes and entries of folders: each says at once which of a kind is meant."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "stepnet"

# The classes that share a name, by their modules, and why.
SHARED = {
    "Accelerated": ("keras.accelerate torch.accelerate", "the same function of two frameworks gives it"),
    "Bidirectional": ("keras.layers model.compose", "keras.layers.Bidirectional has this name"),
    "GRU": ("keras.layers torch.layers", "keras.layers.GRU and torch.nn.GRU have this name"),
    "LSTM": ("keras.layers torch.layers", "keras.layers.LSTM and torch.nn.LSTM have this name"),
    "Progress": ("arrow.folders.running compiler.targets.watching", "callbacks of users get both"),
    "RNN": ("keras.layers model.recurrence torch.layers", "keras.layers.RNN and torch.nn.RNN have this name"),
    "Report": ("keras.report layout.report", "users print both"),
}

MOST_ENTRIES = 18
"""The most entries of the package at its top, `__init__.py`, `__main__.py` and `py.typed` aside."""


def public_classes() -> Iterator[tuple[str, str]]:
    """The name and the module of each public class, wherever in its module it is defined."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if any(part.startswith("_") and part != "__init__" for part in parts):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, ".".join(parts)


def test_no_two_public_classes_have_one_name():
    modules = defaultdict[str, list[str]](list)
    for name, module in public_classes():
        modules[name].append(module)
    shared = {name: " ".join(found) for name, found in modules.items() if len(found) > 1}
    assert shared == {name: where for name, (where, _) in SHARED.items()}


def test_the_package_has_few_entries():
    aside = {"__init__.py", "__main__.py", "py.typed", "__pycache__"}
    entries = {path.name for path in PACKAGE.iterdir()} - aside
    assert len(entries) <= MOST_ENTRIES, sorted(entries)
