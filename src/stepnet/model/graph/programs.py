"""The programs of a graph: one for each combination of input types, and the calls of these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.net.encodings import HALF, Precision
from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.plan.inner import flat_recurrences
from stepnet.compiler.plan.passes.narrow import check_narrow
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets import Order, engines_of, order_of
from stepnet.compiler.targets.assignment import assign_engines
from stepnet.compiler.values.arguments import flag
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.structure import leaves, named_leaves, rebuild, skeleton
from stepnet.errors import InputError
from stepnet.model.batch import Batch
from stepnet.model.forms import FormedCall
from stepnet.model.graph.traced_model import ModelFunction, TracedModel, trace_model
from stepnet.model.halves import in_half
from stepnet.model.nets import call_on
from stepnet.model.program import Program
from stepnet.model.programs import Programs
from stepnet.model.reading import Reading, call_of
from stepnet.model.specs import check_inputs, with_dtypes
from stepnet.model.statics import Statics
from stepnet.ragged import Ragged

UNKNOWN_INPUTS = "the inputs are not known yet: call the graph once, or make it with inputs="


class GraphProgram(Program):
    """The program of a graph; its schedule depends on the requested engines."""

    def __init__(self, traced: TracedModel, params: Any) -> None:
        """Makes the program of a traced model; the schedules (the net cut into parts) for engines are made at
        first use.

        The caller of a graph passes and gets no memories, so it has none.

        params: the model's parameters, which precede the arrays that it captures.
        """
        super().__init__(traced.net, traced.output, (), (), 0, [*leaves(params), *traced.captured])
        self.traced = traced
        self.placed = dict[tuple[str, ...], Schedule]()
        self.name: str | None = None  # the net's key on disk, if a file determines the net

    @property
    def schedule(self) -> Schedule:
        """The schedule for `engine="auto"`: the parts of the net with their plans."""
        return self.schedule_for("auto")

    def schedule_for(self, asked: Order) -> Schedule:
        """Returns the schedule (the parts of the graph's net, in the order they run) for the requested
        engines: each part runs on the first engine that supports it.

        asked: an engine, or several in order of preference.
        """
        order = order_of(asked)
        if order not in self.placed:
            self.placed[order] = assign_engines(self.net, engines_of(order), self.name)
        return self.placed[order]


def in_precisions(net: Net, marks: Mapping[int, Precision]) -> Net:
    """Returns a copy of a net in which some of its recurrences run in other precisions.

    marks: the precision of each of these recurrences, by the number of its node.
    """
    builder, places = Builder(is_model=True), list[int]()
    for number, node in enumerate(net.nodes):
        operands = [places[operand] for operand in node.inputs]
        changed = {"precision": marks[number]} if number in marks else {}
        places.append(builder.copy(node, operands, **changed))
    return builder.net([places[result] for result in net.results])


def marked(traced: TracedModel, precisions: Sequence[Precision]) -> TracedModel:
    """Returns a copy of a traced model whose recurrences run in these precisions; with `HALF` among them the
    matrices that it captured are rounded.

    precisions: one for each recurrence that can have one (over flat sequences), in the order of the net. With
        none the model itself is returned.
    """
    if not precisions:
        return traced
    marks = zip(sorted(flat_recurrences(traced.net)), precisions, strict=True)
    net, captured = in_precisions(traced.net, dict(marks)), traced.captured
    if any(precision.dtype == HALF for precision in precisions):
        names = [net.nodes[number].name for number in net.inputs[len(net.inputs) - len(captured) :]]
        captured = tuple(in_half(each, HALF, name) for each, name in zip(captured, names, strict=True))
    return replace(traced, net=net, captured=captured)


def has_steps(program: GraphProgram) -> list[bool]:
    """Returns for each output whether it has a value per step, of which the last may be asked for. Raises
    `InputError` if an output has more: a sequence at each step.
    """
    if max(program.levels) > 1:
        raise InputError("the last output is not defined where each step has a sequence of outputs")
    return [level == 1 for level in program.levels]


def has_lengths(sequences: Any, steps: int, time_major: Any) -> bool:
    """Tells whether all sequences of an array or a `Ragged` have as many steps.

    time_major: whether the steps are the first axis of an array.
    """
    if isinstance(sequences, Ragged):
        return bool(np.all(np.diff(sequences.offsets[0]) == steps))
    sizes: tuple[int, ...] = getattr(sequences, "shape", ())
    return len(sizes) > 1 and sizes[0 if time_major else 1] == steps


def with_ends(outputs: Any, ends: Sequence[bool], axes: Sequence[str], batch: Batch) -> Any:
    """Returns the outputs, with some replaced by their value at the last step of each sequence (zeros for an
    empty sequence).

    outputs: in any structure. ends: for each output whether it is replaced; it then has a value per step.
    axes: the axis of the steps of each output. batch: the sequences of the call.
    """

    def end(output: Any, axis: str) -> np.ndarray:
        """Returns the value of an output at each sequence's last step. axis: the output's axis of steps."""
        where = batch.output_positions(axis)
        values = output.values if isinstance(output, Ragged) else output.reshape(-1, *output.shape[2:])
        return where.ends(values, first=False)

    triples = zip(leaves(outputs), ends, axes, strict=True)
    return rebuild(outputs, [end(leaf, axis) if is_end else leaf for leaf, is_end, axis in triples])


class GraphPrograms(Programs[GraphProgram]):
    """The programs of a graph, one for each kind of inputs so far.

    steps: by the engines in order of preference, the graph as one recurrence, which streams run.
    inputs, statics: the declared `Spec`s (features and dtypes), or None.
    precisions: the precision of each recurrence of the model; empty for a model that is not quantized.
    """

    def __init__(
        self,
        model: ModelFunction,
        params: Any,
        inputs: Any,
        statics: Any,
        precisions: tuple[Precision, ...] = (),
    ) -> None:
        """Stores what a graph was made with, and traces the model if `inputs` is given.

        inputs, statics: the declared `Spec`s (features and dtypes) of the sequences and of values that each
            sequence has once, or None.
        precisions: the precision of each recurrence, as `quantize` chose them; empty for none.
        """
        self.model, self.params, self.inputs, self.statics = model, params, inputs, statics
        super().__init__()
        self.precisions = precisions
        self.has_checks = any(hasattr(type(model), name) for name in ("check_unchanged", "only_steps"))
        self.steps = dict[Order, Any]()
        if inputs is not None:
            inputs = with_dtypes(inputs, leaves(params))
            self.program_of(inputs, with_dtypes(statics, leaves(params), inputs))

    @property
    def program(self) -> GraphProgram:
        """The program for the latest inputs; raises `InputError` before inputs are known."""
        return self.known(UNKNOWN_INPUTS)

    @computed_once
    def own_axes(self) -> dict[str, str]:
        """The names of the axes of inputs with steps of their own, by the name of the input."""
        if self.inputs is None:
            return {}
        return {name: spec.axis for name, spec in named_leaves(self.inputs) if spec.axis}

    def program_of(self, inputs: Any, statics: Any) -> GraphProgram:
        """Returns the program of the graph for inputs and statics (values that each sequence has once) of
        these `Spec`s (features and dtypes); traces the model at the first call for them.
        """

        def made() -> GraphProgram:
            """Traces the model for inputs and statics (values that each sequence has once) of these kinds,
            with its recurrences in their precisions, and makes its program; raises `InputError` for those
            that do not fit.
            """
            besides = "" if self.statics is None else f", with statics={skeleton(self.statics)}"
            check_inputs(self.inputs, inputs, owner="graph", besides=besides)
            check_inputs(self.statics, statics, "static", "graph")
            if (check := getattr(self.model, "check_dtypes", None)) is not None:
                check(inputs, statics)
            traced = trace_model(self.model, inputs, statics, self.params)
            program = GraphProgram(marked(traced, self.precisions), self.params)
            check_narrow(program.net)
            return program

        key = (skeleton(inputs), *leaves(inputs), skeleton(statics), *leaves(statics))
        return self.for_specs(key, made)

    def read(
        self,
        sequences: Any,
        initial: Any,
        statics: Any,
        lengths: Any,
        last_only: bool = False,
        *,
        time_major: bool = False,
    ) -> Reading[GraphProgram]:
        """Checks the arguments of a call of the graph; returns them with the program that runs them.

        Raises `InputError` for arguments that do not fit. Those of a call step by step, such as `initial`,
        and `last_only` have no effect on the program.
        """
        self.check_model()
        batch = Batch.of(sequences, lengths, flag(time_major, "time_major"), self.own_axes)
        checked_statics = Statics.of(statics, batch.count)
        key = *batch.key, *checked_statics.key
        program = self.for_arrays(key, lambda: self.program_of(batch.specs, checked_statics.specs))
        if (check := getattr(self.model, "check_lengths", None)) is not None:
            check(batch.positions)
        if program.has_derived or program.whole_axes:
            batch = batch.end_to_end().seen_whole(program.whole_axes)
        call = call_of(batch, [], [checked_statics], False, None, None)
        # A static with which a recurrence begins is an initial memory of the net.
        call = call_on(program, [*batch.arrays, *checked_statics.arrays, *program.params], call, None)
        return Reading(batch, program, program, call, ends=False)

    def prepared(
        self,
        sequences: Any,
        initial: Any,
        lengths: Any,
        last_only: Any,
        engine: Any,
        masked: Any,
        time_major: Any,
    ) -> tuple[FormedCall | None, Any]:
        """Runs a call if an earlier call of its shapes and dtypes prepared one (compiled code with arrays of
        its own); returns the call as the cache takes it, and the outputs or None.

        Calls with `initial` are not prepared. With `last_only` all outputs are computed. The arguments are
        those of the call. Sequences of lengths that the model of a file does not have are left to `read`,
        which refuses them.
        """
        if self.has_checks:
            self.check_model()
            steps = getattr(self.model, "only_steps", None)
            if steps is not None and not (lengths is None and has_lengths(sequences, steps, time_major)):
                return None, None
        if initial is not None or type(last_only) is not bool:
            return None, None
        formed, results = super().prepared(sequences, None, lengths, False, engine, masked, time_major)
        if results is None or not last_only:
            return formed, None if results is None else results[0]
        program, batch = self.program, Batch.of(sequences, lengths, time_major, self.own_axes)
        return formed, with_ends(results[0], has_steps(program), program.axes, batch)

    def check_model(self) -> None:
        """Raises `InputError` for a model that has changed since it was traced, as a module may."""
        if (check := getattr(self.model, "check_unchanged", None)) is not None:
            check()

    def with_params(self, params: Any) -> "GraphPrograms":
        """Returns a copy of a graph's programs with other parameters; both share the compiled code."""
        return self.with_changes(
            params,
            self.precisions,
            lambda program: program.with_params((params, program.traced.captured)),
        )

    def in_precisions(self, precisions: tuple[Precision, ...]) -> "GraphPrograms":
        """Returns a copy of a graph's programs in which the recurrences run in these precisions, one for each
        in order, which `quantize` chose.
        """
        return self.with_changes(
            self.params,
            precisions,
            lambda program: GraphProgram(marked(program.traced, precisions), self.params),
        )

    def with_changes(
        self,
        params: Any,
        precisions: tuple[Precision, ...],
        change: Callable[[GraphProgram], GraphProgram],
    ) -> "GraphPrograms":
        """Returns a copy of a graph's programs with other parameters and precisions, and a changed copy of
        each program traced so far.

        params: the parameters of the copy. precisions: the precision of each recurrence, in the order of the
        net; empty for float32. change: makes the copy's program from a program of the original.
        """
        made = GraphPrograms(self.model, params, None, None, precisions)
        made.inputs, made.statics = self.inputs, self.statics
        changed = self.changed(change)
        made.by_specs, made.by_arrays, made.latest = changed.by_specs, changed.by_arrays, changed.latest
        return made
