"""Writes a model as a .stepnet file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from stepnet.compiler.net.encodings import HALF
from stepnet.compiler.net.ir import Builder
from stepnet.compiler.plan.passes.narrow import any_low
from stepnet.compiler.trace.spec import TracedStep
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.arguments import file_path
from stepnet.compiler.values.structure import leaves, named_leaves, rebuild
from stepnet.compiler.values.version import __version__
from stepnet.errors import InputError, ModelError, named
from stepnet.layout.files.safetensors import write
from stepnet.model.compose import Bidirectional, Stack
from stepnet.model.control import Control
from stepnet.model.graph.graph import Graph
from stepnet.model.graph.integers import IntegerGraph
from stepnet.model.graph.quantized import QuantizedGraph
from stepnet.model.layers import Combined, LayersProgram
from stepnet.model.model import Model
from stepnet.model.program import StepProgram
from stepnet.model.recurrence import RNN
from stepnet.model.stored import ENDING, KEY, OF_HALF, OF_INTEGERS
from stepnet.model.stored.arrays import Collected
from stepnet.model.stored.fields import Object
from stepnet.model.stored.integers import step_data
from stepnet.model.stored.nets import net_data, precision_data
from stepnet.model.stored.reports import report_data
from stepnet.model.stored.structures import spec_data, structure_data


def save(model: Model, path: str | Path, force: bool) -> None:
    """Writes a model to a .stepnet file, as `Model.save` documents. Raises `InputError` for a path with
    another ending and for a model that a file cannot hold.

    force: whether to replace an existing file.
    """
    file = file_path(path)
    if file.suffix != ENDING:
        raise InputError(f"{file}: the file of a model ends in {ENDING}")
    if (check := model.change_check) is not None:
        check()
    arrays = Collected()
    try:
        described = model_data(model, arrays)
    except ModelError as error:
        raise InputError(f"{file}: {error}") from None
    version = (
        OF_HALF if any_low(model.net, (HALF,)) else OF_INTEGERS if isinstance(model, IntegerGraph) else 1
    )
    document = {"version": version, "written_by": __version__, "model": described}
    text = json.dumps(document, separators=(",", ":"))
    write(file, arrays.arrays, force, {KEY: text})


def model_data(model: Model, arrays: Collected) -> Object:
    """Returns a model as JSON, and adds its arrays to `arrays`; raises `InputError` before its inputs are
    known, and for other classes of models.
    """
    if isinstance(model, Graph):
        return graph_data(model, arrays)
    if isinstance(model, RNN):
        return rnn_data(model, model.program, "", arrays)
    if isinstance(model, Combined):
        latest: LayersProgram = model.programs.latest or cast("Any", model.program)
        return layers_data(model, iter(latest.of_parts), "", arrays)
    raise InputError(f"a {type(model).__name__} is not a model that can be stored in a file")


def layers_data(model: Combined, programs: Iterator[StepProgram], prefix: str, arrays: Collected) -> Object:
    """Returns a stack of layers, or a pair of directions, as JSON for a file; adds their parameters and
    constants to `arrays`.

    programs: the programs of their recurrences, in the order they run. prefix: the text in front of the names
    of their arrays.
    """
    parts = list[Object]()
    directions = isinstance(model, Bidirectional)
    for name, part, place in zip(model.part_names, model.layers, range(len(model.layers)), strict=True):
        own = f"{prefix}{('forward', 'backward')[place] if directions else place}."
        with named(name):
            if isinstance(part, RNN):
                parts.append(rnn_data(part, next(programs), own, arrays))
            else:
                parts.append(layers_data(part, programs, own, arrays))
    if directions:
        return {
            "kind": "Bidirectional",
            "layers": parts,
            "merge": model.merge,
            "report": report_data(model.report),
        }
    if not isinstance(model, Stack):
        raise InputError(f"a {type(model).__name__} is not a model that can be stored in a file")
    return {"kind": "Stack", "layers": parts, "report": report_data(model.report)}


def rnn_data(rnn: RNN, program: StepProgram, prefix: str, arrays: Collected) -> Object:
    """Returns a recurrence as JSON for a file; adds its parameters and constants to `arrays`.

    program: its program for the inputs for which it is stored. prefix: the text in front of the names of its
    arrays.
    """
    traced = program.traced
    return {
        "kind": "RNN",
        "name": name_of(rnn.step),
        "inputs": structure_data(traced.inputs, spec_data),
        "memory": structure_data(traced.last, spec_data),
        "statics": structure_data(traced.statics, spec_data),
        "params": params_data(rnn.params, prefix, arrays),
        "output": structure_data(traced.output, lambda _: {}),
        "body": net_data(traced.body, arrays),
        "reverse": rnn.reverse,
        "unroll": rnn.unroll,
        "precision": precision_data(rnn.precision),
        "until": until_data(rnn, program, arrays),
        "report": report_data(rnn.report),
    }


def until_data(rnn: RNN, program: StepProgram, arrays: Collected) -> Object | None:
    """Returns the condition that ends the sequences of a recurrence as JSON for a file, traced to a net whose
    inputs are the step's outputs and memories; None if there is no condition.
    """
    if rnn.until is None:
        return None
    rnn.under(Control(until=rnn.until), program)  # raises errors of the condition
    traced: TracedStep = program.traced.unrounded
    builder, body = Builder(), traced.body
    values = [Traced(builder, builder.input(body.type_of(place), "value")) for place in body.results]
    outputs = len(leaves(traced.output))
    done = rnn.until(rebuild(traced.output, values[:outputs]), rebuild(traced.memory, values[outputs:]))
    return {"name": name_of(rnn.until), "net": net_data(builder.net([done.number]), arrays)}


def graph_data(graph: Graph, arrays: Collected) -> Object:
    """Returns a `Graph` model as JSON for a file, and adds its arrays to `arrays`; for a quantized graph with
    the precisions of its recurrences.
    """
    program = graph.program
    traced, net = program.traced, program.net
    params = params_data(graph.params, "", arrays)
    places = net.inputs[len(net.inputs) - len(traced.captured) :]
    captured = [
        arrays.add(array, net.nodes[place].name or "captured")
        for place, array in zip(places, traced.captured, strict=True)
    ]
    integers = isinstance(graph, IntegerGraph)
    return {
        "kind": "IntegerGraph" if integers else "Graph",
        "name": name_of(graph.model),
        "inputs": structure_data(traced.inputs, spec_data),
        "statics": structure_data(traced.statics, spec_data),
        "params": params,
        "output": structure_data(traced.output, lambda _: {}),
        "net": net_data(net, arrays),
        "captured": captured,
        "engines": list(graph.engines) if isinstance(graph, QuantizedGraph) else None,
        "report": report_data(graph.report),
        **({"step": step_data(graph.frame_step, arrays)} if integers else {}),
    }


def params_data(params: Any, prefix: str, arrays: Collected) -> Any:
    """Returns the structure of parameters as JSON, in which the name in the file stands for each array, and
    adds the arrays to `arrays`.

    prefix: the text in front of these names.
    """
    names = iter([name for name, _ in named_leaves(params)])

    def leaf(array: Any) -> Object:
        """Adds a parameter to the arrays of a model's file; returns its name there as JSON."""
        if not isinstance(array, np.ndarray):
            raise InputError(
                "a recurrence inside a step, whose parameters are values of that step, is not saved"
            )
        return {"array": arrays.add(cast("Any", array), f"{prefix}{next(names) or 'param'}")}

    return structure_data(params, leaf)


def name_of(function: Any) -> str:
    """Returns the name of a step or model function, or of its class."""
    return str(getattr(function, "__name__", type(function).__name__))
