"""The checked arguments of a call, and its results in the layout of the inputs."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Generic, TypeVar

import numpy as np

from stepnet.compiler.targets import Bound, Call, Order, Results
from stepnet.compiler.values.collector import paused_collector
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, rebuild
from stepnet.errors import IndexOutsideError, InputError
from stepnet.model.batch import Batch
from stepnet.model.control import mask_array, run_until
from stepnet.model.forms import FormedCall
from stepnet.model.initial import begun_steps
from stepnet.model.program import Program
from stepnet.model.programs import Calls
from stepnet.model.statics import Statics
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray
Kind = TypeVar("Kind", bound=Program)
NO_LAST = "last_only is for outputs that there is one of per step; this one is a sequence at each"
NO_END = "a step with until= gives one value per row; one of its outputs is a sequence"


@dataclass(frozen=True)
class Reading(Generic[Kind]):
    """The checked arguments of a call, with the programs that run them.

    batch: the sequences.
    program: the program of the model, with the structures of its results.
    running: the program that runs: of the step with its mask or early end, if the call has one; else
        `program`.
    call: the arrays and positions that the kernel reads.
    ends: whether sequences may end early.
    """

    batch: Batch
    program: Kind
    running: Program
    call: Call
    ends: bool

    def run(self, order: Order, calls: Calls[Kind], formed: FormedCall | None) -> tuple[Any, Any]:
        """Runs the call on the requested engines; returns the outputs and the final memory.

        order: an engine, or several in order of preference.
        calls: the model's prepared calls (compiled code with its memory for one kind of call); this call is
            added once it has run often enough.
        formed: this call as `calls` takes it; None for one that is never prepared.
        """
        # The first call makes many objects that are needed to its end: collecting garbage is wasted time.
        with nullcontext() if self.running.is_bound(order) else paused_collector():
            bound = self.running.bound(order)
            if formed is not None and self.batch.padded is None:  # arrays other than the call's
                calls.prepare(formed, self.program, bound, self.call, self.batch.steps_like)
            made = self.answer(bound)
            if formed is not None and (keeper := calls.keeper) is not None and self.batch.padded is None:
                calls.keeper = None
                with IMPORTS:  # late: the first call of a model of a file, if no process has stored it
                    from stepnet.model.keeping import keep

                keep(keeper, formed, bound, self.call, self.structured)
            return made

    def answer(self, bound: Bound) -> tuple[Any, Any]:
        """Runs the call on a kernel; returns its outputs and its final memories, in the structures of the
        model.

        Where a condition `until` ends sequences early, outputs are Raggeds of the lengths up to the ends.
        Raises `InputError` for outputs that are sequences at each step, if sequences may end early or only
        last outputs are asked for.

        bound: the kernel (compiled net) with its parameters.
        """
        program, call, levels = self.program, self.call, self.running.levels
        if max(levels, default=1) > 1 and (self.ends or call.last_only):
            raise InputError(NO_END if self.ends else NO_LAST)
        outputs: list[Any]
        if self.ends:
            ended = len(leaves(program.memory))
            with self.located():
                lengths, results = run_until(bound, call, self.running.net, ended)
            outputs = results.outputs
            if not call.last_only:
                outputs = [Ragged(output, (offsets_of(lengths),)) for output in outputs]
        else:
            with self.located():
                made = bound(call)
            return self.structured(made)
        return rebuild(program.output, outputs), program.final(results.final)

    def structured(self, made: Results) -> tuple[Any, Any]:
        """Returns the outputs and the final memories of a call in the structures of the model, from the
        results of its kernel, in which sequences ran to their last step.
        """
        results = self.program.split(made)
        return rebuild(self.program.output, self.shaped(results.outputs)), self.program.final(results.final)

    @contextmanager
    def located(self) -> Generator[None]:
        """Context that adds to an `IndexOutsideError` of the call which integer it is, and where."""
        try:
            yield
        except IndexOutsideError as error:
            with IMPORTS:  # late: only errors need it
                from stepnet.model.outside import located_in_call

            raise located_in_call(error, self.running, self.call) from None

    def shaped(self, outputs: list[Any]) -> list[Any]:
        """Returns outputs in the layout of the inputs, such as a padded array; those of a call that returns
        only last outputs, which have one value per sequence, are returned unchanged.

        outputs: arrays with the values of all sequences end to end.
        """
        if self.call.last_only:
            return outputs
        return list(map(self.batch.like_input, outputs, self.running.levels, self.running.axes))

    def unrounded(self, bound: Bound) -> tuple[Any, list[Array]]:
        """Runs the call on a kernel; returns its outputs, and the final memories in the dtypes of the loop.

        A stream continues from these memories. A call rounds them to the dtypes of its results.

        bound: the kernel (compiled net) with its parameters.
        """
        with self.located():
            results = self.program.split(bound(self.call))
        return rebuild(self.program.output, self.shaped(results.outputs)), results.final


def call_of(
    batch: Batch,
    memories: Sequence[Array | None],
    statics: Sequence[Statics],
    last_only: bool,
    mask: Any,
    begun: Any,
) -> Call:
    """Makes the call of a batch: the arrays and positions that a kernel (compiled recurrence) reads.

    memories: the initial memories; None for zeros.
    statics: the statics of each recurrence (values that each sequence has once), in the order they run.
    last_only: whether to return only the last output of each sequence.
    mask, begun: the arguments of the user's call (steps to leave out, and the numbers of steps run before),
        which are checked here.
    """
    beside = {**batch.positions.beside}
    beside |= {axis: offsets for still in statics for axis, offsets in still.beside.items()}
    return Call(
        batch.positions.with_statics(beside),
        batch.arrays if mask is None else [*batch.arrays, mask_array(mask, batch.steps_like)],
        memories,
        [array for still in statics for array in still.arrays],
        last_only,
        None if begun is None else begun_steps(begun, batch.count),
    )
