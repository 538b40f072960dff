"""Files that frameworks saved, in other kinds of files, against what the frameworks computed.

Of all pairs, so many that each file and each target occurs; `make test-peers` runs them all, in all
frameworks.
"""

import os
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tests.peers.corpus import results
from tests.peers.corpus.conversions import TARGETS, Conversion, conversions, judged, ours
from tests.peers.corpus.specimens import unpack

EVERY = 17
SAVED = results.load()
FILES = [f"{framework}/{file}" for framework, files in SAVED["files"].items() for file in files]
Found = dict[str, list[tuple[Conversion, str]]]


def in_this_process(command: list[str]) -> None:
    """Runs a script of Python as a process of its own would, without the seconds in which it imports."""
    _, script, *_ = command
    path = [str(Path(script).parent), *sys.path]
    with (
        patch.object(sys, "argv", command[1:]),
        patch.object(sys, "path", path),
        patch.dict(os.environ),
        warnings.catch_warnings(action="ignore"),
        torch.no_grad(),
    ):
        runpy.run_path(script, run_name="__main__")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The conversions of each file, and what is wrong with them by the frameworks that are in .venv."""
    folder, made, files = tmp_path_factory.mktemp("corpus"), list[Conversion](), list[str]()
    for framework in SAVED["files"]:
        source = folder / framework
        source.mkdir()
        for specimen in unpack(framework, source).made:
            file = f"{framework}/{specimen.file}"
            for target in TARGETS[FILES.index(file) % EVERY :: EVERY]:
                known = list(conversions(specimen, target, source, folder / f"written-{len(made)}"))
                made += known
                files += [file] * len(known)
    asked, _ = judged(made, folder, environments=(".venv",), run=in_this_process)
    found: Found = {}
    for place, (file, one) in enumerate(zip(files, made, strict=True)):
        found.setdefault(file, []).append((one, ours(one) or asked.get(place, "")))
    return found


@pytest.mark.parametrize("file", FILES)
def test_a_file_computes_the_same_in_other_kinds_of_files(converted: Found, file: str):
    for one, wrong in converted[file]:
        target, saved = one.target.title, SAVED["results"][file][one.target.title][one.layer]
        said = results.word(one.specimen.file, target, one.refusal, wrong, saved.removeprefix("run by "))
        asked = any(judge.environment == ".venv" for judge in one.judges)
        assert said == saved or (saved.startswith("wrong") and not asked and said.startswith("run by")), said


def test_every_kind_of_file_is_written(converted: Found):
    written = {one.target.title for known in converted.values() for one, _ in known if one.job is not None}
    assert written == {target.title for target in TARGETS}


def test_the_page_is_as_the_results_are():
    page = Path(__file__).parents[3] / "docs" / "corpus.md"
    made = "python tests/peers/corpus/results.py > docs/corpus.md"
    assert page.read_text(encoding="utf-8") == results.markdown(SAVED), f"run: {made}"


def test_tables_say_nothing_that_does_not_occur():
    words: Any = {
        word for file in SAVED["results"].values() for one in file.values() for word in one.values()
    }
    faults = {f"wrong {number}" for number in range(1, len(results.FAULTS) + 1)}
    assert words >= faults | {f"refused {letter}" for letter in results.REFUSALS}
