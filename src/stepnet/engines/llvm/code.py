"""Writing LLVM code with loops and vectors: the few shapes of code that the engine is made of."""

from collections.abc import Generator
from contextlib import contextmanager

from llvmlite import ir

from stepnet.engines.llvm.target import Target

I1 = ir.IntType(1)
I8 = ir.IntType(8)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
POINTER = I8.as_pointer()


class Code(ir.IRBuilder):
    """An LLVM builder that knows its target and can write loops.

    Opaque byte pointers and byte offsets are used throughout: what lies where is decided by the buffers, not by types.
    """

    def __init__(self, block: ir.Block, target: Target) -> None:
        super().__init__(block)
        self.target = target

    def number(self, value: int) -> ir.Constant:
        """A 64-bit integer constant."""
        return ir.Constant(I64, value)

    def splat(self, type_: ir.Type, value: float) -> ir.Constant:
        """`value` in every lane of `type_` (or the scalar, where it is one)."""
        if isinstance(type_, ir.VectorType):
            return ir.Constant(type_, [ir.Constant(type_.element, value)] * type_.count)
        return ir.Constant(type_, value)

    def intrinsic(self, name: str, result: ir.Type, arguments: list[ir.Value]) -> ir.Value:
        """A call of `llvm.<name>` (mangled with the result type), declared in the module when first used."""
        full = f"llvm.{name}.{mangled(result)}"
        function = self.module.globals.get(full)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(result, [a.type for a in arguments]), full)
        return self.call(function, arguments)

    def fused(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a * b + c, rounded once."""
        return self.intrinsic("fma", a.type, [a, b, c])

    @contextmanager
    def loop(self, start: ir.Value, stop: ir.Value, step: ir.Value | None = None) -> Generator[ir.Value]:
        """Code inside runs for i = start, start + step, ... while i < stop; gives i."""
        head, body = self.append_basic_block("head"), self.append_basic_block("body")
        before = self.block
        self.branch(head)
        self.position_at_end(head)
        index = self.phi(I64)
        index.add_incoming(start, before)
        inside = self.icmp_signed("<", index, stop)
        after = self.append_basic_block("after")
        self.cbranch(inside, body, after)
        self.position_at_end(body)
        yield index
        index.add_incoming(self.add(index, step if step is not None else self.number(1)), self.block)
        self.branch(head)
        self.position_at_end(after)


def mangled(type_: ir.Type) -> str:
    """LLVM's suffix for an overloaded intrinsic: v16f32, f64, i32."""
    if isinstance(type_, ir.VectorType):
        return f"v{type_.count}{mangled(type_.element)}"
    if isinstance(type_, ir.FloatType):
        return "f32"
    if isinstance(type_, ir.DoubleType):
        return "f64"
    return str(type_)
