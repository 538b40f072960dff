"""A recurrence run one step at a time: `stream.step(x)` for inputs that arrive one by one.

The first step allocates all arrays and prepares the call (`PreparedStep`). Every later step copies its inputs
in, runs the machine code, and copies its outputs out. Where the inputs of a step or the statics are
sequences, their lengths change from step to step, and each step is a call of its own (`CalledStep`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from stepnet.engines import Bound, Call, Order, Results, checked_engine
from stepnet.errors import InputError
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import offsets_of
from stepnet.rnn.batch import Batch, Statics, begun_steps, checked_array, initial_arrays
from stepnet.rnn.declared import Declared
from stepnet.rnn.program import Asked
from stepnet.trace.step import Spec, TracedStep
from stepnet.values.arguments import array_of, shown, whole
from stepnet.values.structure import arranged, leaves, named_leaves, rebuild, skeleton, transform

Array = np.ndarray
MOST_ROWS = 2**24


class Stream:
    """A recurrence that runs one step at a time; `RNN.stream` makes it.

    Stepping through a sequence gives the same bits as running it whole. A step that raises an error, or is
    interrupted, leaves the stream as it was.

    >>> from stepnet import cells
    >>> stream = cells.rnn("gru", cells.CELLS["gru"].parameters(inputs=2, hidden=3)).stream(rows=1)
    >>> stream.step(np.ones((1, 2), "float32")).shape
    (1, 3)
    >>> stream.reset()
    >>> stream.state
    array([[0., 0., 0.]], dtype=float32)
    """

    def __init__(
        self, rnn: Declared, rows: int, initial: Any, statics: Any, engine: Asked, begun: Any = None
    ) -> None:
        count = whole(rows, "rows is how many sequences are stepped side by side, from 1 on", 1, MOST_ROWS)
        if rnn.reverse:
            raise InputError(
                "a recurrence with reverse=True begins at a sequence's last step: it has no stream"
            )
        if rnn.until is not None:
            raise InputError(
                "a stream runs on: it has no until=; look at each step's output, and reset the row"
            )
        self.rnn, self.rows, self.engine = rnn, count, checked_engine(engine)
        self._given = initial, statics
        self._begun = begun_steps(0 if begun is None else begun, self.rows)
        self._step: PreparedStep | CalledStep | None = None
        self._ahead: PreparedStep | CalledStep | None = None
        self.turn = Turn()

    def step(self, x: Any) -> Any:
        """The outputs of the next step.

        Args:
            x: The inputs, [rows, features...], in the structure of the recurrence's inputs. An input that is
                a sequence at each step is a `Ragged` of `rows` sequences.

        Returns:
            The outputs, [rows, features...], in the structure of the step's output. They are copies.

        Raises:
            InputError: For another number of rows, or for features or dtypes that differ from those of
                earlier steps. The stream is then as it was before.

        >>> import stepnet as sn
        >>> stream = sn.RNN(lambda x, total, p: (total + x, total + x), memory=()).stream(rows=2)
        >>> stream.step(np.array([1.0, 2.0])).tolist(), stream.step(np.array([10.0, 20.0])).tolist()
        ([1.0, 2.0], [11.0, 22.0])
        """
        if self._step is None:
            outputs = self.look(x)
            self.go_on()
            return outputs
        outputs = self._step.look(x)
        self.turn.number += 1
        return outputs

    def look(self, x: Any) -> Any:
        """The outputs of the next step. The stream stays where it is until `go_on` is called."""
        step = self._ahead = self._step or self._begin(x)
        return step.look(x)

    def go_on(self) -> None:
        """Takes the step whose outputs `look` gave."""
        self.settle()
        self.turn.number += 1

    def settle(self) -> None:
        """Keeps the arrays and the call that the first step prepared."""
        self._step = self._ahead

    def share(self, turn: "Turn") -> None:
        """Counts steps by a turn that other streams have too: those of the layers of a stack."""
        self.turn = turn

    @property
    def state(self) -> Any:
        """The memory now: copies, [rows, features...], in the structure of the memory.

        Raises:
            InputError: Before the first step.

        >>> import stepnet as sn
        >>> stream = sn.RNN(lambda x, total, p: (total + x, total + x), memory=()).stream(rows=2)
        >>> outputs = stream.step(np.array([1.0, 2.0]))
        >>> stream.state.tolist()
        [1.0, 2.0]
        """
        if self._step is None:
            raise InputError("nothing was stepped yet: the memory is known from the first step on")
        return self._step.state()

    def reset(self, rows: Any = None, initial: Any = None, statics: Any = None) -> None:
        """Starts all rows, or some, again. Their steps count from 0.

        Args:
            rows: The rows to reset: an index, indices or a mask. All by default.
            initial: The new memory, arrays [those rows, features...] in the structure of the memory. By
                default the memory that the stream began with.
            statics: The new statics, arrays [those rows, features...] in their structure. By default they
                stay.

        Raises:
            InputError: For rows that do not exist, for arrays that do not fit, and for any argument before
                the first step.

        >>> import stepnet as sn
        >>> stream = sn.RNN(lambda x, total, p: (total + x, total + x), memory=()).stream(rows=2)
        >>> outputs = stream.step(np.array([1.0, 2.0]))
        >>> stream.reset(rows=1, initial=np.array([100.0]))
        >>> stream.state.tolist()
        [1.0, 100.0]
        """
        if self._step is not None:
            self._step.reset(
                np.arange(self.rows) if rows is None else chosen(rows, self.rows), initial, statics
            )
        elif rows is not None or initial is not None or statics is not None:
            raise InputError("nothing was stepped yet: give initial= and statics= to the stream itself")

    def reorder(self, rows: Any) -> None:
        """Moves the memory of rows: row i goes on from the memory and the step count of row rows[i].

        Statics do not move: each row keeps its own.

        Args:
            rows: An index for each row of the stream. The same index may come several times, or not at all.

        Raises:
            InputError: For another number of indices, for an index of no row, and before the first step.

        >>> import stepnet as sn
        >>> stream = sn.RNN(lambda x, total, p: (total + x, total + x), memory=()).stream(rows=3)
        >>> stream.step(np.array([1.0, 2.0, 3.0])).tolist()
        [1.0, 2.0, 3.0]
        >>> stream.reorder([2, 2, 0])
        >>> stream.step(np.zeros(3)).tolist()
        [3.0, 3.0, 1.0]
        """
        self.set_out(sources(rows, self.rows))
        self.turn.number += 1

    def set_out(self, rows: Array) -> None:
        """Writes the memory of the rows in another order, which counts from the next turn on."""
        if self._step is None:
            raise InputError("nothing was stepped yet: give the rows of initial= in the order you want")
        self._step.set_out(rows)

    def __reduce__(self) -> Any:
        raise InputError(
            "a stream is not copied or pickled: make one of the same recurrence, with initial=stream.state"
        )

    def _begin(self, x: Any) -> "PreparedStep | CalledStep":
        if any(isinstance(leaf, Ragged) for leaf in (*leaves(x), *leaves(self._given[1]))):
            return CalledStep(self.rnn, self.turn, self._begun, *self._given, self.engine)
        first = step_inputs(self.rnn.as_declared(x))
        for name, leaf in named_leaves(first):
            check_rows(name, leaf, self.rows)
        batch = Batch.of(transform(lambda leaf: leaf[:, None], first), None)
        initial, statics = self._given
        still = Statics.of(statics, self.rows)
        program = self.rnn.program_for(batch, still)
        memory = initial_arrays(initial, program.traced.memory, self.rows)
        kept = rebuild(statics, still.arrays)
        return PreparedStep(
            program.traced, program.bound(self.engine), self.turn, first, memory, kept, self._begun
        )


@dataclass
class Turn:
    """The number of steps that were taken, shared by all layers of a stack.

    Adding one to it takes the step in all layers at once. A step that is interrupted or refused adds nothing,
    and all memories are as they were.
    """

    number: int = 0


@dataclass
class Side:
    """One of two sets of memories: the memory before a step, how many steps came before, and what runs the
    step.
    """

    memory: list[Array]
    begun: Array
    run: Callable[[], None] = lambda: None


class PreparedStep:
    """A step with all its arrays, and what runs it on them.

    There are two sides (`Side`). A step reads the memory of one and writes that of the other.
    """

    def __init__(
        self,
        traced: TracedStep,
        bound: Bound,
        turn: Turn,
        x: Any,
        initial: Sequence[Array | None],
        statics: Any,
        begun: Array,
    ) -> None:
        self.traced, self.bound, self.turn = traced, bound, turn
        self.inputs = [np.empty_like(leaf) for leaf in leaves(x)]
        self.structure, self.still = rebuild(x, self.inputs), transform(np.copy, statics)
        rows = len(self.inputs[0])
        specs = leaves(self.traced.memory)
        self.first = [
            np.zeros((rows, *spec.shape), spec.dtype) if array is None else array.copy()
            for array, spec in zip(initial, specs, strict=True)
        ]
        self.statics: list[Array] = leaves(self.still)
        types = [self.traced.body.type_of(result) for result in self.traced.recur().outputs]
        self.outputs = [np.empty((rows, *type_.shape), type_.dtype) for type_ in types]
        self.counts = any(node.operation == "index" for node in self.traced.body.nodes)
        sides = [Side([array.copy() for array in self.first], begun.copy()) for _ in range(2)]
        self.sides = sides if turn.number % 2 == 0 else sides[::-1]
        self.prepare()
        self.one = self.inputs[0] if isinstance(x, np.ndarray) else None
        self.shape, self.dtype = self.inputs[0].shape, self.inputs[0].dtype
        self.plain = len(self.outputs) == 1 and skeleton(self.traced.output) == skeleton(0)

    def prepare(self) -> None:
        """Makes what runs a step, from either side to the other."""
        for side, other in (self.sides, self.sides[::-1]):
            rows = len(side.begun)
            ones, places = np.ones(rows, np.int64), np.arange(rows, dtype=np.int64)
            call = Call(self.inputs, places, ones, rows, side.memory, self.statics, begun=side.begun)
            side.run = self.bound.again(call, Results(self.outputs, other.memory), whole=True)

    def look(self, x: Any) -> Any:
        """The outputs of the next step, which is not taken yet."""
        only = self.one
        if only is not None and type(x) is np.ndarray and x.shape == self.shape and x.dtype == self.dtype:
            only[...] = x
        else:
            self.take(x)
        number = self.turn.number
        before = self.sides[number % 2]
        before.run()
        if self.counts:
            np.add(before.begun, 1, out=self.sides[(number + 1) % 2].begun)
        if self.plain:
            return self.outputs[0].copy()
        return rebuild(self.traced.output, [output.copy() for output in self.outputs])

    @property
    def now(self) -> Side:
        """The side that the next step reads."""
        return self.sides[self.turn.number % 2]

    def take(self, x: Any) -> None:
        """Checks the inputs and copies them in."""
        x = arranged(x, self.structure)
        if skeleton(x) != skeleton(self.structure):
            raise InputError(
                f"a step's inputs are {skeleton(x)}; those before were {skeleton(self.structure)}"
            )
        for (name, leaf), kept in zip(named_leaves(x), self.inputs, strict=True):
            array = checked_array(leaf, titled(name))
            check_rows(name, array, len(kept))
            if array.shape != kept.shape or array.dtype != kept.dtype:
                raise InputError(
                    f"{titled(name)} is {array.dtype}{list(array.shape)}; those before were "
                    f"{kept.dtype}{list(kept.shape)}"
                )
            kept[...] = array

    def state(self) -> Any:
        """A copy of the memory in its structure."""
        return rebuild(self.traced.memory, [array.copy() for array in self.now.memory])

    def reset(self, rows: Array, initial: Any, statics: Any) -> None:
        """Sets the memory of these rows; see `Stream.reset`."""
        arrays = initial_arrays(initial, self.traced.memory, len(rows))
        new = Statics.of(same_statics(statics, self.still), len(rows)).arrays
        if statics is not None:
            old = [(array.shape[1:], array.dtype) for array in self.statics]
            if old != [(array.shape[1:], array.dtype) for array in new]:
                raise InputError("the statics have other features or dtypes than those the stream began with")
            for kept, array in zip(self.statics, new, strict=True):
                kept[rows] = array
            self.prepare()
        for memory, first, array in zip(self.now.memory, self.first, arrays, strict=True):
            memory[rows] = first[rows] if array is None else array
        self.now.begun[rows] = 0

    def set_out(self, rows: Array) -> None:
        """Writes the memory in another order on the side of the next turn; see `Stream.reorder`."""
        before, after = self.now, self.sides[(self.turn.number + 1) % 2]
        for old, new in zip(before.memory, after.memory, strict=True):
            np.take(old, rows, axis=0, out=new, mode="clip")  # the one that needs no buffer
        np.take(before.begun, rows, out=after.begun, mode="clip")


class CalledStep:
    """A step over inputs or statics that are sequences: each step is a call with sequences of length 1."""

    def __init__(
        self, rnn: Declared, turn: Turn, begun: Array, initial: Any, statics: Any, engine: Order
    ) -> None:
        self.turn = turn
        self.rnn, self.rows, self.engine = rnn, len(begun), engine
        self.first, self.statics = initial, statics
        self.sides = [(initial, begun.copy())] * 2

    def look(self, x: Any) -> Any:
        """The outputs of the next step, which is not taken yet."""
        x = step_inputs(x)
        deep = any(isinstance(leaf, Ragged) for leaf in leaves(x))
        for name, leaf in named_leaves(x):
            if isinstance(leaf, Ragged) and len(leaf) != self.rows:
                raise InputError(f"{titled(name)} has {len(leaf)} sequences; the stream has {self.rows} rows")
            if not isinstance(leaf, Ragged):
                check_rows(name, leaf, self.rows)
        lengths = np.ones(self.rows, np.int64)

        def sequence(leaf: Any) -> Any:
            if isinstance(leaf, Ragged):
                return leaf.group(lengths)
            return Ragged(leaf, (offsets_of(lengths),)) if deep else leaf[:, None]

        def step(output: Any) -> Any:
            if isinstance(output, Ragged):
                return output.inner() if output.levels > 1 else output.values
            return output[:, 0]

        sequences = transform(sequence, x)
        reading = self.rnn.read(sequences, self.memory, self.statics, None, begun=self.begun)
        outputs, memory = reading.answer(reading.running.bound(self.engine))
        self.sides[(self.turn.number + 1) % 2] = memory, self.begun + 1
        return transform(step, outputs)

    @property
    def memory(self) -> Any:
        """The memory before the next step."""
        return self.sides[self.turn.number % 2][0]

    @property
    def begun(self) -> Array:
        """The number of steps before it."""
        return self.sides[self.turn.number % 2][1]

    def state(self) -> Any:
        """A copy of the memory in its structure."""
        return transform(np.copy, self.memory)

    def reset(self, rows: Array, initial: Any, statics: Any) -> None:
        """Sets the memory of these rows; see `Stream.reset`."""
        specs = transform(lambda array: Spec(array.shape[1:], array.dtype), self.memory)
        first = initial_arrays(self.first, specs, self.rows)
        arrays = initial_arrays(initial, specs, len(rows))
        if statics is not None:
            self.statics = self.with_statics(rows, statics)
        memory: list[Array] = [array.copy() for array in leaves(self.memory)]
        for kept, old, new in zip(memory, first, arrays, strict=True):
            kept[rows] = new if new is not None else 0 if old is None else old[rows]
        begun = self.begun.copy()
        begun[rows] = 0
        self.sides[self.turn.number % 2] = rebuild(self.memory, memory), begun

    def set_out(self, rows: Array) -> None:
        """Writes the memory in another order on the side of the next turn; see `Stream.reorder`."""
        memory = transform(lambda array: array[rows], self.memory)
        self.sides[(self.turn.number + 1) % 2] = memory, self.begun[rows]

    def with_statics(self, rows: Array, statics: Any) -> Any:
        """The statics with those of some rows replaced."""
        statics, replaced = same_statics(statics, self.statics), list[Any]()
        for (name, kept), new in zip(named_leaves(self.statics), leaves(statics), strict=True):
            if not isinstance(new, type(kept)) or len(new) != len(rows):
                raise InputError(
                    f"static {name}".strip()
                    + f" is {described(new)}; it should be as those the stream began "
                    f"with, of {len(rows)} rows"
                )
            entries = list(kept)
            for row, entry in zip(rows, new, strict=True):
                entries[row] = entry
            replaced.append(Ragged.from_list(entries) if isinstance(kept, Ragged) else np.stack(entries))
        return rebuild(self.statics, replaced)


def step_inputs(x: Any) -> Any:
    """The inputs of a step: each a `Ragged`, or a checked array."""
    return rebuild(
        x,
        [
            leaf if isinstance(leaf, Ragged) else checked_array(leaf, titled(name))
            for name, leaf in named_leaves(x)
        ],
    )


def same_statics(statics: Any, before: Any) -> Any:
    """Statics in the structure of earlier ones, or None; raises `InputError` for another structure."""
    statics = arranged(statics, before)
    if statics is not None and skeleton(statics) != skeleton(before):
        raise InputError(f"the statics are {skeleton(statics)}; they were {skeleton(before)}")
    return statics


def described(value: Any) -> str:
    """What to call statics that do not fit."""
    return repr(value) if isinstance(value, Ragged) else f"a {type(value).__name__} {list(np.shape(value))}"


def chosen(rows: Any, count: int) -> Array:
    """The indices that an index, indices or a mask stand for; raises `InputError` for other rows."""
    chosen = np.atleast_1d(array_of(rows, "rows"))
    if chosen.dtype == bool and chosen.shape == (count,):
        return np.flatnonzero(chosen)
    if chosen.dtype.kind not in "iu" or chosen.ndim != 1 or ((chosen < 0) | (chosen >= count)).any():
        raise InputError(
            f"rows is an index from 0 to {count - 1}, several of them or a mask, not {shown(rows)}"
        )
    return cast("Array", chosen.astype(np.int64))


def sources(rows: Any, count: int) -> Array:
    """The indices of `reorder`, checked: one for each row, each of a row that exists."""
    order = array_of(rows, "rows")
    # The unsigned number of a negative one is beyond all counts.
    if order.shape != (count,) or order.dtype.kind not in "iu" or order.astype(np.uint64).max() >= count:
        raise InputError(
            f"rows is {count} indices from 0 to {count - 1}, where each row goes on from, not {shown(rows)}"
        )
    return cast("Array", order.astype(np.int64, copy=False))


def check_rows(name: str, array: Array, rows: int) -> None:
    """Raises `InputError` for inputs of another number of rows."""
    if array.ndim < 1 or array.shape[0] != rows:
        raise InputError(
            f"{titled(name)} is {list(array.shape)}; the stream has {rows} rows: [{rows}, features...]"
        )


def titled(name: str) -> str:
    """What an input of a step is called."""
    return f"input {name}" if name else "the input"
