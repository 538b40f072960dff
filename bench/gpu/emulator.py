"""Runs a kernel on the CPU: all threads of all blocks as fibers of one thread of the system.

Fibers take turns in a random order and at random speeds, and one that waits gives way. So barriers, counters
and the collective product are emulated exactly; memory is poisoned with NaN, and threads that wait for each
other are found. What the emulation cannot find is a missing order of memory: every write is visible at once.
"""

import ctypes
import random
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from bench.gpu.device_functions import CPU, SHARED_BYTES, emulated_mma
from bench.gpu.ptx import linked, load_all_targets
from bench.gpu.shape import LANES, Shape
from bench.gpu.writing import written

CONTEXT = 1024
"""More than the bytes of a `ucontext_t`."""
STACK = 65536
SLOW = 0.3
"""The share of its turns that a slow warp takes."""


def emulated(shape: Shape, addresses: list[int], blocks: int, seed: int = 0) -> None:
    """Runs a kernel on the arrays at `addresses`, in the order of `Shape.argument_names`.

    blocks: how many run, of all groups together.
    seed: of the order of threads. With 0 all warps are equally fast.
    Raises `RuntimeError` if threads wait for each other for ever.
    """
    load_all_targets()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=2,
        jit=True,
    )
    module = linked(
        [written(shape), CPU, emulated_mma(8), emulated_mma(16)], machine, llvm.get_process_triple()
    )
    engine = llvm.create_mcjit_compiler(module, machine)
    Fibers(engine, shape, addresses, blocks).run(seed)


class Fibers:
    """The threads of a kernel as fibers, made and ready to run."""

    def __init__(self, engine: Any, shape: Shape, addresses: list[int], blocks: int) -> None:
        """Makes a fiber for each thread, and the memory that they share."""
        self.engine, self.libc = engine, ctypes.PyDLL(None)
        self.count = blocks * shape.threads
        warps = self.count // LANES
        self.arrays = {
            "contexts": np.zeros((self.count + 1) * CONTEXT, "u1"),
            "barriers": np.zeros(2 * (2 * blocks + warps), "i4"),
            "memory": np.full(blocks * SHARED_BYTES // 4, np.nan, "f4"),
            "lanes": np.zeros((self.count, 6), "f4"),
            "arguments": np.array(addresses, "i8"),
        }
        for name, array in self.arrays.items():
            self.field(name, ctypes.c_void_p).value = array.ctypes.data
        for name, value in (("threads", shape.threads), ("blocks", blocks), ("group", shape.schedule.blocks)):
            self.field(name, ctypes.c_int32).value = value
        self.stacks = np.zeros((self.count, STACK), "u1")
        base = self.arrays["contexts"].ctypes.data
        self.contexts = [ctypes.c_void_p(base + CONTEXT * place) for place in range(self.count + 1)]
        start = ctypes.c_void_p(engine.get_function_address("fiber"))
        for place in range(self.count):
            context = base + CONTEXT * (place + 1)
            self.libc.getcontext(self.contexts[place + 1])
            # The fields of glibc's ucontext_t on x86-64: flags, link; the stack's address, flags and size.
            fields = (ctypes.c_uint64 * 5).from_address(context)
            fields[1:] = [0, self.stacks[place].ctypes.data, 0, STACK]
            self.libc.makecontext(self.contexts[place + 1], start, 0)

    def field(self, name: str, type_: Any) -> Any:
        """Returns a global variable of the device functions."""
        return type_.from_address(self.engine.get_global_value_address(name))

    def run(self, seed: int) -> None:
        """Runs all fibers to their end."""
        chance, stuck = random.Random(seed), False
        speeds = [chance.choice((1, SLOW)) if seed else 1 for _ in range(self.count // LANES)]
        now, progress = self.field("now", ctypes.c_int32), self.field("progress", ctypes.c_int64)
        waiting = list(range(self.count))
        while waiting:
            running = [i for i in waiting if stuck or chance.random() < speeds[i // LANES]]
            chance.shuffle(running)
            seen = progress.value
            for fiber in running:
                now.value = fiber
                self.libc.swapcontext(self.contexts[0], self.contexts[fiber + 1])
            waiting = [i for i in waiting if self.arrays["lanes"][i].view("i4")[0] != -1]
            if waiting and progress.value == seen and stuck:
                raise RuntimeError(f"deadlock: {len(waiting)} of {self.count} threads wait for each other")
            stuck = progress.value == seen
