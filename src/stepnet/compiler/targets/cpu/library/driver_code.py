"""Generates a library's `run`: it checks arguments, distributes sequences over lanes, and runs all tasks.

    offsets 0 3 5, arrays  ->  checks  ->  memory  ->  lanes  ->  call block  ->  0, or an error

It does in each call what Python does when it prepares one; the tasks run as they do in a prepared call (see
`targets/cpu/running/call_block`). It runs in one thread, in the memory of a context.
"""

from collections.abc import Iterable

from llvmlite import ir

from stepnet.compiler.net.types import ROWS, STEPS, Type
from stepnet.compiler.targets.cpu.library.arena import Arena, Space
from stepnet.compiler.targets.cpu.library.call_block import Key, LibraryBlock, LibraryTask, across_task
from stepnet.compiler.targets.cpu.library.kernel_code import KernelCode
from stepnet.compiler.targets.cpu.library.library_code import function
from stepnet.compiler.targets.cpu.library.recipe import AcrossStep, PlanKernel, Recipe
from stepnet.compiler.targets.cpu.library.workspaces import CONTEXT, Contexts
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.running.lengths import LAID, LAID_BYTES, PER_SEQUENCE
from stepnet.compiler.targets.cpu.running.lengths_code import write_differences, write_lay
from stepnet.compiler.targets.cpu.writing.code import I32, I64, POINTER
from stepnet.compiler.targets.library import CODES, ArrayArgument, CallSpecification
from stepnet.compiler.targets.packed import PIECE, PIECES


class RunCode:
    """Generates the C function `run` of a library. values: the pointer to each value, by node number."""

    def __init__(
        self, module: ir.Module, processor: Processor, name: str, model: CallSpecification, recipe: Recipe
    ) -> None:
        """Adds the empty function `run` to the LLVM module, and lays out the tasks of a call. name: the
        prefix of the library's functions. recipe: the operations of a call, in order.
        """
        self.name, self.model, self.recipe = name, model, recipe
        self.lay = write_lay(module, processor, f"{name}_lay")
        types = [POINTER, I64, POINTER, *[POINTER] * len(model.arguments)]
        ir_function, self.code = function(module, processor, f"{name}_run", I32, types, public=True)
        self.context, self.rows, self.offsets, *pointers = ir_function.args
        self.arguments = dict(zip(model.arguments, pointers, strict=True))
        self.total_cell, self.longest_cell, self.rows_cell = (self.code.alloca(I64) for _ in range(3))
        self.code.store(self.rows, self.rows_cell)
        self.values = dict[Key, ir.Value]()
        self.kernels, tasks, contexts = list[KernelCode](), list[LibraryTask](), Contexts()
        for number, step in enumerate(recipe.steps):
            if isinstance(step, AcrossStep):
                tasks.append(across_task(self.code, contexts, step.across, step.source, step.result))
            else:
                self.kernels.append(KernelCode(number, step, contexts))
                tasks += self.kernels[-1].tasks(self.code, name)
        self.block = LibraryBlock(tasks, contexts)

    def write(self) -> None:
        """Generates the body of `run`: checks, memory, order of sequences, the run of all tasks, the error
        code.
        """
        code = self.code
        arena = Arena(self.spaces())
        self.check(arena.most)
        self.steps, self.longest = code.load(self.total_cell), code.load(self.longest_cell)
        arena.write(code, self.context, self.steps, self.rows)
        self.arena = arena
        self.fill_shared_arrays()
        self.values |= arena.pointers | {"rows": self.rows, "offsets": self.offsets, "one": code.number(1)}
        self.values |= {("count", STEPS): self.total_cell, ("count", ROWS): self.rows_cell}
        self.lay_out()
        self.bind_values()
        outside = self.block.write_run(code, f"{self.name}_block", self.context, self.values)
        self.copy_results()
        code.ret(code.select(outside, ir.Constant(I32, CODES["INDEX"]), ir.Constant(I32, CODES["OK"])))

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
        code.return_when(code.icmp_signed("==", rows, zero), ir.Constant(I32, CODES["OK"]))
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
        caller leaves out; ("pieces", extent), the layout of parts without a recurrence; node numbers, of the
        values that the call computes; and the keys of single compiled parts.
        """
        zeros = max((type_.size * type_.itemsize for type_ in self.initial_types()), default=0)
        pieces = PIECES if "zeros" in self.block.keys else 0
        spaces: dict[object, Space] = {
            "lengths": Space(per_row=8),
            "lanes": Space(per_row=PER_SEQUENCE),
            "laid": Space(fixed=LAID_BYTES),
            "begun": Space(per_row=8),
            # The index of each step, up to the longest sequence.
            "numbers": Space(per_step=8, per_row=8, fixed=8 * PIECE * 2),
            "zeros": Space(per_row=zeros, fixed=pieces * zeros),
        }
        for extent in sorted({kernel.step.plain for kernel in self.kernels} - {""}):
            spaces["pieces", extent] = Space(fixed=8 * PIECES * 2 + PIECES * PER_SEQUENCE + LAID_BYTES + 256)
        written = self.written()
        for number in dict.fromkeys(self.computed_values()):
            type_, argument = self.model.net.type_of(number), written.get(number)
            bytes_, by_row = type_.size * type_.itemsize, type_.extent == ROWS
            # A result lies in the caller's array, unless that is NULL.
            where = None if argument is None else self.arguments[argument]
            spaces[number] = Space(0 if by_row else bytes_, bytes_ if by_row else 0, where=where)
        for kernel in self.kernels:
            spaces |= kernel.spaces()
        return spaces

    def initial_types(self) -> Iterable[Type]:
        """Yields the types of the initial memories that are zeros, or may be; the largest decides how many
        zeros there are.
        """
        for kernel in self.kernels if "zeros" in self.block.keys else ():
            net, ends = kernel.step.plan.net, kernel.step.plan.ends
            yield from (net.type_of(net.inputs[index]) for index in ends.memories)
        yield from (argument.type for argument in self.arguments if argument.kind == "initial")

    def written(self) -> dict[int, ArrayArgument]:
        """Maps each computed value that is a result, by node number, to its argument, the first if it has
        several. Operations write these values to the argument's array, without a copy.
        """
        computed, results = set(self.computed_values()), self.model.net.results
        first = dict[int, ArrayArgument]()
        for argument in self.arguments:
            if argument.is_result and results[argument.index] in computed:
                first.setdefault(results[argument.index], argument)
        return first

    def computed_values(self) -> Iterable[int]:
        """Yields the node numbers of the values that a call's operations compute, to give them memory."""
        for step in self.recipe.steps:
            if isinstance(step, PlanKernel):
                yield from (number for number in (*step.outputs, *step.rows) if number >= 0)
            else:
                yield step.result

    def fill_shared_arrays(self) -> None:
        """Writes code that fills the arrays which all compiled parts read: the sequences' lengths, zeros (for
        initial memories, and as the counts of steps run in earlier calls), and step indices 0, 1, 2, ... up
        to the longest sequence or piece (see `pieces`).
        """
        code, zero = self.code, self.code.number(0)
        write_differences(code, self.offsets, self.rows, self.arena["lengths"])
        if "begun" in self.block.keys:
            code.zero_bytes(self.arena["begun"], code.mul(self.rows, code.number(8)))
        zeros = self.arena.spaces["zeros"]
        size = code.add(code.mul(self.rows, code.number(zeros.per_row)), code.number(zeros.fixed))
        code.zero_bytes(self.arena["zeros"], size)
        pieces = code.number(0)
        if any(kernel.step.plain for kernel in self.kernels):
            most = code.larger(self.steps, self.rows)
            whole = code.add(code.sdiv(most, code.number(PIECES)), code.number(2 * PIECE))
            pieces = code.smaller(most, whole)
        with code.loop(zero, code.larger(self.longest, pieces)) as step:
            code.write_number(step, self.arena["numbers"], step)

    # ---- where sequences lie

    def lay_out(self) -> None:
        """Writes code that assigns sequences to lanes (slots that run one sequence after another), and adds
        the tables and numbers of each layout to `values`, by the extent "" for recurrences, or "rows" or
        "steps" for parts without one, whose values per sequence or step are laid out as steps.
        """
        code, arena, one = self.code, self.arena, self.code.number(1)
        for extent in dict.fromkeys(kernel.step.plain for kernel in self.kernels):
            if extent:
                starts, lengths, memory, laid, rows = self.pieces(extent)
            else:
                starts, rows = self.offsets, self.rows
                lengths, memory, laid = (arena[key] for key in ("lengths", "lanes", "laid"))
            code.call(self.lay, [lengths, rows, memory, laid])
            numbers = {name: code.word(laid, LAID[name]) for name in ("lanes", "steps", "order")}
            tables = {name: code.at(laid, LAID[name]) for name in ("first", "lane_steps")}
            own = {"starts": starts, "lengths": lengths, "rows": rows, **numbers, **tables}
            self.values |= {(extent, name): value for name, value in own.items()}
            lanes = code.larger(numbers["lanes"], one)
            for most in {kernel.workspace.rows for kernel in self.kernels if kernel.step.plain == extent}:
                steps = code.larger(code.sdiv(code.number(most), lanes), one)
                self.values[extent, "block_steps", most] = steps

    def pieces(self, extent: str) -> tuple[ir.Value, ...]:
        """Writes code that lays out single values as the steps of a few artificial sequences (pieces) of
        about equal lengths, so that parts without a recurrence run in the same lanes (slots that run one
        sequence after another). extent: "rows" or "steps", of which there is one value each. Returns the
        tables of their starts and lengths, the memory and the table for `lay`, and their number. See
        `plain_call` in `targets/packed`.
        """
        code, zero, one = self.code, self.code.number(0), self.code.number(1)
        count = self.rows if extent == "rows" else self.steps
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
        return starts, lengths, memory, laid, pieces

    # ---- values

    def bind_values(self) -> None:
        """Adds pointers to the values that no task computes to `values`, by node number: to the arguments, to
        zeros for an initial memory that is NULL, and to constants in the weights.
        """
        code = self.code
        weights = code.pointer_at(self.context, CONTEXT["weights"])
        for argument, pointer in self.arguments.items():
            if argument.kind == "initial":
                pointer = code.select(code.is_null(pointer), self.arena["zeros"], pointer)
            if not argument.is_result:
                self.values[self.model.net.inputs[argument.index]] = pointer
        for number, index in self.recipe.constants.items():
            self.values[number] = code.at(weights, index)

    def copy_results(self) -> None:
        """Writes copies to the result arrays that no operation writes directly: results that are inputs, and
        second results with the same value.
        """
        code, written = self.code, self.written().values()
        for argument, pointer in self.arguments.items():
            if argument.is_result and argument not in written:
                count = self.rows if argument.by_row else self.steps
                size = code.mul(count, code.number(argument.type.size * argument.type.itemsize))
                with code.when(code.not_(code.is_null(pointer))):
                    code.copy_bytes(pointer, self.values[self.model.net.results[argument.index]], size)
