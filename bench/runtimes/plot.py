"""Draws a run as a picture. matplotlib is imported when one is drawn."""

from importlib import import_module
from pathlib import Path
from typing import Any

from bench.runtimes.results import Result, Run
from bench.runtimes.runner import OURS, PEERS
from stepnet.errors import InputError

# Of each peer, in the order of PEERS: Okabe and Ito's colours, which most who see few colours tell apart, and
# darker ones of the same hues for a runtime's further forms.
COLOURS = (
    *("#CCCCCC", "#999999", "#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#E69F00"),
    *("#A87300", "#D55E00", "#000000", "#F0E442", "#A89C00", "#004C78", "#7A3F60"),
    *("#7FB77E", "#5D3A9B", "#40B0A6", "#C85200"),
    *("#1B9E77", "#66A61E", "#A6761D", "#E7298A"),
)
PER_ROW = 6
TITLE = "each peer's time over stepnet's: above 1 stepnet is faster"


def draw(run: Run, path: Path) -> None:
    """Draws bars of each peer's time over stepnet's to a file: a group for each case, logarithmic scale."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"--plot takes a .png, .svg or .pdf file, not {path.name}")
    try:
        matplotlib = import_module("matplotlib")
    except ImportError as error:
        raise InputError("a plot needs matplotlib: pip install --group bench") from error
    results = [result for result in run.results if result.ours is not None]
    if not results:
        raise InputError("there is nothing to plot: stepnet was timed in no case")
    matplotlib.use("Agg")
    pyplot, patches = import_module("matplotlib.pyplot"), import_module("matplotlib.patches")
    timed = {name for result in results for name in result.timings}
    colours = {
        peer.name: colour
        for peer, colour in zip(PEERS, ("", *COLOURS), strict=True)
        if peer.name in timed and peer.name != OURS
    }
    groups = [results[start : start + PER_ROW] for start in range(0, len(results), PER_ROW)]
    figure, rows = pyplot.subplots(
        len(groups),
        1,
        figsize=(12, 1.3 + 2.4 * len(groups)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for group, axes in zip(groups, rows[:, 0], strict=True):
        draw_group(axes, group, colours)
    machine = run.machine
    place = f"{machine['processor']}, {machine['vectors']}, {machine['threads']} threads"
    figure.suptitle(f"{TITLE}\n{place}", fontsize=10)
    handles = [patches.Patch(color=colour, label=name) for name, colour in colours.items()]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles) or 1, frameon=False, fontsize=8
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def draw_group(axes: Any, results: list[Result], colours: dict[str, str]) -> None:
    """Draws one row of the picture: the bars of these cases; colours: of each peer, by name."""
    ticker = import_module("matplotlib.ticker")
    width = 0.86 / max(1, len(colours))
    for middle, result in enumerate(results):
        ratios = {name: result.ratio(name) for name in colours if name in result.timings}
        left = middle - width * (len(ratios) - 1) / 2
        bars = axes.bar(
            [left + place * width for place in range(len(ratios))],
            [ratio - 1 for ratio in ratios.values() if ratio is not None],
            width * 0.92,
            bottom=1,
            color=[colours[name] for name in ratios],
        )
        axes.bar_label(bars, [f"{ratio:.2g}" for ratio in ratios.values()], padding=2, fontsize=6)
    axes.axhline(1, color="black", linewidth=1)
    axes.set_yscale("log")
    axes.margins(y=0.2)
    axes.set_xlim(-0.5, PER_ROW - 0.5)
    axes.set_xticks(range(len(results)), [str(result.case) for result in results], fontsize=8)
    axes.yaxis.set_major_locator(ticker.LogLocator(10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
