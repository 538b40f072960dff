"""Reads a TensorFlow Lite model whole, as a `Graph`: each operator by its row in `operators.py`."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers.placed import Placed, Unusable, constant
from stepnet.layout.files.recurrent import RecurrentLayer
from stepnet.layout.files.store import Store
from stepnet.layout.files.tflite.call import TfliteCall
from stepnet.layout.files.tflite.file import (
    DTYPES,
    Array,
    Maker,
    Subgraph,
    array_at,
    checked_item,
    makers_of,
    name_of,
    node_of,
    operands,
)
from stepnet.layout.files.tflite.flatbuffer import Table, root
from stepnet.layout.files.tflite.modules import module
from stepnet.layout.files.tflite.names import KINDS, operator_name
from stepnet.layout.files.tflite.node import TfliteNode
from stepnet.layout.files.tflite.operators import PLACEHOLDERS, TFLITE
from stepnet.layout.files.tflite.written_numbers import numbers_of
from stepnet.model.graph.array_model import ArrayModel, located
from stepnet.model.graph.axis_choice import fitting_graph
from stepnet.model.graph.graph import Graph

BOOL = 6
"""The number of the dtype of truth values in TFLite's schema."""


@dataclass(frozen=True, eq=False)
class TfliteOperator:
    """Operator of a TFLite model: its name, and its table in the file.

    node, recurrent: of a recurrent operator its options, and the layer that runs.
    """

    name: str
    table: Table
    node: TfliteNode | None = None
    recurrent: RecurrentLayer | None = None


def graph(path: Path, *, any_steps: bool = False) -> Graph | None:
    """Reads a TFLite model as a graph; None if it has several graphs, or an operator that the table in
    `operators.py` does not have.

    any_steps: whether the user states that no number in it depends on the number of steps.

    Raises `ModelError` for an operator whose options are not supported, with its output's name.
    """
    data = path.read_bytes()
    model, store = root(data, str(path), b"TFL3", ".tflite"), Store(path, len(data))
    codes = [max(code.get(0, "b"), code.get(3, "i")) for code in model.tables(1)]
    titles = [operator_name(code, each.text(1)) for code, each in zip(codes, model.tables(1), strict=True)]
    subgraphs = model.tables(2)
    if len(subgraphs) != 1 or not {*titles} <= TFLITE.keys():
        return None
    tables = subgraphs[0].tables(3)
    tensors = Subgraph(subgraphs[0].tables(0), model.tables(4), makers_of(tables, codes, store), store)
    operators = tuple(operator(path, tensors, table, codes, titles) for table in tables)
    entrances, exits = ([int(index) for index in subgraphs[0].vector(field, "<i4")] for field in (1, 2))
    if not all(is_readable(tensors, index) for index in entrances):
        return None
    declared = [
        (name_of(tensors, index), shape_of(tensors, index), input_dtype(tensors, index))
        for index in entrances
    ]
    return fitting_graph(
        str(path),
        declared,
        lambda placed: TfliteModel(
            str(path), placed, tensors, operators, tuple(entrances), tuple(exits), any_steps=any_steps
        ),
    )


def unsupported(path: Path, names: Sequence[str]) -> list[str]:
    """Returns the operators without a row in the table. names: of operators that are not recurrent, each with
    its kind in brackets.
    """
    return [name for name in names if name.rpartition("(")[2].removesuffix(")") not in TFLITE]


def operator(
    path: Path, tensors: Subgraph, table: Table, codes: Sequence[int], titles: Sequence[str]
) -> TfliteOperator:
    """Reads an operator of a TFLite file from its FlatBuffers table, with its weights if it is recurrent."""
    index: int = table.get(0, "I")
    if codes[index] not in KINDS:
        return TfliteOperator(titles[index], table)
    name = name_of(tensors, next(iter(operands(table, 2)), -1))
    node = node_of(tensors, Maker(codes[index], table, 0), name)
    return TfliteOperator(titles[index], table, node, RecurrentLayer.of([module(path, node, "")]))


def shape_of(tensors: Subgraph, index: int) -> list[int]:
    """Returns the shape of a tensor, with 0 for a size that the file does not state."""
    tensor = checked_item(tensors.tensors, index, "tensor", tensors.store)
    sizes = tensor.vector(7, "<i4") if len(tensor.vector(7, "<i4")) else tensor.vector(0, "<i4")
    return [max(0, int(size)) for size in sizes[:32]]


def is_readable(tensors: Subgraph, index: int) -> bool:
    """Tells whether a model's input has full precision, and is not quantized."""
    tensor = checked_item(tensors.tensors, index, "tensor", tensors.store)
    return DTYPES.get(tensor.get(1, "b")) in ("<f4", "<f8", "<i4", "<i8")


def input_dtype(tensors: Subgraph, index: int) -> str:
    """Returns the dtype of a model's input, which is readable."""
    return np.dtype(DTYPES[tensors.tensors[index].get(1, "b")]).name


@dataclass(frozen=True)
class TfliteModel(ArrayModel):
    """TFLite model as a function of its inputs, which `sn.Graph` traces.

    tensors: its tensors and their numbers. operators: in the order in which they run. entrances, exits: the
    tensors that are its inputs and outputs. constants: the numbers of tensors that were read so far.
    """

    open_steps: ClassVar[str] = "convert a model with an open number of steps (None)"
    tensors: Subgraph
    operators: tuple[TfliteOperator, ...]
    entrances: tuple[int, ...]
    exits: tuple[int, ...]
    constants: dict[int, Array | None] = field(default_factory=dict[int, Array | None])

    def computed(self, inputs: Mapping[str, Placed], params: Mapping[str, Any]) -> dict[str, Placed]:
        """Computes the outputs of the model, by the names of their tensors, from its inputs by name."""
        like = self.like(inputs)
        values = {index: inputs[each.name] for index, each in zip(self.entrances, self.inputs, strict=True)}
        for operator in self.operators:
            values |= self.results(operator, values, like)
        missing = [index for index in self.exits if index not in values]
        if missing:
            raise ModelError(f"{self.path}: output {name_of(self.tensors, missing[0])!r} is not computed")
        return {name_of(self.tensors, index): values[index] for index in self.exits}

    def value(self, index: int, values: Mapping[int, Placed]) -> Placed | None:
        """Returns the value of TFLite tensor number `index`, computed or constant; None if it has none."""
        if index in values:
            return values[index]
        if index not in self.constants:
            self.constants[index] = array_at(self.tensors, index) if index >= 0 else None
        array = self.constants[index]
        return None if array is None else constant(array)

    def results(self, operator: TfliteOperator, values: Mapping[int, Placed], like: Any) -> dict[int, Placed]:
        """Computes the results of an operator by its rule; returns them by the number of the tensor that each
        is. Errors name the operator's first output and the file. values: the values of tensors so far. like:
        a value per step of the inputs.
        """
        outputs = operands(operator.table, 2)
        where = f"{name_of(self.tensors, next(iter(outputs), -1))} ({operator.name}) of {self.path}"
        options: Mapping[str, Any] = operator.node.options if operator.node else {}
        with located(where):
            own = tuple(self.value(index, values) for index in operands(operator.table, 1))
            self.check(operator, own)
            call = TfliteCall(
                own,
                operator.table.table(4),
                self.dtype(next(iter(outputs), -1)),
                like,
                operator.recurrent,
                bool(options.get("time_major")),
            )
            found = TFLITE[operator.name](call)
            results = [found] if isinstance(found, Placed) else found
            self.note(where, lambda: numbers_of(operator.name, call, results))
        return dict(zip(outputs, results, strict=False))

    def dtype(self, index: int) -> str:
        """Returns the dtype of tensor number `index`; float32 for a tensor that is not read."""
        tensor = checked_item(self.tensors.tensors, index, "tensor", self.tensors.store)
        kind = tensor.get(1, "b")
        return "bool" if kind == BOOL else np.dtype(DTYPES.get(kind, "<f4")).name

    def check(self, operator: TfliteOperator, own: Sequence[Placed | None]) -> None:
        """Raises `ModelError` for operands that are placeholders: values, such as reversed steps, that few
        operators can read.
        """
        for value in own:
            if value is None:
                continue
            if isinstance(value.value, Unusable) and operator.name not in PLACEHOLDERS:
                raise ModelError(value.value.reason)
