"""The facts of a machine: its processor and targets, the engines, and installed packages."""

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import llvmlite.binding as llvm
import numpy as np

from stepnet.cli.report import cache
from stepnet.engines import AUTO, engine_named, engine_names
from stepnet.engines.llvm.machine.target import target_texts
from stepnet.engines.threads import threads_limit
from stepnet.plan.schedule import Schedule
from stepnet.rnn.recurrence import RNN
from stepnet.values.version import __version__

NEEDED = ("numpy", "llvmlite", "ml-dtypes", "safetensors", "typer", "rich")
OPTIONAL = ("pyarrow", "torch", "keras", "onnx", "onnxruntime")


@dataclass(frozen=True)
class Health:
    """The facts of a machine.

    targets: the processor's instruction sets, the one in use first. threads_by: what limits the threads of a
    call to so many. engines: by name, why an engine refuses a
    plain recurrence; None if it runs it. cache: where compiled
    code is kept on disk, or why it is not. packages: versions by name, None for a missing package.
    """

    stepnet: str
    python: str
    system: str
    processor: str
    targets: tuple[str, ...]
    threads: int
    threads_by: str
    cache: str
    engines: dict[str, str | None]
    packages: dict[str, str | None]


def examine() -> Health:
    """The facts of this machine. No framework is imported."""
    schedule, limit = plain_schedule(), threads_limit()
    return Health(
        __version__,
        f"{platform.python_version()} ({platform.python_implementation()})",
        f"{platform.system()} {platform.release()} {platform.machine()}",
        llvm.get_host_cpu_name(),
        target_texts(),
        limit.count,
        limit.why,
        cache.state(cache.examine()),
        {name: engine_named(name).refuse(schedule) for name in engine_names()},
        {name: installed(name) for name in NEEDED + OPTIONAL},
    )


def installed(package: str) -> str | None:
    """The version of a package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def plain_schedule() -> Schedule:
    """The schedule of a simple RNN, which every engine should run."""
    params = {"W": np.ones((1, 1), np.float32), "R": np.ones((1, 1), np.float32)}
    return RNN(simple_step, params, memory=1, inputs=1).schedule


def simple_step(x: np.ndarray, h: np.ndarray, params: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """A step of a simple RNN."""
    h = np.tanh(x @ params["W"] + h @ params["R"])
    return h, h


def health_text(health: Health) -> str:
    """The facts of a machine as text."""
    facts = [
        ("stepnet", health.stepnet),
        ("python", health.python),
        ("system", health.system),
        ("processor", health.processor),
        ("code for", health.targets[0]),
        *[("", f"also runs {target}") for target in health.targets[1:]],
        ("threads", f"{health.threads}: {health.threads_by}"),
        ("cache", health.cache),
    ]
    lines = [f"{name:<14}{value}".rstrip() for name, value in facts]
    lines += ["", "engines"]
    for name, reason in health.engines.items():
        says = (
            f"refuses: {reason}" if reason else "works" if name in AUTO else "works, where asked for by name"
        )
        lines.append(f"  {name:<12}{says}")
    for title, names in (("needed", NEEDED), ("optional", OPTIONAL)):
        lines += ["", title]
        lines += [f"  {name:<12}{health.packages[name] or 'not installed'}" for name in names]
    return "\n".join(lines)
