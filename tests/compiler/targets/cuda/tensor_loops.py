"""Runs loops on tensor cores in emulation, beside the interpreter in float64; plans that they are made of."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

import stepnet as sn
from bench.gpu.cells import recurrence
from stepnet.compiler.net import CONST, LevelSizes, interpret
from stepnet.compiler.plan import Plan
from stepnet.compiler.targets.cuda import (
    DeviceFacts,
    DevicePositions,
    EmulatedDevice,
    TensorChoice,
    TensorSchedule,
    TensorShape,
    TensorStep,
    chosen,
    empty,
    get,
    put,
    refilled_lanes,
    sorted_lanes,
)
from stepnet.compiler.targets.cuda.tensor.shape import Precision
from stepnet.compiler.targets.cuda.tensor.writing import loop_code
from stepnet.model.gradients.runs import Halved
from stepnet.ragged import Positions

Array = np.ndarray
DEVICE = DeviceFacts("NVIDIA H100 80GB HBM3", (9, 0), 132, 232448, 65536, 16)
"""The facts of a device by which loops are chosen."""
RAGGED = [3, 7, 0, 1, 5, 4, 2, 6, 7, 3]


@cache
def cell_plan(name: str, width: int, dtype: str = "float32") -> Plan:
    """The plan of a cell by its name, or of "rg_lru"."""
    return gpu_plan(recurrence(name, width, dtype))


def gpu_plan(rnn: sn.RNN) -> Plan:
    """The plan of a model of one recurrence, for a GPU."""
    (plan,) = rnn.program.schedule_for("cuda-emulated").plans
    return plan


@cache
def backward_plan(name: str, width: int, dtype: str = "float32") -> Plan:
    """The plan of the loop that runs back through a cell, for its gradient."""
    return backward_of(recurrence(name, width, dtype))


def backward_of(rnn: sn.RNN) -> Plan:
    """The plan of the loop that runs back through a model of one recurrence."""
    net = rnn.net
    parts = Halved.of(net, range(len(net.inputs))).second.schedule_for("cuda-emulated").parts
    (plan,) = [part.plan for part in parts if part.plan]
    return plan


def step_plan(
    step: Callable[..., Any], width: Any, dtype: str = "float32", /, **shapes: tuple[int, ...]
) -> Plan:
    """The plan of a step of the user's, with parameters of these shapes and 6 features."""
    return gpu_plan(step_model(step, width, dtype, **shapes))


def step_model(
    step: Callable[..., Any], width: Any, dtype: str = "float32", /, **shapes: tuple[int, ...]
) -> sn.RNN:
    """The model of a step of the user's, with parameters of these shapes and 6 features."""
    chance = np.random.default_rng(0)
    params = {name: chance.normal(0, 0.4, shape).astype(dtype) for name, shape in shapes.items()}
    rnn = sn.RNN(step, params, memory=width)
    rnn(np.zeros((1, 1, 6), "f4"))
    return rnn


def loops_of(plan: Plan, precision: Precision = "float32") -> list[TensorChoice]:
    """The loops on tensor cores for 16 sequences of a plan, the fastest first."""
    return chosen(plan, 16, DEVICE, precision)


@dataclass
class Case:
    """Operands of a step for some sequences. starts: the first entry of each. steps: as in LOOP_WORDS.

    others: statics and parameters. zeros: whether sequences begin with zeros, for which no array is given.
    done: the steps of each sequence in earlier calls.
    """

    step: TensorStep
    lengths: list[int]
    sequences: list[Array]
    memories: list[Array]
    others: list[Array]
    starts: list[int]
    steps: Array | None = None
    reverse: bool = False
    zeros: bool = False
    done: list[int] | None = None

    def alone(self, row: int) -> "Case":
        """One of the sequences, which begins at the first entry."""
        first, end = self.starts[row], self.starts[row] + self.lengths[row]
        return replace(
            self,
            lengths=[self.lengths[row]],
            starts=[0],
            sequences=[each[first:end] for each in self.sequences],
            memories=[each[row : row + 1] for each in self.memories],
        )

    @classmethod
    def drawn(cls, step: TensorStep, lengths: list[int], reverse: bool = False) -> "Case":
        """Draws operands at random."""
        chance = np.random.default_rng(len(lengths))

        def array(n: int, *count: int, most: float = 1) -> Array:
            """Draws an array of values of a node."""
            type_ = step.body.type_of(n)
            drawn = chance.uniform(-most, most, (*count, *type_.shape))
            return drawn > 0 if type_.dtype == "bool" else drawn.astype(type_.dtype)

        total = sum(lengths)
        others = list[Array]()
        for n in step.others:
            is_constant = step.body.type_of(n).extent == CONST
            own = array(n, most=(2 / step.width) ** 0.5) if is_constant else array(n, len(lengths))
            others.append(own.astype(step.half_of(n) or own.dtype).astype(own.dtype))
        return cls(
            step,
            lengths,
            [array(n, total) for n in step.sequences],
            [array(n, len(lengths)) for n in step.memories],
            others,
            [int(start) for start in np.cumsum([0, *lengths[:-1]])],
            reverse=reverse,
        )

    def entry(self, row: int, t: int) -> int:
        """The entry of step t of a sequence, in the order in which steps run."""
        place = self.lengths[row] - 1 - t if self.reverse else t
        return self.starts[row] + (place if self.steps is None else int(self.steps[place]))

    def expected(self) -> tuple[list[Array], list[Array]]:
        """Outputs [total, ...] and last memories [rows, ...], by the interpreter in float64."""
        step = self.step
        total = len(self.sequences[0])
        types = [step.body.type_of(n) for n in step.order.results_by_kind(step.body.results).outputs]
        outputs = [np.full((total, *type_.shape), np.nan) for type_ in types]
        wide = [wider(each) for each in self.sequences]
        last = [np.zeros_like(wider(m)) if self.zeros else wider(m).copy() for m in self.memories]
        for row, length in enumerate(self.lengths):
            others = [
                wider(each if step.body.type_of(n).extent == CONST else each[row : row + 1])
                for n, each in zip(step.others, self.others, strict=True)
            ]
            memories = [each[row : row + 1] for each in last]
            for t in range(length):
                at = self.entry(row, t)
                values = [each[at : at + 1] for each in wide]
                index = np.array([t + (self.done[row] if self.done else 0)])
                results = interpret(step.body, [*values, *memories, *others], LevelSizes(1), index)
                for output, result in zip(outputs, results, strict=False):
                    output[at] = result[0]
                memories = [np.asarray(each) for each in results[len(outputs) :]]
            for memory, now in zip(last, memories, strict=True):
                memory[row] = now[0]
        return outputs, last

    def run(
        self,
        schedule: TensorSchedule,
        seed: int = 0,
        groups: int | None = None,
        missing: int = 0,
        refilled: int = 0,
        arena: int = 0,
    ) -> tuple[list[Array], list[Array]]:
        """Outputs and last memories of the loop in emulation. groups: as many run at a time, by default all.
        missing: the blocks that are not launched. refilled: if lanes are, the number to a multiple of which
        the steps of sequences are rounded up. arena: as of the device.
        """
        step, device = self.step, EmulatedDevice(seed, arena=arena)
        code = loop_code(TensorShape(step, schedule))
        types = [step.body.type_of(n) for n in step.order.results_by_kind(step.body.results).outputs]
        total = len(self.sequences[0])
        outputs = [empty(device, (total, *type_.shape), type_.dtype) for type_ in types]
        last = [empty(device, each.shape, each.dtype.name) for each in self.memories]
        lengths = np.array(self.lengths)
        if refilled:
            table = refilled_lanes(lengths, code.group_rows, groups or 1, refilled)
        else:
            table = sorted_lanes(lengths, code.group_rows, groups or 0)
        groups = table.groups
        scratch = empty(device, (max(1, groups * code.scratch),), "uint8")
        for group in range(groups):
            device.clear(scratch.address + group * code.scratch, code.zeros)
        positions = Positions(np.array(self.starts), lengths, total, self.steps)
        places = DevicePositions(positions, device)
        lanes = places.lanes("tested", self.reverse, lambda: table)
        sequences = [put(device, each) for each in self.sequences]
        memories = [] if self.zeros else [put(device, each) for each in self.memories]
        others = [put(device, each) for each in self.others]
        first = [each.address for each in memories] if memories else [0] * len(self.memories)
        done = None if self.done is None else put(device, np.array(self.done, "i8"))
        steps = places.steps.address if places.steps else 0
        words = [*lanes.words, steps, int(self.reverse), done.address if done else 0]
        words += [scratch.address, 0, *(each.address for each in sequences), *first]
        words += [each.address for each in (*others, *outputs, *last)]
        device.launch(code.code, groups * schedule.blocks - missing, words)
        return [get(each) for each in outputs], [get(each) for each in last]


def wider(array: Any) -> Array:
    """An array in float64, unless it is no float."""
    return array.astype("f8") if array.dtype.kind == "f" else np.asarray(array)


def as_given(case: Case, plan: Plan) -> Case:
    """The same operands for the step as a plan has it, with values of several widths."""
    return replace(case, step=TensorStep(plan.body, case.step.order))
