"""Formats a run as tables for people."""

from collections.abc import Callable, Iterable
from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.runtimes.cases import MODES
from bench.runtimes.results import QUIET, REFUSED, SPREAD, Change, Result, Run, mean_ratio
from bench.runtimes.runner import OURS
from bench.runtimes.targets import Target

EXPLANATION = (
    "Times are medians over rounds, ± half of what lies between their quartiles. ratio: the best peer's time "
    "over stepnet's, * where we are behind; the prototype and one thread are no peers. fma, stream: "
    "stepnet's share of the most multiply-adds, and bytes of weights, a second that this machine reached in "
    "the same rounds."
)


def show(run: Run, console: Console) -> None:
    """Prints a run: the times, the shares of the processor's limits, and what was not timed and why."""
    machine = run.machine
    console.print(f"{machine['processor']}, {machine['vectors']}, {machine['threads']} threads")
    versions = {name: version for found in run.versions.values() for name, version in found.items()}
    console.print(", ".join(f"{name} {version}" for name, version in versions.items()), style="dim")
    units = {MODES[result.case.mode].unit: None for result in run.results}
    for unit in units:
        console.print(times(run, unit))
    console.print(means(run))
    console.print(EXPLANATION, style="dim")
    for line in remarks(run):
        console.print(line)


def times(run: Run, unit: str) -> Table:
    """Returns the table of times: a row for each case whose times are in this unit."""
    results = [result for result in run.results if MODES[result.case.mode].unit == unit]
    named = {name for result in results for name in (*result.timings, *result.failures)}
    names = [OURS, *sorted(named - {OURS}, key=order(run))]
    table = Table(title=unit)
    table.add_column("case", no_wrap=True)
    for name in [*names, "ratio", "fma", "stream"]:
        table.add_column(escape(name), justify="right")
    for result in results:
        row = [shown(result, name) for name in names]
        shares = [percent(result.compute_share), percent(result.stream_share)]
        table.add_row(str(result.case), *row, ratio(result), *shares)
    return table


def means(run: Run) -> Table:
    """Returns the table of geometric means of ratios for each group, and of where stepnet is behind."""
    groups = {result.group: None for result in run.results}
    names = sorted({name for result in run.results for name in result.timings} - {OURS}, key=order(run))
    table = Table(title="each peer's time over stepnet's, geometric means")
    for name in ("group", *names, "best peer", "behind"):
        table.add_column(escape(name), justify="right")
    for group in groups:
        results = [result for result in run.results if result.group == group]
        ratios = [mean_ratio(results, name) for name in (*names, None)]
        known = [found for result in results if (found := result.ratio(result.best)) is not None]
        behind = f"{sum(found < 1 for found in known)} of {len(known)}"
        table.add_row(group or "-", *("-" if r is None else f"{r:.2f}" for r in ratios), behind)
    return table


def order(run: Run) -> Callable[[str], int]:
    """Returns a sort key by which names of peers (runtimes) are in the order that they were started in."""
    names = [*run.versions, *run.missing]
    return lambda name: names.index(name) if name in names else len(names)


def shown(result: Result, name: str) -> str:
    """Formats a peer's time for a table: bold for the fastest; without one, whether it refused or failed."""
    timing, time = result.timings.get(name), result.shown(name)
    if timing is None or time is None:
        why = result.failures.get(name)
        return "" if why is None else "[dim]refused[/]" if why.startswith(REFUSED) else "[red]failed[/]"
    text = f"{significant(time)} ±{timing.spread * 100:.0f}%"
    fastest = min(result.timings, key=lambda peer: result.timings[peer].seconds)
    return f"[bold]{text}[/]" if name == fastest else text


def ratio(result: Result) -> str:
    """Formats the ratio to the best peer: green if stepnet is faster, with a star if it is not."""
    found = result.ratio(result.best)
    if found is None:
        return "-"
    text = f"[green]{found:.2f}[/]" if found >= 1 else f"[red]{found:.2f} *[/]"
    return f"{text} [dim]{escape(result.best or '')}[/]"


def significant(value: float) -> str:
    """Formats a number with three figures, or all before the point.

    >>> significant(0.01234), significant(12.34), significant(1234.5)
    ('0.0123', '12.3', '1234')
    """
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def percent(share: float | None) -> str:
    """Formats a share in percent; "-" for None."""
    return "-" if share is None else f"{share * 100:.0f}%"


def remarks(run: Run) -> list[str]:
    """Returns lines on what was not timed, with the reasons, and on results that were disturbed."""
    lines: list[str] = []
    quiet = [result.peak.quiet for result in run.results if not result.case.busy]
    if quiet and median(quiet) < QUIET:
        share = 100 - median(quiet) * 100
        lines.append(f"[red]not quiet:[/] other processes took {share:.0f}% of the processors")
    if disturbed := [str(result.case) for result in run.results if result.disturbed]:
        why = f"half of the rounds are {SPREAD * 100:.0f}% apart, or another process ran"
        lines.append(f"[yellow]disturbed:[/] {', '.join(disturbed)}: {why}")
    lines += [f"[yellow]not timed:[/] {escape(name)}: {escape(why)}" for name, why in run.missing.items()]
    reasons: dict[tuple[str, str], list[str]] = {}
    for result in run.results:
        for name, why in result.failures.items():
            reasons.setdefault((name, why), []).append(str(result.case))
    for (name, why), cases in sorted(reasons.items(), key=lambda item: not item[0][1].startswith(REFUSED)):
        some = cases[0] if len(cases) == 1 else f"{len(cases)} cases"
        if why.startswith(REFUSED):
            lines.append(f"[dim]{escape(name)}: {escape(why.removeprefix(REFUSED))} ({some})[/]")
        else:
            lines.append(f"[red]{escape(name)}[/], {', '.join(cases)}: {escape(why)}")
    return lines


def promises(targets: Iterable[Target]) -> Table:
    """Returns the table of the promises on speed, and whether each was kept."""
    table = Table("what", title="promises")
    for name in ("found", "bound", ""):
        table.add_column(name, justify="right")
    words = {True: "[green]kept[/]", False: "[red]not kept[/]", None: "[yellow]not measured[/]"}
    for target in targets:
        found = "-" if target.found is None else f"{target.found:.2f} {target.unit}"
        bound = f"{'at least' if target.least else 'at most'} {target.bound:g} {target.unit}"
        table.add_row(target.name, found, bound, words[target.kept])
    return table


def comparison(changes: Iterable[Change]) -> Table:
    """Returns the table of two runs, case by case; changes within the scatter of rounds are in brackets."""
    table = Table(title="before and now")
    table.add_column("case", no_wrap=True)
    for name in ("before", "now", "times as fast", "ratio before", "ratio now"):
        table.add_column(name, justify="right")
    for change in changes:
        found = change.ratio
        text = "-" if found is None else f"{found:.2f}" if change.sure else f"({found:.2f})"
        colour = "dim" if found is None or not change.sure else "green" if found >= 1 else "red"
        table.add_row(
            str(change.case),
            *(shown(result, OURS) for result in (change.before, change.now)),
            f"[{colour}]{text}[/]",
            ratio(change.before),
            ratio(change.now),
        )
    return table
