"""The imports that are allowed: stages in order, from an import of nothing to the command line.

A module imports from its own stage and from those above it in the table, never from one below, and nowhere
is there a circle. Imports in functions and those for types alone are arrows like all others.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from statements import statements

SOURCE = Path(__file__).resolve().parents[2] / "src"
PACKAGE = "stepnet"

# A stage's modules, and folders with all that is in them; a module of a folder may be named in another stage.
STAGES = {
    "values": "errors compiler compiler.values",
    "ragged": "ragged",
    "disk": "compiler.disk",
    "native": "compiler.native",
    "net": "compiler.net",
    "trace": "compiler.trace",
    "meaning": "layout.options layout.semantics layout.equations",
    "plan": "compiler.plan",
    "grad": "compiler.grad",
    "engines": "compiler.targets",
    "plans explained": """
        explain.document explain.text explain.expressions explain.value_names explain.part_names explain.facts
        explain.plan explain.costs explain.bars explain.progress
    """,
    "containers": "layout.files.safetensors layout.files.jsons layout.files.store layout.files.paths",
    "rnn": "model explain.layers explain.gradients",
    "cells": "cells",
    "importers": "importers",
    "graph": "model.graph explain.graph explain.svg explain.integers",
    "torch": "torch",
    "jax": "jax",
    "layout": "layout",
    "keras": "keras",
    "onednn": "onednn",
    "cuda": "cuda",
    "files": "layout.files",
    "onnx": "onnx paddle",
    "model file": "model.file model.loading model.sides model.verdict model.stored",
    "whole": "__init__",
    "arrow": "arrow",
    "ray": "ray",
    "build": "build",
    "report": "explain cli.report cli.demo",
    "cli": "cli __main__",
}

# What imports inside functions: each command what it needs, so that all of them start at once; and LLVM is
# loaded where an engine is asked for, by one thread and between two forks. Few processes generate symbols
# or have streams, and few steps use what is no operation.
LATE = {
    *(f"cli.{name}" for name in ("build", "commands", "conversion", "description", "installation")),
    *("build.device_builds", "cli.models", "cli.options", "cli.run", "cli.writing"),
    *(
        "compiler.targets.engines",
        "compiler.targets.cpu.machine.processor",
        "compiler.trace.traced",
        "compiler.values.entry_points",
    ),
    *("compiler.targets.assignment", "compiler.targets.cpu.engine", "model.control"),
    *("model.stored.kept", "model.stored.replay"),
    *(
        "explain.progress",
        "model.generation.beams",
        "model.generation.generate",
        "model.loading",
        "onnx.kept",
    ),
    *(
        "model.batch",
        "model.combination",
        "model.compose",
        "model.gradients.explained",
        "model.gradients.strategy",
    ),
    *(
        "model.graph.graph",
        "model.graph.integers",
        "model.model",
        "model.nets",
        "model.reading",
        "model.ready",
        "model.recurrence",
    ),
    *("model.streams.prepared", "model.streams.stream"),
}

# What front ends import of the compiler and of models: some names of a module, or all of it or of a folder.
# They take a model, check arguments and trace; gradients and calls are those of
# `model.gradients.differentiable`.
SHOWN = {
    "compiler.values": "",
    "compiler.trace": "",
    "compiler.net.types": "",
    "compiler.net.extensions": "Extension",
    "compiler.net.windows": "",
    "compiler.targets": "Order checked_engine devices_of",
    "model.gradients.differentiable": "",
    "model.graph.dtypes": "check_dtypes",
    "model.graph.graph": "Graph",
    "model.layers": "Layer",
    "model.model": "Model",
    "model.gradients.pieces": "Checkpoint checked_checkpoint checked_saved",
    "model.program": "Asked",
    "model.recurrence": "RNN",
}
# And one front end alone, for functions that its users call in steps, for files, workers and libraries.
SHOWN_TO = {
    "torch": {  # its tensors may lie on the device of a target
        "compiler.net.tolerance": "tolerance",
        "compiler.targets": "AddressEngine Order RunOn checked_engine devices_of engine_at",
        "model.forms": "FormedCall call_at formed_call",
        "model.gradients.addressed": "OneArray",
        "model.precisions": "with_rounded_weights",
    },
    "jax": {"model.batch": "checked_lengths"},
    "keras": {},
    "arrow": {"model.file": "FileModel read_model", "model.model": "Model checked_model"},
    "ray": {"compiler.targets.threads": "set_threads threads threads_set"},
    "build": {  # it writes as files what a target gives
        "compiler.targets": "Order library_engine",
        "compiler.targets.frame": "BuiltSource DEVICES FrameProgram FrameSizes ModelStep "
        "built_device built_source",
        "model.model": "Model checked_model",
        "model.streams.composed": "stream_refusal",
        "model.streams.frames": "step_of_call with_names",
        "compiler.targets.library": "ArrayArgument ArrayText CODES CallSpecification Description ERRORS "
        "steps_function",
    },
}


@cache
def modules() -> dict[str, Path]:
    """Every module by its name without the package's; the package itself is `__init__`."""
    found: dict[str, Path] = {}
    for path in sorted((SOURCE / PACKAGE).rglob("*.py")):
        parts = path.relative_to(SOURCE / PACKAGE).with_suffix("").parts
        name = parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts
        found[".".join(name)] = path
    return found


def imported(tree: ast.AST, known: Mapping[str, object]) -> Iterator[str]:
    """The modules that a text imports, wherever in it that stands."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: an import is written in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first == PACKAGE:
                whole = rest or "__init__"
                yield whole if whole in known else whole.rpartition(".")[0] or "__init__"


def names_imported(tree: ast.AST, known: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The names that a text imports from the package, each with its module; "" for a module itself."""
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom):
            module = (node.module or "").removeprefix(f"{PACKAGE}.")
            for name in (alias.name for alias in node.names):
                yield (f"{module}.{name}", "") if f"{module}.{name}" in known else (module, name)


def is_shown(module: str, name: str, shown: Mapping[str, str]) -> bool:
    """Returns whether a table shows a name of a module: alone, or with all of the module or of a folder."""
    parts = module.split(".")
    above = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return name in shown.get(module, "").split() or any(shown.get(part) == "" for part in above)


@cache
def tree(path: Path) -> ast.Module:
    """The text of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def arrows() -> dict[str, set[str]]:
    """The imports of each module from the package."""
    known = modules()
    return {name: set(imported(tree(path), known)) - {name} for name, path in known.items()}


def stage_of(module: str) -> int:
    """The place of a module's stage: that of the longest name in the table which it is or lies in."""
    places = {name: place for place, names in enumerate(STAGES.values()) for name in names.split()}
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in places:
            return places[".".join(parts[:length])]
    raise AssertionError(f"{module} is in no stage: give it its place in STAGES")


def upward(graph: Mapping[str, set[str]]) -> list[str]:
    """The arrows that run to a later stage."""
    names = list(STAGES)
    return [
        f"{module} ({names[stage_of(module)]}) imports {other} ({names[stage_of(other)]})"
        for module, others in graph.items()
        for other in sorted(others)
        if stage_of(other) > stage_of(module)
    ]


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """The modules of a circle, in its order; none where there is none.

    >>> circle({"a": {"b"}, "b": {"c"}, "c": {"b"}})
    ['b', 'c', 'b']
    """
    done: set[str] = set()

    def walked(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for other in sorted(graph.get(module, ())):
            if round_trip := walked(other, [*path, module]):
                return round_trip
        done.add(module)
        return []

    return next((round_trip for module in graph if (round_trip := walked(module, []))), [])


def test_imports_stand_at_the_top():
    known = modules()
    late = {
        name
        for name, path in known.items()
        for function in statements(tree(path))
        if isinstance(function, ast.FunctionDef) and list(imported(function, known))
    }
    assert late == LATE


def test_imports_at_first_use_are_between_two_forks():
    """A command imports before it starts threads, and an engine is made under `run_without_fork`."""
    for name in sorted(LATE):
        if not name.startswith(("cli.", "compiler.targets")):
            text = tree(modules()[name])
            guarded = {
                statement
                for block in statements(text)
                if isinstance(block, ast.With) and ast.unparse(block.items[0].context_expr) == "IMPORTS"
                for statement in block.body
            }
            inside = {
                statement
                for function in statements(text)
                if isinstance(function, ast.FunctionDef)
                for statement in statements(function)
                if isinstance(statement, ast.Import | ast.ImportFrom)
            }
            assert inside <= guarded, name


def test_every_name_of_a_stage_is_a_module():
    known = modules()
    assert [name for names in STAGES.values() for name in names.split() if name not in known] == []


def test_no_arrow_runs_up():
    assert upward(arrows()) == []


# What runs a stored call, from `sn.load` on, knows no net, no plan and no engine; models are imported late.
RUNNING = "compiler.values compiler.disk compiler.native errors model.ready"


def test_what_runs_a_stored_call_knows_nothing_that_makes_one():
    folders = RUNNING.split()
    known = {name: others for name, others in arrows().items() if name != "compiler.values.bfloat16"}
    inside = [name for name in known if any(name == each or name.startswith(f"{each}.") for each in folders)]
    assert "model.ready" in inside
    outside = [(name, other) for name in inside for other in known[name] if other not in inside]
    assert [(name, other) for name, other in outside if other not in ("__init__", "model")] == []


def test_explanations_know_no_engine():
    engines = tuple(f"compiler.targets.{name}" for name in ("cpu", "onednn", "interpreter"))
    known = {name: others for name, others in arrows().items() if name.startswith("explain.")}
    assert known
    assert [(name, other) for name in known for other in known[name] if other.startswith(engines)] == []


def imports_of_front_end(front: str) -> set[tuple[str, str]]:
    """The names of the compiler and of models that a front end imports, each with its module."""
    known = modules()
    paths = [path for importer, path in known.items() if importer.split(".")[0] == front]
    every = {found for path in paths for found in names_imported(tree(path), known)}
    return {(module, name) for module, name in every if module.split(".")[0] in ("compiler", "model")}


@pytest.mark.parametrize("front", SHOWN_TO)
def test_front_ends_know_nothing_below_a_model(front: str):
    shown = SHOWN | SHOWN_TO[front]
    found = sorted(imports_of_front_end(front))
    assert [(module, name) for module, name in found if not is_shown(module, name, shown)] == []


def test_front_ends_import_all_that_is_shown():
    used = {front: imports_of_front_end(front) for front in SHOWN_TO}
    tables = [(SHOWN, set[tuple[str, str]]().union(*used.values()))]
    tables += [(SHOWN_TO[front], found) for front, found in used.items()]
    unused = [
        (shown, name)
        for table, found in tables
        for shown, names in table.items()
        for name in names.split() or [""]
        if not any(is_shown(module, own, {shown: name}) for module, own in found)
    ]
    assert unused == []


def test_there_is_no_circle():
    assert " -> ".join(circle(arrows())) == ""


def waits(known: Mapping[str, Path]) -> dict[str, set[str]]:
    """The modules for which the import of each one waits, if other threads import them.

    `from package import module` also waits for the package itself.
    """
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        top = ast.Module([node for node in tree(path).body if isinstance(node, ast.ImportFrom)], [])
        packages = {
            str(node.module).removeprefix(f"{PACKAGE}.")
            for node in statements(top)
            if isinstance(node, ast.ImportFrom)
        }
        found[name] = {*imported(top, known)} | packages.intersection(known) - {name}
    return found


def test_no_two_threads_that_import_wait_for_each_other():
    assert " -> ".join(circle(waits(modules()))) == ""


@pytest.mark.parametrize(
    "text", ["import stepnet.a", "from stepnet import a", "def f():\n    from stepnet.a import name"]
)
def test_every_way_to_import_is_an_arrow(text: str):
    assert list(imported(ast.parse(text), {"a": None, "__init__": None})) == ["a"]


def test_the_package_itself_is_an_arrow():
    assert list(imported(ast.parse("from stepnet import RNN"), {"__init__": None})) == ["__init__"]
