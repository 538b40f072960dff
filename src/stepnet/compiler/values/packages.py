"""The packages that stepnet uses, with the lowest version of each that works, as in pyproject.toml."""

import platform
import re
import sys
from importlib.util import find_spec
from typing import Any

from stepnet.compiler.values.records import dataclass
from stepnet.errors import LibraryError, pip_command

NUMBERS = re.compile(r"\d+(\.\d+)*")


@dataclass(frozen=True)
class Package:
    """Package that stepnet uses, with its lowest version.

    name: its name on the package index.
    floor: the lowest version that works.
    extra: the extra of stepnet that installs it; None if it is always installed.
    along: packages that have to be upgraded with it where they are installed, with their lowest versions.
    nowhere: a kind of machine for which the package index has no version that works, by the names of `sys`
        and `platform`, and what to do there; None if there is no such kind.
    """

    name: str
    floor: str
    extra: str | None = None
    along: tuple[tuple[str, str], ...] = ()
    nowhere: tuple[tuple[str, str], str] | None = None

    def older(self, version: str) -> bool:
        """Tells whether an installed version is older than the lowest version that works.

        >>> package = Package("llvmlite", "0.46")
        >>> package.older("0.45.1"), package.older("0.46.0"), package.older("1.0")
        (True, False, False)
        """
        return numbers(version) < numbers(self.floor)

    def too_old(self, version: str) -> str:
        """Makes the sentence for messages that says that an installed version is too old."""
        return f"{self.name} {version} is installed, and stepnet needs {self.floor} or later"

    @property
    def command(self) -> str:
        """The pip command that installs a version of the package that works: by its extra of stepnet if it
        has one, else together with the installed packages that must be upgraded with it. On a machine for
        which there is none, what to do instead.

        >>> Package("rich", "13.7").command, Package("pyarrow", "19.0.1", "arrow").command
        ('pip install "rich>=13.7"', 'pip install "stepnet[arrow]"')
        """
        if self.nowhere is not None and self.nowhere[0] == (sys.platform, platform.machine()):
            return self.nowhere[1]
        if self.extra is not None:
            return pip_command(f"stepnet[{self.extra}]")
        along = [(name, floor) for name, floor in self.along if find_spec(name) is not None]
        return pip_command(*(f"{name}>={floor}" for name, floor in [(self.name, self.floor), *along]))


def numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers at the beginning of a version as a tuple to compare, without zeros at the end.

    >>> numbers("2.13.0+cpu"), numbers("0.46.0rc1"), numbers("unknown")
    ((2, 13), (0, 46), ())
    """
    match = NUMBERS.match(version)
    found = [int(number) for number in match[0].split(".")] if match else []
    while found and not found[-1]:
        found.pop()
    return tuple(found)


INTEL_MAC = (
    "the package index has no later one for Macs with Intel processors; build llvmlite from its source, or "
    "use stepnet on another machine, also to build libraries for C"
)
LLVMLITE = Package("llvmlite", "0.46", along=(("numba", "0.63"),), nowhere=(("darwin", "x86_64"), INTEL_MAC))
"""Older versions write pointers with types, which the LLVM of newer ones does not read."""
TYPER = Package("typer", "0.15.4")
"""Older versions take every flag of a command as given, with the click of today."""

PACKAGES = (
    Package("numpy", "2.0"),
    LLVMLITE,
    Package("ml-dtypes", "0.5"),
    Package("jinja2", "3.1"),
    Package("rich", "13.7"),
    Package("safetensors", "0.5"),
    TYPER,
    Package("pyarrow", "19.0.1", "arrow"),
    Package("ray", "2.51", "ray"),
    Package("torch", "2.7", "torch"),
    Package("keras", "3.8", "keras"),
    Package("h5py", "3.11", "keras"),
    Package("onnx", "1.17", "onnx"),
    Package("onnxruntime", "1.19", "onnx"),
    Package("msgpack", "1.0.8", "flax"),
)


def check_version(module: Any) -> None:
    """Raises `LibraryError`, with the command that installs another version, if the package of an imported
    module is older than the lowest version that works.
    """
    name = module.__name__.partition(".")[0]
    version = getattr(sys.modules.get(name), "__version__", None)
    for package in PACKAGES:
        if package.name.replace("-", "_") == name and isinstance(version, str) and package.older(version):
            raise LibraryError(f"{package.too_old(version)}: {package.command}")
