"""Reads an OpenVINO model whole, as a `Graph`: each layer by its row in `operators.py`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError, ModelError
from stepnet.importers.placed import Placed, constant
from stepnet.layout.files.model import Array
from stepnet.layout.files.openvino import ir
from stepnet.layout.files.openvino.call import OpenVinoCall
from stepnet.layout.files.openvino.ir import KINDS, OpenVinoLayer
from stepnet.layout.files.openvino.modules import module, unique_names
from stepnet.layout.files.openvino.names import CONST, OPERATORS, RESULT
from stepnet.layout.files.openvino.operators import OPENVINO
from stepnet.layout.files.openvino.written_numbers import numbers_of
from stepnet.layout.files.recurrent import RecurrentLayer
from stepnet.model.graph.array_model import ArrayModel, located
from stepnet.model.graph.axis_choice import fitting_graph
from stepnet.model.graph.graph import Graph

INPUT = "Parameter"
Output = tuple[int, int]  # the id of a layer, and the number of its output


def graph(path: Path, *, any_steps: bool = False) -> Graph | None:
    """Reads an OpenVINO model as a graph; None if its outputs depend on an operator that the table in
    `operators.py` does not have.

    any_steps: whether the user states that no number in it depends on the number of steps.

    Raises `ModelError` for a layer whose settings are not supported, with its name.
    """
    layers, data = ir.read(path)
    order = needed(layers)
    inputs = [layer for layer in layers if layer.type == INPUT]
    known = {*OPENVINO, CONST, INPUT, RESULT}
    if not inputs or any(layer.type not in known for layer in order) or not all(map(is_readable, inputs)):
        return None
    names = dict(unique_names(layers))
    recurrent = {
        layer: RecurrentLayer.of([module(layer, names, data)]) for layer in order if layer.type in OPERATORS
    }
    own_names = {layer: names[id(layer)] for layer in order}
    declared = [(layer.name, shape_of(layer), KINDS[layer.data["element_type"]].name) for layer in inputs]
    return fitting_graph(
        str(path),
        declared,
        lambda placed: OpenVinoModel(
            str(path), placed, tuple(order), data, own_names, recurrent, any_steps=any_steps
        ),
    )


def unsupported(path: Path, names: Sequence[str]) -> list[str]:
    """Returns the layers without a row in the table. names: of layers that are not recurrent, each with its
    kind in brackets.
    """
    return [name for name in names if name.rpartition("(")[2].removesuffix(")") not in OPENVINO]


def needed(layers: Sequence[OpenVinoLayer]) -> list[OpenVinoLayer]:
    """Lists the layers on which the results of a model depend, each after the layers that it reads; raises
    `FileError` if they form a circle.
    """
    done, waiting, order = set[int](), set[int](), list[OpenVinoLayer]()
    pending = [layer for layer in layers if layer.type == RESULT][::-1]
    while pending:
        layer = pending[-1]
        missing = [source for source in layer.inputs.values() if id(source) not in done]
        if id(layer) in done:
            pending.pop()
        elif missing and id(layer) in waiting:
            raise FileError(f"{layer.name[:100]!a} reads what is computed from it")
        elif missing:
            waiting.add(id(layer))
            pending += missing
        else:
            done.add(id(layer))
            order.append(layer)
    return order


def shape_of(layer: OpenVinoLayer) -> list[int]:
    """Returns the shape of a model's input, with 0 for a size that the file does not state."""
    sizes = [size.strip() for size in layer.data.get("shape", "").split(",") if size.strip()]
    return [int(size) if size.isdecimal() and len(size) < 10 else 0 for size in sizes]


def is_readable(layer: OpenVinoLayer) -> bool:
    """Tells whether a model's input has full precision."""
    kind = KINDS.get(layer.data.get("element_type", ""))
    return kind is not None and kind.name not in ("float16", "bfloat16")


@dataclass(frozen=True)
class OpenVinoModel(ArrayModel):
    """OpenVINO model as a function of its inputs, which `sn.Graph` traces.

    layers: the layers that its results need, in order. data: the bytes of its constants. names: the unique
    names of these layers. recurrent: the recurrent layers that run, by operator.
    """

    open_steps: ClassVar[str] = "convert the model with an open number of steps (-1)"
    layers: tuple[OpenVinoLayer, ...]
    data: Array
    names: Mapping[OpenVinoLayer, str]
    recurrent: Mapping[OpenVinoLayer, RecurrentLayer]

    def computed(self, inputs: Mapping[str, Placed], params: Mapping[str, Any]) -> dict[str, Placed]:
        """Computes the outputs of the model, by the names of their layers, from its inputs by name."""
        like, values = self.like(inputs), dict[Output, Placed]()
        outputs = dict[str, Placed]()
        for layer in self.layers:
            if layer.type == INPUT:
                values[id(layer), 0] = inputs[layer.name]
            elif layer.type == CONST:
                values[id(layer), 0] = constant(self.array(layer))
            elif layer.type == RESULT:
                name = self.names[layer.inputs[0]]
                outputs[self.names[layer] if name in outputs else name] = self.value(layer, 0, values)
            else:
                results = self.results(layer, values, like)
                values |= {(id(layer), place): value for place, value in enumerate(results)}
        return outputs

    def array(self, layer: OpenVinoLayer) -> Array:
        """Returns the array of a constant, which is float32 if the file has it in half precision."""
        array = ir.constant(layer, self.data)
        return array.astype(np.float32) if array.dtype.itemsize == 2 and array.dtype.kind in "fV" else array

    def value(self, layer: OpenVinoLayer, port: int, values: Mapping[Output, Placed]) -> Placed:
        """Returns the computed value at an input port of a layer; raises `ModelError` if there is none."""
        source = layer.inputs[port]
        output = layer.ports[port] - len(source.inputs)
        if (id(source), output) not in values:
            raise ModelError(f"its input {port} is output {output} of {self.names[source]}, which has none")
        return values[id(source), output]

    def results(self, layer: OpenVinoLayer, values: Mapping[Output, Placed], like: Any) -> Sequence[Placed]:
        """Computes an OpenVINO layer by the rule of its operator; errors name the layer and the file."""
        where = f"{self.names[layer]} ({layer.type}) of {self.path}"
        with located(where):
            operands = tuple(self.value(layer, port, values) for port in sorted(layer.inputs))
            call = OpenVinoCall(layer, operands, like, self.recurrent.get(layer))
            found = OPENVINO[layer.type](call)
            results = [found] if isinstance(found, Placed) else found
            self.note(where, lambda: numbers_of(call, results))
        return results
