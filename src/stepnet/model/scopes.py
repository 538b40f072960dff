"""Every named value of every step of a recurrence, computed by the interpreter for debugging. `watch` says
the names. The recurrence runs step by step. At each step the interpreter also runs a net whose results are
the named values, on the same inputs.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from stepnet.compiler.net.interpreter import LevelSizes, by_steps, interpret
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import ROWS, Type, is_static_extent
from stepnet.compiler.plan.passes import narrowed_step
from stepnet.compiler.targets import REFERENCE, engine_named
from stepnet.compiler.targets.packed import CallPacking, NetForm
from stepnet.compiler.trace.lines import refuse
from stepnet.compiler.trace.traced import Traced, is_traced
from stepnet.compiler.values.arguments import is_integer, is_one_of, short_repr
from stepnet.compiler.values.dtypes import DTYPES, kind_of_dtype
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, rebuild
from stepnet.errors import InputError
from stepnet.explain.document import DocumentTable, TitledSection
from stepnet.explain.text import text
from stepnet.model.control import Controls
from stepnet.model.declared import Declared
from stepnet.model.program import StepProgram
from stepnet.model.reading import Reading
from stepnet.model.watch import Names, roles, watched
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray
SHOWN = 4
"""The largest number of elements of a value that are printed."""


@dataclass(frozen=True, repr=False)
class Scopes:
    """The named values of every step of a recurrence; `RNN.trace_steps` returns them.

    values: by name a `Ragged` with the value of each step, in the order in which the step computes them.

    >>> import stepnet as sn
    >>> def step(x, h, params):
    ...     doubled = 2 * x
    ...     total = h + doubled
    ...     return total, total
    >>> scopes = sn.RNN(step, memory=()).trace_steps(sn.Ragged.from_list([[1.0, 2.0], [], [3.0]]))
    >>> scopes
    Scopes(8 values, 3 sequences of 0 to 2 steps)
    >>> scopes["doubled"].to_list()
    [array([2., 4.]), array([], dtype=float64), array([6.])]
    >>> {name: float(value) for name, value in scopes.step(0, 1).items()}
    {'inputs': 2.0, 'before': 2.0, 'x': 2.0, 'h': 2.0, 'doubled': 4.0, 'total': 6.0, ...}
    >>> print(scopes)
    value    is     at step 0 of sequence 0
    inputs   f64[]  1
    before   f64[]  0
    x        f64[]  1
    h        f64[]  0
    doubled  f64[]  2
    total    f64[]  2
    outputs  f64[]  2
    after    f64[]  2
    """

    values: dict[str, Ragged]

    def __getitem__(self, name: str) -> Ragged:
        """Returns the value with this name at every step; raises `InputError` for an unknown name."""
        if not is_one_of(name, self.values):
            raise InputError(f"no value is called {short_repr(name)}; there are {', '.join(self.values)}")
        return self.values[name]

    def __contains__(self, name: object) -> bool:
        """Returns whether a recorded value has this name."""
        return name in self.values

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names of the recorded values."""
        return iter(self.values)

    def __len__(self) -> int:
        """Returns the number of recorded values."""
        return len(self.values)

    def step(self, row: int, number: int) -> dict[str, Any]:
        """Returns every value of one step of one sequence, by name: arrays [features...].

        Args:
            row: The index of the sequence.
            number: The index of the step in it. Negative indices count from the end.

        Raises:
            InputError: For a sequence or a step that does not exist.
        """
        lengths = next(iter(self.values.values())).lengths
        if not is_integer(row) or not -len(lengths) <= row < len(lengths):
            raise InputError(f"there is no sequence {short_repr(row)}: there are {len(lengths)}")
        steps = int(lengths[row])
        if not is_integer(number) or not -steps <= number < steps:
            raise InputError(f"sequence {row} has no step {short_repr(number)}: it has {steps}")
        return {name: value[row][number] for name, value in self.values.items()}

    def __repr__(self) -> str:
        """Returns the number of values and the description of the sequences."""
        offsets = next(iter(self.values.values())).offsets[0]
        sequences = repr(Ragged(np.empty(int(offsets[-1])), (offsets,))).removeprefix("Ragged(").split(",")[0]
        return f"Scopes({len(self)} values, {sequences})"

    def __str__(self) -> str:
        """Returns a table of the values: the type of each, and its first elements."""
        lengths = next(iter(self.values.values())).lengths
        row = next((place for place, length in enumerate(lengths) if length), None)
        first = {} if row is None else self.step(row, 0)
        table = [("value", "is", "no steps" if row is None else f"at step 0 of sequence {row}")]
        for name, value in self.values.items():
            shape = ", ".join(["*"] * (value.levels - 1) + [str(size) for size in value.features])
            table.append((name, f"{DTYPES[value.dtype.name].text}[{shape}]", numbers_text(first.get(name))))
        return text([TitledSection("", (DocumentTable(tuple(table)),))])


def numbers_text(value: Any) -> str:
    """Returns an array as text for a table: its first elements; a Ragged as its description.

    value: the array or Ragged; None for an empty text.
    """
    if value is None:
        return ""
    if isinstance(value, Ragged):
        return repr(value)
    flat = np.ravel(value)
    floats = kind_of_dtype(flat.dtype) == "float"
    shown = [f"{number:.4g}" if floats else str(number) for number in flat[:SHOWN].tolist()]
    return " ".join([*shown, *["..."][: flat.size > SHOWN]])


# ---- recording ---------------------------------------------------------------------------------------------


def step_scopes(
    rnn: Declared, sequences: Any, initial: Any, statics: Any, lengths: Any, control: Controls
) -> Scopes:
    """Runs a recurrence step by step on the arguments of a call; returns every named value of every step.
    Raises `StepError` for a recurrence inside the step of another.

    Static sequences, which each sequence has once and every step reads whole, are left out. Under a mask,
    outputs and next memories are those after masking.

    rnn: the recurrence.
    sequences, initial, statics, lengths: the arguments of the call.
    control: the arguments that control the steps, such as `mask`.
    """
    if is_traced(sequences):
        raise refuse(
            "trace_steps is not for a recurrence inside a step: trace the steps of the one around it, whose "
            "scopes have the values of this one too"
        )

    def read(rnn: Declared) -> Reading[StepProgram]:
        """Checks the enclosing function's arguments for a recurrence; returns them with the program."""
        return rnn.read(sequences, initial, statics, lengths, **control)

    read(rnn.with_step(rnn.step))  # raises errors here, before values are watched
    names: Names = {}
    reading = read(rnn.with_step(watched(rnn.step, names)))
    builder = next(leaf for leaf in names.values() if isinstance(leaf, Traced)).builder
    names = {name: leaf for name, leaf in names.items() if not is_static_sequence(leaf)}
    numbers = list(
        dict.fromkeys(
            leaf.number for leaf in names.values() if isinstance(leaf, Traced) and not leaf.is_constant
        )
    )
    record = recorded(reading, builder.net(numbers), leaves(rnn.params))
    ragged = {number: record.ragged(place) for place, number in enumerate(numbers)}
    constants = constant_arrays(names, leaves(rnn.params))
    values = {name: ragged[leaf.number] for name, leaf in names.items() if name not in constants}
    values |= {name: record.repeated(array) for name, array in constants.items()}
    if control.get("mask") is not None:
        values |= under_mask(reading, record, len(numbers))
    return Scopes({name: values[name] for name in names})


def is_static_sequence(leaf: Any) -> bool:
    """Returns whether a named value is a static sequence of the step, which each sequence has once and every
    step reads whole; such values are not recorded. leaf: a value of the step's net, or an array.
    """
    if not isinstance(leaf, Traced) or not is_static_extent(leaf.type.extent):
        return False
    return leaf.builder.nodes[leaf.number].operation == "input"


def constant_arrays(names: Names, params: list[Array]) -> dict[str, Array]:
    """Returns the named values that are the same at each step, as arrays: arrays, and values of parameters
    alone.

    names: the values by name; all others are ignored.
    params: the arrays of the parameters, which are the last inputs of the net.
    """
    arrays = {name: np.asarray(leaf) for name, leaf in names.items() if not isinstance(leaf, Traced)}
    made = {name: leaf for name, leaf in names.items() if isinstance(leaf, Traced) and leaf.is_constant}
    if not made:
        return arrays
    net = next(iter(made.values())).builder.net(leaf.number for leaf in made.values())
    types = [net.type_of(number) for number in net.inputs[: len(net.inputs) - len(params)]]
    none = [np.zeros((0, *type_.shape), type_.dtype) for type_ in types]
    return arrays | dict(zip(made, interpret(net, [*none, *params], LevelSizes(0)), strict=True))


def under_mask(reading: Reading[StepProgram], record: "RecordedValues", first: int) -> dict[str, Ragged]:
    """Returns the outputs and next memories after masking, by name; those of the step itself are not masked.

    reading: the checked call.
    record: the recorded values.
    first: the position among them of the first output under the mask; the memories follow the outputs.
    """
    outputs, after = reading.program.output, reading.program.memory
    behind = first + len(leaves(reading.running.output))
    places = [
        rebuild(outputs, range(first, first + len(leaves(outputs)))),
        rebuild(after, range(behind, behind + len(leaves(after)))),
    ]
    named = roles(outputs=places[0], after=places[1])
    return {name: record.ragged(place) for name, place in named.items()}


# ---- recorded values ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedValues:
    """The recorded values of a recurrence, step after step: for each step, the values of all sequences that
    have this step.

    types: the type of each value.
    steps: for each step, the sizes of its sequences and its values.
    offsets: the offsets of the sequences, counting only steps before an early end.
    order: the positions of these steps among all recorded steps, in the order of the sequences.
    """

    types: list[Type]
    steps: list[tuple[LevelSizes, list[Array]]]
    offsets: Array
    order: Array

    def ragged(self, place: int) -> Ragged:
        """Returns a recorded value as a Ragged over every step of every sequence.

        A value that is a sequence at each step is a Ragged of nested sequences.

        place: the position of the value among those that were recorded.
        """
        type_ = self.types[place]
        values = np.concatenate(
            [
                np.zeros((0, *type_.shape), type_.dtype),
                *(values_of_step[place] for _, values_of_step in self.steps),
            ]
        )
        if type_.extent == ROWS:
            return Ragged(values[self.order], (self.offsets,))
        inside = [inner_offsets(segments, type_) for segments, _ in self.steps]
        none = np.zeros(0, np.int64)
        deeper = [
            offsets_of(np.concatenate([none, *(np.diff(offsets[depth]) for offsets in inside)]))
            for depth in range(len(type_.extent) - 1)
        ]
        ordered = Ragged(values, tuple(deeper)).take(self.order)
        return Ragged(ordered.values, (self.offsets, *ordered.offsets))

    def repeated(self, array: Array) -> Ragged:
        """Returns a constant array repeated at every step, in the layout of the recorded values."""
        return Ragged(np.broadcast_to(array, (len(self.order), *array.shape)), (self.offsets,))


def inner_offsets(segments: LevelSizes, type_: Type) -> tuple[Array, ...]:
    """Returns the offsets of the sequences that a value has inside one step, to make a Ragged of it.

    segments: the offsets of the sequences inside the step, and of the static sequences that each row has
        once.
    type_: the type of the value.
    """
    if is_static_extent(type_.extent):
        return (segments.beside[type_.extent[-1]],)
    return segments.offsets[: len(type_.extent) - 1]


def recorded(reading: Reading[StepProgram], named_net: Net, params: list[Array]) -> RecordedValues:
    """Runs a recurrence step by step in the interpreter, and records values at each step.

    The values are the results of `named_net`, the net of named values, then the results of the recurrence's
    own step. Steps after the one at which a condition `until` ended the sequence do not count.

    reading: the checked arguments of the call.
    params: the arrays of the parameters.
    """
    net, packing = reading.running.net, CallPacking.of(reading.call)
    node = next(node for node in net.nodes if node.operation == "recur")
    recur = node.recur
    body, named_net = (
        narrowed_step(inside, recur.precision, engine_named(REFERENCE).pipeline)
        for inside in (recur.body, named_net)
    )
    done = len(recur.outputs) + len(leaves(reading.program.memory))  # the memory that `ending` adds
    lengths = reading.call.positions.lengths
    ended = np.zeros(len(lengths), bool)
    steps: list[tuple[LevelSizes, list[Array]]] = []
    rows: list[Array] = [np.zeros(0, np.int64)]
    places: list[Array] = [np.zeros(0, np.int64)]
    counts: list[Array] = [np.zeros(0, bool)]

    def run(arrays: Any, inside: LevelSizes, index: Array) -> list[Array]:
        """Runs a step of the recurrence on the rows that have it; records and returns its results.

        arrays: the inputs of the step.
        inside: the sizes of its inner sequences.
        index: the number of earlier steps of each row.
        """
        results = interpret(body, arrays, inside, index)
        alive, number = np.flatnonzero(lengths > len(steps)), len(steps)
        rows.append(alive)
        places.append(lengths[alive] - 1 - number if recur.reverse else np.full(len(alive), number))
        counts.append(~ended[alive])
        if reading.ends:
            ended[alive] = results[done]
        steps.append((inside, [*interpret(named_net, arrays, inside, index), *results]))
        return results

    inputs = packing.inputs(NetForm(net), reading.call.given)
    by_steps(net, node, [*inputs, *params], packing.segments, run)
    row, place, kept = np.concatenate(rows), np.concatenate(places), np.flatnonzero(np.concatenate(counts))
    order = kept[np.lexsort((place[kept], row[kept]))]
    types = [named_net.type_of(number) for number in named_net.results] + [
        body.type_of(n) for n in body.results
    ]
    return RecordedValues(types, steps, offsets_of(np.bincount(row[kept], minlength=len(lengths))), order)
