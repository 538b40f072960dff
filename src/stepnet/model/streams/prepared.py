"""Steps of one layer, on the caller's arrays if one thread runs them, and else on arrays that are allocated
once: then inputs are copied in, and outputs are copied out.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from stepnet.compiler.targets import Bound, Call, Results
from stepnet.compiler.trace.spec import TracedStep
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import arranged, leaves, rebuild, skeleton, titled_leaves
from stepnet.errors import IndexOutsideError, InputError
from stepnet.model.batch import checked_array
from stepnet.model.program import Beginning
from stepnet.model.streams.memories import Memories
from stepnet.model.streams.rows import check_rows, titled
from stepnet.model.streams.statics import checked_statics, empty_slots
from stepnet.ragged.positions import Positions

Array = np.ndarray
Block = tuple[Array, Callable[[list[Any]], bool] | None]
"""An array like the input of a step, and the function that runs the step on arrays; None if there is none."""
NO_SLOTS = np.zeros(0, np.int64)
MOST_BLOCKS = 64
"""The largest number of different row counts for which a step has a function that runs it on arrays."""


@dataclass(frozen=True)
class StepKind:
    """A traced step of one layer, which does not depend on the number of rows.

    traced: the trace.
    inputs, statics: the `Spec`s (features and dtypes) that it was traced for.
    begin: computes the initial memories; None where they are zeros.
    """

    traced: TracedStep
    inputs: Any
    statics: Any
    begin: Beginning | None = None

    @property
    def counts(self) -> bool:
        """True if the step reads its index, so that the steps of each row must be counted."""
        return any(node.operation == "index" for node in self.traced.body.nodes)


class Chosen(NamedTuple):
    """The prepared step of the rows in some slots (positions in a layer's arrays).

    slots: these positions.
    run: the function that runs the step.
    inputs, outputs: the arrays that the step reads and writes.
    one: the array of the input, if there is exactly one; else None.
    """

    slots: Array
    run: Callable[[], None]
    inputs: list[Array]
    outputs: list[Array]
    one: Array | None


chosen_of: Callable[[Any], Chosen] = partial(cast("Any", tuple).__new__, Chosen)
"""Makes a `Chosen` of its fields, in half the time."""


def no_step() -> None:
    """Does nothing: it takes the place of the compiled step where no rows are to be stepped."""


NOTHING = Chosen(NO_SLOTS, no_step, [], [], None)
"""The step of no rows, which is chosen at first."""


class PreparedStep:
    """Runs the steps of one layer of a stream on arrays that are allocated once, for up to `capacity` rows.

    kind: the traced step.
    bind: returns the kernel (compiled step) with its parameters, which is compiled at first use.
    memories: the memories of the rows.
    """

    def __init__(self, kind: StepKind, bind: Callable[[], Bound], memories: Memories) -> None:
        """Allocates the inputs, statics (values that each sequence has once) and outputs of a layer's step,
        for all rows (sequences) that `memories` has room for. kind: the traced step. bind: compiles the step,
        when it is first run.
        """
        self.kind, self.bind, self.memories = kind, bind, memories
        self.sides: list[Any] | None = None
        capacity = self.capacity = memories.capacity
        self.inputs = [np.zeros((capacity, *spec.shape), spec.dtype) for spec in leaves(kind.inputs)]
        self.statics: list[Array] = empty_slots(kind.statics, capacity)
        traced = kind.traced
        types = [traced.body.type_of(result) for result in traced.recur().outputs]
        self.outputs = [np.empty((capacity, *type_.shape), type_.dtype) for type_ in types]
        self.counts = memories.counts = kind.counts
        self.plain = len(self.outputs) == 1 and skeleton(traced.output) == "array"
        self.alone = skeleton(kind.inputs) == "array"
        self.chosen = [NOTHING, NOTHING]
        self.blocks: tuple[dict[int, Block], dict[int, Block]] = {}, {}

    @property
    def steps(self) -> list[Any]:
        """The compiled steps of the layer, one for each of the two memories of a row that it may read.

        The first reads memories 0 and writes memories 1, the other the reverse.
        """
        # No `cached_property`: writing to `__dict__` would slow down each attribute of a step.
        if self.sides is None:
            self.sides = [self.steps_from(side) for side in (0, 1)]
        return self.sides

    def steps_from(self, side: int) -> Any:
        """Binds the compiled step to the arrays of all rows (sequences), so that some rows can take single
        steps.

        Returns the engine's object for these steps; its `of(slots)` returns a function that runs one step of
        the rows at these positions of the arrays.

        side: the one of each row's two memories that the steps read, 0 or 1; they write the other.
        """
        memories, capacity = self.memories, self.capacity
        positions = Positions.end_to_end(np.arange(capacity + 1))
        before, after = memories.sides[side], memories.sides[1 - side]
        begun = memories.begun[side] if self.counts else None
        call = Call(positions, self.inputs, before, self.statics, step_offset=begun)
        return self.bind().steps(call, Results(self.outputs, after))

    def grown(self, capacity: int, slots: Array) -> "PreparedStep":
        """Returns a copy of this step of a layer with arrays for more rows (sequences), and with the statics
        (values that each sequence has once) of the present rows.

        capacity: the number of rows that it has room for. slots: the positions of the present rows in the
        arrays.
        """
        larger = PreparedStep(self.kind, self.bind, self.memories.grown(capacity))
        larger.put_statics(slots, [array[slots] for array in self.statics])
        return larger

    def checked_statics(self, statics: Any, count: int) -> list[Array]:
        """Checks the statics (values that each sequence has once) of `count` new rows of a stream; returns
        them as arrays.

        Raises `InputError` unless they have the structure, features and dtypes of the statics of earlier
        rows.
        """
        return checked_statics(statics, self.kind.statics, count)

    def put_statics(self, slots: Array, statics: list[Array]) -> None:
        """Writes the statics (values that are the same at all steps) of some rows of a stream, and tells the
        compiled steps to read them anew. slots: the positions of the rows in the arrays.
        """
        for kept, new in zip(self.statics, statics, strict=True):
            kept[slots] = new
        if statics:
            for steps in self.steps:
                steps.renew(slots)

    def statics_of(self, slots: Array) -> list[Array]:
        """Returns copies of the statics of a stream's rows, given by their slots (array positions)."""
        return [array[slots] for array in self.statics]

    def blank(self, count: int) -> Any:
        """Returns zeros with the features and dtypes of the step's outputs, for `count` rows.

        They stand for the outputs while the step of the next layer is prepared.
        """
        arrays = [np.zeros((count, *output.shape[1:]), output.dtype) for output in self.outputs]
        return rebuild(self.kind.traced.output, arrays)

    def step_rows(self, x: Any, slots: Array, side: int, some: bool = False) -> Any:
        """Runs a compiled step of some rows (sequences) of a stream; writes their next memories and returns
        copies of the outputs.

        x: the inputs of these rows. slots: their positions in the arrays. side: the one of each row's two
        memories to read, 0 or 1; the step writes the other, so that it can be undone. some: whether other
        rows of the stream wait, for messages.
        """
        count = len(slots)
        if (block := self.blocks[side].get(count)) is None:
            block = self.new_block(count, side)
        like, run = block
        if (
            run is not None
            and type(x) is np.ndarray
            and x.shape == like.shape
            and x.dtype == like.dtype
            and x.flags.c_contiguous
        ):
            arrays = [x, slots]
            try:
                has_run = run(arrays)
            except IndexOutsideError as error:
                raise self.located(error, [x], slots) from None
            if has_run:
                if self.counts:
                    self.count_steps(slots, side)
                return arrays[2] if self.plain else rebuild(self.kind.traced.output, arrays[2:])
        chosen = self.chosen[side]
        if chosen.slots is not slots:
            chosen = self.choose(slots, side)
        one = chosen.one
        if one is not None and type(x) is np.ndarray and x.shape == one.shape and x.dtype == one.dtype:
            one[...] = x
        else:
            self.take(x, chosen.inputs, len(slots), some)
        try:
            chosen.run()
        except IndexOutsideError as error:
            raise self.located(error, chosen.inputs, slots) from None
        if self.counts:
            self.count_steps(slots, side)
        if self.plain:
            return chosen.outputs[0].copy()
        return rebuild(self.kind.traced.output, [output.copy() for output in chosen.outputs])

    def count_steps(self, slots: Array, side: int) -> None:
        """Counts a step of some rows of a stream, for steps that read how many came before. slots: the
        positions of the rows in the arrays. side: the memory that they read, 0 or 1.
        """
        before, after = self.memories.begun[side], self.memories.begun[1 - side]
        if len(slots) == len(after):
            np.add(before, 1, out=after)
        else:
            after[slots] = before[slots] + 1

    def new_block(self, count: int, side: int) -> Block:
        """Prepares the function that runs steps of `count` rows on the caller's arrays, caches and returns
        it, with an array like the input. side: the memory of each row, 0 or 1, that such steps read.
        """
        blocks, one = self.blocks[side], self.inputs[0][:count] if self.alone else NO_SLOTS
        if len(blocks) >= MOST_BLOCKS:
            blocks.clear()
        made = blocks[count] = one, self.steps[side].block(count) if self.alone and count else None
        return made

    def located(self, error: IndexOutsideError, inputs: list[Array], slots: Array) -> IndexOutsideError:
        """Returns an error of a step with the integer that is outside of a parameter, and its row.

        inputs: the inputs of the step. slots: the positions of its rows in the arrays.
        """
        with IMPORTS:  # late: only errors need it
            from stepnet.model.outside import located

        traced = self.kind.traced
        memories = [None] * traced.counts[1]
        arrays = [*inputs, *memories, *self.statics_of(slots), *leaves(traced.params)]
        return located(error, traced.net(False, 1), arrays, lambda _, row: f" in row {row}")

    def choose(self, slots: Array, side: int) -> Chosen:
        """Prepares a step of some rows (sequences) of a stream, to be run several times; caches it and
        returns it. slots: the positions of the rows in the arrays.

        side: the memory of each row, 0 or 1, that the step reads; it writes the other.
        """
        before = self.chosen[side]
        self.chosen[side] = NOTHING  # in case of an error below
        count = len(slots)
        if before.inputs and count == len(before.slots):
            inputs, outputs = before.inputs, before.outputs
        else:
            inputs, outputs = ([array[:count] for array in arrays] for arrays in (self.inputs, self.outputs))
        run = self.steps[side].of(slots) if count else no_step
        chosen = chosen_of((slots, run, inputs, outputs, inputs[0] if self.alone else None))
        self.chosen[side] = chosen
        return chosen

    def take(self, x: Any, inputs: list[Array], count: int, some: bool) -> None:
        """Checks the inputs of a step, and copies them into the arrays that the step reads.

        x: the inputs.
        inputs: these arrays.
        count: the number of rows that take the step.
        some: whether other rows of the stream wait, for messages.
        """
        kind = self.kind
        x = arranged(x, kind.inputs)
        if skeleton(x) != skeleton(kind.inputs):
            raise InputError(f"a step's inputs are {skeleton(x)}; those before were {skeleton(kind.inputs)}")
        for (name, leaf), kept in zip(titled_leaves(x, kind.traced.arguments[0]), inputs, strict=True):
            array = checked_array(leaf, titled(name))
            check_rows(name, array, count, some)
            if array.shape != kept.shape or array.dtype != kept.dtype:
                raise InputError(
                    f"{titled(name)} is {array.dtype}{list(array.shape)}; those before were "
                    f"{kept.dtype}{list(kept.shape)}"
                )
            kept[...] = array
