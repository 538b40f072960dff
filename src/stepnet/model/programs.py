"""The programs of a model: one for each kind of inputs, and the prepared calls of all of them.

    arrays --dtypes, features, levels--> program          looked up at each call
    `Spec`s ----------------------------> program          traced where there is none

    model(x)   check, look up, share out lanes, write words, run, rebuild   ->   set addresses, run

A small recurrence runs in less time than the preparation of a call takes. So the second call of a shape keeps
its preparation, and later calls only set the addresses of their arrays and run. This is for arrays [batch,
time, features...] and Raggeds, without lengths, masks and statics.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Generic, NamedTuple, Self, TypeVar, cast

import numpy as np

from stepnet.compiler.net.types import is_derived
from stepnet.compiler.net.windows import derived_offsets
from stepnet.compiler.targets import Bound, Call, PreparedCall, Results
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.trace.step import Spec
from stepnet.compiler.values.once import entry_of, put_latest
from stepnet.compiler.values.structure import leaves, leaves_as, rebuild
from stepnet.errors import IndexOutsideError, InputError
from stepnet.model.executables import MOST_FORMS, Executables, Form
from stepnet.model.program import Program
from stepnet.ragged import Ragged, unchecked_ragged

Array = np.ndarray
Kind = TypeVar("Kind", bound=Program)
MOST_KINDS = 32
"""The largest number of kinds of inputs whose programs a model keeps."""
MOST_OFFSETS = 1025
"""The largest number of offsets of a Ragged whose calls are prepared. Larger batches take long enough to run
that preparation saves little.
"""
MOST_PLACES = 1024
"""The largest number of sequences for which a call is prepared for any lengths."""
FEW = 32
"""Up to this many offsets, Python's built-in functions are faster than NumPy's."""
FEW_PLACES = 16
"""Up to this many sequences, a call prepared for any lengths is as fast as one for these lengths."""
LONGEST = 4096
"""The largest length of a sequence in a call that is prepared for any lengths."""
SMALL = 64
"""The number of steps up to which calls prepared for any lengths are one form; beyond, each power of two has
one, as threads share larger calls.
"""
RAGGED_CALLS = 8
"""The number of calls with the same lengths after which a call of Raggeds is prepared: lengths often change,
and preparation takes as long as a call."""


@dataclass(frozen=True)
class Executable(Generic[Kind]):
    """A prepared call of a program: how it reads memories, and returns outputs and final memories.

    program: the program, which has the structures of the results.
    memory: the shape and dtype of each memory.
    outputs: the shapes of the outputs as the caller gets them; None for one whose lengths are those of the
        input: a Ragged, or an array of any number of steps.
    """

    program: Kind
    memory: list[tuple[tuple[int, ...], np.dtype[Any]]]
    outputs: tuple[tuple[int, ...] | None, ...]

    def answer(self, results: Results, sequences: Any) -> tuple[Any, Any]:
        """Returns the outputs and the final memories of a call, in the structures of the model.

        results: the results of the engine.
        sequences: the sequences of the call, which give outputs their lengths.
        """
        program = self.program
        if not self.is_split:
            results = program.split(results)
        final = results.final[0] if self.is_array else program.final(results.final)
        if self.has_one_output:
            return self.like(sequences, results.outputs[0], self.outputs[0]), final
        pairs = zip(results.outputs, self.outputs, strict=True)
        return rebuild(program.output, [self.like(sequences, *pair) for pair in pairs]), final

    @staticmethod
    def like(sequences: Any, array: Array, shape: tuple[int, ...] | None) -> Any:
        """Returns an output of a call (`array`) in its shape; if that is None, in the form of the inputs
        `sequences`: a `Ragged`, or an array [batch, time, ...].
        """
        if shape is not None:
            return array.reshape(shape)
        if isinstance(sequences, Ragged):
            return unchecked_ragged(array, sequences.offsets)
        return array.reshape(*sequences.shape[:2], *array.shape[1:])

    def arrays(self, initial: Any, sequences: Any) -> list[Array | None] | None:
        """Returns the argument `initial` as arrays to read in place, which are zeros if it is None; None if
        they need a check or a conversion, or if the call cannot run on these sequences. sequences: those of
        the call.
        """
        if initial is None:
            return self.zeros
        if self.is_single and type(initial) is np.ndarray:  # in a third of the time of the general way
            fits = initial.flags.c_contiguous and (initial.shape, initial.dtype) == self.memory[0]
            return [initial] if fits else None
        arrays = leaves_as(initial, self.program.memory)
        if arrays is None:
            return None
        for array, known in zip(arrays, self.memory, strict=True):
            if type(array) is not np.ndarray or not array.flags.c_contiguous:
                return None
            if (array.shape, array.dtype) != known:
                return None
        return arrays

    @cached_property
    def zeros(self) -> list[Array | None]:
        """The initial memories of a call without `initial`: zeros."""
        return [np.zeros(shape, dtype) for shape, dtype in self.memory]

    @property
    def bytes(self) -> int:
        """The number of bytes of `zeros`, the initial memories that the prepared call holds."""
        return sum(array.nbytes for array in self.zeros if array is not None)

    @cached_property
    def is_split(self) -> bool:
        """True if each output has a value per step: the engine then returns the outputs of this prepared call
        in the program's order, apart from the memories.
        """
        return 0 not in self.program.levels

    @cached_property
    def has_one_output(self) -> bool:
        """True if the prepared call has a single output, an array or Ragged, and not a structure of these."""
        return isinstance(self.program.output, int)

    @cached_property
    def is_array(self) -> bool:
        """True if the prepared call returns the final memory as it is computed: one array, without a change
        of dtype.
        """
        return self.is_single and self.program.rounded is None

    @cached_property
    def is_single(self) -> bool:
        """True if the program's memory is one array, not a structure: prepared calls then take a shortcut."""
        return isinstance(self.program.memory, Spec)


@dataclass(frozen=True)
class CallExecutable(Executable[Kind]):
    """A prepared call for sequences of some lengths, or for a number of sequences of any.

    prepared: the prepared call of the kernel (compiled net).
    """

    prepared: PreparedCall


@dataclass(frozen=True)
class DerivedExecutable(CallExecutable[Kind]):
    """A prepared call of a graph with other numbers of steps than its sequences, as after a stride."""

    def arrays(self, initial: Any, sequences: Any) -> list[Array | None] | None:
        """Returns an empty list, as a graph has no memories; None if a sequence is so short that it has no
        steps along some axis, as after a stride. sequences: those of the call.
        """
        if isinstance(sequences, Ragged):
            offsets = sequences.offsets[0].tolist()
            shortest = min(end - begin for begin, end in pairwise(offsets))
        else:
            shortest = sequences.shape[1]
        return None if shortest < self.prepared.shortest else []

    def answer(self, results: Results, sequences: Any) -> tuple[Any, Any]:
        """Returns the outputs of a call, in the structure of the graph, and no memories.

        results, sequences: those of the call.
        """
        program = self.program
        if self.has_one_output and self.is_split:
            return self.along(sequences, results.outputs[0], program.axes[0]), ()
        pairs = zip(program.split(results).outputs, program.axes, strict=True)
        return rebuild(program.output, [self.along(sequences, *pair) for pair in pairs]), ()

    @staticmethod
    def along(sequences: Any, array: Array, axis: str) -> Any:
        """Returns an output, whose steps lie end to end in `array`, in the form of the inputs `sequences`: a
        Ragged, or an array [batch, time, ...].

        axis: the axis of its steps; "" for an output per sequence.
        """
        if not axis:
            return array
        derived = is_derived((axis,))
        if isinstance(sequences, Ragged):
            offsets = sequences.offsets
            return unchecked_ragged(array, (derived_offsets(axis, offsets[0]),) if derived else offsets)
        count, steps = sequences.shape[:2]
        if derived:
            steps = int(derived_offsets(axis, np.array([0, steps]))[-1])
        return array.reshape(count, steps, *array.shape[1:])


class Calls(Executables[CallExecutable[Kind]]):
    """The prepared calls of a model, by form (shapes, dtypes and options of the arguments)."""

    @staticmethod
    def form(
        sequences: Any, last_only: Any, engine: Any, masked: Any, time_major: Any, any_lengths: bool = False
    ) -> Form | None:
        """Returns the key of a call (its lengths, shape, dtype and options), by which prepared code for equal
        calls is found in the cache; None for a call that no code is prepared for.

        Prepared are calls on one C-contiguous array, or one Ragged without nested sequences, of few
        sequences. The key's first entry is the offsets of the Ragged, as bytes; None for an array; in a key
        for any lengths, the number of sequences.

        any_lengths: gives a Ragged of up to `FEW_PLACES` sequences the key of calls of any lengths, if it has
            one (`form_of_any_lengths`).
        """
        if type(last_only) is not bool or type(time_major) is not bool or not is_order(engine):
            return None
        if type(masked) is not str or masked != "repeat":  # without a mask it has no effect, or is invalid
            return None
        values, offsets = sequences, None
        if type(sequences) is Ragged:
            values, offsets = sequences.values, sequences.offsets[0]
            if len(sequences.offsets) > 1 or time_major or len(offsets) > MOST_OFFSETS:
                return None
        if type(values) is not np.ndarray or not (values.flags.c_contiguous and values.dtype.isnative):
            return None
        if any_lengths and offsets is not None and len(offsets) <= FEW_PLACES + 1:
            options = last_only, engine, threads()
            if (form := form_of_any_lengths(offsets, values.shape, values.dtype, *options)) is not None:
                return form
        lengths = None if offsets is None else offsets.tobytes()
        return lengths, values.shape, values.dtype, time_major, last_only, engine, threads()

    def is_due(self, form: Form, calls: int = 2) -> bool:
        """Counts a call by its form (cache key); returns whether it is the one at which to prepare later
        calls.

        calls: the count at which calls are prepared. It is larger for a Ragged of exact lengths, the offsets
            of which are the first entry of the form, as bytes.
        """
        return super().is_due(form, RAGGED_CALLS if type(form[0]) is bytes else calls)

    def comes_often(self, form: Form, rows: int) -> bool:
        """Counts a call; returns whether its form (key) came often enough to prepare calls of just these
        lengths.

        form: it begins with None for an array, or a Ragged's offsets, as bytes; these must come more often.
        rows: the number of sequences of the call. For few of them the result is False: a call that is
            prepared for any lengths is then as fast.
        """
        if rows <= FEW_PLACES or form in self.idle:
            return False
        return self.counted(form) >= (RAGGED_CALLS if type(form[0]) is bytes else 2)

    def find(
        self, form: Form, sequences: Any
    ) -> tuple[tuple[CallExecutable[Kind], list[CallExecutable[Kind]]] | None, Array | None]:
        """Takes a prepared call out of the cache: one for the form (key), else one for the other kind of
        form, as calls of exact lengths also run on code for any lengths.

        A form that begins with an int is for that many sequences of any lengths, others are for exact ones.

        Returns the pair of `take` (call, list to append it to after use) or None; then the offsets of the
        sequences, which a call for any lengths takes too, else None.
        """
        taken = self.take(form)
        if type(form[0]) is int:
            if taken is None and self.has_alike(form, sequences.offsets[0]):
                taken = self.take(form)
            if taken is None:
                return self.take(form_of_lengths(form, sequences)), None
            return taken, sequences.offsets[0]
        if taken is not None or (others := any_lengths_of(form, sequences)) is None:
            return taken, None
        if not self.has_alike(others.form, others.offsets) or self.comes_often(form, len(others.offsets) - 1):
            return None, None
        return self.take(others.form), others.offsets

    def has_alike(self, form: Form, offsets: Array) -> bool:
        """Tells whether calls with the key `form`, which is for any lengths, are prepared, or about to be. If
        only a call for as many sequences with another number of steps is prepared, and it suits these
        lengths, it is entered for this key too.

        offsets: the offsets of the sequences of the call.
        """
        if form in self.idle:
            return True
        for other, idle in tuple(self.idle.items()):
            same = type(other[0]) is int and (other[0], *other[2:]) == (form[0], *form[2:])
            if same and any(each.prepared.suits(offsets) for each in tuple(idle)):
                put_latest(self.idle, form, idle, MOST_FORMS)
                return True
        return False

    def run(self, form: Form, sequences: Any, initial: Any) -> tuple[Kind, tuple[Any, Any]] | None:
        """Runs a call on prepared code, if some that fits is free; returns its program and its results.

        The code was prepared for the same form, or else for as many sequences of any lengths. Returns None if
        neither is free, or if `initial` needs a conversion.

        form: the key of the call: its shapes and options.
        sequences, initial: the arguments of the call.
        """
        taken, offsets = self.find(form, sequences)
        if taken is None:
            return None
        executable, idle = taken
        try:
            memories = executable.arrays(initial, sequences)
            if memories is None:
                return None
            values = sequences.values if isinstance(sequences, Ragged) else sequences
            results = executable.prepared.run([values, *memories], offsets)
            return executable.program, executable.answer(results, sequences)
        finally:
            idle.append(executable)

    def prepare(self, form: Form, program: Kind, bound: Bound, call: Call, like: Any) -> None:
        """Counts a call; if enough of its form came, prepares later ones, where the engine supports that.

        form: the key of the call; one that begins with an int is for that many sequences of any lengths.
        program, bound: the program of the call, and its kernel (compiled net) with parameters.
        call: the call, whose results the prepared calls have in the same shapes.
        like: the layout of outputs per step: a Ragged, or the first two sizes of the arrays.
        """
        if type(form[0]) is int:
            others, form = form, form_of_lengths(form, like)
        else:
            others = None if (key := any_lengths_of(form, like)) is None else key.form
        if self.is_due(form):
            lead = None if isinstance(like, Ragged) else like
            self.keep_prepared(form, program, bound.prepare(call), call, lead)
        elif others is not None and self.is_due(others):
            prepared = bound.prepare(call, any_lengths=True)
            if prepared is not None and prepared.longest >= LONGEST:
                self.keep_prepared(others, program, prepared, call, None)

    def keep_prepared(
        self,
        form: Form,
        program: Kind,
        prepared: PreparedCall | None,
        call: Call,
        lead: tuple[int, ...] | None,
    ) -> None:
        """Caches a prepared call for later calls with the key `form`, if the engine could prepare it.

        program: the program of the call.
        prepared: the prepared call, made of `call`; None if it could not be prepared.
        lead: the first two sizes of outputs per step; None if these have the lengths of the input. A call
            that returns only last outputs does not use it.
        """
        if prepared is None:
            return
        rows = call.positions.rows
        lead = (rows,) if call.last_only else lead
        shapes = tuple(
            (rows, *features) if not levels else None if lead is None else (*lead, *features)
            for features, levels in outputs_of(program)
        )
        kind = DerivedExecutable[Kind] if program.has_derived else CallExecutable[Kind]
        made = kind(program, memory_of(program, rows), shapes, prepared)
        self.keep(form, made, prepared.bytes + made.bytes)


def outputs_of(program: Program) -> list[tuple[tuple[int, ...], int]]:
    """Returns, for each output of a program, its features and its number of ragged levels."""
    results = zip(program.net.results, program.levels, strict=False)
    return [(program.net.type_of(number).shape, levels) for number, levels in results]


def memory_of(program: Program, rows: int) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    """Returns the shape and dtype of each memory of a program, for a number of sequences."""
    return [((rows, *spec.shape), np.dtype(spec.dtype)) for spec in leaves(program.memory)]


class AnyLengths(NamedTuple):
    """The key and offsets of a call's sequences, to look for a call that is prepared for any lengths.

    form: the key of all calls with as many sequences and a similar number of steps.
    offsets: the offsets of the sequences.
    """

    form: Form
    offsets: Array


def any_lengths_of(form: Form, sequences: Any) -> AnyLengths | None:
    """Returns the key of calls on as many sequences of any lengths, and this call's offsets.

    Returns None for a call that cannot run as one of these, such as one with an empty or a long sequence.

    form: the key of the call with these lengths, of `Calls.form`.
    sequences: the Ragged of the call; not used for arrays, whose sizes the form has.
    """
    lengths, shape, dtype, time_major, *options = form
    if lengths is None:
        if time_major or len(shape) < 2 or not shape[0] or not 0 < shape[1] <= LONGEST:
            return None
        rows, steps, *features = shape
        shape = rows * steps, *features
        offsets = cast("Array", np.arange(0, rows * steps + 1, steps))
    else:
        offsets = cast("Array", sequences.offsets[0])
    made = form_of_any_lengths(offsets, shape, dtype, *options)
    return None if made is None else AnyLengths(made, offsets)


def form_of_any_lengths(
    offsets: Array, shape: tuple[int, ...], dtype: Any, last_only: bool, engine: Any, count: int
) -> Form | None:
    """Returns the key of calls with as many sequences as these and a similar number of steps; None if there
    are too many, one is empty or longer than `LONGEST`, or they do not fit the array of their values.

    offsets: those of the sequences. shape, dtype: those of the array of all steps. last_only, engine, count:
    the options of the call, and the number of threads. The first entry is the number of sequences.
    """
    rows, steps = len(offsets) - 1, shape[0]
    if not 0 < rows <= MOST_PLACES or not are_short(offsets, steps):
        return None
    return rows, max(steps, SMALL).bit_length(), shape[1:], dtype, last_only, engine, count


def form_of_lengths(form: Form, sequences: Ragged) -> Form:
    """Returns the key of a call with exactly these lengths (`Calls.form`), from that for any lengths."""
    _, _, _, dtype, *options = form
    return sequences.offsets[0].tobytes(), sequences.values.shape, dtype, False, *options


def are_short(offsets: Array, steps: int) -> bool:
    """Returns whether none of the sequences at these offsets is empty or longer than `LONGEST`, and they end
    at `steps`, the size of the array of their values.
    """
    if len(offsets) > FEW:
        lengths = offsets[1:] - offsets[:-1]  # in less time than by `np.diff`
        return bool(lengths.min() > 0 and lengths.max() <= LONGEST and offsets[-1] == steps)
    begin, *ends = offsets.tolist()
    for end in ends:  # in a third of the time of `all`
        if not 0 < end - begin <= LONGEST:
            return False
        begin = end
    return begin == steps


def is_order(engine: Any) -> bool:
    """Returns whether the argument `engine` is a name or a tuple of names, which a cache key may contain."""
    if type(engine) is str:  # the usual case
        return True
    names = cast("tuple[Any, ...]", engine) if type(engine) is tuple else (engine,)
    return all(type(name) is str for name in names)


class Programs(Generic[Kind]):
    """The programs of a model for the kinds of inputs so far.

    by_specs: the programs by the `Spec`s (features, dtypes) of inputs and statics.
    by_arrays: the programs by the dtypes, features and levels of the arrays of a call.
    latest: the program for the latest inputs; None before inputs are known.
    calls: the prepared calls of all programs.
    """

    def __init__(self) -> None:
        """Makes empty caches: of programs by `Spec`s and by arrays of the inputs, and of prepared calls."""
        self.by_specs, self.by_arrays = OrderedDict[Any, Kind](), OrderedDict[Any, Kind]()
        self.latest: Kind | None = None
        self.calls = Calls[Kind]()

    def known(self, unknown: str) -> Kind:
        """Returns the program that the model made for its latest inputs, for properties that read it; raises
        `InputError` if there is none, as no inputs are known yet.

        unknown: the message of the error.
        """
        if self.latest is None:
            raise InputError(unknown)
        return self.latest

    def prepared(
        self, sequences: Any, initial: Any, last_only: Any, engine: Any, masked: Any, time_major: Any
    ) -> tuple[Form | None, tuple[Any, Any] | None]:
        """Runs a call if it was prepared; returns its cache key, and its results or None.

        The key is None for a call that is never prepared, and for an integer outside of a parameter, which
        the call that is not prepared names. Nothing is checked: a call that was prepared with this key has
        passed all checks. The program of the call becomes the latest one.

        sequences, initial, last_only, engine, masked, time_major: the arguments of the call.
        """
        form = self.calls.form(sequences, last_only, engine, masked, time_major, any_lengths=True)
        try:
            done = None if form is None else self.calls.run(form, sequences, initial)
        except IndexOutsideError:
            return None, None
        if done is None:
            return form, None
        self.latest, results = done
        return form, results

    def for_specs(self, key: Any, make: Callable[[], Kind]) -> Kind:
        """Returns the program for the `Spec`s (features, dtypes) of inputs and statics (values that each
        sequence has once); makes it at first use.

        key: the key made of them.
        make: makes the program.
        """
        return self._found(self.by_specs, key, make)

    def for_arrays(self, key: Any, make: Callable[[], Kind]) -> Kind:
        """Returns the program for the arrays of a call, by their dtypes, features and levels of nested
        sequences; makes it at first use.

        key: the key made of them.
        make: makes the program.
        """
        return self._found(self.by_arrays, key, make)

    def _found(self, programs: OrderedDict[Any, Kind], key: Any, make: Callable[[], Kind]) -> Kind:
        """Returns the program for a key, made at first use, and stores it as the latest.

        programs: one of the two caches, by the `Spec`s of the inputs or by the arrays of a call.
        make: makes the program.
        """
        # A local variable, as another thread may replace `latest` before the return.
        program = self.latest = entry_of(programs, key, make, MOST_KINDS)
        return program

    def with_own_calls(self) -> Self:
        """Returns a copy with the same programs, whose calls are prepared apart, for other engines."""
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        made.calls = Calls[Kind]()
        return made

    def changed(self, change: Callable[[Kind], Kind]) -> "Programs[Kind]":
        """Returns a copy with each program changed, once for all kinds of inputs that share it.

        change: makes the copy's program from a program of the original.
        """
        made, new = Programs[Kind](), dict[int, Kind]()

        def once(program: Kind) -> Kind:
            """Changes a compiled program once, as both caches (by `Spec`s and by arrays) may hold the same
            program.
            """
            if id(program) not in new:
                new[id(program)] = change(program)
            return new[id(program)]

        for ours, theirs in ((made.by_specs, self.by_specs), (made.by_arrays, self.by_arrays)):
            ours.update((key, once(program)) for key, program in theirs.items())
        made.latest = None if self.latest is None else once(self.latest)
        return made
