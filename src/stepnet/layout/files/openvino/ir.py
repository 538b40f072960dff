"""Reads the layers of an OpenVINO IR: a graph in an .xml file, with its constants in a .bin file beside it.

    <layer id="18" name="encoder/W" type="Const"><data element_type="f32" shape="1, 9, 2" offset="0" .../>
    <layer id="21" name="encoder" type="GRUSequence"><data direction="forward" .../>
    <edge from-layer="18" from-port="0" to-layer="21" to-port="3"/>

The body of a loop is a graph within a layer, with ids of its own.

Source: OpenVINO's docs on its IR, versions 10 and 11.
"""

import math
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from xml.parsers import expat

import ml_dtypes
import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError
from stepnet.layout.files.model import Array
from stepnet.layout.files.openvino.names import CONST
from stepnet.layout.files.paths import existing
from stepnet.layout.files.store import OBJECT, Store

LARGEST = 1 << 28  # the most bytes of an .xml
LAYERS = 1 << 20
AXES = 32
# Approximate bytes of memory for each element.
KEPT = {
    "layer": 8 * OBJECT,
    "data": 2 * OBJECT,
    "edge": 2 * OBJECT,
    "port": 2 * OBJECT,
    "dim": OBJECT,
}
KINDS = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "boolean": np.dtype(np.bool_),
    **{f"{kind}{bits}": np.dtype(f"{kind}{bits // 8}") for kind in "iu" for bits in (8, 16, 32, 64)},
}


@dataclass(eq=False)
class OpenVinoLayer:
    """A layer of an OpenVINO model. Layers are compared by identity, as several may have equal fields.

    name, type: its name and the name of its operator.
    data: its settings.
    inputs: the layers that compute its inputs, by input port.
    ports: the output ports of these layers, by input port. Output ports are numbered after input ports.
    shapes: the shapes of its inputs and outputs by port, -1 for an unknown length.
    """

    name: str
    type: str
    data: Mapping[str, str] = field(default_factory=dict[str, str])
    inputs: dict[int, "OpenVinoLayer"] = field(default_factory=dict[int, "OpenVinoLayer"])
    ports: dict[int, int] = field(default_factory=dict[int, int])
    shapes: dict[int, list[int]] = field(default_factory=dict[int, list[int]])


@dataclass
class OpenVinoGraph:
    """A graph of an OpenVINO model while it is read: its layers by id, and its edges."""

    layers: dict[str, OpenVinoLayer] = field(default_factory=dict[str, OpenVinoLayer])
    edges: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])
    last: OpenVinoLayer | None = None

    def connect_layers(self) -> list[OpenVinoLayer]:
        """Connects the layers of an OpenVINO graph by its edges: fills in `inputs`, the layer from which each
        input of a layer comes, and `ports`, the output of that layer. Returns all layers; raises `FileError`
        for a broken edge.
        """
        for edge in self.edges:
            source, target = (
                self.layers.get(edge.get("from-layer", "")),
                self.layers.get(edge.get("to-layer", "")),
            )
            ports = [edge.get(port, "") for port in ("from-port", "to-port")]
            are_ports = all(port.isdecimal() and len(port) < 10 for port in ports)
            if source is None or target is None or not are_ports:
                raise FileError("an edge in it leads from or to a layer that it does not have")
            from_port, to_port = map(int, ports)
            target.inputs[to_port], target.ports[to_port] = source, from_port
        return list(self.layers.values())


class OpenVinoReader:
    """The handlers of an expat parser, which collect the graphs of an OpenVINO .xml file."""

    def __init__(self, store: Store) -> None:
        """Prepares to collect an OpenVINO model's graphs from XML events; store: the limit on memory."""
        self.store = store
        self.graphs: list[OpenVinoGraph] = []  # the layers whose elements are open, the innermost last
        self.layers: list[OpenVinoLayer] = []
        self.count = 0
        self.text: list[str] | None = None  # of the <dim> element that is being read

    def start(self, element: str, attributes: dict[str, str]) -> None:
        """Adds a graph, a layer, the settings of a layer, an edge or a port to the OpenVINO model that is
        read. The XML parser calls it at the start of each element, with the element's name and attributes.
        Raises `FileError` for two layers of one id, and for too many.
        """
        if element in ("net", "body", "then_body", "else_body"):
            self.graphs.append(OpenVinoGraph())
        if not self.graphs:
            raise FileError(f"it begins with <{element[:50]}>, and not with <net>")
        graph = self.graphs[-1]
        if element in KEPT:
            self.store.take(KEPT[element] + OBJECT * len(attributes), "its layers and edges")
        if element == "layer":
            self.count += 1
            identity = attributes.get("id", "")
            if identity in graph.layers or self.count > LAYERS:
                raise FileError(
                    f"it has two layers of the id {identity[:50]!a}, or more than {LAYERS} layers"
                )
            graph.last = graph.layers[identity] = OpenVinoLayer(
                attributes.get("name", ""), attributes.get("type", "")
            )
        elif element == "data" and graph.last is not None and not graph.last.data:
            graph.last.data = attributes
        elif element == "edge":
            graph.edges.append(attributes)
        elif element == "port" and graph.last is not None:
            port = attributes.get("id", "")
            graph.last.shapes[int(port) if port.isdecimal() and len(port) < 10 else -1] = []
        elif element == "dim":
            self.text = []

    def end(self, element: str) -> None:
        """Connects the layers of a finished graph and adds them to the result, or adds the length of an axis
        to the shape of the last port. The XML parser calls it at the end of each element of an OpenVINO
        model, with the element's name.
        """
        if element in ("net", "body", "then_body", "else_body"):
            self.layers += self.graphs.pop().connect_layers()
        elif element == "dim" and self.graphs and self.graphs[-1].last is not None:
            length = "".join(self.text or ()).strip()
            shapes = list(self.graphs[-1].last.shapes.values())
            if shapes:
                shapes[-1].append(int(length) if length.isdecimal() and len(length) < 19 else -1)
            self.text = None

    def characters(self, text: str) -> None:
        """Collects the text of an XML element, the length of an axis, of which the parser passes pieces."""
        if self.text is not None:
            self.text.append(text[:20])

    def entity(self, *_: object) -> None:
        """Raises `FileError` for an XML entity, as entities can expand a small file to a huge text."""
        raise FileError("it defines entities, which no model needs")


def read(path: Path) -> tuple[list[OpenVinoLayer], Array]:
    """Reads the layers of an OpenVINO model, and the bytes of its constants; path: of the .xml file or the
    .bin file.

    Raises `FileError`, without the path if the .xml file is damaged.
    """
    described = existing(path.with_suffix(".xml"))
    numbers = path.with_suffix(".bin")
    size = described.stat().st_size
    if size > LARGEST:
        raise FileError(f"it has more than {LARGEST} bytes")
    reader, parser = OpenVinoReader(Store(None, size)), expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = reader.start, reader.end
    parser.CharacterDataHandler = reader.characters
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = reader.entity
    try:
        parser.Parse(described.read_bytes(), True)
    except (expat.ExpatError, UnicodeError) as error:
        raise FileError(f"this is not a complete .xml file ({error})") from error
    if not numbers.exists() and any(layer.type == CONST for layer in reader.layers):
        raise FileError(f"its numbers are in {numbers.name}, which is not beside it")
    return reader.layers, np.fromfile(numbers, np.uint8) if numbers.exists() else np.empty(0, np.uint8)


def constant(layer: OpenVinoLayer, data: Array) -> Array:
    """Returns the array of an OpenVINO Const layer, as a view of the constants' bytes `data`; raises
    `FileError` if it does not lie within these.
    """
    fields = {name: layer.data.get(name, "") for name in ("element_type", "shape", "offset", "size")}
    sizes = [size.strip() for size in fields["shape"].split(",") if size.strip()]
    listed = [*sizes, fields["offset"], fields["size"]]
    kind = KINDS.get(fields["element_type"])
    if kind is None:
        raise FileError(f"{layer.name[:100]!a} holds {fields['element_type'][:20]!a}, which is not read")
    if len(sizes) > AXES or not all(number.isdecimal() and len(number) < 19 for number in listed):
        raise FileError(f"{layer.name[:100]!a} has no shape, offset and size")
    *shape, offset, size = map(int, listed)
    if size != math.prod(shape) * kind.itemsize or offset + size > len(data):
        raise FileError(f"{layer.name[:100]!a} has not the bytes that its shape says, or they are cut off")
    # offsets need not be multiples of the size of a number
    return (
        np.ndarray(tuple(shape), kind.newbyteorder("<"), data.data, offset) if size else np.empty(shape, kind)
    )
