"""The graphs of ONNX files that come from the disk cache: those of the files, bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import stepnet
from constants import Constants
from zoo import rnn_of, uniform

import stepnet as sn
from stepnet.errors import FileError, InputError
from stepnet.onnx import load, save
from tests.onnx.onnx_models import model_of, node, onnx, value

pytestmark = pytest.mark.usefixtures("cache")


def is_kept(graph: sn.Graph) -> bool:
    """Tells whether a graph came from the cache."""
    return hasattr(graph.model, "known_net")


def written(path: Path, seed: int = 0) -> Path:
    """A file with a recurrence of 3 inputs and 4 units, and a layer above it."""
    rnn, weights = rnn_of("gru", 3, 4, seed=seed), uniform(4, 2, seed=seed)
    save(sn.Graph(lambda x, params: sn.softmax(rnn(x)[0] @ weights), inputs=3), str(path), force=True)
    return path


X = uniform(2, 5, 3, seed=1)


def test_a_file_is_parsed_once_and_has_the_same_bits_and_names(tmp_path: Path, cache: Path) -> None:
    file = written(tmp_path / "m.onnx")
    first, second = load(file), sn.load(str(file))
    assert (is_kept(first), is_kept(second)) == (False, True)
    assert len(list(cache.glob("*.graph"))) == 1
    np.testing.assert_array_equal(first(X), second(X), strict=True)
    assert len(list(cache.glob("*.schedule"))) == 2  # one by the net, one by the file
    assert (first.file_names, first.name, str(first.explain())) == (
        second.file_names,
        second.name,
        str(second.explain()),
    )
    chunks = [each.stream().step(X[:1, 0]) for each in (first, second)]
    np.testing.assert_array_equal(*chunks, strict=True)


def test_what_needs_the_operators_reads_the_file_again_from_the_same_bytes(tmp_path: Path) -> None:
    file = written(tmp_path / "m.onnx")
    first, second = load(file), load(file)
    file.unlink()

    def around(graph: sn.Graph) -> Any:
        return sn.Graph(lambda x, params: 2 * graph(x), inputs=3)(X)

    expected = around(first)
    assert "original" not in vars(second.model)
    np.testing.assert_array_equal(expected, around(second), strict=True)
    assert "original" in vars(second.model)


def test_inputs_of_other_dtypes_are_refused_alike(tmp_path: Path) -> None:
    file, messages = written(tmp_path / "m.onnx"), list[str]()
    for _ in range(2):
        with pytest.raises(InputError) as caught:
            load(file)(X.astype("float64"))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


CHANGES: dict[str, Callable[[Path], Any]] = {
    "other weights": lambda file: load(written(file, seed=1)),
    "another name": lambda file: load(written(file.with_name("n.onnx"))),
    "axes": lambda file: load(file, axes={"x": "NT"}),
    "steps": lambda file: load(file, steps="any"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_file_and_other_arguments_are_other_entries(change: str, tmp_path: Path, cache: Path) -> None:
    file = written(tmp_path / "m.onnx")
    load(file)
    assert not is_kept(CHANGES[change](file))
    assert len(list(cache.glob("*.graph"))) == 2


def test_a_damaged_entry_is_made_again(tmp_path: Path, cache: Path) -> None:
    file = written(tmp_path / "m.onnx")
    expected = load(file)(X)
    (entry,) = cache.glob("*.graph")
    data = bytearray(entry.read_bytes())
    data[-1] ^= 1
    entry.write_bytes(data)
    again = load(file)
    np.testing.assert_array_equal(again(X), expected, strict=True)
    assert (is_kept(again), is_kept(load(file))) == (False, True)


def test_a_file_for_one_number_of_steps_is_parsed_each_time(tmp_path: Path, cache: Path) -> None:
    model = model_of([node("Add", "x x")], [value("x", "batch", 5, 3)], [value("y", "batch", 5, 3)])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert not any(is_kept(load(tmp_path / "m.onnx", axes={"x": "NT"})) for _ in range(2))
    assert not list(cache.glob("*.graph"))


def test_weights_in_other_files_are_read_each_time(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "m.onnx"
    model = onnx.load(written(tmp_path / "whole.onnx"))
    onnx.save_model(model, file, save_as_external_data=True, location="weights", size_threshold=0)
    assert not any(is_kept(load(file)) for _ in range(2))
    assert not list(cache.glob("*.graph"))


def test_large_files_are_not_in_the_cache(tmp_path: Path, constants: Constants) -> None:
    file = written(tmp_path / "m.onnx")
    load(file)
    assert is_kept(load(file))
    constants("stepnet.compiler.disk.model_files", MOST_BYTES=file.stat().st_size - 1)
    assert not is_kept(load(file))


def test_a_limit_on_memory_holds_for_a_file_that_is_in_the_cache(tmp_path: Path) -> None:
    file = written(tmp_path / "m.onnx")
    assert [is_kept(load(file)) for _ in range(2)] == [False, True]
    code, _, errors = stepnet("--most", "10", "explain", str(file))
    assert code == 1
    assert "it would fill more than 10 bytes" in errors


def test_errors_are_those_of_reading_the_file(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    for path, message in (("m.onnx", "not a complete ONNX model"), ("none.onnx", "there is no such file")):
        with pytest.raises(FileError, match=message):
            sn.load(tmp_path / path)
    with pytest.raises(InputError, match="there is only 'any'"):
        sn.load(tmp_path / "m.onnx", steps="all")


def test_a_schedule_is_found_by_the_file_without_the_work_that_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "m.onnx")
    expected = load(file)(X)
    kept = load(file)
    with monkeypatch.context() as other:
        other.setattr("stepnet.compiler.plan.passes.absorb.absorb", None)
        np.testing.assert_array_equal(kept(X), expected, strict=True)
    assert str(kept.schedule.net) == str(load(file, axes={"x": "NT"}).schedule.net)  # another key
    assert kept(X, engine="interpret").shape == expected.shape  # of other passes: not this schedule
