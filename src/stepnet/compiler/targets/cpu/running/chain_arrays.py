"""The arrays of prepared calls of a chain, by the values that they hold.

a kernel's arrays         keys: numbers of values, or ("unread", kernel, position)
given, wanted             those of a call, and of its results
between                   kept for all calls, or made at each
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from stepnet.compiler.native.call_words import WORDS
from stepnet.compiler.net.types import ROWS
from stepnet.compiler.targets.base import Array, KernelLinks, Links, TableLayout
from stepnet.compiler.targets.cpu.machine.memory import MOSTLY_FULL
from stepnet.compiler.targets.cpu.running.chain import Started
from stepnet.compiler.targets.cpu.running.form import NOTHING, CallForm
from stepnet.compiler.targets.cpu.running.native import Native
from stepnet.compiler.targets.cpu.running.new_arrays import NewArray
from stepnet.compiler.targets.cpu.running.prepared_chain import PreparedChain
from stepnet.ragged.positions import Positions

Joint = tuple[tuple[Hashable, ...], Callable[[], list[Array]]]
"""The keys of arrays that have one buffer together, and a function that allocates them."""
Key = Hashable
"""The key of an array of a chain: the number of its value. A result that nobody reads and an initial memory
of zeros have no number; their key is ("unread" or "zeros", kernel, position).
"""


UNREAD = "unread"
"""The first part of the keys of results that nobody reads."""


def is_read(key: Key) -> bool:
    """Tells whether anybody reads the array of a chain with this key."""
    return not isinstance(key, tuple) or cast("tuple[Any, ...]", key)[0] != UNREAD


class Keys(NamedTuple):
    """The keys of a kernel's arrays by kind: numbers of values, by which kernels of a chain share arrays.

    of_kind: the keys of the "inputs", "initial" memories, "statics" and "outputs", the results per sequence
        ("rows") and of all rows ("totals"), and the "hidden" arrays of the work after the loop.
    final, others: the final memories and further arrays that the machine code of the loop writes.
    nodes: all arrays of the work after the loop, by node of the net.
    of_functions: the arrays among `nodes` that functions of totals read and write.
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
        results = tuple((UNREAD, kernel, n) if each < 0 else each for n, each in enumerate(numbers))
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
    new: for each result of a kernel that has a buffer of its own, what allocates its array.
    grows: the axes of the steps of those whose sizes depend on the lengths, if these are arguments.
    zeros: the zeros that replace missing initial memories.
    between: the results that the chain does not return, as allocated for the prepared calls.
    joint: for arrays that have one buffer together, their keys, and a function that allocates them.
    """

    keys: list[Keys]
    new: dict[Key, NewArray]
    grows: dict[Key, str]
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
        new = {
            key: own_new for own, form in zip(keys, forms, strict=True) for key, own_new in new_of(own, form)
        }
        grows = dict[Key, str]()
        by_row = list[Key]()
        for own, call, axis in zip(keys, started.calls, follow, strict=True):
            by_row += own.of_kind["rows"]
            if call.last_only:
                by_row += own.of_kind["outputs"]
            elif axis:
                grows |= dict.fromkeys(own.of_kind["outputs"], axis)
            if axis:  # zeros for empty sequences, or for the steps behind each
                gaps = call.last_only or (layout is not None and layout.has_gaps)
                outputs = (key for key in own.of_kind["outputs"] if key in new)
                new |= {key: new[key]._replace(is_zeros=gaps) for key in outputs}
        kernels = zip(keys, forms, prepared.natives, strict=True)
        zeros = dict(pair for own, form, native in kernels for pair in zeros_of(own, form, native))
        made = {
            key: array
            for own, each in zip(keys, started.arrays, strict=True)
            for key, array in zip(own.in_order, each.in_order, strict=True)
            if array is not None and key in new
        }
        for task, (source, *_, result) in zip(started.across, links.across, strict=True):
            (given, *_, made[result]), task.values = task.values, ()
            new[result] = NewArray(task.rows.spec(task.count))
            if positions and task.grows:
                grows[result] = task.across.result.extent[-1]
            if task.across.result.extent == ROWS:
                by_row.append(result)
            if source in links.inputs and task.across.source.extent == ROWS:  # it may be an initial memory
                zeros.setdefault(source, np.zeros_like(given))
        if positions:
            axes = dict.fromkeys(by_row, ROWS[0]) | grows
            new = {key: own._replace(axis=axes.get(key, "")) for key, own in new.items()}
        between = {key: array for key, array in made.items() if key not in links.results}
        joint = list[Joint]()
        for own, form in zip(keys, forms, strict=True):
            if form.others is not NOTHING:
                joint.append((own.of_kind["outputs"][len(form.separate) :], form.other_outputs))
            if form.kind.totals.bytes >= MOSTLY_FULL:
                joint.append((own.of_kind["totals"], form.kind.totals.new))
            if form.finish is not None:
                joint.append((own.of_kind["hidden"], form.finish.hidden.new))
        return cls(keys, new, grows, zeros, between, joint)

    def divided(self, links: Links, most: int) -> tuple[dict[Key, Array], list[Key], list[Joint]]:
        """Divides the arrays that the chain (compiled parts that run in one go) does not return into arrays
        that all later calls share, and arrays that are new at each call: those of `most` bytes or more, those
        whose sizes depend on the lengths, and last outputs if lengths are arguments: an empty sequence has
        zeros, in whose place a call before has written.

        Returns the shared arrays by key, the keys of the new arrays with buffers of their own, and the joint
        allocations of the other new arrays. links: the numbers of the values that the chain returns.
        """
        cleared = {key for key, own in self.new.items() if own.is_zeros and own.axis}
        anew = [
            key
            for key, array in self.between.items()
            if key in self.grows or key in cleared or array.nbytes >= most
        ]
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


def new_of(keys: Keys, form: CallForm) -> Iterable[tuple[Key, NewArray]]:
    """Yields, for each result of a kernel (compiled part of a net) that has a buffer of its own, its key (the
    number of the value) and what allocates its array.

    keys: the keys of the kernel's arrays. form: makes the arrays of its calls.
    """
    for key, rows in zip(keys.of_kind["outputs"], form.separate, strict=False):
        yield key, form.output(rows)
    for key, rows in zip(keys.of_kind["rows"], form.kind.rows, strict=True):
        yield key, NewArray(rows.spec(form.batch))
    if form.kind.totals.bytes < MOSTLY_FULL:
        for key, (shape, dtype, _) in zip(keys.of_kind["totals"], form.kind.totals.array_specs, strict=True):
            yield key, NewArray((shape, dtype))


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
