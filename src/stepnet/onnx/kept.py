"""Loads an ONNX model as a graph: from the disk cache, if an earlier process read the same file.

    bytes of the file, axes, versions --key--> the traced net with its arrays     some 5 ms
                                          else the parsed model, traced           150 ms

Reading a file means to parse and trace it, which needs packages and modules that no call of the graph needs.
The original model is read from the same bytes later, if something asks for more than its net.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepnet.compiler.disk import store
from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.disk.entry import NotDataError
from stepnet.compiler.disk.folder import NotUsableError
from stepnet.compiler.disk.model_files import small_contents
from stepnet.compiler.disk.sources import sources
from stepnet.compiler.net.digest import digest
from stepnet.compiler.net.encodings import Precision
from stepnet.compiler.net.ir import Net, Node, unchecked_net
from stepnet.compiler.net.types import Literal, Type
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.arguments import is_any, stated_axes
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.model.graph.graph import Graph
from stepnet.model.graph.traced_model import TracedModel

if TYPE_CHECKING:
    from pathlib import Path

FORM = Serializer(TracedModel, Net, Node, Type, Literal, Precision, Spec, shortcuts={Net: unchecked_net})
READING = (
    *("compiler/disk", "compiler/values", "compiler/net", "compiler/trace", "compiler/plan"),
    *("importers", "layout", "model", "onnx", "ragged"),
)
"""The folders whose modules determine the net of a file: their sources are part of the key."""


def load(path: "str | Path", *, axes: Mapping[str, str] | None = None, steps: str | None = None) -> Graph:
    """Loads the model in an .onnx file as a `Graph`, which runs over sequences without padding.

    Args:
        path: The file. Weights in files beside it are read too.
        axes: The meaning of the first axes of inputs, by name, where the recurrences and convolutions that
            read an input do not determine it: "NT" for [batch, time, ...], "TN" for [time, batch, ...], "N_T"
            for [batch, features, time], "N" for one value per sequence, "_N" for [layers, batch, ...].
            Further axes, and axes called "_", are features. "lengths" marks the lengths of the sequences;
            mostly recurrences and masks of steps determine these.
        steps: "any" to state that no number in the file depends on the number of steps, where the file fixes
            that; see `stepnet.load`.

    Returns:
        The graph. A single input of sequences is passed as it is, and several as a dict by name; inputs
        without steps are `statics`. The input `sequence_lens` is `lengths=` of a call. Outputs are those of
        the model, without padding, by name if there are several. Their features are ONNX's axes other than
        sequences and steps, in order.

    Raises:
        FileError: For a file that is damaged or not an ONNX model.
        ModelError: For an operator that is not supported, with its node, and for one that mixes sequences or
            depends on the padding.
        InputError: For axes that do not fit.

    >>> import tempfile
    >>> import numpy as np
    >>> import stepnet as sn
    >>> import stepnet.onnx
    >>> gru = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(inputs=8, hidden=16))
    >>> outputs, final = gru(np.ones((2, 5, 8), "float32"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     stepnet.onnx.save(gru, f"{folder}/gru.onnx")
    ...     again = stepnet.onnx.load(f"{folder}/gru.onnx")
    >>> again(np.ones((2, 5, 8), "float32"))["output"].shape
    (2, 5, 16)
    """
    stated, any_steps = stated_axes(axes), is_any(steps)
    return load_contents(path, small_contents(path), stated, any_steps)


def load_contents(
    path: "str | Path", contents: bytes | None, stated: Mapping[str, str], any_steps: bool
) -> Graph:
    """Loads the model in an .onnx file, whose bytes are read already; None for a large one. See `load`."""
    key = None if contents is None else key_of(path, contents, stated, any_steps)
    if contents is None or key is None:
        return original(path, contents, stated, any_steps)
    file = ReadFile(str(path), contents, tuple(stated.items()), any_steps)
    if (stored := store.value("graph", key, FORM)) is not None:
        traced, names = stored
        graph = graph_of(KeptModel(file, traced, names))
        graph.program.name = key
        return graph
    graph = original(path, contents, stated, any_steps)
    keep(key, graph)
    return graph


def original(path: "str | Path", contents: bytes | None, axes: Mapping[str, str], any_steps: bool) -> Graph:
    """Parses and traces a file; see `stepnet.onnx.loading.read`, which is imported only now."""
    with IMPORTS:
        from stepnet.onnx.loading import read
    return read(path, contents, axes, any_steps)


def key_of(path: "str | Path", contents: bytes, axes: Mapping[str, str], any_steps: bool) -> str | None:
    """Computes the key of a file's graph in the disk cache: of its bytes, of its name, which is in messages,
    and of all that decides how it is read. None if the sources of that cannot be read.
    """
    try:
        return digest(sources(*READING), str(path), contents, sorted(axes.items()), any_steps)
    except NotUsableError:
        return None


def keep(key: str, graph: Graph) -> None:
    """Stores the net of a graph in the disk cache, unless its file is for one number of steps alone, or has
    weights in other files, which the key does not have.
    """
    model: Any = graph.model
    if model.steps is not None or model.store.files:
        return
    try:
        store.put("graph", key, FORM.packed((graph.program.traced, model.file_names)))
        graph.program.name = key
    except NotDataError:  # the net holds an object that cannot be stored
        store.COUNTS["failed"] += 1


def graph_of(model: "KeptModel") -> Graph:
    """Makes the graph of a model whose net is known."""
    return Graph(model, None, inputs=model.known_net.inputs, statics=model.known_net.statics)


@dataclass(frozen=True)
class ReadFile:
    """The bytes of a file, and how it is read.

    path: its name. contents: its bytes. axes: the axes of its inputs that the user states. any_steps: whether
    no number in it depends on the number of steps.
    """

    path: str
    contents: bytes
    axes: tuple[tuple[str, str], ...]
    any_steps: bool


@dataclass(frozen=True, eq=False)
class KeptModel:
    """The model of a file whose net an earlier process stored: what a graph asks of a model.

    file: the file, from whose bytes the original is made when it is needed.
    known_net: the traced net.
    file_names: the names of inputs and outputs in the file.
    """

    file: ReadFile
    known_net: TracedModel
    file_names: Mapping[str, Any]
    steps = only_steps = None

    @property
    def __name__(self) -> str:
        """The name of the model in messages: its file."""
        return self.file.path

    @computed_once
    def original(self) -> Any:
        """The model as its file was parsed."""
        file = self.file
        return original(file.path, file.contents, dict(file.axes), file.any_steps).model

    def __call__(self, x: Any, params: Any, statics: Any = None) -> Any:
        """Computes the outputs, operator by operator, for a graph or a model around it that is traced."""
        return self.original(x, params, statics)

    def check_dtypes(self, sequences: Any, statics: Any) -> None:
        """Raises `InputError` for inputs of a call of other dtypes than those of the file."""
        if (sequences, statics) != (self.known_net.inputs, self.known_net.statics):
            self.original.check_dtypes(sequences, statics)
