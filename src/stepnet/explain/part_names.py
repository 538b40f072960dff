"""Names and describes the parts of a schedule, in the order they run."""

from collections.abc import Iterator

from stepnet.compiler.net.extensions import Extension
from stepnet.compiler.net.pairs import PAIRED
from stepnet.compiler.net.types import extent_text
from stepnet.compiler.net.windows import WINDOWED
from stepnet.compiler.plan.inner import has_inner
from stepnet.compiler.plan.inner_sequences import why_in_parts
from stepnet.compiler.plan.schedule import Part, Schedule
from stepnet.compiler.plan.waves import pairs_extent


def parts_of(schedule: Schedule, before: str = "") -> Iterator[tuple[str, Part, Schedule]]:
    """Yields (number, part, schedule that it belongs to) for every part of a schedule, a net cut into parts
    that run one after the other; a part may contain a schedule itself.

    A number is a text: 1.2 is part 2 inside part 1. before: the text in front of all numbers.
    """
    for index, part in enumerate(schedule.parts):
        number = f"{before}{index}"
        yield number, part, schedule
        if part.inner is not None:
            yield from parts_of(part.inner, f"{number}.")


def inner_word(part: Part) -> str:
    """Returns the word for the contents of a recurrence's steps: "recurrence" for one inner recurrence,
    "recurrences" for several, and "sequences" for none.
    """
    assert part.node is not None
    operations = [node.operation for node in part.node.recur.body.nodes]
    names = {0: "sequences", 1: "recurrence"}
    return names.get(operations.count("recur"), "recurrences")


def describe_part(part: Part, schedule: Schedule) -> str:
    """Describes a part of a schedule (nodes of a net that run together) in one line, for an explanation: what
    it computes, over which entries, and if all run at once or step by step.
    """
    at = extent_text(part.extent)
    if part.kind == "recurrence" and part.node is None:
        return f"operations at {at} and sums of them, all sequences at once"
    if part.kind == "recurrence" and part.node is not None and has_inner(part.node.recur.body):
        return (
            f"a recurrence over {at}, all sequences at once, with the inner {inner_word(part)} of each step"
        )
    if part.kind == "recurrence":
        return f"a recurrence over {at}, all sequences at once"
    if part.kind == "loop" and part.node is not None:
        reason = why_in_parts(part.node, part.extent) or "its step has sequences of its own"
        return f"a recurrence over {at}, step by step: {reason}"
    if part.kind == "plain":
        return f"operations at {at}, all at once"
    assert part.node is not None
    if part.kind == "total":
        return f"{part.node.operation}: one value for all rows"
    if (operation := part.node.operation) in WINDOWED:
        at, size = extent_text(schedule.net.type_of(part.reads[0]).extent), part.node.attributes["size"]
        return f"windows of {size} entries of {at}{', added up' if operation == 'overlap' else ''}"
    if part.body is not None:
        return f"operations at the pairs of {extent_text(pairs_extent(part.body))}, some queries at a time"
    if operation in PAIRED:
        at = extent_text(schedule.net.type_of(part.reads[1 if operation == "mix" else 0]).extent)
        what = "products of queries and keys at" if operation == "scores" else "weighted sums over"
        return f"{what} the pairs of {at}"
    if operation == "arrange":
        order = "last first" if part.node.attributes["reverse"] else "in order"
        return f"steps {order} at {extent_text(schedule.net.type_of(part.results[0]).extent)}"
    if operation == "matrix_gradients":
        at = extent_text(schedule.net.type_of(part.results[0]).extent)
        return f"gradients of a matrix that decays at {at}"
    if operation == "extend":
        own = Extension.of(part.node.attributes)
        at = extent_text(schedule.net.type_of(part.reads[0]).extent)
        return f"{own.before} copies of steps ahead of {at} and {own.after} behind, by {own.how}"
    here, there = (extent_text(schedule.net.type_of(n).extent) for n in (part.reads[0], part.results[0]))
    how = part.node.attributes.get("how")
    if how and part.node.operation == "expand":
        return f"a value at {here} at the {how} of {there}, and zeros"
    return f"the {how} of {here}, at {there}" if how else f"a value at {here} repeated at {there}"
