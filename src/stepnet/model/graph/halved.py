"""A graph whose matrices and tables have numbers of float16, for devices, with the errors of its outputs."""

from collections.abc import Sequence
from typing import Any

from stepnet.compiler.net.encodings import HALF, Precision
from stepnet.compiler.targets import order_of
from stepnet.errors import RefusedError
from stepnet.model.graph.graph import Graph
from stepnet.model.graph.quantized import QuantizedGraph
from stepnet.model.graph.report import Quantization, QuantizedRecurrence, percent
from stepnet.model.graph.trials import Trials, read, run
from stepnet.model.halves import in_halves

WHAT = "matrices and tables for 2 bytes on devices, computed in float32"


def halved(
    graph: Graph, trials: Trials, samples: Sequence[Any], statics: Sequence[Any] | None, bound: float
) -> QuantizedGraph:
    """Returns a graph with rounded matrices and tables; with those that it has if an output is further away
    than the bound, which the report says.

    trials: the samples with the outputs of the graph. samples, statics: as of `quantize`. bound: the largest
    relative error of an output.

    Raises `RefusedError` for a model without recurrences, and `InputError` for a number beyond float16.
    """
    if not trials.count:
        raise RefusedError(
            "this model has no recurrence over flat sequences: build it with dtype='float16', which stores "
            "the matrices of any model in 2 bytes"
        )
    engines = order_of(trials.engines)
    precisions = tuple(Precision(HALF, number) for number in range(trials.count))
    rounded = graph.with_params(in_halves(graph.params, HALF))
    made = QuantizedGraph.of(rounded, precisions, EMPTY, engines)
    readings = read(made, samples, statics)
    program = readings[0].program
    bound_program = program.kernel(engines).bind(program.params)
    errors = trials.errors_of([run(bound_program, program, reading.call) for reading in readings])
    if max(error.relative for error in errors) <= bound:
        rows = [QuantizedRecurrence(each.recurrence, WHAT, HALF, each, {}, {}) for each in precisions]
    else:
        why = {HALF: f"an output is then more than {percent(bound)} away"}
        rows = [QuantizedRecurrence(n, "as it was", "float32", None, {}, why) for n in range(trials.count)]
        made, errors = QuantizedGraph.of(graph, (), EMPTY, engines), trials.errors_of(trials.right)
    report = Quantization(tuple(rows), tuple(errors), len(readings), trials.steps, bound)
    return QuantizedGraph.of(made, made.programs.precisions, report, engines)


EMPTY = Quantization((), (), 0, 0, 0.0)
"""The report of a graph whose errors are being measured."""
