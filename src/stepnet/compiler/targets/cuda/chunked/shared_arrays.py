"""The arrays of a chunk in a block's shared memory: their sizes -> where they begin -> loads and stores.

{"matrix": 4 x 20, "decay": 5}  ->  {"matrix": 0, "decay": 320, "end": 352}  ->  read("decay", (step, 1))
"""

from collections.abc import Mapping
from dataclasses import field

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cuda.entries.places import PlaceWriter
from stepnet.compiler.targets.cuda.functions import F32
from stepnet.compiler.values.records import dataclass

Value = ir.Value


@dataclass(frozen=True)
class SharedArrays:
    """Writer of loads and stores of arrays in shared memory.

    code: the kernel. begins: the first byte of each array, by name. turned: the bytes between both places of
    those that chunks have in turn. half: writes which of them the chunk has, 0 or 1.
    """

    code: PlaceWriter
    begins: Mapping[str, int]
    turned: Mapping[str, int] = field(default_factory=dict[str, int])
    half: Value = integer(0)

    def at(self, name: str, *places: tuple[Value, int]) -> Value:
        """Writes the address of a number of an array. places: indices with strides."""
        code, total = self.code, integer(self.begins[name])
        for index, stride in places:
            total = code.summed(total, code.multiplied(index, 4 * stride))
        if name in self.turned:
            total = code.summed(total, code.multiplied(self.half, self.turned[name]))
        return code.shared(total)

    def read(self, name: str, *places: tuple[Value, int]) -> Value:
        """Writes a load of a number of an array."""
        return self.code.read(F32, self.at(name, *places), 4)

    def write(self, value: Value, name: str, *places: tuple[Value, int]) -> None:
        """Writes a store of a number of an array."""
        self.code.write(value, self.at(name, *places), 4)
