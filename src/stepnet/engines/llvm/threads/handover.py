"""How one thread hands work to others, in machine code and without the interpreter's lock.

To sleep and be woken takes a thread 50 microseconds and more, as long as a small recurrence takes. So a
worker that has nothing to do looks for work for a while, takes it, and says that it is done; only when none
comes does it go to sleep, and that too in machine code.

A *place* is where one thread waits for another: a word, and the semaphore that it sleeps on. The word says
NOTHING; THERE, once somebody said so; ASLEEP, once who waits sleeps.

A threaded call is one call of `lead`: it claims workers, hands out tasks, does its own and waits for the
others. Python can raise nothing in between (an interrupt, above all), so that no memory is freed that a
worker still uses, and no worker is lost.
"""

import ctypes
from dataclasses import dataclass, fields

from stepnet.engines.llvm.machine.build import NativeFunction
from stepnet.engines.llvm.machine.stored_code import machine_code
from stepnet.engines.llvm.machine.system import BYTES as SEMAPHORE
from stepnet.engines.llvm.machine.target import host_target

NOTHING, THERE, ASLEEP = range(3)
LOOKS, TURNS = 1000, 60
"""How often a thread looks before it lets others have its processor, some 15 microseconds; and how often it
does that before it sleeps. A training step takes half a millisecond from one call to the next; and PyTorch's
own threads, which need the processor in between, would wait for one that never lets go.
"""

# Where things lie in a worker's memory: the place for work, the task's function and pointer, and what it
# gave; in lines of their own, the place for work done, whether a thread has claimed it and the address of the
# next worker, and the semaphores of both places.
BEGIN, FUNCTION, TASK, RESULT = 0, 16, 24, 32
END, CLAIMED, NEXT, SEMAPHORES = 64, 128, 136, 192
HANDLE = 8
LEADERS = 8
"""Where a crew has the number of threads that lead, behind the address of its first worker."""
BYTES = SEMAPHORES + 2 * SEMAPHORE

ORDERS = (
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
TASK_WORDS = ("function", "task", "worker")
"""The words of orders, and of each task behind them.

function: runs the task, and gives whether there is more to do. task: its pointer. worker: the address of the
worker that has it. crew: where the address of the first worker is, and behind it how many threads lead now.
gate: 0 if the tasks have nothing to do with one another; else they share their work, and it is where those
that have taken theirs wait for the number of threads. patience: how often a shared task is looked at before
it is taken back. wake: whether sleeping workers are woken. count: how many tasks there are. most: how many
threads may do them; fewer where others lead at the same time. asked, came: how many threads were asked for
shared tasks, and how many came in time. worked, waited: for how many ticks of the clock the first thread did
tasks of its own, and then waited for the others.
"""


@dataclass(frozen=True)
class Signals:
    """The functions of this module, each of one pointer.

    look(place): waits until the word is THERE, and takes it. say(place): makes it THERE. rouse(place): wakes
    who sleeps there, to look for a while. serve(worker): waits for work and does it, for ever. lead(orders):
    runs each task, the first one in this thread; gives whether there is more to do.
    """

    look: NativeFunction
    say: NativeFunction
    rouse: NativeFunction
    serve: NativeFunction
    lead: NativeFunction


SIGNALS: dict[None, Signals] = {}


def signals() -> Signals:
    """The compiled functions, the same for all, also where several threads ask at once."""
    return SIGNALS.get(None) or SIGNALS.setdefault(None, compiled_signals())


def compiled_signals() -> Signals:
    """The functions, compiled."""
    compiled = machine_code("threads.handover", host_target())
    return Signals(*(compiled.function(field.name, ctypes.c_int64) for field in fields(Signals)))
