"""A schedule on engines: its parts run one after the other.

A recurrence whose memory an inner one needs runs step by step, and a step has little to do. So what is plain
in it is laid out once, in arrays that stay, and run again at every step. Rows only leave as sequences end;
those that have left are still computed, on what their arrays last held, until half of them are left. What
runs over sequences that are the same at every step, as a static's, is laid out until a row leaves.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.engines import Bound, Call, Order, Results, choose
from stepnet.interpret import Segments, by_steps, expand
from stepnet.ir import Net
from stepnet.passes.when import known_once
from stepnet.schedule import Part, Schedule
from stepnet.totals import REDUCTIONS, total_of
from stepnet.types import CONST, STEPS, Type

Array = np.ndarray
Values = dict[int, Array]


class Running:
    """A schedule with its parameters, on engines: `running(values, segments)` gives the net's results."""

    def __init__(self, plan: Schedule, asked: Order, parameters: Mapping[int, Array]) -> None:
        self.net, self.parts = plan.net, plan.parts
        self.constants = constant_values(plan.net, parameters)
        self.bound: list[Bound | Running | None] = []
        for part in self.parts:
            if part.plan is not None:
                engine, _ = choose(part.plan, asked)
                given = [self.constants[number] for number in part.parameters]
                self.bound.append(engine.compile(part.plan).bind(given))
            elif part.inner is not None and part.node is not None:
                inside = zip(part.inner.net.inputs, part.node.inputs, strict=True)
                fixed = {one: self.constants[n] for one, n in inside if n in self.constants}
                self.bound.append(Running(part.inner, asked, fixed))
            else:
                self.bound.append(None)

    def __call__(self, given: Values, segments: Segments, kept: "Kept | None" = None) -> list[Array]:
        """The results, for the values of all inputs that are no parameters.

        kept: what the steps of a loop keep for one another; the results are then theirs, and hold until the
        next step.
        """
        values = {**self.constants, **given}
        for part, bound in zip(self.parts, self.bound, strict=True):
            values.update(KINDS[part.kind](self.net, part, bound, values, segments, kept))
        return [values[result] for result in self.net.results]


def constant_values(net: Net, parameters: Mapping[int, Array]) -> Values:
    """The values of all constants of a net that are known of its parameters."""
    values: Values = {number: np.asarray(value) for number, value in parameters.items()}
    once = known_once(net)
    with np.errstate(all="ignore"):
        for number, node in enumerate(net.nodes):
            if node.operation != "input" and number in once:
                operands = [values[operand] for operand in node.inputs]
                values[number] = node.row.meaning(*operands, **node.attributes)
    return values


# ---- each kind of part -------------------------------------------------------------------------------------


class Inputs:
    """Arrays that stay, and what was last copied into them."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays, self.latest = [array.copy() for array in arrays], list(arrays)

    def take(self, arrays: Sequence[Array]) -> None:
        """Copies arrays in, at the front; what is the same array as before is there already."""
        for place, array in enumerate(arrays):
            if array is not self.latest[place]:
                self.arrays[place][: len(array)] = array
                self.latest[place] = array


class Laid:
    """A plain part laid out for so many values: its arrays, and what runs it on them."""

    def __init__(self, net: Net, part: Part, bound: Bound, arrays: Sequence[Array], count: int) -> None:
        self.count, self.inputs = count, Inputs(arrays)
        types = [net.type_of(number) for number in part.gives]
        self.outputs = [np.empty((count, *type_.shape), type_.dtype) for type_ in types]
        ones, places = np.ones(count, np.int64), np.arange(count, dtype=np.int64)
        call = Call(self.inputs.arrays, places, ones, count, [None])
        self.run = bound.again(call, Results(self.outputs, [np.empty(count, np.float32)]))

    def fits(self, count: int) -> bool:
        """Whether it is worth running for so few values."""
        return self.count // 2 < count <= self.count

    def __call__(self, arrays: Sequence[Array], count: int) -> list[Array]:
        """The outputs for the first values."""
        self.inputs.take(arrays)
        self.run()
        return [output[:count] for output in self.outputs]


class LaidSequences:
    """A recurrence laid out for sequences of these offsets."""

    def __init__(self, part: Part, bound: Bound, call: Call, offsets: Array) -> None:
        self.offsets, first = offsets, len(call.sequences)
        self.inputs = Inputs([*call.sequences, *call.statics])
        outputs, final = result_types(part)
        self.outputs = [np.empty((call.total, *type_.shape), type_.dtype) for type_ in outputs]
        self.final = [np.zeros((len(call.lengths), *type_.shape), type_.dtype) for type_ in final]
        arrays = self.inputs.arrays
        laid = replace(call, sequences=arrays[:first], statics=arrays[first:])
        self.run = bound.again(laid, Results(self.outputs, self.final))

    def __call__(self, call: Call) -> list[Array]:
        """The outputs and sums."""
        self.inputs.take([*call.sequences, *call.statics])
        self.run()
        return [array[:] for array in (*self.outputs, *self.final)]


def result_types(part: Part) -> tuple[list[Type], list[Type]]:
    """The types of a recurrence's outputs, and of its memories."""
    assert part.plan is not None
    types = [part.plan.net.type_of(number) for number in part.plan.net.results]
    return types[: len(types) - part.memories], types[len(types) - part.memories :]


Kept = dict[int, "Laid | LaidSequences | Array"]


def run_recurrence(
    net: Net, part: Part, bound: Any, values: Values, segments: Segments, kept: Kept | None
) -> Values:
    """A flat recurrence over the sequences at its extent."""
    offsets = segments.into(part.extent)
    arrays = [None if number < 0 else np.ascontiguousarray(values[number]) for number in part.reads]
    still = len(arrays) - part.statics
    first = still - part.memories
    reverse = part.plan is not None and part.plan.reverse
    begun = segments.begun if part.extent == STEPS else None
    call = Call(
        [array for array in arrays[:first] if array is not None],
        offsets[:-1],
        np.diff(offsets),
        int(offsets[-1]),
        arrays[first:still],
        [array for array in arrays[still:] if array is not None],
        reverse=reverse,
        begun=begun,
    )
    results = laid_results(part, bound, call, offsets, kept)
    if results is None:
        found = bound(call)
        results = [*found.outputs, *found.final]
    return {n: array for n, array in zip(part.gives, results, strict=True) if n >= 0}


def laid_results(
    part: Part, bound: Bound, call: Call, offsets: Array, kept: Kept | None
) -> list[Array] | None:
    """The results of a recurrence from zeros whose sequences are as long at every step of a loop; else None.

    It is laid out when it comes to the same sequences for the second time.
    """
    if kept is None or not call.total or any(one is not None for one in call.initial):
        return None
    laid = kept.get(id(part))
    if isinstance(laid, LaidSequences) and laid.offsets is offsets:
        return laid(call)
    if laid is offsets:
        made = kept[id(part)] = LaidSequences(part, bound, call, offsets)
        return made(call)
    kept[id(part)] = offsets
    return None


def run_plain(
    net: Net, part: Part, bound: Any, values: Values, segments: Segments, kept: Kept | None
) -> Values:
    """Nodes without a recurrence, each value a sequence of one step."""
    count = segments.count(part.extent)
    arrays = [np.ascontiguousarray(values[number]) for number in part.reads]
    if kept is None or not count:
        ones, places = np.ones(count, np.int64), np.arange(count, dtype=np.int64)
        outputs = bound(Call(arrays, places, ones, count, [None])).outputs
    else:
        laid = kept.get(id(part))
        if not isinstance(laid, Laid) or not laid.fits(count):
            laid = kept[id(part)] = Laid(net, part, bound, arrays, count)
        outputs = laid(arrays, count)
    return dict(zip(part.gives, outputs, strict=True))


def run_across(
    net: Net, part: Part, bound: Any, values: Values, segments: Segments, kept: Kept | None
) -> Values:
    """A value of one extent at another."""
    assert part.node is not None
    value = values[part.reads[0]]
    if part.node.operation == "expand":
        return {part.gives[0]: expand(net, part.node, [value], segments)}
    offsets = segments.into(net.type_of(part.reads[0]).extent)
    return {part.gives[0]: REDUCTIONS[part.node.attributes["how"]](value, offsets)}


def run_total(
    net: Net, part: Part, bound: Any, values: Values, segments: Segments, kept: Kept | None
) -> Values:
    """One value for all rows."""
    assert part.node is not None
    return {part.gives[0]: total_of(part.node, [values[number] for number in part.reads])}


def run_loop(
    net: Net, part: Part, bound: Any, values: Values, segments: Segments, kept: Kept | None
) -> Values:
    """A recurrence step by step, for the rows that have one."""
    assert part.node is not None
    body: Net = bound.net
    varying = [place for place, number in enumerate(body.inputs) if body.type_of(number).extent != CONST]
    counted = [number for number, node in enumerate(body.nodes) if node.operation == "index"]
    keeping: Kept = {} if kept is None else kept

    def run(arrays: Sequence[Array], inside: Segments, index: Array) -> list[Array]:
        given = {body.inputs[place]: arrays[place] for place in varying}
        return bound(given | dict.fromkeys(counted, index), inside, keeping)

    found = by_steps(net, part.node, [values[n] for n in part.reads], segments, run)
    return {n: array for n, array in zip(part.gives, found, strict=True) if n >= 0}


KINDS: dict[str, Callable[..., Values]] = {
    "recurrence": run_recurrence,
    "plain": run_plain,
    "across": run_across,
    "total": run_total,
    "loop": run_loop,
}
