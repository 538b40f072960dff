"""Generates a library's `run`: it checks arguments, distributes sequences over lanes, and runs all tasks.

    offsets 0 3 5, arrays  ->  checks  ->  memory  ->  lanes  ->  call block  ->  0, or an error

It does in each call what Python does when it prepares one; the tasks run as they do in a prepared call (see
`targets/cpu/running/call_block`). It runs in one thread, in the memory of a context.
"""

from collections.abc import Iterable, Mapping

from llvmlite import ir

from stepnet.compiler.net.types import ROWS, STEPS, Extent, Type, is_derived
from stepnet.compiler.targets.cpu.costs import LANES
from stepnet.compiler.targets.cpu.library.arena import Arena, Space
from stepnet.compiler.targets.cpu.library.call_block import Key, LibraryBlock, LibraryTask, across_task
from stepnet.compiler.targets.cpu.library.counts_code import (
    counted_outputs,
    write_count,
    write_public_counts,
)
from stepnet.compiler.targets.cpu.library.kernel_code import KernelCode
from stepnet.compiler.targets.cpu.library.library_code import function
from stepnet.compiler.targets.cpu.library.objects import OWN
from stepnet.compiler.targets.cpu.library.recipe import AcrossStep, PlanKernel, Recipe
from stepnet.compiler.targets.cpu.library.workspaces import CONTEXT, Contexts
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.running.lengths import LAID, LAID_BYTES, PER_SEQUENCE
from stepnet.compiler.targets.cpu.running.lengths_code import write_differences, write_lay
from stepnet.compiler.targets.cpu.writing.code import I32, I64, POINTER
from stepnet.compiler.targets.library import CODES, ArrayArgument, CallSpecification

ONE = ("starts", "lengths", "order", "first", "")
"""The tables of a single sequence in one lane, of an entry each; `first` has two."""


class RunCode:
    """Generates the C function `run` of a library. values: the pointer to each value, by node number. counts:
    the number of entries along each extent.
    """

    def __init__(
        self, module: ir.Module, processor: Processor, name: str, model: CallSpecification, recipe: Recipe
    ) -> None:
        """Adds the empty function `run` to the LLVM module, and lays out the tasks of a call. name: the
        prefix of the library's functions. recipe: the operations of a call, in order.
        """
        self.name, self.model, self.recipe = name, model, recipe
        self.lay = write_lay(module, processor, f"{name}_lay")
        extents = (type_.extent for type_ in model.net.types)
        self.derived = {
            extent: write_count(module, processor, f"{name}{OWN}length_{number}", extent[-1])
            for number, extent in enumerate(dict.fromkeys(filter(is_derived, extents)))
        }
        by_axis = {extent[-1]: count for extent, count in self.derived.items()}
        write_public_counts(module, processor, counted_outputs(model, name), by_axis)
        types = [POINTER, I64, POINTER, *[POINTER] * len(model.arguments)]
        ir_function, self.code = function(module, processor, f"{name}_run", I32, types, public=True)
        self.context, self.rows, self.offsets, *pointers = ir_function.args
        self.arguments = dict(zip(model.arguments, pointers, strict=True))
        self.cells = {extent: self.code.alloca(I64) for extent in (ROWS, STEPS, *self.derived)}
        self.longest_cell, self.counts = self.code.alloca(I64), dict[Extent, ir.Value]()
        self.code.store(self.rows, self.cells[ROWS])
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
        """Generates the body of the function `run` of a C library, which runs the model on a batch: checks,
        memory, order of sequences, the run of all tasks, the error code.
        """
        code = self.code
        arena = Arena(self.spaces())
        self.check(arena.most)
        self.counts = {extent: code.load(cell) for extent, cell in self.cells.items()}
        arena.write(code, self.context, self.counts)
        self.arena = arena
        self.fill_shared_arrays()
        self.values |= arena.pointers | {"rows": self.rows, "one": code.number(1)}
        self.values["offsets", STEPS[-1]] = self.offsets
        self.values |= {("count", extent): cell for extent, cell in self.cells.items()}
        self.lay_out()
        self.bind_values()
        outside = self.block.write_run(code, f"{self.name}_block", self.context, self.values)
        self.copy_results()
        code.ret(code.select(outside, ir.Constant(I32, CODES["INDEX"]), ir.Constant(I32, CODES["OK"])))

    # ---- checks

    def check(self, limit: int) -> None:
        """Writes checks at the start of `run`, which return an error code for arguments that violate the
        header. They also store the number of entries along each extent (axes such as rows and steps) in
        `cells`, and that of the longest sequence along any of them in `longest_cell`. Without sequences,
        `run` returns 0 at once. limit: the largest allowed number of sequences or steps.
        """
        code, zero, rows = self.code, self.code.number(0), self.rows
        code.fail_when(code.is_null(self.context), "NULL")
        code.fail_when(code.less(rows, zero), "NEGATIVE")
        code.return_when(code.icmp_signed("==", rows, zero), ir.Constant(I32, CODES["OK"]))
        code.fail_when(code.is_null(self.offsets), "NULL")
        code.fail_when(code.less(code.number(limit), rows), "TOO_LARGE")
        code.fail_when(code.icmp_signed("!=", code.word(self.offsets), zero), "OFFSETS")
        for cell in (self.longest_cell, self.cells[STEPS], *(self.cells[extent] for extent in self.derived)):
            code.store(zero, cell)
        with code.loop(zero, rows) as row:
            end = code.read_number(self.offsets, code.add(row, code.number(1)))
            begin = code.load(self.cells[STEPS])
            code.fail_when(code.less(end, begin), "OFFSETS")
            steps = code.sub(end, begin)
            code.store(code.larger(steps, code.load(self.longest_cell)), self.longest_cell)
            code.store(end, self.cells[STEPS])
            for extent, count in self.derived.items():
                own, cell = code.call(count, [steps]), self.cells[extent]
                code.fail_when(code.less(own, zero), "TOO_LARGE")
                code.store(code.larger(own, code.load(self.longest_cell)), self.longest_cell)
                code.store(code.add(code.load(cell), own), cell)
            for extent, least in self.least_steps().items():
                own = code.call(self.derived[extent], [steps]) if extent in self.derived else steps
                is_short = code.and_(code.less(zero, own), code.less(own, code.number(least)))
                code.fail_when(is_short, "TOO_SHORT")
        code.fail_when(code.less(code.number(limit), code.load(self.cells[STEPS])), "TOO_LARGE")
        for argument, pointer in self.arguments.items():
            if not argument.optional:
                entries = code.load(self.cells[argument.type.extent])
                missing = code.and_(code.is_null(pointer), code.less(zero, entries))
                code.fail_when(missing, "NULL")

    def least_steps(self) -> Mapping[Extent, int]:
        """Returns the number of steps that a sequence along an extent has at least, unless it has none, for
        the extents that padding by reflection reads.
        """
        least = dict[Extent, int]()
        for step in self.recipe.steps:
            if isinstance(step, AcrossStep) and step.across.extension is not None:
                extent = step.across.source.extent
                least[extent] = max(step.across.extension.least, least.get(extent, 1))
        return {extent: count for extent, count in least.items() if count > 1}

    # ---- memory

    def spaces(self) -> dict[object, Space]:
        """Returns the size of each array in the working memory of a call of `run`, which is one allocation,
        by a key that names its purpose.

        Keys: ("lengths", axis) and ("offsets", axis) of the sequences along an axis of steps, where the
        caller does not give them; ("lanes", extent) and ("laid", extent), the memory and the result of the
        assignment of the sequences of an extent (axes such as rows and steps) to lanes (slots that run one
        sequence after another); ("one", extent), the tables of the one sequence that parts without a
        recurrence run over; "begun", zeros as the numbers of steps run in earlier calls; "numbers", the step
        indices 0, 1, 2, ...; "zeros", initial memories that the caller leaves out; node numbers, of the
        values that the call computes; and the keys of single compiled parts.
        """
        zeros = max((type_.size * type_.itemsize for type_ in self.initial_types()), default=0)
        spaces: dict[object, Space] = {
            ("lengths", STEPS[-1]): Space({ROWS: 8}),
            "begun": Space({ROWS: 8}),
            # The index of each step, up to the longest sequence.
            "numbers": Space(dict.fromkeys(self.cells, 8)),
            "zeros": Space({ROWS: zeros}, zeros),
        }
        for extent in self.derived:
            spaces["lengths", extent[-1]], spaces["offsets", extent[-1]] = Space({ROWS: 8}), Space({ROWS: 8})
        for extent, is_plain in self.layouts:
            if is_plain:
                spaces["one", extent] = Space(fixed=8 * len(ONE))
            else:
                spaces["lanes", extent] = Space({ROWS: PER_SEQUENCE})
                spaces["laid", extent] = Space(fixed=LAID_BYTES)
        written = self.written()
        for number in dict.fromkeys(self.computed_values()):
            type_, argument = self.model.net.type_of(number), written.get(number)
            # A result lies in the caller's array, unless that is NULL.
            where = None if argument is None else self.arguments[argument]
            spaces[number] = Space({type_.extent: type_.size * type_.itemsize}, where=where)
        for kernel in self.kernels:
            spaces |= kernel.spaces()
        return spaces

    def initial_types(self) -> Iterable[Type]:
        """Yields the types of the initial memories (recurrent states) that are zeros, or may be; the largest
        decides the size of the array of zeros.
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
        initial memories, which are recurrent states, and as the counts of steps run in earlier calls), and
        step indices 0, 1, 2, ... up to the longest sequence, or the entries of a part without a recurrence.
        """
        code, zero = self.code, self.code.number(0)
        write_differences(code, self.offsets, self.rows, self.arena["lengths", STEPS[-1]])
        for extent, count in self.derived.items():
            self.fill_derived(count, *(self.arena[table, extent[-1]] for table in ("lengths", "offsets")))
        if "begun" in self.block.keys:
            code.zero_bytes(self.arena["begun"], code.mul(self.rows, code.number(8)))
        zeros = self.arena.spaces["zeros"]
        size = code.mul(code.add(self.rows, code.number(1)), code.number(zeros.fixed))
        code.zero_bytes(self.arena["zeros"], size)
        longest = code.load(self.longest_cell)
        for extent, is_plain in self.layouts:
            longest = code.larger(longest, self.counts[extent]) if is_plain else longest
        with code.loop(zero, longest) as step:
            code.write_number(step, self.arena["numbers"], step)

    def fill_derived(self, count: ir.Function, lengths: ir.Value, offsets: ir.Value) -> None:
        """Writes code that fills the tables of the lengths and offsets of sequences along a derived axis: one
        with another number of steps than the inputs, as after a stride.

        count: the function that returns the number of their steps. lengths, offsets: the tables.
        """
        code, zero = self.code, self.code.number(0)
        code.write_number(zero, offsets, zero)
        with code.loop(zero, self.rows) as row:
            behind = code.add(row, code.number(1))
            length = code.call(count, [code.read_number(self.arena["lengths", STEPS[-1]], row)])
            code.write_number(length, lengths, row)
            code.write_number(code.add(code.read_number(offsets, row), length), offsets, behind)

    # ---- where sequences lie

    @property
    def layouts(self) -> Iterable[tuple[Extent, bool]]:
        """The layouts (how sequences lie) of the compiled parts of a call: their extents (axes such as rows
        and steps), each with whether all values count as one sequence, as in parts without a recurrence.
        """
        return dict.fromkeys(kernel.laid for kernel in self.kernels)

    def lay_out(self) -> None:
        """Writes code that assigns the sequences along each extent (axes such as rows and steps) to lanes,
        the slots that run one sequence after another; adds the tables and numbers to `values`. The values of
        a compiled part without a recurrence are one sequence, in one lane.
        """
        code, one = self.code, self.code.number(1)
        for extent, is_plain in self.layouts:
            own = self.one_sequence(extent) if is_plain else self.in_lanes(extent)
            self.values |= {(extent, is_plain, name): value for name, value in own.items()}
            lanes = code.larger(own["lanes"], one)
            for most in {
                kernel.workspace.rows for kernel in self.kernels if kernel.laid == (extent, is_plain)
            }:
                steps = code.larger(code.sdiv(code.number(most), lanes), one)
                self.values[extent, is_plain, "block_steps", most] = steps

    def in_lanes(self, extent: Extent) -> dict[str, ir.Value]:
        """Writes code that assigns the sequences along an extent (axes such as rows and steps) to lanes, the
        slots that run one sequence after another; returns the tables and numbers of the assignment, by the
        names of the argument words that get them.
        """
        code, (*_, axis) = self.code, extent
        starts, lengths = self.values["offsets", axis], self.arena["lengths", axis]
        memory, laid = (self.arena[name, extent] for name in ("lanes", "laid"))
        code.call(self.lay, [lengths, self.rows, memory, self.rows, laid, code.number(LANES)])
        numbers = {name: code.word(laid, LAID[name]) for name in ("lanes", "steps", "order")}
        tables = {name: code.at(laid, LAID[name]) for name in ("first", "lane_steps")}
        return {"starts": starts, "lengths": lengths, "rows": self.rows, **numbers, **tables}

    def one_sequence(self, extent: Extent) -> dict[str, ir.Value]:
        """Writes code that lays out all values of an extent (axes such as rows and steps) as the steps of one
        sequence, which a single lane (a slot for sequences) runs; returns its tables and numbers, by the
        names of the argument words that get them.
        """
        code, count, table = self.code, self.counts[extent], self.arena["one", extent]
        for place, value in enumerate((0, count, 0, 0, 1)):
            code.set_word(table, 8 * place, value)
        tables = {name: code.at(table, 8 * place) for place, name in enumerate(ONE) if name}
        return {
            **tables,
            "lane_steps": tables["lengths"],
            "rows": code.number(1),
            "lanes": code.number(1),
            "steps": count,
        }

    # ---- values

    def bind_values(self) -> None:
        """Adds pointers to the values that no operation of the call computes to `values`, by node number: to
        the arguments, to zeros for an initial memory (recurrent state) that is NULL, and to constants in the
        weights.
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
                count = self.counts[argument.type.extent]
                size = code.mul(count, code.number(argument.type.size * argument.type.itemsize))
                with code.when(code.not_(code.is_null(pointer))):
                    code.copy_bytes(pointer, self.values[self.model.net.results[argument.index]], size)
