"""Every named value of a graph at every step, computed by the interpreter for debugging.

Values have the names that `watch` gives them, as in a step: names of the model's local variables, and of the
recurrences that it calls. The interpreter runs one net whose results are all named values.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepnet.compiler.net.interpreter import LevelSizes, interpret
from stepnet.compiler.net.ir import Builder
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Type, is_derived, is_static_extent
from stepnet.compiler.net.windows import derived_offsets
from stepnet.compiler.trace.lines import NamingLine, code_of
from stepnet.compiler.trace.step import declared
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.structure import leaves
from stepnet.model.graph.programs import GraphProgram
from stepnet.model.graph.trace import statics_argument
from stepnet.model.graph.traced_model import ModelFunction, TracedModel
from stepnet.model.reading import Reading
from stepnet.model.scopes import Scopes
from stepnet.model.statics import Statics
from stepnet.model.watch import Names, joined_names, local_values, roles, watching
from stepnet.ragged import Ragged

Array = np.ndarray


def model_scopes(model: ModelFunction, params: Any, reading: Reading[GraphProgram], statics: Any) -> Scopes:
    """Runs a graph on the arguments of a call by the interpreter; returns every named value at every step.
    Values per step of static sequences (statics that are sequences) are left out.

    model, params: those of the graph. reading: the checked call. statics: its statics (values that each
    sequence has once).
    """
    names, builder = named_values(model, params, reading.program.traced)
    numbers = {name: leaf.number for name, leaf in names.items() if not is_static_extent(leaf.type.extent)}
    net = builder.net(numbers.values())
    still = Statics.of(statics, reading.batch.count)
    batch = reading.batch.end_to_end()
    offsets = (batch.positions.offsets, *batch.positions.inner)
    beside = {**batch.positions.beside, **still.beside}
    segments = LevelSizes(batch.count, offsets, beside=beside)
    arrays = [*batch.arrays, *still.arrays, *leaves(params)]
    results = zip(net.results, interpret(net, arrays, segments), strict=True)
    return Scopes(
        {
            name: at_steps(net.type_of(number), array, offsets, beside)
            for name, (number, array) in zip(numbers, results, strict=True)
        }
    )


def named_values(model: ModelFunction, params: Any, traced: TracedModel) -> tuple[dict[str, Traced], Builder]:
    """Traces a model function while the local variables of its functions are recorded, to show its values by
    name; returns the values by name, and the builder of their net. Meanwhile, unnamed layers have the names
    of the variables that they are assigned to.

    params: the parameters. traced: the model, traced before for the same inputs and statics (values that each
    sequence has once).
    """
    builder = Builder(is_model=True)
    x = declared(builder, traced.inputs, "input", STEPS)
    still = declared(builder, traced.statics, "static", ROWS)
    parameters = declared(builder, params, "parameter", CONST)
    code = code_of(model)
    with NamingLine(model):
        extras = statics_argument(model, traced.statics, still)
        output, returned, inside = watching(lambda: model(x, parameters, **extras))
    local = inside.values | local_values(returned, code, builder)
    names: Names = joined_names(roles(inputs=x, statics=still), local, roles(outputs=output), code)
    made = {
        name: leaf if isinstance(leaf, Traced) else Traced(builder, builder.constant(np.asarray(leaf)))
        for name, leaf in names.items()
    }
    return made, builder


def at_steps(type_: Type, array: Array, offsets: tuple[Array, ...], beside: Mapping[str, Array]) -> Ragged:
    """Returns a value of a graph as a Ragged over the steps; one that is the same at each step is repeated.

    array: the value, with the entries of all sequences end to end. offsets: the offsets of the sequences, and
    of the inner sequences of their steps. beside: the offsets of inputs with other numbers of steps, by the
    name of their axis.
    """
    total = int(offsets[0][-1])
    if type_.extent == CONST:
        return Ragged(np.broadcast_to(array, (total, *array.shape)), offsets[:1])
    if type_.extent == ROWS:
        return Ragged(np.repeat(array, np.diff(offsets[0]), axis=0), offsets[:1])
    if is_derived(type_.extent):
        return Ragged(array, (derived_offsets(type_.extent[-1], offsets[0], beside),))
    return Ragged(array, offsets[: len(type_.extent) - 1])
