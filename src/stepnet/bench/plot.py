"""A run as a picture. matplotlib is imported when one is drawn."""

from importlib import import_module
from pathlib import Path

from stepnet.bench.results import Run
from stepnet.bench.runner import OURS
from stepnet.errors import InputError

# Okabe and Ito's colours, which most who see few colours tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
PER_ROW = 6


def draw(run: Run, path: Path) -> None:
    """Bars of each peer's time over stepnet's, in groups of one case, on a logarithmic scale; above 1 stepnet is faster."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"--plot takes a .png, .svg or .pdf file, not {path.name}")
    try:
        matplotlib = import_module("matplotlib")
    except ImportError as error:
        raise InputError("a plot needs matplotlib: pip install stepnet[bench]") from error
    matplotlib.use("Agg")
    pyplot, ticker = import_module("matplotlib.pyplot"), import_module("matplotlib.ticker")
    results = [result for result in run.results if result.ours is not None]
    if not results:
        raise InputError("there is nothing to plot: stepnet was timed in no case")
    names = list(dict.fromkeys(name for result in results for name in result.timings if name != OURS))
    groups = [results[start : start + PER_ROW] for start in range(0, len(results), PER_ROW)]
    figure, rows = pyplot.subplots(
        len(groups),
        1,
        figsize=(11, 0.9 + 2.6 * len(groups)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    width = 0.8 / max(1, len(names))
    for group, axes in zip(groups, rows[:, 0], strict=True):
        for place, name in enumerate(names):
            bars = [(x, result.ratio(name)) for x, result in enumerate(group)]
            bars = [(x + (place + 0.5) * width - 0.4, ratio) for x, ratio in bars if ratio is not None]
            drawn = axes.bar(
                [x for x, _ in bars],
                [ratio - 1 for _, ratio in bars],
                width * 0.92,
                bottom=1,
                color=COLOURS[place % len(COLOURS)],
                label=name,
            )
            axes.bar_label(drawn, [f"{ratio:.2g}" for _, ratio in bars], padding=2, fontsize=7)
        axes.axhline(1, color="black", linewidth=1)
        axes.set_yscale("log")
        axes.margins(y=0.2)
        axes.set_xlim(-0.6, PER_ROW - 0.4)
        axes.set_xticks(range(len(group)), [str(result.case) for result in group], fontsize=8)
        axes.yaxis.set_major_locator(ticker.LogLocator(10, subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    machine = run.machine
    figure.suptitle(
        f"time of each peer over stepnet's: above 1 stepnet is faster\n{machine['processor']}, "
        f"{machine['vectors']}, {machine['threads']} threads",
        fontsize=10,
    )
    handles = {
        label: handle
        for row in rows[:, 0]
        for handle, label in zip(*row.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=len(names),
        frameon=False,
        fontsize=8,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
