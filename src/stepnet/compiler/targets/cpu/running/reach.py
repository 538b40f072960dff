"""The progress of a chain's calls, read from the workspaces while the machine code pauses."""

import time
from collections.abc import Sequence

from stepnet.compiler.plan.waves import Waves
from stepnet.compiler.targets.cpu.running.workspace import Workspace
from stepnet.compiler.targets.watching import Progress


class Reach:
    """Reader of the progress of prepared calls.

    waves: the kernels that run at the same time, by position.
    spaces: the workspaces of each kernel.
    begun: the time at which the first wave began, in seconds.
    """

    def __init__(self, waves: Waves, spaces: Sequence[Sequence[Workspace]]) -> None:
        """Takes the waves of kernels, and the workspaces from which progress is read."""
        self.waves, self.spaces, self.begun = waves, spaces, 0.0

    def progress(self, at: int, is_done: bool) -> Progress:
        """Adds up the progress of all kernels of a chain, for a function that watches the call.

        at: the position of the wave (kernels that run at the same time) that runs now, or ran last.
        is_done: whether that wave is done.
        """
        kernels = [[space.done() for space in spaces] for spaces in self.spaces]
        steps = all_steps = 0
        for number, wave in enumerate(self.waves):
            for space in (space for place in wave for space in kernels[place]):
                all_steps += space.all_steps
                # The workspaces of waves that have not run yet hold the progress of an earlier call.
                whole = number < at or (number == at and is_done)
                steps += space.all_steps if whole else space.steps if number == at else 0
        ends = [kernels[place] for place in self.waves[-1]]
        all_sequences = sum(space.all_sequences for space in ends[0])
        sequences = min(sum(space.sequences for space in spaces) for spaces in ends)
        if at < len(self.waves) - 1 or is_done:
            sequences = all_sequences if is_done else 0
        return Progress(steps, all_steps, sequences, all_sequences, time.perf_counter() - self.begun)
