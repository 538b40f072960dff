"""A process that reads files and says how much memory each took."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

SECONDS = 60  # on a machine that does much else; none takes more than five alone
BYTES = 8 << 30
ENDED = "ended "


@dataclass(frozen=True)
class Reading:
    """Reads files, each in a process of its own."""

    process: "subprocess.Popen[str]"
    errors: Path

    def taken(self, path: Path) -> tuple[int, str]:
        """The bytes that reading a file took at most, and what was wrong with it."""
        given, answers = self.process.stdin, self.process.stdout
        assert given
        assert answers
        late = Timer(SECONDS, os.killpg, (self.process.pid, signal.SIGKILL))
        late.start()
        try:
            print(path, file=given, flush=True)
            lines = [answers.readline()]
            while lines[-1] and not lines[-1].startswith(ENDED):
                lines.append(answers.readline())
        finally:
            late.cancel()
        assert lines.pop() == f"{ENDED}0\n", self.errors.read_text()[-2000:]
        count, _, said = "".join(lines).strip().partition(" ")
        return int(count), said


def limit_addresses() -> None:
    """Limits the memory of this process."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))


@contextmanager
def readers(folder: Path) -> Generator[Reading]:
    """Yields processes that read files as `reading.py` does. A folder keeps their messages about errors."""
    errors = folder / "errors"
    with (
        errors.open("w") as file,
        subprocess.Popen(
            [sys.executable, Path(__file__).with_name("reading.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            preexec_fn=limit_addresses,
            start_new_session=True,
        ) as process,
    ):
        yield Reading(process, errors)
