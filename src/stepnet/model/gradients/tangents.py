"""`jvp`: runs layers and models, and computes the derivatives of their results in a direction.

Values and tangents are computed side by side by one net, so nothing is saved. The second call of a form is
prepared (`prepared_tangents.py`).
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from stepnet.compiler.grad import tangent_net
from stepnet.compiler.values.arguments import choice, flag, mapping
from stepnet.compiler.values.once import entry_of
from stepnet.compiler.values.structure import leaves_as, named_leaves, rebuild, skeleton
from stepnet.errors import InputError
from stepnet.model.control import Controls, UncheckedCall, check_controls
from stepnet.model.executables import Executables
from stepnet.model.gradients.arguments import CallArguments
from stepnet.model.gradients.backward import array_like
from stepnet.model.gradients.prepared_gradients import form_of
from stepnet.model.gradients.prepared_tangents import TangentExecutable, kinds_of
from stepnet.model.model import Model, differentiable, gradient_kinds
from stepnet.model.nets import run_net
from stepnet.model.program import Asked, NetProgram
from stepnet.model.shared_programs import program_from

Array = np.ndarray


def jvp(model: Model) -> "Jvp":
    """Returns a function that runs a model and computes the tangents of its results from those of its
    arguments.

    `results, tangents = jvp(model)(sequences, {"inputs": a direction})`: the Jacobian-vector product of
    forward-mode differentiation. A tangent is the derivative in the direction that the tangents of the
    arguments give.

    Args:
        model: An `RNN`, a `Stack`, a `Bidirectional` or a `Graph`.

    Raises:
        InputError: For a value that is not a model.
        RefusedError: For a recurrence in int8, when it is run.

    >>> import stepnet as sn
    >>> rnn = sn.RNN(lambda x, h, W: (h + x * W, h + x * W), np.array([2.0]), memory=1)
    >>> x = np.array([[[1.0], [10.0]]])
    >>> (outputs, final), (d_outputs, d_final) = sn.jvp(rnn)(x, {"params": np.array([1.0])})
    >>> final, d_final
    (array([[22.]]), array([[11.]]))
    >>> (_, _), (d_outputs, _) = sn.jvp(rnn)(x, {"inputs": np.ones((1, 2, 1)), "initial": np.ones((1, 1))})
    >>> d_outputs.tolist()
    [[[3.0], [5.0]]]
    """
    return Jvp(differentiable(model))


class Jvp:
    """A function that runs a model with tangents, whose programs it caches; `jvp` makes it."""

    def __init__(self, model: Model) -> None:
        """Stores a model that has gradients, with empty caches for the programs that compute tangents."""
        self.model, self.programs = model, OrderedDict[Any, NetProgram]()
        self.calls = Executables[TangentExecutable]()
        self.check = model.change_check

    def __call__(
        self,
        sequences: Any,
        tangents: Mapping[str, Any],
        *,
        params: Any = None,
        initial: Any = None,
        statics: Any = None,
        lengths: Any = None,
        last_only: bool = False,
        engine: Asked = "auto",
        **control: Unpack[Controls],
    ) -> tuple[Any, Any]:
        """Runs the model; returns its results, and their tangents in the same structure.

        The results are (outputs, final memories); of a graph, the outputs alone. Results of integers have
        None as their tangent. Tangents of float16 and bfloat16 results are float32.

        tangents: the direction, by argument: some of "params", "inputs", "initial" and "statics", each in the
            structure and layout of that argument. None stands for zeros, for a whole argument or an array in
            it; the tangents of arguments that are left out are zeros. Of a graph, "initial" only where the
            call gives it.
        params: parameters in place of the model's own, in the same structure.

        The other arguments are as in a call of the model.

        Raises `InputError` for tangents of another structure or shape, and for those of integers, and
        `ArgumentError` for an argument by another name.

        >>> import stepnet as sn
        >>> rnn = sn.RNN(lambda x, h, W: (h + x * W, h + x * W), np.array([2.0]), memory=1)
        >>> x = sn.Ragged.from_list([np.ones((2, 1)), np.ones((3, 1))])
        >>> (_, final), (_, d_final) = sn.jvp(rnn)(x, {"inputs": x}, params=np.array([5.0]))
        >>> final.tolist(), d_final.tolist()
        ([[10.0], [15.0]], [[10.0], [15.0]])
        """
        check_controls("jvp", Jvp.__call__, control)
        kinds = gradient_kinds(self.model, initial)
        given, form = direction_of(tangents, kinds), None
        if not self.model.ends_early and statics is None and lengths is None:
            if self.check is not None:
                self.check()
            begins = initial is not None and not self.model.gives_final
            form = form_of(sequences, (*given,), last_only, engine, control, params is not None, begins)
            if form is not None:
                done = self.calls.run(form, lambda call: call(sequences, given, initial, params))
                if done is not None:
                    return self.answer(done)
        order, last_only = self.model.gradient_order(engine), flag(last_only, "last_only")
        arguments = self.model.gradient_call(
            UncheckedCall(sequences, params, initial, statics, lengths, last_only, control, order)
        )
        moved = {
            place: array
            for kind, value in given.items()
            for place, array in tangents_of(arguments, kind, value).items()
        }
        places = tuple(sorted(moved))
        key = arguments.reading.program, places
        program = entry_of(self.programs, key, lambda: self.program(arguments, places))
        directions = [moved[place] for place in places]
        if form is not None and not arguments.reading.program.has_derived and self.calls.is_due(form):
            own = kinds_of(arguments, given, moved)
            made = TangentExecutable.of(arguments, program, own, directions, order, params is not None)
            if made is not None:
                self.calls.keep(form, made, made.bytes)
        with arguments.located():
            made = run_net(program, [*arguments.arrays, *directions], arguments.call, order)
        return arranged(arguments, made)

    def program(self, arguments: CallArguments, places: tuple[int, ...]) -> NetProgram:
        """Returns the program of the results and their tangents, which is kept with that of the model.
        arguments: the checked arguments of a call. places: the positions of the net's inputs with tangents.
        """
        net, kept = arguments.net, arguments.reading.program.gradient_runs
        return program_from(net, ("tangents", places), kept, lambda: tangent_net.jvp(net, places))

    def answer(self, made: tuple[tuple[Any, Any], tuple[Any, Any]]) -> tuple[Any, Any]:
        """Returns the results of a prepared call and their tangents as the model gives results: a graph gives
        outputs alone. made: (outputs, final memories), and their tangents.
        """
        return made if self.model.gives_final else (made[0][0], made[1][0])


def direction_of(tangents: Any, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Checks the argument `tangents`; returns the tangents that are given, by kind of argument.

    kinds: the kinds of arguments that may have tangents, such as "params".

    Raises `InputError` for a value that is not a mapping, and for other names.
    """
    names = f"some of {', '.join(map(repr, kinds))}"
    given = mapping(tangents, f"tangents is a dict with the tangents of {names}")
    for name in given:
        choice(name, f"tangents are of {names}", kinds)
    return {kind: given[kind] for kind in kinds if given.get(kind) is not None}


def tangents_of(arguments: CallArguments, kind: str, value: Any) -> dict[int, Array]:
    """Checks the tangents of one kind of argument; returns them as arrays, by the position of the net's input
    that each belongs to.

    kind: such as "params".
    value: the tangents, in the structure and layout of the argument; None for an array without one.
    """
    structure, places = arguments.structures[kind], arguments.places[kind]
    parts = leaves_as(value, structure)
    if parts is None:
        raise InputError(
            f"the tangents of {kind} are {skeleton(value)}; {kind} are {skeleton(structure)}: give None "
            "for an array that does not change"
        )
    types = [arguments.net.type_of(number) for number in arguments.net.inputs]
    made: dict[int, Array] = {}
    for place, (name, _), leaf in zip(places, named_leaves(structure), parts, strict=True):
        if leaf is None:
            continue
        title, type_ = f"the tangent of {kind} {name}".strip(), types[place]
        if not type_.is_float:
            raise InputError(f"{title} is given, but values of {type_.dtype} have no tangents: leave it None")
        own = arguments.arrays[place]
        if own is None:  # initial memories of zeros
            own = np.zeros((arguments.call.positions.rows, *type_.shape), type_.dtype)
        array = array_like(title, leaf, arguments.answered(place, own), "argument")
        made[place] = arguments.flattened(place, array).astype(type_.computed.dtype)
    return made


def arranged(arguments: CallArguments, made: list[Array]) -> tuple[Any, Any]:
    """Returns the results of a call and their tangents, both in the structures that a call returns.

    made: the results of the net, then the tangents of its floating-point results.
    """
    program, net = arguments.reading.program, arguments.net
    own, moved, count = made[: len(net.results)], iter(made[len(net.results) :]), len(program.levels)
    tangents = [next(moved) if net.type_of(number).is_float else None for number in net.results]
    if not arguments.gives_final:
        return arguments.outputs(own), arguments.outputs(tangents)
    final = rebuild(program.memory, tangents[count:])
    return (arguments.outputs(own), program.final(own[count:])), (arguments.outputs(tangents), final)
