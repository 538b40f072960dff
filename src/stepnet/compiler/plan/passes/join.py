"""Products of the same left sides joined into one node.

    x @ Wz, x @ Wr, x @ Wn   ->   products(x; Wz, Wr, Wn)

Products with equal left sides and widths are computed together: the left sides are read once for all of them,
and all gates of a unit are in registers at the same time.
"""

from stepnet.compiler.net.ir import Builder, Net, Node
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.passes.merge import encoding
from stepnet.compiler.plan.passes.when import known_once

Key = tuple[tuple[int, ...], int, str]


def join(net: Net) -> Net:
    """Joins products with parameters that have equal left sides, widths and encodings of weights (such as
    int8) into one node, so that the left sides are read once; also in the steps of recurrences. Returns the
    new net.
    """
    groups: dict[Key, list[int]] = {}
    parameters = known_once(net)
    for number, node in enumerate(net.nodes):
        if (key := merging_key(node, parameters)) is not None:
            groups.setdefault(key, []).append(number)
    builder = Builder()
    copy_of: dict[int, int] = {}
    ports: dict[int, int] = {}
    # Inputs and parameters come first, so that every right side exists before the joined product.
    first = parameters | set(net.inputs)
    order = sorted(range(len(net.nodes)), key=lambda number: number not in first)
    for number in order:
        if number in copy_of:
            continue
        node = net.nodes[number]
        key = merging_key(node, parameters)
        group = [] if key is None else groups[key]
        if key is not None and len(group) > 1:
            rights = [copy_of[right] for member in group for right in net.nodes[member].sides[1]]
            lefts = [copy_of[left] for left in key[0]]
            joint = builder.add(
                "products", *lefts, *rights, lefts=len(lefts), source=node.source, **encoding(node)
            )
            for port, member in enumerate(group):
                ports[member] = port
                of_sums = net.nodes[member].operation == "products"
                copy_of[member] = joint if of_sums else builder.add("result", joint, of=port)
        elif node.operation == "result" and node.inputs[0] in ports:
            copy_of[number] = builder.add("result", copy_of[node.inputs[0]], of=ports[node.inputs[0]])
        else:
            changed = {"body": join(node.attributes["body"])} if "body" in node.attributes else {}
            copy_of[number] = builder.copy(node, [copy_of[operand] for operand in node.inputs], **changed)
    return builder.net(copy_of[result] for result in net.results)


def merging_key(node: Node, parameters: set[int]) -> Key | None:
    """Returns the key of a product: its left sides, its width and the encoding of its weights (such as int8;
    "" for none). Products with equal keys are merged into one node. Returns None for a node that is not
    merged.

    parameters: the constants that are known before the steps begin. A product with any other matrix is not
        merged.
    """
    if node.kind != "matmul" or node.types[0].extent == CONST or len(node.types) > 1:
        return None
    lefts, rights = node.sides
    key = lefts, node.type.shape[-1], node.attributes.get("weights", "")
    return key if parameters.issuperset(rights) else None
