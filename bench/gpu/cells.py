"""Recurrences with random parameters that kernels are made of: named cells, and a step without products."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import stepnet as sn
from bench.gpu.inputs import Inputs
from bench.gpu.shape import Step
from stepnet.cells.gated import cell
from stepnet.compiler.plan.plan import Plan

Array = np.ndarray
FEATURES = 12


@dataclass(frozen=True)
class Model:
    """A recurrence with parameters, and sequences for it."""

    rnn: sn.RNN
    params: dict[str, Array]
    sequences: list[Array]

    @property
    def step(self) -> Step:
        """The step of the recurrence."""
        return Step.of(self.rnn.plan)

    @property
    def inputs(self) -> Inputs:
        """The operands of the recurrence for all sequences."""
        return self.of(self.sequences)

    def of(self, sequences: list[Array]) -> Inputs:
        """Returns the operands of the recurrence for some sequences."""
        return hoisted(self.rnn.plan, self.params, sequences)

    def expected(self) -> tuple[list[Array], list[Array]]:
        """Returns outputs [all steps, width] and last memories [sequences, width], by the CPU engine."""
        outputs, last = self.rnn(sn.Ragged.from_list(self.sequences))
        return [np.asarray(outputs.values)], list(last.values()) if isinstance(last, dict) else [last]


def rg_lru(x: Any, h: Any, params: Any) -> Any:
    """A recurrence whose units are alone: a gated decay, as in real-gated linear recurrent units."""
    a = sn.sigmoid(x @ params["Wa"] + params["ba"])
    h = a * h + np.sqrt(1 - a * a) * (sn.sigmoid(x @ params["Wi"]) * (x @ params["Wx"]))
    return h, h


def model(name: str, width: int, lengths: list[int], features: int = FEATURES) -> Model:
    """Returns a cell by its name, or "rg_lru", with random parameters and sequences."""
    chance = np.random.default_rng(0)
    if name == "rg_lru":
        shapes = {"Wa": (features, width), "ba": (width,), "Wi": (features, width), "Wx": (features, width)}
    else:
        shapes = {n: a.shape for n, a in cell(name).parameters(inputs=features, hidden=width).items()}
    params = {n: chance.normal(0, 0.3, shape).astype("f4") for n, shape in shapes.items()}
    sequences = [chance.normal(size=(n, features)).astype("f4") for n in lengths]
    rnn = sn.RNN(rg_lru, params, memory=width) if name == "rg_lru" else sn.cells.rnn(name, params)
    rnn(np.zeros((1, 1, features), "f4"))  # now its inputs are known
    return Model(rnn, params, sequences)


def hoisted(plan: Plan, params: dict[str, Array], sequences: list[Array]) -> Inputs:
    """Returns the operands of a plan's recurrence for sequences that begin with zeros. NumPy does the work
    before the loop, by the plan's own net.
    """
    net = plan.net
    joined = np.concatenate(sequences)
    values = dict[int, Any]()
    for place, number in enumerate(net.inputs):
        if place in plan.ends.memories:
            values[number] = np.zeros((len(sequences), *net.type_of(number).shape), "f4")
        else:
            values[number] = joined if place in plan.ends.sequences else params[net.nodes[number].name]
    for n, node in enumerate(net.nodes[: plan.recur]):
        if node.operation == "result":
            values[n] = values[node.inputs[0]][node.attributes["of"]]
        elif node.operation != "input":
            values[n] = node.row.meaning(*(values[i] for i in node.inputs), **node.attributes)
    operands = plan.recurrence.recur.operands_by_kind([values[n] for n in plan.recurrence.inputs])
    lengths = np.array([len(each) for each in sequences])
    return Inputs(lengths, operands.sequences, operands.memories, operands.others)
