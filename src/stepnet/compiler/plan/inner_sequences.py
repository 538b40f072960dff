"""Choice of the steps with inner sequences that run as a whole, in one plan, instead of part by part.

    recur(x, h, keys):                                    one plan
        scores = keys @ expand(h)       ->                    for each row: all of its keys
        context = reduce(scores * keys)                       for each row: the context, and h'
        c = recur(keys, h)                                    for each key: all rows that have this key
        h' = f(x, c, context)

Steps whose results are inner sequences, as in gradients, run part by part.
"""

from stepnet.compiler.net.ir import Node, Recur
from stepnet.compiler.net.types import ROWS, STEPS, Extent, extent_text, is_derived


def why_in_parts(node: Node, extent: Extent) -> str | None:
    """Returns why a recurrence whose step has sequences of its own must run part by part (operation by
    operation, for all rows of a step); None if machine code can run the whole loop. extent: the axes of its
    steps, such as rows/steps.
    """
    recur: Recur = node.recur
    body = recur.body
    if extent != STEPS and not is_derived(extent):
        return f"it runs over {extent_text(extent)}"
    if any(len(type_.extent) > 2 for inner in body.nodes for type_ in inner.types):
        return "its inner sequences are nested"
    kinds = {"memory": recur.following, "output": recur.outputs}
    for name, numbers in kinds.items():
        if any(body.type_of(number).extent != ROWS for number in numbers):
            return f"an inner sequence is its {name}"
    if any(inner.operation == "expand" and "how" in inner.attributes for inner in body.nodes):
        return "a value is written only to the first or last step of an inner sequence"
    return None
