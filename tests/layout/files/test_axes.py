"""Operators between layers of OpenVINO and Core ML are understood by their effect on the axes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import refusal, stepnet
from containers import unpacked

from stepnet.layout.files import read
from stepnet.layout.files.axes import Axes

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of what a script beside the archives made."""
    folder = tmp_path_factory.mktemp("axes")

    def opened(name: str) -> Path:
        if not (folder / name).exists():
            unpacked(DATA / f"{name}_axes.tar.xz", folder / name)
        return folder / name

    return opened


BETWEEN = {  # by kind and ending: what keeps the axes, and what does not
    ("openvino", ".xml"): (
        ("squeezed", "reshaped", "by_numbers", "there_and_back", "both"),
        ("swapped", "rows_as_steps", "both_by_features", "both_not_turned"),
    ),
    ("coreml", ".mlpackage"): (("there_and_back", "expanded"), ("swapped", "rows_as_steps")),
}
CASES = [
    (kind, f"{name}{ending}", kept)
    for (kind, ending), both in BETWEEN.items()
    for kept, names in zip((True, False), both, strict=True)
    for name in names
]


@pytest.mark.parametrize(("kind", "file", "kept"), CASES)
def test_layers_are_a_row_where_the_axes_are_kept(
    made: Callable[[str], Path], tmp_path: Path, kind: str, file: str, kept: bool
):
    source, out = made(kind) / file, tmp_path / "out.onnx"
    model = read(source)
    first, second = model.modules
    assert second.follows == (first.name if kept else "")
    if kept:
        assert stepnet("convert", source, "--to", "onnx", "-o", out, "--verify")[0] == 0
        assert not model.layers
    else:
        said = refusal("convert", source, "--to", "onnx", "-o", out)
        assert "the file says that it takes something else, or more, which would be lost" in said
        assert any("transpose" in one.lower() or "reshape" in one.lower() for one in model.layers)


def test_sequences_that_are_shorter_than_the_input_are_accounted_for(
    made: Callable[[str], Path], tmp_path: Path
):
    source, out = made("openvino") / "short.xml", tmp_path / "out.pt"
    said = refusal("convert", source, "--to", "torch", "-o", out)
    assert "short has short_lengths, which openvino.lstm does not have" in said
    assert stepnet("convert", source, "--to", "torch", "-o", out, "--drop", "short_lengths")[0] == 0


OUTPUTS = Axes.of("BDTH", {"B": 4, "D": 2, "T": 5, "H": 3})
MOVED: dict[str, tuple[Axes | None, tuple[str, ...] | None]] = {
    "copied": (OUTPUTS.reshaped([0, 0, -1], copies=True), ("B", "D", "TH")),
    "numbers": (OUTPUTS.reshaped([8, 15]), ("BD", "TH")),
    "from behind": (OUTPUTS.reshaped([-1, 5, 3]), ("BD", "T", "H")),
    "copied behind": (OUTPUTS.reshaped([-1, 2, 0, 0], copies=True), ("B", "D", "T", "H")),
    "of length 1": (OUTPUTS.reshaped([1, 4, -1, 1]), ("", "B", "DTH", "")),
    "within an axis": (OUTPUTS.reshaped([6, -1]), None),
    "too few": (OUTPUTS.reshaped([4, 2]), None),
    "too many": (OUTPUTS.reshaped([4, 2, 5, 3, 7]), None),
    "no order": (OUTPUTS.transposed([0, 1, 1, 2]), None),
    "from the end": (OUTPUTS.transposed([-1, 0, 1, 2]), ("H", "B", "D", "T")),
    "squeezed steps": (OUTPUTS.squeezed([2]), None),
    "one way": (Axes.of("BDTH", {"D": 1}).squeezed([1]), ("B", "T", "H")),
    "all of length 1": (Axes.of("BDTH", {"D": 1}).squeezed([]), ("B", "T", "H")),
    "expanded at one place": (OUTPUTS.expanded([0, 0]), None),
    "expanded": (OUTPUTS.expanded([0, -1]), ("", "B", "D", "T", "H", "")),
}


@pytest.mark.parametrize("name", MOVED)
def test_axes(name: str):
    axes, expected = MOVED[name]
    assert (axes and axes.axes) == expected
