"""The options of the target `cuda`, and their words in the names of engines.

cuda                             the first GPU
cuda:1:tf32                      the second, float32 multiplied as tf32
cuda-emulated:batch-invariant    the emulation, the same bits for a sequence in every batch
"""

from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

from stepnet.compiler.values.arguments import choice, flag
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError

CudaPrecision = Literal["float32", "tf32", "bfloat16"]
"""The formats in which float32 is multiplied."""
PRECISIONS: tuple[CudaPrecision, ...] = get_args(CudaPrecision)
ROUNDED: tuple[CudaPrecision, ...] = PRECISIONS[1:]
"""The precisions that lose digits, which are words in the name of an engine."""
BATCH_INVARIANT = "batch-invariant"
"""The word for the option, behind that for the precision."""


@dataclass(frozen=True)
class CudaOptions:
    """The options of an engine of the target `cuda`.

    precision: the numbers that float32 is multiplied as on tensor cores: "float32", as sums of products of
        the numbers that one is made of; "tf32" or "bfloat16", which are rounded to 10 bits or to 7. Other
        dtypes are multiplied as they are.
    batch_invariant: whether a sequence has the same bits in every batch.
    """

    precision: CudaPrecision = "float32"
    batch_invariant: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """The words for the options that differ from the default, as the name of an engine has them."""
        rounded = () if self.precision == "float32" else (self.precision,)
        return rounded + (BATCH_INVARIANT,) * self.batch_invariant

    def way(self, dtype: str, left: str | None = None, right: str | None = None) -> str:
        """Returns the way in which two sides of a dtype are multiplied (see `products`); "" for the usual.

        left, right: the dtype of 16 bits that the numbers of each side are known to be in; None for none.
            Nothing is lost of such numbers, unless the precision is bfloat16.
        """
        if dtype != "float32":
            return ""
        if self.precision != "float32" or left is right is None:
            return self.precision
        if left is not None and right is not None:
            return "bfloat16" if left == right == "bfloat16" else "tf32"
        return f"{left or 'float32'}-{right or 'float32'}"


DEFAULT = CudaOptions()


def checked_options(precision: Any, batch_invariant: Any) -> CudaOptions:
    """Checks the user's arguments `precision` and `batch_invariant`; raises `InputError` for wrong ones."""
    chosen = choice(precision, "precision is 'float32', 'tf32' or 'bfloat16'", PRECISIONS)
    return CudaOptions(cast("CudaPrecision", chosen), flag(batch_invariant, "batch_invariant"))


def engine_name(kind: str, number: int, options: CudaOptions) -> str:
    """Returns the name of an engine. kind: "cuda" or "cuda-emulated". number: of the GPU, from 0 on.

    >>> engine_name("cuda", 1, CudaOptions("tf32")), engine_name("cuda-emulated", 0, CudaOptions())
    ('cuda:1:tf32', 'cuda-emulated')
    """
    return ":".join([kind, *([str(number)] if number else []), *options.words])


def read_words(kind: str, words: Sequence[str]) -> tuple[int, CudaOptions]:
    """Reads the words after the name of an engine; returns the number of the GPU, and the options.

    kind: "cuda", which may have a number first, or "cuda-emulated", which has none.

    Raises `InputError` for anything else, with the known options.
    """
    is_numbered = kind == "cuda" and bool(words) and words[0].isdecimal()
    named = words[1:] if is_numbered else words
    precisions: list[CudaPrecision] = [each for each in ROUNDED if each in named]
    options = CudaOptions(*precisions[:1], batch_invariant=BATCH_INVARIANT in named)
    if tuple(named) != options.words:
        first = f"{kind}{'[:number of a GPU]' if kind == 'cuda' else ''}"
        raise InputError(
            f"no engine is called {':'.join([kind, *words])!r}: the options of {kind} are "
            f"{', '.join(ROUNDED)} and {BATCH_INVARIANT}, written {first}[:{' or '.join(ROUNDED)}]"
            f"[:{BATCH_INVARIANT}]"
        )
    return int(words[0]) if is_numbered else 0, options
