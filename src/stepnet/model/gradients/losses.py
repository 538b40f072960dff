"""`value_and_grad`: the value of a model's loss and its gradients, by one net."""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Unpack

import numpy as np

from stepnet.compiler.grad.gradient import vjp as vjp_net
from stepnet.compiler.grad.stored_values import saving
from stepnet.compiler.net.ir import Builder, Net, with_inputs
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Type, extent_of
from stepnet.compiler.plan.load import FitsChunks
from stepnet.compiler.targets import Order, chunks_of
from stepnet.compiler.trace.draws import traced_purely
from stepnet.compiler.trace.lines import NamingLine, defined_at, refuse, written_at
from stepnet.compiler.trace.step import NamedValues
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.arguments import advised, argument_names, check_signature, choice, flag, function
from stepnet.compiler.values.once import entry_of
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, named_leaves, rebuild, skeleton, titled_leaves
from stepnet.errors import ArgumentError, InputError
from stepnet.model.batch import Batch, checked_array
from stepnet.model.control import Controls, UncheckedCall, check_controls
from stepnet.model.executables import Executables
from stepnet.model.gradients.arguments import (
    CallArguments,
    Gradients,
    wanted_kinds,
)
from stepnet.model.gradients.pieces import Checkpoint, checked_checkpoint, checked_saved
from stepnet.model.gradients.prepared_gradients import form_of, kinds_of
from stepnet.model.gradients.prepared_losses import LossExecutable, form_with
from stepnet.model.gradients.strategy import gradient_run
from stepnet.model.model import Model, differentiable, gradient_kinds
from stepnet.model.nets import run_net
from stepnet.model.program import Asked, NetProgram
from stepnet.model.shared_programs import program_from
from stepnet.ragged import Ragged

Array = np.ndarray
MEANS = ("mean", "sum")
OF_CALL = dict.fromkeys(
    ("wrt", "params", "initial", "statics", "lengths", "last_only", "checkpoint", "engine", "mask"),
    "it is an argument of the call of what value_and_grad(loss, model) returns",
)
"""Advice for arguments that the function which `value_and_grad` returns has, by their names."""


@advised(**OF_CALL)
def value_and_grad(
    loss: Callable[..., Any], model: Model, *, reduce: str = "mean", saved: str | None = None
) -> "ValueAndGrad":
    """Returns a function that runs a model and returns the value of a loss and its gradients.

    Args:
        loss: loss(outputs, targets) -> a number for each step or, where outputs are per sequence, for each
            sequence. It is traced as a step is: its arguments are arrays [rows, features...]. One with a
            parameter named `final` gets the last memories of layers too, and may give a number for each
            sequence.
        model: An `RNN`, a `Stack`, a `Bidirectional` or a `Graph`.
        reduce: The value of the loss: the "mean" of these numbers, or their "sum".
        saved: The dtype in which values for the gradient alone are stored, as of `vjp`.

    Raises:
        InputError: For arguments of another form.

    >>> import stepnet as sn
    >>> rnn = sn.RNN(lambda x, h, W: (h + x * W, h + x * W), np.array([2.0]), memory=1)
    >>> train = sn.value_and_grad(lambda y, target: ((y - target) ** 2).sum(-1), rnn)
    >>> x, target = np.array([[[1.0], [10.0]]]), np.array([[[2.0], [20.0]]])
    >>> value, gradients = train(x, target)
    >>> value, gradients.params
    (np.float64(2.0), array([22.]))
    """
    check_signature(
        function(loss, "loss is a function loss(outputs, targets)"), ("outputs", "targets"), ("final",)
    )
    choice(reduce, f"reduce is {' or '.join(map(repr, MEANS))}", MEANS)
    return ValueAndGrad(differentiable(model), loss, reduce == "mean", checked_saved(saved))


POSITIONS = (
    "what value_and_grad returns is called with sequences and targets, and with all others by name, as "
    "params=params"
)


class ValueAndGrad:
    """A function that returns the value of a loss and its gradients; `value_and_grad` makes it.

    is_mean: True if the value is the mean of the loss's numbers, False for their sum.
    saved: the dtype in which values for the gradient alone are stored; None for their own.
    """

    def __init__(self, model: Model, loss: Callable[..., Any], is_mean: bool, saved: str | None) -> None:
        """Stores the arguments, which the class documents; nets are made at first use."""
        self.model, self.loss, self.is_mean, self.saved = model, loss, is_mean, saved
        self.programs, self.calls = OrderedDict[Any, Any](), Executables[LossExecutable]()
        self.check = model.change_check

    def __call__(
        self,
        sequences: Any,
        targets: Any = None,
        *others: Any,
        params: Any = None,
        initial: Any = None,
        statics: Any = None,
        lengths: Any = None,
        last_only: bool = False,
        wrt: Any = "params",
        checkpoint: Checkpoint = None,
        engine: Asked = "auto",
        **control: Unpack[Controls],
    ) -> tuple[Any, Gradients]:
        """Runs the model; returns the value of the loss and its `Gradients`. Raises `InputError` for a
        recurrence with a condition `until`.

        targets: the second argument of the loss, laid out as the sequences are. Where outputs are per
            sequence, as with `last_only`, targets are arrays with one entry per sequence. Where a graph has
            outputs of both kinds, a target has the name of the output with its layout.

        params: parameters in place of the model's own, in the same structure.
        wrt: the arguments to differentiate: "params", "inputs", "initial", "statics", or several of these.
        checkpoint: None saves all values that the backward pass reads; k or "sqrt" recomputes most of them.

        The other arguments are as in a call of the model.
        """
        if others:
            raise ArgumentError(POSITIONS)
        form, unusual = None, (statics, lengths, checkpoint)
        if not self.model.ends_early and all(value is None for value in unusual):
            if self.check is not None:
                self.check()
            begins = initial is not None and not self.model.gives_final
            form = form_of(sequences, wrt, last_only, engine, control, params is not None, begins)
            form = form_with(form, targets, sequences)
            if form is not None:
                done = self.calls.run(form, lambda call: call(sequences, targets, initial, params))
                if done is not None:
                    return done
        check_controls("value_and_grad", ValueAndGrad.__call__, control)
        asked, kinds = (
            self.model.gradient_order(engine),
            wanted_kinds(wrt, gradient_kinds(self.model, initial)),
        )
        checkpoint, last_only = checked_checkpoint(checkpoint), flag(last_only, "last_only")
        if self.model.ends_early:
            raise InputError("where a recurrence with until= ends is known when it has run: take vjp of it")
        arguments = self.model.gradient_call(
            UncheckedCall(sequences, params, initial, statics, lengths, last_only, control, asked)
        )
        loss_targets = targets_of(targets, arguments, lengths, bool(control.get("time_major")))
        places = arguments.wanted(kinds)
        if checkpoint is None:  # one net of the model, the loss and both gradients
            program, seed = self.net_for(arguments, loss_targets, places, False, asked)
            if form is not None and arguments.batch.padded is None and self.calls.is_due(form):
                own = kinds_of(arguments, kinds, places)
                made = LossExecutable.of(
                    arguments, program, loss_targets.arrays, seed, own, asked, params is not None
                )
                if made is not None:
                    self.calls.keep(form, made, made.bytes)
                    done = self.calls.run(form, lambda call: call(sequences, targets, initial, params))
                    if done is not None:
                        return done
            arrays = [*arguments.arrays, *loss_targets.arrays, seed]
            with arguments.located():
                value, *gradients = run_net(program, arrays, arguments.call, asked)
            return (value * seed)[()], arguments.gradients(kinds, places, gradients)
        net = saving(arguments.net, self.saved)
        kept = arguments.reading.program.gradient_runs
        run = gradient_run(kept, self.saved, net, places, checkpoint, asked)
        with arguments.located():
            made = run.forward(arguments.arrays, arguments.call, asked)
        types = [arguments.net.type_of(number) for number in arguments.net.results]
        floats = [place for place, type_ in enumerate(types) if type_.is_float]
        program, seed = self.net_for(arguments, loss_targets, floats, True, asked)
        arrays = [*made[: len(types)], *loss_targets.arrays, seed]
        value, *cotangents = run_net(program, arrays, arguments.call, asked)
        computed = [
            array.astype(types[place].computed.dtype, copy=False)
            for place, array in zip(floats, cotangents, strict=True)
        ]
        saved = [made[place] for place in run.saved]
        gradients = run.backward(arguments.arrays, computed, saved, arguments.call, asked)
        return (value * seed)[()], arguments.gradients(kinds, places, gradients)

    def net_for(
        self, arguments: CallArguments, targets: "Targets", wanted: list[int], alone: bool, engine: Order
    ) -> tuple[NetProgram, Array]:
        """Returns the net of the loss and its gradients, made at first use, and the array of its last input.

        That input is the factor of the sum of the loss's numbers: 1 / their count for a mean, else 1.

        arguments, targets: the checked arguments of the call of the model, and the targets.
        wanted: the positions of the inputs to differentiate.
        alone: True if the net reads the results of the model as inputs, False if it includes the model.
        engine: the engines in order of preference.
        """
        chunks = None if alone else chunks_of(engine)
        program, dtype, at_steps = entry_of(
            self.programs,
            (arguments.reading.program, targets.key, tuple(wanted), alone, chunks),
            lambda: self.program(arguments, targets, wanted, alone, chunks),
        )
        positions = arguments.call.positions
        count = int(positions.lengths.sum()) if at_steps else positions.rows
        return program, np.asarray(1 / max(count, 1) if self.is_mean else 1, dtype)

    def program(
        self,
        arguments: CallArguments,
        targets: "Targets",
        places: list[int],
        alone: bool,
        chunks: FitsChunks | None,
    ) -> tuple[NetProgram, str, bool]:
        """Makes the net of the loss and its gradients; returns (program, dtype of the loss, is per step).

        The last is True if the loss has a number per step, False for one per sequence.

        arguments, targets: the checked arguments of a call, whose types the net has.
        places: the positions of the net's inputs whose gradients are computed.
        alone: True if the net reads the results of the model as inputs, False if it includes the model.
        chunks: as of `vjp`.
        """
        net, at_steps = traced_purely(
            self.loss, lambda: with_loss(self.loss, arguments, targets, alone), itemgetter(0)
        )
        kept, how = arguments.reading.program.gradient_runs, ("loss", tuple(places), self.saved, chunks)
        program = program_from(
            net, how, kept, lambda: vjp_net(saving(net, self.saved), places, chunks=chunks)
        )
        return program, net.type_of(net.results[0]).dtype, at_steps


@dataclass(frozen=True)
class Targets:
    """The second argument of a loss, as arrays.

    structure: the structure in which the caller gives the arrays.
    arrays: its leaves.
    levels: the number of ragged levels of each array: 1 for a value per step, 0 for one per sequence.
    """

    structure: Any
    arrays: list[Array]
    levels: list[int]

    @property
    def key(self) -> tuple[Any, ...]:
        """The cache key of a loss's net: the structure, dtypes, features and levels of the targets."""
        arrays = zip(self.arrays, self.levels, strict=True)
        return skeleton(self.structure), *((a.dtype, a.shape[1:], levels) for a, levels in arrays)

    def types(self) -> Iterator[Type]:
        """Yields the types of the targets, to add them as inputs to the net of a loss."""
        for array, levels in zip(self.arrays, self.levels, strict=True):
            yield Type(extent_of(1 + levels), array.shape[1:], array.dtype.name)


def targets_of(targets: Any, arguments: CallArguments, lengths: Any, time_major: bool) -> Targets:
    """Checks the targets of a loss; returns them as arrays. Raises `InputError` unless they fit the outputs.

    arguments: the checked arguments of the same call of the model.
    lengths, time_major: the arguments of the call, which also hold for targets per step.
    """
    named, program = list(named_leaves(targets)), arguments.reading.program
    outputs = dict(zip((name for name, _ in named_leaves(program.output)), program.levels, strict=True))
    per_step = {name: leaf for name, leaf in named if not of_rows(name, outputs)}
    at_steps: dict[str, tuple[Array, int]] = {}
    if per_step and program.has_derived:
        raise InputError(
            "targets with an entry per step are not for models with other numbers of steps than the inputs, "
            "as after a stride or where inputs have steps of their own: take vjp, and compute the loss of "
            "its outputs; or make the targets an input of the model, with the axis of the outputs, and the "
            "loss its output, as sn.reduce(loss, 'sum')"
        )
    if per_step:
        check_form(per_step, arguments.batch.structure)
        own = per_step.get("", per_step)  # a single target has no name
        both = Batch.of({"inputs": arguments.batch.structure, "targets": own}, lengths, time_major)
        check_depth(per_step, both.levels[-len(per_step) :], arguments.batch)
        first = len(arguments.batch.arrays)
        at_steps = dict(
            zip(per_step, zip(both.arrays[first:], both.levels[first:], strict=True), strict=True)
        )
    pairs = [
        at_steps[name] if name in per_step else (of_row(name, leaf, arguments), 0) for name, leaf in named
    ]
    return Targets(targets, [array for array, _ in pairs], [levels for _, levels in pairs])


PER_SEQUENCE = "targets with an entry per sequence are for the last outputs, with last_only=True"


def check_form(targets: Mapping[str, Any], inputs: Any) -> None:
    """Raises `InputError` unless targets with an entry per step are Raggeds where the inputs are, or arrays
    of their numbers of sequences and steps.

    targets: the targets by name. inputs: the inputs, in their structure.
    """
    ragged = isinstance(leaves(inputs)[0], Ragged)
    own = () if ragged else np.shape(leaves(inputs)[0])[:2]
    if any(isinstance(target, Ragged) != ragged for target in targets.values()):
        made = "Raggeds, such as x.with_values(targets)" if ragged else "arrays [batch, time, ...]"
        wrong = f"are {made}, as the inputs are: here is a Ragged among arrays"
    elif not ragged and (
        others := [np.shape(target) for target in targets.values() if np.shape(target)[:2] != own]
    ):
        wrong = f"are arrays [batch, time, ...] of {own}, as the inputs are, not of {others[0]}"
    else:
        return
    raise InputError(f"targets with an entry per step {wrong}; {PER_SEQUENCE}")


def of_rows(name: str, outputs: Mapping[str, int]) -> bool:
    """Returns True if the output that a target belongs to has one entry per sequence, False if one per step.

    It is the output with the target's name. The name matters only if there are outputs of both kinds; raises
    `InputError` if it is then unknown.

    name: the name of the target.
    outputs: the number of ragged levels of each output, by name.
    """
    if len({levels > 0 for levels in outputs.values()}) == 1:
        return 0 in outputs.values()
    if name in outputs:
        return not outputs[name]
    raise InputError(
        f"{f'target {name}' if name else 'the target'} has the name of no output; some outputs are of each "
        f"step and others of each sequence, so a target has the name of one: {', '.join(outputs)}"
    )


def of_row(name: str, leaf: Any, arguments: CallArguments) -> Array:
    """Returns a target as an array; raises `InputError` unless it has one entry per sequence.

    name, leaf: the target's name and value.
    arguments: the arguments of the call, which have the number of sequences.
    """
    what, rows = f"target {name}".strip(), arguments.call.positions.rows
    array = checked_array(leaf, what)
    if array.shape[:1] != (rows,):
        raise InputError(
            f"{what} is {list(array.shape)}; its first axis should be the {rows} sequences, of each of which "
            "there is one output"
        )
    return array


def check_depth(targets: Mapping[str, Any], levels: Sequence[int], batch: Batch) -> None:
    """Raises `InputError` for targets with more levels of nested sequences than the inputs have.

    targets, levels: the targets by name, and the number of levels of each, in the same order.
    batch: the inputs.
    """
    for name, count in zip(targets, levels, strict=True):
        if count > max(batch.levels):
            raise InputError(
                f"{f'target {name}'.strip()} has {count} levels of sequences; the inputs have "
                f"{max(batch.levels)}"
            )


def with_loss(
    loss: Callable[..., Any], arguments: CallArguments, targets: Targets, alone: bool
) -> tuple[Net, bool]:
    """Traces a loss of the results of a model; returns the net of the sum of its numbers, and True if the
    loss has a number per step.

    Raises `StepError` for a loss that gives something else than a number per step or sequence.

    arguments, targets: the checked arguments of the call of the model, and the targets.
    alone: True if the net reads the results of the model as inputs, False if it includes the model.
    """
    net, program, builder = arguments.net, arguments.reading.program, Builder()
    named, aims = argument_names(loss, ("outputs", "targets"))
    if alone:
        names = [name for name, _ in titled_leaves(program.output, named)]
        names += [name for name, _ in titled_leaves(program.memory, "final")] * (
            len(net.results) > len(names)
        )
        order = made = [
            builder.input(net.type_of(number), name) for number, name in zip(net.results, names, strict=True)
        ]
    else:
        place: list[int] = []
        for node in net.nodes:
            place.append(builder.copy(node, [place[operand] for operand in node.inputs]))
        order, made = ([place[number] for number in ends] for ends in (net.inputs, net.results))
    inputs = [
        builder.input(type_, name)
        for (name, _), type_ in zip(titled_leaves(targets.structure, aims), targets.types(), strict=True)
    ]
    results = [widened(builder, number) for number in made]
    count = len(results) - program.memories
    extras: dict[str, Any] = {}
    if takes_final(loss):
        if not arguments.gives_final:
            raise InputError("a graph gives no last memories: its loss has no parameter named `final`")
        extras["final"] = rebuild(program.memory, results[count:])
    outputs = rebuild(program.output, results[:count])
    target_values = rebuild(targets.structure, [widened(builder, number) for number in inputs])
    names = argument_names(loss, ("outputs", "targets"))
    pairs = zip(("output", "target"), names, (outputs, target_values), strict=True)
    with NamingLine(loss):
        value = loss(*(NamedValues.of(values, what, name) for what, name, values in pairs), **extras)
    with NamingLine(loss), written_at(defined_at(loss)):
        if not isinstance(value, Traced) or value.type.shape or not value.type.is_float:
            text = value.type if isinstance(value, Traced) else f"a {type(value).__name__}"
            raise refuse(f"a loss gives one floating-point number for each step or sequence, not {text}")
        if value.type.extent not in (ROWS, STEPS):
            raise refuse(f"a loss gives a number for each step or sequence, not {value.type}")
    total = value.number
    while builder.type_of(total).extent != CONST:
        total = builder.add("reduce", total, how="sum")
    return with_inputs(builder, [*order, *inputs], [total]), value.type.extent == STEPS


def widened(builder: Builder, number: int) -> Traced:
    """Casts a loss's operand of a storage dtype, such as bfloat16, to its compute dtype, as in a step."""
    value = Traced(builder, number)
    return value.astype(value.type.computed.dtype)


def takes_final(loss: Callable[..., Any]) -> bool:
    """Returns whether a loss has a parameter named `final`, which gets the last memories."""
    try:
        return "final" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        return False
