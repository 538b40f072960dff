"""Every file of the corpus in every kind of file, each run by its own framework: `make test-peers`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.peers.corpus import results
from tests.peers.corpus.conversions import TARGETS, Conversion, conversions, judged, ours
from tests.peers.corpus.specimens import unpack
from tests.peers.environments import ROOT


def everything(
    folder: Path, frameworks: Sequence[str] = results.FRAMEWORKS
) -> tuple[list[tuple[str, Conversion, str]], dict[str, Any]]:
    """Every conversion with its file and what is wrong with it; and who saved and who ran the files."""
    made: list[tuple[str, Conversion]] = []
    said: dict[str, Any] = {"files": {}, "sources": {}}
    for framework in frameworks:
        source = folder / framework
        source.mkdir()
        specimens = unpack(framework, source)
        said["sources"][framework] = specimens.versions
        said["files"][framework] = {one.file: one.what for one in specimens.made}
        for specimen in specimens.made:
            for target in TARGETS:
                known = conversions(specimen, target, source, folder / f"written-{len(made)}")
                made += [(f"{framework}/{specimen.file}", one) for one in known]
    asked, said["judges"] = judged([one for _, one in made], folder)
    rows = [(file, one, ours(one) or asked.get(place, "")) for place, (file, one) in enumerate(made)]
    return rows, said


def test_every_file_runs_in_the_framework_of_every_target(tmp_path: Path, request: pytest.FixtureRequest):
    judges = [judge for target in TARGETS for judge in target.judges]
    missing = sorted({judge.environment for judge in judges if not judge.python.exists()})
    if missing:
        pytest.skip(f"{', '.join(missing)} are missing: make peers")
    rows, saved = everything(tmp_path)
    saved["results"], unknown = results.words(rows)
    assert not unknown, "\n".join(unknown)
    if request.config.getoption("--save"):
        results.save(saved)
        (ROOT / "docs" / "corpus.md").write_text(results.markdown(saved), encoding="utf-8")
    assert saved["results"] == results.load()["results"], "run: make test-peers ARGS=--save"
