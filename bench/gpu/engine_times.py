"""Times of the target `cuda` on a GPU: loops as they are chosen, stages and whole calls.

    usage: python -m bench.gpu.engine_times [FILE [TEXT,TEXT...]]

A row is a recurrence of some units and sequences of 1024 steps: the estimate of a step, the measured time of
the loop alone per step, of a call on arrays of the device, and of a call on arrays of the host.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import stepnet as sn
from bench.gpu.cells import model
from stepnet.compiler.targets import engine_named
from stepnet.compiler.targets.base import Call
from stepnet.compiler.targets.cuda.kernel import CudaKernel, PlanRun
from stepnet.compiler.values import leaves
from stepnet.ragged.positions import Positions

STEPS = 1024
CASES = [
    *((cell, width) for cell in ("gru", "lstm") for width in (64, 128, 256, 512, 1024)),
    *(("minimal_gated_unit", width) for width in (64, 256, 512)),
    *((name, width) for name in ("layer_normed", "slstm", "decay") for width in (64, 256)),
]


def own_cell(name: str, width: int) -> sn.RNN:
    """Returns a recurrence that no library knows: a layer-normed GRU, an sLSTM, or a decay."""
    chance = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return (chance.normal(size=shape) * shape[0] ** -0.5).astype("f4")

    def normalised(v: Any) -> Any:
        centred = v - v.mean(axis=-1, keepdims=True)
        return centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5)

    def layer_normed(x: Any, h: Any, p: Any) -> Any:
        a, b = normalised(x @ p["W"]), normalised(h @ p["R"])
        r, z = (
            sn.sigmoid(a[:, :width] + b[:, :width]),
            sn.sigmoid(a[:, width : 2 * width] + b[:, width : 2 * width]),
        )
        h = z * h + (1 - z) * np.tanh(a[:, 2 * width :] + r * b[:, 2 * width :])
        return h, h

    def slstm(x: Any, memory: Any, p: Any) -> Any:
        h, c, n, m = memory
        g = x @ p["W"] + h @ p["R"]
        i, f, z, o = (g[:, k * width : (k + 1) * width] for k in range(4))
        m_next = np.maximum(f + m, i)
        i, f = np.exp(i - m_next), np.exp(f + m - m_next)
        c, n = f * c + i * np.tanh(z), f * n + i
        h = sn.sigmoid(o) * c / np.maximum(n, 1e-6)
        return h, [h, c, n, m_next]

    def decay(x: Any, h: Any, p: Any) -> Any:
        h = sn.sigmoid(p["a"]) * h + x
        return np.tanh(h), h

    gates = {"layer_normed": 3, "slstm": 4}
    if name == "decay":
        return sn.RNN(decay, {"a": weights(width)}, memory=width, inputs=width)
    params = {"W": weights(64, gates[name] * width), "R": weights(width, gates[name] * width)}
    if name == "slstm":
        return sn.RNN(slstm, params, memory=[width] * 4, inputs=64)
    return sn.RNN(layer_normed, params, memory=width, inputs=64)


def timed(run: Callable[[], Any], wait: Callable[[], None], times: int = 5) -> float:
    """Returns the median seconds of a call, each waited for."""
    found = list[float]()
    for _ in range(times):
        begun = time.perf_counter()
        run()
        wait()
        found.append(time.perf_counter() - begun)
    return median(found)


def row(name: str, width: int, rows: int, engine_name: str = "cuda", steps: int = STEPS) -> dict[str, Any]:
    """Times one recurrence. engine_name: the target, or its emulation to try this file."""
    engine: Any = engine_named(engine_name)
    known = name in ("gru", "lstm", "minimal_gated_unit")
    rnn: Any = model(name, width, [1]).rnn if known else own_cell(name, width)
    schedule = rnn.program.schedule_for(engine_name)
    (plan,) = schedule.plans
    features = rnn.program.net.type_of(rnn.program.net.inputs[0]).size
    x = np.random.default_rng(1).normal(size=(rows, steps, features)).astype("f4")
    params = [np.asarray(each) for each in leaves(rnn.params)]
    begun = time.perf_counter()
    kernel = CudaKernel(plan, engine.memory)
    bound = kernel.bind(params)
    positions = Positions.padded(np.full(rows, steps), steps)
    flat = engine.memory.put(x.reshape(rows * steps, features))
    memories = [None] * len(plan.ends.memories)
    call = Call(positions, [flat], memories)
    bound(call)
    engine.device.wait()
    first = time.perf_counter() - begun
    chosen = kernel.loop(rows)
    run = PlanRun(kernel, call, dict(bound.constants))
    run.stage("sequence")
    run.stage("before")
    loop = timed(run.loop, engine.device.wait)
    whole = timed(lambda: bound(call), engine.device.wait)
    rnn(x, engine=engine_name)
    host = timed(lambda: rnn(x, engine=engine_name), engine.device.wait, 3)
    return {
        "case": f"{name}-{width} x {rows}",
        "schedule": chosen.loop.schedule,
        "estimate_us": round(chosen.microseconds, 2),
        "loop_us": round(loop / steps * 1e6, 2),
        "call_us": round(whole / steps * 1e6, 2),
        "host_us": round(host / steps * 1e6, 2),
        "first_s": round(first, 2),
    }


def main() -> None:
    """Times all cases, or those whose name has a text; prints a line for each, and writes them as JSON."""
    found = list[dict[str, Any]]()
    only = sys.argv[2].split(",") if len(sys.argv) > 2 else [""]
    for name, width in (case for case in CASES if any(word in f"{case[0]}-{case[1]}" for word in only)):
        for rows in (1, 16, 64):
            found.append(row(name, width, rows))
            print(*found[-1].values(), sep="  ", flush=True)
            if len(sys.argv) > 1:
                Path(sys.argv[1]).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
