"""Files whose tests take turns in CI are there: one that was moved would run whole each time, unnoticed."""

from pathlib import Path

import pytest
from costs import ALWAYS, COSTLY, costly_files, of_other_turns

ROOT = Path(__file__).resolve().parents[2]


def test_costly_files_are_there_and_costly():
    files = costly_files()
    assert [path for path in files if not (ROOT / path).is_file()] == []
    assert list(files) == sorted(files)
    assert min(files.values()) >= COSTLY
    assert not [path for path in files if path.startswith(ALWAYS)]


@pytest.mark.parametrize("turns", [1, 2, 4])
def test_each_test_has_one_turn_and_those_of_other_files_have_all(turns: int):
    names = [f"{path}::test[{number}]" for path in ("costly.py", "other.py") for number in range(40)]
    left = [of_other_turns(names, ["costly.py"], f"{place + 1}/{turns}") for place in range(turns)]
    for name in names:
        assert sum(name not in others for others in left) == (1 if name in names[:40] else turns)
    assert all(40 - len(others) >= 5 for others in left)
