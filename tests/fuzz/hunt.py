"""Reads many mutants in worker processes, and keeps those that fail.

python tests/fuzz/hunt.py --count 100000 --seed 0
"""

import argparse
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from mutants import mutant
from originals import Original, originals

HERE = Path(__file__).parent
PIECE = 500  # mutants of one process
MOST = 20  # failures of a piece, after which the rest of it is left


@dataclass(frozen=True)
class Failure:
    """A mutant that failed: its number, how the process ended and its last words, and where it is kept."""

    number: int
    ended: int
    words: str
    kept: Path

    def __str__(self) -> str:
        return f"mutant {self.number}, kept as {self.kept}: exit code {self.ended}\n{self.words}"


def hunt(count: int, seed: int, keep: Path, workers: int, first: int = 0) -> list[Failure]:
    """The failures among so many mutants; a failing one is kept as a file."""
    made = originals()
    with TemporaryDirectory() as folder:
        file = Path(folder, "originals")
        file.write_bytes(pickle.dumps(made))
        pieces = [(start, min(start + PIECE, first + count)) for start in range(first, first + count, PIECE)]
        with ThreadPoolExecutor(workers) as pool:
            found = pool.map(lambda piece: list(piece_of(file, made, seed, piece[0], piece[1], keep)), pieces)
            return [failure for some in found for failure in some]


def piece_of(
    file: Path, made: tuple[Original, ...], seed: int, start: int, end: int, keep: Path
) -> Iterator[Failure]:
    """The failures among some numbers; behind each a new process goes on."""
    for _ in range(MOST):
        with TemporaryDirectory() as folder:
            command = [sys.executable, "-W", "error", HERE / "worker.py", file, folder, seed, start, end]
            path = os.pathsep.join(filter(None, sys.path))
            done = subprocess.run(
                list(map(str, command)),
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
            )
            if done.returncode == 0:
                return
            number = int(Path(folder, "number").read_text() if Path(folder, "number").exists() else start)
        spoilt = mutant(seed, number, made)
        kept = keep / f"{seed}-{spoilt.name}"
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        for name, data in spoilt.files.items():
            (kept / name).write_bytes(data)
        yield Failure(number, done.returncode, done.stderr[-3000:], kept / spoilt.main)
        start = number + 1


def main() -> int:
    """Hunts, and prints what failed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options.add_argument("--keep", type=Path, default=Path("build/mutants"))
    asked = options.parse_args()
    print(f"{asked.count} mutants from {asked.first} on, seed {asked.seed}", flush=True)
    failures = hunt(asked.count, asked.seed, asked.keep, asked.workers, asked.first)
    for failure in failures:
        print(failure, flush=True)
    print(f"{len(failures)} of {asked.count} failed, seed {asked.seed}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
