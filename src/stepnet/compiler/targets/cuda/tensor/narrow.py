"""Values of several widths computed in parts of one, so that a thread has the same units of all parts.

    b = norm(h @ R); r = sigmoid(b[:256]); n = tanh(b[256:])
    ->  b0, b1 = h @ R[:, :256], h @ R[:, 256:]; mean = sum(b0 + b1) / 512; ...

The plan has done so with values that are read in parts alone. Here they may be summed as a whole too, as for
a layer norm: the sum of all features is the sum over the units of the sum of the parts.
"""

from stepnet.compiler.net.ir import Builder, Net, Node
from stepnet.compiler.net.types import CONST, Type
from stepnet.compiler.targets.cuda.stored import MULTIPLIED


def narrow(body: Net, width: int) -> Net | None:
    """Returns a net in which all computed values of a multiple of `width` features are computed in parts of
    this width; None if one of them cannot be.
    """
    writer = PartWriter(body, width)
    if not all(writer.write(number) for number in range(len(body.nodes))):
        return None
    results = [writer.whole(result) for result in body.results]
    return writer.builder.net(results)


class PartWriter:
    """Writer of a net whose wide values are in parts.

    copies: the new numbers of values, by old number. parts: the numbers of the parts of wide values.
    """

    def __init__(self, body: Net, width: int) -> None:
        """Begins the net. width: of a part."""
        self.body, self.width, self.builder = body, width, Builder()
        self.copies, self.parts = dict[int, int](), dict[int, list[int]]()

    def is_wide(self, type_: Type) -> bool:
        """Tells whether a value is a vector of several parts."""
        is_vector = type_.shape[-1:] == (type_.size,)
        return is_vector and type_.size > self.width and type_.size % self.width == 0

    def narrowed(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of a part of a wide value."""
        return (*shape[:-1], self.width)

    def whole(self, number: int) -> int:
        """Returns the new number of a value: a concatenation, if it is in parts."""
        if number not in self.copies:
            self.copies[number] = self.builder.add("concatenate", *self.parts[number], axis=-1)
        return self.copies[number]

    def parts_of(self, number: int) -> list[int]:
        """Returns the parts of a wide value: slices, if it is an input."""
        if number not in self.parts:
            shape = self.body.type_of(number).shape
            ahead = tuple((0, size, 1) for size in shape[:-1])
            self.parts[number] = [
                self.builder.add(
                    "slice", self.copies[number], slices=(*ahead, (first, first + self.width, 1))
                )
                for first in range(0, shape[-1], self.width)
            ]
        return self.parts[number]

    def write(self, number: int) -> bool:
        """Writes a node; returns whether it can be."""
        node = self.body.nodes[number]
        if node.kind == "source" or len(node.types) != 1:
            self.copies[number] = self.builder.copy(node, map(self.whole, node.inputs))
            return True
        if self.is_wide(node.type) and node.type.extent != CONST:
            parts = self.wide(node)
            if parts is not None:
                self.parts[number] = parts
            return parts is not None
        written = self.reading_parts(node)
        self.copies[number] = (
            self.builder.copy(node, map(self.whole, node.inputs)) if written is None else written
        )
        return True

    def reading_parts(self, node: Node) -> int | None:
        """Writes a node that is no wide value but reads one; returns its number, or None for other nodes."""
        if len(node.inputs) != 1 or node.operation == "result":
            return None
        (source,) = node.inputs
        if not self.is_wide(self.body.type_of(source)):
            return None
        if node.operation == "slice" and source in self.parts:
            part = self.cut(node)
            return self.reshaped(part[0], node.type.shape) if len(part) == 1 else None
        if node.operation == "sum" and node.type.size == 1:
            total, *others = self.parts_of(source)
            for other in others:
                total = self.builder.add("add", total, other)
            return self.builder.copy(node, [total])
        return None

    def cut(self, node: Node) -> list[int]:
        """Returns the parts that a slice of a wide value consists of; none if it has other features."""
        first, stop, stride = (int(number) for number in node.attributes["slices"][-1])
        if stride != 1 or first % self.width or stop % self.width:
            return []
        return self.parts_of(node.inputs[0])[first // self.width : stop // self.width]

    def reshaped(self, number: int, shape: tuple[int, ...]) -> int:
        """Writes a value of another shape of as many features; returns its number."""
        before = self.builder.type_of(number).shape
        if before == shape:
            return number
        return self.builder.add("reshape", number, rank=len(before), shape=shape)

    def wide(self, node: Node) -> list[int] | None:
        """Writes the parts of a wide value; returns their numbers, or None if it cannot be."""
        count = node.type.shape[-1] // self.width
        if node.kind == "matmul":
            return self.product(node, count)
        if node.operation == "concatenate":
            return self.joined(node)
        if node.operation == "slice":
            parts = self.cut(node) if self.is_wide(self.body.type_of(node.inputs[0])) else []
            return [self.reshaped(n, self.narrowed(node.type.shape)) for n in parts] or None
        if node.kind != "pointwise" and node.operation not in ("broadcast", "reshape"):
            return None
        types = [self.body.type_of(n) for n in node.inputs]
        if any(type_.size != 1 and not self.is_wide(type_) for type_ in types):
            return None
        changed = {} if node.kind == "pointwise" else {"shape": self.narrowed(node.type.shape)}
        operands = [
            [self.whole(n)] * count if type_.size == 1 else self.parts_of(n)
            for n, type_ in zip(node.inputs, types, strict=True)
        ]
        return [self.builder.copy(node, each, **changed) for each in zip(*operands, strict=True)]

    def product(self, node: Node, count: int) -> list[int] | None:
        """Writes a product as one of several results, each with some columns of the matrices."""
        lefts, rights = node.sides
        weights = {name: value for name, value in node.attributes.items() if name == "weights"}
        is_fit = len(node.type.shape) == 1 and weights.get("weights") in MULTIPLIED
        if not is_fit or any(self.body.nodes[right].operation != "input" for right in rights):
            return None
        sides = [self.whole(left) for left in lefts]
        for first in range(0, count * self.width, self.width):
            for right in rights:
                rows = (0, self.body.type_of(right).shape[0], 1)
                columns = first, first + self.width, 1
                sides.append(self.builder.add("slice", self.copies[right], slices=(rows, columns)))
        together = self.builder.add("products", *sides, lefts=len(lefts), source=node.source, **weights)
        return [self.builder.add("result", together, of=of) for of in range(count)]

    def joined(self, node: Node) -> list[int] | None:
        """Writes the parts of a concatenation of values of one or several widths."""
        found = list[int]()
        for operand in node.inputs:
            type_ = self.body.type_of(operand)
            if self.is_wide(type_):
                found += self.parts_of(operand)
            elif type_.shape[-1] == self.width:
                found.append(self.whole(operand))
            else:
                return None
        return found
