"""The memory arena of a call: one allocation, owned by the context, with offsets computed when a call begins.

lengths | lanes | zeros | values that parts pass to later parts | ...
"""

from collections.abc import Mapping
from dataclasses import field
from math import ceil

from llvmlite import ir

from stepnet.compiler.net.types import Extent
from stepnet.compiler.net.windows import most_per_step
from stepnet.compiler.targets.cpu.library.library_code import LibraryCode
from stepnet.compiler.targets.cpu.library.workspaces import CONTEXT
from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.writing.code import POINTER
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class Space:
    """The size of one array in the arena (the memory of a call).

    per: the bytes for each entry along some extents, such as each sequence or each step. fixed: the bytes
    besides. where: a pointer argument of the call that is used instead of arena memory unless it is NULL.
    """

    per: Mapping[Extent, int] = field(default_factory=dict[Extent, int])
    fixed: int = LINE
    where: ir.Value | None = None


class Arena:
    """Generates code for the working memory of a call: one allocation that holds several arrays. spaces: the
    size of each array, by a key that names its purpose, such as "lengths". pointers: the pointer to each
    array, by the same keys, once `write` has run.
    """

    def __init__(self, spaces: dict[object, Space]) -> None:
        self.spaces = spaces
        self.pointers = dict[object, ir.Value]()

    @property
    def most(self) -> int:
        """The largest number of steps or sequences of a call for which its memory's size fits 64 bits."""
        bytes_ = sum(
            size * ceil(most_per_step(extent[-1]))
            for space in self.spaces.values()
            for extent, size in space.per.items()
        )
        fixed = sum(space.fixed + LINE for space in self.spaces.values())
        return (2**62 - fixed) // max(1, bytes_)

    def write(self, code: LibraryCode, context: ir.Value, counts: Mapping[Extent, ir.Value]) -> None:
        """Writes code that enlarges the arena (the memory of a call) if it is too small, or returns the error
        code "MEMORY", and sets `pointers` to the arrays in it. context: the pointer to the context, which
        owns the arena. counts: the number of entries of each extent (axes such as rows and steps) in the
        call.
        """
        addresses, total = dict[object, ir.Value](), code.number(0)
        for key, space in self.spaces.items():
            size: ir.Value = code.number(space.fixed)
            for extent, bytes_ in space.per.items():
                size = code.add(size, code.mul(counts[extent], code.number(bytes_)))
            if space.where is not None:
                size = code.select(code.is_null(space.where), size, code.number(0))
            addresses[key], total = total, code.add(total, code.rounded(size, LINE))
        with code.when(code.less(code.word(context, CONTEXT["size"]), total)):
            code.system("free", ir.VoidType(), code.pointer_at(context, CONTEXT["arena"]))
            # A quarter more, so that calls of slowly growing size seldom allocate.
            more = code.rounded(code.add(total, code.lshr(total, code.number(2))), LINE)
            allocated = code.system("aligned_alloc", POINTER, code.number(LINE), more)
            code.set_word(context, CONTEXT["arena"], allocated)
            missing = code.is_null(allocated)
            code.set_word(context, CONTEXT["size"], code.select(missing, code.number(0), more))
            code.fail_when(missing, "MEMORY")
        base = code.pointer_at(context, CONTEXT["arena"])
        for key, address in addresses.items():
            where, own = self.spaces[key].where, code.at(base, address)
            self.pointers[key] = own if where is None else code.select(code.is_null(where), own, where)

    def __getitem__(self, key: object) -> ir.Value:
        """Returns the pointer to the array with this key in a call's memory, once `write` has run."""
        return self.pointers[key]
