"""The most bytes of stack that a call of generated C takes, at any level of optimisation.

The bound is a sum over the chain of calls that takes the most; the source has no recursion:

    all = `VECTORS` bytes + those of each function on the chain
    a function = `SAVED` bytes + a slot for each parameter, each local and each call that it writes

A compiler that does not optimise has such slots. One that does has them for values that are needed at the
same time, and for vectors, of which unrolled loops keep as many as there are registers. The functions of
libraries come on top.
"""

import re
from collections.abc import Mapping

VECTORS = 512
"""The bytes of vectors that registers do not hold: 32 of 16 bytes."""
SAVED = 64
"""The bytes of saved registers, of a return address, and of the padding that aligns them."""
SLOT = 8
"""The bytes of a slot, for an address or what a register holds."""
WIDE = {"int64_t": 16, "uint64_t": 16, "double": 16, "int8x16_t": 32, "int16x8_t": 32}
"""The bytes of larger slots by type, twice the value's: cores of 32 bits compute it in parts."""
HEAD = re.compile(r"(?:static (?:inline )?)?\w+ (\w+)\(")
VALUE = re.compile(
    r"\b(bool|float|double|int|size_t|u?int\d+_t|int\d+x\d+_t|mve_pred16_t|\w+_context) "
    r"(\*?)(?:const |restrict )?\w+(?:\[(\d+)\])?(?=[ ,;)])"
)
CALL = re.compile(r"\b(?!(?:for|if|while)\()([a-z_]\w*)\(")


def stack_bound(source: str, function: str) -> int:
    """Returns the most bytes of stack that a call of a function of a source takes.

    >>> stack_bound("static int half(int x)\\n{\\n    return x / 2;\\n}\\n", "half")
    584
    """
    own, calls = dict[str, int](), dict[str, set[str]]()
    for name, text in functions_of(source):
        called = CALL.findall(text)
        slots = sum(slot(*found) for found in VALUE.findall(text)) + SLOT * (len(called) - 1)
        own[name] = max(own.get(name, 0), SAVED + slots)  # a product has one definition for each processor
        calls.setdefault(name, set()).update(called)
    return VECTORS + deepest(function, own, calls)


def functions_of(source: str) -> list[tuple[str, str]]:
    """Lists the functions that a source defines: the name and the text of each."""
    plain = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    blocks = re.findall(r"^\S[^\n;{]*\((?:[^;{}]*)\)\n\{\n.*?^\}", plain, flags=re.DOTALL | re.MULTILINE)
    return [(head[1], block) for block in blocks if (head := HEAD.match(block)) is not None]


def slot(type_: str, star: str, count: str) -> int:
    """Returns the bytes of the slot of a value. star: "*" for an address. count: the elements of an array."""
    return (SLOT if star else WIDE.get(type_, SLOT)) * int(count or 1)


def deepest(name: str, own: Mapping[str, int], calls: Mapping[str, set[str]]) -> int:
    """Returns the bytes of a function and its deepest calls, by each function's `own` bytes and `calls`."""
    inner = (deepest(each, own, calls) for each in calls[name] - {name} if each in own)
    return own[name] + max(inner, default=0)
