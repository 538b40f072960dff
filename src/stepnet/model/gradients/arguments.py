"""The arguments of a call whose gradient is taken, checked, and its gradients in the same structures.

    sequences, params, statics ...  --Model.gradient_call-->  arrays of the inputs of a net
    gradients of these inputs       --CallArguments------->  `Gradients`

The code behind a call (runs, losses and texts) deals only with nets.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, cast

import numpy as np

from stepnet.compiler.net.ends import Ends
from stepnet.compiler.net.interpreter import entries_of_steps
from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.net.types import ROWS, STEPS, is_static_extent
from stepnet.compiler.targets import Call, Order
from stepnet.compiler.values.arguments import choice
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, rebuild
from stepnet.errors import InputError
from stepnet.model.batch import Batch
from stepnet.model.control import run_until
from stepnet.model.nets import located_integers
from stepnet.model.program import Beginning, Program, StepProgram
from stepnet.model.programs import Programs
from stepnet.model.reading import NO_LAST, Reading
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray
Places = Mapping[str, tuple[int, ...]]
"""The positions of a net's inputs by kind of argument; a mask and constants are of no kind."""


@dataclass(frozen=True)
class Gradients:
    """Gradients in the structures of the arguments; None for arguments not requested and for integers.

    params: for an `RNN` or a `Graph` in the structure of its parameters, for a `Stack` a tuple with one entry
        per layer, for a `Bidirectional` {"forward": ..., "backward": ...}.
    inputs, initial, statics: in the structures that a call takes.
    """

    params: Any = None
    inputs: Any = None
    initial: Any = None
    statics: Any = None


def wanted_kinds(wrt: Any, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the kinds of arguments that `wrt` names, in the order of `kinds`; None stands for all.

    kinds: the names that are possible, such as "params" and "inputs".

    Raises `InputError` for other names.
    """
    if wrt is None:
        return kinds
    several = isinstance(wrt, Iterable) and not isinstance(wrt, str)
    names: list[Any] = [*cast("Iterable[Any]", wrt)] if several else [wrt]
    for name in names:
        choice(name, f"wrt is some of {', '.join(map(repr, kinds))}", kinds)
    return tuple(kind for kind in kinds if kind in names)


@dataclass(frozen=True)
class Cut:
    """The sequences of a recurrence with `until=`, cut to the steps that a call takes, which have gradients.

    batch: the sequences of the call.
    places: the positions of the remaining values in the batch, level by level.
    reading: the call of the cut sequences, and of the mask cut to the same steps.
    """

    batch: Batch
    places: list[Array]
    reading: Reading[StepProgram]

    @classmethod
    def of(cls, reading: Reading[StepProgram], params: Any, reverse: bool, engine: Order) -> "Cut":
        """Runs a call whose sequences may end early, to find the steps that they take, and cuts its sequences
        and its mask to these steps, for the gradient.

        reading: the call, of a recurrence with `until=`.
        params: the parameters of the call, in the structure of the recurrence's own.
        reverse: whether the recurrence runs from the last step.
        engine: the engines in order of preference.
        """
        call, net, batch = reading.call, reading.running.net, reading.batch
        ended = len(leaves(reading.program.memory))  # the position of the memory "done" of an early end
        values, running = leaves(params), reading.running
        if any(value is not own for value, own in zip(values, running.params, strict=False)):
            running = running.with_params([*values, *running.params[len(values) :]])
        used, _ = run_until(running.bound(engine), call, net, ended)
        where = call.positions
        ahead = where.lengths - used if reverse else np.zeros_like(used)
        places, inner = entries_of_steps(where.step_indices(np.arange(where.rows), ahead, used), where.inner)
        offsets = (offsets_of(used), *inner)
        arrays = zip(batch.arrays, batch.levels, strict=True)
        cut = [Ragged(array[places[levels - 1]], offsets[:levels]) for array, levels in arrays]
        made = Batch.of(rebuild(batch.structure, cut), None)
        masks = [mask[places[0]] for mask in call.sequences[len(cut) :]]
        positions = made.positions.with_statics(where.beside)
        call = replace(call, positions=positions, sequences=[*made.arrays, *masks])
        return cls(batch, places, replace(reading, batch=made, call=call))

    def whole(self, array: Array, levels: int) -> Any:
        """Returns the gradient of an input for all steps of the call, from that for the steps that ran before
        sequences ended early (`until=`); it is zero at the others.

        array: the gradient for the steps that ran.
        levels: the number of ragged levels of the input.
        """
        level = self.batch.levels.index(levels)
        whole = np.zeros((len(self.batch.arrays[level]), *array.shape[1:]), array.dtype)
        whole[self.places[levels - 1]] = array
        return self.batch.like_input(whole, levels)


@dataclass(frozen=True)
class CallArguments:
    """The checked arguments of a call whose gradients are to be computed.

    reading: the call, with its program.
    arrays: the arrays of the net's inputs.
    places: by kind of argument, the positions of its arrays among these inputs.
    structures: by kind of argument, the structure in which the caller has it.
    gives_final: whether a call returns final memories besides outputs.
    cut: the cut sequences of a recurrence with `until=`; else None.
    programs: the programs of the model.
    """

    reading: Reading[Program]
    arrays: list[Array | None]
    places: Places
    structures: Mapping[str, Any]
    gives_final: bool
    cut: Cut | None
    programs: Programs[Any]

    @property
    def net(self) -> Net:
        """The net of the call, whose gradient is taken."""
        return self.reading.program.net

    @property
    def call(self) -> Call:
        """The call of the net, with the positions of the sequences in the arrays."""
        return self.reading.call

    @property
    def batch(self) -> Batch:
        """The sequences of the call whose gradient is taken."""
        return self.reading.batch

    def located(self) -> AbstractContextManager[None]:
        """Context that adds to an `IndexOutsideError` of the call which integer it is, and where."""
        return located_integers(self.net, self.arrays, self.call.positions)

    @classmethod
    def of(
        cls,
        reading: Reading[Any],
        own: Any,
        params: Any,
        statics: Any,
        gives_final: bool,
        cut: Cut | None,
        programs: Programs[Any],
    ) -> "CallArguments":
        """Arranges the arguments of a call as the inputs of its net.

        reading: the checked call, with its program.
        own, params: the parameters of the model, and those of the call in the same structure.
        statics: the structure of the statics (values that each sequence has once).
        gives_final: whether a call returns final memories besides outputs.
        cut: the sequences cut at the steps where a condition `until` ended them; None without one.
        programs: the programs of the model.
        """
        program = reading.program
        captured = program.params[len(leaves(own)) :]
        structures = {
            "params": params,
            "inputs": reading.batch.structure,
            "initial": program.memory,
            "statics": statics,
        }
        return cls(
            reading,
            arrays_of(program.ends, reading.call, [*leaves(params), *captured]),
            places_of(program, own, len(reading.batch.arrays)),
            structures,
            gives_final,
            cut,
            programs,
        )

    def wanted(self, kinds: Sequence[str]) -> list[int]:
        """Returns the positions of the net's floating-point inputs of some kinds, such as "params"."""
        return wanted_places(self.net, self.places, kinds)

    def gradients(self, kinds: Sequence[str], places: Sequence[int], arrays: Sequence[Array]) -> Gradients:
        """Arranges gradients in the structures of the caller's arguments; None where there is no gradient.

        kinds: the kinds of arguments to differentiate, such as "params".
        places: the position of the net's input that each gradient belongs to.
        arrays: the gradients.
        """
        made = {place: self.answered(place, array) for place, array in zip(places, arrays, strict=True)}
        by_kind = {kind: [made.get(place) for place in self.places[kind]] for kind in kinds}
        return Gradients(**{kind: rebuild(self.structures[kind], values) for kind, values in by_kind.items()})

    def outputs(self, made: Sequence[Array | None]) -> Any:
        """Returns outputs in the structure and the layout in which a call returns them.

        made: the results of the net, outputs first, or a value for each result, such as its tangent. None
        stays None.
        """
        program = self.reading.program
        outputs = [
            None if array is None else self.batch.like_input(array, levels, axis)
            for array, levels, axis in zip(made, program.levels, program.axes, strict=False)
        ]
        return rebuild(program.output, outputs)

    def answered(self, place: int, array: Array) -> Any:
        """Returns the gradient of the net's input at a position, in the layout of the caller's argument, such
        as a padded array.

        array: the gradient, with the entries of all sequences end to end.
        """
        extent = self.net.type_of(self.net.inputs[place]).extent
        if is_static_extent(extent):
            return Ragged(array, (self.call.positions.beside[extent[-1]],))
        levels = max(0, len(extent) - 1)
        if self.cut is not None and levels:
            return self.cut.whole(array, levels)
        return self.batch.like_input(array, levels, extent[-1]) if levels else array

    def flattened(self, place: int, array: Array) -> Array:
        """Returns an array of the caller in the layout of the net's input at a position, the inverse of
        `answered`.

        array: the values in the layout of an argument, such as its tangent; of a Ragged the values of all
            steps.
        """
        extent = self.net.type_of(self.net.inputs[place]).extent
        levels = 0 if is_static_extent(extent) else max(0, len(extent) - 1)
        if not levels:
            return array
        batch = self.batch if self.cut is None else self.cut.batch
        flat = batch.of_output(array, extent[-1])
        return flat if self.cut is None else flat[self.cut.places[levels - 1]]


def wanted_places(net: Net, places: Places, kinds: Sequence[str]) -> list[int]:
    """Returns the positions of the net's inputs to differentiate: floating-point arguments of these kinds.

    places: the positions of the inputs of each kind of argument.
    kinds: the kinds to differentiate, such as "params".
    """
    types = [net.type_of(number) for number in net.inputs]
    return [place for kind in kinds for place in places[kind] if types[place].is_float]


def places_of(program: Program, params: Any, count: int) -> Places:
    """Returns the positions of a program's inputs by kind: "params", "inputs", "initial" and "statics".

    A static (a value that each sequence has once) with which a recurrence begins is a memory of the net, but
    not one of the caller's.

    params: the parameters of the model; arrays that it captures follow them, and are of no kind.
    count: the number of the caller's sequences; a mask follows them.
    """
    ends, memories = program.ends, program.memories
    return {
        "params": ends.parameters[: len(leaves(params))],
        "inputs": ends.sequences[:count],
        "initial": ends.memories[:memories],
        "statics": tuple(sorted((*ends.memories[memories:], *ends.statics))),
    }


def arrays_of(ends: Ends, call: Call, params: Sequence[Array]) -> list[Array | None]:
    """Returns the arrays of a call and the parameters, in the order of a net's inputs; None for initial
    memories of zeros.

    ends: the positions of the inputs by kind: sequences, initial memories, statics (values that each sequence
        has once) and parameters.
    """
    values = (*call.sequences, *call.initial, *call.statics, *params)
    places = (*ends.sequences, *ends.memories, *ends.statics, *ends.parameters)
    by_place = dict(zip(places, values, strict=True))
    return [by_place[place] for place in range(len(by_place))]


def without_control(
    program: Program,
    running: Program,
    ends: Sequence[bool],
    given: int,
    how: str = "last",
    begin: Beginning | None = None,
) -> Program:
    """Returns the program to differentiate: its net has the inputs and results that the caller knows, and the
    mask as a further input, without the memories that a mask adds.

    Memories that the caller does not give, such as the ones that a mask adds, begin with zeros, or with the
    values that `begin` computes. If nothing differs, the result is the program itself. Raises `InputError`
    for the last output of sequences inside a step.

    program: the program of the model. running: its program with the mask of the call; `program` without a
        mask.
    ends: for each output, whether the result is its value at the end of each sequence alone.
    given: the number of memories that the caller gives, and gets back: those of the step, or none.
    how: the end of the sequences, "last" or "first".
    begin: computes memories from the statics (values that each sequence has once) and parameters, which are
        the last inputs; None for zeros.
    """
    if running is program and given == program.memories and not any(ends):
        return program
    net, builder = running.net, Builder()
    hidden = [net.inputs[place] for place in running.ends.memories[given : running.memories]]
    made = {number: builder.copy(net.nodes[number], []) for number in net.inputs if number not in hidden}
    initial = dict[int, int]() if begin is None else begin.add_to(builder, list(made.values()))
    for place, number in enumerate(hidden):
        if place in initial:
            made[number] = initial[place]
        else:
            zeros = builder.constant(np.zeros(net.type_of(number).shape, net.type_of(number).dtype))
            made[number] = builder.add("expand", zeros, extent=ROWS)
    for number, node in enumerate(net.nodes):
        if number not in made:
            made[number] = builder.copy(node, [made[operand] for operand in node.inputs])
    count = len(net.results) - running.memories
    outputs = list[int]()
    for result, is_end in zip(net.results[:count], ends, strict=True):
        if is_end and len(builder.type_of(made[result]).extent) != len(STEPS):
            raise InputError(NO_LAST)
        outputs.append(builder.add("reduce", made[result], how=how) if is_end else made[result])
    final = [made[result] for result in net.results[count : count + given]]
    memory, last = (program.memory, program.last) if given else ((), ())
    return Program(builder.net([*outputs, *final]), program.output, memory, last, given, program.params)
