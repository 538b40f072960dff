"""A kernel of the bundle on the GPU: its arrays put there, launched, its results read."""

from dataclasses import dataclass

from bench.gpu.bundle import Bundle, Compiled
from bench.gpu.driver import Driver, Function, Memory, Module, addresses
from bench.gpu.inputs import Arranged, Array

EXCHANGE, COUNTERS = 3, 4
"""The places of the memory of the groups, and of their counters, among the arrays of a call."""


@dataclass(frozen=True)
class Loaded:
    """A kernel of the bundle, loaded on the GPU."""

    kernel: Compiled
    module: Module
    function: Function

    @classmethod
    def of(cls, driver: Driver, bundle: Bundle, kernel: Compiled) -> "Loaded":
        """Loads the machine code of a kernel."""
        module = driver.module(bundle.code(kernel.name))
        big = kernel.exchange == "cluster" and kernel.blocks > 8
        return cls(kernel, module, module.function("kernel", kernel.shared, big))

    def launch(self, table: Memory, groups: int) -> None:
        """Launches the kernel for some groups of sequences. table: the addresses of its arrays."""
        blocks, cooperative = groups * self.kernel.blocks, self.kernel.is_cooperative
        self.function(blocks, self.kernel.threads, table, cooperative=cooperative)


def run(driver: Driver, loaded: Loaded, call: Arranged, times: int = 1) -> list[list[Array]]:
    """Returns the results of a call, as the kernel left them, for each of `times` runs on poisoned memory."""
    memories = [driver.put(array) for array in call.arrays]
    table = driver.put(addresses(memories))
    found = list[list[Array]]()
    for _ in range(times):
        for place in (EXCHANGE, COUNTERS, *range(-call.results, 0)):
            memories[place].write(call.arrays[place])
        loaded.launch(table, call.groups)
        driver.wait()
        last = zip(memories[-call.results :], call.arrays[-call.results :], strict=True)
        found.append([memory.read(array) for memory, array in last])
    for memory in (*memories, table):
        memory.free()
    return found
