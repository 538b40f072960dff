"""Saves a model as an ONNX model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Type
from stepnet.compiler.plan.passes.sink import sink
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.arguments import flag, instance, is_one_of, short_repr
from stepnet.compiler.values.structure import leaves, named_leaves, transform
from stepnet.errors import InputError
from stepnet.layout.files.onnx.drawing import GraphBuilder
from stepnet.layout.files.onnx.tensor import Proto
from stepnet.layout.files.paths import library
from stepnet.model.blank import statics_of
from stepnet.model.graph.graph import Graph
from stepnet.model.layers import Combined, recurrences_of
from stepnet.model.model import Model
from stepnet.model.recurrence import RNN
from stepnet.onnx.nets import check_extents, written
from stepnet.onnx.recurrences import recurrence
from stepnet.onnx.scope import OnnxValue, Scope
from stepnet.ragged import Ragged

LAYOUTS = {"NT": ("batch", "time"), "TN": ("time", "batch")}


def save(
    model: Model, path: str | Path, *, layout: str = "NT", lengths: bool = False, force: bool = False
) -> None:
    """Writes a model as an ONNX model, for any batch and number of steps.

    Recurrences that compute ONNX's GRU, LSTM or simple RNN become these operators, however their steps are
    written; all others become Scans of their equations. Values that depend only on parameters become
    constants.

    The inputs and outputs have the model's names. A single input without a name is `x`, a single static input
    `static`, a single output `output`; several outputs without names are `output_0` and so on. The outputs of
    an `RNN`, a `Stack` or a `Bidirectional` are `output`, and the final memories: `final`, or as `final.h`.

    Args:
        model: The model, as it was traced for its latest inputs.
        path: The new file.
        layout: The first axes of sequences and of outputs of each step: "NT" for [batch, time, features],
            "TN" for [time, batch, features].
        lengths: Whether the model has another input `lengths`, int32 [batch]. Then the padding has no effect,
            and outputs are zeros there.
        force: Whether to replace an existing file.

    Raises:
        ModelError: For an operation that ONNX cannot express, with the user's line.
        InputError: For invalid arguments, for a model whose inputs are not known yet, and for sequences that
            end early.
        FileError: If `path` exists, unless `force`, and if onnx is not installed.

    >>> import tempfile
    >>> import numpy as np
    >>> import onnx
    >>> import stepnet as sn
    >>> import stepnet.onnx
    >>> gru = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(inputs=8, hidden=16))
    >>> outputs, final = gru(np.ones((2, 5, 8), "float32"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     stepnet.onnx.save(gru, f"{folder}/gru.onnx", layout="TN")
    ...     onnx.load(f"{folder}/gru.onnx").graph.node[0].op_type
    'GRU'
    """
    instance(model, Model, "save takes an RNN, a Stack, a Bidirectional or a Graph")
    if not is_one_of(layout, LAYOUTS):
        raise InputError(f"layout is one of {', '.join(LAYOUTS)}, not {short_repr(layout)}")
    lengths, force = flag(lengths, "lengths"), flag(force, "force")
    program = graph_of(model).program
    net = sink(program.traced.net)
    check_extents(net)
    ends = ModelEnds(library("onnx", "an .onnx file", "onnx"), layout)
    values = ends.inputs(net, program.params, lengths)
    names = [ends.scope.fresh(name_of(name)) for name, _ in named_leaves(program.traced.output)]
    results = written(ends.scope, net, values, {"recur": recurrence})
    for name, value in zip(names, results, strict=True):
        ends.output(name, value)
    ends.scope.drawing.write(path, ends.given, ends.made, force)


def graph_of(model: Model) -> Graph:
    """Returns a model as a graph to write: a `Graph` itself; for other models, one with their outputs and
    final memories as results, for the inputs that they were last called with or declare.

    Raises `InputError` for sequences that end early, and before the inputs are known.
    """
    if model.frame_step is not None:
        raise InputError(
            "a model in integers alone is not written to an .onnx file: write the model that it was made of"
        )
    if isinstance(model, Graph):
        return model
    if model.ends_early:
        raise InputError(
            "sequences that end early (until=) are not exported: ONNX has the steps of its inputs"
        )
    assert isinstance(model, RNN | Combined)
    assert model.net  # which raises InputError before the inputs are known
    statics = statics_of(model)

    def outputs(x: Any, params: Any) -> Any:
        """Returns the outputs and final memories of the layers."""
        return dict(zip(("output", "final"), model(x), strict=True))

    def with_statics(x: Any, params: Any, statics: Any) -> Any:
        """Returns the outputs and final memories of layers with statics."""
        return dict(zip(("output", "final"), model(x, statics=statics), strict=True))

    has_statics = bool(leaves(statics))
    return Graph(
        with_statics if has_statics else outputs,
        inputs=next(recurrences_of(model)).program.traced.inputs,
        statics=transform(spec_of, statics) if has_statics else None,
    )


def spec_of(static: Any) -> Spec:
    """Returns the `Spec` of a static with a value per sequence; raises `InputError` for a sequence."""
    if isinstance(static, Ragged):
        raise InputError("statics that are sequences are not exported: give them as steps of the inputs")
    return Spec(static.shape[1:], static.dtype)


def name_of(leaf: str) -> str:
    """Names a model's output. leaf: its key or position in the structure of the graph's outputs, "" for a
    single one.

    >>> name_of(""), name_of("tags"), name_of("1")
    ('output', 'tags', 'output_1')
    """
    return leaf if leaf and not leaf[0].isdigit() else f"output_{leaf}".rstrip("_")


class ModelEnds:
    """Writes the inputs and outputs of an ONNX model, around the nodes in its scope. layout: "NT" or "TN"."""

    def __init__(self, onnx: Any, layout: str) -> None:
        """Starts an empty ONNX model, to which inputs, nodes and outputs are added. onnx: the package.
        layout: the first axes of its inputs and outputs, "NT" for [batch, time] or "TN" for [time, batch].
        """
        self.scope = Scope(GraphBuilder(onnx))
        self.layout = layout
        self.given = list[Proto]()
        self.made = list[Proto]()

    def inputs(self, net: Net, params: Sequence[Any], lengths: bool) -> dict[int, OnnxValue]:
        """Adds the inputs of a net to the model; returns their values by node number. Parameters become
        constants, and other inputs are declared.

        params: the arrays of the parameters. lengths: whether the model has an input of lengths.
        """
        values, constants = dict[int, OnnxValue](), iter(params)
        for number in net.inputs:
            node = net.nodes[number]
            if node.type.extent == CONST:
                values[number] = OnnxValue(node.type, array=np.asarray(next(constants)))
            else:
                values[number] = self.input(node.name, node.type)
        if lengths:
            self.scope.lengths = self.scope.fresh("lengths")
            kind = self.scope.kind("int32")
            self.given.append(
                self.scope.drawing.onnx.helper.make_tensor_value_info(self.scope.lengths, kind, ["batch"])
            )
        return values

    def input(self, name: str, type_: Type) -> OnnxValue:
        """Declares an input of the model; returns its value as nodes read it: if it has steps, with time as
        its first axis.

        name: the wanted name. type_: the type of the input, with a value per sequence or per step. The number
        of sequences and steps is taken from the first input with steps.
        """
        value = OnnxValue(type_, self.scope.fresh(name))
        if type_.extent == ROWS:
            self.given.append(self.scope.declared(value.name, type_, ["batch"]))
            return value
        self.given.append(self.scope.declared(value.name, type_, LAYOUTS[self.layout]))
        value = self.swapped_axes(value)
        self.scope.frames = self.scope.frames or value.name
        return value

    def output(self, name: str, value: OnnxValue) -> None:
        """Adds an output of the model called `name`. value: the result to write. If it has steps, those after
        a sequence's end are set to zero in a model with lengths, and its first axes get the order of the
        model's layout, such as batch before time.
        """
        axes = ("batch",)
        if len(value.type.extent) == len(STEPS):
            steps = value.type.extent[-1].replace(STEPS[-1], "time")
            axes = tuple(steps if axis == "time" else axis for axis in LAYOUTS[self.layout])
            value = self.swapped_axes(self.scope.masked(value, "steps") if self.scope.lengths else value)
        self.scope.drawing.node("Identity", [self.scope.name(value)], name)
        self.made.append(self.scope.declared(name, value.type, axes))

    def swapped_axes(self, value: OnnxValue) -> OnnxValue:
        """Swaps batch and time of an input or output of an ONNX model whose layout is batch first, as its
        nodes have time first; returns a value of any other layout unchanged.
        """
        if self.layout == "TN":
            return value
        order = [1, 0, *range(2, 2 + value.rank)]
        return self.scope.apply("Transpose", value.type, value, perm=order)
