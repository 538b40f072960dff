"""Instructions on registers, and the routines that are made of them: what elements of frames are computed by.

Few primitives are enough for all elementwise operations, so that a writer needs a row for each of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from types import MappingProxyType

from stepnet.compiler.values.records import dataclass
from stepnet.errors import NetError

DTYPES = ("float32", "float64", "int32", "int64", "bool", "int16", "int8", "float16", "bfloat16")
"""The dtypes of buffers. A bool is a byte that is 0 or 1. int8 and int16 are only stored, and the last two
only in constants.
"""
PRIMITIVES: Mapping[str, int] = MappingProxyType(
    {
        "constant": 0,
        # Floats: rounded as IEEE 754 says. Integers: modulo 2^bits; `divide` truncates, and never divides by
        # 0 or -1; `remainder` belongs to it.
        "add": 2,
        "subtract": 2,
        "multiply": 2,
        "divide": 2,
        "remainder": 2,
        "negative": 1,
        "multiply_high": 2,  # int32: the upper 32 bits of the product
        "minimum": 2,  # integers, as is
        "maximum": 2,
        "element": 1,  # of the constant `value`, by its index
        # floats only
        "absolute": 1,
        "copysign": 2,
        "sqrt": 1,
        # Comparisons give bool: with NaN false, but `not_equal` true.
        "equal": 2,
        "not_equal": 2,
        "less": 2,
        "less_equal": 2,
        "greater": 2,
        "greater_equal": 2,
        # integers and bool
        "bitwise_and": 2,
        "bitwise_or": 2,
        "bitwise_xor": 2,
        # integers: the second operand is from 0 to bits - 1; `unsigned_right_shift` fills with zeros
        "left_shift": 2,
        "unsigned_right_shift": 2,
        "right_shift": 2,  # fills with the sign
        "select": 3,  # condition (bool), value if true, value if false: both are computed
        "bits": 1,  # the bits of a float as an integer of the same size, and back
        "convert": 1,  # to another dtype: floats that fit are truncated, integers modulo 2^bits
    }
)
"""The operations of writers, with their numbers of operands. All but `constant` act on registers."""


@dataclass(frozen=True)
class Instruction:
    """One operation on registers, each of which is written once.

    operation: one of `PRIMITIVES`, or the name of a routine of the program. operands: the registers that it
        reads.
    dtype: the dtype of its result. value: the number of a `constant`; the name of the table of an `element`.
    """

    operation: str
    operands: tuple[int, ...]
    dtype: str
    value: float | int | bool | str | None = None

    def __str__(self) -> str:
        """Writes the instruction as text, such as `add %0 %1 : float32`."""
        read = "".join(f" %{operand}" for operand in self.operands)
        value = f" {self.value!r}" if self.value is not None else ""
        return f"{self.operation}{read}{value} : {self.dtype}"


@dataclass(frozen=True)
class Routine:
    """A function of numbers, without branches: the parameters are its first registers.

    parameters: their dtypes. result: the register that is returned. tables: the numbers of int32 that
    `element` instructions read, by their names in the program.

    >>> print(Routine("twice", ("float32",), (Instruction("add", (0, 0), "float32"),), 1))
    routine twice(%0: float32)
      %1 = add %0 %0 : float32
      return %1
    """

    name: str
    parameters: tuple[str, ...]
    body: tuple[Instruction, ...]
    result: int
    tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    def __post_init__(self) -> None:
        """Raises `NetError` for instructions other than primitives, and for registers not yet written."""
        check_instructions(self.name, self.parameters, self.body, (self.result,), {})

    def __str__(self) -> str:
        """Writes the routine as text, with a line for each instruction."""
        given = ", ".join(f"%{place}: {dtype}" for place, dtype in enumerate(self.parameters))
        lines = [f"routine {self.name}({given})", *body_lines(self.body, len(self.parameters))]
        return "\n".join([*lines, f"  return %{self.result}"])

    @property
    def dtype(self) -> str:
        """The dtype of the result."""
        return (*self.parameters, *(each.dtype for each in self.body))[self.result]


def check_instructions(
    what: str,
    given: Sequence[str],
    body: Sequence[Instruction],
    results: Sequence[int],
    routines: Mapping[str, Routine],
) -> None:
    """Raises `NetError` unless instructions are primitives or calls of routines, with the right numbers of
    operands, which were written before.

    what: the loop or routine, for messages. given: the dtypes of the first registers. results: the
    registers that are read after them.
    """
    for place, each in enumerate(body, len(given)):
        count = PRIMITIVES.get(each.operation)
        if count is None and each.operation in routines:
            count = len(routines[each.operation].parameters)
        if count is None or count != len(each.operands) or each.dtype not in DTYPES:
            raise NetError(f"{what}: %{place} = {each} is no instruction")
        if any(not 0 <= operand < place for operand in each.operands):
            raise NetError(f"{what}: %{place} = {each} reads a register before it is written")
    if any(not 0 <= register < len(given) + len(body) for register in results):
        raise NetError(f"{what}: a result is no register")


def body_lines(body: Sequence[Instruction], first: int) -> list[str]:
    """Writes instructions as lines of text. first: the number of the first one's register."""
    return [f"  %{place} = {each}" for place, each in enumerate(body, first)]
