"""The step of a recurrence as loops on tensor cores see it: values of units, and sums over units in phases.

    pointwise      each thread computes the units and sequences that it owns
    product, sum   every warp needs all units of an operand, which all warps publish in the phase before

A view that keeps the order of the features is the value that it views; a concatenation is a list of values.
So a product of a concatenation with a matrix is a sum of products, each with some rows of the matrix.
"""

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.recur import Order
from stepnet.compiler.net.types import CONST, ROWS
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.writing.pointwise import POINTWISE
from stepnet.compiler.targets.cuda.stored import MULTIPLIED, MemoryDtypes, common_half, half_of
from stepnet.compiler.targets.cuda.tensor.narrow import narrow
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass

DTYPES = ("float32", "bool", "int32", "int64", "float16", "bfloat16")
"""The dtypes of values in such loops."""
CALLED = ("remainder", "floor_divide")
"""The operations on floats that call a function of the C library, which a GPU does not have."""


@dataclass(frozen=True)
class StepRows:
    """Rows of a matrix that one left operand is multiplied with.

    matrix: the number of the parameter. first, count: its rows. column, columns: the first column that is
        read, and how many are. stride: the columns of the matrix.
    """

    matrix: int
    first: int
    count: int
    columns: int
    column: int
    stride: int


@dataclass(frozen=True)
class UnitSum:
    """A product, or a sum over the units of a value.

    node: its number. lefts: the values that are summed over, by number.
    rights: for each result of the node the rows that multiply each left; () for a sum over units.
    weights: the encoding of the weights of a product, None for none.
    stored_weights, stored_values: the dtype of 16 bits in which the weights, and what they are multiplied
        with, are known to be; None for none.
    """

    node: int
    lefts: tuple[int, ...]
    rights: tuple[tuple[StepRows, ...], ...]
    weights: str | None = None
    stored_weights: str | None = None
    stored_values: str | None = None

    @property
    def results(self) -> int:
        """The number of results: the gates that share the left operands."""
        return max(1, len(self.rights))


@dataclass(frozen=True)
class FeaturePiece:
    """A part of an output: a value, its number of features, and the place of the first among the output's."""

    value: int
    first: int
    size: int


@dataclass(frozen=True)
class TensorStep:
    """The step of a recurrence, from which a loop on tensor cores is written.

    body: the net of the step. order: the numbers of its sequences and memories.
    stored: for each input of the body the dtype of 16 bits in which its numbers are known to be; None for
        none.
    flag: the position of the bool memory that ends a sequence early; None if sequences run all their steps.
    given: the dtypes of the arrays of memories; None for those of the step.
    """

    body: Net
    order: Order
    stored: tuple[str | None, ...] = ()
    flag: int | None = None
    given: MemoryDtypes | None = None

    @classmethod
    def of(cls, plan: Plan, flag: int | None = None) -> "TensorStep":
        """Returns the step of a plan. Where it does not fit tensor cores as it is, but does with values of
        several widths in parts of one, it is that.

        flag: the position of the bool memory that ends a sequence early, if one does.
        """
        recurrence = plan.recurrence
        stored: list[str | None] = [half_of(plan.net, number) for number in recurrence.inputs]
        facts = recurrence.recur.order, tuple(stored), flag, MemoryDtypes.of(plan)
        step = cls(plan.body, *facts)
        widths = {step.size(memory) for memory in step.memories}
        if step.refusal is None or len(widths) != 1:
            return step
        body = narrow(plan.body, widths.pop())
        other = step if body is None else cls(body, *facts)
        return other if other.refusal is None else step

    # ---- inputs and results

    @computed_once
    def dtypes(self) -> MemoryDtypes:
        """The dtypes of the arrays of memories."""
        own = tuple(map(self.dtype, self.memories))
        return self.given or MemoryDtypes(own, own)

    @computed_once
    def sequences(self) -> list[int]:
        """The inputs of the body that are one step of the sequences, by number."""
        return self.order.operands_by_kind(self.body.inputs).sequences

    @computed_once
    def memories(self) -> list[int]:
        """The inputs of the body that are memories before the step, by number."""
        return self.order.operands_by_kind(self.body.inputs).memories

    @computed_once
    def others(self) -> list[int]:
        """The inputs of the body that are statics and parameters, by number."""
        return self.order.operands_by_kind(self.body.inputs).others

    @computed_once
    def matrices(self) -> list[int]:
        """The parameters that are right operands of products, by number, in order."""
        rights = {rows.matrix for each in self.sums.values() for gate in each.rights for rows in gate}
        return [n for n in self.others if n in rights]

    @computed_once
    def vectors(self) -> list[int]:
        """The values that are read from statics and from parameters that are no matrices, by number."""
        others = [n for n in self.read if self.origin(n)[0] in self.others]
        return [n for n in others if n not in self.matrices]

    @computed_once
    def read_sequences(self) -> list[int]:
        """The values that are read from sequences at each step, by number: inputs, and parts of inputs."""
        return [n for n in self.read if self.origin(n)[0] in self.sequences]

    @computed_once
    def read(self) -> list[int]:
        """The values that are read from arrays other than memories, by number."""
        nodes = enumerate(self.body.nodes)
        skipped = self.parts.keys() | self.columns.keys()
        used = {self.root(n) for number, node in nodes if number not in skipped for n in node.inputs}
        used |= {self.root(n) for n in self.body.results}
        arrays = {*self.sequences, *self.others, *self.parts}
        return [n for n in sorted(arrays) if n in used]

    @computed_once
    def parts(self) -> dict[int, tuple[int, int]]:
        """The values that are consecutive features of an input other than a memory: the input, the first."""
        found = dict[int, tuple[int, int]]()
        for number, node in enumerate(self.body.nodes):
            if node.operation != "slice":
                continue
            source = self.root(node.inputs[0])
            array, first = found.get(source, (source, 0))
            whole = self.body.type_of(node.inputs[0]).shape[:-1]
            begin, _, stride = node.attributes["slices"][-1]
            is_vector = stride == 1 and all(size == 1 for size in whole)
            if is_vector and array in (*self.sequences, *self.others):
                found[number] = array, first + begin
        return found

    @computed_once
    def columns(self) -> dict[int, tuple[int, int]]:
        """The values that are consecutive columns of a parameter: its number, and the first column."""
        found = dict[int, tuple[int, int]]()
        for number, node in enumerate(self.body.nodes):
            if node.operation == "slice" and node.inputs[0] in self.others and len(node.type.shape) == 2:
                (top, _, down), (left, _, stride) = node.attributes["slices"]
                has_rows = node.type.shape[0] == self.body.type_of(node.inputs[0]).shape[0]
                if has_rows and (top, down, stride) == (0, 1, 1) and node.type.extent == CONST:
                    found[number] = node.inputs[0], left
        return found

    def rows_of(self, right: int, first: int, count: int) -> StepRows:
        """Returns rows of the right operand of a product."""
        matrix, column = self.columns.get(right, (right, 0))
        stride, columns = (self.body.type_of(n).shape[-1] for n in (matrix, right))
        return StepRows(matrix, first, count, columns, column, stride)

    def origin(self, number: int) -> tuple[int, int]:
        """Returns the input that a value is read from, and its first feature there."""
        return self.parts.get(number, (number, 0))

    @computed_once
    def outputs(self) -> list[tuple[FeaturePiece, ...]]:
        """The outputs of the step, each in pieces."""
        return [self.pieces(n) for n in self.order.results_by_kind(self.body.results).outputs]

    @computed_once
    def following(self) -> list[int]:
        """The values that are the memories after the step, by number."""
        return [self.root(n) for n in self.order.results_by_kind(self.body.results).memories]

    @computed_once
    def indices(self) -> list[int]:
        """The values that are the number of the step, by number."""
        return [n for n, node in enumerate(self.body.nodes) if node.operation == "index"]

    # ---- values

    def size(self, number: int) -> int:
        """Returns the number of features of a value."""
        return self.body.type_of(number).size

    def dtype(self, number: int) -> str:
        """Returns the dtype of a value."""
        return self.body.type_of(number).dtype

    def root(self, number: int) -> int:
        """Returns the value that a node is a view of, or the node itself."""
        while self.keeps_order(self.body.nodes[number]):
            number = self.body.nodes[number].inputs[0]
        return number

    def keeps_order(self, node: Node) -> bool:
        """Tells whether a node is a view that has the same features in the same order."""
        same = node.is_view and self.size(node.inputs[0]) == node.type.size
        return same and node.operation in ("reshape", "broadcast")

    def pieces(self, number: int, first: int = 0) -> tuple[FeaturePiece, ...]:
        """Returns the values that a value is a concatenation of. first: the place of its first feature."""
        root = self.root(number)
        node = self.body.nodes[root]
        if node.operation != "concatenate":
            return (FeaturePiece(root, first, node.type.size),)
        found = list[FeaturePiece]()
        for operand in node.inputs:
            found += self.pieces(operand, first)
            first += self.size(operand)
        return tuple(found)

    @computed_once
    def sums(self) -> dict[int, UnitSum]:
        """The products and sums over units of the step, by their nodes."""
        found = dict[int, UnitSum]()
        for number, node in enumerate(self.body.nodes):
            if node.kind == "reduce":
                lefts = [piece.value for piece in self.pieces(node.inputs[0])]
                found[number] = UnitSum(number, tuple(lefts), ())
            elif node.kind == "matmul":
                found[number] = self.product(number)
        return found

    def product(self, number: int) -> UnitSum:
        """Returns a node that is a product, with its left operands apart."""
        node = self.body.nodes[number]
        lefts, rights = node.sides
        joined = [self.pieces(left) for left in lefts]
        gates = [rights[at : at + len(lefts)] for at in range(0, len(rights), len(lefts))]
        return UnitSum(
            number,
            tuple(piece.value for pieces in joined for piece in pieces),
            tuple(
                tuple(
                    self.rows_of(right, piece.first, piece.size)
                    for right, pieces in zip(gate, joined, strict=True)
                    for piece in pieces
                )
                for gate in gates
            ),
            node.attributes.get("weights"),
            common_half(self.half_of(right) for right in rights),
            common_half(self.half_of(piece.value) for pieces in joined for piece in pieces),
        )

    def half_of(self, number: int) -> str | None:
        """Returns the 16-bit dtype of a value's numbers, as a stored parameter has; None if not known."""
        number, _ = self.columns.get(number, (number, 0))
        if number in self.others and self.stored:
            return self.stored[self.body.inputs.index(number)]
        return half_of(self.body, number)

    @computed_once
    def stored_weights(self) -> list[str]:
        """The dtypes of 16 bits that weights of products are known to be in."""
        return sorted({each.stored_weights for each in self.sums.values() if each.stored_weights})

    @computed_once
    def lefts(self) -> list[int]:
        """The values that all warps need, by number."""
        return sorted({left for each in self.sums.values() for left in each.lefts})

    @computed_once
    def summed(self) -> set[int]:
        """The values among `lefts` that are only summed over units, so that sums of some are published."""
        multiplied = {left for each in self.sums.values() if each.rights for left in each.lefts}
        return {left for left in self.lefts if left not in multiplied}

    @computed_once
    def held(self) -> list[int]:
        """The memories among `lefts`, which are published at the end of a step, for the next one."""
        return [n for n in self.lefts if n in self.memories]

    @computed_once
    def phases(self) -> list[list[int]]:
        """The nodes computed at each step, by phase. Before a phase, all that its sums read is published."""
        phase = dict[int, int]()
        for number, node in enumerate(self.body.nodes):
            if node.kind == "source" or node.operation == "concatenate" or self.keeps_order(node):
                continue
            if number in self.parts or number in self.columns:
                continue
            if number in self.sums:
                phase[number] = max(
                    0 if left in self.memories else phase.get(left, 0) + 1 for left in self.sums[number].lefts
                )
            else:
                phase[number] = max((phase.get(self.root(n), 0) for n in node.inputs), default=0)
        count = max(phase.values(), default=0) + 1
        return [[n for n in phase if phase[n] == level] for level in range(count)]

    @computed_once
    def exchanges(self) -> int:
        """The exchanges of a step: the phases that end with values which other warps need."""
        *shown, last = (any(n in self.lefts for n in phase) for phase in self.phases)
        return sum(shown) + (last or bool(self.held))

    @computed_once
    def width(self) -> int:
        """The largest number of features of a value."""
        values = [*self.read_sequences, *self.memories, *self.vectors]
        computed = [n for phase in self.phases for n in phase]
        return max(type_.size for n in (*values, *computed) for type_ in self.body.nodes[n].types)

    # ---- what does not fit

    @computed_once
    def refusal(self) -> str | None:
        """Tells why the step cannot run on tensor cores; None if it can."""
        concatenations = {n for n, node in enumerate(self.body.nodes) if node.operation == "concatenate"}
        for number, node in enumerate(self.body.nodes):
            is_read = number in self.parts or number in self.columns
            reason = None if is_read else self.node_refusal(node, concatenations)
            if reason is not None:
                return f"{node.operation} of {node.types[0]}: {reason}"
            if number in concatenations and any(size != 1 for size in node.type.shape[:-1]):
                return f"concatenate of {node.type}: it is no concatenation of vectors"
        return self.sums_refusal() or self.memories_refusal(concatenations)

    def node_refusal(self, node: Node, concatenations: set[int]) -> str | None:
        """Tells why a node cannot be computed by threads that own units."""
        for type_ in node.types:
            if type_.extent not in (CONST, ROWS):
                return "it has a value for more than a step"
            if type_.dtype not in DTYPES:
                return f"the dtype is not one of {', '.join(DTYPES)}"
        if node.operation in ("input", "index", "result", "concatenate") or self.keeps_order(node):
            return None
        if node.operation == "constant":
            return None if node.type.size == 1 else "it is more than one number"
        if node.kind in ("matmul", "reduce"):
            return None
        if node.operation != "broadcast" and (node.kind != "pointwise" or node.operation not in POINTWISE):
            return "it moves values between units"
        if node.operation in CALLED and node.type.is_float:
            return "it calls a function of the C library"
        if any(self.root(n) in concatenations for n in node.inputs):
            return "it reads a concatenation"
        if any(self.size(n) not in (1, node.type.size) for n in node.inputs):
            return "it moves values between units"
        return None

    def sums_refusal(self) -> str | None:
        """Tells why a product or a sum over units cannot be computed by the tensor cores."""
        matrices = set[int]()
        for number, each in ((n, node) for n, node in enumerate(self.body.nodes) if n in self.sums_nodes):
            if each.kind == "reduce" and (each.operation != "sum" or each.type.size != 1):
                return (
                    f"{each.operation} of {self.body.type_of(each.inputs[0])}: it is no sum of all features"
                )
            lefts, rights = each.sides if each.kind == "matmul" else (each.inputs, ())
            if each.attributes.get("weights") not in MULTIPLIED:
                return f"{each.operation} %{number}: its weights are encoded"
            for place, right in enumerate(rights):
                left, type_ = lefts[place % len(lefts)], self.body.type_of(right)
                matrix, _ = self.columns.get(right, (right, 0))
                if matrix not in self.others or type_.extent != CONST or len(type_.shape) != 2:
                    return f"{each.operation} %{number}: the right operand is no matrix of parameters"
                if type_.shape[0] != self.size(left):
                    return f"{each.operation} %{number}: the left operand is more than a vector"
                matrices.add(matrix)
            for left in (piece.value for n in lefts for piece in self.pieces(n)):
                is_read = self.body.nodes[left].kind == "source" or left in self.parts
                if is_read and left not in self.memories:
                    return f"{each.operation} %{number}: it reads what is known before the loop"
        for number, node in enumerate(self.body.nodes):
            if node.kind != "matmul" and number not in self.columns and matrices & set(node.inputs):
                return f"{node.operation} of {node.type}: it reads a matrix of a product"
        return None

    @property
    def sums_nodes(self) -> set[int]:
        """The nodes that are products or reductions, by number."""
        return {n for n, node in enumerate(self.body.nodes) if node.kind in ("matmul", "reduce")}

    def memories_refusal(self, concatenations: set[int]) -> str | None:
        """Tells why the memories or outputs of the step cannot be held by threads that own units."""
        if not self.memories:
            return "there is no memory"
        for memory, after in zip(self.memories, self.following, strict=True):
            if after in concatenations or self.size(after) != self.size(memory):
                return f"a memory of {self.body.type_of(memory)} is made of several values"
        return None
