"""Starts the processes that runtimes are timed in, and asks them."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import dropwhile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stepnet.errors import InputError, StepnetError

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parents[1] / ".peers"  # at the root of the repository, made by `make bench-peers`
PATIENCE = 900.0  # seconds for one answer: torch.compile takes its time

# Appended, not prepended: nothing in this folder stands in the way of anything installed.
START = """
import runpy, sys
sys.path.append(sys.argv.pop(1))
runpy.run_module("peers", alter_sys=True)
"""


@dataclass(frozen=True)
class Peer:
    """One runtime in one form: its module in peers/, options for it, the environment it is installed in (""
    for the one that stepnet is in), its number of threads if that is always the same, and environment
    variables of its process.
    """

    name: str
    module: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    environment: str = ""
    threads: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def python(self) -> Path:
        """The Python interpreter of the peer's environment."""
        return (
            ENVIRONMENTS / self.environment / "bin" / "python" if self.environment else Path(sys.executable)
        )


OURS, ONE_THREAD = "stepnet", "one thread"
# Marks to measure against, not something that people would use instead: never the best peer.
MARKS = ("prototype", ONE_THREAD)

CUDNN = ("standard", "persistent", "dynamic", "small")
"""The algorithms of cuDNN."""
PEERS = (
    Peer(OURS, "stepnet"),
    Peer(ONE_THREAD, "stepnet", threads=1),
    Peer("prototype", "prototype"),
    Peer("torch", "torch", {"form": "padded"}),
    Peer("torch packed", "torch", {"form": "packed"}),
    Peer("torch loop", "torch", {"form": "loop"}),
    Peer("torch.compile", "torch", {"form": "compiled"}),
    Peer("torch graph", "torch", {"form": "graph"}),
    Peer("onnxruntime", "onnxruntime"),
    Peer("onnxruntime bound", "onnxruntime", {"bound": True}),
    Peer("openvino", "openvino", environment="openvino"),
    Peer("onednn", "onednn"),
    Peer("tensorflow", "tensorflow", {"xla": False}, "tensorflow"),
    Peer("tensorflow xla", "tensorflow", {"xla": True}, "tensorflow"),
    Peer("jax", "jax", environment="jax"),
    Peer("paddle", "paddle", environment="paddle"),
    *(Peer(f"cudnn {name}", "cudnn", {"algorithm": name}) for name in CUDNN),
    # FlashRNN's products have the digits of TF32, which are as many as those of float16.
    Peer("flashrnn", "gpu_libraries", {"library": "flashrnn", "digits": "float16"}),
    Peer("fla", "gpu_libraries", {"library": "fla"}),
    Peer("mamba_ssm", "gpu_libraries", {"library": "mamba_ssm"}),
)


def chosen(names: Sequence[str]) -> list[Peer]:
    """Returns the peers (runtimes) of these names, stepnet first whether named or not; all for no names.

    >>> [peer.name for peer in chosen(["torch"])]
    ['stepnet', 'torch']
    """
    known = [peer.name for peer in PEERS]
    for name in names:
        if name not in known:
            raise InputError(f"no peer is called {name!r}; there are {', '.join(known)}")
    return [peer for peer in PEERS if not names or peer.name in names or peer.name == OURS]


def last_words(complaints: str) -> str:
    """Returns the error in a process's stderr: that at the end of the last traceback, else the last line.

    >>> last_words("Traceback (most recent call last):\\n  File ...\\nValueError: one line\\nand two\\n")
    'ValueError: one line and two'
    """
    _, found, traceback = complaints.rpartition("Traceback (most recent call last):\n")
    lines = [line for line in traceback.splitlines() if line.strip()]
    if found:
        lines = list(dropwhile(lambda line: line.startswith(" "), lines))
        return " ".join(line.strip() for line in lines)
    return lines[-1].strip() if lines else "the process ended without a word"


class WorkerError(StepnetError):
    """A worker ended, or gave no answer."""


class Worker:
    """The process of one peer. `missing` says why it cannot run at all, else None."""

    def __init__(self, peer: Peer, threads: int, options: Mapping[str, Any] | None = None) -> None:
        """Starts the process; options: further ones than the peer's."""
        self.peer, self.threads = peer, peer.threads or threads
        self.options = {**peer.options, **(options or {})}
        self.missing: str | None = None
        self.versions: dict[str, str] = {}
        self._process: subprocess.Popen[str] | None = None
        # No with-block: it lives as long as the process, and `__exit__` closes it.
        self._complaints = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._reader = ThreadPoolExecutor(1)
        self.start()

    def start(self, variables: Mapping[str, str] | None = None) -> None:
        """Starts the process, or starts it again, with further environment variables.

        Python keeps its bytecode there, whatever the setting here: libraries that are installed have theirs,
        and a checkout would be read from its sources each time.
        """
        self.stop()
        if not self.peer.python.exists():
            self.missing = (
                f"there is no .peers/{self.peer.environment} at the root of the repository; make bench-peers"
            )
            return
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._process = subprocess.Popen(
            [self.peer.python, "-c", START, HERE, self.peer.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            encoding="utf-8",
            env={**kept, **self.peer.variables, **(variables or {})},
        )
        try:
            reply = self.ask(do="hello", threads=self.threads, options=self.options)
        except WorkerError as error:
            self.missing = str(error)
            return
        self.missing, self.versions = reply.get("missing"), reply.get("versions", {})

    @property
    def running(self) -> bool:
        """True if there is a process to ask."""
        return self._process is not None

    @property
    def processor_seconds(self) -> float | None:
        """The processor time that the process had so far; None if the system does not say."""
        if self._process is None:
            return None
        file = Path(f"/proc/{self._process.pid}/stat")
        if not file.exists():
            return None
        fields = file.read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends a request to the process and returns its answer; `WorkerError` if it ends or is too slow."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise WorkerError(f"{self.peer.name} is not running")
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = self._reader.submit(process.stdout.readline).result(PATIENCE)
        except TimeoutError as error:
            self.stop()
            raise WorkerError(f"no answer in {PATIENCE:.0f} seconds") from error
        except BrokenPipeError:
            line = ""
        if not line:
            self.stop()
            raise WorkerError(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        """Returns the error that the process wrote before it ended."""
        self._complaints.seek(0)
        return last_words(self._complaints.read())

    def stop(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()  # not terminate: it has nothing to save, and may hang
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        """Returns the worker, which ends with the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the process, and closes its streams."""
        self.stop()
        self._reader.shutdown()
        self._complaints.close()
