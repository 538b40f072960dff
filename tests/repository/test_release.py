"""A release: the text for a package index, what must be set before one is published, and the workflows."""

import re
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import index_readme
import pytest
import release_check
import yaml

import stepnet as sn

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WHOLE = {
    "authors": [{"name": "A"}],
    "urls": {"Source": "https://example.org/a", "Documentation": "https://b"},
}


def test_the_link_of_a_page_becomes_an_address():
    text = "[a](docs/b.md#c) ![d](docs/e.png) [f](https://g) [h](#i)"
    assert index_readme.with_whole_links(text, "https://example.org/s/", "1.2") == (
        "[a](https://example.org/s/blob/v1.2/docs/b.md#c) ![d](https://example.org/s/raw/v1.2/docs/e.png) "
        "[f](https://g) [h](#i)"
    )


def test_every_link_of_readme_is_to_a_file_that_is_there():
    paths = [
        link["path"].partition("#")[0]
        for link in index_readme.LINK.finditer((ROOT / "README.md").read_text("utf-8"))
    ]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    ("project", "changelog", "missing"),
    [
        (WHOLE, "## [0.1.0] - 2030-01-01", []),
        ({**WHOLE, "authors": []}, "## [0.1.0]", ["project.authors"]),
        ({**WHOLE, "urls": {}}, "## [0.1.0]", ["project.urls:"]),
        ({**WHOLE, "urls": {"Source": "https://a"}}, "## [0.1.0]", ["project.urls.Documentation"]),
        (WHOLE, "## [Unreleased]", ["## [0.1.0]"]),
    ],
)
def test_publishing_is_refused_while_something_is_unset(
    project: dict[str, Any], changelog: str, missing: list[str]
):
    problems = release_check.unset(project, changelog, "0.1.0")
    assert len(problems) == len(missing)
    assert all(part in problem for part, problem in zip(missing, problems, strict=True))


def test_nothing_is_published_in_the_name_of_nobody():
    """Who publishes and where the source is are for a person to write: none is invented."""
    assert "authors" not in PROJECT
    assert "urls" not in PROJECT


def test_files_of_a_wheel_are_checked(tmp_path: Path):
    wheel = tmp_path / "stepnet-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("stepnet/__init__.py", "stepnet/cli/data/japanese_vowels.parquet", "tests/a.py"):
            archive.writestr(name, "")
    problems = release_check.wheel_problems(wheel)
    assert [problem.split(" ", 1)[1] for problem in problems] == [
        "has tests/a.py, which is not of the package",
        *(f"lacks {name}" for name in release_check.NEEDED),
        "has the demo's stepnet/cli/data/japanese_vowels.parquet",
    ]


@pytest.mark.parametrize("answer", ["x86-64-v3 x86-64-v4", "", None])
def test_ready_made_code_of_a_wheel_is_checked(tmp_path: Path, answer: str | None):
    """A wheel whose modules say for which instruction sets there is code."""
    wheel = tmp_path / "stepnet-0.1.0-py3-none-any.whl"
    modules = {
        "disk/sources.py": "def contents(*folders):\n    return 1",
        "native/ready_made.py": "from types import SimpleNamespace\n"
        "FLAGS, WRITERS = ['x86-64-v3', 'x86-64-v4'], []\n"
        f"def ready_made(name):\n    return SimpleNamespace(sources=2) if {answer!r} else "
        "SimpleNamespace(sources=1)",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in modules.items() if answer is not None else ():
            archive.writestr(f"stepnet/compiler/{name}", text)
        archive.writestr("stepnet/__init__.py", "")
    problems = release_check.code_problems(wheel)
    if answer is None:
        assert problems == [f"{wheel.name} cannot be imported: {problems[0].partition(': ')[2]}"]
        assert "ModuleNotFoundError" in problems[0]
    else:
        lacks = f"{wheel.name} lacks ready-made code of its modules for"
        assert problems == [f"{lacks} {name}: make ready-made" for name in answer.split()]


def test_files_of_a_source_distribution_are_checked(tmp_path: Path):
    source = tmp_path / "stepnet-0.1.0.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        for name in ("LICENSE", "README.md", "CHANGELOG.md", "Makefile"):
            archive.add(ROOT / name, f"stepnet-0.1.0/{name}")
    problems = release_check.source_problems(source)
    assert problems == [f"{source.name} lacks src/stepnet/cli/data/japanese_vowels.parquet"]


def jobs(workflow: Path) -> dict[str, Any]:
    """The jobs of a workflow by name, with an empty matrix where one states none."""
    found: dict[str, Any] = yaml.safe_load(workflow.read_text("utf-8"))["jobs"]
    return {name: {"matrix": job.get("strategy", {}).get("matrix", {}), **job} for name, job in found.items()}


def commands(job: dict[str, Any]) -> Iterator[str]:
    """The commands of a job, each with every choice of its matrix."""
    for choice in product(*job["matrix"].values()):
        chosen = {
            f"${{{{ matrix.{name} }}}}": value for name, value in zip(job["matrix"], choice, strict=True)
        }
        for step in job["steps"]:
            command = step.get("run", "make help")
            for expression, value in chosen.items():
                command = command.replace(expression, value)
            yield command


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_make_targets_alone(workflow: Path):
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))
    for job in jobs(workflow).values():
        for command in commands(job):
            program, *words = command.split()
            assert program == "make"
            assert {word for word in words if "=" not in word} <= targets, command


def test_workflows_run_on_each_python_that_the_project_names():
    job = jobs(ROOT / ".github/workflows/check.yml")["test"]
    named = [line.rsplit(" ", 1)[1] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert job["matrix"]["python"] == named


def test_the_citation_has_the_version_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == sn.__version__
    assert citation["license"] == PROJECT["license"]
