"""`graph`: a whole PyTorch module as a `stepnet.Graph`."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, cast

import numpy as np

from stepnet.compiler.trace.lines import defined_at, written_at
from stepnet.compiler.trace.reads import Latest, Reads
from stepnet.compiler.trace.traced import Traced, refuse
from stepnet.compiler.values.arguments import advised
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, rebuild, transform
from stepnet.errors import InputError, ModelError, StepError
from stepnet.importers.aten.replay import GraphReplay, NoValue
from stepnet.importers.aten.table import ATEN
from stepnet.importers.axes import Axis, is_rows
from stepnet.importers.placed import Placed, check_apart
from stepnet.importers.sizes import SEQUENCES, STEPS
from stepnet.model.graph.dtypes import check_dtypes
from stepnet.model.graph.graph import Graph
from stepnet.torch.aten_graph import TensorArgument, graph_of
from stepnet.torch.composite import FUNCTIONS, TracedLayers
from stepnet.torch.module_arguments import (
    LENGTHS,
    ModuleArgument,
    arguments_of,
    axes_of,
    called_with,
    with_own_steps,
)
from stepnet.torch.programs import is_program, program_graph
from stepnet.torch.pytorch import pytorch
from stepnet.torch.reads import reads_of
from stepnet.torch.sequences import PackedSequence
from stepnet.torch.trace import described, dtype_of, first_names
from stepnet.torch.trace import parameter as copied

torch: Any = pytorch("torch")

MODE = frozenset({"training"})
"""The attributes of modules whose changes a graph ignores."""


@advised(
    batch_first="the axes of each argument are axes=, as axes='NT', and those of layers are known",
    time_major="a call has time_major=, and the axes of the example are axes='TN'",
    statics="an argument without steps is a static of the call: give all arguments in example",
    dynamic_shapes="a graph takes any numbers of sequences and steps",
)
def graph(
    model: Any, example: Any = None, *others: Any, axes: Any = None, lengths: str | None = None
) -> Graph:
    """A PyTorch module as a model of stepnet: it runs over sequences of any lengths, without padding.

    The parameters of the graph are the module's state_dict, as arrays by its names. Sequences are the
    arguments that have steps: one alone, or a dict of them by name. Arguments without steps are the statics.
    An argument that has the lengths of the sequences is none of the graph's: it knows them. Outputs are in
    the module's structure, those of each step in the form of the sequences, and all others with the sequences
    as their first axis. A mean, a maximum or a softmax over time is over each sequence's own steps.

    The module is traced here, and no other thread may run it meanwhile. A call has the dtypes of the example:
    arrays of NumPy are float64 by default, and PyTorch's tensors float32.

    Args:
        model: A torch.nn.Module, in the mode in which it is to run: call .eval() first. A program of
            torch.export (an ExportedProgram, or its `module()`) or of TorchScript is read as the file that
            torch.export.save writes of it, by `stepnet.load`.
        example: The arguments of one call: a tensor, a tuple of arguments, or a dict of them by name. Only
            dtypes and the sizes of features matter.
        others: None: several arguments are one tuple.
        axes: The axes of each argument, N for sequences and T for steps: {"x": "TN", "h0": "_N_"}, or a text
            for all. Further axes are features. By default they are "NT", or "TN" if the module's
            recurrent layers and attentions are not batch_first; and "N" for an argument of fewer axes.
        lengths: The name of the argument that has the lengths of the sequences, where it is not `lengths`.

    Raises:
        InputError: For what is no module, and for arguments that do not fit it.
        StepError: For an operation that models do not have, or that mixes sequences, with the line of your
            code.

    >>> import numpy as np, torch, stepnet as sn, stepnet.torch
    >>> class Tagger(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.embed = torch.nn.Embedding(100, 8)
    ...         self.lstm = torch.nn.LSTM(8, 16, bidirectional=True, batch_first=True)
    ...         self.tag = torch.nn.Linear(32, 5)
    ...     def forward(self, words):
    ...         return self.tag(self.lstm(self.embed(words))[0])
    >>> tagger = Tagger()
    >>> graph = stepnet.torch.graph(tagger, torch.zeros(2, 3, dtype=torch.int64))
    >>> words = [np.array([3, 14, 15]), np.array([9, 26, 53, 58])]
    >>> outputs = graph(sn.Ragged.from_list(words))
    >>> outputs
    Ragged(2 sequences of 3 to 4 steps, 5 features, float32)
    >>> alone = tagger(torch.tensor(words[0])[None])[0].detach()
    >>> bool(np.allclose(outputs.to_list()[0], alone, atol=1e-6))
    True
    """
    if others:
        raise InputError("the arguments of an example are one tuple: graph(model, (x, lengths))")
    if example is None:
        raise InputError("a module is traced with the arguments of one call: graph(model, example)")
    if is_program(model):
        return program_graph(model, example, axes, lengths)
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"graph takes a torch.nn.Module, not {described(model)}")
    arguments = arguments_of(model, example)
    stated: Mapping[str, str] = cast("Mapping[str, str]", axes) if isinstance(axes, Mapping) else {}
    unknown = [name for name in stated if name not in arguments]
    if unknown:
        raise InputError(
            f"axes= has {unknown[0]!r}, and the arguments of the example are {', '.join(arguments)}"
        )
    name: Any = lengths
    if name is not None and not isinstance(name, str):
        raise InputError(
            f"lengths= is the name of the argument that has the lengths, not {described(name)}: give the "
            "lengths themselves in the example"
        )
    lengths = LENGTHS if lengths is None and LENGTHS in arguments else lengths
    if lengths is not None and lengths not in arguments:
        raise InputError(f"lengths= names an argument; those of the example are {', '.join(arguments)}")
    forms = {
        name: ModuleArgument.of(name, value, axes_of(model, axes, name, value), name == lengths)
        for name, value in arguments.items()
    }
    forms = with_own_steps(arguments, forms)
    sequences = single_or_dict({name: form.specs for name, form in forms.items() if form.kind == "sequences"})
    statics = single_or_dict({name: form.specs for name, form in forms.items() if form.kind == "static"})
    if not leaves(sequences):
        raise no_steps_error(arguments)
    kind = TracedModule if statics is None else ModuleWithStatics
    return Graph(kind(model, forms, modes_of(model)), parameters_of(model), inputs=sequences, statics=statics)


def no_steps_error(arguments: dict[str, Any]) -> InputError:
    """Makes the error for example arguments none of which has steps. arguments: the values by name."""
    for name, value in arguments.items():
        if any(isinstance(leaf, np.ndarray) for leaf in leaves(value)):
            return InputError(
                f"argument {name} of the example is an array of NumPy, and a module is traced with tensors: "
                "give torch.from_numpy(x)"
            )
    return InputError(
        "no argument of the example has steps: mark the axis of steps in axes= with the letter T"
    )


def parameters_of(model: Any) -> dict[str, Any]:
    """Copies the tensors of a state_dict to arrays, by name; raises `InputError` for unsupported dtypes."""
    tensors = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    for name, tensor in tensors.items():
        dtype_of(tensor, f"parameter {name}")
    return {name: copied(tensor) for name, tensor in tensors.items()}


def single_or_dict(parts: dict[str, Any]) -> Any:
    """Returns the value of a dict of one entry, None for {}, else the dict: as a `Graph` takes them."""
    return next(iter(parts.values())) if len(parts) == 1 else parts or None


# ---- the model ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TracedModule:
    """PyTorch module as a function on values of a net: traces the module to an ATen graph, and evaluates the
    graph on these values.

    forms: the descriptions of the module's arguments by name.
    modes: whether each inner module is in training mode.
    made, latest: the attributes that the module read when the graph was made, and at the latest call.
    """

    module: Any
    forms: dict[str, ModuleArgument]
    modes: tuple[bool, ...]
    made: Latest = field(default_factory=Latest, compare=False)
    latest: Latest = field(default_factory=Latest, compare=False)

    def __call__(self, x: Any, params: Any) -> Any:
        """Computes the module's outputs, as values of the net, from the sequences `x` and the parameters."""
        return self.replayed(x, params, None)

    def replayed(self, x: Any, params: Any, statics: Any) -> Any:
        """Traces the module and evaluates its graph on values of a net; returns its outputs as values of the
        net. Raises `InputError` if the module has changed since the graph was made.

        x: the sequences. params: the parameters by name. statics: the arguments without steps, or None.
        """
        self.check_unchanged()
        if self.modes != modes_of(self.module):
            raise InputError(
                f"{type(self.module).__name__} must be traced again, for inputs of other dtypes or "
                "shapes, but it is in another mode than when the graph was made: call .eval() or "
                ".train() first, so that the mode is the same"
            )
        given = self.arguments_of_kind("sequences", x) | self.arguments_of_kind("static", statics)
        fixed = {name: form for name, form in self.forms.items() if form.kind != "fixed"}
        values = list[Placed | None]()
        arguments = list[TensorArgument]()
        for name, form in fixed.items():
            for value in [None] if form.kind == "lengths" else leaves(given[name]):
                shape, dtype = ((), "int64") if value is None else (value.type.shape, value.type.dtype)
                steps = value.type.extent[-1] if value is not None and form.kind == "sequences" else STEPS
                arguments.append(TensorArgument(name, form.sizes(shape, steps), dtype, False))
                values.append(None if value is None else Placed(value, axes_in(arguments[-1].sizes)))
        for name, value in params.items():
            arguments.append(TensorArgument(name, value.type.shape, value.type.dtype, True))
            values.append(Placed(value, axes_in(value.type.shape)))
        layers, structure = TracedLayers(), list[Any]()
        rows = next(place for place, argument in enumerate(arguments) if SEQUENCES in argument.sizes)

        def flat(*tensors: Any) -> list[Any]:
            """Calls the module with a flat list of tensors; stores the symbolic number of sequences in
            `layers`, and the structure of the outputs in `structure`.
            """
            layers.rows = tensors[rows].shape[arguments[rows].sizes.index(SEQUENCES)]
            remaining = iter(tensors)
            called = {name: self.argument(form, remaining) for name, form in self.forms.items()}
            own = dict(zip(params, remaining, strict=True))
            own = {name: own[first] for name, first in first_names(self.module).items() if first in own}
            given, named = called_with(self.module, called)
            output = torch.func.functional_call(self.module, own, given, named, tie_weights=False)
            structure[:] = [tensors_of(output)]
            return leaves(structure)

        place = defined_at(self.module.forward)
        with layers.standing_in(self.module):
            graph = graph_of(flat, arguments, FUNCTIONS, layers.line)
        with written_at(place):
            results = GraphReplay.of("model", graph, values, ATEN, layers.builds).results(place)
            return rebuild(structure[0], [result_of(result) for result in results])

    @property
    def reads(self) -> Reads:
        """The values that the module reads besides its arguments and parameters; a trace depends on them."""
        return reads_of(self.module, has_computed=False)

    def check_unchanged(self) -> None:
        """Raises `InputError` if an attribute that the module reads has changed since the graph was made.

        The training mode is not compared here: `replayed` compares it where the module is traced again.
        """
        now = self.latest.current(lambda: reads_of(self.module, MODE, has_computed=False))
        made = self.made.reads = self.made.reads or now
        if made != now:
            raise InputError(
                f"{made.changes(now)} of {type(self.module).__name__} has changed since the graph was "
                "made, and the graph has its old value: make the graph again"
            )

    def check_dtypes(self, sequences: Any, statics: Any) -> None:
        """Raises `InputError` for arguments of a call with other dtypes than in the example. sequences,
        statics: the `Spec`s of the arguments, by name if there are several.
        """
        given = self.arguments_of_kind("sequences", sequences) | self.arguments_of_kind("static", statics)
        check_dtypes("the example", {name: self.forms[name].specs for name in given}, given)

    @property
    def static_names(self) -> list[str]:
        """The names of the module's arguments without steps."""
        return [name for name, form in self.forms.items() if form.kind == "static"]

    def arguments_of_kind(self, kind: str, value: Any) -> dict[str, Any]:
        """Returns the arguments of one kind ("sequences" or "static") by name, from one value or a dict."""
        names = [name for name, form in self.forms.items() if form.kind == kind]
        return {names[0]: value} if len(names) == 1 else dict(value or {})

    def argument(self, form: ModuleArgument, tensors: Any) -> Any:
        """Builds one argument for a call of the module: fills the structure in its description `form` with
        the next tensors of the iterator `tensors`. An argument without tensors has the value of the example.
        """
        if form.kind == "fixed":
            return form.value
        return rebuild(form.value, [next(tensors) for _ in leaves(form.value)])


def modes_of(module: Any) -> tuple[bool, ...]:
    """Lists for each module inside a module whether it is in training mode, to notice a change."""
    return tuple(member.training for member in module.modules())


class ModuleWithStatics(TracedModule):
    """Traced module that also has arguments without steps, the statics."""

    def __call__(self, x: Any, params: Any, statics: Any) -> Any:  # type: ignore[override]
        """Computes the module's outputs, as values of the net, from sequences, parameters and statics."""
        return self.replayed(x, params, statics)


def axes_in(sizes: tuple[int | str, ...]) -> tuple[Axis, ...]:
    """Makes a tensor's named axes from sizes: a number is a feature, a name such as "steps" is that axis."""
    return tuple((size,) for size in sizes)


def tensors_of(output: Any) -> Any:
    """Replaces packed sequences in a module's output by their data; raises `StepError` for an output that is
    no tensor. Structures such as dicts are kept.
    """

    def tensor(leaf: Any) -> Any:
        """Returns the tensor of one leaf of a module's output: the data of a packed sequence, else the leaf
        itself; raises `StepError` for other leaves than tensors.
        """
        if isinstance(leaf, PackedSequence):
            return leaf.data
        if not isinstance(leaf, torch.Tensor):
            raise StepError(f"the module returns {leaf!r}; the outputs of a model are tensors")
        return leaf

    return transform(tensor, output, is_leaf=lambda part: isinstance(part, PackedSequence))


def result_of(result: Any) -> Traced:
    """Converts an output of the evaluated module to a value of the net.

    Raises `StepError` if it is not a value, if its sequences are sorted, or if an axis of sequences or steps
    was flattened with another axis.
    """
    if not isinstance(result, Placed):
        what = result.what if isinstance(result, NoValue) else "the order of sequences in their batch"
        raise refuse(f"an output of the module is {what}, which is not a value of a model")
    rows = [axis for axis in result.axes if any(map(is_rows, axis))]
    if any(part != SEQUENCES for axis in rows for part in axis if is_rows(part)):
        raise refuse("an output of the module has its sequences in sorted order: undo the sort in the module")
    try:
        check_apart("an output of the module", result.axes)
    except ModelError as error:
        raise refuse(str(error)) from None
    return result.value
