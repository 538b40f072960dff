"""Tests of the engine and the demo on processors that this machine is not, by QEMU's emulator.

    aarch64        64-bit Arm: Python from Debian's packages for it, other packages from the package index
    dot-products   the same, with Arm's instructions for int8 and bfloat16
    sve            the same, with SVE of 256 bits besides
    nehalem        x86-64 without AVX and without fused multiply-add: this Python

    usage: emulated.py [names of processors, or aarch64 and nehalem] [-- arguments of pytest]

Under the emulator a process starts no other, so tests that start processes are not among it. `bits.py` prints
digests of results here and there: with fused multiply-add they are the same.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "emulated"
TESTS = (
    "test_in_place.py",
    "test_step_places.py",
    "test_llvm.py",
    "test_encoded_weights.py::test_products_have_the_bits_of_the_encoding",
)
ARM = {
    "aarch64": ("cortex-a57", TESTS),
    "dot-products": ("max,sve=off", TESTS[-1:]),
    "sve": ("max,sve256=on,sve512=off", TESTS[-1:]),
}
"""The names of processors of 64-bit Arm, by QEMU's names, with the tests that run on each."""
DEMO = """
from stepnet.cli import demo
demo.find_spec = lambda name: None
demo.ROUNDS, demo.WARM, demo.COUNTED = (1, 1), 0, 1
demo.demonstrate()
"""
"""The demo without PyTorch, which takes minutes to be imported there, and with one run to time."""
PACKAGES = ("python3", "libstdc++6", "zlib1g")
MODULES = (
    *("numpy", "llvmlite", "ml-dtypes", "jinja2", "rich", "safetensors", "typer", "pyarrow"),
    *("pytest", "hypothesis", "mpmath"),
)
WHEELS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux_2_17", "manylinux2014")


@dataclass(frozen=True)
class Machine:
    """An emulated processor. command: what runs Python on it. bits: STEPNET_CPU of the same bits here. tests:
    files of tests, or tests, that run on it; on one that runs all of them the demo runs too.
    """

    name: str
    command: tuple[str, ...]
    bits: str
    tests: tuple[str, ...] = TESTS


def needed(program: str, package: str) -> str:
    """The path of a program; ends this process with the package that has it if it is missing."""
    path = shutil.which(program)
    if path is None:
        sys.exit(f"{program} is missing, which Debian's package {package} has: apt-get install {package}")
    return path


def ran(*command: str, variables: Mapping[str, str] | None = None, shown: bool = False) -> str:
    """Returns the output of a command; ends this process if it fails. shown: the output is printed as it
    comes, so that a run that is stopped says how far it got, and none is returned.
    """
    stdout = None if shown else subprocess.PIPE
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(variables or {})}, stdout=stdout, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}: ended with code {done.returncode}")
    return done.stdout or ""


def arm_root() -> Path:
    """A folder with Debian's Python for 64-bit Arm and what stepnet and its tests need, made once."""
    root = FOLDER / "aarch64"
    if (root / "made").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    state = root / "state"
    for folder in (state / "lists/partial", root / "cache/archives/partial"):
        folder.mkdir(parents=True)
    (state / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::State": str(state),
        "Dir::State::status": str(state / "status"),
        "Dir::Cache": str(root / "cache"),
    }
    apt = [needed("apt-get", "apt"), "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
    ran(*apt, "update")
    ran(*apt, "install", "--yes", "--download-only", "--no-install-recommends", *PACKAGES)
    for package in sorted((root / "cache/archives").glob("*.deb")):
        ran(needed("dpkg", "dpkg"), "-x", str(package), str(root))
    versions = [path.name.removeprefix("python3.") for path in (root / "usr/lib").glob("python3.*")]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(root / "packages")]
    wheels = [f"--platform={name}_aarch64" for name in WHEELS]
    ran(*install, *wheels, "--only-binary=:all:", f"--python-version=3.{versions[0]}", *MODULES)
    (root / "made").touch()
    return root


def machines(names: Sequence[str]) -> list[Machine]:
    """The emulated processors of these names, ready to run."""
    found = list[Machine]()
    paths = [ROOT / "src", ROOT / "tests/support"]
    arms = [name for name in ARM if name in names]
    if arms:
        emulator, root = needed("qemu-aarch64", "qemu-user"), arm_root()
        python = next(
            path for path in sorted((root / "usr/bin").glob("python3.*")) if path.suffix[1:].isdigit()
        )
        path = os.pathsep.join(map(str, [*paths, root / "packages"]))
        for name in arms:
            processor, tests = ARM[name]
            command = emulator, "-cpu", processor, "-L", str(root), "-E", f"PYTHONPATH={path}", str(python)
            found.append(Machine(name, command, "", tests))
    if "nehalem" in names and platform.machine() == "x86_64":
        emulator, path = needed("qemu-x86_64", "qemu-user"), os.pathsep.join(map(str, paths))
        command = emulator, "-cpu", "Nehalem", "-E", f"PYTHONPATH={path}", sys.executable
        found.append(Machine("nehalem", command, "generic"))
    return found


def digests(command: Sequence[str], variables: Mapping[str, str]) -> dict[str, str]:
    """The digests of results, by `bits.py`."""
    with tempfile.TemporaryDirectory() as folder:
        output = ran(*command, "tests/processes/bits.py", folder, variables=variables)
    return json.loads(output)["bits"]


def main() -> None:
    """Runs tests, the demo and `bits.py` on each of the processors that the arguments name, or on all."""
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    names, rest = arguments[:cut] or ["aarch64", "nehalem"], arguments[cut + 1 :]
    source = {"PYTHONPATH": str(ROOT / "src"), "STEPNET_CACHE": "0"}
    different = list[str]()
    for machine in machines(names):
        print(f"== {machine.name}", flush=True)
        here = digests([sys.executable], {**source, "STEPNET_CPU": machine.bits})
        there = digests(machine.command, {"STEPNET_CACHE": "0"})
        off = [name for name, digest in there.items() if here[name] != digest]
        print(
            f"{len(there) - len(off)} of {len(there)} results have the bits that they have here",
            *off,
            sep="; ",
            flush=True,
        )
        different += off
        if machine.tests == TESTS:
            ran(*machine.command, "-c", DEMO, variables={"STEPNET_CACHE": "0"}, shown=True)
        files = [f"tests/compiler/targets/cpu/{name}" for name in machine.tests]
        ran(*machine.command, "-m", "pytest", "-v", "-pno:cacheprovider", *(rest or files), shown=True)
    if different:
        sys.exit(f"{len(different)} results have other bits than here")


if __name__ == "__main__":
    main()
