"""Reads a .stepnet file as a model. The file may come from anywhere: only checked nets of it are run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Extent, Type, extent_of
from stepnet.compiler.net.windows import own_axis
from stepnet.compiler.targets import checked_engine
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.arguments import short_repr
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.compiler.values.structure import DEEPEST, leaves, named_leaves
from stepnet.compiler.values.version import __version__
from stepnet.errors import FileError, InputError, ModelError, NetError, StepError, named
from stepnet.layout.files.jsons import parsed
from stepnet.layout.files.paths import existing
from stepnet.layout.files.safetensors import is_safetensors, mapped, metadata_of
from stepnet.layout.files.store import Store
from stepnet.model.compose import Bidirectional, Layer, Stack
from stepnet.model.graph.graph import Graph
from stepnet.model.graph.integers import IntegerGraph
from stepnet.model.graph.quantized import QuantizedGraph
from stepnet.model.recurrence import RNN
from stepnet.model.stored import ENDING, KEY, VERSION
from stepnet.model.stored.arrays import Found
from stepnet.model.stored.fields import Object, entries, flag, integer, keyed, mapping, several, text
from stepnet.model.stored.integers import step_of
from stepnet.model.stored.nets import net_of, precision_of
from stepnet.model.stored.replay import StoredModel, StoredStep, StoredUntil
from stepnet.model.stored.reports import report_of
from stepnet.model.stored.structures import blank_of, spec_of, structure_of


def load_stored(file: str, contents: bytes | None) -> Graph | Layer:
    """Reads the model in a .stepnet file. contents: its bytes, if they are read already.

    Raises `FileError` for a file that is damaged, of another kind or of a later version, and `ModelError` for
    one whose net, structures and arrays do not fit together.
    """
    path = existing(file) if contents is None else Path(file)
    arrays, metadata = mapped(path, contents)
    if KEY not in metadata:
        raise FileError(f"{path}: it has weights and no model: it was not written by model.save")
    data = metadata[KEY].encode()
    try:
        document = parsed(data, "description of the model", Store(None, len(data)))
    except FileError as error:
        raise FileError(f"{path}: {error}") from None
    check_version(document, path)
    with named(str(path)):
        try:
            keyed(document, "the description of the model", "version", "written_by", "model")
            return model_of(document["model"], FileReader(path.name, Found(arrays)))
        except (InputError, NetError, StepError) as error:
            raise ModelError(str(error).partition("\n")[0]) from None  # without the line of the caller


def is_stored(path: Path) -> bool:
    """Tells whether `model.save` wrote the file at a path, whatever its ending."""
    if path.suffix == ENDING:
        return True
    return path.is_file() and is_safetensors(path) and KEY in metadata_of(path)


def check_version(document: Object, path: Path) -> None:
    """Raises `FileError` for a model file whose version of the format is later than this stepnet reads, or is
    not a whole number from 1.
    """
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise FileError(
            f"{path}: the version of its format is {short_repr(version)}, not a whole number from 1"
        )
    if version > VERSION:
        by = short_repr(document.get("written_by"))
        raise FileError(
            f"{path}: its format is of version {version}, written by stepnet {by}; stepnet {__version__} "
            f"reads versions up to {VERSION}: install a later stepnet"
        )


class FileReader:
    """Reader of the models in one file. file: its name, for messages."""

    def __init__(self, file: str, arrays: Found) -> None:
        """Stores the name of the file and its arrays."""
        self.file, self.arrays = file, arrays

    def specs(self, data: Any, what: str) -> Any:
        """Returns a structure of `Spec`s. what: the name of the values in messages."""
        return structure_of(data, lambda leaf: spec_of(leaf, what), what)

    def output(self, data: Any) -> Any:
        """Returns the structure of outputs, with 0 for each."""
        return structure_of(data, lambda leaf: blank_of(leaf, "the output"), "the output")

    def params(self, data: Any) -> Any:
        """Reads the parameters of a model in a file from JSON: a nested structure, in which each leaf names
        an array of the file; returns it with the arrays.
        """

        def leaf(given: Any) -> Any:
            """Returns the array of one parameter."""
            return self.arrays.get(keyed(given, "a parameter", "array")["array"], "a parameter")

        return structure_of(data, leaf, "the parameters")


def model_of(data: Any, reader: FileReader, depth: int = 0) -> Graph | Layer:
    """Reads the model that `model_data` wrote to a file as JSON; raises `StepnetError`s for other data.

    depth: the number of layers around it, which is limited.
    """
    kinds: dict[str, Callable[[Any, FileReader], Graph | Layer]] = {
        "RNN": rnn_of,
        "Graph": graph_of,
        "IntegerGraph": graph_of,
    }
    kind = mapping(data, "a model").get("kind")
    if kind in ("Stack", "Bidirectional"):
        return layers_of(data, kind, reader, depth)
    if not isinstance(kind, str) or kind not in kinds:
        raise ModelError(
            f"a model is an RNN, a Stack, a Bidirectional, a Graph or an IntegerGraph, not {short_repr(kind)}"
        )
    return kinds[kind](data, reader)


def layers_of(data: Any, kind: str, reader: FileReader, depth: int) -> Stack | Bidirectional:
    """Reads a `Stack` or a `Bidirectional` of a file from JSON, with the layers in it. kind: the name of the
    class. reader: the reader of the file, which has its arrays. depth: the number of layers around it.
    """
    if depth > DEEPEST:
        raise ModelError(f"layers are nested more than {DEEPEST} deep")
    further = ("merge",) if kind == "Bidirectional" else ()
    given = keyed(data, f"a {kind}", "kind", "layers", "report", *further)
    layers: list[Any] = [model_of(part, reader, depth + 1) for part in entries(given["layers"], "layers")]
    report = report_of(given["report"])
    if kind == "Stack":
        return Stack(layers, report=report)
    if len(layers) != 2:
        raise ModelError(f"a Bidirectional has two directions, not {len(layers)}")
    merge = None if given["merge"] is None else text(given["merge"], "merge")
    return Bidirectional(*layers, merge=merge, report=report)


def rnn_of(data: Any, reader: FileReader) -> RNN:
    """Reads a recurrence of a file from JSON: its step is the stored net. reader: the reader of the file,
    which has its arrays. Raises `ModelError` for parts that do not fit each other.
    """
    given = keyed(
        data,
        "an RNN",
        *("kind", "name", "inputs", "memory", "statics", "params", "output", "body", "reverse", "unroll"),
        *("precision", "until", "report"),
    )
    inputs, memory, statics = (
        reader.specs(given[part], f"the {part}") for part in ("inputs", "memory", "statics")
    )
    params, output = reader.params(given["params"]), reader.output(given["output"])
    body = net_of(given["body"], reader.arrays)
    parts = [("input", inputs, ROWS), ("memory", memory, None), ("static", statics, ROWS)]
    check_fits(body, [*parts, ("parameter", params, CONST)])
    count = len(leaves(output))
    check_results(body, count + len(leaves(memory)))
    until = None
    if given["until"] is not None:
        condition = keyed(given["until"], "until", "name", "net")
        net = net_of(condition["net"], reader.arrays)
        check_results(net, 1)
        if len(net.inputs) != len(body.results):
            raise ModelError("the condition until= takes other values than the step returns")
        until = StoredUntil(reader.file, text(condition["name"], "a name"), net, output, memory)
    rnn = RNN(
        StoredStep(reader.file, text(given["name"], "a name"), body, inputs, memory, statics, params, output),
        params,
        memory=memory,
        inputs=inputs,
        statics=statics,
        reverse=flag(given["reverse"], "reverse"),
        unroll=integer(given["unroll"], "unroll"),
        until=until,
    )
    precision, report = precision_of(given["precision"], "a precision"), report_of(given["report"])
    return rnn if precision is None else rnn.in_precision(precision, report)


def graph_of(data: Any, reader: FileReader) -> Graph:
    """Reads a `Graph` of a file from JSON: its model is the stored net. reader: the reader of the file, which
    has its arrays. Raises `ModelError` for parts that do not fit each other.
    """
    integers = mapping(data, "a model")["kind"] == "IntegerGraph"
    given = keyed(
        data,
        "a Graph",
        *("kind", "name", "inputs", "statics", "params", "output", "net", "captured", "engines", "report"),
        *(("step",) if integers else ()),
    )
    inputs, statics = (reader.specs(given[part], f"the {part}") for part in ("inputs", "statics"))
    params, output = reader.params(given["params"]), reader.output(given["output"])
    names = several(text, given["captured"], "the captured arrays")
    captured = {name: reader.arrays.get(name, "a captured array") for name in names}
    net = net_of(given["net"], reader.arrays)
    if any(node.operation == "index" for node in net.nodes):
        raise ModelError("its net counts steps outside of a recurrence")
    parts = [("input", inputs, STEPS), ("static", statics, ROWS)]
    check_fits(net, [*parts, ("parameter", params, CONST), ("captured array", captured, CONST)])
    check_results(net, len(leaves(output)))
    pairs = tuple(
        (array, net.nodes[place].name)
        for array, place in zip(captured.values(), net.inputs[len(net.inputs) - len(captured) :], strict=True)
    )
    model = StoredModel(
        reader.file, text(given["name"], "a name"), net, inputs, statics, params, output, pairs
    )
    graph = Graph(model, params, inputs=inputs, statics=statics)
    report = report_of(given["report"])
    if report is None:
        if integers:
            raise ModelError("a model in integers has no report of its quantization")
        return graph
    engines = several(text, given["engines"], "the engines")
    checked_engine(engines)
    quantized = QuantizedGraph.of(graph, (), report, engines)
    if not integers:
        return quantized
    return IntegerGraph.with_step(quantized, step_of(given["step"], graph.program, reader.arrays))


def check_fits(net: Net, parts: list[tuple[str, Any, Extent | None]]) -> None:
    """Raises `ModelError` unless the inputs of a net in a file have the types of the model's declared inputs,
    memories, statics and parameters, in order.

    parts: for each kind of inputs its name, the structure of `Spec`s or arrays, and the extent of a value
    without inner sequences; None for memories, which enter a step in the dtype of computing.
    """
    named_parts = [(kind, name, leaf, at) for kind, part, at in parts for name, leaf in named_leaves(part)]
    if len(named_parts) != len(net.inputs):
        raise ModelError(f"its net has {len(net.inputs)} inputs, and the model has {len(named_parts)}")
    for (kind, name, leaf, at), place in zip(named_parts, net.inputs, strict=True):
        expected, given = net.type_of(place), type_of(leaf, at)
        if given != expected:
            raise ModelError(f"{kind} {name or '*'} is {given}, and the net of the model reads {expected}")


def type_of(leaf: Any, at: Extent | None) -> Type:
    """Returns the type (axes, features, dtype) that an input of a net has, from its `Spec` or array. at: the
    axes of a value without inner sequences, such as sequences and steps; None for a memory, which enters a
    step in the dtype of computing.
    """
    dtype = str(leaf.dtype)
    if not isinstance(leaf, Spec):
        return Type(CONST, leaf.shape, dtype)
    if at is None:
        return Type(ROWS, leaf.shape, DTYPES[dtype].compute)
    axes = extent_of(len(at) + leaf.levels)
    if leaf.axis:
        axes = (*axes, leaf.axis) if at == ROWS else (*axes[:-1], own_axis(leaf.axis))
    return Type(axes, leaf.shape, dtype)


def check_results(net: Net, wanted: int) -> None:
    """Raises `ModelError` unless a net has this number of results."""
    if len(net.results) != wanted:
        raise ModelError(f"its net has {len(net.results)} results, and the model has {wanted}")
