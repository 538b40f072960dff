"""Results of a process, here and as on Windows: models in several kinds of code, the cache on disk, and a
folder of Parquet files. Prints digests of the results, and what the cache counted.

usage: bits.py FOLDER [windows | macos]
"""

# ruff: noqa: E402 - what Windows lacks is taken away before anything is imported

import hashlib
import importlib
import json
import sys
from contextlib import closing
from pathlib import Path

FOLDER = Path(sys.argv[1])
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
if sys.argv[2:]:
    importlib.import_module(f"as_{sys.argv[2]}").become()

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import stepnet as sn
from stepnet import arrow, cells
from stepnet.arrow.folders.locks import locked_partial
from stepnet.arrow.folders.result_files import lock_folder
from stepnet.compiler.disk import store
from stepnet.errors import FileError

RANDOM = np.random.default_rng(3)
DIGESTS = dict[str, str]()


def note(name: str, *arrays: np.ndarray) -> None:
    """Notes the bits of results."""
    DIGESTS[name] = hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()


def rounded(x, h, p):
    """A step of all functions for which code of some processors calls a library."""
    h = np.floor(x) + np.ceil(x @ p) * np.rint(h) + np.remainder(x * 9, np.abs(h) + 0.5) + np.tanh(h)
    return h, h


for dtype in ("f4", "f8"):
    for cell in ("gru", "lstm"):
        rnn = cells.rnn(cell, cells.CELLS[cell].parameters(40, 150, seed=3, dtype=dtype))
        x = RANDOM.normal(size=(9, 30, 40)).astype(dtype)
        note(f"{cell} {dtype}", rnn(x)[0])
        sn.set_threads(2)
        note(f"{cell} {dtype} on two threads", rnn(x[:3])[0])
        stream = rnn.stream(2)
        note(f"{cell} {dtype} stream", *(stream.step(x[:2, t]) for t in range(3)))
    odd = sn.RNN(rounded, RANDOM.normal(size=(7, 7)).astype(dtype), memory=7)
    note(f"rounded {dtype}", odd(RANDOM.normal(size=(5, 20, 7)).astype(dtype) * 3)[0])

(FOLDER / "in").mkdir()
for number in range(2):
    rows = [RANDOM.normal(size=(n + 1, 40)).astype("f4").tolist() for n in range(6)]
    column = pa.array(rows, pa.list_(pa.list_(pa.float32(), 40)))
    pq.write_table(pa.table({"x": column}), FOLDER / "in" / f"{number}.parquet")
rnn = cells.rnn("gru", cells.CELLS["gru"].parameters(40, 16, seed=3))
done = arrow.run(FOLDER / "in", rnn, FOLDER / "out", column="x")
assert (done.files, done.results, done.bad) == (2, 2, 0)
REFUSED = list[str]()
for lock in (lambda: lock_folder(FOLDER / "held"), lambda: closing(locked_partial(FOLDER / ".held.partial"))):
    with lock():
        try:
            with lock():
                pass
        except FileError as error:
            REFUSED.append(str(error).rpartition(": ")[2])
    with lock():
        pass
found = sorted(path.name for path in FOLDER.rglob("*") if path.is_file() and "out" in path.parts)
print(json.dumps({"bits": DIGESTS, "files": found, "counts": dict(store.COUNTS), "refused": REFUSED}))
