"""Weights in 16 bits: which constants lie in a dtype of these, and how C widens them to float32.

    float16     1 bit of sign, 5 of exponent, 10 of mantissa    by an instruction, or by the bits of a float32
    bfloat16    the upper half of a float32                     by a shift

A matrix or table lies in 16 bits if each of its numbers is one of the dtype and finite, so that nothing is
lost. The bits of a float16, moved to their places in a float32, are the number times 2^-112, also below the
smallest normal one: an exact product makes it the number.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from stepnet.compiler.targets.frame.arrays import FrameBuffer
from stepnet.compiler.values.bfloat16 import BFLOAT16

Array = np.ndarray
WIDENED: Mapping[str, str] = {
    "float16": """\
/* The number that the bits of a float16 are. */
static inline float widened_f16(int16_t half)
{
#if defined(__ARM_FP16_FORMAT_IEEE)
    __fp16 number;
    (void)memcpy((uint8_t *)&number, (const uint8_t *)&half, sizeof number);
    return (float)number;
#else
    const uint32_t wide = (uint32_t)half;
    const uint32_t bits = (wide << 13U) & UINT32_C(0x8FFFFFFF);
#if defined(__ARM_FEATURE_MVE) || defined(__ARM_NEON) /* whose vectors take denormal numbers for zeros */
    const uint32_t size = wide & UINT32_C(0x7FFF);
    const uint32_t normal = bits + UINT32_C(0x38000000);
    const float small = copysignf((float)size * 5.9604645E-8F, bits_i32((int32_t)bits));
    return (size < UINT32_C(0x400)) ? small : bits_i32((int32_t)normal);
#else
    return bits_i32((int32_t)bits) * 5.1922969E33F; /* 2^112, without rounding */
#endif
#endif
}""",
    "bfloat16": """\
/* The number that the bits of a bfloat16 are: the upper half of a float. */
static inline float widened_bf16(int16_t half)
{
    const uint32_t bits = (uint32_t)half << 16U;
    return bits_i32((int32_t)bits);
}""",
}
"""The functions of C that widen the numbers of each dtype of 16 bits, by its name."""
HALVES: Mapping[str, np.dtype] = {"float16": np.dtype(np.float16), "bfloat16": BFLOAT16}
"""The dtypes of 16 bits."""


def stored_in(array: Array, dtypes: Sequence[str]) -> Array:
    """Returns an array in the first of some dtypes of 16 bits that has each of its numbers; itself if none
    has, and if it is not float32.

    >>> [stored_in(np.float32([1, x]), ["float16"]).dtype.name for x in (0.5, 1e-7, 1e5, np.inf)]
    ['float16', 'float32', 'float32', 'float32']
    """
    if array.dtype != np.float32 or not np.isfinite(array).all():
        return array
    with np.errstate(over="ignore"):
        made = ((name, array.astype(HALVES[name])) for name in dtypes)
        return next((each for _, each in made if (each.astype(np.float32) == array).all()), array)


def halves_in(buffers: Sequence[FrameBuffer]) -> list[str]:
    """Lists the dtypes of 16 bits that some buffers have."""
    return [name for name in HALVES if any(buffer.dtype == name for buffer in buffers)]


def widened(text: str, dtype: str) -> str:
    """Returns an element of C as the number that it is: of a dtype of 16 bits by a call, else as it is."""
    return f"widened_{'f16' if dtype == 'float16' else 'bf16'}({text})" if dtype in HALVES else text
