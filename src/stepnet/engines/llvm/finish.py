"""The work after the loop of a call: reductions over each sequence, and totals over all rows.

Contracts and sums have kernels of their own (`contract.py`, `sums.py`); NumPy does the rest. The rows of steps are always taken
in the same order, sequence by sequence and step by step, whatever the layout of the call, its lanes and its
threads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stepnet.engines.base import Array, Call, Results
from stepnet.engines.llvm.constants import Values
from stepnet.engines.llvm.contract import contract
from stepnet.engines.llvm.memory import Shape, together
from stepnet.engines.llvm.needs import Needs
from stepnet.engines.llvm.sums import sums
from stepnet.engines.llvm.target import Target
from stepnet.net.ir import Node
from stepnet.net.totals import REDUCTIONS, mean_of, total_of
from stepnet.net.types import STEPS, Type
from stepnet.plan.plan import Plan
from stepnet.ragged.offsets import offsets_of

Kinds = Mapping[str, Sequence[Array | None]]


class Rows(NamedTuple):
    """The values of one node: an array, and the rows of it that count, in order; None for all rows."""

    array: Array
    places: Array | None = None

    @property
    def packed(self) -> Array:
        """The rows that count, one after the other."""
        return self.array if self.places is None else self.array[self.places]


class Arrays(NamedTuple):
    """The arrays of a call in the order of their words, including those of the last memories.

    Also the memory for values computed once per sequence (None where there are none), the number of
    sequences, all arrays by kind where there is work after the loop, and the memory of those that are for
    that work alone.
    """

    in_order: list[Array | None]
    final: Sequence[Array]
    record: Array | None
    batch: int
    kinds: Kinds
    kept: Array | None


@dataclass(frozen=True)
class Finish:
    """The work of a plan after its loop, and the constants that it reads, by their numbers in the net.

    target: the processor that code is made for.
    """

    plan: Plan
    needs: Needs
    constants: dict[int, Array]
    target: Target

    @classmethod
    def of(cls, plan: Plan, needs: Needs, values: Values, target: Target) -> "Finish | None":
        """The work of a plan after its loop; None where its only results are outputs and last memories.

        values: the known values of the parameters.
        """
        in_order = [slot.place for slot in needs.finals if slot is not None] == [*range(len(plan.ends.rows))]
        if in_order and needs.are_none and not plan.ends.totals:
            return None
        read = {number for made in plan.total for number in plan.net.nodes[made].inputs}
        read |= set(plan.results(plan.ends.totals))
        constants = {n: values[False, n].copy() for n in read if (False, n) in values}
        return cls(plan, needs, constants, target)

    def kept(self, call: Call) -> list[Shape]:
        """The shapes of values of all steps that the work after the loop needs."""
        types = [self.plan.net.type_of(number) for number in self.needs.kept]
        return [((call.total, *type_.shape), type_.dtype) for type_ in types]

    def arrays(self, call: Call, results: Results, memory: Array) -> dict[str, list[Array]]:
        """The arrays that the work after the loop needs: those of results where these are asked for, else new
        ones.

        memory: for the values of all steps.
        """
        batch = len(call.lengths)

        def of_rows(number: int, place: int = -1) -> Array:
            return results.final[place] if place >= 0 else empty(batch, self.plan.net.type_of(number))

        return {
            "final": [of_rows(slot.number, slot.place) for slot in self.needs.finals if slot is not None],
            "kept": together(self.kept(call), memory),
            "reduced": [of_rows(number) for number in self.needs.reduced],
            "ended": [of_rows(slot.number, slot.place) for slot in self.needs.ended],
        }

    def values(self, call: Call, arrays: Arrays) -> dict[int, Rows]:
        """The values that reductions and totals read, by number."""
        ends, net, kinds = self.plan.ends, self.plan.net, arrays.kinds
        places = call.all_places
        numbers = {
            "inputs": [net.inputs[place] for place in ends.sequences],
            "initial": [net.inputs[place] for place in ends.memories],
            "statics": [net.inputs[place] for place in ends.statics],
            "final": [slot.number for slot in self.needs.finals if slot is not None],
            "kept": self.needs.kept,
            "reduced": self.needs.reduced,
            "ended": [slot.number for slot in self.needs.ended],
        }
        read = {n for made in (*self.plan.reduced, *self.plan.total) for n in net.nodes[made].inputs}
        values = {number: Rows(array) for number, array in self.constants.items()}
        for kind, members in numbers.items():
            for number, array in zip(members, kinds[kind], strict=True):
                if number in read and array is not None:
                    values[number] = Rows(array, places if net.type_of(number).extent == STEPS else None)
        return values

    def reduce(self, call: Call, arrays: Arrays) -> None:
        """Computes one value from the steps of each sequence."""
        if not self.needs.reduced:
            return
        values, offsets = self.values(call, arrays), offsets_of(call.lengths)
        for number, array in zip(self.needs.reduced, arrays.kinds["reduced"], strict=True):
            node = self.plan.net.nodes[number]
            if array is not None:
                array[...] = reduced(node.attributes["how"], values[node.inputs[0]], offsets, self.target)

    def total(self, call: Call, arrays: Arrays, results: Results) -> None:
        """Computes the totals and puts those that are asked for into the results."""
        if not self.plan.ends.totals:
            return
        values = self.values(call, arrays)
        for number in self.plan.total:
            node = self.plan.net.nodes[number]
            values[number] = Rows(total(node, [values[operand] for operand in node.inputs], self.target))
        for number, array in zip(self.plan.results(self.plan.ends.totals), results.totals, strict=True):
            array[...] = values[number].array


def reduced(how: str, values: Rows, offsets: Array, target: Target) -> Array:
    """One value from the steps of each sequence."""
    if how not in ("sum", "mean") or values.places is None:
        return REDUCTIONS[how](values.packed, offsets)
    added = sums(values.array, values.places, offsets, target)
    return added if how == "sum" else mean_of(added, offsets)


def total(node: Node, operands: Sequence[Rows], target: Target) -> Array:
    """A value over all rows."""
    if node.operation != "contract":
        return total_of(node, [operand.packed for operand in operands])
    left, right = operands
    if left.places is right.places:
        return contract(left.array, right.array, left.places, target)
    return contract(left.packed, right.packed, None, target)


def empty(count: int, type_: Type) -> Array:
    """A new array for so many values of a type."""
    return np.empty((count, *type_.shape), type_.dtype)
