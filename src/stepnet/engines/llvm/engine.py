"""The CPU engine: machine code generated for the processor at hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from llvmlite import ir

from stepnet.engines.base import Array
from stepnet.engines.llvm.build import MachineCode
from stepnet.engines.llvm.code import I64, POINTER, Code
from stepnet.engines.llvm.constants import ValueOf
from stepnet.engines.llvm.driver import WORDS, Driver
from stepnet.engines.llvm.pointwise import POINTWISE
from stepnet.engines.llvm.program import Lowered, constant_values, lowered
from stepnet.engines.llvm.run import Runner
from stepnet.engines.llvm.stage import Rows, StageCode
from stepnet.engines.llvm.target import Target, host_target
from stepnet.ir import Net
from stepnet.plan import Plan

KINDS = {"view", "reduce", "matmul", "source", "gather"}
STRUCTURE = {"result", "expand", "recur"}


@dataclass(frozen=True)
class LlvmEngine:
    """The engine for one target; the machine's own by default."""

    target: Target | None = None
    name: str = "llvm"

    def refuse(self, plan: Plan) -> str | None:
        """What it has no machine code for; None if nothing."""
        return refusal(plan.net) or refusal(plan.body, inside=True)

    def compile(self, plan: Plan) -> "LlvmKernel":
        """The plan as machine code; equal plans are compiled once."""
        return kernel(plan, self.target or host_target())


@lru_cache(maxsize=256)
def kernel(plan: Plan, target: Target) -> "LlvmKernel":
    """The kernel of a plan for a target, kept for the next equal plan."""
    return LlvmKernel(plan, target)


def refusal(net: Net, inside: bool = False) -> str | None:
    """The first operation of a net that has no machine code."""
    for node in net.nodes:
        if node.operation == "recur" and inside:
            return "a recurrence inside a recurrence is not compiled yet"
        compiled = node.kind in KINDS or node.operation in STRUCTURE or node.operation in POINTWISE
        if not compiled:
            where = f"\n    at {node.source}" if node.source else ""
            return f"it has no machine code for `{node.operation}`{where}"
    return None


class LlvmKernel:
    """A plan as machine code: `run` for a call's lanes, `sequences` for what each sequence has one of."""

    def __init__(self, plan: Plan, target: Target) -> None:
        self.plan = plan
        self.target = target
        self.lowered = lowered(plan, target)
        module = ir.Module("stepnet")
        module.triple = ""
        write_run(module, self.lowered, target)
        write_sequences(module, self.lowered, target)
        self.machine_code = MachineCode(module, target)
        self.run = self.machine_code.function("run")
        self.sequences = self.machine_code.function("sequences")

    def bind(self, parameters: Sequence[Array]) -> Runner:
        """What runs a call with these parameters, which are packed now."""
        values = constant_values(self.plan, list(parameters))
        memory = self.lowered.constants.filled(ValueOf(values))
        return Runner(self, memory)


def write_run(module: ir.Module, program: Lowered, target: Target) -> None:
    """The function that runs the lanes of a call."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER]), "run")
    Driver(Code(function.append_basic_block("entry"), target), program.program).write()


def write_sequences(module: ir.Module, program: Lowered, target: Target) -> None:
    """The function that computes what each sequence has one of, for all sequences of a call."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER]), "sequences")
    code = Code(function.append_basic_block("entry"), target)

    def word(place: int) -> ir.Value:
        return code.read(I64, code.at(function.args[0], 8 * place), 8)

    def pointer(name: str) -> ir.Value:
        return code.inttoptr(word(WORDS.index(name)), POINTER)

    strides = program.program.strides
    count = word(WORDS.index("lanes"))
    rows = Rows({"sequence": pointer("sequence")}, strides, count)
    arrays = [
        (code.inttoptr(word(place), POINTER), target_field) for place, target_field in program.sequence_inputs
    ]
    with code.loop(code.number(0), count) as row:
        for array, target_field in arrays:
            source = code.at(array, code.mul(row, code.number(target_field.bytes)))
            code.copy_bytes(
                code.at(rows.at(code, "sequence", row), target_field.offset), source, target_field.bytes
            )
    one, zero = code.number(1), code.number(0)
    stage = StageCode(
        code,
        program.program.outer,
        rows,
        pointer("constants"),
        pointer("status"),
        zero,
        one,
        program.program.lanes,
    )
    for loops in program.sequence:
        for loop in loops:
            stage.emit(loop)
    code.ret_void()
