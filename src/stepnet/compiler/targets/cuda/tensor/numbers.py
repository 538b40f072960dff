"""The numbers that tensor cores multiply, and which of them a product of a loop takes.

    float32              both sides as two numbers of tf32: 3 products
    tf32, bfloat16       both sides rounded
    float32-bfloat16     weights that are bfloat16 already, values as three of bfloat16: 3 products
    float32-float16      weights that are float16 already, as one of tf32; values as two: 2 products

So weights of 16 bits take half the registers and shared memory, and values keep the digits of float32. Where
values may be rounded, the last two are tf32-bfloat16 and tf32-float16.
"""

from typing import Literal

from stepnet.compiler.values.records import dataclass

Precision = Literal["float32", "tf32", "bfloat16"]
"""The formats in which float32 is multiplied."""
Numbers = Literal[Precision, "sums", "float32-bfloat16", "tf32-bfloat16", "float32-float16", "tf32-float16"]


@dataclass(frozen=True)
class NumbersFacts:
    """The way in which a product multiplies numbers.

    depth: the products that an operand of 16 bytes of each thread adds to a sum.
    instruction: those that an instruction of the tensor cores adds: 8 of tf32, or 16 of bfloat16.
    terms: the instructions, by what they take of an operand of weights and of values, in the order of the
        sums: one of the numbers that both are made of (`operands.halves`).
    read, fetched: the instructions that read an operand of values, and one of weights from shared memory.
    resident, unsplit: the registers of an operand of weights that stays there as it is multiplied, and as it
        is stored, from which it is made anew at each step.
    """

    depth: int
    instruction: int
    terms: tuple[tuple[int, int], ...]
    read: int
    fetched: int
    resident: int = 4
    unsplit: int = 4

    @property
    def is_split(self) -> bool:
        """Tells whether an operand takes more registers as it is multiplied than as it is stored."""
        return self.resident > self.unsplit


ONE = ((0, 0),)
FACTS: dict[Numbers, NumbersFacts] = {
    "float32": NumbersFacts(8, 8, ((0, 0), (0, 1), (1, 0)), 14, 20, resident=8),
    "sums": NumbersFacts(8, 8, ((0, 0), (0, 1)), 14, 20, resident=8),
    "tf32": NumbersFacts(8, 8, ONE, 8, 9),
    "bfloat16": NumbersFacts(16, 16, ONE, 12, 1),
    "float32-bfloat16": NumbersFacts(16, 16, ((0, 0), (0, 1), (0, 2)), 32, 1),
    "tf32-bfloat16": NumbersFacts(16, 16, ((0, 0), (0, 1)), 22, 1),
    "float32-float16": NumbersFacts(16, 8, ((0, 0), (0, 1), (1, 2), (1, 3)), 28, 9, resident=8),
    "tf32-float16": NumbersFacts(16, 8, ((0, 0), (1, 1)), 16, 9, resident=8),
}
"""The facts of all numbers. "sums" are those of sums over units, which are products with ones. The
instructions of the first four were fitted to times on an H100, those for weights of 16 bits are counted.
"""


def numbers_of(precision: Precision, weights: str | None, values: str | None) -> Numbers:
    """Returns the numbers of a product.

    precision: the format in which float32 is multiplied. weights, values: the dtype of 16 bits that the
    weights and that the values are known to be in; None for float32.
    """
    if weights is None or precision == "bfloat16":
        return precision
    if weights == "bfloat16":
        if values == "bfloat16":
            return "bfloat16"
        return "float32-bfloat16" if precision == "float32" and values is None else "tf32-bfloat16"
    return "tf32-float16" if precision == "tf32" or values is not None else "float32-float16"
