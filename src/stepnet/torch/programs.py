"""Programs of torch.export and TorchScript as a `stepnet.Graph`, for `graph`: they have no Python code to
trace.

ExportedProgram            ->   the file that torch.export.save writes, read whole
ExportedProgram.module()   ->   exported again, for the example
ScriptModule               ->   converted to a program by PyTorch, for the example
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from warnings import catch_warnings

from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.errors import InputError
from stepnet.model.graph.graph import Graph
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
READER = "stepnet.layout.files.pickles.export_whole"
"""The reader of files of torch.export, which is imported by name, as files are of a later stage than
PyTorch.
"""
SAVE = "the module that it was made of, or the program of torch.export.export of that module"
ERRORS = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, AssertionError, NotImplementedError)
"""The errors that PyTorch's converter and torch.export raise."""


def is_program(model: Any) -> bool:
    """Tells whether a model is a program, which has no Python code: of torch.export, or of TorchScript."""
    made = any(kind.__module__.startswith("torch.export") for kind in type(model).__mro__)
    return made or isinstance(model, torch.jit.ScriptModule)


def program_graph(model: Any, arguments: Any, axes: Any, lengths: Any) -> Graph:
    """Makes the graph of a program of torch.export or TorchScript (`model`), by writing it to a temporary
    file that stepnet reads. arguments: an example of the arguments of one call. axes: the axes of each, such
    as "NT". lengths: refused unless None.

    Raises `InputError` for `lengths`, and for a program that PyTorch cannot export.
    """
    if lengths is not None:
        raise InputError(
            "lengths= is for modules: torch.export has no packed sequences, so a program reads none"
        )
    title = type(model).__name__
    if isinstance(model, torch.jit.ScriptModule):
        model, title = converted(model, arguments, title), f"the {title}"
    elif not isinstance(model, torch.export.ExportedProgram):
        model, title = exported(model, arguments, title), "the program's module"
    else:
        title = "the program"
    with IMPORTS:
        reader = import_module(READER)
    with TemporaryDirectory() as folder:
        path = Path(folder, "program.pt2")
        torch.export.save(model, path)
        return reader.graph(path, axes=axes, title=title)


def exported(module: Any, example: Any, title: str) -> Any:
    """Exports a module that torch.export made, again, for an example call; raises `InputError` if PyTorch
    cannot. title: the name of its class, for messages.
    """
    given, named = call_of(example)
    try:
        return torch.export.export(module, given, named)
    except ERRORS as error:
        raise InputError(
            f"torch.export cannot export this {title} for the example ({reason_of(error)}): "
            "give the ExportedProgram that it is of, or an example of the sizes that it was exported with"
        ) from error


def converted(module: Any, example: Any, title: str) -> Any:
    """Converts a module of TorchScript to a program, for an example call, by PyTorch's own converter; raises
    `InputError` if PyTorch cannot. title: the name of its class, for messages.
    """
    given, named = call_of(example)
    try:
        with catch_warnings(action="ignore"):  # of parts of PyTorch that the converter calls
            converter = pytorch("torch._export.converter").TS2EPConverter
            return converter(module, given, named).convert()
    except ERRORS as error:
        raise InputError(
            f"PyTorch cannot convert this {title} to a program ({reason_of(error)}): give {SAVE}"
        ) from error


def reason_of(error: Exception) -> str:
    """Returns the first line of an error of PyTorch, for messages; its class if it has none."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


def call_of(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the positional and named arguments of an example: a dict, a tuple, or a single one."""
    if isinstance(example, Mapping):
        return (), dict(cast("Mapping[str, Any]", example))
    given: tuple[Any, ...] = cast("Any", example) if type(example) is tuple else (example,)
    return given, {}
