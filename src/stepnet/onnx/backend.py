"""Implements ONNX's backend interface: models run on padded arrays with all of ONNX's axes.

X [time, batch, 3]   -->   [batch, time, 3]   -->   graph   -->   Y [time, 1, batch, 4]
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from stepnet.compiler.values.arguments import array_of, short_repr
from stepnet.errors import InputError, ModelError
from stepnet.importers.axes import JOINED, text_of
from stepnet.importers.padding import padding_values
from stepnet.importers.placed import Placed
from stepnet.layout.files.onnx.graph import Constant, Walk, find
from stepnet.layout.files.onnx.node import GATES, INPUTS, WEIGHTS
from stepnet.layout.files.onnx.tensor import Proto, text
from stepnet.layout.files.paths import library
from stepnet.layout.files.store import Store
from stepnet.model.graph.array_model import ModelInput
from stepnet.model.graph.graph import Graph
from stepnet.onnx.loading import loaded
from stepnet.onnx.model import OnnxModel
from stepnet.onnx.names import DTYPES, HALVES
from stepnet.onnx.quantized import NUMBERS

Array = np.ndarray
STORED = {**HALVES, **NUMBERS}
"""The dtypes, by ONNX's number, of values that are computed in another dtype."""
base: Any = library("onnx.backend.base", "stepnet.onnx", "onnx")


class Prepared(base.BackendRep):
    """ONNX model that is ready to run on padded arrays, as ONNX's backend interface has it."""

    def __init__(self, model: Proto, engine: Any) -> None:
        """Reads the nodes of a model, its inputs that are not constants (`stated`: their declarations;
        `weights`: the inputs that are weights of recurrent nodes), and the types of its outputs. engine: an
        engine, or several in order of preference.
        """
        self.model, self.engine = model, engine
        self.graphs = dict[Any, Graph]()
        self.walk = Walk(model, store_of(model))
        initial = self.walk.main.sources
        self.stated = {
            text(value.name): value.type.tensor_type
            for value in model.graph.input
            if not isinstance(initial.get(text(value.name)), Constant)
        }
        self.weights = weights(self.walk, [*self.stated])
        self.types = {text(value.name): value.type.tensor_type.elem_type for value in model.graph.output}

    def graph(self, constants: dict[str, Array]) -> Graph:
        """Returns the model as a `Graph` with these weights as constants, since a model may have its weights
        as inputs.

        constants: the arrays of the inputs that are weights, by name. The graph for the latest ones is
        cached.
        """
        key = tuple((name, array.tobytes()) for name, array in constants.items())
        if key not in self.graphs:
            self.graphs = {
                key: loaded(self.model, store_of(self.model), self.model.graph.name, {}, constants)
            }
        return self.graphs[key]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """Runs the model and returns its outputs as padded arrays.

        inputs: arrays in the order of the model's inputs, or by name, of the dtypes and sizes that the model
            states.

        Raises `InputError` for other arrays, and `ModelError` for an output whose numbers in the padding are
        unknown.
        """
        arrays = named_arrays(inputs, [*self.stated])
        for name, array in arrays.items():
            check_stated(name, array, self.stated[name])
        graph = self.graph({name: arrays[name] for name in self.weights})
        model: OnnxModel = graph.model  # type: ignore[assignment]
        rows = {input_.name: rows_first(arrays[input_.name], input_) for input_ in model.inputs}
        sequences = {input_.name: rows[input_.name] for input_ in model.sequences}
        statics = {input_.name: rows[input_.name] for input_ in model.statics}
        lengths = next((rows[input_.name] for input_ in model.inputs if input_.is_lengths), None)
        x = next(iter(sequences.values()))
        if model.alone and len(x) > 1:
            raise ModelError(
                f"{self.model.graph.name}: it quantizes by the range of all sequences of a batch, and "
                f"stepnet by that of each: run one sequence at a time\n  at {model.alone[0]}"
            )
        given = x if len(sequences) == 1 else sequences
        results = graph(given, statics=statics or None, lengths=lengths, engine=self.engine)
        outputs = [results] if len(model.outputs) == 1 else [results[name] for name in model.outputs]
        is_padding = None if lengths is None else padding_mask(lengths, x.shape[1])
        return tuple(
            as_in_onnx(name, np.asarray(output), model.ends[name], is_padding, self.types[name])
            for output, name in zip(outputs, model.outputs, strict=True)
        )


def store_of(model: Proto) -> Store:
    """Makes the limit on the memory that reading the tensors of a model may take, from the model's size."""
    return Store(None, model.ByteSize())


def weights(walk: Walk, names: Sequence[str]) -> list[str]:
    """Lists the inputs of a model that recurrent nodes read as weights, which have to be known when the graph
    is made.

    walk: the nodes of the model. names: the inputs.
    """
    read = {
        find(node.scope, operand)[:2]
        for node in walk.nodes
        if node.op in GATES
        for slot, operand in zip(INPUTS[node.op], node.inputs, strict=False)
        if slot in WEIGHTS and operand
    }
    return [name for name in names if (walk.main, name) in read]


def padding_mask(lengths: Array, count: int) -> Array:
    """Computes a mask [batch, count] that is true in the padding after sequences of these lengths."""
    return np.greater_equal(np.arange(count), lengths[:, None])


def named_arrays(inputs: Any, names: Sequence[str]) -> dict[str, Array]:
    """Returns the inputs by name, as arrays; raises `InputError` unless they are exactly the inputs of the
    model, which `names` lists.

    inputs: arrays in the order of the names, or by name.
    """
    if isinstance(inputs, dict):
        by_name = cast("dict[Any, Any]", inputs)
    else:
        several = isinstance(inputs, list | tuple)
        in_order: list[Any] = list(cast("list[Any]", inputs)) if several else [inputs]
        if len(in_order) != len(names):
            raise InputError(f"the model has {len(names)} inputs, {', '.join(names)}, not {len(in_order)}")
        by_name = dict(zip(names, in_order, strict=True))
    missing = [repr(name) for name in names if name not in by_name]
    others = [short_repr(name) for name in by_name if name not in names]
    if missing or others:
        problem = f"{', '.join(missing)} missing" if missing else f"{', '.join(others)} is not one of them"
        raise InputError(f"the model has the inputs {', '.join(names)}: {problem}")
    return {name: array_of(value, f"input {name!r}") for name, value in by_name.items()}


def check_stated(name: str, array: Array, stated: Proto) -> None:
    """Raises `InputError` unless an array has the dtype and the sizes that the model states for an input.

    stated: the input's declaration in the model.
    """
    dtype = np.dtype(HALVES.get(stated.elem_type) or DTYPES.get(stated.elem_type, "O"))
    sizes = [size.dim_value if size.HasField("dim_value") else None for size in stated.shape.dim]
    fits = len(sizes) == array.ndim and all(
        size in (None, actual) for size, actual in zip(sizes, array.shape, strict=True)
    )
    if array.dtype != dtype or not (fits or not stated.HasField("shape")):
        texts = ", ".join("?" if size is None else str(size) for size in sizes)
        raise InputError(
            f"input {name!r} is {array.dtype} {list(array.shape)}; the model states {dtype} [{texts}]"
        )


def rows_first(array: Array, input_: ModelInput) -> Array:
    """Transposes an array from ONNX's axes to [batch, time, ...], as graphs take it.

    input_: the input's declared axes; an array without an axis of sequences becomes a batch of one. The
    result is a copy in the dtype in which the model computes.
    """
    axes = "N" if input_.is_lengths else input_.axes
    order = [axes.index(letter) for letter in "NT" if letter in axes]
    order += [axis for axis, letter in enumerate(axes) if letter == "_"]
    transposed = np.array(array.transpose(order).astype(input_.dtype), order="C")
    return transposed if "N" in axes else transposed[None]


def as_in_onnx(name: str, output: Array, value: Placed, is_padding: Array | None, elem_type: int) -> Array:
    """Converts an output to the axes and dtype that it has in ONNX, with ONNX's numbers in the padding.

    name: the name of the output, for errors. output: the numbers as stepnet computed them. value: the
    output's axes, and what is known of its padding. is_padding: the mask of padding [batch, time]; None if
    there is none. elem_type: ONNX's number of the element type. Raises `ModelError` if the numbers in the
    padding are unknown.
    """
    if "T" in value.letters and is_padding is not None and is_padding.any():
        padding_numbers = padding_values(value)
        if padding_numbers is None:
            raise ModelError(
                f"output {name!r} has unknown numbers after the ends of sequences: "
                "pass sequences of equal length, or mask the output in the model"
            )
        output = np.array(output)
        output[is_padding] = padding_numbers
    axes = value.letters
    if JOINED in axes:
        raise ModelError(
            f"output {name!r} is {text_of(value.axes)}: its sequences and steps have no axes of their "
            "own, as padding needs"
        )
    array = output if "N" in axes else output[0]
    leading = [letter for letter in "NT" if letter in axes]
    features = iter(range(len(leading), array.ndim))
    order = [leading.index(letter) if letter != "_" else next(features) for letter in axes]
    stored = STORED.get(elem_type, array.dtype)
    with np.errstate(over="ignore"):
        return np.array(array.transpose(order).astype(stored), order="C")


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
        """Makes an ONNX model ready to run, as `onnx.backend.base` asks; the result has the method `run`.

        device: "CPU". engine: an engine, or several in order of preference.
        """
        if not cls.supports_device(device):
            raise InputError(f"device is 'CPU', not {device!r}")
        checked: Any = super()
        checked.prepare(model, device, **kwargs)
        return Prepared(model, engine)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Tells whether models run on a device: only on the CPU."""
        return device == "CPU"
