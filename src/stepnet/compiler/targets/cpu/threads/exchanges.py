"""Measurement of the time in which two threads wait for each other and exchange values.

    thread 0      thread 1
    writes        writes       its own cache lines of a buffer
    ------ barrier ------
    reads         reads        the lines of the other one, which are in the other processor's cache

Threads that share each step of a recurrence do the same with its memories. The rounds run in machine code, by
the workers and the barrier of calls.
"""

import ctypes

import numpy as np

from stepnet.compiler.native.system import clock, rest_address
from stepnet.compiler.targets.cpu.machine.memory import aligned, pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.targets.cpu.threads.workers import WORKER_POOL, TaskGroup
from stepnet.compiler.values.records import dataclass

WORDS = ("thread", "progress", "barrier", "first", "second", "rest", "clock", "rounds", "lines", "sum")
"""The argument words of a thread, 64 bits each. The first is written when the threads begin.

progress: the pointer to the number of threads. barrier: the pointer to the words of the barrier. first,
second: the buffers. rest, clock: functions of the system. sum: a result that nobody reads.
"""
ROUNDS, MANY, TURNS = 200, 64, 300
"""The rounds of a run, the cache lines of a thread in the longer ones, and how often each run is timed."""


@dataclass(frozen=True)
class ExchangeRates:
    """Costs of two threads that work together, as the fields of `Machine` of these names."""

    handover: float
    barrier: float
    exchange: float

    @classmethod
    def of(cls, alone: float, nothing: float, few: float, many: float) -> "ExchangeRates | None":
        """Computes the costs from the seconds of no round by one thread and by two, and of `ROUNDS` rounds
        with one cache line and with `MANY`; None where these times are none, as no run had both threads in
        time.
        """
        if not alone < nothing < few < many < float("inf"):
            return None
        line_seconds = (many - few) / ROUNDS / (MANY - 1)
        return cls(nothing - alone, (few - nothing) / ROUNDS, LINE / line_seconds)


class Rounds:
    """Rounds in which two threads exchange `lines` cache lines each, ready to run."""

    def __init__(self, processor: Processor, rounds: int, lines: int, max_threads: int = 2) -> None:
        """Allocates the buffers and the arguments of both threads. processor: the processor of the machine
        code. max_threads: 1 to run the first thread's part alone, with the same work around it.
        """
        function = machine_code("threads.exchanges", processor).function("exchanges", ctypes.c_int64)
        shared, buffers = aligned(2 * LINE), [aligned(2 * MANY * LINE) for _ in range(2)]
        begin = pointer(shared)
        addresses = (begin, begin + LINE, *map(pointer, buffers), rest_address(), clock().address)
        self.held = shared, buffers, np.zeros((2, LINE), np.int64)
        for thread, words in enumerate(self.held[-1]):
            words[: len(WORDS)] = (thread, *addresses, rounds, lines, 0)
        tasks = [(function, pointer(words)) for words in self.held[-1]]
        self.group = TaskGroup(WORKER_POOL, tasks, shared[:LINE].view(np.int64), max_threads=max_threads)

    def run(self) -> int:
        """Runs all rounds; returns the sum of the values that the first thread has read in the last round."""
        WORKER_POOL.run(self.group)
        return int(self.held[-1][0, WORDS.index("sum")])

    def seconds(self) -> float:
        """Returns the least time of many runs; infinity if no run had both threads in time."""
        times = (WORKER_POOL.timed(self.run) for _ in range(TURNS))
        return min((time for time in times if time is not None), default=float("inf"))


def exchange_rates(processor: Processor) -> ExchangeRates | None:
    """Measures the costs of two threads that work together; None if two did not run at the same time, as
    where there is one processor only. processor: the instruction set of the machine code.
    """
    kinds = (0, 0, 1), (0, 0), (ROUNDS, 1), (ROUNDS, MANY)
    return ExchangeRates.of(*(Rounds(processor, *kind).seconds() for kind in kinds))
