"""Trees of files, and what a run makes of them, that the tests of `stepnet.arrow.run` share."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

import stepnet as sn
from stepnet import cells

IN, H, TOKENS = 2, 3, 5
FRAMES = pa.list_(pa.list_(pa.float32()))
RNN = cells.rnn("gru", cells.CELLS["gru"].parameters(IN, H))
TABLE = np.random.default_rng(0).normal(size=(TOKENS, 2)).astype("float32")
WORDS = sn.Graph(lambda x, p: sn.reduce(p["table"][x], "sum"), {"table": TABLE}, inputs=sn.Spec((), "int64"))


def rows_of(seed: int, count: int = 12) -> list[Any]:
    """Sequences of up to 5 steps; some are empty, and some are null."""
    random = np.random.default_rng(seed)
    lengths = random.integers(-1, 6, count)
    return [None if each < 0 else random.normal(size=(each, IN)).astype("f4").tolist() for each in lengths]


def table_of(seed: int, count: int = 12) -> Any:
    return pa.table({"id": np.arange(count) + 100 * seed, "frames": pa.array(rows_of(seed, count), FRAMES)})


def written(path: Path, table: Any, group: int = 5) -> Path:
    """The path of a table's file, of the kind that its ending says; one of .ipc is a stream."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        with open(path, "wb") as file:  # for names that are no text
            pq.write_table(table, file, row_group_size=group)
        return path
    made = ipc.new_stream if path.suffix == ".ipc" else ipc.new_file
    with open(path, "wb") as file, made(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=group)
    return path


def tree(folder: Path, names: Iterable[str], count: int = 12) -> Path:
    """A folder with a table in each of these files."""
    for seed, name in enumerate(names):
        written(folder / name, table_of(seed, count))
    return folder


def read(path: Path) -> Any:
    """The rows of a result."""
    if path.suffix == ".parquet":
        with open(path, "rb") as file:
            return pq.read_table(file)
    with open(path, "rb") as file:
        return ipc.open_file(file).read_all()


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all files of a folder, by their paths in it."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {os.fspath(path.relative_to(folder)): path.read_bytes() for path in paths}
