"""Reads a program of torch.export whole, as a `Graph`, without PyTorch: each operation by its row in
`importers.aten.kept`.

A file fixes the numbers of sequences and steps of the example that it was made with, unless they are
symbols. The graph is for any numbers: an operation that depends on a fixed one is refused.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any, ClassVar

from stepnet.compiler.trace.indexing import listed
from stepnet.compiler.trace.traced import Traced, refuse
from stepnet.compiler.values.arguments import stated_axes
from stepnet.compiler.values.dtypes import COMPUTED
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError, StepError, StepnetError, named, printable
from stepnet.importers.aten.backwards import in_any_order
from stepnet.importers.aten.graph import AtenGraph
from stepnet.importers.aten.kept import EXPORTED, MOST_MADE
from stepnet.importers.aten.replay import GraphReplay, NoValue, ReplayedNode, Rule
from stepnet.importers.aten.written_numbers import numbers_of
from stepnet.importers.axes import LETTERS, AxesError
from stepnet.importers.convolving import ZerosAround
from stepnet.importers.example_steps import written_in
from stepnet.importers.padding import MISFITS
from stepnet.importers.placed import Placed, ReversedSteps, Unusable
from stepnet.layout.files import zips
from stepnet.layout.files.model import Array
from stepnet.layout.files.paths import opened
from stepnet.layout.files.pickles.export_graph import (
    ExportReader,
    InPlaceChanges,
    checked_schema,
    output_names,
    symbol_of,
)
from stepnet.layout.files.pickles.exported import DTYPES, in_archive, program_in
from stepnet.layout.files.pickles.program import (
    RECURRENT,
    arguments,
    names,
    operator_of,
    rows,
    table,
    title,
    weight_names,
)
from stepnet.layout.options import option
from stepnet.model.graph import axis_choice
from stepnet.model.graph.array_model import EXPORT, ArrayModel, ModelInput
from stepnet.model.graph.graph import Graph

Json = dict[str, Any]
MOST_CHOICES = 24
"""The largest number of combinations of axes that are tried."""
STEPWISE = re.compile(r"(^|[.])weight_hh_l\d+(_reverse)?$")
"""The names of weights of layers of torch.nn that run over steps."""
MAKERS = re.compile(r"(eye|arange|full|zeros|ones|empty\w*|new_\w+|\w+_like)[.]")
"""The operations that make arrays whose sizes only the file says."""
CONVOLUTIONS = ("conv1d.default", "conv1d.padding", "convolution.default")


def graph(path: Path, *, axes: Any = None, title: str | None = None, any_steps: bool = False) -> Graph | None:
    """Reads a program of torch.export as a graph; None if the file has no program, or several.

    axes: the axes of inputs by name, or of all, such as "NT" (N sequences, T steps, _ a feature); None for
    the usual ones. title: what messages call the program; the path if that is None. any_steps: whether the
    user states that no number in it depends on the number of steps that it fixes.

    Raises `ModelError` for operations that are not supported, with their names, and `FileError` for a
    damaged file.
    """
    name = title or str(path)
    with opened(path) as (stream, size):
        members = zips.members(stream, size)
        document, arrays = program_in(stream, size, members), in_archive(stream, size, members)
    if document is None:
        return None
    with named(name):
        checked_schema(document)
        program = ExportProgram.of(name, document, arrays)
    missing = [*program.unsupported()]
    if missing:
        raise ModelError(unsupported_text(program, missing))

    def build(chosen: Sequence[str], apart: axis_choice.Apart) -> Graph:
        """Makes the graph for one choice of the inputs' axes, such as "NT_" (N sequences, T steps, _ a
        feature); raises `AxesError` if they do not fit. apart: which inputs have steps of their own, not
        those of the first ("stated", "each" or "" for none).
        """
        with named(name):
            placed = axis_choice.agreed([*map(program.model_input, program.inputs, chosen)], apart)
            model = ExportedModel(name, placed, program, any_steps=any_steps)
        try:
            return axis_choice.graph_of(model, program.weights)
        except (StepError, ModelError) as error:
            raise AxesError(str(error)) from error

    stated = dict.fromkeys(program.inputs, axes) if isinstance(axes, str) else stated_axes(axes)
    axis_choice.check_names(stated, program.inputs)
    choices = product(
        *([stated[name]] if name in stated else program.usual_axes(name) for name in program.inputs)
    )
    return axis_choice.first_fitting(name, islice(choices, MOST_CHOICES), build, program.remedy)


def unsupported_text(program: "ExportProgram", missing: list[str]) -> str:
    """Formats the error for a program with operations that are not supported: lists up to five of them
    (`missing`), and advises how to export the program so that it has none.
    """
    shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
    are = "are operations" if len(missing) > 1 else "is an operation"
    others = len([*program.written.needed()]) - len(missing)
    advice = ""
    if any("(stepnet." in name for name in missing):
        advice = "; of a model that stepnet.torch.accelerate accelerated, call undo() first, then export"
    elif any("_." in name for name in missing):
        advice = "; of a program, .run_decompositions({}) gives one that changes nothing in place"
    if program.recurrent_nodes:
        advice += f": say {option('recurrent only')} for the recurrent layers alone"
    return f"{program.path}: {shown} {are} that stepnet does not support; its other {others} are{advice}"


@dataclass(frozen=True)
class ExportProgram:
    """Program of torch.export, as its file describes it.

    path: the file, for messages. json: the graph.
    inputs: the names of the arguments that are tensors of a call. outputs: the outputs in JSON.
    output_names: their names. weights: the parameters and buffers that it reads, by the names of the
    state_dict. constants: other tensors that are in it. held: the names of both, by those of the arguments.
    """

    path: str
    json: Json
    inputs: tuple[str, ...]
    outputs: tuple[Json, ...]
    output_names: tuple[str, ...]
    weights: Mapping[str, Array]
    constants: Mapping[str, Array]
    held: Mapping[str, str]

    @classmethod
    def of(cls, path: str, document: Json, arrays: Mapping[str, Array]) -> "ExportProgram":
        """Reads the signature of a torch.export program (its inputs, outputs and weights) from its JSON,
        `document`; raises `ModelError` for one that changes its buffers as it runs, and for weights of a
        dtype that is not supported.

        arrays: the weights and constants in the file, by name.
        """
        module = table(document.get("graph_module"))
        graph, signature = table(module.get("graph")), table(module.get("signature"))
        specs = rows(signature.get("input_specs"))
        outputs = list[Json]()
        for spec in rows(signature.get("output_specs")):
            if "user_output" not in spec:
                kind = next(iter(spec), "output")
                raise ModelError(
                    f"the program has an output of kind {kind[:100]!a}, which changes its state: call "
                    ".eval() on the module ahead of torch.export.export"
                )
            outputs.append(table(table(spec["user_output"]).get("arg")))
        read = {name for node in rows(graph.get("nodes")) for name in names(node.get("inputs"))}
        read.update(names(outputs))
        held = {name: own for spec in specs for name, own in weight_names(spec) if name in read}
        values = {own: weight(arrays, own) for own in held.values()}
        lifted = {own for spec in specs if "tensor_constant" in spec for _, own in weight_names(spec)}
        weights = {own: array for own, array in values.items() if own not in lifted}
        constants = {own: array for own, array in values.items() if own in lifted}
        inputs = [name for spec in specs for name in names(table(table(spec.get("user_input")).get("arg")))]
        given = [output for output in outputs if "as_none" not in output]
        called = output_names(module, [next(names(output), "a number") for output in given])
        return cls(path, graph, tuple(inputs), tuple(given), called, weights, constants, held)

    @property
    def written(self) -> InPlaceChanges:
        """The nodes on which the outputs depend, and the values that they change in place."""
        return InPlaceChanges(rows(self.json.get("nodes")), [*self.outputs], {*self.arguments})

    @property
    def recurrent_nodes(self) -> list[Json]:
        """The nodes of PyTorch's recurrent operators."""
        return [node for node in rows(self.json.get("nodes")) if operator_of(node) in RECURRENT]

    def unsupported(self) -> Iterator[str]:
        """Yields the names of operations that the table of `importers.aten.kept` lacks, for a message."""
        for place, node in self.written.needed():
            if self.written.operator(node, place) not in EXPORTED:
                yield printable(title(node))

    @property
    def remedy(self) -> str:
        """Advice for a program that is refused; "" if there is none. A program that has the weights of
        recurrent layers and no recurrent operator was decomposed to single steps: it should be saved before
        that.
        """
        if self.recurrent_nodes or not any(STEPWISE.search(name) for name in self.weights):
            return ""
        return (
            "run_decompositions() has made steps of its recurrent layers: save the program as it was before"
        )

    @property
    def arguments(self) -> list[str]:
        """The names of the arguments of the graph, in the order of their values."""
        return [*self.inputs, *self.held]

    def sizes(self, name: str) -> list[Json]:
        """Returns the sizes of an input in JSON."""
        return rows(table(table(self.json.get("tensor_values")).get(name)).get("sizes"))

    def usual_axes(self, name: str) -> list[str]:
        """Lists the axes that the input `name` may have, the most usual first, as letters: N for sequences, T
        for steps, _ for a feature. An initial state of a recurrent operator is "_N_", or has no axes that are
        supported. If no recurrent operator has the batch first, axes that begin with the steps come first; in
        a program without recurrent operators these are left out.
        """
        rank = len(self.sizes(name))
        for node in self.recurrent_nodes:
            if name in names(arguments(node).get("hx")):
                return ["_N_"] if rank == 3 else []
        sizes = [size.get("as_int", 0) for size in self.sizes(name)]
        usual = axis_choice.axes_of_sizes(sizes)
        if rank == 3 and self.is_convolved(name) and "N_T" not in usual:
            usual.append("N_T")
        flags = [table(arguments(node).get("batch_first")).get("as_bool") for node in self.recurrent_nodes]
        if not flags:
            return [axes for axes in usual if not axes.startswith("T")]
        if not any(flags):
            usual.sort(key=lambda axes: not axes.startswith("T"))
        return usual

    def is_convolved(self, name: str) -> bool:
        """Tells whether a convolution reads an input directly, so that the input's last axis is steps."""
        operands = (
            [*names(each.get("arg") for each in rows(node.get("inputs"))[:1])]
            for node in rows(self.json.get("nodes"))
            if operator_of(node).startswith("conv")
        )
        return [name] in operands

    def model_input(self, name: str, axes: str) -> ModelInput:
        """Makes an input of the model from the program's description of it, with the chosen axes, such as
        "NT_" (N sequences, T steps, _ a feature). Raises `AxesError` if they do not fit, and `ModelError` for
        an unsupported dtype.
        """
        sizes = [size.get("as_int", 0) for size in self.sizes(name)]
        meta = table(table(self.json.get("tensor_values")).get(name))
        kind = meta.get("dtype")
        dtype = DTYPES.get(kind) if isinstance(kind, int) else None
        if dtype not in COMPUTED or not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise ModelError(f"its input {name[:100]!a} is of dtype {dtype}, which is not supported")
        if "T" in axes and sizes[axes.index("T")] == 1:
            raise AxesError(
                f"the file fixes the number of steps of {name[:100]!a} to 1: export it with more steps"
            )
        return axis_choice.with_axes(name, sizes, dtype, axes)

    def graph(self, inputs: Sequence[ModelInput]) -> AtenGraph:
        """Reads the program's graph of operations, in which symbolic sizes are named by the chosen axes of
        the inputs: sequences or steps. Raises `AxesError` if one symbol would be both.
        """
        symbols = dict[str, str]()
        for each in inputs:
            for size, letter in zip(self.sizes(each.name), each.axes, strict=True):
                symbol = symbol_of(size)
                axis = each.steps if letter == "T" else str(LETTERS[letter][0]) if letter in LETTERS else ""
                if symbol and axis and symbols.setdefault(symbol, axis) != axis:
                    raise AxesError(
                        f"the file has one number for the {symbols[symbol]} and the {axis} of "
                        f"{each.name[:100]!a}"
                    )
        return ExportReader(self.path, self.json, symbols).read(self.arguments, [*self.outputs])


def placeholder_of(value: Any) -> Unusable | None:
    """Returns the placeholder that a value is; None for other values."""
    inner = value.value if isinstance(value, Placed) else None
    return inner if isinstance(inner, Unusable) else None


def weight(arrays: Mapping[str, Array], name: str) -> Array:
    """Returns the array of a weight or constant of a torch.export program; raises `ModelError` if the file
    does not have it, or if nets do not compute with its dtype.
    """
    if name not in arrays:
        raise ModelError(f"the program reads {name[:100]!a}, which the file does not hold")
    array = arrays[name]
    if array.dtype.name not in COMPUTED:
        is_half = array.dtype.name in ("float16", "bfloat16")
        remedy = ": export model.float(), or save stepnet.torch.graph(model, inputs)" if is_half else ""
        raise ModelError(f"{name[:100]!a} holds {array.dtype.name}; use one of {', '.join(COMPUTED)}{remedy}")
    return array


@dataclass(frozen=True)
class ExportedModel(ArrayModel):
    """Program of torch.export as a function of its inputs, which `sn.Graph` traces.

    program: the program, whose graph is read for the axes of the steps of each call.
    """

    has_dtypes: ClassVar[bool] = True
    open_steps: ClassVar[str] = EXPORT
    program: ExportProgram

    def computed(self, inputs: Mapping[str, Placed], params: Mapping[str, Traced]) -> dict[str, Placed]:
        """Computes the outputs of the program by name, from its inputs by name.

        params: the weights by name.
        """
        taken = self.taking({name: own.value for name, own in inputs.items()})
        with named(self.path):
            graph = self.program.graph(taken)
        like = self.like(inputs)
        builder = like.builder
        held = {
            name: Traced(builder, builder.constant(array)) for name, array in self.program.constants.items()
        } | dict(params)
        values = [
            *(inputs[name] for name in self.program.inputs),
            *(
                Placed(held[own], tuple((size,) for size in held[own].type.shape))
                for own in self.program.held.values()
            ),
        ]
        stated = dict(pair for each in taken for pair in each.stated_sizes)
        rules = {name: self.guarded(rule) for name, rule in EXPORTED.items()}
        results = GraphReplay.of("model", graph, values, rules, stated=stated, like=like).results(self.path)
        outputs = {
            name: self.output(name, value)
            for name, value in zip(self.program.output_names, results, strict=True)
        }
        for name, array in self.program.constants.items():
            self.note(f"the constant {name}", partial(written_in, array))
        return outputs

    def output(self, name: str, value: Any) -> Placed:
        """Returns the value of an output of the model, called `name`; raises `ModelError` if the output is a
        number, or a result that stepnet does not compute.
        """
        if isinstance(value, Placed):
            return value
        what = value.what if isinstance(value, NoValue) else "a number"
        raise ModelError(f"{self.path}: output {name!r} is {what}, which is not a value of a model")

    def guarded(self, rule: Rule) -> Rule:
        """Wraps the rule of an operation with checks of its arguments, since a file may be damaged:
        placeholders that the operation cannot read, arrays that are too large, and arguments of wrong types.
        """

        def run(call: ReplayedNode) -> Any:
            """Calls the rule of an operation; raises `StepError` if an argument is a placeholder (such as
            steps in reversed order) that only other operations may read.
            """
            values = [part for value in call.arguments.values() for part in listed(value)]
            placeholders = [*filter(None, map(placeholder_of, values))]
            backwards = any(isinstance(each, ReversedSteps) for each in placeholders)
            for each in placeholders:
                is_padded = isinstance(each, ZerosAround) and call.name in CONVOLUTIONS
                if not (is_padded or isinstance(each, ReversedSteps)):
                    raise refuse(each.reason)
            sizes = [size for tensor in call.tensors for size in tensor.shape if isinstance(size, int)]
            if MAKERS.match(call.name) and prod(sizes) > MOST_MADE:
                raise refuse(f"it makes an array of {prod(sizes)} numbers; the most is {MOST_MADE}")
            try:
                made = in_any_order(rule, call) if backwards and call.name not in RECURRENT else rule(call)
                if not backwards:
                    self.note(call.title, lambda: numbers_of(call, made))
            except StepnetError:
                raise
            except (AssertionError, AttributeError, *MISFITS) as error:
                raise refuse(f"its operands or arguments do not fit: {str(error)[:200]}") from error
            return made

        return run
