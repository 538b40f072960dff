"""`Stream`: its interface, and how its rows come, go, move and take steps."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from stepnet.compiler.targets import checked_engine
from stepnet.compiler.values.arguments import checked_integer, file_path, flag, unknown_argument
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.errors import InputError
from stepnet.model.control import MEANT_OF_STREAMS
from stepnet.model.initial import begun_steps
from stepnet.model.program import Asked
from stepnet.model.streams.beginning import (
    ZEROS,
    AddedRows,
    New,
    check_there_are_rows,
    computed_memories,
    with_piece,
    without,
)
from stepnet.model.streams.in_use import IN_USE, alone
from stepnet.model.streams.layers import Layers, StreamedRecurrence
from stepnet.model.streams.moment import Moment
from stepnet.model.streams.rows import chosen, chosen_once, sources
from stepnet.model.streams.steps import (
    LayerSteps,
    WholeStep,
    are_zeros,
    first_memories,
    first_moment,
    first_step,
    named_layer,
    prepare_steps,
    put,
    run,
    whole_step,
)

Array = np.ndarray
MOST_ROWS = 2**24
ROWS_ARE = f"rows is how many sequences are stepped side by side, from 0 to {MOST_ROWS}"
NO_ROWS = np.zeros(0, np.int64)
NOTHING = Moment.of(NO_ROWS, NO_ROWS, NO_ROWS)


class Stream:
    """A model that runs one step at a time over rows (sequences side by side); `model.stream()` makes it.

    Stepping through a sequence gives the same bits as running it whole, whatever other rows come and go. A
    call that raises an error, or is interrupted, leaves the stream as it was. One thread uses a stream at a
    time: a call while another one runs raises `InputError`.

    >>> from stepnet import cells
    >>> stream = cells.rnn("gru", cells.CELLS["gru"].parameters(inputs=2, hidden=3)).stream(rows=1)
    >>> stream.step(np.ones((1, 2), "float32")).shape
    (1, 3)
    >>> stream.reset()
    >>> stream.state
    array([[0., 0., 0.]], dtype=float32)
    """

    def __init__(
        self,
        layers: StreamedRecurrence | Layers,
        rows: int,
        initial: Any,
        statics: Any,
        engine: Asked,
        begun: Any = None,
    ) -> None:
        """Checks the arguments of `Model.stream` and stores them, without running anything. layers: the
        recurrences that each step of the stream runs.
        """
        self.layers, self.engine = layers, checked_engine(engine)
        self.in_use = False
        self._moment = NOTHING
        self._steps: LayerSteps | None = None
        self._whole: WholeStep | None = None
        self._pieces: tuple[AddedRows, ...] = ()
        count = checked_integer(rows, ROWS_ARE, 0, MOST_ROWS)
        self._pieces = with_piece((), self._piece(count, initial, statics, begun))

    @property
    def rows(self) -> int:
        """The number of rows of the stream: sequences that each step advances together."""
        if self._steps is None:
            return sum(len(piece.kept) for piece in self._pieces)
        return len(self._moment.slots)

    # ---- steps

    def step(self, x: Any, rows: Any = None, **unknown: Any) -> Any:
        """Runs the next step, of all rows or of some; returns the outputs.

        Args:
            x: The inputs, [rows, features...], in the structure of the recurrence's inputs. An input that is
                a sequence at each step is a `Ragged` of `rows` sequences.
            rows: The rows that take the step: an index, indices or a mask. `x` has their inputs, in this
                order. The others wait: their memories and their counts of steps stay. All by default.
            **unknown: None: other names are errors, which say the argument that is meant.

        Returns:
            The outputs, [rows, features...], in the structure of the step's output; those of the top layer.
            They are copies.

        Raises:
            ArgumentError: For an argument by another name.
            InputError: For another number of rows, for rows that do not exist, and for features or dtypes
                that differ from those of earlier steps, with the layer's place in the message. Also while
                another call of the stream runs.

        >>> import stepnet as sn
        >>> stream = sn.RNN(lambda x, total, p: (total + x, total + x), memory=()).stream(rows=2)
        >>> stream.step(np.array([1.0, 2.0])).tolist(), stream.step(np.array([10.0, 20.0])).tolist()
        ([1.0, 2.0], [11.0, 22.0])
        >>> stream.step(np.array([100.0]), rows=[1]).tolist(), stream.state.tolist()
        ([122.0], [11.0, 122.0])
        """
        if unknown:
            raise unknown_argument("step", Stream.step, unknown, MEANT_OF_STREAMS)
        if self.in_use:  # as in `alone`, which would take a tenth of a short step
            raise InputError(IN_USE)
        self.in_use = True
        try:
            steps, moment = self._steps, self._moment
            if rows is not None or steps is None or (side := moment.side) is None:
                return self._careful_step(x, rows)
            names, step = steps[0]
            if not names:  # a single recurrence, without `run`: its call takes a twentieth of a short step
                x = step.step_rows(x, moment.slots, side)
            else:
                x = run(steps, self._whole, x, moment.slots, side)
            moment.number += 1
            return x
        finally:
            self.in_use = False

    def _careful_step(self, x: Any, rows: Any) -> Any:
        """Takes a step that is not for the fast path of `step`; returns the outputs.

        Such a step is the first of the stream, one of some rows only, or one of rows of which some read
        their memory 0 and others their memory 1.

        x: the inputs of the rows that take the step. rows: these rows, as an index, indices or a mask; None
        for all.
        """
        count = self.rows
        row_indices = np.arange(count) if rows is None else chosen_once(rows, count)
        if self._steps is None:
            check_there_are_rows(count)
            waits, moment, side = rows is not None, first_moment(self._pieces), 0
            steps, x = first_step(self.layers, self._pieces, moment, x, row_indices, waits, self.engine)
            self._set(steps, moment)
        else:
            side = self._side_for(row_indices)
            moment = self._moment
            slots, some = moment.slots if rows is None else moment.slots[row_indices], rows is not None
            names, step = self._steps[0]
            if not names:  # as in `step`
                x = step.step_rows(x, slots, side, some)
            else:
                x = run(self._steps, self._whole, x, slots, side, some)
        self._moment = moment.stepped(row_indices, side)
        return x

    def _side_for(self, row_indices: Array) -> int:
        """Returns the side, 0 or 1, of the memory that the next step of all these rows reads.

        It is the side that most rows have already; the memories of other rows are copied to it.

        row_indices: the indices of the rows.
        """
        moment = self._moment
        side, others = moment.side_for(row_indices)
        if others is not None:
            for _, step in self._steps or ():
                step.memories.carry(moment.slots[others], side)
            self._moment = moment.after(others, moment.begun[others])
        return side

    # ---- rows that come and go

    @alone
    def add(self, rows: int = 1, initial: Any = None, statics: Any = None, *, begun: Any = None) -> Array:
        """Adds rows after the others; returns their indices.

        The other rows stay in place. Adding costs a copy of the new memories. If the stream has never had so
        many rows, it also costs a copy of all others, with room for half as many more.

        Args:
            rows: The number of rows to add.
            initial: Their memory, [rows, features...], in the structure of `state`; else that of the model.
            statics: Values that each of them has once, [rows, features...].
            begun: The number of their steps that were run before, from which `index` counts on.

        Returns:
            The indices of the new rows, [rows], int64.

        Raises:
            InputError: For arguments that do not fit. Memories that are added before the first step are
                checked in that step.

        >>> import stepnet as sn
        >>> stream = sn.RNN(lambda x, total, p: (total + x, total + x), memory=()).stream(rows=1)
        >>> stream.step(np.array([1.0])).tolist()
        [1.0]
        >>> stream.add(rows=2, initial=np.array([10.0, 20.0])).tolist()
        [1, 2]
        >>> stream.step(np.array([1.0, 1.0, 1.0])).tolist()
        [2.0, 11.0, 21.0]
        """
        count, before = rows, self.rows
        if type(rows) is not int or not 0 <= rows <= MOST_ROWS - before:
            meaning = f"rows is how many rows are added, from 0 on, with {before} at most {MOST_ROWS}"
            count = checked_integer(rows, meaning, 0, MOST_ROWS - before)
        steps = self._steps
        if steps is not None and initial is None and statics is None and begun is None and are_zeros(steps):
            self._set(*self._with_new(steps, self._moment, [ZEROS] * len(steps), np.zeros(count, np.int64)))
            return np.arange(before, before + count)
        piece = self._piece(count, initial, statics, begun)
        if steps is None:
            self._pieces = with_piece(self._pieces, piece)
        else:
            new: list[New] = []
            for index, (names, step) in enumerate(steps):
                with named_layer(names):
                    new.append(piece.new(index, step, self.engine))
            self._set(*self._with_new(steps, self._moment, new, piece.begun))
        return np.arange(before, before + count)

    @alone
    def drop(self, rows: Any) -> None:
        """Removes rows. The others keep their order, and their indices close up.

        Nothing is copied: the slots of the removed rows are reused for rows that are added later.

        Args:
            rows: The rows to remove: an index, indices or a mask.

        Raises:
            InputError: For rows that do not exist.

        >>> import stepnet as sn
        >>> stream = sn.RNN(lambda x, total, p: (total + x, total + x), memory=()).stream(rows=3)
        >>> stream.step(np.array([1.0, 2.0, 3.0])).tolist()
        [1.0, 2.0, 3.0]
        >>> stream.drop(1)
        >>> stream.step(np.array([1.0, 1.0])).tolist()
        [2.0, 4.0]
        """
        row_indices = chosen(rows, self.rows)
        if self._steps is None:
            self._pieces = without(self._pieces, row_indices)
        else:
            self._moment = self._moment.without(row_indices)

    @alone
    def reset(self, rows: Any = None, initial: Any = None, statics: Any = None) -> None:
        """Restarts all rows, or some. Their steps count from 0 again.

        Args:
            rows: The rows to reset: an index, indices or a mask. All by default.
            initial: The new memory, arrays [those rows, features...] in the structure of the memory. By
                default the memory that the rows began with.
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
        if self._steps is None:
            if initial is not None or statics is not None:
                raise InputError("nothing was stepped yet: give initial= and statics= to the stream itself")
            if rows is not None:
                raise InputError("nothing was stepped yet, so no row is to be reset: step the stream first")
            return
        row_indices = np.arange(self.rows) if rows is None else chosen(rows, self.rows)
        moment, zeros = self._moment, np.zeros(len(row_indices), np.int64)
        slots, sides = moment.slots[row_indices], moment.all_sides[row_indices]
        initial_parts = self.layers.split(initial, "initial")
        static_parts = self.layers.split(statics, "statics")
        new: list[New] = []
        for (names, step), own, still in zip(self._steps, initial_parts, static_parts, strict=True):
            with named_layer(names):
                first = step.memories.first_of(slots)
                still = None if still is None else step.checked_statics(still, len(row_indices))
                if still is not None:
                    first = computed_memories(step, still, len(row_indices), self.engine) or first
                argument = step.kind.traced.arguments[1]
                memory = step.memories.initial(own, len(row_indices), argument, first)
                new.append(New(memory, first, still))
        if any(own.statics is not None for own in new):
            # Statics have one side only, so rows with new statics move to other slots.
            others = [
                own if own.statics is not None else replace(own, statics=step.statics_of(slots))
                for own, (_, step) in zip(new, self._steps, strict=True)
            ]
            steps, slots = put(self._steps, moment, others, zeros)
            self._set(steps, moment.replaced(row_indices, slots, zeros))
            return
        for (_, step), own in zip(self._steps, new, strict=True):
            assert own.memory is not None  # set above
            step.memories.put_beside(slots, sides, own.memory, zeros)
        self._moment = moment.after(row_indices, zeros)

    @alone
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
        order = sources(rows, self.rows)
        if self._steps is None:
            raise InputError("nothing was stepped yet: give the rows of initial= in the order you want")
        if (side := self._moment.side) is None:
            side = self._side_for(np.arange(self.rows))
        moment = self._moment
        for _, step in self._steps:
            step.memories.move(moment, side, order)
        self._moment = moment.reordered(order)

    def _with_new(
        self, steps: LayerSteps, moment: Moment, new: Sequence[New], begun: Array
    ) -> tuple[LayerSteps, Moment]:
        """Writes new rows (sequences) to free positions of the layers' arrays; returns the layers' steps, and
        the stream's state with the rows.

        steps: the prepared steps of the layers. Those returned are copies with larger arrays where there was
        no room. moment: the state of the present rows. new: for each layer, the memories and statics (values
        that each sequence has once) of the new rows. begun: the number of steps that each new row has taken.
        """
        steps, slots = put(steps, moment, new, begun)
        return steps, moment.with_rows(slots, begun)

    def _set(self, steps: LayerSteps, moment: Moment) -> None:
        """Replaces the layers' prepared steps and the rows' state, so that an interrupt between does no harm.

        Before the first step the state is replaced first, as it has no effect without steps.

        steps: for each layer, its names and its prepared step.
        moment: the state of the rows.
        """
        whole = self._whole
        if steps is not self._steps or (whole is not None and whole.layers is not steps):
            self._whole = whole_step(self.layers, steps, self.engine)
        if self._steps is None:
            self._moment = moment
            self._steps = steps
        else:
            self._steps = steps
            self._moment = moment

    def _piece(self, count: int, initial: Any, statics: Any, begun: Any) -> AddedRows:
        """Makes the group of rows (sequences) that a call of `add` adds, with its arguments split by layer.

        Their arrays are checked when they are written for a step.

        count: the number of rows. initial, statics, begun: the arguments of the call.
        """
        return AddedRows(
            count,
            self.layers.split(initial, "initial"),
            self.layers.split(statics, "statics"),
            np.zeros(count, np.int64) if begun is None else begun_steps(begun, count).copy(),
            np.arange(count),
        )

    # ---- state

    @alone
    def save(self, path: str | PathLike[str], rows: Any = None, *, force: bool = False) -> None:
        """Writes rows to a .safetensors file: memories, statics, numbers of steps, and digests of the model.

        Args:
            path: The file, which appears when it is complete.
            rows: The rows to write, in this order: an index, indices or a mask. All by default.
            force: Whether to replace an existing file.

        Raises:
            FileError: If the file exists, unless `force`, or cannot be written.
            InputError: For rows that do not exist, and before the first step.
        """
        if self._steps is None:
            raise InputError("nothing was stepped yet: there is no state to save")
        with IMPORTS:
            from stepnet.model.streams import saved

        row_indices = np.arange(self.rows) if rows is None else chosen_once(rows, self.rows)
        recurrences = [rnn for _, rnn in self.layers.named_recurrences]
        saved.write(
            file_path(path), recurrences, self._steps, self._moment.only(row_indices), flag(force, "force")
        )

    @alone
    def load(self, path: str | PathLike[str]) -> Array:
        """Adds the rows of a file that `save` wrote; returns their indices. They continue with the same bits.

        A stream made with `rows=0` that loads a file is the stream that was saved.

        Args:
            path: The file.

        Returns:
            The indices of the rows, [rows], int64.

        Raises:
            FileError: For a file that is damaged, and for one that was saved from another recurrence, with
                other parameters, or with inputs of other features or dtypes. The stream is then as it was.

        >>> import tempfile
        >>> import stepnet as sn
        >>> rnn = sn.RNN(lambda x, total, p: (total + x, total + x), memory=())
        >>> stream = rnn.stream(rows=2)
        >>> outputs = stream.step(np.array([1.0, 2.0]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     stream.save(f"{folder}/users.safetensors", rows=[1])
        ...     other = rnn.stream(rows=0)
        ...     other.load(f"{folder}/users.safetensors").tolist()
        [0]
        >>> other.step(np.array([10.0])).tolist()
        [12.0]
        """
        with IMPORTS:
            from stepnet.model.streams import saved

        before = self.rows
        running = None if self._steps is None else [step.kind for _, step in self._steps]
        read = saved.read(file_path(path), self.layers.named_recurrences, running)
        count = len(read.begun)
        if count > MOST_ROWS - before:
            raise InputError(f"{path} has {count} rows; with {before} there are at most {MOST_ROWS}")
        steps, moment = self._steps, self._moment
        if steps is None:
            moment = first_moment(self._pieces)
            steps = prepare_steps(self.layers, self._pieces, read.kinds, before + count, self.engine)
        self._set(*self._with_new(steps, moment, read.new, read.begun))
        return np.arange(before, before + count)

    @property
    @alone
    def state(self) -> Any:
        """The present memory of each row, arrays [rows, features...] in the structure of the memory; for a
        `Stack`, a tuple with one entry per layer. The arrays are copies.

        Before the first step it is what the rows begin with, `initial=` or zeros. A dtype that `memory=` left
        open then follows from the latest or declared inputs; before these are known, from the parameters and
        `initial=`.

        Raises:
            InputError: Before the first step, for a `Graph` that was neither called nor made with `inputs=`,
                and for an `initial=` that does not fit.

        >>> import stepnet as sn
        >>> rnn = sn.RNN(lambda x, total, p: (total + x, total + x), memory=())
        >>> stream = rnn.stream(rows=2, initial=np.array([0.5, 0.0]))
        >>> stream.state.tolist(), stream.step(np.array([1.0, 2.0])).tolist(), stream.state.tolist()
        ([0.5, 0.0], [1.5, 2.0], [1.5, 2.0])
        """
        if self._steps is None:
            return self.layers.joined(first_memories(self.layers, self._pieces, self.engine))
        return self.layers.joined([step.memories.state(self._moment) for _, step in self._steps])

    def __reduce__(self) -> Any:
        """Raises `InputError`, as a stream cannot be copied or pickled."""
        raise InputError(
            "a stream is not copied or pickled: make one of the same recurrence, with initial=stream.state"
        )
