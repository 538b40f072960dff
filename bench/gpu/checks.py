"""Runs the kernels on a GPU, and compares them with what the CPU engine and the interpreter give.

For each kernel: the largest difference; whether all of several runs give the same bits; whether a sequence
has the same bits alone and in the batch; and which kernels of a step give the same bits as each other.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import numpy as np

from bench.gpu.bundle import Bundle, Check, Compiled, read_case
from bench.gpu.device import Loaded, run
from bench.gpu.driver import CudaError, Driver, driver
from bench.gpu.inputs import Array, Inputs, arranged

RUNS = 20
FEW = ("gru-32", "minimal_gated_unit-32")
TOO_MANY = 200
"""Groups of more blocks than a GPU runs at once."""


def checks(bundle: Bundle, exchange: str) -> Iterator[tuple[str, Any]]:
    """Yields the facts about each kernel that is checked and has this exchange, by its name."""
    yield "device", driver().facts()
    for check in bundle.checks:
        case = read_case(bundle.folder / f"check-{check.name.replace(' ', '-')}.npz")
        for name in check.kernels:
            if bundle.kernels[name].exchange == exchange:
                yield name, checked(driver(), bundle, check, bundle.kernels[name], *case)
    if exchange == "grid":
        yield "too large a grid", refused(driver(), bundle)


def few_checks(bundle: Bundle, without: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the facts about few kernels, each run once: for tools that watch every access to memory.
    without: what the kernels must leave out.
    """
    for check in bundle.checks:
        if check.name in FEW:
            case = read_case(bundle.folder / f"check-{check.name.replace(' ', '-')}.npz")
            for name in check.kernels:
                if bundle.kernels[name].without == without:
                    yield name, checked(driver(), bundle, check, bundle.kernels[name], *case, times=1)


def checked(
    cuda: Driver,
    bundle: Bundle,
    check: Check,
    kernel: Compiled,
    inputs: Inputs,
    outputs: list[Array],
    last: list[Array],
    times: int = 0,
) -> dict[str, Any]:
    """Returns the facts about one kernel. times: how often it runs; `RUNS` by default."""
    loaded = Loaded.of(cuda, bundle, kernel)
    call = arranged(kernel.signature, inputs)
    runs = run(cuda, loaded, call, times or RUNS)
    found = call.found(runs[0])
    pairs = list(zip([*found[0], *found[1]], [*outputs, *last], strict=True))
    again = [all(same_bits(a, b) for a, b in zip(runs[0], other, strict=True)) for other in runs[1:]]
    alone = arranged(kernel.signature, first_of(inputs))
    (single,) = run(cuda, loaded, alone)
    length = int(inputs.lengths[0])
    both = zip(alone.found(single)[0], found[0], strict=True)
    loaded.module.unload()
    return {
        "step": kernel.step,
        "difference": float(max(np.abs(a - b).max(initial=0) for a, b in pairs)),
        "tolerance": check.tolerance,
        "finite": all(np.isfinite(a).all() for a, _ in pairs),
        "runs_with_the_same_bits": f"{1 + sum(again)} of {len(runs)}",
        "alone": all(same_bits(a[:length], b[:length]) for a, b in both),
        "bits": sha256(b"".join(a.tobytes() for a, _ in pairs)).hexdigest()[:12],
        "numbers": kernel.numbers,
        "chains": kernel.chains,
        "without": kernel.without,
    }


def same_bits(a: Array, b: Array) -> bool:
    """Tells whether two arrays have the same bits, NaN included."""
    return a.tobytes() == b.tobytes()


def first_of(inputs: Inputs) -> Inputs:
    """Returns the operands of the first sequence."""
    length = int(inputs.lengths[0])
    first = [each[:length] for each in inputs.sequences], [each[:1] for each in inputs.memories]
    return Inputs(inputs.lengths[:1], *first, inputs.constants)


def refused(cuda: Driver, bundle: Bundle) -> str:
    """Returns what the driver says of a grid that cannot run at once, whose blocks would wait for ever."""
    kernel = next(each for each in bundle.kernels.values() if each.exchange == "grid")
    loaded = Loaded.of(cuda, bundle, kernel)
    table = cuda.empty(8 * 32)
    try:
        loaded.launch(table, TOO_MANY * 32)
    except CudaError as error:
        return f"refused: {error}"
    finally:
        table.free()
    return "launched"
