"""The cache on disk as facts and as text: its folder, why it is not used, and its entries."""

import time
from collections.abc import Sequence

from stepnet.compiler.disk.overview import CacheEntry, clear, entries, foreign_names, why_not
from stepnet.compiler.disk.settings import settings
from stepnet.compiler.values.records import dataclass
from stepnet.explain.document import DocumentTable, Item, TitledSection, headed
from stepnet.explain.text import text

KINDS = {
    "plan": "machine code of a recurrence",
    "kernel": "machine code that all recurrences share",
    "graph": "nets of .onnx files",
    "model": "nets of .stepnet files",
    "schedule": "plans of a net",
    "gpu": "kernels for a GPU as they were chosen and written",
    "ptx": "kernels for a GPU, as its driver reads them",
    "emulated": "kernels for a GPU, as machine code of this processor",
    "targets": "this processor, as LLVM knows it",
    "machine": "the rates of this machine, as `stepnet tune` measured them",
}
SHOWN = 20
UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True)
class CacheFacts:
    """The facts of the cache on disk, which holds compiled code.

    folder: its path; None if it has none. reason: why nothing is stored in it; None if it is used. most: the
    bytes that it may take. bytes: those that it takes. left: names of entries that are not files. cleared:
    the number of entries just removed; None if none were to be.
    """

    folder: str | None
    reason: str | None
    most: int
    bytes: int
    entries: Sequence[CacheEntry]
    left: Sequence[str]
    cleared: int | None = None


def examine(remove: bool = False) -> CacheFacts:
    """Collects the facts of the cache of compiled code on disk, by this process's settings. remove: whether
    to empty it first; the number of removed entries is among the facts then.
    """
    chosen = settings()
    cleared = clear(chosen) if remove else None
    cached = entries(chosen)
    folder = None if chosen.folder is None else str(chosen.folder)
    total = sum(entry.bytes for entry in cached)
    return CacheFacts(folder, why_not(chosen), chosen.most, total, cached, foreign_names(chosen), cleared)


def state(cache: CacheFacts) -> str:
    """Formats the disk cache in one line: its folder, size and limit, or the reason why it is not used."""
    if cache.reason is not None:
        return f"not used: {cache.reason}"
    return f"{cache.folder}, {size(cache.bytes)} of {size(cache.most)}"


def cache_text(cache: CacheFacts) -> str:
    """Formats the facts of the cache of compiled code on disk: entries by kind, then at most `SHOWN` single
    entries, and what was or could not be removed.
    """
    kinds = list[tuple[str, ...]]()
    for kind, what in KINDS.items():
        own = [entry for entry in cache.entries if entry.kind == kind]
        if own:
            hits, total = sum(entry.hits for entry in own), size(sum(entry.bytes for entry in own))
            kinds.append((kind, f"{len(own)} entries", total, f"read {hits} times", what))
    items: list[Item] = [DocumentTable(tuple(kinds), ("<", ">", ">", ">"))]
    if cache.entries:
        latest = [(one.name, size(one.bytes), str(one.hits), f"{ago(one.used)} ago") for one in cache.entries]
        rows = ("entry", "size", "read", "last used"), *latest[:SHOWN]
        items += ["", DocumentTable(rows, ("<", ">", ">"))]
    if len(cache.entries) > SHOWN:
        items.append(f"and {len(cache.entries) - SHOWN} more, which --json lists")
    if cache.left:
        items += ["", "not removed, because they are not files:", *cache.left[:SHOWN]]
    sections = [TitledSection(state(cache), tuple(items))]
    return text(sections if cache.cleared is None else headed(f"{cache.cleared} entries removed", sections))


def size(count: int) -> str:
    """Formats a number of bytes with its largest unit.

    >>> size(512), size(35_100), size(256 * 2**20)
    ('512 B', '34.3 KB', '256.0 MB')
    """
    for factor, unit in ((2**20, "MB"), (2**10, "KB")):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def ago(moment: float) -> str:
    """Formats the time since a moment (seconds since 1970) in its largest unit, such as "3 h"."""
    seconds = max(0, int(time.time() - moment))
    factor, unit = next((unit_entry for unit_entry in UNITS if seconds >= unit_entry[0]), UNITS[-1])
    return f"{seconds // factor} {unit}"
