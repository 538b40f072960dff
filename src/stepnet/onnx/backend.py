"""stepnet as a backend of ONNX: models run on arrays as ONNX has them, with all their axes.

X [time, batch, 3]   -->   [batch, time, 3]   -->   graph   -->   Y [time, 1, batch, 4]
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from stepnet.errors import InputError
from stepnet.files.onnx.graph import Constant, Walk, find
from stepnet.files.onnx.node import GATES, INPUTS
from stepnet.files.onnx.tensor import Proto, text
from stepnet.files.paths import library
from stepnet.files.store import Store
from stepnet.graph.graph import Graph
from stepnet.graph.operators.inputs import ModelInput
from stepnet.onnx.loading import loaded
from stepnet.onnx.model import OnnxModel

Array = np.ndarray
base: Any = library("onnx.backend.base", "stepnet.onnx", "onnx")
WEIGHTS = ("W", "R", "B", "P")


class Prepared(base.BackendRep):
    """A model that is ready to run."""

    def __init__(self, model: Proto, engine: Any) -> None:
        self.model, self.engine = model, engine
        self.graphs = dict[Any, Graph]()
        self.walk = Walk(model, store_of(model))
        initial = self.walk.main.sources
        names = [text(value.name) for value in model.graph.input]
        self.names = [name for name in names if not isinstance(initial.get(name), Constant)]
        self.weights = weights(self.walk, self.names)

    def graph(self, constants: dict[str, Array]) -> Graph:
        """The graph with these weights, which a model may have as inputs."""
        key = tuple((name, array.tobytes()) for name, array in constants.items())
        if key not in self.graphs:
            self.graphs = {
                key: loaded(self.model, store_of(self.model), self.model.graph.name, {}, constants)
            }
        return self.graphs[key]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """The outputs of the model.

        inputs: arrays in the order of the model's inputs, or by name. Raises `InputError` for others.
        """
        arrays = named_arrays(inputs, self.names)
        graph = self.graph({name: arrays[name] for name in self.weights})
        model: OnnxModel = graph.model  # type: ignore[assignment]
        sequences = {input_.name: rows_first(arrays[input_.name], input_) for input_ in model.sequences}
        statics = {input_.name: rows_first(arrays[input_.name], input_) for input_ in model.statics}
        lengths = next((arrays[input_.name] for input_ in model.inputs if input_.axes == "lengths"), None)
        x = next(iter(sequences.values())) if len(sequences) == 1 else sequences
        made = graph(x, statics or None, lengths, self.engine)
        outputs = [made] if len(model.outputs) == 1 else [made[name] for name in model.outputs]
        return tuple(
            as_in_onnx(output, model.ends[name].axes)
            for output, name in zip(outputs, model.outputs, strict=True)
        )


def store_of(model: Proto) -> Store:
    """The memory that a model in memory may take."""
    return Store(None, model.ByteSize())


def weights(walk: Walk, names: Sequence[str]) -> list[str]:
    """The inputs of a model that are weights of recurrent nodes."""
    read = {
        find(node.scope, operand)[:2]
        for node in walk.nodes
        if node.op in GATES
        for slot, operand in zip(INPUTS[node.op], node.inputs, strict=False)
        if slot in WEIGHTS and operand
    }
    return [name for name in names if (walk.main, name) in read]


def named_arrays(inputs: Any, names: Sequence[str]) -> dict[str, Array]:
    """The inputs by name."""
    if isinstance(inputs, dict):
        given = cast("dict[str, Any]", inputs)
    else:
        several = isinstance(inputs, list | tuple)
        listed: list[Any] = list(cast("list[Any]", inputs)) if several else [inputs]
        if len(listed) != len(names):
            raise InputError(f"the model has {len(names)} inputs, {', '.join(names)}, not {len(listed)}")
        given = dict(zip(names, listed, strict=True))
    if set(given) != set(names):
        raise InputError(f"the model has the inputs {', '.join(names)}, and not {', '.join(map(str, given))}")
    return {name: np.asarray(value) for name, value in given.items()}


def rows_first(array: Array, input_: ModelInput) -> Array:
    """An array with its sequences first, and then its steps; one sequence where it has no axis of them."""
    order = [input_.axes.index(letter) for letter in "NT" if letter in input_.axes]
    order += [axis for axis, letter in enumerate(input_.axes) if letter == "_"]
    if array.ndim != len(input_.axes):
        raise InputError(f"input {input_.name!r} has {array.ndim} axes; the model's has {len(input_.axes)}")
    moved = np.array(array.transpose(order), order="C")
    return moved if "N" in input_.axes else moved[None]


def as_in_onnx(output: Any, axes: str) -> Array:
    """An output with the axes that it has in ONNX."""
    array = np.asarray(output)
    if "N" not in axes:
        array = array[0]
    front = [letter for letter in "NT" if letter in axes]
    features = iter(range(len(front), array.ndim))
    order = [front.index(letter) if letter != "_" else next(features) for letter in axes]
    return np.array(array.transpose(order), order="C")


class Backend(base.Backend):
    """stepnet as an `onnx.backend.base.Backend`: `Backend.run_model(model, inputs)`.

    >>> import onnx
    >>> from onnx import TensorProto, helper
    >>> x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "time", 2])
    >>> y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "time", 2])
    >>> graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "tanh", [x], [y])
    >>> model = helper.make_model(graph)
    >>> Backend.run_model(model, [np.zeros((1, 3, 2), "float32")])[0].shape
    (1, 3, 2)
    """

    @classmethod
    def prepare(cls, model: Proto, device: str = "CPU", engine: Any = "auto", **kwargs: Any) -> Prepared:
        """A model that is ready to run. engine: an engine, or several in order of preference."""
        if not cls.supports_device(device):
            raise InputError(f"device is 'CPU', not {device!r}")
        checked: Any = super()
        checked.prepare(model, device, **kwargs)
        return Prepared(model, engine)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models run on a device: on the CPU."""
        return device == "CPU"
