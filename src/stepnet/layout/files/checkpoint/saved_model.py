"""Reads the recurrent layers of a TensorFlow SavedModel: a folder with saved_model.pb and a checkpoint.

Variables get their names in the program, if the checkpoint has these. keras_metadata.pb has the classes and
configurations of Keras 2's layers, as JSON, by the attributes that lead to them. Without it, Keras' layers
are found by attributes or, if the checkpoint numbers its variables, by names. The graph is code, and is not
read; only of a model without variables its constants are (frozen.py).

Source: tf_keras/protobuf/saved_metadata.proto and saving/legacy/saved_model/load.py of tf_keras 2.21.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError
from stepnet.layout.files.checkpoint import file, frozen
from stepnet.layout.files.checkpoint.modules import VALUE, by_names, model_of, version_of
from stepnet.layout.files.checkpoint.objects import ObjectNode, object_at, objects, renamed
from stepnet.layout.files.checkpoint.protobuf import message
from stepnet.layout.files.jsons import parsed
from stepnet.layout.files.keras.config import layers_of
from stepnet.layout.files.keras.file import KerasFile, KerasLayer
from stepnet.layout.files.keras.lost import problems_of
from stepnet.layout.files.keras.modules import with_architecture
from stepnet.layout.files.keras.names import KERNELS, LAYERS, TIMED
from stepnet.layout.files.keras.nodes import Config, class_of, table
from stepnet.layout.files.keras.parts import KeyPath, Sublayer, check_complete, is_filled, layer_parts
from stepnet.layout.files.model import Array, FileContents
from stepnet.layout.files.paths import opened
from stepnet.layout.files.store import Store

METADATA, GRAPH = "keras_metadata.pb", "saved_model.pb"
PROGRAM = "its graph is a program, which is not read"
ROOT, RUNS = "root", "_tf_keras_rnn_layer"


def read(path: Path, layout: str | None = None, layouts: Mapping[str, str] | None = None) -> FileContents:
    """Reads the recurrent layers of a SavedModel as modules; path is its folder, or the saved_model.pb in it.

    layout: the layout (a framework's arrangement of weights) or framework of all modules; layouts: the
    layouts of single modules, by name. Raises `FileError`, with the path, for a model without weights, and
    for a damaged checkpoint.
    """
    folder = path if path.is_dir() else path.parent
    prefix = folder / "variables" / "variables"
    if not Path(f"{prefix}.index").is_file():  # then weights can only be constants of the graph
        return frozen.read(folder / GRAPH if path.is_dir() else path, layout, layouts or {})
    numbers, nodes = file.read(prefix), objects(str(prefix))
    names = {node.key: node.name for node in nodes if node.name}
    arrays = renamed(path, numbers, names)
    frameworks, layouts = ("keras2", "tf1"), layouts or {}
    called = {key: names[key] if names.get(key) in arrays else key for key in numbers}
    if not (folder / METADATA).is_file():
        paths = {called[key]: called[key] if is_numbered(key) else key for key in numbers}
        keras = by_names({name: paths[name] for name in arrays}, arrays, version_of(numbers))
        return replace(model_of(path, arrays, keras, frameworks, layout, layouts), unspecified=PROGRAM)
    with opened(folder / METADATA) as (stream, size):
        store = Store(None, size)
        keras = keras_file(metadata(stream.read(), store), nodes, called, arrays, store)
        model = model_of(path, arrays, keras, frameworks, layout, layouts)
        problems = {**model.problems, **problems_of(keras, model.modules, {})}
        return with_architecture(replace(model, problems=problems), keras)


def is_numbered(key: str) -> bool:
    """Returns True if a variable's key is a number only ("variables/0"): its name is in the program alone."""
    return key.removesuffix(VALUE).rpartition("/")[2].isdecimal()


@dataclass(frozen=True)
class LayerMetadata:
    """A layer in the Keras metadata of a SavedModel: whether it loops over steps, and its configuration."""

    runs: bool
    node: Config

    @property
    def name(self) -> str:
        """The name of this layer in its Keras model."""
        return str(self.node.get("name") or table(self.node.get("config")).get("name"))


def metadata(data: bytes, store: Store) -> dict[KeyPath, LayerMetadata]:
    """Parses the content of a keras_metadata.pb: returns the Keras layers in it, by the path of attributes
    that leads from the model to the layer, () for the model itself. Entries that are no JSON are left out.
    store: the limit on memory.
    """
    by_path: dict[KeyPath, LayerMetadata] = {}
    for proto in message(memoryview(data), store).messages(1):
        root, *steps = proto.text(3).split(".")
        if root == ROOT and proto.text(5).startswith("{"):
            node = parsed(proto.text(5).encode(), f"metadata of {proto.text(3)!a}", store)
            by_path[tuple(steps)] = LayerMetadata(proto.text(4) == RUNS, node)
    return by_path


def keras_file(
    layers: Mapping[KeyPath, LayerMetadata],
    nodes: Sequence[ObjectNode],
    called: Mapping[str, str],
    arrays: Mapping[str, Array],
    store: Store,
) -> KerasFile:
    """Combines the layers of a keras_metadata.pb with their variables to the contents of a Keras file. A
    layer that must have variables and has none is recorded as lost, to be reported.

    layers: the layers, by the path of attributes that leads to them. nodes: the checkpoint's graph of
    objects. called: {name of a variable in the checkpoint: its name in `arrays`}. arrays: the variables.
    store: the limit on memory.
    """
    root = layers.get(())
    config = root.node if root is not None else None
    configured = tuple(layers_of(config, store)) if config is not None else ()
    model = {listed.name: listed for listed in configured}
    keras_layers: list[KerasLayer] = []
    lost: dict[str, str] = {}
    for steps, layer in outermost(layers):
        around = [layers[steps[:end]] for end in range(1, len(steps)) if steps[:end] in layers]
        name = "/".join((*(outer.name for outer in around), layer.name))
        timed = next((outer.name for outer in around if class_of(outer.node) == TIMED), "")
        known = layer_parts(layer.node, store, by_class=False)
        sublayers = [
            with_variables(sublayer, nodes, ((*steps, *path), (*steps, *path, "cell")), called)
            for path, sublayer in known.items()
            if (*path, "cell") not in known
        ]
        filled = tuple(sublayer for sublayer in sublayers if sublayer.arrays)
        check_complete(known.values(), filled)
        if filled:
            own = table(layer.node.get("config"))
            listed = model.get(name)
            inputs, use = (listed.inputs, listed.use) if listed else ((), None)
            keras_layers.append(KerasLayer(name, class_of(layer.node), own, filled, inputs, timed, use))
        elif is_filled(layer.node, known.values()):
            lost[name] = class_of(layer.node)
    order = {name: index for index, name in enumerate(model)}
    keras_layers.sort(key=lambda layer: order.get(layer.name, len(order)))
    return KerasFile(config, arrays, tuple(keras_layers), configured, "2", lost=lost)


def outermost(layers: Mapping[KeyPath, LayerMetadata]) -> Iterator[tuple[KeyPath, LayerMetadata]]:
    """Yields the layers of a Keras model that run cells over steps, such as an RNN, and that do not lie
    within another such layer.

    layers: all layers, by the path of attributes that leads to them.
    """
    runner_paths = set[KeyPath]()
    for steps, layer in layers.items():
        runs = layer.runs or class_of(layer.node) in ("RNN", "Bidirectional", *LAYERS)
        if runs and not any(steps[:end] in runner_paths for end in range(len(steps))):
            runner_paths.add(steps)
            yield steps, layer


def with_variables(
    sublayer: Sublayer, nodes: Sequence[ObjectNode], paths: Iterable[KeyPath], called: Mapping[str, str]
) -> Sublayer:
    """Returns a part (`sublayer`) of a Keras layer, such as a cell, with the names of its variables: kernel,
    recurrent_kernel and bias among the attributes of its object or of its cell. Raises `FileError` if one is
    not in the checkpoint.

    nodes: the checkpoint's graph of objects. paths: the paths of attributes in it to the part and to its
    cell. called: {name of a variable in the checkpoint: its name in the result}.
    """
    kernel_nodes = [(own, object_at(nodes, (*path, own))) for path in paths for own in KERNELS]
    keys = {own: node.key for own, node in kernel_nodes if node is not None and node.key}
    missing = [f"{own} is {key!a}" for own, key in keys.items() if key not in called]
    if missing:
        raise FileError(f"its {missing[0]}, of which the checkpoint has no numbers")
    return replace(sublayer, arrays=tuple((own, called[key]) for own, key in keys.items()))
