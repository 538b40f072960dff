"""Lowering of products with parameters: left sides are read in place, and parameters are packed."""

from stepnet.compiler.net.encodings import ENCODINGS
from stepnet.compiler.net.types import Type
from stepnet.compiler.targets.cpu.lower.loops import EncodeLoop, ProductOperand, ProductSum
from stepnet.compiler.targets.cpu.lower.stage import StageLowering
from stepnet.compiler.targets.cpu.machine.records import Field
from stepnet.compiler.targets.cpu.products.arithmetic import arithmetic
from stepnet.compiler.targets.cpu.products.constants import PackedParameters, Scaled


def product(stage: StageLowering, number: int, members: list[int]) -> ProductSum:
    """Lowers (translates to loops) node `number`, one or several products of values with parameters, to a sum
    of packed products.

    members: the nodes of the same loop. Among them are the `result` nodes that each pick one of several
        products.
    """
    node = stage.net.nodes[number]
    ports = [number]
    if node.operation == "products":
        ports = [port(stage, number, index, members) for index in range(len(node.types))]
    lefts, rights = node.sides
    operands: list[ProductOperand] = []
    for index, operand in enumerate(lefts):
        parameters = rights[index :: len(lefts)]
        inner, size = stage.net.type_of(parameters[0]).shape
        assert size == node.types[0].size
        operands.append(left_operand(stage, operand, parameters, inner, node.attributes.get("weights")))
    return ProductSum(tuple(operands), tuple(ports))


def left_operand(
    stage: StageLowering, operand: int, numbers: tuple[int, ...], inner: int, weights: str | None
) -> ProductOperand:
    """Lowers a left operand of matrix products: finds where its elements lie in memory, and adds the
    parameters that it is multiplied by, packed, to the constants.

    operand, inner: the node of the left operand, and its number of elements.
    numbers: the nodes of the parameters, each a matrix [inner, n] for one product.
    weights: the encoding of operand and parameters, "int8" or "bfloat16", or that of the parameters alone,
        "stored" or "stored_int8"; None for plain values.

    A left operand that is not encoded is read in place if its elements fill whole words of packed parameters;
    else it is copied, with zeros after the last.
    """
    parameters = tuple(map(stage.constant, numbers))
    if weights is None:
        left, start = stage.run_of(operand, by_number=True)
        return ProductOperand(
            left, start, inner, stage.constants.add(PackedParameters(parameters, stage.width))
        )
    is_scaled = ENCODINGS[weights].is_scaled
    entry = (
        Scaled(parameters, stage.width, weights)
        if is_scaled
        else PackedParameters(parameters, stage.width, weights)
    )
    packed = stage.constants.add(entry)
    terms = arithmetic(weights, "float32", stage.width, stage.processor).terms
    if not ENCODINGS[weights].is_left_encoded and inner % terms == 0:
        left, start = stage.run_of(operand, by_number=True)
        return ProductOperand(left, start, inner, packed, weights)
    left, scales = encoded_left(stage, operand, weights)
    return ProductOperand(left, 0, inner, packed, weights, scales)


def encoded_left(stage: StageLowering, operand: int, weights: str) -> tuple[Field, Field | None]:
    """Returns the fields (positions in memory) of an encoded left operand of products and of its scales; None
    if the encoding has no scales.

    The first call assigns the fields, and adds a loop that encodes the operand to the work before the current
    phase (the nodes between two barriers). All products with this operand read the same fields.

    operand, weights: the node of the operand, and the encoding, such as "int8".
    """
    if (operand, weights) not in stage.encoded:
        kind, type_ = arithmetic(weights, "float32", stage.width, stage.processor), stage.net.type_of(operand)
        packed_type = Type(type_.extent, (kind.left_size(type_.size, stage.width) // 4,), "int32")
        scale = Type(type_.extent, (1,), "float32")
        target = stage.new_field(packed_type)
        encoding = ENCODINGS[weights]
        scales = stage.new_field(scale) if encoding.is_scaled and encoding.is_left_encoded else None
        source = stage.operand(operand, type_, -1)
        stage.pending.append(EncodeLoop(type_.size, source, weights, target, scales))
        stage.encoded[operand, weights] = target, scales
    return stage.encoded[operand, weights]


def port(stage: StageLowering, number: int, index: int, members: list[int]) -> int:
    """Finds the node that picks one result of a node with several results.

    number, index: the node, and the position of the result.
    members: the nodes to search.

    Returns -1 if none of them picks it.
    """
    for member in members:
        node = stage.net.nodes[member]
        if node.operation == "result" and node.inputs[0] == number and node.attributes["of"] == index:
            return member
    return -1
