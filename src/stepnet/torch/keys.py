"""Keys, the texts by which graphs of PyTorch name recurrent modules.

"GRU 3 4 ..."           a layer or cell of torch.nn, by its sizes: every process has it
"9f3a...:train"         a `Recurrence` in training mode, as long as it lives in this process
"9f3a...#2"             a net of a `Scan`, likewise
"GRU 3 4 ...|onednn"    with the engines that run it, where the user chose them
"""

from functools import lru_cache
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from stepnet.compiler.targets import Order, checked_engine
from stepnet.errors import InputError
from stepnet.importers.aten.cells import CellSizes
from stepnet.model.program import Asked
from stepnet.torch.bound import DifferentiableLayers
from stepnet.torch.places import place_on
from stepnet.torch.sequences import MOST_KEPT

NETS = WeakValueDictionary[str, DifferentiableLayers]()
"""The nets of `Scan`s that a graph of PyTorch may name, by key; their modules keep them."""
MODULES = WeakValueDictionary[str, Any]()
"""Modules that a graph of PyTorch may name, by key; each has `runnable_in(training)` and `scanned`."""


NOT_HERE = (
    "a compiled or exported graph runs a stepnet.torch.{} that is not in this process: keep the module as "
    "long as its graph, and export in the process that runs the program"
)
OPERATORS = (
    ", or with PyTorch's own operators by program.run_decompositions(stepnet.torch.decompositions()); the "
    "layers and cells GRU, LSTM and RNN run anywhere"
)


@lru_cache(MOST_KEPT)
def runnable_of_sizes(sizes: CellSizes) -> DifferentiableLayers:
    """Returns the compiled layers or cell of torch.nn of these sizes; compiles them at first use."""
    return DifferentiableLayers.of(sizes.recurrences)


def registered(module: Any) -> str:
    """Gives a module a name, by which graphs of PyTorch find it as long as it lives; returns the name."""
    name = uuid4().hex
    MODULES[name] = module
    return name


def runnable_of(key: str) -> DifferentiableLayers:
    """Returns the compiled module that a key in a graph of PyTorch names. The key is the text of the sizes of
    a module of torch.nn, "name:train" or "name:eval" for a `Recurrence`, or "name#number" for the net of a
    `Scan`; engines after "|" are ignored.

    Raises `InputError` if this process does not have the `Recurrence` or the `Scan`.
    """
    if is_scan(key):
        name = key.partition("|")[0]
        if name not in NETS:
            raise InputError(NOT_HERE.format("Scan"))
        return NETS[name]
    if not may_change(key):
        return runnable_of_sizes(sizes_of_key(key))
    module, training = module_of(key)
    return module.runnable_in(training)


def sizes_of_key(key: str) -> CellSizes:
    """Returns the sizes of the layer or cell of torch.nn that a key names."""
    return CellSizes.of_key(key.partition("|")[0])


def module_of(key: str) -> tuple[Any, bool]:
    """Returns the `Recurrence` that a key names, and whether it trains; `InputError` if unknown."""
    name, _, mode = key.partition("|")[0].partition(":")
    if name not in MODULES:
        raise InputError(NOT_HERE.format("Recurrence") + OPERATORS)
    return MODULES[name], mode == "train"


def is_scan(key: str) -> bool:
    """Tells whether a key names a net of a `Scan`."""
    return "#" in key.partition("|")[0]


def may_change(key: str) -> bool:
    """Tells whether a key names a `Recurrence`, whose step may change between forward and backward."""
    return ":" in key.partition("|")[0]


def with_engines(key: str, engine: Asked) -> str:
    """Appends the engines to the text that names a module in graphs of PyTorch, unless the user left them to
    stepnet. engine: the argument `engine=`.

    >>> with_engines("GRU 3 4", "auto"), with_engines("GRU 3 4", ("onednn", "llvm"))
    ('GRU 3 4', 'GRU 3 4|onednn|llvm')
    """
    return key if engine == "auto" else "|".join([key, *([engine] if isinstance(engine, str) else engine)])


def engines_of_key(key: str) -> Order:
    """Returns the engines that `with_engines` added to a key. Raises `InputError` for unknown ones."""
    _, *names = key.split("|")
    return checked_engine(names) if names else "auto"


def engines_on(device: Any, key: str) -> Order:
    """Returns the engines that run the module of a key on a device, in order of preference."""
    engines = engines_of_key(key)
    return checked_engine(place_on(device, engines).engines(engines))
