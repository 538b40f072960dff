"""Programs of Paddle with convolutions and norms over channels that are changed to what is not read."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import stepnet.paddle
from stepnet.errors import ModelError

SAVED = Path(__file__).parents[1] / "conformance" / "whole" / "saved" / "paddle.tar.xz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of the corpus of whole models."""
    place = tmp_path_factory.mktemp("programs")
    with tarfile.open(SAVED) as archive:
        archive.extractall(place, filter="data")
    return place


REFUSED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "channels as the last axis": (
        "separator",
        "conv2d",
        {"data_format": "NHWC"},
        "its data_format is 'NHWC': channels are to be the second axis",
    ),
    "strides of three axes": (
        "separator",
        "conv2d",
        {"strides": [{"#": "0.a_i32", "D": 1}] * 3},
        "its strides, paddings and dilations are not of 2 axes",
    ),
    "zeros of both kinds": (
        "gated_convolutions",
        "conv2d",
        {"padding_algorithm": "SAME"},
        "its zeros follow from the length, and a pad3d put others around it",
    ),
    "zeros that follow from the results": (
        "upsampler",
        "conv2d_transpose",
        {"padding_algorithm": "SAME"},
        "its zeros follow from the number of results: state its paddings",
    ),
    "a transposed convolution over two axes": (
        "upsampler",
        "conv2d_transpose",
        {"strides": [{"#": "0.a_i32", "D": 2}] * 2},
        r"a transposed convolution is over the steps alone, not over axes of \[sequences, 8, steps, 1\]",
    ),
    "windows beyond the steps": (
        "crnn",
        "pool2d",
        {"ceil_mode": True},
        "its pooling_type is not max or avg, or its ceil_mode is set",
    ),
    "adaptive pooling to several places": (
        "crnn",
        "pool2d",
        {"adaptive": True},
        r"its adaptive pooling gives \[2, 2\] places: a model pools all steps to one",
    ),
    "means that count zeros": (
        "crnn",
        "pool2d",
        {"exclusive": False},
        "it pools steps and features, with zeros that count or in a program with lengths",
    ),
    "statistics of the batch": (
        "crnn",
        "batch_norm_",
        {"is_test": False, "use_global_stats": False},
        "it takes statistics of the batch: save the program for inference",
    ),
    "groups of different sizes": (
        "separator",
        "group_norm",
        {"groups": 3},
        r"3 groups of channels of \[sequences, 8, steps\] are not of one size",
    ),
    "a slope of each number": (
        "separator",
        "prelu",
        {"mode": "element"},
        "its mode is 'element': a slope is of all numbers or of a channel",
    ),
    "another mode of padding": (
        "gated_convolutions",
        "pad3d",
        {"mode": "mirror"},
        "its mode is 'mirror', not 'reflect' or 'replicate' or 'circular'",
    ),
}


def changed(path: Path, operation: str, attributes: dict[str, Any], to: Path) -> Path:
    """A program in which all operations of a kind have other attributes; its parameters stay."""
    document = json.loads(path.read_text())
    for each in document["program"]["regions"][0]["blocks"][0]["ops"]:
        for pair in each["A"] if each["#"] == f"1.{operation}" else ():
            if pair["N"] in attributes:
                pair["AT"]["D"] = attributes[pair["N"]]
    (to / path.name).write_text(json.dumps(document))
    (to / path.with_suffix(".pdiparams").name).write_bytes(path.with_suffix(".pdiparams").read_bytes())
    return to / path.name


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_with_the_operation(name: str, folder: Path, tmp_path: Path):
    program, operation, attributes, words = REFUSED[name]
    path = changed(folder / f"{program}.json", operation, attributes, tmp_path)
    with pytest.raises(ModelError, match=words) as raised:
        stepnet.paddle.load(path)
    assert f"({operation})" in str(raised.value)


def test_only_a_convolution_reads_steps_of_zeros(folder: Path, tmp_path: Path):
    path = folder / "gated_convolutions.json"
    document = json.loads(path.read_text())
    operations = document["program"]["regions"][0]["blocks"][0]["ops"]
    pad = next(place for place, each in enumerate(operations) if each["#"] == "1.pad3d")
    squeeze = next(each for each in operations[pad:] if each["#"] == "1.squeeze")
    squeeze["#"], squeeze["I"] = "1.tanh", squeeze["I"][:1]
    (tmp_path / path.name).write_text(json.dumps(document))
    (tmp_path / "gated_convolutions.pdiparams").write_bytes(path.with_suffix(".pdiparams").read_bytes())
    with pytest.raises(ModelError, match="steps of zeros are put around sequences, which only a convolution"):
        stepnet.paddle.load(tmp_path / path.name)
