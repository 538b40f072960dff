"""Times a nested recurrence whose outer memory enters the inner one, beside the same in PyTorch.

    python bench/entered.py                 a table
    python bench/entered.py --json

A GRU over the sentences of documents, whose memory is where a GRU over the words of each sentence begins; the
last state of that is the outer one's input. stepnet runs it in one loop of machine code. Beside it: the same
step part by part, as steps are run that machine code does not have as a whole; and PyTorch, a loop over the
sentences with its GRU over packed words. They alternate, a few runs at a time; times are medians, and a ratio
is the median of each round's.
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
import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn
from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.targets.threads import threads
from stepnet.layout import from_torch

Array = np.ndarray
WARM = 2  # runs of each turn that do not count
RUNS = ("one loop", "part by part", "PyTorch")


@dataclass(frozen=True)
class Case:
    """Documents of sentences of words, and two GRUs of PyTorch: over words, and over sentences."""

    count: int
    sentences: int
    least: int
    most: int
    hidden: int

    @property
    def name(self) -> str:
        """The number of documents, of sentences of each, and the words of these, for the table."""
        return f"{self.count} x {self.sentences} x {self.least} to {self.most}"

    def documents(self) -> sn.Ragged:
        """Returns random documents of the case: sentences of `least` to `most` words."""
        random = np.random.default_rng(0)
        outer = np.arange(self.count + 1) * self.sentences
        inner = np.cumsum([0, *random.integers(self.least, self.most + 1, outer[-1])])
        return sn.Ragged(random.standard_normal((int(inner[-1]), self.hidden), np.float32), (outer, inner))

    def modules(self) -> tuple[torch.nn.GRU, torch.nn.GRU]:
        """Returns PyTorch's GRUs over words and over sentences."""
        torch.manual_seed(0)
        return torch.nn.GRU(self.hidden, self.hidden), torch.nn.GRU(self.hidden, self.hidden)


@dataclass(frozen=True)
class Times:
    """The result for one case: the median seconds of each implementation in every round."""

    name: str
    words: int
    hidden: int
    seconds: dict[str, list[float]]

    def ratio(self, other: str) -> float:
        """Returns the median time of implementation `other` over that of stepnet's one loop."""
        rounds = zip(self.seconds[other], self.seconds[RUNS[0]], strict=True)
        return median(theirs / ours for theirs, ours in rounds)


CASES = tuple(Case(count, 20, 5, 30, hidden) for hidden in (64, 256) for count in (1, 16, 64))


# ---- what is run -------------------------------------------------------------------------------------------


def of_stepnet(modules: tuple[torch.nn.GRU, torch.nn.GRU]) -> sn.RNN:
    """Returns the nested recurrence: a step that calls a recurrence over words, with PyTorch's weights."""
    words, sentences = (
        from_torch({name: value.detach().numpy() for name, value in module.state_dict().items()})
        for module in modules
    )
    assert isinstance(words, sn.RNN)
    assert isinstance(sentences, sn.RNN)

    def step(sentence: Any, h: Any, params: Any) -> Any:
        """Runs a sentence's words from the outer memory, then the outer GRU on their last state: one step."""
        return sentences.step(words(sentence, initial=h)[1], h, params)

    return sn.RNN(step, sentences.params, memory=sentences.memory)


def in_parts(rnn: sn.RNN, documents: sn.Ragged) -> sn.RNN:
    """Returns the same recurrence compiled so that its step runs part by part, and not in one loop."""
    again = sn.RNN(rnn.step, rnn.params, memory=rnn.memory)

    def asked_for(*_: Any) -> str:
        """Returns a reason for which the schedule must give up one loop, whatever the step is."""
        return "it is asked for"

    # The schedule of the one loop, which the cache may have, is not this one's.
    with (
        patch("stepnet.compiler.plan.cutting.why_in_parts", asked_for),
        patch.dict(os.environ, {"STEPNET_CACHE": "0"}),
    ):
        again(documents)
        kinds = [part.kind for part in again.schedule.parts]
    assert kinds == ["loop"], f"it runs as {kinds}"
    return again


def of_torch(
    modules: tuple[torch.nn.GRU, torch.nn.GRU], case: Case, documents: sn.Ragged
) -> Callable[[], Array]:
    """Returns a function that runs a loop over sentences in PyTorch, whose words are packed before."""
    words, sentences = modules
    values = torch.from_numpy(np.asarray(documents.values))
    bounds = documents.offsets[1].reshape(-1)
    steps = list[torch.nn.utils.rnn.PackedSequence]()
    for step in range(case.sentences):
        places = [document * case.sentences + step for document in range(case.count)]
        steps.append(
            torch.nn.utils.rnn.pack_sequence(
                [values[bounds[place] : bounds[place + 1]] for place in places], enforce_sorted=False
            )
        )

    @torch.inference_mode()
    def run() -> Array:
        """Runs all sentences in PyTorch, to be timed; returns the last states of the documents."""
        h = torch.zeros(1, case.count, case.hidden)
        for packed in steps:
            _, said = words(packed, h)
            _, h = sentences(said, h)
        return h[0].numpy()

    return run


# ---- how long it takes -------------------------------------------------------------------------------------


def measured(case: Case, rounds: int, counted: int) -> Times:
    """Times all implementations of a case in alternation; raises `AssertionError` if their results differ."""
    documents, modules = case.documents(), case.modules()
    whole = of_stepnet(modules)
    parts, theirs = in_parts(whole, documents), of_torch(modules, case, documents)
    ways: dict[str, Callable[[], Any]] = {
        RUNS[0]: lambda: whole(documents)[1],
        RUNS[1]: lambda: parts(documents)[1],
        RUNS[2]: theirs,
    }
    check(case, whole, {name: way() for name, way in ways.items()})
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            turn = [timed(way) for _ in range(WARM + counted)]
            seconds[name].append(median(turn[WARM:]))
    return Times(case.name, len(documents.values), case.hidden, seconds)


def check(case: Case, whole: sn.RNN, found: dict[str, Array]) -> None:
    """Asserts that the step runs in one loop, and that all implementations give the same final states."""
    kinds = [part.kind for part in whole.schedule.parts]
    assert kinds == ["recurrence"], f"{case.name}: it runs as {kinds}"
    most = 2 * tolerance("float32", case.sentences * (case.most + 1), 2 * case.hidden)
    right = found[RUNS[0]]
    for name, other in found.items():
        away = float((np.abs(other - right) / np.maximum(1, np.abs(right))).max())
        assert away <= most, f"{case.name}: {name} is {away:.1e} away, where {most:.1e} is rounding"


def timed(way: Callable[[], Any]) -> float:
    """Returns the seconds of one call."""
    begun = time.perf_counter()
    way()
    return time.perf_counter() - begun


# ---- what one sees -----------------------------------------------------------------------------------------


def table(found: list[Times]) -> Table:
    """Returns the table of the times in milliseconds, with ratios to stepnet's one loop."""
    shown = Table(title="an inner recurrence that the outer memory enters")
    shown.add_column("documents x sentences x words", no_wrap=True)
    columns = (
        "hidden",
        "words",
        *(f"{run}, ms" for run in RUNS),
        *(f"{run} / {RUNS[0]}" for run in RUNS[1:]),
    )
    for name in columns:
        shown.add_column(name, justify="right")
    for each in found:
        shown.add_row(
            each.name,
            str(each.hidden),
            f"{each.words:,}",
            *(f"{median(each.seconds[run]) * 1e3:.2f}" for run in RUNS),
            *(f"{each.ratio(run):.2f}" for run in RUNS[1:]),
        )
    return shown


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 9,
    counted: Annotated[int, typer.Option(min=1, help="How many runs of a turn count.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Time a nested recurrence whose outer memory enters the inner one, and print a table or JSON."""
    console = Console(stderr=as_json)
    busy = os.getloadavg()[0]
    torch.set_num_threads(threads())
    found = [
        measured(case, rounds, counted) for case in track(CASES, "running", console=console, transient=True)
    ]
    if as_json:
        ratios = [{run: each.ratio(run) for run in RUNS[1:]} for each in found]
        both = zip(found, ratios, strict=True)
        typer.echo(json.dumps([{**asdict(each), "ratios": own} for each, own in both], indent=1))
        return
    if not console.is_terminal:
        console = Console(width=160)
    console.print(table(found))
    console.print(f"{threads()} threads; {rounds} rounds; load {busy:.1f} at the start.", style="dim")


if __name__ == "__main__":
    typer.run(main)
