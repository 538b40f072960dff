"""Quantization of a model: for each recurrence the fewest bits that samples allow, and a report.

    samples --> trials --> errors of the outputs --> a dtype for each recurrence

The choice is a mark on each recurrence of the net (`stepnet.compiler.net.encodings`), which engines read.
Layers are tried as a model that calls them, and come back as layers with the same marks.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any, overload

import numpy as np

from stepnet.compiler.net.encodings import HALF, Precision
from stepnet.compiler.targets import checked_engine, order_of
from stepnet.compiler.targets.calibration import ACTIVATIONS, FrameSamples
from stepnet.compiler.values.arguments import choice, number, short_repr
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError, RefusedError
from stepnet.model.compose import Bidirectional, Stack
from stepnet.model.graph.graph import Graph
from stepnet.model.graph.halved import halved
from stepnet.model.graph.integers import IntegerGraph, IntegerKernel
from stepnet.model.graph.quantized import QuantizedGraph
from stepnet.model.graph.report import Quantization
from stepnet.model.graph.trials import Trials
from stepnet.model.halves import in_halves
from stepnet.model.layers import Layer, recurrences_of
from stepnet.model.model import Model
from stepnet.model.nets import in_order
from stepnet.model.precisions import Kind, in_precisions, with_recurrences
from stepnet.model.program import Asked
from stepnet.model.recurrence import RNN

DTYPES = {"int8": ("int8",), "bfloat16": ("bfloat16",), "auto": ("int8", "bfloat16"), HALF: ()}
WITHIN = {"int8": inf, "bfloat16": inf, "auto": 0.02, HALF: inf}


@overload
def quantize(
    model: Graph | RNN | Stack | Bidirectional,
    samples: Sequence[Any],
    dtype: str = "auto",
    *,
    within: float | None = None,
    statics: Sequence[Any] | None = None,
    keep: float = 1.0,
    activations: str,
    engine: Asked = "auto",
) -> IntegerGraph: ...


@overload
def quantize(
    model: Graph,
    samples: Sequence[Any],
    dtype: str = "auto",
    *,
    within: float | None = None,
    statics: Sequence[Any] | None = None,
    keep: float = 1.0,
    activations: None = None,
    engine: Asked = "auto",
) -> QuantizedGraph: ...


@overload
def quantize(
    model: Kind,
    samples: Sequence[Any],
    dtype: str = "auto",
    *,
    within: float | None = None,
    statics: Sequence[Any] | None = None,
    keep: float = 1.0,
    activations: None = None,
    engine: Asked = "auto",
) -> Kind: ...


def quantize(
    model: Any,
    samples: Sequence[Any],
    dtype: str = "auto",
    *,
    within: float | None = None,
    statics: Sequence[Any] | None = None,
    keep: float = 1.0,
    activations: str | None = None,
    engine: Asked = "auto",
) -> Any:
    """Returns the model with its recurrences in fewer bits, as far as errors on samples stay within a bound.

    Weights have one scale for each unit of each gate. The engine llvm finds the scale of inputs and memory
    anew at each step of each sequence; for the engine onednn the samples give it. Each recurrence is tried
    alone. Then the recurrences with the smallest errors are changed first, each to the fewest bits with which
    all outputs are still within the bound.

    Args:
        model: A `Graph`, an `RNN`, a `Stack` or a `Bidirectional`, in float32.
        samples: Inputs such as those that will run, each as a call takes them: `Ragged`s, arrays [batch,
            time, features...], or structures of these. A handful is enough.
        dtype: "int8", "bfloat16", or "auto" for the fewest bits within the bound. "float16" is for devices:
            it rounds all matrices and tables of the model, which `stepnet.build` then stores in 2 bytes.
            Engines compute with the rounded numbers in float32.
        within: The largest error of an output: the root mean square of its differences from float32, relative
            to the root mean square of the output. 0.02 by default for "auto", and no bound for one dtype.
        statics: The statics of each sample, for a model that has statics.
        keep: The share of the inputs' numbers that the scales of int8 cover, for onednn. With 0.999 the
            largest of a thousand numbers saturates, and the others have finer steps.
        activations: "int8" or "int16" for a model that computes with integers alone, as `stepnet.build` makes
            it for devices. Inputs and the left sides of products have this dtype, and all scales come from
            the samples. None for products in int8, and float32 between them.
        engine: An engine, or several in order of preference: each recurrence runs on the first one that
            supports it in fewer bits.

    Returns:
        A model of the same kind, with the choices and errors in its `report`. For a quantized `Graph`,
        `engine="auto"` is the order of engines given here; for layers it is llvm. With `activations` it is an
        `IntegerGraph`, whose calls give the outputs alone, in the integers of a device.

    Raises:
        InputError: For samples without steps or with NaN or infinity, outputs with NaN, and arguments of
            another form.
        RefusedError: For a model without a recurrence that these engines run in fewer bits, with all reasons;
            with `activations` for an operation without a form in integers, with its line.

    >>> import numpy as np
    >>> import stepnet as sn
    >>> gru = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(inputs=8, hidden=16))
    >>> x = np.random.default_rng(0).normal(size=(4, 20, 8)).astype("float32")
    >>> small = sn.quantize(gru, [x], "int8")
    >>> print(small.report.recurrences[0])
    recurrence 0 in int8: llvm, 1,152 weights in its products
        alone in int8: 0.44% away
    >>> np.abs(small(x)[0] - gru(x)[0]).max() < 0.02
    np.True_
    """
    choice(dtype, f"dtype is one of {', '.join(DTYPES)}", tuple(DTYPES))
    if activations is not None:
        choice(activations, "activations is 'int8' or 'int16', or None", ACTIVATIONS)
        if dtype != "int8":
            raise InputError(f"activations need weights in int8: give dtype='int8', not {dtype!r}")
    meaning = "within is a relative error above 0"
    bound = WITHIN[dtype] if within is None else number(within, meaning, lambda value: value > 0)
    order = order_of(model.engine_order(engine) if isinstance(model, Model) else checked_engine(engine))
    if type(model) is Graph:
        trials = Trials.of(model, samples, statics, keep, order)
        if activations is not None:
            return in_integers(model, trials, activations, bound, order)
        if dtype == HALF:
            return halved(model, trials, samples, statics, bound)
        precisions, report = chosen(trials, DTYPES[dtype], bound)
        return QuantizedGraph.of(model, precisions, report, order)
    if not isinstance(model, RNN | Stack | Bidirectional) or any(
        rnn.precision is not None for rnn in recurrences_of(model)
    ):
        raise InputError(
            f"model is a Graph, an RNN, a Stack or a Bidirectional that is not quantized, not "
            f"{short_repr(model)}"
        )
    if activations is not None and model.ends_early:
        raise InputError(
            "sequences that end early (until=) are not for activations=: a device runs each frame"
        )
    graph = as_graph(model)
    trials = Trials.of(graph, samples, statics, keep, order)
    if dtype == HALF:
        made = halved(graph, trials, samples, statics, bound)
        precisions = made.programs.precisions
        if precisions:
            model = with_recurrences(model, lambda rnn: rnn.with_params(in_halves(rnn.params, HALF)))
        return in_precisions(model, trials.of_all(precisions or trials.precisions({})), made.report)
    if activations is not None:
        return in_integers(graph, trials, activations, bound, order)
    precisions, report = chosen(trials, DTYPES[dtype], bound)
    return in_precisions(model, trials.of_all(precisions), report)


def in_integers(
    graph: Graph, trials: Trials, activations: str, bound: float, engines: tuple[str, ...]
) -> IntegerGraph:
    """Returns a graph in integers alone, with scales from the samples. Its report has the errors of its own
    outputs.

    activations: the dtype of the left sides of products. bound: the largest relative error of an output;
    raises `RefusedError` for a larger one, and for operations without a form in integers. engines: those that
    try its recurrences.
    """
    none = (), Quantization((), (), len(trials.readings), trials.steps, bound)
    precisions, report = chosen(trials, ("int8",), inf) if trials.plans else none
    quantized = QuantizedGraph.of(graph, precisions, report, engines)
    made = IntegerGraph.calibrated(quantized, samples_of(trials, activations))
    kernel = IntegerKernel(made.frame, trials.program)
    own = [in_order(trials.program, kernel(reading.call)) for reading in trials.readings]
    errors = trials.errors_of(own)
    if worst := next((each for each in errors if each.relative > bound), None):
        raise RefusedError(
            f"in integers {worst}, more than within={bound:g}: give activations='int16', or None"
        )
    made.report = replace(report, outputs=tuple(errors), within=bound)
    return made


def samples_of(trials: Trials, activations: str) -> FrameSamples:
    """Returns the sequences of the samples of trials, end to end."""
    samples, all_lengths = list[tuple[np.ndarray, ...]](), list[np.ndarray]()
    for reading in trials.readings:
        call, positions = reading.call, reading.call.positions
        lengths = np.asarray(positions.lengths)
        places: list[np.ndarray] = [
            start + (np.arange(length) if positions.steps is None else positions.steps[:length])
            for start, length in zip(positions.starts, lengths, strict=True)
        ]
        order = np.concatenate(places)
        statics = [np.repeat(array, lengths, axis=0) for array in call.statics]
        samples.append((*(np.asarray(array)[order] for array in call.sequences), *statics))
        all_lengths.append(lengths)
    return FrameSamples(activations, tuple(samples), tuple(all_lengths))


def as_graph(layers: Layer) -> Graph:
    """Returns a `Graph` that computes the outputs of some layers, for `quantize` to try precisions on.

    No step of it ends sequences early, so that outputs in all precisions have the same steps.
    """
    return Graph(
        LayerOutputs(with_recurrences(layers, lambda rnn: rnn.changed(lambda program: program, until=None)))
    )


@dataclass(frozen=True)
class LayerOutputs:
    """The outputs of layers, as the model function of a graph."""

    layers: Layer

    @property
    def __name__(self) -> str:
        """The layers, as text."""
        return repr(self.layers)

    def __call__(self, x: Any, params: Any, statics: Any = None) -> Any:
        """Returns the outputs of the layers. statics: the values that each sequence has once, if any."""
        return self.layers(x, statics=statics)[0]


def chosen(trials: Trials, dtypes: Sequence[str], bound: float) -> tuple[tuple[Precision, ...], Quantization]:
    """Chooses a precision for each recurrence; returns the precisions and the report of the choice.

    The recurrences come in the order of the smallest error that each alone causes. Each gets the first dtype
    with which, after the choices before it, all outputs are within the bound; if there is none, float32.

    trials: runs the samples, and measures the errors of the outputs.
    dtypes: the dtypes to try, in order of preference.
    bound: the largest relative error of an output.
    """
    options = trials.options(dtypes)
    alone = {(n, option.dtype): trials.worst({n: option}) for n, made in options.items() for option in made}
    choices: dict[int, Precision] = {}
    for place in sorted(options, key=lambda n: min(alone[n, o.dtype] for o in options[n])):
        for option in options[place]:
            error = trials.worst({**choices, place: option}) if choices else alone[place, option.dtype]
            if error <= bound:
                choices[place] = option
                break
    rows = [trials.row(place, choices.get(place), alone, bound) for place in range(trials.count)]
    errors = trials.errors(choices)
    report = Quantization(tuple(rows), tuple(errors), len(trials.readings), trials.steps, bound)
    return trials.precisions(choices), report
