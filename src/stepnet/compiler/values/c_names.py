"""Identifiers of C for the arrays of a model, and the names that these must not have."""

import re

C_TYPES = {
    "float32": "float",
    "float64": "double",
    "int32": "int32_t",
    "int64": "int64_t",
    "bool": "uint8_t",
    "int16": "int16_t",
    "int8": "int8_t",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
}
"""The C type of an element of each dtype in memory. float16 and bfloat16 are stored as their bits."""
WORDS = frozenset(
    re.findall(
        r"\w+",
        # C, up to C23
        "auto break case char const continue default do double else enum extern float for goto if inline int "
        "long register restrict return short signed sizeof static struct switch typedef union unsigned void "
        "volatile while alignas alignof asm bool constexpr false nullptr static_assert thread_local true "
        "typeof typeof_unqual "
        # C++, whose programs include the header
        "and and_eq bitand bitor catch class co_await co_return co_yield compl concept const_cast consteval "
        "constinit decltype delete dynamic_cast explicit export friend mutable namespace new noexcept not "
        "not_eq operator or or_eq private protected public reinterpret_cast requires static_cast template "
        "this throw try typeid typename using virtual xor xor_eq "
        # types and functions that the code uses
        "size_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t wchar_t memcpy memset fabs "
        "fabsf sqrt sqrtf copysign copysignf "
        # other arguments
        "context sequences offsets "
        # macros of compilers and of Arduino
        "linux unix i386 mips HIGH LOW INPUT OUTPUT DEFAULT",
    )
)
"""Names that no array has: keywords of C and C++, and what the code and its headers use."""
MACROS = re.compile(
    r"NULL|NAN|INFINITY|MAXFLOAT|DECIMAL_DIG|DOMAIN|SING|OVERFLOW|UNDERFLOW|TLOSS|PLOSS|HUGE\w*"
    r"|(FLT|DBL|LDBL|FP|M|MATH)_\w+|(U?INT\w*|SIZE|PTRDIFF|SIG_ATOMIC|WCHAR|WINT)_(MAX|MIN|WIDTH)"
)
"""The macros of float.h, math.h, stddef.h and stdint.h that are no functions."""
HEADERS = frozenset(
    re.findall(
        r"\w+",
        "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign "
        "stdarg stdatomic stdbit stdbool stdckdint stddef stdint stdio stdlib stdnoreturn string tgmath "
        "threads time uchar wchar wctype",
    )
)
"""The headers of C: a header of this name would hide them from programs that find it by -I."""


def is_reserved(name: str) -> bool:
    """Tells whether C, C++ or their headers have a meaning for a name."""
    return name in WORDS or MACROS.fullmatch(name) is not None


def c_name(text: str, taken: set[str]) -> str:
    """Makes a C identifier from a text. It differs from all in `taken`, to which it is added, and so it does
    in capitals, as the constants of a header are written.

    >>> taken = set()
    >>> c_name("layer 0.h", taken), c_name("layer_0.h", taken), c_name("double", taken), c_name("2", taken)
    ('layer_0_h', 'layer_0_h_2', 'double_', 'v2')
    >>> c_name("x", taken), c_name("X", taken)
    ('x', 'X_2')
    """
    name = re.sub(r"[^0-9A-Za-z_]+", "_", text).strip("_") or "value"
    name = f"v{name}" if name[0].isdigit() else name
    name = f"{name}_" if is_reserved(name) else name
    unique, number, capitals = name, 2, {each.upper() for each in taken}
    while unique.upper() in capitals:
        unique, number = f"{name}_{number}", number + 1
    taken.add(unique)
    return unique
