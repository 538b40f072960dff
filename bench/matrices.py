"""Times steps that multiply or sum with a matrix of each sequence, or with a parameter as large.

    python -m bench.matrices                            a table
    python -m bench.matrices --rows 4 --size 128        for other sizes
    python -m bench.matrices static until               cases whose names begin so
    python -m bench.matrices --json

Every case carries a matrix S, or a vector h, and runs 100 steps of each sequence. The cases alternate, a time
is the median over all turns, and a ratio is the median over rounds of the ratio to a step of S alone.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

import stepnet as sn
from stepnet.compiler.targets.threads import threads

Array = np.ndarray
STEPS = 100
ALONE = "alone"
Step = Callable[..., tuple[Any, Any]]


def written(x: Any, S: Any, value: Any) -> tuple[Any, Any]:
    """Ends a step of the cases: writes a value to S under key k, and reads S by query q; returns both."""
    S = S + x["k"][:, :, None] * value[:, None, :]
    return (S * x["q"][:, :, None]).sum(1), S


def alone(x: Any, S: Any, params: Any) -> Any:
    """Computes a step to time: S decays and takes the input's value. The other cases are compared with it."""
    return written(x, 0.5 * S, x["v"])


def static_sum(x: Any, S: Any, params: Any, statics: Any) -> Any:
    """Computes a step to time: the value is less a sum over the first axis of a static matrix with k."""
    return written(x, 0.5 * S, x["v"] - (statics * x["k"][:, :, None]).sum(1))


def static_sum_over_last(x: Any, S: Any, params: Any, statics: Any) -> Any:
    """Computes a step to time: the value is less a sum over the last axis of a static matrix with k."""
    return written(x, 0.5 * S, x["v"] - (statics * x["k"][:, None, :]).sum(2))


def static_of_vector(x: Any, h: Any, params: Any, statics: Any) -> Any:
    """Computes a step to time: the memory is a vector h, summed with a static matrix of each sequence."""
    h = np.tanh(x["v"] + (statics * h[:, None, :]).sum(2))
    return h, h


def static_elementwise(x: Any, S: Any, params: Any, statics: Any) -> Any:
    """Computes a step to time: S is multiplied by a static matrix of each sequence, number by number."""
    return written(x, statics * S, x["v"])


def static_product(x: Any, S: Any, params: Any, statics: Any) -> Any:
    """Computes a step to time: S becomes its matrix product with a static matrix of each sequence."""
    return written(x, np.matmul(statics, S), x["v"])


def parameter_elementwise(x: Any, S: Any, params: Any) -> Any:
    """Computes a step to time: S decays by a parameter as large, number by number."""
    return written(x, np.exp(-np.abs(params["P"])) * S, x["v"])


def parameter_product(x: Any, S: Any, params: Any) -> Any:
    """Computes a step to time: S becomes its matrix product with a parameter."""
    return written(x, S @ params["P"], x["v"])


def delta(x: Any, S: Any, params: Any) -> Any:
    """Computes a step to time, of the delta rule: the value is less what the key reads of the decayed S."""
    S = 0.9 * S
    return written(x, S, x["v"] - (S * x["k"][:, :, None]).sum(1))


def never(output: Any, memory: Any) -> Any:
    """Returns a flag for `until` that is never true: no sequence ends, and only the test costs time."""
    return output[:, 0] > 1e30


@dataclass(frozen=True)
class Case:
    """A step function to time, and whether it has an `until`, by which a sequence may end early."""

    step: Step
    ends: bool = False

    def run(self, rows: int, size: int) -> Callable[[], Any]:
        """Returns a function that runs all steps of `rows` sequences, with matrices of `size` x `size`."""
        random = np.random.default_rng(0)

        def array(*shape: int) -> Array:
            return random.standard_normal(shape, np.float32) / np.float32(size**0.5)

        names, more = self.step.__code__.co_varnames[: self.step.__code__.co_argcount], dict[str, Any]()
        x = {name: array(rows, STEPS, size) for name in "kqv"}
        params = {"P": array(size, size)} if self.step.__name__.startswith("parameter") else None
        memory = (size,) if "h" in names else (size, size)
        until = never if self.ends else None
        if "statics" in names:
            more["statics"] = array(rows, size, size)
        rnn = sn.RNN(self.step, params, memory=memory, until=until)
        return lambda: rnn(x, **more)


CASES = {
    ALONE: Case(alone),
    "static, sum": Case(static_sum),
    "static, sum over the last axis": Case(static_sum_over_last),
    "static, sum with h": Case(static_of_vector),
    "static, elementwise": Case(static_elementwise),
    "static @ S": Case(static_product),
    "parameter, elementwise": Case(parameter_elementwise),
    "S @ parameter": Case(parameter_product),
    "delta rule": Case(delta),
    "until, delta rule": Case(delta, ends=True),
}


def measured(cases: list[str], rounds: int, rows: int, size: int) -> list[tuple[str, float, float]]:
    """Times cases in alternation: (name, milliseconds, ratio to a step of the matrix alone) of each."""
    names = list(dict.fromkeys([ALONE, *cases]))
    runs = {name: CASES[name].run(rows, size) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for taken in range(rounds + 1):
        for name, run in runs.items():
            begun = time.perf_counter()
            run()
            if taken:  # the first round compiles
                seconds[name].append(time.perf_counter() - begun)
    base = seconds[ALONE]
    return [
        (name, median(own) * 1e3, median(a / b for a, b in zip(own, base, strict=True)))
        for name, own in seconds.items()
    ]


def main(
    names: Annotated[list[str] | None, typer.Argument(help="How the names of cases begin; all.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 11,
    rows: Annotated[int, typer.Option(min=1, help="The number of sequences.")] = 16,
    size: Annotated[int, typer.Option(min=1, help="The rows and columns of a matrix.")] = 128,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Time steps with a matrix of each sequence, or with a parameter as large, and print a table or JSON."""
    cases = [name for name in CASES if not names or name.startswith(tuple(names))]
    if not cases:
        raise typer.BadParameter(f"no case begins with {names}: there are {list(CASES)}")
    times = measured(cases, rounds, rows, size)
    if as_json:
        typer.echo(
            json.dumps([{"case": name, "ms": ms, "ratio": ratio} for name, ms, ratio in times], indent=1)
        )
        return
    typer.echo(
        f"{rows} sequences of {STEPS} steps, {size} x {size}, {threads()} threads: milliseconds, of {ALONE}"
    )
    for name, milliseconds, ratio in times:
        typer.echo(f"    {name:32} {milliseconds:10.2f} {ratio:8.2f}")


if __name__ == "__main__":
    typer.run(main)
