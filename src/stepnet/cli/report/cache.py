"""The cache on disk as facts and as text: where it is, why it is not used, and what is in it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from stepnet.disk.overview import Kept, clear, entries, left, why_not
from stepnet.disk.settings import settings
from stepnet.explain.document import Item, Section, Table, headed
from stepnet.explain.text import text

KINDS = {
    "plan": "machine code of a recurrence",
    "kernel": "machine code that all recurrences share",
    "schedule": "plans of a net",
    "targets": "this processor, as LLVM knows it",
}
SHOWN = 20
UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True)
class Cache:
    """The cache. reason: why nothing is stored in it; None where it is used. most: how large it becomes.
    left: what has the name of an entry and is no file. cleared: how many entries were removed just now, None
    where that was not asked for.
    """

    folder: str | None
    reason: str | None
    most: int
    bytes: int
    entries: Sequence[Kept]
    left: Sequence[str]
    cleared: int | None = None


def examine(remove: bool = False) -> Cache:
    """The cache by the settings of this process, emptied first where that is asked for."""
    chosen = settings()
    cleared = clear(chosen) if remove else None
    kept = entries(chosen)
    folder = None if chosen.folder is None else str(chosen.folder)
    total = sum(each.bytes for each in kept)
    return Cache(folder, why_not(chosen), chosen.most, total, kept, left(chosen), cleared)


def state(cache: Cache) -> str:
    """Whether the cache is used, in a line."""
    if cache.reason is not None:
        return f"not used: {cache.reason}"
    return f"{cache.folder}, {size(cache.bytes)} of {size(cache.most)}"


def cache_text(cache: Cache) -> str:
    """The cache as text: by kind, and the entries that were used last."""
    kinds = list[tuple[str, ...]]()
    for kind, what in KINDS.items():
        own = [each for each in cache.entries if each.kind == kind]
        if own:
            hits, total = sum(each.hits for each in own), size(sum(each.bytes for each in own))
            kinds.append((kind, f"{len(own)} entries", total, f"read {hits} times", what))
    items: list[Item] = [Table(tuple(kinds), ("<", ">", ">", ">"))]
    if cache.entries:
        latest = [(one.name, size(one.bytes), str(one.hits), f"{ago(one.used)} ago") for one in cache.entries]
        rows = ("entry", "size", "read", "last used"), *latest[:SHOWN]
        items += ["", Table(rows, ("<", ">", ">"))]
    if len(cache.entries) > SHOWN:
        items.append(f"and {len(cache.entries) - SHOWN} more, which --json lists")
    if cache.left:
        items += ["", "not removed, because they are no files:", *cache.left[:SHOWN]]
    sections = [Section(state(cache), tuple(items))]
    return text(sections if cache.cleared is None else headed(f"{cache.cleared} entries removed", sections))


def size(count: int) -> str:
    """A number of bytes for people.

    >>> size(512), size(35_100), size(256 * 2**20)
    ('512 B', '34.3 KB', '256.0 MB')
    """
    for factor, unit in ((2**20, "MB"), (2**10, "KB")):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def ago(moment: float) -> str:
    """How long ago a moment was, in one unit."""
    seconds = max(0, int(time.time() - moment))
    factor, unit = next((each for each in UNITS if seconds >= each[0]), UNITS[-1])
    return f"{seconds // factor} {unit}"
