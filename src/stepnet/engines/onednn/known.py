"""The recurrence of oneDNN that computes a plan, and the mapping of a call's arrays to its arguments."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepnet.engines.onednn.arranged import arranged, recurrence_of, refusal
from stepnet.engines.onednn.library import library
from stepnet.engines.onednn.recurrence import Recurrence
from stepnet.net.interpret import Segments, evaluated, interpret
from stepnet.net.ir import Net
from stepnet.net.types import CONST, STEPS
from stepnet.plan.groups import results_of
from stepnet.plan.plan import Plan
from stepnet.plan.recognise import Recognised, Refused, recognise

Array = np.ndarray


@dataclass(frozen=True)
class Known:
    """A plan whose recurrence oneDNN can run.

    net: the net of the plan.
    cell: the recognised cell.
    recurrence: oneDNN's recurrence.
    reads: the positions, in a call, of the sequences that are joined to x.
    memories: the positions of h, and of c, among the initial memories.
    parameters: the constants of the net that the body reads, by number.
    outputs, final: for each result per step, and each final memory, "h" or "c".
    """

    net: Net
    cell: Recognised
    recurrence: Recurrence
    reads: tuple[int, ...]
    memories: tuple[int, ...]
    parameters: tuple[int, ...]
    outputs: tuple[str, ...]
    final: tuple[str, ...]

    def arrays(self, parameters: Sequence[Array]) -> dict[str, Array]:
        """oneDNN's weights by name, in its layout, computed from the parameters of the plan."""
        cell, net = self.cell, self.net
        inputs = [number for number in net.inputs if net.type_of(number).extent == CONST]
        values = evaluated(
            net, dict(zip(inputs, parameters, strict=True)), sorted({*self.parameters} - {*inputs})
        )
        made = interpret(cell.weights, [values[number] for number in self.parameters], Segments(1))
        arrays = dict(zip(cell.names, made, strict=True))
        if cell.projected is not None:  # each feature of x is the input of one unit of one gate
            arrays["W"] = np.zeros((cell.inputs, len(cell.projected)), np.float32)
            arrays["W"][list(cell.projected), np.arange(len(cell.projected))] = 1
        return arranged(self.recurrence, cell.semantics, arrays)


def known_plan(plan: Plan) -> Known | str:
    """The recurrence of oneDNN that computes a plan; or the reason why there is none, as a text."""
    net, ends = plan.traced, plan.ends
    numbers = [number for number, node in enumerate(net.nodes) if node.operation == "recur"]
    if len(numbers) != 1:
        return f"a oneDNN primitive computes one recurrence, and this part of the model has {len(numbers)}"
    node = net.nodes[numbers[0]]
    recur = node.recur
    if recur.following == recur.memories:
        return "it has no recurrence"
    cell = recognise(recur)
    if isinstance(cell, Refused):
        return f"oneDNN has no such cell: {cell.reason}"
    reason = refusal(cell.semantics)
    if reason is not None:
        return reason
    operands = recur.operands_by_kind(node.inputs)
    outputs, final = recur.results_by_kind(results_of(net, numbers[0]))
    names = "hc"[: recur.memory_count]
    kinds = {n: kind for n, kind in zip(outputs, cell.outputs, strict=True) if n >= 0}
    kinds |= {
        final[place]: name for name, place in zip(names, (cell.h, cell.c), strict=False) if place is not None
    }
    sequences = [net.inputs[place] for place in ends.sequences]
    memories = [net.inputs[place] for place in ends.memories]
    if any(net.type_of(number).extent != CONST for number in operands.others):
        return "its step reads statics (values per sequence), which oneDNN's cells cannot read"
    if not {*operands.sequences} <= {*sequences} or not {*operands.memories} <= {*memories}:
        return "its inputs or initial memories are computed in the same plan, not by another part"
    if any(kinds.get(number) is None for number in net.results):
        return "it has other results than its memories after each step, which are all that oneDNN returns"
    types = [net.type_of(number) for number in (*sequences, *memories)]
    if any(type_.dtype != "float32" for type_ in types) or any(
        s.extent != STEPS for s in types[: len(sequences)]
    ):
        dtypes = ", ".join(sorted({type_.dtype for type_ in types}))
        return f"oneDNN takes sequences and memories of float32, and these are {dtypes}"
    sizes = [net.type_of(memories[place]).size for place in range(len(memories))]
    projected = sizes[memories.index(operands.memories[cell.h])]
    recurrence = recurrence_of(
        cell.semantics, cell.inputs, cell.hidden, cell.names, projected, recur.reverse
    ).in_precision(recur.precision)
    if recur.precision is not None and (reason := recurrence.refuse(library())):
        return reason
    return Known(
        net,
        cell,
        recurrence,
        tuple(sequences.index(operands.sequences[place]) for place in cell.sequences),
        tuple(memories.index(operands.memories[place]) for place in (cell.h, cell.c) if place is not None),
        tuple(
            n
            for n, inside in zip(operands.others, recur.others, strict=True)
            if recur.body.type_of(inside).extent == CONST
        ),
        tuple(kinds[net.results[place]] or "" for place in ends.steps),
        tuple(kinds[net.results[place]] or "" for place in ends.rows),
    )
