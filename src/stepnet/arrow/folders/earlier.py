"""The file of rows that an earlier run set aside, and which of its rows belong to which result.

    rows    [a a b d d d]                        in the order of the results
    index   [[origin of a, 2], [b, 1], [d, 3]]   in the metadata

The index identifies a result by the input that it was made of, as marks do: by the path inside the folder
that is read, the size and the digest. So the rows are available whatever the spelling of the folder's path.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from stepnet.arrow.folders.marks import difference, metadata_of, origin_of
from stepnet.arrow.folders.tables import FILES, native, reading
from stepnet.errors import FileError
from stepnet.ragged.arrow import pyarrow_module

INDEX = "results"
"""The name of the index in the metadata that follows the rows."""


def index_of(counts: Iterable[tuple[dict[str, Any], int]]) -> dict[str, Any]:
    """The index as metadata, from the marks of results and their numbers of rows."""
    return {INDEX: [(origin_of(mark), rows) for mark, rows in counts]}


class Earlier:
    """The rows of a file by result. ranges: the first row of each result, and the row after its last.

    The row groups are read one at a time. The last one stays in memory, as the next result begins in it.
    """

    def __init__(self, path: Path, metadata: Any, ranges: dict[str, tuple[int, int]]) -> None:
        self.path, self.metadata, self.ranges = path, metadata, ranges
        sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self.starts = [0, *accumulate(sizes)]
        self._group: tuple[int, Any] | None = None

    @classmethod
    def of(cls, path: Path, mark: dict[str, Any]) -> "Earlier":
        """The rows of an existing file. mark: the version, model and options of the run.

        Raises `FileError` for a file that is damaged, is no file of rows that were set aside, or was made by
        another model or with other options.
        """
        found = metadata_of(path)
        with reading(path, "Parquet"), native(path) as file:
            metadata = pyarrow_module("pyarrow.parquet", FILES).read_metadata(file)
        ranges = None if found is None else ranges_of(found[1].get(INDEX), metadata.num_rows)
        if found is None or ranges is None:
            reason = "it is no file of rows that were set aside"
        else:
            reason = difference(found[0], mark)
        if ranges is None or reason:
            raise FileError(f"{path}: {reason}; choose another file")
        return cls(path, metadata, ranges)

    def count(self, mark: dict[str, Any]) -> int:
        """The number of rows of a result with this mark."""
        start, stop = self.ranges.get(origin_of(mark), (0, 0))
        return stop - start

    def rows(self, mark: dict[str, Any]) -> Iterator[Any]:
        """The rows of a result with this mark, as record batches."""
        start, stop = self.ranges.get(origin_of(mark), (0, 0))
        while start < stop:
            number = bisect_right(self.starts, start) - 1
            last = min(stop, self.starts[number + 1])
            yield from self.group(number).slice(start - self.starts[number], last - start).to_batches()
            start = last

    def group(self, number: int) -> Any:
        """The table of a row group."""
        if self._group is None or self._group[0] != number:
            self._group = None
            parquet = pyarrow_module("pyarrow.parquet", FILES)
            with reading(self.path, "Parquet"), native(self.path) as file:
                table = parquet.ParquetFile(file, metadata=self.metadata).read_row_group(number)
            self._group = number, table
        return self._group[1]


def ranges_of(index: Any, rows: int) -> dict[str, tuple[int, int]] | None:
    """The rows of each result by an index; None for what is no index of that many rows.

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
