"""Metadata of a result that says what it was made of, so that results of other models or inputs are not
mixed.

    "stepnet"        JSON in the schema's metadata: version, model, options, input, part
    "stepnet.rows"   JSON after the rows: the number of rows read, of rows set aside, and the input's time of
                     modification and checksum

It depends on the model, the options, and the input with its time of modification, but not on when or in how
many runs the result was made.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, cast

from stepnet.arrow.folders.tables import FILES, kind_of, open_arrow, open_native, read_errors
from stepnet.compiler.values.records import dataclass
from stepnet.ragged.arrow import pyarrow_module

MARK, ROWS = b"stepnet", b"stepnet.rows"
EXPLAINED = {
    "version": "it was made by stepnet {before}, and this is {now}",
    "model": "it was made by another model",
    "options": "it was made with other options: {before}, and now {now}",
    "input": "it was made of another input: the file was changed since, or another has its name",
    "part": "it was made of another part of its input",
}
"""The message for each entry of a mark in which two results differ."""

COUNTS = ("first", "rows", "bad", "time", "checksum")
"""The fields of `ResultRecord` that are stored after the rows."""


@dataclass(frozen=True)
class ResultRecord:
    """The record of a complete result, which its file stores.

    mark: the metadata on its model, options and input, stored before its rows. first: the number of the first
    row in the input. rows: the number of rows that were read. bad: the number of these that failed. time: the
    input's modification time, in nanoseconds. checksum: the checksum of the bytes of these rows in the input.
    """

    mark: dict[str, Any]
    first: int
    rows: int
    bad: int
    time: int
    checksum: int

    @property
    def end(self) -> dict[str, Any]:
        """The metadata to store after the rows of the result: counts, time and checksum, by name."""
        return {name: getattr(self, name) for name in COUNTS}


def canonical_json(value: Any) -> bytes:
    """Converts a value to JSON so that equal values give equal bytes, for digests and comparisons."""
    return json.dumps(value, sort_keys=True).encode()


def read_record(path: Path) -> ResultRecord | None:
    """Reads the record that a result file stores, of its model, input and row counts; None if the file is no
    result of stepnet. Raises `FileError` for a damaged file.
    """
    found = metadata_of(path)
    try:
        return found and ResultRecord(found[0], *(int(found[1][name]) for name in COUNTS))
    except (KeyError, TypeError, ValueError):  # another version of stepnet wrote it
        return None


def metadata_of(path: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Reads the metadata of a result file: (that before the rows, on the model, options and input; that after
    the rows, with row counts, time and checksum). Returns None for a file of another program.

    Raises `FileError` for a damaged file.
    """
    kind, metadata = kind_of(path), dict[bytes, bytes]()
    with read_errors(path, kind), open_native(path) as file:
        if kind == "Parquet":
            metadata |= pyarrow_module("pyarrow.parquet", FILES).read_metadata(file).metadata or {}
        else:
            reader = open_arrow(file)
            metadata |= reader.schema.metadata or {}
            batches = getattr(reader, "num_record_batches", 0)
            if batches:
                metadata |= reader.get_batch_with_custom_metadata(batches - 1).custom_metadata or {}
    try:
        mark, end = json.loads(metadata[MARK]), json.loads(metadata[ROWS])
        return dict(mark), dict(end)
    except (KeyError, TypeError, ValueError):  # another program wrote it, or it is incomplete
        return None


def origin_of(mark: dict[str, Any]) -> str:
    """Returns a digest of a result's input file and the part of it. mark: the result's metadata."""
    origin = {name: mark.get(name) for name in ("input", "part")}
    return hashlib.blake2b(canonical_json(origin), digest_size=16).hexdigest()


def difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Returns the reason why an existing result cannot be used for a run, or None if it can. before, now: the
    metadata of the result and that of the run, on the model, options and input.
    """
    for part, text in EXPLAINED.items():
        if before.get(part) != now.get(part):
            old, new = shown_difference(before.get(part), now.get(part))
            return text.format(before=old, now=new)
    return None


def shown_difference(before: Any, now: Any) -> tuple[str, str]:
    """Formats two values of an entry of a result's metadata for a message on their difference; of
    dictionaries only the entries of `now` that differ.

    >>> shown_difference({"result": "last", "keep": None}, {"result": "outputs", "keep": None})
    ('result=last', 'result=outputs')
    """
    if not isinstance(before, dict) or not isinstance(now, dict):
        return f"{cast(object, before)}", f"{cast(object, now)}"
    old, new = cast("dict[str, Any]", before), cast("dict[str, Any]", now)
    names = [name for name in new if old.get(name) != new[name]]
    first, second = (", ".join(f"{name}={settings.get(name)}" for name in names) for settings in (old, new))
    return first, second
