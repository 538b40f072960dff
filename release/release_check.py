"""Checks of a release: what must be set before one is published, and what the built files hold.

    python release/release_check.py              the files in dist/, after `make dist`
    python release/release_check.py --publish    and that nothing is missing that an index shows

Prints each problem on a line, and exits with 1 if there is one.
"""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent
LARGEST_WHEEL = 4_000_000
"""The largest size of a wheel, in bytes. Some 1,150 modules are 3.0 MB, ready-made code is 0.3, and the
weights of the demo and the list of files are 0.1. The recordings of the demo would be 2.2 MB more.
"""
NEEDED = ("stepnet/py.typed",)
"""Files of a wheel that are no modules."""
READY_MADE = """
from stepnet.compiler.disk.sources import contents
from stepnet.compiler.native.ready_made import FLAGS, WRITERS, ready_made

made = {name: ready_made(name) for name in FLAGS}
print(*[name for name in made if made[name] is None or made[name].sources != contents(*WRITERS)])
"""
"""Program that prints the instruction sets without code that the modules beside it have written."""
RECORDINGS = ("japanese_vowels.parquet", "speaker_gru_outputs.safetensors")
"""The files of the demo that only the source distribution has: 2.2 MB."""


def unset(project: dict[str, Any], changelog: str, version: str) -> list[str]:
    """Returns what a person has to write before this version is published, a line each.

    project: the table `project` of pyproject.toml. changelog: the text of CHANGELOG.md. version: as in
    `stepnet.__version__`.
    """
    problems = [
        f"pyproject.toml has no project.{name}: {what}"
        for name, what in {
            "authors": "state who publishes stepnet",
            "urls": "state Source, the address of the repository, and Documentation",
        }.items()
        if not project.get(name)
    ]
    problems += [
        f"pyproject.toml has no project.urls.{name}"
        for name in ("Source", "Documentation")
        if project.get("urls") and name not in project["urls"]
    ]
    if f"## [{version}]" not in changelog:
        problems.append(f"CHANGELOG.md has no section '## [{version}] - DATE'")
    return problems


def wheel_problems(path: Path) -> list[str]:
    """Returns what is wrong with the files of a built wheel, a line each."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    foreign = [name for name in names if not name.startswith(("stepnet/", "stepnet-"))]
    problems = [f"{path.name} has {name}, which is not of the package" for name in foreign]
    problems += [f"{path.name} lacks {name}" for name in NEEDED if name not in names]
    problems += [f"{path.name} has the demo's {name}" for name in names if name.endswith(RECORDINGS)]
    if path.stat().st_size > LARGEST_WHEEL:
        problems.append(f"{path.name} has {path.stat().st_size:,} bytes, more than {LARGEST_WHEEL:,}")
    return problems


def code_problems(path: Path) -> list[str]:
    """Returns what is wrong with the ready-made code of a built wheel, a line each: each instruction set
    without code, or with code that other modules than those of the wheel have written.
    """
    with TemporaryDirectory() as folder, zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
        variables = {**os.environ, "PYTHONPATH": folder}
        command = [sys.executable, "-c", READY_MADE]
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    if done.returncode:
        return [f"{path.name} cannot be imported: {done.stderr.strip().splitlines()[-1]}"]
    lacks = "lacks ready-made code of its modules for"
    return [f"{path.name} {lacks} {name}: make ready-made" for name in done.stdout.split()]


def source_problems(path: Path) -> list[str]:
    """Returns what is wrong with the files of a source distribution, a line each."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = (
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "Makefile",
        "src/stepnet/cli/data/japanese_vowels.parquet",
    )
    return [f"{path.name} lacks {name}" for name in needed if name not in names]


def main() -> int:
    """Prints the problems of the files in `dist`, and with --publish those of the metadata."""
    wheels, sources = sorted((ROOT / "dist").glob("*.whl")), sorted((ROOT / "dist").glob("*.tar.gz"))
    problems = [problem for path in wheels for problem in wheel_problems(path) + code_problems(path)]
    problems += [problem for path in sources for problem in source_problems(path)]
    if len(wheels) != 1 or len(sources) != 1:
        problems.append(
            f"dist has {len(wheels)} wheels and {len(sources)} source distributions, not one of each"
        )
    if "--publish" in sys.argv[1:]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        version = wheels[0].name.split("-")[1] if wheels else "?"
        problems += unset(project, (ROOT / "CHANGELOG.md").read_text("utf-8"), version)
    print("\n".join(problems) or "nothing is missing")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
