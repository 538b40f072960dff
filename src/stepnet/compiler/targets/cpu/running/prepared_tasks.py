"""Prepared tasks of machine code that run repeatedly, on one thread or several."""

import time
from collections.abc import Callable, Sequence

from stepnet.compiler.native.watching import Progress, watching
from stepnet.compiler.net.meanings import OUTSIDE
from stepnet.compiler.plan.waves import Waves
from stepnet.compiler.targets.base import Array
from stepnet.compiler.targets.cpu.machine.memory import view
from stepnet.compiler.targets.cpu.running.workspace import Workspace
from stepnet.compiler.targets.cpu.threads.workers import WORKER_POOL, Task, TaskGroup
from stepnet.errors import IndexOutsideError

# Threads are woken for steps that follow each other within CLOSELY seconds. To wake one costs as much as
# several steps, so at least SELDOM seconds pass between two attempts.
CLOSELY, SELDOM = 100e-6, 2e-3
# A step that takes longer than LONG seconds on one thread gains more from a second one than to wake it costs.
LONG = 150e-6


class Reach:
    """Reader of the progress of prepared calls.

    waves: the kernels that run at the same time, by position.
    spaces: the workspaces of each kernel.
    begun: the time at which the first wave began, in seconds.
    """

    def __init__(self, waves: Waves, spaces: Sequence[Sequence[Workspace]]) -> None:
        """Takes the waves (kernels that run at once), and the workspaces from which progress is read."""
        self.waves, self.spaces, self.begun = waves, spaces, 0.0

    def progress(self, at: int, is_done: bool) -> Progress:
        """Adds up the progress of all kernels (compiled parts) of a chain, for a function that watches the
        call.

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


class PreparedTasks:
    """Tasks (machine code and its arguments) on some scratch memory, to be run repeatedly on threads."""

    def __init__(
        self,
        tasks: Sequence[Task],
        spaces: Sequence[Workspace],
        progress: Array | None,
        most: int | None = None,
        pauses: bool = True,
    ) -> None:
        """Prepares tasks to be run by calling this object, on one thread or several.

        tasks: in the order in which threads take them, the longest first.
        spaces: the workspaces (scratch memory and arguments) of the tasks.
        progress: the shared words of tasks that divide the steps of a call; None for independent tasks.
        most: the largest number of threads; None for one per task.
        pauses: whether tasks return to Python from time to time. Each run then resets the progress that an
            interrupted run may have left.
        """
        for space in spaces:
            space.begin()
        self.pausing: Sequence[Workspace] = spaces if pauses else ()
        self.statuses = [view(space.status) for space in spaces]
        self.only = tasks[0] if len(tasks) == 1 else None
        self.held: list[object] = []  # keeps the memory alive that the machine code reads
        self.reach: Reach | None = None  # reads the call's progress; these tasks are its wave `place`
        self.place, self.has_reported = 0, False
        self.paused: Callable[[], None] | None = None  # called whenever all tasks pause
        self.tasks = tasks
        if len(tasks) > 1:
            self.orders = self.orders_for(tasks, progress, most)

    def orders_for(self, tasks: Sequence[Task], progress: Array | None, most: int | None) -> TaskGroup:
        """Makes the object that runs several tasks on threads, and wakes those that sleep.

        progress: the words that tasks of one call share; None for independent tasks.
        most: the largest number of threads; None for one per task.
        """
        return TaskGroup(WORKER_POOL, tasks, progress, max_threads=most)

    def __call__(self) -> None:
        """Runs all tasks to their end, on several threads if there are several; raises
        `IndexOutsideError` if an index is outside its table. For progress reports, the start of the first
        tasks of a call is noted as its beginning.
        """
        for space in self.pausing:
            space.begin()
        for status in self.statuses:
            status[0] = 0
        if self.reach is not None and self.place == 0:
            self.reach.begun = time.perf_counter()
        if self.only is not None:
            function, task = self.only
            while function.call(task):
                self.between()
        elif self.statuses:
            self.share()
        for status in self.statuses:
            if status[0]:
                raise IndexOutsideError(OUTSIDE)

    def share(self) -> None:
        """Runs all tasks on several threads, waking those that sleep."""
        WORKER_POOL.run(self.orders, self.between)

    def between(self) -> None:
        """Reports progress to the user's function while all tasks pause, calls `paused` if it is set, and
        then lets the tasks resume.
        """
        watch = watching()
        if watch is not None and self.reach is not None:
            self.has_reported = True
            watch(self.reach.progress(self.place, False))
        if self.paused is not None:
            self.paused()
        for space in self.pausing:
            space.go_on()


class DividedTasks(PreparedTasks):
    """Prepared step that is divided among the threads that are awake.

    To wake a sleeping thread, or one that was preempted, takes longer than a short step. So other threads are
    not waited for; they are woken for later steps if steps follow each other closely. A long step wakes them
    itself, and waits for them: they would sleep again before the next one.
    """

    ended = roused = 0.0

    def orders_for(self, tasks: Sequence[Task], progress: Array | None, most: int | None) -> TaskGroup:
        """Makes the object that runs several tasks on the threads that are awake. progress: the words that
        the tasks share. most: the largest number of threads; None for one per task.
        """
        return TaskGroup(WORKER_POOL, tasks, progress, wake=False, max_threads=most)

    def share(self) -> None:
        """Runs all tasks on the threads that are awake; if such a run was long, on all threads from then on.
        If they are fewer than the tasks, and short runs follow one another closely, wakes other threads for
        later runs.
        """
        orders, begun = self.orders, time.perf_counter()
        if orders.wake:
            WORKER_POOL.make_ready(orders.max_threads - 1)
        while orders.lead():
            self.between()
        if orders.thread_count < orders.count:
            self.ended, before = time.perf_counter(), self.ended
            if self.ended - begun > LONG:
                orders.set_wake(True)
            elif begun - before < CLOSELY and begun - self.roused > SELDOM:
                self.roused = begun
                WORKER_POOL.wake(orders.count - 1)
