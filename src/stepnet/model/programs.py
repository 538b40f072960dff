"""The programs of a model: one for each kind of inputs, and the prepared calls of all of them.

    arrays --dtypes, features, levels--> program          looked up at each call
    `Spec`s ----------------------------> program          traced where there is none

    model(x)   check, look up, share out lanes, write words, run, rebuild   ->   set addresses, run

A small recurrence runs in less time than the preparation of a call takes. So the second call of a shape keeps
its preparation, and later calls only set the addresses of their arrays and run. This is for arrays [batch,
time, features...], with lengths or without, and Raggeds, without masks and statics. `forms.py` has the keys.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np

from stepnet.compiler.net.types import is_derived
from stepnet.compiler.net.windows import derived_offsets
from stepnet.compiler.targets import LAYOUTS, Bound, Call, Places, PreparedCall, Results
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.once import entry_of, put_latest
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, leaves_as, rebuild, rebuilder
from stepnet.errors import IndexOutsideError, InputError
from stepnet.model.executables import MOST_FORMS, Executables, Form
from stepnet.model.forms import LONGEST, FormedCall, exact_form, fits, formed_call, in_general, widened
from stepnet.model.program import Program
from stepnet.ragged import Ragged, unchecked_ragged

if TYPE_CHECKING:
    from stepnet.model.ready import Keeper

Array = np.ndarray
Kind = TypeVar("Kind", bound=Program)
MOST_KINDS = 32
"""The largest number of kinds of inputs whose programs a model keeps."""
FEW_PLACES = 16
"""Up to this many sequences, a call prepared for any lengths is as fast as one for these lengths."""
RAGGED_CALLS = 8
"""The number of calls with the same lengths after which a call of Raggeds is prepared for these, where none
can be prepared for any lengths: lengths often change, and preparation takes as long as a call.
"""


@dataclass(frozen=True)
class Executable(Generic[Kind]):
    """A prepared call of a program: how it reads memories, and returns outputs and final memories.

    program: the program, which has the structures of the results.
    memory: the shape and dtype of each memory.
    outputs: the shapes of the outputs as the caller gets them; None for an output with the lengths of the
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
        outputs, memories, _ = results
        if not self.is_plain:
            program = self.program
            if not self.is_split:
                outputs, memories, _ = program.split(results)
            final = program.final(memories)
            if not self.has_one_output:
                pairs = zip(outputs, self.outputs, strict=True)
                return rebuild(program.output, [self.like(sequences, *pair) for pair in pairs]), final
        else:
            final = memories[0]
        return self.like(sequences, outputs[0], self.outputs[0]), final

    @staticmethod
    def like(sequences: Any, array: Array, shape: tuple[int, ...] | None) -> Any:
        """Returns an output of a call (`array`) in its shape; if that is None, in the form of the inputs
        `sequences`: a `Ragged`, an array [batch, time, ...], or None for an array [total, ...].
        """
        if shape is not None:
            return array.reshape(shape)
        if isinstance(sequences, Ragged):
            return unchecked_ragged(array, sequences.offsets)
        if sequences is None:
            return array
        return array.reshape(sequences.shape[:2] + array.shape[1:])

    def arrays(self, initial: Any, rows: int | None = None) -> list[Array | None] | None:
        """Returns the argument `initial` as arrays to read in place, which are zeros if it is None; None if
        they need a check or a conversion. rows: the number of sequences, if it may be smaller than in the
        call that was prepared.
        """
        if initial is None:
            return self.zeros
        if self.is_single and type(initial) is np.ndarray:  # in a third of the time of the general way
            return [initial] if fits_memory(initial, self.memory[0], rows) else None
        arrays = leaves_as(initial, self.program.memory)
        if arrays is None:
            return None
        for array, known in zip(arrays, self.memory, strict=True):
            if type(array) is not np.ndarray or not fits_memory(array, known, rows):
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
    def is_plain(self) -> bool:
        """True if the prepared call returns one output with a value per step, and one array of final memories
        as it is computed, without a change of dtype.
        """
        return self.is_split and self.has_one_output and self.is_single and self.program.rounded is None

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

    def run(self, given: list[Array | None], places: Places | None, sequences: Any) -> tuple[Any, Any]:
        """Runs the call; returns the outputs and the final memories, in the structures of the model.

        given, places: the arrays of the sequences and of the memories, and where the former lie. sequences:
        the argument of the call.
        """
        if (run := self.at_once) is None:
            return self.answer(self.prepared.run(given, places), sequences)
        made = run(given, places)
        return self.like(sequences, made[0], self.outputs[0]), self.final(made)

    @cached_property
    def final(self) -> Callable[[list[Array]], Any]:
        """The function that builds the structure of the final memories from the results in one list."""
        program = self.program
        return (
            rebuilder(program.memory, 1) if program.rounded is None else lambda made: program.final(made[1:])
        )

    @cached_property
    def at_once(self) -> Callable[[list[Array | None], Places | None], list[Array]] | None:
        """The function that gives all results of the call in one list, its only output first; None where the
        results have other forms, or come by kind.
        """
        return self.prepared.arrays if self.is_split and self.has_one_output else None


@dataclass(frozen=True)
class DeviceExecutable(CallExecutable[Kind]):
    """A prepared call on arrays of a device. Its memories stay on the device."""

    def arrays(self, initial: Any, rows: int | None = None) -> list[Any] | None:
        """Returns the argument `initial` as arrays of the device; None if they are to be checked.

        rows: has no effect, as the call is prepared for its sequences alone.
        """
        if initial is None:
            return self.zeros
        arrays = leaves_as(initial, self.program.memory)
        if arrays is None or len(arrays) != len(self.memory):
            return None
        fit = (
            array.shape == shape and array.dtype == dtype
            for array, (shape, dtype) in zip(arrays, self.memory, strict=True)
        )
        return arrays if all(fit) else None

    @cached_property
    def zeros(self) -> list[Array | None]:
        """The initial memories of a call without `initial`: none, as engines of devices know zeros."""
        return [None] * len(self.memory)


@dataclass(frozen=True)
class DerivedExecutable(CallExecutable[Kind]):
    """A prepared call of a graph with other numbers of steps than its sequences, as after a stride."""

    @cached_property
    def at_once(self) -> None:
        """None: the results may have other numbers of steps than the sequences."""
        return

    def answer(self, results: Results, sequences: Any) -> tuple[Any, Any]:
        """Returns the outputs of a call, in the structure of the graph, and no memories.

        results, sequences: the results and the sequences of the call.
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
    """The prepared calls of a model, by form (shapes, dtypes and options of the arguments).

    keeper: where the first call is stored for other processes; None if it is not.
    """

    keeper: "Keeper | None" = None

    def other(
        self, call: FormedCall
    ) -> tuple[tuple[CallExecutable[Kind], list[CallExecutable[Kind]]] | None, Places | None]:
        """Takes a prepared call of the second form of a call out of the cache, if none of the first is free.

        For a whole array that is a call for any lengths, for a Ragged a call of exactly its lengths. For an
        array of many sequences whose size comes again it takes none, so that one is prepared for this size.

        Returns the result of `take`, and the places of the sequences if the prepared call takes them.
        """
        if call[2] is None:
            general = in_general(call)
            if general is None or (general[2][1] > FEW_PLACES and self.counted(call[0]) > 1):
                return None, None
            return self.take(general[0]), general[2]
        exact = exact_form(call)
        return (None if exact is None else self.take(exact)), None

    def prepare(self, formed: FormedCall, program: Kind, bound: Bound, call: Call, like: Any) -> None:
        """Counts a call; if enough of its form came, prepares later ones, where the engine supports that.

        formed: the call as the user made it. program, bound: its program, and its kernel (compiled net) with
            parameters.
        call: the checked call, whose results the prepared calls have in the same shapes.
        like: the layout of outputs per step: a Ragged, or the first two sizes of the arrays.
        """
        exact, is_whole = exact_form(formed), formed[2] is None
        general = in_general(formed) if is_whole else formed
        lead = None if isinstance(like, Ragged) else like
        if is_whole and exact is not None and self.is_due(exact):
            self.keep_prepared(exact, program, bound.prepare(call), call, lead)
        elif general is not None and general[0] not in self.idle and fits(call.positions):
            self.prepare_general(general[0], program, bound, call)
        elif not is_whole and exact is not None and self.is_due(exact, RAGGED_CALLS):
            self.keep_prepared(exact, program, bound.prepare(call), call, lead)

    def prepare_general(self, form: Form, program: Kind, bound: Bound, call: Call) -> None:
        """Counts a call; if enough of its form came, prepares later calls of any lengths. If a call that is
        prepared for as many sequences with another number of steps suits its lengths, that is entered for
        this form too.

        form: the key, which is a general one. program, bound, call: the program of the call, its kernel
        (compiled net), and the call.
        """
        layout, rows, *_ = form
        call = widened(call, LAYOUTS[layout], rows)
        for other, idle in self.idle.copy().items():
            same = other[:2] == form[:2] and other[3:] == form[3:]
            if same and any(each.prepared.suits(call.positions) for each in tuple(idle)):
                put_latest(self.idle, form, idle, MOST_FORMS)
                return
        if self.is_due(form):
            try:
                prepared = bound.prepare(call, LAYOUTS[layout])
            except InputError:  # raised again by the call itself, which has no further sequences to name
                return
            if prepared is not None and prepared.longest >= LONGEST:
                self.keep_prepared(form, program, prepared, call, None)

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
        lead = (-1,) if call.last_only else lead
        shapes = tuple(
            (-1, *features) if not levels else None if lead is None else (*lead, *features)
            for features, levels in outputs_of(program)
        )
        kind = DerivedExecutable[Kind] if program.has_derived else CallExecutable[Kind]
        made = kind(program, memory_of(program, rows), shapes, prepared)
        self.keep(form, made, prepared.bytes + made.bytes)


def fits_memory(array: Array, known: tuple[tuple[int, ...], np.dtype[Any]], rows: int | None) -> bool:
    """Tells whether an array can be read in place as an initial memory. known: the shape and dtype that a
    prepared call takes. rows: the number of sequences, if it may differ.
    """
    shape, dtype = known
    if rows is not None:
        shape = rows, *shape[1:]
    return array.shape == shape and array.dtype == dtype and array.flags.c_contiguous


def outputs_of(program: Program) -> list[tuple[tuple[int, ...], int]]:
    """Returns, for each output of a program, its features and its number of ragged levels."""
    results = zip(program.net.results, program.levels, strict=False)
    return [(program.net.type_of(number).shape, levels) for number, levels in results]


def memory_of(program: Program, rows: int) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    """Returns the shape and dtype of each memory of a program, for a number of sequences."""
    return [((rows, *spec.shape), np.dtype(spec.dtype)) for spec in leaves(program.memory)]


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
        `InputError` if there is none, as no inputs are known yet. unknown: the message of the error.
        """
        if self.latest is None:
            raise InputError(unknown)
        return self.latest

    def prepared(
        self,
        sequences: Any,
        initial: Any,
        lengths: Any,
        last_only: Any,
        engine: Any,
        masked: Any,
        time_major: Any,
    ) -> tuple[FormedCall | None, tuple[Any, Any] | None]:
        """Runs a call if it was prepared; returns the call as `Calls` takes it, and its results or None.

        The first is None for a call that is never prepared, and for an index outside of a parameter: the
        unprepared call then names it in its error. Nothing is checked: a call that was prepared with this key
        has passed all checks. The program of the call becomes the latest one.

        sequences, initial, lengths, last_only, engine, masked, time_major: the arguments of the call.
        """
        call = formed_call(sequences, lengths, last_only, engine, masked, time_major)
        return (None, None) if call is None else self.run_prepared(call, sequences, initial)

    def run_prepared(
        self, call: FormedCall, sequences: Any, initial: Any
    ) -> tuple[FormedCall | None, tuple[Any, Any] | None]:
        """Runs a call if code was prepared for calls of its sizes alone, or of any lengths, and is free;
        returns it, and its results or None.

        Returns None for the call, too, if an integer is outside of a parameter. The results are None also if
        `initial` needs a conversion.

        sequences, initial: the arguments of the call.
        """
        form, values, places = call
        if (taken := self.calls.take(form)) is None:
            taken, places = self.calls.other(call)
            if taken is None:
                return call, None
        executable, idle = taken
        try:
            if initial is None:
                memories = executable.zeros
            elif (memories := executable.arrays(initial, None if places is None else places[1])) is None:
                return call, None
            results = executable.run([values, *memories], places, sequences)
            self.latest = executable.program
            return call, results
        except IndexOutsideError:
            return None, None
        finally:
            idle.append(executable)

    def for_specs(self, key: Any, make: Callable[[], Kind]) -> Kind:
        """Returns the program for the `Spec`s (features, dtypes) of inputs and statics (values that each
        sequence has once); makes it at first use. key: the key made of them. make: makes the program.
        """
        return self._found(self.by_specs, key, make)

    def for_arrays(self, key: Any, make: Callable[[], Kind]) -> Kind:
        """Returns the program for the arrays of a call, by their dtypes, features and levels of nested
        sequences; makes it at first use. key: the key made of them. make: makes the program.
        """
        return self._found(self.by_arrays, key, make)

    def _found(self, programs: OrderedDict[Any, Kind], key: Any, make: Callable[[], Kind]) -> Kind:
        """Returns the program for a key, made at first use, and stores it as the latest. programs: one of the
        two caches, by the `Spec`s of the inputs or by the arrays of a call. make: makes the program.
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
            """Changes a compiled program once, as both caches (by `Spec`s and by arrays) may hold it."""
            if id(program) not in new:
                new[id(program)] = change(program)
            return new[id(program)]

        for ours, theirs in ((made.by_specs, self.by_specs), (made.by_arrays, self.by_arrays)):
            ours.update((key, once(program)) for key, program in theirs.items())
        made.latest = None if self.latest is None else once(self.latest)
        return made
