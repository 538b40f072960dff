"""The metadata of a result: what it was made of, so that results of other models or inputs are not mixed.

    "stepnet"        JSON in the schema's metadata: version, model, options, input, part
    "stepnet.rows"   JSON that follows the rows: how many were read, how many of these were set aside, and the
                     input's time of modification and checksum

They depend on the model, the options and the input, its time of modification included, but not on when or in
how many runs a result was made.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from stepnet.arrow.folders.tables import FILES, kind_of, native, opened, reading
from stepnet.arrow.runnable import Runnable
from stepnet.net.digest import digest
from stepnet.ragged.arrow import pyarrow_module
from stepnet.rnn.blank import no_sequences
from stepnet.trace.step import Spec

MARK, ROWS = b"stepnet", b"stepnet.rows"
EXPLAINED = {
    "version": "it was made by stepnet {before}, and this is {now}",
    "model": "it was made by another model",
    "options": "it was made with other options: {before}, and now {now}",
    "input": "it was made of another input: the file was changed since, or another has its name",
    "part": "it was made of another part of its input",
}

COUNTS = ("first", "rows", "bad", "time", "checksum")
"""What the metadata after the rows has of `Made`."""


@dataclass(frozen=True)
class Made:
    """A result that exists.

    mark: the metadata before its rows. first: the number of the first row in the input. rows: the number of
    rows that were read. bad: the number of these that were set aside. time: when the input was last changed,
    in nanoseconds. checksum: that of the bytes of these rows in the input.
    """

    mark: dict[str, Any]
    first: int
    rows: int
    bad: int
    time: int
    checksum: int

    @property
    def end(self) -> dict[str, Any]:
        """The metadata after the rows."""
        return {name: getattr(self, name) for name in COUNTS}


def text_of(value: Any) -> bytes:
    """JSON, the same for equal values."""
    return json.dumps(value, sort_keys=True).encode()


def model_digest(runnable: Runnable, spec: Spec) -> str:
    """What identifies a model for sequences of such steps: its equations, and the bits of its parameters."""
    nets = (schedule.net for schedule in runnable.schedules(no_sequences(spec)))
    values = map(np.ascontiguousarray, runnable.values())
    return digest(*nets, *((each.dtype.name, each.shape, bits_of(each)) for each in values))


def bits_of(array: np.ndarray) -> str:
    """What identifies the bytes of an array."""
    return hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()


def made_by(path: Path) -> Made | None:
    """The result in a file; None for a file that is none. Raises `FileError` for a file that is damaged."""
    found = metadata_of(path)
    try:
        return found and Made(found[0], *(int(found[1][name]) for name in COUNTS))
    except (KeyError, TypeError, ValueError):  # it was made by another version
        return None


def metadata_of(path: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The metadata before the rows of a file and that after them; None for a file of another program.

    Raises `FileError` for a file that is damaged.
    """
    kind, metadata = kind_of(path), dict[bytes, bytes]()
    with reading(path, kind), native(path) as file:
        if kind == "Parquet":
            metadata |= pyarrow_module("pyarrow.parquet", FILES).read_metadata(file).metadata or {}
        else:
            reader = opened(file)
            metadata |= reader.schema.metadata or {}
            batches = getattr(reader, "num_record_batches", 0)
            if batches:
                metadata |= reader.get_batch_with_custom_metadata(batches - 1).custom_metadata or {}
    try:
        mark, end = json.loads(metadata[MARK]), json.loads(metadata[ROWS])
        return dict(mark), dict(end)
    except (KeyError, TypeError, ValueError):  # of another program, or without its end
        return None


def origin_of(mark: dict[str, Any]) -> str:
    """A digest of the input, and of the part of it, that a result was made of."""
    origin = {name: mark.get(name) for name in ("input", "part")}
    return hashlib.blake2b(text_of(origin), digest_size=16).hexdigest()


def difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Why a result is not one that a run would make; None where it is."""
    for part, text in EXPLAINED.items():
        if before.get(part) != now.get(part):
            old, new = changed(before.get(part), now.get(part))
            return text.format(before=old, now=new)
    return None


def changed(before: Any, now: Any) -> tuple[str, str]:
    """Two values as texts; of dictionaries only the entries that differ.

    >>> changed({"result": "last", "keep": None}, {"result": "outputs", "keep": None})
    ('result=last', 'result=outputs')
    """
    if not isinstance(before, dict) or not isinstance(now, dict):
        return f"{cast(object, before)}", f"{cast(object, now)}"
    old, new = cast("dict[str, Any]", before), cast("dict[str, Any]", now)
    names = [name for name in new if old.get(name) != new[name]]
    first, second = (", ".join(f"{name}={each.get(name)}" for name in names) for each in (old, new))
    return first, second
