"""The precision of a recurrence: an attribute of its node that engines read.

    %4 = recur x h0 W R precision=int8/31.75+128      q = 31.75 x + 128, in 0 to 255

The engine onednn runs a known cell in this dtype, with this scale for inputs and memory. The other engines
encode only the sides of the recurrence's products (`stepnet.compiler.net.encodings`). All other values keep
their dtype, and no scale is needed.
"""

from dataclasses import dataclass

from stepnet.compiler.net.encodings import ENCODINGS


@dataclass(frozen=True)
class Precision:
    """The precision that calibration on samples chose for a recurrence.

    dtype: "float32", "bfloat16" or "int8".
    recurrence: the index of the recurrence in its model, in the order of tracing.
    scale, shift: the int8 quantization of inputs and memory for the engine onednn; scale is None if samples
        were not measured for it. The scales of the weights are computed from the weights.

    >>> print(Precision("int8", 0, 31.75, 128.0), Precision("int8"), Precision("bfloat16"))
    int8/31.75+128 int8 bfloat16
    """

    dtype: str
    recurrence: int = 0
    scale: float | None = None
    shift: float = 0.0

    @property
    def is_low(self) -> bool:
        """Tells whether a recurrence of this precision computes products in fewer bits than float32."""
        return self.dtype in ENCODINGS

    def __str__(self) -> str:
        """Writes the precision, such as bfloat16 or int8/31.75+128 (scale and shift of its inputs)."""
        return self.dtype if self.scale is None else f"{self.dtype}/{self.scale:.4g}+{self.shift:g}"
