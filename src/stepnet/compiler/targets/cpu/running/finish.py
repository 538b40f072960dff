"""The work after the loop of a call: reductions over each sequence, and totals over all rows.

    machine code of the loop    writes the values that this work reads to hidden arrays
    tasks                       contracts, sums, means, maxima, in machine code (`contract.py`, `sums.py`)
    functions                   functions of totals, in machine code of the plan (`lower/totals.py`)
    rest                        in NumPy: other dtypes, scattered sums, functions with an order of additions

In a prepared call the tasks follow the loop in one block (`call_block.py`). Rows are always taken sequence by
sequence and step by step. So results do not depend on the layout of the call, its lanes or its threads.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from stepnet.compiler.native.call_words import WORDS
from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.types import CONST, ROWS, STEPS
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.base import Array, Call
from stepnet.compiler.targets.cpu.compile.compiled import CompiledPlan
from stepnet.compiler.targets.cpu.lower.needs import direct, tasks_of
from stepnet.compiler.targets.cpu.machine.lazy import late_import
from stepnet.compiler.targets.cpu.machine.memory import JointAllocation, aligned, pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.products.constants import Values
from stepnet.compiler.targets.cpu.running.contract_sums import contract_sums
from stepnet.compiler.targets.cpu.threads.workers import ParallelCalls
from stepnet.compiler.values.lending import Spec
from stepnet.compiler.values.records import dataclass

if TYPE_CHECKING:  # few plans have work after the loop
    from stepnet.compiler.targets.cpu.lower.totals import TotalFunctions
    from stepnet.compiler.targets.cpu.products.contract import Contract
    from stepnet.compiler.targets.cpu.running.sums import Sums

T = TypeVar("T")
Slot = tuple[str, int]
"""An array of a call: its kind, and its position among those of this kind."""


@dataclass(frozen=True)
class Finish:
    """Work of a plan after its loop: reductions of sequences, and totals of all rows.

    compiled: its machine code, and the arrays that the work reads.
    tasks: the nodes that are tasks of machine code.
    functions: the functions of totals that are machine code of the plan; None if there are none.
    constants: the constants that NumPy reads, by node of the net.
    memory: the memory with the constants that machine code reads.
    processor: the processor to compile for.
    """

    plan: Plan
    compiled: CompiledPlan
    tasks: frozenset[int]
    functions: "TotalFunctions | None"
    constants: dict[int, Array]
    memory: Array
    processor: Processor

    @classmethod
    def of(
        cls, plan: Plan, compiled: CompiledPlan, values: Values, memory: Array, processor: Processor
    ) -> "Finish | None":
        """Describes the work of a plan after its loop over steps: reductions of each sequence, and totals,
        which are values over all rows, such as the gradient of a weight. None if there is none: its results
        are outputs and final memories (recurrent states) only.

        compiled: the machine code of the plan, and the arrays that the work reads, such as final memories.
        values: the constants of the plan, computed from the parameters, by (False, node) for a node of its
            net, (True, node) for one of the step.
        memory: the memory with the constants that machine code reads.
        processor: the processor to compile for.
        """
        needs = compiled.needs
        in_order = [slot.index for slot in needs.finals if slot is not None] == [*range(len(plan.ends.rows))]
        if in_order and needs.are_none and not plan.ends.totals:
            return None
        read = {number for made in plan.total for number in plan.net.nodes[made].inputs}
        read |= set(plan.results(plan.ends.totals))
        constants = {n: values[False, n].copy() for n in read if (False, n) in values}
        functions: TotalFunctions | None = None
        if compiled.totals is not None:
            functions = late_import("lower.totals").TotalFunctions.of(plan)
        return cls(plan, compiled, frozenset(tasks_of(plan)), functions, constants, memory, processor)


class FunctionsTask(ParallelCalls):
    """Machine code of the functions of totals of a plan, with its argument words: the words of a call, few of
    which it reads, and the pointers of the totals that it reads and writes.
    """

    first_array = len(WORDS)

    def __init__(self, finish: Finish, arrays: int) -> None:
        """Writes the argument words of the machine code that computes functions of totals (values over all
        rows), but for the pointers of the totals. arrays: the number of these pointers.
        """
        function = finish.compiled.totals
        assert function is not None
        self.held = finish.memory, aligned(finish.compiled.strides["total"]), np.zeros(1, np.int64)
        words = np.zeros((1, len(WORDS) + arrays), np.int64)
        words[:, WORDS.index("lanes")] = 1
        for name, array in zip(("constants", "sequence", "status"), self.held, strict=True):
            words[:, WORDS.index(name)] = pointer(array)
        super().__init__(function, words)


class FinishCall:
    """Work after the loop (reductions of sequences, totals of rows) for calls of one layout of sequences.

    Its arrays are those of the call and hidden ones. An array is known by its kind ("inputs", "initial",
    "statics", "rows", "totals" or "hidden") and its position there.

    constants: those that this work reads, by node. They may be replaced between calls.
    final, others: the arrays that machine code writes for this work: of the memories that are read, and of
        other values.
    where: the array of each node that has one.
    of_functions: the arrays that functions of totals read and write.
    sums: the sums over all rows that contracts compute, by contract.
    tasks: the machine code of the other nodes that have some, by these nodes: contracts that share an operand
        are one task.
    functions: the machine code of functions of totals, which reads results of tasks; None if there are none.
    rest: the nodes that NumPy computes. They read results of machine code, which reads none of theirs.
    copied: the totals that only NumPy writes, as they are constants or equal to others: nodes, and positions
        among the totals.
    hidden: the hidden arrays, of values that are not returned.
    """

    def __init__(self, finish: Finish, call: Call) -> None:
        """Finds the arrays of the work of a plan (the operations of a part) after its loop over steps, and
        prepares the tasks (calls of machine code) of this work for calls like `call`. finish: describes the
        work. Values of all steps and reductions that a call does not return get arrays of their own, which
        are called hidden.
        """
        self.plan, self.positions = finish.plan, call.positions
        self.constants, self.processor = finish.constants, finish.processor
        self.places, self.offsets = self.positions.all_step_indices, self.positions.offsets
        net, needs, ends = self.plan.net, finish.compiled.needs, self.plan.ends
        inputs = {"inputs": ends.sequences, "initial": ends.memories, "statics": ends.statics}
        self.where: dict[int, Slot] = {
            net.inputs[place]: (kind, n) for kind, places in inputs.items() for n, place in enumerate(places)
        }
        self.shapes = list[Spec]()
        self.final = [self.slot(each.number, each.index) for each in needs.finals if each is not None]
        places = direct(self.plan)
        self.others = [self.slot(number, places.get(number, -1)) for number in (*needs.kept, *needs.reduced)]
        self.others += [self.slot(each.number, each.index) for each in needs.ended]
        totals = [*enumerate(self.plan.results(ends.totals))]
        for place, number in totals:
            if number in self.plan.total:
                self.where.setdefault(number, ("totals", place))
        late = *self.plan.reduced, *self.plan.total
        by_code, self.functions = {number for number in late if number in finish.tasks}, None
        # The gradients of one sequence alone have the bits of those that each of several has for itself.
        self.sums = contract_sums(net, by_code) if self.positions.rows > 1 else {}
        between = {each.between for each in self.sums.values()}
        apart = by_code - between - {each.number for each in self.sums.values()}
        self.tasks = {numbers: self.task(numbers) for numbers in joined(net, apart)}
        for number in sorted(by_code - between):
            if number not in self.where:
                self.slot(number)
        self.of_functions = list[Slot]()
        if (functions := finish.functions) is not None:
            by_code |= functions.numbers
            self.of_functions += [self.where[number] for number in functions.read]
            self.of_functions += [
                ("totals", place) if place >= 0 else self.slot(number) for number, place in functions.made
            ]
            self.functions = FunctionsTask(finish, len(self.of_functions))
        self.rest = [number for number in late if number not in by_code]
        self.copied = [
            (n, place)
            for place, n in totals
            if self.where.get(n) != ("totals", place) and ("totals", place) not in self.of_functions
        ]
        self.hidden = JointAllocation(self.shapes)

    def slot(self, number: int, place: int = -1) -> Slot:
        """Assigns an array to the value of a node, and returns its kind and position among those of this
        kind.

        number: the node of the net.
        place: the position of the value among the results per row; -1 for a value that is no such result,
            which gets a new hidden array, one that the call does not return.
        """
        found = "rows", place
        if place < 0:
            type_, found = self.plan.net.type_of(number), ("hidden", len(self.shapes))
            counts = {STEPS: (self.positions.total,), ROWS: (self.positions.rows,), CONST: ()}
            self.shapes.append(((*counts[type_.extent], *type_.shape), type_.dtype))
        self.where.setdefault(number, found)
        return found

    def task(self, numbers: Sequence[int]) -> "Contract | Sums":
        """Prepares the machine code of a reduction over steps, or of a total (over all rows), for the
        sequences of the call.

        numbers: the node, one of those that have machine code (`tasks_of`), or several contracts (sums of
            outer products) that share operands.
        """
        made = late_import("running.finish_tasks")
        net, node = self.plan.net, self.plan.net.nodes[numbers[0]]
        types = [net.type_of(number) for number in node.inputs]
        places = self.places if types[0].extent == STEPS else np.arange(self.positions.rows)
        if node.operation == "contract":
            products = [net.nodes[number].inputs for number in numbers]
            by_number = {number: net.type_of(number) for operands in products for number in operands}
            offsets = self.offsets if node.type.extent == ROWS else None
            summed = [(n, self.sums[each].side) for n, each in enumerate(numbers) if each in self.sums]
            return made.contract_task(node, products, by_number, places, self.processor, offsets, summed)
        if node.type.extent == CONST:
            return made.total_task(node, types, places, self.processor)
        how: str = node.attributes["how"]
        return made.Sums(types[0].size, types[0].dtype, places, self.offsets, self.processor, how)

    def arrays_of(self, numbers: Sequence[int]) -> list[int]:
        """Lists the nodes whose arrays a task reads and writes, in the order of its arguments. numbers: the
        nodes that the task computes. A contract beside others with sums, but without one, has its result in
        the place of the sum, which it does not write.
        """
        nodes, sums = self.plan.net.nodes, self.sums
        if not any(number in sums for number in numbers):
            return [n for number in numbers for n in (*nodes[number].inputs, number)]
        last = {number: sums[number].number if number in sums else number for number in numbers}
        return [n for number in numbers for n in (*nodes[number].inputs, number, last[number])]

    def laid(self, kinds: Mapping[str, Sequence[T]]) -> tuple[list[T], list[T], dict[int, T], list[T]]:
        """Selects the arrays of the work after the loop, or other data on arrays such as their keys, from
        those of a call, for the arguments of the tasks.

        kinds: the arrays of the call by kind, with "statics" for values that every step reads and "hidden"
            for those that a call does not return: "inputs", "initial", "statics", "rows", "totals" and
            "hidden".

        Returns the arrays that the machine code of the loop writes for this work (final memories, which are
        recurrent states, and then others), all arrays that this work reads or writes, by node of the net, and
        those that functions of totals (values over all rows) read and write.
        """
        final = [kinds[kind][place] for kind, place in self.final]
        others = [kinds[kind][place] for kind, place in self.others]
        nodes = {number: kinds[kind][place] for number, (kind, place) in self.where.items()}
        return final, others, nodes, [kinds[kind][place] for kind, place in self.of_functions]

    def changed(
        self,
        keys: Mapping[int, Hashable],
        of_functions: Sequence[Hashable],
        fixed: Mapping[Hashable, int],
        order: Mapping[Hashable, int],
    ) -> list[ParallelCalls]:
        """Prepares the machine code tasks of the work after the loop to be run again and again on other
        arrays; returns the tasks.

        keys: for each node of the net, the key of its array.
        of_functions: the keys of the arrays that functions of totals (values over all rows) read and write.
        fixed: the addresses of the arrays that all runs share, by key.
        order: for each array that changes from run to run, the index of its address among those of a run.
        """
        for numbers, task in self.tasks.items():
            task.change([keys[n] for n in self.arrays_of(numbers)], fixed, order)
        if self.functions is None:
            return [*self.tasks.values()]
        self.functions.change(of_functions, fixed, order)
        return [*self.tasks.values(), self.functions]

    def run(self, numbers: Sequence[int], values: dict[int, Array], of_functions: Sequence[Array]) -> None:
        """Computes reductions of sequences, or totals (values over all rows), and writes them to the arrays
        that `values` has for them; those of NumPy that it has none for are added in new arrays.

        numbers: the nodes of the net to compute, in order.
        values: the arrays of the call by node, and the constants that the nodes read.
        of_functions: the arrays that functions of totals read and write; none to leave these out.
        """
        for computed in (computed for computed in self.tasks if computed[0] in numbers):
            task = self.tasks[computed]
            arrays = [np.ascontiguousarray(values[n]) for n in self.arrays_of(computed)]
            task.point(*map(pointer, arrays))
            task()
        if self.functions is not None and of_functions:
            self.functions.point(*map(pointer, of_functions))
            self.functions()
        self.run_rest([number for number in numbers if number in self.rest], values)

    def run_rest(self, numbers: Sequence[int], values: dict[int, Array]) -> None:
        """Computes those reductions of sequences and totals (values over all rows) that have no machine code,
        by NumPy, and writes them to the arrays that `values` has for them; if it has none, adds them to
        `values`.

        numbers: the nodes of the net to compute, in order. values: the arrays by node, among them those that
            these nodes read.
        """
        for number in numbers:
            node = self.plan.net.nodes[number]
            made = self.by_numpy(node, [np.ascontiguousarray(values[n]) for n in node.inputs])
            if number in self.where:
                values[number][...] = made
            else:
                values[number] = made

    def by_numpy(self, node: Node, operands: Sequence[Array]) -> Array:
        """Computes the value of a node that has no machine code: a reduction over the steps of each sequence,
        or a total (a value over all rows). operands: the values of the node's inputs.
        """
        made = late_import("running.finish_tasks")
        if node.operation == "contract" and node.type.extent == ROWS:
            pieces = [[array[self.places[a:b]] for array in operands] for a, b in pairwise(self.offsets)]
            totals = [made.total(node, piece, self.processor) for piece in pieces]
            return np.array(totals).reshape(-1, *node.type.shape)
        if node.type.extent == ROWS:
            return made.reduced(
                node.attributes["how"], operands[0], self.places, self.offsets, self.processor
            )
        types = [self.plan.net.type_of(number) for number in node.inputs]
        pairs = zip(types, operands, strict=True)
        packed = [array[self.places] if type_.extent == STEPS else array for type_, array in pairs]
        return made.total(node, packed, self.processor)

    def copy(self, values: Mapping[int, Array], totals: Sequence[Array]) -> None:
        """Copies the totals (values over all rows) that no machine code writes, as they are constants or
        equal to others, to their arrays. values: the values of the nodes. totals: the arrays of all totals.
        """
        for number, place in self.copied:
            totals[place][...] = values[number]

    def release(self) -> None:
        """Returns the buffers for computing gradients of weights to the pool of memory."""
        if self.tasks:
            late_import("running.finish_tasks").release(self.tasks.values())


def joined(net: Net, numbers: Collection[int]) -> list[tuple[int, ...]]:
    """Groups nodes that machine code computes after a loop: contracts (sums of outer products) over the same
    steps that share an operand are one task, which packs it once. Returns the nodes of each task, in order.

    net: the net of the nodes. numbers: the nodes.
    """
    tasks, task_of = list[list[int]](), dict[Hashable, list[int]]()
    for number in sorted(numbers):
        node, keys = net.nodes[number], list[Hashable]()
        if node.operation == "contract" and net.type_of(node.inputs[0]).extent == STEPS:
            kind = node.type.extent, node.attributes.get("weights")
            keys += [(kind, place, operand) for place, operand in enumerate(node.inputs)]
        task = next((task_of[key] for key in keys if key in task_of), None)
        if task is None:
            tasks.append(task := [])
        task.append(number)
        task_of |= dict.fromkeys(keys, task)
    return [*map(tuple, tasks)]
