"""Makes the documentation's tables and charts from the saved results of all processors: `make bench-docs`.

bench/saved/*.json --> docs/comparison.md, the charts, and the summary in docs/benchmarks.md between two marks
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import ascii_lowercase

from bench.runtimes import charts, saved
from bench.runtimes.cases import MODES
from bench.runtimes.groups import GROUPS
from bench.runtimes.repeated import Repeated
from bench.runtimes.report import significant
from bench.runtimes.results import REFUSED, mean_ratio
from bench.runtimes.runner import MARKS, OURS, PEERS
from bench.runtimes.saved import Saved
from bench.runtimes.targets import targets
from stepnet.errors import FileError

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, SUMMARY = DOCS / "comparison.md", DOCS / "benchmarks.md"
BEGIN, END = "<!-- made by make bench-docs -->", "<!-- end of what make bench-docs made -->"
INTRODUCTION = """# Beside other libraries

Made from `bench/saved/` by `make bench-docs`. [Benchmarks](benchmarks.md) says what
is compared, and `bench/README.md` how.

Times are medians over rounds in which all take turns. `ratio` is the time of the best peer divided by that
of stepnet, the median over rounds: above 1 stepnet is faster, and * marks where it is behind. Where a case
was run more than once, figures are medians of the last three runs, and the ratios of all are in brackets.
`prototype` and `one thread` (stepnet on one thread) are marks to compare with, and never the best peer. ~
marks a case in which rounds are far apart or another process ran: its figures say little. A letter in place
of a time is a reason below the table.
"""


def main() -> None:
    """Writes the page of all tables, and the charts and the summary in the page on benchmarks."""
    processors = [saved.load(path) for path in sorted(saved.FOLDER.glob("*-threads.json"))]
    charts.draw_all(charted(processors), DOCS / "pictures")
    PAGE.write_text(page(processors), encoding="utf-8")
    text = SUMMARY.read_text(encoding="utf-8")
    SUMMARY.write_text(with_summary(text, summary(processors)), encoding="utf-8")


def charted(processors: Sequence[Saved]) -> Saved:
    """Returns the results that the charts show: those of the processor that most cases were timed on."""
    return max(processors, key=lambda processor: len(processor.cases))


def with_summary(text: str, made: str) -> str:
    """Replaces the text of a page between two marks by `made`; raises `FileError` if a mark is missing."""
    before, begun, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise FileError(f"docs/benchmarks.md should have the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{made.strip()}\n\n{END}{after}"


def page(processors: Sequence[Saved]) -> str:
    """Returns the text of the page with the results of all processors."""
    parts = [INTRODUCTION, *side_by_side(processors), *(section(processor) for processor in processors)]
    return "\n".join(parts).rstrip() + "\n"


def side_by_side(processors: Sequence[Saved]) -> list[str]:
    """Returns the lines of the table of the cases that several processors have, by group: the ratio to the
    best peer on each of these.
    """
    found = [{(each.group, each.case): each for each in processor.cases} for processor in processors]
    shared = [key for key, count in Counter(key for each in found for key in each).items() if count > 1]
    columns = ["case, ratio", *map(title, processors)]
    lines = ["## Side by side", ""]
    for group in GROUPS.values():
        cases = [case for case in group.cases if (group.name, case) in shared]
        if not cases:
            continue
        lines += [f"### {group.title}: all processors", "", f"| {' | '.join(columns)} |"]
        lines.append("|---" * len(columns) + "|")
        for case in cases:
            results = [each.get((group.name, case)) for each in found]
            cells = [marked_ratio(result) if result else "-" for result in results]
            lines.append(f"| {case} | {' | '.join(cells)} |")
        lines.append("")
    return lines


def title(processor: Saved) -> str:
    """Returns the heading for a processor: its name, family, the instructions that it is restricted to if it
    is, and its number of threads.
    """
    machine = processor.runs[-1].machine
    family = f", family {machine['family']}" if machine.get("family") else ""
    instructions = f", restricted to {machine['instructions']}" if machine.get("instructions") else ""
    return f"{machine['processor']}{family}{instructions}, {machine['threads']} threads"


def section(processor: Saved) -> str:
    """Returns the text with all tables of one processor."""
    machine, dates = processor.runs[-1].machine, sorted(run.date[:10] for run in processor.runs)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    versions = ", ".join(f"{name} {version}" for name, version in processor.versions.items())
    lines = [
        f"## {title(processor)}",
        "",
        f"{machine['vectors']}, {machine['system']}, {when}. {versions}.",
        "",
    ]
    lines += promised(processor)
    names = [name for name in (*GROUPS, "") if any(result.group == name for result in processor.cases)]
    for name in names:
        results = sorted(
            (result for result in processor.cases if result.group == name), key=lambda r: place(r, name)
        )
        lines += points(processor, name, results)
    return "\n".join(lines)


def place(result: Repeated, group: str) -> tuple[int, str]:
    """Returns a sort key for a result: the position of its case in the table of the group `group`."""
    cases = GROUPS[group].cases if group in GROUPS else ()
    return (cases.index(result.case) if result.case in cases else len(cases), str(result.case))


def promised(processor: Saved) -> list[str]:
    """Returns the lines of the page's table of promises on speed; [] if none was measured."""
    promises = targets(processor.cases, processor.facts)
    if not promises:
        return []
    lines = ["### Promises", "", "| what | found | wanted | |", "|---|---|---|---|"]
    words = {True: "kept", False: "**missed**", None: "not measured"}
    for target in promises:
        value = "-" if target.found is None else f"{target.found:.2f} {target.unit}"
        bound = f"{'at least' if target.least else 'at most'} {target.bound:.2f} {target.unit}"
        lines.append(f"| {target.name} | {value} | {bound} | {words[target.kept]} |")
    return [*lines, ""]


def points(processor: Saved, name: str, results: Sequence[Repeated]) -> list[str]:
    """Returns the lines of the table of one group: a row for each case, then the reasons for missing times.

    name: of the group. results: its results, in order.
    """
    peers = peers_of(processor, results)
    letters: dict[str, str] = {}
    missing = {peer: why for run in processor.runs for peer, why in run.missing.items()}
    rows: list[str] = []
    for result in results:
        cells: list[str] = []
        for peer in (OURS, *peers):
            time = result.shown(peer)
            if time is not None:
                cells.append(significant(time))
                continue
            why = result.failures.get(peer, missing.get(peer, "it was not asked in this run"))
            reason = f"{peer}: {why.removeprefix(REFUSED)}"
            cells.append(f"({letters.setdefault(reason, letter(len(letters)))})")
        unit = "" if MODES[result.case.mode].unit == "milliseconds" else f", {MODES[result.case.mode].unit}"
        rows.append(f"| {result.case}{unit} | {' | '.join(cells)} | {ratio(result)} |")
    heading = GROUPS[name].title if name in GROUPS else "Other cases"
    columns = ["case, milliseconds", OURS, *peers, "ratio"]
    return [
        f"### {heading}",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
        *rows,
        "",
        *(f"- ({mark}) {reason}" for reason, mark in letters.items()),
        *([""] if letters else []),
    ]


def letter(number: int) -> str:
    """Returns the mark of a footnote: a to z, then aa and so on.

    >>> letter(0), letter(25), letter(26)
    ('a', 'z', 'aa')
    """
    more, last = divmod(number, len(ascii_lowercase))
    return (letter(more - 1) if more else "") + ascii_lowercase[last]


def peers_of(processor: Saved, results: Iterable[Repeated]) -> list[str]:
    """Returns the names of peers that some of the cases were run for, in the order of the table of peers."""
    named = {name for result in results for name in (*result.peers, *result.failures)}
    groups = {result.group for result in results}
    asked = {name for group in groups & set(GROUPS) for name in GROUPS[group].peers}
    named |= asked & {name for run in processor.runs for name in run.missing}
    return [peer.name for peer in PEERS if peer.name in named and peer.name != OURS]


def ratio(result: Repeated) -> str:
    """Formats the ratio to the best peer, that of each run, and its name: * if slower, ~ if disturbed."""
    runs = result.ratios(result.best)
    each = f"{', '.join(f'{ratio:.2f}' for ratio in runs)}; " if len(runs) > 1 else ""
    return f"{marked_ratio(result)} ({each}{result.best})" if runs else "-"


def marked_ratio(result: Repeated) -> str:
    """Formats the ratio to the best peer: * if slower, ~ if disturbed."""
    found = result.ratio(result.best)
    if found is None:
        return "-"
    return f"{found:.2f}" + ("*" if found < 1 else "") + ("~" if result.disturbed else "")


def summary(processors: Sequence[Saved]) -> str:
    """Returns a table for each processor, with a row for each group: geometric means of the ratios."""
    lines: list[str] = []
    for processor in processors:
        peers = [name for name in peers_of(processor, processor.cases) if name not in MARKS]
        lines += [
            f"{title(processor)}:",
            "",
            f"| cases | number | behind | best peer | {' | '.join(peers)} |",
            "|---" * (4 + len(peers)) + "|",
        ]
        for group in GROUPS.values():
            results = [result for result in processor.cases if result.group == group.name]
            best = [found for result in results if (found := result.ratio(result.best)) is not None]
            if not best:
                continue
            means = [mean_ratio(results, name) for name in (None, *peers)]
            cells = ["-" if mean is None else f"{mean:.2f}" for mean in means]
            behind = str(sum(found < 1 for found in best))
            lines.append(f"| {group.title} | {len(best)} | {behind} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
