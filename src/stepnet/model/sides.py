"""The sides of a comparison: models as graphs, run in float64 as they are, and with weights rounded anew."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from stepnet.compiler.net.interpreter import wide, with_attributes
from stepnet.compiler.net.types import Literal
from stepnet.compiler.targets import AUTO, REFERENCE
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.fork_guard import module_late
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import arranged, leaves, named_leaves, rebuild, transform
from stepnet.errors import InputError, named
from stepnet.model.compose import Bidirectional, Layer, Stack, recurrences
from stepnet.model.file import FileModel, LastOutput
from stepnet.model.graph.graph import Graph
from stepnet.model.nets import run_net
from stepnet.model.program import NetProgram

Array = np.ndarray
Outputs = dict[str, Any]
"""Outputs by name: a `Ragged` or an array."""
DRAWS = 2
"""The number of times that the weights are rounded anew."""
ENGINES = (*AUTO, REFERENCE)


@dataclass(frozen=True)
class WithStates:
    """Model function that returns the outputs and final states of layers.

    The states have the names of a saved ONNX model, such as "final.h", and for layers that are operators of
    ONNX also "final_h_0".

    last: whether the output is the last output of each sequence.
    """

    layer: Layer
    last: bool

    @property
    def __name__(self) -> str:
        """The name in messages of this object, which stands for a model function."""
        return "with_states"

    def __call__(self, x: Any, params: Any) -> Outputs:
        """Runs the layers; returns {"output": ..., "final": ..., "final_h_0": ...}.

        The number in a name is that of the layer, whose states are [directions, hidden] per sequence.
        `params` is not used.
        """
        output, final = self.layer(x)
        if self.last:
            output = self.layer(x, last_only=True)[0]
        made: Outputs = {"output": output, "final": final}
        layers = self.layer.layers if isinstance(self.layer, Stack) else (self.layer,)
        states: Any = final if isinstance(self.layer, Stack) else (final,)
        for index, (layer, state) in enumerate(zip(layers, states, strict=True)):
            ways: list[Any] = [*state.values()] if isinstance(layer, Bidirectional) else [state]
            each: list[Any] = [{"h": way} if isinstance(way, Traced) else way for way in ways]
            for name in state_names(each):
                made[f"final_{name}_{index}"] = np.concatenate([way[name][:, None] for way in each], axis=1)
        return made


def state_names(states: list[Any]) -> list[str]:
    """Returns the names of the states of a layer; none unless each direction has the same named ones.

    states: the final state of each direction.
    """
    flat = all(
        isinstance(way, dict) and all(isinstance(value, Traced) for value in cast("Any", way).values())
        for way in states
    )
    return [*states[0]] if flat and all(way.keys() == states[0].keys() for way in states) else []


@dataclass(frozen=True)
class Side:
    """One of two models that are compared, as a graph. path: its name in messages."""

    graph: Graph
    path: str

    @classmethod
    def of(cls, source: FileModel, states: bool = False) -> "Side":
        """Makes one side of the comparison of two models. source: the model, as it was read from a file.
        states: whether the final states of layers count as outputs too.
        """
        path = source.path or repr(source.model)
        return cls(graph_of(source.model, path, states), path)

    @property
    def inputs(self) -> Any:
        """The features and dtypes of the inputs, in the model's structure; float32 where none is declared."""
        return transform(lambda spec: spec if spec.dtype else Spec(spec.shape, "float32"), self.graph.inputs)

    @property
    def only_steps(self) -> int | None:
        """The only number of steps that the model takes; None if it takes any."""
        _ = self.graph.program  # which finds the numbers that may depend on the steps
        return self.graph.only_steps

    @computed_once
    def programs(self) -> list[tuple[NetProgram, list[Array]]]:
        """The model's nets in float64, each with its parameters: as given, and `DRAWS` randomly rounded
        copies. The copies show how much rounding can change the outputs.
        """
        program, random = self.graph.program, module_late("numpy.random").default_rng(0)
        made = [(NetProgram(with_attributes(program.net, wide)), [*map(as_float64, program.params)])]
        for _ in range(DRAWS):
            net = with_attributes(program.net, lambda value: wide(perturbed_literal(value, random)))
            made.append((NetProgram(net), [perturbed(array, random) for array in program.params]))
        return made

    def outputs(self, sequences: Any, statics: Any) -> Iterator[Outputs]:
        """Yields the model's outputs by name in float64: with its weights, then with randomly rounded copies.

        sequences: Raggeds, in the structure of the inputs; their dtypes are changed.
        statics: the values that each sequence has once.
        """
        with named(self.path):
            given = [
                x.with_values(x.values.astype(spec.dtype))
                for x, spec in zip(leaves(arranged(sequences, self.inputs)), leaves(self.inputs), strict=True)
            ]
            reading = self.graph.reading(rebuild(self.graph.inputs, given), statics)
            arrays = [*map(as_float64, reading.batch.arrays), *map(as_float64, leaves(statics))]
            levels, axes = reading.program.levels, reading.program.axes
            names = [name for name, _ in named_leaves(self.graph.program.traced.output)]
            for program, params in self.programs:
                made = run_net(program, [*arrays, *params], reading.call, ENGINES)
                yield {
                    name: reading.batch.like_input(each, level, axis)
                    for name, each, level, axis in zip(names, made, levels, axes, strict=True)
                }


def graph_of(model: Any, path: str, states: bool) -> Graph:
    """Converts a model to a graph, to compare its outputs; raises `InputError` if its inputs are not known.

    A graph is returned unchanged. One that returns the last output of layers is made anew from the layers.

    path: the name of the model in messages.
    states: whether a graph of layers also returns their final states.
    """
    if isinstance(model, Graph) and not isinstance(model.model, LastOutput):
        function, inputs = None, model.inputs
    else:
        last: Any = model.model if isinstance(model, Graph) else None
        layer: Any = last.layer if last else model
        function: Any = WithStates(layer, bool(last)) if states else last or AllSteps(layer)
        inputs = recurrences(layer, path)[0].inputs
    if inputs is None:
        raise InputError(f"{path}: it was made without inputs=, so it is not known what it takes")
    return model if function is None else Graph(function, inputs=inputs)


@dataclass(frozen=True)
class AllSteps:
    """A model function that returns the outputs of layers at all steps."""

    layer: Layer

    @property
    def __name__(self) -> str:
        """The name in messages of this object, which stands for a model function."""
        return "all_steps"

    def __call__(self, x: Any, params: Any) -> Any:
        """Runs the layers; returns their outputs at all steps."""
        return self.layer(x)[0]


def as_float64(array: Array) -> Array:
    """Returns an array as float64 if it is float32, else unchanged, to compare models."""
    return array.astype(np.float64) if array.dtype == np.float32 else array


def perturbed(array: Array, random: np.random.Generator) -> Array:
    """Moves each finite number of a float array by half a unit in the last place up or down, as float64, as
    another rounding of the weights could; other arrays are returned unchanged.

    random: the generator of random numbers.
    """
    eps = {"float32": 2.0**-23, "float64": 2.0**-52}.get(array.dtype.name)
    if eps is None:
        return array
    with np.errstate(invalid="ignore"):  # infinity
        near = as_float64(array) * (1 + eps * random.choice([-0.5, 0.5], size=array.shape))
    return np.where(np.isfinite(array), near, array)


def perturbed_literal(value: Any, random: np.random.Generator) -> Any:
    """Returns a node's attribute with its numbers rounded at random if it is a constant; else it is
    unchanged. value: the attribute. random: the generator of random numbers.
    """
    return Literal(perturbed(value.value, random)) if isinstance(value, Literal) else value
