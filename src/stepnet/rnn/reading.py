"""The arguments of a call as they are run, and its answer in the caller's own form."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from stepnet.engines import Bound, Call
from stepnet.errors import InputError
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import offsets_of
from stepnet.rnn.batch import Batch
from stepnet.rnn.control import run_until
from stepnet.rnn.nested import NO_LAST
from stepnet.rnn.program import Program
from stepnet.values.structure import rebuild

Kind = TypeVar("Kind", bound=Program)
NO_END = "a step with until= gives one value per row; one of its outputs is a sequence"


@dataclass(frozen=True)
class Reading(Generic[Kind]):
    """The arguments of a call as they are run. running: the program of the step under control; ends: whether
    sequences may end early.
    """

    batch: Batch
    program: Kind
    running: Program
    call: Call
    ends: bool

    def answer(self, bound: Bound) -> tuple[Any, Any]:
        """The outputs and the last memory, in the structures of the step."""
        program, call, levels = self.program, self.call, self.running.levels
        if max(levels, default=1) > 1 and (self.ends or call.last_only):
            raise InputError(NO_END if self.ends else NO_LAST)
        outputs: list[Any]
        if self.ends:
            lengths, results = run_until(bound, call, self.running.net)
            outputs = results.outputs
            if not call.last_only:
                outputs = [Ragged(output, (offsets_of(lengths),)) for output in outputs]
        else:
            results = program.split(bound(call))
            outputs = (
                results.outputs if call.last_only else list(map(self.batch.laid_out, results.outputs, levels))
            )
        return rebuild(program.output, outputs), program.final(results.final)
