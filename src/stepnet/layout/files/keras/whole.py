"""Reads a Keras model whole, as a `Graph`: its recurrent layers, and the layers around them.

    LSTM, Dense, Softmax    -->    lstm as a recurrence, dense and softmax by rows of `operators.py`

A model in the model runs as its layers do, and a TimeDistributed of a layer that computes with features alone
as that layer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers.aligning import aligned
from stepnet.importers.axes import AxesError, is_time, text_of
from stepnet.importers.convolving import as_steps
from stepnet.importers.placed import Placed, Unusable, constant
from stepnet.importers.pointwise import dtype_of
from stepnet.layout.files.keras.around import titled
from stepnet.layout.files.keras.call import KerasCall
from stepnet.layout.files.keras.dtypes import cast_input, check_input, in_dtypes_of_keras, literal, policy_of
from stepnet.layout.files.keras.file import read as read_file
from stepnet.layout.files.keras.masks import ATTENTION, MERGING, MaskedValue, mask_after, order_of_steps
from stepnet.layout.files.keras.names import INPUT, MODELS, SPECTRAL, TIMED
from stepnet.layout.files.keras.nodes import (
    Config,
    Tensor,
    call_of,
    class_of,
    name_of,
    nodes_of,
    numbered,
    rounding,
    rows,
    table,
    tensors,
)
from stepnet.layout.files.keras.operations import FILLED, SEVERAL
from stepnet.layout.files.keras.operators import KERAS, ON_FEATURES, READS_ZEROS, row_of
from stepnet.layout.files.keras.recurrent import RECURRENT, TwoLayers, recurrent_layers, run
from stepnet.layout.files.keras.written_numbers import numbers_of
from stepnet.layout.files.recurrent import RecurrentLayer
from stepnet.model.graph.array_model import ArrayModel, located
from stepnet.model.graph.axis_choice import axes_of_rank, fitting_graph
from stepnet.model.graph.graph import Graph

Array = np.ndarray
Call = tuple[str, int]  # the name of a layer in its model, and the number of its call
COMBINING = {*MERGING, "Concatenate", "ops.Add", "ops.Concatenate", "ops.Multiply", "ops.Subtract"}
"""The rows whose operands have the same steps."""
TAKING_KEYS = {"ops.GetItem", *ATTENTION}
"""The rows whose rules read the arguments of a call that are no tensors."""
FLAGS = {"return_attention_scores", "use_causal_mask"}
MASKS = {"attention_mask", "key_mask", "query_mask", "value_mask"}
"""Arguments of attention layers of which only the names are read."""
MOST_RUNS = 20_000
"""The most calls of layers in a model: a small file can call a model in a model in a model twice each."""
READABLE = ("2", "3")
"""The major versions of Keras whose models are read whole."""


def graph(path: Path, *, any_steps: bool = False) -> Graph | None:
    """Reads a Keras file as a graph of the whole model. any_steps: whether the user states that no number in
    it depends on the number of steps. None if the file does not specify a whole model, or
    has a class that the table in `operators.py` does not have, cells of the user's, or a Bidirectional of two
    different layers.

    Raises `ModelError` for a layer whose settings are not supported, with its name.
    """
    file = read_file(path)
    version = (file.version or "3").partition(".")[0]
    if file.config is None or file.lost or version not in READABLE or not is_supported(file.config):
        return None
    inputs = [*inputs_of(file.config)]
    if not inputs or not all(each.sizes for each in inputs):
        return None
    config, layers = file.config, recurrent_layers(path, file)
    if {layer.name for layer in file.configured if layer.class_name in RECURRENT} - layers.keys():
        return None
    arrays = {layer.name: {name: file.arrays[key] for name, key in layer.arrays} for layer in file.layers}
    return fitting_graph(
        str(path),
        inputs,
        lambda placed: KerasModel(str(path), placed, config, arrays, layers, version, any_steps=any_steps),
        axes_to_try,
    )


def unsupported(path: Path, names: Sequence[str]) -> list[str]:
    """Lists the layers of a Keras file, also of models in its model, that have no row in the table of
    operators, by name and class. names: all layers but the recurrent ones.
    """
    config = read_file(path).config
    return [] if config is None else [*unsupported_in(config, "")]


def unsupported_in(model: Config, prefix: str) -> Iterator[str]:
    """Yields the layers of a model that are not supported. prefix: the names of the models around it."""
    for node in nodes_of(model):
        name = prefix + name_of(node)
        if class_of(node) in MODELS and nodes_of(node):
            yield from unsupported_in(node, f"{name}/")
        elif not is_supported_layer(node):
            yield titled(name, class_of(node), table(node.get("config")))


def is_supported(model: Config) -> bool:
    """Tells whether a model and the models in it are of Keras' own classes, and have only layers that are
    recurrent or in the table of operators, in dtypes that do not round.
    """
    return class_of(model) in MODELS and all(map(is_supported_layer, nodes_of(model)))


def is_supported_layer(node: Config) -> bool:
    """Tells whether a layer of a Keras model is supported, by its class and its dtypes."""
    name, inner = class_of(node), table(table(node.get("config")).get("layer"))
    if name == INPUT:
        return input_dtype(node) in DTYPES
    if rounding(node) and row_of(node) not in FILLED:
        return False
    if name in (TIMED, SPECTRAL):
        return is_supported_layer(inner)
    return row_of(node) in {*KERAS, *SEVERAL} or name in RECURRENT or is_supported(node)


# ---- inputs ------------------------------------------------------------------------------------------------

DTYPES = ("float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")


class KerasInput(NamedTuple):
    """Input of a Keras model: its name, the sizes of its axes, 0 for one that is not stated, and its dtype.

    It has no sizes if the file states no shape.
    """

    name: str
    sizes: tuple[int, ...]
    dtype: str


def inputs_of(model: Config) -> Iterator[KerasInput]:
    """Yields the inputs of a Keras model (from its configuration) in order; of a Sequential without an input
    layer, that of the first layer.
    """
    config, nodes = table(model.get("config")), nodes_of(model)
    by_name = {name_of(node): node for node in nodes}
    names = [name for name, *_ in tensors(config.get("input_layers"))]
    for node in [by_name.get(name, {}) for name in names] or nodes[:1]:
        own = table(node.get("config"))
        shape = rows(own.get("batch_shape", own.get("batch_input_shape", config.get("build_input_shape"))))
        sizes = tuple(size if type(size) is int and size > 0 else 0 for size in shape)
        yield KerasInput(name_of(node), sizes, input_dtype(node))


def input_dtype(node: Config) -> str:
    """Returns the dtype of an input, or of the first layer of a model without one."""
    return policy_of(node) or "float32"


def axes_to_try(sizes: Sequence[int]) -> list[str]:
    """Returns the axes that an input may have, as letters such as "NT_", the most usual first. The first axis
    is that of the sequences, and a second one of a stated size is a feature before it is the steps.
    """
    ways = [axes for axes in axes_of_rank(len(sizes)) if axes.startswith("N")]
    return ways[::-1] if len(sizes) == 2 and sizes[1] else ways


def check_outputs(path: str, outputs: Mapping[str, Placed]) -> None:
    """Raises `AxesError` for an output whose steps are not its second axis, as after a Permute."""
    for name, output in outputs.items():
        places = [place for place, axis in enumerate(output.axes) if is_time(axis)]
        if places not in ([], [1]):
            raise AxesError(
                f"{path}: output {name!r} is {text_of(output.axes)}: it should be [sequences, steps, ...]"
            )


# ---- the model ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KerasArguments:
    """Arguments of a layer's call in a configuration.

    values: tensors and numbers, in order. keys: others, such as an index. masks: those of the first values;
    None for a value without one.
    """

    values: tuple[Tensor | float, ...]
    keys: tuple[Any, ...]
    masks: tuple[Tensor | None, ...] = ()

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among the arguments and masks."""
        return [value for value in (*self.values, *self.masks) if isinstance(value, tuple)]

    @classmethod
    def of(cls, call: object) -> "KerasArguments":
        """Parses the arguments of a call, without those that inference does not need, such as "training".

        >>> tensor = {"class_name": "__keras_tensor__", "config": {"keras_history": ["lstm", 0, 0]}}
        >>> KerasArguments.of({"args": [tensor, 2.0], "kwargs": {"training": False}})
        KerasArguments(values=(('lstm', 0, 0), 2.0), keys=(), masks=())
        """
        modern = table(call)
        if not modern:
            return cls(tuple(tensors(call)), ())
        named = table(modern.get("kwargs"))
        left = {"mask", "training", *FLAGS, *MASKS}
        given = [value for name, value in named.items() if name not in left]
        values, keys = list[Tensor | float](), list[Any]()
        keys += [name for name in named if name in FLAGS | MASKS and named[name] not in (None, False)]
        for argument in [*rows(modern.get("args")), *given]:
            own = [*tensors(argument)]
            if own and len(own) == count_of(argument):
                values += own
            elif type(argument) in (int, float):
                values.append(cast(float, argument))
            elif argument is not None:
                keys.append(argument)
        mask = named.get("mask")
        stated = [(each, next(tensors(each), None)) for each in rows(mask) or [mask]]
        keys += [each for each, tensor in stated if each is not None and tensor is None]
        masks = tuple(tensor for _, tensor in stated)
        return cls(tuple(values), tuple(keys), masks if any(masks) else ())


def distinct(names: Sequence[str]) -> list[str]:
    """Returns the names of outputs, all different: one that is there already gets a number that is free.

    >>> distinct(["o", "o", "o_1"])
    ['o', 'o_2', 'o_1']
    """
    made, counts = list[str](), dict[str, int]()
    for name in names:
        own = numbered(name, counts)
        while own in made or (own != name and own in names):
            own = numbered(name, counts)
        made.append(own)
    return made


def count_of(value: object) -> int:
    """Returns the number of values in a JSON value that are no lists, at any depth of lists."""
    count, pending = 0, [value]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending.extend(cast("list[object]", item))
        else:
            count += 1
    return count


@dataclass(frozen=True)
class KerasModel(ArrayModel):
    """Model of a Keras file as a function of its inputs, which `sn.Graph` traces.

    config: its configuration. arrays: the arrays of each layer, by their names in it. layers: the recurrent
        layers.
    version: the major version of Keras that wrote the file. runs: the layers that were called so far.
    """

    open_steps: ClassVar[str] = "save a model whose Input has an open number of steps (None)"
    config: Config
    arrays: Mapping[str, Mapping[str, Array]]
    layers: Mapping[str, RecurrentLayer | TwoLayers]
    version: str
    runs: list[str] = field(default_factory=list[str])

    def computed(self, inputs: Mapping[str, Placed], params: Mapping[str, Any]) -> dict[str, Placed]:
        """Computes the outputs of the model, by the names of their layers, from its inputs by name."""
        self.runs.clear()
        feeds = [MaskedValue(cast_input(inputs[each.name], each.dtype)) for each in self.inputs]
        made = self.of_model(self.config, feeds, "")
        names = [name for name, *_ in tensors(table(self.config.get("config")).get("output_layers"))]
        names = distinct(names or [name_of(nodes_of(self.config)[-1])] * len(made))
        given = (value.in_order_of_keras().placed for value in made)
        named = {name: as_steps(value) for name, value in zip(names, given, strict=True)}
        check_outputs(self.path, named)
        return named

    def of_model(self, model: Config, feeds: Sequence[MaskedValue], prefix: str) -> list[MaskedValue]:
        """Computes the outputs of the model, or of a model in it, from its inputs `feeds`; prefix: the names
        of the models around its layers.
        """
        if "input_layers" in table(model.get("config")):
            return FunctionalRun.of(self, model, prefix).outputs(feeds)
        values = list(feeds)
        for node in nodes_of(model):
            if class_of(node) != INPUT:
                values = self.results(node, prefix, values)
                continue
            for value in values:
                with located(f"{prefix + name_of(node)} of {self.path}"):
                    check_input(node, value.placed)
        return values

    def results(
        self, node: Config, prefix: str, operands: Sequence[MaskedValue], keys: tuple[Any, ...] = ()
    ) -> list[MaskedValue]:
        """Computes a layer of a Keras model, or a model in it, by the rule of its class; errors name the
        layer and the file.

        keys: the arguments of the call that are no values.
        """
        name, class_name = prefix + name_of(node), class_of(node)
        if nodes_of(node) and class_name in MODELS:
            return self.of_model(node, operands, f"{name}/")
        self.runs.append(name)
        with located(f"{name} ({class_name}) of {self.path}"):
            if len(self.runs) > MOST_RUNS:
                raise ModelError(f"layers are called more than {MOST_RUNS} times in the model")
            return self.by_rule(node, name, operands, keys)

    def by_rule(
        self, node: Config, name: str, operands: Sequence[MaskedValue], keys: tuple[Any, ...]
    ) -> list[MaskedValue]:
        """Computes a layer by the rule of its class in the table of operators, with the dtypes and masks that
        Keras has; raises `ModelError` for arguments that the rule does not take.

        name: with the names of the models around it. keys: the arguments of the call that are no values.
        """
        class_name, row, config = class_of(node), row_of(node), table(node.get("config"))
        if keys and row not in TAKING_KEYS:
            raise ModelError(f"it is called with an argument that is no tensor: {str(keys[0])[:100]}")
        if class_name not in READS_ZEROS:
            operands = [replace(each, placed=as_steps(each.placed)) for each in operands]
        taken = in_dtypes_of_keras(node, row, [each.placed for each in operands], self.version, self.config)
        operands = [replace(each, placed=placed) for each, placed in zip(operands, taken, strict=True)]
        if class_name in RECURRENT:
            return run(self.layers[name], operands, self.version)
        if class_name == TIMED:
            return self.for_each_step(table(config.get("layer")), name, operands)
        if class_name == SPECTRAL:
            inner = table(config.get("layer"))
            return self.by_rule(inner, f"{name}/{name_of(inner)}", operands, keys)
        operands, backwards = order_of_steps(row, operands, config)
        values, masks = [each.placed for each in operands], tuple(each.mask for each in operands)
        values = tuple(aligned(values) if row in COMBINING else values)
        call = KerasCall(config, values, self.arrays.get(name, {}), keys, self.version, masks, self.steps)
        made, mask = SEVERAL[row](call) if row in SEVERAL else [KERAS[row](call)], mask_after(row, call)
        self.note(f"{name} ({class_name})", lambda: numbers_of(row, call, made))
        return [MaskedValue(each, mask, backwards=backwards) for each in made]

    def for_each_step(self, inner: Config, name: str, operands: Sequence[MaskedValue]) -> list[MaskedValue]:
        """Runs a layer or model at each step, as a TimeDistributed does: a step of a sequence is a sequence
        of its own to it. name: of the TimeDistributed, with the models around it.
        """
        own, (x, *others) = f"{name}/{name_of(inner)}", operands
        if class_of(inner) in ON_FEATURES:
            return [replace(each, mask=x.mask) for each in self.by_rule(inner, own, operands, ())]
        if others or len(x.placed.axes) < 2:
            raise ModelError("it is called on one tensor, whose second axis it goes over")
        first, second, *rest = x.placed.axes
        each_step = MaskedValue(x.placed.shaped(((*first, *second), *rest)))
        is_model = nodes_of(inner) and class_of(inner) in MODELS
        made = (
            self.of_model(inner, [each_step], f"{own}/")
            if is_model
            else self.by_rule(inner, own, [each_step], ())
        )
        if any(each.placed.axes[:1] != ((*first, *second),) for each in made):
            raise ModelError("what it runs at each step joins or moves the steps")
        back = [each.placed.shaped((first, second, *each.placed.axes[1:])) for each in made]
        return [MaskedValue(each, x.mask, backwards=x.backwards) for each in back]


@dataclass(frozen=True)
class FunctionalRun:
    """Run of a functional model, whose layers are called on tensors that are named.

    nodes: the layers by name. calls: the calls of each. values: the results of calls so far.
    """

    model: KerasModel
    prefix: str
    entrances: tuple[Call, ...]
    exits: tuple[Tensor, ...]
    nodes: Mapping[str, Config]
    calls: Mapping[str, list[Any]]
    values: dict[Call, list[MaskedValue]] = field(default_factory=dict[Call, list[MaskedValue]])

    @classmethod
    def of(cls, model: KerasModel, config: Config, prefix: str) -> "FunctionalRun":
        """Prepares to run a functional model of Keras (a graph of calls of layers). config: the configuration
        of this model, which may be a layer of another one. prefix: the names of the models around its layers.
        """
        nodes = {name_of(node): node for node in nodes_of(config)}
        own = table(config.get("config"))
        return cls(
            model,
            prefix,
            tuple((name, 0) for name, *_ in tensors(own.get("input_layers"))),
            tuple(tensors(own.get("output_layers"))),
            nodes,
            {name: rows(node.get("inbound_nodes")) for name, node in nodes.items()},
        )

    def outputs(self, feeds: Sequence[MaskedValue]) -> list[MaskedValue]:
        """Computes the model's outputs from its inputs: each call after the calls that it reads; calls that
        no output needs are left out.
        """
        if len(feeds) != len(self.entrances):
            raise ModelError(f"a model of {len(self.entrances)} inputs is called on {len(feeds)} tensors")
        for (name, _), feed in zip(self.entrances, feeds, strict=True):
            with located(f"{self.prefix + name} of {self.model.path}"):
                check_input(self.nodes.get(name, {}), feed.placed)
        self.values.update({call: [feed] for call, feed in zip(self.entrances, feeds, strict=True)})
        ends = [(self.call_of(tensor, is_end=True), tensor[2]) for tensor in self.exits]
        pending, waiting = [call for call, _ in ends], set[Call]()
        while pending:
            call = pending[-1]
            if call in self.values:
                pending.pop()
                continue
            name, number = call
            if not self.calls[name]:
                raise ModelError(f"{self.model.path}: {self.prefix + name!r} is an input without a value")
            arguments = KerasArguments.of(self.calls[name][number])
            missing = [own for own in map(self.call_of, arguments.tensors) if own not in self.values]
            if missing and call in waiting:
                raise ModelError(f"{self.model.path}: {self.prefix + name!r} takes what is computed from it")
            if missing:
                waiting.add(call)
                pending += missing
            else:
                self.values[call] = self.results(call, arguments)
        return [self.value(call, output) for call, output in ends]

    def results(self, call: Call, arguments: KerasArguments) -> list[MaskedValue]:
        """Computes the results of a call of a layer, whose operands are computed already. call: the layer's
        name, and the number among its calls.
        """
        name, number = call
        own = [self.value(self.call_of(tensor), tensor[2]) for tensor in arguments.tensors]
        facts = call_of(self.calls[name][number])
        unread = facts.masked and not any(arguments.masks)
        if unread or facts.training:
            what = "with a mask" if unread else "as in training"
            raise ModelError(f"it is called {what}\n  at {self.prefix + name} of {self.model.path}")
        usable = bool(own) and not isinstance(own[0].placed.value, Unusable)
        beside, computed = dtype_of(own[0].placed) if usable else np.dtype(np.float32), iter(own)
        with located(f"{self.prefix + name} of {self.model.path}"):
            operands = [
                next(computed) if isinstance(value, tuple) else MaskedValue(constant(literal(value, beside)))
                for value in arguments.values
            ]
        if len(arguments.masks) > len(operands):
            raise ModelError(f"{self.model.path}: {self.prefix + name!r} has more masks than arguments")
        with located(f"{self.prefix + name} of {self.model.path}"):
            for place, mask in enumerate(arguments.masks):
                operands[place] = operands[place].under(next(computed) if mask else None)
        return self.model.results(self.nodes[name], self.prefix, operands, arguments.keys)

    def call_of(self, tensor: Tensor, is_end: bool = False) -> Call:
        """Returns the call that computes a tensor; raises `ModelError` for a layer or a call that is missing.

        is_end: whether the tensor is an output of the model. There Keras 3 numbers the calls of a functional
        model from 1 on, as Keras 2 does with those of all models everywhere. The number of an only call is
        not read.
        """
        name, number, _ = tensor
        node = self.nodes.get(name, {})
        from_one = (
            bool(nodes_of(node))
            if self.model.version == "2"
            else is_end and class_of(node) in MODELS and "input_layers" in table(node.get("config"))
        )
        count = max(len(self.calls.get(name, ())), 1)
        place = number - from_one if count > 1 else 0
        if name not in self.nodes or not 0 <= place < count:
            raise ModelError(f"{self.model.path}: call {number} of {self.prefix + name!r} is missing")
        return name, place

    def value(self, call: Call, output: int) -> MaskedValue:
        """Returns an output of a call of a layer that was computed; raises `ModelError` if it has fewer."""
        results = self.values[call]
        if output >= len(results):
            raise ModelError(
                f"{self.model.path}: {self.prefix + call[0]!r} has {len(results)} outputs, and output "
                f"{output} is read"
            )
        return results[output]
