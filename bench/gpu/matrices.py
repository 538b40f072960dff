"""Estimates of steps whose memory is a matrix on an H100, beside what other kernels have to move.

    python -m bench.gpu matrices       no GPU is needed

flash-linear-attention and mamba_ssm compute these in several kernels, with values between them in main
memory. What is given of them is computed, not measured: the bytes that their kernels read and write, at the
rate of a copy; for Mamba the instructions of its kernel, one in a cycle of each scheduler, which take longer.
So it is the least that they can take.

Of gradients, the backward pass is given: its loops, and the gradients of matrices that decay; not the work
around them, which is a kernel or two for all steps.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

import stepnet as sn
from stepnet.compiler.plan import Plan, Planning
from stepnet.compiler.targets.cuda import (
    COSTS,
    CudaEngine,
    CudaOptions,
    CudaPrecision,
    DeviceFacts,
    EmulatedDevice,
    TrainedChunks,
    loop_of,
    parts_of_decays,
    time_of_blocks,
    time_of_decays,
)
from stepnet.model.gradients.runs import Halved

STEPS, BATCHES = 1024, (16, 64)
CHUNK = 64
"""The steps of a chunk of the other kernels."""
BYTES = 2.97e6
"""The bytes of a copy in a microsecond, as measured on an H100."""
ISSUED = 132 * 4 * 1.98e3
"""The instructions of warps that an H100 issues in a microsecond: one for each scheduler and cycle."""
SCANNED = {4: 241.0, 2: 284.0}
"""The instructions of a warp of mamba_ssm's forward kernel for a step of 32 channels with 16 states, by the
bytes of a number of its inputs: in the machine code that nvcc 13 makes of it for 9.0, as for sequences of
513 to 1024 steps, without softplus and gate. A thread has 16 steps of a channel: of each state 227 (267)
instructions or more, of which 16 are exponentials and 109 multiply, and 231 (276) besides.
"""
WAYS: tuple[CudaPrecision, ...] = "float32", "tf32", "bfloat16"


@dataclass(frozen=True)
class MatrixCase:
    """A cell with its memory, the shapes of its inputs, and its parameters.

    vectors, states: how often the other kernels read or write a vector of each head, and the matrix of each
        chunk. channels: of Mamba. back: vectors and states of the backward pass. further: its memories
        besides the matrix, if it has some, by name.
    """

    name: str
    step: Callable[..., Any]
    memory: tuple[int, ...]
    inputs: dict[str, tuple[int, ...]]
    params: Any = None
    vectors: int = 0
    states: int = 0
    channels: int = 0
    back: tuple[int, int] = (0, 0)
    further: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    def others(self, rows: int, size: int = 4, is_back: bool = False) -> float:
        """Returns the least microseconds of a step of the other kernels. size: the bytes of a number."""
        matrix = int(np.prod(self.memory))
        vectors, states = self.back if is_back else (self.vectors, self.states)
        moved = size * (vectors * matrix / self.memory[-2] + states * matrix / CHUNK)
        return rows * max(moved / BYTES, self.channels / 32 * SCANNED[size] / ISSUED)

    def model(self, dtype: str = "float32") -> sn.RNN:
        """Returns the recurrence, which knows its inputs. dtype: in which these are stored."""
        memory: Any = {"C": self.memory, **self.further} if self.further else self.memory
        rnn = sn.RNN(self.step, self.params, memory=memory)
        rnn({name: np.zeros((1, 1, *shape), dtype) for name, shape in self.inputs.items()})
        return rnn


def keyed(
    name: str, size: int, vectors: int, back: tuple[int, int], numbers: str = "", of_keys: str = ""
) -> MatrixCase:
    """Returns the case of a cell of 8 heads with as many keys as values.

    numbers: its inputs that are numbers of heads. of_keys: those that are numbers of keys, besides q and k.
    """
    inputs = {**dict.fromkeys([*"qkv", *of_keys.split()], (8, size)), **dict.fromkeys(numbers.split(), (8,))}
    step: Any = getattr(sn.cells, name)
    return MatrixCase(f"{name} {size}", step, (8, size, size), inputs, None, vectors, 2, back=back)


def cases() -> list[MatrixCase]:
    """Returns all cases. A gated delta rule moves k four times, v, w, u and the new v twice, q and the output
    once; linear attention k and v twice, q and the output once; Mamba-2 x, B and C twice and the output;
    gated linear attention q, k, v and its scores twice, g five times and the output; Kimi delta attention q,
    k, three matrices of scores, w, u, the new v and the decayed k twice, g six times, v and the output; an
    mLSTM what linear attention does, as its kernels fuse the rest.

    Backward, the states are computed again and written, and so are their cotangents; both are then read with
    all vectors and the cotangents of the outputs. A delta rule moves its corrections and their cotangents
    besides, and where keys decay by themselves scores, decays and their cotangents are moved.
    """
    made = [keyed("gated_delta_rule", size, 14, (33, 4), "g beta") for size in (64, 128)]
    made += [keyed("linear_attention", size, 6, (13, 4)) for size in (64, 128)]
    made += [keyed("gla", size, 14, (30, 5), of_keys="g") for size in (64, 128)]
    made += [keyed("kda", size, 26, (56, 4), "beta", "g") for size in (64, 128)]
    for size in (64, 128):
        further = {"n": (8, size), "m": (8,)}
        made.append(replace(keyed("mlstm", size, 6, (13, 4), "i f"), further=further))
    ssd = {"x": (8, 64), "dt": (8,), "B": (1, 64), "C": (1, 64)}
    numbers = {"A": -np.ones(8, "f4"), "D": np.ones(8, "f4")}
    made.append(MatrixCase("mamba2 64", sn.cells.mamba2, (8, 64, 64), ssd, numbers, 7, 4, back=(19, 10)))
    scan = {"x": (1024,), "dt": (1024,), "B": (16,), "C": (16,)}
    each = {"A": -np.ones((1024, 16), "f4"), "D": np.ones(1024, "f4")}
    made.append(MatrixCase("mamba 1024 x 16", sn.cells.mamba, (1024, 16), scan, each, 192, 0, 1024))
    return made


PLANNING = Planning(CudaEngine.pipeline, COSTS)


def loop_time(plan: Plan, rows: int, facts: DeviceFacts, way: CudaPrecision) -> float:
    """Returns the microseconds of a step of a loop; of single blocks, which have no estimate of their own, as
    any such loop takes.
    """
    return loop_of(plan, rows, facts, CudaOptions(way)).microseconds or time_of_blocks(plan, rows, facts)


def forward_time(rnn: sn.RNN, rows: int, facts: DeviceFacts, way: CudaPrecision) -> float:
    """Returns the microseconds of a step of the loops of the forward pass."""
    parts = rnn.program.schedule.planned(PLANNING).parts
    return sum(loop_time(part.plan, rows, facts, way) for part in parts if part.plan is not None)


def backward_time(rnn: sn.RNN, rows: int, facts: DeviceFacts, way: CudaPrecision) -> float:
    """Returns the microseconds of a step of the backward pass in chunks: of its loops, and of decays."""
    halved = Halved.of(rnn.net, range(len(rnn.net.inputs)), chunks=TrainedChunks(facts.shared))
    total = 0.0
    schedule = halved.second.schedule.planned(PLANNING)
    for part in schedule.parts:
        if part.kind == "recurrence" and part.plan is not None:
            total += loop_time(part.plan, rows, facts, way)
        elif part.node is not None and part.node.operation == "matrix_gradients":
            total += time_of_decays(schedule.net, part.node, rows, facts, way)
    return total


def gradient_parts(rnn: sn.RNN, rows: int, facts: DeviceFacts, way: CudaPrecision) -> list[str]:
    """Returns columns of the backward pass: its loops, that of what is written first; the gradients of a
    matrix that decays, the bytes of their kernel, and its parts.
    """
    halved = Halved.of(rnn.net, range(len(rnn.net.inputs)), chunks=TrainedChunks(facts.shared))
    schedule = halved.second.schedule.planned(PLANNING)
    loops, columns = list[str](), [""] * 7
    for part in schedule.parts:
        if part.kind == "recurrence" and part.plan is not None:
            loops.append(f"{loop_time(part.plan, rows, facts, way):.2f}")
        elif part.node is not None and part.node.operation == "matrix_gradients":
            given = schedule.net, part.node, rows, facts, way
            times = [time_of_decays(*given), *parts_of_decays(*given).values()]
            columns = [f"{time:.{2 if place < 2 else 3}f}" for place, time in enumerate(times)]
    return [" + ".join(loops), *columns]


def parts_table() -> Iterator[str]:
    """Yields the lines of the table of what takes the time of the backward pass."""
    columns = ["", "numbers", "sequences", "estimate", "by the least", "loops", "decays", "its bytes"]
    columns += ["waits for reads", "loads, stores", "products", "chains", "barriers"]
    yield "| " + " | ".join(columns) + " |"
    yield "| --- | --- | ---: | ---: | ---: | --- |" + " ---: |" * 7
    facts = EmulatedDevice().facts
    ways: tuple[tuple[CudaPrecision, int], ...] = ("float32", 4), ("bfloat16", 2)
    for case in cases():
        for (way, size), rows in product(ways if any(case.back) else (), BATCHES):
            rnn = case.model()
            now = backward_time(rnn, rows, facts, way)
            numbers = [f"{now:.2f}", f"{now / case.others(rows, size, is_back=True):.2f}"]
            numbers += gradient_parts(rnn, rows, facts, way)
            yield f"| {case.name.replace('_', ' ')} | {way} | {rows} | " + " | ".join(numbers) + " |"


def stepwise_time(rnn: sn.RNN, rows: int, facts: DeviceFacts) -> float:
    """Returns the microseconds of a step of the backward pass step by step, of its loop."""
    parts = Halved.of(rnn.net, range(len(rnn.net.inputs))).second.schedule.parts
    plans = [part.plan for part in parts if part.kind == "recurrence" and part.plan is not None]
    return sum(time_of_blocks(plan, rows, facts) for plan in plans)


def table(is_back: bool = False) -> Iterator[str]:
    """Yields the lines of the table of microseconds of a step; with `is_back` of the backward pass."""
    columns = ["", "sequences", "step by step", *WAYS, "others, float32", "others, bfloat16"]
    yield "| " + " | ".join(columns) + " |"
    yield "| --- | " + " | ".join("---:" for _ in columns[1:]) + " |"
    facts = EmulatedDevice().facts
    for case in cases():
        rnn, half = case.model(), case.model("bfloat16")
        if is_back and not any(case.back):
            continue
        for rows in BATCHES:
            if is_back:
                before = stepwise_time(rnn, rows, facts)
                now = [backward_time(rnn, rows, facts, way) for way in WAYS]
            else:
                before = time_of_blocks(rnn.plan, rows, facts)
                stored = zip((rnn, rnn, half), WAYS, strict=True)
                now = [forward_time(each, rows, facts, way) for each, way in stored]
            least = [case.others(rows, size, is_back) for size in (4, 2)]
            numbers = [f"{time:.2f}" for time in (before, *now, *least)]
            yield f"| {case.name.replace('_', ' ')} | {rows} | " + " | ".join(numbers) + " |"
