"""Other systems and processors: what can be seen of them here.

`bits.py` runs as it is, and as on Windows and on macOS: what these lack is taken away, and code is generated
for them. All three have the same bits.
"""

import json
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stepnet.compiler.targets.cpu import ARM, available_processors, baseline

SCRIPT = Path(__file__).resolve().parents[3] / "processes" / "bits.py"
ON_LINUX = sys.platform == "linux" and platform.machine() == "x86_64"
pytestmark = pytest.mark.skipif(not ON_LINUX, reason="the simulations are for Linux on x86-64")


def run(folder: Path, system: str = "", processor: str = "native", cache: str = "0") -> Any:
    """The value that the script prints."""
    folder.mkdir()
    variables = {
        "STEPNET_CPU": processor,
        "STEPNET_CACHE": cache,
        "STEPNET_CACHE_DIR": str(folder.parent / "cache"),
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), *[system] * bool(system)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The value that the script prints by itself, by the processor's name."""
    return cache(lambda name: run(tmp_path_factory.mktemp("here") / name, processor=name))


IN_USE = "another process is writing here; wait for it, or stop it"


@pytest.mark.long(every=3)
@pytest.mark.parametrize("processor", ["generic", "native"])
@pytest.mark.parametrize("system", ["windows", "macos"])
def test_code_of_other_systems_has_the_same_bits(
    tmp_path: Path, here: Any, system: str, processor: str
) -> None:
    """Code that is generated there, kept in the cache on disk, and read from there by another process."""
    first = run(tmp_path / "first", system, processor, cache="1")
    assert first["bits"] == here(processor)["bits"]
    assert first["files"] == here(processor)["files"] == ["0.parquet", "1.parquet"]
    refused = [said.partition("; if there is none, remove ")[0] for said in first["refused"]]
    assert refused == here(processor)["refused"] == [IN_USE, IN_USE]
    assert first["counts"]["stored"] > 0
    again = run(tmp_path / "again", system, processor, cache="1")
    assert again["bits"] == first["bits"]
    assert (again["counts"].get("stored", 0), again["counts"].get("misses", 0)) == (0, 0)


@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "arm64-apple-darwin24.1.0"])
def test_64_bit_arm_has_more_registers_and_converts_halves(triple: str) -> None:
    assert baseline(triple) == ARM
    assert (ARM.registers, ARM.has_half, ARM.has_fused, ARM.is_x86) == (24, True, True, False)
    assert str(ARM) == "generic (64-bit Arm, 128-bit vectors)"
    assert available_processors()[-1].registers == 16


MACH_O = [0xFEEDFACF, 0x0100000C]
"""The first words of an object file of macOS: the number of the format, and that of 64-bit Arm."""


def test_code_for_apples_processors_is_generated(tmp_path: Path) -> None:
    """Nothing here runs it. Libraries for C are built there for a processor that is named."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT.with_name("apple.py")), str(tmp_path)],
        env={**os.environ, "STEPNET_CACHE": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made = json.loads(done.stdout)
    assert made["generated"]
    assert all(head == MACH_O for head in made["generated"])
    assert made["refused"].endswith(
        "and this is darwin on arm64: give --target (Python: target=) one of x86-64-v3, x86-64-v4, aarch64"
    )
