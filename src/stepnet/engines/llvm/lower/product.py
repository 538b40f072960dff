"""Products with parameters in loops: left sides are read in place, and parameters are packed."""

from stepnet.engines.llvm.lower.loops import EncodeLoop, Product, Side
from stepnet.engines.llvm.lower.stage import Stage
from stepnet.engines.llvm.machine.records import Field
from stepnet.engines.llvm.products.arithmetic import arithmetic
from stepnet.engines.llvm.products.constants import Packed, Scaled
from stepnet.net.encodings import ENCODINGS
from stepnet.net.types import Type


def product(stage: Stage, number: int, members: list[int]) -> Product:
    """The left sides, each with its parameters, packed."""
    node = stage.net.nodes[number]
    ports = [number]
    if node.operation == "products":
        ports = [port(stage, number, place, members) for place in range(len(node.types))]
    lefts, rights = node.sides
    sides: list[Side] = []
    for place, operand in enumerate(lefts):
        own = rights[place :: len(lefts)]
        inner, size = stage.net.type_of(own[0]).shape
        assert size == node.types[0].size
        sides.append(side(stage, operand, own, inner, node.attributes.get("weights")))
    return Product(tuple(sides), tuple(ports))


def side(stage: Stage, operand: int, own: tuple[int, ...], inner: int, weights: str | None) -> Side:
    """A left side and the parameters that it is multiplied with, both encoded where weights are."""
    parameters = tuple(map(stage.constant, own))
    if weights is None:
        left, start = stage.run_of(operand, by_number=True)
        return Side(left, start, inner, stage.constants.add(Packed(parameters, stage.width)))
    is_scaled = ENCODINGS[weights].is_scaled
    entry = Scaled(parameters, stage.width) if is_scaled else Packed(parameters, stage.width, weights)
    packed = stage.constants.add(entry)
    left, scales = encoded_left(stage, operand, weights)
    return Side(left, 0, inner, packed, weights, scales)


def encoded_left(stage: Stage, operand: int, weights: str) -> tuple[Field, Field | None]:
    """The fields of a left side that is encoded before the current phase, once for all products with it,
    and of its scales in int8.
    """
    if (operand, weights) not in stage.encoded:
        kind, type_ = arithmetic(weights, "float32", stage.width, stage.target), stage.net.type_of(operand)
        words = Type(type_.extent, (kind.left_size(type_.size, stage.width) // 4,), "int32")
        scale = Type(type_.extent, (1,), "float32")
        target = stage.new_field(words)
        scales = stage.new_field(scale) if ENCODINGS[weights].is_scaled else None
        source = stage.operand(operand, type_, -1)
        stage.settling.append(EncodeLoop(type_.size, source, weights, target, scales))
        stage.encoded[operand, weights] = target, scales
    return stage.encoded[operand, weights]


def port(stage: Stage, number: int, place: int, members: list[int]) -> int:
    """The result node of one of the products; -1 if it is not read."""
    for member in members:
        node = stage.net.nodes[member]
        if node.operation == "result" and node.inputs[0] == number and node.attributes["of"] == place:
            return member
    return -1
