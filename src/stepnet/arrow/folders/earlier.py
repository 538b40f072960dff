"""The file of rows that an earlier run set aside, with an index of the results that they belong to.

    rows    [a a b d d d]                        in the order of the results
    index   [[origin of a, 2], [b, 1], [d, 3]]   in the metadata

The index identifies a result by its input, as marks do: the path inside the folder that is read, the size and
the digest. So the rows are found however the path of the folder is spelled.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from stepnet.arrow.folders.marks import difference, metadata_of, origin_of
from stepnet.arrow.folders.tables import FILES, open_native, read_errors
from stepnet.errors import FileError
from stepnet.ragged.arrow import pyarrow_module

INDEX = "results"
"""The name of the index in the metadata that follows the rows."""


def index_of(counts: Iterable[tuple[dict[str, Any], int]]) -> dict[str, Any]:
    """Makes the index as metadata. counts: the mark and the number of rows of each result."""
    return {INDEX: [(origin_of(mark), rows) for mark, rows in counts]}


class EarlierRows:
    """The rows of an earlier file, by result. ranges: by origin, the first row and the row after the last.

    Row groups are read one at a time. The latest one stays in memory, as the next result begins in it.
    """

    def __init__(self, path: Path, metadata: Any, ranges: dict[str, tuple[int, int]]) -> None:
        self.path, self.metadata, self.ranges = path, metadata, ranges
        sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self.starts = [0, *accumulate(sizes)]
        self._group: tuple[int, Any] | None = None

    @classmethod
    def of(cls, path: Path, mark: dict[str, Any]) -> "EarlierRows":
        """Opens an existing file. mark: the version, model and options of this run, which must be those of
        the file.

        Raises `FileError` for a damaged file, for a file of another kind, and for another model or other
        options.
        """
        found = metadata_of(path)
        with read_errors(path, "Parquet"), open_native(path) as file:
            metadata = pyarrow_module("pyarrow.parquet", FILES).read_metadata(file)
        ranges = None if found is None else ranges_of(found[1].get(INDEX), metadata.num_rows)
        if found is None or ranges is None:
            reason = "it is not a file of rows that were set aside"
        else:
            reason = difference(found[0], mark)
        if ranges is None or reason:
            raise FileError(f"{path}: {reason}; choose another file")
        return cls(path, metadata, ranges)

    def count(self, mark: dict[str, Any]) -> int:
        """Returns the number of rows of the result with a mark."""
        start, stop = self.ranges.get(origin_of(mark), (0, 0))
        return stop - start

    def rows(self, mark: dict[str, Any]) -> Iterator[Any]:
        """Yields the rows of the result with a mark, as record batches."""
        start, stop = self.ranges.get(origin_of(mark), (0, 0))
        while start < stop:
            number = bisect_right(self.starts, start) - 1
            last = min(stop, self.starts[number + 1])
            yield from self.group(number).slice(start - self.starts[number], last - start).to_batches()
            start = last

    def group(self, number: int) -> Any:
        """Reads a row group as a table, which is cached until another one is read."""
        if self._group is None or self._group[0] != number:
            self._group = None
            parquet = pyarrow_module("pyarrow.parquet", FILES)
            with read_errors(self.path, "Parquet"), open_native(self.path) as file:
                table = parquet.ParquetFile(file, metadata=self.metadata).read_row_group(number)
            self._group = number, table
        return self._group[1]


def ranges_of(index: Any, rows: int) -> dict[str, tuple[int, int]] | None:
    """Converts an index to row ranges by result; None if it is not an index of that many rows.

    >>> ranges_of([["a", 2], ["b", 1]], 3), ranges_of([["a", 2]], 3)
    ({'a': (0, 2), 'b': (2, 3)}, None)
    """
    try:
        counts = {str(origin): int(count) for origin, count in index}
    except (TypeError, ValueError):
        return None
    stops = list(accumulate(counts.values()))
    if min(counts.values(), default=0) < 0 or (stops[-1] if stops else 0) != rows:
        return None
    return dict(zip(counts, zip([0, *stops], stops, strict=False), strict=True))
