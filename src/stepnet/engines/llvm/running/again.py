"""Prepared tasks of machine code, run as often as is wanted: by one thread or several."""

import time
from collections.abc import Callable, Sequence

from stepnet.engines.base import Array
from stepnet.engines.llvm.machine.memory import view
from stepnet.engines.llvm.running.reach import Reach
from stepnet.engines.llvm.running.workspace import Workspace
from stepnet.engines.llvm.threads.workers import CREW, Orders, Task
from stepnet.engines.watching import watching
from stepnet.errors import InputError

# Steps that follow one another within so many seconds are worth waking a thread for; but to wake one costs
# about as much as several steps, so it is not tried again at once.
CLOSELY, SELDOM = 100e-6, 2e-3
OUTSIDE = "an integer is outside the rows of the parameter that it indexes"


class Again:
    """What runs the tasks of workspaces, again and again.

    tasks: in the order in which threads take them, the longest first. progress: what tasks that share their
    steps have in common; None for tasks that have nothing to do with one another. pauses: whether a run
    begins anew what an interrupted one left.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        spaces: Sequence[Workspace],
        progress: Array | None,
        most: int | None = None,
        pauses: bool = True,
    ) -> None:
        for space in spaces:
            space.begin()
        self.pausing: Sequence[Workspace] = spaces if pauses else ()
        self.statuses = [view(space.status) for space in spaces]
        self.only = tasks[0] if len(tasks) == 1 else None
        self.held: list[object] = []  # what the machine code reads
        self.reach: Reach | None = None  # how far the call is, of which this is the wave at `place`
        self.place, self.told = 0, False
        self.paused: Callable[[], None] | None = None  # what else is done where tasks pause
        self.tasks = tasks
        if len(tasks) > 1:
            self.orders = self.orders_for(tasks, progress, most)

    def orders_for(self, tasks: Sequence[Task], progress: Array | None, most: int | None) -> Orders:
        """The orders for more than one task."""
        return Orders(CREW, tasks, progress, most=most)

    def __call__(self) -> None:
        """Runs them; raises `InputError` where an integer does not fit a table."""
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
                raise InputError(OUTSIDE)

    def share(self) -> None:
        """Does all tasks, by several threads."""
        CREW.run(self.orders, self.between)

    def between(self) -> None:
        """Says how far the call is, to who watches; then all that paused may go on."""
        watch = watching()
        if watch is not None and self.reach is not None:
            self.told = True
            watch(self.reach.progress(self.place, False))
        if self.paused is not None:
            self.paused()
        for space in self.pausing:
            space.go_on()


class Together(Again):
    """A prepared step that threads share, as far as they are awake.

    A thread that sleeps, or whose processor another process has, takes longer to come than the step takes. So
    a step is shared with threads that are awake. It wakes the others if steps follow one another closely.
    """

    ended = roused = 0.0

    def orders_for(self, tasks: Sequence[Task], progress: Array | None, most: int | None) -> Orders:
        """Orders that wake nobody."""
        return Orders(CREW, tasks, progress, wake=False, most=most)

    def share(self) -> None:
        """Does all tasks, by the threads that are awake."""
        begun = time.perf_counter()
        while self.orders.lead():
            self.between()
        if self.orders.came < self.orders.count:
            if begun - self.ended < CLOSELY and begun - self.roused > SELDOM:
                self.roused = begun
                CREW.rouse(self.orders.count - 1)
            self.ended = time.perf_counter()
