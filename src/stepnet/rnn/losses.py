"""`value_and_grad`: the value of a loss of layers, and its gradients, by one net."""

import inspect
from collections.abc import Callable
from typing import Any, Unpack

import numpy as np

from stepnet.engines import checked_engine
from stepnet.engines.pairs import between, has_pairs
from stepnet.errors import InputError
from stepnet.grad.gradient import vjp as vjp_net
from stepnet.net.ir import Builder, Net, with_inputs
from stepnet.net.types import CONST, ROWS, STEPS, Type
from stepnet.rnn.batch import Batch, checked_array
from stepnet.rnn.control import Controls
from stepnet.rnn.gradients import CallArguments, Gradients, Programs, checked_layer, wanted_kinds
from stepnet.rnn.layers import Layer, LayerPrograms
from stepnet.rnn.nets import Arrays, run_net
from stepnet.rnn.pieces import Checkpoint, checked_checkpoint
from stepnet.rnn.program import Asked, NetProgram
from stepnet.rnn.recurrence import RNN
from stepnet.rnn.ways import gradient_run
from stepnet.trace.lines import NamingLine, defined_at, refuse, written_at
from stepnet.trace.traced import Traced
from stepnet.values.arguments import choice, flag, function
from stepnet.values.structure import named_leaves, rebuild, skeleton

Array = np.ndarray
MEANS = ("mean", "sum")


def value_and_grad(loss: Callable[..., Any], layer: Layer, *, reduce: str = "mean") -> "ValueAndGrad":
    """What gives the value of a loss, and its gradients.

    Args:
        loss: loss(outputs, targets) -> a number for each step, or for each sequence with `last_only`. It is
            traced as a step is: its arguments are arrays [rows, features...]. One with a parameter named
            `final` gets the last memories too, and may give a number for each sequence.
        layer: An `RNN`, a `Stack` or a `Bidirectional`.
        reduce: What the value is of these numbers: their "mean", or their "sum".

    Raises:
        InputError: For arguments that are not as said.

    >>> import stepnet as sn
    >>> rnn = sn.RNN(lambda x, h, W: (h + x * W, h + x * W), np.array([2.0]), memory=1)
    >>> train = sn.value_and_grad(lambda y, target: ((y - target) ** 2).sum(-1), rnn)
    >>> x, target = np.array([[[1.0], [10.0]]]), np.array([[[2.0], [20.0]]])
    >>> value, gradients = train(x, target)
    >>> value, gradients.params
    (np.float64(2.0), array([22.]))
    """
    function(loss, "loss is a function loss(outputs, targets)")
    choice(reduce, f"reduce is {' or '.join(map(repr, MEANS))}", MEANS)
    return ValueAndGrad(checked_layer(layer), loss, reduce == "mean")


class ValueAndGrad:
    """See `value_and_grad`."""

    def __init__(self, layer: Layer, loss: Callable[..., Any], is_mean: bool) -> None:
        self.layer, self.loss, self.is_mean = layer, loss, is_mean
        self.run, self.programs = LayerPrograms(layer), Programs()

    def __call__(
        self,
        sequences: Any,
        targets: Any = None,
        *,
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
        """The value of the loss, and its `Gradients`.

        targets: what the loss gets beside the outputs: laid out as the sequences are, or with `last_only`
        arrays with an entry for each sequence. All others are those of `vjp`.
        """
        asked, kinds, last_only = checked_engine(engine), wanted_kinds(wrt), flag(last_only, "last_only")
        kept = checked_checkpoint(checkpoint)
        if isinstance(self.layer, RNN) and self.layer.until is not None:
            raise InputError("where a recurrence with until= ends is known when it has run: take vjp of it")
        arguments = CallArguments.of(
            self.run, sequences, params, initial, statics, lengths, last_only, control, asked
        )
        aimed = target_arrays(targets, arguments, last_only, lengths, bool(control.get("time_major")))
        places = arguments.places(kinds)
        together = kept is None and not has_pairs(asked)  # one net of the layer, the loss and both gradients

        def evaluated(arrays: Arrays, of: list[int]) -> tuple[Array, list[Array]]:
            """The value of the loss, and its gradients for inputs of its net at some places."""
            kind = skeleton(targets), *((array.dtype, array.shape[1:]) for array in aimed)
            program, dtype, at_steps = self.programs.get(
                (arguments.reading.program, kind, tuple(of), together),
                lambda: self.program(arguments, targets, aimed, last_only, of, not together),
            )
            count = int(arguments.call.lengths.sum()) if at_steps else arguments.call.rows
            seed = np.asarray(1 / max(count, 1) if self.is_mean else 1, dtype)
            value, *gradients = run_net(program, [*arrays, *aimed, seed], arguments.call, between(asked))
            return (value * seed)[()], gradients

        if together:
            value, gradients = evaluated(arguments.arrays, places)
            return value, arguments.gradients(kinds, places, gradients)
        run = gradient_run(self.programs, arguments.reading.program, arguments.net, places, kept, asked)
        made = run.forward(arguments.arrays, arguments.call, asked)
        types = [arguments.net.type_of(number) for number in arguments.net.results]
        floats = [place for place, type_ in enumerate(types) if type_.is_float]
        value, cotangents = evaluated(made[: len(types)], floats)
        computed = [
            array.astype(types[place].computed.dtype, copy=False)
            for place, array in zip(floats, cotangents, strict=True)
        ]
        saved = [made[place] for place in run.saved]
        gradients = run.backward(arguments.arrays, computed, saved, arguments.call, asked)
        return value, arguments.gradients(kinds, places, gradients)

    def program(
        self,
        arguments: CallArguments,
        targets: Any,
        aimed: list[Array],
        last_only: bool,
        places: list[int],
        alone: bool,
    ) -> tuple[NetProgram, str, bool]:
        """The program of the loss and its gradients; the loss's dtype, and whether it is one of each step.

        alone: of the results of the layer, which is not in it.
        """
        net, at_steps = with_loss(self.loss, arguments, targets, aimed, last_only, alone)
        return NetProgram(vjp_net(net, places)), net.type_of(net.results[0]).dtype, at_steps


def target_arrays(
    targets: Any, arguments: CallArguments, last_only: bool, lengths: Any, time_major: bool
) -> list[Array]:
    """The targets as flat arrays; raises `InputError` where they do not lie as the outputs do."""
    named = list(named_leaves(targets))
    if not named:
        return []
    if last_only:
        arrays = [checked_array(leaf, f"target {name}".strip()) for name, leaf in named]
        for (name, _), array in zip(named, arrays, strict=True):
            if array.shape[:1] != (arguments.call.rows,):
                what = f"target {name}".strip()
                raise InputError(
                    f"{what} is {list(array.shape)}; with last_only its first axis should be the "
                    f"{arguments.call.rows} sequences"
                )
        return arrays
    both = Batch.of({"inputs": arguments.batch.structure, "targets": targets}, lengths, time_major)
    return both.arrays[len(arguments.batch.arrays) :]


def with_loss(
    loss: Callable[..., Any],
    arguments: CallArguments,
    targets: Any,
    aimed: list[Array],
    last_only: bool,
    alone: bool,
) -> tuple[Net, bool]:
    """The net of a layer that gives the sum of a loss alone, and whether the loss is one of each step.

    alone: not the layer, but its results are in the net: they are inputs.
    """
    net, program, builder = arguments.net, arguments.reading.program, Builder()
    if alone:
        order = made = [
            builder.input(net.type_of(n), f"result{place}") for place, n in enumerate(net.results)
        ]
    else:
        place: list[int] = []
        for node in net.nodes:
            place.append(builder.copy(node, [place[operand] for operand in node.inputs]))
        order, made = ([place[number] for number in ends] for ends in (net.inputs, net.results))
    extent = ROWS if last_only else STEPS
    inputs = [
        builder.input(Type(extent, array.shape[1:], array.dtype.name), f"target{number}")
        for number, array in enumerate(aimed)
    ]
    results = [Traced(builder, number) for number in made]
    count = len(results) - program.memories
    extras = {"final": rebuild(program.memory, results[count:])} if takes_final(loss) else {}
    outputs = rebuild(program.output, results[:count])
    with NamingLine(loss):
        value = loss(outputs, rebuild(targets, [Traced(builder, number) for number in inputs]), **extras)
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


def takes_final(loss: Callable[..., Any]) -> bool:
    """Whether a loss has a parameter named `final`."""
    try:
        return "final" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        return False
