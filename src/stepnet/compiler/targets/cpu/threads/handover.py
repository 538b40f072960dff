"""The handover of tasks from one thread to others, in machine code and without the interpreter's lock.

Waking a sleeping thread takes 50 microseconds and more, as long as a small recurrence takes. So an idle
worker spins for a while, and then sleeps, also in machine code.

One thread waits for another on a *mailbox*: a word, and a semaphore for sleeping. The state of the word is
EMPTY (no message), SENT (a message was sent), or ASLEEP (the waiting thread sleeps on the semaphore).

A threaded call is one call of `lead`: it claims workers, hands out tasks, runs its own task and waits for
the others. No Python code runs in between, so no interrupt can raise an exception there. So no memory is
freed that a worker still uses, and no worker is lost.
"""

import ctypes
from dataclasses import fields

from stepnet.compiler.native.system import BYTES as SEMAPHORE
from stepnet.compiler.targets.cpu.machine.machine_code import NativeFunction
from stepnet.compiler.targets.cpu.machine.processor import host_processor
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.values.records import dataclass

EMPTY, SENT, ASLEEP = range(3)
MAX_POLLS, MAX_YIELDS = 1000, 60
"""MAX_POLLS: the polls of a word before a waiting thread yields its processor, some 15 microseconds.
MAX_YIELDS: the yields before it sleeps. A training step takes half a millisecond from one call to the next,
and PyTorch's threads, which need the processor in between, would be blocked by a thread that never yields.
"""

# Byte offsets in a worker's memory. First line: the mailbox for a new task, the task's function and argument,
# and its result. Second line: the mailbox for its completion. Third line: whether the worker is claimed, and
# the address of the next worker. Then the semaphores of both mailboxes.
BEGIN, FUNCTION, TASK, RESULT = 0, 16, 24, 32
END, CLAIMED, NEXT, SEMAPHORES = 64, 128, 136, 192
HANDLE = 8
LEADERS = 8
"""The byte offset of the number of leading threads, behind the address of the crew's first worker."""
BYTES = SEMAPHORES + 2 * SEMAPHORE

GROUP_FIELDS = (
    "crew",
    "gate",
    "patience",
    "wake",
    "count",
    "most",
    "asked",
    "came",
    "worked",
    "waited",
)
TASK_FIELDS = ("function", "task", "worker")
"""The words of a `TaskGroup`, followed by three words for each task. Words of the group:

    crew: the pointer to the address of the first worker, followed by the number of leading threads.
    gate: 0 for independent tasks. For shared tasks, the pointer to the word for the number of threads, on
        which threads with a task wait.
    patience: the number of polls before a shared task that no worker has begun is taken back.
    wake: whether sleeping workers are woken.
    count: the number of tasks.
    most: the largest number of threads; fewer run if other threads lead at the same time.
    asked, came: the number of threads that were given shared tasks, and of those that began in time.
    worked, waited: the clock ticks for which the first thread ran its tasks, and then waited for others.

Words of a task:

    function: the address of a function that runs the task and returns whether there is more to do.
    task: its argument, a pointer.
    worker: the address of the worker that has the task; 0 for none.
"""


@dataclass(frozen=True)
class HandoverFunctions:
    """Compiled functions of the handover of tasks between threads. Each takes one pointer.

    receive(mailbox): waits for a message (the word is SENT) and takes it. send(mailbox): sends a message, and
    wakes the thread that sleeps there. wake(mailbox): wakes the thread that sleeps there, which then spins
    for a while. serve(worker): waits for tasks and runs them, for ever. lead(task_group): runs all tasks, the
    first one in this thread; returns whether there is more to do.
    """

    receive: NativeFunction
    send: NativeFunction
    wake: NativeFunction
    serve: NativeFunction
    lead: NativeFunction


HANDOVER_FUNCTIONS: dict[None, HandoverFunctions] = {}


def handover_functions() -> HandoverFunctions:
    """Returns the functions by which threads hand over tasks: one object, even if threads ask at once."""
    return HANDOVER_FUNCTIONS.get(None) or HANDOVER_FUNCTIONS.setdefault(None, compiled_handover_functions())


def compiled_handover_functions() -> HandoverFunctions:
    """Loads the functions by which threads hand over tasks, from disk or compiled now."""
    compiled = machine_code("threads.handover", host_processor())
    return HandoverFunctions(
        *(compiled.function(field.name, ctypes.c_int64) for field in fields(HandoverFunctions))
    )
