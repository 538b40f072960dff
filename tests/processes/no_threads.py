"""Where the system refuses to start a thread, the work is done by those there are."""

import resource
import threading

from work import COUNT, RNN, check, threads

import stepnet as sn
from stepnet.compiler.targets.cpu.threads.workers import WORKER_POOL

# A stack for which there is no room: no thread can begin, and everything else can.
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), before[1]))
threading.stack_size(2 << 30)
alone = threads()
WORKER_POOL.forget()  # as in a process that has started none
sn.set_threads(3)
check(COUNT)
assert WORKER_POOL.workers == []
assert threads() == alone

WORKER_POOL.grow(2)  # refused now, or within the last second

# With room again, threads are started: not at once, but soon.
threading.stack_size(0)
resource.setrlimit(resource.RLIMIT_AS, before)
WORKER_POOL.grow(2)
assert WORKER_POOL.workers == [], "a thread is not asked for again at once"
WORKER_POOL.forget()
check(COUNT)
assert len(WORKER_POOL.workers) == 2
assert RNN is not None
