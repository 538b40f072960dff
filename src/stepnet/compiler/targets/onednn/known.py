"""The recurrence of oneDNN that computes a plan, and its weights in oneDNN's layout (ldigo).

    W [x, (r|z|n) h]   ->   weights_layer [1, 1, x, (z, r, n), h]     the update gate first
    b + d              ->   bias [1, 1, (z, r, n), h]

In oneDNN, z = 1 keeps the memory. In cells where z = 1 overwrites it, the weights of z change their sign,
because 1 - s(a) = s(-a).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from stepnet.compiler.net.interpreter import LevelSizes, evaluated, interpret
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, STEPS
from stepnet.compiler.plan.groups import results_of
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.recognise import Recognised, Refused, recognise
from stepnet.compiler.targets.onednn.interface import ACTIVATIONS
from stepnet.compiler.targets.onednn.library import library
from stepnet.compiler.targets.onednn.recurrence import OneDnnRecurrence
from stepnet.compiler.values.records import dataclass
from stepnet.layout.semantics import GATES, Semantics

Array = np.ndarray

SHARED = {"mgu": {"z": "f", "r": "f"}}
"""For each cell, oneDNN's gates that share one gate of the cell: a minimal gated unit is a GRU with z = r."""

NONE = {"clip": 0.0, "cell_clip": 0.0, "projection_clip": 0.0}
"""Features that oneDNN's cells lack, with the values that turn them off."""


def refusal(semantics: Semantics) -> str | None:
    """Returns the reason why oneDNN has no cell that computes the same function, such as clipping or another
    activation; None if it has one. semantics: the choices that make up the function of a cell.
    """
    cell = semantics.cell
    if any(getattr(semantics, name) != none for name, none in NONE.items()):
        return "oneDNN's cells do not clip"
    if cell == "rnn":
        known = semantics.candidate_activation in ACTIVATIONS
        return None if known else f"oneDNN has no activation {semantics.candidate_activation}"
    required = {"gate_activation": "sigmoid", "candidate_activation": "tanh", "output_activation": "tanh"}
    for name, value in required.items():
        if getattr(semantics, name) != value:
            return f"its {name} is {getattr(semantics, name)}, and oneDNN's {cell} has {value}"
    return None


def recurrence_of(
    semantics: Semantics, inputs: int, hidden: int, names: tuple[str, ...], projected: int, reverse: bool
) -> OneDnnRecurrence:
    """Makes the description of oneDNN's recurrence that computes a cell with these semantics (the choices in
    its formulas). inputs, hidden: the numbers of features of a step and of units. names: the names of the
    cell's arrays; "P" is a projection, "p" are peepholes. projected: the number of elements of h after a
    projection. reverse: whether it runs from the last step.
    """
    gated = {"before": "gru", "after": "lbr_gru"}[semantics.reset]
    cell = gated if semantics.cell in ("gru", "mgu") else semantics.cell
    return OneDnnRecurrence(
        cell,
        inputs,
        hidden,
        projected if "P" in names else 0,
        semantics.candidate_activation if cell == "rnn" else "tanh",
        "p" in names,
        direction="right2left" if reverse else "left2right",
    )


@dataclass(frozen=True)
class ArrayTerm:
    """Term of a gate in an array of oneDNN: the cell's array name[..., gate, :], times sign."""

    name: str
    gate: int
    sign: float


Terms = tuple[tuple[ArrayTerm, ...], ...]
"""For each gate of an array of oneDNN, its terms: the gate is their sum."""
WHOLE = {"weights_peephole": "p", "weights_projection": "P"}
"""Arrays that have the same layout in oneDNN and in the cell."""


def gate_terms(recurrence: OneDnnRecurrence, semantics: Semantics) -> dict[str, Terms]:
    """Returns how oneDNN's weights and bias are computed from the cell's arrays: for each array of oneDNN, by
    its name, the terms whose sum is each of its gates. In oneDNN, an update gate of 1 keeps the memory. If
    the cell's update gate overwrites the memory instead, its weights change their sign.

    semantics: the formulas that the cell computes.
    """
    shared, ours = SHARED.get(semantics.cell, {}), GATES[semantics.cell]
    order = [ours.index(shared.get(gate, gate)) for gate in recurrence.row.gates]
    signs = [1.0] * len(order)
    if recurrence.row.reset and semantics.update == "write":
        signs[recurrence.row.gates.index("z")] = -1.0
    pairs = list(zip(order, signs, strict=True))

    def terms(*names: str) -> Terms:
        """Makes one array's terms, gate by gate: the cell's arrays with these names, to be added."""
        return tuple(tuple(ArrayTerm(name, *pair) for name in names) for pair in pairs)

    bias = terms("b", "d")
    if recurrence.row.biases > len(pairs):  # the candidate's second bias counts as a further gate
        bias = (*bias[:-1], terms("b")[-1], terms("d")[-1])
    return {"weights_layer": terms("W"), "weights_iter": terms("R"), "bias": bias}


def onednn_weights(
    recurrence: OneDnnRecurrence, semantics: Semantics, arrays: Mapping[str, Array]
) -> dict[str, Array]:
    """Computes oneDNN's weights, by oneDNN's names, from the arrays of a cell by stepnet's names: W, R, b, d,
    p and P, as far as the cell has them. A forget bias of the cell is added to the bias of the gate f.

    semantics: the formulas that the cell computes.
    """
    gates = len(GATES[semantics.cell])
    by_gate = {
        name: array.reshape(*array.shape[:-1], gates, array.shape[-1] // gates)
        for name, array in arrays.items()
        if name not in WHOLE.values()
    }
    weights = {slot: arrays[name][None, None] for slot, name in WHOLE.items() if name in arrays}
    for slot, by_gates in gate_terms(recurrence, semantics).items():
        weights[slot] = np.zeros(recurrence.shape(slot, 0, 0), np.float32)
        for index, terms in enumerate(by_gates):
            for term in terms:
                if term.name in by_gate:
                    weights[slot][0, 0, ..., index, :] += term.sign * by_gate[term.name][..., term.gate, :]
    if semantics.forget_bias:
        weights["bias"][0, 0, recurrence.row.gates.index("f")] += semantics.forget_bias
    return {name: weights[name] for name in recurrence.weights}


@dataclass(frozen=True)
class KnownPlan:
    """Plan (which operation of a net runs when) whose recurrence oneDNN can run.

    net: the net of the plan.
    cell: the recognised cell.
    recurrence: oneDNN's recurrence.
    reads: the positions, in a call, of the sequences that are joined to x.
    memories: the positions of h, and of c, among the initial memories.
    parameters: the constants of the net that the body reads, as nodes.
    outputs, final: for each result per step, and each final memory, "h" or "c".
    """

    net: Net
    cell: Recognised
    recurrence: OneDnnRecurrence
    reads: tuple[int, ...]
    memories: tuple[int, ...]
    parameters: tuple[int, ...]
    outputs: tuple[str, ...]
    final: tuple[str, ...]

    def arrays(self, parameters: Sequence[Array]) -> dict[str, Array]:
        """Computes oneDNN's weights, by name, from the parameters of the net that oneDNN runs, in the net's
        order. A cell may add its inputs to the gates directly, without a product with input weights. oneDNN's
        input weights are then zeros and ones: they add each input feature to one unit of one gate.
        """
        cell, net = self.cell, self.net
        inputs = [number for number in net.inputs if net.type_of(number).extent == CONST]
        values = evaluated(
            net, dict(zip(inputs, parameters, strict=True)), sorted({*self.parameters} - {*inputs})
        )
        weights = interpret(cell.weights, [values[number] for number in self.parameters], LevelSizes(1))
        arrays = dict(zip(cell.names, weights, strict=True))
        if cell.projected is not None:  # each feature of x is the input of one unit of one gate
            arrays["W"] = np.zeros((cell.inputs, len(cell.projected)), np.float32)
            arrays["W"][list(cell.projected), np.arange(len(cell.projected))] = 1
        return onednn_weights(self.recurrence, cell.semantics, arrays)


def known_plan(plan: Plan) -> KnownPlan | str:
    """Finds the recurrence of oneDNN that computes a whole plan (the operations of a net in their order).
    Returns it with the roles of the plan's inputs and results, or as text the reason why there is none.
    """
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
        final[index]: name for name, index in zip(names, (cell.h, cell.c), strict=False) if index is not None
    }
    sequences = [net.inputs[index] for index in ends.sequences]
    memories = [net.inputs[index] for index in ends.memories]
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
    sizes = [net.type_of(memories[index]).size for index in range(len(memories))]
    projected = sizes[memories.index(operands.memories[cell.h])]
    recurrence = recurrence_of(
        cell.semantics, cell.inputs, cell.hidden, cell.names, projected, recur.reverse
    ).in_precision(recur.precision)
    if recur.precision is not None and (reason := recurrence.refuse(library())):
        return reason
    return KnownPlan(
        net,
        cell,
        recurrence,
        tuple(sequences.index(operands.sequences[index]) for index in cell.sequences),
        tuple(memories.index(operands.memories[index]) for index in (cell.h, cell.c) if index is not None),
        tuple(
            n
            for n, inside in zip(operands.others, recur.others, strict=True)
            if recur.body.type_of(inside).extent == CONST
        ),
        tuple(kinds[net.results[index]] or "" for index in ends.steps),
        tuple(kinds[net.results[index]] or "" for index in ends.rows),
    )
