"""Times a nested recurrence beside a flat one over the same frames, with the same weights.

    python bench/nested.py                  a table
    python bench/nested.py --profile        and what each part of the nested ones takes
    python bench/nested.py --json

The inner recurrence is a GRU, over all frames of all inner sequences; its last states are what an outer one
runs over. The flat one is that GRU by itself, over all inner sequences as so many sequences: once with each
one's last state alone, which is all that the outer recurrence needs, and once with the states of all frames.
They alternate, a few runs at a time; times are medians, and a ratio is the median of each round's.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn
from stepnet import cells
from stepnet.cli.demo import load
from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.targets.part_execution import KINDS, Frame, PartRun
from stepnet.compiler.targets.threads import threads
from stepnet.layout import from_torch

Array = np.ndarray
MOST = 1.3  # the promised limit, in times the flat recurrence's
WARM = 2  # runs of each turn that do not count
RUNS = ("nested", "flat, last states", "flat, all states")


@dataclass(frozen=True)
class Case:
    """A nested recurrence, the flat one inside it, the outer one by itself, and their sequences."""

    name: str
    nested: sn.RNN
    flat: sn.RNN
    outer: sn.RNN
    groups: sn.Ragged

    @property
    def inner(self) -> sn.Ragged:
        """The inner sequences by themselves: the same frames."""
        return sn.Ragged(self.groups.values, self.groups.offsets[1:])


@dataclass(frozen=True)
class Found:
    """The result for one case: median seconds of each recurrence by round, and of each part if profiled."""

    name: str
    groups: int
    sequences: int
    frames: int
    inputs: int
    hidden: int
    seconds: dict[str, list[float]]
    parts: dict[str, float]

    def ratio(self, other: str) -> float:
        """Returns the median time of the nested recurrence over that of another."""
        rounds = zip(self.seconds[RUNS[0]], self.seconds[other], strict=True)
        return median(nested / flat for nested, flat in rounds)

    @property
    def kept(self) -> bool:
        """True if the nested recurrence is as fast as promised, beside the flat one with last states."""
        return self.ratio(RUNS[1]) <= MOST


# ---- what is run -------------------------------------------------------------------------------------------


def vowels() -> Case:
    """Returns the case of Japanese Vowels: nine speakers of utterances, and stepnet's GRU for them."""
    data = load()
    frames = from_torch(data.weights, prefix="gru")
    assert isinstance(frames, sn.RNN)
    head = {"W": np.ascontiguousarray(data.weights["head.weight"].T), "b": data.weights["head.bias"]}

    def believed(heard: Any, belief: Any, params: dict[str, Array]) -> tuple[Any, Any]:
        """Computes one outer step: adds the scores of an utterance to the belief about its speaker."""
        belief = belief + heard @ params["W"] + params["b"]
        return belief, belief

    def step(utterance: Any, belief: Any, params: dict[str, Array]) -> tuple[Any, Any]:
        """Computes one step of the nested recurrence: the inner GRU over an utterance, then the belief."""
        return believed(frames(utterance, initial="zeros")[1], belief, params)

    outer = np.cumsum([0, *np.unique(data.speakers, return_counts=True)[1]])
    groups = sn.Ragged(data.utterances.values, (outer, *data.utterances.offsets))
    nested, by_itself = (sn.RNN(one, head, memory=9) for one in (step, believed))
    return Case("Japanese Vowels", nested, frames, by_itself, groups)


def documents(count: int, sentences: int, words: int, hidden: int, *, ragged: bool = False) -> Case:
    """Returns a case of documents of sentences of words, or `ragged` ones: half to 1.5 times as many."""
    random = np.random.default_rng(0)

    def lengths(many: int, each: int) -> Array:
        """Returns `many` lengths: all `each`, or random ones of half to one and a half times that."""
        return random.integers(each // 2, each + each // 2 + 1, many) if ragged else np.full(many, each)

    outer = np.cumsum([0, *lengths(count, sentences)])
    inner = np.cumsum([0, *lengths(int(outer[-1]), words)])
    values = random.standard_normal((int(inner[-1]), hidden), np.float32)
    flat, of_sentences = (cells.CELLS["gru"].parameters(hidden, hidden, seed=seed) for seed in (1, 2))
    of_words = cells.rnn("gru", flat)

    def step(sentence: Any, h: Any, params: dict[str, Array]) -> tuple[Any, Any]:
        """Computes one step of the nested recurrence: the inner GRU over a sentence, then the outer one."""
        return cells.gru(of_words(sentence, initial="zeros")[1], h, params)

    name = f"{count} x {sentences} x {words}{', of any lengths' if ragged else ''}"
    nested = sn.RNN(step, of_sentences, memory=hidden)
    by_itself = cells.rnn("gru", of_sentences)
    return Case(name, nested, of_words, by_itself, sn.Ragged(values, (outer, inner)))


CASES: tuple[Callable[[], Case], ...] = (
    vowels,
    lambda: documents(64, 20, 25, 128),
    lambda: documents(64, 20, 25, 128, ragged=True),
    lambda: documents(16, 20, 25, 128),
    lambda: documents(64, 20, 25, 256),
    lambda: documents(64, 20, 5, 128),
)


# ---- how long it takes -------------------------------------------------------------------------------------


def measured(case: Case, rounds: int, counted: int, profile: bool) -> Found:
    """Times the recurrences of a case in alternation; raises `AssertionError` if their results differ.

    profile: True to time each part of the nested one too.
    """
    ways: dict[str, Callable[[], Any]] = {
        RUNS[0]: lambda: case.nested(case.groups),
        RUNS[1]: lambda: case.flat(case.inner, last_only=True),
        RUNS[2]: lambda: case.flat(case.inner),
    }
    check(case)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            turn = [timed(way) for _ in range(WARM + counted)]
            seconds[name].append(median(turn[WARM:]))
    parts = parts_of(case, rounds * counted) if profile else {}
    total, inputs = case.groups.values.shape
    hidden = case.flat.memory.shape[0]
    return Found(
        case.name,
        len(case.groups.lengths),
        len(case.inner.lengths),
        total,
        inputs,
        hidden,
        seconds,
        parts,
    )


def check(case: Case) -> None:
    """Asserts that the inner recurrence is lifted, and that flat and outer recurrence give the same."""
    outputs, final = case.nested(case.groups)
    parts = case.nested.schedule.parts
    kinds = [part.kind for part in parts]
    steps = [part.node.recur.body for part in parts if part.kind == "recurrence" and part.node is not None]
    stays = any(node.operation == "recur" for step in steps for node in step.nodes)
    assert "loop" not in kinds, f"{case.name}: an inner recurrence is not lifted: {kinds}"
    assert not stays, f"{case.name}: an inner recurrence is not lifted out of a step"
    last = sn.Ragged(case.flat(case.inner)[1], case.groups.offsets[:1])
    right, ends = case.outer(last)
    length = int(case.groups.lengths.max()) + int(case.inner.lengths.max())
    most = 2 * tolerance("float32", length, last.values.shape[-1] + case.groups.values.shape[-1])
    for one, other in ((outputs.values, right.values), (final, ends)):
        away = float((np.abs(one - other) / np.maximum(1, np.abs(other))).max())
        assert away <= most, f"{case.name}: nested is {away:.1e} away, where {most:.1e} is rounding"


def timed(way: Callable[[], Any]) -> float:
    """Returns the seconds of one call."""
    begun = time.perf_counter()
    way()
    return time.perf_counter() - begun


def never(run: PartRun, frame: Frame) -> bool:
    """Returns False in place of `PartRun.fits`: in a profile, parts do not run in one go."""
    return False


def parts_of(case: Case, count: int) -> dict[str, float]:
    """Returns the median seconds of each part of the nested recurrence, and of all together under "all"."""
    taken: dict[str, list[float]] = {"all": []}
    kinds = dict(KINDS)

    def watched(kind: str) -> Callable[..., Any]:
        """Returns a function that runs parts of a kind, and notes their seconds."""

        def run(net: Any, part: Any, *rest: Any) -> Any:
            """Runs one part of the schedule as usual, and adds its seconds to those taken."""
            begun = time.perf_counter()
            found = kinds[kind](net, part, *rest)
            place = case.nested.schedule.parts.index(part)
            taken.setdefault(f"{place} {kind}", []).append(time.perf_counter() - begun)
            return found

        return run

    # One by one: parts that run in one go have no times of their own.
    with patch.dict(KINDS, {kind: watched(kind) for kind in kinds}), patch.object(PartRun, "fits", never):
        for _ in range(count):
            taken["all"].append(timed(lambda: case.nested(case.groups)))
    return {name: median(found) for name, found in taken.items()}


# ---- what one sees -----------------------------------------------------------------------------------------


def table(found: list[Found]) -> Table:
    """Returns the table of all results, with a verdict on the promised time."""
    shown = Table(title="a nested recurrence beside the flat one inside it")
    shown.add_column("case", no_wrap=True)
    for name in ("inputs", "hidden", "sequences", "frames", *(f"{run}, ms" for run in RUNS)):
        shown.add_column(name, justify="right")
    for name in ("of the last states' time", "of all states' time", ""):
        shown.add_column(name, justify="right")
    for one in found:
        shown.add_row(
            one.name,
            str(one.inputs),
            str(one.hidden),
            f"{one.sequences:,}",
            f"{one.frames:,}",
            *(f"{median(one.seconds[run]) * 1e3:.2f}" for run in RUNS),
            *(f"{one.ratio(run):.2f}" for run in RUNS[1:]),
            "[green]kept[/]" if one.kept else "[red]not kept[/]",
        )
    return shown


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 15,
    counted: Annotated[int, typer.Option(min=1, help="How many runs of a turn count.")] = 5,
    profile: Annotated[bool, typer.Option(help="What each part of the nested ones takes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Time nested recurrences beside the flat ones inside them, and print a table or JSON."""
    console = Console(stderr=as_json)
    busy = os.getloadavg()[0]
    found = [
        measured(make(), rounds, counted, profile)
        for make in track(CASES, "running", console=console, transient=True)
    ]
    if as_json:
        ratios = [{run: one.ratio(run) for run in RUNS[1:]} for one in found]
        both = zip(found, ratios, strict=True)
        typer.echo(json.dumps([{**asdict(o), "ratios": r, "kept": o.kept} for o, r in both], indent=1))
        return
    if not console.is_terminal:
        console = Console(width=160)
    console.print(table(found))
    for one in found:
        if one.parts:
            console.print(f"{one.name}: " + ", ".join(f"{n} {s * 1e3:.2f} ms" for n, s in one.parts.items()))
    promise = f"Promised are at most {MOST:g} times the flat recurrence with its last states"
    console.print(
        f"{promise}. {threads()} threads; {rounds} rounds; load {busy:.1f} at the start.", style="dim"
    )


if __name__ == "__main__":
    typer.run(main)
