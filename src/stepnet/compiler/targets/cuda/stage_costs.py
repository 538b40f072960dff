"""Estimates of the kernels and products around a loop, by the bytes that they move and by their operations.

    before   p = x @ W        the library's product: 2 * steps * 64 * 256 operations, at the rate of its kind
             n = norm(p)      a kernel: 2 * steps * 256 numbers of main memory, or what it computes

What takes longer counts. Launches are not in it, and nothing of it was measured.
"""

from collections.abc import Sequence
from math import ceil

from stepnet.compiler.net.flops import flops
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, ROWS
from stepnet.compiler.plan.load import CallSize
from stepnet.compiler.targets.cuda.codes import DeviceStage, ProductCode
from stepnet.compiler.targets.cuda.options import CudaOptions
from stepnet.compiler.targets.cuda.tensor.facts import TensorFacts
from stepnet.compiler.values.records import dataclass

FLOPS = {"float32": 55e6, "tf32": 120e6, "bfloat16": 180e6, "plain": 17e6}
"""Operations of a product in a microsecond, by how it multiplies: as expected of an H100; "plain" of float64,
and as an estimate of all others, and of kernels."""
TILE, FEW, MANY = 16, 1e6, 2e6
"""The rows of the smallest tile of a product, and the bytes of weights that products of so many rows, and of
more, read in a microsecond."""


@dataclass(frozen=True)
class StageCosts:
    """Estimates for the stages of a net.

    size: of the call. facts, options: of the device, and of its engine.
    """

    net: Net
    size: CallSize
    facts: TensorFacts
    options: CudaOptions

    def time(self, codes: Sequence[DeviceStage | ProductCode]) -> tuple[float, str]:
        """Returns the microseconds of a stage's codes in turn, and the resource that takes the most."""
        parts = [self.code_time(code) for code in codes]
        by = {bound: sum(time for time, its in parts if its == bound) for _, bound in parts}
        return sum(by.values()), max(by, key=lambda bound: by[bound])

    def code_time(self, code: DeviceStage | ProductCode) -> tuple[float, str]:
        """Returns the microseconds of a kernel or a product, and what bounds it."""
        if isinstance(code, ProductCode):
            computed = (
                product_time(self.net, code, self.count(code.node), self.options, self.facts),
                "products",
            )
            moved = [code.node, *code.lefts, *code.rights]
        else:
            operations = sum(flops(self.net, n) * self.count(n) for n in self.computed(code))
            computed = self.facts.slowness * operations / FLOPS["plain"], "operations"
            moved = [*code.reads, *code.writes]
        return max(computed, (self.facts.main * sum(map(self.nbytes, moved)), "main memory"))

    def computed(self, code: DeviceStage) -> set[int]:
        """Returns the nodes that a kernel computes."""
        found, waiting = set[int](), [*code.writes]
        while waiting:
            number = waiting.pop()
            node = self.net.nodes[number]
            if number not in found and number not in code.reads and node.types[0].extent != CONST:
                found.add(number)
                waiting += node.inputs
        return found

    def count(self, number: int) -> int:
        """Returns the number of values of a node in a call: one, one of each row, or one of each step."""
        extent = self.net.nodes[number].types[0].extent
        return 1 if extent == CONST else self.size.filled if extent == ROWS else self.size.steps

    def nbytes(self, number: int) -> int:
        """Returns the bytes of all values of a node."""
        type_ = self.net.type_of(number)
        return self.count(number) * type_.size * type_.itemsize


def product_time(net: Net, code: ProductCode, rows: int, options: CudaOptions, facts: TensorFacts) -> float:
    """Estimates the microseconds of a product with vectors of `rows` entries."""
    type_, sizes = net.type_of(code.node), [net.type_of(right).size for right in code.rights]
    way = "bfloat16" if code.is_rounded else options.way(type_.dtype, *code.stored)
    rate = FLOPS.get(way.partition("-")[0], FLOPS["plain"])
    padded = TILE * ceil(ceil(rows * type_.size / net.type_of(code.rights[0]).shape[-1]) / TILE)
    read = sum(sizes) * (8 if type_.dtype == "float64" else 4) / (FEW if padded == TILE else MANY)
    return max(facts.slowness * 2 * padded * sum(sizes) / rate, facts.slowness_of_memory * read)
