"""Operators and maps of formats: no format is named in the one, and no unknown operator in the other."""

import re
from pathlib import Path

import stepnet

SOURCE = Path(stepnet.__file__).parent
TABLE, _, RULES = (SOURCE / "importers" / "pointwise.py").read_text("utf-8").partition("\n}\n")
OPERATORS = re.findall(r"^    \"(\w+)\": PointwiseOperator\(", TABLE, flags=re.MULTILINE)
MAPS = (
    *("onnx/names.py", "paddle/names.py", "paddle/steps.py", "importers/aten/table.py"),
    *(f"layout/files/{name}/operators.py" for name in ("keras", "openvino", "tflite")),
    *(f"layout/files/keras/{name}.py" for name in ("activations", "operations", "rules")),
    *("layout/files/onnx/node.py", "layout/files/tflite/windows.py", "layout/files/openvino/windows.py"),
)
FORMATS = r"onnx|paddle|\baten\b|torch|keras|tflite|openvino"
MAKERS = r"\b(?:elementwise|variadic|unary|fixed|pair|along|compared|truths|of_bits|folded)\(\s*\"(\w+)\""


def texts() -> str:
    """The text of all maps."""
    return "\n".join((SOURCE / name).read_text("utf-8") for name in MAPS)


def test_no_operator_of_importers_knows_a_format() -> None:
    files = sorted((SOURCE / "importers").glob("*.py"))
    named = {file.name for file in files if re.search(FORMATS, file.read_text("utf-8"), re.IGNORECASE)}
    assert len(files) > 10
    assert not named


def test_every_name_of_an_elementwise_operator_is_in_the_table() -> None:
    names = re.findall(MAKERS, texts())
    assert len(names) > 100
    assert set(names) <= set(OPERATORS)


def test_every_elementwise_operator_has_a_name_in_a_format() -> None:
    assert len(OPERATORS) > 50
    used = set(re.findall(r"\"(\w+)\"", texts() + RULES))
    assert set(OPERATORS) <= used
