"""The arrays of prepared calls of a chain, by the values that they hold.

a kernel's arrays         keys: numbers of values, or ("unread", kernel, position)
given, wanted             those of a call, and of its results
between                   kept for all calls, or made at each
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stepnet.compiler.net.types import ROWS
from stepnet.compiler.targets.base import Array, Call, KernelLinks, Links, TableLayout
from stepnet.compiler.targets.cpu.machine.call_words import WORDS
from stepnet.compiler.targets.cpu.machine.memory import MOSTLY_FULL, RowAllocator, maker_of
from stepnet.compiler.targets.cpu.running.chain import Started
from stepnet.compiler.targets.cpu.running.form import NOTHING, CallForm
from stepnet.compiler.targets.cpu.running.native import Native
from stepnet.compiler.targets.cpu.running.prepared_chain import PreparedChain
from stepnet.ragged.positions import Positions

Maker = Callable[[], Array]
"""A function that allocates the array of a result, as large as that of the call that is prepared."""
SizedMaker = Callable[[int], Array]
"""A function that allocates the array of a result, given the number of steps of all sequences together."""
Joint = tuple[tuple[Hashable, ...], Callable[[], list[Array]]]
"""The keys of arrays that have one buffer together, and a function that allocates them."""
Key = Hashable
"""The key of an array of a chain: the number of its value. A result that nobody reads and an initial memory
of zeros have no number; their key is ("unread" or "zeros", kernel, position).
"""


class Keys(NamedTuple):
    """The keys of a kernel's arrays by kind: numbers of values, by which kernels of a chain share arrays.

    of_kind: those of the "inputs", "initial" memories, "statics" and "outputs", the results per sequence
        ("rows") and of all rows ("totals"), and the "hidden" arrays of the work after the loop.
    final, others: the final memories and further arrays that the machine code of the loop writes.
    nodes: all arrays of the work after the loop, by node of the net.
    of_functions: those of them that functions of totals read and write.
    """

    of_kind: Mapping[str, tuple[Key, ...]]
    final: Sequence[Key]
    others: Sequence[Key]
    nodes: Mapping[int, Key]
    of_functions: Sequence[Key]

    @classmethod
    def of(cls, kernel: int, links: KernelLinks, form: CallForm) -> "Keys":
        """Makes the keys by which a chain (compiled parts, called kernels, that run in one go) finds a
        kernel's arrays: the numbers of the values in them, so that a kernel's output and the next one's input
        are one array. kernel: its position in the chain. links: the numbers of the values that it reads and
        computes; a result without a number is read by nothing. form: has the kinds of its results.
        """
        outputs, rows, totals = len(form.kind.outputs), len(form.kind.rows), len(form.kind.totals.array_specs)
        numbers = (*links.results, *[-1] * (outputs + rows + totals - len(links.results)))
        results = tuple(("unread", kernel, n) if each < 0 else each for n, each in enumerate(numbers))
        memories = tuple(("zeros", kernel, n) if each < 0 else each for n, each in enumerate(links.memories))
        of_kind: dict[str, tuple[Key, ...]] = {
            "inputs": links.sequences,
            "initial": memories,
            "statics": links.statics,
            "outputs": results[:outputs],
            "rows": results[outputs : outputs + rows],
            "totals": results[outputs + rows :],
            "hidden": (),
        }
        if form.finish is None:
            return cls(of_kind, of_kind["rows"], (), {}, ())
        of_kind["hidden"] = tuple(("hidden", kernel, n) for n in range(len(form.finish.hidden.array_specs)))
        return cls(of_kind, *form.finish.laid(of_kind))

    @property
    def in_order(self) -> tuple[Key, ...]:
        """The keys of a compiled part's arrays, in the order in which a call lists the arrays."""
        of_kind = self.of_kind
        inputs = *of_kind["inputs"], *of_kind["initial"]
        return (*inputs, *self.final, *of_kind["statics"], *of_kind["outputs"], *self.others)


class ChainArrays(NamedTuple):
    """The arrays of prepared calls of a chain, by key (the number of the value in the array).

    keys: the keys of the arrays of each kernel.
    makers: for each result of a kernel, a function that allocates its array.
    growing, grows: the results whose sizes depend on the lengths, if these are arguments: functions that
        allocate them, and the axes of their steps.
    by_row: the allocators of results with a value per sequence, if lengths are arguments.
    zeros: the zeros that replace missing initial memories.
    between: the results that the chain does not return, as allocated for the prepared calls.
    joint: for arrays that have one buffer together, their keys, and a function that allocates them.
    """

    keys: list[Keys]
    makers: dict[Key, Maker]
    growing: dict[Key, SizedMaker]
    grows: dict[Key, str]
    by_row: dict[Key, RowAllocator]
    zeros: dict[Key, Array]
    between: dict[Key, Array]
    joint: list[Joint]

    @classmethod
    def of(
        cls,
        prepared: PreparedChain,
        started: Started,
        links: Links,
        positions: Mapping[str, Positions],
        layout: TableLayout | None = None,
    ) -> "ChainArrays":
        """Collects the arrays of those calls of a chain (compiled parts, called kernels, that run in one go)
        that are prepared to run again, and the functions that allocate new ones.

        prepared: the workspaces (scratch memory) of the calls. started: the calls and their arrays.
        links: the numbers of the values that each kernel reads and computes.
        positions: the positions of the sequences whose lengths later calls give, by the axis of their steps;
            none if all lengths are fixed. layout: how these lie along the axis of the inputs.
        """
        forms, follow = started.forms, started.follow(positions)
        keys = [Keys.of(place, *pair) for place, pair in enumerate(zip(links.kernels, forms, strict=True))]
        makers = {
            key: new for own, form in zip(keys, forms, strict=True) for key, new in makers_of(own, form)
        }
        growing, axes, by_row = dict[Key, SizedMaker](), dict[Key, str](), dict[Key, RowAllocator]()
        for own, form, call, axis in zip(keys, forms, started.calls, follow, strict=True):
            if axis and not call.last_only:
                outputs = dict(zip(own.of_kind["outputs"], form.kind.outputs, strict=True))
                gaps = layout is not None and layout.has_gaps
                growing |= {key: rows.zeros if gaps else rows.new for key, rows in outputs.items()}
                axes |= dict.fromkeys(outputs, axis)
        kernels = zip(keys, forms, prepared.natives, strict=True)
        zeros = dict(pair for own, form, native in kernels for pair in zeros_of(own, form, native))
        made = {
            key: array
            for own, each in zip(keys, started.arrays, strict=True)
            for key, array in zip(own.in_order, each.in_order, strict=True)
            if array is not None and key in makers
        }
        for task, (source, *_, result) in zip(started.across, links.across, strict=True):
            (given, *_, made[result]), task.values = task.values, ()
            makers[result] = task.rows.maker(task.count)
            if positions and task.grows:
                growing[result], axes[result] = task.rows.new, task.across.result.extent[-1]
            if source in links.inputs and task.across.source.extent == ROWS:  # it may be an initial memory
                zeros.setdefault(source, np.zeros_like(given))
        if positions:
            kernels = zip(keys, forms, started.calls, strict=True)
            by_row = dict(pair for own, form, call in kernels for pair in by_row_of(own, form, call))
            by_row |= {
                result: task.rows
                for task, (*_, result) in zip(started.across, links.across, strict=True)
                if task.across.result.extent == ROWS
            }
        between = {key: array for key, array in made.items() if key not in links.results}
        joint = list[Joint]()
        for own, form in zip(keys, forms, strict=True):
            if form.others is not NOTHING:
                joint.append((own.of_kind["outputs"][len(form.separate) :], form.other_outputs))
            if form.kind.totals.bytes >= MOSTLY_FULL:
                joint.append((own.of_kind["totals"], form.kind.totals.new))
            if form.finish is not None:
                joint.append((own.of_kind["hidden"], form.finish.hidden.new))
        return cls(keys, makers, growing, axes, by_row, zeros, between, joint)

    def divided(self, links: Links, most: int) -> tuple[dict[Key, Array], list[Key], list[Joint]]:
        """Divides the arrays that the chain (compiled parts that run in one go) does not return into arrays
        that all later calls share, which have less than `most` bytes, and arrays that are new at each call.

        Returns the shared arrays by key, the keys of the new arrays with buffers of their own, and the joint
        allocations of the other new arrays. links: the numbers of the values that the chain returns.
        """
        anew = [key for key, array in self.between.items() if key in self.grows or array.nbytes >= most]
        kept = {key: array for key, array in self.between.items() if key not in anew}
        joint = list[Joint]()
        for keys, several in self.joint:
            arrays = dict(zip(keys, several(), strict=True))
            if arrays.keys().isdisjoint(links.results) and sum(a.nbytes for a in arrays.values()) < most:
                kept |= arrays
            else:
                joint.append((keys, several))
        return kept, anew, joint

    def words(
        self, prepared: PreparedChain, fixed: Mapping[Key, int], order: Mapping[Key, int]
    ) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
        """Returns, for each kernel (compiled part of a net), the addresses of its arrays in the order of its
        argument words (0 for those that change), and the words that change, each with the index of its
        address in a call.

        prepared: has the kernels, in order.
        fixed: the addresses of arrays that all calls share, by key.
        order: for each array that changes, the index of its address among those of a call.
        """
        words = [
            [own.in_order[place] for place in native.in_words]
            for own, native in zip(self.keys, prepared.natives, strict=True)
        ]
        return (
            [[fixed.get(key, 0) for key in own] for own in words],
            [[(len(WORDS) + n, order[key]) for n, key in enumerate(own) if key in order] for own in words],
        )


def makers_of(keys: Keys, form: CallForm) -> Iterable[tuple[Key, Maker]]:
    """Yields, for each result of a kernel (compiled part of a net) that has a buffer of its own, its key (the
    number of the value) and a function that allocates its array.

    keys: the keys of the kernel's arrays. form: makes the arrays of its calls.
    """
    for key, rows in zip(keys.of_kind["outputs"], form.separate, strict=False):
        yield key, form.output(rows)
    for key, rows in zip(keys.of_kind["rows"], form.kind.rows, strict=True):
        yield key, rows.maker(form.batch)
    if form.kind.totals.bytes < MOSTLY_FULL:
        for key, (shape, dtype, _) in zip(keys.of_kind["totals"], form.kind.totals.array_specs, strict=True):
            yield key, maker_of((shape, dtype))


def by_row_of(keys: Keys, form: CallForm, call: Call) -> Iterable[tuple[Key, RowAllocator]]:
    """Yields, for each result of a kernel (compiled part of a net) with a value per sequence, its key (the
    number of the value) and the allocator of its array.

    keys: the keys of the kernel's arrays. form: makes the arrays of its calls. call: one of these, of which
    only the last output of each sequence may be wanted.
    """
    outputs = zip(keys.of_kind["outputs"], form.separate, strict=False) if call.last_only else ()
    yield from (*outputs, *zip(keys.of_kind["rows"], form.kind.rows, strict=True))


def zeros_of(keys: Keys, form: CallForm, native: Native) -> Iterable[tuple[Key, Array]]:
    """Yields keys of initial memories (recurrent states) of a kernel (compiled code), each with the zeros
    that replace the memory where a call has none.

    keys: the keys of the kernel's arrays. form: makes the arrays of its calls. native: the kernel, with its
        machine code.

    The machine code takes the address 0 for zeros, but for memories that it copies (`CallForm.filled`). A
    call that may give a memory has zeros for it in any case, so that both cases run the same prepared call.
    """
    for place, key in enumerate(keys.of_kind["initial"]):
        if place in form.filled:
            yield key, form.filled[place]
        elif isinstance(key, int):
            type_ = native.memories[place]
            yield key, np.zeros((form.batch, *type_.shape), type_.dtype)
