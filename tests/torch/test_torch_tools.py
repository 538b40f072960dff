"""Tools of PyTorch do with modules of stepnet what the table of docs/torch_tools.md says."""

from pathlib import Path

import pytest
import torch

from tests.torch.layer_cases import assert_same
from tests.torch.torch_tools import ELSEWHERE, KINDS, TOOLS, causes

pytestmark = pytest.mark.filterwarnings("ignore")  # those of PyTorch about its own tools

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "torch_tools.md"


def table() -> dict[str, list[str]]:
    """The cells of the table of tools, by tool."""
    _, _, rest = PAGE.read_text("utf-8").partition("| tool of PyTorch |")
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in rest.split("\n\n")[0].splitlines()
    ]
    return {row[0]: row[1:] for row in rows[2:]}


def test_the_table_has_every_tool():
    assert list(table()) == [*TOOLS, *ELSEWHERE]


def test_the_tests_of_the_other_rows_are_there():
    assert [file for file in ELSEWHERE.values() if not (ROOT / "tests" / file).exists()] == []


@pytest.mark.long(each=True)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_does_what_the_table_says(tool: str, kind: str):
    torch.manual_seed(0)
    cell = table()[tool][list(KINDS).index(kind)]
    if cell.startswith("works"):
        for found, right in TOOLS[tool](KINDS[kind]):
            assert_same({"": found}, {"": right})
        return
    words, dots, end = cell.removeprefix("refused: ").partition("...")
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of stepnet or of PyTorch; the words are checked
        TOOLS[tool](KINDS[kind])
    said = causes(raised.value)
    assert words.strip("* ") in said
    assert not dots or end.strip() in said
