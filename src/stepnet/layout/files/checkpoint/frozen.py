"""Reads the recurrent layers of a frozen TensorFlow graph, whose variables are constants with their names.

    node { name: "rnn/basic_lstm_cell/kernel" op: "Const" attr { key: "value" value { tensor { ... } } } }

The graph is code, and is not run. Layers are found among its constants by names, as in a checkpoint. Settings
that are part of the code, such as the forget bias, must be stated by the user. If names are not enough, cells
are recognised by what the graph's loops compute (cells.py).

Source: core/framework/graph.proto, node_def.proto, attr_value.proto and tensor.proto of TensorFlow 2.21, and
core/protobuf/saved_model.proto and meta_graph.proto.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stepnet.compiler.values.dtypes import native
from stepnet.errors import FileError
from stepnet.layout.files.checkpoint.cells import GraphCell, cells
from stepnet.layout.files.checkpoint.modules import by_names, model_of, version_of
from stepnet.layout.files.checkpoint.protobuf import Message, message
from stepnet.layout.files.checkpoint.tensors import tensor
from stepnet.layout.files.model import Array, FileContents, Module
from stepnet.layout.files.paths import opened
from stepnet.layout.files.store import Store
from stepnet.layout.options import option
from stepnet.layout.registry import record

NODES, NAME, OP, ATTRIBUTES = 1, 1, 2, 5  # fields of a GraphDef, and of a node
KEY, VALUE, TENSOR = 1, 2, 8  # of an attribute
META_GRAPHS, GRAPH = 2, 2  # of a SavedModel, and of one of its graphs
BEGINS = "its initial state is in the graph, which is not read: it is taken to be zeros"
TURNED = "runs from the last step, and the order in which its outputs are taken is not read"
PLAIN = {"Const", "Identity", "Placeholder", "NoOp"}  # operators that compute nothing


def read(path: Path, layout: str | None, layouts: Mapping[str, str]) -> FileContents:
    """Reads the recurrent layers of a TensorFlow graph's file, or of a SavedModel without variables.

    layout, layouts: the layout (a framework's arrangement of weights) that the user states, of all modules
    (recurrent layers) and by name. Raises `FileError`, with the path, for a file that is no graph, or whose
    graph has no constants that could be weights.
    """
    with opened(path) as (stream, size):
        store = Store(None, size)
        store.take(size, "its graph")
        graphs = graphs_of(memoryview(stream.read()), store)
        nodes = [node for graph in graphs for node in graph.messages(NODES)]
        arrays: dict[str, Array] = {}
        for name, array in constants(nodes):
            if name in arrays:
                raise FileError(f"two constants in it are called {name[:100]!a}")
            arrays[name] = array
        if not arrays:
            raise FileError("its graph has no constants that could be weights: save it with its variables")
        graph_cells = {cell.name: cell for graph in graphs for cell in cells(graph, arrays)}
    by_name = by_names({name: name for name in arrays}, arrays, version_of(arrays))
    other_layouts = {name: stated for name, stated in layouts.items() if name not in graph_cells}
    model = model_of(path, arrays, by_name, ("tf1", "keras2"), layout, other_layouts)
    others = (f"{node.text(NAME)} ({node.text(OP)})" for node in nodes if node.text(OP) not in PLAIN)
    left_cells = {
        name: cell for name, cell in graph_cells.items() if {*cell.arrays.values()} <= model.rest.keys()
    }
    return with_cells(replace(model, layers=tuple(others), unspecified=""), left_cells, layout, layouts)


def with_cells(
    model: FileContents, graph_cells: Mapping[str, GraphCell], layout: str | None, layouts: Mapping[str, str]
) -> FileContents:
    """Adds the cells of a TensorFlow graph (`graph_cells`, by the names of their modules) to a model as
    modules (recurrent layers); a cell of unknown kind becomes a problem, a message to the user, unless the
    user states its layout (a framework's arrangement of weights). layout, layouts: stated by the user, of all
    modules and by name.
    """
    modules: list[Module] = []
    problems = dict(model.problems)
    for name, cell in graph_cells.items():
        stated = layouts.get(name) or (layout if layout and "." in layout else None)
        cell_layout = f"keras.{cell.kind}" if cell.kind else stated
        if cell_layout is None:
            remedy = option("layout of", module=name, layout="LAYOUT")
            weights = " and ".join(f"{array} ({weight})" for weight, array in cell.arrays.items())
            problems[name] = (
                f"{name} is a cell of {weights}, and its graph does not show of which kind: say {remedy}"
            )
        else:
            modules.append(module_of(name, cell, cell_layout, model.rest))
    used = {array for module in modules for array in module.names.values()}
    rest = {name: array for name, array in model.rest.items() if name not in used}
    return replace(model, modules=(*model.modules, *modules), rest=rest, problems=problems)


def module_of(name: str, cell: GraphCell, layout: str, arrays: Mapping[str, Array]) -> Module:
    """Makes a module (recurrent layer) of a cell that was found in a TensorFlow graph.

    name: the module's. layout: the arrangement of the cell's weights, such as "keras.gru". arrays: the
    graph's constants by name. The activations are known, and become the module's semantics, only if the
    cell's kind is known.
    """
    fields = ("gate_activation", "candidate_activation", "output_activation")
    values = dict(zip(fields, (*cell.activations, cell.activations[1]), strict=True)) if cell.kind else {}
    return Module(
        name,
        (layout,),
        {weight: arrays[array] for weight, array in cell.arrays.items()},
        cell.arrays,
        semantics={field: value for field, value in values.items() if field in record(layout).settings()},
        reverse=cell.reverse,
        notes=(BEGINS,),
        alone=TURNED if cell.reverse else "",
    )


def graphs_of(data: memoryview, store: Store) -> list[Message]:
    """Parses the TensorFlow graph of a frozen graph's file, or the graphs of a SavedModel; raises `FileError`
    if the file is neither. data: the content of the file. store: the limit on memory.
    """
    proto = message(data, store)
    # A SavedModel begins with a version number.
    is_model = any(isinstance(value, int) for value in proto.fields.get(NODES, ()))
    graphs = [meta.submessage(GRAPH) for meta in proto.messages(META_GRAPHS)] if is_model else [proto]
    nodes = [node for graph in graphs for node in graph.messages(NODES)]
    if not nodes or not all(node.text(NAME) and node.text(OP) for node in nodes):
        raise FileError("this is not a graph of TensorFlow: it has no nodes with names and operators")
    return graphs


def constants(nodes: Sequence[Message]) -> Iterator[tuple[str, Array]]:
    """Yields (name, array) for each constant of a TensorFlow graph that could be a weight: of floats, with at
    least one axis. nodes: the nodes of the graph.
    """
    for node in nodes:
        if node.text(OP) != "Const":
            continue
        name = node.text(NAME)
        for attribute in node.messages(ATTRIBUTES):
            if attribute.text(KEY) == "value":
                array = tensor(name, attribute.submessage(VALUE).submessage(TENSOR))
                if array is not None and array.ndim:
                    yield name, native(array)
