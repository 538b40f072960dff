"""In how few bits a recurrence is computed: a mark on it that engines read.

    %4 = recur x h0 W R precision=int8/31.75+128      q = 31.75 x + 128, in 0 to 255

The engine onednn runs a known cell in this dtype, with this scale for inputs and memory. For the other
engines the mark is about the weights of the recurrence's products alone (`stepnet.net.encodings`); all else
stays in the dtype of its values, and no scale is needed.
"""

from dataclasses import dataclass

from stepnet.net.encodings import ENCODINGS


@dataclass(frozen=True)
class Precision:
    """What samples have shown to be enough for a recurrence.

    dtype: "float32", "bfloat16" or "int8". recurrence: which one of a model's this is, in the order that it
    was traced. scale, shift: of inputs and memory in int8 for the engine onednn, None where samples were not
    measured for it; the weights' scales come from the weights.

    >>> print(Precision("int8", 0, 31.75, 128.0), Precision("int8"), Precision("bfloat16"))
    int8/31.75+128 int8 bfloat16
    """

    dtype: str
    recurrence: int = 0
    scale: float | None = None
    shift: float = 0.0

    @property
    def is_low(self) -> bool:
        """Whether it is one of fewer bits."""
        return self.dtype in ENCODINGS

    def __str__(self) -> str:
        return self.dtype if self.scale is None else f"{self.dtype}/{self.scale:.4g}+{self.shift:g}"
