"""Generates a library's `run`: it checks arguments, distributes sequences over lanes, and runs all parts.

    offsets 0 3 5, arrays  ->  checks  ->  memory  ->  lanes  ->  part 0, part 1, ...  ->  0, or an error

It replaces the Python code that surrounds the machine code in a call; see `targets/cpu/running`. It runs in
one thread, in the memory of a context.
"""

from collections.abc import Iterable, Sequence

from llvmlite import ir

from stepnet.build.arena import Arena, Space
from stepnet.build.kernel_code import KernelCode, LayoutPointers
from stepnet.build.library_code import CODE, function
from stepnet.build.model import BuiltModel
from stepnet.build.recipe import AcrossStep, PlanKernel, Recipe
from stepnet.build.workspaces import CONTEXT, Contexts
from stepnet.compiler.net.types import CONST, ROWS, Type
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.running.across import function_of, numbers_of
from stepnet.compiler.targets.cpu.running.across_code import across_function
from stepnet.compiler.targets.cpu.running.lengths import LAID_BYTES, PER_SEQUENCE
from stepnet.compiler.targets.cpu.running.lengths_code import write_differences, write_lay
from stepnet.compiler.targets.cpu.writing.code import I32, I64, POINTER
from stepnet.compiler.targets.packed import PIECE, PIECES


class RunCode:
    """Generates the C function `run` of a library. values: the pointer to each value, by node number."""

    def __init__(
        self,
        module: ir.Module,
        processor: Processor,
        name: str,
        model: BuiltModel,
        recipe: Recipe,
        contexts: Contexts,
    ) -> None:
        """Adds the empty function `run` to the LLVM module, and prepares a generator for each compiled part
        of the model. name: the prefix of the library's functions. recipe: the operations of a call, in order.
        contexts: the offsets of the parts' memory in a context (the memory that calls work in).
        """
        self.model, self.recipe, self.contexts = model, recipe, contexts
        self.lay = write_lay(module, processor, f"{name}_lay")
        types = [POINTER, I64, POINTER, *[POINTER] * len(model.arguments)]
        ir_function, self.code = function(module, processor, f"{name}_run", I32, types, public=True)
        self.context, self.rows, self.offsets, *pointers = ir_function.args
        self.arguments = dict(zip(model.arguments, pointers, strict=True))
        self.total_cell, self.longest_cell = (self.code.alloca(I64) for _ in range(2))
        self.values = dict[int, ir.Value]()
        self.single = self.code.alloca(I64, 2)  # the first entry and the number of entries of a single row
        self.kernels = [
            KernelCode(number, step, contexts.workspaces[number])
            for number, step in enumerate(recipe.steps)
            if isinstance(step, PlanKernel)
        ]

    def write(self) -> None:
        """Generates the body of `run`: checks, memory, order of sequences, all operations, the error code."""
        code, zero = self.code, self.code.number(0)
        arena = Arena(self.spaces())
        self.check(arena.most)
        self.steps, self.longest = code.load(self.total_cell), code.load(self.longest_cell)
        arena.write(code, self.context, self.steps, self.rows)
        self.arena = arena
        self.fill_shared_arrays()
        self.laid = self.lay_out()
        self.weights = code.pointer_at(self.context, CONTEXT["weights"])
        self.bind_values()
        status = code.alloca(I64)
        code.store(zero, status)
        kernels = iter(self.kernels)
        for step in self.recipe.steps:
            if isinstance(step, AcrossStep):
                self.across(step)
            else:
                next(kernels).write(self, status)
        self.copy_results()
        outside = code.icmp_signed("!=", code.load(status), zero)
        code.ret(code.select(outside, ir.Constant(I32, CODE["INDEX"]), ir.Constant(I32, CODE["OK"])))

    # ---- checks

    def check(self, limit: int) -> None:
        """Writes checks at the start of `run`, which return an error code for arguments that violate the
        header. They also store the sum and the maximum of the sequences' lengths in `total_cell` and
        `longest_cell`. Without sequences, `run` returns 0 at once. limit: the largest allowed number of
        sequences or steps.
        """
        code, zero, rows = self.code, self.code.number(0), self.rows
        code.fail_when(code.is_null(self.context), "NULL")
        code.fail_when(code.less(rows, zero), "NEGATIVE")
        code.return_when(code.icmp_signed("==", rows, zero), ir.Constant(I32, CODE["OK"]))
        code.fail_when(code.is_null(self.offsets), "NULL")
        code.fail_when(code.less(code.number(limit), rows), "TOO_LARGE")
        code.fail_when(code.icmp_signed("!=", code.word(self.offsets), zero), "OFFSETS")
        code.store(zero, self.longest_cell)
        code.store(zero, self.total_cell)
        with code.loop(zero, rows) as row:
            end = code.read_number(self.offsets, code.add(row, code.number(1)))
            begin = code.load(self.total_cell)
            code.fail_when(code.less(end, begin), "OFFSETS")
            code.store(code.larger(code.sub(end, begin), code.load(self.longest_cell)), self.longest_cell)
            code.store(end, self.total_cell)
        total = code.load(self.total_cell)
        code.fail_when(code.less(code.number(limit), total), "TOO_LARGE")
        for argument, pointer in self.arguments.items():
            if not argument.optional:
                count = rows if argument.by_row else total
                missing = code.and_(code.is_null(pointer), code.less(zero, count))
                code.fail_when(missing, "NULL")

    # ---- memory

    def spaces(self) -> dict[object, Space]:
        """Returns the size of each array in the working memory of a call of `run`, which is one allocation,
        by a key that names its purpose.

        Keys: "lengths" of the sequences; "lanes" and "laid", the memory and the result of the assignment of
        sequences to lanes (slots that run one sequence after another); "begun", zeros as the numbers of steps
        run in earlier calls; "numbers", the step indices 0, 1, 2, ...; "zeros", initial memories that the
        caller leaves out; ("pieces", extent), the layout of parts without a recurrence; ("result", index) and
        ("value", node number), the values that the call computes; and the keys of single compiled parts.
        """
        zeros = max((type_.size * type_.itemsize for type_ in self.initial_types()), default=0)
        spaces: dict[object, Space] = {
            "lengths": Space(per_row=8),
            "lanes": Space(per_row=PER_SEQUENCE),
            "laid": Space(fixed=LAID_BYTES),
            "begun": Space(per_row=8),
            # The index of each step, up to the longest sequence.
            "numbers": Space(per_step=8, per_row=8, fixed=8 * PIECE * 2),
            "zeros": Space(per_row=zeros, fixed=PIECES * zeros),
        }
        for extent in sorted({kernel.step.plain for kernel in self.kernels} - {""}):
            spaces["pieces", extent] = Space(fixed=8 * PIECES * 2 + PIECES * PER_SEQUENCE + LAID_BYTES + 256)
        for argument, pointer in self.arguments.items():
            if argument.is_result:
                spaces["result", argument.index] = self.space_of(argument.type, pointer)
        for number in self.intermediate_values():
            spaces["value", number] = self.space_of(self.model.net.type_of(number))
        for kernel in self.kernels:
            spaces |= kernel.spaces()
        return spaces

    def initial_types(self) -> Iterable[Type]:
        """Yields the types of all initial memories; the largest decides how many zeros are kept for those
        that the caller leaves out.
        """
        for kernel in self.kernels:
            net, ends = kernel.step.plan.net, kernel.step.plan.ends
            yield from (net.type_of(net.inputs[index]) for index in ends.memories)
        yield from (argument.type for argument in self.arguments if argument.kind == "initial")

    def space_of(self, type_: Type, where: ir.Value | None = None) -> Space:
        """Returns the size of an array with a value of this type per sequence or step. where: a result's
        pointer argument; the array is there instead of in the arena (the memory of a call), unless the caller
        passes NULL.
        """
        bytes_ = type_.size * type_.itemsize
        by_row = type_.extent == ROWS
        return Space(0 if by_row else bytes_, bytes_ if by_row else 0, where=where)

    def results(self) -> dict[int, int]:
        """Maps each computed value that is a result, by node number, to the index of this result, the first
        if it has several. Operations write these values to the result's array, without a copy.
        """
        computed = set(self.computed_values())
        first = dict[int, int]()
        for index, number in enumerate(self.model.net.results):
            if number in computed:
                first.setdefault(number, index)
        return first

    def computed_values(self) -> Iterable[int]:
        """Yields the node numbers of the values that a call's operations compute, to give them memory."""
        for step in self.recipe.steps:
            if isinstance(step, PlanKernel):
                yield from (number for number in (*step.outputs, *step.rows) if number >= 0)
            else:
                yield step.result

    def intermediate_values(self) -> list[int]:
        """Lists computed values (node numbers) that are no results, so that they get memory in the arena."""
        results = self.results()
        return [number for number in dict.fromkeys(self.computed_values()) if number not in results]

    def fill_shared_arrays(self) -> None:
        """Writes code that fills the arrays which all compiled parts read: the sequences' lengths, zeros (for
        initial memories, and as the counts of steps run in earlier calls), and step indices 0, 1, 2, ... up
        to the longest sequence or piece (see `lay_pieces`).
        """
        code, zero = self.code, self.code.number(0)
        write_differences(code, self.offsets, self.rows, self.arena["lengths"])
        code.zero_bytes(self.arena["begun"], code.mul(self.rows, code.number(8)))
        zeros = code.number(self.arena.spaces["zeros"].per_row)
        code.zero_bytes(self.arena["zeros"], code.mul(code.add(self.rows, code.number(PIECES)), zeros))
        pieces = code.number(0)
        if any(kernel.step.plain for kernel in self.kernels):
            most = code.larger(self.steps, self.rows)
            whole = code.add(code.sdiv(most, code.number(PIECES)), code.number(2 * PIECE))
            pieces = code.smaller(most, whole)
        with code.loop(zero, code.larger(self.longest, pieces)) as step:
            code.write_number(step, self.arena["numbers"], step)

    # ---- where sequences lie

    def lay_out(self) -> dict[str, LayoutPointers]:
        """Writes code that assigns sequences to lanes (slots that run one sequence after another). Returns
        the layouts by key: "" for recurrences; "rows" or "steps" for parts without one, whose values per
        sequence or step are laid out as steps.
        """
        code, arena = self.code, self.arena
        code.call(self.lay, [arena["lengths"], self.rows, arena["lanes"], arena["laid"]])
        laid = {"": LayoutPointers(self.offsets, arena["lengths"], arena["laid"], self.rows)}
        for kernel in self.kernels:
            extent = kernel.step.plain
            if extent and extent not in laid:
                laid[extent] = self.lay_pieces(extent, self.rows if extent == "rows" else self.steps)
        return laid

    def lay_pieces(self, extent: str, count: ir.Value) -> LayoutPointers:
        """Writes code that lays out single values as the steps of a few artificial sequences (pieces) of
        about equal lengths, so that parts without a recurrence run in the same lanes (slots that run one
        sequence after another). extent: "rows" or "steps", of which there is one value each. count: the
        number of values. Returns the layout. See `plain_call` in `targets/packed`.
        """
        code, zero, one = self.code, self.code.number(0), self.code.number(1)
        starts = self.arena["pieces", extent]
        lengths, memory = code.at(starts, 8 * PIECES), code.at(starts, 16 * PIECES)
        laid = code.at(memory, PIECES * PER_SEQUENCE)
        pieces = code.smaller(code.sdiv(count, code.number(PIECE)), code.number(PIECES))
        pieces = code.larger(pieces, one)
        quotient, more = code.sdiv(count, pieces), code.srem(count, pieces)
        with code.loop(zero, pieces) as piece:
            longer = code.zext(code.less(piece, more), I64)
            code.write_number(code.add(quotient, longer), lengths, piece)
            begin = code.add(code.mul(piece, quotient), code.smaller(piece, more))
            code.write_number(begin, starts, piece)
        code.call(self.lay, [lengths, pieces, memory, laid])
        return LayoutPointers(starts, lengths, laid, pieces)

    # ---- values

    def bind_values(self) -> None:
        """Fills `self.values` with pointers, by node number: to the arguments, to zeros for an initial memory
        that is NULL, to constants in the weights, and to memory for all values that the call computes.
        """
        code, net = self.code, self.model.net
        for argument, pointer in self.arguments.items():
            if argument.is_result:
                continue
            if argument.kind == "initial":
                pointer = code.select(code.is_null(pointer), self.arena["zeros"], pointer)
            self.values[net.inputs[argument.index]] = pointer
        for number, index in self.recipe.constants.items():
            self.values[number] = code.at(self.weights, index)
        for number, index in self.results().items():
            self.values[number] = self.arena["result", index]
        for number in self.intermediate_values():
            self.values[number] = self.arena["value", number]

    def across(self, step: AcrossStep) -> None:
        """Writes a call that repeats a value over the steps of each sequence, or reduces over the steps."""
        code, across = self.code, step.across
        arrays: Sequence[ir.Value] = self.rows, self.offsets, self.arena["lengths"], self.arena["numbers"]
        if (
            across.source.extent == CONST
        ):  # it is repeated as the only row, which has all entries of the result
            code.set_word(self.single, 0, 0)
            code.set_word(self.single, 8, self.count_of(across.result.extent))
            arrays = code.number(1), self.single, code.at(self.single, 8), self.single
        function = across_function(code.module, code.processor, *function_of(across))
        values = self.values[step.source], self.values[step.result]
        code.call(function, [*values, *arrays, *map(code.number, numbers_of(across))])

    def copy_results(self) -> None:
        """Writes copies to the result arrays that no operation writes directly: results that are inputs, and
        second results with the same value.
        """
        code, net, first = self.code, self.model.net, self.results()
        for argument in self.arguments:
            number = net.results[argument.index] if argument.is_result else -1
            if argument.is_result and first.get(number) != argument.index:
                count = self.rows if argument.by_row else self.steps
                size = code.mul(count, code.number(argument.type.size * argument.type.itemsize))
                code.copy_bytes(self.arena["result", argument.index], self.values[number], size)

    def count_of(self, extent: tuple[str, ...]) -> ir.Value:
        """Returns the number of sequences of a call, for the extent ROWS, or else of steps, as a value in the
        generated code.
        """
        return self.rows if extent == ROWS else self.steps
