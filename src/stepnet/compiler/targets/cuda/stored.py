"""The numbers of 16 bits in which values of float32 are known to be: parameters and inputs stored so.

%11 = cast W dtype=float32     W bfloat16: products may multiply %11 as bfloat16, and lose nothing
%12 = slice %11
"""

from collections.abc import Iterable

from stepnet.compiler.net.ir import Net

HALF_DTYPES = ("bfloat16", "float16")
"""The floats of 16 bits, in which values are stored, but not computed."""
MULTIPLIED = (None, "stored", "bfloat16")
"""The encodings of weights that tensor cores multiply: none, and those of bfloat16."""


def half_of(net: Net, number: int) -> str | None:
    """Returns the dtype of 16 bits that has all values of a node, which is a view of a cast from it, or a
    concatenation of such; None if there is none.
    """
    node = net.nodes[number]
    while node.is_view:
        number = node.inputs[0]
        node = net.nodes[number]
    if node.operation == "concatenate":
        return common_half(half_of(net, each) for each in node.inputs)
    stored = {net.type_of(n).dtype for n in (number, *node.inputs[: node.operation == "cast"])}
    return next((dtype for dtype in HALF_DTYPES if dtype in stored), None)


def common_half(dtypes: Iterable[str | None]) -> str | None:
    """Returns the dtype that all of some have in common; None if they differ, or if there are none."""
    found = set(dtypes)
    return found.pop() if len(found) == 1 else None
