"""Prepared gradients: a call of `vjp` and its backward pass, prepared once for all calls of one form.

    first call      checked, run
    second call     both halves bound to the parameters of the model and prepared
    later calls     addresses set, run       forward    x, h0            ->   y, h, saved values
                                             backward   x, h0, dy, dh, saved values   ->   dx, dh0, dW

Prepared are calls on one array or one `Ragged`, without statics, lengths, masks and checkpoints. Parameters
that a call gives are packed anew in each half.
"""

from collections.abc import Callable, Container, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.net.types import STEPS
from stepnet.compiler.targets import Bound, Call, Order, PreparedCall, Results
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves_as, rebuilder
from stepnet.model.batch import Batch
from stepnet.model.control import Controls
from stepnet.model.executables import Form, prepared_for
from stepnet.model.forms import exact_form, formed_call
from stepnet.model.gradients.arguments import CallArguments, Gradients
from stepnet.model.gradients.backward import GradientLayout
from stepnet.model.nets import Arrays, call_on, parameters
from stepnet.model.program import NetProgram, Program
from stepnet.model.programs import Executable, Programs, memory_of, outputs_of
from stepnet.ragged import Ragged, unchecked_ragged

Array = np.ndarray
Shape = tuple[int, ...]


@dataclass(frozen=True)
class PreparedNet:
    """A net that is prepared for calls of one form (cache key).

    bound, prepared: the kernel (compiled net) and its prepared call.
    parameters: the positions of the parameters among the inputs of the net, if a call gives parameters of its
        own; else none.
    reads: the positions of the sequences, the memories and the statics among the inputs of the net, in order.
    order: for each result of the net, its position among those of the engine.
    """

    bound: Bound
    prepared: PreparedCall
    parameters: tuple[int, ...]
    reads: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def of(
        cls,
        program: NetProgram,
        arrays: Arrays,
        fixed: Container[int],
        call: Call,
        engine: Order,
        changes: bool,
    ) -> "PreparedNet | None":
        """Prepares a net for later calls of the shapes of `call`; returns None if it cannot be prepared.

        program: the net.
        arrays: the arrays of the net's inputs.
        fixed: the positions of the inputs that may be parameters, as each call knows them ahead.
        call: a call of the net, with the positions of the sequences.
        engine: the engines in order of preference.
        changes: whether these calls pass `params`, which may differ each time; else the model's are used.
        """
        ends = program.ends
        if any(place not in fixed for place in ends.parameters):
            return None
        held = parameters(program, arrays, call)
        bound = program.kernel(engine).bind(held)
        prepared = prepared_for(bound, held, call_on(program, arrays, call, None), changes)
        if prepared is None:
            bound.release()
            return None
        places = [*ends.steps, *ends.rows, *ends.totals]
        order = tuple(places.index(place) for place in range(len(places)))
        reads = (*ends.sequences, *ends.memories, *ends.statics)
        return cls(bound, prepared, ends.parameters if changes else (), reads, order)

    @property
    def bytes(self) -> int:
        """The number of bytes that are held between calls."""
        return self.prepared.bytes

    def __call__(self, arrays: Sequence[Any]) -> list[Array]:
        """Runs the net on the arrays of its inputs; returns its results in order."""
        if self.parameters:
            self.bound.rebind([arrays[place] for place in self.parameters])
        made = self.prepared.run([arrays[place] for place in self.reads], None)
        results = [*made.outputs, *made.final, *made.totals]
        return [results[place] for place in self.order]


@dataclass(frozen=True)
class CallInputs:
    """Arrays of a net's inputs: the parameters, and the arguments of each call.

    known: the arrays, except the sequences.
    own: the parameters of the model, in their structure.
    parameters, sequences, memories: the positions of the parameters, the sequences and the initial memories.
    shape: the shape of the sequences in the net.
    programs, latest: the programs of the model, and the program of these calls.
    """

    known: list[Any]
    own: Any
    parameters: tuple[int, ...]
    sequences: int
    memories: tuple[int, ...]
    shape: Shape
    programs: Programs[Any]
    latest: Any

    @classmethod
    def of(cls, arguments: CallArguments) -> "CallInputs":
        """Collects, from the arguments of a call, the data to build inputs of later calls of its form."""
        places, arrays = arguments.places, list(arguments.arrays)
        (sequences,) = places["inputs"]
        arrays[sequences] = None
        own, shape = arguments.structures["params"], arguments.batch.arrays[0].shape
        programs = arguments.programs
        return cls(
            arrays, own, places["params"], sequences, places["initial"], shape, programs, programs.latest
        )

    def fitting(self, params: Any) -> list[Array] | None:
        """Returns copies of the parameters that a call gives; None if they need a check or a conversion.

        params: the parameters, in the structure of the model's.
        """
        given = leaves_as(params, self.own)
        if given is None:
            return None
        for place, array in zip(self.parameters, given, strict=True):
            like = self.known[place]
            if type(array) is not np.ndarray or (array.shape, array.dtype) != (like.shape, like.dtype):
                return None
        return [array.copy() for array in given]

    def arrays(
        self, sequences: Any, initial: Sequence[Array | None], params: Sequence[Array] | None = None
    ) -> list[Any]:
        """Returns the arrays of the net's inputs for a call on an array or a Ragged.

        sequences: the sequences of the call.
        initial: the initial memories.
        params: the parameters; None for those of the model.
        """
        values = sequences.values if isinstance(sequences, Ragged) else sequences
        arrays = list(self.known)
        arrays[self.sequences] = values.reshape(self.shape)
        if params is not None:
            for place, array in zip(self.parameters, params, strict=True):
                arrays[place] = array
        for place, array in zip(self.memories, initial, strict=True):
            arrays[place] = array
        return arrays


class KindOfGradient(NamedTuple):
    """The gradients of a kind of arguments, such as "params".

    name: the kind.
    places: for each argument the position of its gradient among the results; -1 for one without.
    make: builds the structure of the arguments.
    """

    name: str
    places: list[int]
    make: Callable[[list[Any]], Any]


def kinds_of(
    arguments: CallArguments, kinds: Sequence[str], places: Sequence[int]
) -> tuple[KindOfGradient, ...]:
    """Returns, for each kind of arguments, where its gradients are among a net's results.

    places: the positions of the differentiated inputs, in the order of the results of the net.
    """
    results = {place: number for number, place in enumerate(places)}
    return tuple(
        KindOfGradient(
            kind,
            [results.get(place, -1) for place in arguments.places[kind]],
            rebuilder(arguments.structures[kind]),
        )
        for kind in kinds
    )


def gradients_in(kinds: Sequence[KindOfGradient], results: Sequence[Array], sequences: Any) -> Gradients:
    """Builds `Gradients` from the results of a net. Gradients of the inputs are a Ragged or an array, as
    `sequences` is.

    kinds: for each kind of arguments, its name, the positions of its gradients among the results, and a
        function that builds its structure.
    results: the results of the net.
    sequences: the sequences of the call.
    """
    made = dict[str, Any]()
    for name, places, make in kinds:
        values: list[Any] = [None if place < 0 else results[place] for place in places]
        if name == "inputs" and values[0] is not None:
            if isinstance(sequences, Ragged):
                values = [unchecked_ragged(values[0], sequences.offsets)]
            else:
                values = [values[0].reshape(sequences.shape)]
        made[name] = make(values)
    return Gradients(**made)


class Seed(NamedTuple):
    """The cotangent of a floating-point result, as the backward half takes it.

    place: the position of the result among the outputs and final memories.
    given: the shape in which the caller gives it; None for a Ragged of the lengths of the inputs.
    zeros: the cotangent where none is given, in the shape and dtype of the net.
    """

    place: int
    given: Shape | None
    zeros: Array


@dataclass(frozen=True)
class GradientExecutable(Executable[Program]):
    """A gradient that is prepared for calls of one form.

    layout: the data that these calls share.
    inputs: the arrays of the inputs of the net.
    first, second: the forward and the backward half.
    seeds: the cotangents of the floating-point results.
    whole_numbers: the positions of the other results among the outputs and final memories.
    gradients: the gradients, by kind of argument.
    """

    layout: GradientLayout
    inputs: CallInputs
    first: PreparedNet
    second: PreparedNet
    seeds: tuple[Seed, ...]
    whole_numbers: tuple[int, ...]
    gradients: tuple[KindOfGradient, ...]

    @classmethod
    def of(
        cls, arguments: CallArguments, layout: GradientLayout, changes: bool
    ) -> "GradientExecutable | None":
        """Prepares the gradient for later calls of one form (key); returns None if it cannot be prepared.

        arguments: the checked arguments of a call of the form.
        layout: the data that calls of the form share.
        changes: whether these calls pass `params`, which may differ each time; else the model's are used.
        """
        program, run, inputs = arguments.reading.program, layout.run, CallInputs.of(arguments)
        net, call, rows = program.net, arguments.call, arguments.call.positions.rows
        memory, outputs = memory_of(program, rows), shapes_of(program, arguments.batch, rows)
        shapes = (*outputs, *(shape for shape, _ in memory))
        types = [net.type_of(number).computed for number in net.results]
        counts = [call.positions.total if type_.extent == STEPS else rows for type_ in types]
        seeds = tuple(
            Seed(place, shape, np.zeros((count, *type_.shape), type_.dtype))
            for place, (type_, shape, count) in enumerate(zip(types, shapes, counts, strict=True))
            if type_.is_float
        )
        whole = tuple(place for place, type_ in enumerate(types) if not type_.is_float)
        fixed, zeros = range(len(net.inputs)), [np.zeros(shape, dtype) for shape, dtype in memory]
        arrays = inputs.arrays(arguments.batch.arrays[0], zeros)
        first = PreparedNet.of(run.first, arrays, fixed, call, layout.engine, changes)
        if first is None:
            return None
        made = first(arrays)
        arrays += [*(seed.zeros for seed in seeds), *(made[place] for place in run.saved)]
        second = PreparedNet.of(run.second, arrays, fixed, call, layout.engine, changes)
        if second is None:
            return None
        kinds = kinds_of(arguments, layout.kinds, layout.places)
        return cls(program, memory, outputs, layout, inputs, first, second, seeds, whole, kinds)

    @cached_property
    def is_split(self) -> bool:
        """True: results are sorted already, outputs as in the program and then memories."""
        return True

    @property
    def bytes(self) -> int:
        """The number of bytes that the prepared gradient holds between calls."""
        seeds = sum(seed.zeros.nbytes for seed in self.seeds)
        return self.first.bytes + self.second.bytes + super().bytes + seeds

    def forward(
        self, sequences: Any, initial: Any, params: Any
    ) -> tuple[tuple[Any, Any], list[Any], list[Array]] | None:
        """Runs the forward half. Returns None if arguments need a check or a conversion.

        Returns the outputs and final memories, the arrays of the inputs of the net, and its results with the
        saved values.

        sequences, initial: the arguments of the call.
        params: the parameters of the call; None for those of the model.
        """
        arrays = arrays_for(self, self.inputs, sequences, initial, params)
        if arrays is None:
            return None
        made = self.first(arrays)
        count, end = len(self.outputs), len(self.outputs) + len(self.memory)
        return self.answer(Results(made[:count], made[count:end]), sequences), arrays, made

    def backward(
        self, sequences: Any, arrays: list[Any], made: list[Array], outputs: Any, final: Any
    ) -> Gradients | None:
        """Runs the backward half; returns the gradients, or None for cotangents that need a check.

        sequences: the sequences of the call.
        arrays, made: the arrays of the net's inputs, and the results and saved values of the forward half.
        outputs, final: the cotangents of the outputs and of the final memories; None for zeros.
        """
        given = self.by_result(outputs, final)
        if given is None or any(given[place] is not None for place in self.whole_numbers):
            return None
        seeds = list[Array]()
        for place, shape, zeros in self.seeds:
            seed = given[place]
            if seed is None:
                seeds.append(zeros)
                continue
            array = array_in_net(seed, sequences, shape, zeros.shape, zeros.dtype)
            if array is None:
                return None
            seeds.append(array)
        saved = [made[place] for place in self.layout.run.saved]
        return gradients_in(self.gradients, self.second([*arrays, *seeds, *saved]), sequences)

    def by_result(self, outputs: Any, final: Any) -> list[Any] | None:
        """Lists cotangents to match the results of a net: of the outputs, then of final memories.

        An entry is None where none is given. Returns None if their structures differ from the results'.
        """
        if final is not None and not self.memory:
            return None
        program = self.program
        made = leaves_of(outputs, program.output, len(self.outputs))
        last = leaves_of(final, program.memory, len(self.memory))
        return None if made is None or last is None else [*made, *last]


def arrays_for(
    executable: Executable[Program], inputs: CallInputs, sequences: Any, initial: Any, params: Any
) -> list[Any] | None:
    """Returns the arrays of a net's inputs for a call; None if an argument needs a check or a conversion.

    It also makes the program of the call the latest one of the model, as any call does.

    executable, inputs: the prepared call, and the data to build its inputs.
    sequences: the sequences of the call.
    initial, params: the memories and parameters that the call gives, or None.
    """
    memories = executable.arrays(initial)
    if memories is None or (initial is not None and not memories):
        return None
    own = None
    if params is not None and (own := inputs.fitting(params)) is None:
        return None
    inputs.programs.latest = inputs.latest
    return inputs.arrays(sequences, memories, own)


def shapes_of(program: Program, batch: Batch, rows: int) -> tuple[Shape | None, ...]:
    """Returns the shapes of the outputs as a caller gets them; None for a Ragged of the input's lengths.

    program: the program, which has the features of the outputs.
    batch: the sequences of the call.
    rows: their number.
    """
    lead = None if isinstance(batch.like, Ragged) else tuple(batch.like)
    return tuple(
        (rows, *features) if not levels else None if lead is None else (*lead, *features)
        for features, levels in outputs_of(program)
    )


def leaves_of(value: Any, like: Any, count: int) -> list[Any] | None:
    """Lists the `count` leaves of a structure; returns None for a structure unlike `like`.

    value: the structure; None stands for `count` leaves that are None.
    like: the expected structure; a `Spec` or int for a single leaf.
    """
    if value is None:
        return [None] * count
    return [value] if isinstance(like, int | Spec) else leaves_as(value, like)


def same_offsets(one: Ragged, other: Ragged) -> bool:
    """Tells whether two Raggeds, `other` not nested, have sequences of the same lengths, value by value."""
    if one.offsets is other.offsets:
        return True
    return len(one.offsets) == 1 and np.array_equal(one.offsets[0], other.offsets[0])


def array_in_net(
    leaf: Any, sequences: Any, given: Shape | None, shape: Shape, dtype: np.dtype[Any]
) -> Array | None:
    """Returns an array that a call gives, such as a cotangent, in its shape in a net, without a copy; None if
    it needs a check or a conversion.

    leaf: the array. sequences: the sequences of the call.
    given: the shape in which the caller gives it; None for a Ragged of the lengths of the sequences.
    shape, dtype: its shape and dtype in the net.
    """
    if given is None:
        if type(leaf) is not Ragged or not same_offsets(leaf, sequences):
            return None
        leaf, given = leaf.values, shape
    if type(leaf) is not np.ndarray or leaf.shape != given or leaf.dtype != dtype:
        return None
    return leaf.reshape(shape) if leaf.flags.c_contiguous else None


def form_of(
    sequences: Any, wrt: Any, last_only: Any, engine: Any, control: Controls, changes: bool, begins: bool
) -> Form | None:
    """Returns the cache key of a call whose gradient is taken; None for a call that is never
    prepared (compiled for its shapes at its second use).

    sequences, wrt, last_only, engine, control: the arguments of the call.
    changes: whether the call passes `params`; else the model's parameters are used.
    begins: whether a graph is given the memories that it begins with, so that it runs as one recurrence.
    """
    if control and control.keys() != {"time_major"}:
        return None
    names: tuple[Any, ...] = tuple(wrt) if type(wrt) in (list, tuple) else (wrt,)
    if not all(name is None or type(name) is str for name in names):
        return None
    call = formed_call(sequences, None, last_only, engine, "repeat", control.get("time_major", False))
    return None if call is None else (*(exact_form(call) or ()), changes, begins, *names)
