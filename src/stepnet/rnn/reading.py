"""The checked arguments of a call, and the results in the form of the input."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from stepnet.engines import Bound, Call, Order, checked_engine
from stepnet.errors import InputError
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import offsets_of
from stepnet.rnn.batch import Batch, Statics, begun_steps
from stepnet.rnn.calls import Calls
from stepnet.rnn.control import mask_array, run_until
from stepnet.rnn.executables import Form
from stepnet.rnn.program import Program
from stepnet.rnn.programs import Programs
from stepnet.values.arguments import flag
from stepnet.values.collector import paused_collector
from stepnet.values.structure import leaves, rebuild

Array = np.ndarray
Kind = TypeVar("Kind", bound=Program)
NO_LAST = "last_only is for outputs that there is one of per step; this one is a sequence at each"
NO_END = "a step with until= gives one value per row; one of its outputs is a sequence"


@dataclass(frozen=True)
class Reading(Generic[Kind]):
    """The checked arguments of a call.

    running: the program of the step with its control. ends: whether sequences may end early.
    """

    batch: Batch
    program: Kind
    running: Program
    call: Call
    ends: bool

    def run(self, asked: Order, calls: Calls[Kind], form: Form | None) -> tuple[Any, Any]:
        """Runs the call on the engine asked for, and returns the outputs and the last memory.

        calls, form: the prepared calls of the model, and the form of this one; None for a call that is never
        prepared.
        """
        # The first call makes much, up to its end, and none of that is garbage before.
        with nullcontext() if self.running.is_bound(asked) else paused_collector():
            bound = self.running.bound(asked)
            if form is not None and calls.is_due(form):
                calls.prepare(form, self.program, bound, self.call, self.batch.like)
            return self.answer(bound)

    def answer(self, bound: Bound) -> tuple[Any, Any]:
        """The outputs and the last memory, in the structures of the step."""
        program, call, levels = self.program, self.call, self.running.levels
        if max(levels, default=1) > 1 and (self.ends or call.last_only):
            raise InputError(NO_END if self.ends else NO_LAST)
        outputs: list[Any]
        if self.ends:
            ended = len(leaves(program.memory))
            lengths, results = run_until(bound, call, self.running.net, ended)
            outputs = results.outputs
            if not call.last_only:
                outputs = [Ragged(output, (offsets_of(lengths),)) for output in outputs]
        else:
            results = program.split(bound(call))
            outputs = self.shaped(results.outputs)
        return rebuild(program.output, outputs), program.final(results.final)

    def shaped(self, outputs: list[Any]) -> list[Any]:
        """Outputs in the form of the input."""
        if self.call.last_only:
            return outputs
        return list(map(self.batch.like_input, outputs, self.running.levels))

    def unrounded(self, bound: Bound) -> tuple[Any, list[Array]]:
        """The outputs, and the last memories in the dtypes that they are carried in."""
        results = self.program.split(bound(self.call))
        return rebuild(self.program.output, self.shaped(results.outputs)), results.final


def called(
    programs: Programs[Kind],
    read: Callable[[], Reading[Kind]],
    sequences: Any,
    initial: Any,
    engine: Any,
    last_only: Any = False,
    masked: Any = "repeat",
    time_major: Any = False,
    plain: bool = True,
) -> tuple[Any, Any]:
    """Runs a call of a model, and returns the outputs and the last memory. All models are called here.

    programs: the programs of the model.
    read: checks the arguments; it is not called where a prepared call takes them.
    plain: whether there are no arguments but these, so that the call may be prepared.
    """
    calls = programs.calls
    form = calls.form(sequences, last_only, engine, masked, time_major) if plain else None
    if form is not None and (done := calls.run(form, sequences, initial)) is not None:
        programs.latest, results = done
        return results
    asked = checked_engine(engine)
    flag(last_only, "last_only")
    return read().run(asked, calls, form)


def call_of(
    batch: Batch,
    memories: Sequence[Array | None],
    statics: Sequence[Statics],
    last_only: bool,
    mask: Any,
    begun: Any,
) -> Call:
    """The call of a batch from these memories. statics: those of each recurrence, in the order they run."""
    beside = {axis: offsets for still in statics for axis, offsets in still.beside.items()}
    return Call(
        batch.positions.with_statics(beside),
        batch.arrays if mask is None else [*batch.arrays, mask_array(mask, batch.steps_like)],
        memories,
        [array for still in statics for array in still.arrays],
        last_only,
        None if begun is None else begun_steps(begun, batch.count),
    )
