"""Times a step of a stream of 64 users (its rows) where some of them come and go, or wait.

    python -m bench.stream_rows                  a table
    python -m bench.stream_rows --rounds 51      with more turns for each
    python -m bench.stream_rows --json

The ways: a stream whose rows stay; one that drops 4 random rows and adds 4 new ones ahead of every step; one
that steps the two halves of its rows in turn, and one that steps a random half; and what a program did before
rows could come and go: a new stream ahead of every step, with the memories of those that stay. A turn is some
steps of one way; the ways alternate, and a time is the median over all turns of the time of one step. A ratio
is the median over rounds of the ratio to the stream whose rows stay.
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
from stepnet import cells
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.values.structure import transform

Array = np.ndarray
USERS, CHANGING, INPUTS = 64, 4, 256
STAY = "rows stay"


def with_matrix(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
    """Steps a memory of 8 decaying matrices of 64 x 64, to which it adds an outer product each."""
    keys, values = (np.reshape(x @ p[name], (-1, 8, 64)) for name in ("keys", "values"))
    memory = 0.9 * memory + keys[:, :, :, None] * values[:, :, None, :]
    return np.sum(memory * keys[:, :, :, None], axis=2), memory


def matrices() -> sn.RNN:
    """Returns a recurrence with a memory of matrices."""
    random = np.random.default_rng(0)
    params = {
        name: np.float32(0.05) * random.standard_normal((INPUTS, 512), np.float32)
        for name in ("keys", "values")
    }
    return sn.RNN(with_matrix, params, memory=(8, 64, 64))


CASES: dict[str, Callable[[], sn.RNN]] = {
    "GRU 256": lambda: cells.rnn("gru", cells.CELLS["gru"].parameters(INPUTS, 256)),
    "matrices [8, 64, 64]": matrices,
}


def ways(rnn: sn.RNN, x: Array) -> dict[str, Callable[[], Array]]:
    """Returns functions that take the next step of a stream, by the name of how its rows change.

    x: the inputs of all rows (users).
    """
    random = np.random.default_rng(1)
    fixed, changing, in_turn, drawn = (rnn.stream(rows=USERS) for _ in range(4))
    for stream in (fixed, changing, in_turn, drawn):
        stream.step(x)
    halves = [np.arange(USERS // 2), np.arange(USERS // 2, USERS)]
    half, anew = x[: USERS // 2], [fixed.state]
    turn = 0

    def come_and_go() -> Array:
        """Drops some random rows of a stream, adds as many, and steps all, to be timed."""
        changing.drop(random.permutation(USERS)[:CHANGING])
        changing.add(rows=CHANGING)
        return changing.step(x)

    def halves_in_turn() -> Array:
        """Steps one half of the rows of a stream, alternately, to be timed."""
        nonlocal turn
        turn = 1 - turn
        return in_turn.step(half, rows=halves[turn])

    def made_anew() -> Array:
        """Makes a new stream with the memories of the rows that stay, and steps it, to be timed."""
        kept = np.sort(random.permutation(USERS)[CHANGING:])
        state = transform(lambda array: np.concatenate([array[kept], 0 * array[:CHANGING]]), anew[0])
        stream = rnn.stream(rows=USERS, initial=state)
        outputs = stream.step(x)
        anew[0] = stream.state
        return outputs

    return {
        STAY: lambda: fixed.step(x),
        f"{CHANGING} come and go": come_and_go,
        "halves in turn": halves_in_turn,
        "a random half": lambda: drawn.step(half, rows=random.permutation(USERS)[: USERS // 2]),
        "a new stream": made_anew,
    }


def check(rnn: sn.RNN, x: Array) -> None:
    """Asserts that rows that came, and rows that waited, have the bits of sequences run by themselves."""
    every = ways(rnn, x)
    came, half = every[f"{CHANGING} come and go"](), USERS // 2
    assert np.array_equal(came[-CHANGING:], rnn(x[-CHANGING:, None])[0][:, 0]), "rows that came differ"
    waited = every["halves in turn"]()
    right = rnn(np.stack([x[half:], x[:half]], axis=1))[0][:, 1]
    assert np.array_equal(waited, right), "rows of which others waited differ"


@dataclass(frozen=True)
class Times:
    """The result for one case: seconds of a step in every round, by the name of how rows change."""

    case: str
    seconds: dict[str, list[float]]

    def rows(self) -> list[tuple[str, float, float]]:
        """Returns (name, microseconds, ratio to the stream whose rows stay) of each way."""
        stay = self.seconds[STAY]
        return [
            (name, median(own) * 1e6, median(a / b for a, b in zip(own, stay, strict=True)))
            for name, own in self.seconds.items()
        ]


def measured(case: str, rounds: int, steps: int) -> Times:
    """Times a step of all ways of a case in alternation; steps: those of a turn."""
    x = np.random.default_rng(0).standard_normal((USERS, INPUTS), np.float32)
    rnn = CASES[case]()
    check(rnn, x)
    every = ways(rnn, x)
    seconds: dict[str, list[float]] = {name: [] for name in every}
    for taken in range(rounds + 1):
        for name, step in every.items():
            begun = time.perf_counter()
            for _ in range(steps):
                step()
            if taken:  # the first round compiles
                seconds[name].append((time.perf_counter() - begun) / steps)
    return Times(case, seconds)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 21,
    steps: Annotated[int, typer.Option(min=1, help="How many steps a turn has.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Time steps of a stream whose rows come, go and wait, and print a table or JSON."""
    every = [measured(case, rounds, steps) for case in CASES]
    if as_json:
        typer.echo(json.dumps([{"case": one.case, "rows": one.rows()} for one in every], indent=1))
        return
    for one in every:
        typer.echo(f"{one.case}, {USERS} users, {threads()} threads: microseconds a step, of {STAY!r}")
        for name, microseconds, ratio in one.rows():
            typer.echo(f"    {name:20} {microseconds:10.1f} {ratio:8.2f}")


if __name__ == "__main__":
    typer.run(main)
