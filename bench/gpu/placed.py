"""A recurrence on a device, bound to its parameters, whose loop and whole calls can be run and timed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import stepnet as sn
from bench.gpu.place import Place
from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.base import Call
from stepnet.compiler.targets.cuda import BoundPlan, ChosenLoop, CudaKernel, PlanRun, get
from stepnet.compiler.targets.cuda.kernel import rounded
from stepnet.compiler.values import leaves
from stepnet.ragged.positions import Positions

Array = np.ndarray


def plan_of(rnn: sn.RNN, place: Place) -> Plan:
    """Returns the plan of a recurrence, as the engine of a place plans it."""
    (plan,) = rnn.program.schedule_for(place.name).plans
    return plan


@dataclass(frozen=True)
class PlacedCall:
    """A plan bound to its parameters on a device, with the arrays of a call."""

    place: Place
    bound: BoundPlan
    call: Call

    @classmethod
    def of(
        cls, rnn: sn.RNN, place: Place, x: Array, lengths: Sequence[int], loop: ChosenLoop | None = None
    ) -> "PlacedCall":
        """Puts a recurrence and sequences [rows, steps, features] on a device.

        loop: the kernel of the loop; by default the one that the target chooses.
        """
        plan = plan_of(rnn, place)
        rows, steps, features = x.shape
        kernel = CudaKernel(plan, place.memory)
        if loop is not None:
            kernel.loops[rounded(rows), None] = loop
        bound = kernel.bind([np.asarray(each) for each in leaves(rnn.params)])
        flat = place.memory.put(x.reshape(rows * steps, features))
        positions = Positions.padded(np.asarray(lengths), steps)
        sequences: list[Any] = [flat]
        return cls(place, bound, Call(positions, sequences, [None] * len(plan.ends.memories)))

    @property
    def loop(self) -> ChosenLoop:
        """The kernel of the loop."""
        return self.bound.kernel.loop(self.call.positions.rows)

    def __call__(self) -> list[Any]:
        """Runs the whole call; returns outputs and final memories on the device."""
        return self.bound(self.call).arrays

    def results(self) -> list[Array]:
        """Runs the whole call; returns outputs and final memories on the host."""
        return [get(each) for each in self()]

    def loop_seconds(self) -> float:
        """Returns the seconds of the loop alone, after the stages ahead of it."""
        run = PlanRun(self.bound.kernel, self.call, dict(self.bound.constants))
        run.stage("sequence")
        run.stage("before")
        return self.place.seconds(run.loop)

    def call_seconds(self) -> float:
        """Returns the seconds of the whole call on arrays of the device."""
        return self.place.seconds(self)


def error_of(
    found: Sequence[Array], exact: Sequence[Array], steps: int, width: int, dtype: str = "float32"
) -> float:
    """Returns the largest difference of results, as a share of the tolerance of a dtype; infinite if one is
    no number.
    """
    errors = list[float]()
    for ours, theirs in zip(found, exact, strict=True):
        away = np.abs(ours.reshape(theirs.shape) - theirs) / np.maximum(1, np.abs(theirs))
        errors.append(float(np.nan_to_num(away, nan=np.inf, posinf=np.inf).max(initial=0)))
    return max(errors) / tolerance(dtype, steps, width)


def exact_results(rnn: sn.RNN, x: Array, lengths: Sequence[int]) -> list[Array]:
    """Returns outputs and final memories of a recurrence of float64, by the interpreter: the truth."""
    made = rnn(x.astype("f8"), lengths=list(lengths), engine="interpret")
    return [np.asarray(each) for each in leaves(made)]
