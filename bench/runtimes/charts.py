"""Draws the charts of the documentation from the saved results of a processor: `make bench-docs`.

bench/saved/PROCESSOR.json --> docs/pictures/benchmarks_{width,sequences,length,groups}.svg
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.runtimes.groups import GROUPS
from bench.runtimes.plot import COLOURS
from bench.runtimes.repeated import Repeated
from bench.runtimes.results import mean_ratio
from bench.runtimes.runner import MARKS, OURS, PEERS
from bench.runtimes.saved import Saved

Case = Any
COLOUR = dict(zip([peer.name for peer in PEERS], ("#D00000", *COLOURS), strict=True))


@dataclass(frozen=True)
class Chart:
    """A chart of lines: the time of a step of each library against one size of the cases.

    name: of the file. group: the group of cases. axis: a label for the size. size: gives the size of a case.
    panels: a title for each part of the chart, with a function that says which cases belong to it.
    """

    name: str
    group: str
    axis: str
    size: Callable[[Case], int]
    panels: dict[str, Callable[[Case], bool]]


CHARTS = (
    Chart(
        "width",
        "gru",
        "hidden units",
        lambda case: case.hidden,
        {
            "1 sequence": lambda case: case.batch == 1,
            "16 sequences": lambda case: case.batch == 16,
            "64 sequences": lambda case: case.batch == 64,
        },
    ),
    Chart(
        "sequences",
        "gru",
        "sequences",
        lambda case: case.batch,
        {
            "64 units": lambda case: case.hidden == 64,
            "256 units": lambda case: case.hidden == 256,
            "1024 units": lambda case: case.hidden == 1024,
        },
    ),
    Chart(
        "length",
        "long",
        "steps",
        lambda case: case.time,
        {
            "GRU of 64 units, 1 sequence": lambda case: case.cell == "gru" and case.hidden == 64,
            "LSTM of 64 units, 1 sequence": lambda case: case.cell == "lstm" and case.hidden == 64,
        },
    ),
)
SHORT = {"gru": "gru", "lstm": "lstm"}
"""The groups whose cases of 1 sequence and 64 units are the shortest sequences of the chart of lengths."""


def draw_all(processor: Saved, folder: Path) -> list[Path]:
    """Draws all charts of a processor's results to SVG files in a folder, and returns their paths."""
    paths = [draw_lines(chart, cases_of(processor, chart), folder) for chart in CHARTS]
    return [*paths, draw_groups(processor, folder)]


def cases_of(processor: Saved, chart: Chart) -> list[Repeated]:
    """Returns the results that a chart shows: those of its group, and for lengths the short sequences too."""
    results = [result for result in processor.cases if result.group == chart.group]
    if chart.name == "length":
        results += [
            result
            for result in processor.cases
            if result.group in SHORT and (result.case.batch, result.case.hidden) == (1, 64)
        ]
    return results


def draw_lines(chart: Chart, results: Sequence[Repeated], folder: Path) -> Path:
    """Draws the time of a step against a size, a panel beside the other and a line for each library."""
    figure, panels = new_figure(len(chart.panels), (10, 3.4))
    for axes, (title, belongs) in zip(panels, chart.panels.items(), strict=True):
        shown = [result for result in results if belongs(result.case)]
        for peer in PEERS:
            if peer.name in MARKS:
                continue
            points = sorted(
                (chart.size(result.case), 1e6 * result.seconds(peer.name) / result.case.time)
                for result in shown
                if peer.name in result.peers
            )
            if points:
                width = 2.4 if peer.name == OURS else 1.2
                axes.plot(
                    *zip(*points, strict=True), color=COLOUR[peer.name], label=peer.name, linewidth=width
                )
                axes.plot(*zip(*points, strict=True), "o", color=COLOUR[peer.name], markersize=3)
        axes.set(title=title, xlabel=chart.axis, xscale="log", yscale="log")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("microseconds a step")
    handles = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=min(len(handles), 5),
        frameon=False,
    )
    return saved(figure, folder / f"benchmarks_{chart.name}.svg")


def draw_groups(processor: Saved, folder: Path) -> Path:
    """Draws a bar for each group of cases: the geometric mean of the fastest peer's time over stepnet's."""
    bars = {
        group.title: mean
        for group in reversed(GROUPS.values())
        if (mean := mean_ratio([r for r in processor.cases if r.group == group.name], None)) is not None
    }
    figure, (axes,) = new_figure(1, (8, 4.6))
    colours = ["#0072B2" if ratio >= 1 else "#E69F00" for ratio in bars.values()]
    drawn = axes.barh(list(bars), [ratio - 1 for ratio in bars.values()], left=1, color=colours)
    axes.bar_label(drawn, [f"{ratio:.2f}" for ratio in bars.values()], padding=3, fontsize=8)
    axes.axvline(1, color="black", linewidth=1)
    axes.set(xlabel="time of the fastest other library over stepnet's", xscale="log")
    axes.set_xticks([0.5, 1, 2, 3, 5], ["0.5", "1", "2", "3", "5"])
    axes.minorticks_off()
    axes.set_xlim(0.5, 6)
    return saved(figure, folder / "benchmarks_groups.svg")


def new_figure(panels: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """Makes a figure with panels beside each other, of a size in inches, and returns it with its panels."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def saved(figure: Any, path: Path) -> Path:
    """Writes a figure, the same bytes each time, and returns the path."""
    matplotlib: Any = import_module("matplotlib")
    with matplotlib.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(path, metadata={"Date": None})
    return path
