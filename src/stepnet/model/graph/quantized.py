"""`QuantizedGraph`: a graph with recurrences in fewer bits."""

from functools import partial
from typing import Any

from stepnet.compiler.net.encodings import Precision
from stepnet.compiler.targets import Order
from stepnet.compiler.trace.lines import refuse
from stepnet.errors import InputError
from stepnet.model.graph.graph import Graph
from stepnet.model.graph.report import Quantization


class QuantizedGraph(Graph):
    """A graph with some recurrences in fewer bits, as `quantize` makes it.

    All else is as for a `Graph`, but `engine="auto"` stands for the engines that it was quantized for.

    Attributes:
        engines: The names of the engines that it was quantized for.
        report: The choices with their reasons, and the errors on the samples; print(graph.report).
    """

    engines: tuple[str, ...]
    report: Quantization

    @classmethod
    def of(
        cls, graph: Graph, precisions: tuple[Precision, ...], report: Quantization, engines: tuple[str, ...]
    ) -> "QuantizedGraph":
        """Returns a copy of a graph with these precisions for its recurrences, in the order they run.

        report: the report of `quantize`, which chose the precisions.
        engines: the names of the engines that they were chosen for.
        """
        made = object.__new__(cls)
        vars(made).update(vars(graph))
        made.programs = graph.programs.in_precisions(precisions)
        vars(made).update(report=report, engines=engines, default_engine=engines)
        return made

    @property
    def first_engine(self) -> Order:
        """The engines that the graph was quantized for."""
        return self.engines

    def in_model(self, sequences: Any, statics: Any) -> Any:
        """Raises `StepError`: inside another model, the recurrences would lose their precisions."""
        raise refuse("a quantized graph is no part of a model: put the graph there, and quantize the whole")

    def trace_steps(self, sequences: Any, *arguments: Any, **options: Any) -> Any:
        """Raises `InputError`: the recorded values would be computed in float32."""
        raise InputError("the steps of a quantized graph are not traced: trace those of the graph itself")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the arguments of the constructor, the precisions and the report."""
        made = partial(Graph, inputs=self.inputs, statics=self.statics)
        return remade, (made, self.model, self.params, self.programs.precisions, self.report, self.engines)


def remade(
    made: Any,
    model: Any,
    params: Any,
    precisions: tuple[Precision, ...],
    report: Quantization,
    engines: tuple[str, ...],
) -> QuantizedGraph:
    """Rebuilds an unpickled quantized graph.

    made: a function that makes a graph from the model and its parameters. precisions, report, engines: the
    choices of `quantize`, its report, and the engines that it was asked for.
    """
    return QuantizedGraph.of(made(model, params), precisions, report, engines)
