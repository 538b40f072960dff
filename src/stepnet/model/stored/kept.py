"""Loads a .stepnet file as a model: from the disk cache, if an earlier process read the same file.

    bytes of the file, name, versions --key--> the model's nets as traced, with its arrays
                                          else the file, checked and traced

Reading a file means to check each operation of its nets and to trace them, by modules that no call needs.
What is stored are the arguments of the constructors of models, and each step and model with its trace. So a
model from the cache is made as one from the file. Models in fewer bits, and with `until=`, are not stored.
"""

import os
from dataclasses import replace
from typing import Any

from stepnet.compiler.disk import store
from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.disk.entry import NotDataError
from stepnet.compiler.disk.folder import NotUsableError
from stepnet.compiler.disk.model_files import small_contents
from stepnet.compiler.disk.sources import sources
from stepnet.compiler.net.digest import digest
from stepnet.compiler.net.ir import Net, Node, unchecked_net
from stepnet.compiler.net.types import Literal, Type
from stepnet.compiler.trace.spec import Spec, TracedStep
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.records import dataclass
from stepnet.model.graph.traced_model import TracedModel
from stepnet.model.stored.replay import StoredModel, StoredStep


@dataclass(frozen=True)
class ModelArguments:
    """A model as it is stored: the arguments of its constructor.

    kind: the name of its class. function: the step or the model, which has its trace; None for layers.
    options: the arguments by keyword.
    layers: the layers or directions, in order.
    """

    kind: str
    function: StoredStep | StoredModel | None
    options: dict[str, Any]
    layers: "tuple[ModelArguments, ...]" = ()


FORM = Serializer(
    *(ModelArguments, StoredStep, StoredModel, TracedStep, TracedModel, Net, Node, Type, Literal, Spec),
    shortcuts={Net: unchecked_net},
)
READING = (
    *("compiler/disk", "compiler/values", "compiler/net", "compiler/trace", "compiler/plan"),
    *("layout", "model", "ragged"),
)
"""The folders whose modules determine the nets of a file: their sources are part of the key."""


def load(path: str) -> Any:
    """Returns the model in a .stepnet file, whose bytes it reads; see `load_contents`."""
    return load_contents(path, small_contents(path))


def load_contents(path: str, contents: bytes | None) -> Any:
    """Returns the model in a .stepnet file; see `stepnet.model.stored.read.load_stored`, which has the
    errors. contents: the bytes of the file; None if they are many, or nothing is stored.
    """
    key = None if contents is None else key_of(os.path.basename(path), contents)
    if key is not None and (kept := store.value("model", key, FORM)) is not None:
        return named(made(kept), key)
    with IMPORTS:  # late: they take longer than a model from the cache
        from stepnet.model.stored.read import load_stored
    model = load_stored(path, contents)
    if key is None or (kept := kept_of(model)) is None:
        return model
    try:
        data = FORM.packed(kept)
    except NotDataError:  # a structure of a class of its own, as a named tuple
        store.COUNTS["failed"] += 1
        return model
    store.put("model", key, data)
    return named(model, key)


def named(model: Any, key: str) -> Any:
    """Returns the model; if it is a graph, its net is named by the key, so that its schedule is found."""
    if type(model).__name__ == "Graph":
        model.program.name = key
    return model


def key_of(name: str, contents: bytes) -> str | None:
    """Returns the key of a file's model in the disk cache; None if the sources of stepnet cannot be read.

    It is computed from the bytes of the file, its name, which messages have, and the code that reads it.
    """
    try:
        return digest(sources(*READING), name, contents)
    except NotUsableError:
        return None


def kept_of(model: Any) -> ModelArguments | None:
    """Returns the data to store of a model that was read from a file; None for a model that is not stored."""
    kind = type(model).__name__
    if getattr(model, "report", None) is not None:
        return None
    if kind in ("Stack", "Bidirectional"):
        layers = [*map(kept_of, model.layers)]
        known = tuple(layer for layer in layers if layer is not None)
        options = {"merge": model.merge} if kind == "Bidirectional" else {}
        return ModelArguments(kind, None, options, known) if len(known) == len(layers) else None
    if kind == "Graph":
        function = replace(model.model, known_net=model.program.traced)
        names: tuple[str, ...] = "inputs", "statics"
    elif kind == "RNN" and model.until is model.precision is None:
        traced = replace(model.program.traced, params=model.step.params)
        function = replace(model.step, known_step=traced)
        names = "memory", "inputs", "statics", "reverse", "unroll"
    else:
        return None
    options = {name: getattr(model, name) for name in names}
    return ModelArguments(kind, function, {"params": function.params, **options})


def made(kept: ModelArguments) -> Any:
    """Makes a model by its constructor."""
    if kept.kind == "Graph":
        with IMPORTS:
            from stepnet.model.graph.graph import Graph
        return Graph(kept.function, **kept.options)  # type: ignore[arg-type]
    if kept.kind == "RNN":
        with IMPORTS:
            from stepnet.model.recurrence import RNN
        return RNN(kept.function, **kept.options)  # type: ignore[arg-type]
    with IMPORTS:
        from stepnet.model.compose import Bidirectional, Stack
    layers: list[Any] = [*map(made, kept.layers)]
    return Stack(layers) if kept.kind == "Stack" else Bidirectional(*layers, **kept.options)
